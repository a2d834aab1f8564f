"""Messages, calls and tools of the chat schema, in the shapes that sources give them.

`where` names the place of a value for errors: `FILE:LINE: messages[3]`. Everything here raises InputError with it.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Final, NamedTuple, get_args

from pydantic import JsonValue

from pivotrl.errors import InputError
from pivotrl.trajectories.jsonfile import parse
from pivotrl.types import Message, Role, Source, Tool, ToolCall

Object = dict[str, JsonValue]
ROLES: Final[dict[str, Role]] = {
    **{role: role for role in get_args(Role)},
    "developer": "system",
    "function": "tool",
}
_TEXT_PARTS: Final = (None, "text", "input_text", "output_text", "refusal", "summary_text", "reasoning_text")
_THOUGHT_PARTS: Final = ("thinking", "reasoning")
_PART_TEXT_KEYS: Final = ("text", "refusal", "thinking", "reasoning")
_REASONING_KEYS: Final = ("reasoning_content", "reasoning", "thinking")
_MAX_DEPTH: Final = 100


class Content(NamedTuple):
    """The content of a message, its parts sorted out."""

    text: str | None
    thought: str | None
    omitted: tuple[str, ...]


def place(source: Source) -> str:
    """`FILE:LINE` or `FILE[INDEX]`."""
    line = "" if source.line is None else f":{source.line}"
    return f"{source.file}{line}" + ("" if source.index is None else f"[{source.index}]")


def trajectory_id(source: Source) -> str:
    """A name that the same file always gives: its stem, line and index."""
    parts = (Path(source.file.removesuffix(".gz")).stem, source.line, source.index)
    return ":".join(str(part) for part in parts if part is not None)


def wrong(where: str, expected: str, value: JsonValue) -> InputError:
    kinds = {dict: "an object", list: "a list", str: "text", bool: "a truth value", type(None): "null"}
    return InputError(
        f"{where}: expected {expected}, found {kinds.get(type(value), 'a number')}; fix or remove the record"
    )


def as_object(value: JsonValue, where: str) -> Object:
    if not isinstance(value, dict):
        raise wrong(where, "an object", value)
    return value


def as_list(value: JsonValue, where: str, expected: str = "a list") -> list[JsonValue]:
    if not isinstance(value, list):
        raise wrong(where, expected, value)
    return value


def as_text(value: JsonValue, where: str) -> str:
    if not isinstance(value, str):
        raise wrong(where, "text", value)
    return value


def unstring(value: JsonValue, where: str) -> JsonValue:
    """A value that a table kept as JSON text, decoded; anything else as it is."""
    if not isinstance(value, str):
        return value
    try:
        return parse(value)
    except ValueError as error:
        raise InputError(f"{where}: text that is not JSON ({error}); fix or remove the record") from None


def dig(record: JsonValue, *keys: str | int) -> JsonValue:
    """A nested value, or None where the way ends."""
    for key in keys:
        if isinstance(record, dict) and isinstance(key, str):
            record = record.get(key)
        elif isinstance(record, list) and isinstance(key, int) and key < len(record):
            record = record[key]
        else:
            return None
    return record


def reward(value: JsonValue) -> float | None:
    """A truth value or a number of [0, 1] as an outcome; anything else is no clear one."""
    if isinstance(value, bool | int | float) and math.isfinite(value) and 0 <= value <= 1:
        return float(value)
    return None


def name_of(value: JsonValue) -> str | None:
    """An id: text or an integer, as text."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        return None
    return str(value) or None


def read_content(value: JsonValue, where: str) -> Content:
    if value is None or isinstance(value, str):
        return Content(value, None, ())
    texts: list[str] = []
    thoughts: list[str] = []
    omitted: list[str] = []
    for index, item in enumerate(as_list(value, where, "text or a list of parts")):
        part: Object = {"text": item} if isinstance(item, str) else as_object(item, f"{where}[{index}]")
        kind = part.get("type")
        if kind not in _TEXT_PARTS and kind not in _THOUGHT_PARTS:
            omitted.append(str(kind))
            continue
        text = next((part[key] for key in _PART_TEXT_KEYS if part.get(key) is not None), None)
        (thoughts if kind in _THOUGHT_PARTS else texts).append(as_text(text, f"{where}[{index}].text"))
    return Content("\n".join(texts) if texts else None, "\n".join(thoughts) or None, tuple(omitted))


def arguments_text(holder: Object) -> str | None:
    """The arguments as JSON text: text as it came, an object written once, absent as None."""
    if "arguments" not in holder:
        return None
    value = holder["arguments"]
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def read_call(value: JsonValue, where: str) -> ToolCall:
    """A call: `{id, function: {name, arguments}}`, flat `{id, name, arguments}`, or either as JSON text."""
    call = as_object(unstring(value, where), where)
    function = call.get("function")
    holder = call if function is None else as_object(function, f"{where}.function")
    name = as_text(holder.get("name"), f"{where}.name")
    return ToolCall(name=name, arguments=arguments_text(holder), id=name_of(call.get("call_id") or call.get("id")))


def _read_calls(record: Object, where: str) -> tuple[ToolCall, ...]:
    value = unstring(record.get("tool_calls") or None, f"{where}.tool_calls")
    if value is not None:
        items = as_list(value, f"{where}.tool_calls")
        return tuple(read_call(item, f"{where}.tool_calls[{i}]") for i, item in enumerate(items))
    legacy = record.get("function_call")
    return () if legacy is None else (read_call(legacy, f"{where}.function_call"),)


def read_message(value: JsonValue, where: str) -> Message:
    """One message of the chat schema."""
    record = as_object(value, where)
    given = as_text(record.get("role"), f"{where}.role")
    role = ROLES.get(given)
    if role is None:
        raise InputError(f"{where}.role: {given!r} is no role of the chat schema; use one of {', '.join(ROLES)}")
    content = read_content(record.get("content"), f"{where}.content")
    if role != "assistant":
        error = record.get("error")
        result_id = name_of(record.get("tool_call_id") or dig(record, "tool_call_ids", 0))
        return Message(
            role=role,
            content=content.text,
            omitted=content.omitted,
            name=name_of(record.get("name")),
            tool_call_id=result_id if role == "tool" else None,
            error=error if role == "tool" and isinstance(error, bool) else None,
        )
    reasons = (record.get(key) for key in _REASONING_KEYS)
    refusal = record.get("refusal")
    return Message(
        role=role,
        content=refusal if not content.text and isinstance(refusal, str) else content.text,
        reasoning=next((text for text in reasons if isinstance(text, str) and text), content.thought),
        tool_calls=_read_calls(record, where),
        name=name_of(record.get("name")),
        omitted=content.omitted,
        excluded="loss_false" if record.get("loss") is False or record.get("weight") == 0 else None,
    )


def read_messages(value: JsonValue, where: str) -> tuple[Message, ...]:
    return tuple(read_message(item, f"{where}[{i}]") for i, item in enumerate(as_list(value, where)))


def read_tools(value: JsonValue, where: str) -> tuple[Tool, ...] | None:
    """Tool schemas, nested, flat or by name; also as JSON text. null means that the source does not say."""
    value = unstring(value, where)
    if value is None:
        return None
    if isinstance(value, dict):
        value = [{"name": name, **as_object(tool, f"{where}.{name}")} for name, tool in value.items()]
    return tuple(_read_tool(item, f"{where}[{i}]") for i, item in enumerate(as_list(value, where)))


def _read_tool(value: JsonValue, where: str) -> Tool:
    outer = as_object(unstring(value, where), where)
    function = outer.get("function")
    tool = outer if function is None else as_object(function, f"{where}.function")
    parameters = next(
        (tool[key] for key in ("parameters", "input_schema", "params") if tool.get(key) is not None), None
    )
    if parameters is not None:
        parameters = as_object(_schema(as_object(parameters, f"{where}.parameters"), f"{where}.parameters"), where)
    name = as_text(tool.get("name") or outer.get("type"), f"{where}.name")
    description = tool.get("description") or tool.get("doc") or ""
    return Tool(name=name, description=as_text(description, f"{where}.description"), parameters=parameters)


def _schema(value: JsonValue, where: str, depth: int = 0) -> JsonValue:
    """A JSON Schema without the nulls that tables pad with; our files hold 64-bit integers and a limited nesting."""
    if depth > _MAX_DEPTH or (isinstance(value, int) and not -(2**63) <= value < 2**64):
        raise InputError(f"{where}: nested too deeply or an integer beyond 64 bits; simplify the schema")
    if isinstance(value, list):
        return [_schema(item, where, depth + 1) for item in value]
    if not isinstance(value, dict):
        return value
    kept = ((key, item) for key, item in value.items() if item is not None or key in ("default", "const"))
    return {key: _schema(item, where, depth + 1) for key, item in kept}
