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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from pivotrl.types import Action, Candidate, ToolCall, Verdict
from pivotrl.verifiers.base import arguments_of, check_range, judged
from pivotrl.verifiers.schemas import BROKEN, Demonstrated, demonstrated
from pivotrl.verifiers.values import Tolerance, difference, match

Decoded = dict[str, JsonValue]


class _Refusal(Exception):  # noqa: N818 - a private signal
    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason, detail)
        self.reason, self.detail = reason, detail


@dataclass(frozen=True, slots=True)
class ToolCallVerifier:
    rel_tol: float = 1e-9
    abs_tol: float = 1e-6
    """Between two floats, as `math.isclose` has it; integers are compared exactly."""
    name = "tool_call"
    version = "1"

    def __post_init__(self) -> None:
        check_range("rel_tol", self.rel_tol, 1.0)
        check_range("abs_tol", self.abs_tol)

    @property
    def settings(self) -> Mapping[str, JsonValue]:
        return {"rel_tol": self.rel_tol, "abs_tol": self.abs_tol}

    def __call__(self, candidate: Candidate, action: Action) -> Verdict:
        """1 when the calls do what the demonstrated calls do, 0 when not, unscored where none can be judged."""
        demonstration = candidate.demonstration
        if demonstration.kind == "message":
            return judged(self, None, "not_applicable", "no call was demonstrated; use message or auto")
        tools = {tool.name: tool for tool in candidate.trajectory.tools or ()}
        theirs = [demonstrated(call, tools.get(call.name)) for call in demonstration.calls]
        broken = [one.call.name for one in theirs if one.arguments is None]
        if broken:
            return judged(self, None, "bad_demonstration", f"malformed arguments of {', '.join(broken)}")
        note = "; ".join(dict.fromkeys(one.schema.problem for one in theirs if one.schema.problem))
        try:
            _check_names(candidate, theirs, action.calls)
            self._check_arguments(theirs, action.calls)
        except _Refusal as refusal:
            return judged(self, 0.0, refusal.reason, "; ".join(part for part in (refusal.detail, note) if part))
        return judged(self, 1.0, "match", note)

    def _check_arguments(self, theirs: Sequence[Demonstrated], ours: Sequence[ToolCall]) -> None:
        decoded = [_decoded(call, theirs) for call in ours]
        tolerance = Tolerance(self.rel_tol, self.abs_tol)
        edges: list[list[int]] = []
        first = ""
        for call, arguments in zip(ours, decoded, strict=True):
            fits: list[int] = []
            for at, one in enumerate(theirs):
                if one.call.name == call.name:
                    found = difference(one.arguments, arguments, one.schema.parameters, tolerance)
                    if found is None:
                        fits.append(at)
                    first = first or f"{call.name}: {found}" if found else first
            edges.append(fits)
        if -1 in match(edges):
            raise _Refusal("wrong_arguments", first)


def _check_names(candidate: Candidate, theirs: Sequence[Demonstrated], ours: Sequence[ToolCall]) -> None:
    """Raise _Refusal unless the action calls the demonstrated tools as often as the demonstration does."""
    if not ours:
        raise _Refusal("wrong_kind", "message instead of call")
    expected, names = [one.call.name for one in theirs], [call.name for call in ours]
    tools = candidate.trajectory.tools
    if tools is not None:
        known = {tool.name for tool in tools}.union(expected)
        for name in names:
            if name not in known:
                raise _Refusal("unknown_tool", name)
    if len(names) != len(expected):
        raise _Refusal(
            "surplus_calls" if len(names) > len(expected) else "missing_calls", f"{len(names)} of {len(expected)} calls"
        )
    if sorted(names) != sorted(expected):
        raise _Refusal("wrong_tool", f"{', '.join(names)} instead of {', '.join(expected)}")


def _decoded(call: ToolCall, theirs: Sequence[Demonstrated]) -> Decoded:
    """The arguments, valid by the tool's schema if every demonstration of the tool is. Raises _Refusal."""
    arguments = arguments_of(call)
    if arguments.value is None:
        raise _Refusal("bad_arguments", f"{call.name}: {arguments.error}")
    schemas = [one.schema for one in theirs if one.call.name == call.name]
    schema = next((one for one in schemas if one.validator is None), schemas[0])
    try:
        fault = schema.fault(arguments.value)
    except BROKEN:  # the schema cannot be applied to these arguments: the comparison alone decides
        return arguments.value
    if fault is not None:
        raise _Refusal("invalid_arguments", f"{call.name}: {fault}")
    return arguments.value
