"""Readers of trajectory formats. A format is told by content, never by a file's name.

A further format takes one file with a class of the `TrajectoryReader` protocol and one entry in `READERS`; where all
records of a file make one history, of the `SessionReader` protocol and in `SESSIONS`. Others bring theirs (`others`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Final

from pydantic import JsonValue

from pivotrl.errors import InputError
from pivotrl.protocols import SessionReader, TrajectoryReader
from pivotrl.storage import AnyPath
from pivotrl.trajectories.dialects import refusal
from pivotrl.trajectories.jsonfile import read_values
from pivotrl.trajectories.messages import dig, place, read_tools
from pivotrl.trajectories.nemo_gym import Measured, NemoGym, join_rollouts
from pivotrl.trajectories.openai_chat import OpenAIChat, join_logs
from pivotrl.trajectories.others import installed_readers, load_reader
from pivotrl.trajectories.tau_bench import TauBench
from pivotrl.types import Source, Tool, Trajectory

__all__ = ["READERS", "SESSIONS", "read_measured", "read_path", "read_tool_lists"]

READERS: Final[tuple[TrajectoryReader, ...]] = (TauBench(), NemoGym(), OpenAIChat())
"""In the order in which they are asked: the most particular first."""
SESSIONS: Final[tuple[SessionReader, ...]] = ()
"""Asked before `READERS`, with the first record of a file."""


def read_path(path: AnyPath, format: str = "auto") -> Iterator[Trajectory]:
    """Yield the trajectories of one file, one at a time; raises as `read_measured` does."""
    return (trajectory for trajectory, _ in read_measured(path, format))


def read_measured(path: AnyPath, format: str = "auto") -> Iterator[tuple[Trajectory, Sequence[Measured]]]:
    """Yield the trajectories of one file, one at a time, with what it tells of rollouts at their last turn.

    JSON Lines never lie in memory as a whole.

    Raises MissingError (no such file), ConfigError (no such format) or InputError: a line that is not JSON, a field of
    the wrong type, a format that is recognised and not read, or content that no reader knows.
    """
    sessions, readers = _asked(format)
    path = Path(path)
    values = read_values(path)
    first = next(values)
    session = next((reader for reader in sessions if reader.begins(first[1])), None)
    values = chain([first], values)
    if session is not None:
        source = Source(file=str(path), format=session.name)
        yield from ((one, ()) for one in session.read_session(values, source))
        return
    inputs = path.with_name(f"{path.stem}_materialized_inputs.jsonl")
    if inputs.exists():
        values = join_rollouts(values, read_values(inputs))
    for line, value in join_logs(values):
        records: list[tuple[int | None, JsonValue]] = [(None, value)]
        if isinstance(value, list) and not any(reader.claims(value) for reader in readers):
            records = list(enumerate(value))
        for index, record in records:
            where = place(Source(file=str(path), format=format, line=line, index=index))
            reader = _reader(record, where, readers)
            found = reader.measured(record) if isinstance(reader, NemoGym) else ()
            source = Source(file=str(path), format=reader.name, line=line, index=index)
            yield from ((one, found) for one in reader.read(record, source))


def _asked(format: str) -> tuple[list[SessionReader], list[TrajectoryReader]]:
    """Who is asked about a file: with auto everybody, those of installed packages first."""
    if format == "auto":
        return [*installed_readers(), *SESSIONS], [*installed_readers(), *READERS]
    sessions = [one for one in SESSIONS if one.name == format]
    readers = [one for one in READERS if one.name == format]
    if sessions or readers:
        return sessions, readers
    other = load_reader(format, ["auto", *(one.name for one in SESSIONS), *(one.name for one in READERS)])
    return [other], [other]


def _reader(record: JsonValue, where: str, readers: Sequence[TrajectoryReader]) -> TrajectoryReader:
    reader = next((reader for reader in readers if reader.claims(record)), None)
    reason = refusal(record) if reader is None or reader is READERS[-1] else None
    if reason is not None:
        raise InputError(f"{where}: {reason}")
    if reader is None:
        found = f"keys {', '.join(list(record)[:6])}" if isinstance(record, dict) else f"a {type(record).__name__}"
        asked = ", ".join(reader.name for reader in readers)
        raise InputError(f"{where}: no known trajectory format: looked for {asked}; found {found}")
    return reader


def read_tool_lists(path: Path) -> list[tuple[Tool, ...]]:
    """The distinct tool lists of a file, for trajectories that do not say which tools there were.

    The file is a JSON list of schemas, an object of schemas by name, an object with `tools`, or JSON Lines whose rows
    hold `tools` or `responses_create_params.tools`. Raises MissingError or InputError.
    """
    lists: dict[tuple[str, ...], tuple[Tool, ...]] = {}
    for line, value in read_values(path):
        places = dig(value, "responses_create_params", "tools"), dig(value, "tools"), value
        given = next((found for found in places if found is not None), None)
        if tools := read_tools(given, f"{path}:{line or 1}: tools"):
            lists.setdefault(tuple(tool.name for tool in tools), tools)
    if not lists:
        raise InputError(f"{path}: no tool schemas in it; give a JSON list of {{name, description, parameters}}")
    return list(lists.values())
