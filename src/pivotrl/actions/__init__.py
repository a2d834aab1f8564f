"""Reads and writes the tool-call syntaxes inside model text. One small file per syntax, behind `Syntax`.

Thinking is the same for all: a text that begins with `<think>` has its reasoning up to `</think>`; where the chat
template opened the thinking, the reasoning is all that comes before `</think>`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from pivotrl.actions.base import Malformed, ParseFailure, Syntax
from pivotrl.actions.hermes import Hermes
from pivotrl.actions.llama_json import LlamaJson
from pivotrl.actions.mistral import Mistral
from pivotrl.actions.xml import Xml
from pivotrl.errors import ConfigError
from pivotrl.types import Action, Tool

__all__ = ["SYNTAXES", "ParseFailure", "Syntax", "detect", "parse", "write"]

_ALL: Final[tuple[Syntax, ...]] = (Hermes(), Xml(), LlamaJson(), Mistral())
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
        return malformed.failure


def write(action: Action, syntax: str) -> str:
    """The text that `parse` reads as this action; thinking is opened and closed.

    Raises ConfigError for an unknown syntax, InputError for a call that the syntax cannot hold.
    """
    body = _syntax(syntax).write(action.text or "", action.calls)
    return body if action.reasoning is None else f"{THINK}\n{action.reasoning}\n{END_THINK}\n\n{body}"


def detect(chat_template: str) -> str:
    """The syntax in which a chat template writes calls; hermes when it shows none."""
    template = chat_template.replace('\\"', '"')
    if "[TOOL_CALLS]" in template:
        return Mistral.name
    if "<function=" in template:
        return Xml.name
    if "<tool_call>" in template:
        return Hermes.name
    if "<|python_tag|>" in template or ('{"name":' in template and '"parameters":' in template):
        return LlamaJson.name
    return Hermes.name


def _syntax(name: str) -> Syntax:
    if name not in SYNTAXES:
        raise ConfigError(f"tool-call syntax {name!r} is unknown; use one of {', '.join(SYNTAXES)}")
    return SYNTAXES[name]


def _action(text: str, syntax: Syntax, tools: Sequence[Tool] | None) -> Action:
    opened = text.lstrip().startswith(THINK)
    if not opened and END_THINK in text:
        whole = _whole(text, syntax, tools)
        if whole is not None:
            return whole
    reasoning, body = _split_thinking(text, opened)
    said, calls = syntax.read(body, tools)
    if THINK in said or END_THINK in said:
        raise Malformed("stray_thinking" if END_THINK in said else "unclosed_thinking", "thinking after the thinking")
    action = Action(text=said.strip() or None, reasoning=reasoning.strip() or None, calls=calls)
    if action.text is None and not calls:
        raise Malformed("empty", "neither text nor calls")
    return action


def _whole(text: str, syntax: Syntax, tools: Sequence[Tool] | None) -> Action | None:
    """The action without reasoning, if it parses with `</think>` inside the arguments of a call; else None."""
    try:
        said, calls = syntax.read(text, tools)
    except Malformed:
        return None
    if not calls or END_THINK in said:
        return None
    return Action(text=said.strip() or None, calls=calls)


def _split_thinking(text: str, opened: bool) -> tuple[str, str]:
    """(reasoning, the rest). Raises Malformed."""
    before, close, after = text.partition(END_THINK)
    if close:
        return (before.lstrip().removeprefix(THINK) if opened else before), after
    if opened:
        raise Malformed("unclosed_thinking", "the text ends inside the thinking")
    return "", text
