"""`schema`: calls that the tools take, whatever they do: the part of `tool_call` that looks at no demonstrated value.

No reward by itself: it is there to go first in a `cascade`. A schema that is broken, or that a demonstrated call of the
tool violates, is left aside: that is no error here. Schemas are compiled once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

import jsonschema_rs
import orjson
from pydantic import JsonValue

from pivotrl.errors import brief
from pivotrl.storage import dump_json
from pivotrl.types import Action, Candidate, Tool, ToolCall, Verdict
from pivotrl.verifiers.base import BuiltIn, Refusal, arguments_of, decided, judged

BACKTRACKS: Final = 10_000
"""Steps that a regular expression of a schema may go back; one that takes more is no match."""


@dataclass(frozen=True, slots=True)
class SchemaVerifier(BuiltIn):
    name = "schema"

    def __call__(self, candidate: Candidate, action: Action) -> Verdict:
        """1 for calls that the tools take, 0 for others, unscored where nothing is called."""
        if not action.calls:
            return judged(self, None, "not_applicable", "no call was made")
        return decided(self, schema_refusal(candidate, action))


def schema_refusal(candidate: Candidate, action: Action) -> Refusal | None:
    """Why a tool would not take a call: it is not there, or its arguments are no object or against its schema."""
    tools = {tool.name: tool for tool in candidate.trajectory.tools or ()}
    theirs = demonstrated(candidate)
    known = tools.keys() | {one.call.name for one in theirs}
    for call in action.calls:
        tool, arguments = tools.get(call.name), arguments_of(call).value
        if candidate.trajectory.tools is not None and call.name not in known:
            return "unknown_tool", call.name
        if arguments is None:
            return "bad_arguments", f"{call.name}: {arguments_of(call).error}"
        schema = applicable(call.name, theirs, tool)
        violation = schema and schema.fault(arguments)
        if violation is not None:
            return "invalid_arguments", f"{call.name}: {violation}"
    return None


@dataclass(frozen=True, slots=True, eq=False)
class Schema:
    """A tool's compiled schema. It fetches nothing, and its regular expressions do not run away."""

    document: dict[str, Any]
    validator: jsonschema_rs.Draft202012Validator

    def fault(self, arguments: dict[str, JsonValue]) -> str | None:
        """The first violation, in words; None when valid. What cannot be checked (half a surrogate pair) is not."""
        try:
            if self.validator.is_valid(arguments):
                return None
            error = next(self.validator.iter_errors(arguments))
        except (ValueError, TypeError, OverflowError, RecursionError) as reason:
            return f"cannot be checked ({type(reason).__name__})"
        return f"{'.'.join(['$', *map(str, error.instance_path)])}: {error.message}"


@dataclass(frozen=True, slots=True)
class Demonstrated:
    """A demonstrated call, its arguments (None: malformed), and its tool's schema if it can be used."""

    call: ToolCall
    arguments: dict[str, JsonValue] | None
    schema: Schema | None = None
    problem: str = ""
    """Why the schema is left aside."""


def demonstrated(candidate: Candidate) -> list[Demonstrated]:
    """The demonstrated calls made ready; the G actions of a group share the work.

    A schema that is broken, or that the call itself violates, is left aside: then the demonstration alone says what is
    right.
    """
    tools = {tool.name: tool for tool in candidate.trajectory.tools or ()}
    return [_ready(call, _schema_of(tools.get(call.name))) for call in candidate.demonstration.calls]


@lru_cache(maxsize=256)
def _ready(call: ToolCall, schema: Schema | str | None) -> Demonstrated:
    bare = Demonstrated(call, arguments_of(call).value)
    if isinstance(schema, str):
        return replace(bare, problem=f"schema of {call.name} is broken: {schema}")
    if schema is None or bare.arguments is None:
        return bare
    violation = schema.fault(bare.arguments)
    if violation:
        return replace(bare, problem=f"the demonstration violates the schema of {call.name}: {violation}")
    return replace(bare, schema=schema)


def applicable(name: str, theirs: Sequence[Demonstrated], tool: Tool | None) -> Schema | None:
    """The schema that calls of a tool are held to; None where it is broken, or a demonstrated call violates it."""
    rivals = [one.schema for one in theirs if one.call.name == name]
    schema = min(rivals, key=lambda one: one is not None) if rivals else _schema_of(tool)
    return None if isinstance(schema, str) else schema


def _schema_of(tool: Tool | None) -> Schema | str | None:
    return compiled(tool.parameters if tool else None)


def compiled(document: JsonValue) -> Schema | str | None:
    """A schema ready for use, or what is wrong with it; None where there is none."""
    try:
        return _compiled(dump_json(document))
    except TypeError as error:  # an integer beyond 64 bits, half a surrogate pair
        return str(error)


@lru_cache(maxsize=1024)
def _compiled(text: bytes) -> Schema | str | None:
    document = orjson.loads(text)
    if document is None:
        return None
    try:
        jsonschema_rs.meta.validate(document)
        options = jsonschema_rs.FancyRegexOptions(backtrack_limit=BACKTRACKS)
        return Schema(document, jsonschema_rs.Draft202012Validator(document, offline=True, pattern_options=options))
    except (ValueError, TypeError, RecursionError) as error:
        return brief(error)
