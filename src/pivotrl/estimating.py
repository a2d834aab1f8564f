"""What a profile will take, from a pilot that profiled some of its trajectories, whole. Pure.

The pilot is a simple random sample of n of N trajectories; a total is what the pilot took, scaled by a size that is
known of all N before anything is sampled: the candidates, or, of what depends on lengths, the size that explains the
pilot best. Tokens prefilled follow the longest state where states share their beginning, and all states elsewhere.

Sources: ratio estimator and its variance as in Cochran 1977, Sampling Techniques, section 6.5, with x in the sample; a
t interval, and the correction 1 - n/N, since the profile samples the same again there. n - 2 degrees of freedom:
choosing a size takes one, too (`tests/test_estimating.py` has the coverage).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Final, NamedTuple

from pivotrl.ledger import LedgerLine
from pivotrl.metrics import t_quantile_975
from pivotrl.types import Estimate, Usage

MEASURES: Final = {
    "rollouts": ("rollouts", 1.0),
    "prefilled_tokens": ("tokens prefilled", 1.0),
    "cached_tokens": ("tokens cached", 1.0),
    "generated_tokens": ("tokens generated", 1.0),
    "judge_calls": ("judge calls", 1.0),
    "judge_prompt_tokens": ("judge tokens, prompts", 1.0),
    "judge_generated_tokens": ("judge tokens, generated", 1.0),
    "seconds": ("hours on this machine", 1 / 3600),
    "cost": ("cost at the given prices", 1.0),
    "bytes": ("megabytes on disk", 1e-6),
}
"""What is estimated, fields of `Usage` and two more: in words, with the scale to show it at."""
BY_LENGTH: Final = frozenset({"prefilled_tokens", "cached_tokens", "seconds"})
"""Scaled by lengths where these explain them better; the others, by candidates."""
Amounts = Mapping[str, float]
"""By name of MEASURES."""


class Sizes(NamedTuple):
    """What is known of a trajectory before anything is sampled."""

    candidates: int
    tokens: int
    """Of all its states."""
    longest: int
    """Tokens of its longest state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """`plan.json`: what a profile is expected to take."""

    settings: str
    """Names the settings that it is for."""
    trajectories: int
    candidates: int
    pilot: int
    """Trajectories of the pilot."""
    expected: dict[str, Estimate]
    """Totals of the whole profile, by name of MEASURES; n candidates and so many clusters were in the pilot."""

    def lines(self) -> list[str]:
        """A table, and what it leaves out."""
        measured = max((one.n for one in self.expected.values()), default=0)
        rows = [(MEASURES[name][0], *numbers(name, one)) for name, one in self.expected.items()]
        return [
            f"plan: {self.candidates} candidates of {self.trajectories} trajectories, from a pilot of {measured} of "
            f"{self.pilot}, over which the 95% intervals are",
            *(f"{what:<26}{total:>16}   {interval}".rstrip() for what, total, interval in rows),
            "not in it: loading and checking, another load of machine or server, retries, judge replies on disk, and "
            "what no trajectory of the pilot had",
        ]


def numbers(name: str, total: Estimate) -> tuple[str, str]:
    """(the total, its interval; empty where the pilot was all alike)."""
    mean, low, high = (number(name, one or 0.0) for one in (total.mean, total.low, total.high))
    return mean, "" if low == high else f"{low} to {high}"


def number(name: str, total: float) -> str:
    """A measure as it is shown."""
    shown = total * MEASURES[name][1]
    return f"{shown:,.0f}" if shown >= 100 or shown == int(shown) else f"{shown:.3g}"


def estimated(sizes: Mapping[str, Sizes], pilot: Mapping[str, Amounts]) -> dict[str, Estimate]:
    """Totals over all of `sizes`, from at least three measured trajectories; without what these had none of."""
    seen, totals = [sizes[key] for key in pilot], {}
    for name in MEASURES:
        measured = [one.get(name, 0.0) for one in pilot.values()]
        if not any(measured):
            continue
        ways = [
            scaled(measured, [one[at] for one in seen], sum(one[at] for one in sizes.values()), len(sizes))
            for at in range(len(Sizes._fields) if name in BY_LENGTH else 1)
        ]
        mean, half = min(ways, key=lambda way: way[1])
        low, count = max(math.fsum(measured), mean - half), sum(one.candidates for one in seen)
        totals[name] = Estimate(mean=mean, low=min(mean, low), high=mean + half, n=count, clusters=len(seen))
    return totals


def priced(totals: Mapping[str, Estimate], prices: Mapping[str, float]) -> Estimate | None:
    """What these totals cost, with the widest interval that theirs allow; None where nothing has a price."""
    some = [(totals[name], price) for name, price in prices.items() if price and name in totals]
    if not some:
        return None
    low, mean, high = (sum(price * getattr(one, bound) for one, price in some) for bound in ("low", "mean", "high"))
    return replace(some[0][0], mean=mean, low=low, high=high)


def scaled(measured: Sequence[float], sizes: Sequence[float], whole: float, trajectories: int) -> tuple[float, float]:
    """(the total of what was measured over all trajectories, whose sizes sum up to `whole`; half of its interval)."""
    count, scale = len(sizes), whole / sum(sizes)
    ratio = sum(measured) / sum(sizes)
    spread = math.fsum((y - ratio * x) ** 2 for y, x in zip(measured, sizes, strict=True)) / (count - 2)
    error = scale * math.sqrt(count * spread * (1 - count / trajectories))
    return scale * sum(measured), t_quantile_975(count - 2) * error


def usage_by_trajectory(lines: Iterable[LedgerLine]) -> dict[str, Usage]:
    """What a stage's lines say of each trajectory, its rounds and its judging together."""
    found: dict[str, Usage] = {}
    for line in lines:
        key = re.sub(r"( round \d+)?( judged \d+)?$", "", line.unit)
        found[key] = found.get(key, Usage()) + line.usage
    return found


def measures(usage: Usage) -> dict[str, float]:
    """The part of a bill that is estimated."""
    return {one.name: getattr(usage, one.name) for one in fields(usage) if one.name in MEASURES}
