"""`ingest`: files of any known format -> trajectories, candidates, split and audit in a run directory.

Everything is read once (twice with --infer-tools). Nothing of a run that was there changes before everything has been
read, and a run that was not is not begun.
"""

from __future__ import annotations

import shutil
import tempfile
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Annotated, Any, Final, get_args

import tyro

from pivotrl.candidates import INDEX_NAME, CandidateStore, TrajectoryRef, line_hash
from pivotrl.chat import ChatFormat
from pivotrl.errors import ConfigError, InputError
from pivotrl.importing import Imports
from pivotrl.ingest_result import IngestResult
from pivotrl.intake import Event, IntakeSettings, Read, Share, Turn, chat_of, infer_tools, read_all, seldom_collected
from pivotrl.ledger import Ledger, timed
from pivotrl.logs import Progress
from pivotrl.models import TOKENIZER_FILES, resolve, tokenizer_hash
from pivotrl.run_directory import AnyPath, RunDirectory
from pivotrl.splits import Ties, connect, split_groups
from pivotrl.storage import FileLock, dump_json, file_hash, write_atomic, write_json
from pivotrl.trajectories import Input, Refusal, Taken, Unclear, find, read_tool_lists
from pivotrl.types import SkippedTurn, Split, candidate_id

PART: Final = "part-00000.jsonl"
_KEPT: Final = 1000
"""Refusals of one file that are written down; all are counted."""
_DAMAGE: Final = ("bad_arguments", "orphan_in_prefix")
"""Reasons of a skipped turn that are the file's fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestConfig(IntakeSettings):
    """Read trajectories of any known format into a run directory, and say of every turn whether it is a candidate."""

    paths: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="PATHS...", help_behavior_hint="")]
    """Files, directories, globs, archives, - (standard input), or hf:OWNER/NAME (a dataset of the Hub).

    A record or a file that cannot be read is left out with its reason, but a file given by name has to hold something.
    """
    run: AnyPath
    """The run directory; made when it is not there."""
    tools: Path | None = None
    """A file of tool schemas. A trajectory that does not say its tools gets them when every name it calls is there."""
    infer_tools: bool = False
    """Where tools stay unknown, take those that are called in all trajectories of one format and domain."""
    strict: bool = False
    """Fail at the first record or file that cannot be read, and at the first turn with broken calls or results."""
    dedupe: bool = False
    """Leave out trajectories with the same tools and messages as an earlier one."""
    workers: int = 0
    """Processes that read, all of it to the same result; 0: as many as there are processors and 64 MB for each."""
    validation_fraction: float = 0.1
    """Share of the candidates for validation, by whole tasks."""
    test_fraction: float = 0.1
    """Share of the candidates for the test split, by whole tasks."""
    seed: int = 0
    """Which tasks go where."""
    overwrite: bool = False
    """Replace the trajectories of a run that holds some; its profiles stay and no longer fit."""


def ingest(config: IngestConfig) -> IngestResult:
    """Read the files and write the run. Raises ConfigError, MissingError, InputError, BusyError or StorageError."""
    run = RunDirectory(config.run)
    _check(config, run)
    lists = [] if config.tools is None else read_tool_lists(config.tools)
    chat = chat_of(config)
    with ExitStack() as stack:
        inputs = find(config.paths, run.path.resolve(), stack)
        lock = stack.enter_context(FileLock(run.path / ".ingest.lock"))
        stack.enter_context(timed(Ledger(run.ledger), "ingest", "ingest"))
        stack.enter_context(seldom_collected())
        for left in run.path.glob(".shares-*"):  # by an ingest that was killed
            shutil.rmtree(left, ignore_errors=True)
        for left in run.trajectories.glob(f".{PART}.*.tmp"):
            left.unlink()
        begun = any(path != lock.path for path in run.path.iterdir())
        intake = _Intake(config, inputs, stack)
        try:
            inferred = infer_tools(inputs, config.format) if config.infer_tools else {}
            share = Share(inputs=tuple(enumerate(inputs)), settings=config, lists=lists, inferred=inferred)
            with closing(read_all(share, chat, config.workers, run.path)) as events:  # workers end first
                write_atomic(run.trajectories / PART, intake.lines(events))
        except BaseException:
            if not begun:
                shutil.rmtree(run.path, ignore_errors=True)
            raise
        intake.finish(run, chat)
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
    if config.workers < 0:
        raise ConfigError(f"workers {config.workers}: use 0 (by the size of the files) or a number of processes")
    if config.chat_template is not None and config.tokenizer is None:
        raise ConfigError("--chat-template measures states together with a tokenizer; add --tokenizer DIRECTORY_OR_ID")
    if not config.overwrite and run.manifest.exists() and "ingest/ingest" in run.stages():
        raise ConfigError(
            f"{run.path} holds trajectories already; name all files in one ingest, use another --run, or --overwrite"
        )


class _Intake:
    """One ingest. What it leaves in memory is counts, names and hashes; never trajectories or turns."""

    def __init__(self, config: IngestConfig, inputs: Sequence[Input], stack: ExitStack) -> None:
        self.config, self.inputs = config, inputs
        self.result = IngestResult(outcomes=dict.fromkeys(("full", "below full", "unknown"), 0))
        self.ties: dict[str, Ties] = {}
        self.taken: dict[int, dict[str, str]] = {}
        """What each input that was read was taken for, and why."""
        self._index, self._rows, self._audit, self._refused = (
            stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
            for _ in range(4)
        )
        self._rows_of, self._bytes_of = array("Q"), array("Q")
        """How many candidates each trajectory has, and how much room their rows take."""
        self._reads = self._unmeasured = 0
        self._reasons, self._names, self._skips, self._tools, self._masked = (Counter[str]() for _ in range(5))
        self._depths = Counter[int]()
        self._imports = Imports()
        self._progress = stack.enter_context(Progress("trajectories ingested", None))
        self._gym_rows: dict[bytes, str] = {}
        """The id of what a row of NeMo Gym demonstrates, by state and action."""
        self._whole: dict[bytes, str] = {}
        """The first trajectory with this digest."""
        self._states, self._actions = array("Q"), set[bytes]()

    def lines(self, events: Iterable[Event]) -> Iterator[bytes]:
        """The lines of the part file. Raises InputError for a bad file given by name, or when none can be read."""
        offset, number, before = 0, -1, 0
        refusals: list[Refusal] = []
        for event in map(self._imports.sound, chain(events, [-1])):
            if isinstance(event, Read):
                self._reads += 1
                self._progress.advance()
                line = self._take(event, offset)
                offset += len(line)
                yield line
            elif isinstance(event, Taken):
                self.taken.setdefault(number, {}).setdefault(event.format, event.why)
            elif isinstance(event, Unclear):
                self.result.unclear[event.key] = self.result.unclear.get(event.key, 0) + 1
            elif isinstance(event, Refusal):
                if self.config.strict:
                    raise InputError(event.text)
                refusals += [event] if len(refusals) < _KEPT else []
                self._reasons[event.reason] += 1
            elif event != number:
                self._end(number, refusals, self._reads > before)
                number, before, refusals = event, self._reads, []
        if not self.ties:
            raise InputError(f"no file of {len(self.inputs)} could be read; the first: {self.result.refused[0]}")

    def _end(self, number: int, refusals: Sequence[Refusal], read: bool) -> None:
        """Of an input that was read in parts. Raises InputError where nothing of one given by name could be."""
        if number >= 0 and not (read or refusals):
            text = f"{self.inputs[number].label}: no trajectory in it; nothing to learn from"
            refusals = [Refusal("no_trajectory", text)]
        if not refusals:
            return
        for refusal in refusals:
            self._refused.write(dump_json(refusal._asdict()) + b"\n")
        if self.config.strict or (not read and self.inputs[number].named):
            raise InputError(refusals[0].text)
        if read:
            self.result.refused_records = dict(Counter(self.result.refused_records) + self._reasons)
        else:
            self.taken.pop(number, None)
            self.result.refused.append(refusals[0].text)
        self._reasons.clear()

    def _take(self, read: Read, offset: int) -> bytes:
        """Count a trajectory; its line, none for a copy that is left out."""
        result, (at, _, _, expected, *_) = self.result, read.turns[-1]
        if read.measured is not None and expected in self._gym_rows:
            self._imports.add(self._gym_rows[expected], read.measured)
            result.repeated += 1
            return b""
        copied = self._whole.get(read.digest)
        result.copies += copied is not None
        dropped = copied is not None and self.config.dedupe
        name, line, hash_ = ("", b"", "") if dropped else self._named(read)
        if read.measured is not None:  # of a copy, the turn that was there before is the candidate
            self._gym_rows[expected] = candidate_id(copied or name, at)
            self._imports.add(self._gym_rows[expected], read.measured)
        if dropped:
            return b""
        self._whole.setdefault(read.digest, name)
        self.ties[name] = read.ties._replace(ids=(f"id:{name}", *read.ties.ids[1:]))
        ref = TrajectoryRef(id=name, part=PART, offset=offset, length=len(line), hash=hash_)
        self._index.write(dump_json(ref) + b"\n")
        result.trajectories += 1
        result.outcomes["unknown" if read.outcome is None else "below full" if read.outcome < 1 else "full"] += 1
        result.tools_known += read.tools != "unknown"
        result.tools_matched += read.tools == "matched"
        result.tools_inferred += read.tools == "inferred"
        self._masked.update(read.masked)
        self._unmeasured += read.unmeasured
        self._take_turns(name, read.turns)
        return line

    def _named(self, read: Read) -> tuple[str, bytes, str]:
        """Under an id that is new to the run: the id, the line, and its hash."""
        name = read.id
        while name in self.ties:
            self._names[read.id] += 1
            name = f"{read.id}~{self._names[read.id] + 1}"
        if name == read.id:
            return name, read.line, read.hash
        line = read.line.replace(b'"id":' + dump_json(read.id), b'"id":' + dump_json(name), 1)
        return name, line, line_hash(line)

    def _take_turns(self, name: str, turns: Sequence[Turn]) -> None:
        rows, depths, tools = list[bytes](), list[int](), list[str]()
        for depth, (turn, called, state, action, reason, detail) in enumerate(turns):
            if reason := reason or ("duplicate" if action in self._actions else ""):
                if self.config.strict and reason in _DAMAGE:
                    raise InputError(f"{name}: assistant turn {depth + 1}: {reason} ({detail}); fix or remove it")
                self._skips[reason] += 1
                skip = SkippedTurn(trajectory_id=name, turn=turn, reason=reason, detail=detail)
                self._audit.write(dump_json(skip) + b"\n")
                continue
            self._states.append(int.from_bytes(state[:8]))
            self._actions.add(action)
            depths.append(depth)
            tools += called
            row = {"id": candidate_id(name, turn), "trajectory_id": name, "turn": turn, "depth": depth}
            row |= {"kind": "call" if called else "message", "tools": called}
            rows.append(dump_json(row)[:-1] + b"\n")
        self.result.assistant_turns += len(turns)
        self._depths.update(depths)
        self._tools.update(tools)
        self._rows_of.append(len(rows))
        self._bytes_of.append(self._rows.write(b"".join(rows)))

    def finish(self, run: RunDirectory, chat: ChatFormat | None) -> None:
        """Split, and write everything but the trajectories."""
        config, result = self.config, self.result
        group_of = connect(self.ties)
        groups = [group_of[name] for name in self.ties]
        sizes = Counter[str]()
        for group, count in zip(groups, self._rows_of, strict=True):
            if count:
                sizes[group] += count
        split_of = split_groups(
            sizes, validation=config.validation_fraction, test=config.test_fraction, seed=config.seed
        )
        self._sum_up(sizes, split_of)
        if chat is not None:
            refused = f"; as bytes / 4 where its template refuses them: {self._unmeasured}" if self._unmeasured else ""
            result.tokens = f"counted with the tokenizer {config.tokenizer}{refused}"
        self._write(run, groups, split_of)
        if self._gym_rows:
            store = CandidateStore(run, being_made=True)
            result.imported = self._imports.write(run, store.rows("train"))
            result.held_out = self._imports.measured(store.rows(kept=lambda row: row.split != "train"))
        made = [run.trajectories / INDEX_NAME, run.candidates, run.split, run.audit, run.refused]
        run.record_stage("ingest", "ingest", self._facts(chat), made)

    def _sum_up(self, sizes: Counter[str], split_of: Mapping[str, Split]) -> None:
        """Put what was counted into the result; `sizes` are the candidates of each group."""
        import numpy as np  # every worker would load it

        result = self.result
        result.files, result.groups = len(self.taken), len(sizes)
        result.candidates = dict.fromkeys(get_args(Split), 0)
        for group, size in sizes.items():
            result.candidates[split_of[group]] += size
        result.repeated_states = len(self._states) - np.unique(np.array(self._states)).size
        result.skips = dict(self._skips.most_common())
        result.by_tool, result.masked = dict(self._tools.most_common()), dict(self._masked.most_common())
        result.by_depth = {str(depth): self._depths[depth] for depth in sorted(self._depths)}
        taken = [pair for item in self.taken.values() for pair in item.items()]
        why, counts = dict(reversed(taken)), Counter(name for name, _ in taken)
        result.formats = {f"{name} ({why[name]})": n for name, n in counts.most_common()}
        assert sizes.total() + self._skips.total() == result.assistant_turns, "a turn was lost"

    def _write(self, run: RunDirectory, groups: Sequence[str], split_of: Mapping[str, Split]) -> None:
        """Write the files; `groups` are those of the trajectories, in their order."""
        write_atomic(run.trajectories / INDEX_NAME, _again(self._index))
        write_json(run.split, {"seed": self.config.seed, "groups": dict(sorted(split_of.items()))})
        write_atomic(run.audit, _again(self._audit))
        write_atomic(run.refused, _again(self._refused))
        ends = {
            group: b',"split":"%b","group":%b}\n' % (split.encode(), dump_json(group))
            for group, split in split_of.items()
        }
        rows, blocks = _again(self._rows), zip(groups, self._bytes_of, strict=True)
        write_atomic(run.candidates, (rows.read(size).replace(b"\n", ends[group]) for group, size in blocks if size))

    def _facts(self, chat: ChatFormat | None) -> dict[str, Any]:
        """Settings, versions, inputs and counts for the manifest; nothing that depends on where the run lies."""
        config = self.config
        settings = {key: value for key, value in asdict(config).items() if key not in ("run", "overwrite", "workers")}
        read = [(self.inputs[number], taken) for number, taken in self.taken.items()]
        counts = {key: value for key, value in asdict(self.result).items() if key != "held_out" or value}
        facts: dict[str, Any] = {
            "config": settings,
            "seed": config.seed,
            "inputs": [
                {"file": item.label, "hash": file_hash(item.files[0].path), "taken": taken} for item, taken in read
            ],
            "tools": None if config.tools is None else file_hash(config.tools),
            "tokenizer": None,
            "counts": counts,
        }
        if config.tokenizer is not None and chat is not None:
            import transformers

            facts["tokenizer"] = {
                "tokenizer": tokenizer_hash(resolve(config.tokenizer, TOKENIZER_FILES)),
                "chat_template": chat.template_hash,
                "transformers": transformers.__version__,
            }
        return facts


def _again(spool: IO[bytes]) -> IO[bytes]:
    spool.seek(0)
    return spool
