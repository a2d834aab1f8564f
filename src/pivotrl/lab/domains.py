"""The lab's domains: what a cell of a grid is played, judged and begun with."""

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
class Domain:
    """Named like its environment."""

    name: str
    verifier: str
    longest_action: int
    base: Callable[[], Path]
    """The directory of the tiny model that is trained; of a domain that ships none, it raises."""
    write_episodes: Callable[[Path, int, int], None]
    """Expert episodes: to a file, so many, of a seed."""


def _desk(name: str) -> Domain:
    return Domain(
        name=name,
        verifier=VERIFIER,
        longest_action=LONGEST_ACTION,
        base=shipped_base,
        write_episodes=partial(write_episodes, environment=name),
    )


DOMAINS: Final[Mapping[str, Domain]] = {name: _desk(name) for name in ("desk", "desk-short", "desk-long")}


def domain_of(name: str) -> Domain:
    """Raises ConfigError for a name that no domain has."""
    if name not in DOMAINS:
        raise ConfigError(f"domain {name!r} is unknown; use one of {', '.join(DOMAINS)}")
    return DOMAINS[name]
