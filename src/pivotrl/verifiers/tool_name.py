"""Tool names only: the paper's verifier for software engineering, "deliberately coarse".

Departures from the paper:
1. Parallel calls: the multiset of names must be equal, so surplus calls are refused.
2. Where a message was demonstrated, a message that says something is accepted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import JsonValue

from pivotrl.types import Action, Candidate, Verdict
from pivotrl.verifiers.base import judged, said


@dataclass(frozen=True, slots=True)
class ToolNameVerifier:
    name = "tool_name"
    version = "1"

    @property
    def settings(self) -> Mapping[str, JsonValue]:
        return {}

    def __call__(self, candidate: Candidate, action: Action) -> Verdict:
        """1 when the action calls the demonstrated tools as often as the demonstration does, else 0."""
        demonstration = candidate.demonstration
        if action.kind != demonstration.kind:
            return judged(self, 0.0, "wrong_kind", f"{action.kind} instead of {demonstration.kind}")
        if demonstration.kind == "message":
            return judged(self, 1.0, "match") if said(action) else judged(self, 0.0, "empty")
        theirs = Counter(call.name for call in demonstration.calls)
        ours = Counter(call.name for call in action.calls)
        if theirs == ours:
            return judged(self, 1.0, "match")
        detail = f"{', '.join(ours.elements())} instead of {', '.join(theirs.elements())}"
        if ours > theirs:
            return judged(self, 0.0, "surplus_calls", detail)
        return judged(self, 0.0, "missing_calls" if ours < theirs else "wrong_tool", detail)
