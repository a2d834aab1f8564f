"""Qwen3-Coder's XML, one tag a line: `<tool_call> <function=NAME> <parameter=KEY> VALUE </parameter> </function> ..`.

The syntax does not say whether `5` is a number or a string. A value is the JSON that it reads as, unless that is a
string or nothing: then it is the text itself, quotes included. Where `tools` declares the parameter a string and
nothing else, it is always the text; without `tools` the string "5", which is written as 5, reads as the number.
The `<tool_call>` wrapper may be missing, and then at the end `</function>`, where harnesses stop the model; absent
arguments read as `{}`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from pydantic import JsonValue

from pivotrl.actions.base import Malformed, Read, expect, read_calls, read_value, skip_space
from pivotrl.types import Tool, ToolCall

OPEN, CLOSE = "<tool_call>", "</tool_call>"
FUNCTION, END_FUNCTION = "<function=", "</function>"
PARAMETER, END_PARAMETER = "<parameter=", "</parameter>"


def read(body: str, tools: Sequence[Tool] | None) -> Read:
    """Text, then calls, then nothing. Raises Malformed."""
    starts = [at for at in (body.find(OPEN), body.find(FUNCTION)) if at >= 0]
    if not starts and (CLOSE in body or END_FUNCTION in body):
        raise Malformed("unopened_call", "a closing tag without its opening")
    return read_calls(body, min(starts, default=-1), "", partial(_call, tools))


def _call(tools: Sequence[Tool] | None, body: str, at: int) -> tuple[list[ToolCall], int]:
    wrapped = body.startswith(OPEN, at)
    if wrapped:
        at = skip_space(body, at + len(OPEN))
    if not body.startswith(FUNCTION, at):
        raise Malformed("malformed_call" if wrapped else "text_after_call", body[at : at + 40])
    name, at = _label(body, at + len(FUNCTION))
    strings = _string_parameters(name, tools)
    members: dict[str, str] = {}
    at = skip_space(body, at)
    while body.startswith(PARAMETER, at):
        key, at = _label(body, at + len(PARAMETER))
        end = body.find(END_PARAMETER, at)
        if end < 0:
            raise Malformed("unclosed_call", f"parameter {key!r} does not end")
        if key in members:
            raise Malformed("duplicate_parameter", key)
        members[key] = _json_text(body[at:end].removeprefix("\n").removesuffix("\n"), key in strings)
        at = skip_space(body, end + len(END_PARAMETER))
    at = at if at == len(body) and members and not wrapped else _closed(body, at, END_FUNCTION)
    pairs = (f"{json.dumps(key, ensure_ascii=False)}: {value}" for key, value in members.items())
    call = ToolCall(name=name, arguments="{" + ", ".join(pairs) + "}")
    return [call], _closed(body, skip_space(body, at), CLOSE) if wrapped else at


def _label(body: str, at: int) -> tuple[str, int]:
    """What stands before the next `>` on this line. Raises Malformed."""
    end = body.find(">", at)
    if end < 0:
        raise Malformed("unclosed_call", "a tag does not end")
    label = body[at:end].strip()
    if not label or "\n" in label:
        raise Malformed("no_name", "a function or parameter has no name")
    return label, end + 1


def _closed(body: str, at: int, tag: str) -> int:
    return expect(body, at, tag, "unclosed_call" if body.find(tag, at) < 0 else "malformed_call")


def _json_text(value: str, is_string: bool) -> str:
    text = value.strip()
    with suppress(Malformed):
        held, end = read_value(text, 0)
        if end == len(text) and not is_string and not isinstance(held.value, str):
            return held.raw
    return json.dumps(value, ensure_ascii=False)


def _string_parameters(name: str, tools: Sequence[Tool] | None) -> set[str]:
    parameters = next((tool.parameters for tool in tools or () if tool.name == name), None)
    properties: JsonValue = (parameters or {}).get("properties")
    members = properties.items() if isinstance(properties, dict) else ()
    return {key for key, schema in members if isinstance(schema, dict) and schema.get("type") == "string"}
