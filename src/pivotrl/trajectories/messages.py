"""Messages, calls and tools of the chat schema, in the shapes that sources give them.

`where` names the place of a value for errors: `FILE:LINE: messages[3]`. Everything here raises InputError with it.
"""

from __future__ import annotations

import json
import marshal
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar, get_args

from pydantic import JsonValue

from pivotrl.errors import InputError
from pivotrl.protocols import Record
from pivotrl.trajectories.jsonfile import mend, parse
from pivotrl.types import Message, Role, Source, Tool, ToolCall, Trajectory

T = TypeVar("T")
Object = dict[str, Any]
"""A JSON object; its values are checked where they are used."""
ROLES: Final[dict[str, Role]] = {
    **{role: role for role in get_args(Role)}, "developer": "system", "function": "tool", "ai": "assistant"
}  # fmt: skip
_CONTENT_KEYS: Final = ("content", "text", "system_prompt")
"""The later ones are SWE-agent's in Nebius's rows."""
_UNTRAINED: Final = (("loss", False), ("weight", 0), ("loss_weight", 0))
_KINDS: Final = {dict: "an object", list: "a list", str: "text", bool: "a truth value", type(None): "null"}
_TEXT_PARTS: Final = (None, "text", "input_text", "output_text", "refusal", "summary_text", "reasoning_text")
_THOUGHT_PARTS: Final = ("thinking", "reasoning")
_PART_TEXT_KEYS: Final = ("text", "refusal", "thinking", "reasoning", "value")
_CALL_PART: Final = "tool_call"
_REASONING_KEYS: Final = ("reasoning_content", "reasoning", "thinking")
_PLAIN_KEYS: Final = {"role", "content", "tool_calls"}
"""Of a message of the assistant that says nothing else."""
_DESCRIPTION_KEYS: Final = ("description", "doc", "description_for_model")
_SCHEMA_KEYS: Final = ("parameters", "input_schema", "params")
_TYPES: Final = {
    "dict": "object", "float": "number", "double": "number", "int": "integer", "long": "integer", "str": "string",
    "bool": "boolean", "list": "array", "tuple": "array", "set": "array", "any": None,
}  # fmt: skip
"""Python's words for types in schemas of BFCL, ToolACE and xLAM; more may follow: `List[int]`, `str, optional`."""
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
    parts = (stem(source.file), source.line, source.index)
    return ":".join([str(part) for part in parts if part is not None])


@lru_cache(maxsize=1)
def stem(file: str) -> str:
    """The name of a file without what says how it is written."""
    return Path(file.removesuffix(".gz")).stem


def events(records: Iterable[Record], key: str) -> Iterator[Record]:
    """The events of a file, also out of one JSON document that is a list of them, or has one under this key."""
    for number, value in records:
        inner = value if isinstance(value, list) else dig(value, key)
        yield from [] if inner is value else [(number, value)]
        yield from ((number, item) for item in (inner if isinstance(inner, list) else []))


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


def decoded(value: JsonValue) -> JsonValue:
    """What JSON text holds, None where it is no JSON; anything but text as it is."""
    try:
        return parse(value) if isinstance(value, str) else value
    except ValueError:
        return None


BIG: Final = 1e300
COPIED: Final = "copied_context"
"""Why an assistant message is no demonstration: another segment of the same run holds it as one."""
_TOOLS: Final[dict[str | bytes, tuple[Tool, ...] | None]] = {}
"""Tool lists that were read lately, by their text: the rows of a file mostly have the same."""
_MANY: Final = 64


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
        if kind == _CALL_PART:
            continue
        if kind not in _TEXT_PARTS and kind not in _THOUGHT_PARTS:
            omitted.append(str(kind))
            continue
        text = next((part[key] for key in _PART_TEXT_KEYS if part.get(key) is not None), None)
        (thoughts if kind in _THOUGHT_PARTS else texts).append(expect(text, str, f"{where}[{index}].text"))
    return Content("\n".join(texts) if texts else None, "\n".join(thoughts) or None, tuple(omitted))


def _opened(value: JsonValue, where: str) -> tuple[Object, Object]:
    """An object, and its `function` where the API nests name and arguments in one, else the object again."""
    outer: Object = value if isinstance(value, dict) else expect(unstring(value, where), dict, where)
    inner = outer.get("function")
    if inner is None or isinstance(inner, dict):
        return outer, outer if inner is None else inner
    return outer, expect(inner, dict, f"{where}.function")


def read_call(value: JsonValue, where: str) -> ToolCall:
    """A call: `{id, function: {name, arguments}}`, flat `{id, name, arguments}`, or either as JSON text.

    Arguments that are text stay as they came (`arguments_text`: our own export's word on an object that would not give
    the text back), an object is written once, absent ones are None.
    """
    call, holder = _opened(value, where)
    given = holder.get("arguments_text", holder.get("arguments", ""))
    text = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
    absent = "arguments" not in holder or holder.get("arguments_text", "") is None
    return ToolCall(
        name=name if isinstance(name := holder.get("name"), str) else expect(name, str, f"{where}.name"),
        arguments=None if absent else mend(text),
        id=name_of(call.get("call_id") or call.get("id")),
    )


def _read_calls(record: Object, where: str) -> tuple[ToolCall, ...]:
    value = record.get("tool_calls") or None
    if value is not None:
        at = f"{where}.tool_calls"
        items = value if isinstance(value, list) else expect(unstring(value, at), list, at)
        return tuple([read_call(item, f"{at}[{i}]") for i, item in enumerate(items)])
    legacy = record.get("function_call")
    if legacy is not None:
        return (read_call(legacy, f"{where}.function_call"),)
    parts = record["content"] if isinstance(record.get("content"), list) else []
    found = [part.get("value") for part in parts if isinstance(part, dict) and part.get("type") == _CALL_PART]
    return tuple(read_call(item, f"{where}.content: {_CALL_PART}") for item in found)


def read_message(value: JsonValue, where: str) -> Message:
    """One message of the chat schema."""
    record: Object = expect(value, dict, where)
    role = _read_role(record.get("role"), f"{where}.role")
    key, given = "content", record.get("content")
    if isinstance(given, str) and given and len(record) == 2:
        return Message(role=role, content=given)
    if given is None:
        key = next((key for key in _CONTENT_KEYS if record.get(key) is not None), key)
        given = record.get(key)
    content = read_content(given, f"{where}.{key}")
    if "omitted" in record:
        more = map(str, expect(record["omitted"] or [], list, f"{where}.omitted"))
        content = content._replace(omitted=(*content.omitted, *more))
    name = name_of(record.get("name"))
    if role == "assistant":
        return _read_turn(record, content, name, where)
    if role != "tool":
        return Message(role=role, content=content.text, omitted=content.omitted, name=name)
    error = record.get("error")
    return Message(
        role=role,
        content=content.text,
        omitted=content.omitted,
        name=name,
        tool_call_id=name_of(record.get("tool_call_id") or dig(record, "tool_call_ids", 0)),
        error=error if isinstance(error, bool) else None,
    )


def _read_role(value: JsonValue, where: str) -> Role:
    text = expect(value, str, where)
    if text not in ROLES:
        raise InputError(f"{where}: {text!r} is no role of the chat schema; use one of {', '.join(ROLES)}")
    return ROLES[text]


def _read_turn(record: Object, content: Content, name: str | None, where: str) -> Message:
    """A message of the assistant: with calls, and with reasoning by any of its names."""
    calls = _read_calls(record, where)
    if content.thought is None and record.keys() <= _PLAIN_KEYS:
        return Message(role="assistant", content=content.text, tool_calls=calls, omitted=content.omitted)
    reasons = (record[key] for key in _REASONING_KEYS if key in record)
    refusal, blocks = record.get("refusal"), record.get("thinking_blocks")
    thought = content.thought or (blocks and read_content(blocks, f"{where}.thinking_blocks").thought) or None
    unwanted = any(record.get(key, True) == value for key, value in _UNTRAINED)
    return Message(
        role="assistant",
        content=refusal if not content.text and isinstance(refusal, str) else content.text,
        reasoning=next((one for one in reasons if isinstance(one, str) and one), thought),
        tool_calls=calls,
        name=name,
        omitted=content.omitted,
        excluded=name_of(record.get("excluded")) or "loss_false" if unwanted else None,
    )


def read_messages(value: JsonValue, where: str) -> tuple[Message, ...]:
    """One message per model call: calls without ids in messages of their own join the text before (ShareGPT, Toucan).

    Results of parallel calls that come as one JSON list are taken apart: a call has one result.
    """
    read: list[Message] = []
    for index, item in enumerate(expect(value, list, where)):
        message = read_message(item, f"{where}[{index}]")
        last = read[-1] if read else message
        if not read or last.role != "assistant":
            read.append(message)
            continue
        if last.tool_calls and last.tool_calls[0].id is not None:
            read.append(message)
            continue
        calls = (*last.tool_calls, *message.tool_calls)
        goes_on = all(call.id is None for call in calls)
        if goes_on and message.tool_calls:
            text = "\n".join(text for text in (last.content, message.content) if text) or None
            reasoning, excluded = last.reasoning or message.reasoning, last.excluded or message.excluded
            read[-1] = replace(last, content=text, reasoning=reasoning, tool_calls=calls, excluded=excluded)
        elif goes_on and message.role == "tool":
            read += [replace(message, content=text) for text in _results(message.content, len(calls))]
        else:
            read.append(message)
    return tuple(read)


def _results(text: str | None, count: int) -> list[str | None]:
    found = decoded(text) if count > 1 else None
    if not isinstance(found, list) or len(found) != count:
        return [text]
    return [one if isinstance(one, str) else json.dumps(one, ensure_ascii=False) for one in found]


def join(parts: Sequence[Message]) -> Message:
    """What the model said in one call, from its parts."""
    texts = [part.content for part in parts if part.content is not None]
    thoughts = [part.reasoning for part in parts if part.reasoning]
    return Message(
        role="assistant",
        content="\n".join(texts) if texts else None,
        reasoning="\n".join(thoughts) or None,
        tool_calls=tuple(call for part in parts for call in part.tool_calls),
        omitted=tuple(kind for part in parts for kind in part.omitted),
        excluded=next((part.excluded for part in parts if part.excluded), None),
    )


def segmented(parts: Iterable[Trajectory]) -> Iterator[Trajectory]:
    """The segments of a run whose history was rewritten: the first under its own id, the others with it as parent."""
    for number, part in enumerate(parts):
        yield replace(part, id=f"{part.id}~{number}", parent_id=part.id) if number else part


def copied(message: Message) -> Message:
    return replace(message, excluded=message.excluded or COPIED) if message.role == "assistant" else message


def read_tools(value: JsonValue, where: str) -> tuple[Tool, ...] | None:
    """Tool schemas, nested, flat or by name; also as JSON text. null or no text: the source does not say."""
    if not value:
        return () if isinstance(value, list) else None
    try:
        key = value if isinstance(value, str) else marshal.dumps(value, 2)  # by far the fastest; 2: equal values alike
    except ValueError:
        raise InputError(f"{where}: nested too deeply; simplify the schemas") from None
    if key not in _TOOLS:
        if len(_TOOLS) >= _MANY:
            _TOOLS.clear()
        _TOOLS[key] = _read_tools(value, where)
    return _TOOLS[key]


def _read_tools(value: JsonValue, where: str) -> tuple[Tool, ...] | None:
    value = unstring(value, where)
    if value is None:
        return None
    if isinstance(value, dict):
        value = [{"name": name, **expect(tool, dict, f"{where}.{name}")} for name, tool in value.items()]
    return tuple(_read_tool(item, f"{where}[{i}]") for i, item in enumerate(expect(value, list, where)))


def _read_tool(value: JsonValue, where: str) -> Tool:
    outer, tool = _opened(value, where)
    schema = next((tool[key] for key in _SCHEMA_KEYS if tool.get(key) is not None), None)
    at = f"{where}.parameters"
    description = next((tool[key] for key in _DESCRIPTION_KEYS if tool.get(key)), "")
    name = tool.get("name") or tool.get("name_for_model") or outer.get("type")
    return Tool(
        parameters=None if schema is None else expect(_schema(_nested(expect(schema, dict, at)), at), dict, at),
        name=expect(name, str, f"{where}.name"),
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
    kept = {key: item for key, item in value.items() if item is not None or key in ("default", "const")}
    kind = kept.get("type")
    kind = re.split(r"\W", kind.strip().lower())[0] if isinstance(kind, str) else None
    if kind in _TYPES:
        word = _TYPES[kind]
        kept = {key: word if key == "type" else item for key, item in kept.items() if key != "type" or word}
    return {key: _schema(item, where, depth + 1) for key, item in kept.items()}


def _nested(schema: Object) -> Object:
    """Parameters without an object around them (xLAM): those without a default, or `optional`, are required."""
    described = [isinstance(item, dict) and bool({"type", "description"} & item.keys()) for item in schema.values()]
    if not described or not all(described) or "properties" in schema:
        return schema
    needed = [key for key, item in schema.items() if "default" not in item and "optional" not in str(item.get("type"))]
    return {"type": "object", "properties": schema, "required": needed}
