"""Finds an environment by name (entry points of the group `pivotrl.environments`) or as a user's own object."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import cast

from pivotrl.errors import ConfigError, InputError
from pivotrl.plugins import Guarded, find, module_hash, one_line
from pivotrl.protocols import Environment
from pivotrl.types import Message, Split, State, Tool


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
    maker, module = find("environment", spec)
    make = partial(Guarded, maker, f"environment {spec!r}", Environment)
    threads = getattr(make(), "threads", 1)
    if not (isinstance(threads, int) and threads >= 1):
        raise ConfigError(f"environment {spec!r}: threads {threads!r}: must be a whole number, at least 1")
    return LoadedEnvironment(name=spec, version=module_hash(module), make=cast(Callable[[], Environment], make))


def tasks_of(environment: LoadedEnvironment, split: Split, count: int, seed: int) -> tuple[str, ...]:
    """Ids of `count` tasks. Raises ConfigError where there are fewer."""
    with one_line(f"environment {environment.name!r}: tasks"):
        tasks = tuple(one for one in environment.make().tasks(split, count, seed) or () if isinstance(one, str))
    if len(found := set(tasks)) != count:
        raise ConfigError(f"{environment.name!r}: {len(found)} tasks where {count} are wanted ({split}); ask for fewer")
    return tasks


def checked_state(state: object, task_id: str) -> State:
    """The state. Raises InputError where it is none, or holds what is neither message nor tool."""
    with one_line(f"task {task_id}: the state"):
        parts = (*state.messages, *(state.tools or ())) if isinstance(state, State) else (state,)
    if strange := [one for one in parts if not isinstance(one, Message | Tool)]:
        said = f"a {type(strange[0]).__name__} ({str(strange[0])[:60]})"
        raise InputError(f"task {task_id}: the state is not of pivotrl.State, Message and Tool, but has {said}")
    return cast(State, state)
