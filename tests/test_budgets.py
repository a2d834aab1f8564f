"""Budgets: curtailed against every sequence of outcomes, the posterior against scipy, stopping against recursion."""

from __future__ import annotations

import itertools
from functools import cache

import numpy as np
import pytest
import scipy.stats

from pivotrl.budgets import (
    POINTS_P,
    PRICES,
    WEIGHTS,
    Counts,
    Stopping,
    StoppingSettings,
    curtailed,
    fit_prior,
    posterior,
    worth_keeping,
)
from pivotrl.errors import ConfigError
from pivotrl.metrics import group_statistics

LAMBDAS = (0.05, 0.3, 0.5, 0.6, 0.75, 1.0)


def counts(*pairs: tuple[float, float]) -> Counts:
    successes, scored = zip(*pairs, strict=True)
    return Counts(np.array(successes, dtype=float), np.array(scored, dtype=float))


def final(rewards, lambda_diff, min_scored=2, min_std=0.0) -> bool:
    """Eq. 5 with its two guards, from the rewards themselves."""
    scored = [reward for reward in rewards if reward is not None]
    if len(scored) < min_scored or len(set(scored)) < 2:
        return False
    return bool(np.std(scored) >= min_std) and sum(scored) / len(scored) < lambda_diff


@pytest.mark.parametrize("lambda_diff", LAMBDAS)
@pytest.mark.parametrize("rollouts", range(1, 11))
def test_curtailed_decides_as_all_rollouts_do(rollouts: int, lambda_diff: float) -> None:
    for rewards in itertools.product((0.0, 1.0), repeat=rollouts):
        words = [curtailed(group_statistics(rewards[:n]), rollouts - n, lambda_diff) for n in range(rollouts + 1)]
        assert {word for word in words if word is not None} == {final(rewards, lambda_diff)}
        assert words[-1] is not None


@pytest.mark.parametrize("min_scored", [1, 2, 3])
@pytest.mark.parametrize("lambda_diff", LAMBDAS)
def test_curtailed_stops_exactly_when_nothing_can_change(lambda_diff: float, min_scored: int) -> None:
    """With unscored rollouts and a reward just above 0: settled if and only if all futures end alike."""

    def futures(rewards: tuple[float | None, ...]) -> set[bool]:
        left = 5 - len(rewards)
        ends = (
            set().union(*(futures((*rewards, one)) for one in (0.0, 0.01, 1.0, None)))
            if left
            else {final(rewards, lambda_diff, min_scored)}
        )
        word = curtailed(group_statistics(rewards), left, lambda_diff, min_scored=min_scored)
        assert ends == ({True, False} if word is None else {word}), rewards
        return ends

    futures(())


@pytest.mark.parametrize("min_std", [0.1, 0.4, 0.5])
def test_curtailed_with_a_least_spread(min_std: float) -> None:
    for rewards in itertools.product((0.0, 0.2, 1.0, None), repeat=6):
        for n in range(7):
            word = curtailed(group_statistics(rewards[:n]), 6 - n, 0.6, min_std=min_std)
            assert word in (None, final(rewards, 0.6, min_std=min_std))


def test_the_posterior_of_one_broad_component_is_scipys() -> None:
    alone = (0.0, 0.0, 1.0, 0.0, 0.0, 0.0)
    pairs = [(0, 0), (0, 16), (3, 16), (9, 16), (16, 16), (2.5, 7)]
    mine = worth_keeping(counts(*pairs), alone, StoppingSettings())
    betas = [scipy.stats.beta(1 + s, 1 + n - s) for s, n in pairs]
    assert mine == pytest.approx([beta.cdf(0.6) - beta.cdf(0.05) for beta in betas], abs=2e-3)


def test_an_all_fail_candidate_may_still_be_a_pivot() -> None:
    """After 16 failures a p of 2 to 15% keeps some probability, and one success brings it back."""
    points = posterior(counts((0, 16), (0, 64), (1, 17)), WEIGHTS)
    possible = points[:, 1:-1][:, 4:30].sum(axis=1)
    assert 0.03 < possible[0] < 0.3
    assert possible[1] < possible[0] / 4
    assert worth_keeping(counts((1, 17)), WEIGHTS, StoppingSettings())[0] > StoppingSettings().level


def test_the_prior_is_found_again() -> None:
    """Also when candidates were stopped at different numbers, by what had been seen."""
    rng = np.random.default_rng(0)
    kind = rng.random(4000)
    p = np.where(kind < 0.5, 0.0, np.where(kind < 0.65, 1.0, rng.random(4000)))
    first, more = rng.binomial(4, p), rng.binomial(12, p)
    undecided = first < 4
    weights = fit_prior(Counts(first + np.where(undecided, more, 0.0), 4 + np.where(undecided, 12.0, 0.0)))
    assert sum(weights) == pytest.approx(1)
    assert weights[0] == pytest.approx(0.5, abs=0.03)
    assert weights[1] == pytest.approx(0.15, abs=0.03)
    little = np.array(fit_prior(counts((0, 4))))
    assert np.abs(little - WEIGHTS).max() < 0.05


@pytest.mark.parametrize(("step", "most"), [(1, 5), (2, 6), (4, 8)])
def test_stopping_is_solved_as_plain_recursion_does(step: int, most: int) -> None:
    settings = StoppingSettings(round_size=step, most=most)
    stopping = Stopping(WEIGHTS, settings)
    number = 25
    price = PRICES[number]

    @cache
    def value(s: int, n: int) -> tuple[float, float]:
        """(expected cost, expected rollouts)"""
        keep = float(worth_keeping(counts((s, n)), WEIGHTS, settings)[0])
        now = min((1 - settings.level) * keep, settings.level * (1 - keep))
        if n + step > most:
            return now, 0.0
        points = posterior(counts((s, n)), WEIGHTS)[0]
        chances = [float(points @ scipy.stats.binom.pmf(j, step, POINTS_P)) for j in range(step + 1)]
        later = [value(s + j, n + step) for j in range(step + 1)]
        go_on = price * step + sum(chance * one[0] for chance, one in zip(chances, later, strict=True))
        rollouts = step + sum(chance * one[1] for chance, one in zip(chances, later, strict=True))
        assert stopping.gain_KSN[number, s, n] == pytest.approx(now - go_on, abs=1e-12)
        return (go_on, rollouts) if go_on < now else (now, 0.0)

    for n in range(most + 1):
        for s in range(n + 1):
            assert stopping.cost_KSN[number, s, n] == pytest.approx(value(s, n)[1], abs=1e-9)
    assert stopping.cost_KSN[number].any()


def test_a_budget_is_kept_and_goes_to_the_undecided() -> None:
    settings = StoppingSettings()
    stopping = Stopping(WEIGHTS, settings)
    seen = counts((4, 4), (0, 4), (2, 4), (0, 64), (2.4, 4), (0, 60))
    wanted, price = stopping.next_round(seen, 1000)
    assert 0 not in wanted or price == PRICES[0]
    assert {1, 2, 4} <= set(wanted)
    assert 3 not in wanted, "it has had the most"
    for budget in (0, 3, 4, 11, 40):
        few, _ = stopping.next_round(seen, budget)
        assert len(few) * settings.round_size <= budget
        assert few == sorted(few)
    assert stopping.next_round(seen, 4)[0], "what is left is spent"


def test_more_is_found_than_by_the_same_number_for_each() -> None:
    rng = np.random.default_rng(1)
    kind = rng.random(600)
    p = np.where(kind < 0.3, 0.0, np.where(kind < 0.65, 1.0, rng.random(600)))
    right = (rng.random((600, 64)) < p[:, None]).cumsum(axis=1)
    pivot = (p >= 0.05) & (p < 0.6)
    settings, taken, budget = StoppingSettings(), np.full(600, 4), 4 * 600
    while True:
        seen = Counts(right[np.arange(600), taken - 1].astype(float), taken.astype(float))
        weights = fit_prior(seen)
        wanted, _ = Stopping(weights, settings).next_round(seen, budget)
        if not wanted:
            break
        taken[wanted] += 4
        budget -= 4 * len(wanted)
    assert taken.sum() <= 8 * 600
    assert taken.max() > 20
    mine = worth_keeping(seen, weights, settings) > settings.level
    fixed = (right[:, 7] > 0) & (right[:, 7] / 8 < 0.6)

    def f1(keep: np.ndarray) -> float:
        return 2 * (keep & pivot).sum() / (keep.sum() + pivot.sum())

    assert f1(mine) > f1(fixed) + 0.03


@pytest.mark.parametrize(
    "wrong",
    [{"lambda_diff": 0}, {"low": 0.6}, {"low": -0.1}, {"level": 1}, {"round_size": 0}, {"most": 3}, {"most": 513}],
)
def test_settings_that_decide_nothing(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=r"must be|use at most 512"):
        StoppingSettings(**wrong)
