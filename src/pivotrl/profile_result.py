"""How a profile came out: the counts of one group, and those of all, taken while the summary is written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pivotrl.chat import different
from pivotrl.estimating import Forecast
from pivotrl.metrics import beta_posterior, group_statistics
from pivotrl.rollouts import Truncation, unscored
from pivotrl.stability import Stability
from pivotrl.storage import read_jsonl
from pivotrl.types import Profile, RolloutGroup

REASONS: Final = 5
"""Reasons that are printed; docs/verifiers.md says what they mean."""


def profile_group(group: RolloutGroup, policy: str, verifier: str, most: int = 0) -> Profile:
    """Counts of one group (Eq. 5's mean and population variance) that could have had `most` rollouts."""
    statistics = group_statistics(group.rewards)
    return Profile(
        candidate_id=group.candidate_id,
        n=statistics.n,
        mean=statistics.mean,
        variance=statistics.variance,
        unscored=sum(unscored(verdict) for verdict in group.verdicts),
        truncated=sum(completion.truncated for completion in group.completions),
        unparsable=sum(completion.unparsable for completion in group.completions),
        distinct_actions=len(different(one.action for one in group.completions if one.action is not None)),
        posterior=beta_posterior(group.rewards),
        policy=policy,
        verifier=verifier,
        stopped_early=len(group.verdicts) < most,
    )


@dataclass(slots=True, kw_only=True)
class Tally:
    """Sums over the candidates of a profile."""

    candidates: int = 0
    scored: int = 0
    """Rollouts, as are the next three."""
    unscored: int = 0
    truncated: int = 0
    unparsable: int = 0
    known: int = 0
    """Candidates with a variance; those where it is zero; those that were stopped early."""
    flat: int = 0
    stopped: int = 0
    means: float = 0.0
    """Sum of the mean rewards of the first round, over the candidates that have one."""
    first: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    """Why rollouts earned less than 1."""
    complaints: Counter[str] = field(default_factory=Counter)

    def add(self, group: RolloutGroup, profile: Profile, first: int) -> None:
        """Count a candidate whose first round had so many rollouts."""
        verdicts = group.verdicts
        self.reasons.update(one.reason for one in verdicts if one.value is not None and one.value < 1)
        self.complaints.update(f"{one.reason}: {one.detail}" for one in verdicts if unscored(one))
        self.candidates += 1
        self.scored += profile.n
        self.unscored += profile.unscored
        self.truncated += profile.truncated
        self.unparsable += profile.unparsable
        self.known += profile.variance is not None
        self.flat += profile.variance == 0
        self.stopped += profile.stopped_early
        mean = group_statistics(group.rewards[:first]).mean
        if mean is not None:
            self.means, self.first = self.means + mean, self.first + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileResult:
    """How a profile came out, or how far a shard of it did."""

    tally: Tally
    summary: Path
    """A `Profile` per candidate."""
    excluded: dict[str, int]
    """Candidates that were not sampled, by reason."""
    folder: Path
    truncation: Truncation
    verifier: str
    unsettled: int = 0
    """Candidates that early stopping leaves undecided under this verifier; `unsettled.jsonl` lists them."""
    warnings: tuple[str, ...] = ()
    forecast: Forecast | None = None
    """With `plan`; all else then is about the pilot."""
    follows: str | None = None
    stability: Stability | None = None
    waiting: str = ""
    """What other shards have to do before there is a summary; empty: nothing, the profile is finished."""

    @property
    def profiles(self) -> tuple[Profile, ...]:
        """As the summary says now."""
        return tuple(read_jsonl(self.summary, Profile))

    @property
    def mean(self) -> float | None:
        """Mean reward, of the first round alone where later ones depended on it."""
        return self.tally.means / self.tally.first if self.tally.first else None

    @property
    def reasons(self) -> dict[str, int]:
        """Why rollouts earned less than 1, the most frequent first."""
        return dict(self.tally.reasons.most_common())

    def lines(self) -> list[str]:
        if self.waiting:
            return [self.waiting]
        return [*self._lines(), *(self.stability.lines() if self.stability else []), *self.warnings]

    def _lines(self) -> Iterator[str]:
        tally = self.tally
        yield from self.forecast.lines() if self.forecast else ()
        pilot = "pilot: " if self.forecast else ""
        yield f"{pilot}{tally.candidates} candidates, {tally.scored} scored rollouts, verifier {self.verifier}"
        if self.follows:
            yield f"follows profile {self.follows}"
        if tally.known:
            mean = "unknown" if self.mean is None else f"{self.mean:.3f}"
            share = f"{tally.flat} of {tally.known} ({tally.flat / tally.known:.0%})"
            yield f"mean reward {mean}; {share} have zero variance"
        if tally.stopped:
            yield f"{tally.stopped} stopped early: their own means are biased, the mean reward is of the first round"
        if self.unsettled:
            yield (
                f"{self.unsettled} are unsettled under this verifier (unsettled.jsonl beside its verdicts); "
                "sample these alone: `pivotrl profile --topup` with the same settings and this verifier"
            )
        for label, count in (
            ("unscored (the verifier or the policy call failed)", tally.unscored),
            (f"truncated ({self.truncation})", tally.truncated),
            ("unparsable (reward 0)", tally.unparsable),
        ):
            if count:
                yield f"rollouts {label}: {count}"
        if 2 * tally.truncated > tally.scored:
            yield "the policy seldom comes to an end: raise --sampling.max-new-tokens, under another --name"
        yield from (f"the commonest failure: {text}" for text, _ in tally.complaints.most_common(1))
        if tally.reasons:
            shown = [f"{count} {reason}" for reason, count in tally.reasons.most_common(REASONS)]
            yield f"less than full reward: {', '.join(shown)}"
        yield from (f"excluded before sampling: {count} {reason}" for reason, count in sorted(self.excluded.items()))
        if self.excluded:
            yield f"each with its reason: {self.folder / 'excluded.jsonl'}"
