"""ShareGPT and its relatives: `from`/`value` (ToolACE, APIGen-MT, Hermes, LLaMA-Factory), ms-swift's roles, pairs.

A call whose text is no JSON is text of the model like any other.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from pydantic import JsonValue

from pivotrl.trajectories.jsonfile import parse
from pivotrl.trajectories.messages import Object
from pivotrl.trajectories.openai_chat import CONTAINERS

_CALL: Final = "call"
_OWN_ROLES: Final = {"function_call": _CALL, "tool_call": _CALL, **dict.fromkeys(
    ("observation", "tool_response", "function_response"), "tool")}  # fmt: skip
_ROLES: Final = {**_OWN_ROLES, "human": "user", **dict.fromkeys(("gpt", "model", "bot", "chatgpt"), "assistant")}


def sharegpt(row: Object) -> list[Any] | None:
    """The messages of a row, None where it holds none of this kind."""
    for key in CONTAINERS:
        value = row.get(key)
        value = _decoded(value) if isinstance(value, str) and '"from"' in value and '"value"' in value else value
        items: list[Any] = value if isinstance(value, list) else []
        first = {*items[0]} if items and isinstance(items[0], dict) else set()
        own = any(isinstance(item, dict) and str(item.get("role")) in _OWN_ROLES for item in items)
        if own or {"from", "value"} <= first or {"human", "assistant"} <= first:
            return [one for item in items for one in (_said(item) if isinstance(item, dict) else [item])]
    return None


def _said(item: Object) -> Iterator[Object]:
    if {"human", "assistant"} <= item.keys():
        yield from ({"role": role, "content": item[key]} for key, role in (("human", "user"), ("assistant",) * 2))
        return
    given = item.get("from", item.get("role"))
    role = _ROLES.get(given, given) if isinstance(given, str) else given
    content = item.get("value", item.get("content"))
    said: Object = {**item, "role": role, "content": content}
    if role == _CALL:
        thought, _, text = content.rpartition("</think>") if isinstance(content, str) else ("", "", content)
        calls = _decoded(text)
        calls = calls if isinstance(calls, list) else [calls]
        said["role"] = "assistant"
        if calls and all(isinstance(call, dict) and "name" in call for call in calls):
            said |= {"content": None, "reasoning": thought.partition("<think>")[2].strip(), "tool_calls": calls}
    yield said


def _decoded(value: JsonValue) -> JsonValue:
    try:
        return parse(value) if isinstance(value, str) else value
    except ValueError:
        return None
