"""Compare: policies beside the first one, suite by suite, as in the paper's Tables 1 to 3, and success against cost.

Differences are paired by item. The interval is of 10,000 bootstrap samples of whole clusters (tasks), percentiles; a
difference whose interval holds zero is within noise. Means have cluster-robust t intervals (`metrics`).
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Final

import numpy as np
import tyro

from pivotrl.documents import Block, Bullets, Heading, Paragraph, Table, table_of, write_page
from pivotrl.errors import ConfigError
from pivotrl.frontier import frontier, needed
from pivotrl.ledger import Ledger
from pivotrl.metrics import change_word, clustered_mean, format_short
from pivotrl.outcomes import ItemScore, pass_hat
from pivotrl.result_files import Results, read_results
from pivotrl.run_directory import RunDirectory
from pivotrl.storage import write_json
from pivotrl.types import Estimate, Usage

TIE: Final = 1e-12
"""What is closer is equal."""
SAMPLES: Final = 10_000
"""Bootstrap samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareConfig:
    """Compare policies on what they scored: our runs, and what tau2, lm-eval, NeMo Gym and SWE-bench wrote."""

    results: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RESULTS...")]
    """NAME=PATH each: NAME=RUN (policy NAME of it, else its last), NAME=RUN:POLICY, or NAME=FILE of another harness;
    several of one NAME are added up. The first NAME is what the others are compared with."""
    general: tuple[str, ...] = ()
    """Suites of skills that training is not about, besides those that are known to be."""
    metric: str | None = None
    """Metric of lm-eval samples; by default the first of exact_match, acc_norm, acc, ... that they have."""
    output: Path | None = None
    """Write compare.html, compare.md and compare.json into this directory."""
    seed: int = 0
    """Of the bootstrap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One policy on one suite."""

    suite: str
    policy: str
    general: bool
    score: Estimate
    change: Estimate | None
    """Against the first policy, on the items that both have."""
    gained: int = 0
    lost: int = 0
    pass_hat: tuple[float, ...] = ()

    @property
    def word(self) -> str:
        """What may be said of the change."""
        return "" if self.change is None else change_word(self.change)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareResult:
    """The tables."""

    rows: tuple[Compared, ...]
    costs: dict[str, Usage]
    """Profiling and training, of the policies of our runs."""
    warnings: tuple[str, ...]
    path: Path | None

    def lines(self) -> list[str]:
        """For a terminal of 80 columns."""
        lines: list[str] = []
        for suite in dict.fromkeys(row.suite for row in self.rows):
            rows = [row for row in self.rows if row.suite == suite]
            lines.append(f"{suite}{' (what was forgotten)' if rows[0].general else ''}")
            for row in rows:
                lines.append(f"    {row.policy}: {format_short(row.score)} (n={row.score.n})")
                if row.change is not None:
                    flips = f"{row.gained} gained, {row.lost} lost"
                    lines.append(f"        change {format_short(row.change)}: {row.word}; {flips}")
        lines += [textwrap.fill(f"beware: {text}", 80, subsequent_indent="    ") for text in self.warnings]
        where = f"tables and costs: {self.path}" if self.path else "tables, costs, pictures: --output DIRECTORY"
        return [*lines, where]

    def blocks(self) -> list[Block]:
        """The whole comparison."""
        blocks: list[Block] = []
        for title, general in (("In domain", False), ("What was forgotten", True)):
            if rows := [row for row in self.rows if row.general == general]:
                blocks += [Heading(title), _table(rows)]
                if general and any(row.change is not None for row in rows):
                    blocks.append(Paragraph(_average(rows)))
        if self.warnings:
            blocks += [Heading("Beware"), Bullets(self.warnings)]
        for suite in dict.fromkeys(row.suite for row in self.rows if not row.general):
            mine = [row for row in self.rows if row.suite == suite and row.policy in self.costs]
            blocks += frontier(suite, {row.policy: (self.costs[row.policy], row.score) for row in mine})
        return blocks


def compare(config: CompareConfig) -> CompareResult:
    """Read, pair and test. Raises ConfigError (fewer than two names), MissingError or InputError."""
    entries = [_split(entry) for entry in config.results]
    sides = _sides(entries, config.metric)
    first = next(iter(sides))
    rng = np.random.default_rng(config.seed)
    rows: list[Compared] = []
    suites = dict.fromkeys(item.suite for results in sides.values() for item in results.items)
    general = {*config.general}.union(*(results.general for results in sides.values()))
    if unknown := {*config.general} - suites.keys():
        raise ConfigError(f"general {sorted(unknown)[0]!r}: no such suite; there are {', '.join(suites)}")
    for suite in suites:
        base = {item.item: item for item in sides[first].items if item.suite == suite}
        for name, results in sides.items():
            if mine := [item for item in results.items if item.suite == suite]:
                rows.append(_row(suite, name, mine, {} if name == first else base, rng, general=suite in general))
    result = CompareResult(
        rows=tuple(rows), costs=_costs(entries), warnings=tuple(_warnings(first, sides)), path=config.output
    )
    if config.output:
        config.output.mkdir(parents=True, exist_ok=True)
        write_page(config.output / "compare", "Comparison", [Heading("Comparison", 1), *result.blocks()])
        told = {name: getattr(result, name) for name in ("rows", "costs", "warnings")}
        write_json(config.output / "compare.json", told)
    return result


def _split(entry: str) -> tuple[str, Path, str | None]:
    """The name, the path and the policy; a colon belongs to the path where that exists."""
    name, _, place = entry.partition("=")
    if not (name and place):
        raise ConfigError(f"{entry!r}: write NAME=PATH")
    path, colon, policy = place.rpartition(":")
    return (name, Path(path), policy) if colon and not Path(place).exists() else (name, Path(place), None)


def _sides(entries: Sequence[tuple[str, Path, str | None]], metric: str | None) -> dict[str, Results]:
    sides: dict[str, Results] = {}
    for name, path, policy in entries:
        found = read_results(path, policy, metric, name)
        before = sides.get(name, Results(items=()))
        sides[name] = Results(
            items=_added_up(before.items + found.items),
            settings=before.settings | found.settings,
            general=before.general | found.general,
        )
    if len(sides) < 2:
        raise ConfigError("compare: give two names or more, NAME=PATH each")
    return sides


def _added_up(items: Sequence[ItemScore]) -> tuple[ItemScore, ...]:
    """Each item once, with the trials of all paths."""
    whole: dict[tuple[str, str], ItemScore] = {}
    for item in items:
        before = whole.setdefault((item.suite, item.item), item)
        if before is not item:
            whole[item.suite, item.item] = replace(before, rewards=before.rewards + item.rewards)
    return tuple(whole.values())


def _row(
    suite: str,
    name: str,
    mine: Sequence[ItemScore],
    base: Mapping[str, ItemScore],
    rng: np.random.Generator,
    *,
    general: bool,
) -> Compared:
    means = [item.mean for item in mine]
    unit = all(0 <= mean <= 1 for mean in means)
    score = clustered_mean(means, [item.cluster for item in mine], (0.0, 1.0) if unit else (-math.inf, math.inf))
    both = [(item, base[item.item]) for item in mine if item.item in base]
    changes = [item.mean - other.mean for item, other in both]
    return Compared(
        suite=suite,
        policy=name,
        general=general,
        score=score,
        change=bootstrap(changes, [item.cluster for item, _ in both], rng) if both else None,
        gained=sum(change > 0 for change in changes),
        lost=sum(change < 0 for change in changes),
        pass_hat=tuple(one.mean for one in pass_hat(mine)),
    )


def bootstrap(values: Sequence[float], clusters: Sequence[str], rng: np.random.Generator) -> Estimate:
    """The mean with its 95% percentile interval over resamples of whole clusters.

    None bounds for a single cluster. Where no resample differs, the interval is that of `clustered_mean` for
    changes in [-1, 1]: n clusters without a change do not show that there is none.
    """
    names = {name: at for at, name in enumerate(dict.fromkeys(clusters))}
    where = np.array([names[name] for name in clusters])
    sums_C = np.bincount(where, weights=values)
    sizes_C = np.bincount(where)
    mean, count = float(np.sum(values) / len(values)), len(sums_C)
    if count < 2:
        return Estimate(mean=mean, low=None, high=None, n=len(values), clusters=count)
    drawn: list[float] = []
    for start in range(0, SAMPLES, 500):
        picked = rng.integers(0, count, (min(500, SAMPLES - start), count))
        drawn += (sums_C[picked].sum(axis=1) / sizes_C[picked].sum(axis=1)).tolist()
    low, high = np.quantile(drawn, [0.025, 0.975]).tolist()
    if max(drawn) - min(drawn) < TIE and abs(mean) <= 1:
        return clustered_mean(values, clusters, (-1.0, 1.0))
    return Estimate(mean=mean, low=low, high=high, n=len(values), clusters=count)


def _warnings(first: str, sides: Mapping[str, Results]) -> Iterator[str]:
    base = sides[first]
    for name, results in sides.items():
        for suite in dict.fromkeys(item.suite for item in results.items):
            mine, other = ({item.item for item in side.items if item.suite == suite} for side in (results, base))
            if not other:
                yield f"{suite}: {first} has no results there, so {name} is compared with nothing"
            elif mine != other:
                yield f"{suite}: {name} and {first} share {len(mine & other)} items of {len(mine)} and {len(other)}"
            trials, others = (
                {len(item.rewards) for item in side.items if item.suite == suite} for side in (results, base)
            )
            if other and trials != others:
                both = trials | others
                yield f"{suite}: items of {name} and {first} have {min(both)} to {max(both)} trials"
        for key in sorted(results.settings.keys() & base.settings.keys()):
            if results.settings[key] != base.settings[key]:
                yield f"{key} differs between {name} and {first}"


def _table(rows: Sequence[Compared]) -> Table:
    most = min((len(row.pass_hat) for row in rows), default=0)
    powers = [f"pass^{k}" for k in range(2, most + 1)]
    return table_of(
        ["suite", "policy", "score", *powers, "change", "gained, lost", "n", ""],
        [
            (
                row.suite,
                row.policy,
                format_short(row.score),
                *(f"{one:.3f}" for one in row.pass_hat[1:most]),
                "" if row.change is None else format_short(row.change),
                "" if row.change is None else f"{row.gained}, {row.lost}",
                row.score.n if row.change is None else row.change.n,
                row.word,
            )
            for row in rows
        ],
    )


def _average(rows: Sequence[Compared]) -> str:
    changes: dict[str, list[float]] = {}
    for row in rows:
        if row.change is not None:
            changes.setdefault(row.policy, []).append(row.change.mean)
    said = (f"{name} {100 * sum(some) / len(some):+.2f} (suites: {len(some)})" for name, some in changes.items())
    return f"Mean change over suites, in points: {', '.join(said)}."


def _costs(entries: Sequence[tuple[str, Path, str | None]]) -> dict[str, Usage]:
    """What the trainings of our runs needed, all that they went out from included, by the name of the policy."""
    costs: dict[str, Usage] = {}
    for name, path, policy in entries:
        if (path / "run.json").exists():
            run = RunDirectory(path)
            training = (policy or name).removeprefix("train/")
            cost = needed(run.stages(), Ledger(run.ledger).totals(), training)
            costs[name] = costs.get(name, Usage()) + cost
    return costs
