"""What the cells of a domain are played, judged and begun with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from pivotrl.errors import ConfigError
from pivotrl.lab import desk, shell
from pivotrl.lab.demonstration import VERIFIER
from pivotrl.lab.domains import DESK, SHELL


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Of one domain, which is named like its environment."""

    verifier: str
    """`TREES` in it stands for the folder `trees` beside the episodes."""
    base: str
    """The package that ships the tiny model that is trained (`shipped_base`)."""
    write_episodes: Callable[[Path, int, int], None]
    """Expert episodes: to a file, so many, of a seed."""


TREES: Final = "TREES"


def _write_jobs(path: Path, count: int, seed: int) -> None:
    """Shell's episodes, and the files that each begins with."""
    shell.write_episodes(path, count, seed)
    shell.write_trees(path.with_name("trees"), [task.id for task in shell.draw_tasks("train", count, seed)])


SETUPS: Final[Mapping[str, Setup]] = {
    **{
        name: Setup(
            verifier=VERIFIER,
            base=DESK.base,
            write_episodes=partial(desk.write_episodes, environment=name),
        )
        for name in ("desk", "desk-short", "desk-long")
    },
    "shell": Setup(
        verifier=f"any(auto,execution:snapshots={TREES})",
        base=SHELL.base,
        write_episodes=_write_jobs,
    ),
}


def setup_of(name: str) -> Setup:
    """Raises ConfigError for a name that no domain has."""
    if name not in SETUPS:
        raise ConfigError(f"domain {name!r} is unknown; use one of {', '.join(SETUPS)}")
    return SETUPS[name]
