"""The shell as a domain with a base model."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from pivotrl.lab.domain import Domain, Situation, copied_pattern
from pivotrl.lab.shell import terminal
from pivotrl.lab.shell.clerk import Clerk
from pivotrl.lab.shell.environment import ShellEnvironment
from pivotrl.lab.shell.expert import STYLES, Expert
from pivotrl.lab.shell.rules import decide
from pivotrl.lab.shell.simulation import SimulatedTerminal
from pivotrl.lab.shell.tasks import ID_PATTERN
from pivotrl.lab.shell.world import FOLDERS, LARGE
from pivotrl.lab.turns import play
from pivotrl.types import Message

_FRAMES: Final = (
    '{"analysis": "',
    '", "plan": "',
    '", "commands": [{"keystrokes": "',
    '\\n", "duration": 0.1}, {"keystrokes": "',
    '\\n", "duration": 0.1}], "task_complete": false}',
    '", "commands": [], "task_complete": true}',
    "'{s += $3} END {print s}' ",
    "'{t = t + $3} END {print t}' ",
    "New Terminal Output:\n\n",
    "\n\nCurrent terminal state:\n",
    terminal.prompt("/work"),
    *terminal.SURE.split("{screen}"),
)
"""What Terminus and utilities wrap their words in; one token each."""
_PLACES: Final = "|".join(sorted(FOLDERS, reverse=True))
_PIECES: Final = (
    rf"{'|'.join(map(re.escape, _FRAMES))}|{copied_pattern(ID_PATTERN)}|#[0-9]| ?(?:{_PLACES})/|\.[a-z]+\b"
    rf"| ?(?!{copied_pattern(ID_PATTERN)})[A-Za-z_]+\b(?: (?={copied_pattern(ID_PATTERN)}))?"
    r"|[^A-Za-z0-9_<\n\"\\#/.]+|\n|[<\"\\#/.]"
)


def _clerk(index: int) -> tuple[tuple[Message, ...], list[dict[str, Any]] | None]:
    env = ShellEnvironment(SimulatedTerminal())
    play(env, f"shell-base-{index}", Clerk(env, index).act)
    return env.state.messages, None


def _situations(task: str, seed: int) -> Iterator[Situation]:
    """All styles go through the requests from the first to the last, since few clerks do otherwise."""
    env, rng = ShellEnvironment(SimulatedTerminal()), random.Random(f"{seed}/{task}")
    env.reset(task)
    styles = [replace(style, backward=False) for style in STYLES.values()]
    while not env.done:
        acceptable = tuple(Expert(env, style).act() for style in styles)
        at, steps = Expert(env, styles[0]).next_steps()
        name = "end"
        if steps:
            request = env.task.requests[at]
            right = decide(env.task, request)
            case = "locked" if right.skip else "large" if right.report == LARGE else ""
            name = " ".join(filter(None, (request.kind, steps[0].topic, case)))
        yield Situation(name=name, state=env.state, acceptable=acceptable)
        env.step(rng.choice(acceptable))


SHELL: Final = Domain(
    name="shell",
    make=ShellEnvironment,
    expert=Expert,
    styles=tuple(STYLES.values()),
    clerk=_clerk,
    situations=_situations,
    pieces=_PIECES,
    ids=("C", "O"),
    id_pattern=ID_PATTERN,
    calls_in_text=True,
    base="pivotrl.lab.shell",
)
