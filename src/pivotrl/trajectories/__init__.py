"""Readers of trajectory formats. A format is told by content, never by a file's name.

A third format takes one file with a class of the `TrajectoryReader` protocol and one entry in `READERS`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pydantic import JsonValue

from pivotrl.errors import ConfigError, InputError
from pivotrl.trajectories.dialects import refusal
from pivotrl.trajectories.jsonfile import read_values
from pivotrl.trajectories.messages import place
from pivotrl.trajectories.nemo_gym import NemoGym
from pivotrl.trajectories.openai_chat import OpenAIChat
from pivotrl.trajectories.tau_bench import TauBench
from pivotrl.trajectories.toolfile import read_tool_lists, tools_for
from pivotrl.types import Source, Trajectory, TrajectoryReader

__all__ = ["READERS", "read_path", "read_tool_lists", "reader_names", "tools_for"]

_CHAT: Final = OpenAIChat()
READERS: Final[tuple[TrajectoryReader, ...]] = (TauBench(), NemoGym(), _CHAT)
"""In the order in which they are asked: the most particular first."""


def reader_names() -> tuple[str, ...]:
    return tuple(reader.name for reader in READERS)


def read_path(path: Path, format: str = "auto") -> Iterator[Trajectory]:
    """Yield the trajectories of one file, one at a time; JSON Lines never lie in memory as a whole.

    Raises MissingError (no such file), ConfigError (no such format) or InputError: a line that is not JSON, a field of
    the wrong type, a format that is recognised and not read, or content that no reader knows.
    """
    readers = [reader for reader in READERS if format in ("auto", reader.name)]
    if not readers:
        raise ConfigError(f"format {format!r}: use auto or one of {', '.join(reader_names())}")
    for line, value in _joined(read_values(path)):
        whole = Source(file=str(path), format=format, line=line)
        for record, source in _records(value, whole, readers):
            reader = _reader(record, source, readers)
            yield from reader.read(
                record, Source(file=source.file, format=reader.name, line=source.line, index=source.index)
            )


def _records(value: JsonValue, source: Source, readers: list[TrajectoryReader]) -> Iterator[tuple[JsonValue, Source]]:
    """A value that a reader claims is one record; a list of anything else holds records."""
    if not isinstance(value, list) or any(reader.claims(value) for reader in readers):
        yield value, source
        return
    for index, item in enumerate(value):
        yield item, Source(file=source.file, format=source.format, line=source.line, index=index)


def _reader(record: JsonValue, source: Source, readers: list[TrajectoryReader]) -> TrajectoryReader:
    reader = next((reader for reader in readers if reader.claims(record)), None)
    reason = refusal(record) if reader is None or reader is _CHAT else None
    if reason is not None:
        raise InputError(f"{place(source)}: {reason}")
    if reader is None:
        found = f"keys {', '.join(list(record)[:6])}" if isinstance(record, dict) else f"a {type(record).__name__}"
        asked = ", ".join(reader.name for reader in readers)
        raise InputError(f"{place(source)}: no known trajectory format: looked for {asked}; found {found}")
    return reader


def _joined(values: Iterator[tuple[int | None, JsonValue]]) -> Iterator[tuple[int | None, JsonValue]]:
    """Put a logged response that follows its request on a line of its own into one record with it."""
    held: tuple[int | None, dict[str, JsonValue]] | None = None
    for line, value in values:
        if held is not None and isinstance(value, dict) and "response" in value and "request" not in value:
            yield held[0], {**held[1], **value}
            held = None
            continue
        if held is not None:
            yield held
            held = None
        if isinstance(value, dict) and "request" in value and "response" not in value:
            held = line, value
        else:
            yield line, value
    if held is not None:
        yield held
