"""Claude Code sessions: JSON Lines with one content block a line, `stream-json` output, and exports as one JSON.

Lines form a tree by `parentUuid`: an edit or a rewind starts a branch, a compaction or a sub-agent a new root. Every
path to a leaf with turns of its own is a trajectory; turns that an earlier one holds are `copied_context` in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from pydantic import JsonValue

from pivotrl.protocols import Record
from pivotrl.trajectories.anthropic import read_blocks
from pivotrl.trajectories.messages import COPIED, Object, dig, events, expect, name_of, place, segments, trajectory_id
from pivotrl.types import Message, Source, Trajectory

_IDS: Final = {"sessionId", "session_id", "leafUuid", "parentUuid", "messageId"}


class ClaudeCode:
    """Reads one session per file; its id names the task, so that sub-agents in files beside share it."""

    name = "claude_code"

    def begins(self, record: JsonValue) -> bool:
        row = next(row for row in (dig(record, "loglines", 0), dig(record, 0), record) if row is not None)
        if not isinstance(row, dict) or not isinstance(row.get("type"), str) or "payload" in row:
            return False
        speaks = row["type"] in ("user", "assistant") and dig(row, "message", "content") is not None
        return speaks or bool(_IDS & row.keys())

    def read_session(self, records: Iterable[Record], source: Source) -> Iterator[Trajectory]:
        """The segments of a session, in the order of their last lines. Raises InputError naming line and field."""
        tree = _Tree(records, source)
        parent = tree.task if all(node.side for node in tree.nodes.values()) else None
        yield from segments(tree.segments(), source, trajectory_id(source), tree.task, parent)


@dataclass(slots=True)
class _Node:
    """One model call, or what somebody said; the content of its message is a list."""

    parent: str | None
    side: str
    at: str
    message: Object

    def blocks(self, kind: str, key: str) -> dict[str, JsonValue]:
        """The blocks of a kind, by the id under this key."""
        found = (block for block in self.message["content"] if dig(block, "type") == kind and dig(block, key))
        return {str(dig(block, key)): block for block in found}


class _Tree:
    """Nodes by message id where there is one, else by uuid."""

    def __init__(self, records: Iterable[Record], source: Source) -> None:
        self.nodes: dict[str, _Node] = {}
        self.task: str | None = None
        self._is_tree = False
        self._last: dict[str, str] = {}
        self._node_of: dict[str, str | None] = {}
        for number, value in events(records, "loglines"):
            at = place(replace(source, line=number))
            row: Object = expect(value, dict, at)
            uuid = name_of(row.get("uuid")) or f"line {len(self._node_of)}"
            if uuid not in self._node_of:
                self._node_of[uuid] = self._take(uuid, row, at)
            self.task = self.task or name_of(row.get("sessionId") or row.get("session_id"))

    def _parent(self, row: Object, side: str) -> str | None:
        """The node that a line follows: by its parent, else the one before it; None begins a history."""
        uuid = name_of(row.get("parentUuid"))
        if row.get("isCompactSummary") is True or row.get("subtype") == "compact_boundary":
            return None
        if uuid in self._node_of:
            self._is_tree, found = True, self._node_of[uuid]
            return found if found and bool(side) == bool(self.nodes[found].side) else None
        return None if uuid is None and self._is_tree and row.get("type") == "user" else self._last.get(side)

    def _take(self, uuid: str, row: Object, at: str) -> str | None:
        """Take a line in; the node that lines after it follow."""
        side = str(row.get("parent_tool_use_id") or (row.get("isSidechain") and (row.get("agentId") or "side")) or "")
        parent, message = self._parent(row, side), row.get("message")
        if dig(row, "attachment", "type") == "queued_command":
            message = {"role": "user", "content": dig(row, "attachment", "prompt")}
        if message is None or row.get("isApiErrorMessage") is True:
            return parent
        said: Object = {"role": row.get("type"), **expect(message, dict, f"{at}: message")}
        key, content = uuid, said.get("content")
        if said["role"] == "tool":
            use = {"type": "mcp_tool_use", "id": uuid, "name": said.get("tool_name"), "input": said.get("tool_input")}
            content = [use, {"type": "mcp_tool_result", "tool_use_id": uuid, "content": said.get("tool_output")}]
            said = {"role": "assistant"}
            key = parent if parent and self.nodes[parent].message["role"] == "assistant" else uuid
        elif said["role"] == "assistant" and said.get("id"):
            key = f"{side} {said['id']}"
        node = self.nodes.setdefault(key, _Node(parent, side, f"{at}: message", {**said, "content": []}))
        blocks = content if isinstance(content, list) else [{"type": "text", "text": content}] if content else []
        node.message["content"] += [block for block in blocks if block not in node.message["content"]]
        node.message["stop_reason"] = said.get("stop_reason") or node.message.get("stop_reason")
        self._last[side] = key
        return key

    def segments(self) -> Iterator[list[Message]]:
        """What each leaf with turns of its own followed. A result goes with its call, wherever it was written."""
        calls = {name for node in self.nodes.values() for name in node.blocks("tool_use", "id")}
        results: dict[str, JsonValue] = {}
        for node in self.nodes.values():
            owned = {name: block for name, block in node.blocks("tool_result", "tool_use_id").items() if name in calls}
            results.update((name, block) for name, block in owned.items() if name not in results)
            node.message["content"] = [block for block in node.message["content"] if block not in owned.values()]
        parents, shown = {node.parent for node in self.nodes.values()}, set[str]()
        for leaf in (key for key in self.nodes if key not in parents):
            path = [leaf]
            while (parent := self.nodes[path[-1]].parent) is not None:
                path.append(parent)
            turns = {key for key in path if self.nodes[key].message["role"] == "assistant"}
            if turns - shown:
                messages = [message for key in path[::-1] for message in self._messages(key, shown, results)]
                prompt = next((i for i, message in enumerate(messages) if message.role == "user"), len(messages))
                early = [
                    replace(message, excluded=message.excluded or "prompt_missing") for message in messages[:prompt]
                ]
                yield early + messages[prompt:]
                shown |= turns

    def _messages(self, key: str, shown: set[str], results: dict[str, JsonValue]) -> Iterator[Message]:
        node = self.nodes[key]
        reason = COPIED if key in shown else "synthetic" if node.message.get("model") == "<synthetic>" else None
        if node.message["content"] or node.message["role"] == "assistant":
            messages = read_blocks(node.message, node.at)
            yield from (replace(m, excluded=reason or m.excluded) if m.role == "assistant" else m for m in messages)
        answers = [results[name] for name in node.blocks("tool_use", "id") if name in results]
        yield from read_blocks({"role": "user", "content": answers}, node.at) if answers else []
