"""Reads JSON and JSON Lines, told apart by content: exact integers, raw line numbers, one record in memory at a time.

A file may begin with a byte order mark. Lone surrogates become U+FFFD, whether they come as bytes or as escapes, inside
strings of JSON too: nothing that is read here fails when it is written as UTF-8.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Final, cast

import orjson
from pydantic import JsonValue

from pivotrl.errors import InputError
from pivotrl.protocols import Record

_ESCAPES: Final = re.compile(r"(?<!\\)\\+u[dD](?:[89abAB][0-9a-fA-F]{2}\\+u[dD][c-fC-F]|[89a-fA-F])[0-9a-fA-F]{2}")
_BINARY: Final = "{}: a binary file, not JSON; give JSON or JSON Lines in UTF-8"
_SURROGATES: Final = re.compile("[\ud800-\udfff]")
LONGEST: Final = 256 << 20
"""Bytes of a line, and of a document of many lines; as JSON they take several times as much memory."""
_LARGE: Final = 8 << 20
_VALUES: Final = 20_000_000
"""Of a text with more bytes than _LARGE, at most: each takes dozens of bytes of memory."""
_DIGITS: Final = bytes.maketrans(b"123456789", b"000000000")


def parse(text: str | bytes) -> JsonValue:
    """One JSON text. NaN and Infinity are kept as floats: rewards drop them, arguments that hold one are skipped.

    Raises ValueError, also where the nesting is too deep, or the values are too many.
    """
    raw = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    if len(raw) > _LARGE and sum(map(raw.count, (b"[", b"{", b","))) > _VALUES:
        raise ValueError(f"more than {_VALUES:,} values")
    try:
        if not _may_be_huge(raw):
            return cast(JsonValue, orjson.loads(raw))
    except orjson.JSONDecodeError:
        pass  # no JSON, or such as orjson refuses: NaN, lone surrogates
    try:
        return cast(JsonValue, json.loads(mend(_decode(raw))))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _may_be_huge(raw: bytes) -> bool:
    """Whether it may hold an integer of 20 digits or more, which orjson would round: five digits at steps of four."""
    return b"00000" in raw[::4].translate(_DIGITS)


def mend(text: str) -> str:
    """A JSON text whose escapes of lone surrogates stand for U+FFFD."""
    return _ESCAPES.sub(_mended, text) if "\\ud" in text or "\\uD" in text else text


def _mended(match: re.Match[str]) -> str:
    text = match.group()
    slashes = text[: len(text) - len(text.lstrip("\\"))]
    return text if text.count("u") > 1 else slashes + "ufffd"


def read_values(lines: Iterable[bytes], label: str, first: int = 1) -> Iterator[Record | InputError]:
    """Yield (line, value) for each line of JSON Lines, or one (None, value) for a JSON document of many lines.

    A line that is not JSON is an InputError in its place, `FILE:N: not JSON (...)`. Raises InputError where nothing is
    JSON or the file is empty. The number of the first line is `first`.
    """
    numbered = ((number, raw) for number, raw in enumerate(lines, start=first) if raw and not raw.isspace())
    head = list(islice(numbered, 2))
    if first == 1:
        if not head:
            raise InputError(f"{label}: the file is empty; give one that holds trajectories")
        head[0] = head[0][0], head[0][1].removeprefix(b"\xef\xbb\xbf")
        if b"\0" in head[0][1][:1024]:
            raise InputError(_BINARY.format(label))
    opening = [_record(number, raw, label) for number, raw in head[:1]]
    is_bad = first == 1 and isinstance(opening[0], InputError)
    # before an object in the second line it is a damaged line; but where it begins a list, that may be what is damaged,
    # which is known when all lines together are no JSON
    if is_bad and (head[0][1].lstrip().startswith(b"[") or not _is_object(head[1:])):
        head = [*head, *numbered]
        whole = _document(head, label)
        if isinstance(whole, InputError) and (head[0][1].strip() == b"[" or not _is_object(head[1:2])):
            raise whole
        if not isinstance(whole, InputError):
            yield whole
            return
    yield from opening
    yield from (_record(number, raw, label) for number, raw in chain(head[1:], numbered))


def _record(number: int, raw: bytes, label: str) -> Record | InputError:
    try:
        return number, parse(raw)
    except ValueError as error:
        return _not_json(f"{label}:{number}", error)


def _is_object(lines: Sequence[tuple[int, bytes]]) -> bool:
    """Whether there is one line, and it is an object of its own."""
    return any(raw.lstrip().startswith(b"{") and isinstance(_record(number, raw, ""), tuple) for number, raw in lines)


def _document(lines: Iterable[tuple[int, bytes]], label: str) -> Record | InputError:
    """The value of all lines together; blank ones count."""
    parts: list[bytes] = []
    last = size = 0
    for number, raw in lines:
        size += len(raw)
        if size > LONGEST:
            raise InputError(f"{label}: a document of more than {LONGEST >> 20} MiB; write one record a line")
        parts += [b"\n" * (number - 1 - last), raw]
        last = number
    text = b"".join(parts)
    try:
        return None, parse(text)
    except ValueError as error:
        if isinstance(error, UnicodeDecodeError) and b"\0" in text:
            return InputError(_BINARY.format(label))
        at = error.lineno if isinstance(error, json.JSONDecodeError) else None
        at = text.count(b"\n", 0, error.start) + 1 if isinstance(error, UnicodeDecodeError) else at
        return _not_json(label if at is None else f"{label}:{at}", error)


def _not_json(where: str, error: ValueError) -> InputError:
    if isinstance(error, UnicodeDecodeError):
        return InputError(f"{where}: not UTF-8 (byte {error.start + 1}: {error.reason}); convert the file")
    reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
    return InputError(f"{where}: not JSON ({reason}); fix or remove the line")


def _decode(raw: bytes) -> str:
    text = raw.rstrip(b"\r\n").decode("utf-8", "surrogatepass")
    return text if text.isascii() else _SURROGATES.sub("\ufffd", text)
