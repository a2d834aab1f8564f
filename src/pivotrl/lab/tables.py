"""`pivotrl lab tables`: docs/reproduction.md from raw results; `pivotrl lab check`: whether a rerun agrees."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from pivotrl.charts import curves_chart, lines_chart
from pivotrl.documents import Block, Bullets, Heading, Paragraph, Picture, Table, table_of, to_markdown
from pivotrl.errors import MissingError
from pivotrl.lab.cells import CellResult
from pivotrl.lab.claims import claims, curve
from pivotrl.lab.grids import GRIDS, HORIZONS
from pivotrl.lab.measures import CLOCK, TABLES, Measure, measures, over_seeds, predicted
from pivotrl.lab.results import Found, load_results, save_results
from pivotrl.logs import counted
from pivotrl.metrics import known_mean
from pivotrl.run_directory import AnyPath
from pivotrl.storage import write_atomic

FOLDER: Final = "reproduction"
AGREEING: Final = 0.9
"""Least share of a rerun's table cells inside the prediction intervals."""
TITLES: Final[Mapping[str, tuple[str, str]]] = {
    "tune": (
        "Settings, on validation tasks",
        "Eight trials for each method, seeds of their own. Chosen is the highest success, mean of both temperatures. "
        "The other trainings by reward have PivotRL's.",
    ),
    "signal": (
        "Signal before training (claims a, b)",
        "Paper: 71% of randomly sampled turns give no signal; that strict matching refuses what is acceptable is said "
        "there, not measured. `tried out`: the action is taken, and the expert plays on.",
    ),
    "table1": (
        "Table 1: success in the domain (claim d)",
        "Paper, base / SFT / PivotRL: tau2-bench 44.35 / 58.44 / 63.81, SWE-bench Verified 19.07 / 37.40 / 32.67, "
        "Terminal-Bench 5.42 / 13.75 / 20.00, BrowseComp 2.50 / 1.50 / 11.30. `sft` is the point of the frontier "
        "below it that validation chose.",
    ),
    "table2": (
        "Table 2: what is forgotten (claim e)",
        "Change of the eight general skills against the base model. Paper, mean change over eight benchmarks: SFT "
        "-9.83, PivotRL +0.21; trained on terminal work, AIME25 86.04 -> 21.56 by SFT, 82.92 by PivotRL.",
    ),
    "table4": (
        "Table 4: filter and reward (claims c, g)",
        "Paper, tau2-bench: full 63.81, functional reward without filter 59.68, strict reward without filter 57.34, "
        "SFT 58.44, base 44.35; strict reward with filter is not there. `spread`: mean standard deviation within "
        "groups, over all steps, the first and the last quarter (Fig. 3: larger with the filter, and decaying).",
    ),
    "figure1": (
        "Figure 1: cost against end-to-end training (claim f)",
        "Paper: at 32.67 on SWE-bench Verified 133k turns against 542k, 5.5 times less rollout time, profiling left "
        "out. Three horizons: 4 to 7, 8 to 14 and 20 to 30 turns of the expert. The claim is judged by success after "
        "equally many turns, on straight lines between the points (or end to end's last one). Seconds "
        "are of the machine that ran the cells.",
    ),
    "ablations": ("Ablations", "One setting at a time, all else as in the first row."),
    "threshold": (
        "The threshold (claim h, not the paper's)",
        "The ablations of seeds 0, 1 and 2 suggested that lambda .6 is too strict here. So every state whose rewards "
        "differ is trained on (lambda 1), with settings that validation chose for it, on seeds that no other cell "
        "has; claim and rule were written before these were run.",
    ),
}
RULE: Final = (
    "Every number is a mean over seeds with its 95% t interval over seeds, then in braces the 95% prediction interval "
    "of the mean of as many other seeds. A finding is *shown* where that prediction interval lies above zero, which "
    "was fixed before any test task was played; an effect that does not show is not shown, whatever its sign."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TablesConfig:
    """Make the tables, pictures and verdicts of a page from the results of `lab run`."""

    results: AnyPath = Path("runs/lab")
    """A run of grids, or a folder with results.jsonl."""
    out: AnyPath | None = None
    """Folder to write reproduction.md in, and the raw results below it; else the page is printed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TablesResult:
    page: str
    out: Path | None

    def lines(self) -> list[str]:
        return self.page.splitlines() if self.out is None else [f"written: {self.out / 'reproduction.md'}"]


def tables(config: TablesConfig) -> TablesResult:
    """Raises MissingError where there are no results."""
    found = load_results(config.results)
    blocks = [*page(found)]
    text = to_markdown(blocks)
    out = None if config.out is None else Path(config.out)
    if out is not None:
        save_results(found, out / FOLDER)
        for block in blocks:
            if isinstance(block, Picture):
                write_atomic(out / block.file, block.svg.encode())
        write_atomic(out / "reproduction.md", text.encode())
    return TablesResult(page=text, out=out)


def page(found: Found) -> Iterator[Block]:
    """The whole page: verdicts first."""
    said = f"seeds {', '.join(map(str, found.seeds()))}" if found.seeds() else "no test seed"
    yield Heading("The paper's experiments in miniature", 1)
    yield Paragraph(f"Made by `pivotrl lab tables` from the raw results in `{FOLDER}/`; {said}. {RULE}")
    yield from _grids(found)
    yield Heading("Verdicts")
    verdicts = claims(found)
    yield table_of(["claim", "what the paper says", "here"], [(f"({c.letter})", c.text, c.verdict) for c in verdicts])
    yield table_of(
        ["claim", "finding", "above zero where it holds", ""],
        [(f"({c.letter})", one.name, _number(one.values), one.word) for c in verdicts for one in c.findings],
    )
    for name, (title, about) in TITLES.items():
        if some := measures(found, name):
            yield Heading(title)
            yield Paragraph(about)
            yield _table(some)
            if name == "figure1":
                yield from _pictures(found)
            elif name == "table4":
                yield from _spreads(found)


def _grids(found: Found) -> Iterator[Block]:
    """The commands, and what they took."""
    items = []
    for grid in GRIDS:
        cells, wanted = found.cells(grid)
        if cells:
            seeds = len({one.cell.seed for one in cells})
            cpu, clock = (sum(getattr(one, name) for one in cells) / 3600 for name in ("cpu_seconds", "wall_seconds"))
            items.append(
                f"`pivotrl lab run --grid {grid} --seeds {seeds} --workers 2`: {len(cells)} of {wanted} cells are "
                f"here, {cpu:.2f} core hours, {clock:.2f} hours by the clock one after the other"
            )
    yield Paragraph("Grids (those that share a cell both count it):")
    yield Bullets(tuple(items))
    failed = [one for one in found.by_key.values() if one.failed]
    if failed:
        yield Paragraph("Cells without a training:")
        yield Bullets(tuple(f"{one.cell.key}: {one.failed}" for one in failed))


def _number(values: tuple[float, ...]) -> str:
    """Mean, t interval, and the prediction interval in braces."""
    one, interval = over_seeds(values), predicted(values, len(values))
    text = _short(one.mean)
    text += f" [{_short(one.low)}, {_short(one.high)}]" if one.low is not None and one.high is not None else ""
    text += f" {{{_short(interval[0])}, {_short(interval[1])}}}" if interval else ""
    return f"{text} n={len(values)}"


def _short(value: float) -> str:
    return f"{value:.3f}" if abs(value) < 100 else f"{value:.3g}"


def _table(some: list[Measure]) -> Table:
    columns = list(dict.fromkeys(one.column for one in some))
    by_place = {(one.row, one.column): _number(tuple(one.values.values())) for one in some}
    rows = dict.fromkeys(one.row for one in some)
    return table_of(["", *columns], [(row, *(by_place.get((row, column), "") for column in columns)) for row in rows])


def _spreads(found: Found) -> Iterator[Block]:
    """The reward spread within groups, step by step, mean over seeds."""
    curves = {
        row: [known_mean(at) for at in zip(*(one.stds for one in by_seed.values()), strict=False)]
        for (_, row), by_seed in found.rows("table4").items()
        if row not in ("base", "sft", "truth")
    }
    if curves:
        title = "desk: mean standard deviation of the rewards within groups"
        yield Picture(f"{FOLDER}/spread.svg", curves_chart(title, curves), title)


def _pictures(found: Found) -> Iterator[Block]:
    """Success against turns, a picture for each horizon: means over the seeds of which both trainings are there."""
    rows = found.rows("figure1")
    for domain in HORIZONS:
        both = {
            name: {seed: one for seed, one in rows.get((domain, name), {}).items() if not one.failed}
            for name in ("pivotrl", "e2e")
        }
        seeds = [seed for seed in both["pivotrl"] if seed in both["e2e"] and (domain, seed) in found.bases]
        if seeds:
            panels = {
                "profile included" if with_profile else "profile left out": {
                    name: _mean_curve([(found.bases[domain, seed], some[seed]) for seed in seeds], with_profile)
                    for name, some in both.items()
                }
                for with_profile in (False, True)
            }
            title = f"{domain}: success (T=1) by turns sampled; {counted(len(seeds), 'seed')}"
            yield Picture(f"{FOLDER}/{domain}.svg", lines_chart(title, panels, "turns"), title)


def _mean_curve(pairs: Sequence[tuple[CellResult, CellResult]], with_profile: bool) -> list[tuple[float, float]]:
    """Of (base, trained) pairs, point by point."""
    curves = np.array([curve(base, trained, with_profile=with_profile) for base, trained in pairs])
    return [(float(turns), float(success)) for turns, success in curves.mean(axis=0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckConfig:
    """Hold a rerun with as many other seeds against published results: table cells, and verdicts."""

    run: AnyPath
    """The rerun: a run of grids."""
    against: AnyPath = Path("docs/reproduction")
    """The published results."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    inside: int
    cells: int
    outside: tuple[str, ...]
    turned: tuple[str, ...]
    """Claims whose verdict is another, by the findings that both have."""

    @property
    def passed(self) -> bool:
        return self.inside >= AGREEING * self.cells and not self.turned

    def lines(self) -> list[str]:
        share = self.inside / self.cells
        text = f"{self.inside} of {self.cells} table cells ({share:.0%}) inside the 95% prediction intervals"
        return [
            *(f"outside: {name}" for name in self.outside),
            *(f"turned over: {name}" for name in self.turned),
            f"{text}, wanted {AGREEING:.0%}; {len(self.turned)} verdicts turned over",
            "the rerun agrees" if self.passed else "THE RERUN DISAGREES",
        ]


def check(config: CheckConfig) -> CheckResult:
    """Raises MissingError where the two have no cell in common."""
    published, rerun = load_results(config.against), replace(load_results(config.run), rerun=True)
    outside, count = [], 0
    for table in TABLES:
        fresh = {one.name: one for one in measures(rerun, table)}
        for one in measures(published, table):
            again = fresh[one.name].values if one.name in fresh else {}
            values = [value for seed, value in again.items() if seed not in one.values]
            interval = predicted([*one.values.values()], len(values)) if values else None
            if interval is None or table == "tune" or one.column in CLOCK:
                continue
            count += 1
            mean = over_seeds(values).mean
            if not interval[0] - 1e-9 <= mean <= interval[1] + 1e-9:
                outside.append(f"{one.name}: {_short(mean)}, not in {_short(interval[0])} to {_short(interval[1])}")
    if not count:
        raise MissingError(
            f"{config.run} and {config.against} have no table cell in common; run the same grids with other seeds"
        )
    pairs = [
        (one.only(other.findings), other.only(one.findings))
        for one, other in zip(claims(published), claims(rerun), strict=True)
    ]
    turned = tuple(
        f"({one.letter}) {one.text}: {one.verdict} -> {other.verdict}"
        for one, other in pairs
        if one.verdict != other.verdict
    )
    return CheckResult(inside=count - len(outside), cells=count, outside=tuple(outside), turned=turned)
