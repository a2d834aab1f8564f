"""ReAct: text, then `Action: NAME` with `Action Input: ..`, `NAME[..]`, `NAME(..)` or NAME and a fence; one call.

An input that is a JSON object is the arguments; else its text is the argument `input`, a shell's fence `command`. Words
of no such form (`ACTION: go to shelf 1`) are the input of a call named `action`. What follows `Observation:` is left
aside: the harness stops the model there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Final

from pivotrl.actions.base import Malformed, Read, checked, object_text
from pivotrl.errors import InputError
from pivotrl.types import Tool, ToolCall

WORDS: Final = "action"
"""The name of a call that has none."""
LABEL: Final = re.compile(r"^[ \t]*(?:Action|ACTION|Act)[ \t]*:", re.M)
_END: Final = re.compile(r"^[ \t]*(?:Observation|OBSERVATION)[ \t]*:", re.M)
_INPUT: Final = re.compile(r"^[ \t]*Action Input[ \t]*:", re.M | re.I)
_BRACKETS: Final = re.compile(r"([A-Za-z_][\w.-]*)(?:\[(.*)\]|\((.*)\))", re.S)
_SHELLS: Final = ("bash", "sh", "shell", "zsh")


class React:
    name = "react"

    def read(self, body: str, tools: Sequence[Tool] | None) -> Read:
        """Text, then one call, then nothing. Raises Malformed."""
        del tools
        label = LABEL.search(body)
        if label is None:
            return body, ()
        end = _END.search(body, label.end())
        action = body[label.end() : end.start() if end else len(body)].strip()
        if not action or LABEL.search(action):
            raise Malformed("text_after_call" if action else "no_call", "exactly one action can be taken")
        return body[: label.start()], (_call(action),)

    def write(self, text: str, calls: tuple[ToolCall, ...]) -> str:
        """With `Action Input`. Raises InputError."""
        if not calls:
            return text
        if len(calls) > 1:
            raise InputError(f"{len(calls)} calls: {self.name} can only write one")
        lines = [text] if text else []
        lines += [f"Action: {calls[0].name}", f"Action Input: {object_text(calls[0], self.name) or '{}'}"]
        return checked(self, "\n".join(lines), calls)


def _call(action: str) -> ToolCall:
    given = _INPUT.search(action)
    if given is not None:
        name, text = action[: given.start()].strip(), action[given.end() :].strip()
        if not name or "\n" in name:
            raise Malformed("no_name", action[:40])
        return ToolCall(name=name, arguments=_arguments(text))
    head, _, rest = action.partition("\n")
    fence = rest.strip()
    if fence.startswith("```") and fence.endswith("```") and "\n" in fence and head.strip():
        language, _, text = fence[3:-3].partition("\n")
        key = "command" if language.strip() in _SHELLS else "input"
        return ToolCall(name=head.strip(), arguments=_arguments(text.strip("\n"), key))
    brackets = _BRACKETS.fullmatch(action)
    name, text = (brackets[1], brackets[2] or brackets[3] or "") if brackets else (WORDS, action)
    return ToolCall(name=name, arguments=_arguments(text))


def _arguments(text: str, key: str = "input") -> str:
    is_object = ToolCall(name="", arguments=text).parsed.value is not None
    return text if is_object else json.dumps({key: text}, ensure_ascii=False)
