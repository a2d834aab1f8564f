"""`ingest`: files of any known format -> trajectories, candidates, split and audit in a run directory.

A file given by name is read once; one out of a directory twice, first to see that all of it is good. Nothing of a run
that was there changes before everything has been read, and a run that was not is not begun.
"""

from __future__ import annotations

import glob
import hashlib
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Final

import tyro

from pivotrl.candidates import INDEX_NAME, CandidateRules, TrajectoryRef, extract, line_hash
from pivotrl.chat import BUILTIN_TEMPLATES, ChatFormat, RenderError
from pivotrl.errors import ConfigError, InputError, MissingError
from pivotrl.importing import Imports
from pivotrl.ledger import Ledger, timed
from pivotrl.logs import Progress
from pivotrl.models import TOKENIZER_FILES, ModelSettings, load_chat, resolve, tokenizer_hash
from pivotrl.splits import Ties, connect, split_groups, ties_of
from pivotrl.storage import AnyPath, FileLock, RunDirectory, dump_json, file_hash, write_atomic, write_json, write_jsonl
from pivotrl.trajectories import read_measured, read_tool_lists
from pivotrl.trajectories.nemo_gym import Measured, NemoGym
from pivotrl.types import CandidateRow, SkippedTurn, State, Tool, Trajectory, candidate_id

PART: Final = "part-00000.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestConfig(CandidateRules):
    """Read trajectories of any known format into a run directory, and say of every turn whether it is a candidate."""

    paths: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="PATHS...")]
    """Files, directories or globs. What cannot be read in a directory is refused with its reason; the rest goes on."""
    run: AnyPath
    """The run directory; made when it is not there."""
    format: str = "auto"
    """auto, or the name of one format: then everything must be of it."""
    tools: Path | None = None
    """A file of tool schemas. A trajectory that does not say its tools gets them when every name it calls is there."""
    tokenizer: str | None = None
    """Measure states with the tokenizer and chat template of this Hugging Face model directory or id."""
    chat_template: str | None = None
    """Jinja file, or the name of a shipped template (`chatml-tools`), to use instead of the tokenizer's own."""
    validation_fraction: float = 0.1
    """Share of the candidates for validation, by whole tasks."""
    test_fraction: float = 0.1
    """Share of the candidates for the test split, by whole tasks."""
    seed: int = 0
    """Which tasks go where."""
    overwrite: bool = False
    """Replace the trajectories of a run that holds some; its profiles stay and no longer fit."""


@dataclass(slots=True, kw_only=True)
class IngestResult:
    """What came in: candidates + skips are all assistant turns."""

    files: int = 0
    trajectories: int = 0
    assistant_turns: int = 0
    candidates: dict[str, int] = field(default_factory=dict)
    """By split."""
    groups: int = 0
    """Tasks, or sets of trajectories with a common opening, that have candidates."""
    skips: dict[str, int] = field(default_factory=dict)
    """Turns by reason."""
    unknown_outcomes: int = 0
    tools_known: int = 0
    """Trajectories whose tools are known, the matched ones included."""
    tools_matched: int = 0
    """Trajectories whose tools came from `--tools`."""
    repeated: int = 0
    """Rows of NeMo Gym that came before, as the second rollout of an action does; they are no trajectories here."""
    imported: dict[str, int] = field(default_factory=dict)
    """Train candidates of profiles that came with the data, by the profile's name."""
    refused: list[str] = field(default_factory=list)
    """Files that were not read, each with its reason."""
    tokens: str = "estimated as bytes / 4"
    """How state lengths were measured."""

    def lines(self) -> list[str]:
        """The summary for people."""
        splits = ", ".join(f"{split} {n}" for split, n in self.candidates.items())
        skipped = sum(self.skips.values())
        return [
            f"{self.trajectories} trajectories from {self.files} files, {self.assistant_turns} assistant turns",
            f"{sum(self.candidates.values())} candidates in {self.groups} groups: {splits}",
            *(f"the {split} split is empty" for split, n in self.candidates.items() if not n),
            f"{skipped} turns skipped" + (":" if skipped else ""),
            *(f"  {reason}: {n}" for reason, n in self.skips.items()),
            f"outcome unknown in {self.unknown_outcomes} trajectories",
            f"tools known in {self.tools_known} trajectories ({self.tools_matched} by --tools)",
            f"state lengths: {self.tokens}",
            *([f"{self.repeated} rows repeat an earlier one"] if self.repeated else []),
            *(
                f"profile {name} came with the data, for {n} candidates, measured elsewhere: `select --profile {name}`"
                for name, n in self.imported.items()
            ),
            *(f"refused {file}" for file in self.refused),
        ]


def ingest(config: IngestConfig) -> IngestResult:
    """Read the files and write the run. Raises ConfigError, MissingError, InputError, BusyError or StorageError."""
    run = RunDirectory(config.run)
    _check(config, run)
    files = _find(config.paths, run.path.resolve())
    lists = [] if config.tools is None else read_tool_lists(config.tools)
    chat = None if config.tokenizer is None else _chat(config.tokenizer, config.chat_template)
    intake = _Intake(config, lists, chat)
    lock = FileLock(run.path / ".ingest.lock")
    with lock, timed(Ledger(run.ledger), "ingest", "ingest"):
        begun = any(path != lock.path for path in run.path.iterdir())
        try:
            write_atomic(run.trajectories / PART, intake.lines(files))
        except BaseException:
            if not begun:
                shutil.rmtree(run.path, ignore_errors=True)
            raise
        intake.finish(run)
    return intake.result


def _check(config: IngestConfig, run: RunDirectory) -> None:
    if not config.paths:
        raise ConfigError("no files: give files, directories or globs to ingest")
    fractions = config.validation_fraction, config.test_fraction
    if not (min(fractions) >= 0 and sum(fractions) < 1):
        raise ConfigError(
            f"validation and test fractions {fractions}: use numbers from 0 that leave something to train on"
        )
    if not config.max_state_tokens >= 0:
        raise ConfigError(f"max_state_tokens {config.max_state_tokens}: use 0 (off) or a number of tokens")
    if config.chat_template is not None and config.tokenizer is None:
        raise ConfigError("--chat-template measures states together with a tokenizer; add --tokenizer DIRECTORY_OR_ID")
    if not config.overwrite and run.manifest.exists() and "ingest/ingest" in run.stages():
        raise ConfigError(
            f"{run.path} holds trajectories already; name all files in one ingest, use another --run, or --overwrite"
        )


def _chat(spec: str, template: str | None) -> ChatFormat:
    """The chat format that states are measured in. Raises MissingError, InputError or ConfigError."""
    try:
        return load_chat(spec, ModelSettings(chat_template=template))[0]
    except ConfigError:
        shipped = ", ".join(BUILTIN_TEMPLATES)
        raise ConfigError(
            f"tokenizer {spec!r} has no chat template; pass --chat-template FILE, or one of {shipped}"
        ) from None


@dataclass(frozen=True, slots=True)
class _Input:
    path: Path
    label: str
    named: bool = False


def _find(paths: Sequence[str], run: Path) -> list[_Input]:
    """Every file once, in the order given, directories sorted; nothing out of the run itself."""
    found: dict[Path, _Input] = {}
    for text in paths:
        path = Path(text)
        tops = [path] if path.exists() else [Path(name) for name in sorted(glob.glob(text, recursive=True))]  # noqa: PTH207
        if not tops:
            raise MissingError(f"{text}: no such file or directory; check the path")
        inputs = [item for top in tops for item in _walk(top) if run not in item.path.resolve().parents]
        if path.is_file():
            inputs = [_Input(path, path.name, named=True)]
        if not inputs:
            raise InputError(f"{text}: no files in it; give a directory that holds JSON or JSON Lines")
        for item in inputs:
            found.setdefault(item.path.resolve(), item)
    return list(found.values())


def _walk(top: Path) -> Iterator[_Input]:
    if top.is_file():
        yield _Input(top, top.name)
    for path in sorted(top.rglob("*")):
        name = path.relative_to(top)
        if path.is_file() and not any(part.startswith(".") for part in name.parts):
            yield _Input(path, name.as_posix())


class _Intake:
    """One ingest. What it leaves in memory is counts, rows, reasons and names; never trajectories."""

    def __init__(self, config: IngestConfig, lists: list[tuple[Tool, ...]], chat: ChatFormat | None) -> None:
        self.config, self.lists, self.chat = config, lists, chat
        self.result = IngestResult()
        self.files: list[_Input] = []
        self.refs: list[TrajectoryRef] = []
        self.rows: list[CandidateRow] = []
        self.skips: list[SkippedTurn] = []
        self.ties: dict[str, Ties] = {}
        self.unmeasured = 0
        self.imports = Imports()
        self._seen: set[bytes] = set()
        self._rows: dict[bytes, str] = {}
        """Of rows of NeMo Gym, the id of what they demonstrate."""

    def lines(self, files: Sequence[_Input]) -> Iterator[bytes]:
        """The lines of the part file. Raises InputError for a bad file given by name, or when none can be read."""
        offset = 0
        with Progress("trajectories ingested", None) as progress:
            for given, found in self._read(files, progress):
                key = next(reversed([*_digests(given)]), b"") if given.source.format == NemoGym.name else b""
                if key in self._rows:
                    self.imports.add(self._rows[key], found)
                    self.result.repeated += 1
                    continue
                trajectory = self._complete(given)
                if key:
                    self._rows[key] = candidate_id(trajectory.id, len(trajectory.messages) - 1)
                    self.imports.add(self._rows[key], found)
                line = dump_json(trajectory) + b"\n"
                ref = TrajectoryRef(id=trajectory.id, part=PART, offset=offset, length=len(line), hash=line_hash(line))
                self.refs.append(ref)
                offset += len(line)
                self._take(trajectory)
                progress.advance()
                yield line

    def _read(self, files: Sequence[_Input], progress: Progress) -> Iterator[tuple[Trajectory, Sequence[Measured]]]:
        """The trajectories of all good files; the source is named as the user sees it, wherever the data lie."""
        for item in files:
            try:
                for _ in () if item.named else self._turns(item.path):
                    progress.advance(0, f"checking {item.label}")
            except InputError as error:
                self.result.refused.append(item.label + str(error).removeprefix(str(item.path)))
                continue
            for trajectory, found in self._turns(item.path):
                yield replace(trajectory, source=replace(trajectory.source, file=item.label)), found
            self.files.append(item)
        if not self.files:
            raise InputError(f"none of the {len(files)} files could be read; the first: {self.result.refused[0]}")

    def _turns(self, path: Path) -> Iterator[tuple[Trajectory, Sequence[Measured]]]:
        silent = True
        for trajectory, found in read_measured(path, self.config.format):
            silent = silent and all(message.role != "assistant" for message in trajectory.messages)
            yield trajectory, found
        if silent:
            raise InputError(f"{path}: no assistant turn in it; nothing to learn from")

    def _complete(self, trajectory: Trajectory) -> Trajectory:
        """Under an id that is new to the run; tools that it does not say are the first list that knows every call."""
        name, copies = trajectory.id, 1
        while name in self.ties:
            copies += 1
            name = f"{trajectory.id}~{copies}"
        tools = trajectory.tools
        if tools is None and self.lists:
            called = {call.name for message in trajectory.messages for call in message.tool_calls}
            tools = next((some for some in self.lists if called and called <= {tool.name for tool in some}), None)
            self.result.tools_matched += tools is not None
        self.result.tools_known += tools is not None
        return replace(trajectory, id=name, tools=tools)

    def _take(self, trajectory: Trajectory) -> None:
        self.ties[trajectory.id] = ties_of(trajectory)
        self.result.trajectories += 1
        self.result.unknown_outcomes += trajectory.outcome is None
        turns = zip(extract(trajectory, self.config, self._count), _digests(trajectory), strict=True)
        for depth, (turn, digest) in enumerate(turns):
            self.result.assistant_turns += 1
            if isinstance(turn, SkippedTurn):
                self.skips.append(turn)
            elif digest in self._seen:
                self.skips.append(SkippedTurn(trajectory_id=trajectory.id, turn=turn.turn, reason="duplicate"))
            else:
                self._seen.add(digest)
                self.rows.append(
                    CandidateRow(
                        id=turn.id,
                        trajectory_id=trajectory.id,
                        turn=turn.turn,
                        depth=depth,
                        kind=turn.demonstration.kind,
                        tools=tuple(call.name for call in turn.demonstration.calls),
                        split="train",
                        group="",
                    )
                )

    def _count(self, state: State) -> int | None:
        if self.chat is None:
            return None
        try:
            return len(self.chat.prompt_ids(state))
        except (RenderError, ConfigError):
            self.unmeasured += 1
            return None

    def finish(self, run: RunDirectory) -> None:
        """Split, and write everything but the trajectories."""
        config, result = self.config, self.result
        group_of = connect(self.ties)
        sizes = Counter(group_of[row.trajectory_id] for row in self.rows)
        split_of = split_groups(
            sizes, validation=config.validation_fraction, test=config.test_fraction, seed=config.seed
        )
        groups = [group_of[row.trajectory_id] for row in self.rows]
        rows = [replace(row, group=group, split=split_of[group]) for row, group in zip(self.rows, groups, strict=True)]
        by_split = Counter(row.split for row in rows)
        result.files, result.groups = len(self.files), len(sizes)
        result.candidates = {split: by_split[split] for split in ("train", "validation", "test")}
        result.skips = dict(Counter(skip.reason for skip in self.skips).most_common())
        if self.chat is not None:
            refused = f"; {self.unmeasured} states that its template refuses as bytes / 4" if self.unmeasured else ""
            result.tokens = f"counted with the tokenizer {config.tokenizer}{refused}"
        assert len(self.rows) + len(self.skips) == result.assistant_turns, "a turn was lost"
        write_jsonl(run.trajectories / INDEX_NAME, self.refs)
        write_json(run.split, {"seed": config.seed, "groups": {group: split_of[group] for group in sorted(split_of)}})
        write_jsonl(run.audit, self.skips)
        write_jsonl(run.candidates, rows)
        result.imported = self.imports.write(run, [row for row in rows if row.split == "train"])
        run.record_stage("ingest", "ingest", self._facts())

    def _facts(self) -> dict[str, Any]:
        """Settings, versions, inputs and counts for the manifest; nothing that depends on where the run lies."""
        config, chat = self.config, self.chat
        settings = {key: value for key, value in asdict(config).items() if key not in ("run", "overwrite")}
        facts: dict[str, Any] = {
            "config": {**settings, "tools": None if config.tools is None else str(config.tools)},
            "seed": config.seed,
            "inputs": [{"file": item.label, "hash": file_hash(item.path)} for item in self.files],
            "tools": None if config.tools is None else file_hash(config.tools),
            "tokenizer": None,
            "counts": asdict(self.result),
        }
        if config.tokenizer is not None and chat is not None:
            import transformers

            names = {
                "tokenizer": tokenizer_hash(resolve(config.tokenizer, TOKENIZER_FILES)),
                "chat_template": chat.template_hash,
            }
            facts["tokenizer"] = {**names, "transformers": transformers.__version__}
        return facts


def _digests(trajectory: Trajectory) -> Iterator[bytes]:
    """One of tools, state and action for every assistant turn: a log that sends its history again repeats turns."""
    state = hashlib.sha256(dump_json(trajectory.tools))
    for message in trajectory.messages:
        state.update(dump_json(replace(message, excluded=None)))
        if message.role == "assistant":
            yield state.digest()[:12]
