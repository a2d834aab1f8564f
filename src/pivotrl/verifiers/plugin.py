"""A user's own function as a verifier, given as `package.module:function`, `FILE.py:function` or an installed name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import ClassVar

import numpy as np
from pydantic import JsonValue

from pivotrl.plugins import find, module_hash, takes_two
from pivotrl.types import Action, Candidate, Verdict
from pivotrl.verifiers.base import judged

UserFunction = Callable[[Candidate, Action], object]


@dataclass(frozen=True, slots=True)
class PluginVerifier:
    """Calls `function(candidate, action) -> Verdict | float | bool | None`; None leaves the action unscored.

    Its version is the hash of the module's source file, so an edit makes it another verifier; modules that it imports
    are not covered. What it raises or returns wrongly becomes `verifier_error` in `pivotrl.verifiers.verify`.
    """

    settings: ClassVar[Mapping[str, JsonValue]] = {}
    name: str
    version: str
    function: UserFunction

    def __call__(self, candidate: Candidate, action: Action) -> Verdict:
        """The function's word as a verdict. Raises TypeError for any other type, and whatever the function raises."""
        value = self.function(candidate, action)
        if isinstance(value, Verdict):
            return value
        if value is None:
            return judged(self, None, "verifier_declined")
        if not isinstance(value, Real | np.bool_):
            raise TypeError(f"{self.name} returned {type(value).__name__}; return a Verdict, float, bool or None")
        number = float(value)
        return judged(self, number, "accepted" if number == 1 else "refused" if number == 0 else "graded")


def load_plugin(spec: str, built_in: Iterable[str]) -> PluginVerifier | type:
    """The function as a verifier, or a verifier's class, by an installed name or its place. Raises ConfigError."""
    function, module = find("verifier", spec, built_in)
    if isinstance(function, type):
        return function
    judge = takes_two(function, f"verifier {spec!r}", "judge(candidate, action) -> bool")
    return PluginVerifier(spec, module_hash(module), judge)
