"""What the tool-call syntaxes share: what one is, the failure, and a JSON reader that keeps the raw text.

A syntax raises `Malformed` inside; only `pivotrl.actions.parse` catches it, so text of any kind never raises outside.
Every reader walks the text from left to right once: no regular expression, no backtracking, linear time.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final
from warnings import catch_warnings

from pydantic import JsonValue

from pivotrl.types import DECODER, Tool, ToolCall

_CONSTANTS: Final = {"true": True, "false": False, "null": None}


@dataclass(frozen=True, slots=True, kw_only=True)
class ParseFailure:
    """Why a text is no action: a wrong action (reward 0), not an error of the program."""

    reason: str
    """`empty`, `unclosed_thinking`, `stray_thinking`, `unclosed_call`, `unopened_call`, `no_call`, `invalid_json`,
    `no_name`, `arguments_not_object`, `malformed_call`, `duplicate_parameter` or `text_after_call`."""
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}" if self.detail else self.reason


class Malformed(Exception):  # noqa: N818 - a private signal, not an error for a user
    """A text breaks its syntax: reason and detail."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason, detail)


Read = tuple[str, tuple[ToolCall, ...]]
"""The text beside the calls, and the calls."""


Syntax = Callable[[str, Sequence[Tool] | None], Read]
"""Reads what a family of models writes, thinking split off before. Tools only settle types that it leaves open. Raises
Malformed."""
One = Callable[[str, int], tuple[list[ToolCall], int]]
"""Reads what begins at a place: calls, and where they end. Raises Malformed."""


@dataclass(frozen=True, slots=True)
class Span:
    """A decoded JSON value and its raw text."""

    value: JsonValue
    raw: str


def skip_space(text: str, at: int) -> int:
    """The first position from `at` on that holds no whitespace."""
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def read_value(text: str, at: int) -> tuple[Span, int]:
    """The JSON value that starts at `at`, and where it ends. Raises Malformed."""
    try:
        value, end = DECODER.raw_decode(text, at)
    except (ValueError, RecursionError) as error:
        raise Malformed("invalid_json", f"{error}") from None
    return Span(value, text[at:end]), end


def read_object(text: str, at: int) -> tuple[dict[str, Span], int]:
    """The members of the JSON object at `at`, each with its raw text, and where the object ends. Raises Malformed."""
    members: dict[str, Span] = {}
    at = skip_space(text, expect(text, at, "{"))
    if text.startswith("}", at):
        return members, at + 1
    while True:
        key, at = read_value(text, at)
        if not isinstance(key.value, str):
            raise Malformed("invalid_json", f"character {at}: a key is no string")
        at = skip_space(text, expect(text, skip_space(text, at), ":"))
        members[key.value], at = read_value(text, at)
        at = skip_space(text, at)
        if text.startswith("}", at):
            return members, at + 1
        at = skip_space(text, expect(text, at, ","))


def expect(text: str, at: int, token: str, reason: str = "invalid_json") -> int:
    """Where `token`, which must stand at `at`, ends. Raises Malformed."""
    if not text.startswith(token, at):
        raise Malformed(reason, f"character {at}: expected {token!r}, found {text[at : at + 20]!r}")
    return at + len(token)


def read_calls(text: str, at: int, tag: str, one: One) -> Read:
    """The text before `at`, then calls to the end, each `one` after a tag; at -1 there are none. Raises Malformed."""
    if at < 0:
        return text, ()
    said, calls = text[:at], list[ToolCall]()
    while at < len(text):
        if not text.startswith(tag, at):
            raise Malformed("text_after_call", text[at : at + 40])
        found, at = one(text, skip_space(text, at + len(tag)))
        calls += found
        at = skip_space(text, at)
    return said, tuple(calls)


def read_call(text: str, at: int, keys: tuple[str, ...] = ("arguments",)) -> tuple[ToolCall, int]:
    """The call that the JSON object at `at` is, and its end; the arguments lie under the first of `keys` that is there.

    Raises Malformed.
    """
    members, end = read_object(text, at)
    name, identity = members.get("name"), members.get("id")
    if name is None or not isinstance(name.value, str) or not name.value.strip():
        raise Malformed("no_name", "a call has no name")
    held = next((members[key] for key in keys if key in members), None)
    call = ToolCall(
        name=_storable(name.value),
        arguments=None if held is None else raw_arguments(held),
        id=_storable(identity.value) if identity is not None and isinstance(identity.value, str) else None,
    )
    return call, end


def raw_arguments(held: Span) -> str:
    """The exact text of an argument object, or of the object inside a JSON string. Raises Malformed."""
    if isinstance(held.value, dict):
        return held.raw
    text = _storable(held.value) if isinstance(held.value, str) else held.raw
    error = ToolCall(name="", arguments=text).parsed.error
    if error is not None:
        raise Malformed("arguments_not_object", error)
    return text


def _storable(text: str) -> str:
    """The text, if UTF-8 can hold it: an escape may have made half a surrogate pair. Raises Malformed."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Malformed("invalid_json", "half of a surrogate pair") from None
    return text


class _Literals(ast.NodeTransformer):
    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(_CONSTANTS[node.id]) if node.id in _CONSTANTS else node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        keys: list[ast.expr | None] = [ast.Constant(one.arg) if one.arg else None for one in node.keywords]
        return node if node.args else ast.Dict(keys, [one.value for one in node.keywords])


def python_json(source: str) -> str:
    """The JSON of a literal of Python; `true` and `null` are ones too, and `f(a=1)` is an object. Raises Malformed."""
    try:
        with catch_warnings(action="ignore"):
            value = ast.literal_eval(_Literals().visit(ast.parse(source, mode="eval")))
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError) as error:
        raise Malformed("malformed_call", f"{type(error).__name__}: {error}") from None
    return text
