"""Python-like calls: the whole text is `[Name(key="value", other=[1]), Other Name()]` (ToolACE, Llama 4).

Names may hold anything but brackets; arguments are literals of Python or JSON, all of them by keyword. A comma
may stand after the last of either, as in Python.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from pivotrl.actions.base import Malformed, Read, expect, python_json, skip_space
from pivotrl.types import Tool, ToolCall

_TOKEN: Final = re.compile(r"""[()\[\]{}]|"(?:\\.|[^"\\])*(?:"|\Z)|'(?:\\.|[^'\\])*(?:'|\Z)""", re.S)


def read(body: str, tools: Sequence[Tool] | None) -> Read:
    """Calls and nothing else, or text. Raises Malformed."""
    text, calls, at = body.strip(), list[ToolCall](), 1
    if text.endswith("]") and (last := text[:-1].rstrip()).endswith(","):
        text = last[:-1].rstrip() + "]"
    if not (text.startswith("[") and text.endswith(")]")):
        return body, ()
    while at < len(text) - 1:
        at = expect(text, at, ",", "malformed_call") if calls else at
        start = text.find("(", at)
        name, end = text[at:start].strip(), _closing(text, start)
        if not name:
            raise Malformed("no_name", text[at : at + 40])
        calls.append(ToolCall(name=name, arguments=python_json("f" + text[start:end])))
        at = skip_space(text, end)
    return "", tuple(calls)


def _closing(text: str, at: int) -> int:
    """Where the bracket at `at` is closed. Raises Malformed."""
    depth = 0
    for token in _TOKEN.finditer(text, max(at, 0)):
        depth += (token[0] in "([{") - (token[0] in ")]}")
        if not depth:
            return token.end()
    raise Malformed("unclosed_call", "the text ends inside a call")
