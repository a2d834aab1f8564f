"""Files: JSON Lines with validation at the edge, atomic rewrites, append-only parts with one writer.

Nothing here knows what a stage does. Artefacts hold no clock values, so the same inputs give the same bytes.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import time
import zlib
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import islice
from pathlib import Path
from typing import IO, Any, Final, TypeVar

import orjson
from pydantic import TypeAdapter, ValidationError
from pydantic_core import SchemaValidator

from pivotrl.errors import BusyError, InputError, MissingError, PivotRLError, disk_error
from pivotrl.logs import say

T = TypeVar("T")
_RESTORE: Final = "restore the file, or delete it and run the stage that wrote it"
_SUM: Final = re.compile(rb',\s*"sum":\s*"([^"]*)"\s*}\s*\Z')
SUMS_FILE: Final = "sums.json"


def dump_json(value: object) -> bytes:
    """Canonical JSON of our own artefacts: dataclasses as objects, keys in field order, no spaces, UTF-8."""
    return orjson.dumps(value, default=str)


def content_hash(value: object) -> str:
    """16 hexadecimal digits that name a JSON-able value, keys sorted."""
    return hashlib.sha256(orjson.dumps(value, default=str, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]


def seed_of(name: str) -> int:
    """48 bits that name a random stream."""
    return int.from_bytes(shuffle_key(name)[:6], "little")


def shuffle_key(name: str) -> bytes:
    """Sorting by it shuffles names in a way that depends on nothing else."""
    return hashlib.sha256(name.encode()).digest()


def file_hash(path: Path) -> str:
    """16 hexadecimal digits that name a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def summed(record: object) -> bytes:
    """A line of JSON with a sum of what it holds, so that `decode` notices an edit."""
    line = dump_json(record)
    return b'%b,"sum":"%08x"}\n' % (line[:-1], zlib.crc32(line))


def write_sums(folder: Path) -> None:
    """Name the bytes of every file of a folder in `sums.json`."""
    files = [path for path in sorted(folder.iterdir()) if path.is_file() and path.name != SUMS_FILE]
    write_json(folder / SUMS_FILE, {path.name: file_hash(path) for path in files})


def check_sums(folder: Path) -> None:
    """Raise InputError where a file of `write_sums` is another now; folders without sums pass."""
    sums = read_json(folder / SUMS_FILE, dict[str, str]) if (folder / SUMS_FILE).exists() else {}
    for name, before in sums.items():
        if Path(name).name != name or not (folder / name).is_file() or file_hash(folder / name) != before:
            raise InputError(f"{folder / name}: is not what was written here; restore it, or delete the folder")


@cache
def _validator(type_: type[Any]) -> SchemaValidator:
    return SchemaValidator(_bounded(TypeAdapter(type_).core_schema))


def _bounded(schema: Any) -> Any:
    """A pydantic schema with the numbers that we write: no NaN or infinities, which would spread, no huge integers."""
    if isinstance(schema, list):
        return [_bounded(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    bounds: dict[str, dict[str, Any]] = {"float": {"allow_inf_nan": False}, "int": {"ge": -(1 << 62), "le": 1 << 62}}
    return {name: _bounded(one) for name, one in schema.items()} | bounds.get(str(schema.get("type")), {})


def decode(line: bytes, type_: type[T], where: str) -> T:
    """Validate one JSON text against a dataclass. Raises InputError naming `where` and the field."""
    found = _SUM.search(line, max(0, len(line) - 64))
    if found and b"%08x" % zlib.crc32(line[: found.start()] + b"}") != found[1]:
        raise InputError(f"{where}: is not what was written here; {_RESTORE}")
    try:
        return _validator(type_).validate_json(line)  # type: ignore[arg-type, no-any-return]
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "record"
        raise InputError(f"{where}: {field}: {first['msg']}; {_RESTORE}") from None


def decode_value(value: object, type_: type[T], where: str) -> T:
    """`decode` of a value out of somebody's JSON: it may hold integers of over 64 bits, which orjson cannot write."""
    return decode(json.dumps(value).encode(), type_, where)


def require_file(path: Path, made_by: str) -> None:
    """Raise MissingError for a file that is not there, naming the command that makes it."""
    if not path.is_file():
        done = f"run `pivotrl {made_by}` first" if made_by else "check the path, or run again what wrote it"
        raise MissingError(f"{path} is not there; {done}")


def read_jsonl(path: Path, type_: type[T], made_by: str = "") -> Iterator[T]:
    """Yield the validated records of one of our own JSON Lines files.

    Raises MissingError (naming the command that makes the file) or InputError (naming line and field).
    """
    require_file(path, made_by)
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            yield decode(line, type_, f"{path}:{number}")


def write_atomic(path: Path, data: bytes | Iterable[bytes]) -> None:
    """Replace a file in one step: a reader sees the old bytes or the new ones, never half."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            for chunk in (data,) if isinstance(data, bytes) else data:
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except PivotRLError:  # of whoever makes the chunks
        raise
    except OSError as error:
        raise disk_error(path, error) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_jsonl(path: Path, records: Iterable[object]) -> None:
    """Replace a JSON Lines file in one step."""
    write_atomic(path, (dump_json(record) + b"\n" for record in records))


def write_json(path: Path, value: object) -> None:
    """Replace a JSON document, indented for people, in one step."""
    write_atomic(path, orjson.dumps(value, default=str, option=orjson.OPT_INDENT_2) + b"\n")


def read_json(path: Path, type_: type[T], made_by: str = "") -> T:
    """Read and validate one JSON document. Raises MissingError or InputError."""
    require_file(path, made_by)
    return decode(path.read_bytes(), type_, str(path))


def _no_link(path: str, flags: int) -> int:
    """Opens no symbolic link, and waits for no pipe: a run directory may be somebody else's, and this is written to."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)


def _open_to_append(path: Path, mode: str, buffering: int = -1) -> IO[bytes]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return open(path, mode, buffering, opener=_no_link)
    except OSError as error:
        raise disk_error(path, error) from error


class FileLock:
    """A lock that the operating system drops with the process; exclusive, or shared with others that share it.

    Says after a second which process it waits for. Raises BusyError when that has held it for `wait` seconds.
    """

    def __init__(self, path: Path, *, wait: float = 0.0, shared: bool = False) -> None:
        self.path, self.wait, self.shared = path, wait, shared
        self._file = _open_to_append(path, "a+b", buffering=0)

    def __enter__(self) -> FileLock:
        start, told = time.monotonic(), False
        while not self._taken():
            waited = time.monotonic() - start
            self._file.seek(0)
            owner = self._file.read(20).decode(errors="replace").strip() or "unknown"
            if waited >= self.wait:
                self._file.close()
                raise BusyError(
                    f"{self.path.parent} is being written by process {owner}; wait for it, stop it, or use another name"
                )
            if waited > 1 and not told:
                say(f"{self.path}: waiting for process {owner}, which holds it, up to {self.wait:g} s")
                told = True
            time.sleep(0.01)
        with contextlib.suppress(OSError):  # the number is for people; a full disk must not stop the lock
            self._file.truncate(0)
            self._file.write(str(os.getpid()).encode())
        return self

    def _taken(self) -> bool:
        try:
            fcntl.flock(self._file, (fcntl.LOCK_SH if self.shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._file.truncate(0)
        self._file.close()


class Pulse:
    """True at most once in so many seconds, the first time included."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self._next = seconds, 0.0

    def __call__(self) -> bool:
        now = time.monotonic()
        due = now >= self._next
        if due:
            self._next = now + self.seconds
        return due


class PartWriter:
    """Appends whole units to one part file; a unit that did not arrive whole is as if it had never begun.

    The caller holds the folder's lock, and tells by `keep(offset)` after opening how far the file is good. With a pulse
    the disk is waited for when that is due alone: a power failure, but no kill, may cost what came since.
    """

    def __init__(self, path: Path, pulse: Pulse | None = None) -> None:
        self.path, self._pulse, self._file = path, pulse, _open_to_append(path, "ab")

    def keep(self, size: int) -> None:
        """Cut the file to its first `size` bytes."""
        self._file.truncate(size)

    def keep_lines(self) -> None:
        """Cut what a kill left of an unfinished last line."""
        with self.path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            while end:
                start = max(0, end - 4096)
                file.seek(start)
                newline = file.read(end - start).rfind(b"\n")
                end = start + newline + 1
                if newline >= 0:
                    break
        self.keep(end)

    def append(self, records: Iterable[object]) -> None:
        """Append one unit. Raises StorageError with the file as it was before."""
        data = b"".join(map(summed, records))
        before = os.fstat(self._file.fileno()).st_size
        try:
            self._file.write(data)
            self._file.flush()
            if self._pulse is None or self._pulse():
                self.sync()
        except OSError as error:
            self._abandon(before)
            raise disk_error(self.path, error) from error

    def sync(self) -> None:
        """Wait for the disk."""
        os.fsync(self._file.fileno())

    def _abandon(self, size: int) -> None:
        """Forget what is buffered and what arrived of it."""
        descriptor = os.open(self.path, os.O_WRONLY)
        with contextlib.suppress(OSError):
            self._file.close()
        os.ftruncate(descriptor, size)
        os.close(descriptor)
        self._file = self.path.open("ab")

    def __enter__(self) -> PartWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def complete_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """(end offset, line) of every line that ends in a newline: what survives a kill in the middle of an append."""
    if not path.is_file():
        return
    end = 0
    with path.open("rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                return
            end += len(line)
            yield end, line


def complete_units(path: Path, sizes: Iterable[int], spoiled: re.Pattern[bytes] | None = None) -> tuple[int, int]:
    """(whole units in a part file, the bytes that they take), for units of these many lines in this order.

    A unit with a line in which `spoiled` is found does not count, nor do those after it.
    """
    lines = complete_lines(path)
    units, good = 0, 0
    for size in sizes:
        unit = list(islice(lines, size))
        if len(unit) < size or (spoiled and any(spoiled.search(line) for _, line in unit)):
            break
        units, good = units + 1, unit[-1][0]
    return units, good


def replace_directory(made: Path, target: Path) -> None:
    """Move a finished folder to its place; a reader sees the old one, none, or the new one."""
    old = target.with_name(f".{target.name}.old")
    try:
        shutil.rmtree(old, ignore_errors=True)
        if target.exists():
            target.replace(old)
        made.replace(target)
        shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        raise disk_error(target, error) from error
