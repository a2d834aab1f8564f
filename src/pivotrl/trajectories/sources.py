"""Files and what holds them: compression, zip and tar archives, tables, databases. Here alone containers are known.

A member of an archive is read as a stream and never written to disk under its name, which is a label and no path. What
is compressed may expand to `_RATIO` times its size (or `_FREE` bytes, if that is more): beyond that it is refused.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import re
import shutil
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, Final, cast

import zstandard
from pydantic import JsonValue

from pivotrl.errors import DependencyError, InputError, MissingError, PivotRLError, brief
from pivotrl.protocols import Record
from pivotrl.trajectories.database import MAGIC, sessions
from pivotrl.trajectories.jsonfile import LONGEST, read_values

_RATIO: Final = 200
_FREE: Final = 256 << 20
_MEMORY: Final = 256 << 20
"""That expanding one stream may take; `xz -9` asks for 65 MiB."""
_CHUNK: Final = 1 << 20
_NAME: Final = 4096
_ROWS: Final = 16
"""Rows of a table that are in memory at once."""
_UNPRINTABLE: Final = re.compile("[^ -~\u00a0-\ud7ff\ue000-\U0010ffff]")
_HIDDEN: Final = re.compile(r"(^|/)(\.[^./]|__MACOSX/)")
_XZ: Final = b"\xfd7zXZ"
_COMPRESSED: Final[tuple[tuple[bytes, Callable[[Any], Any]], ...]] = (
    (b"\x1f\x8b", gzip.open), (b"BZh", bz2.open), (_XZ, lambda file: _Xz(file)),
    (b"\x28\xb5\x2f\xfd", lambda file: zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)),
)  # fmt: skip
_ZIP: Final = (b"PK\x03\x04", b"PK\x05\x06")
_BROKEN: Final = (
    OSError, EOFError, RuntimeError, ValueError, LookupError, zlib.error, lzma.LZMAError, zipfile.BadZipFile,
    tarfile.TarError, zstandard.ZstdError,
)  # fmt: skip
"""What the standard library and zstandard raise for damaged, encrypted or unknown data."""


@dataclass(frozen=True, slots=True)
class File:
    """A file, or a member of an archive; both are known to people by their label."""

    label: str
    path: Path
    member: str | None = None
    start: int = 0
    stop: int | None = None
    """The lines that begin at `start` or later, and before `stop`."""

    @property
    def changed(self) -> tuple[int, int]:
        """When, and its size: what was kept of a file is good while that is the same."""
        return self.path.stat().st_mtime_ns, self.path.stat().st_size


def label(text: str) -> str:
    """A name that can be printed and stored, whatever bytes it is made of."""
    return _UNPRINTABLE.sub("?", text)


def read_file(file: File) -> Iterator[Record | InputError]:
    """Rows of a table, lines of JSON, or one document; errors in the place of bad lines.

    Raises InputError or MissingError where nothing can be read, or nothing more.
    """
    with _guarded(file), _opened(file) as stream:
        head = stream.peek(512)
        if head[:4] in _ZIP or head[257:262] == b"ustar":
            members(file.path, file.label)
            raise InputError(f"{file.label}: an empty archive, or one inside another; unpack it first")
        if head[:4] == b"PAR1":
            yield from _rows(stream, file.label, file.path.stat().st_size)
        elif head.startswith(MAGIC):
            if not isinstance(stream.raw, io.FileIO):  # SQLite reads the file itself
                raise InputError(f"{file.label}: a database that is packed; unpack it first")
            yield from sessions(file.path, file.label)
        else:
            yield from read_values(*_block(file, stream))


def text_of(file: File) -> str:
    """All of a file that holds text; what is no UTF-8 in it is U+FFFD. Raises InputError or MissingError."""
    with _guarded(file), _opened(file) as stream:
        data = stream.read(LONGEST + 1)
        if len(data) > LONGEST:
            raise OSError(f"a text of more than {LONGEST >> 20} MiB")
        return data.decode("utf-8", "replace")


def document(file: File) -> JsonValue:
    """The one value of a file that holds a JSON document. Raises InputError or MissingError."""
    record = next(read_file(file), None)
    if record is None:
        raise InputError(f"{file.label}: no record in it; give a file that holds one")
    if isinstance(record, InputError):
        raise record
    return record[1]


def _block(file: File, stream: io.BufferedReader) -> tuple[Iterable[bytes], str, int]:
    """The lines from `start` to `stop`, the label, and the number of the first line."""
    if not file.start:
        return _lines(stream, file.stop), file.label, 1
    counted = _counted(file.path, file.changed)
    if counted[0] >= file.start:
        counted[:] = 0, 0
    stream.seek(counted[0])
    while passed := stream.read(min(file.start - 1 - counted[0], _CHUNK)):
        counted[:] = counted[0] + len(passed), counted[1] + passed.count(b"\n")
    return _lines(stream, file.stop), file.label, 1 + counted[1] + bool(stream.readline())


@lru_cache(maxsize=1)
def _counted(path: Path, changed: tuple[int, int]) -> list[int]:
    """Bytes of a file and the newlines in them: a later share goes on counting from there."""
    return [0, 0]


def _lines(stream: io.BufferedReader, stop: int | None) -> Iterator[bytes]:
    while (stop is None or stream.tell() < stop) and (line := stream.readline(LONGEST + 1)):
        if len(line) > LONGEST:
            raise OSError(f"a line of more than {LONGEST >> 20} MiB")
        yield line


def members(path: Path, name: str) -> list[File]:
    """The files of an archive, hidden ones aside; none where the file is no archive. Raises InputError."""
    with _guarded(File(name, path)):
        archive = _archive(path, File(name, path).changed)
        if isinstance(archive, zipfile.ZipFile):
            names = [info.filename for info in archive.infolist() if not info.is_dir()]
            _check(sum(info.file_size for info in archive.infolist()), path.stat().st_size)
        else:
            last = {info.name: info for info in archive or ()}  # of several with one name, the one that is read
            names = [name for name, info in last.items() if info.isfile()]
            _check(sum(max(0, info.size) for info in last.values()), path.stat().st_size)  # holes of sparse files
        if any(len(name) > _NAME for name in names):
            raise OSError(f"a name of more than {_NAME} characters")
    shown = [text for text in names if not _HIDDEN.search(text)]
    return [File(label(f"{name}/{text}"), path, text) for text in dict.fromkeys(shown)]


@contextmanager
def _guarded(file: File) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise MissingError(f"{file.label}: no such file; check the path") from None
    except _BROKEN as error:
        if isinstance(error, PivotRLError | RecursionError):
            raise
        raise InputError(f"{file.label}: cannot be read ({brief(error)}); check the file and its permissions") from None


@contextmanager
def _opened(file: File) -> Iterator[io.BufferedReader]:
    size = file.path.stat().st_size
    if file.member is None:
        raw: IO[bytes] = file.path.open("rb")
    else:
        archive = _archive(file.path, file.changed)
        found = archive.extractfile(file.member) if isinstance(archive, tarfile.TarFile) else None
        raw = archive.open(file.member) if isinstance(archive, zipfile.ZipFile) else cast(IO[bytes], found)
    with raw:
        yield _expanded(raw, size, _unpacked(file.path, file.changed), file.member or "")


@lru_cache(maxsize=1)
def _unpacked(path: Path, changed: tuple[int, int]) -> dict[str, int]:
    """Bytes that came of each compressed member of an archive: the bound is on all of them together."""
    return {}


def _expanded(raw: IO[bytes], size: int, counts: dict[str, int], member: str = "") -> io.BufferedReader:
    """The stream without its compression, if it has one; bounded, if it has."""
    stream = raw if isinstance(raw, io.BufferedReader) else io.BufferedReader(cast(io.RawIOBase, raw))
    head = stream.peek(6)
    opener = next((opener for magic, opener in _COMPRESSED if head.startswith(magic)), None)
    return stream if opener is None else io.BufferedReader(_Bounded(opener(stream), size, counts, member), 1 << 16)


class _Xz:
    """Reads as `lzma.open` does, in bounded memory: the header names a dictionary of up to 4 GiB."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._one = file, lzma.LZMADecompressor(lzma.FORMAT_XZ, _MEMORY)

    def read(self, size: int) -> bytes:
        data = b""
        while not data:
            more = self._one.unused_data.lstrip(b"\0")
            if self._one.eof:
                while len(more) < len(_XZ) and (chunk := self._file.read(_CHUNK)):
                    more = (more + chunk).lstrip(b"\0")
                if not more.startswith(_XZ):
                    return b""
                self._one = lzma.LZMADecompressor(lzma.FORMAT_XZ, _MEMORY)
            elif self._one.needs_input and not (more := self._file.read(_CHUNK)):
                raise EOFError("it ends before its end")
            data = self._decoded(more, size)
        return data

    def _decoded(self, more: bytes, size: int) -> bytes:
        try:
            return self._one.decompress(more, size)
        except lzma.LZMAError as error:
            if "limit" not in str(error):
                raise
            raise OSError(f"it takes over {_MEMORY >> 20} MiB to expand; unpack it yourself if you trust it") from None


class _Bounded(io.RawIOBase):
    """Expanded bytes, counted; what is read again counts once."""

    def __init__(self, stream: IO[bytes], size: int, counts: dict[str, int], member: str) -> None:
        self._stream, self._size, self._count = stream, size, 0
        self._counts, self._member = counts, member

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._stream.read(len(buffer))
        self._count += len(data)
        self._counts[self._member] = max(self._counts.get(self._member, 0), self._count)
        _check(sum(self._counts.values()), self._size)
        buffer[: len(data)] = data
        return len(data)


def _check(expanded: int, size: int) -> None:
    if expanded > max(_FREE, _RATIO * size):
        raise OSError(f"it expands to more than {_RATIO} times its size; unpack it yourself if you trust it")


@lru_cache(maxsize=1)
def _archive(path: Path, changed: tuple[int, int]) -> zipfile.ZipFile | tarfile.TarFile | None:
    """The archive that a file is. A compressed tar is expanded into a nameless temporary file once."""
    with path.open("rb") as file:
        if file.read(4) in _ZIP:
            return zipfile.ZipFile(path)
        file.seek(0)
        stream = _expanded(file, path.stat().st_size, {})
        if stream.peek(512)[257:262] != b"ustar":
            return None
        if stream is file:
            return tarfile.open(path, "r:")
        copy = tempfile.TemporaryFile()  # noqa: SIM115
        shutil.copyfileobj(stream, copy)
    copy.seek(0)
    return tarfile.open(fileobj=copy, mode="r:")


def _rows(stream: IO[bytes], name: str, size: int) -> Iterator[Record]:
    """The rows of a Parquet table, numbered from 1, without the nulls that a table pads records with."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise DependencyError(f"{name}: Parquet needs pyarrow; pip install 'pivotrl[parquet]'") from None
    try:
        table = parquet.ParquetFile(stream if stream.seekable() else io.BytesIO(stream.read()))
        batches = _small(table.iter_batches(_ROWS), size)
        for number, row in enumerate((row for batch in batches for row in batch.to_pylist()), start=1):
            yield number, _unpadded(row)
    except (pyarrow.ArrowException, MemoryError) as error:
        raise OSError(str(error)) from None


def _small(batches: Iterable[Any], size: int) -> Iterator[Any]:
    """The batches of a table, as long as they expand to what they may: a text is told once, and then named in rows."""
    count = 0
    for batch in batches:
        count += batch.nbytes
        _check(count, size)
        yield batch


def _unpadded(value: Any) -> JsonValue:
    if isinstance(value, dict):
        return {str(key): _unpadded(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_unpadded(item) for item in value]
    return value if value is None or isinstance(value, str | int | float) else str(value)
