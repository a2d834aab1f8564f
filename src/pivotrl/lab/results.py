"""Results of grids as they lie on disk: a file for each cell in a run, one line for each where they are published."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from pivotrl.errors import ConfigError, MissingError
from pivotrl.lab.cells import CellResult
from pivotrl.lab.grids import Entry, GridName, Plan, entries, is_seed_of
from pivotrl.run_directory import AnyPath
from pivotrl.storage import read_json, read_jsonl, write_json, write_jsonl

PLAN: Final = "plan.json"
LINES: Final = "results.jsonl"


@dataclass(frozen=True)
class Found:
    """The plan, and what is there of its cells."""

    plan: Plan
    by_key: Mapping[str, CellResult]
    rerun: bool = False
    """With other seeds than published results have: every grid is measured on all of them."""

    def seeds(self, grid: GridName = "table1") -> list[int]:
        """Those that a grid's table is made of; of `tune` the ones that settings are chosen on."""
        split = "validation" if grid == "tune" else "test"
        seeds = {one.cell.seed for one in self.by_key.values() if one.cell.split == split}
        return sorted(seed for seed in seeds if self.rerun or grid == "tune" or is_seed_of(grid, seed))

    def rows(self, grid: GridName) -> dict[tuple[str, str], dict[int, CellResult]]:
        """By domain and row of a grid: the results by seed. Rows without any are left out."""
        found: dict[tuple[str, str], dict[int, CellResult]] = {}
        for domain, (row, cell) in self._entries(grid):
            if cell.key in self.by_key:
                found.setdefault((domain, row), {})[cell.seed] = self.by_key[cell.key]
        return found

    @cached_property
    def bases(self) -> dict[tuple[str, int], CellResult]:
        """The base model's by domain and seed."""
        return {(one.cell.domain, one.cell.seed): one for one in self.by_key.values() if one.cell.method == "base"}

    def cells(self, grid: GridName) -> tuple[list[CellResult], int]:
        """The results of a grid's cells, and how many cells it has of these seeds."""
        wanted = {one.cell.key for _, one in self._entries(grid)}
        return [self.by_key[key] for key in sorted(wanted & self.by_key.keys())], len(wanted)

    def _entries(self, grid: GridName) -> list[tuple[str, Entry]]:
        try:
            return entries(grid, self.seeds(grid), self.plan)
        except ConfigError:
            return []  # nothing was chosen that it could have run with


def load_results(place: AnyPath) -> Found:
    """Of a run of grids, or of a folder that `save_results` wrote. Raises MissingError where there are none."""
    folder = Path(place)
    if (folder / LINES).exists():
        results = list(read_jsonl(folder / LINES, CellResult))
    else:
        results = [read_json(path, CellResult) for path in sorted((folder / "results").glob("*.json"))]
    if not results:
        raise MissingError(f"{folder}: no results of cells; give a run of `pivotrl lab run`, or a folder with {LINES}")
    return Found(read_json(folder / PLAN, Plan, "lab run"), {one.cell.key: one for one in results})


def save_results(found: Found, folder: Path) -> None:
    """One line for each cell, sorted by key, and the plan beside."""
    write_jsonl(folder / LINES, [found.by_key[key] for key in sorted(found.by_key)])
    write_json(folder / PLAN, found.plan)
