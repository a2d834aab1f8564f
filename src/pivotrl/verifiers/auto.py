"""Routes by what was demonstrated to the verifier that knows it best; the verdict names the inner one.

A message of a Terminus domain, one that is a Terminus action, and one with a command in a fence that the system prompt
asks for: `shell`. With tags of a search agent: `search`. Any other message: `message`.
Calls of a tool that the rules name: `tool_call`. Calls that edit or show files by tools that `code_edit` knows, all of
a turn: `code_edit`; any of a shell by name and argument: `shell`; searches and documents of the web by name and
argument, all of a turn: `search`. All others, and those that the specialist leaves unscored: `tool_call`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Final

from pydantic import JsonValue

from pivotrl.protocols import Verifier
from pivotrl.types import Action, Candidate, ToolCall, Verdict
from pivotrl.verifiers.base import BuiltIn, arguments_of, judged
from pivotrl.verifiers.code_edit import CodeEditVerifier
from pivotrl.verifiers.code_tools import read_call
from pivotrl.verifiers.message import MessageVerifier
from pivotrl.verifiers.rules import named_tools
from pivotrl.verifiers.search import SearchVerifier, searched, tagged
from pivotrl.verifiers.shell import ShellVerifier, command_in, fenced
from pivotrl.verifiers.terminus import TerminusAction, read_terminus
from pivotrl.verifiers.tool_call import ToolCallVerifier

_SHELL: Final = re.compile(r"bash|shell|z?sh|terminal|console|command|cmd|exec|execute|run")
_NO_SHELL: Final = re.compile(r"sql|query|python")
_WEB: Final = re.compile(r"search|google|bing|wikipedia|web|browser?|visit|open|fetch|crawl|scrape|page")
_NO_WEB: Final = re.compile(r"code|codebase|files?|dir|directory|repo|grep|text|sql|db|symbol")
"""Words in the names of tools."""
_WORD: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")


@dataclass(frozen=True, slots=True)
class AutoVerifier(BuiltIn):
    tool_call: ToolCallVerifier = field(default_factory=ToolCallVerifier)
    message: MessageVerifier = field(default_factory=MessageVerifier)
    shell: ShellVerifier = field(default_factory=ShellVerifier)
    code_edit: CodeEditVerifier = field(default_factory=CodeEditVerifier)
    search: SearchVerifier = field(default_factory=SearchVerifier)
    name = "auto"
    version = "2"

    @property
    def settings(self) -> Mapping[str, JsonValue]:
        """The inner verifiers' versions and settings: what changes them changes this one."""
        members: list[Verifier] = [getattr(self, one.name) for one in fields(self)]
        return {one.name: {"version": one.version, **one.settings} for one in members}

    def __call__(self, candidate: Candidate, action: Action) -> Verdict:
        if not candidate.demonstration.calls and self.tool_call.looks_up(candidate, action):
            return judged(self.tool_call, 1.0, "match", "a look-up instead of the question")
        verdict = self.inner(candidate)(candidate, action)
        if verdict.value is None and candidate.demonstration.calls:
            return self.tool_call(candidate, action)
        return verdict

    def inner(self, candidate: Candidate) -> Verifier:
        """The verifier that is asked first."""
        calls = candidate.demonstration.calls
        if not calls:
            return self._of_message(candidate)
        if not named_tools(self.tool_call.rules).isdisjoint(call.name for call in calls):
            return self.tool_call
        if all(isinstance(read_call(call), list) for call in calls):
            return self.code_edit
        if any(_named(call, _SHELL, _NO_SHELL) and command_in(arguments_of(call).value or {}) for call in calls):
            return self.shell
        web = all(_named(call, _WEB, _NO_WEB) and searched(call) for call in calls)
        return self.search if web else self.tool_call

    def _of_message(self, candidate: Candidate) -> Verifier:
        text, trajectory = candidate.demonstration.text or "", candidate.trajectory
        first = trajectory.messages[0]
        if (
            (trajectory.domain or "").startswith("terminus")
            or isinstance(read_terminus(text), TerminusAction)
            or (first.role == "system" and fenced(text) and fenced(first.content or ""))
        ):
            return self.shell
        calls = tagged(candidate.demonstration)
        return self.search if calls and all(map(searched, calls)) else self.message


def _named(call: ToolCall, wanted: re.Pattern[str], unwanted: re.Pattern[str]) -> bool:
    words = [word.lower() for word in _WORD.findall(call.name)]
    return any(map(wanted.fullmatch, words)) and not any(map(unwanted.fullmatch, words))
