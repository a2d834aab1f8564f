"""Readers of trajectory formats. A format is told by content, never by a file's name.

A further format takes one file with a class of the `TrajectoryReader` protocol and one entry in `READERS`; where all
records of a file make one history, of the `SessionReader` protocol and in `SESSIONS`. Others bring theirs (`others`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, pairwise
from pathlib import Path
from typing import Final, NamedTuple

from pydantic import JsonValue

from pivotrl.errors import InputError
from pivotrl.protocols import Record, SessionReader, TrajectoryReader
from pivotrl.run_directory import AnyPath
from pivotrl.trajectories.anthropic import Anthropic
from pivotrl.trajectories.atif import Atif
from pivotrl.trajectories.claude_code import ClaudeCode
from pivotrl.trajectories.codex import Codex
from pivotrl.trajectories.dialects import refusal
from pivotrl.trajectories.folders import Input, find
from pivotrl.trajectories.jsonfile import parse
from pivotrl.trajectories.langchain import LangChain
from pivotrl.trajectories.messages import dig, place, read_tools
from pivotrl.trajectories.mini_swe_agent import MiniSweAgent
from pivotrl.trajectories.nemo_gym import Measured, NemoGym
from pivotrl.trajectories.openai_chat import OpenAIChat, goes_on, join_logs, unclear
from pivotrl.trajectories.opencode import OpenCode
from pivotrl.trajectories.openhands import OpenHands
from pivotrl.trajectories.others import installed_readers, load_reader
from pivotrl.trajectories.responses import Responses
from pivotrl.trajectories.rows import RowReader, prompt_response, r2e_gym, sharegpt
from pivotrl.trajectories.sources import File, read_file
from pivotrl.trajectories.swe_agent import SweAgent
from pivotrl.trajectories.tau_bench import TauBench
from pivotrl.types import Source, Tool, Trajectory

__all__ = [
    "READERS", "SESSIONS", "Input", "Refusal", "Taken", "Unclear", "cut", "find",
    "read_input", "read_path", "read_tool_lists",
]  # fmt: skip

READERS: Final[tuple[TrajectoryReader, ...]] = (
    TauBench(), NemoGym(), Responses(), SweAgent(), OpenHands(), MiniSweAgent(), Atif(), OpenCode(),
    *(RowReader(messages.__name__, messages) for messages in (r2e_gym, sharegpt, prompt_response)),
    LangChain(), Anthropic(), OpenAIChat(),
)  # fmt: skip
"""In the order in which they are asked: the most particular first."""
SESSIONS: Final[tuple[SessionReader, ...]] = (OpenHands(), Codex(), ClaudeCode())
"""Asked before `READERS`, with the first record of a file."""


class Refusal(NamedTuple):
    """A record that is not read: not_json, unknown_format or bad_record, and `FILE:LINE: what is wrong`."""

    reason: str
    text: str


class Told(NamedTuple):
    """What the pivot row tells of others' rollouts whose trajectory follows; perhaps nothing."""

    measured: tuple[Measured, ...]


class Taken(NamedTuple):
    """What an input, or a part of it, was taken for."""

    format: str
    why: str


class Unclear(NamedTuple):
    """The key of a row whose value says something of outcome or task that was not understood."""

    key: str


Event = Trajectory | Refusal | Taken | Told | Unclear


def read_input(item: Input, format: str = "auto") -> Iterator[Event]:
    """Yield the trajectories of an input, one at a time; JSON Lines never lie in memory as a whole.

    What cannot be read is a Refusal in its place. Raises MissingError (no such file), ConfigError (no such format), or
    InputError where nothing can be read, or nothing more.
    """
    sessions, readers = _asked(format)
    damaged: list[Refusal] = []
    records = _sound(item.records(), damaged)
    first = next(records, None)
    begun = [] if first is None or item.files[0].start else [reader for reader in sessions if reader.begins(first[1])]
    records, source = chain([first] if first else [], records), Source(file=item.label, format=format)
    read: Iterator[Event] = _read_records(records, source, readers)
    if first is not None and begun:
        yield Taken(begun[0].name, _why(first[1]))
        read = begun[0].read_session(records, replace(source, format=begun[0].name))
    for event in read:
        yield from damaged
        damaged.clear()
        yield event
    yield from damaged


def cut(inputs: Sequence[Input], count: int, format: str = "auto") -> list[tuple[tuple[int, Input], ...]]:
    """`count` shares of about equal bytes: inputs with their numbers, in order; JSON Lines are cut between records."""
    sizes = [sum(file.path.stat().st_size for file in item.files) for item in inputs]
    shares: list[list[tuple[int, Input]]] = [[] for _ in range(count)]
    limit, before, sessions = max(1, -(-sum(sizes) // count)), 0, _asked(format)[0]
    for number, (item, size) in enumerate(zip(inputs, sizes, strict=True)):
        ends = [n * limit - before for n in range(before // limit + 1, -(-(before + size) // limit))]
        for start, stop in pairwise([0, *_edges(item, ends, sessions), None]):
            file = replace(item.files[0], start=start or 0, stop=stop)
            share = shares[min((before + file.start) // limit, count - 1)]
            share.append((number, replace(item, files=(file, *item.files[1:]))))
        before += size
    return [tuple(share) for share in shares]


def _edges(item: Input, wanted: Sequence[int], sessions: Sequence[SessionReader]) -> list[int]:
    """Where lines begin, near these bytes, so that what lies between is records of their own; none where it is not."""
    file, edges = item.files[0], [0]
    if item.join is not None or file.member is not None or not wanted:
        return []
    with file.path.open("rb") as stream:
        try:
            first = parse(stream.readline())
        except ValueError:
            return []
        if not isinstance(first, dict) or any(reader.begins(first) for reader in sessions):
            return []
        for offset in wanted:
            stream.seek(offset - 1)
            stream.readline()
            edges.append(max(edges[-1], stream.tell()))
            while (line := stream.readline()) and goes_on(line):
                edges[-1] = stream.tell()
    return sorted({*edges} - {0})


def _sound(records: Iterator[Record | InputError], damaged: list[Refusal]) -> Iterator[Record]:
    for record in records:
        if isinstance(record, InputError):
            damaged.append(Refusal("not_json", str(record)))
        else:
            yield record


def _read_records(values: Iterator[Record], source: Source, readers: Sequence[TrajectoryReader]) -> Iterator[Event]:
    taken: set[str] = set()
    for line, value in join_logs(values):
        records: list[tuple[int | None, JsonValue]] = [(None, value)]
        if isinstance(value, list) and not any(reader.claims(value) for reader in readers):
            records = list(enumerate(value))
        for index, record in records:
            here = replace(source, line=line, index=index)
            reader = _reader(record, place(here), readers)
            if isinstance(reader, Refusal):
                yield reader
                continue
            if reader.name not in taken:
                taken.add(reader.name)
                yield Taken(reader.name, _why(record))
            if isinstance(reader, NemoGym):
                yield Told(tuple(reader.measured(record, place(here))))
            try:
                read = reader.read(record, replace(here, format=reader.name))
                yield from read
                if isinstance(record, dict) and not isinstance(reader, NemoGym):
                    yield from map(Unclear, unclear(record, read))
            except InputError as error:
                yield Refusal("bad_record", str(error))
            except RecursionError:
                yield Refusal("bad_record", f"{place(here)}: nested too deeply; fix or remove the record")


def _asked(format: str) -> tuple[list[SessionReader], list[TrajectoryReader]]:
    """Who is asked about a file: with auto everybody, those of installed packages first."""
    if format == "auto":
        return [*installed_readers(), *SESSIONS], [*installed_readers(), *READERS]
    sessions = [one for one in SESSIONS if one.name == format]
    readers = [one for one in READERS if one.name == format]
    if sessions or readers:
        return sessions, readers
    names = dict.fromkeys(["auto", *(one.name for one in SESSIONS), *(one.name for one in READERS)])
    other = load_reader(format, names)
    return [other], [other]


def _why(record: JsonValue) -> str:
    """What a reader saw, in words."""
    if not isinstance(record, dict):
        return f"a {type(record).__name__}"
    return f"keys {', '.join(map(repr, list(record)[:6]))}"


def read_path(path: AnyPath, format: str = "auto") -> Iterator[Trajectory]:
    """Yield the trajectories of one file. Raises what `read_input` does, and InputError for what it refuses."""
    for event in read_input(Input(str(path), (File(str(path), Path(path)),)), format):
        if isinstance(event, Refusal):
            raise InputError(event.text)
        if isinstance(event, Trajectory):
            yield event


def _reader(record: JsonValue, where: str, readers: Sequence[TrajectoryReader]) -> TrajectoryReader | Refusal:
    reader = next((reader for reader in readers if reader.claims(record)), None)
    reason = refusal(record) if reader is None or reader is READERS[-1] else None
    if reason is not None:
        return Refusal("unknown_format", f"{where}: {reason}")
    if reader is None:
        found = f"keys {', '.join(list(record)[:6])}" if isinstance(record, dict) else f"a {type(record).__name__}"
        asked = ", ".join(reader.name for reader in readers)
        return Refusal("unknown_format", f"{where}: no known trajectory format: looked for {asked}; found {found}")
    return reader


def read_tool_lists(path: Path) -> list[tuple[Tool, ...]]:
    """The distinct tool lists of a file, for trajectories that do not say which tools there were.

    The file is a JSON list of schemas, an object of schemas by name, an object with `tools`, or JSON Lines whose rows
    hold `tools` or `responses_create_params.tools`. Raises MissingError or InputError.
    """
    lists: dict[tuple[str, ...], tuple[Tool, ...]] = {}
    for record in read_file(File(str(path), path)):
        if isinstance(record, InputError):
            raise record
        line, value = record
        places = dig(value, "responses_create_params", "tools"), dig(value, "tools"), value
        given = next((found for found in places if found is not None), None)
        if tools := read_tools(given, f"{path}:{line or 1}: tools"):
            lists.setdefault(tuple(tool.name for tool in tools), tools)
    if not lists:
        raise InputError(f"{path}: no tool schemas in it; give a JSON list of {{name, description, parameters}}")
    return list(lists.values())
