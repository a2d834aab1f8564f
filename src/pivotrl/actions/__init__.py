"""Reads the tool-call syntaxes inside model text. One small file per syntax, each a function (`Syntax`).

Thinking is the same for all: a text that begins with `<think>` has its reasoning up to `</think>`; where the chat
template opened the thinking, the reasoning is all that comes before `</think>`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import Final

from pivotrl.actions import hermes, llama_json, mistral, pythonic, react, xml
from pivotrl.actions.base import Malformed, ParseFailure, Syntax
from pivotrl.errors import ConfigError
from pivotrl.types import Action, Tool

__all__ = ["SYNTAXES", "ParseFailure", "detect", "parse"]

SYNTAXES: Final[Mapping[str, Syntax]] = MappingProxyType(
    {
        "hermes": hermes.read,
        "xml": xml.read,
        "llama_json": llama_json.read,
        "mistral": mistral.read,
        "hermes_python": partial(hermes.read, one=hermes.python_call),
        "react": react.read,
        "pythonic": pythonic.read,
    }
)
THINK, END_THINK = "<think>", "</think>"


def parse(text: str, syntax: str, tools: Sequence[Tool] | None = None) -> Action | ParseFailure:
    """The action that a model's text makes (stop token excluded), or why it makes none. No text raises.

    `tools` settles types where the syntax leaves them open (`xml`). Raises ConfigError for an unknown syntax.
    """
    if syntax not in SYNTAXES:
        raise ConfigError(f"tool-call syntax {syntax!r} is unknown; use one of {', '.join(SYNTAXES)}")
    try:
        return _action(text, SYNTAXES[syntax], tools)
    except Malformed as malformed:
        reason, detail = malformed.args
        return ParseFailure(reason=reason, detail=detail)


def detect(chat_template: str) -> str:
    """The syntax in which a chat template writes calls; hermes when it shows none."""
    template = chat_template.replace('\\"', '"')
    marks = {mistral.TAG: "mistral", xml.FUNCTION: "xml", hermes.OPEN: "hermes", llama_json.TAG: "llama_json"}
    bare = "llama_json" if '{"name":' in template and '"parameters":' in template else "hermes"
    return next((syntax for mark, syntax in marks.items() if mark in template), bare)


def _action(text: str, read: Syntax, tools: Sequence[Tool] | None) -> Action:
    """Raises Malformed."""
    opened = text.lstrip().startswith(THINK)
    before, close, after = text.partition(END_THINK)
    if opened and not close:
        raise Malformed("unclosed_thinking", "the text ends inside the thinking")
    if close and not opened and read is not react.read:  # whose inputs are plain text
        with suppress(Malformed):  # the tag may lie inside the arguments of a call: then there is no thinking
            said, calls = read(text, tools)
            if calls and END_THINK not in said:
                return Action(text=said.strip() or None, calls=calls)
    reasoning, body = (before.lstrip().removeprefix(THINK).strip(), after) if close else ("", text)
    said, calls = read(body, tools)
    if THINK in said or END_THINK in said:
        raise Malformed("stray_thinking" if END_THINK in said else "unclosed_thinking", "thinking after the thinking")
    action = Action(text=said.strip() or None, reasoning=reasoning or None, calls=calls)
    if action.text is None and not calls:
        raise Malformed("empty", "neither text nor calls")
    return action
