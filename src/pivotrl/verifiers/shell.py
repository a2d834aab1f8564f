"""Commands that do what the demonstrated commands do: r_func(s, a) = 1[a in M(s)] (Eq. 6), commands read as programs.

Both command lines are brought into a normal form (`shell_normal`) and compared: equal ones score 1, every difference
takes its share (FACTORS), as much in a long program as in a short one. Where a command deletes, moves, overwrites,
kills or publishes (`danger` in the table), or writes into a file, nothing may differ but what is SAFE: else the score
is 0. Accepted is a score of at least `threshold`.

Departures from the paper, whose verifiers here are string similarity, tool names and a judge:
1. Nothing is executed and no judge is asked. A demonstrated command that is not parsed matches the same text only.
2. The command is taken from the call (COMMAND_KEYS; an argv of a shell), from bash fences of a message, or from a
   Terminus action. All other arguments must do the same as the demonstrated ones, but for IGNORED; tool schemas hold.
3. Parallel calls are unordered and must pair off one to one; several fences are one program.
4. The working directory is known only where the last message before the turn shows it (a prompt, or
   `[Current working directory: /x]`). Then `cd /x && y` is y; else a leading `cd` counts.

What it cannot decide, beside what is said at the top of the other modules:
1. Whether the first of two commands fails: `;` for `&&` is a small difference.
2. Whether directories have the name of a file: `-type f` beside `-name '*.c'` is a small difference.
3. A dangerous command inside `$(...)` or quoted for another program (`ssh host 'rm x'`) is an operand like others.
"""

from __future__ import annotations

import math
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from pydantic import JsonValue

from pivotrl.errors import ConfigError
from pivotrl.types import Action, Candidate, ToolCall, Verdict
from pivotrl.verifiers.base import BuiltIn, Refusal, arguments_of, check_range, decided, judged, malformed, other_calls
from pivotrl.verifiers.schema import Demonstrated, demonstrated, schema_refusal
from pivotrl.verifiers.shell_commands import PATHS, TABLE, Utilities
from pivotrl.verifiers.shell_normal import PER_FILE, Program, path, program
from pivotrl.verifiers.shell_syntax import HOME, NotShellError, shown
from pivotrl.verifiers.terminus import TerminusAction, read_terminus
from pivotrl.verifiers.values import difference, unpaired

FACTORS: Final[Mapping[str, float]] = {
    "look": 0.95,  # how it is said: `grep -n`, `find -print0`, `2>/dev/null`
    "order": 0.95,  # `;` for `&&`; one run for each file or one for all; names with blanks in `xargs`
    "around": 0.9,  # `sudo`; another directory afterwards
    "unquoted": 0.95,  # a pattern without quotes: another one only where a file's name matches it
    "files": 0.9,  # `-type f` beside `-name '*.c'`
    "option": 0.6,
    "operand": 0.5,
    "command": 0.4,
}
SAFE: Final = frozenset(("look", "order", "around"))
_LINKS: Final = {"&&": ";", "batch": "each"}
_WRAPPERS: Final = frozenset(("sudo", "time", "nohup", "timeout", "nice", "stdbuf"))
_QUIET: Final = frozenset((("2>", "/dev/null"), ("2>&", "1")))
COMMAND_KEYS: Final = ("command", "cmd", "keystrokes")
DIRECTORY_KEYS: Final = ("workdir", "cwd", "working_directory")
IGNORED: Final = re.compile(
    r"timeout(_ms|_sec|_seconds)?|duration|yield_time_ms|max_output_tokens|(is_)?blocking|security_risk|"
    r"description|justification|explanation|thought|reasoning"
)
_NO_COMMAND: Final = frozenset(("path", "file_path", "filePath"))
"""Arguments beside which `command` is an editor's verb."""
_ARGV: Final = re.compile(r"(/(usr/)?bin/)?(ba|z)?sh\0-(l|i)?c\0[^\0]*")
_FENCE: Final = re.compile(
    r"^```(?:bash|sh|shell|zsh|mswea_bash_command)[ \t]*\n(.*?)^```|<execute_bash>(.*?)</?execute_bash>", re.S | re.M
)
_PLACE: Final = re.compile(r"(?i:current (?:working )?directory: ?)(/[^\]\s)]*)")
_PROMPT: Final = re.compile(r"(?<![\w.-])[\w.-]{1,64}@[\w.-]{1,64}:(~|~?/[^\s#$]*)[#$]\s*\Z")
_TAIL: Final = 4000
"""Characters at the end of a message in which the working directory is looked for."""


class Agreement(NamedTuple):
    """How far two programs agree; the reason code and the detail of the gravest difference."""

    score: float
    reason: str = "match"
    detail: str = ""


@dataclass(frozen=True, slots=True)
class CommandLine:
    """A command line, where it is run (empty: not known), and what else a call says."""

    text: str
    directory: str
    rest: dict[str, JsonValue]


@dataclass(frozen=True, slots=True)
class ShellVerifier(BuiltIn):
    threshold: float = 0.9
    """Least score: two differences in the look of the output pass, or one that is nearly implied."""
    table: Utilities = TABLE
    name = "shell"
    version = "3"

    def __post_init__(self) -> None:
        check_range("threshold", self.threshold, 1.0)
        if not isinstance(self.table, Utilities):
            raise ConfigError(f"verifier setting table={self.table}: use TABLE.extended(...) of shell_commands")

    @property
    def settings(self) -> Mapping[str, JsonValue]:
        return {"threshold": self.threshold, "utilities": self.table.extra}

    def __call__(self, candidate: Candidate, action: Action) -> Verdict:
        """1 when the commands do what the demonstrated ones do, 0 when not, unscored where none were demonstrated."""
        shown, place = candidate.demonstration, working_directory(candidate)
        if shown.calls:
            return self._of_calls(candidate, action, place)
        theirs, wanted = read_terminus(shown.text or ""), fenced(shown.text or "")
        if isinstance(theirs, str):
            return judged(self, None, "bad_demonstration", theirs)
        if theirs is None and not wanted:
            return judged(self, None, "not_applicable", "no command was demonstrated; use message or auto")
        if action.calls:
            return judged(self, 0.0, "wrong_kind", "call instead of message")
        if theirs is not None:
            return decided(self, self._of_terminus(theirs, action.text or "", place))
        given = fenced(action.text or "")
        if not given:
            return judged(self, 0.0, "no_command", "no bash block in the message")
        return decided(self, self._refusal(self.compare(wanted, given, place)))

    def compare(
        self, theirs: str, ours: str, theirs_at: str = "", ours_at: str | None = None, *, lasting: bool = False
    ) -> Agreement:
        """How far one command line does what the demonstrated one does; of texts alone, the empty one included."""
        ours_at = theirs_at if ours_at is None else ours_at
        if theirs.strip() == ours.strip() and theirs_at == ours_at:
            return Agreement(1.0)
        try:
            wanted = program(theirs, self.table, theirs_at)
        except NotShellError as problem:
            return Agreement(0.0, "wrong_text", f"the demonstration is no shell command: {problem.args[1]}")
        try:
            return agreement(wanted, program(ours, self.table, ours_at), lasting=lasting)
        except NotShellError as problem:
            return Agreement(0.0, *problem.args)

    def _refusal(self, found: Agreement) -> Refusal | None:
        return None if found.score >= self.threshold and found.score > 0 else (found.reason, found.detail)

    def _of_terminus(self, theirs: TerminusAction, text: str, place: str) -> Refusal | None:
        ours = read_terminus(text)
        if not isinstance(ours, TerminusAction) or ours.harness != theirs.harness:
            return "bad_schema", ours if isinstance(ours, str) else f"no action of {theirs.harness}"
        if ours.complete != theirs.complete:
            return "task_complete", f"{ours.complete} instead of {theirs.complete}".lower()
        if ours.sent != theirs.sent:
            return "wrong_command", "the last line is sent off on one side only"
        return self._refusal(self.compare(theirs.keystrokes, ours.keystrokes, place, lasting=True))

    def _of_calls(self, candidate: Candidate, action: Action, place: str) -> Verdict:
        demonstration = candidate.demonstration
        broken = malformed(demonstration)
        if broken:
            return judged(self, None, "bad_demonstration", broken)
        theirs = demonstrated(candidate)
        if not any(command_in(one.arguments or {}, place) for one in theirs):
            return judged(self, None, "not_applicable", "no command was demonstrated; use tool_call or auto")
        refusal = other_calls(demonstration, action) or schema_refusal(candidate, action)
        if refusal is not None:
            return decided(self, refusal)
        rows = [
            {at: self._differs(one, call, place) for at, one in enumerate(theirs) if one.call.name == call.name}
            for call in action.calls
        ]
        left, first = unpaired(rows)
        return decided(self, (first or ("wrong_command", "two calls for one")) if left else None)

    def _differs(self, one: Demonstrated, call: ToolCall, place: str) -> Refusal | None:
        theirs, ours = one.arguments or {}, arguments_of(call).value or {}
        wanted, given = command_in(theirs, place), command_in(ours, place)
        if wanted is not None and given is None:
            return "no_command", call.name
        if wanted is not None and given is not None:
            theirs, ours = wanted.rest, given.rest
        other = difference(theirs, ours, one.schema and one.schema.document, math.isclose)
        if other is not None or wanted is None or given is None:
            return None if other is None else ("wrong_arguments", f"{call.name}: {other}")
        return self._refusal(self.compare(wanted.text, given.text, wanted.directory, given.directory))


def working_directory(candidate: Candidate) -> str:
    """Where the shell is, as far as the last message before the turn shows it; empty: not known."""
    before = candidate.trajectory.messages[: candidate.turn]
    text = (before[-1].content or "").rstrip()[-_TAIL:] if before else ""
    place = next(reversed(_PROMPT.findall(text) or _PLACE.findall(text)), "")
    return HOME + place[1:] if place.startswith("~") else place


def fenced(text: str) -> str:
    """The commands in the bash fences of a message, joined."""
    blocks = (one or other for one, other in _FENCE.findall(text.rpartition("</think>")[2]))
    return "\n".join(block.strip("\n") for block in blocks).strip()


def command_in(arguments: dict[str, JsonValue], place: str = "") -> CommandLine | None:
    """The command among a call's arguments; None where there is none."""
    key = next((key for key in COMMAND_KEYS if isinstance(arguments.get(key), str | list)), None)
    if key is None or _NO_COMMAND & arguments.keys():
        return None
    value = arguments[key]
    if isinstance(value, list):
        words = [one for one in value if isinstance(one, str)]
        if len(words) < len(value) or not words:
            return None
        value = words[2] if _ARGV.fullmatch("\0".join(words)) else shlex.join(words)
    where = next((one for name in DIRECTORY_KEYS if isinstance(one := arguments.get(name), str) and one), "")
    own = (key, *DIRECTORY_KEYS)
    rest = {name: one for name, one in arguments.items() if name not in own and not IGNORED.fullmatch(name)}
    return CommandLine(str(value), path(where, place) if where else place, rest)


def agreement(theirs: Program, ours: Program, *, lasting: bool = False) -> Agreement:
    """How far our program does what theirs does; `lasting`: the shell goes on in the directory where it ends."""
    if theirs == ours:
        return Agreement(1.0)
    found = [*_differences(theirs, ours)]
    if theirs.directory != ours.directory:
        kind = "operand" if lasting or not theirs.commands else "around"
        found.append((kind, f"ends in {ours.directory or '.'} instead of {theirs.directory or '.'}"))
    score = math.prod(FACTORS[kind] for kind, _ in found)
    worst = min(found, key=lambda one: FACTORS[one[0]], default=("", "links"))[1]
    dangerous = any(command.destroys for command in (*theirs.commands, *ours.commands))
    if dangerous and not SAFE.issuperset(kind for kind, _ in found):
        return Agreement(0.0, "dangerous_difference", shown(worst))
    return Agreement(score, "wrong_command", shown(f"{score:.2f}: {worst}"))


def _differences(theirs: Program, ours: Program) -> Iterator[tuple[str, str]]:
    """The kind of each difference, and what it is."""
    wanted, given = ([(_LINKS.get(c.link, c.link), c.name) for c in one.commands] for one in (theirs, ours))
    if wanted != given:
        names = [" ".join(f"{link} {name}" for link, name in one).strip("; ") for one in (given, wanted)]
        yield "command", " instead of ".join(name or "nothing" for name in names)
        return
    links = [command.link for command in theirs.commands[1:]]
    for one, other, following in zip(theirs.commands, ours.commands, [*links, ""], strict=False):
        if one.link != other.link:
            alike = one.link not in PER_FILE or one.known.kind(-1) in PATHS
            yield "order" if alike else "option", f"{one.name}: order"
        options = (Counter(one.options) - Counter(other.options)) + (Counter(other.options) - Counter(one.options))
        if one.options != other.options and not options:
            yield "option", f"{one.name}: the order of its options"
        shows = following not in ("|", *PER_FILE) and not any(">" in how for how, _ in one.redirects)
        for key, value in options.elements():
            kind = key if one.name in ("find", "grep") and key in ("unquoted", "files") else "option"
            yield "look" if shows and key in one.known.look else kind, f"{one.name} -{key} {value}".rstrip()
        if one.operands != other.operands:
            yield "operand", f"{one.name} {' '.join(other.operands)} instead of {' '.join(one.operands)}"
        for text in sorted(set(one.context) ^ set(other.context)):
            kind = "order" if text == "xargs blanks" else "around" if text.split()[0] in _WRAPPERS else "operand"
            yield kind, text
        if one.redirects != other.redirects:
            apart = set(one.redirects) ^ set(other.redirects)
            text = " ".join(map("".join, sorted(apart))) or "the order of its redirections"
            yield "look" if apart and apart <= _QUIET else "operand", f"{one.name}: {text}"
