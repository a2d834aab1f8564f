"""Profile: what numpy and a known success probability say, and what is left out, and what is never sampled twice."""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from desk_plugins import always_right, expert, never_right, play
from kill_harness import RUN, make_desk, make_model
from pivotrl.candidates import CandidateStore
from pivotrl.errors import ConfigError, MissingError
from pivotrl.evaluation_settings import SamplingChoice
from pivotrl.models import ModelSettings
from pivotrl.pivots import SelectConfig, select
from pivotrl.planning import Scope
from pivotrl.policies import ScriptedPolicy
from pivotrl.profile_result import ProfileResult, Tally, profile_group
from pivotrl.profile_settings import ProfileConfig, RescoreConfig, fingerprint_id, load_plan
from pivotrl.profiling import profile, rescore
from pivotrl.run_directory import RunDirectory
from pivotrl.storage import read_jsonl
from pivotrl.types import (
    Action,
    Completion,
    PolicyFingerprint,
    Profile,
    RolloutGroup,
    SamplingParams,
    SkippedTurn,
    State,
    ToolCall,
    Verdict,
)
from pivotrl.verifiers import load_verifier, verifier_id

SAID = Completion(action=Action(text="a"), text="a", finish_reason="stop")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """An ingested desk of one's own."""
    return make_desk(tmp_path) / RUN


def config(run: Path, **fields: object) -> ProfileConfig:
    return ProfileConfig(**({"run": run, "policy": "scripted:desk_plugins:play", "rollouts": 4} | fields))


def group(rewards: list[float | None], completions: list[Completion] | None = None) -> RolloutGroup:
    return RolloutGroup(
        candidate_id="desk:1@2",
        completions=tuple(completions or [SAID] * len(rewards)),
        verdicts=tuple(Verdict(value=reward, reason="r", verifier="v", version="1") for reward in rewards),
    )


@given(st.lists(st.none() | st.floats(0, 1), max_size=20))
def test_mean_and_variance_are_numpys(rewards: list[float | None]) -> None:
    result = profile_group(group(rewards), "policy", "verifier")
    scored = np.array([reward for reward in rewards if reward is not None])
    assert (result.n, result.unscored) == (len(scored), len(rewards) - len(scored))
    assert result.posterior.a == pytest.approx(0.5 + scored.sum())
    assert result.posterior.a + result.posterior.b == pytest.approx(1 + len(scored))
    if not len(scored):
        assert (result.mean, result.variance) == (None, None)
    else:
        assert result.mean == pytest.approx(scored.mean(), abs=1e-6)
        assert result.variance == pytest.approx(scored.var(), abs=2e-6)


def test_what_a_group_is_counted_as() -> None:
    call = ToolCall(name="find", arguments='{"a": 1, "b": 2}')
    other = replace(call, arguments='{"b": 2, "a": 1}', id="call_7")
    failed = Completion(action=None, text="<tool_call>", finish_reason="stop", parse_error="bad")
    completions = [
        SAID,
        replace(SAID, text="other raw text"),
        replace(SAID, action=Action(text="b"), finish_reason="length"),
        replace(SAID, action=Action(calls=(call,))),
        replace(SAID, action=Action(calls=(other,))),
        failed,
    ]
    result = profile_group(group([1.0, 1.0, 0.0, None, 0.0, 0.0], completions), "policy", "verifier")
    assert result == Profile(
        candidate_id="desk:1@2",
        n=5,
        mean=0.4,
        variance=pytest.approx(0.24),
        unscored=1,
        truncated=1,
        unparsable=1,
        distinct_actions=3,
        posterior=result.posterior,
        policy="policy",
        verifier="verifier",
    )


def test_a_first_round_in_which_nothing_was_scored_is_told(tmp_path: Path) -> None:
    verdicts = tuple(Verdict(value=value, reason="r", verifier="v", version="1") for value in (None, 1.0, 0.0))
    group, tally = RolloutGroup(candidate_id="c@1", completions=(SAID,) * 3, verdicts=verdicts), Tally()
    tally.add(group, profile_group(group, "p", "v", 8), first=1)
    result = ProfileResult(tally=tally, summary=tmp_path, excluded={}, folder=tmp_path, truncation="zero", verifier="v")
    assert "mean reward unknown; 0 of 1 (0%) have zero variance" in result.lines()


@pytest.mark.parametrize("skill", [0.1, 0.5, 0.9])
def test_a_known_success_probability_comes_back(run: Path, skill: float) -> None:
    def script(state: State, rng: random.Random) -> str:
        return expert(state) if rng.random() < skill else "Bananas."

    result = profile(config(run, rollouts=64), policy=ScriptedPolicy(script))
    count = sum(one.n for one in result.profiles)
    assert count == 64 * 24
    error = (skill * (1 - skill) / count) ** 0.5
    assert abs(sum(one.n * one.mean for one in result.profiles) / count - skill) < 4 * error
    for one in result.profiles:
        assert one.variance == pytest.approx(one.mean * (1 - one.mean))
        assert one.distinct_actions == 2
    inside = sum(abs(one.mean - skill) < 1.96 * (skill * (1 - skill) / 64) ** 0.5 for one in result.profiles)
    assert inside >= 20


def test_the_extremes(run: Path) -> None:
    right = profile(config(run, name="right"), policy=ScriptedPolicy(always_right))
    assert {(one.mean, one.variance, one.distinct_actions) for one in right.profiles} == {(1.0, 0.0, 1)}
    assert "mean reward 1.000; 24 of 24 (100%) have zero variance" in right.lines()
    wrong = profile(config(run, name="wrong"), policy=ScriptedPolicy(never_right))
    assert {(one.mean, one.variance) for one in wrong.profiles} == {(0.0, 0.0)}


def test_only_training_candidates_are_profiled(run: Path) -> None:
    result = profile(config(run))
    rows = CandidateStore(RunDirectory(run)).rows()
    assert {row.split for row in rows} == {"train", "test"}
    assert [one.candidate_id for one in result.profiles] == [row.id for row in rows if row.split == "train"]


def test_refused_demonstrations_are_left_out_and_listed(run: Path) -> None:
    result = profile(config(run, verifier="desk_plugins:refuses_calls"))
    rows = CandidateStore(RunDirectory(run)).rows("train")
    calls = [row.id for row in rows if row.kind == "call"]
    assert calls
    assert [one.candidate_id for one in result.profiles] == [row.id for row in rows if row.kind == "message"]
    assert result.excluded == {"demonstration_refused": len(calls)}
    listed = list(read_jsonl(run / "profiles/base/excluded.jsonl", SkippedTurn))
    assert [f"{one.trajectory_id}@{one.turn}" for one in listed] == calls
    assert {one.detail for one in listed} == {"desk_plugins:refuses_calls: refused"}
    assert f"excluded before sampling: {len(calls)} demonstration_refused" in result.lines()


def test_truncation_counts_as_wrong_or_not_at_all(run: Path) -> None:
    def script(state: State, rng: random.Random) -> str:
        return expert(state) if rng.random() < 0.5 else expert(state) + " and so on" * 100

    settings = {"sampling": SamplingParams(max_new_tokens=60), "rollouts": 8}
    zero = profile(config(run, name="zero", **settings), policy=ScriptedPolicy(script)).profiles
    excluded = profile(
        config(run, name="excluded", truncation="exclude", **settings), policy=ScriptedPolicy(script)
    ).profiles
    for one, other in zip(zero, excluded, strict=True):
        assert (one.n, one.unscored, one.mean) == (8, 0, 1 - one.truncated / 8)
        assert (other.n, other.unscored, other.truncated) == (8 - one.truncated, 0, one.truncated)
        assert other.mean == (1.0 if other.n else None)


def test_rescoring_does_not_sample(run: Path) -> None:
    profile(config(run))
    stored = (run / "profiles/base/rollouts/part-00000.jsonl").read_bytes()

    def never(state: State, rng: random.Random) -> str:
        raise KeyboardInterrupt("a rescore asked the policy")

    result = rescore(RescoreConfig(run=run, verifier="tool_name"))
    assert (run / "profiles/base/rollouts/part-00000.jsonl").read_bytes() == stored
    fresh = profile(config(run, name="fresh", verifier="tool_name")).profiles
    assert result.profiles == fresh
    # the same through a policy that would stop the test: everything it could be asked for is stored
    again = profile(
        config(run, name="fresh", verifier="tool_name"), policy=ScriptedPolicy(never, **named(run, "fresh"))
    )
    assert again.profiles == fresh
    assert select(SelectConfig(run=run, verifier="tool_name")).counts != select(SelectConfig(run=run)).counts


def named(run: Path, name: str) -> dict[str, str]:
    """What gives a scripted policy the fingerprint of a profile's."""
    fingerprint = load_plan(RunDirectory(run), name).fingerprint
    policy, _, version = fingerprint.weights.rpartition(" ")
    return {"name": policy, "version": version}


def test_rescoring_an_unfinished_profile(run: Path) -> None:
    with pytest.raises(MissingError, match="run `pivotrl profile --run"):
        rescore(RescoreConfig(run=run, verifier="exact"))
    profile(config(run))
    part = run / "profiles/base/rollouts/part-00000.jsonl"
    part.write_bytes(part.read_bytes()[:-1])
    with pytest.raises(MissingError, match="unfinished; run `pivotrl profile` again before rescoring"):
        rescore(RescoreConfig(run=run, verifier="exact"))


def test_a_sample_of_the_candidates(run: Path) -> None:
    some = profile(config(run, name="some", scope=Scope(max_candidates=7))).profiles
    other = profile(config(run, name="other", scope=Scope(max_candidates=7), seed=1)).profiles
    everybody = [row.id for row in CandidateStore(RunDirectory(run)).rows("train")]
    assert len(some) == len(other) == 7
    assert [one.candidate_id for one in some] == [key for key in everybody if key in {x.candidate_id for x in some}]
    assert {one.candidate_id for one in some} != {one.candidate_id for one in other}
    all_of_them = profile(config(run, name="all")).profiles
    assert set(some) < set(all_of_them)  # what else is profiled changes nothing


def test_only_and_exclude(run: Path, tmp_path: Path) -> None:
    rows = CandidateStore(RunDirectory(run)).rows("train")
    chosen = sorted({row.trajectory_id for row in rows})[:2]
    listed = tmp_path / "ids.txt"
    listed.write_text("\n".join(["", *chosen, ""]))
    only = profile(config(run, name="only", scope=Scope(only=listed))).profiles
    rest = profile(config(run, name="rest", scope=Scope(exclude=listed))).profiles
    assert [one.candidate_id for one in only] == [row.id for row in rows if row.trajectory_id in chosen]
    assert sorted(one.candidate_id for one in (*only, *rest)) == sorted(row.id for row in rows)
    listed.write_text("nobody\n")
    with pytest.raises(ConfigError, match="1 of 1 ids are no trajectories of this run"):
        profile(config(run, name="none", scope=Scope(only=listed)))


def test_long_states_are_left_out(run: Path) -> None:
    policy = ScriptedPolicy(play)
    store = CandidateStore(RunDirectory(run))
    lengths = {c.id: policy.count_tokens(c.state) for _, unit in store.units(store.rows("train")) for c in unit}
    limit = sorted(lengths.values())[len(lengths) // 2]
    result = profile(config(run, scope=Scope(max_prompt_tokens=limit)))
    assert {one.candidate_id for one in result.profiles} == {key for key, n in lengths.items() if n <= limit}
    assert result.excluded == {"over_max_prompt_tokens": sum(n > limit for n in lengths.values())}


def test_the_plan_is_held_to(run: Path) -> None:
    profile(config(run))
    profile(config(run))
    for change in (
        {"rollouts": 5},
        {"seed": 1},
        {"truncation": "exclude"},
        {"sampling": SamplingParams(temperature=0.5)},
        {"scope": Scope(max_candidates=3)},
        {"verifier": "exact"},
        {"policy": "scripted:desk_plugins:always_right"},
        {"model": ModelSettings(thinking="off")},
    ):
        with pytest.raises(ConfigError, match="this was begun with other settings"):
            profile(config(run, **change))


def test_other_settings_are_told_before_a_model_is_loaded(run: Path) -> None:
    """The models of the second calls cannot be loaded, and neither gets that far."""
    profile(config(run))
    with pytest.raises(ConfigError, match=r"begun with other settings \(seed: 0 before, 1 now\); use the same ones"):
        profile(config(run, policy="scripted:nowhere.py:play", seed=1))
    make_model(first := run.parent / "first")
    few = {"rollouts": 1, "sampling": SamplingParams(max_new_tokens=1), "scope": Scope(max_candidates=1)}
    profile(config(run, name="model", policy=str(first), **few))
    shutil.copytree(first, second := run.parent / "second")
    (second / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(ConfigError, match=r"begun with other settings \(fingerprint.weights\); use the same ones"):
        profile(config(run, name="model", policy=str(second), **few))


def test_what_the_manifest_says(run: Path) -> None:
    profile(config(run))
    facts = json.loads((run / "run.json").read_text())["stages"]["profile/base"]
    verifier = load_verifier("auto")
    assert facts["verifier"] == {
        "id": verifier_id(verifier),
        "name": "auto",
        "version": verifier.version,
        "settings": dict(verifier.settings),
    }
    assert facts["config"]["rollouts"] == 4
    assert facts["fingerprint"]["weights"].startswith("scripted:desk_plugins:play ")
    assert Counter(one.policy for one in read_jsonl(next(run.rglob("summary.jsonl")), Profile)).keys() == {
        fingerprint_id(load_plan(RunDirectory(run), "base").fingerprint)
    }


def test_every_part_of_a_fingerprint_counts() -> None:
    one = PolicyFingerprint(
        weights="w", tokenizer="t", chat_template="c", tool_parser="p", thinking="default", numerics="n"
    )
    for name in ("weights", "tokenizer", "chat_template", "tool_parser", "thinking", "numerics"):
        other = replace(one, **{name: "other"})
        assert fingerprint_id(one) != fingerprint_id(other)
        assert one.differences(other) == [name]


def test_later_stages_inherit_what_they_leave_at_the_default(run: Path) -> None:
    profile(config(run))
    plan = load_plan(RunDirectory(run), "base")
    assert (plan.model, plan.sampling) == (ModelSettings(), SamplingParams())
    model = ModelSettings(thinking="off", dtype="bfloat16")
    assert ModelSettings().inherit(model) == model
    assert ModelSettings(thinking="on").inherit(model) == replace(model, thinking="on")
    profiled = SamplingParams(temperature=0.5, top_p=0.5, top_k=3)
    assert SamplingChoice(top_p=0.9, temperature=1.0).inherit(profiled) == replace(profiled, top_p=0.9, temperature=1.0)
