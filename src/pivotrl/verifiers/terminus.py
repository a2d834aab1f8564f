"""Actions of the Terminus harnesses (Terminal-Bench): a JSON object in the message, keystrokes for a terminal in it.

Schema first, as the harness itself has it: all required fields, no other ones, every type right. Thinking, code fences
and prose around the object are left aside; `is_blocking`, `timeout_sec` and `duration` say how long to wait: ignored.

What it cannot decide:
1. Whether a shell or another program gets the keystrokes: both are read as shell.
2. Terminus 2 can also be told to write XML; that is not read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from pydantic import JsonValue

from pivotrl.types import DECODER

_KEY: Final = re.compile(r"\s*((?:[CMS]-\S)+|Enter|Escape|Tab|Up|Down|Left|Right|BSpace|q)\s*")
_Fields = dict[str, tuple[type, ...]]


@dataclass(frozen=True, slots=True)
class _Schema:
    required: _Fields
    optional: _Fields
    of_command: _Fields
    may_have: _Fields
    complete: str
    """The field that says that the task is done."""


_NUMBER: Final = (int, float)
_SCHEMAS: Final = (
    _Schema(
        required={"analysis": (str,), "plan": (str,), "commands": (list,)},
        optional={"task_complete": (bool,)},
        of_command={"keystrokes": (str,)},
        may_have={"duration": _NUMBER},
        complete="task_complete",
    ),
    _Schema(
        required={"state_analysis": (str,), "explanation": (str,), "commands": (list,), "is_task_complete": (bool,)},
        optional={},
        of_command={"keystrokes": (str,), "is_blocking": (bool,), "timeout_sec": _NUMBER},
        may_have={},
        complete="is_task_complete",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminusAction:
    """What an action of Terminus does."""

    harness: int
    """1 or 2."""
    keystrokes: str
    """All of them, in order; a key such as C-c is a line of its own."""
    complete: bool

    @property
    def sent(self) -> bool:
        """Whether the last line is sent off: without a line break it only stands at the prompt."""
        return not self.keystrokes.strip() or self.keystrokes.endswith("\n")


def read_terminus(text: str) -> TerminusAction | str | None:
    """The action in a message; what is wrong with it; None where there is no object with commands at all."""
    value = _object(text)
    if value is None or "commands" not in value:
        return None
    schema = _SCHEMAS["is_task_complete" in value or "state_analysis" in value]
    fault = _fault(value, schema.required, schema.optional, "")
    commands = value["commands"]
    for at, command in enumerate(commands if isinstance(commands, list) else []):
        fault = fault or _fault(command, schema.of_command, schema.may_have, f"commands[{at}]")
    if fault or not isinstance(commands, list):
        return fault or "commands: not a list"
    keys = [str(command["keystrokes"]) for command in commands if isinstance(command, dict)]
    joined = "".join(f"\n{key[1]}\n" if (key := _KEY.fullmatch(one)) else one for one in keys)
    return TerminusAction(
        harness=1 + (schema is _SCHEMAS[0]), keystrokes=joined, complete=bool(value.get(schema.complete, False))
    )


def _object(text: str) -> dict[str, JsonValue] | None:
    text = text.rpartition("</think>")[2]
    start, end = text.find("{"), text.rfind("}")
    try:
        value = DECODER.decode(text[start : end + 1]) if 0 <= start < end else None
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _fault(value: JsonValue, required: _Fields, optional: _Fields, at: str) -> str:
    """The first violation; empty where there is none."""
    if not isinstance(value, dict):
        return f"{at}: not an object"
    for name in (*required, *value):
        place = ascii(f"{at}.{name}".lstrip("."))[1:-1]
        kinds = required.get(name) or optional.get(name)
        if kinds is None:
            return f"{place}: no such field"
        if name not in value:
            return f"{place}: missing"
        if type(value[name]) not in kinds:
            return f"{place}: {type(value[name]).__name__} instead of {kinds[0].__name__}"
    return ""
