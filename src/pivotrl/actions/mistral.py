"""Mistral: `[TOOL_CALLS][{"name": .., "arguments": {..}}, ..]`, and the newer `[TOOL_CALLS]name[ARGS]{..}`, repeated.

`[CALL_ID]` is read, too.
"""

from __future__ import annotations

from collections.abc import Sequence

from pivotrl.actions.base import Malformed, Read, expect, raw_arguments, read_call, read_calls, read_value, skip_space
from pivotrl.types import Tool, ToolCall

TAG, ARGS, CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"


def read(body: str, tools: Sequence[Tool] | None) -> Read:
    """Text, then calls, then nothing. Raises Malformed."""
    return read_calls(body, body.find(TAG), TAG, _calls)


def _calls(body: str, at: int) -> tuple[list[ToolCall], int]:
    if not body.startswith("[", at):
        return _named(body, at)
    calls: list[ToolCall] = []
    at = skip_space(body, at + 1)
    if body.startswith("]", at):
        raise Malformed("no_call", "the list of calls is empty")
    while at < len(body):
        call, at = read_call(body, at)
        calls.append(call)
        at = skip_space(body, at)
        if body.startswith("]", at):
            return calls, at + 1
        at = skip_space(body, expect(body, at, ",")) if at < len(body) else at
    raise Malformed("unclosed_call", "the list of calls does not end")


def _named(body: str, at: int) -> tuple[list[ToolCall], int]:
    start = body.find("{", at)
    if start < 0:
        raise Malformed("unclosed_call", "a call has no arguments")
    name, tag, identity = body[at:start].strip().removesuffix(ARGS).partition(CALL_ID)
    name = name.strip()
    if not name or any(mark.isspace() or mark in "[]" for mark in name):
        raise Malformed("no_name", f"{name[:40]!r} is no name")
    held, end = read_value(body, start)
    return [ToolCall(name=name, arguments=raw_arguments(held), id=(identity.strip() or None) if tag else None)], end
