"""Files: a reader sees whole things, a writer that fails leaves what was there, one writer at a time."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kill_harness import environment
from pivotrl.errors import BusyError, ConfigError, InputError, MissingError, StorageError
from pivotrl.ledger import Ledger
from pivotrl.run_directory import RunDirectory, _refuse_links, check_name, hold_to
from pivotrl.storage import (
    FileLock,
    PartWriter,
    complete_lines,
    content_hash,
    decode,
    dump_json,
    file_hash,
    read_json,
    read_jsonl,
    replace_directory,
    write_atomic,
    write_json,
    write_jsonl,
)
from pivotrl.types import Pivot, Usage

PIVOTS = [Pivot(candidate_id=f"desk:{number}@2", profile="base") for number in range(3)]


def test_json_of_our_own_artefacts() -> None:
    assert dump_json(PIVOTS[0]) == b'{"candidate_id":"desk:0@2","profile":"base","weight":1.0}'
    assert dump_json({"b": "é", "a": Path("x/y")}) == '{"b":"é","a":"x/y"}'.encode()
    assert decode(dump_json(PIVOTS[1]), Pivot, "here") == PIVOTS[1]


def test_hashes_name_content(tmp_path: Path) -> None:
    assert content_hash({"a": 1, "b": 2}) == content_hash({"b": 2, "a": 1}) != content_hash({"a": 2, "b": 1})
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    assert file_hash(path) == "ba7816bf8f01cfea"  # the published SHA-256 of "abc"


def test_written_records_come_back(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "down" / "pivots.jsonl"
    write_jsonl(path, PIVOTS)
    assert list(read_jsonl(path, Pivot)) == PIVOTS
    assert [line for _, line in complete_lines(path)] == [dump_json(pivot) + b"\n" for pivot in PIVOTS]
    write_json(path, PIVOTS[0])
    assert read_json(path, Pivot) == PIVOTS[0]
    assert list(path.parent.iterdir()) == [path]


def test_reading_says_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "pivots.jsonl"
    with pytest.raises(MissingError, match=r"pivots\.jsonl is not there; run `pivotrl select` first"):
        list(read_jsonl(path, Pivot, "select"))
    with pytest.raises(MissingError, match=r"pivots\.jsonl is not there; check the path"):
        read_json(path, Pivot)
    path.write_bytes(dump_json(PIVOTS[0]) + b'\n{"candidate_id":"x","profile":7}\n')
    with pytest.raises(InputError, match=r"pivots\.jsonl:2: profile: .*string.*; restore the file"):
        list(read_jsonl(path, Pivot))
    path.write_bytes(b"\n")
    with pytest.raises(InputError, match=r"pivots\.jsonl:1: record"):
        list(read_jsonl(path, Pivot))


def test_a_rewrite_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file.jsonl"
    write_jsonl(path, PIVOTS)
    before = path.read_bytes()

    def broken():
        yield b"half"
        raise OSError(28, "No space left on device")

    def missing():
        yield b"half"
        raise MissingError("the input is gone")

    def stopped():
        yield b"half"
        raise KeyboardInterrupt

    with pytest.raises(StorageError, match="the disk is full; what was written before is intact"):
        write_atomic(path, broken())
    assert path.read_bytes() == before
    with pytest.raises(MissingError, match=r"^the input is gone$"):
        write_atomic(path, missing())
    with pytest.raises(KeyboardInterrupt):
        write_atomic(path, stopped())
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(StorageError, match="is a file, not a folder"):
        write_atomic(path / "below", b"")
    with pytest.raises(StorageError, match="name too long; check the path"):
        write_atomic(tmp_path / ("x" * 300) / "below", b"")


def test_folders_that_another_process_removes_are_no_fault_of_a_run(tmp_path: Path) -> None:
    stop, deep = threading.Event(), tmp_path / "train" / "x"

    def rewrite() -> None:
        while not stop.is_set():
            for name in "abc":
                (deep / name / "y" / "z").mkdir(parents=True)
            for name in "abc":
                shutil.rmtree(deep / name)

    writer = threading.Thread(target=rewrite)
    writer.start()
    try:
        for _ in range(500):
            _refuse_links.__wrapped__(tmp_path)
    finally:
        stop.set()
        writer.join()


def test_a_reader_never_sees_half(tmp_path: Path) -> None:
    path = tmp_path / "file"
    sizes = [10, 3_000_000]
    write_atomic(path, b"x" * sizes[0])
    stop = threading.Event()

    def rewrite() -> None:
        for turn in range(40):
            write_atomic(path, (b"x" * (sizes[turn % 2] // 10) for _ in range(10)))
        stop.set()

    writer = threading.Thread(target=rewrite)
    writer.start()
    seen = set()
    while not stop.is_set():
        seen.add(len(path.read_bytes()))
    writer.join()
    assert seen <= set(sizes)


@given(st.binary(max_size=40))
def test_only_whole_lines_count(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "lines"
    path.write_bytes(data)
    found = list(complete_lines(path))
    whole = data[: data.rfind(b"\n") + 1]
    assert b"".join(line for _, line in found) == whole
    assert [end for end, _ in found] == [place + 1 for place, byte in enumerate(data) if byte == ord("\n")]
    with PartWriter(path) as part:
        part.keep_lines()
    assert path.read_bytes() == whole


def test_keep_lines_looks_back_as_far_as_it_must(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    for long in (4095, 4096, 4097, 20_000):
        path.write_bytes(b"first\n" + b"x" * long)
        with PartWriter(path) as part:
            part.keep_lines()
        assert path.read_bytes() == b"first\n"


def test_no_lines_where_there_is_no_file(tmp_path: Path) -> None:
    assert list(complete_lines(tmp_path / "nowhere")) == []


def test_part_writer_appends_and_cuts(tmp_path: Path) -> None:
    path = tmp_path / "parts" / "part.jsonl"
    with PartWriter(path) as part:
        part.append(PIVOTS[:2])
        size = path.stat().st_size
        part.append(PIVOTS[2:])
        part.append([])
    assert list(read_jsonl(path, Pivot)) == PIVOTS
    with PartWriter(path) as part:
        part.keep(size)
        part.append(PIVOTS[2:])
    assert list(read_jsonl(path, Pivot)) == PIVOTS
    with pytest.raises(StorageError, match="Is a directory"):
        PartWriter(tmp_path)


APPEND_TOO_MUCH = """
import sys
from pathlib import Path
from pivotrl.errors import StorageError
from pivotrl.storage import PartWriter
with PartWriter(Path(sys.argv[1])) as part:
    part.append([{"n": "small"}])
    for size in (100_000, 9_000):
        try:
            part.append([{"n": "x" * size}, {"n": "y"}])
        except StorageError as error:
            print(error)
    part.append([{"n": "again"}])
"""


def test_a_unit_that_does_not_fit_is_as_if_it_had_never_begun(tmp_path: Path) -> None:
    path = tmp_path / "part.jsonl"
    path.write_bytes(b'{"n":"old"}\n')
    done = subprocess.run(
        [sys.executable, "-c", APPEND_TOO_MUCH, str(path)],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192)),
    )
    assert done.stdout.count("the disk is full; what was written before is intact") == 2
    assert [json.loads(line)["n"] for line in path.read_bytes().splitlines()] == ["old", "small", "again"]


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    lock = tmp_path / "folder" / ".lock"
    with (
        FileLock(lock),
        pytest.raises(BusyError, match=rf"folder is being written by process {os.getpid()}; wait for it"),
        FileLock(lock),
    ):
        pass
    with FileLock(lock):
        assert lock.read_text() == str(os.getpid())
    assert lock.read_bytes() == b""


def test_a_lock_that_waits(tmp_path: Path) -> None:
    lock, held = tmp_path / ".lock", threading.Event()
    release = threading.Event()

    def hold() -> None:
        with FileLock(lock):
            held.set()
            release.wait(10)

    other = threading.Thread(target=hold)
    other.start()
    held.wait(10)
    with pytest.raises(BusyError), FileLock(lock, wait=0.05):
        pass
    threading.Timer(0.05, release.set).start()
    with FileLock(lock, wait=10):
        pass
    other.join()


def test_a_process_that_waits_says_for_whom(tmp_path: Path) -> None:
    """One that is suspended while it holds the lock."""
    path = tmp_path / ".plan.lock"
    code = "import sys, pathlib; from pivotrl.storage import FileLock\n"
    code += "with FileLock(pathlib.Path(sys.argv[1]), wait=60): print(flush=True); input()"
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    start = partial(subprocess.Popen, [sys.executable, "-c", code, str(path)], env=environment(), **pipes)
    with start() as first:
        first.stdout.readline()
        os.kill(first.pid, signal.SIGSTOP)
        with start() as second:
            said = second.stderr.readline().decode()
            assert said == f"{path}: waiting for process {first.pid}, which holds it, up to 60 s\n"
            os.kill(first.pid, signal.SIGCONT)
            first.stdin.close()
            assert second.communicate(b"\n") == (b"\n", b"")
            assert second.returncode == 0


def test_a_folder_is_replaced_whole(tmp_path: Path) -> None:
    made, target = tmp_path / ".making", tmp_path / "model"
    for text in ("one", "two"):
        made.mkdir()
        (made / text).write_text(text)
        (tmp_path / ".model.old").mkdir(exist_ok=True)  # as a kill leaves it
        replace_directory(made, target)
        assert [path.name for path in target.iterdir()] == [text]
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    with pytest.raises(StorageError, match="No such file"):
        replace_directory(made, target / "deep" / "down")


@pytest.mark.parametrize("name", ["base", "a-b_c.1", "Größe", "n" * 100])
def test_good_names(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize("name", ["", ".", "..", ".x", "a/b", "a\\b", "a b", "a\n", "a\0", "n" * 101, "é" * 51])
def test_bad_names(name: str, tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    for place in (run.profile, run.pivots, run.train, run.evaluation):
        with pytest.raises(ConfigError, match="use letters, digits"):
            place(name)


def test_stages_are_kept_in_order_whatever_the_order_of_writing(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    with pytest.raises(MissingError, match="pivotrl ingest"):
        run.stages()
    run.record_stage("try", "base", {"counts": {"pivot": 3}, "first": PIVOTS[0]})
    run.record_stage("first", "ingest", {"path": tmp_path})
    once = run.manifest.read_bytes()
    run.record_stage("try", "base", {"counts": {"pivot": 3}, "first": PIVOTS[0]})
    assert run.manifest.read_bytes() == once
    assert list(run.stages()) == ["first/ingest", "try/base"]
    assert run.stages()["try/base"]["first"] == {"candidate_id": "desk:0@2", "profile": "base", "weight": 1.0}


def test_stages_recorded_at_once_are_all_there(tmp_path: Path) -> None:
    run, ledger = RunDirectory(tmp_path), Ledger(tmp_path / "ledger.jsonl")

    def record(number: int) -> None:
        for turn in range(5):
            run.record_stage("try", f"{number}-{turn}", {})
            ledger.record("try", str(number), str(turn), Usage(rollouts=1))

    writers = [threading.Thread(target=record, args=(number,)) for number in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(run.stages()) == 20
    assert {key: usage.rollouts for key, usage in ledger.totals().items()} == {("try", str(n)): 5 for n in range(4)}


def test_the_ledger_survives_a_torn_line_and_counts_a_unit_once(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.record("profile", "base", "a", Usage(rollouts=4))
    ledger.record("profile", "base", "b", Usage(rollouts=4))
    os.truncate(ledger.path, ledger.path.stat().st_size - 10)
    assert ledger.totals() == {("profile", "base"): Usage(rollouts=4)}
    ledger.record("profile", "base", "b", Usage(rollouts=5))
    ledger.record("profile", "base", "a", Usage(rollouts=3))
    assert ledger.totals() == {("profile", "base"): Usage(rollouts=8)}
    assert len(ledger.path.read_bytes().splitlines()) == 3


def test_begun_otherwise_is_said_without_hashes(tmp_path: Path) -> None:
    path, plan = tmp_path / "plan.json", {"seed": 1, "verifier_id": "0" * 16, "loss": {"beta": 0.5}}
    hold_to(path, plan)
    hold_to(path, plan)
    changed = {"seed": 2, "verifier_id": "f" * 16, "loss": {"beta": 0.25}}
    with pytest.raises(ConfigError) as caught:
        hold_to(path, changed, hints={"seed": "try a die", "loss": "never said"})
    said = "(seed: 1 before, 2 now, verifier, loss.beta: 0.5 before, 0.25 now)"
    assert said in str(caught.value)
    assert str(caught.value).endswith("; try a die")
    hold_to(path, changed, free=("seed", "verifier_id", "loss.beta"))


def test_begun_by_a_version_that_knew_less(tmp_path: Path) -> None:
    hold_to(tmp_path / "plan.json", {"seed": 1, "loss": {"beta": 1}})
    with pytest.raises(ConfigError, match=r"another version of pivotrl, which did not know loss\.kl, cap;"):
        hold_to(tmp_path / "plan.json", {"seed": 2, "loss": {"beta": 1, "kl": "k2"}, "cap": None})
