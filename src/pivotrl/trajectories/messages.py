"""Messages, calls and tools of the chat schema, in the shapes that sources give them.

`where` names the place of a value for errors: `FILE:LINE: messages[3]`. Everything here raises InputError with it.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar, get_args

from pydantic import JsonValue

from pivotrl.errors import InputError
from pivotrl.trajectories.jsonfile import parse
from pivotrl.types import Message, Role, Source, Tool, ToolCall

T = TypeVar("T")
Object = dict[str, Any]
"""A JSON object; its values are checked where they are used."""
ROLES: Final[dict[str, Role]] = {**{role: role for role in get_args(Role)}, "developer": "system", "function": "tool"}
_KINDS: Final = {dict: "an object", list: "a list", str: "text", bool: "a truth value", type(None): "null"}
_TEXT_PARTS: Final = (None, "text", "input_text", "output_text", "refusal", "summary_text", "reasoning_text")
_THOUGHT_PARTS: Final = ("thinking", "reasoning")
_PART_TEXT_KEYS: Final = ("text", "refusal", "thinking", "reasoning")
_REASONING_KEYS: Final = ("reasoning_content", "reasoning", "thinking")
_SCHEMA_KEYS: Final = ("parameters", "input_schema", "params")
_MAX_DEPTH: Final = 100


class Content(NamedTuple):
    """The content of a message, its parts sorted out."""

    text: str | None
    thought: str | None = None
    omitted: tuple[str, ...] = ()


def place(source: Source) -> str:
    """`FILE:LINE` or `FILE[INDEX]`."""
    line = "" if source.line is None else f":{source.line}"
    return f"{source.file}{line}" + ("" if source.index is None else f"[{source.index}]")


def trajectory_id(source: Source) -> str:
    """A name that the same file always gives: its stem, line and index."""
    parts = (Path(source.file.removesuffix(".gz")).stem, source.line, source.index)
    return ":".join(str(part) for part in parts if part is not None)


def expect(value: JsonValue, kind: type[T], where: str, name: str = "") -> T:
    """The value, which has to be of one kind: dict, list or str."""
    if isinstance(value, kind):
        return value
    wanted, found = name or _KINDS[kind], _KINDS.get(type(value), "a number")
    raise InputError(f"{where}: expected {wanted}, found {found}; fix or remove the record")


def unstring(value: JsonValue, where: str) -> JsonValue:
    """A value that a table kept as JSON text, decoded; anything else as it is."""
    if not isinstance(value, str):
        return value
    try:
        return parse(value)
    except ValueError as error:
        raise InputError(f"{where}: text that is not JSON ({error}); fix or remove the record") from None


BIG: Final = 1e300


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
    """An outcome: a truth value or a number of at most 1, also as text; below 0 is 0. None: no clear one."""
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    return max(0.0, float(value)) if isinstance(value, bool | int | float) and -BIG < value <= 1 else None


def name_of(value: JsonValue) -> str | None:
    """An id: text or an integer, as text."""
    return str(value) or None if isinstance(value, str | int) and not isinstance(value, bool) else None


def read_content(value: JsonValue, where: str) -> Content:
    if value is None or isinstance(value, str):
        return Content(value)
    texts: list[str] = []
    thoughts: list[str] = []
    omitted: list[str] = []
    for index, item in enumerate(expect(value, list, where, "text or a list of parts")):
        part: Object = {"text": item} if isinstance(item, str) else expect(item, dict, f"{where}[{index}]")
        kind = part.get("type")
        if kind not in _TEXT_PARTS and kind not in _THOUGHT_PARTS:
            omitted.append(str(kind))
            continue
        text = next((part[key] for key in _PART_TEXT_KEYS if part.get(key) is not None), None)
        (thoughts if kind in _THOUGHT_PARTS else texts).append(expect(text, str, f"{where}[{index}].text"))
    return Content("\n".join(texts) if texts else None, "\n".join(thoughts) or None, tuple(omitted))


def _opened(value: JsonValue, where: str) -> tuple[Object, Object]:
    """An object, and its `function` where the API nests name and arguments in one, else the object again."""
    outer: Object = expect(unstring(value, where), dict, where)
    inner = outer.get("function")
    return outer, outer if inner is None else expect(inner, dict, f"{where}.function")


def read_call(value: JsonValue, where: str) -> ToolCall:
    """A call: `{id, function: {name, arguments}}`, flat `{id, name, arguments}`, or either as JSON text.

    Arguments that are text stay as they came (`arguments_text`: our own export's word on an object that would not give
    the text back), an object is written once, absent ones are None.
    """
    call, holder = _opened(value, where)
    given = holder.get("arguments_text", holder.get("arguments", ""))
    absent = "arguments" not in holder or holder.get("arguments_text", "") is None
    return ToolCall(
        name=expect(holder.get("name"), str, f"{where}.name"),
        arguments=None if absent else given if isinstance(given, str) else json.dumps(given, ensure_ascii=False),
        id=name_of(call.get("call_id") or call.get("id")),
    )


def _read_calls(record: Object, where: str) -> tuple[ToolCall, ...]:
    value = unstring(record.get("tool_calls") or None, f"{where}.tool_calls")
    if value is not None:
        items = expect(value, list, f"{where}.tool_calls")
        return tuple(read_call(item, f"{where}.tool_calls[{i}]") for i, item in enumerate(items))
    legacy = record.get("function_call")
    return () if legacy is None else (read_call(legacy, f"{where}.function_call"),)


def read_message(value: JsonValue, where: str) -> Message:
    """One message of the chat schema."""
    record: Object = expect(value, dict, where)
    given = expect(record.get("role"), str, f"{where}.role")
    role = ROLES.get(given)
    if role is None:
        raise InputError(f"{where}.role: {given!r} is no role of the chat schema; use one of {', '.join(ROLES)}")
    content, name = read_content(record.get("content"), f"{where}.content"), name_of(record.get("name"))
    omitted = content.omitted + tuple(map(str, expect(record.get("omitted") or [], list, f"{where}.omitted")))
    message = Message(role=role, content=content.text, omitted=omitted, name=name)
    if role == "tool":
        result_id = name_of(record.get("tool_call_id") or dig(record, "tool_call_ids", 0))
        error = record.get("error")
        return replace(message, tool_call_id=result_id, error=error if isinstance(error, bool) else None)
    if role != "assistant":
        return message
    reasons = (record.get(key) for key in _REASONING_KEYS)
    unwanted = record.get("loss") is False or record.get("weight") == 0
    refusal = record.get("refusal")
    return replace(
        message,
        content=refusal if not content.text and isinstance(refusal, str) else content.text,
        reasoning=next((text for text in reasons if isinstance(text, str) and text), content.thought),
        tool_calls=_read_calls(record, where),
        excluded=name_of(record.get("excluded")) or "loss_false" if unwanted else None,
    )


def read_messages(value: JsonValue, where: str) -> tuple[Message, ...]:
    return tuple(read_message(item, f"{where}[{i}]") for i, item in enumerate(expect(value, list, where)))


def read_tools(value: JsonValue, where: str) -> tuple[Tool, ...] | None:
    """Tool schemas, nested, flat or by name; also as JSON text. null or no text: the source does not say."""
    value = unstring(value or None if isinstance(value, str) else value, where)
    if value is None:
        return None
    if isinstance(value, dict):
        value = [{"name": name, **expect(tool, dict, f"{where}.{name}")} for name, tool in value.items()]
    return tuple(_read_tool(item, f"{where}[{i}]") for i, item in enumerate(expect(value, list, where)))


def _read_tool(value: JsonValue, where: str) -> Tool:
    outer, tool = _opened(value, where)
    schema = next((tool[key] for key in _SCHEMA_KEYS if tool.get(key) is not None), None)
    at = f"{where}.parameters"
    description = tool.get("description") or tool.get("doc") or ""
    return Tool(
        parameters=None if schema is None else expect(_schema(expect(schema, dict, at), at), dict, at),
        name=expect(tool.get("name") or outer.get("type"), str, f"{where}.name"),
        description=expect(description, str, f"{where}.description"),
    )


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
