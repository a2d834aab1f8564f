"""Reads and writes the tool-call syntaxes inside model text. One small file per syntax, behind `Syntax`.

Thinking is the same for all: a text that begins with `<think>` has its reasoning up to `</think>`; where the chat
template opened the thinking, the reasoning is all that comes before `</think>`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Final

from pivotrl.actions.base import Malformed, ParseFailure, Syntax
from pivotrl.actions.hermes import Hermes, HermesPython
from pivotrl.actions.llama_json import LlamaJson
from pivotrl.actions.mistral import Mistral
from pivotrl.actions.pythonic import Pythonic
from pivotrl.actions.react import React
from pivotrl.actions.xml import Xml
from pivotrl.errors import ConfigError
from pivotrl.types import Action, Tool

__all__ = ["SYNTAXES", "ParseFailure", "Syntax", "detect", "parse", "write"]

_ALL: Final[tuple[Syntax, ...]] = (Hermes(), Xml(), LlamaJson(), Mistral(), HermesPython(), React(), Pythonic())
SYNTAXES: Final[Mapping[str, Syntax]] = MappingProxyType({syntax.name: syntax for syntax in _ALL})
THINK, END_THINK = "<think>", "</think>"


def parse(text: str, syntax: str, tools: Sequence[Tool] | None = None) -> Action | ParseFailure:
    """The action that a model's text makes (stop token excluded), or why it makes none. No text raises.

    `tools` settles types where the syntax leaves them open (`xml`). Raises ConfigError for an unknown syntax.
    """
    reader = _syntax(syntax)
    try:
        return _action(text, reader, tools)
    except Malformed as malformed:
        reason, detail = malformed.args
        return ParseFailure(reason=reason, detail=detail)


def write(action: Action, syntax: str) -> str:
    """The text that `parse` reads as this action; thinking is opened and closed.

    Raises ConfigError for an unknown syntax, InputError for a call that the syntax cannot hold.
    """
    body = _syntax(syntax).write(action.text or "", action.calls)
    return body if action.reasoning is None else f"{THINK}\n{action.reasoning}\n{END_THINK}\n\n{body}"


def detect(chat_template: str) -> str:
    """The syntax in which a chat template writes calls; hermes when it shows none."""
    template = chat_template.replace('\\"', '"')
    marks = (("[TOOL_CALLS]", Mistral), ("<function=", Xml), ("<tool_call>", Hermes), ("<|python_tag|>", LlamaJson))
    for mark, syntax in marks:
        if mark in template:
            return syntax.name
    return LlamaJson.name if '{"name":' in template and '"parameters":' in template else Hermes.name


def _syntax(name: str) -> Syntax:
    if name not in SYNTAXES:
        raise ConfigError(f"tool-call syntax {name!r} is unknown; use one of {', '.join(SYNTAXES)}")
    return SYNTAXES[name]


def _action(text: str, syntax: Syntax, tools: Sequence[Tool] | None) -> Action:
    """Raises Malformed."""
    opened = text.lstrip().startswith(THINK)
    before, close, after = text.partition(END_THINK)
    if opened and not close:
        raise Malformed("unclosed_thinking", "the text ends inside the thinking")
    if close and not opened:
        with suppress(Malformed):  # the tag may lie inside the arguments of a call: then there is no thinking
            said, calls = syntax.read(text, tools)
            if calls and END_THINK not in said:
                return Action(text=said.strip() or None, calls=calls)
    reasoning, body = (before.lstrip().removeprefix(THINK).strip(), after) if close else ("", text)
    said, calls = syntax.read(body, tools)
    if THINK in said or END_THINK in said:
        raise Malformed("stray_thinking" if END_THINK in said else "unclosed_thinking", "thinking after the thinking")
    action = Action(text=said.strip() or None, reasoning=reasoning or None, calls=calls)
    if action.text is None and not calls:
        raise Malformed("empty", "neither text nor calls")
    return action
