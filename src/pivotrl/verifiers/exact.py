"""Strict match, the criterion that PivotRL replaces (Eq. 2): r(s, a) = 1[a = a*].

Departures from the paper:
1. It does not say which equality. Ours is of the decoded action, not of its bytes: key order and whitespace of the raw
   JSON do not matter, everything else does (5 is not 5.0, true is not 1, absent arguments are not {}).
2. Reasoning, call ids and the text beside calls are not compared: they have no effect outside the model.
3. Where the demonstration's own arguments are malformed nothing can be judged, and the action stays unscored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import JsonValue

from pivotrl.types import Action, Candidate, Verdict
from pivotrl.verifiers.base import arguments_of, judged, said


@dataclass(frozen=True, slots=True)
class ExactVerifier:
    name = "exact"
    version = "1"

    @property
    def settings(self) -> Mapping[str, JsonValue]:
        return {}

    def __call__(self, candidate: Candidate, action: Action) -> Verdict:
        """1 for the demonstrated action, else 0."""
        demonstration = candidate.demonstration
        broken = [call.name for call in demonstration.calls if arguments_of(call).value is None]
        if broken:
            return judged(self, None, "bad_demonstration", f"malformed arguments of {', '.join(broken)}")
        if action.kind != demonstration.kind:
            return judged(self, 0.0, "wrong_kind", f"{action.kind} instead of {demonstration.kind}")
        if demonstration.kind == "message":
            same = said(action) == said(demonstration)
            return judged(self, float(same), "match" if same else "wrong_text")
        if len(action.calls) != len(demonstration.calls):
            surplus = len(action.calls) > len(demonstration.calls)
            return judged(self, 0.0, "surplus_calls" if surplus else "missing_calls")
        for theirs, ours in zip(demonstration.calls, action.calls, strict=True):
            if theirs.name != ours.name:
                return judged(self, 0.0, "wrong_tool", f"{ours.name} instead of {theirs.name}")
            if arguments_of(ours).value is None:
                return judged(self, 0.0, "bad_arguments", f"{ours.name}: {ours.parsed.error}")
            if (theirs.arguments is None) != (ours.arguments is None):
                return judged(self, 0.0, "wrong_arguments", f"{ours.name}: absent on one side only")
            if not identical(theirs.parsed.value, ours.parsed.value):
                return judged(self, 0.0, "wrong_arguments", ours.name)
        return judged(self, 1.0, "match")


def identical(a: JsonValue, b: JsonValue) -> bool:
    """Equality of JSON values and of their types: 5 is not 5.0, true is not 1."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(identical(value, b[key]) for key, value in a.items())
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(identical(x, y) for x, y in zip(a, b, strict=True))
    return type(a) is type(b) and a == b
