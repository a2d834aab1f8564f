"""Routes by what was demonstrated: calls to `tool_call`, messages to `message`; the verdict names the inner one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import JsonValue

from pivotrl.types import Action, Candidate, Verdict
from pivotrl.verifiers.base import BuiltIn, judged
from pivotrl.verifiers.message import MessageVerifier
from pivotrl.verifiers.tool_call import ToolCallVerifier


@dataclass(frozen=True, slots=True)
class AutoVerifier(BuiltIn):
    tool_call: ToolCallVerifier = field(default_factory=ToolCallVerifier)
    message: MessageVerifier = field(default_factory=MessageVerifier)
    name = "auto"

    @property
    def settings(self) -> Mapping[str, JsonValue]:
        """The inner verifiers' versions and settings: what changes them changes this one."""
        return {one.name: {"version": one.version, **one.settings} for one in (self.tool_call, self.message)}

    def __call__(self, candidate: Candidate, action: Action) -> Verdict:
        if candidate.demonstration.kind == "message" and self.tool_call.looks_up(candidate, action):
            return judged(self.tool_call, 1.0, "match", "a look-up instead of the question")
        inner = self.tool_call if candidate.demonstration.kind == "call" else self.message
        return inner(candidate, action)
