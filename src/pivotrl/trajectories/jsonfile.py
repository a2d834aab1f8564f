"""Reads JSON and JSON Lines, told apart by content: exact integers, raw line numbers, one record in memory at a time.

A file may be gzipped and may begin with a byte order mark. Lone surrogates become U+FFFD, whether they come as bytes or
as escapes, inside strings of JSON too: nothing that is read here fails when it is written as UTF-8.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, cast

from pydantic import JsonValue

from pivotrl.errors import InputError, MissingError

_ESCAPES: Final = re.compile(
    r"\\+u[dD][89abAB][0-9a-fA-F]{2}\\+u[dD][c-fC-F][0-9a-fA-F]{2}|\\+u[dD][89a-fA-F][0-9a-fA-F]{2}"
)
_SURROGATES: Final = re.compile("[\ud800-\udfff]")
_MAGIC: Final = (
    (b"PAR1", "a Parquet file; write its rows as JSON Lines first"),
    (b"PK\x03\x04", "a zip archive (an Inspect AI .eval log is one); unpack it first"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd; decompress it first"),
    (b"\xfd7zXZ", "compressed with xz; decompress it first"),
    (b"BZh", "compressed with bzip2; decompress it first"),
)


def parse(text: str) -> JsonValue:
    """One JSON text. NaN and Infinity are kept as floats: rewards drop them, arguments that hold one are skipped.

    Raises ValueError, also where the nesting is too deep.
    """
    if "\\ud" in text or "\\uD" in text:
        text = _ESCAPES.sub(_mend, text)
    try:
        return cast(JsonValue, json.loads(text))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _mend(match: re.Match[str]) -> str:
    text = match.group()
    slashes = text[: len(text) - len(text.lstrip("\\"))]
    return text if text.count("u") > 1 else slashes + "ufffd"


def read_values(path: Path) -> Iterator[tuple[int | None, JsonValue]]:
    """Yield (line, value) for each line of a JSON Lines file, or one (None, value) for a JSON document of many lines.

    Raises MissingError, or InputError: `FILE:N: not JSON (...)`, an empty file, a file that is not text.
    """
    lines = ((number, text) for number, text in enumerate(_lines(path), start=1) if text.strip())
    begun = False
    for number, text in lines:
        try:
            value = parse(text)
        except ValueError as error:
            if begun or (text.lstrip().startswith("{") and _is_object(next(lines, (0, ""))[1])):
                raise _not_json(f"{path}:{number}", error) from None
            yield None, _document(path)
            return
        begun = True
        yield number, value
    if not begun:
        raise InputError(f"{path}: the file is empty; give one that holds trajectories")


def _document(path: Path) -> JsonValue:
    try:
        return parse("\n".join(_lines(path)))
    except ValueError as error:
        line = f":{error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise _not_json(f"{path}{line}", error) from None


def _not_json(where: str, error: ValueError) -> InputError:
    reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
    return InputError(f"{where}: not JSON ({reason}); fix or remove the line")


def _is_object(text: str) -> bool:
    try:
        return isinstance(parse(text), dict)
    except ValueError:
        return False


def _lines(path: Path) -> Iterator[str]:
    try:
        with path.open("rb") as file:
            head = file.read(2)
        with gzip.open(path, "rb") if head == b"\x1f\x8b" else path.open("rb") as file:
            for number, raw in enumerate(file, start=1):
                if number == 1:
                    _refuse_binary(path, raw)
                yield _decode(raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw, f"{path}:{number}")
    except FileNotFoundError:
        raise MissingError(f"{path}: no such file; check the path") from None
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: cannot be read ({error}); check the file and its permissions") from None


def _decode(raw: bytes, where: str) -> str:
    try:
        text = raw.rstrip(b"\r\n").decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise InputError(f"{where}: not UTF-8 (byte {error.start + 1}: {error.reason}); convert the file") from None
    return text if text.isascii() else _SURROGATES.sub("\ufffd", text)


def _refuse_binary(path: Path, head: bytes) -> None:
    for magic, reason in _MAGIC:
        if head.startswith(magic):
            raise InputError(f"{path}: {reason}")
    if b"\0" in head[:1024]:
        raise InputError(f"{path}: a binary file, not JSON; give JSON or JSON Lines in UTF-8")
