"""Actions of the Terminus harnesses (Terminal-Bench): a JSON object in the message, keystrokes for a terminal in it.

Schema first, as the harness itself has it: all required fields, no other ones, every type right. Thinking, code fences
and prose around the object are left aside; `is_blocking`, `timeout_sec` and `duration` say how long to wait: ignored.

What it cannot decide:
1. Whether a shell or another program gets the keystrokes: both are read as shell.
2. Terminus 2 can also be told to write XML; that is not read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from jsonschema import Draft202012Validator

from pivotrl.types import DECODER

_KEY: Final = re.compile(r"\s*((?:[CMS]-\S)+|Enter|Escape|Tab|Up|Down|Left|Right|BSpace|q)\s*")
_TEXT, _FLAG, _NUMBER = ({"type": kind} for kind in ("string", "boolean", "number"))


def _object(required: Mapping[str, Any], **optional: Any) -> dict[str, Any]:
    """The schema of an object with these properties and no others."""
    properties = {**required, **optional}
    return {"type": "object", "additionalProperties": False, "properties": properties, "required": list(required)}


_COMMAND_1: Final = _object({"keystrokes": _TEXT, "is_blocking": _FLAG, "timeout_sec": _NUMBER})
_COMMAND_2: Final = _object({"keystrokes": _TEXT}, duration=_NUMBER)
_COMMANDS_1, _COMMANDS_2 = ({"type": "array", "items": one} for one in (_COMMAND_1, _COMMAND_2))
_ANSWER_1: Final = {"state_analysis": _TEXT, "explanation": _TEXT, "commands": _COMMANDS_1, "is_task_complete": _FLAG}
_ANSWER_2: Final = {"analysis": _TEXT, "plan": _TEXT, "commands": _COMMANDS_2}
SCHEMAS: Final = {
    "terminus_1": Draft202012Validator(_object(_ANSWER_1)),
    "terminus_2": Draft202012Validator(_object(_ANSWER_2, task_complete=_FLAG)),
}
DONE: Final = {"terminus_1": "is_task_complete", "terminus_2": "task_complete"}
"""The field that says that the task is done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminusAction:
    """What an action of Terminus does."""

    harness: str
    keystrokes: str
    """All of them, in order; a key such as C-c is a line of its own."""
    complete: bool

    @property
    def sent(self) -> bool:
        """Whether the last line is sent off: without a line break it only stands at the prompt."""
        return not self.keystrokes.strip() or self.keystrokes.endswith("\n")


def read_terminus(text: str) -> TerminusAction | str | None:
    """The action in a message; what is wrong with it; None where there is no object with commands at all."""
    text = text.rpartition("</think>")[2]
    start, end = text.find("{"), text.rfind("}")
    try:
        value = DECODER.decode(text[start : end + 1]) if 0 <= start < end else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or "commands" not in value:
        return None
    harness = "terminus_1" if {"is_task_complete", "state_analysis"} & value.keys() else "terminus_2"
    fault = next(SCHEMAS[harness].iter_errors(value), None)
    if fault is not None:
        return f"{fault.json_path}: {fault.message}"
    keys: list[str] = [command["keystrokes"] for command in value["commands"]]
    joined = "".join(f"\n{key[1]}\n" if (key := _KEY.fullmatch(one)) else one for one in keys)
    return TerminusAction(harness=harness, keystrokes=joined, complete=value.get(DONE[harness], False))
