"""What the cells of a domain are played, judged and begun with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from pivotrl.errors import ConfigError
from pivotrl.lab.demonstration import LONGEST_ACTION, VERIFIER
from pivotrl.lab.desk import write_episodes
from pivotrl.lab.shipped import shipped_base


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Of one domain, which is named like its environment."""

    verifier: str
    longest_action: int
    base: Callable[[], Path]
    """The directory of the tiny model that is trained; of a domain that ships none, it raises."""
    write_episodes: Callable[[Path, int, int], None]
    """Expert episodes: to a file, so many, of a seed."""


SETUPS: Final[Mapping[str, Setup]] = {
    name: Setup(
        verifier=VERIFIER,
        longest_action=LONGEST_ACTION,
        base=shipped_base,
        write_episodes=partial(write_episodes, environment=name),
    )
    for name in ("desk", "desk-short", "desk-long")
}


def setup_of(name: str) -> Setup:
    """Raises ConfigError for a name that no domain has."""
    if name not in SETUPS:
        raise ConfigError(f"domain {name!r} is unknown; use one of {', '.join(SETUPS)}")
    return SETUPS[name]
