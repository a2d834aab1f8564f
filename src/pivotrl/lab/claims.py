"""The claims, as numbers by seed, and the rule of each verdict.

The rule was written before any test task was played. A finding is a number that is above zero where the claim holds. It
is *shown* where a rerun with as many other seeds would have its mean above zero too: the 95% prediction interval of
that mean (t over seeds) lies above zero. That asks for more than a confidence interval, so that verdicts do not turn
over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np

from pivotrl.lab.cells import CellResult
from pivotrl.lab.grids import ALL_MIXED, HORIZONS, TEMPERATURES, frontier, setting_name
from pivotrl.lab.measures import TEMPERATURE_NAMES, Seen, at_point, predicted, profile_usage, share
from pivotrl.lab.results import Found
from pivotrl.metrics import known_mean

HALF: Final = 0.5
REFUSED: Final = 0.1
"""Claim b: strict matching refuses at least this share of what is acceptable."""
FORGOTTEN: Final = 0.05
"""Claim e: so much loss of the general skills is forgetting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One number of a claim, by seed; above zero where the claim holds."""

    name: str
    values: tuple[float, ...]

    @property
    def word(self) -> str:
        """shown, not shown, or the opposite: shown of the number's negative."""
        interval = predicted(self.values, len(self.values))
        if interval is None:
            return "not shown"
        return "shown" if interval[0] > 0 else "opposite" if interval[1] < 0 else "not shown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What the paper says, and what its verdict here is made of."""

    letter: str
    text: str
    findings: tuple[Finding, ...]

    @property
    def verdict(self) -> str:
        shown = [one.name for one in self.findings if one.word == "shown"]
        if not shown:
            return "not shown" if self.findings else "not measured"
        return "shown" if len(shown) == len(self.findings) else f"shown under a condition: {'; '.join(shown)}"

    def only(self, others: Sequence[Finding]) -> Claim:
        """The claim by the findings that others have too."""
        names = {one.name for one in others}
        return replace(self, findings=tuple(one for one in self.findings if one.name in names))


def claims(found: Found) -> list[Claim]:
    """The paper's seven and one of ours. Findings whose cells are not there are left out."""
    parts: dict[str, tuple[str, Iterator[Finding]]] = {
        "a": ("most turns give no signal", _of_signal(found, "flat", "states", HALF)),
        "b": ("strict matching refuses acceptable actions", _of_signal(found, "refused", "accepted", REFUSED)),
        "c": ("filter and functional reward each raise success", _of_parts(found)),
        "d": ("PivotRL is ahead of SFT in its domain", _of_sft(found)),
        "e": ("SFT forgets, PivotRL does not", _of_forgetting(found)),
        "f": ("PivotRL needs fewer turns than end-to-end training", _of_horizons(found)),
        "g": ("filtered groups have the larger reward spread", _of_spread(found)),
        "h": (
            "(ours) with lambda 1 PivotRL is ahead of SFT, of no filter, and of its own lambda",
            _of_threshold(found),
        ),
    }
    return [Claim(letter=letter, text=text, findings=tuple(some)) for letter, (text, some) in parts.items()]


def _finding(name: str, rows: Sequence[Mapping[int, CellResult]], value: Callable[..., float | None]) -> list[Finding]:
    """Over the seeds of which all rows have a cell that did not fail, and measured it."""
    seeds = sorted(set.intersection(*({seed for seed, one in row.items() if not one.failed} for row in rows)))
    found = [value(*(row[seed] for row in rows)) for seed in seeds]
    values = tuple(one for one in found if one is not None)
    return [Finding(name=name, values=values)] if values else []


def _of_signal(found: Found, part: str, of: str, least: float) -> Iterator[Finding]:
    for (domain, row), by_seed in found.rows("table1").items():
        if row == "pivotrl":
            shares = [share(one, part, of) for _, one in sorted(by_seed.items())]  # of seeds without pivots too
            if values := tuple(one - least for one in shares if one is not None):
                yield Finding(name=f"{domain}, above {least:g}", values=values)


def _score(one: CellResult, temperature: str) -> float:
    return one.score(one.cell.domain, temperature) or 0.0


def _of_parts(found: Found) -> Iterator[Finding]:
    rows = found.rows("table4")
    four = [rows.get(("desk", name), {}) for name in ("pivotrl", "unfiltered", "strict-filtered", "strict")]
    yield from _finding("filter", four, partial(_effect, signs=(1, -1, 1, -1)))
    yield from _finding("functional reward", four, partial(_effect, signs=(1, 1, -1, -1)))


def _effect(*four: CellResult, signs: Sequence[int]) -> float:
    """The main effect of one of two factors: the mean difference at both settings of the other, both temperatures."""
    scores = [(_score(one, "greedy") + _score(one, "sampled")) / 2 for one in four]
    return sum(sign * score for sign, score in zip(signs, scores, strict=True)) / 2


def _of_sft(found: Found) -> Iterator[Finding]:
    rows = found.rows("table1")
    for domain in dict.fromkeys(domain for domain, _ in rows):
        yield from _ahead_of(domain, rows.get((domain, "pivotrl"), {}), rows.get((domain, "sft"), {}))


def _of_threshold(found: Found) -> Iterator[Finding]:
    rows = found.rows("threshold")
    own = rows.get(("desk", ALL_MIXED), {})
    for name in ("sft", "unfiltered", "pivotrl"):
        yield from _ahead_of(f"against {name}", own, rows.get(("desk", name), {}))


def _ahead_of(name: str, own: Mapping[int, CellResult], other: Mapping[int, CellResult]) -> Iterator[Finding]:
    """By how much success is higher, at both temperatures."""
    for said, at in TEMPERATURE_NAMES.items():
        difference = partial(lambda a, b, at: _score(a, at) - _score(b, at), at=at)
        yield from _finding(f"{name}, {said}", [own, other], difference)


def _beyond(base: CellResult, trained: CellResult, sign: int) -> float | None:
    """By how much the loss of skills, mean of both temperatures, is above FORGOTTEN (sign 1) or below it (-1)."""
    before, after = (known_mean(one.score("skills", name) for name in TEMPERATURES) for one in (base, trained))
    return None if before is None or after is None else sign * (before - after - FORGOTTEN)


def _of_forgetting(found: Found) -> Iterator[Finding]:
    rows = found.rows("table2")
    for domain in dict.fromkeys(domain for domain, _ in rows):
        harsh = setting_name("sft", max(frontier(domain), key=lambda one: one.lr * one.epochs))
        base, chosen, most, own = (rows.get((domain, name), {}) for name in ("base", "sft", harsh, "pivotrl"))
        for name, other in ((harsh, most), ("SFT as chosen", chosen)):
            loss = f"{domain}, {name} loses more than {FORGOTTEN:g}"
            yield from _finding(loss, [base, other], partial(_beyond, sign=1))
        less = f"{domain}, PivotRL loses less than {FORGOTTEN:g}"
        yield from _finding(less, [base, own], partial(_beyond, sign=-1))


def _of_horizons(found: Found) -> Iterator[Finding]:
    rows = found.rows("figure1")
    for domain in HORIZONS:
        three = [rows.get((domain, name), {}) for name in ("base", "pivotrl", "e2e")]
        yield from _finding(f"{domain}, profile left out", three, lambda *some: ahead(*some, with_profile=False))
        yield from _finding(f"{domain}, profile included", three, lambda *some: ahead(*some, with_profile=True))


def curve(base: CellResult, trained: CellResult, *, with_profile: bool) -> list[tuple[float, float]]:
    """(Turns, success with sampled actions) of a training, from the base model on."""
    extra = profile_usage(trained).turns if with_profile else 0
    points = [(float(extra), _score(base, "sampled"))]
    for point in trained.points:
        reached = at_point(Seen(trained, point, base))
        points += [] if reached is None else [(float(point.training.turns + extra), reached)]
    return points


def ahead(base: CellResult, own: CellResult, other: CellResult, *, with_profile: bool) -> float:
    """Success of `own` at its end, less that of `other` after as many turns.

    `other` is read off straight lines between its points; after more turns than it took, off its last point.
    """
    turns, own_success = curve(base, own, with_profile=with_profile)[-1]
    points = np.array(curve(base, other, with_profile=False))
    return own_success - float(np.interp(turns, points[:, 0], points[:, 1]))


def _of_spread(found: Found) -> Iterator[Finding]:
    rows = found.rows("table4")
    for one, other in (("pivotrl", "unfiltered"), ("strict-filtered", "strict")):
        pair = [rows.get(("desk", name), {}) for name in (one, other)]
        yield from _finding(
            f"{one} against {other}", pair, lambda a, b: (known_mean(a.stds) or 0.0) - (known_mean(b.stds) or 0.0)
        )
