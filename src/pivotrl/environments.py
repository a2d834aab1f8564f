"""Finds an environment by name (entry points of the group `pivotrl.environments`) or as a user's own object."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from pivotrl.errors import ConfigError
from pivotrl.plugins import find, made, module_hash
from pivotrl.protocols import Environment
from pivotrl.types import Split


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
    make, module = find("environment", spec)
    made(make, f"environment {spec!r}", Environment)
    return LoadedEnvironment(name=spec, version=module_hash(module), make=cast(Callable[[], Environment], make))


def tasks_of(environment: LoadedEnvironment, split: Split, count: int, seed: int) -> tuple[str, ...]:
    """Ids of `count` tasks. Raises ConfigError where there are fewer."""
    tasks = environment.make().tasks(split, count, seed)
    if len(found := set(tasks)) != count:
        raise ConfigError(f"{environment.name!r}: {len(found)} tasks where {count} are wanted ({split}); ask for fewer")
    return tasks
