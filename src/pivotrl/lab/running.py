"""`pivotrl lab run`: the cells of a grid, side by side, in slices, from where they were left."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Final

from pivotrl.errors import BusyError, ConfigError, check_least
from pivotrl.lab.cells import CellResult, result_path, run_cell
from pivotrl.lab.grids import (
    THRESHOLD_SEED,
    Cell,
    Chosen,
    Entry,
    GridName,
    Plan,
    Setting,
    Sizes,
    entries,
    first_seed,
    is_seed_of,
)
from pivotrl.lab.measures import over_seeds
from pivotrl.lab.results import PLAN
from pivotrl.lab.setups import setup_of
from pivotrl.logs import say
from pivotrl.metrics import format_short
from pivotrl.run_directory import AnyPath, hold_to
from pivotrl.storage import read_json, write_json
from pivotrl.workers import call_all

CHOSEN: Final = Path(__file__).with_name("chosen.json")
TURNS: Final = {"desk-short": 6, "desk": 11, "desk-long": 23}
"""About so many turns has an episode."""
TURN_SECONDS: Final = 0.008
"""Of one core, for a sampled turn of the tiny model; a guess until cells of a kind are there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """Run the paper's experiments in miniature: a grid of cells, each a training and its tests.

    Interrupted, or after --minutes, the same command goes on; `pivotrl lab tables` shows what is there so far.
    """

    grid: GridName
    """quick: base, SFT and PivotRL; tune: settings, on validation; table1 and table2: with the whole SFT frontier;
    table4: filter x reward; figure1: against end to end, at three horizons; ablations; threshold: lambda 1, on seeds
    of its own."""
    run: AnyPath = Path("runs/lab")
    """Where cells are made, and their results kept in `results/`; grids share what they have in common."""
    seeds: int = 5
    """Repetitions, each with its own episodes, samples and test tasks."""
    first_seed: int | None = None
    """By default 0; of tune 100 (settings are not chosen on seeds that are measured), of threshold 200."""
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

    @property
    def planned(self) -> Plan:
        return Plan(chosen=read_json(Path(self.settings), Chosen), sizes=self.sizes, base=self.base, text=self.text)

    @property
    def all_seeds(self) -> range:
        first = first_seed(self.grid) if self.first_seed is None else self.first_seed
        return range(first, first + self.seeds)

    @property
    def entries(self) -> list[tuple[str, Entry]]:
        return entries(self.grid, self.all_seeds, self.planned, self.domains)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """How far a grid has come."""

    grid: str
    done: int
    cells: int
    left_seconds: float
    """Of one process."""
    workers: int
    rows: tuple[str, ...]

    def lines(self) -> list[str]:
        left = self.left_seconds / 3600
        text = f"{self.grid}: {self.done} of {self.cells} cells"
        if self.done < self.cells:
            text += (
                f"; about {left:.1f} hours of one worker left, {left / self.workers:.1f} with {self.workers} workers"
            )
        return [*self.rows, text]


def run_grid(config: RunConfig) -> RunResult:
    """Run or resume a grid. Raises ConfigError for a bad setting, and what its stages raise."""
    _check(config)
    plan, root = config.planned, Path(config.run)
    found = config.entries
    if not config.dry_run:
        hold_to(root / "held.json", replace(plan, chosen={}))
        write_json(root / PLAN, plan)
        if config.workers == 1:
            work(config)
        else:
            call_all("pivotrl.lab.running:work", [config] * config.workers)
    cells = unique(found)
    done = finished(root, cells)
    if config.grid == "tune" and not config.dry_run:
        write_json(root / CHOSEN.name, choose(found, done))
    return RunResult(
        grid=config.grid,
        done=len(done),
        cells=len(cells),
        left_seconds=sum(expected(cell, done) for cell in cells if cell.key not in done),
        workers=config.workers,
        rows=tuple(summary(found, done)),
    )


def _check(config: RunConfig) -> None:
    for name in config.domains:
        setup_of(name)
    check_least(config, seeds=1, workers=1)
    if not all(is_seed_of(config.grid, seed) for seed in config.all_seeds):
        raise ConfigError(
            f"seeds from {THRESHOLD_SEED} on are the grid threshold's, and no other's; give another --first-seed"
        )
    check_least(config.sizes, "sizes.", episodes=1, profiled=1, rollouts=1, tasks=1, skills=0, shrink=1)


def unique(found: Sequence[tuple[str, Entry]]) -> list[Cell]:
    """Every cell once: rows of a grid may share it."""
    return list({entry.cell.key: entry.cell for _, entry in found}.values())


def finished(root: Path, cells: Sequence[Cell]) -> dict[str, CellResult]:
    """The results that are there, by key."""
    return {cell.key: read_json(path, CellResult) for cell in cells if (path := result_path(cell, root)).exists()}


def work(config: RunConfig) -> int:
    """One process's share: cells that nobody else is at, while there is time. Returns how many it did."""
    root, started, mine = Path(config.run), time.monotonic(), 0
    cells = unique(config.entries)
    for cell in cells:
        if result_path(cell, root).exists():
            continue
        spent = time.monotonic() - started
        if mine and spent + expected(cell, finished(root, cells)) > 60 * config.minutes:
            continue
        try:
            result = run_cell(cell, root)
        except BusyError:
            continue
        mine += 1
        found = [(name, result.score(cell.domain, name)) for name in cell.temperatures]
        told = result.failed or ", ".join(f"{name} {score:.3f}" for name, score in found if score is not None)
        what = f"{cell.domain} seed {cell.seed} {cell.method}: {told} ({result.wall_seconds:.0f} s)"
        say(f"{len(finished(root, cells))}/{len(cells)} {what}")
    return mine


def expected(cell: Cell, done: Mapping[str, CellResult]) -> float:
    """Seconds that a cell takes one process: as others of its kind took, else a guess.

    The guess goes by the turns that it plays and samples; a step of imitation takes as long as some 75.
    """
    alike = [one.wall_seconds for one in done.values() if _kind(one.cell) == _kind(cell)]
    if alike:
        return sum(alike) / len(alike)
    sizes, turns = cell.sizes, TURNS.get(cell.domain, 11)
    points = len(cell.temperatures) + max(0, len(cell.steps) - 1)
    played = points * sizes.tasks * turns + len(cell.temperatures) * sizes.skills
    steps = cell.steps[-1] if cell.steps else cell.setting.epochs * sizes.episodes * turns / cell.prompts
    sampled = steps * cell.prompts * cell.group
    states = min(sizes.profiled, sizes.episodes * turns)
    trained = {"base": 0, "truth": 6000, "sft": 75 * steps, "e2e": 2 * sampled * turns}
    return TURN_SECONDS * (played + trained.get(cell.method, 2 * sampled + states * sizes.rollouts / 4))


def _kind(cell: Cell) -> tuple[object, ...]:
    """What decides how long it takes."""
    trained = (cell.steps, cell.setting.epochs, cell.prompts, cell.group)
    return (cell.domain, cell.method, cell.sizes, *trained, cell.temperatures)


def choose(found: Sequence[tuple[str, Entry]], done: Mapping[str, CellResult]) -> Chosen:
    """By validation: of every method the setting of the highest success, mean over seeds and both temperatures.

    Of equal ones the smaller learning rate, then fewer epochs, then the smaller beta, whose trial comes first. A method
    of which a trial is not through is left out.
    """
    best: Chosen = {}
    for domain, kind in dict.fromkeys((domain, entry.cell.kind) for domain, entry in found):
        cells = [entry.cell for at, entry in found if (at, entry.cell.kind) == (domain, kind)]
        if all(cell.key in done for cell in cells):
            worth: dict[Setting, float] = defaultdict(float)
            for cell in cells:
                worth[cell.setting] += sum(done[cell.key].score(domain, name) or 0.0 for name in cell.temperatures)
            best.setdefault(domain, {})[kind] = max(worth, key=lambda one: (worth[one], -one.lr, -one.epochs))
    return best


def summary(found: Sequence[tuple[str, Entry]], done: Mapping[str, CellResult]) -> Iterator[str]:
    """The rows of a grid with what is known of them, and how long a cell takes."""
    for domain, row in dict.fromkeys((domain, entry.row) for domain, entry in found):
        cells = [entry.cell for at, entry in found if (at, entry.row) == (domain, row)]
        results = [done[cell.key] for cell in cells if cell.key in done]
        text = f"{domain}, {row}: {len(results)} of {len(cells)} seeds, {expected(cells[0], done):.0f} s each"
        for what, temperature in product((domain, "skills"), cells[0].temperatures):
            scores = [one for result in results if (one := result.score(what, temperature)) is not None]
            text += f"; {what} {temperature} {format_short(over_seeds(scores))}" if scores else ""
        read = [point.perplexity.mean for result in results for point in result.points[-1:] if point.perplexity]
        text += f"; perplexity {format_short(over_seeds(read))}" if read else ""
        yield text
