"""Profiles in rounds: the same samples as at once, the same decisions, the same bytes after interruptions, top-ups."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from desk_plugins import play
from kill_harness import bill, copy, differences
from pivotrl.budgets import StoppingSettings
from pivotrl.errors import ConfigError, MissingError
from pivotrl.pivots import SelectConfig, select
from pivotrl.policies import ScriptedPolicy
from pivotrl.profile_settings import ProfileConfig, RescoreConfig, load_plan
from pivotrl.profiling import profile, rescore
from pivotrl.run_directory import RunDirectory
from pivotrl.storage import read_jsonl
from pivotrl.types import Profile, Rollout, State


def config(run: Path, **fields: object) -> ProfileConfig:
    return ProfileConfig(**({"run": run, "policy": "scripted:desk_plugins:play", "rollouts": 16} | fields))


def samples(run: Path, name: str) -> dict[str, dict[int, str]]:
    """Text by number, of every candidate, over all parts."""
    found: dict[str, dict[int, str]] = {}
    for part in sorted((run / "profiles" / name / "rollouts").iterdir()):
        for rollout in read_jsonl(part, Rollout):
            assert rollout.sample not in found.setdefault(rollout.candidate_id, {})
            found[rollout.candidate_id][rollout.sample] = rollout.completion.text
    return found


def pivots(run: Path, name: str, **fields: object) -> list[str]:
    return [one.candidate_id for one in select(SelectConfig(run=run, profile=name, name=name, **fields)).pivots]


@pytest.mark.parametrize("size", [1, 3, 4, 16])
def test_curtailed_takes_the_first_samples_of_fixed_and_decides_alike(run: Path, size: int) -> None:
    fixed = profile(config(run, name="fixed"))
    early = profile(config(run, name="early", budget="curtailed", stopping=StoppingSettings(round_size=size)))
    whole, some = samples(run, "fixed"), samples(run, "early")
    assert some.keys() == whole.keys()
    for key, mine in some.items():
        assert mine == {number: whole[key][number] for number in range(len(mine))}
    stopped = {one.candidate_id for one in early.profiles if one.stopped_early}
    assert stopped == {key for key, mine in some.items() if len(mine) < 16}
    assert bool(stopped) == (size < 16)
    assert not any(one.stopped_early for one in fixed.profiles)
    assert pivots(run, "early") == pivots(run, "fixed")
    assert early.unsettled == 0
    if stopped:
        assert any(f"{len(stopped)} stopped early" in line for line in early.lines())
        firsts = [list(mine.values())[:size] for mine in whole.values()]
        assert firsts
        assert early.mean != fixed.mean


def test_bayes_keeps_its_budget_and_goes_where_it_is_undecided(run: Path) -> None:
    result = profile(config(run, name="bayes", budget="bayes", rollouts=8))
    whole = profile(config(run, name="whole", rollouts=64))
    mine, all_of_them = samples(run, "bayes"), samples(run, "whole")
    sizes = {key: len(one) for key, one in mine.items()}
    assert sum(sizes.values()) <= 8 * len(sizes)
    assert min(sizes.values()) == 4 < 8 < max(sizes.values())
    for key, one in mine.items():
        assert one == {number: all_of_them[key][number] for number in range(len(one))}
    assert result.mean == pytest.approx(whole.mean, abs=0.15)


@pytest.mark.parametrize("budget", ["curtailed", "bayes"])
def test_interrupted_rounds_end_in_the_same_bytes(run: Path, tmp_path: Path, budget: str) -> None:
    undisturbed = copy(run, tmp_path / "calm")
    profile(config(undisturbed, budget=budget, rollouts=8), policy=ScriptedPolicy(play))
    calls = sum(map(len, samples(undisturbed, "base").values()))
    left = 0

    def script(state: State, rng: random.Random) -> str:
        nonlocal left
        left -= 1
        if left == 0:
            raise KeyboardInterrupt
        return play(state, rng)

    for after in (3, calls // 3, calls // 4, calls // 4):
        left = after
        with pytest.raises(KeyboardInterrupt):
            profile(config(run, budget=budget, rollouts=8), policy=ScriptedPolicy(script))
    parts = sorted((run / "profiles/base/rollouts").iterdir())
    assert len(parts) > 1, "it was interrupted in a later round"
    parts[-1].write_bytes(parts[-1].read_bytes()[:-7])
    left = 0
    profile(config(run, budget=budget, rollouts=8), policy=ScriptedPolicy(script))
    assert differences(run, undisturbed) == ["run.json"], "which names the run's own folder"
    assert bill(run) == bill(undisturbed)


def test_another_verifier_leaves_some_unsettled_and_a_topup_samples_these_alone(run: Path) -> None:
    profile(config(run, name="early", budget="curtailed"))
    before = samples(run, "early")
    other = rescore(RescoreConfig(run=run, name="early", verifier="tool_name"))
    (listed,) = run.glob(f"profiles/early/verdicts/{other.profiles[0].verifier}/unsettled.jsonl")
    unsettled = {one.candidate_id for one in read_jsonl(listed, Profile)}
    assert 0 < len(unsettled) == other.unsettled < len(before)
    assert any(line.startswith(f"{len(unsettled)} are unsettled") for line in other.lines())
    again = profile(config(run, name="early", budget="curtailed", verifier="tool_name", topup=True))
    after = samples(run, "early")
    assert {key for key in after if len(after[key]) > len(before[key])} == unsettled
    assert again.unsettled == 0
    profile(config(run, name="fixed"))
    rescore(RescoreConfig(run=run, name="fixed", verifier="tool_name"))
    assert pivots(run, "early", verifier="tool_name") == pivots(run, "fixed", verifier="tool_name")
    assert pivots(run, "early") == pivots(run, "fixed"), "its own verdicts are brought up to date"
    settled = profile(config(run, name="early", budget="curtailed", verifier="tool_name", topup=True))
    assert samples(run, "early") == after
    assert settled.profiles == again.profiles


def test_a_topup_for_another_lambda_and_of_another_profile(run: Path) -> None:
    early = config(run, name="early", budget="curtailed", stopping=StoppingSettings(lambda_diff=0.3))
    with pytest.raises(MissingError, match="profile --run"):
        profile(replace(early, topup=True))
    profile(early)
    profile(replace(early, stopping=StoppingSettings(lambda_diff=0.8, round_size=5), topup=True))
    profile(config(run, name="fixed"))
    assert pivots(run, "early", lambda_diff=0.8) == pivots(run, "fixed", lambda_diff=0.8)
    assert load_plan(RunDirectory(run), "early").stopping == StoppingSettings(lambda_diff=0.3)
    with pytest.raises(ConfigError, match="seed"):
        profile(replace(early, seed=1, topup=True))


def test_rounds_have_their_own_lines_in_the_bill(run: Path) -> None:
    profile(config(run, budget="curtailed"))
    lines = [json.loads(line) for line in (run / "ledger.jsonl").open()]
    mine = [line for line in lines if line["stage"] == "profile"]
    assert len({line["unit"] for line in mine}) == len(mine)
    assert sum(line["usage"]["rollouts"] for line in mine) == sum(map(len, samples(run, "base").values()))


def test_an_unfinished_profile_is_not_rescored(run: Path) -> None:
    def script(state: State, rng: random.Random) -> str:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        profile(config(run, budget="bayes"), policy=ScriptedPolicy(script))
    with pytest.raises(MissingError, match="unfinished"):
        rescore(RescoreConfig(run=run, verifier="exact"))
