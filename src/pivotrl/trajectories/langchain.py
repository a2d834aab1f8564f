"""LangChain's messages, as LangChain, LangGraph and LangSmith write them, turned into those of the chat schema.

One is `{type, data}` (`messages_to_dict`), flat (`model_dump`), or `{lc, type, id, kwargs}` (`dumps`, LangSmith).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

from pydantic import JsonValue

from pivotrl.errors import InputError
from pivotrl.trajectories.messages import Object, decoded, dig, place, read_message, read_messages
from pivotrl.trajectories.openai_chat import conversation
from pivotrl.types import Source, Trajectory

_PLACES: Final = {
    "messages": ("messages",), "values.messages": ("values", "messages"),
    "inputs.messages[0]": ("inputs", "messages", 0), "inputs.messages": ("inputs", "messages"),
}  # fmt: skip
"""Where a row has them, a state of LangGraph, and a run of LangSmith."""
_ROLES: Final = {
    "human": "user", "ai": "assistant", "system": "system", "tool": "tool", "function": "tool", "remove": "remove",
    "chat": None, "generic": None,
}  # fmt: skip
"""By type; None: the message names its own."""
_CALLS: Final = ("tool_call", "invalid_tool_call", "tool_call_chunk", "tool_use", "function_call")
_ARGUMENTS: Final = ("args", "input", "arguments")
_ENDINGS: Final = ("finish_reason", "stop_reason", "stopReason", "done_reason", "status")
_CUT: Final = ("length", "max_tokens", "incomplete")


class LangChain:
    """Reads one conversation per record; of a run its model's answer is the last turn, as its input is the history."""

    name = "langchain"

    def claims(self, record: JsonValue) -> bool:
        return _found(record) is not None

    def read(self, record: JsonValue, source: Source) -> Sequence[Trajectory]:
        """One trajectory. Raises InputError naming the message that is wrong."""
        where, (key, values, answers) = place(source), _found(record) or ("", [], [])
        if len(answers) > 1 or (key.endswith("]") and dig(record, "inputs", "messages", 1) is not None):
            raise InputError(f"{where}: a run with several answers or conversations; give each a record of its own")
        said = [message_of(one) or ("", {}) for one in values]
        ids = [data.get("id") if role == "assistant" else None for role, data in said]
        for index, (before, after) in enumerate(pairwise(ids), 1):
            if before == after is not None:
                raise InputError(f"{where}: {key}[{index}]: a piece of the message before it; give sums of chunks")
        messages = read_messages([_chat(one) for one in values], f"{where}: {key}")
        answer = tuple(read_message(_chat(one), f"{where}: outputs: message") for one in answers)
        return (conversation(record if isinstance(record, dict) else {}, messages + answer, source),)


def _found(record: JsonValue) -> tuple[str, list[Any], list[Any]] | None:
    """Where a record has messages, they, and the answers of a run's model; None: none of them is LangChain's."""
    row: Object = record if isinstance(record, dict) else {"messages": record}
    for key, keys in _PLACES.items():
        values, is_run = dig(row, *keys), keys[0] == "inputs"
        if isinstance(values, str) and ('"human"' in values or "HumanMessage" in values):
            values = decoded(values)
        choices = [one for part in _list(dig(row, "outputs", "generations")) for one in _list(part)] if is_run else []
        answers = [dig(one, "message") for one in choices]
        if isinstance(values, list) and bool(answers) == is_run and any(map(message_of, values + answers)):
            return key, values, answers
    return None


def message_of(value: JsonValue) -> tuple[str, Object] | None:
    """The role and the fields of a message of LangChain's; None: it is none."""
    if not isinstance(value, dict) or not isinstance(kind := value.get("type"), str):
        return None
    data = value.get("data", value)
    if kind == "constructor":
        kind, data = str(["", *_list(value.get("id"))][-1]), value.get("kwargs")
    kind = kind.removesuffix("Chunk").removesuffix("Message").lower()
    if kind not in _ROLES or not isinstance(data, dict) or "content" not in data:
        return None
    return (_ROLES[kind] or str(data["role"]), data) if ("role" in data) == (_ROLES[kind] is None) else None


def _chat(value: JsonValue) -> JsonValue:
    """A message in the chat schema; what is none of LangChain's as it is, for the reader of chats to judge."""
    role, data = message_of(value) or ("", {})
    said: Object = {"role": role, **{key: data.get(key) for key in ("content", "name", "tool_call_id")}}
    if role != "assistant":
        return value if not role else {**said, "error": True} if data.get("status") == "error" else said
    more, calls, content = data.get("additional_kwargs"), _calls(data), said["content"]
    if isinstance(content, list):
        known = [call["id"] for call in calls] + [None] * bool(calls)
        used = [_call(part) for part in content if dig(part, "type") in _CALLS]
        calls += [call for call in used if call["id"] not in known]
        content = [_part(part) for part in content if dig(part, "type") not in (*_CALLS, "redacted_thinking")]
    said |= {key: dig(more, key) for key in ("reasoning_content", "reasoning", "refusal", "function_call")}
    if isinstance(said["reasoning"], dict):
        said["reasoning"] = dig(_part({**said["reasoning"], "type": "reasoning"}), "text")
    said["tool_calls"] = calls or dig(more, "tool_calls")
    said["content"] = content or None if said["tool_calls"] or said["function_call"] else content
    is_cut = any(str(dig(data, "response_metadata", key)).lower() in _CUT for key in _ENDINGS)
    return {**said, "loss": False, "excluded": "truncated"} if is_cut else said


def _calls(data: Object) -> list[Object]:
    """Its calls. In a sum of chunks their text is what the model wrote: LangChain mends what was cut off."""
    if chunks := [_call(one) for one in _list(data.get("tool_call_chunks"))]:
        return [{**call, "arguments": dig(call, "arguments") or "{}"} for call in chunks]
    return [_call(one) for key in ("tool_calls", "invalid_tool_calls") for one in _list(data.get(key))]


def _call(call: JsonValue) -> Object:
    given = next(({"arguments": dig(call, key)} for key in _ARGUMENTS if isinstance(call, dict) and key in call), {})
    return {"id": dig(call, "call_id") or dig(call, "id"), "name": dig(call, "name"), **given}


def _part(part: JsonValue) -> JsonValue:
    """A part of the content; the text of a thought lies in one of four places, or is encrypted."""
    if dig(part, "type") not in ("reasoning", "reasoning_content"):
        return part
    texts = [dig(part, "reasoning"), dig(part, "reasoning_content", "text"), dig(part, "text")]
    texts += [dig(one, "text") for one in _list(dig(part, "summary"))]
    return {"type": "reasoning", "text": "\n".join(text for text in texts if isinstance(text, str))}


def _list(value: JsonValue) -> list[Any]:
    return value if isinstance(value, list) else [value] if value else []
