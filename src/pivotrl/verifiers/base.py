"""What verifiers share: settings, verdicts in one line, a safe way to ask, decoded arguments, and who was called."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from numbers import Real
from typing import ClassVar

from pydantic import JsonValue

from pivotrl.errors import ConfigError
from pivotrl.protocols import Verifier
from pivotrl.types import Action, Arguments, Candidate, ToolCall, Verdict

DETAIL_LIMIT = 400

Refusal = tuple[str, str]
"""Why an action is wrong: the reason code and a detail."""


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """A verifier whose settings are its fields. `version` counts the changes of what it accepts."""

    name: ClassVar[str]
    version: ClassVar[str] = "1"

    @property
    def settings(self) -> Mapping[str, JsonValue]:
        return asdict(self)


def judged(verifier: Verifier, value: float | None, reason: str, detail: str = "") -> Verdict:
    """A verdict under the verifier's name; a long detail is cut."""
    return Verdict(
        value=value, reason=reason, verifier=verifier.name, version=verifier.version, detail=detail[:DETAIL_LIMIT]
    )


def asked(verifier: Verifier, candidate: Candidate, action: Action) -> Verdict:
    """A verifier's word; where it raises or gives no value from 0 to 1 the action is unscored (`verifier_error`)."""
    try:
        verdict = verifier(candidate, action)
    except (Exception, SystemExit) as error:  # on purpose: a verifier may be anybody's code, and must not stop a run
        return judged(verifier, None, "verifier_error", f"{type(error).__name__}: {error}")
    if problem := _problem(verdict):
        return judged(verifier, None, "verifier_error", problem)
    value = verdict.value
    return verdict if value is None or type(value) is float else replace(verdict, value=float(value))  # numpy's floats


def _problem(verdict: object) -> str | None:
    """What is wrong with a verifier's return value."""
    if not isinstance(verdict, Verdict):
        return f"TypeError: returned {type(verdict).__name__}, not a Verdict"
    value: object = verdict.value
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, Real):
        return f"TypeError: the value is a {type(value).__name__}, not a float"
    return None if 0 <= float(value) <= 1 else f"ValueError: the value {value} is not from 0 to 1"


def decided(verifier: Verifier, refusal: Refusal | None) -> Verdict:
    """0 with the refusal's reason, 1 without one."""
    return judged(verifier, 1.0, "match") if refusal is None else judged(verifier, 0.0, *refusal)


def said(action: Action) -> str:
    """The text of an action without outer whitespace."""
    return (action.text or "").strip()


def arguments_of(call: ToolCall) -> Arguments:
    """The decoded arguments, where absent or blank ones are the empty object.

    Servers send "" for a call without arguments; whether the tool may be called so is for its schema and the
    demonstration to say. Anything else that is no JSON object stays an error.
    """
    if call.arguments is None or not call.arguments.strip():
        return Arguments(value={})
    return call.parsed


def malformed(demonstration: Action) -> str:
    """Which demonstrated calls cannot be compared with anything, in words; empty when all can."""
    broken = [call.name for call in demonstration.calls if arguments_of(call).value is None]
    return f"malformed arguments of {', '.join(broken)}" if broken else ""


def other_calls(demonstration: Action, action: Action) -> Refusal | None:
    """Why an action is of another kind or does not call each tool as often as the demonstration; None if it does."""
    if action.kind != demonstration.kind:
        return "wrong_kind", f"{action.kind} instead of {demonstration.kind}"
    theirs, ours = (Counter(call.name for call in one.calls) for one in (demonstration, action))
    if ours == theirs:
        return None
    reason = "surplus_calls" if ours > theirs else "missing_calls" if ours < theirs else "wrong_tool"
    return reason, f"{', '.join(ours.elements())} instead of {', '.join(theirs.elements())}"


def check_range(name: str, value: float, high: float = math.inf) -> None:
    """Raise ConfigError unless 0 <= value <= high and finite."""
    if not (math.isfinite(value) and 0 <= value <= high):
        bounds = "0 or more" if high == math.inf else f"from 0 to {high:g}"
        raise ConfigError(f"verifier setting {name}={value}: use a number {bounds}")


def check_choice(name: str, value: str, choices: Collection[str]) -> None:
    """Raise ConfigError unless the value is one of the choices."""
    if value not in choices:
        raise ConfigError(f"verifier setting {name}={value}: use one of {', '.join(filter(None, choices))}")
