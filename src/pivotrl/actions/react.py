"""ReAct: text, then `Action: NAME` with `Action Input: ..`, `NAME[..]`, `NAME(..)` or NAME and a fence.

An input that is a JSON object is the arguments; else its text is the argument `input`, a shell's fence `command`. Words
of no such form (`ACTION: go to shelf 1`) are the input of a call named `action`. What follows `Observation:` is left
aside: the harness stops the model there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Final

from pivotrl.actions.base import Malformed, Read
from pivotrl.types import Tool, ToolCall

LABEL: Final = re.compile(r"^[ \t]*(?:Action|ACTION|Act)[ \t]*:", re.M)
_END: Final = re.compile(r"^[ \t]*(?:Observation|OBSERVATION)[ \t]*:", re.M)
_INPUT: Final = re.compile(r"^[ \t]*Action Input[ \t]*:", re.M | re.I)
_BRACKETS: Final = re.compile(r"([A-Za-z_][\w.-]*)(?:\[(.*)\]|\((.*)\))", re.S)
_SHELLS: Final = ("bash", "sh", "shell", "zsh")


def read(body: str, tools: Sequence[Tool] | None) -> Read:
    """Text, then one call, then nothing. Raises Malformed."""
    label = LABEL.search(body)
    if label is None:
        return body, ()
    end = _END.search(body, label.end())
    action = body[label.end() : end.start() if end else len(body)].strip()
    if not action or LABEL.search(action):
        raise Malformed("text_after_call" if action else "no_call", "exactly one action can be taken")
    return body[: label.start()], (_call(action),)


def _call(action: str) -> ToolCall:
    given, key = _INPUT.search(action), "input"
    head, _, rest = action.partition("\n")
    fence = rest.strip()
    if given is not None:
        name, text = action[: given.start()].strip(), action[given.end() :].strip()
        if not name or "\n" in name:
            raise Malformed("no_name", action[:40])
    elif fence.startswith("```") and fence.endswith("```") and "\n" in fence:
        language, _, text = fence[3:-3].partition("\n")
        name, text, key = head.strip(), text.strip("\n"), "command" if language.strip() in _SHELLS else key
    else:
        brackets = _BRACKETS.fullmatch(action)
        name, text = (brackets[1], brackets[2] or brackets[3] or "") if brackets else ("action", action)
    is_object = ToolCall(name=name, arguments=text).parsed.value is not None
    return ToolCall(name=name, arguments=text if is_object else json.dumps({key: text}, ensure_ascii=False))
