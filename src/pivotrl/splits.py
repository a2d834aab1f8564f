"""The split: trajectories of one task are one group, and whole groups go to train, validation or test.

Trajectories without a task are grouped by their opening: everything before the first assistant turn that follows a user
message (a scripted greeting is the same in every conversation and ties nothing), or before the first assistant turn
where no user speaks. An opening that trajectories of exactly one task have stands for that task. One that several tasks
have, "hi", does not join them; a trajectory without a task that begins so may be of any of them, and nobody can know.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from pivotrl.storage import content_hash, shuffle_key
from pivotrl.types import Split, Trajectory


class Ties(NamedTuple):
    """What ties a trajectory to others."""

    task: str | None
    opening: str
    ids: tuple[str, ...]
    """Its own id, and that of the history that it is a segment of."""


def ties_of(trajectory: Trajectory) -> Ties:
    roles = [message.role for message in trajectory.messages]
    start = roles.index("user") if "user" in roles else 0
    end = roles.index("assistant", start) if "assistant" in roles[start:] else len(roles)
    opening = content_hash([(message.role, message.content) for message in trajectory.messages[:end]])
    task = None if trajectory.task_id is None else f"task:{trajectory.task_id}"
    ids = [f"id:{name}" for name in (trajectory.id, trajectory.parent_id) if name is not None]
    return Ties(task, f"opening:{opening}", tuple(ids))


def connect(trajectories: Mapping[str, Ties]) -> dict[str, str]:
    """Trajectory id -> group: connected components, each named by its smallest task or opening."""
    tasks: dict[str, str | None] = {}
    """Of every opening that one task has; None where several do."""
    for ties in trajectories.values():
        if ties.task is not None and tasks.setdefault(ties.opening, ties.task) != ties.task:
            tasks[ties.opening] = None
    parent: dict[str, str] = {}

    def root(key: str) -> str:
        while parent.setdefault(key, key) != key:
            parent[key] = parent[parent[key]]
            key = parent[key]
        return key

    firsts: dict[str, str] = {}
    for name, ties in trajectories.items():
        firsts[name] = ties.task or tasks.get(ties.opening) or ties.opening
        for other in ties.ids:
            parent[root(other)] = root(firsts[name])
    names: dict[str, str] = {}
    for first in firsts.values():
        names[root(first)] = min(names.get(root(first), first), first)
    return {name: names[root(first)] for name, first in firsts.items()}


def split_groups(counts: Mapping[str, int], *, validation: float, test: float, seed: int) -> dict[str, Split]:
    """Assign whole groups to splits: in the order of sha256(seed, group), test first, then validation, the rest train.

    `counts` gives the candidates of each group. A group is taken while at least half of it fits. Where its
    fraction is above 0, test gets a group when there are two, validation when there are three; train never goes empty.
    """
    order = sorted(counts, key=lambda group: shuffle_key(f"{seed}:{group}"))
    result: dict[str, Split] = dict.fromkeys(order, "train")
    names: tuple[tuple[Split, float, int], ...] = (("test", test, 2), ("validation", validation, 3))
    for name, fraction, needed in names:
        if fraction <= 0 or len(order) < needed:
            continue
        free = [group for group in order if result[group] == "train"]
        spare = len(free) - 1 - (name == "test" and validation > 0 and len(order) >= 3)
        wanted, taken = fraction * sum(counts.values()), 0
        for group in free:
            if spare > 0 and taken + counts[group] / 2 <= wanted:
                result[group] = name
                taken += counts[group]
                spare -= 1
        if not taken:
            result[min(free, key=lambda group: counts[group])] = name
    return result
