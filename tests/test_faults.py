"""A tenth of `recipes/fault_suite.py`; and every artefact that a stage reads, edited by hand, is told in one line."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "recipes"))

import fault_suite

from kill_harness import RUN, copy
from pivotrl.cli import main
from pivotrl.errors import InputError
from pivotrl.ledger import Ledger
from pivotrl.run_directory import RunDirectory
from pivotrl.storage import PartWriter, check_sums, decode, summed, write_sums
from pivotrl.types import Usage


@pytest.mark.slow
def test_a_tenth_of_the_scenarios() -> None:
    seeds, lines = fault_suite.tenth(300), list[dict]()
    assert len(seeds) == 30
    plans = [fault_suite.plan(seed) for seed in seeds]
    assert {kind for kind, _ in plans} == fault_suite.KINDS.keys()
    assert {stage for _, stage in plans} == fault_suite.STAGES.keys() - set(fault_suite.HELPERS)
    summary = fault_suite.suite(seeds, 2, lines.append)
    broken = [line for line in lines if line["outcome"] == "BROKEN"]
    assert not broken, "\n".join(map(str, broken))
    assert summary["outcomes"]["kept"] >= 25, "the others cannot be done on this machine"


def test_the_plan_has_every_pair_and_repeats() -> None:
    pairs = {fault_suite.plan(seed) for seed in range(300)}
    assert len(pairs) == len(fault_suite.KINDS) * (len(fault_suite.STAGES) - len(fault_suite.HELPERS))
    assert [fault_suite.plan(seed) for seed in range(9)] == [fault_suite.plan(seed) for seed in range(9)]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ingested, profiled, selected, evaluated on tasks and audited; not to be written to."""
    desks = fault_suite.Desks(tmp_path_factory.mktemp("desks"))
    return desks(("ingest", "profile", "select", "tasks", "audit"))


READ = {
    "candidates.jsonl": ("profile", "audit"),
    "trajectories/index.jsonl": ("profile", "select", "audit"),
    "trajectories/part-00000.jsonl": ("rescore", "audit"),
    "profiles/scripted/profile.json": ("rescore", "select"),
    "profiles/scripted/candidates.jsonl": ("rescore", "select"),
    "profiles/scripted/rollouts/part-00000.jsonl": ("profile", "rescore", "audit"),
    "profiles/scripted/verdicts/*/part-00000.jsonl": ("profile",),
    "profiles/scripted/verdicts/*/summary.jsonl": ("select", "export"),
    "pivots/chosen.jsonl": ("export",),
    "eval/tasks/tasks.json": ("report",),
    "eval/tasks/items.jsonl": ("compare",),
    "eval/tasks/policies/coin-*/*/episodes/part-00000.jsonl": ("tasks",),
    "audits/*/audit.json": ("report",),
    "ledger.jsonl": ("report",),
    "run.json": ("profile", "select", "export", "compare", "report"),
}
"""What reads each artefact."""


@pytest.mark.parametrize("name", READ)
def test_an_edited_artefact_is_told(done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    """A digit more or less, where it still reads as JSON; once put back, all go through."""
    folder = copy(done, tmp_path / "desk")
    (path,) = (folder / RUN).glob(name)
    good = path.read_bytes()
    path.write_bytes(re.sub(rb"[0-9](?=[,}\]\"])", lambda found: b"%d" % ((int(found[0]) + 1) % 10), good, count=1))
    assert path.read_bytes() != good
    with chdir(folder):
        for stage in READ[name]:
            capsys.readouterr()
            code, err = main(fault_suite.STAGES[stage][0].split()), capsys.readouterr().err
            assert (code, err.count("\n")) == (2, 1), (stage, err)
            assert path.name in err, (stage, err)
        path.write_bytes(good)
        assert [main(fault_suite.STAGES[stage][0].split()) for stage in READ[name]] == [0] * len(READ[name])


def test_the_report_names_what_changed_and_no_stage_reads(
    done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = copy(done, tmp_path / "desk")
    (folder / RUN / "split.json").write_text("{}")
    (folder / RUN / "pivots/chosen.svg").write_text("<svg/>")
    with chdir(folder):
        assert main(["report", "--run", RUN]) == 0
    capsys.readouterr()
    page = (folder / RUN / "report.md").read_text()
    assert "split.json is not what ingest/ingest wrote" in page
    assert "pivots/chosen.svg is not what select/chosen wrote" in page


@pytest.mark.parametrize(
    "edit",
    [
        lambda line: line.replace(b"1", b"2", 1),
        lambda line: json.dumps(json.loads(line) | {"rollouts": 9}).encode() + b"\n",
        lambda line: line.replace(b'"sum":"', b'"sum":"0', 1),
    ],
)
def test_a_line_holds_its_sum(edit: Callable[[bytes], bytes]) -> None:
    line = summed(Usage(rollouts=1, seconds=0.25))
    assert decode(line, Usage, "here") == Usage(rollouts=1, seconds=0.25)
    with pytest.raises(InputError, match=r"^here: is not what was written here; restore the file"):
        decode(edit(line), Usage, "here")


def test_lines_and_runs_without_sums_are_read(tmp_path: Path) -> None:
    """What an earlier version wrote; and words that look like a sum are none."""
    assert decode(b'{"rollouts":1}\n', Usage, "here") == Usage(rollouts=1)
    assert decode(b'{"a":",\\"sum\\":\\"00000000\\"}"}\n', dict[str, str], "here") == {"a": ',"sum":"00000000"}'}
    (tmp_path / "run.json").write_text('{"format_version": 1, "stages": {"report/base": {}}}')
    run = RunDirectory(tmp_path)
    assert run.stages() == {"report/base": {}}
    run.check()
    with PartWriter(tmp_path / "ledger.jsonl") as part:
        part.append([{"stage": "a", "name": "b", "unit": "c", "usage": {"rollouts": 3}}])
    assert Ledger(tmp_path / "ledger.jsonl").totals() == {("a", "b"): Usage(rollouts=3)}


def test_a_folder_is_held_to_its_sums(tmp_path: Path) -> None:
    (tmp_path / "weights").write_bytes(b"1")
    check_sums(tmp_path)
    for _ in range(2):  # as in a copy of a folder that has sums
        write_sums(tmp_path)
        check_sums(tmp_path)
    (tmp_path / "README.md").write_text("a card that came later")
    check_sums(tmp_path)
    (tmp_path / "weights").write_bytes(b"2")
    with pytest.raises(InputError, match="weights: is not what was written here"):
        check_sums(tmp_path)
    shutil.rmtree(tmp_path)


def test_what_a_stage_recorded_last_counts(tmp_path: Path) -> None:
    run, path = RunDirectory(tmp_path), tmp_path / "pivots" / "base.jsonl"
    path.parent.mkdir()
    for text in ("one", "two"):
        path.write_text(text)
        run.record_stage("try", "base", {}, [path, tmp_path / "not there"])
        run.check(path, tmp_path / "anything")
    path.write_text("one")
    with pytest.raises(InputError, match=r"base\.jsonl: is not what `pivotrl try` \(base\) wrote last"):
        run.check()
    manifest = json.loads(run.manifest.read_bytes())
    manifest["stages"]["try/base"]["wrote"] = {}
    run.manifest.write_text(json.dumps(manifest))
    with pytest.raises(InputError, match=r"run\.json: was changed by hand"):
        run.check(path)


def test_what_the_disk_says_to_any_library_is_one_line(done: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`export` makes its folder by itself; a full or read-only disk is told in the same way."""
    with chdir(done):
        capsys.readouterr()
        assert main([*fault_suite.STAGES["export"][0].split()[:-1], "episodes.jsonl/gym"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: episodes.jsonl: is a file, not a folder")
    assert err.count("\n") == 1
