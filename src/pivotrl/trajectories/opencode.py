"""OpenCode sessions as `opencode export` writes them: messages of parts, where a part holds a call and its result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, groupby
from operator import itemgetter
from typing import Final

from pydantic import JsonValue

from pivotrl.trajectories.messages import Object, dig, expect, name_of, place, read_message, segmented, trajectory_id
from pivotrl.types import Message, Source, Trajectory

_ASKED: Final = "What did we do so far?"
"""What OpenCode asks in place of the history that it compacts."""
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
            at = f"{where}: messages[{index}]"
            info: Object = expect(dig(value, "info") or value, dict, at)
            parts = enumerate(expect(dig(value, "parts"), list, f"{at}.parts"))
            messages = list(_messages(info, [expect(part, dict, f"{at}.parts[{i}]") for i, part in parts], at))
            if info.get("summary") is True and info.get("error") is None:
                found.append([found[-1].pop()] if found[-1] and found[-1][-1].content == _ASKED else [])
                messages = [replace(message, excluded="compaction_summary") for message in messages]
            found[-1] += messages
        parent, own = name_of(dig(record, "info", "parentID")), name_of(dig(record, "info", "id"))
        whole = Trajectory(id=own or trajectory_id(source), messages=(), source=source, domain=self.name)
        whole = replace(whole, task_id=parent or whole.id, parent_id=parent)
        return list(segmented(replace(whole, messages=tuple(messages)) for messages in found))


def _messages(info: Object, parts: Sequence[Object], where: str) -> Iterator[Message]:
    """One message's turns: a step is a model call. A message that failed before it said anything was not sent on."""
    if info.get("role") != "assistant":
        files = [part for part in _kept(parts, "file") if part.get("mime") not in _AS_TEXT]
        asked = [{"text": _ASKED} for _ in _kept(parts, "compaction")]
        yield read_message(Object(role="user", content=[*_kept(parts, "text"), *asked, *files]), where)
    elif info.get("error") is None or _kept(parts, "text", "tool"):
        steps = accumulate(part.get("type") == "step-start" for part in parts)
        for _, run in groupby(zip(steps, parts, strict=True), key=itemgetter(0)):
            yield from _step([part for _, part in run], where)


def _kept(parts: Sequence[Object], *kinds: str) -> list[Object]:
    return [part for part in parts if part.get("type") in kinds and not part.get("ignored")]


def _step(parts: Sequence[Object], where: str) -> Iterator[Message]:
    """A model call, and a result for each of its calls."""
    tools, said = _kept(parts, "tool"), _kept(parts, "text", "reasoning")
    calls = [{key: dig(tool, *place) for key, place in _CALL.items()} for tool in tools]
    if calls or any(part.get("text") for part in said):
        message = read_message(Object(role="assistant", content=said, tool_calls=calls), where)
        is_cut = any(part.get("reason") == "length" for part in _kept(parts, "step-finish"))
        yield replace(message, excluded="truncated") if is_cut else message
    for state, call in ((dig(tool, "state"), tool.get("callID")) for tool in tools):
        is_done = dig(state, "status") == "completed"
        text = dig(state, "output") if is_done else dig(state, "error") or "[Tool execution was interrupted]"
        files = [{"type": "file"} for _ in expect(dig(state, "attachments") or [], list, f"{where}: attachments")]
        result = Object(role="tool", content=[{"text": text}, *files], tool_call_id=call, error=not is_done)
        yield read_message(result, where)
