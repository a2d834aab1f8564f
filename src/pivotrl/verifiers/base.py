"""What the built-in verifiers share: verdicts in one line, decoded arguments, range checks of settings."""

from __future__ import annotations

import math

from pydantic import JsonValue

from pivotrl.errors import ConfigError
from pivotrl.types import Action, Arguments, ToolCall, Verdict, Verifier

DETAIL_LIMIT = 400


def judged(verifier: Verifier, value: float | None, reason: str, detail: str = "") -> Verdict:
    """A verdict under the verifier's name; a long detail is cut."""
    return Verdict(
        value=value, reason=reason, verifier=verifier.name, version=verifier.version, detail=detail[:DETAIL_LIMIT]
    )


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


def shown(value: JsonValue) -> str:
    """A value for a detail, cut short."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def check_range(name: str, value: float, high: float = math.inf) -> None:
    """Raise ConfigError unless 0 <= value <= high and finite."""
    if not (math.isfinite(value) and 0 <= value <= high):
        bounds = "0 or more" if high == math.inf else f"from 0 to {high:g}"
        raise ConfigError(f"verifier setting {name}={value}: use a number {bounds}")
