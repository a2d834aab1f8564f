"""Commands that do at once what the demonstrated command does: both are run on one snapshot, in a sandbox.

Departures from the paper, which runs nothing:
1. The effects are exit status, output and the writable places afterwards, but for times of files. What the snapshot
   does not hold makes no difference (`rm -rf build ~/.ssh`), nor does the shell's own state (`cd`, variables).
2. Output is compared as text without blanks at line ends; decimal durations ("in 0.12s") count as one.
3. The demonstration runs twice, and once more before its output or files refuse an action, since a clock may have gone
   on. Parts (exit status, a stream, a file) that differ between its runs are left aside; where they are all that could
   have refused an action, it is unscored.
4. A demonstration that a limit ended, that has no effect at all, or for which the shell did not find a program says
   nothing: unscored. An action that a limit ended is refused.
5. The snapshot is what the user gives: for a turn, or for the beginning of the trajectory; then the demonstrated
   commands before the turn are run first, each in a shell of its own.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Hashable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import zip_longest
from pathlib import Path
from typing import Final, TypeVar

from pydantic import JsonValue

from pivotrl.errors import ConfigError, InputError
from pivotrl.isolation import Limits
from pivotrl.sandbox import Effects, Sandbox, argument
from pivotrl.snapshots import Entry, entries, load_snapshot
from pivotrl.storage import content_hash
from pivotrl.types import Action, Candidate, Verdict
from pivotrl.verifiers.base import BuiltIn, Refusal, arguments_of, decided, judged, other_calls
from pivotrl.verifiers.shell import CommandLine, command_in, fenced, working_directory
from pivotrl.verifiers.shell_syntax import HOME
from pivotrl.verifiers.terminus import TerminusAction, read_terminus

_DURATION: Final = re.compile(r"(?<![\w.])(?:\d+m)?\d+\.\d+ ?(?:ms|s|secs?|seconds?)\b")
_NOT_HERE: Final = (126, 127)
"""Exit statuses of a shell that did not run what it was told."""
_SMALL: Final = 1 << 16
"""Bytes of a packed tree."""
T = TypeVar("T")


def command_of(candidate: Candidate, action: Action) -> str | None:
    """The one shell command of an action, run where the trajectory says that the shell is (its home: the workdir).

    None where there is none, more than one, an argument that we do not know, or one that no shell can be given.
    """
    terminus = read_terminus(action.text or "")
    if isinstance(terminus, TerminusAction):
        text = terminus.keystrokes if terminus.sent else ""
    else:
        text = fenced(action.text or "")
    found = CommandLine(text, working_directory(candidate), {})
    if action.calls:
        arguments = arguments_of(action.calls[0]).value if len(action.calls) == 1 else None
        call = command_in(arguments or {}, found.directory)
        if call is None or call.rest:
            return None
        found = call
    if not found.text.strip():
        return None
    folder = found.directory.removeprefix(HOME).lstrip("/") if found.directory.startswith(HOME) else found.directory
    command = f"cd -- {shlex.quote(folder)} || exit {_NOT_HERE[1]}\n{found.text}" if folder else found.text
    try:
        argument(command)
    except InputError:
        return None
    return command


def _complete(action: Action) -> bool:
    found = read_terminus(action.text or "")
    return isinstance(found, TerminusAction) and found.complete


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What is compared of a command's effects."""

    ending: str
    status: int | None
    stdout: str
    stderr: str
    files: Mapping[str, Entry]

    @property
    def problem(self) -> Refusal | None:
        """Why nothing can be compared with a demonstration of these effects."""
        if self.ending != "exit":
            return "unfinished_demonstration", f"ended by a limit: {self.ending}"
        if self.status in _NOT_HERE or ": command not found" in self.stderr:
            return "not_runnable", repr(self.stderr)
        return None


@dataclass(frozen=True, slots=True)
class ExecutionVerifier(BuiltIn):
    snapshots: str = ""
    """A directory of directories: `ID@TURN`, the files just before a turn; or those at the beginning of a trajectory,
    by its id, its task's, or `default`."""
    seconds: float = 10.0
    memory_mb: float = 1024.0
    disk_mb: float = 256.0
    workdir: str = "/work"
    """Where the files lie inside the sandbox."""
    unsafe_exec: bool = False
    name = "execution"
    version = "3"

    def __post_init__(self) -> None:
        if not self.snapshots or not Path(self.snapshots).is_dir():
            wrong = f"{self.snapshots!r} is no directory" if self.snapshots else "not given"
            raise ConfigError(f"verifier execution, snapshots: {wrong}; name one that holds a directory for each task")
        self.sandbox.check()

    @property
    def sandbox(self) -> Sandbox:
        memory, disk = int(self.memory_mb * 2**20), int(self.disk_mb * 2**20)
        limits = Limits(seconds=self.seconds, memory=memory, disk=disk)
        return Sandbox(limits=limits, workdir=self.workdir, unsafe_exec=self.unsafe_exec)

    @property
    def settings(self) -> Mapping[str, JsonValue]:
        """The fields; the snapshots by their content."""
        return asdict(self) | {"snapshots": _digest(Path(self.snapshots), self.sandbox)}

    def __call__(self, candidate: Candidate, action: Action) -> Verdict:
        """1 when the action's command has the demonstrated one's effects, 0 when not, unscored where none can tell."""
        demonstration = candidate.demonstration
        theirs, ours = command_of(candidate, demonstration), command_of(candidate, action)
        if theirs is None:
            return judged(self, None, "not_applicable", "no single shell command was demonstrated")
        refusal = other_calls(demonstration, action)
        if refusal is not None or ours is None:
            return decided(self, refusal or ("no_command", "no single shell command"))
        if _complete(demonstration) != _complete(action):
            return judged(self, 0.0, "task_complete", "the task is said to be complete on one side only")
        tree = self._tree(candidate)
        if isinstance(tree, str):
            return judged(self, None, "no_snapshot", tree)
        return self._compared(tree, theirs, ours)

    def _compared(self, tree: bytes, theirs: str, ours: str) -> Verdict:
        first = second = _demonstrated(self.sandbox, tree, theirs, 1)
        if first.problem is None:
            second = _demonstrated(self.sandbox, tree, theirs, 2)
        problem = first.problem or second.problem
        if problem is None and first == _demonstrated(self.sandbox, tree, "true", 1):
            problem = "no_effect", "exit status 0, no output, no file changed"
        if problem is not None:
            return judged(self, None, *problem)
        seen = second if ours == theirs else _see(self.sandbox.run(ours, tree))
        if seen.ending != "exit":
            return judged(self, 0.0, "unfinished", f"ended by a limit: {seen.ending}")
        found, varied = differences(first, seen), set(differences(first, second))
        if found.keys() - varied and "exit_status" not in found:
            now = _see(self.sandbox.run(theirs, tree))
            found = found if differences(now, seen) else {}
            varied |= differences(first, now).keys() if found else set()
        refusal = next((refusal for part, refusal in found.items() if part not in varied), None)
        if refusal is None and varied:
            return judged(self, None, "nondeterministic", f"the demonstration varied in {', '.join(sorted(varied))}")
        return decided(self, refusal)

    def _tree(self, candidate: Candidate) -> bytes | str:
        """The files just before the turn, packed, or why there are none."""
        trajectory = candidate.trajectory
        known = (candidate.id, trajectory.id, trajectory.task_id, "default")
        names = [name.replace("/", "_") for name in known if name]
        folders = [Path(self.snapshots, name) for name in names if name not in (".", "..")]
        folder = next((folder for folder in folders if folder.is_dir()), None)
        if folder is None:
            return f"no directory {' or '.join(map(repr, names))} in {self.snapshots}"
        tree = _load(folder, self.sandbox)
        commands = []
        for turn in range(0 if folder.name == names[0] else candidate.turn):
            earlier = replace(candidate, turn=turn)
            if trajectory.messages[turn].role != "assistant":
                continue
            command = command_of(earlier, earlier.demonstration)
            if command is not None:
                commands.append(command)
            elif earlier.demonstration.calls:
                return f"what turn {turn} did is not known, since it is no single shell command; give {names[0]!r}"
        after = _after(self.sandbox, tree, tuple(commands))
        return after or f"a command of an earlier turn cannot be run here; give {names[0]!r}"


def differences(theirs: Seen, ours: Seen) -> dict[str, Refusal]:
    """What makes effects other than a demonstration's, by the part that differs; new files by their directory."""
    found: dict[str, Refusal] = {}
    if theirs.status != ours.status:
        found["exit_status"] = "exit_status", f"{ours.status} instead of {theirs.status}"
    for stream in ("stdout", "stderr"):
        pairs = zip_longest(getattr(theirs, stream).split("\n"), getattr(ours, stream).split("\n"))
        for line, other in (pair for pair in pairs if pair[0] != pair[1]):
            found.setdefault(stream, ("output", f"{stream}: {other!r:.100} instead of {line!r:.100}"))
    for path in sorted(theirs.files.keys() | ours.files.keys()):
        was, now = theirs.files.get(path), ours.files.get(path)
        if was != now:
            word = "missing" if now is None else "new" if was is None else "other"
            part = f"{word} {path.rpartition('/')[0] if was is None else path}"
            found.setdefault(part, ("files", f"{'/' + path!r} is {word}"))
    return found


def _see(effects: Effects) -> Seen:
    texts = (data.decode(errors="surrogateescape") for data in (effects.stdout, effects.stderr))
    lines = ([line.rstrip() for line in _DURATION.sub("<duration>", text).split("\n")] for text in texts)
    stdout, stderr = ("\n".join(some).rstrip("\n") for some in lines)
    files = entries(effects.tree) if effects.tree else {}
    return Seen(ending=effects.ending, status=effects.status, stdout=stdout, stderr=stderr, files=files)


def _kept(function: Callable[..., T]) -> Callable[..., T]:
    """Remember what became of a tree: of large ones the last few, of small ones many, since training comes back."""
    few, many = lru_cache(maxsize=8)(function), lru_cache(maxsize=4096)(function)

    def called(sandbox: Sandbox, tree: bytes, *rest: Hashable) -> T:
        return (many if len(tree) <= _SMALL else few)(sandbox, tree, *rest)

    return called


@_kept
def _demonstrated(sandbox: Sandbox, tree: bytes, command: str, run: int) -> Seen:
    """The first or second run of a demonstration, which the G actions of a group share."""
    return _see(sandbox.run(command, tree))


@_kept
def _place(sandbox: Sandbox, tree: bytes, commands: tuple[str, ...]) -> list[bytes | None]:
    """Where the files after these commands are kept; empty as long as they are not known."""
    return []


def _after(sandbox: Sandbox, tree: bytes, commands: tuple[str, ...]) -> bytes | None:
    """The files after commands, each in a shell of its own; None where one cannot be run or is ended by a limit."""
    now: bytes | None = tree
    for known in range(len(commands), 0, -1):
        if held := _place(sandbox, tree, commands[:known]):
            now = held[0]
            break
    else:
        known = 0
    for count in range(known + 1, len(commands) + 1):
        effects = None if now is None else sandbox.run(commands[count - 1], now)
        now = None if effects is None or effects.status in _NOT_HERE else effects.tree
        _place(sandbox, tree, commands[:count])[:] = [now]
    return now


def _load(folder: Path, sandbox: Sandbox) -> bytes:
    return load_snapshot(folder, sandbox.workdir, files=sandbox.limits.files, size=sandbox.limits.disk)


@lru_cache(maxsize=4)
def _digest(folder: Path, sandbox: Sandbox) -> str:
    inside = sorted(one for one in folder.iterdir() if one.is_dir())
    return content_hash([f"{one.name} {sorted(entries(_load(one, sandbox)).items())!r}" for one in inside])
