"""Calls that do what the demonstrated calls do: r_func(s, a) = 1[a in M(s)] (Eq. 6), M(s) decided by schema and values.

Departures from the paper, which gives no rule ("normalised string/schema check"):
1. The arguments must satisfy the tool's JSON Schema (2020-12), and do the same as the demonstrated ones in the sense of
   `values.difference`: no word overlap, so `rm -rf /` never passes for `rm -rf build`.
2. Parallel calls are unordered and must pair off one to one: missing and surplus calls are refused.
3. Text beside the calls and call ids are ignored.
4. A schema that is broken, or that the demonstration itself violates, is left aside; the detail says so.
5. Where no call was demonstrated, or one with malformed arguments, nothing can be judged: unscored.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from pydantic import JsonValue

from pivotrl.types import Action, Candidate, ToolCall, Verdict
from pivotrl.verifiers.base import BuiltIn, Refusal, arguments_of, check_range, decided, judged, malformed, other_calls
from pivotrl.verifiers.schemas import BROKEN, Demonstrated, demonstrated
from pivotrl.verifiers.values import difference, match


@dataclass(frozen=True, slots=True)
class ToolCallVerifier(BuiltIn):
    rel_tol: float = 1e-12
    abs_tol: float = 1e-9
    """Between two floats, as `math.isclose` has it: enough for rounding; integers are compared exactly."""
    name = "tool_call"
    version = "2"

    def __post_init__(self) -> None:
        check_range("rel_tol", self.rel_tol, 1.0)
        check_range("abs_tol", self.abs_tol)

    def __call__(self, candidate: Candidate, action: Action) -> Verdict:
        """1 when the calls do what the demonstrated calls do, 0 when not, unscored where none can be judged."""
        demonstration = candidate.demonstration
        if demonstration.kind == "message":
            return judged(self, None, "not_applicable", "no call was demonstrated; use message or auto")
        broken = malformed(demonstration)
        if broken:
            return judged(self, None, "bad_demonstration", broken)
        tools = {tool.name: tool for tool in candidate.trajectory.tools or ()}
        theirs = [demonstrated(call, tools.get(call.name)) for call in demonstration.calls]
        refusal = other_calls(demonstration, action)
        if candidate.trajectory.tools is not None:
            known = tools.keys() | {call.name for call in demonstration.calls}
            strange = [call.name for call in action.calls if call.name not in known]
            refusal = ("unknown_tool", strange[0]) if strange else refusal
        verdict = decided(self, refusal or self._other_arguments(theirs, action.calls))
        details = dict.fromkeys([verdict.detail, *(one.problem for one in theirs)])
        return judged(self, verdict.value, verdict.reason, "; ".join(filter(None, details)))

    def _other_arguments(self, theirs: Sequence[Demonstrated], ours: Sequence[ToolCall]) -> Refusal | None:
        """Why the calls, whose names are those of the demonstration, do not pair off with it."""
        close = partial(math.isclose, rel_tol=self.rel_tol, abs_tol=self.abs_tol)
        edges: list[list[int]] = []
        first = ""
        for call in ours:
            rivals = {at: one for at, one in enumerate(theirs) if one.call.name == call.name}
            arguments = arguments_of(call)
            if arguments.value is None:
                return "bad_arguments", f"{call.name}: {arguments.error}"
            fault = _fault(rivals.values(), arguments.value)
            if fault is not None:
                return "invalid_arguments", f"{call.name}: {fault}"
            found = {at: difference(one.arguments, arguments.value, one.schema, close) for at, one in rivals.items()}
            edges.append([at for at, text in found.items() if text is None])
            first = first or next((f"{call.name}: {text}" for text in found.values() if text), "")
        return ("wrong_arguments", first) if -1 in match(edges) else None


def _fault(rivals: Iterable[Demonstrated], arguments: dict[str, JsonValue]) -> str | None:
    """How the arguments violate the tool's schema, where it can be applied and every demonstration satisfies it."""
    try:
        return min(rivals, key=lambda one: one.validator is not None).fault(arguments)
    except BROKEN:
        return None
