"""The demo, small: what it prints must explain itself and agree with what its stages wrote."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from pivotrl.errors import ConfigError
from pivotrl.lab import demonstration
from pivotrl.lab.demonstration import DemoConfig, demo

pytestmark = pytest.mark.slow


def small(run: Path) -> DemoConfig:
    return DemoConfig(run=run, episodes=20, profiled=20, rollouts=8, steps=2, tasks=10)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory):
    run = tmp_path_factory.mktemp("demo") / "run"
    return run, demo(small(run))


def test_the_summary_is_what_the_stages_found(finished):
    run, result = finished
    text = "\n".join(result.lines())
    tasks = json.loads((run / "eval" / "tasks" / "tasks.json").read_text())
    before, after = (score["overall"]["success"]["mean"] for score in tasks["scores"][:2])
    assert re.search(rf"success +{before:.3f}( \[.*?\])? -> {after:.3f}", text)
    pivots = result.selection.path.read_text().splitlines()
    assert f"on the {len(pivots)} pivots only" in text
    flat = sum(profile.variance == 0 for profile in result.profile.profiles)
    assert f"{flat} of 20 profiled states" in text
    for skill in ("copy", "reverse", "sort", "largest", "twice", "zip", "without", "filter"):
        assert re.search(rf"{skill} +\d\.\d+( \[.*?\])? -> \d\.\d+", text)
    ledger = [json.loads(line) for line in (run / "ledger.jsonl").read_text().splitlines()]
    for stage in ("profile", "train", "evaluate"):
        turns = sum(line["usage"]["turns"] for line in ledger if line["stage"] == stage)
        assert re.search(rf"{stage} +{turns} turns", text)
    assert result.report.exists()


def test_a_pivot_is_shown_as_it_was_met(finished):
    run, result = finished
    lines = demonstration.example(run, result.selection)
    counts = [int(found[1]) for line in lines if (found := re.match(r" +(\d+) x reward [01]", line))]
    assert 2 <= len(counts) <= 5
    assert sum(counts) <= 8
    assert {re.search("reward ([01])", line)[1] for line in lines[4:]} <= {"0", "1"}
    assert lines[0].split()[-1].rstrip(":") in {pivot.candidate_id for pivot in result.selection.pivots}


def test_a_second_call_reads_what_is_there(finished):
    run, result = finished
    before = {path: path.read_bytes() for path in run.rglob("*.jsonl") if path.name != "ledger.jsonl"}
    again = demo(small(run))
    assert {path: path.read_bytes() for path in before} == before
    assert again.evaluation == result.evaluation
    with pytest.raises(ConfigError, match="episodes"):
        demo(DemoConfig(run=run, episodes=21, profiled=20, rollouts=8, steps=2, tasks=10))


def test_too_small_a_demo_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="at least 20 episodes"):
        demo(DemoConfig(run=tmp_path / "run", episodes=3))
