"""Tool schemas out of nothing but calls, for sources that do not say which tools there were."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pydantic import JsonValue

from pivotrl.types import Tool, ToolCall

INFERRED: Final = "Inferred from its calls."
"""Their description, so that nobody takes them for the source's word."""
_TYPES: Final = {
    bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object", type(None): "null",
}  # fmt: skip


class ObservedTools:
    """The names that were called, and the arguments that they were called with."""

    def __init__(self) -> None:
        self._seen: dict[str, dict[str, set[str]]] = {}

    def add(self, calls: Iterable[ToolCall]) -> None:
        for call in calls:
            arguments = self._seen.setdefault(call.name, {})
            for key, value in (call.parsed.value or {}).items():
                arguments.setdefault(key, set()).add(_TYPES[type(value)])

    @property
    def tools(self) -> tuple[Tool, ...]:
        """In the order of their names. No argument is required: that it always came does not say that it must."""
        return tuple(
            Tool(name=name, description=INFERRED, parameters={"type": "object", "properties": _properties(arguments)})
            for name, arguments in sorted(self._seen.items())
        )


def _properties(arguments: dict[str, set[str]]) -> dict[str, JsonValue]:
    properties: dict[str, JsonValue] = {}
    for name, kinds in arguments.items():
        types: list[JsonValue] = [*sorted(kinds - {"integer"} if "number" in kinds else kinds)]
        properties[name] = {"type": types[0] if len(types) == 1 else types}
    return properties
