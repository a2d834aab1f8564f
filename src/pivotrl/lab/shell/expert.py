"""The scripted expert: right in every situation, in several styles. It acts on the files and on what was shown."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pivotrl.lab.shell.rules import EDITS, LOCKABLE, Decision, changes, decide, measured
from pivotrl.lab.shell.terminal import HOST
from pivotrl.lab.shell.world import SKIPPED, WORKDIR, Request, Task
from pivotrl.types import Action

if TYPE_CHECKING:
    from pivotrl.lab.shell.environment import ShellEnvironment


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """How an expert does what is right; none of it matters to success."""

    wordy: bool = False
    joined: bool = False
    """Several commands in a turn, where none needs to see what another shows."""
    other: bool = False
    """Other utilities for the same."""
    backward: bool = False
    """The last request first."""
    checks: bool = False
    """A look at the folders before the end."""


STYLES: Final[Mapping[str, Style]] = {
    "plain": Style(),
    "joined": Style(joined=True),
    "other": Style(other=True, wordy=True),
    "backward": Style(backward=True, wordy=True),
    "thorough": Style(joined=True, other=True, checks=True),
}
_TEXTS: Final[Mapping[str, tuple[str, str]]] = {
    "look": ("{at} is next.|Look at it.", "{at} is next, it may be locked.|Read it first."),
    "find": ("{at} is next.|Find the file.", "{at} is next, the folder is not known.|Find it first."),
    "measure": ("{at} is next.|Get the number.", "{at} is next, the number is not known.|Get it first."),
    "backup": ("{at} is not locked.|Keep a copy.", "{at} is not locked, it will change.|Make a copy first."),
    "change": ("{at} has its copy.|Change it.", "{at} has its copy, so it can change.|Change the file."),
    "move": ("{at} is not locked.|Move it.", "{at} is not locked, it can go.|Move the file."),
    "skip": ("{at} is locked.|Write it down.", "{at} is locked and stays.|Add it to the list."),
    "note": ("{at} has its number.|Write it down.", "{at} has its number.|Add the number to the list."),
    "number": ("{at} is next.|Count and write it down.", "{at} is next.|Count and add the number to the list."),
    "extract": ("{at} is next.|Add the lines.", "{at} is next, nothing gets lost.|Add the lines to it."),
    "script": ("{at} is next.|Set the mode.", "{at} is next, it needs a mode.|Give it the mode of a script."),
    "return": ("This is another folder.|Go back.", "This is not the folder of the job.|Go back."),
    "check": ("All is done.|Look again.", "All is done, I think.|Look again."),
    "finish": ("All is done.|Finish.", "All that was asked is done.|Finish the job."),
    "sure": ("All is done.|Yes.", "All that was asked is done.|Yes, finish the job."),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A command that a request still needs."""

    topic: str
    command: str
    done: bool
    waits: bool = True
    """Whether what was shown before has to be read first."""


@dataclass(frozen=True, slots=True)
class Expert:
    """Gives the right action of one style at any point of an episode that can still be saved, and a fair one else."""

    env: ShellEnvironment
    style: Style
    judge: Callable[[Task, Request], Decision] = decide
    """How a request is taken to be dealt with."""

    def act(self) -> Action:
        """The next assistant turn."""
        at, steps = self.next_steps()
        take = 1
        while self.style.joined and take < len(steps) and not steps[take].waits:
            take += 1
        if steps:
            return self.say(steps[0].topic, at, *(step.command for step in steps[:take]))
        return self.say("sure" if self.env.session.asked else "finish", complete=True)

    def next_steps(self) -> tuple[int, list[Step]]:
        """Index of the request that is being dealt with, and what it still needs; nothing when all is done."""
        if self.env.session.place != WORKDIR:
            return 0, [Step(topic="return", command=f"cd {WORKDIR}", done=False)]
        typed, asked = self._typed(), list(enumerate(self.env.task.requests))
        left = []
        for at, request in reversed(asked) if self.style.backward else asked:
            steps = self._left(request, typed)
            if steps and any(request.path in line or f"-name {request.name}" in line for line in typed):
                return at, steps  # one that was begun
            left += [(at, steps)] if steps else []
        if not left and self.style.checks and not self.env.session.asked and "ls trash" not in typed:
            return 0, [Step(topic="check", command="ls trash", done=False)]
        return left[0] if left else (0, [])

    def _typed(self) -> list[str]:
        lines = (line.partition("$ ") for line in self.env.screens.splitlines() if line.startswith(HOST))
        return [command for _, _, command in lines if command]

    def _left(self, request: Request, typed: list[str]) -> list[Step]:
        task = self.env.task
        decision = self.judge(task, request)
        if all(change.holds(self.env.tree) for change in changes(task, request, decision)):
            return []
        steps = [step for step in self._steps(request, decision, typed) if not step.done and step.command not in typed]
        return steps if any(step.topic not in ("look", "find", "measure") for step in steps) else []

    def _steps(self, request: Request, decision: Decision, typed: list[str]) -> Iterator[Step]:
        """All that a request needs, in order."""
        other, path = self.style.other, request.path
        seen = any(path in line for line in typed)
        if request.kind == "archive":
            where = "logs" if other else "."
            yield Step(topic="find", command=f"find {where} -name {request.name}", done=path in self.env.screens)
        if request.kind in LOCKABLE and decision.look:
            yield Step(topic="look", command=f"head -n 9 {path}" if other else f"cat {path}", done=seen)
        if decision.skip:
            yield Step(topic="skip", command=f"echo {request.id} >> {SKIPPED}", done=False)
        elif request.kind in EDITS:
            yield from self._edit(request, decision)
        elif request.kind in ("count", "total"):
            yield from self._number(request, decision, seen)
        elif request.kind == "extract":
            lines = f"sed -n '/{request.key}/p' {path}" if other else f"grep {request.key} {path}"
            arrow = ">>" if decision.append else ">"
            yield Step(topic="extract", command=f"{lines} {arrow} {request.value}", done=False)
        elif request.kind == "script":
            yield Step(topic="script", command=f"chmod {decision.mode:o} {path}", done=False)
        else:
            folder = "archive" if request.kind == "archive" else "trash"
            gone = request.kind == "remove" and not decision.trash
            yield Step(
                topic="move", command=f"rm {path}" if gone else f"mv {path} {folder}{'' if other else '/'}", done=False
            )

    def _edit(self, request: Request, decision: Decision) -> Iterator[Step]:
        path, other = request.path, self.style.other
        if decision.backup:
            copied = changes(self.env.task, request, decision)[0].holds(self.env.tree)
            yield Step(topic="backup", command=f"cp {'-p ' if other else ''}{path} {path}.bak", done=copied)
        key, value, whole = request.key, request.value, other and decision.backup
        command = {
            "set": f"sed -i '/^{key} /s/ .*/ {value}/' {path}"
            if other
            else f"sed -i 's/^{key} .*/{key} {value}/' {path}",
            "sort": f"sort {path}.bak > {path}" if whole else f"sort -o {path} {path}",
            "unique": f"sort {path}.bak | uniq > {path}" if whole else f"sort -u -o {path} {path}",
        }[request.kind]
        yield Step(topic="change", command=command, done=False, waits=False)

    def _number(self, request: Request, decision: Decision, seen: bool) -> Iterator[Step]:
        path, other = request.path, self.style.other
        if request.kind == "count":
            command = f"grep -c '' {path}" if other else f"wc -l < {path}"
        else:
            command = "awk '{t = t + $3} END {print t}' " if other else "awk '{s += $3} END {print s}' "
            command += path
        whole = self.style.joined and request.kind == "count" and not seen
        if not whole:
            yield Step(topic="measure", command=command, done=seen)
        line = f"{request.id} $({command})" if whole else measured(self.env.task, request)
        yield Step(topic="number" if whole else "note", command=f"echo {line} >> {decision.report}", done=False)

    def say(self, topic: str, at: int = 0, *commands: str, complete: bool = False) -> Action:
        """An action of Terminus 2 in the style's words."""
        words = _TEXTS[topic][self.style.wordy].format(at=f"#{at + 1}")
        analysis, _, plan = words.partition("|")
        keys = (*(["C-c"] if self.env.session.typed and commands else []), *(f"{one}\n" for one in commands))
        typed = [{"keystrokes": one, "duration": 0.1} for one in keys]
        answer = {"analysis": analysis, "plan": plan, "commands": typed, "task_complete": complete}
        return Action(text=json.dumps(answer))
