"""Readers that others wrote. What one raises is one line: the file is refused, or another reader is asked about it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from typing import Any

from pydantic import JsonValue

from pivotrl.errors import ConfigError
from pivotrl.logs import say, say_once
from pivotrl.plugins import find, installed, made, one_line
from pivotrl.protocols import Record, SessionReader, TrajectoryReader
from pivotrl.storage import decode, dump_json
from pivotrl.trajectories.messages import place
from pivotrl.types import Source, Trajectory


class OtherReader:
    """A reader of either Protocol, under the name that it was asked for by, as one of both."""

    def __init__(self, name: str, reader: Any) -> None:
        self.name, self._reader = name, reader
        self.claims, self.begins = partial(self._asked, "claims"), partial(self._asked, "begins")

    def _asked(self, question: str, record: JsonValue) -> bool:
        try:
            return hasattr(self._reader, question) and bool(getattr(self._reader, question)(record))
        except Exception as error:  # anybody's code
            say_once(f"reader {self.name}: {question} raised {type(error).__name__}; it is passed over")
            return False

    def read(self, record: JsonValue, source: Source) -> list[Trajectory]:
        return list(self._read(self._reader.read, record, source))

    def read_session(self, records: Iterable[Record], source: Source) -> Iterator[Trajectory]:
        return self._read(self._reader.read_session, records, source)

    def _read(self, read: Callable[..., Iterable[object]], given: object, source: Source) -> Iterator[Trajectory]:
        where = f"{place(source)}: reader {self.name}"
        with one_line(where):
            for trajectory in read(given, source):
                yield decode(dump_json(trajectory), Trajectory, where)


def load_reader(spec: str, built_in: Iterable[str] = ()) -> OtherReader:
    """By an installed name, `package.module:name` or `FILE.py:name` of a class. Raises ConfigError."""
    make, _ = find("reader", spec, built_in)
    session = hasattr(make, "read_session")
    return OtherReader(spec, made(make, f"reader {spec!r}", SessionReader if session else TrajectoryReader))


@cache
def installed_readers() -> tuple[OtherReader, ...]:
    """All of them by name; one that cannot be loaded is said and left out."""
    found = []
    for name in sorted(installed("reader")):
        try:
            found.append(load_reader(name))
        except ConfigError as error:
            say(f"{error}; it is passed over")
    return tuple(found)
