"""Strict match, the criterion that PivotRL replaces (Eq. 2): r(s, a) = 1[a = a*].

Departures from the paper:
1. It does not say which equality. Ours is of the decoded action, not of its bytes: key order and whitespace of the raw
   JSON do not matter, everything else does (5 is not 5.0, true is not 1, absent arguments are not {}).
2. Reasoning, call ids and the text beside calls are not compared: they have no effect outside the model.
3. Where the demonstration's own arguments are malformed nothing can be judged, and the action stays unscored.
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import JsonValue

from pivotrl.types import Action, Candidate, ToolCall, Verdict
from pivotrl.verifiers.base import BuiltIn, Refusal, arguments_of, decided, judged, malformed, other_calls, said


@dataclass(frozen=True, slots=True)
class ExactVerifier(BuiltIn):
    name = "exact"

    def __call__(self, candidate: Candidate, action: Action) -> Verdict:
        """1 for the demonstrated action, else 0."""
        demonstration = candidate.demonstration
        broken = malformed(demonstration)
        if broken:
            return judged(self, None, "bad_demonstration", broken)
        refusal = other_calls(demonstration, action)
        if refusal is None and said(action) != said(demonstration) and action.kind == "message":
            refusal = "wrong_text", ""
        return decided(self, refusal or next(filter(None, map(_other_call, demonstration.calls, action.calls)), None))


def _other_call(theirs: ToolCall, ours: ToolCall) -> Refusal | None:
    if theirs.name != ours.name:
        return "wrong_tool", f"{ours.name} instead of {theirs.name}"
    if arguments_of(ours).value is None:
        return "bad_arguments", f"{ours.name}: {ours.parsed.error}"
    if (theirs.arguments is None) != (ours.arguments is None):
        return "wrong_arguments", f"{ours.name}: absent on one side only"
    same = identical(theirs.parsed.value, ours.parsed.value)
    return None if same else ("wrong_arguments", ours.name)


def identical(a: JsonValue, b: JsonValue) -> bool:
    """Equality of JSON values and of their types: 5 is not 5.0, true is not 1."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(identical(value, b[key]) for key, value in a.items())
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(identical(x, y) for x, y in zip(a, b, strict=True))
    return type(a) is type(b) and a == b
