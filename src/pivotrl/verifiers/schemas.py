"""JSON Schemas of tools, compiled once each. They come from the data: a broken one is no error here."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

import orjson
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, UnknownType
from pydantic import JsonValue
from referencing import Registry
from referencing.exceptions import Unresolvable

from pivotrl.storage import dump_json
from pivotrl.types import Tool, ToolCall
from pivotrl.verifiers.base import arguments_of

BROKEN = (SchemaError, UnknownType, Unresolvable, re.error, RecursionError, ArithmeticError, TypeError, ValueError)
"""What jsonschema raises when a schema cannot be applied: wrong types, references to nowhere, bad patterns."""


@dataclass(frozen=True, slots=True)
class Schema:
    """A tool's schema, and why it cannot be used."""

    parameters: dict[str, JsonValue] | None
    validator: Draft202012Validator | None = None
    problem: str = ""

    def fault(self, arguments: dict[str, JsonValue]) -> str | None:
        """The first violation, in words; None when valid. Raises one of BROKEN when the schema cannot be applied."""
        if self.validator is None:
            return None
        error = next(self.validator.iter_errors(arguments), None)
        return None if error is None else f"{error.json_path}: {error.message}"


@dataclass(frozen=True, slots=True)
class Demonstrated:
    """A demonstrated call, its arguments (None: malformed) and the schema by which actions are judged beside it."""

    call: ToolCall
    arguments: dict[str, JsonValue] | None
    schema: Schema


def demonstrated(call: ToolCall, tool: Tool | None) -> Demonstrated:
    """A demonstrated call made ready; the G actions of a group share the work.

    Its schema has no validator, and says why, when it is broken or the call itself violates it: then the demonstration
    alone says what is right.
    """
    if tool is None or tool.parameters is None:
        return _ready(call, None)
    try:
        return _ready(call, dump_json(tool.parameters))
    except TypeError as error:  # an integer beyond 64 bits, half a surrogate pair
        schema = Schema(None, problem=f"schema of {tool.name} is broken: {error}")
        return Demonstrated(call, arguments_of(call).value, schema)


@lru_cache(maxsize=256)
def _ready(call: ToolCall, text: bytes | None) -> Demonstrated:
    arguments = arguments_of(call).value
    schema = Schema(None) if text is None else _compiled(text)
    if arguments is None or schema.validator is None:
        return Demonstrated(call, arguments, schema)
    try:
        fault = schema.fault(arguments)
        problem = "" if fault is None else f"the demonstration of {call.name} violates its schema: {fault}"
    except BROKEN as error:
        problem = f"schema of {call.name} cannot be applied: {_line(error)}"
    return Demonstrated(call, arguments, Schema(None, problem=problem) if problem else schema)


@lru_cache(maxsize=1024)
def _compiled(text: bytes) -> Schema:
    parameters: dict[str, JsonValue] = orjson.loads(text)
    try:
        Draft202012Validator.check_schema(parameters)
        return Schema(parameters, Draft202012Validator(parameters, registry=Registry()))  # an empty one: no network
    except BROKEN as error:
        return Schema(None, problem=f"schema is broken: {_line(error)}")


def _line(error: Exception) -> str:
    text = error.message if isinstance(error, SchemaError) else str(error)
    return f"{type(error).__name__}: {text}"
