"""Claude Code sessions: JSON Lines with one content block a line, `stream-json` output, and exports as one JSON.

Lines form a tree by `parentUuid`: an edit or a rewind starts a branch, a compaction or a sub-agent a new root. Every
path to a leaf with turns of its own is a trajectory; turns that an earlier one holds are `copied_context` in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from pydantic import JsonValue

from pivotrl.protocols import Record
from pivotrl.trajectories.anthropic import read_blocks
from pivotrl.trajectories.messages import COPIED, Object, dig, events, expect, name_of, place, segmented, trajectory_id
from pivotrl.types import Message, Source, Trajectory

_IDS: Final = {"sessionId", "session_id", "leafUuid", "parentUuid", "messageId"}


class ClaudeCode:
    """Reads one session per file; its id names the task, so that sub-agents in files beside share it."""

    name = "claude_code"

    def begins(self, record: JsonValue) -> bool:
        row = next((row for row in (dig(record, "loglines", 0), dig(record, 0)) if row is not None), record)
        if not isinstance(row, dict) or not isinstance(row.get("type"), str) or "payload" in row:
            return False
        speaks = row["type"] in ("user", "assistant") and dig(row, "message", "content") is not None
        return speaks or bool(_IDS & row.keys())

    def read_session(self, records: Iterable[Record], source: Source) -> Iterator[Trajectory]:
        """The segments of a session, in the order of their last lines. Raises InputError naming line and field."""
        tree = _Tree(records, source)
        parent = tree.task if all(tree.sides.values()) else None
        whole = Trajectory(id=trajectory_id(source), messages=(), source=source, task_id=tree.task, parent_id=parent)
        yield from segmented(replace(whole, messages=part, domain=self.name) for part in tree.segments())


class _Tree:
    """Messages with lists of blocks by message id, or uuid, each with its parent and side chain (empty: none)."""

    def __init__(self, records: Iterable[Record], source: Source) -> None:
        self.messages, self._is_tree = dict[str, Object](), False
        self.parents, self._key_of = dict[str, str | None](), dict[str, str | None]()
        self.sides, self._last = dict[str, str](), dict[str, str]()
        self._calls, self._results = set[str | None](), dict[str | None, JsonValue]()
        self.task: str | None = None
        for number, value in events(records, "loglines"):
            at = place(replace(source, line=number))
            row: Object = expect(value, dict, at)
            uuid = name_of(row.get("uuid")) or f"line {len(self._key_of)}"
            if uuid not in self._key_of:
                self._key_of[uuid] = self._take(uuid, row, at)
            self.task = self.task or name_of(row.get("sessionId") or row.get("session_id"))

    def _parent(self, row: Object, side: str) -> str | None:
        """The message that a line follows: its parent, else the one before it; None begins a history."""
        uuid = name_of(row.get("parentUuid"))
        if row.get("isCompactSummary") is True or row.get("subtype") == "compact_boundary":
            return None
        if uuid in self._key_of:
            self._is_tree, found = True, self._key_of[uuid]
            return found if found and bool(side) == bool(self.sides[found]) else None
        return None if uuid is None and self._is_tree and row.get("type") == "user" else self._last.get(side)

    def _take(self, uuid: str, row: Object, at: str) -> str | None:
        """Take a line in; the message that lines after it follow."""
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
            key = parent if parent and self.messages[parent]["role"] == "assistant" else uuid
        elif said["role"] == "assistant" and said.get("id"):
            key = f"{side} {said['id']}"
        blocks = content if isinstance(content, list) else [{"type": "text", "text": content}] if content else []
        for block in blocks:
            if dig(block, "type") == "tool_result":
                self._results.setdefault(name_of(dig(block, "tool_use_id")), block)
        self._calls |= {name_of(dig(block, "id")) for block in blocks if dig(block, "type") == "tool_use"} - {None}
        self._last[side] = key
        self.parents.setdefault(key, parent)
        self.sides.setdefault(key, side)
        whole = self.messages.setdefault(key, {**said, "content": [], "at": f"{at}: message"})
        whole["content"] += [block for block in blocks if block not in whole["content"]]
        whole["stop_reason"] = said.get("stop_reason") or whole.get("stop_reason")
        return key

    def segments(self) -> Iterator[tuple[Message, ...]]:
        """What each leaf with turns of its own followed. A result goes with its call, wherever it was written."""
        covered, shown, paths = set[str](), set[str](), list[list[str]]()
        for one in self.messages.values():
            one["content"] = [
                block for block in one["content"] if name_of(dig(block, "tool_use_id")) not in self._calls
            ]
        alive = [key for key, message in self.messages.items() if message["content"] or message["role"] == "assistant"]
        for leaf in (key for key in reversed(alive) if key not in covered):
            paths.append([leaf])
            while (parent := self.parents[paths[-1][-1]]) is not None:
                paths[-1].append(parent)
            covered.update(paths[-1])
        for path in (path[::-1] for path in reversed(paths)):
            turns, found = {key for key in path if self.messages[key]["role"] == "assistant"}, list[Message]()
            for key in path if turns - shown else ():
                reason = None if any(message.role == "user" for message in found) else "no_prompt"
                found += self._read(self.messages[key], COPIED if key in shown else reason)
            if found:
                yield tuple(found)
                shown |= turns

    def _read(self, message: Object, reason: str | None) -> Iterator[Message]:
        """One message, and the results of its calls."""
        reason = reason or ("synthetic" if message.get("model") == "<synthetic>" else None)
        for read in read_blocks(message, message["at"]) if message["content"] or message["role"] == "assistant" else ():
            yield replace(read, excluded=reason or read.excluded) if read.role == "assistant" else read
        calls = [name_of(dig(block, "id")) for block in message["content"] if dig(block, "type") == "tool_use"]
        answers = [self._results[name] for name in calls if name in self._results]
        yield from read_blocks(Object(role="user", content=answers), message["at"]) if answers else ()
