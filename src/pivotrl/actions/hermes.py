"""Hermes: `<tool_call>\\n{"name": .., "arguments": {..}}\\n</tool_call>`, repeated for parallel calls (Qwen)."""

from __future__ import annotations

from collections.abc import Sequence

from pivotrl.actions.base import Malformed, json_call, read_call, skip_space
from pivotrl.types import Tool, ToolCall

OPEN, CLOSE = "<tool_call>", "</tool_call>"


class Hermes:
    name = "hermes"

    def read(self, body: str, tools: Sequence[Tool] | None) -> tuple[str, tuple[ToolCall, ...]]:
        """Text, then calls, then nothing. Raises Malformed."""
        del tools
        start = body.find(OPEN)
        if start < 0:
            if CLOSE in body:
                raise Malformed("unopened_call", f"{CLOSE} without {OPEN}")
            return body, ()
        calls: list[ToolCall] = []
        at = start
        while at < len(body):
            if not body.startswith(OPEN, at):
                raise Malformed("text_after_call", body[at : at + 40])
            call, at = self._block(body, skip_space(body, at + len(OPEN)))
            calls.append(call)
            at = skip_space(body, at)
        return body[:start], tuple(calls)

    def _block(self, body: str, at: int) -> tuple[ToolCall, int]:
        try:
            call, end = read_call(body, at)
        except Malformed:
            if body.find(CLOSE, at) < 0:
                raise Malformed("unclosed_call", "the text ends inside a call") from None
            raise
        end = skip_space(body, end)
        if not body.startswith(CLOSE, end):
            raise Malformed("unclosed_call", f"expected {CLOSE}, found {body[end : end + 20]!r}")
        return call, end + len(CLOSE)

    def write(self, text: str, calls: tuple[ToolCall, ...]) -> str:
        """As the models' own templates write it. Raises InputError."""
        blocks = (f"{OPEN}\n{json_call(call, self.name)}\n{CLOSE}" for call in calls)
        return "\n".join([text, *blocks] if text else blocks)
