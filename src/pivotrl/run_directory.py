"""The run directory: where every artefact of a run lies, who wrote it, and what begun work is held to."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final

import orjson
import tyro
from pydantic import JsonValue

from pivotrl._version import __version__
from pivotrl.errors import ConfigError, InputError, MissingError, PivotRLError
from pivotrl.manifests import fault_in
from pivotrl.storage import FileLock, content_hash, dump_json, file_hash, read_json, write_json

AnyPath = Annotated[Path | str, tyro.conf.arg(metavar="PATH")]
FORMAT_VERSION: Final = 1
NAME_BYTES: Final = 100
_HASH: Final = re.compile("[0-9a-f]{16,}")


class _Inside:
    """What always lies at one place of a run directory."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, run: RunDirectory, _: object) -> Path:
        return run.path / self.name


@dataclass(frozen=True, slots=True, init=False)
class RunDirectory:
    """The layout of a run; see docs/architecture.md."""

    path: Path

    def __init__(self, path: AnyPath) -> None:
        object.__setattr__(self, "path", Path(path))

    manifest = _Inside("run.json")
    trajectories = _Inside("trajectories")
    candidates = _Inside("candidates.jsonl")
    split = _Inside("split.json")
    audit = _Inside("audit.jsonl")
    refused = _Inside("refused.jsonl")
    ledger = _Inside("ledger.jsonl")

    def profile(self, name: str) -> Path:
        return self.path / "profiles" / check_name(name)

    def pivots(self, name: str) -> Path:
        return self.path / "pivots" / f"{check_name(name)}.jsonl"

    def train(self, name: str) -> Path:
        return self.path / "train" / check_name(name)

    def evaluation(self, name: str) -> Path:
        return self.path / "eval" / check_name(name)

    def stages(self) -> dict[str, dict[str, JsonValue]]:
        """Every stage's manifest by `stage/name`. Raises MissingError for a folder that is no run, or InputError."""
        if not self.manifest.exists():
            raise MissingError(
                f"{self.path} is no run directory; make one with `pivotrl ingest FILES --run {self.path}`"
            )
        _refuse_links(self.path.absolute())
        try:
            document: Any = orjson.loads(self.manifest.read_bytes())
            version = document["format_version"]
            stages: dict[str, dict[str, JsonValue]] = {key: dict(facts) for key, facts in document["stages"].items()}
            sound = document.get("hash") in (None, content_hash(stages))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise InputError(f"{self.manifest}: not a run manifest; restore it from a copy, or ingest again") from None
        if version != FORMAT_VERSION:
            raise InputError(
                f"{self.manifest}: run format {version}, this pivotrl reads {FORMAT_VERSION}; ingest again or use the "
                "pivotrl that made it"
            )
        if not sound:
            raise InputError(f"{self.manifest}: was changed by hand; restore it from a copy, or ingest again")
        for key, facts in stages.items():
            if wrong := fault_in(key.partition("/")[0], facts):
                raise InputError(f"{self.manifest}: stages.{key}.{wrong}; restore it from a copy, or ingest again")
        return stages

    @contextlib.contextmanager
    def sound(self) -> Iterator[None]:
        """Raises InputError for what artefacts that nobody could have written do to a reader of all of them."""
        try:
            yield
        except PivotRLError:
            raise
        except (ArithmeticError, LookupError, TypeError, AttributeError, ValueError) as error:
            raise InputError(f"{self.path}: not as pivotrl writes it ({error!r}); restore it from a copy") from error

    def record_stage(self, stage: str, name: str, facts: dict[str, Any], wrote: Iterable[Path] = ()) -> None:
        """Add or replace one stage's manifest: settings, versions, hashes of inputs and of `wrote`, seed."""
        made = {str(path.relative_to(self.path)): file_hash(path) for path in sorted(wrote) if path.is_file()}
        with FileLock(self.path / ".run.lock", wait=10.0):
            stages = self.stages() if self.manifest.exists() else {}
            stages[f"{stage}/{name}"] = facts | {"version": __version__} | ({"wrote": made} if made else {})
            ordered = orjson.loads(dump_json({key: stages[key] for key in sorted(stages)}))
            document = {"format_version": FORMAT_VERSION, "hash": content_hash(ordered), "stages": ordered}
            write_json(self.manifest, document)

    def changed(self, *paths: Path) -> Iterator[tuple[Path, str]]:
        """(file, stage) of those, or of all artefacts, that no longer are what their stage wrote last."""
        wrote: dict[Path, dict[str, str]] = {}
        stages: dict[str, Any] = self.stages() if self.manifest.exists() else {}
        for key, facts in stages.items():
            for name, before in facts.get("wrote", {}).items():
                wrote.setdefault(self.path / name, {})[before] = key
        for path in paths or wrote:
            if path in wrote and path.is_file() and file_hash(path) not in wrote[path]:
                yield path, next(iter(wrote[path].values()))

    def check(self, *paths: Path) -> None:
        """Raise InputError where an artefact no longer is what its stage wrote; none of this is known of older runs."""
        for path, key in self.changed(*paths):
            stage, _, name = key.partition("/")
            raise InputError(
                f"{path}: is not what `pivotrl {stage}` ({name}) wrote last: changed by hand, or that was interrupted; "
                "restore it, or run it again"
            )


@cache
def _refuse_links(path: Path) -> None:
    """Raises InputError where a folder that stages write into may be another one, or reading waits. Looked at once."""
    # unlike rglob, walk passes over folders that another process removes meanwhile
    for one in (Path(top, name) for top, folders, files in os.walk(path) for name in (*folders, *files)):
        near = len(one.relative_to(path).parts) <= 3  # trackers make links further down
        if one.is_fifo() or (near and one.is_symlink()):
            raise InputError(f"{one}: a symbolic link or a pipe, which no run directory holds; put a copy in its place")


def hold_to(path: Path, plan: object, *, free: Collection[str] = (), hints: Mapping[str, str] | None = None) -> None:
    """Write the plan of new work; work that was begun must have been planned alike, the `free` fields aside.

    Raises ConfigError naming what changed, with the hint for it.
    """
    check_begun(path, plan, free=free, hints=hints)
    write_json(path, plan)


def check_begun(
    path: Path, plan: object, *, free: Collection[str] = (), hints: Mapping[str, str] | None = None
) -> None:
    """What `hold_to` raises, before all of the plan is known; writes nothing."""
    new = orjson.loads(dump_json(plan))
    before = read_json(path, dict[str, JsonValue]) if path.exists() else new
    changed = {name: pair for name, *pair in _changed(before, new) if name not in free}
    unknown = [name for name, (old, _) in changed.items() if old is ...]
    if unknown:
        raise ConfigError(
            f"{path.parent}: this was begun by another version of pivotrl, which did not know {', '.join(unknown)}; "
            "go on with that version, or use another --name, or delete the folder"
        )
    if changed:
        more = "".join(f"; {hint}" for name, hint in (hints or {}).items() if name in changed)
        said = ", ".join(_difference(name, old, now) for name, (old, now) in changed.items())
        raise ConfigError(
            f"{path.parent}: this was begun with other settings ({said}); use the same ones, or another --name, or "
            f"delete the folder{more}"
        )


def _difference(name: str, *values: object) -> str:
    """Both values where they are short, and no hashes."""
    old, now = map(str, values)
    short = len(old) < 20 > len(now) and not _HASH.fullmatch(old) and not _HASH.fullmatch(now)
    return f"{name}: {old} before, {now} now" if short else name.removesuffix("_id")


def _changed(before: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """(name, value before, value now) of what differs; before is `...` where the name was not there."""
    for key, value in new.items():
        old = before.get(key, ...)
        if isinstance(old, dict) and isinstance(value, dict):
            for name, one, other in _changed(old, value):
                yield f"{key}.{name}", one, other
        elif old != value:
            yield key, old, value


def check_name(name: str) -> str:
    """A name of a profile, selection, training or evaluation: one folder, nothing else. Raises ConfigError."""
    letters = all(ch.isalnum() or ch in "-_." for ch in name)
    if not 0 < len(name.encode()) <= NAME_BYTES or name.startswith(".") or not letters:
        raise ConfigError(
            f"name {name!r}: use letters, digits, '-', '_' and '.', not starting with '.', {NAME_BYTES} bytes at most"
        )
    return name
