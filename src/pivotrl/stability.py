"""How far two profiles of the same candidates select the same, and how far they should. Pure.

A candidate near a border of Eq. 5 is selected by one profile and not by the other through luck alone. How much of this
is to be expected follows from the first profile: its posterior (the prior of `budgets`) gives the chance that as many
new rollouts select a candidate. Less agreement has another cause, such as a verifier that is not deterministic.

Sources: Jaccard 1901; Cohen 1960 (kappa). Shape suffixes as in `budgets`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pivotrl.budgets import POINTS_P, Counts, fit_prior, posterior_mean
from pivotrl.errors import MissingError
from pivotrl.metrics import format_short, mean_share
from pivotrl.theorems import Array
from pivotrl.types import Estimate, Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class Stability:
    """Two profiles compared (`stability.json`); intervals are clustered by trajectory."""

    other: str
    """Name of the second profile."""
    lambda_diff: float
    candidates: int
    """With two scored rollouts or more in both."""
    left_out: int
    selected: tuple[int, int]
    both: int
    agreement: Estimate
    """Share of the candidates on which both decide alike."""
    expected_agreement: float
    """What this and the two below should be by the first profile's posterior."""
    jaccard: Estimate | None
    """Of all that are selected by either, the share selected by both; None where none is."""
    expected_jaccard: float | None
    found: Estimate | None
    """Share of a selected set that is found in the other, both ways together."""
    expected_found: float | None
    kappa: float | None
    """Agreement beyond that of two sets of these sizes at random; None where both select all or nothing."""

    def lines(self) -> list[str]:
        one, other = self.selected
        lines = [
            f"profiled twice, Eq. 5 at lambda-diff {self.lambda_diff:g} selects {one} and {other} of "
            f"{self.candidates} candidates ({self.agreement.clusters} trajectories), {self.both} of them both times",
            f"the same decision: {_beside(self.agreement, self.expected_agreement)}",
        ]
        if self.found is not None and self.jaccard is not None:
            lines.append(f"selected and found in the other set: {_beside(self.found, self.expected_found)}")
            lines.append(f"Jaccard: {_beside(self.jaccard, self.expected_jaccard)}")
        if self.kappa is not None:
            lines.append(f"Cohen's kappa: {self.kappa:.3f}")
        return [*lines, *([f"too few scored to compare: {self.left_out}"] if self.left_out else [])]


def _beside(estimate: Estimate, expected: float | None) -> str:
    return format_short(estimate) + ("" if expected is None else f", {expected:.3f} expected from the first alone")


def stability_of(
    first: Sequence[Profile], second: Sequence[Profile], *, other: str, lambda_diff: float, rollouts: int | None
) -> Stability:
    """Compare what Eq. 5 selects by two profiles of the same candidates.

    A decision of the second counts as one by `rollouts` rollouts (curtailed), or by as many as it scored (None).
    Raises MissingError when no candidate has two scored rollouts in both.
    """
    again = {one.candidate_id: one for one in second if one.n >= 2}
    known = [one for one in first if one.n >= 2 and one.candidate_id in again]
    if not known:
        raise MissingError("stability: no candidate has two scored rollouts in both profiles; see what failed")
    rows = [
        (_kept(one, lambda_diff), _kept(again[one.candidate_id], lambda_diff), one.candidate_id.rpartition("@")[0])
        for one in known
    ]
    sizes, both = (sum(row[0] for row in rows), sum(row[1] for row in rows)), sum(one and two for one, two, _ in rows)
    alike = mean_share([(float(one == two), group) for one, two, group in rows])
    either = [(float(one and two), group) for one, two, group in rows if one or two]
    found = [(float(one and two), group) for one, two, group in rows for _ in range(one + two)]
    kept_M = np.array([row[0] for row in rows])
    chance_M = _chance(known, [rollouts or again[one.candidate_id].n for one in known], lambda_diff)
    expected_size, expected_both = float(chance_M.sum()), float(chance_M[kept_M].sum())
    return Stability(
        other=other,
        lambda_diff=lambda_diff,
        candidates=len(rows),
        left_out=len(first) - len(rows),
        selected=sizes,
        both=both,
        agreement=alike,
        expected_agreement=float(np.where(kept_M, chance_M, 1 - chance_M).mean()),
        jaccard=mean_share(either) if either else None,
        expected_jaccard=_share(expected_both, sizes[0] + expected_size - expected_both),
        found=mean_share(found) if found else None,
        expected_found=_share(2 * expected_both, sizes[0] + expected_size),
        kappa=_kappa(alike.mean, sizes[0] / len(rows), sizes[1] / len(rows)),
    )


def _kept(profile: Profile, lambda_diff: float) -> bool:
    return (profile.variance or 0.0) > 0 and (profile.mean or 0.0) < lambda_diff


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _kappa(agreement: float, share: float, other: float) -> float | None:
    chance = share * other + (1 - share) * (1 - other)
    return None if chance == 1 else (agreement - chance) / (1 - chance)


def _chance(seen: Sequence[Profile], rollouts_M: Sequence[int], lambda_diff: float) -> Array:
    """(M,): the probability that so many new rollouts, each right or wrong, select the candidate."""
    counts = Counts.of(seen)
    prior, chance_M = fit_prior(counts), np.zeros(len(seen))
    for rollouts in sorted(set(rollouts_M)):
        these_M = np.array(rollouts_M) == rollouts
        right = [s for s in range(1, rollouts) if s / rollouts < lambda_diff]
        ways_P = sum(
            (math.comb(rollouts, s) * POINTS_P**s * (1 - POINTS_P) ** (rollouts - s) for s in right),
            np.zeros_like(POINTS_P),
        )
        some = Counts(counts.successes_M[these_M], counts.scored_M[these_M])
        chance_M[these_M] = posterior_mean(some, prior, ways_P)
    return chance_M
