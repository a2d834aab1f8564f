"""Two profiles compared: recounted, and what is expected of luck alone against luck alone."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from desk_plugins import play
from kill_harness import bill, copy, differences
from pivotrl.budgets import POINTS_P, WEIGHTS, Counts, fit_prior, posterior
from pivotrl.errors import ConfigError, MissingError
from pivotrl.metrics import beta_posterior, group_statistics, mean_share
from pivotrl.planning import Scope
from pivotrl.policies import ScriptedPolicy
from pivotrl.profile_settings import ProfileConfig, load_plan
from pivotrl.profiling import profile
from pivotrl.reporting import ReportConfig, report
from pivotrl.run_directory import RunDirectory
from pivotrl.stability import Stability, stability_of
from pivotrl.storage import read_json, read_jsonl
from pivotrl.types import Profile, Rollout, State


def profile_of(candidate: str, rewards: Sequence[float]) -> Profile:
    seen = group_statistics(rewards)
    counted = {"unscored": 0, "truncated": 0, "unparsable": 0, "distinct_actions": 1, "policy": "p", "verifier": "v"}
    return Profile(
        candidate_id=candidate,
        n=seen.n,
        mean=seen.mean,
        variance=seen.variance,
        posterior=beta_posterior(rewards),
        **counted,
    )


def counted(right: Sequence[int], rollouts: int) -> list[Profile]:
    """Binary profiles, three candidates a trajectory."""
    return [profile_of(f"t{i // 3}@{i}", [1.0] * s + [0.0] * (rollouts - s)) for i, s in enumerate(right)]


EIGHTS = st.integers(0, 8)


@given(st.lists(st.tuples(EIGHTS, EIGHTS), min_size=1, max_size=40), st.sampled_from([0.3, 0.6, 1.0]))
def test_sets_are_recounted(pairs: list[tuple[int, int]], lambda_diff: float) -> None:
    first, second = zip(*pairs, strict=True)
    found = stability_of(counted(first, 8), counted(second, 8), other="o", lambda_diff=lambda_diff, rollouts=None)
    one, two = ({i for i, s in enumerate(side) if 0 < s < 8 and s / 8 < lambda_diff} for side in (first, second))
    count = len(pairs)
    assert (found.candidates, found.selected, found.both) == (count, (len(one), len(two)), len(one & two))
    assert found.agreement.mean == pytest.approx(1 - len(one ^ two) / count)
    assert found.agreement.clusters == -(-count // 3)
    if not one | two:
        assert (found.jaccard, found.found) == (None, None)
    else:
        assert found.jaccard.mean == pytest.approx(len(one & two) / len(one | two))
        assert found.jaccard == mean_share([(float(i in one & two), f"t{i // 3}") for i in sorted(one | two)])
        assert found.found.mean == pytest.approx(2 * len(one & two) / (len(one) + len(two)))
        assert found.found.n == len(one) + len(two)
    table = np.array([[sum((i in one, i in two) == (a, b) for i in range(count)) for b in (0, 1)] for a in (0, 1)])
    chance = (table.sum(0) * table.sum(1)).sum() / count**2
    if chance == 1:
        assert found.kappa is None
    else:
        assert found.kappa == pytest.approx((np.trace(table) / count - chance) / (1 - chance))


def test_what_is_expected_is_what_luck_brings() -> None:
    """Success probabilities from the prior, so that the posterior is right: the mean over second profiles is close."""
    draw = np.random.default_rng(0)
    prior_P = posterior(Counts(np.zeros(1), np.zeros(1)), WEIGHTS)[0]
    p_M = draw.choice(POINTS_P, size=1500, p=prior_P)
    first = counted(draw.binomial(16, p_M).tolist(), 16)
    again = [
        stability_of(first, counted(draw.binomial(16, p_M).tolist(), 16), other="o", lambda_diff=0.6, rollouts=None)
        for _ in range(6)
    ]
    for name in ("agreement", "jaccard", "found"):
        expected = {getattr(one, f"expected_{name}") for one in again}
        assert len(expected) == 1, "the first profile alone decides"
        assert np.mean([getattr(one, name).mean for one in again]) == pytest.approx(expected.pop(), abs=0.012), name


def test_the_expectation_of_one_candidate_by_quadrature() -> None:
    """Seen 3 of 8 right; a second decision by 16 rollouts. Summed over p and over all outcomes."""
    first, second = counted([3], 8), counted([5], 8)
    found = stability_of(first, second, other="o", lambda_diff=0.6, rollouts=16)
    counts = Counts(np.array([3.0]), np.array([8.0]))
    belief_P = posterior(counts, fit_prior(counts))[0]
    chance = sum(scipy.stats.binom.pmf(s, 16, POINTS_P) @ belief_P for s in range(1, 10))
    assert found.expected_agreement == pytest.approx(chance)
    assert found.expected_jaccard == pytest.approx(chance)  # of (3/8, selected): both / (1 + chance - chance)


def test_what_was_scored_too_little_is_left_out() -> None:
    first = [profile_of("a@1", [1.0, 0.0]), profile_of("a@2", [1.0]), profile_of("b@1", [])]
    found = stability_of(first, first, other="o", lambda_diff=0.6, rollouts=None)
    assert (found.candidates, found.left_out) == (1, 2)
    assert "too few scored to compare: 2" in found.lines()
    with pytest.raises(MissingError, match="two scored rollouts"):
        stability_of(first[1:], first[1:], other="o", lambda_diff=0.6, rollouts=None)


def config(run: Path, **fields: object) -> ProfileConfig:
    policy = "scripted:desk_plugins:play"
    return ProfileConfig(**({"run": run, "policy": policy, "rollouts": 8, "stability": True} | fields))


def texts(run: Path, name: str) -> list[str]:
    return [
        one.completion.text
        for part in sorted((run / "profiles" / name / "rollouts").iterdir())
        for one in read_jsonl(part, Rollout)
    ]


@pytest.mark.parametrize("budget", ["fixed", "curtailed"])
def test_a_profile_twice(run: Path, budget: str) -> None:
    result = profile(config(run, budget=budget, scope=Scope(max_candidates=15)))
    stored = read_json(run / "profiles/base/stability.json", Stability)
    assert stored == result.stability
    plans = [load_plan(RunDirectory(run), name) for name in ("base", "base.again")]
    assert plans[0].candidates == plans[1].candidates
    assert plans[0].seed != plans[1].seed
    assert plans[1].follows == "base"
    assert stored.candidates + stored.left_out == 15 == len(result.profiles)
    assert texts(run, "base") != texts(run, "base.again")
    assert any(line.startswith("the same decision: 0.") for line in result.lines())
    report(ReportConfig(run=run))
    text = (run / "report.md").read_text()
    assert all(f"- {line}" in text for line in stored.lines())
    assert "| rollouts unscored | " in text
    assert "| rollouts truncated | " in text
    assert {name for _, name in bill(run)} >= {"base", "base.again"}


def test_interrupted_in_the_second_profile(run: Path, tmp_path: Path) -> None:
    calm = copy(run, tmp_path / "calm")
    profile(config(calm), policy=ScriptedPolicy(play))
    calls = itertools.count()

    def script(state: State, rng: random.Random) -> str:
        if next(calls) == 24 * 8 + 50:
            raise KeyboardInterrupt
        return play(state, rng)

    with pytest.raises(KeyboardInterrupt):
        profile(config(run), policy=ScriptedPolicy(script))
    assert (run / "profiles/base.again").is_dir()
    assert not (run / "profiles/base/stability.json").exists()
    profile(config(run), policy=ScriptedPolicy(script))
    assert differences(run, calm) == ["run.json"], "which names the run's own folder"
    assert bill(run) == bill(calm)


def test_what_cannot_be_done_twice(run: Path) -> None:
    with pytest.raises(ConfigError, match="topup"):
        profile(config(run, topup=True))
    with pytest.raises(ConfigError, match="everything: only with --again"):
        profile(config(run, everything=True))
    with pytest.raises(ConfigError, match="100 bytes at most"):
        profile(config(run, name="a" * 95))
    assert not (run / "profiles" / ("a" * 95)).exists()
