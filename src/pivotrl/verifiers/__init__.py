"""Verifiers: what makes an action acceptable at a state, r(s, a) = 1[a in M(s)] (Eq. 6), and `verify`, the one way in.

docs/verifiers.md says what each accepts, what the reason codes mean, and how to write one.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import Field, fields, is_dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Final, cast

from pivotrl.errors import ConfigError
from pivotrl.plugins import installed, made, remember, remembered
from pivotrl.protocols import Verifier
from pivotrl.run_directory import check_name
from pivotrl.storage import content_hash
from pivotrl.types import Candidate, Completion, Verdict
from pivotrl.verifiers.auto import AutoVerifier
from pivotrl.verifiers.base import asked, judged
from pivotrl.verifiers.code_edit import CodeEditVerifier
from pivotrl.verifiers.compose import ComposedVerifier
from pivotrl.verifiers.exact import ExactVerifier
from pivotrl.verifiers.execution import ExecutionVerifier
from pivotrl.verifiers.judge import JudgeVerifier
from pivotrl.verifiers.message import MessageVerifier
from pivotrl.verifiers.nemo_gym_multi_harness import MultiHarnessVerifier
from pivotrl.verifiers.nemo_gym_single_step import SingleStepVerifier
from pivotrl.verifiers.nemo_gym_swe_pivot import SwePivotVerifier
from pivotrl.verifiers.nemo_gym_terminus import TerminusVerifier
from pivotrl.verifiers.plugin import PluginVerifier, load_plugin
from pivotrl.verifiers.schema import SchemaVerifier
from pivotrl.verifiers.search import SearchVerifier
from pivotrl.verifiers.shell import ShellVerifier
from pivotrl.verifiers.specs import COMPOSITIONS, Setting, Spec, parse_spec, read_settings
from pivotrl.verifiers.tool_call import ToolCallVerifier
from pivotrl.verifiers.tool_name import ToolNameVerifier

__all__ = ["VERIFIERS", "load_verifier", "taken_over", "verifier_id", "verify"]

_PARTS = (SchemaVerifier, ToolCallVerifier, MessageVerifier, ShellVerifier, CodeEditVerifier, SearchVerifier)
_NEMO_GYM = (SingleStepVerifier, SwePivotVerifier, TerminusVerifier, MultiHarnessVerifier)
_ALL = (AutoVerifier, *_PARTS, ToolNameVerifier, ExactVerifier, ExecutionVerifier, JudgeVerifier, *_NEMO_GYM)
_COMPOSED = [f"{name}(...)" for name in COMPOSITIONS]
VERIFIERS: Final[Mapping[str, type]] = MappingProxyType({kind.name: kind for kind in _ALL})


def load_verifier(spec: str) -> Verifier:
    """A verifier from `name`, `name:key=value,key=value`, a place, or a composition. Raises ConfigError.

    A name is one of `VERIFIERS` or of an installed package; at a place is a function, or a class of the Protocol.
    Settings are a verifier's fields; those of its members (`auto`) are its settings, too. `specs` has the grammar.
    """
    found = _load(parse_spec(spec))
    if _reaches_out(spec):
        remember(spec)
    return found


def _reaches_out(spec: str) -> bool:
    """Whether a verifier is code of the user's, runs commands unconfined, or sends a key to a server."""
    waiting = [parse_spec(spec)]
    for one in waiting:
        waiting += one.members
        own = one.members or (one.name != JudgeVerifier.name and one.name in {*VERIFIERS, *installed("verifier")})
        if not own or re.search(r"unsafe_exec|@(?!pivotrl\b)", one.behind or ""):
            return True
    return False


def taken_over(spec: str, run: object) -> str:
    """What a run directory names. Raises ConfigError where that reaches out, and the user never named it."""
    if _reaches_out(spec) and not remembered(spec):
        raise ConfigError(
            f"verifier {spec!r}: only {run} names it, and it runs code or asks a server; say --verifier "
            f"{shlex.quote(spec)} if you trust it"
        )
    return spec


def _load(spec: Spec) -> Verifier:
    if spec.members:
        return ComposedVerifier(spec.name, tuple(map(_load, spec.members)))
    named = spec.name in VERIFIERS or spec.name in installed("verifier")
    kind = VERIFIERS.get(spec.name) or load_plugin(spec.name if named else spec.text, [*VERIFIERS, *_COMPOSED])
    settings = read_settings(spec.name, spec.behind if named else None, _known(kind))
    if isinstance(kind, PluginVerifier):
        return kind
    return cast(Verifier, made(partial(_made, kind, settings), f"verifier {spec.text!r}", Verifier))


def _fields(kind: object) -> tuple[Field[Any], ...]:
    return fields(kind) if is_dataclass(kind) else ()


def _members(kind: object) -> dict[str, Any]:
    factories: dict[str, Any] = {one.name: one.default_factory for one in _fields(kind)}
    return {name: factory for name, factory in factories.items() if factory in VERIFIERS.values()}


def _known(kind: object) -> dict[str, Setting]:
    """The settings of a verifier and of its members with their defaults."""
    own = {one.name: one.default for one in _fields(kind) if isinstance(one.default, Setting)}
    return own | {key: value for member in _members(kind).values() for key, value in _known(member).items()}


def _made(kind: type, settings: Mapping[str, Setting]) -> Any:
    members = {name: _made(member, settings) for name, member in _members(kind).items()}
    return kind(**members, **{one.name: settings[one.name] for one in _fields(kind) if one.name in settings})


def verifier_id(verifier: Verifier | str) -> str:
    """16 hexadecimal digits that change with name, version and settings; of an id, itself."""
    if isinstance(verifier, str):
        return check_name(verifier)
    facts = {"name": verifier.name, "version": verifier.version, "settings": dict(verifier.settings)}
    return content_hash(facts)


def verify(verifier: Verifier, candidate: Candidate, completion: Completion) -> Verdict:
    """The verdict on what came back from a model call; with `asked` the only place that turns failures into verdicts.

    An unparsable text is a wrong action: 0. A call that brought nothing back, and a verifier that raises or gives no
    value from 0 to 1, leave the action unscored. Raises nothing but what is no `Exception`, such as KeyboardInterrupt.
    """
    action = completion.action
    if action is None:
        detail = completion.parse_error or ""
        if completion.finish_reason == "error":
            return judged(verifier, None, "no_completion", detail)
        return judged(verifier, 0.0, "unparsable", detail)
    return asked(verifier, candidate, action)
