"""Verifiers: what makes an action acceptable at a state, r(s, a) = 1[a in M(s)] (Eq. 6), and `verify`, the one way in.

docs/verifiers.md says what each accepts, what the reason codes mean, and how to write one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from numbers import Real
from types import MappingProxyType
from typing import Final

from pivotrl.errors import ConfigError
from pivotrl.storage import content_hash
from pivotrl.types import Candidate, Completion, Verdict, Verifier
from pivotrl.verifiers.auto import AutoVerifier
from pivotrl.verifiers.base import judged
from pivotrl.verifiers.exact import ExactVerifier
from pivotrl.verifiers.execution import ExecutionVerifier
from pivotrl.verifiers.message import MessageVerifier
from pivotrl.verifiers.nemo_gym_multi_harness import MultiHarnessVerifier
from pivotrl.verifiers.nemo_gym_single_step import SingleStepVerifier
from pivotrl.verifiers.nemo_gym_swe_pivot import SwePivotVerifier
from pivotrl.verifiers.nemo_gym_terminus import TerminusVerifier
from pivotrl.verifiers.plugin import load_plugin
from pivotrl.verifiers.shell import ShellVerifier
from pivotrl.verifiers.tool_call import ToolCallVerifier
from pivotrl.verifiers.tool_name import ToolNameVerifier

__all__ = ["VERIFIERS", "load_verifier", "verifier_id", "verify"]

_OTHERS = (SingleStepVerifier, SwePivotVerifier, TerminusVerifier, MultiHarnessVerifier, ExecutionVerifier)
_ALL = (AutoVerifier, ToolCallVerifier, MessageVerifier, ToolNameVerifier, ExactVerifier, ShellVerifier, *_OTHERS)
VERIFIERS: Final[Mapping[str, type]] = MappingProxyType({kind.name: kind for kind in _ALL})


def load_verifier(spec: str) -> Verifier:
    """A verifier from `name`, `name:key=value,key=value` or a function's place. Raises ConfigError.

    `auto` takes the settings of both its members.
    """
    name, colon, rest = spec.partition(":")
    if name not in VERIFIERS:
        if colon:
            return load_plugin(spec)
        raise ConfigError(
            f"verifier {spec!r} is unknown; use one of {', '.join(VERIFIERS)}, or package.module:function"
        )
    kinds = (ToolCallVerifier, MessageVerifier) if name == AutoVerifier.name else (VERIFIERS[name],)
    known = {field.name: (kind, field.default) for kind in kinds for field in fields(kind)}
    owners = {key: kind for key, (kind, default) in known.items() if isinstance(default, bool | float | str)}
    settings = _settings(name, rest, {key: known[key][1] for key in owners}) if colon else {}
    built = [kind(**{key: settings[key] for key in settings if owners[key] is kind}) for kind in kinds]
    return AutoVerifier(*built) if name == AutoVerifier.name else built[0]


def _settings(name: str, text: str, known: Mapping[str, object]) -> dict[str, bool | float | str]:
    """The settings in `key=value,key=value`, each read as its default is. Raises ConfigError."""
    settings: dict[str, bool | float | str] = {}
    for part in text.split(","):
        key, equals, value = part.partition("=")
        key = key.strip()
        if not equals or key not in known or key in settings:
            hint = f"its settings are {', '.join(known)}" if known else "it has no settings"
            raise ConfigError(f"verifier {name}: {part!r} is no key=value that it knows, once each; {hint}")
        settings[key] = _setting(f"verifier {name}: {key}", value.strip(), known[key])
    return settings


def _setting(where: str, text: str, default: object) -> bool | float | str:
    if isinstance(default, str):
        return text
    if isinstance(default, bool):
        if text not in ("true", "false"):
            raise ConfigError(f"{where}={text!r} is not true or false")
        return text == "true"
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"{where}={text!r} is not a number") from None


def verifier_id(verifier: Verifier) -> str:
    """16 hexadecimal digits that change with name, version and settings."""
    facts = {"name": verifier.name, "version": verifier.version, "settings": dict(verifier.settings)}
    return content_hash(facts)


def verify(verifier: Verifier, candidate: Candidate, completion: Completion) -> Verdict:
    """The verdict on what came back from a model call; the only place that turns failures into verdicts.

    An unparsable text is a wrong action: 0. A call that brought nothing back, and a verifier that raises or gives no
    value from 0 to 1, leave the action unscored. Raises nothing but what is no `Exception`, such as KeyboardInterrupt.
    """
    action = completion.action
    if action is None:
        detail = completion.parse_error or ""
        if completion.finish_reason == "error":
            return judged(verifier, None, "no_completion", detail)
        return judged(verifier, 0.0, "unparsable", detail)
    try:
        verdict = verifier(candidate, action)
    except (
        Exception,
        SystemExit,
    ) as error:  # a broad except on purpose: a verifier may be anybody's code, and it must not stop a run
        return judged(verifier, None, "verifier_error", f"{type(error).__name__}: {error}")
    problem = _problem(verdict)
    if problem is not None:
        return judged(verifier, None, "verifier_error", problem)
    return verdict if verdict.value is None else replace(verdict, value=float(verdict.value))  # ints, numpy's floats


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
