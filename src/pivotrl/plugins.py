"""Finds what others wrote: by the name that an installed package gives it, `package.module:name` or `FILE.py:name`.

Names are entry points (docs/plugins.md). Nothing of a package is imported before it is asked for.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, partial
from importlib.metadata import entry_points
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, Final

from pivotrl.errors import ConfigError, InputError, PivotRLError
from pivotrl.storage import content_hash, file_hash

FAMILIES: Final = {"reader": "readers", "verifier": "verifiers", "policy": "policies", "environment": "environments"}


@cache
def installed(family: str) -> Mapping[str, str]:
    """The places of what installed packages bring, by name; of two with one name the first on the path counts."""
    points = entry_points(group=f"pivotrl.{FAMILIES[family]}")
    return MappingProxyType({point.name: point.value for point in reversed(tuple(points))})


def _note(spec: str) -> Path:
    home = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    return home / "pivotrl" / "named" / content_hash(spec)


def remember(spec: str) -> None:
    """Note that this user named this code or server, so that runs which hold the name are taken at their word."""
    with contextlib.suppress(OSError):
        _note(spec).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        _note(spec).touch()


def remembered(spec: str) -> bool:
    """Whether this user ever named it; what a run directory alone names may be an attack."""
    return _note(spec).exists()


def listing() -> str:
    """What installed packages bring, for --help."""
    return "; ".join(f"{family} {', '.join(sorted(names))}" for family in FAMILIES if (names := installed(family)))


def find(family: str, spec: str, built_in: Iterable[str] = ()) -> tuple[object, ModuleType]:
    """An object of a family, and its module. Raises ConfigError, for an unknown name with those that there are."""
    known = installed(family)
    if spec in known:
        return load_object(known[spec], f"{family} {spec}")
    if ":" not in spec:
        names = ", ".join([*built_in, *sorted(known)]) or "none is installed"
        raise ConfigError(
            f"{family} {spec!r} is unknown; use one of these: {names}; or package.module:name, or FILE.py:name"
        )
    return load_object(spec, family)


def made(maker: Any, what: str, protocol: type) -> object:
    """What a class or function makes without arguments. Raises ConfigError where it cannot, or lacks some method."""
    try:
        thing = maker()
        lacking = sorted({name for name in vars(protocol) if not name.startswith("_")}.difference(dir(thing)))
    except PivotRLError:
        raise
    except Exception as error:  # anybody's code, and nothing has begun yet
        text = f"{what}: cannot be made ({type(error).__name__}: {error})"
        raise ConfigError(_line(text)) from None
    if lacking:
        raise ConfigError(f"{what}: it lacks {', '.join(lacking)}; see pivotrl.protocols.{protocol.__name__}")
    return thing


def takes_two(function: Any, what: str, usage: str) -> Any:
    """The function. Raises ConfigError for what cannot be called with two arguments."""
    try:
        inspect.signature(function).bind(None, None)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{what}: {error}; write {usage}") from None
    return function


@contextlib.contextmanager
def one_line(who: str) -> Iterator[None]:
    """Whatever anybody's code raises in here is one line (InputError); our own errors pass."""
    try:
        yield
    except PivotRLError:
        raise
    except Exception as error:
        raise InputError(_line(f"{who} raised {type(error).__name__}: {error}; mend it")) from error


class Guarded:
    """What `made` makes; whatever any of its methods or properties raises is one line."""

    def __init__(self, maker: Any, what: str, protocol: type) -> None:
        self._held, self._what = made(maker, what, protocol), what

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or (not hasattr(type(self._held), name) and not hasattr(self._held, name)):
            raise AttributeError(name)
        with one_line(f"{self._what}: {name}"):
            found = getattr(self._held, name)
        return partial(self._call, name, found) if callable(found) else found

    def _call(self, name: str, method: Any, *given: object, **named: object) -> Any:
        with one_line(f"{self._what}: {name} {str(given[0])[:40] if given else ''}"):
            return method(*given, **named)


def load_object(spec: str, what: str) -> tuple[object, ModuleType]:
    """The object and the module that holds it; as with `python -m`, the working directory goes first on the path.

    Raises ConfigError when there is no such module or name, or when the module's own code raises.
    """
    place, _, name = spec.rpartition(":")
    if not place or not all(part.isidentifier() for part in name.split(".")):
        raise ConfigError(f"{what} {spec!r}: write package.module:name or FILE.py:name")
    try:
        module = _from_file(Path(place)) if place.endswith(".py") else _from_package(place)
        return attrgetter(name)(module), module
    except (ImportError, SyntaxError, FileNotFoundError) as error:
        message, missing = str(error) or type(error).__name__, getattr(error, "name", None) or ""
        own = not isinstance(error, ModuleNotFoundError) or not missing or f"{place}.".startswith(f"{missing}.")
        advice = "check the name" if own else f"it imports {missing}: install that, or put it beside the file"
        raise ConfigError(_line(f"{what} {spec!r}: cannot import {place} ({message}); {advice}")) from error
    except AttributeError:
        raise ConfigError(_line(f"{what} {spec!r}: {place} has no {name}; check the name")) from None
    except Exception as error:  # anybody's code, run at import
        text = f"{what} {spec!r}: importing {place} raised {type(error).__name__}: {error}"
        raise ConfigError(_line(text)) from error


def _line(text: str) -> str:
    return " ".join(text.split())


def _from_package(name: str) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        raise ImportError(f"{name!r} is no module name")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    return importlib.import_module(name)


def _from_file(path: Path) -> ModuleType:
    """The file as a module of its own name: a `json.py` replaces nothing; its folder comes last on the path."""
    name = f"pivotrl_plugin_{content_hash([str(path.resolve()), file_hash(path)])}"
    found = importlib.util.spec_from_file_location(name, path)
    if found is None or found.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module
    if (folder := str(path.resolve().parent)) not in sys.path:
        sys.path.append(folder)  # for good: a function may import when it is called
    found.loader.exec_module(module)
    return module


def module_hash(module: ModuleType) -> str:
    """Names the source of a module, or of a package with all its modules; what else it imports is not covered."""
    source = getattr(module, "__file__", None)
    if source is None or not Path(source).exists():
        return content_hash(module.__name__)
    if Path(source).name != "__init__.py":
        return file_hash(Path(source))
    folder = Path(source).parent
    return content_hash([(str(path.relative_to(folder)), file_hash(path)) for path in sorted(folder.rglob("*.py"))])
