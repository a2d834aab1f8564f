"""Calls that do what the demonstrated calls do: r_func(s, a) = 1[a in M(s)] (Eq. 6), M(s) decided by schema and values.

Departures from the paper, which gives no rule ("normalised string/schema check"):
1. The arguments must satisfy the tool's JSON Schema (2020-12), and do the same as the demonstrated ones in the sense of
   `values.difference`: no word overlap, so `rm -rf /` never passes for `rm -rf build`. A file of rules may say for an
   argument what "the same" is (`rules`).
2. Parallel calls are unordered and must pair off one to one: missing and surplus calls are refused.
3. Except by a rule: a question may do as well as a call (`or_ask`); and where tools that are read-only by the rules are
   all that is called on both sides, one of the demonstrated calls is enough (the others can follow), and `MORE` surplus
   ones are free as long as every argument is grounded in the state.
4. Text beside the calls and call ids are ignored.
5. A schema that is broken, or that the demonstration itself violates, is left aside; the detail says so.
6. Where no call was demonstrated, or one with malformed arguments, nothing can be judged: unscored.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Final

import orjson
from pydantic import JsonValue

from pivotrl.types import Action, Candidate, Message, ToolCall, Verdict
from pivotrl.verifiers.base import BuiltIn, Refusal, arguments_of, check_range, decided, judged, malformed, other_calls
from pivotrl.verifiers.exact import identical
from pivotrl.verifiers.grounding import grounded, seen
from pivotrl.verifiers.rules import ToolRules, asks, read_rules, tool_rules
from pivotrl.verifiers.schema import Demonstrated, Schema, applicable, demonstrated
from pivotrl.verifiers.values import difference, respelt, unpaired

Object = dict[str, JsonValue]
MORE: Final = 4
"""Surplus look-ups in one turn; more are padding."""


@dataclass(frozen=True, slots=True)
class _Given:
    """A call of the action that satisfies its tool's schema."""

    name: str
    arguments: Object
    properties: Mapping[str, object]
    """Their schemas, where the tool's can be used."""


@dataclass(frozen=True, slots=True)
class ToolCallVerifier(BuiltIn):
    rel_tol: float = 1e-12
    abs_tol: float = 0.0
    """Between two floats, as `math.isclose` has it: enough for rounding; integers are compared exactly."""
    rules: str = ""
    """TOML file of rules; read at once, and kept as JSON text."""
    name = "tool_call"
    version = "5"

    def __post_init__(self) -> None:
        check_range("rel_tol", self.rel_tol, 1.0)
        check_range("abs_tol", self.abs_tol)
        object.__setattr__(self, "rules", read_rules(self.rules))

    @property
    def settings(self) -> Mapping[str, JsonValue]:
        """The rules by what they say, wherever they were read."""
        return asdict(self) | {"rules": orjson.loads(self.rules or "{}")}

    def __call__(self, candidate: Candidate, action: Action) -> Verdict:
        """1 when the calls do what the demonstrated calls do, 0 when not, unscored where none can be judged."""
        demonstration = candidate.demonstration
        if demonstration.kind == "message":
            return judged(self, None, "not_applicable", "no call was demonstrated; use message or auto")
        broken = malformed(demonstration)
        if broken:
            return judged(self, None, "bad_demonstration", broken)
        theirs = demonstrated(candidate)
        verdict = decided(self, self._refusal(candidate, theirs, action))
        details = dict.fromkeys([verdict.detail, *(one.problem for one in theirs)])
        return judged(self, verdict.value, verdict.reason, "; ".join(filter(None, details)))

    def looks_up(self, candidate: Candidate, action: Action) -> bool:
        """Whether one call stands for the demonstrated question (rule `or_ask`), with nothing made up."""
        call, tools = action.calls[0] if len(action.calls) == 1 else None, candidate.trajectory.tools
        if call is None or not asks(self.rules, call.name, candidate.demonstration.text):
            return False
        tool = next((tool for tool in tools or () if tool.name == call.name), None)
        given = self._given(call, applicable(call.name, (), tool))
        if (tools is not None and tool is None) or not isinstance(given, _Given):
            return False
        return _made_up(given, candidate.trajectory.messages[: candidate.turn]) is None

    def _refusal(self, candidate: Candidate, theirs: Sequence[Demonstrated], action: Action) -> Refusal | None:
        shown, tools = candidate.demonstration, {tool.name: tool for tool in candidate.trajectory.tools or ()}
        if action.kind == "message" and all(asks(self.rules, call.name, action.text) for call in shown.calls):
            return None
        known = tools.keys() | {call.name for call in shown.calls}
        strange = [call.name for call in action.calls if call.name not in known]
        if strange and candidate.trajectory.tools is not None:
            return "unknown_tool", strange[0]
        others = other_calls(shown, action)
        reading = self._read_only(shown.calls) and self._read_only(action.calls)
        if others and not reading:
            return others
        ours: list[_Given] = []
        for call in action.calls:
            given = self._given(call, applicable(call.name, theirs, tools.get(call.name)))
            if not isinstance(given, _Given):
                return given
            ours.append(given)
        state = candidate.trajectory.messages[: candidate.turn]
        rows = [
            {at: self._difference(one, call, state) for at, one in enumerate(theirs) if one.call.name == call.name}
            for call in ours
        ]
        left, first = unpaired(rows)
        surplus = [ours[at] for at in left]
        if reading and len(surplus) < len(ours) <= len(theirs) + MORE:
            again = next((call for call in surplus if ours.count(call) > 1), None)
            if again is not None:
                return "surplus_calls", f"{again.name}: the same call again"
            return next(filter(None, (_made_up(call, state) for call in surplus)), None)
        detail = f"{surplus[0].name}: {first}" if first else ""
        return (others or ("wrong_arguments", detail)) if surplus else None

    def _read_only(self, calls: Sequence[ToolCall]) -> bool:
        return bool(self.rules and calls) and all(tool_rules(self.rules, call.name).read_only for call in calls)

    def _given(self, call: ToolCall, schema: Schema | None) -> _Given | Refusal:
        """A call of the action, or why it cannot be right whatever was demonstrated."""
        decoded = arguments_of(call)
        if decoded.value is None:
            return "bad_arguments", f"{call.name}: {decoded.error}"
        properties = {} if schema is None else schema.document.get("properties", {})
        arguments = respelt(decoded.value, properties, tool_rules(self.rules, call.name).arguments)
        violation = schema and schema.fault(arguments)
        if violation is not None:
            return "invalid_arguments", f"{call.name}: {violation}"
        return _Given(call.name, arguments, properties)

    def _difference(self, one: Demonstrated, call: _Given, state: tuple[Message, ...]) -> str | None:
        """How a call differs from a demonstrated one of the same tool; None when it does the same."""
        close = partial(math.isclose, rel_tol=self.rel_tol, abs_tol=self.abs_tol)
        rules, theirs = tool_rules(self.rules, call.name), one.arguments or {}
        found = difference(theirs, call.arguments, one.schema and one.schema.document, close, rule=rules.arguments)
        return _elsewhere(theirs, call, rules, state) if found is None and rules.grounded else found


def _elsewhere(theirs: Object, call: _Given, rules: ToolRules, state: tuple[Message, ...]) -> str | None:
    """What is wrong with the arguments whose rule is `grounded`; None where nothing is."""
    shown, ours = ({key for key in rules.grounded if one.get(key) is not None} for one in (theirs, call.arguments))
    if shown and not ours:
        return f"arguments: none of {', '.join(rules.grounded)}"
    for key in sorted(ours):
        value, pattern = call.arguments[key], rules.grounded[key]
        if key in theirs and identical(value, theirs[key]):
            continue
        fits = not pattern or (isinstance(value, str) and re.fullmatch(pattern, value))
        if not fits or not grounded(value, call.properties.get(key), seen(state)):
            return f"arguments.{key}: {value!r} does not occur in the state"
    return None


def _made_up(call: _Given, state: tuple[Message, ...]) -> Refusal | None:
    """Which argument of a surplus call nobody mentioned."""
    for key, value in call.arguments.items():
        if not grounded(value, call.properties.get(key), seen(state)):
            return "ungrounded", f"{call.name}: arguments.{key}: {value!r} does not occur in the state"
    return None
