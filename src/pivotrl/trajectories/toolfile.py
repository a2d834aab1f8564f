"""Tool schemas from a file of their own, for trajectories that do not say which tools there were."""

from __future__ import annotations

from pathlib import Path

from pydantic import JsonValue

from pivotrl.errors import InputError
from pivotrl.trajectories.jsonfile import read_values
from pivotrl.trajectories.messages import dig, read_tools
from pivotrl.types import Tool


def read_tool_lists(path: Path) -> tuple[tuple[Tool, ...], ...]:
    """The distinct tool lists of a file, in order.

    The file is a JSON list of schemas, an object of schemas by name, an object with `tools`, or JSON Lines whose rows
    hold `tools` or `responses_create_params.tools`. Raises MissingError or InputError.
    """
    lists: dict[tuple[str, ...], tuple[Tool, ...]] = {}
    for line, value in read_values(path):
        tools = read_tools(_tools_of(value), f"{path}:{line or 1}: tools")
        if tools:
            lists.setdefault(tuple(tool.name for tool in tools), tools)
    if not lists:
        raise InputError(f"{path}: no tool schemas in it; give a JSON list of {{name, description, parameters}}")
    return tuple(lists.values())


def _tools_of(value: JsonValue) -> JsonValue:
    for keys in (("responses_create_params", "tools"), ("tools",)):
        found = dig(value, *keys)
        if found is not None:
            return found
    return value


def tools_for(called: frozenset[str], lists: tuple[tuple[Tool, ...], ...]) -> tuple[Tool, ...] | None:
    """The first list that knows every called name; None when there is none, or when nothing is called."""
    if not called:
        return None
    return next((tools for tools in lists if called <= {tool.name for tool in tools}), None)
