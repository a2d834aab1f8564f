"""Statistics, pure: means with intervals clustered by task, group variance, the Beta posterior.

Sources: cluster-robust standard errors of a mean as in Miller 2024, "Adding Error Bars to Evals" (arXiv 2411.00640),
with the small-sample factor C/(C-1); population variance as in Eq. 5 of the paper.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from pivotrl.logs import counted
from pivotrl.types import Estimate, Posterior

REWARD_DECIMALS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStatistics:
    """Mean and population variance of the scored rewards of one group."""

    n: int
    mean: float | None
    variance: float | None


def known_mean(values: Iterable[float | None]) -> float | None:
    """Mean of the values that are not None; None where none is."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def group_statistics(rewards_G: Sequence[float | None]) -> GroupStatistics:
    """Statistics of a group; unscored members (None) are left out. Rewards are first rounded to 1e-6.

    Equal rewards give a variance of exactly 0, whatever their value.
    """
    scored = [round(reward, REWARD_DECIMALS) for reward in rewards_G if reward is not None]
    if not scored:
        return GroupStatistics(n=0, mean=None, variance=None)
    if min(scored) == max(scored):
        return GroupStatistics(n=len(scored), mean=scored[0], variance=0.0)
    mean = math.fsum(scored) / len(scored)
    variance = math.fsum((reward - mean) ** 2 for reward in scored) / len(scored)
    return GroupStatistics(n=len(scored), mean=mean, variance=variance)


def beta_posterior(rewards_G: Sequence[float | None]) -> Posterior:
    """Beta(1/2 + sum r, 1/2 + n - sum r) over the scored rewards."""
    scored = [reward for reward in rewards_G if reward is not None]
    total = math.fsum(scored)
    return Posterior(a=0.5 + total, b=0.5 + len(scored) - total)


def clustered_mean(
    values: Sequence[float], clusters: Sequence[Hashable], bounds: tuple[float, float] = (-math.inf, math.inf)
) -> Estimate:
    """Mean of `values`, which lie in `bounds`, with a 95% interval that allows values of one cluster to be correlated.

    The interval is the t interval with C - 1 degrees of freedom, cut to the bounds, and where these are finite at least
    as wide as what none of C clusters showed allows: it has a probability of at most 1 - 0.025^(1/C) (Clopper and
    Pearson 1934), and moves the mean to a bound at worst. So equal clusters have the exact interval, and one that
    differs does not have a narrower one. It is None on both sides for fewer than two clusters, and for equal ones
    without bounds.
    Raises ValueError when the lengths differ or nothing is given.
    """
    if not values or len(values) != len(clusters):
        raise ValueError(f"{len(values)} values, {len(clusters)} cluster labels")
    mean = math.fsum(values) / len(values)
    sums: defaultdict[Hashable, float] = defaultdict(float)
    for value, cluster in zip(values, clusters, strict=True):
        sums[cluster] += value - mean
    count, known = len(sums), all(map(math.isfinite, bounds))
    equal = max(map(abs, sums.values())) < 1e-12
    if count < 2 or (equal and not known):
        return Estimate(mean=mean, low=None, high=None, n=len(values), clusters=count)
    error = math.sqrt(math.fsum(total * total for total in sums.values()) * count / (count - 1)) / len(values)
    half = 0.0 if equal else t_quantile_975(count - 1) * error
    low, high = max(bounds[0], mean - half), min(bounds[1], mean + half)
    if known:
        unseen = 1 - 0.025 ** (1 / count)
        low, high = min(low, mean - unseen * (mean - bounds[0])), max(high, mean + unseen * (bounds[1] - mean))
    return Estimate(mean=mean, low=low, high=high, n=len(values), clusters=count)


def mean_share(shares: Sequence[tuple[float, Hashable]]) -> Estimate:
    """`clustered_mean` of (value from 0 to 1, cluster). Raises ValueError when nothing is given."""
    return clustered_mean([value for value, _ in shares], [cluster for _, cluster in shares], (0.0, 1.0))


@cache
def t_quantile_975(degrees: int) -> float:
    """The 97.5% quantile of Student's t, by bisection of its distribution function (integrated by Simpson's rule)."""
    low, high = 1.9, 13.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_cdf(middle, degrees) < 0.975 else (low, middle)
    return (low + high) / 2


def _t_cdf(t: float, degrees: int) -> float:
    points = np.linspace(0.0, t, 2001)
    constant = math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)) / math.sqrt(degrees * math.pi)
    density = constant * (1 + points**2 / degrees) ** (-(degrees + 1) / 2)
    weights = np.ones_like(points)
    weights[1:-1:2], weights[2:-1:2] = 4.0, 2.0
    return 0.5 + float((weights * density).sum()) * (t / 2000) / 3


def change_word(change: Estimate) -> str:
    """What may be said of a change: better, WORSE, within noise (its interval holds zero), or interval unknown."""
    if change.low is None or change.high is None:
        return "interval unknown"
    return "better" if change.low > 0 else "WORSE" if change.high < 0 else "within noise"


def format_short(estimate: Estimate | None) -> str:
    """`0.512 [0.470, 0.554]`, the mean alone where the interval is unknown; `unknown` without an estimate."""
    if estimate is None:
        return "unknown"
    bounds = "" if estimate.low is None else f" [{estimate.low:.3f}, {estimate.high:.3f}]"
    return f"{estimate.mean:.3f}{bounds}"


def format_estimate(estimate: Estimate | None) -> str:
    """`0.512 [0.470, 0.554] (n=400, 50 tasks)`, without a bound where it is unknown; empty without an estimate."""
    if estimate is None:
        return ""
    unknown = " [interval unknown]" if estimate.low is None else ""
    return f"{format_short(estimate)}{unknown} (n={estimate.n}, {counted(estimate.clusters, 'task')})"
