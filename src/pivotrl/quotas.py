"""Quotas of a selection: how many pivots, or which share of them, may have something in common. Pure.

Only turns from the middle of episodes never teach to finish; rewards of messages are the easiest to exploit; one task,
one tool or one turn over and over crowds out the rest.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from pivotrl.errors import ConfigError
from pivotrl.types import Candidate, CandidateRow

T = TypeVar("T")
NAMES: Final = ("message", "middle", "domain", "tool", "task", "depth", "alike")


class Label(NamedTuple):
    """What pivots can have in common: a name of NAMES, and which one of its kind."""

    name: str
    value: str


class Limit(NamedTuple):
    """At most a number of pivots, or a share of all."""

    most: float
    is_share: bool

    def allowed(self, total: int) -> int:
        return math.floor(self.most * total + 1e-9) if self.is_share else int(self.most)


def parse_quotas(texts: Sequence[str]) -> dict[str, Limit]:
    """`message=30%` (a share of the pivots) or `task=5` (a number). Raises ConfigError."""
    limits: dict[str, Limit] = {}
    for text in texts:
        found = re.fullmatch(r"(\w+)=(\d+(?:\.\d+)?)%|(\w+)=([1-9]\d*)", text)
        name = (found[1] or found[3]) if found else ""
        if found is None or name not in NAMES or (found[1] and not 0 < float(found[2]) <= 100):
            raise ConfigError(f"quota {text!r}: write NAME=NUMBER or NAME=SHARE%, above 0; NAME of {', '.join(NAMES)}")
        limits[name] = Limit(float(found[2]) / 100, True) if found[1] else Limit(int(found[4]), False)
    return limits


def labels(row: CandidateRow, candidate: Candidate) -> Iterator[Label]:
    """All labels of a candidate.

    `message`: a message is demonstrated. `middle`: it is not the last turn of its trajectory. `depth`: so many
    assistant turns come before it. `alike` (near-duplicates): the same demonstrated action after the same message, the
    case of both, and digits and spaces of the message aside.
    """
    trajectory, action = candidate.trajectory, candidate.demonstration
    if row.kind == "message":
        yield Label("message", "")
    if any(message.role == "assistant" for message in trajectory.messages[candidate.turn + 1 :]):
        yield Label("middle", "")
    yield Label("domain", trajectory.domain or "")
    yield from (Label("tool", name) for name in set(row.tools))
    yield Label("task", row.group)
    yield Label("depth", str(row.depth))
    calls = [(call.name, call.parsed.value or call.arguments) for call in action.calls]
    before = trajectory.messages[candidate.turn - 1].content if candidate.turn else ""
    text = [" ".join((part or "").casefold().split()) for part in (action.text, re.sub(r"\d", "0", before or ""))]
    yield Label("alike", hashlib.sha256(json.dumps([calls, *text], sort_keys=True).encode()).hexdigest()[:16])


def within(order: Sequence[T], marks: Mapping[T, Iterable[Label]], limits: Mapping[str, Limit]) -> set[T]:
    """Those of the keys, best first, that fit all limits beside the better ones. Shares are of what is left."""
    kept = list(order)
    while True:
        counts: Counter[Label] = Counter()
        fit: list[T] = []
        for key in kept:
            mine = [mark for mark in marks[key] if mark.name in limits]
            if all(counts[mark] < limits[mark.name].allowed(len(kept)) for mark in mine):
                counts.update(mine)
                fit.append(key)
        if len(fit) == len(kept):
            return set(kept)
        kept = fit
