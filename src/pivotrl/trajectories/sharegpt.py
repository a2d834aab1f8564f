"""ShareGPT and its relatives: `from`/`value` (ToolACE, APIGen-MT, Hermes, LLaMA-Factory), ms-swift's roles, pairs.

Calls in messages of their own are structured, and belong to the text of the model before them; a call whose text is no
JSON is text of the model like any other. A row's `system` goes before its messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from pydantic import JsonValue

from pivotrl.trajectories.jsonfile import parse
from pivotrl.trajectories.messages import Object, expect, join_calls, place, read_message, unstring
from pivotrl.trajectories.openai_chat import CONTAINERS, conversation
from pivotrl.types import Message, Source, Trajectory

_CALL: Final = "call"
_OWN_ROLES: Final = {
    "function_call": _CALL, "tool_call": _CALL, "observation": "tool", "tool_response": "tool",
    "function_response": "tool",
}  # fmt: skip
_ROLES: Final = {
    **_OWN_ROLES, "human": "user", "gpt": "assistant", "model": "assistant", "bot": "assistant", "chatgpt": "assistant",
}  # fmt: skip
_PAIR: Final = ("human", "assistant")


class ShareGPT:
    """Reads one conversation per record."""

    name = "sharegpt"

    def claims(self, record: JsonValue) -> bool:
        return isinstance(record, dict) and _container(record) is not None

    def read(self, record: JsonValue, source: Source) -> Sequence[Trajectory]:
        """One trajectory. Raises InputError naming the field that is wrong."""
        where = place(source)
        row: Object = expect(record, dict, where)
        key = _container(row) or CONTAINERS[0]
        items = expect(unstring(row.get(key), f"{where}: {key}"), list, f"{where}: {key}")
        found = (one for at, item in enumerate(items) for one in _messages(item, f"{where}: {key}[{at}]"))
        return (conversation(row, join_calls(found), source),)


def _container(row: Object) -> str | None:
    for key in CONTAINERS:
        value = row.get(key)
        if isinstance(value, str) and '"from"' in value and '"value"' in value:
            return key
        items = [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
        first = items[0].keys() if items else ()
        if (
            {"from", "value"} <= {*first}
            or {*_PAIR} <= {*first}
            or any(item.get("role") in _OWN_ROLES for item in items)
        ):
            return key
    return None


def _messages(value: JsonValue, where: str) -> Iterator[Message]:
    item: Object = expect(value, dict, where)
    if {*_PAIR} <= item.keys():
        for key in _PAIR:
            yield read_message({"role": _ROLES.get(key, key), "content": item[key]}, f"{where}.{key}")
        return
    role = item.get("from") or item.get("role")
    content = item["value"] if "value" in item else item.get("content")
    role = _ROLES.get(role, role) if isinstance(role, str) else role
    if role != _CALL:
        yield read_message({**item, "role": role, "content": content}, where)
        return
    thought, _, text = content.rpartition("</think>") if isinstance(content, str) else ("", "", "")
    calls = _calls(text if isinstance(content, str) else content)
    said: Object = {"content": content} if calls is None else {"tool_calls": calls, "content": None}
    reasoning = thought.partition("<think>")[2].strip() if calls else ""
    yield read_message({**item, "role": "assistant", "reasoning": reasoning, **said}, where)


def _calls(value: JsonValue) -> list[JsonValue] | None:
    """The calls that a value is, as JSON text or decoded; None where it is something else."""
    try:
        value = parse(value) if isinstance(value, str) else value
    except ValueError:
        return None
    calls: list[JsonValue] = value if isinstance(value, list) else [value]
    return calls if calls and all(isinstance(call, dict) and "name" in call for call in calls) else None
