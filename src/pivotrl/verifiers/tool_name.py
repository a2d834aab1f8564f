"""Tool names only: the paper's verifier for software engineering, "deliberately coarse".

Departures from the paper:
1. Parallel calls: the multiset of names must be equal, so surplus calls are refused.
2. Where a message was demonstrated, a message that says something is accepted.
"""

from __future__ import annotations

from dataclasses import dataclass

from pivotrl.types import Action, Candidate, Verdict
from pivotrl.verifiers.base import BuiltIn, decided, other_calls, said


@dataclass(frozen=True, slots=True)
class ToolNameVerifier(BuiltIn):
    name = "tool_name"

    def __call__(self, candidate: Candidate, action: Action) -> Verdict:
        """1 when the action calls the demonstrated tools as often as the demonstration does, else 0."""
        refusal = other_calls(candidate.demonstration, action)
        if refusal is None and not action.calls and not said(action):
            refusal = "empty", ""
        return decided(self, refusal)
