"""The domains that have a base model, by name."""

from __future__ import annotations

from typing import Final

from pivotrl.errors import ConfigError
from pivotrl.lab.desk.domain import DESK
from pivotrl.lab.domain import Domain, Situation
from pivotrl.lab.shell.domain import SHELL

__all__ = ["DESK", "SHELL", "Domain", "Situation", "load_domain"]

_DOMAINS: Final = {one.name: one for one in (DESK, SHELL)}


def load_domain(name: str) -> Domain:
    """A domain by name. Raises ConfigError."""
    if name not in _DOMAINS:
        raise ConfigError(f"domain {name!r} is unknown; use one of {', '.join(_DOMAINS)}")
    return _DOMAINS[name]
