"""Tool schemas out of nothing but calls, for sources that do not say which tools there were."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pydantic import JsonValue

from pivotrl.types import Tool, ToolCall

Observed = dict[str, dict[str, set[str]]]
"""Name of a tool -> name of an argument -> JSON types that it was given."""
INFERRED: Final = "Inferred from its calls."
"""The description of such a tool, so that nobody takes it for the source's word."""
_TYPES: Final = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}


def observe(seen: Observed, calls: Iterable[ToolCall]) -> None:
    for call in calls:
        arguments = seen.setdefault(call.name, {})
        for name, value in (call.parsed.value or {}).items():
            arguments.setdefault(name, set()).add(_TYPES.get(type(value), "null"))


def observed_tools(seen: Observed) -> tuple[Tool, ...]:
    """In the order of their names. No argument is required: that it always came does not say that it must."""
    tools = []
    for name, arguments in sorted(seen.items()):
        properties: dict[str, JsonValue] = {}
        for argument, kinds in arguments.items():
            types: list[JsonValue] = [*sorted(kinds - {"integer"} if "number" in kinds else kinds)]
            properties[argument] = {"type": types[0] if len(types) == 1 else types}
        tools.append(Tool(name=name, description=INFERRED, parameters={"type": "object", "properties": properties}))
    return tuple(tools)
