"""`pivotrl lab run`: the cells of a grid, side by side, in slices, from where they were left."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from pivotrl.errors import BusyError, ConfigError
from pivotrl.lab.cells import CellResult, result_path, run_cell
from pivotrl.lab.domains import domain_of
from pivotrl.lab.grids import (
    TUNING_SEED,
    Cell,
    Chosen,
    Entry,
    GridName,
    Plan,
    Setting,
    Sizes,
    entries,
    trials,
)
from pivotrl.lab.measures import over_seeds
from pivotrl.lab.results import PLAN
from pivotrl.logs import say
from pivotrl.metrics import format_short
from pivotrl.storage import AnyPath, hold_to, read_json, write_json
from pivotrl.workers import call_all

CHOSEN: Final = Path(__file__).with_name("chosen.json")
TURNS: Final = {"desk-short": 6, "desk": 11, "desk-long": 23}
"""About so many turns has an episode."""
TURN_SECONDS: Final = 0.008
"""Of one core, for a sampled turn of the tiny model; a guess until cells of a kind are there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """Run the paper's experiments in miniature (docs/reproduction.md): a grid of cells, each a training and its tests.

    Interrupted, or after --minutes, the same command goes on; `pivotrl lab tables` shows what is there so far.
    """

    grid: GridName
    """quick: base, SFT and PivotRL; tune: settings, on validation; table1 and table2: with the whole SFT frontier;
    table4: filter x reward; figure1: against end to end, at three horizons; ablations."""
    run: AnyPath = Path("runs/lab")
    """Where cells are made, and their results kept in `results/`; grids share what they have in common."""
    seeds: int = 5
    """Repetitions, each with its own episodes, samples and test tasks."""
    first_seed: int | None = None
    """By default 0; of the grid tune 100, so that settings are not chosen on seeds that are measured."""
    workers: int = 1
    """Processes, of one thread each."""
    minutes: float = 60.0
    """Begin nothing that is not expected to be done by then."""
    domains: tuple[str, ...] = ()
    """By default those of the grid."""
    base: str = ""
    """A Hugging Face directory to train in place of the domain's tiny model."""
    text: str = ""
    """A text whose perplexity is measured, as in `evaluate --forgetting.text`."""
    settings: AnyPath = CHOSEN
    """The settings chosen by `tune`, as that grid writes them."""
    sizes: Sizes = field(default_factory=Sizes)
    dry_run: bool = False
    """Only say which cells there are, and how long they should take."""
    keep: bool = False
    """Keep the run directories of finished cells, models included."""

    @property
    def planned(self) -> Plan:
        return Plan(chosen=read_json(Path(self.settings), Chosen), sizes=self.sizes, base=self.base, text=self.text)

    @property
    def all_seeds(self) -> range:
        first = self.first_seed
        if first is None:
            first = TUNING_SEED if self.grid == "tune" else 0
        return range(first, first + self.seeds)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """How far a grid has come."""

    grid: str
    done: int
    cells: int
    left_seconds: float
    """Of one core."""
    workers: int
    rows: tuple[str, ...]

    def lines(self) -> list[str]:
        left = self.left_seconds / 3600
        text = f"{self.grid}: {self.done} of {self.cells} cells"
        if self.done < self.cells:
            text += f"; about {left:.1f} core hours left, {left / self.workers:.1f} h with {self.workers} workers"
        return [*self.rows, text]


def run_grid(config: RunConfig) -> RunResult:
    """Run or resume a grid. Raises ConfigError for a bad setting, and what its stages raise."""
    _check(config)
    plan, root = config.planned, Path(config.run)
    cells = unique(entries(config.grid, config.all_seeds, plan, config.domains))
    if not config.dry_run:
        hold_to(root / "held.json", replace(plan, chosen={}))
        write_json(root / PLAN, plan)
        if config.workers == 1:
            work(config)
        else:
            call_all("pivotrl.lab.running:work", [config] * config.workers)
        if config.grid == "tune":
            write_json(root / CHOSEN.name, choose(config))
    expect = expectation(root, cells)
    left = [cell for cell in cells if not result_path(cell, root).exists()]
    return RunResult(
        grid=config.grid,
        done=len(cells) - len(left),
        cells=len(cells),
        left_seconds=sum(map(expect, left)),
        workers=config.workers,
        rows=tuple(summary(config)),
    )


def _check(config: RunConfig) -> None:
    if min(config.seeds, config.workers) < 1:
        raise ConfigError(f"seeds {config.seeds}, workers {config.workers}: must be at least 1")
    for name in config.domains:
        domain_of(name)
    sizes = config.sizes
    if min(sizes.episodes, sizes.profiled, sizes.rollouts, sizes.tasks, sizes.shrink) < 1 or sizes.skills < 0:
        raise ConfigError("sizes: all must be at least 1, skills may be 0")


def unique(found: Sequence[tuple[str, Entry]]) -> list[Cell]:
    """Every cell once: rows of a grid may share it."""
    return list({entry.cell.key: entry.cell for _, entry in found}.values())


def work(config: RunConfig) -> int:
    """One process's share: cells that nobody else is at, while there is time. Returns how many it did."""
    root, started, done = Path(config.run), time.monotonic(), 0
    cells = unique(entries(config.grid, config.all_seeds, config.planned, config.domains))
    for cell in cells:
        if result_path(cell, root).exists():
            continue
        needed = expectation(root, cells)(cell)
        if done and time.monotonic() - started + needed > 60 * config.minutes:
            continue
        try:
            result = run_cell(cell, root, keep=config.keep)
        except BusyError:
            continue
        done += 1
        ready = sum(result_path(one, root).exists() for one in cells)
        say(f"{ready}/{len(cells)} {said(result)}")
    return done


def said(result: CellResult) -> str:
    """A finished cell in one line."""
    cell = result.cell
    found = [result.score(cell.domain, temperature) for temperature in cell.temperatures]
    scores = ", ".join(f"{t} {s:.3f}" for t, s in zip(cell.temperatures, found, strict=True) if s is not None)
    told = result.failed or scores or f"{result.truth}"
    return f"{cell.domain} seed {cell.seed} {cell.method}: {told} ({result.wall_seconds:.0f} s)"


def expectation(root: Path, cells: Sequence[Cell]) -> Callable[[Cell], float]:
    """Seconds of one core that a cell takes: as others of its kind took, else a guess."""
    seen: dict[tuple[object, ...], list[float]] = defaultdict(list)
    for cell in cells:
        if result_path(cell, root).exists():
            seen[_kind(cell)].append(read_json(result_path(cell, root), CellResult).cpu_seconds)
    means = {kind: sum(some) / len(some) for kind, some in seen.items()}
    return lambda cell: means.get(_kind(cell), guess(cell))


def _kind(cell: Cell) -> tuple[object, ...]:
    return (cell.domain, cell.method, cell.steps, cell.setting.epochs, cell.prompts, cell.group, cell.temperatures)


def guess(cell: Cell) -> float:
    """From the numbers of turns that it plays and samples; a step of imitation is as much as some 75."""
    sizes, turns = cell.sizes, TURNS.get(cell.domain, 11)
    points = len(cell.temperatures) + max(0, len(cell.steps) - 1)
    played = points * sizes.tasks * turns + len(cell.temperatures) * sizes.skills
    steps = cell.steps[-1] if cell.steps else cell.setting.epochs * sizes.episodes * turns / cell.prompts
    sampled = steps * cell.prompts * cell.group
    states = min(sizes.profiled, sizes.episodes * turns)
    trained = {"base": 0, "truth": 6000, "sft": 75 * steps, "e2e": 2 * sampled * turns}
    return TURN_SECONDS * (played + trained.get(cell.method, 2 * sampled + states * sizes.rollouts / 4))


def choose(config: RunConfig) -> dict[str, dict[str, Setting]]:
    """By validation: of every method the setting of the highest success, mean over seeds and both temperatures.

    The smaller learning rate where two are equal. A method of which a trial is not through is left out.
    """
    root, found = Path(config.run), entries("tune", config.all_seeds, config.planned, config.domains)
    best: dict[str, dict[str, Setting]] = {}
    for domain in dict.fromkeys(domain for domain, _ in found):
        for kind in ("sft", "pivotrl", "e2e"):
            cells = [one.cell for at, one in found if (at, one.cell.method) == (domain, kind)]
            if cells and all(result_path(cell, root).exists() for cell in cells):
                results = [read_json(result_path(cell, root), CellResult) for cell in cells]
                best.setdefault(domain, {})[kind] = max(
                    trials(kind),
                    key=lambda one: (sum(_worth(r) for r in results if r.cell.setting == one), -one.lr, -one.epochs),
                )
    return best


def _worth(result: CellResult) -> float:
    return sum(result.score(result.cell.domain, temperature) or 0.0 for temperature in result.cell.temperatures)


def summary(config: RunConfig) -> list[str]:
    """The rows of a grid with what is known of them; in a dry run how long they take."""
    root, found = Path(config.run), entries(config.grid, config.all_seeds, config.planned, config.domains)
    cells = unique(found)
    expect = expectation(root, cells)
    lines = []
    for domain, row in dict.fromkeys((domain, entry.row) for domain, entry in found):
        mine = [entry.cell for at, entry in found if (at, entry.row) == (domain, row)]
        results = [read_json(path, CellResult) for cell in mine if (path := result_path(cell, root)).exists()]
        text = f"{domain}, {row}: {len(results)} of {len(mine)} seeds, {expect(mine[0]):.0f} s each"
        for temperature in mine[0].temperatures:
            scores = [one for r in results if (one := r.score(domain, temperature)) is not None]
            text += f"; {temperature} {format_short(over_seeds(scores))}" if scores else ""
        lines.append(text)
    return lines
