"""Sources: every container gives the same records as the plain file, folders that are one set, nothing escapes."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
import zlib
from itertools import product
from pathlib import Path

import pytest
import zstandard

from pivotrl.candidates import INDEX_NAME, CandidateStore
from pivotrl.errors import InputError, MissingError, PivotRLError
from pivotrl.ingest_result import IngestResult
from pivotrl.ingestion import PART, IngestConfig, ingest
from pivotrl.intake import IntakeSettings, Share, read_all
from pivotrl.run_directory import RunDirectory
from pivotrl.trajectories import Input, Taken, cut, read_input, read_path
from pivotrl.trajectories.folders import find
from pivotrl.trajectories.sources import File, document, members, read_file
from test_ingestion import chat, run_ingest, write
from test_readers import SIM_MESSAGES, TAU2

LINES = b"".join(json.dumps(chat(n, task_id=n)).encode() + b"\n" for n in range(3))


def tar(mode: str, *names: str, content: bytes = LINES) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def zipped(*names: str, content: bytes = LINES) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            archive.writestr(name, content)
    return buffer.getvalue()


def tasks(result: IngestResult, run: Path) -> list[str]:
    """Of all trajectories, in the order of the run."""
    lines = (run / "trajectories" / "part-00000.jsonl").read_text().splitlines()
    assert len(lines) == result.trajectories
    return [json.loads(line)["task_id"] for line in lines]


CONTAINERS = {
    "plain": LINES,
    "gz": gzip.compress(LINES),
    "xz": lzma.compress(LINES),
    "two of xz": lzma.compress(LINES[:10]) + b"\0" * 8 + lzma.compress(LINES[10:], preset=9) + b"\0" * 4,
    "bz2": bz2.compress(LINES),
    "zst": zstandard.compress(LINES),
    "two frames of zst": zstandard.compress(LINES[:10]) + zstandard.compress(LINES[10:]),
    "zip": zipped("data.jsonl"),
    "tar": tar("w", "data.jsonl"),
    "tar.gz": tar("w:gz", "data.jsonl"),
    "tar.zst": zstandard.compress(tar("w", "data.jsonl")),
    "zip of gz": zipped("data.jsonl.gz", content=gzip.compress(LINES)),
}


@pytest.mark.parametrize("kind", CONTAINERS)
def test_containers_are_told_by_content(tmp_path: Path, kind: str) -> None:
    (tmp_path / "data").write_bytes(CONTAINERS[kind])
    result = run_ingest(tmp_path, tmp_path / "data")
    assert tasks(result, tmp_path / "run") == ["0", "1", "2"]
    assert (result.assistant_turns, result.refused) == (6, [])


def test_standard_input(tmp_path: Path) -> None:
    code = "import sys; from pivotrl.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "ingest", "-", "--run", str(tmp_path / "run")]
    done = subprocess.run(command, input=gzip.compress(LINES), capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"3 trajectories from 1 file," in done.stdout
    assert b"read 1 file as openai_chat (keys 'messages', 'task_id')" in done.stdout
    (row, *_) = (tmp_path / "run" / "trajectories" / "index.jsonl").read_text().splitlines()
    assert json.loads(row)["id"] == "stdin:1"


def test_parquet_loses_the_nulls_that_it_pads_with(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    calls = [{"name": "f", "arguments": {"a": 1, "b": None}}, {"name": "g", "arguments": {"a": None, "b": [None, "x"]}}]
    rows = [{"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": calls}]}] * 20
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "data")
    got = list(read_path(tmp_path / "data"))
    assert [t.source.line for t in got] == list(range(1, 21))
    assert [call.arguments for call in got[3].messages[1].tool_calls] == ['{"a": 1}', '{"b": [null, "x"]}']
    (tmp_path / "data.zip").write_bytes(zipped("a.parquet", content=(tmp_path / "data").read_bytes()))
    assert run_ingest(tmp_path, tmp_path / "data.zip").trajectories == 20
    (tmp_path / "json").write_text(json.dumps({"messages": [{"role": "assistant", "tool_calls": calls}]}))
    (plain,) = read_path(tmp_path / "json")
    assert plain.messages[0].tool_calls[0].arguments == '{"a": 1, "b": null}'


def test_a_data_set_of_the_hub_comes_from_the_local_cache(tmp_path: Path) -> None:
    snapshot = tmp_path / "hub" / "datasets--me--mine" / "snapshots" / ("0" * 40)
    write(snapshot / "data" / "train.jsonl", chat(1), chat(2))
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("0" * 40)
    code = (
        "from pivotrl.cli import main; [print(main(['ingest', f'hf:me/{n}', '--run', n])) for n in ('mine', 'other')]"
    )
    environment = os.environ | {"HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, check=True, text=True, env=environment, cwd=tmp_path)
    assert done.stdout.startswith("2 trajectories from 1 file,")
    assert done.stdout.endswith("\n0\n2\n")
    assert done.stderr.startswith("error: hf:me/other: not in the local cache, and the hub does not give it (")
    assert done.stderr.count("\n") == 1


def test_names_in_archives_are_labels_and_nothing_else(tmp_path: Path) -> None:
    names = ("../../evil.jsonl", "/abs.jsonl", "a\x1b[31m.jsonl", ".hidden", "__MACOSX/x.jsonl", "dir/ok.jsonl")
    before = set(tmp_path.parent.rglob("*"))
    for kind, data in {"zip": zipped(*names), "tgz": tar("w:gz", *names)}.items():
        path = tmp_path / kind
        path.write_bytes(data)
        shown = [file.label for file in members(path, kind)]
        assert shown == [
            f"{kind}/{name}" for name in ("../../evil.jsonl", "/abs.jsonl", "a?[31m.jsonl", "dir/ok.jsonl")
        ]
        result = run_ingest(tmp_path, path, name=f"run-{kind}")
        assert (result.files, result.trajectories, result.copies) == (4, 12, 9)
    made = {path for path in set(tmp_path.parent.rglob("*")) - before if path.suffix == ".jsonl"}
    assert {path.parent.name for path in made} <= {"run-zip", "run-tgz", "trajectories"}


def test_archives_in_a_folder_are_read_or_refused_with_their_reason(tmp_path: Path) -> None:
    for name, data in {
        "a.zip": zipped("x.jsonl", "y.jsonl"), "b.tgz": tar("w:gz", "x.jsonl"), "cut.zip": zipped("x.jsonl")[:-9],
        "empty.zip": zipped(), "nested.zip": zipped("n.zip", content=zipped("x.jsonl")), "plain.jsonl": LINES,
    }.items():  # fmt: skip
        write(tmp_path / "in" / name).write_bytes(data)
    result = run_ingest(tmp_path, tmp_path / "in")
    assert (result.files, result.trajectories) == (4, 12)
    assert result.refused == [
        "cut.zip: cannot be read (File is not a zip file); check the file and its permissions",
        "empty.zip: an empty archive, or one inside another; unpack it first",
        "nested.zip/n.zip: an empty archive, or one inside another; unpack it first",
    ]


def bombs() -> dict[str, bytes]:
    """Each expands to much more than the limit; the limit is made small for them."""
    zeros = b"0" * (8 << 20)
    return {
        "gz": gzip.compress(zeros),
        "xz": lzma.compress(zeros),
        "zst": zstandard.compress(zeros),
        "zip": zipped("a.json", content=zeros),
        "tar.gz": gzip.compress(tar("w", "a.json", content=zeros)),
        "zip of gz": zipped("a.json", content=gzip.compress(zeros)),
    }


@pytest.mark.parametrize("kind", bombs())
def test_archives_do_not_explode(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pivotrl.trajectories.sources._FREE", 1 << 20)
    (tmp_path / "bomb").write_bytes(bombs()[kind])
    with pytest.raises(InputError, match="expands to more than 200 times its size; unpack it yourself") as caught:
        run_ingest(tmp_path, tmp_path / "bomb")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("before", [b"", lzma.compress(LINES)])
def test_a_dictionary_of_gigabytes_is_refused(tmp_path: Path, before: bytes) -> None:
    """The size in the header is a byte: 16 is 1 MiB, 38 is 2 GiB, 40 is 4 GiB; the header's sum is made anew."""
    filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 20}]
    packed = bytearray(lzma.compress(LINES, filters=filters))
    end = 12 + 4 * packed[12]
    at = packed.index(bytes((0x21, 1, 16)), 12, end) + 2
    for size, says in ((16, ""), (38, "takes over 256 MiB to expand; unpack it"), (40, "takes over 256 MiB")):
        packed[at] = size
        packed[end : end + 4] = zlib.crc32(packed[12:end]).to_bytes(4, "little")
        assert lzma.decompress(packed) == LINES
        (tmp_path / "data.xz").write_bytes(before + packed)
        if says:
            with pytest.raises(InputError, match=says) as caught:
                list(read_file(File("data.xz", tmp_path / "data.xz")))
            assert "\n" not in str(caught.value)
        else:
            assert len(list(read_file(File("data.xz", tmp_path / "data.xz")))) == (6 if before else 3)


@pytest.mark.parametrize("kind", [kind for kind in CONTAINERS if kind != "plain"])
def test_cut_containers_are_one_line_or_what_came_before(tmp_path: Path, kind: str) -> None:
    whole = CONTAINERS[kind]
    for size in range(6, len(whole), max(1, len(whole) // 12)):
        (tmp_path / "data").write_bytes(whole[:size])
        said, read = "", 0
        try:
            read = run_ingest(tmp_path, tmp_path / "data").trajectories
        except InputError as error:
            said = str(error)
        assert bool(said) is not bool(read)
        assert "\n" not in said


def test_archives_whose_headers_are_damaged_are_one_line(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as archive:
        archive.writestr("é.json", "{}")
    (tmp_path / "bad.zip").write_bytes((tmp_path / "bad.zip").read_bytes().replace("é".encode(), b"\xff\xfe"))
    with tarfile.open(tmp_path / "bad.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        member = tarfile.TarInfo("a.json")
        member.size, member.pax_headers = 512, {"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}
        archive.addfile(member, io.BytesIO(b"x" * 512))
    write(tmp_path / "good.jsonl", chat(1))
    result = run_ingest(tmp_path, tmp_path)
    assert result.trajectories == 1
    refused = [text.partition(" (")[0] for text in result.refused]
    assert refused == ["bad.tar: cannot be read", "bad.zip: cannot be read"]


def test_a_document_without_a_record_is_one_line(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"a": pyarrow.array([], pyarrow.string())}), tmp_path / "empty")
    with pytest.raises(InputError, match="empty: no record in it"):
        document(File("empty", tmp_path / "empty"))


@pytest.mark.parametrize("kind", ["zip", "parquet"])
def test_a_container_without_its_beginning_is_no_text_in_another_encoding(tmp_path: Path, kind: str) -> None:
    whole = b"\x93\n" * 600 + CONTAINERS["zip"]
    if kind == "parquet":
        pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pyarrow.Table.from_pylist([{"messages": "x" * 99}]), tmp_path / "table")
        whole = b"\xa2" * 1500 + (tmp_path / "table").read_bytes()[4:]
    (tmp_path / "data").write_bytes(whole)
    with pytest.raises(InputError, match="data: a binary file, not JSON"):
        run_ingest(tmp_path, tmp_path / "data")


def test_a_tau2_folder_is_one_set(tmp_path: Path) -> None:
    run = tmp_path / "in" / "telecom"
    (run / "simulations").mkdir(parents=True)
    (run / "results.json").write_text(json.dumps({"info": TAU2["info"], "tasks": [], "simulation_index": []}, indent=1))
    for name in ("a", "b"):
        simulation = {"id": name, "task_id": name, "reward_info": {"reward": 1.0}, "messages": SIM_MESSAGES[1:3]}
        (run / "simulations" / f"{name}.json").write_text(json.dumps(simulation, indent=1))
    result = run_ingest(tmp_path, tmp_path / "in")
    assert (result.files, result.trajectories, result.refused) == (2, 2, [])
    lines = (tmp_path / "run" / "trajectories" / "part-00000.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["task_id"] for row in rows] == ["telecom/a", "telecom/b"]
    assert [row["source"]["file"] for row in rows] == ["telecom/simulations/a.json", "telecom/simulations/b.json"]
    assert all(row["messages"][0]["content"] == "The policy." for row in rows)


def files_of(run: Path) -> dict[str, bytes]:
    """Everything in a run but the ledger, which holds clock values."""
    found = {path.relative_to(run).as_posix(): path.read_bytes() for path in sorted(run.rglob("*")) if path.is_file()}
    return {name: data for name, data in found.items() if name != "ledger.jsonl"}


def test_bytes_do_not_depend_on_workers(tmp_path: Path) -> None:
    """Files are cut wherever a boundary falls: before a logged response, in a bad line, in a session of many files."""
    request = {"request": {"body": {"messages": chat(7)["messages"][:3]}}, "pad": "x" * 300}
    response = {"response": {"body": {"choices": [{"message": {"role": "assistant", "content": "y"}}]}}}
    rows = [row for n in range(12) for row in (chat(n, pad="z" * 100 * n), request, response)]
    log = write(tmp_path / "in" / "log.jsonl", *rows)
    log.write_text(log.read_text().replace('"Task 5"', '"Task 5'))
    write(tmp_path / "in" / "more.jsonl", *(chat(n, answer="é" * n) for n in range(9)))
    (tmp_path / "in" / "z.jsonl.gz").write_bytes(gzip.compress(LINES))
    write(tmp_path / "in" / "document.json", [chat(1), chat(2)])
    (tmp_path / "in" / "prose.txt").write_text("prose\n" * 500)
    for workers in (1, 2, 3):
        result = run_ingest(tmp_path, tmp_path / "in", name=f"run{workers}", workers=workers)
        assert (result.trajectories, result.refused_records) == (11 + 12 + 9 + 3 + 2, {"not_json": 1})
    assert files_of(tmp_path / "run1") == files_of(tmp_path / "run2") == files_of(tmp_path / "run3")


def test_shares_are_the_file_wherever_it_is_cut(tmp_path: Path) -> None:
    """A response stays with its request, whatever lies between them."""
    request = json.dumps({"request": {"body": {"messages": chat(7)["messages"][:3]}}}).encode()
    response = b'{"response": {"body": {"choices": [{"message": {"role": "assistant", "content": "y"}}]}}}'
    lines = [b"", b"{bad", request, json.dumps(chat(1)).encode(), response]
    path = tmp_path / "log"
    path.write_bytes(request + b"".join(b"\n" + line for three in product(lines, repeat=3) for line in three))
    inputs = [Input("log", (File("log", path),))]
    whole = [event for event in read_input(inputs[0]) if not isinstance(event, Taken)]
    found = set()
    for count in (1, 2, 3, 10, 100, 1000, 5000):
        shares = cut(inputs, count)
        found.add(sum(map(bool, shares)))
        read = (event for share in shares for _, item in share for event in read_input(item))
        assert [event for event in read if not isinstance(event, Taken)] == whole
    assert max(found) > 100


READER = """
import os, time
from pathlib import Path
from pivotrl.trajectories.openai_chat import OpenAIChat

class Reader(OpenAIChat):
    def read(self, record, source):
        began = Path(os.environ["BEGAN"])
        if str(os.getpid()) != os.environ["PARENT"]:
            began.touch()
            if os.environ["END"]:
                os._exit(3)
        while not began.exists():  # the worker is slow to begin
            time.sleep(0.01)
        return super().read(record, source)
"""


@pytest.mark.parametrize("end", ["", "3"])
def test_workers_take_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    """What a worker reads comes to its place; where one ends, that is said, and nothing is left."""
    began, reader = tmp_path / "began", write(tmp_path / "reader.py")
    for name, value in {"BEGAN": str(began), "PARENT": str(os.getpid()), "END": end}.items():
        monkeypatch.setenv(name, value)
    reader.write_text(READER)
    data = write(tmp_path / "data", *(chat(n) for n in range(40)))
    if end:
        with pytest.raises(PivotRLError, match=r"^worker 2 ended with status 3; run the same command"):
            run_ingest(tmp_path, data, workers=2, format=f"{reader}:Reader")
        assert not (tmp_path / "run").exists()
        return
    run_ingest(tmp_path, data, workers=2, format=f"{reader}:Reader")
    assert began.exists()
    run_ingest(tmp_path, data, name="run1", workers=1, format=f"{reader}:Reader")
    assert files_of(tmp_path / "run") == files_of(tmp_path / "run1")


def test_an_ingest_that_was_killed_or_failed_leaves_nothing(tmp_path: Path) -> None:
    data, run = write(tmp_path / "data.jsonl", *(chat(n) for n in range(40))), tmp_path / "run"
    share = Share(inputs=((0, Input("data", (File("data", data),))),), settings=IntakeSettings(), lists=[], inferred={})
    (run / "trajectories").mkdir(parents=True)
    events = read_all(share, None, 2, run)
    next(events)
    for scratch in run.glob(".*"):
        shutil.copytree(scratch, f"{scratch}-left")
    (run / "trajectories" / f".{PART}.0123456789abcdef.tmp").touch()
    events.close()
    assert len([*run.glob(".*")]) == 1
    run_ingest(tmp_path, data)
    assert [path.name for path in run.glob(".*") if path.is_dir()] == []
    assert {path.name for path in (run / "trajectories").iterdir()} == {PART, INDEX_NAME}
    with data.open("a") as file:
        file.write("{bad")
    with pytest.raises(InputError, match="not JSON"):
        run_ingest(tmp_path, data, name="other", workers=2, strict=True)
    assert not (tmp_path / "other").exists()


def test_what_a_reader_takes_for_one_history_is_not_cut(tmp_path: Path) -> None:
    reader, path = tmp_path / "reader.py", write(tmp_path / "data", *(chat(n) for n in range(9)))
    reader.write_text("class Whole:\n    begins = read_session = lambda self, *given: True\n")
    inputs = [Input("data", (File("data", path),))]
    assert [len(list(filter(None, cut(inputs, 3, name)))) for name in ("auto", f"{reader}:Whole")] == [3, 1]


def test_blocks_are_the_file_wherever_it_is_cut(tmp_path: Path) -> None:
    """Every pair of neighbouring blocks holds each record once, with the line that it has in the file."""
    path = tmp_path / "data"
    path.write_bytes(b'{"a": 1}\n\n{"b": 22}\r\n{bad\n{"c": "\xc3\xa9"}')
    whole = [str(item) for item in read_file(File("data", path))]
    for edge in range(1, path.stat().st_size + 2):
        blocks = [File("data", path, stop=edge), File("data", path, start=edge)]
        assert [str(item) for block in blocks for item in read_file(block)] == whole


def test_copies_are_reported_and_left_out_when_told(tmp_path: Path) -> None:
    data = write(tmp_path / "data.jsonl", chat(1), chat(1, task_id="again"), chat(2), chat(2))
    result = run_ingest(tmp_path, data)
    assert (result.trajectories, result.copies, result.skips) == (4, 2, {"duplicate": 4})
    assert "copies of earlier trajectories: 2; --dedupe leaves them out" in result.lines()
    result = run_ingest(tmp_path, data, dedupe=True)
    assert (result.trajectories, result.copies, result.skips, result.assistant_turns) == (2, 2, {}, 4)


def test_states_with_two_actions_are_counted(tmp_path: Path) -> None:
    result = run_ingest(tmp_path, write(tmp_path / "data.jsonl", chat(1), chat(1, answer="Otherwise.")))
    assert (result.repeated_states, result.skips) == (1, {"duplicate": 1})


def test_tools_are_inferred_from_calls_of_the_same_kind(tmp_path: Path) -> None:
    calls = [("look", {"at": 1}), ("look", {"at": 2.5, "near": "x"}), ("jump", {}), ("look", {"at": 1})]
    rows = [
        {
            "messages": [
                {"role": "user", "content": f"{n}"},
                {"role": "assistant", "tool_calls": [{"name": a, "arguments": b}]},
            ]
        }
        for n, (a, b) in enumerate(calls)
    ]
    data = write(tmp_path / "data.jsonl", *rows, {**rows[0], "tools": [{"name": "look"}]})
    result = run_ingest(tmp_path, data, infer_tools=True)
    assert (result.tools_known, result.tools_inferred) == (5, 4)
    store = CandidateStore(RunDirectory(tmp_path / "run"))
    (first, *_) = (candidate for _, candidate in store.loaded(store.rows()))
    assert [(tool.name, tool.description, tool.parameters) for tool in first.trajectory.tools or ()] == [
        ("jump", "Inferred from its calls.", {"type": "object", "properties": {}}),
        ("look", "Inferred from its calls.",
         {"type": "object", "properties": {"at": {"type": "number"}, "near": {"type": "string"}}}),
    ]  # fmt: skip
    assert run_ingest(tmp_path, data).tools_known == 1


def test_strict_fails_at_broken_calls(tmp_path: Path) -> None:
    broken = {"messages": [{"role": "assistant", "tool_calls": [{"name": "look", "arguments": "{"}]}]}
    data = write(tmp_path / "data.jsonl", chat(1), broken)
    assert run_ingest(tmp_path, data).skips == {"bad_arguments": 1}
    with pytest.raises(InputError, match="data:2: assistant turn 1: bad_arguments"):
        run_ingest(tmp_path, data, strict=True)


def test_what_was_read_is_said(tmp_path: Path) -> None:
    write(tmp_path / "in" / "a.jsonl", chat(1, reward=1), chat(2, reward=0.5))
    write(tmp_path / "in" / "b.json", {**TAU2, "tasks": None})
    result = run_ingest(tmp_path, tmp_path / "in")
    assert result.formats == {
        "openai_chat (keys 'messages', 'reward')": 1,
        "tau_bench (keys 'info', 'tasks', 'simulations')": 1,
    }
    assert result.outcomes == {"full": 1, "below full": 2, "unknown": 0}
    assert (result.by_tool, result.by_depth) == ({"look": 1}, {"0": 1, "1": 1})
    inputs = RunDirectory(tmp_path / "run").stages()["ingest/ingest"]["inputs"]
    assert [item["taken"] for item in inputs] == [
        {"openai_chat": "keys 'messages', 'reward'"}, {"tau_bench": "keys 'info', 'tasks', 'simulations'"},
    ]  # fmt: skip


def test_find_errors(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(MissingError, match="no such file or directory"):
        ingest(IngestConfig(paths=("nowhere",), run=tmp_path / "run"))
    with pytest.raises(InputError, match="no files in it"):
        find((str(tmp_path / "empty"),), tmp_path / "run", None)  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()
    assert Input("x", (File("x", tmp_path / "x"),)).named is False
