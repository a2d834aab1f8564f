"""OpenCode sessions as `opencode export` writes them: messages of parts, where a part holds a call and its result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, groupby
from operator import itemgetter
from typing import Final

from pydantic import JsonValue

from pivotrl.trajectories.anthropic import read_blocks
from pivotrl.trajectories.messages import Object, dig, expect, name_of, place, segmented, trajectory_id
from pivotrl.types import Message, Source, Trajectory

_ASKED: Final = "What did we do so far?"
"""What OpenCode asks in place of the history that it compacts."""
_INTERRUPTED: Final = "[Tool execution was interrupted]"
_AS_TEXT: Final = ("text/plain", "application/x-directory")
_CALL: Final = {"id": ("callID",), "name": ("tool",), "arguments": ("state", "input")}


class OpenCode:
    """Reads a session; what follows a compaction is a segment of its own."""

    name = "opencode"

    def claims(self, record: JsonValue) -> bool:
        return isinstance(dig(record, "messages", 0, "parts"), list)

    def read(self, record: JsonValue, source: Source) -> Sequence[Trajectory]:
        """The segments of a session. Raises InputError naming the field that is wrong."""
        where, found = place(source), [list[Message]()]
        for index, value in enumerate(expect(dig(record, "messages"), list, f"{where}: messages")):
            at, info = f"{where}: messages[{index}]", dig(value, "info") or value
            chat = _chat(info, expect(dig(value, "parts"), list, f"{at}.parts"))
            messages = [message for item in chat for message in read_blocks(item, at)]
            if dig(info, "summary") is True and dig(info, "error") is None:
                found.append([found[-1].pop()] if found[-1] and found[-1][-1].content == _ASKED else [])
                messages = [replace(message, excluded="compaction_summary") for message in messages]
            found[-1] += messages
        parent, own = name_of(dig(record, "info", "parentID")), name_of(dig(record, "info", "id"))
        whole = Trajectory(id=own or trajectory_id(source), messages=(), source=source, domain=self.name)
        whole = replace(whole, task_id=parent or whole.id, parent_id=parent)
        return list(segmented(replace(whole, messages=tuple(messages)) for messages in found))


def _kept(parts: Sequence[JsonValue], *kinds: str) -> list[JsonValue]:
    return [part for part in parts if dig(part, "type") in kinds and not dig(part, "ignored")]


def _chat(info: JsonValue, parts: Sequence[JsonValue]) -> Iterator[Object]:
    """One message's turns: a step is a model call. A message that failed before it said anything was not sent on."""
    if dig(info, "role") != "assistant":
        files = [part for part in _kept(parts, "file") if dig(part, "mime") not in _AS_TEXT]
        asked = [{"text": _ASKED} for _ in _kept(parts, "compaction")]
        yield Object(role="user", content=[*_kept(parts, "text"), *asked, *files])
    elif dig(info, "error") is None or _kept(parts, "text", "tool"):
        steps = accumulate(dig(part, "type") == "step-start" for part in parts)
        for _, run in groupby(zip(steps, parts, strict=True), key=itemgetter(0)):
            yield from _step([part for _, part in run])


def _step(parts: Sequence[JsonValue]) -> Iterator[Object]:
    """A model call, and a result for each of its calls."""
    tools, said = _kept(parts, "tool"), _kept(parts, "text", "reasoning")
    if tools or any(dig(part, "text") for part in said):
        calls = [{key: dig(tool, *place) for key, place in _CALL.items()} for tool in tools]
        is_cut = any(dig(part, "reason") == "length" for part in _kept(parts, "step-finish"))
        yield Object(role="assistant", content=said, tool_calls=calls, stop_reason="max_tokens" if is_cut else None)
    for tool in tools:
        is_done, files = dig(tool, "state", "status") == "completed", dig(tool, "state", "attachments")
        text = dig(tool, "state", "output" if is_done else "error") or ("" if is_done else _INTERRUPTED)
        content = [{"text": text}, *({"type": "file"} for _ in (files if isinstance(files, list) else ()))]
        yield Object(role="tool", content=content, tool_call_id=dig(tool, "callID"), error=not is_done)
