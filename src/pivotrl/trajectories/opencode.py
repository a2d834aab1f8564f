"""OpenCode sessions as `opencode export` writes them: messages of parts, where a part holds a call and its result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Final

from pydantic import JsonValue

from pivotrl.trajectories.messages import Object, dig, expect, name_of, place, read_message, segments, trajectory_id
from pivotrl.types import Message, Source, Trajectory

_ASKED: Final = "What did we do so far?"
"""What OpenCode asks in place of the history that it compacts."""
_AS_TEXT: Final = ("text/plain", "application/x-directory")
"""Kinds of files that it puts into the text."""


class OpenCode:
    """Reads a session; what follows a compaction is a segment of its own."""

    name = "opencode"

    def claims(self, record: JsonValue) -> bool:
        return isinstance(dig(record, "messages", 0, "parts"), list)

    def read(self, record: JsonValue, source: Source) -> Sequence[Trajectory]:
        """The segments of a session. Raises InputError naming the field that is wrong."""
        where, name = place(source), name_of(dig(record, "info", "id")) or trajectory_id(source)
        parent = name_of(dig(record, "info", "parentID"))
        found: list[list[Message]] = [[]]
        for index, value in enumerate(expect(dig(record, "messages"), list, f"{where}: messages")):
            at = f"{where}: messages[{index}]"
            item: Object = expect(value, dict, at)
            info: Object = expect(item.get("info", item), dict, f"{at}.info")
            parts = enumerate(expect(item.get("parts"), list, f"{at}.parts"))
            messages = list(_messages(info, [expect(part, dict, f"{at}.parts[{i}]") for i, part in parts], at))
            if info.get("summary") is True and info.get("error") is None:
                found.append([found[-1].pop()] if found[-1] and found[-1][-1].content == _ASKED else [])
                messages = [replace(message, excluded="compaction_summary") for message in messages]
            found[-1] += messages
        return list(segments(found, source, name, parent or name, parent))


def _messages(info: Object, parts: Sequence[Object], where: str) -> Iterator[Message]:
    """One message's turns: a step is a model call. A message that failed before it said anything was not sent on."""
    shown = [part for part in parts if not part.get("ignored")]
    if info.get("role") != "assistant":
        asked = [{"text": _ASKED} for part in shown if part.get("type") == "compaction"]
        texts = [part for part in shown if part.get("type") == "text"]
        files = [part for part in shown if part.get("type") == "file" and part.get("mime") not in _AS_TEXT]
        yield read_message({"role": "user", "content": texts + asked + files}, where)
    elif info.get("error") is None or any(part.get("type") in ("text", "tool") for part in parts):
        step = 0
        steps = [step := step + (part.get("type") == "step-start") for part in parts]
        for _, run in groupby(zip(steps, parts, strict=True), key=lambda pair: pair[0]):
            yield from _step([part for _, part in run], where)


def _step(parts: Sequence[Object], where: str) -> Iterator[Message]:
    """A model call, and a result for each of its calls."""
    tools = [part for part in parts if part.get("type") == "tool"]
    said = [part for part in parts if part.get("type") in ("text", "reasoning")]
    calls = [
        {"id": part.get("callID"), "name": part.get("tool"), "arguments": dig(part, "state", "input")} for part in tools
    ]
    if calls or any(part.get("text") for part in said):
        message = read_message({"role": "assistant", "content": said, "tool_calls": calls}, where)
        is_cut = any(part.get("type") == "step-finish" and part.get("reason") == "length" for part in parts)
        yield replace(message, excluded="truncated") if is_cut else message
    for part in tools:
        is_done, state = dig(part, "state", "status") == "completed", part.get("state")
        text = dig(state, "output") if is_done else dig(state, "error") or "[Tool execution was interrupted]"
        files = [{"type": "file"} for _ in expect(dig(state, "attachments") or [], list, f"{where}: attachments")]
        result = {"role": "tool", "content": [{"text": text}, *files], "tool_call_id": part.get("callID")}
        yield read_message({**result, "error": not is_done}, where)
