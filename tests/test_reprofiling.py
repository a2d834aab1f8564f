"""Profile, train, profile again with what was trained, select, train on: what is asked again, and what KL holds to."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

import toy
from kill_harness import copy, differences
from pivotrl.curves import StepMetrics
from pivotrl.errors import ConfigError, InputError, MissingError
from pivotrl.grpo import LossSettings
from pivotrl.ingestion import IngestConfig, ingest
from pivotrl.learners import OptimizerSettings
from pivotrl.pivots import SelectConfig, select
from pivotrl.planning import Scope
from pivotrl.profile_settings import ProfileConfig, RescoreConfig, load_plan
from pivotrl.profiling import profile, rescore
from pivotrl.reporting import ReportConfig, report
from pivotrl.run_directory import RunDirectory
from pivotrl.storage import read_jsonl
from pivotrl.training import train
from pivotrl.training_settings import TrainConfig
from pivotrl.types import Profile, SamplingParams
from tiny import saved_model

SHORT = SamplingParams(max_new_tokens=8)
RUN = Path("run")
JUDGE = """
def half(candidate, action):  # any text at some turns, one in three or in two at others
    return action == candidate.demonstration or len(action.text or "") % (1, 3, 2)[candidate.turn // 2 % 3] == 0
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Profiled, selected, trained for two large steps, profiled again, selected. Not to be written to."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        toy.write_episodes(Path("episodes.jsonl"), 8, 0)
        Path("judge.py").write_text(JUDGE)
        saved_model(Path("model"), seed=1, chatty=False)
        ingest(IngestConfig(paths=("episodes.jsonl",), run=RUN))
        config = ProfileConfig(run=RUN, policy="model", rollouts=6, verifier="judge.py:half", sampling=SHORT)
        profile(config)
        select(SelectConfig(run=RUN))
        large = OptimizerSettings(lr=3e-3)
        train(TrainConfig(run=RUN, steps=2, prompts=4, group_size=4, optimizer=large))
        profile(ProfileConfig(run=RUN, policy="train/pivotrl", name="second", again="base", rollouts=6))
        select(SelectConfig(run=RUN, profile="second", name="second"))
    return folder


@pytest.fixture
def run(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(copy(trained, tmp_path / "trained"))
    return RUN


def summary(run: Path, name: str) -> dict[str, Profile]:
    plan = load_plan(RunDirectory(run), name)
    path = run / "profiles" / name / "verdicts" / plan.verifier_id / "summary.jsonl"
    return {one.candidate_id: one for one in read_jsonl(path, Profile)}


def fates(profiles: dict[str, Profile]) -> dict[str, str]:
    """Eq. 5 at lambda 0.6, with the names of what it drops."""
    words = {}
    for key, one in profiles.items():
        flat = {0.0: "hopeless", 1.0: "solved"}.get(one.mean, "flat")
        mixed = "pivot" if one.mean < 0.6 else "too easy"
        words[key] = mixed if one.variance > 0 else flat
    return words


def test_what_was_solved_or_too_easy_is_not_asked_again(run: Path) -> None:
    before, after = summary(run, "base"), summary(run, "second")
    assert list(after) == [key for key, fate in fates(before).items() if fate not in ("solved", "too easy")]
    assert 0 < len(after) < len(before)


def test_the_new_profile_follows_the_old_one(run: Path) -> None:
    old, new = (load_plan(RunDirectory(run), name) for name in ("base", "second"))
    assert (old.follows, new.follows) == (None, "base")
    assert (new.verifier, new.sampling, new.truncation, new.model) == (
        old.verifier,
        old.sampling,
        old.truncation,
        old.model,
    )
    assert new.policy == "run/train/pivotrl/model"
    assert new.fingerprint.differences(old.fingerprint) == ["weights"]


def test_what_became_of_every_candidate(run: Path) -> None:
    result = select(SelectConfig(run=run, profile="second", name="second"))
    before, after = fates(summary(run, "base")), fates(summary(run, "second"))
    expected = Counter(f"{fate} -> {after.get(key, 'not profiled again')}" for key, fate in before.items())
    assert result.moves == expected
    assert sum(result.moves.values()) == len(before)
    assert len(result.moves) > 2
    assert "since profile base" in result.lines()
    report(ReportConfig(run=run))
    text = (run / "report.md").read_text()
    assert "| follows profile | base |" in text
    for move, count in expected.items():
        assert f"{count:6d}  {move}" in result.lines()
        assert f"| {move} | {count} |" in text
    assert select(SelectConfig(run=run)).moves == {}


def test_moves_need_verdicts_of_one_verifier(run: Path) -> None:
    rescore(RescoreConfig(run=run, name="second", verifier="judge.py:half"))
    Path("judge.py").write_text(JUDGE.replace("(1, 3, 2)", "(1, 2, 2)"))
    rescore(RescoreConfig(run=run, name="second", verifier="judge.py:half"))
    other = SelectConfig(run=run, profile="second", name="other", verifier="judge.py:half", lambda_diff=1.0)
    result = select(other)
    assert result.moves == {}
    assert any("its verdicts by this verifier are not there" in line for line in result.lines())
    rescore(RescoreConfig(run=run, name="base", verifier="judge.py:half"))
    assert sum(select(other).moves.values()) == len(summary(run, "base"))


def trained_on(run: Path, **settings: object) -> list[StepMetrics]:
    common = {"run": run, "pivots": "second", "name": "second", "steps": 1, "prompts": 4, "group_size": 4}
    return list(train(TrainConfig(**(common | settings))).metrics)


def kl(metrics: StepMetrics) -> float:
    assert metrics.learner is not None
    assert metrics.learner.kl is not None
    return metrics.learner.kl


def test_the_reference_stays_the_policy_that_was_profiled_first(run: Path) -> None:
    assert kl(trained_on(run)[0]) > 1e-4
    facts = RunDirectory(run).stages()["train/second"]
    assert (facts["policy"], facts["reference"]) == ("run/train/pivotrl/model", str(Path("model")))
    assert kl(trained_on(run, name="from-here", reference="train/pivotrl")[0]) == pytest.approx(0, abs=1e-9)
    told = trained_on(run, name="told", reference="model")
    assert told == list(read_jsonl(run / "train/second/metrics.jsonl", StepMetrics))
    first = next(read_jsonl(run / "train/pivotrl/metrics.jsonl", StepMetrics))
    assert kl(first) == pytest.approx(0, abs=1e-9), "a first training starts at its reference"


def test_going_on_keeps_the_reference(run: Path, tmp_path: Path) -> None:
    calm = copy(run, tmp_path / "calm")
    trained_on(calm, steps=3, checkpoint_every=1)
    trained_on(run, steps=1, checkpoint_every=1)
    trained_on(run, steps=3, checkpoint_every=1)
    assert differences(run / "train/second", calm / "train/second") == []
    with pytest.raises(ConfigError, match=r"other settings \(reference"):
        trained_on(run, steps=4, reference="train/pivotrl")


def test_references_that_cannot_be(run: Path) -> None:
    with pytest.raises(ConfigError, match=r"reference 'model': without a KL term \(sft, rft, loss.beta 0\)"):
        trained_on(run, reference="model", loss=LossSettings(beta=0))
    assert trained_on(run, name="free", loss=LossSettings(beta=0))[0].learner.kl is None
    saved_model(Path("model"), seed=7, chatty=False)
    with pytest.raises(ConfigError, match="reference 'model' has other weights than when it was profiled first"):
        trained_on(run)
    assert kl(trained_on(run, allow_mismatch=True)[0]) > 0
    tokenizer = Path("model/tokenizer.json")
    tokenizer.write_text(tokenizer.read_text() + " ")
    with pytest.raises(ConfigError, match="its tokenizer is another"):
        trained_on(run, allow_mismatch=True, name="other")
    with pytest.raises(ConfigError, match="reference 'scripted:a:b' has no weights"):
        trained_on(run, reference="scripted:a:b")


def test_a_third_profile_and_everything(run: Path) -> None:
    third = ProfileConfig(run=run, policy="train/pivotrl", name="third", again="second", rollouts=2, everything=True)
    result = profile(third)
    assert [one.candidate_id for one in result.profiles] == list(summary(run, "second"))
    assert "follows profile second" in result.lines()
    select(SelectConfig(run=run, profile="third", name="third", lambda_diff=1.0))
    trained_on(run, pivots="third", name="third")
    assert RunDirectory(run).stages()["train/third"]["reference"] == "model"
    plan = run / "profiles/base/profile.json"
    plan.rename(run / "kept.json")
    with pytest.raises(MissingError, match=r"base/profile\.json is not there"):
        trained_on(run, pivots="third", name="fourth")
    (run / "kept.json").rename(plan)
    plan.write_text(json.dumps(json.loads(plan.read_text()) | {"follows": "third"}))
    with pytest.raises(InputError, match=r"profile\.json: is not what `pivotrl profile`"):
        trained_on(run, pivots="third", name="fourth")
    RunDirectory(run).record_stage("profile", "base", RunDirectory(run).stages()["profile/base"], [plan])
    with pytest.raises(InputError, match="follows itself"):
        trained_on(run, pivots="third", name="fourth")


def test_what_cannot_be_profiled_again(run: Path) -> None:
    config = ProfileConfig(run=run, policy="model", name="new", again="base")
    with pytest.raises(ConfigError, match="cannot follow itself"):
        profile(replace(config, again="new"))
    with pytest.raises(MissingError, match="nobody"):
        profile(replace(config, again="nobody"))
    with pytest.raises(MissingError, match="train/pivotrl"):
        profile(replace(config, policy="pivotrl"))
    profile(replace(config, name="unselected", again=None, verifier="judge.py:half", sampling=SHORT, rollouts=2))
    with pytest.raises(MissingError, match="nothing was selected from profile 'unselected'"):
        profile(replace(config, again="unselected"))
    some = profile(replace(config, rollouts=2, scope=Scope(max_candidates=3)))
    assert len(some.profiles) == 3
    assert {one.candidate_id for one in some.profiles} < set(summary(run, "second"))
