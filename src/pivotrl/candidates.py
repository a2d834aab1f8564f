"""Candidates: which assistant turns can be asked of a policy, how they are split, and how later stages read them.

A turn is a candidate unless one of these holds; the first that applies is its reason, in this order:

    (the reader's word)      scripted_greeting, loss_false, truncated, prefix_of_pivot_row: no demonstration
    empty_action             neither text nor a call
    non_text_action          the action holds parts that are not text
    bad_arguments            arguments of a call that are not a JSON object
    unknown_tool             a called name that is not among the tools, where the tools are known
    orphan_in_prefix         a call without its result before the next message of somebody, or a result without its call
    non_text_state           the state holds parts that are not text
    outcome_below_full       the episode is known to have earned less than full reward      (option keep_failed)
    tool_error               a result of the action's calls is an error                     (option keep_tool_errors)
    repeated_call            the same calls a third time in a row, or more                  (option keep_repeated)
    over_context             the state is longer than max_state_tokens

Results answer calls by id, the latest open call first; a result or a call without an id is paired by position.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from typing import Final, NamedTuple

from pivotrl.errors import InputError
from pivotrl.storage import RunDirectory, decode, dump_json, read_jsonl
from pivotrl.types import (
    Candidate,
    CandidateRow,
    Message,
    SkippedTurn,
    Split,
    State,
    ToolCall,
    Trajectory,
    candidate_id,
)

CountTokens = Callable[[State], int]
INDEX_NAME: Final = "index.jsonl"


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
    """Skip states longer than this many tokens, by a tokenizer where one is given, else by bytes / 4. 0: off."""


class Extraction(NamedTuple):
    """All assistant turns of a trajectory: each is a candidate or skipped with one reason."""

    candidates: list[Candidate]
    skips: list[SkippedTurn]


def extract(trajectory: Trajectory, rules: CandidateRules, count_tokens: CountTokens | None = None) -> Extraction:
    """The candidates of a trajectory and the turns that are none, each in turn order."""
    found = Extraction([], [])
    history = _History(trajectory, count_tokens)
    for turn, message in enumerate(trajectory.messages):
        if message.role == "assistant":
            candidate = Candidate(trajectory=trajectory, turn=turn)
            why = _why_not(candidate, history, rules)
            if why is None:
                found.candidates.append(candidate)
            else:
                found.skips.append(SkippedTurn(trajectory_id=trajectory.id, turn=turn, reason=why[0], detail=why[1]))
        history.add(message)
    assert len(found.candidates) + len(found.skips) == assistant_turns(trajectory), "a turn was lost"
    return found


def assistant_turns(trajectory: Trajectory) -> int:
    return sum(message.role == "assistant" for message in trajectory.messages)


class _History:
    """What the checks need to know of the messages before a turn, kept up as the turns go by."""

    def __init__(self, trajectory: Trajectory, count_tokens: CountTokens | None) -> None:
        self.tool_names = None if trajectory.tools is None else {tool.name for tool in trajectory.tools}
        self.orphan: str | None = None
        self.non_text: set[str] = set()
        self.last_calls = ""
        self.times = 0
        """How often the calls just before were made in a row, with nothing but results between."""
        self._open: list[ToolCall] = []
        self._count = count_tokens
        self._bytes = 0 if trajectory.tools is None else len(dump_json(trajectory.tools))

    def add(self, message: Message) -> None:
        if message.role == "tool":
            self._answer(message)
        else:
            self.orphan = self.orphan_at_next
            self._open = list(message.tool_calls)
            calls = _signature(message)
            self.times = self.times + 1 if calls == self.last_calls else 1
            self.last_calls = calls
        self.non_text.update(message.omitted)
        texts = (
            message.content,
            message.reasoning,
            *(text for call in message.tool_calls for text in (call.name, call.arguments)),
        )
        self._bytes += sum(len(text.encode()) for text in texts if text)

    def _answer(self, message: Message) -> None:
        wanted = message.tool_call_id
        by_id = [call for call in self._open if wanted is not None and call.id == wanted]
        by_position = [call for call in self._open if wanted is None or call.id is None]
        call = by_id[-1] if by_id else by_position[0] if by_position else None
        if call is None:
            self.orphan = self.orphan or f"a tool result without a call ({wanted})"
        else:
            self._open = [other for other in self._open if other is not call]

    @property
    def orphan_at_next(self) -> str | None:
        """What is wrong with pairing if the next message is not a tool result."""
        if self.orphan is None and self._open:
            return f"a call without a result ({self._open[0].name})"
        return self.orphan

    def tokens(self, state: State) -> int:
        return (self._bytes + 3) // 4 if self._count is None else self._count(state)


def _signature(message: Message) -> str:
    """Names and arguments of all calls, key order aside; empty for anything but calls."""
    calls = [
        (call.name, call.arguments if call.parsed.value is None else call.parsed.value) for call in message.tool_calls
    ]
    return json.dumps(calls, sort_keys=True) if calls else ""


def _why_not(candidate: Candidate, history: _History, rules: CandidateRules) -> tuple[str, str] | None:
    """The first reason that applies, with its detail; the order is that of the module's docstring."""
    message = candidate.trajectory.messages[candidate.turn]
    if message.excluded is not None:
        return message.excluded, ""
    return _unfit(message, history) or _unwanted(candidate, history, rules)


def _unfit(message: Message, history: _History) -> tuple[str, str] | None:
    calls, names = message.tool_calls, history.tool_names
    if not (calls or message.omitted or (message.content or "").strip()):
        return "empty_action", ""
    if message.omitted:
        return "non_text_action", ", ".join(message.omitted)
    bad = [f"{call.name}: {call.parsed.error}" for call in calls if call.parsed.error is not None]
    if bad:
        return "bad_arguments", bad[0]
    unknown = set() if names is None else {call.name for call in calls} - names
    if unknown:
        return "unknown_tool", ", ".join(sorted(unknown))
    if history.orphan_at_next is not None:
        return "orphan_in_prefix", history.orphan_at_next
    return ("non_text_state", ", ".join(sorted(history.non_text))) if history.non_text else None


def _unwanted(candidate: Candidate, history: _History, rules: CandidateRules) -> tuple[str, str] | None:
    trajectory, turn = candidate.trajectory, candidate.turn
    if not rules.keep_failed and trajectory.outcome is not None and trajectory.outcome < 1.0:
        return "outcome_below_full", f"outcome {trajectory.outcome:g}"
    error = None if rules.keep_tool_errors else _first_error(trajectory, turn)
    if error is not None:
        return "tool_error", (error.content or "")[:200]
    calls = _signature(trajectory.messages[turn])
    if not rules.keep_repeated and calls and history.times >= 2 and history.last_calls == calls:
        return "repeated_call", candidate.demonstration.calls[0].name
    tokens = history.tokens(candidate.state) if rules.max_state_tokens else 0
    return ("over_context", f"{tokens} tokens") if tokens > rules.max_state_tokens else None


def _first_error(trajectory: Trajectory, turn: int) -> Message | None:
    """The first failed result of the calls of a turn."""
    results = takewhile(lambda message: message.role == "tool", trajectory.messages[turn + 1 :])
    return next((message for message in results if is_error(message)), None)


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


def candidate_row(candidate: Candidate, *, depth: int, split: Split, group: str) -> CandidateRow:
    action = candidate.demonstration
    return CandidateRow(
        id=candidate.id,
        trajectory_id=candidate.trajectory.id,
        turn=candidate.turn,
        depth=depth,
        kind=action.kind,
        tools=tuple(call.name for call in action.calls),
        split=split,
        group=group,
    )


def group_keys(trajectory: Trajectory) -> tuple[str, ...]:
    """What ties a trajectory to others in the split: its task, else its opening; its own id and its parent's.

    The opening is everything before the first assistant turn that follows a user message (a scripted greeting is the
    same in every conversation and ties nothing), or before the first assistant turn where no user speaks.
    """
    own = (f"id:{trajectory.id}", *(() if trajectory.parent_id is None else (f"id:{trajectory.parent_id}",)))
    if trajectory.task_id is not None:
        return f"task:{trajectory.task_id}", *own
    roles = [message.role for message in trajectory.messages]
    start = roles.index("user") if "user" in roles else 0
    end = roles.index("assistant", start) if "assistant" in roles[start:] else len(roles)
    opening = [(message.role, message.content) for message in trajectory.messages[:end]]
    return f"opening:{hashlib.sha256(dump_json(opening)).hexdigest()[:16]}", *own


def connect(keys: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Trajectory id -> group: connected components of shared keys, each named by its smallest task or opening key."""
    parent: dict[str, str] = {}

    def root(key: str) -> str:
        while parent.setdefault(key, key) != key:
            parent[key] = parent[parent[key]]
            key = parent[key]
        return key

    for ties in keys.values():
        for other in ties[1:]:
            parent[root(other)] = root(ties[0])
    names: dict[str, str] = {}
    for ties in keys.values():
        top = root(ties[0])
        names[top] = min(names.get(top, ties[0]), ties[0])
    return {trajectory_id: names[root(ties[0])] for trajectory_id, ties in keys.items()}


def split_groups(counts: Mapping[str, int], *, validation: float, test: float, seed: int) -> dict[str, Split]:
    """Assign whole groups to splits: in the order of sha256(seed, group), test first, then validation, the rest train.

    `counts` gives the candidates of each group. A group is taken while at least half of it fits. Where its
    fraction is above 0, test gets a group when there are two, validation when there are three; train never goes empty.
    """
    order = sorted(counts, key=lambda group: hashlib.sha256(f"{seed}:{group}".encode()).digest())
    total = sum(counts.values())
    result: dict[str, Split] = {}
    names: tuple[tuple[Split, float, int], ...] = (("test", test, 2), ("validation", validation, 3))
    for name, fraction, needed in names:
        if fraction <= 0 or len(order) < needed:
            continue
        free = [group for group in order if group not in result]
        spare = len(free) - 1 - (1 if name == "test" and validation > 0 and len(order) >= 3 else 0)
        taken: list[str] = []
        size = 0
        for group in free:
            if len(taken) < spare and size + counts[group] / 2 <= fraction * total:
                taken.append(group)
                size += counts[group]
        taken = taken or [min(free, key=lambda group: counts[group])]
        result.update(dict.fromkeys(taken, name))
    return {group: result.get(group, "train") for group in order}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryRef:
    """Where a trajectory lies in the run directory (`trajectories/index.jsonl`)."""

    id: str
    part: str
    offset: int
    length: int
    hash: str
    """16 hexadecimal digits of its line, so that an edit is noticed."""


def line_hash(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()[:16]


@dataclass(frozen=True)
class CandidateStore:
    """The candidates of a run as later stages read them; one trajectory in memory at a time."""

    run: RunDirectory

    def rows(self, split: Split | None = None) -> list[CandidateRow]:
        """The rows of a split, or all. Raises MissingError naming `pivotrl ingest`, or InputError."""
        rows = read_jsonl(self.run.candidates, CandidateRow, "ingest")
        return [row for row in rows if split in (None, row.split)]

    @cached_property
    def index(self) -> dict[str, TrajectoryRef]:
        """Where each trajectory lies. Raises MissingError naming `pivotrl ingest`, or InputError."""
        refs = read_jsonl(self.run.trajectories / INDEX_NAME, TrajectoryRef, "ingest")
        return {ref.id: ref for ref in refs}

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
        """Yield each trajectory's candidates in turn order; trajectories in the order of first appearance in `rows`."""
        turns: dict[str, set[int]] = {}
        for row in rows:
            turns.setdefault(row.trajectory_id, set()).add(row.turn)
        for trajectory_id, wanted in turns.items():
            trajectory = self.trajectory(trajectory_id)
            yield trajectory_id, [self._candidate(trajectory, turn) for turn in sorted(wanted)]

    def _candidate(self, trajectory: Trajectory, turn: int) -> Candidate:
        if not 0 <= turn < len(trajectory.messages) or trajectory.messages[turn].role != "assistant":
            name = candidate_id(trajectory.id, turn)
            raise InputError(f"{self.run.candidates}: {name} is no assistant turn; restore the file, or ingest again")
        return Candidate(trajectory=trajectory, turn=turn)
