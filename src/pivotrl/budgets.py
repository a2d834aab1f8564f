"""Where profiling rollouts are spent: when a candidate is settled, and which undecided ones are worth more. Pure.

`curtailed` stops a candidate once no outcome of its remaining rollouts can change keep or drop under Eq. 5: the same
decisions as K rollouts each, for fewer. `bayes` has rollouts x candidates to spend. After every round it refits a prior
to all counts, and solves the stopping problem exactly: a rollout has a price, a wrong decision has a cost, and a
candidate goes on while that is expected to cost less. The price is the lowest at which the budget is expected to last.

Sources: curtailment as in Dodge and Romig 1929; optimal stopping by backward induction (Wald 1950), one price for a
shared budget (Lagrange; Whittle 1988); empirical Bayes by EM over fixed components (Laird 1978). The prior before any
data is our choice: the paper reports that 71% of random turns give equal rewards, hence a third near 0, a third near 1,
and a third broad. The broad part is what keeps an all-fail candidate possible: its p may well be 2 to 15%.

Shape suffixes: `_M` candidates or pairs of counts, `_P` points of the grid of p, `_C` components of the prior,
`_SN` successes x scored rollouts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pivotrl.errors import ConfigError, check_least
from pivotrl.metrics import REWARD_DECIMALS, GroupStatistics
from pivotrl.theorems import Array, chance_mixed
from pivotrl.types import Profile

Budget = Literal["fixed", "curtailed", "bayes"]
Signal = Literal["mixed", "std"]
Counted = GroupStatistics | Profile
"""What has been seen of a candidate."""

_CELLS: Final = 200
_SPIKE: Final = 0.002
"""Where `always` and `never` lie: a verifier that errs now and then does not rule them out."""
_BROAD: Final = ((1.0, 1.0), (1.0, 4.0), (4.0, 1.0), (3.0, 3.0))
"""Beta(a, b) of the broad components: anything, hard, easy, in between."""
_PRIOR_STRENGTH: Final = 12.0
"""How many candidates the prior before any data counts for when it is refitted."""
PRICES: Final = np.geomspace(1e-6, 0.1, 40)
"""Of a rollout, as parts of a wrong decision."""
MOST_ROLLOUTS: Final = 512
"""Of a candidate under bayes: a quarter of a gigabyte of expected gains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppingSettings:
    """When a candidate needs no more rollouts (budgets curtailed and bayes). Raises ConfigError."""

    lambda_diff: float = 0.6
    """The lambda-diff that `select` will be given; under another one, settled candidates may not be."""
    round_size: int = 4
    """Rollouts that an unsettled candidate gets in a round. Every round renders and prefills its states again."""
    low: float = 0.05
    """bayes: a candidate is worth keeping where its success probability is at least this, and below lambda-diff."""
    most: int = 64
    """bayes: no candidate gets more rollouts than this."""
    level: float = 0.35
    """bayes: keep where the probability of that is above this; one missed is worth (1 - level) / level too many."""

    def __post_init__(self) -> None:
        if not 0 < self.lambda_diff <= 1:
            raise ConfigError(f"lambda-diff {self.lambda_diff}: must be above 0 and at most 1")
        if not 0 <= self.low < self.lambda_diff:
            raise ConfigError(f"low {self.low}: must be at least 0 and below lambda-diff ({self.lambda_diff})")
        if not 0 < self.level < 1:
            raise ConfigError(f"level {self.level}: must be above 0 and below 1")
        check_least(self, round_size=1, most=self.round_size)
        if self.most > MOST_ROLLOUTS:
            raise ConfigError(f"most {self.most}: what bayes weighs grows with its square; use at most {MOST_ROLLOUTS}")


def curtailed(
    seen: Counted, left: int, lambda_diff: float, *, min_scored: int = 2, min_std: float = 0.0
) -> bool | None:
    """Whether a candidate is kept (True) or dropped (False) by Eq. 5 whatever `left` more rollouts bring; else None.

    Each of them may bring any reward in [0, 1], or be unscored. A spread of at least `min_std` > 0 is only certain at
    the end.
    """
    total = round((seen.mean or 0.0) * seen.n, REWARD_DECIMALS)
    varied = seen.variance is not None and seen.variance > 0
    if seen.n + left < max(min_scored, 2) or (seen.n and total / (seen.n + left) >= lambda_diff):
        return False
    if left and (not varied or seen.n < min_scored or min_std > 0 or (total + left) / (seen.n + left) >= lambda_diff):
        return None
    return varied and round(math.sqrt(seen.variance or 0.0), REWARD_DECIMALS) >= min_std


class Counts(NamedTuple):
    """Sums of rewards and numbers of scored rollouts, candidate by candidate. Fractional rewards count in part."""

    successes_M: Array
    scored_M: Array

    @classmethod
    def of(cls, seen: Iterable[Counted]) -> Counts:
        pairs = (((one.mean or 0.0) * one.n, one.n) for one in seen)
        return cls(*np.fromiter(pairs, np.dtype((float, 2))).T)

    def distinct(self) -> tuple[Counts, NDArray[np.intp], NDArray[np.intp]]:
        """(the different pairs in ascending order, which of them each candidate has, how many have each).

        As complex numbers they are sorted ten times faster than by `np.unique(..., axis=1)`.
        """
        pairs, where_M, times = np.unique(
            self.successes_M + 1j * self.scored_M, return_inverse=True, return_counts=True
        )
        return Counts(pairs.real, pairs.imag), where_M, times


def _components() -> tuple[Array, Array]:
    """(points of p, mass of each component at them)."""
    cells_P = (np.arange(_CELLS) + 0.5) / _CELLS
    points_P = np.concatenate([[_SPIKE], cells_P, [1 - _SPIKE]])
    mass_CP = np.zeros((2 + len(_BROAD), len(points_P)))
    mass_CP[0, 0] = mass_CP[1, -1] = 1.0
    for row, (a, b) in zip(mass_CP[2:, 1:-1], _BROAD, strict=True):
        row[:] = cells_P ** (a - 1) * (1 - cells_P) ** (b - 1)
    return points_P, mass_CP / mass_CP.sum(axis=1, keepdims=True)


POINTS_P, _MASS_CP = _components()
WEIGHTS: Final = (1 / 3, 1 / 3) + (1 / 3 / len(_BROAD),) * len(_BROAD)
"""Of the components before any data."""


def _likelihood(counts: Counts) -> Array:
    """(M, P), each row up to a factor."""
    failures_M = counts.scored_M - counts.successes_M
    log_MP = counts.successes_M[:, None] * np.log(POINTS_P) + failures_M[:, None] * np.log1p(-POINTS_P)
    likelihood_MP: Array = np.exp(log_MP - log_MP.max(axis=1, keepdims=True))
    return likelihood_MP


def fit_prior(counts: Counts, rounds: int = 60) -> tuple[float, ...]:
    """Weights of the components by EM, drawn to those before any data; how sampling was stopped does not matter."""
    pairs, _, times_M = counts.distinct()
    evidence_MC = _likelihood(pairs) @ _MASS_CP.T
    weights_C = start_C = np.array(WEIGHTS)
    for _ in range(rounds):
        share_MC = evidence_MC * weights_C
        share_MC /= share_MC.sum(axis=1, keepdims=True)
        weights_C = times_M @ share_MC + _PRIOR_STRENGTH * start_C
        weights_C /= weights_C.sum()
    return tuple(weights_C.tolist())


def posterior(counts: Counts, weights: Sequence[float]) -> Array:
    """(M, P): the probability of every point of p, given the counts of each candidate."""
    posterior_MP = _likelihood(counts) * (np.array(weights) @ _MASS_CP)
    normal_MP: Array = posterior_MP / posterior_MP.sum(axis=1, keepdims=True)
    return normal_MP


def worth_keeping(counts: Counts, weights: Sequence[float], settings: StoppingSettings) -> Array:
    """(M,): the probability that low <= p < lambda_diff."""
    return posterior_mean(counts, weights, _inside(settings))


def expected_signal(
    counts: Counts, weights: Sequence[float], kind: Signal, group_size: int, lambda_diff: float
) -> Array:
    """(M,): what a training group is expected to teach, counting p < lambda_diff alone.

    `mixed`: the probability that its rewards differ, 1 - p^G - (1 - p)^G; `std`: their standard deviation,
    sqrt(p (1 - p)).
    """
    value_P = chance_mixed(POINTS_P, group_size) if kind == "mixed" else np.sqrt(POINTS_P * (1 - POINTS_P))
    return posterior_mean(counts, weights, value_P * (lambda_diff > POINTS_P))


def posterior_mean(counts: Counts, weights: Sequence[float], value_P: Array) -> Array:
    """(M,): the posterior mean of a function of p; many candidates share their counts."""
    pairs, where_M, _ = counts.distinct()
    mean_M: Array = posterior(pairs, weights) @ value_P
    return mean_M[where_M]


def _inside(settings: StoppingSettings) -> Array:
    return ((settings.low <= POINTS_P) & (settings.lambda_diff > POINTS_P)).astype(float)


class Stopping:
    """The stopping problem of one candidate under a prior, solved for every price of a rollout."""

    def __init__(self, weights: Sequence[float], settings: StoppingSettings) -> None:
        self.settings, step, level = settings, settings.round_size, settings.level
        s, n = np.triu_indices(settings.most + 1)
        posterior_MP = posterior(Counts(s.astype(float), n.astype(float)), weights)
        keep_M = posterior_MP @ _inside(settings)
        self.risk_SN = np.zeros((settings.most + 1, settings.most + 1))
        """Expected cost of deciding now: 1 - level for a pivot that is dropped, level for another that is kept."""
        self.risk_SN[s, n] = np.minimum((1 - level) * keep_M, level * (1 - keep_M))
        ways_J = [math.comb(step, j) * POINTS_P**j * (1 - POINTS_P) ** (step - j) for j in range(step + 1)]
        self.next_SNJ = np.zeros((*self.risk_SN.shape, step + 1))
        """The probability of j successes in the next round."""
        self.next_SNJ[s, n] = posterior_MP @ np.stack(ways_J, axis=1)
        self.gain_KSN, self.cost_KSN = self._solve()

    def _solve(self) -> tuple[Array, Array]:
        """What going on saves against deciding now, and its expected number of rollouts, for each of PRICES.

        The gain is negative where it does not pay, and where `most` rollouts leave no room for another round.
        """
        step = self.settings.round_size
        value_KSN = np.repeat(self.risk_SN[None], len(PRICES), axis=0)
        gain_KSN, cost_KSN = np.full_like(value_KSN, -1.0), np.zeros_like(value_KSN)
        for n in range(self.settings.most - step, -1, -1):
            now, after = np.arange(n + 1), n + step
            value_KS, later_KS = PRICES[:, None] * step, np.full((len(PRICES), 1), float(step))
            for j in range(step + 1):
                next_S = self.next_SNJ[now, n, j]
                value_KS = value_KS + next_S * value_KSN[:, now + j, after]
                later_KS = later_KS + next_S * cost_KSN[:, now + j, after]
            gain_KS = self.risk_SN[now, n] - value_KS
            gain_KSN[:, now, n] = gain_KS
            value_KSN[:, now, n] -= np.maximum(gain_KS, 0)
            cost_KSN[:, now, n] = np.where(gain_KS > 0, later_KS, 0.0)
        return gain_KSN, cost_KSN

    def next_round(self, counts: Counts, budget: float) -> tuple[list[int], float]:
        """(candidates that get another round, in order; the price). None: all are settled, or the budget is spent.

        It is the lowest price at which they are expected to ask for no more than the budget; what that leaves goes to
        those that ask at the next lower one, in order of what a rollout is expected to save.
        """
        successes_M, scored_M = self._cells(counts)
        gain_KM, cost_KM = (one[:, successes_M, scored_M] for one in (self.gain_KSN, self.cost_KSN))
        price = min(int((cost_KM.sum(axis=1) > budget).sum()), len(PRICES) - 1)
        lower = max(price - 1, 0)
        worth_M = gain_KM[lower] / np.maximum(cost_KM[lower], 1.0)
        order_M = np.lexsort((-worth_M, gain_KM[price] <= 0))
        more_M = np.where(gain_KM[price] > 0, 0.0, cost_KM[lower])[order_M].cumsum()
        wanted = order_M[(worth_M[order_M] > 0) & (more_M <= budget - cost_KM[price].sum())]
        return sorted(wanted[: int(budget) // self.settings.round_size].tolist()), float(PRICES[price])

    def unsettled(self, counts: Counts, price: float) -> list[int]:
        """Candidates that are worth more rollouts at a price, in order."""
        successes_M, scored_M = self._cells(counts)
        number = min(int(np.searchsorted(PRICES, price)), len(PRICES) - 1)
        return np.flatnonzero(self.gain_KSN[number, successes_M, scored_M] > 0).tolist()

    def _cells(self, counts: Counts) -> tuple[Any, Any]:
        """(successes, scored) as indices; a fractional sum of rewards is rounded."""
        scored_M = np.minimum(counts.scored_M, self.settings.most).astype(int)
        return np.minimum(np.rint(counts.successes_M).astype(int), scored_M), scored_M
