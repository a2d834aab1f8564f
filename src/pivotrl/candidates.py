"""Candidates: which assistant turns can be asked of a policy, and how later stages read them.

A turn is a candidate unless one of these holds; the first that applies is its reason, in this order:

    (the reader's word)      scripted_greeting, loss_false, truncated, prefix_of_pivot_row, no_prompt, copied_context,
                             demonstration, synthetic, rejected_output, compaction_summary, no_model_call,
                             several_model_calls: no demonstration, or another's business;
                             unparsable_call: calls written into the text that its syntax does not read
    empty_action             neither text nor a call
    non_text_action          the action holds parts that are not text
    bad_arguments            arguments of a call that are not a JSON object
    unknown_tool             a called name that is empty, or not among the tools where they are known
    orphan_in_prefix         a call without its result before the next message of somebody, or a result without its call
    non_text_state           the state holds parts that are not text
    outcome_below_full       the episode is known to have earned less than full reward      (option keep_failed)
    tool_error               a result of the action's calls is an error                     (option keep_tool_errors)
    repeated_call            the same calls a third time in a row, or more                  (option keep_repeated)
    over_context             the state is longer than max_state_tokens

Results answer calls by id, the latest open call first; a result or a call without an id is paired by position. Calls
that were written into the text are answered by messages of the user, and not paired.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, islice
from pathlib import Path
from typing import Final

import orjson
from pydantic import JsonValue

from pivotrl.errors import InputError
from pivotrl.records import Records, records
from pivotrl.run_directory import RunDirectory
from pivotrl.storage import decode, dump_json, read_jsonl
from pivotrl.types import (
    Arguments,
    Candidate,
    CandidateRow,
    Message,
    Shared,
    SkippedTurn,
    Split,
    State,
    ToolCall,
    Trajectory,
)

CountTokens = Callable[[State], int | None]
INDEX_NAME: Final = "index.jsonl"
_Call = tuple[str, dict[str, JsonValue] | str | None]
"""The name, and the arguments as an object, or as they are."""
_Reason = tuple[str, str]
"""A reason and its detail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateRules:
    """Which turns become candidates. The defaults keep demonstrations that one would want to see again."""

    keep_failed: bool = False
    """Keep turns of episodes that are known to have earned less than full reward. Unknown outcomes are always kept."""
    keep_tool_errors: bool = False
    """Keep calls whose tool result is an error."""
    keep_repeated: bool = False
    """Keep the third and later of identical calls in a row."""
    max_state_tokens: int = 32768
    """Skip states longer than this many tokens; without --tokenizer their number is taken to be bytes / 4. 0: off."""


def extract(
    trajectory: Trajectory, rules: CandidateRules, count_tokens: CountTokens | None = None
) -> Iterator[Candidate | SkippedTurn]:
    """Every assistant turn in order: a candidate, or skipped with the first reason that applies.

    Where `count_tokens` is missing or gives None, the length of a state is estimated.
    """
    history = _History(trajectory)
    for turn, message in enumerate(trajectory.messages):
        parsed = [call.parsed for call in message.tool_calls] if message.tool_calls else ()
        calls = _known(message, parsed) if parsed else []
        if message.role == "assistant":
            candidate = Candidate(trajectory=trajectory, turn=turn)
            why = _unfit(message, parsed, history) or _unwanted(candidate, calls, history, rules)
            if why is None and rules.max_state_tokens:
                counted = None if count_tokens is None else count_tokens(candidate.state)
                tokens = history.estimate if counted is None else counted
                why = ("over_context", f"{tokens} tokens") if tokens > rules.max_state_tokens else None
            if why is None:
                yield candidate
            else:
                yield SkippedTurn(trajectory_id=trajectory.id, turn=turn, reason=why[0], detail=why[1])
        history.add(message, calls)


class _History:
    """What the checks need to know of the messages before a turn, kept up as the turns go by."""

    def __init__(self, trajectory: Trajectory) -> None:
        self.tool_names = None if trajectory.tools is None else {tool.name for tool in trajectory.tools}
        self.in_text = trajectory.syntax is not None
        self.orphan: str | None = None
        self.non_text: set[str] = set()
        self.last_calls: list[_Call] = []
        self.times = 0
        """How often the calls just before were made in a row, with nothing but results between."""
        self._open: list[ToolCall] = []
        self._bytes = 0 if trajectory.tools is None else len(dump_json(trajectory.tools))

    def add(self, message: Message, calls: list[_Call]) -> None:
        if message.role == "tool":
            self._answer(message.tool_call_id)
        else:
            self.orphan = self.orphan_at_next
            self._open = list(message.tool_calls) if message.literal is None else []
            if not (self.in_text and message.role == "user"):  # it brings results
                self.times = self.times + 1 if _same(calls, self.last_calls) else 1
                self.last_calls = calls
        self._bytes += _size(message.reasoning)
        self._bytes += _size(message.content if message.literal is None else message.literal)
        for call in message.tool_calls if message.literal is None else ():
            self._bytes += _size(call.name) + _size(call.arguments)
        if message.omitted:
            self.non_text.update(message.omitted)

    def _answer(self, wanted: str | None) -> None:
        if len(self._open) == 1 and wanted is not None and self._open[0].id == wanted:
            self._open = []
            return
        by_id = [call for call in self._open if wanted is not None and call.id == wanted]
        by_position = [call for call in self._open if wanted is None or call.id is None]
        call = by_id[-1] if by_id else by_position[0] if by_position else None
        if call is None:
            self.orphan = self.orphan or f"a tool result without a call ({wanted})"
        self._open = [other for other in self._open if other is not call]

    @property
    def orphan_at_next(self) -> str | None:
        """What is wrong with pairing if the next message is not a tool result."""
        if self.orphan is None and self._open:
            return f"a call without a result ({self._open[0].name})"
        return self.orphan

    @property
    def estimate(self) -> int:
        """Tokens of the state."""
        return (self._bytes + 3) // 4


def _size(text: str | None) -> int:
    """Bytes in UTF-8."""
    return 0 if text is None else len(text) if text.isascii() else len(text.encode())


def _known(message: Message, parsed: Sequence[Arguments]) -> list[_Call]:
    """Names and arguments of all calls."""
    return [
        (call.name, call.arguments if arguments.value is None else arguments.value)
        for call, arguments in zip(message.tool_calls, parsed, strict=True)
    ]


def _same(calls: list[_Call], others: list[_Call]) -> bool:
    """Whether calls are equal, the order of keys aside; 1, 1.0 and true are not."""
    return calls == others and (not calls or _signature(calls) == _signature(others))


def _signature(calls: list[_Call]) -> str:
    try:
        return orjson.dumps(calls, option=orjson.OPT_SORT_KEYS).decode()
    except TypeError:  # integers beyond 64 bits, lone surrogates, deep nesting
        return json.dumps(calls, sort_keys=True)


def _unfit(message: Message, parsed: Sequence[Arguments], history: _History) -> _Reason | None:
    """Why a turn cannot be asked; the order is that of the module's docstring."""
    calls, names = message.tool_calls, history.tool_names
    if message.excluded is not None:
        return message.excluded, ""
    if not (calls or message.omitted or (message.content or "").strip()):
        return "empty_action", ""
    if message.omitted:
        return "non_text_action", ", ".join(message.omitted)
    for index, arguments in enumerate(parsed):
        if arguments.error:
            return "bad_arguments", f"{calls[index].name}: {arguments.error}"
    if unknown := [call.name for call in calls if not call.name or (names is not None and call.name not in names)]:
        return "unknown_tool", ", ".join(sorted({*unknown}))
    if orphan := history.orphan_at_next:
        return "orphan_in_prefix", orphan
    return ("non_text_state", ", ".join(sorted(history.non_text))) if history.non_text else None


def _unwanted(candidate: Candidate, calls: list[_Call], history: _History, rules: CandidateRules) -> _Reason | None:
    """Why a turn is nothing to learn from."""
    trajectory, turn = candidate.trajectory, candidate.turn
    if not rules.keep_failed and trajectory.outcome is not None and trajectory.outcome < 1.0:
        return "outcome_below_full", f"outcome {trajectory.outcome:g}"
    if not rules.keep_tool_errors:
        for result in islice(trajectory.messages, turn + 1, None):
            if result.role != "tool":
                break
            if is_error(result):
                return "tool_error", (result.content or "")[:200]
    if not rules.keep_repeated and calls and history.times >= 2 and _same(calls, history.last_calls):
        return "repeated_call", candidate.demonstration.calls[0].name
    return None


def is_error(result: Message) -> bool:
    """Whether a tool result is an error: the source's word, else its text: `Error...`, or an object that says so."""
    if result.error is not None:
        return result.error
    text = (result.content or "").lstrip()
    if not text.startswith("{"):
        return text.startswith(("Error", "error:"))
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and bool(value.get("error") or value.get("isError"))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryRef:
    """Where a trajectory lies in the run directory (`trajectories/index.jsonl`)."""

    id: str
    part: Shared
    offset: int
    length: int
    hash: str
    """16 hexadecimal digits of its line, so that an edit is noticed."""


def by_trajectory(rows: Iterable[CandidateRow]) -> Iterator[tuple[str, list[CandidateRow]]]:
    """Rows that follow one another and are of one trajectory, together, with its id."""
    for key, some in groupby(rows, key=lambda row: row.trajectory_id):
        yield key, list(some)


def line_hash(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()[:16]


@dataclass(frozen=True)
class CandidateStore:
    """The candidates of a run as later stages read them; one trajectory in memory at a time."""

    run: RunDirectory
    being_made: bool = False
    """By the `ingest` that asks, so that what an earlier one wrote does not matter."""

    def rows(
        self, split: Split | None = None, kept: Callable[[CandidateRow], bool] | None = None
    ) -> Records[CandidateRow]:
        """The rows of a split, or all, less those not `kept`. Raises MissingError naming `ingest`, or InputError."""

        def wanted(row: CandidateRow) -> bool:
            return split in (None, row.split) and (kept is None or kept(row))

        rows = records(self.run.candidates, CandidateRow, "ingest", wanted)
        self._check(self.run.candidates)
        return rows

    @cached_property
    def index(self) -> dict[str, TrajectoryRef]:
        """Where each trajectory lies. Raises MissingError naming `pivotrl ingest`, or InputError."""
        path = self.run.trajectories / INDEX_NAME
        index = {ref.id: ref for ref in read_jsonl(path, TrajectoryRef, "ingest")}
        self._check(path)
        return index

    def _check(self, path: Path) -> None:
        if not self.being_made:
            self.run.check(path)

    def trajectory(self, trajectory_id: str) -> Trajectory:
        """Load one trajectory. Raises InputError when it is unknown, or changed since it was ingested."""
        ref = self.index.get(trajectory_id)
        if ref is None:
            raise InputError(f"{self.run.candidates}: trajectory {trajectory_id!r} is not in this run; ingest again")
        path = self.run.trajectories / ref.part
        try:
            with path.open("rb") as file:
                file.seek(ref.offset)
                line = file.read(ref.length)
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror}); restore it, or ingest again") from None
        if line_hash(line) != ref.hash:
            raise InputError(
                f"{path}: trajectory {trajectory_id!r} was changed since ingest; restore it, or ingest again"
            )
        return decode(line, Trajectory, f"{path}: {trajectory_id}")

    def units(self, rows: Iterable[CandidateRow]) -> Iterator[tuple[str, list[Candidate]]]:
        """Yield the candidates of rows, those of one trajectory that follow one another together."""
        for trajectory_id, mine in by_trajectory(rows):
            yield trajectory_id, self._candidates(trajectory_id, mine)

    def loaded(self, rows: Iterable[CandidateRow]) -> Iterator[tuple[CandidateRow, Candidate]]:
        """The candidates of `units` one by one, each with its row."""
        for trajectory_id, mine in by_trajectory(rows):
            yield from zip(mine, self._candidates(trajectory_id, mine), strict=True)

    def _candidates(self, trajectory_id: str, rows: Iterable[CandidateRow]) -> list[Candidate]:
        """Those of one trajectory."""
        trajectory = self.trajectory(trajectory_id)
        found = [Candidate(trajectory=trajectory, turn=row.turn) for row in rows]
        for one in found:
            if not 0 <= one.turn < len(trajectory.messages) or trajectory.messages[one.turn].role != "assistant":
                what = f"{one.id} is no assistant turn"
                raise InputError(f"{self.run.candidates}: {what}; restore the file, or ingest again")
        return found
