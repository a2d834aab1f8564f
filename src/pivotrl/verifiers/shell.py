"""Commands that do what the demonstrated commands do: r_func(s, a) = 1[a in M(s)] (Eq. 6), commands read as programs.

Both command lines are brought into a normal form (`shell_normal`) and compared (`shell_score`): equal ones score 1,
every difference takes its share, dangerous ones take all. Accepted is a score of at least `threshold`.

Departures from the paper, whose verifiers here are string similarity, tool names and a judge:
1. Nothing is executed and no judge is asked. A demonstrated command that is not parsed matches the same text only.
2. The command is taken from the call (COMMAND_KEYS; an argv of a shell), from bash fences of a message, or from a
   Terminus action. All other arguments must do the same as the demonstrated ones, but for IGNORED; tool schemas hold.
3. Parallel calls are unordered and must pair off one to one; several fences are one program.
4. The working directory is known only where the last message before the turn shows it (a prompt, or
   `[Current working directory: /x]`). Then `cd /x && y` is y; else a leading `cd` counts.

What it cannot decide is said at the top of the modules that it is made of.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pydantic import JsonValue

from pivotrl.errors import ConfigError
from pivotrl.types import Action, Candidate, ToolCall, Verdict
from pivotrl.verifiers.base import BuiltIn, Refusal, arguments_of, check_range, decided, judged, malformed, other_calls
from pivotrl.verifiers.schema import schema_refusal
from pivotrl.verifiers.schemas import Demonstrated, demonstrated
from pivotrl.verifiers.shell_commands import TABLE, Table
from pivotrl.verifiers.shell_normal import path, program
from pivotrl.verifiers.shell_score import Agreement, agreement
from pivotrl.verifiers.shell_syntax import HOME, NotShellError
from pivotrl.verifiers.terminus import TerminusAction, read_terminus
from pivotrl.verifiers.values import difference, unpaired

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
_LINE: Final = 200
"""Characters at the end of a message in which the working directory is looked for, and a prompt."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command line, where it is run (empty: not known), and what else a call says."""

    text: str
    directory: str
    rest: dict[str, JsonValue]


@dataclass(frozen=True, slots=True)
class ShellVerifier(BuiltIn):
    threshold: float = 0.9
    """Least score: two differences in the look of the output pass, or one that is nearly implied."""
    table: Table = TABLE
    name = "shell"

    def __post_init__(self) -> None:
        check_range("threshold", self.threshold, 1.0)
        if not isinstance(self.table, Table):
            raise ConfigError(f"verifier setting table={self.table}: use TABLE.extended(...) of shell_commands")

    @property
    def settings(self) -> Mapping[str, JsonValue]:
        return {"threshold": self.threshold, "utilities": self.table.extra}

    def __call__(self, candidate: Candidate, action: Action) -> Verdict:
        """1 when the commands do what the demonstrated ones do, 0 when not, unscored where none were demonstrated."""
        shown = candidate.demonstration
        place = working_directory(candidate)
        if shown.calls:
            return self._of_calls(candidate, action, place)
        theirs = read_terminus(shown.text or "")
        if isinstance(theirs, str):
            return judged(self, None, "bad_demonstration", theirs)
        wanted = fenced(shown.text or "")
        if theirs is None and not wanted:
            return judged(self, None, "not_applicable", "no command was demonstrated; use message or auto")
        if action.calls:
            return judged(self, 0.0, "wrong_kind", "call instead of message")
        if isinstance(theirs, TerminusAction):
            return self._of_terminus(theirs, action.text or "", place)
        given = fenced(action.text or "")
        if not given:
            return judged(self, 0.0, "no_command", "no bash block in the message")
        return self._verdict(self.compare(wanted, given, place))

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

    def _verdict(self, found: Agreement) -> Verdict:
        accepted = found.score >= self.threshold and found.score > 0
        return judged(self, float(accepted), "match" if accepted else found.reason, found.detail)

    def _of_terminus(self, theirs: TerminusAction, text: str, place: str) -> Verdict:
        ours = read_terminus(text)
        if not isinstance(ours, TerminusAction):
            return judged(self, 0.0, "bad_schema", ours or "no JSON object with commands")
        if ours.harness != theirs.harness:
            return judged(self, 0.0, "bad_schema", f"{ours.harness} instead of {theirs.harness}")
        if ours.complete != theirs.complete:
            return judged(self, 0.0, "task_complete", f"{ours.complete} instead of {theirs.complete}".lower())
        if ours.sent != theirs.sent:
            return judged(self, 0.0, "wrong_command", "the last line is sent off on one side only")
        return self._verdict(self.compare(theirs.keystrokes, ours.keystrokes, place, lasting=True))

    def _of_calls(self, candidate: Candidate, action: Action, place: str) -> Verdict:
        demonstration = candidate.demonstration
        broken = malformed(demonstration)
        if broken:
            return judged(self, None, "bad_demonstration", broken)
        tools = {tool.name: tool for tool in candidate.trajectory.tools or ()}
        theirs = [demonstrated(call, tools.get(call.name)) for call in demonstration.calls]
        if not any(command_in(one.arguments or {}, place) for one in theirs):
            return judged(self, None, "not_applicable", "no command was demonstrated; use tool_call or auto")
        refusal = other_calls(demonstration, action) or schema_refusal(candidate, action)
        if refusal is not None:
            return decided(self, refusal)
        left, first = unpaired(
            [
                {at: self._differs(one, call, place) for at, one in enumerate(theirs) if one.call.name == call.name}
                for call in action.calls
            ]
        )
        return decided(self, (first or ("wrong_command", "two calls for one")) if left else None)

    def _differs(self, one: Demonstrated, call: ToolCall, place: str) -> Refusal | None:
        arguments = arguments_of(call).value or {}
        wanted, given = command_in(one.arguments or {}, place), command_in(arguments, place)
        if wanted is not None and given is None:
            return "no_command", call.name
        theirs, ours = wanted.rest if wanted else one.arguments, given.rest if given and wanted else arguments
        other = difference(theirs, ours, one.schema and one.schema.document, math.isclose)
        if other is not None:
            return "wrong_arguments", f"{call.name}: {other}"
        if wanted is None or given is None:
            return None
        found = self._verdict(self.compare(wanted.text, given.text, wanted.directory, given.directory))
        return None if found.value else (found.reason, found.detail)


def working_directory(candidate: Candidate) -> str:
    """Where the shell is, as far as the last message before the turn shows it; empty: not known."""
    before = candidate.trajectory.messages[: candidate.turn]
    text = (before[-1].content or "").rstrip()[-_TAIL:] if before else ""
    prompt = _PROMPT.search(text[-_LINE:])
    places = [prompt[1]] if prompt else _PLACE.findall(text) if "irectory:" in text else []
    return "" if not places else HOME + places[-1][1:] if places[-1].startswith("~") else places[-1]


def fenced(text: str) -> str:
    """The commands in the bash fences of a message, joined."""
    blocks = (one or other for one, other in _FENCE.findall(text.rpartition("</think>")[2]))
    return "\n".join(block.strip("\n") for block in blocks).strip()


def command_in(arguments: dict[str, JsonValue], place: str = "") -> Command | None:
    """The command among a call's arguments; None where there is none."""
    key = next((key for key in COMMAND_KEYS if isinstance(arguments.get(key), str | list)), None)
    if key is None or _NO_COMMAND & arguments.keys():
        return None
    value = arguments[key]
    if isinstance(value, list):
        words = [str(one) for one in value]
        value = words[2] if _ARGV.fullmatch("\0".join(words)) else shlex.join(words)
    where = next((one for name in DIRECTORY_KEYS if isinstance(one := arguments.get(name), str) and one), "")
    own = (key, *DIRECTORY_KEYS)
    rest = {name: one for name, one in arguments.items() if name not in own and not IGNORED.fullmatch(name)}
    return Command(str(value), path(where, place) if where else place, rest)
