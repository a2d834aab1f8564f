"""What the viewer shows of a run: one index of all assistant turns, and blocks of whole trajectories with their samples.

The index is made in one pass over the trajectories; a block reads its own stretch of each file. Part files are in the
planned order, so the stretch of a trajectory is found by bisection, without reading what comes before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar

from pivotrl.candidates import CandidateStore
from pivotrl.errors import MissingError
from pivotrl.pivots import FUNNEL, SelectConfig, fates
from pivotrl.profile_settings import load_plan, profiled_rows, summary_path
from pivotrl.storage import RunDirectory, decode, dump_json, read_jsonl
from pivotrl.types import (
    Pivot,
    Profile,
    Role,
    Rollout,
    SkippedTurn,
    StoredVerdict,
    ToolCall,
    Trajectory,
    candidate_id,
)
from pivotrl.verifiers import load_verifier, verifier_id

BLOCK_TURNS: Final = 32
"""A block ends with the trajectory that brings its assistant turns to this many."""
LABEL: Final = 90
"""Characters of an action, or of an opening, that the list shows, and that search finds."""
NOT_PROFILED: Final = "not profiled"
Record = dict[str, Any]
Stored = TypeVar("Stored", Rollout, StoredVerdict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Said:
    """What the list needs of a message."""

    role: Role
    content: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()

    @property
    def label(self) -> str:
        calls = (f"{call.name} {call.arguments or ''}" for call in self.tool_calls)
        return " ".join(" ".join(text[:LABEL] for text in (*calls, self.content or "")).split())[:LABEL]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Head:
    """What the list needs of a trajectory."""

    id: str
    messages: tuple[_Said, ...]
    task_id: str | None = None
    outcome: float | None = None

    @property
    def title(self) -> str:
        return next((one.label for one in self.messages if one.role == "user"), "")


class Judged:
    """A profile as one verifier judged it and one selection cut it. Raises MissingError for what is not there."""

    def __init__(self, run: RunDirectory, name: str, verifier: str | None, selection: str | None) -> None:
        self.plan, self.name, self.folder = load_plan(run, name), name, run.profile(name)
        self.verifier = verifier or self.plan.verifier
        self.verifier_id = self.plan.verifier_id if verifier is None else verifier_id(load_verifier(verifier))
        self.selection, self.settings = _selection(run, name, self.verifier_id, selection)
        self.order = {row.id: at for at, row in enumerate(profiled_rows(run, name, self.plan))}
        summary = summary_path(run, name, self.verifier_id)
        if verifier is not None and not summary.exists():
            raise MissingError(f"{summary} is not there; run `pivotrl rescore` with this verifier first")
        self.profiles = {one.candidate_id: one for one in read_jsonl(summary, Profile)} if summary.exists() else {}
        self.states = fates(list(self.profiles.values()), self.settings) if self.profiles else {}
        if self.selection is not None:
            chosen = {one.candidate_id for one in read_jsonl(run.pivots(self.selection), Pivot, "select")}
            over = {key for key, state in self.states.items() if state == "pivot" and key not in chosen}
            self.states |= dict.fromkeys(over, "over_quota")

    @property
    def about(self) -> dict[str, str]:
        """What a reader has to know of the numbers."""
        by = "no selection yet, shown by the defaults" if self.selection is None else f"selection {self.selection}"
        rule = f"{self.settings.rule} rule, lambda_diff {self.settings.lambda_diff:g} ({by})"
        plan = f"{self.plan.policy}, {self.plan.rollouts} rollouts"
        return {"profile": self.name, "policy": plan, "verifier": self.verifier, "pivots": rule}

    def samples(self, ids: Sequence[str]) -> dict[str, list[Record]]:
        """What was sampled at candidates of one trajectory; what is alike, the verdict included, once with its numbers.

        The verdict is None where this verifier has not judged yet.
        """
        words = self._stretch(self.folder / "verdicts" / self.verifier_id, StoredVerdict, ids)
        verdicts = {(word.candidate_id, word.sample): word.verdict for word in words}
        found: dict[str, dict[bytes, Record]] = {}
        for one in self._stretch(self.folder / "rollouts", Rollout, ids):
            done = one.completion
            seen = {
                "action": done.action,
                "text": None if done.action and not done.truncated else done.text,
                "finish": done.finish_reason,
                "parse_error": done.parse_error,
                "verdict": verdicts.get((one.candidate_id, one.sample)),
            }
            same = found.setdefault(one.candidate_id, {}).setdefault(dump_json(seen), seen | {"samples": []})
            same["samples"].append(one.sample)
        return {key: sorted(some.values(), key=lambda one: -len(one["samples"])) for key, some in found.items()}

    def _stretch(self, folder: Path, type_: type[Stored], ids: Sequence[str]) -> Iterator[Stored]:
        places = [self.order[key] for key in ids]
        for path in sorted(folder.glob("part-*.jsonl")) if ids else ():
            with path.open("rb") as file:
                for one in self._from(file, type_, min(places)):
                    if self.order.get(one.candidate_id, -1) > max(places):
                        break
                    yield one

    def _from(self, file: BinaryIO, type_: type[Stored], place: int) -> Iterator[Stored]:
        """The records from the first on that is at or after this place of the planned order."""

        def records(offset: int) -> Iterator[Stored]:
            """From the first line that begins at or after the offset; an unfinished last one is not there."""
            file.seek(max(offset - 1, 0))
            if offset:
                file.readline()
            while (line := file.readline()).endswith(b"\n"):
                yield decode(line, type_, file.name)

        low, high = 0, file.seek(0, 2)
        while low < high:
            middle = (low + high) // 2
            one = next(records(middle), None)
            if one is not None and self.order.get(one.candidate_id, -1) < place:
                low = middle + 1
            else:
                high = middle
        yield from records(low)


def _selection(run: RunDirectory, profile: str, verifier: str, wanted: str | None) -> tuple[str | None, SelectConfig]:
    """The selection of this name, else the first that was made from this profile and verifier, else the defaults."""
    stages = run.stages()
    of_profile = {
        key.partition("/")[2]: facts["config"]
        for key, facts in stages.items()
        if key.startswith("select/") and facts["verifier_id"] == verifier and facts["config"]["profile"] == profile
    }
    if wanted is None and not of_profile:
        return None, SelectConfig(run=run.path)
    name = wanted or next(iter(of_profile))
    if name not in of_profile:
        raise MissingError(
            f"{run.path}: no selection {name!r} from profile {profile!r} and this verifier; it has "
            f"{', '.join(of_profile) or 'none'}"
        )
    return name, decode(dump_json(of_profile[name]), SelectConfig, f"{run.manifest}: select/{name}")


class RunView:
    """Everything of a run that is shown, trajectory by trajectory."""

    def __init__(self, run: RunDirectory, judged: Judged | None) -> None:
        self.run, self.judged, self.store = run, judged, CandidateStore(run)
        self.skipped = dict(_left_out(run.audit, "skipped"))
        if judged is not None:
            self.skipped |= _left_out(judged.folder / "excluded.jsonl", "excluded")

    def state(self, key: str) -> str:
        """What became of an assistant turn: a key of `FUNNEL`, why it was left out, or that it was not profiled."""
        known = self.judged.states.get(key) if self.judged else None
        return known or self.skipped.get(key, (NOT_PROFILED, ""))[0]

    @cached_property
    def index(self) -> Record:
        """Columns of all trajectories and of all assistant turns, these with the number of their trajectory."""
        splits = {row.trajectory_id: row.split for row in self.store.rows()}
        profiles = self.judged.profiles if self.judged else {}
        trajectories = _Columns("id", "task", "outcome", "title", "split", "block")
        turns = _Columns("trajectory", "turn", "state", "tools", "mean", "label")
        states: dict[str, int] = {}
        toolsets: dict[tuple[str, ...], int] = {}
        block, size = 0, 0
        for number, head in enumerate(self._heads()):
            trajectories.add(head.id, head.task_id, head.outcome, head.title, splits.get(head.id, "none"), block)
            for turn in _turns(head):
                key, said = candidate_id(head.id, turn), head.messages[turn]
                names = tuple(dict.fromkeys(call.name for call in said.tool_calls))
                state, tools = (
                    states.setdefault(self.state(key), len(states)),
                    toolsets.setdefault(names, len(toolsets)),
                )
                mean = profiles[key].mean if key in profiles else None
                turns.add(number, turn, state, tools, mean, said.label)
                size += 1
            if size >= BLOCK_TURNS:
                block, size = block + 1, 0
        about = self.judged.about if self.judged else {"profile": "none yet"}
        named = {"run": self.run.path.resolve().name, "about": about, "meanings": FUNNEL}
        return named | {"states": [*states], "toolsets": [*toolsets], "trajectories": trajectories, "turns": turns}

    def _heads(self) -> Iterator[_Head]:
        for part in dict.fromkeys(ref.part for ref in self.store.index.values()):
            yield from read_jsonl(self.run.trajectories / part, _Head, "ingest")

    @cached_property
    def blocks(self) -> list[list[str]]:
        """Ids of the trajectories that are shown from one file."""
        trajectories = self.index["trajectories"]
        pairs = groupby(zip(trajectories["block"], trajectories["id"], strict=True), key=lambda pair: pair[0])
        return [[id_ for _, id_ in some] for _, some in pairs]

    def block(self, ids: Sequence[str]) -> list[Record]:
        """Trajectories with all that is known of their turns. Raises InputError for what was damaged or changed."""
        loaded = [self.store.trajectory(id_) for id_ in ids]
        keys = [candidate_id(one.id, turn) for one in loaded for turn in _turns(one)]
        samples = self.judged.samples([key for key in keys if key in self.judged.order]) if self.judged else {}
        return [
            {"trajectory": one, "turns": {str(turn): self._turn(one, turn, samples) for turn in _turns(one)}}
            for one in loaded
        ]

    def _turn(self, trajectory: Trajectory, turn: int, samples: Mapping[str, list[Record]]) -> Record:
        key = candidate_id(trajectory.id, turn)
        return {
            "state": self.state(key),
            "detail": self.skipped.get(key, ("", ""))[1],
            "profile": self.judged.profiles.get(key) if self.judged else None,
            "samples": samples.get(key, []),
        }


class _Columns(dict[str, list[Any]]):
    """A table by columns, which is what a browser reads fastest."""

    def __init__(self, *names: str) -> None:
        super().__init__({name: [] for name in names})

    def add(self, *values: object) -> None:
        for column, value in zip(self.values(), values, strict=True):
            column.append(value)


def _turns(trajectory: Trajectory | _Head) -> list[int]:
    """Those of the assistant."""
    return [turn for turn, message in enumerate(trajectory.messages) if message.role == "assistant"]


def _left_out(path: Path, how: str) -> Iterator[tuple[str, tuple[str, str]]]:
    """(candidate id, (reason, detail)) of the turns in an audit file, if it is there."""
    for one in read_jsonl(path, SkippedTurn) if path.exists() else ():
        yield candidate_id(one.trajectory_id, one.turn), (f"{how}: {one.reason}", one.detail)
