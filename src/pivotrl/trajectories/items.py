"""Items of the OpenAI Responses API as messages: neighbouring items of the model are one call of it.

A call with free text (`custom_tool_call`) has the arguments `{"input": TEXT}`; calls of hosted shells, patches and
computers have their action. What ran at the server (`web_search_call`, `mcp_call`, ...) is an omitted part.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from typing import Final

from pydantic import JsonValue

from pivotrl.trajectories.messages import Object, expect, join, name_of, read_call, read_content, read_message
from pivotrl.types import Message

CALLS: Final = {
    "function_call": ("", "arguments"),
    "custom_tool_call": ("", "input"),
    "local_shell_call": ("local_shell", "action"),
    "shell_call": ("shell", "action"),
    "apply_patch_call": ("apply_patch", "operation"),
    "computer_call": ("computer_use_preview", "action"),
}
"""Kinds of calls: the tool where the item does not name one, and the field that is its arguments."""
_UNSEEN: Final = ("compaction", "item_reference", "mcp_list_tools", "mcp_approval_response")
"""Parts of a state that are no turn and cannot be shown as text."""


def read_request(params: Object, where: str, excluded: str | None = None) -> Iterator[Message]:
    """The messages that `instructions` and `input` stand for."""
    instructions, value = params.get("instructions"), params.get("input")
    if isinstance(instructions, list):
        yield from read_items(instructions, f"{where}.instructions", excluded)
    elif instructions is not None:
        yield Message(role="system", content=expect(instructions, str, f"{where}.instructions"))
    if isinstance(value, str):
        yield Message(role="user", content=value)
    else:
        yield from read_items(value, f"{where}.input", excluded)


def read_items(value: JsonValue, where: str, excluded: str | None = None) -> Iterator[Message]:
    """The messages of a list of items; `excluded` is the reason why the model's are no demonstrations."""
    entries = enumerate(expect(value, list, where, "text or a list of items"))
    for by_model, run in groupby(
        (_read_item(entry, f"{where}[{index}]") for index, entry in entries), key=lambda item: item.role == "assistant"
    ):
        if by_model:
            message = join(list(run))
            yield replace(message, excluded=excluded or message.excluded)
        else:
            yield from run


def _read_item(entry: JsonValue, where: str) -> Message:
    item: Object = expect(entry, dict, where)
    kind = expect(item.get("type") or "message", str, f"{where}.type")
    if kind == "message":
        message = read_message(item, where)
    elif kind.endswith("_output"):
        return _read_output(item, where)
    elif kind in _UNSEEN:
        return Message(role="user", omitted=(kind,))
    elif kind == "reasoning":
        contents = (read_content(item.get(key), f"{where}.{key}") for key in ("content", "summary"))
        thought = next((text for content in contents for text in content[:2] if text), None)
        message = Message(role="assistant", reasoning=thought)
    elif kind in CALLS:
        name, key = CALLS[kind]
        given = {"arguments": item[key]} if key in item else {}
        if kind == "custom_tool_call":
            given = {"arguments": {"input": item.get(key)}}
        call = {"name": item.get("name") or name, "call_id": item.get("call_id") or item.get("id"), **given}
        message = Message(role="assistant", tool_calls=(read_call(call, where),))
    else:
        message = Message(role="assistant", omitted=(kind,))
    return replace(message, excluded="truncated") if item.get("status") == "incomplete" else message


def _read_output(item: Object, where: str) -> Message:
    output = item.get("output")
    parts = [output] if isinstance(output, dict) else output
    if isinstance(parts, list) and any(isinstance(part, dict) and "type" not in part for part in parts):
        parts = json.dumps(output, ensure_ascii=False)
    content = read_content(parts, f"{where}.output")
    result_id = name_of(item.get("call_id") or item.get("id"))
    return Message(role="tool", content=content.text, omitted=content.omitted, tool_call_id=result_id)
