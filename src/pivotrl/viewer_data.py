"""What the viewer shows of a run: an index of all assistant turns, and blocks of whole trajectories with their samples.

A block reads its stretch of each part file; these are in the planned order, so bisection finds it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import groupby, takewhile
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar

from pivotrl.candidates import CandidateStore
from pivotrl.errors import MissingError
from pivotrl.manifests import named
from pivotrl.pivots import FUNNEL, SelectConfig, fates
from pivotrl.profile_settings import load_plan, profiled_rows, summary_path
from pivotrl.run_directory import RunDirectory
from pivotrl.storage import decode, dump_json, read_jsonl
from pivotrl.types import Message, Pivot, Profile, Rollout, SkippedTurn, StoredVerdict, Trajectory, candidate_id
from pivotrl.verifiers import load_verifier, verifier_id

BLOCK_TURNS: Final = 32
"""A block ends with the trajectory that brings its assistant turns to this many."""
LABEL: Final = 90
"""Characters of an action, or of an opening, that the list shows and search finds."""
TRAJECTORIES: Final = ("id", "task", "outcome", "title", "split", "block")
TURNS: Final = ("trajectory", "turn", "state", "tools", "mean", "label")
Record = dict[str, Any]
Stored = TypeVar("Stored", Rollout, StoredVerdict)


class Judged:
    """A profile as one verifier judged it and one selection cut it. Raises MissingError for what is not there."""

    def __init__(self, run: RunDirectory, name: str, verifier: str | None, selection: str | None) -> None:
        plan, self.folder = load_plan(run, name), run.profile(name)
        judge = plan.verifier_id if verifier is None else verifier_id(load_verifier(verifier))
        summary, self.verdicts = summary_path(run, name, judge), self.folder / "verdicts" / judge
        if verifier is not None and not summary.exists():
            raise MissingError(f"{summary} is not there; run `pivotrl rescore` with this verifier first")
        run.check(summary)
        self.order = {row.id: at for at, row in enumerate(profiled_rows(run, name, plan))}
        self.profiles = {one.candidate_id: one for one in read_jsonl(summary, Profile)} if summary.exists() else {}
        made, config = _selection(run, name, judge, selection)
        what = fates([*self.profiles.values()], config) if self.profiles else ()
        self.states = dict(zip(self.profiles, what, strict=True))
        if made is not None:
            run.check(run.pivots(made))
            kept = {one.candidate_id for one in read_jsonl(run.pivots(made), Pivot, "select")}
            over = [key for key, state in self.states.items() if state == "pivot" and key not in kept]
            self.states |= dict.fromkeys(over, "over_quota")
        policy = Path(plan.policy).name if plan.policy.startswith("/") else plan.policy
        self.about = {
            "profile": f"{name}, {plan.rollouts} rollouts of {policy}",
            "verifier": verifier or plan.verifier,
            "selection": f"{made or 'none yet'}, by the {config.rule} rule with lambda_diff {config.lambda_diff:g}",
        }

    def samples(self, ids: Sequence[str]) -> dict[str, list[Record]]:
        """What was sampled, the most frequent first; what is alike, its verdict (if any) too, once with its numbers."""
        words = {
            (one.candidate_id, one.sample): one.verdict for one in self._stretch(self.verdicts, StoredVerdict, ids)
        }
        found: dict[str, dict[bytes, Record]] = {}
        for one in self._stretch(self.folder / "rollouts", Rollout, ids):
            done = one.completion
            seen = {name: getattr(done, name) for name in ("action", "finish_reason", "parse_error")} | {
                "text": None if done.action and not done.truncated else done.text,
                "verdict": words.get((one.candidate_id, one.sample)),
            }
            same = found.setdefault(one.candidate_id, {}).setdefault(dump_json(seen), seen | {"samples": []})
            same["samples"].append(one.sample)
        return {key: sorted(some.values(), key=lambda one: -len(one["samples"])) for key, some in found.items()}

    def _stretch(self, folder: Path, type_: type[Stored], ids: Sequence[str]) -> Iterator[Stored]:
        places = [self.order[key] for key in ids if key in self.order]
        for path in sorted(folder.glob("part-*.jsonl")) if places else ():
            with path.open("rb") as file:
                yield from self._between(file, type_, min(places), max(places))

    def _between(self, file: BinaryIO, type_: type[Stored], first: int, last: int) -> Iterator[Stored]:
        """The records from one place of the planned order to another."""

        def records(offset: int) -> Iterator[tuple[int, Stored]]:
            """Of the whole lines that begin after the offset, or at 0, with their places."""
            file.seek(offset)
            if offset:
                file.readline()
            while (line := file.readline()).endswith(b"\n"):
                one = decode(line, type_, file.name)
                yield self.order.get(one.candidate_id, -1), one

        size = file.seek(0, 2)
        start = bisect_left(range(size), first, key=lambda offset: next((at for at, _ in records(offset)), last + 1))
        yield from (one for _, one in takewhile(lambda pair: pair[0] <= last, records(start)))


def _selection(run: RunDirectory, profile: str, verifier: str, name: str | None) -> tuple[str | None, SelectConfig]:
    """The selection of this name, else the first of this profile and verifier, else none and the defaults."""
    for made, facts in named(run.stages(), "select"):
        if name in (None, made) and facts["verifier_id"] == verifier:
            config = decode(dump_json(facts["config"]), SelectConfig, f"{run.manifest}: select/{made}")
            if config.profile == profile:
                return made, config
    if name is not None:
        raise MissingError(f"{run.path}: no selection {name!r} of profile {profile!r} and this verifier")
    return None, SelectConfig(run=run.path)


class RunView:
    """Everything of a run that is shown, trajectory by trajectory."""

    def __init__(self, run: RunDirectory, judged: Judged | None) -> None:
        self.run, self.judged, self.store = run, judged, CandidateStore(run)
        audits = [("skipped", run.audit)] + ([("excluded", judged.folder / "excluded.jsonl")] if judged else [])
        self.left_out = {
            candidate_id(one.trajectory_id, one.turn): (f"{how}: {one.reason}", one.detail)
            for how, path in audits
            if path.exists()
            for one in read_jsonl(path, SkippedTurn)
        }

    def turn(self, key: str) -> Record:
        """What is known of an assistant turn. Its state is a key of `FUNNEL`, or why it has none."""
        state, detail = self.left_out.get(key, ("not profiled", ""))
        states, profiles = (self.judged.states, self.judged.profiles) if self.judged else ({}, {})
        return {"state": states.get(key, state), "detail": detail, "profile": profiles.get(key)}

    @cached_property
    def index(self) -> Record:
        """Columns of all trajectories and of all assistant turns, these with the number of their trajectory."""
        splits = {row.trajectory_id: row.split for row in self.store.rows()}
        trajectories, turns = list[tuple[Any, ...]](), list[tuple[Any, ...]]()
        states, toolsets, block, size = dict[str, int](), dict[tuple[str, ...], int](), 0, 0
        parts = dict.fromkeys(ref.part for ref in self.store.index.values())
        for one in (one for part in parts for one in read_jsonl(self.run.trajectories / part, Trajectory, "ingest")):
            for turn, message in _turns(one):
                known = self.turn(candidate_id(one.id, turn))
                mean = known["profile"] and known["profile"].mean and round(known["profile"].mean, 3)
                names = tuple(dict.fromkeys(call.name for call in message.tool_calls)) or ("(no call)",)
                state = states.setdefault(known["state"], len(states))
                tools = toolsets.setdefault(names, len(toolsets))
                turns.append((len(trajectories), turn, state, tools, mean, _label(message)))
                size += 1
            title = next((_label(message) for message in one.messages if message.role == "user"), "")
            trajectories.append((one.id, one.task_id, one.outcome, title, splits.get(one.id, "none"), block))
            block, size = (block + 1, 0) if size >= BLOCK_TURNS else (block, size)
        return {
            "run": self.run.path.resolve().name,
            "about": self.judged.about if self.judged else {"profile": "none yet"},
            "meanings": FUNNEL,
            "states": list(states),
            "toolsets": list(toolsets),
            "trajectories": {name: [row[at] for row in trajectories] for at, name in enumerate(TRAJECTORIES)},
            "turns": {name: [row[at] for row in turns] for at, name in enumerate(TURNS)},
        }

    @cached_property
    def blocks(self) -> list[list[str]]:
        """Ids of the trajectories of each block."""
        pairs = zip(*(self.index["trajectories"][column] for column in ("block", "id")), strict=True)
        return [[id_ for _, id_ in some] for _, some in groupby(pairs, key=lambda pair: pair[0])]

    def block(self, ids: Sequence[str]) -> list[Record]:
        """Trajectories with all that is known of their turns. Raises InputError for what was damaged or changed."""
        loaded = [self.store.trajectory(id_) for id_ in ids]
        keys = [[(str(turn), candidate_id(one.id, turn)) for turn, _ in _turns(one)] for one in loaded]
        samples = self.judged.samples([key for some in keys for _, key in some]) if self.judged else {}
        return [
            {"trajectory": one, "turns": {at: self.turn(key) | {"samples": samples.get(key, [])} for at, key in some}}
            for one, some in zip(loaded, keys, strict=True)
        ]


def _turns(trajectory: Trajectory) -> list[tuple[int, Message]]:
    return [(turn, message) for turn, message in enumerate(trajectory.messages) if message.role == "assistant"]


def _label(message: Message) -> str:
    texts = [call.name + " " + (call.arguments or "")[: 2 * LABEL].replace('"', "") for call in message.tool_calls]
    return " ".join(" ".join([*texts, (message.content or "")[:LABEL]]).split())[:LABEL]
