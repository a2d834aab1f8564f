"""Codex rollouts: the Responses items of a session; the user interface's copies of them (`event_msg`) are left out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from pydantic import JsonValue

from pivotrl.protocols import Record
from pivotrl.trajectories.messages import COPIED, Object, dig, expect, name_of, place, trajectory_id
from pivotrl.trajectories.nemo_gym import read_items
from pivotrl.types import Message, Source, Trajectory

_TYPES: Final = ("session_meta", "response_item", "turn_context", "event_msg", "compacted", "world_state")
_Items = list[tuple[Object, str]]


class Codex:
    """Reads rollouts of all versions. A compacted or rolled back history goes on in a new segment."""

    name = "codex"

    def begins(self, record: JsonValue) -> bool:
        if not isinstance(record, dict):
            return False
        old = isinstance(record.get("items"), list) and "session" in record
        bare = {"id", "timestamp", "instructions"} <= record.keys()
        return old or bare or (record.get("type") in _TYPES and isinstance(record.get("payload"), dict))

    def read_session(self, records: Iterable[Record], source: Source) -> Iterator[Trajectory]:
        """The segments of a session. Raises InputError naming line and field."""
        session = ""
        items: _Items = []
        copied = 0
        ...
