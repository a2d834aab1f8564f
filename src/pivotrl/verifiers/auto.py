"""Routes by what was demonstrated: calls to `tool_call`, messages to `message`; the verdict names the inner one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import JsonValue

from pivotrl.types import Action, Candidate, Verdict
from pivotrl.verifiers.message import MessageVerifier
from pivotrl.verifiers.tool_call import ToolCallVerifier


@dataclass(frozen=True, slots=True)
class AutoVerifier:
    min_overlap: float = MessageVerifier().min_overlap
    """Of `message`."""
    name = "auto"
    version = "1"

    def __post_init__(self) -> None:
        MessageVerifier(self.min_overlap)

    @property
    def settings(self) -> Mapping[str, JsonValue]:
        """The inner verifiers' versions and settings: what changes them changes this one."""
        inner = (ToolCallVerifier(), MessageVerifier(self.min_overlap))
        return {verifier.name: {"version": verifier.version, **verifier.settings} for verifier in inner}

    def __call__(self, candidate: Candidate, action: Action) -> Verdict:
        if candidate.demonstration.kind == "call":
            return ToolCallVerifier()(candidate, action)
        return MessageVerifier(self.min_overlap)(candidate, action)
