"""Selection: Eq. 5 with both inequalities strict, and one fate for every candidate."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kill_harness import RUN, make_desk
from pivotrl.candidates import CandidateStore
from pivotrl.charts import funnel_chart
from pivotrl.errors import ConfigError, InputError, MissingError
from pivotrl.pivots import FUNNEL, SelectConfig, fate, select
from pivotrl.profile_result import profile_group
from pivotrl.profile_settings import ProfileConfig
from pivotrl.profiling import profile
from pivotrl.run_directory import RunDirectory
from pivotrl.storage import read_jsonl
from pivotrl.types import Completion, Pivot, Profile, RolloutGroup, Verdict


def profile_of(*rewards: float | None) -> Profile:
    verdicts = tuple(Verdict(value=reward, reason="r", verifier="v", version="1") for reward in rewards)
    completion = Completion(action=None, text="", finish_reason="stop")
    return profile_group(
        RolloutGroup(candidate_id="c@1", completions=(completion,) * len(rewards), verdicts=verdicts), "p", "v"
    )


def fate_of(*rewards: float | None, **settings: float) -> str:
    return fate(profile_of(*rewards), SelectConfig(run=Path(), **settings))


@pytest.mark.parametrize(
    ("rewards", "settings", "expected"),
    [
        ((None, None), {}, "unscored"),
        ((1.0, None), {}, "unscored"),
        ((1.0, None), {"min_scored": 1}, "solved"),
        ((1.0, 1.0, None), {}, "solved"),
        ((0.0, 0.0), {}, "hopeless"),
        ((0.3, 0.3), {}, "flat"),
        ((0.3, 0.31), {}, "pivot"),
        ((0.3, 0.31), {"min_std": 0.1}, "low_spread"),
        ((0.0, 1.0), {"min_std": 0.5}, "pivot"),
        ((0.0, 1.0), {"min_std": 0.51}, "low_spread"),
        ((1.0, 1.0, 1.0, 1.0, 0.0), {"min_std": 0.4, "lambda_diff": 1.0}, "pivot"),
        ((1.0, *[0.0] * 49), {"min_std": 0.14}, "pivot"),
        ((1.0, 1.0, 0.0), {}, "too_easy"),
        ((1.0, 0.0, 0.0), {}, "pivot"),
        ((1.0, 0.0, None), {"min_scored": 3}, "unscored"),
        ((), {}, "unscored"),
    ],
)
def test_fates(rewards: tuple[float | None, ...], settings: dict[str, float], expected: str) -> None:
    assert fate_of(*rewards, **settings) == expected
    assert expected in FUNNEL


def test_a_mean_at_lambda_is_too_easy() -> None:
    assert fate_of(*[1.0] * 3, *[0.0] * 2, lambda_diff=0.6) == "too_easy"
    assert fate_of(*[1.0] * 3, *[0.0] * 2, lambda_diff=math.nextafter(0.6, 1)) == "pivot"
    assert fate_of(1.0, 0.0, lambda_diff=0.5) == "too_easy"
    assert fate_of(1.0, 0.0, 0.0, lambda_diff=0.5) == "pivot"
    assert fate_of(0.0, 0.999999, lambda_diff=1.0) == "pivot"


@pytest.mark.parametrize("reward", [0.0, 0.1, 1 / 3, 0.7, 1.0])
def test_equal_rewards_have_no_variance_whatever_they_are(reward: float) -> None:
    assert profile_of(*[reward] * 7).variance == 0.0
    assert fate_of(*[reward] * 7) in ("hopeless", "flat", "solved")


def test_rewards_are_equal_to_a_millionth() -> None:
    assert fate_of(0.3, 0.3000004) == "flat"
    assert fate_of(0.3, 0.3000016) == "pivot"
    assert fate_of(1.0, 0.9999997) == "solved"
    assert fate_of(0.0, 0.0000003) == "hopeless"
    assert fate_of(0.1 + 0.2, 0.3) == "flat"


@pytest.mark.parametrize(
    ("rollouts", "lambda_diff", "kept"),
    [(16, 0.6, range(1, 10)), (8, 0.6, range(1, 5)), (16, 0.5, range(1, 8)), (5, 1.0, range(1, 5)), (2, 0.6, [1])],
)
def test_which_counts_of_successes_are_pivots(rollouts: int, lambda_diff: float, kept: range) -> None:
    fates = {
        right: fate_of(*[1.0] * right, *[0.0] * (rollouts - right), lambda_diff=lambda_diff)
        for right in range(rollouts + 1)
    }
    assert [right for right, what in fates.items() if what == "pivot"] == list(kept)
    assert (fates[0], fates[rollouts]) == ("hopeless", "solved")


@given(
    st.lists(st.none() | st.sampled_from([0.0, 0.25, 1.0]) | st.floats(0, 1), max_size=12),
    st.floats(0.01, 1),
)
def test_pivots_are_those_of_equation_5(rewards: list[float | None], lambda_diff: float) -> None:
    scored = np.round([reward for reward in rewards if reward is not None], 6)
    expected = len(scored) >= 2 and np.ptp(scored) > 0 and math.fsum(scored) / len(scored) < lambda_diff
    assert (fate_of(*rewards, lambda_diff=lambda_diff) == "pivot") == expected


@pytest.mark.parametrize("value", [0.0, -1.0, 1.0001, 2.0, math.nan, math.inf])
def test_lambda_diff_is_a_share(tmp_path: Path, value: float) -> None:
    with pytest.raises(ConfigError, match="must be above 0 and at most 1"):
        select(SelectConfig(run=tmp_path, lambda_diff=value))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    run = make_desk(tmp_path) / RUN
    profile(ProfileConfig(run=run, policy="scripted:desk_plugins:play", rollouts=4))
    return run


def test_selection_keeps_the_order_and_counts_everybody(run: Path) -> None:
    (summary,) = run.glob("profiles/base/verdicts/*/summary.jsonl")
    profiles = list(read_jsonl(summary, Profile))
    config = SelectConfig(run=run)
    result = select(config)
    assert sum(result.counts.values()) == len(profiles)
    assert [pivot.candidate_id for pivot in result.pivots] == [
        one.candidate_id for one in profiles if fate(one, config) == "pivot"
    ]
    assert list(read_jsonl(result.path, Pivot)) == list(result.pivots)
    assert json.loads((run / "run.json").read_text())["stages"]["select/base"]["counts"] == result.counts
    assert any(line.split()[0] == str(result.counts["pivot"]) and "PIVOTS" in line for line in result.lines())
    once = result.path.read_bytes()
    select(config)
    assert result.path.read_bytes() == once


def test_what_rules_keep_of_what_was_seen(run: Path) -> None:
    (summary,) = run.glob("profiles/base/verdicts/*/summary.jsonl")
    profiles = {one.candidate_id: one for one in read_jsonl(summary, Profile)}

    def kept(**fields: object) -> set[str]:
        return {pivot.candidate_id for pivot in select(SelectConfig(run=run, **fields)).pivots}

    paper, likely, sure = kept(), kept(rule="posterior", level=0.2), kept(rule="posterior", level=0.7)
    assert sure < likely
    assert sure <= paper
    assert all(profiles[key].n > 0 for key in likely)
    some, most = kept(rule="signal", min_signal=0.5), kept(rule="signal", min_signal=0.01)
    assert some < most
    weights = [pivot.weight for pivot in select(SelectConfig(run=run, weighted=True)).pivots]
    assert len(set(weights)) > 1
    assert all(0 < weight < 1 for weight in weights)
    spread = select(SelectConfig(run=run, weighted=True, signal="std")).pivots
    assert all(0 < pivot.weight <= 0.5 for pivot in spread)


def test_hopeless_candidates_are_listed_with_their_demonstrations(run: Path) -> None:
    profile(ProfileConfig(run=run, policy="scripted:desk_plugins:play", rollouts=2, name="two"))
    result = select(SelectConfig(run=run, profile="two"))
    lines = [json.loads(line) for line in result.hopeless.open()]
    assert 0 < len(lines) == result.counts["hopeless"]
    assert all(
        0 < line["chance"] < 1 and line["demonstration"].keys() == {"text", "reasoning", "calls"} for line in lines
    )
    assert str(result.hopeless) in result.lines()[0]
    said = f"selection 'base' is now from profile 'two': {run / 'pivots' / 'base.jsonl'} (--name names another)"
    assert said in result.lines()
    assert "from profile" not in "".join(select(SelectConfig(run=run, profile="two", name="two")).lines())


def test_quotas_leave_the_best(run: Path) -> None:
    everything = select(SelectConfig(run=run)).pivots
    rows = {row.id: row for row in CandidateStore(RunDirectory(run)).rows()}
    few = select(SelectConfig(run=run, quota=("message=25%", "task=2"))).pivots
    assert {one.candidate_id for one in few} < {one.candidate_id for one in everything}
    assert sum(rows[one.candidate_id].kind == "message" for one in few) <= len(few) / 4
    assert max(Counter(rows[one.candidate_id].group for one in few).values()) <= 2
    result = select(SelectConfig(run=run, quota=("alike=1",)))
    assert sum(result.counts.values()) == 24
    with pytest.raises(ConfigError, match="quota 'tasks=2': write NAME=NUMBER or NAME=SHARE%"):
        select(SelectConfig(run=run, quota=("tasks=2",)))


def test_a_selection_with_other_settings_says_what_is_unsettled(run: Path) -> None:
    profile(ProfileConfig(run=run, policy="scripted:desk_plugins:play", rollouts=16, name="early", budget="curtailed"))
    same, other = (SelectConfig(run=run, profile="early", lambda_diff=value) for value in (0.6, 0.3))
    assert select(same).unsettled == 0
    assert "stopped early: their own means are biased" in " ".join(select(same).lines())
    result = select(other)
    assert 0 < result.unsettled <= result.stopped
    assert f"{result.unsettled} of these are unsettled" in " ".join(result.lines())


def test_a_summary_that_was_cut_is_refused(run: Path) -> None:
    (summary,) = run.glob("profiles/base/verdicts/*/summary.jsonl")
    summary.write_bytes(b"".join(summary.read_bytes().splitlines(keepends=True)[:-1]))
    with pytest.raises(InputError, match="not of the profiled candidates; run `pivotrl profile` again"):
        select(SelectConfig(run=run, name="cut"))


def test_no_pivots_names_the_funnel(run: Path) -> None:
    with pytest.raises(MissingError, match=r"no pivots are left of 24 candidates \(.*\d+ too_easy.*\); raise"):
        select(SelectConfig(run=run, lambda_diff=0.01, name="none"))
    assert (run / "pivots" / "none.jsonl").read_bytes() == b""
    with pytest.raises(MissingError, match="; the quotas leave nothing"):
        select(SelectConfig(run=run, name="none", quota=("tool=1%", "message=1%")))


def test_near_duplicates_are_counted_without_a_quota(tmp_path: Path) -> None:
    run = make_desk(tmp_path, 40) / RUN
    profile(ProfileConfig(run=run, policy="scripted:desk_plugins:play", rollouts=4))
    result = select(SelectConfig(run=run, lambda_diff=1.0))
    one_of_each = select(SelectConfig(run=run, lambda_diff=1.0, quota=("alike=1",)))
    assert result.alike == len(result.pivots) - len(one_of_each.pivots) > 0
    assert one_of_each.alike == 0
    assert any(line.startswith(f"{result.alike} pivots are near-duplicates") for line in result.lines())
    assert "near-duplicates" not in " ".join(one_of_each.lines())


def test_the_picture_is_the_funnel(run: Path) -> None:
    profile(ProfileConfig(run=run, policy="scripted:desk_plugins:play", rollouts=2, name="two"))
    config = SelectConfig(run=run, profile="two", name="drawn", lambda_diff=0.9)
    result = select(config)
    drawn = result.path.with_suffix(".svg").read_bytes()
    select(config)
    assert result.path.with_suffix(".svg").read_bytes() == drawn
    texts = [str(one.text) for one in ElementTree.fromstring(drawn).iter() if one.tag.endswith("text")]
    total = sum(result.counts.values())
    assert texts[0] == "Selection drawn from profile two: auto, lambda 0.9, 2 rollouts"
    for name, count in result.counts.items():
        assert texts[texts.index(name.replace("_", " ")) + 1] == f"{count} ({count / total:.0%})"
    assert f"candidates by mean reward; tallest: {max(result.counts.values())}" in texts


@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=6).filter(any),
    st.lists(st.tuples(st.floats(0, 1), st.booleans()), max_size=30),
    st.floats(0.01, 1),
)
def test_bars_of_a_funnel_follow_one_another_and_none_is_lost(
    counts: list[int], means: list[tuple[float, bool]], mark: float
) -> None:
    names = {f"fate <{number}>": count for number, count in enumerate(counts)}
    drawn = funnel_chart("a & b", names, means, mark)
    boxes = [one.attrib for one in ElementTree.fromstring(drawn).iter() if one.tag.endswith("rect")][1:]
    bars = [(float(box["x"]), float(box["width"])) for box in boxes[: len(counts) + 1]]
    end = bars[0][0] + bars[0][1]
    for x, width in bars[1:]:
        assert x + width == pytest.approx(end, abs=0.11)
        end = x
    assert end == pytest.approx(bars[0][0], abs=0.11)
    light = [float(box["height"]) for box in boxes[len(counts) + 1 :] if "#999" in box["style"]]
    bins = Counter(round(mean * 16) for mean, _ in means)
    assert sorted(light) == pytest.approx(sorted(168 * one / max(bins.values()) for one in bins.values()), abs=0.06)
    assert len(boxes) - len(counts) - 1 - len(light) == len({round(mean * 16) for mean, kept in means if kept})
