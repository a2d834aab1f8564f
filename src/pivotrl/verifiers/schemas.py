"""Demonstrated calls made ready for comparison, their JSON Schemas compiled once. A broken schema is no error here."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
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
class Demonstrated:
    """A demonstrated call, its arguments (None: malformed), and its tool's schema if it can be used."""

    call: ToolCall
    arguments: dict[str, JsonValue] | None
    schema: dict[str, JsonValue] | None = None
    validator: Draft202012Validator | None = None
    problem: str = ""
    """Why the schema is left aside."""


def fault(validator: Draft202012Validator | None, arguments: dict[str, JsonValue]) -> str | None:
    """The first violation, in words; None when valid, and where the schema turns out to be broken."""
    try:
        return _fault(validator, arguments)
    except BROKEN:
        return None


def _fault(validator: Draft202012Validator | None, arguments: dict[str, JsonValue]) -> str | None:
    error = None if validator is None else next(validator.iter_errors(arguments), None)
    return None if error is None else f"{error.json_path}: {error.message}"


def demonstrated(call: ToolCall, tool: Tool | None) -> Demonstrated:
    """A demonstrated call made ready; the G actions of a group share the work.

    A schema that is broken, or that the call itself violates, is left aside: then the demonstration alone says what is
    right.
    """
    try:
        return _ready(call, dump_json(tool.parameters if tool else None))
    except TypeError as error:  # an integer beyond 64 bits, half a surrogate pair
        return Demonstrated(call, arguments_of(call).value, problem=f"schema of {call.name} is broken: {error}")


@lru_cache(maxsize=256)
def _ready(call: ToolCall, text: bytes) -> Demonstrated:
    bare = Demonstrated(call, arguments_of(call).value)
    try:
        validator = _validator(text)
        if validator is None or bare.arguments is None:
            return bare
        ready = replace(bare, schema=validator.schema, validator=validator)
        violation = _fault(validator, bare.arguments)
    except BROKEN as error:
        line = f"{type(error).__name__}: {getattr(error, 'message', error)}"
        return replace(bare, problem=f"schema of {call.name} is broken: {line}")
    return (
        replace(bare, problem=f"the demonstration violates the schema of {call.name}: {violation}")
        if violation
        else ready
    )


def applicable(name: str, theirs: Sequence[Demonstrated], tool: Tool | None) -> Draft202012Validator | None:
    """The schema that calls of a tool are held to; None where it is broken, or a demonstrated call violates it."""
    rivals = [one.validator for one in theirs if one.call.name == name]
    try:
        return (
            min(rivals, key=lambda one: one is not None) if rivals else _validator(dump_json(tool and tool.parameters))
        )
    except BROKEN:
        return None


@lru_cache(maxsize=1024)
def _validator(text: bytes) -> Draft202012Validator | None:
    schema = orjson.loads(text)
    if schema is None:
        return None
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema, registry=Registry())  # an empty one: no network
