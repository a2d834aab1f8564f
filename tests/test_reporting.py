"""The report: what it says of a run that has only begun, of stages that are stale, and of what profiles found."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from kill_harness import RUN, make_desk
from pivotrl.audit_result import SAMPLES
from pivotrl.auditing import AuditConfig, audit
from pivotrl.evaluation import evaluate
from pivotrl.evaluation_settings import EvaluateConfig
from pivotrl.exporting import export
from pivotrl.exports.base import ExportConfig
from pivotrl.metrics import known_mean
from pivotrl.pivots import SelectConfig, select
from pivotrl.policies import ScriptedPolicy
from pivotrl.profile_settings import ProfileConfig, RescoreConfig
from pivotrl.profiling import profile, rescore
from pivotrl.report_rollouts import _found
from pivotrl.reporting import ReportConfig, report
from pivotrl.run_directory import RunDirectory
from pivotrl.storage import read_jsonl
from pivotrl.types import Completion, RolloutGroup, SamplingParams, State, StoredVerdict, Verdict


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_desk(tmp_path) / RUN


def profiled(run: Path, **fields: object) -> None:
    profile(ProfileConfig(**({"run": run, "policy": "scripted:desk_plugins:play", "rollouts": 4} | fields)))


def text(run: Path) -> str:
    return report(ReportConfig(run=run)).text


def test_a_run_with_ingest_only(run: Path) -> None:
    said = text(run)
    assert [line for line in said.splitlines() if line.startswith("#")] == [
        "# PivotRL run `run`",
        "### Did it work?",
        "### What was forgotten?",
        "### What did it cost?",
        "### How far can the reward be trusted?",
        "## How to repeat it",
        "## What was read",
        "## What it cost",
    ]
    assert "- " not in said.replace("| --- ", "")
    assert (run / "report.md").read_text() == said


def test_an_export_is_stale_when_its_selection_changed_and_not_before(run: Path, tmp_path: Path) -> None:
    profiled(run)
    select(SelectConfig(run=run, name="few"))
    export(ExportConfig(run=run, pivots="few", to="chat", output=tmp_path / "out"))
    assert " is stale" not in text(run)
    select(SelectConfig(run=run, name="few", lambda_diff=0.4))
    assert f"- export/chat in {tmp_path / 'out'} is stale: pivots/few.jsonl changed since. Run it again." in text(run)


def test_what_is_run_again_is_repeated_where_it_was_last_run(run: Path, tmp_path: Path) -> None:
    """A second selection needs the rescoring between it and the first."""
    profiled(run)
    select(SelectConfig(run=run))
    rescore(RescoreConfig(run=run, verifier="exact"))
    select(SelectConfig(run=run, verifier="exact"))
    audit(AuditConfig(run=run, verifier="exact", max_candidates=5))
    export(ExportConfig(run=run, to="chat", output=tmp_path / "out", verifier="exact"))
    again = [line.split()[1:] for line in text(run).splitlines() if line.strip().startswith("pivotrl ")]
    assert [words[0] for words in again] == ["ingest", "profile", "rescore", "select", "audit", "export"]
    assert again[3][-2:] == again[4][3:5] == ["--verifier", "exact"]
    assert again[5][3:] == ["--to", "chat", "--output", str(tmp_path / "out"), "--verifier", "exact"]


def test_stale_and_unfinished_stages_are_named(run: Path) -> None:
    profiled(run)
    select(SelectConfig(run=run))
    assert "Run it again" not in text(run)
    (summary,) = run.glob("profiles/base/verdicts/*/summary.jsonl")
    summary.write_bytes(summary.read_bytes().replace(b"0.25", b"0.75"))
    stale = f"- select/base is stale: {summary.relative_to(run)} changed since. Run it again."
    told = f"- {summary.relative_to(run)} is not what profile/base wrote. Restore it."
    assert [line for line in text(run).splitlines() if line.startswith("- ")] == [stale, told]
    home = RunDirectory(run)
    home.record_stage("profile", "base", home.stages()["profile/base"], [summary])  # as when it is profiled again
    assert [line for line in text(run).splitlines() if line.startswith("- ")] == [stale]
    select(SelectConfig(run=run))
    assert "Run it again" not in text(run)
    candidates = run / "candidates.jsonl"
    candidates.write_bytes(candidates.read_bytes() + b"\n")
    assert "- profile/base is stale: candidates.jsonl changed since. Run it again." in text(run)

    def script(state: State, rng: object) -> str:
        raise KeyboardInterrupt

    candidates.write_bytes(candidates.read_bytes()[:-1])
    with pytest.raises(KeyboardInterrupt):
        profile(ProfileConfig(run=run, policy="it", name="half", rollouts=2), policy=ScriptedPolicy(script))
    assert [line for line in text(run).splitlines() if line.startswith("- ")] == [
        "- profile/half is unfinished. Run it again."
    ]


def test_reasons_and_other_verifiers_of_a_profile(run: Path) -> None:
    profiled(run)
    (part,) = run.glob("profiles/base/verdicts/*/part-*")
    words = [one.verdict for one in read_jsonl(part, StoredVerdict)]
    reasons = Counter(word.reason for word in words if word.value == 0)
    rescore(RescoreConfig(run=run, verifier="tool_name"))
    said = text(run)
    assert all(f"| {reason} | {count} |" in said for reason, count in reasons.items())
    assert "| rescored by | tool_name |" in said
    assert "planned" not in said


def test_what_is_said_after_early_stopping_is_what_the_profile_said(run: Path) -> None:
    settings = ProfileConfig(run=run, policy="scripted:desk_plugins:play", rollouts=8, budget="curtailed")
    result = profile(settings)
    rescore(RescoreConfig(run=run, verifier="tool_name"))
    said = text(run)
    assert f"| mean reward of the first round | {result.mean:.4g} |" in said
    assert result.mean != pytest.approx(known_mean(one.mean for one in result.profiles))
    assert "| rescore base |" in said
    assert not re.search("[0-9a-f]{16} [|]", said)


def test_a_plan_for_other_settings_is_not_compared(run: Path) -> None:
    profiled(run, plan=True, pilot=3)
    assert "Profile" not in text(run)
    assert "unfinished" not in text(run)
    assert audit(AuditConfig(run=run, verifier="exact")).shares.keys().isdisjoint({SAMPLES}), "a plan is no profile"
    profiled(run, rollouts=2)
    assert "The plan of this profile was for other settings." in text(run)


def test_the_funnel_is_shown_beside_its_table(run: Path) -> None:
    profiled(run)
    select(SelectConfig(run=run, name="mine"))
    said = text(run)
    assert said.index("Selection `mine`") < said.index("(pivots/mine.svg)")
    (run / "pivots/mine.svg").unlink()
    assert "![funnel" not in text(run)


def test_nobody_is_called_sure_who_gives_no_log_probabilities(run: Path) -> None:
    profiled(run)
    said = text(run)
    assert "| mean reward | 0." in said
    assert "was sure" not in said
    assert "hardly dared" not in said


def rolled(key: str, *sampled: tuple[float, float]) -> RolloutGroup:
    """Of (reward, log-probability)."""
    verdicts = tuple(Verdict(value=reward, reason="r", verifier="v", version="1") for reward, _ in sampled)
    completion = Completion(action=None, text="", finish_reason="stop", token_ids=(1,))
    completions = tuple(replace(completion, logprob=logprob) for _, logprob in sampled)
    return RolloutGroup(candidate_id=key, completions=completions, verdicts=verdicts)


def test_the_surest_and_the_rarest_rollout_of_a_state_are_shown() -> None:
    found = _found(
        [
            rolled("a@1", (1.0, -3.0), (0.0, -2.0), (0.0, -0.5), (1.0, -4.0)),
            rolled("b@1", (1.0, -1.0), (0.0, -1.0)),
        ]
    )
    shown = {kind: [(one.candidate_id, one.completion.logprob) for one in some] for kind, some in found.items()}
    assert shown == {
        "surest": [("a@1", -0.5), ("b@1", -1.0)],
        "rarest": [("a@1", -4.0), ("b@1", -1.0)],
        "hopeless": [],
    }


def test_a_profile_that_is_gone_is_said_to_be(run: Path) -> None:
    profiled(run, name="mine")
    shutil.rmtree(run / "profiles/mine")
    assert "The profile `mine` is in the manifest, but its files are gone." in text(run)


def test_rollouts_that_are_gone_hide_no_others(run: Path) -> None:
    for name in ("a", "b", "c"):
        profiled(run, name=name, rollouts=2)
    (run / "profiles/b/rollouts/part-00000.jsonl").unlink()
    said = text(run)
    assert "Rollouts of `b` cannot be shown: " in said
    assert all(f"Rollouts of profile `{name}` worth a look" in said for name in ("a", "c"))


def test_a_benchmark_alone_begins_with_its_number(tmp_path: Path) -> None:
    policies = ("known=scripted:toy_environment:expert",)
    evaluate(EvaluateConfig(run=tmp_path, env=("toy_environment:Steps",), tasks=(6,), policies=policies))
    said = text(tmp_path).splitlines()
    assert said[2] == "- toy_environment:Steps: 6 held-out tasks (test)"
    assert said[3].startswith("- known: success 1.000 [")
    assert not any("Not measured" in line or "Unknown" in line for line in said)


def test_an_evaluation_says_who_judges_and_what_is_left_out(run: Path) -> None:
    policies = ("scripted:desk_plugins:play",)
    result = evaluate(EvaluateConfig(run=run, policies=policies, split="train", rollouts=1, verifier="exact"))
    assert result.lines()[1] == "judged by exact (another: --verifier)"
    assert replace(result, left_out={"demonstration_unscored": 16, "x": 2}).lines()[2:4] == [
        "left out: 16 demonstration_unscored (the verifier cannot judge what the expert did)",
        "left out: 2 x",
    ]


def test_a_profile_cut_short_says_what_to_raise(run: Path) -> None:
    short = ProfileConfig(run=run, policy="scripted:desk_plugins:play", sampling=SamplingParams(max_new_tokens=1))
    assert any("raise --sampling.max-new-tokens" in line for line in profile(short).lines())
