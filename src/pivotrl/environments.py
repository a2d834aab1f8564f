"""Finds an environment by name (entry points of the group `pivotrl.environments`) or as a user's own object."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Final, cast

from pivotrl.errors import ConfigError
from pivotrl.plugins import load_object, module_hash
from pivotrl.protocols import Environment

GROUP: Final = "pivotrl.environments"
_MEMBERS: Final = tuple(name for name in vars(Environment) if not name.startswith("_"))


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedEnvironment:
    """An environment by name. Episodes that run side by side need one object each."""

    name: str
    version: str
    """Names the source of its module or package, so that an edit makes it another environment."""
    make: Callable[[], Environment]


def load_environment(spec: str) -> LoadedEnvironment:
    """A known name, `package.module:name` or `FILE.py:name` of a class or function that makes an environment.

    Raises ConfigError where there is none.
    """
    known = {point.name: point.value for point in entry_points(group=GROUP)}
    if spec not in known and ":" not in spec:
        names = ", ".join(sorted(known)) or "none is installed"
        raise ConfigError(
            f"environment {spec!r} is unknown; use one of these: {names}; or package.module:name, or FILE.py:name"
        )
    make, module = load_object(known.get(spec, spec), "environment")
    if not callable(make):
        raise ConfigError(f"environment {spec!r}: not callable; give a class or a function that makes an environment")
    try:
        lacking = sorted(set(_MEMBERS).difference(dir(make())))
    except Exception as error:  # anybody's code, and nothing has begun yet
        raise ConfigError(
            f"environment {spec!r}: cannot be made without arguments ({type(error).__name__}: {error})"
        ) from None
    if lacking:
        raise ConfigError(f"environment {spec!r}: it lacks {', '.join(lacking)}; see pivotrl.protocols.Environment")
    return LoadedEnvironment(name=spec, version=module_hash(module), make=cast(Callable[[], Environment], make))
