"""What the tables of docs/reproduction.md say, as numbers by seed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

import numpy as np

from pivotrl.lab.cells import CellResult, Point
from pivotrl.lab.grids import GridName
from pivotrl.lab.results import Found
from pivotrl.metrics import clustered_mean, known_mean, t_quantile_975
from pivotrl.types import Estimate, Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One cell of a table: its number by seed."""

    table: str
    row: str
    column: str
    values: Mapping[int, float]

    @property
    def name(self) -> str:
        return f"{self.table} / {self.row} / {self.column}"

    @property
    def estimate(self) -> Estimate:
        return over_seeds([*self.values.values()])


def over_seeds(values: Sequence[float]) -> Estimate:
    """The mean with its t interval over seeds. Raises ValueError when nothing is given."""
    return clustered_mean(list(values), [*range(len(values))])


def predicted(values: Sequence[float], again: int) -> tuple[float, float] | None:
    """The 95% prediction interval of the mean of so many more seeds; None of fewer than two values."""
    count = len(values)
    if count < 2:
        return None
    mean, deviation = float(np.mean(values)), float(np.std(values, ddof=1))
    half = t_quantile_975(count - 1) * deviation * math.sqrt(1 / count + 1 / again)
    return mean - half, mean + half


class Seen(NamedTuple):
    """What a column looks at: a cell's result, one of its points, and the base model's result of the seed."""

    result: CellResult
    point: Point | None
    base: CellResult | None


Column = Callable[[Seen], float | None]


def success(temperature: str) -> Column:
    return lambda seen: seen.result.score(seen.result.cell.domain, temperature)


def _forgotten(seen: Seen, temperature: str) -> float | None:
    mine = seen.result.score("skills", temperature)
    before = seen.base.score("skills", temperature) if seen.base else None
    return None if mine is None or before is None else mine - before


def _spread(seen: Seen, part: str) -> float | None:
    stds = seen.result.stds
    span = max(1, len(stds) // 4)
    return known_mean({"all": stds, "first": stds[:span], "last": stds[-span:]}[part])


def share(result: CellResult, part: str, of: str) -> float | None:
    """One count of a cell's profile over another; None where there is none."""
    whole = getattr(result.profile, of, 0)
    return getattr(result.profile, part) / whole if whole else None


def profile_usage(result: CellResult) -> Usage:
    return result.profile.usage if result.profile else Usage()


def _cost(seen: Seen, name: str) -> float | None:
    """`turns`, or `turns with profile`, and so on."""
    what, _, more = name.partition(" ")
    if seen.point is None:
        return None
    usage = seen.point.training + (profile_usage(seen.result) if more else Usage())
    if what == "tokens":
        return float(usage.prefilled_tokens + usage.generated_tokens + usage.trained_tokens)
    return float(getattr(usage, what))


def _candidates(seen: Seen) -> float:
    return float(seen.result.candidates)


def at_point(seen: Seen) -> float | None:
    """Success with sampled actions after the point's steps."""
    place = (seen.result.cell.domain, "sampled")
    scores = seen.point.scores if seen.point else ()
    return next((one.success.mean for one in scores if (one.environment, one.temperature) == place), None)


TEMPERATURE_NAMES: Final[Mapping[str, str]] = {"greedy": "greedy", "T=1": "sampled"}
"""As columns and findings say them, and as cells do."""
_BOTH: Final[Mapping[str, Column]] = {said: success(name) for said, name in TEMPERATURE_NAMES.items()}
_SKILLS: Final[Mapping[str, Column]] = {
    f"skills, {said}": partial(_forgotten, temperature=name) for said, name in TEMPERATURE_NAMES.items()
}
_COSTS: Final = tuple(name + more for name in ("turns", "tokens", "seconds", "flops") for more in ("", " with profile"))
CLOCK: Final = ("seconds", "seconds with profile")
"""Columns that another machine has otherwise; a rerun is not held to them."""
TABLES: Final[Mapping[str, tuple[GridName, Mapping[str, Column]]]] = {
    "tune": ("tune", _BOTH),
    "signal": (
        "table1",
        {
            "without signal": lambda seen: share(seen.result, "flat", "states"),
            "all right": lambda seen: share(seen.result, "right", "states"),
            "all wrong": lambda seen: share(seen.result, "wrong", "states"),
            "accepted samples that strict matching refuses": lambda seen: share(seen.result, "refused", "accepted"),
        },
    ),
    "table1": ("table1", _BOTH),
    "table2": ("table2", _SKILLS),
    "table4": (
        "table4",
        {**_BOTH, **{f"spread, {part}": partial(_spread, part=part) for part in ("all", "first", "last")}},
    ),
    "figure1": ("figure1", {"T=1": at_point, **{name: partial(_cost, name=name) for name in _COSTS}}),
    "ablations": (
        "ablations",
        {
            "T=1": success("sampled"),
            "skills, T=1": _SKILLS["skills, T=1"],
            "candidates": _candidates,
            "turns with profile": partial(_cost, name="turns with profile"),
        },
    ),
    "threshold": (
        "threshold",
        {**_BOTH, **_SKILLS, "candidates": _candidates},
    ),
}
"""Every table: the grid whose rows it has, and its columns."""


def measures(found: Found, table: str) -> list[Measure]:
    """The cells of one table, row by row; those without a number are left out."""
    grid, columns = TABLES[table]
    values: dict[tuple[str, str], dict[int, float]] = {}
    for (domain, row), by_seed in found.rows(grid).items():
        if table == "signal" and row != "pivotrl":
            continue
        for seed, result in by_seed.items():
            for name, seen in _seen(found, table, f"{domain}, {row}", result):
                for column, number in columns.items():
                    value = number(seen)
                    if value is not None:
                        values.setdefault((name, column), {})[seed] = value
    return [
        Measure(table=table, row=row, column=column, values=by_seed) for (row, column), by_seed in values.items()
    ] + ([*_truth(found)] if table == "signal" else [])


def _seen(found: Found, table: str, row: str, result: CellResult) -> Iterator[tuple[str, Seen]]:
    base = found.bases.get((result.cell.domain, result.cell.seed))
    if table == "figure1":
        for point in result.points:
            yield f"{row}, {point.steps} steps", Seen(result, point, base)
    else:
        yield row, Seen(result, result.points[-1] if result.points else None, base)


def _truth(found: Found) -> Iterator[Measure]:
    """Of the distinct sampled actions that are not the demonstration, what really happens after them."""
    by_seed = {seed: one.truth for seed, one in found.rows("table4").get(("desk", "truth"), {}).items() if one.truth}
    for column, values in {
        "other actions that lead to success": {seed: right / n for seed, (n, right, _) in by_seed.items()},
        "of these accepted by the verifier": {seed: yes / right for seed, (_, right, yes) in by_seed.items()},
    }.items():
        if values:
            yield Measure(table="signal", row="desk, tried out", column=column, values=values)
