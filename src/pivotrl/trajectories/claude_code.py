"""Claude Code sessions: JSON Lines with one content block a line, `stream-json` output, and exports as one JSON.

Lines form a tree by `parentUuid`: an edit or a rewind starts a branch, a compaction or a sub-agent a new root. Every path
to a leaf that holds turns of its own is a trajectory; turns that an earlier one holds are `copied_context` in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from pydantic import JsonValue

from pivotrl.protocols import Record
from pivotrl.trajectories.anthropic import read_blocks
from pivotrl.trajectories.messages import COPIED, Object, dig, expect, name_of, place, trajectory_id
from pivotrl.types import Message, Source, Trajectory

_IDS: Final = ("sessionId", "session_id", "leafUuid", "parentUuid", "messageId")


class ClaudeCode:
    """Reads one session per file; its id names the task, so that sub-agents in files beside share it."""

    name = "claude_code"

    def begins(self, record: JsonValue) -> bool:
        row = next((line for _, line in _lines([(None, record)])), None)
        if not isinstance(row, dict) or not isinstance(row.get("type"), str) or "payload" in row:
            return False
        speaks = row["type"] in ("user", "assistant") and dig(row, "message", "content") is not None
        return speaks or any(key in row for key in _IDS)

    def read_session(self, records: Iterable[Record], source: Source) -> Iterator[Trajectory]:
        """The segments of a session, in the order of their last lines. Raises InputError naming line and field."""
        yield from _Session(records, source).trajectories(source)


def _lines(records: Iterable[Record]) -> Iterator[Record]:
    """The lines of a session, also out of one JSON document."""
    for number, value in records:
        inner = value if isinstance(value, list) else dig(value, "loglines")
        yield from ((number, line) for line in inner) if isinstance(inner, list) else ((number, value),)


def _blocks(content: JsonValue) -> list[JsonValue]:
    return content if isinstance(content, list) else [{"type": "text", "text": content}] if content else []


@dataclass(slots=True)
class _Node:
    """One model call, or what somebody said."""

    parent: str | None
    role: str
    side: str
    at: str
    blocks: list[JsonValue] = field(default_factory=list)
    excluded: str | None = None

    def calls(self) -> list[str]:
        """The ids of the calls."""
        named = (name_of(dig(block, "id")) for block in self.blocks if dig(block, "type") == "tool_use")
        return [name for name in named if name is not None]


class _Session:
    """The tree of a session. Results lie with their call, wherever in the file they were written."""

    def __init__(self, records: Iterable[Record], source: Source) -> None:
        rows: dict[str, tuple[Object, str]] = {}
        for number, value in _lines(records):
            at = place(replace(source, line=number))
            row: Object = expect(value, dict, at)
            rows.setdefault(name_of(row.get("uuid")) or f"line {len(rows)}", (row, at))
        self.nodes: dict[str, _Node] = {}
        """By message id where there is one, else by uuid."""
        self.results: dict[str, JsonValue] = {}
        self.is_tree = any(name_of(row.get("parentUuid")) in rows for row, _ in rows.values())
        names = (name_of(row.get("sessionId") or row.get("session_id")) for row, _ in rows.values())
        self.task = next((name for name in names if name), None)
        contents = (block for row, _ in rows.values() for block in _blocks(dig(row, "message", "content")))
        self._called = {name_of(dig(block, "id")) for block in contents if dig(block, "type") == "tool_use"} - {None}
        self._owner: dict[str, str] = {}
        self._last: dict[str, str] = {}
        self._node_of: dict[str, str | None] = {}
        for uuid, (row, at) in rows.items():
            self._node_of[uuid] = self._take(uuid, row, at)

    def _parent(self, row: Object, side: str) -> str | None:
        """The node that a line follows: by its parent, else the one before it; None begins a history."""
        uuid = name_of(row.get("parentUuid"))
        if row.get("isCompactSummary") is True or row.get("subtype") == "compact_boundary":
            return None
        if uuid in self._node_of:
            return self._node_of[uuid]
        return None if uuid is None and self.is_tree and row.get("type") == "user" else self._last.get(side)

    def _take(self, uuid: str, row: Object, at: str) -> str | None:
        """Take a line in; the node that lines after it follow."""
        side = str(row.get("parent_tool_use_id") or (row.get("isSidechain") and (row.get("agentId") or "side")) or "")
        parent, said = self._parent(row, side), _said(row, at)
        if said is None:
            return parent
        role, key, blocks = str(said.get("role") or row.get("type")), uuid, _blocks(said.get("content"))
        if role == "tool":
            role, blocks = "assistant", [{"type": "tool_use", "id": uuid, "name": said.get("tool_name"), "input": said.get("tool_input")}]
            self.results[uuid] = {"type": "tool_result", "tool_use_id": uuid, "content": said.get("tool_output")}
            before = self.nodes.get(parent or "")
            key = parent if parent and before and before.role == role and not before.calls() else key
        elif role == "assistant":
            key = f"{side} {said['id']}" if said.get("id") else uuid
        else:
            for name, block in [(name_of(dig(block, "tool_use_id")), block) for block in blocks]:
                if name in self._called:
                    self.results.setdefault(name, block)
                    parent = self._owner.get(name, parent)
            blocks = [block for block in blocks if name_of(dig(block, "tool_use_id")) not in self._called]
            if not blocks:
                return parent
        node = self.nodes.setdefault(key, _Node(parent, role, side, f"{at}: message.content"))
        node.blocks += [block for block in blocks if block not in node.blocks]
        node.excluded = _reason(said) or node.excluded
        self._owner.update(dict.fromkeys(node.calls(), key) if role == "assistant" else {})
        self._last[side] = key
        return key

    def trajectories(self, source: Source) -> Iterator[Trajectory]:
        parents, shown = {node.parent for node in self.nodes.values()}, set[str]()
        first: str | None = None
        for count, leaf in enumerate(key for key in self.nodes if key not in parents):
            path = self._path(leaf)
            fresh = {key for key in path if self.nodes[key].role == "assistant"} - shown
            if fresh:
                where = replace(source, index=count if first else None)
                side = self.task if self.nodes[leaf].side else None
                yield Trajectory(
                    id=trajectory_id(where), messages=tuple(self._messages(path, shown)), source=where, task_id=self.task,
                    parent_id=first or side,
                )
                first, shown = first or trajectory_id(where), shown | fresh

    def _path(self, leaf: str) -> list[str]:
        path = [leaf]
        while (parent := self.nodes[path[-1]].parent) is not None:
            path.append(parent)
        return path[::-1]

    def _messages(self, path: list[str], shown: set[str]) -> Iterator[Message]:
        prompted = False
        for key in path:
            node = self.nodes[key]
            messages = read_blocks(node.role, node.blocks, node.at)
            prompted = prompted or any(message.role == "user" for message in messages)
            reason = COPIED if key in shown else node.excluded or (None if prompted else "prompt_missing")
            yield from (replace(m, excluded=reason if m.role == "assistant" else None) for m in messages)
            results = (self.results[name] for name in node.calls() if name in self.results)
            yield from (m for block in results for m in read_blocks("user", [block], node.at))


def _said(row: Object, at: str) -> Object | None:
    """The message of a line; None for what no model saw or said."""
    message, attachment = row.get("message"), row.get("attachment")
    if dig(attachment, "type") == "queued_command":
        message = {"role": "user", "content": dig(attachment, "prompt")}
    if message is None or row.get("isApiErrorMessage") is True:
        return None
    return expect(message, dict, f"{at}: message")


def _reason(message: Object) -> str | None:
    if message.get("model") == "<synthetic>":
        return "synthetic"
    return "truncated" if message.get("stop_reason") == "max_tokens" else None
