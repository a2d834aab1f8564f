"""A user's own function as a verifier, given as `package.module:function`."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from numbers import Real
from operator import attrgetter
from pathlib import Path
from types import ModuleType

from pydantic import JsonValue

from pivotrl.errors import ConfigError
from pivotrl.storage import content_hash, file_hash
from pivotrl.types import Action, Candidate, Verdict
from pivotrl.verifiers.base import judged

Judge = Callable[[Candidate, Action], object]


class PluginVerifier:
    """Calls `function(candidate, action) -> Verdict | float | bool | None`; None leaves the action unscored.

    Its version is the hash of the module's source file, so an edit makes it another verifier; modules that it imports
    are not covered. What it raises or returns wrongly becomes `verifier_error` in `pivotrl.verifiers.verify`.
    """

    def __init__(self, name: str, version: str, function: Judge) -> None:
        self.name = name
        self.version = version
        self._function = function

    @property
    def settings(self) -> Mapping[str, JsonValue]:
        return {}

    def __call__(self, candidate: Candidate, action: Action) -> Verdict:
        """The function's word as a verdict. Raises TypeError for any other type, and whatever the function raises."""
        value = self._function(candidate, action)
        if isinstance(value, Verdict):
            return value
        if value is None:
            return judged(self, None, "verifier_declined")
        if not isinstance(value, Real):
            raise TypeError(f"{self.name} returned {type(value).__name__}; return a Verdict, float, bool or None")
        number = float(value)
        return judged(self, number, "accepted" if number == 1 else "refused" if number == 0 else "graded")


def load_plugin(spec: str) -> PluginVerifier:
    """Import `package.module:function`; as with `python -m`, the working directory goes first on the path, and stays.

    Raises ConfigError when there is no such module or function; what else the module's own code raises passes.
    """
    module_name, _, function_name = spec.partition(":")
    if not all(part.isidentifier() for part in [*module_name.split("."), *function_name.split(".")]):
        raise ConfigError(f"verifier {spec!r}: write package.module:function")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except (ImportError, SyntaxError) as error:
        message = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigError(f"verifier {spec!r}: cannot import {module_name} ({message}); check the name") from error
    try:
        function = attrgetter(function_name)(module)
    except AttributeError:
        raise ConfigError(f"verifier {spec!r}: {module_name} has no {function_name}; check the name") from None
    if not callable(function):
        raise ConfigError(f"verifier {spec!r}: {function_name} is no function")
    return PluginVerifier(spec, _source_hash(module), function)


def _source_hash(module: ModuleType) -> str:
    try:
        source = inspect.getsourcefile(module)
    except TypeError:
        source = None
    return file_hash(Path(source)) if source is not None and Path(source).exists() else content_hash(module.__name__)
