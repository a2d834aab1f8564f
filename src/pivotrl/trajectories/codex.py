"""Codex rollouts: the Responses items of a session; the user interface's copies of them (`event_msg`) are left out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from pydantic import JsonValue

from pivotrl.protocols import Record
from pivotrl.trajectories.items import read_items
from pivotrl.trajectories.messages import COPIED, Object, dig, events, expect, name_of, place, segmented, trajectory_id
from pivotrl.types import Source, Trajectory

_TYPES: Final = ("session_meta", "response_item", "turn_context", "event_msg", "compacted", "world_state")


class Codex:
    """Reads rollouts of all versions. A compacted or rolled back history goes on in a new segment."""

    name = "codex"

    def begins(self, record: JsonValue) -> bool:
        keys = record.keys() if isinstance(record, dict) else set[str]()
        is_old = {"session", "items"} <= keys or ({"id", "timestamp"} <= keys and bool({"instructions", "git"} & keys))
        return is_old or (dig(record, "type") in _TYPES and isinstance(dig(record, "payload"), dict))

    def read_session(self, records: Iterable[Record], source: Source) -> Iterator[Trajectory]:
        """The segments of a session. Raises InputError naming line and field."""
        meta: Object = {}
        parts: list[tuple[list[JsonValue], list[JsonValue]]] = [([], [])]
        for number, value in events(records, "items"):
            at = place(replace(source, line=number))
            row: Object = expect(value, dict, at)
            kind, payload = row.get("type"), expect(row.get("payload", row), dict, f"{at}: payload")
            if kind in (None, "session_meta"):
                meta = meta or row.get("session") or payload
            elif kind == "compacted" or payload.get("type") == "thread_rolled_back":
                parts.append((_rewritten(payload, parts[-1][0] + parts[-1][1], at), []))
            elif (kind == "response_item" or "payload" not in row) and payload.get("type") != "ghost_snapshot":
                parts[-1][1].append(payload)
        given = dig(meta, "base_instructions") or dig(meta, "instructions")
        head: list[JsonValue] = [{"role": "system", "content": dig(given, "text") or given}] if given else []
        parent = name_of(dig(meta, "source", "subagent", "thread_spawn", "parent_thread_id"))
        task = parent or name_of(dig(meta, "forked_from_id") or dig(meta, "id") or dig(meta, "session_id"))
        whole = Trajectory(id=trajectory_id(source), messages=(), source=source, task_id=task, parent_id=parent)
        at = f"{source.file}: items"
        found = ((*read_items([*head, *taken], at, COPIED), *read_items(own, at)) for taken, own in parts)
        yield from segmented(replace(whole, messages=messages, domain=self.name) for messages in found)


def _rewritten(payload: Object, before: list[JsonValue], at: str) -> list[JsonValue]:
    """The history after a roll back, or a compaction; old ones do not say: what users said, and the summary."""
    if payload.get("type") == "thread_rolled_back":
        texts = [str(dig(item, "content", 0, "text")) if dig(item, "role") == "user" else "<" for item in before]
        own = [index for index, text in enumerate(texts) if not text.startswith("<")]  # not the harness's words
        count = payload.get("num_turns")
        return before[: own[-count]] if isinstance(count, int) and 0 < count <= len(own) else before
    if payload.get("replacement_history") is not None:
        return expect(payload["replacement_history"], list, f"{at}: payload.replacement_history")
    kept = [item for item in before if dig(item, "role") in ("user", "developer")]
    return [*kept, {"role": "user", "content": payload.get("message")}]
