"""Llama 3: the whole text is `{"name": .., "parameters": {..}}`; several are separated by `;` or line breaks.

Text may precede the calls only with `<|python_tag|>` between. Without that tag a JSON object is a call when it has a
name and parameters (or arguments), and a message when it is some other object.
"""

from __future__ import annotations

from collections.abc import Sequence

from pivotrl.actions.base import Malformed, Read, read_call, read_object, skip_space
from pivotrl.types import Tool, ToolCall

TAG = "<|python_tag|>"
KEYS = ("parameters", "arguments")


def read(body: str, tools: Sequence[Tool] | None) -> Read:
    """Text with its tag, or nothing; then calls, then nothing. Raises Malformed."""
    text, tag, rest = body.partition(TAG)
    if tag:
        return text, _calls(rest, skip_space(rest, 0))
    start = skip_space(body, 0)
    if not body.startswith("{", start) or '"name"' not in body:
        return body, ()
    members, _ = read_object(body, start)
    if "name" not in members or not any(key in members for key in KEYS):
        return body, ()
    return "", _calls(body, start)


def _calls(text: str, at: int) -> tuple[ToolCall, ...]:
    if at == len(text):
        raise Malformed("no_call", f"nothing after {TAG}")
    calls: list[ToolCall] = []
    while at < len(text):
        if calls and not text.startswith("{", at):
            raise Malformed("text_after_call", text[at : at + 40])
        call, at = read_call(text, at, KEYS)
        calls.append(call)
        at = skip_space(text, at)
        if text.startswith(";", at):
            at = skip_space(text, at + 1)
    return tuple(calls)
