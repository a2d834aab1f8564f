"""Hermes: `<tool_call>\\n{"name": .., "arguments": {..}}\\n</tool_call>`, repeated for parallel calls (Qwen).

`hermes_python` also reads calls that are literals of Python, as part of Hermes' own training data has them.
"""

from __future__ import annotations

from collections.abc import Sequence

from pivotrl.actions.base import Malformed, One, Read, expect, python_json, read_call, read_calls, skip_space
from pivotrl.types import Tool, ToolCall

OPEN, CLOSE = "<tool_call>", "</tool_call>"


def _call(body: str, at: int) -> tuple[list[ToolCall], int]:
    try:
        call, end = read_call(body, at)
    except Malformed:
        if body.find(CLOSE, at) < 0:
            raise Malformed("unclosed_call", "the text ends inside a call") from None
        raise
    return [call], expect(body, skip_space(body, end), CLOSE, "unclosed_call")


def python_call(body: str, at: int) -> tuple[list[ToolCall], int]:
    end = body.find(CLOSE, at)
    if end < 0 or not body.startswith("{'", at):
        return _call(body, at)
    return [read_call(python_json(body[at:end].strip()), 0)[0]], end + len(CLOSE)


def read(body: str, tools: Sequence[Tool] | None, one: One = _call) -> Read:
    """Text, then calls, then nothing. Raises Malformed."""
    start = body.find(OPEN)
    if start < 0 and CLOSE in body:
        raise Malformed("unopened_call", f"{CLOSE} without {OPEN}")
    return read_calls(body, start, OPEN, one)
