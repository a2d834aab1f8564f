"""Demonstrated calls made ready for comparison, their JSON Schemas compiled once. A broken schema is no error here."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import jsonschema_rs
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
    """A tool's schema in two implementations: the faster one says what is valid, the other in words what is not."""

    document: dict[str, Any]
    exact: Draft202012Validator
    fast: jsonschema_rs.Draft202012Validator | None
    """None where it does not take the schema."""

    def fault(self, arguments: dict[str, JsonValue]) -> str | None:
        """The first violation, in words; None when valid. Raises one of BROKEN when the schema cannot be applied."""
        if self.fast is not None and self.fast.is_valid(arguments):
            return None
        error = next(self.exact.iter_errors(arguments), None)
        return None if error is None else f"{error.json_path}: {error.message}"


@dataclass(frozen=True, slots=True)
class Demonstrated:
    """A demonstrated call, its arguments (None: malformed), and its tool's schema if it can be used."""

    call: ToolCall
    arguments: dict[str, JsonValue] | None
    schema: Schema | None = None
    problem: str = ""
    """Why the schema is left aside."""


def fault(schema: Schema | None, arguments: dict[str, JsonValue]) -> str | None:
    """The first violation, in words; None when valid, and where the schema turns out to be broken."""
    try:
        return None if schema is None else schema.fault(arguments)
    except BROKEN:
        return None


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
        schema = _compiled(text)
        if schema is None or bare.arguments is None:
            return bare
        ready = replace(bare, schema=schema)
        violation = schema.fault(bare.arguments)
    except BROKEN as error:
        line = f"{type(error).__name__}: {getattr(error, 'message', error)}"
        return replace(bare, problem=f"schema of {call.name} is broken: {line}")
    return (
        replace(bare, problem=f"the demonstration violates the schema of {call.name}: {violation}")
        if violation
        else ready
    )


def applicable(name: str, theirs: Sequence[Demonstrated], tool: Tool | None) -> Schema | None:
    """The schema that calls of a tool are held to; None where it is broken, or a demonstrated call violates it."""
    rivals = [one.schema for one in theirs if one.call.name == name]
    try:
        if rivals:
            return min(rivals, key=lambda one: one is not None)
        return _compiled(dump_json(tool and tool.parameters))
    except BROKEN:
        return None


@lru_cache(maxsize=1024)
def _compiled(text: bytes) -> Schema | None:
    document = orjson.loads(text)
    if document is None:
        return None
    Draft202012Validator.check_schema(document)
    try:  # no network, no regular expression that runs away
        options = jsonschema_rs.RegexOptions()
        fast = jsonschema_rs.Draft202012Validator(document, offline=True, pattern_options=options)
    except ValueError:
        fast = None
    return Schema(document, Draft202012Validator(document, registry=Registry()), fast)
