"""Hermes: `<tool_call>\\n{"name": .., "arguments": {..}}\\n</tool_call>`, repeated for parallel calls (Qwen)."""

from __future__ import annotations

import ast
import json
from collections.abc import Sequence
from warnings import catch_warnings

from pivotrl.actions.base import Malformed, Read, expect, json_call, read_call, read_calls, skip_space
from pivotrl.types import Tool, ToolCall

OPEN, CLOSE = "<tool_call>", "</tool_call>"


class Hermes:
    name = "hermes"

    def read(self, body: str, tools: Sequence[Tool] | None) -> Read:
        """Text, then calls, then nothing. Raises Malformed."""
        del tools
        start = body.find(OPEN)
        if start < 0 and CLOSE in body:
            raise Malformed("unopened_call", f"{CLOSE} without {OPEN}")
        return read_calls(body, start, OPEN, self._call)

    def write(self, text: str, calls: tuple[ToolCall, ...]) -> str:
        """As the models' own templates write it. Raises InputError."""
        blocks = (f"{OPEN}\n{json_call(call, self.name)}\n{CLOSE}" for call in calls)
        return "\n".join([text, *blocks] if text else blocks)

    def _call(self, body: str, at: int) -> tuple[list[ToolCall], int]:
        return _call(body, at)


class HermesPython(Hermes):
    name = "hermes_python"

    def _call(self, body: str, at: int) -> tuple[list[ToolCall], int]:
        try:
            return _call(body, at)
        except Malformed:
            end = max(at, body.find(CLOSE, at))
            try:
                with catch_warnings(action="ignore"):
                    text = json.dumps(ast.literal_eval(body[at:end].strip()), ensure_ascii=False, allow_nan=False)
            except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
                text = ""
            if not text.startswith("{"):
                raise
            return [read_call(text, 0)[0]], end + len(CLOSE)


def _call(body: str, at: int) -> tuple[list[ToolCall], int]:
    try:
        call, end = read_call(body, at)
    except Malformed:
        if body.find(CLOSE, at) < 0:
            raise Malformed("unclosed_call", "the text ends inside a call") from None
        raise
    return [call], expect(body, skip_space(body, end), CLOSE, "unclosed_call")
