"""`ingest`: files of any known format -> trajectories, candidates, split and audit in a run directory.

Every file is read twice: first to see that all of it is good, then to write, so a bad file leaves no half behind.
"""

from __future__ import annotations

import glob
import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Final

import tyro
from pydantic import JsonValue

from pivotrl.candidates import (
    INDEX_NAME,
    CandidateRules,
    CountTokens,
    TrajectoryRef,
    assistant_turns,
    candidate_row,
    connect,
    extract,
    group_keys,
    line_hash,
    split_groups,
)
from pivotrl.errors import ConfigError, InputError, MissingError
from pivotrl.logs import Progress
from pivotrl.storage import FileLock, RunDirectory, dump_json, file_hash, write_atomic, write_json, write_jsonl
from pivotrl.trajectories import read_path, read_tool_lists, tools_for
from pivotrl.types import CandidateRow, SkippedTurn, Tool, Trajectory

PART: Final = "part-00000.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestConfig(CandidateRules):
    """Read trajectories of any known format into a run directory, and say of every turn whether it is a candidate."""

    paths: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="PATHS...")]
    """Files, directories or globs. What cannot be read in a directory is refused with its reason; the rest goes on."""
    run: Path
    """The run directory; made when it is not there."""
    format: str = "auto"
    """auto, or the name of one format: then everything must be of it."""
    tools: Path | None = None
    """A file of tool schemas. A trajectory that does not say its tools gets them when every name it calls is there."""
    validation_fraction: float = 0.1
    """Share of the candidates for validation, by whole tasks."""
    test_fraction: float = 0.1
    """Share of the candidates for the test split, by whole tasks."""
    seed: int = 0
    """Which tasks go where."""
    overwrite: bool = False
    """Ingest again into a run that already has profiles; these stay and no longer fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A file that was not read, with the reason."""

    file: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestResult:
    """What came in: candidates + skips are all assistant turns."""

    files: int
    trajectories: int
    assistant_turns: int
    candidates: dict[str, int]
    """By split."""
    groups: int
    """Tasks, or sets of trajectories with a common opening, that have candidates."""
    skips: dict[str, int]
    """Turns by reason."""
    unknown_outcomes: int
    tools_known: int
    """Trajectories whose tools are known, the matched ones included."""
    tools_unknown: int
    tools_matched: int
    """Trajectories whose tools came from `--tools`."""
    refused: tuple[Refused, ...]
    tokens: str
    """How state lengths were measured."""

    def lines(self) -> list[str]:
        """The summary for people."""
        total = sum(self.candidates.values())
        splits = ", ".join(f"{split} {n}" for split, n in self.candidates.items())
        skipped = sum(self.skips.values())
        return [
            f"{self.trajectories} trajectories from {self.files} files, {self.assistant_turns} assistant turns",
            f"{total} candidates in {self.groups} groups: {splits}",
            *(f"the {split} split is empty" for split, n in self.candidates.items() if not n),
            f"{skipped} turns skipped" + (":" if skipped else ""),
            *(f"  {reason}: {n}" for reason, n in self.skips.items()),
            f"outcome unknown in {self.unknown_outcomes} trajectories",
            f"tools known in {self.tools_known} ({self.tools_matched} by --tools), unknown in {self.tools_unknown}",
            f"state lengths: {self.tokens}",
            *(f"refused {refused.file}: {refused.reason}" for refused in self.refused),
        ]


@dataclass(frozen=True, slots=True)
class _Input:
    path: Path
    label: str
    named: bool


@dataclass(slots=True)
class _Tally:
    """What one pass over the files leaves in memory: rows, reasons, names; never trajectories."""

    refs: list[TrajectoryRef] = field(default_factory=list)
    rows: list[CandidateRow] = field(default_factory=list)
    skips: list[SkippedTurn] = field(default_factory=list)
    keys: dict[str, tuple[str, ...]] = field(default_factory=dict)
    seen: set[bytes] = field(default_factory=set)
    counts: Counter[str] = field(default_factory=Counter)


def ingest(config: IngestConfig, count_tokens: CountTokens | None = None) -> IngestResult:
    """Read the files and write the run. `count_tokens` measures states; without it lengths are estimated.

    Raises ConfigError, MissingError, InputError or StorageError; a run directory is only touched once every named file
    has been read without an error.
    """
    run = RunDirectory(config.run)
    _check(config, run)
    lists = () if config.tools is None else read_tool_lists(config.tools)
    files, refused = _survey(_find(config.paths, config.run.resolve()), config.format)
    tally = _Tally()
    with FileLock(run.path / ".ingest.lock"):
        write_atomic(run.trajectories / PART, _consume(files, config, lists, count_tokens, tally))
        return _finish(run, config, tally, files, refused, count_tokens is not None)


def _check(config: IngestConfig, run: RunDirectory) -> None:
    if not config.paths:
        raise ConfigError("no files: give files, directories or globs to ingest")
    fractions = config.validation_fraction, config.test_fraction
    if min(fractions) < 0 or sum(fractions) >= 1:
        raise ConfigError(
            f"validation and test fractions {fractions}: use numbers from 0 that leave something to train on"
        )
    if config.max_state_tokens < 0:
        raise ConfigError(f"max_state_tokens {config.max_state_tokens}: use 0 (off) or a number of tokens")
    if not config.overwrite and any((run.path / "profiles").glob("*")):
        raise ConfigError(f"{run.path} already has profiles; use another --run, or --overwrite to ingest into it again")


def _find(paths: Sequence[str], run: Path) -> list[_Input]:
    """Every file once, in the order given, directories sorted; nothing out of the run itself."""
    found: dict[Path, _Input] = {}
    for text in paths:
        path = Path(text)
        if path.is_file():
            inputs = [_Input(path, path.name, True)]
        else:
            tops = [path] if path.is_dir() else [Path(name) for name in sorted(glob.glob(text, recursive=True))]  # noqa: PTH207
            if not tops:
                raise MissingError(f"{text}: no such file or directory; check the path")
            inputs = [item for top in tops for item in _walk(top) if run not in item.path.resolve().parents]
            if not inputs:
                raise InputError(f"{text}: no files in it; give a directory that holds JSON or JSON Lines")
        for item in inputs:
            found.setdefault(item.path.resolve(), item)
    return list(found.values())


def _walk(top: Path) -> list[_Input]:
    if top.is_file():
        return [_Input(top, top.name, False)]
    inside = ((path, path.relative_to(top)) for path in sorted(top.rglob("*")) if path.is_file())
    return [
        _Input(path, name.as_posix(), False) for path, name in inside if not any(p.startswith(".") for p in name.parts)
    ]


def _survey(inputs: Sequence[_Input], format: str) -> tuple[list[_Input], tuple[Refused, ...]]:
    """The files that can be read whole, and the others with reasons. Raises InputError for a file given by name."""
    good: list[_Input] = []
    refused: list[Refused] = []
    with Progress("trajectories checked", None) as progress:
        for item in inputs:
            try:
                turns = 0
                for trajectory in read_path(item.path, format):
                    turns += assistant_turns(trajectory)
                    progress.advance()
                if not turns:
                    raise InputError(f"{item.path}: no assistant turn in it; nothing to learn from")
                good.append(item)
            except InputError as error:
                if item.named:
                    raise
                refused.append(Refused(file=item.label, reason=_reason(error, item.path)))
    if not good:
        first = f"{refused[0].file}: {refused[0].reason}"
        raise InputError(f"none of the {len(refused)} files could be read; the first: {first}")
    return good, tuple(refused)


def _reason(error: InputError, path: Path) -> str:
    """The error without the path that a refusal names anyway."""
    text = str(error).removeprefix(str(path))
    text = re.sub(r"^:(\d+): ", r"line \1: ", text)
    return re.sub(r"^\[(\d+)\]: ", r"record \1: ", text).removeprefix(": ")


def _consume(
    files: Sequence[_Input],
    config: IngestConfig,
    lists: tuple[tuple[Tool, ...], ...],
    count: CountTokens | None,
    tally: _Tally,
) -> Iterator[bytes]:
    """Yield the lines of the part file; what else there is to know goes to the tally."""
    offset = 0
    with Progress("trajectories ingested", None) as progress:
        for read, label in ((read, item.label) for item in files for read in read_path(item.path, config.format)):
            trajectory = _with_tools(_named(read, label, tally), lists, tally)
            line = dump_json(trajectory) + b"\n"
            tally.refs.append(
                TrajectoryRef(id=trajectory.id, part=PART, offset=offset, length=len(line), hash=line_hash(line))
            )
            offset += len(line)
            _take(trajectory, config, count, tally)
            progress.advance()
            yield line


def _named(trajectory: Trajectory, label: str, tally: _Tally) -> Trajectory:
    """Under an id that is new to the run; the source is named as the user sees it, wherever the data lie."""
    name, copies = trajectory.id, 1
    while name in tally.keys:
        copies += 1
        name = f"{trajectory.id}~{copies}"
    return replace(trajectory, id=name, source=replace(trajectory.source, file=label))


def _with_tools(trajectory: Trajectory, lists: tuple[tuple[Tool, ...], ...], tally: _Tally) -> Trajectory:
    if trajectory.tools is None and lists:
        called = frozenset(call.name for message in trajectory.messages for call in message.tool_calls)
        tools = tools_for(called, lists)
        tally.counts["matched"] += tools is not None
        trajectory = replace(trajectory, tools=tools)
    tally.counts["known" if trajectory.tools is not None else "unknown"] += 1
    return trajectory


def _take(trajectory: Trajectory, config: IngestConfig, count_tokens: CountTokens | None, tally: _Tally) -> None:
    tally.keys[trajectory.id] = group_keys(trajectory)
    tally.counts["outcome"] += trajectory.outcome is None
    tally.counts["turns"] += assistant_turns(trajectory)
    found = extract(trajectory, config, count_tokens)
    digests = _digests(trajectory)
    depths = {turn: depth for depth, turn in enumerate(digests)}
    skips = found.skips
    for candidate in found.candidates:
        if digests[candidate.turn] in tally.seen:
            skips.append(SkippedTurn(trajectory_id=trajectory.id, turn=candidate.turn, reason="duplicate"))
        else:
            tally.seen.add(digests[candidate.turn])
            tally.rows.append(candidate_row(candidate, depth=depths[candidate.turn], split="train", group=""))
    tally.skips.extend(sorted(skips, key=lambda skip: skip.turn))


def _digests(trajectory: Trajectory) -> dict[int, bytes]:
    """Assistant turn -> digest of tools, state and action: a log that sends its history again repeats turns."""
    state = hashlib.sha256(dump_json(trajectory.tools))
    digests: dict[int, bytes] = {}
    for turn, message in enumerate(trajectory.messages):
        state.update(dump_json(replace(message, excluded=None)))
        if message.role == "assistant":
            digests[turn] = state.digest()[:12]
    return digests


def _finish(
    run: RunDirectory,
    config: IngestConfig,
    tally: _Tally,
    files: Sequence[_Input],
    refused: tuple[Refused, ...],
    exact: bool,
) -> IngestResult:
    """Split, and write everything but the trajectories."""
    group_of = connect(tally.keys)
    sizes = Counter(group_of[row.trajectory_id] for row in tally.rows)
    split_of = split_groups(sizes, validation=config.validation_fraction, test=config.test_fraction, seed=config.seed)
    by_split = Counter(split_of[group_of[row.trajectory_id]] for row in tally.rows)
    result = IngestResult(
        files=len(files),
        trajectories=len(tally.keys),
        assistant_turns=tally.counts["turns"],
        candidates={split: by_split[split] for split in ("train", "validation", "test")},
        groups=len(sizes),
        skips=dict(Counter(skip.reason for skip in tally.skips).most_common()),
        unknown_outcomes=tally.counts["outcome"],
        tools_known=tally.counts["known"],
        tools_unknown=tally.counts["unknown"],
        tools_matched=tally.counts["matched"],
        refused=refused,
        tokens="counted with a tokenizer" if exact else "estimated as bytes / 4",
    )
    assert len(tally.rows) + len(tally.skips) == result.assistant_turns, "a turn was lost"
    write_jsonl(run.trajectories / INDEX_NAME, tally.refs)
    write_json(run.split, {"seed": config.seed, "groups": {group: split_of[group] for group in sorted(split_of)}})
    write_jsonl(run.audit, tally.skips)
    placed = ((row, group_of[row.trajectory_id]) for row in tally.rows)
    write_jsonl(run.candidates, (replace(row, group=group, split=split_of[group]) for row, group in placed))
    run.record_stage("ingest", "ingest", _facts(config, files, result))
    return result


def _facts(config: IngestConfig, files: Sequence[_Input], result: IngestResult) -> dict[str, JsonValue]:
    """Settings, inputs and counts for the manifest; nothing that depends on where the run directory lies."""
    settings = {key: value for key, value in asdict(config).items() if key not in ("run", "overwrite")}
    tools = {} if config.tools is None else {"tools": str(config.tools), "tools_hash": file_hash(config.tools)}
    return {
        "config": {**settings, "paths": list(config.paths), **tools},
        "inputs": [{"file": item.label, "hash": file_hash(item.path)} for item in files],
        "counts": {**asdict(result), "refused": [asdict(refused) for refused in result.refused]},
    }
