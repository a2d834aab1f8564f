"""Python-like calls: the whole text is `[Name(key="value", other=[1]), Other Name()]` (ToolACE, BFCL, Llama 4).

Names may hold anything but brackets; arguments are literals of Python or JSON, all of them by keyword.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Sequence
from typing import Final
from warnings import catch_warnings

from pivotrl.actions.base import Malformed, Read, checked, expect, object_text, skip_space
from pivotrl.errors import InputError
from pivotrl.types import Tool, ToolCall

_JSON: Final = {"true": True, "false": False, "null": None}
_ERRORS: Final = (ValueError, TypeError, SyntaxError, RecursionError, MemoryError)
"""What `ast` and `json` raise for texts that are no literals of JSON values."""


class Pythonic:
    name = "pythonic"

    def read(self, body: str, tools: Sequence[Tool] | None) -> Read:
        """Calls and nothing else, or text. Raises Malformed."""
        del tools
        text, calls, at = body.strip(), list[ToolCall](), 1
        if not (text.startswith("[") and text.endswith(")]")):
            return body, ()
        while True:
            start = text.find("(", at)
            end = _closing(text, start)
            name = text[at:start].strip()
            if not name:
                raise Malformed("no_name", text[at : at + 40])
            calls.append(ToolCall(name=name, arguments=_arguments(text[start:end])))
            at = skip_space(text, end)
            if at == len(text) - 1:
                return "", tuple(calls)
            at = expect(text, at, ",", "malformed_call")

    def write(self, text: str, calls: tuple[ToolCall, ...]) -> str:
        """Calls or text. Raises InputError for both, and for keys that are no names of Python."""
        if text and calls:
            raise InputError(f"{self.name} cannot write text beside calls")
        return checked(self, f"[{', '.join(map(self._written, calls))}]", calls) if calls else text

    def _written(self, call: ToolCall) -> str:
        members = json.loads(object_text(call, self.name) or "{}")
        return f"{call.name}({', '.join(f'{key}={value!r}' for key, value in members.items())})"


def _closing(text: str, at: int) -> int:
    """Where the bracket at `at` is closed. Raises Malformed."""
    quote, depth = "", 0
    while 0 <= at < len(text):
        char = text[at]
        if quote:
            at += char == "\\"
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
            if not depth:
                return at + 1
        at += 1
    raise Malformed("unclosed_call", "the text ends inside a call")


class _Constants(ast.NodeTransformer):
    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(_JSON[node.id]) if node.id in _JSON else node


def _arguments(brackets: str) -> str:
    """The JSON text of the arguments in `(key=value, ..)`. Raises Malformed."""
    try:
        with catch_warnings(action="ignore"):
            call = _Constants().visit(ast.parse(f"f{brackets}", mode="eval")).body
        if call.args or any(keyword.arg is None for keyword in call.keywords):
            raise Malformed("malformed_call", "an argument without its name")
        value = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()
    except _ERRORS as error:
        raise Malformed("malformed_call", f"{type(error).__name__}: {error}") from None
    return text
