"""Render, sample G, parse, verify: the single path used by profiling, training and evaluation, and its resumable store.

A unit of work is one trajectory; batches never cross units, so an interruption cannot change what is sampled. A part
file holds whole units in the planned order; what a kill left of an unfinished unit is cut off and sampled again.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal

from pivotrl.candidates import CandidateStore
from pivotrl.errors import InputError
from pivotrl.ledger import Ledger, Stopwatch
from pivotrl.logs import Progress
from pivotrl.planning import RolloutPlan
from pivotrl.protocols import Policy, RemotePolicy, RemoteVerifier, Verifier
from pivotrl.storage import FileLock, PartWriter, Pulse, complete_lines, complete_units, decode
from pivotrl.types import (
    Candidate,
    CandidateRow,
    Completion,
    Rollout,
    RolloutGroup,
    Sampled,
    SamplingParams,
    StoredVerdict,
    Usage,
    Verdict,
)
from pivotrl.verifiers import verifier_id, verify

Truncation = Literal["zero", "exclude"]
FAILED_FOR_NOW: Final = re.compile(rb'"reason":"judge_(failed|budget)"')
"""Stored verdicts that may come out otherwise when a stage is run again; inside a JSON text quotes are escaped."""
SHARE_SECONDS: Final = 60.0
"""A share's writer waits so long where the folder is locked: others may be merging."""


def unscored(verdict: Verdict) -> bool:
    """Whether the verifier failed; a truncated action that is left out is counted as truncated, not here."""
    return verdict.value is None and verdict.reason != "truncated"


def over_budget(verdict: Verdict) -> bool:
    """Whether a spending cap kept a judge from being asked, also as a member of a composition."""
    return verdict.reason == "judge_budget" or any(map(over_budget, verdict.parts))


def judge(verifier: Verifier, candidate: Candidate, completion: Completion, truncation: Truncation) -> Verdict:
    """The verdict on one completion; a truncated one is wrong (`zero`) or left out (`exclude`), whatever it says."""
    if completion.truncated:
        value = 0.0 if truncation == "zero" else None
        return Verdict(value=value, reason="truncated", verifier=verifier.name, version=verifier.version)
    return verify(verifier, candidate, completion)


def judge_all(
    verifier: Verifier, pairs: Sequence[tuple[Candidate, Completion]], truncation: Truncation
) -> list[Verdict]:
    """The verdict on each completion; a remote verifier is asked about all of them at once."""
    if isinstance(verifier, RemoteVerifier):
        whole = [(candidate, completion) for candidate, completion in pairs if not completion.truncated]
        verifier.prepare([(candidate, done.action) for candidate, done in whole if done.action is not None])
    return [judge(verifier, candidate, completion, truncation) for candidate, completion in pairs]


@contextmanager
def judging(ledger: Ledger, stage: str, name: str, unit: str, verifier: Verifier) -> Iterator[None]:
    """Record what a remote verifier spends in a block, also in one that fails.

    Each line counts: what was asked twice was paid twice.
    """
    try:
        yield
    finally:
        usage = verifier.take_usage() if isinstance(verifier, RemoteVerifier) else Usage()
        if usage.judge_calls:
            ledger.record(stage, name, f"{unit} judged {time.time_ns()}", usage)


def expect_judging(verifier: Verifier, store: CandidateStore, rows: Sequence[CandidateRow], n: int) -> None:
    """Let a remote verifier say what judging n actions at each of these candidates may take."""
    if rows and isinstance(verifier, RemoteVerifier):
        verifier.expect((candidate for _, candidate in store.loaded(rows)), n)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How groups are sampled and judged."""

    policy: Policy
    verifier: Verifier
    params: SamplingParams
    n: int
    seed: int
    truncation: Truncation = "zero"


def sample_groups(
    sampling: Sampling, candidates: Sequence[Candidate], taken: Mapping[str, int] | None = None
) -> list[RolloutGroup]:
    """n fresh actions with verdicts at each candidate, after the `taken` ones."""
    answers: dict[str, Sampled] = {}
    starts = {candidate.id: (taken or {}).get(candidate.id, 0) for candidate in candidates}
    for first in sorted(set(starts.values())):
        states = [candidate.state for candidate in candidates if starts[candidate.id] == first]
        sampled = sampling.policy.sample(states, n=sampling.n, params=sampling.params, seed=sampling.seed, first=first)
        answers |= zip((state.key for state in states), sampled, strict=True)
    both = [(candidate, answers[candidate.id]) for candidate in candidates]
    pairs = [(candidate, completion) for candidate, answer in both for completion in answer.completions]
    verdicts = iter(judge_all(sampling.verifier, pairs, sampling.truncation))
    return [
        RolloutGroup(
            candidate_id=candidate.id,
            completions=answer.completions,
            verdicts=tuple(islice(verdicts, len(answer.completions))),
            prompt_ids=answer.prompt_ids,
        )
        for candidate, answer in both
    ]


class RolloutStore:
    """`rollouts/` and `verdicts/<verifier id>/` of one folder (a profile or an evaluation)."""

    def __init__(self, folder: Path, plan: RolloutPlan) -> None:
        self.folder, self.plan = folder, plan
        self._part = f"part-{plan.part:05d}{plan.share}.jsonl"
        self.rollouts = folder / "rollouts" / self._part

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Be the only writer of the folder, or of one's share beside other shares. Raises BusyError."""
        lock, share = self.folder / ".lock", self.plan.share
        if share:
            with FileLock(lock, shared=True, wait=SHARE_SECONDS), FileLock(self.folder / f"{share}.lock"):
                yield
        else:
            with FileLock(lock):
                yield

    def verdicts(self, verifier: Verifier | str) -> Path:
        return self.folder / "verdicts" / verifier_id(verifier) / self._part

    def complete_units(self, path: Path, most: int | None = None) -> tuple[int, int]:
        """(whole units in a part file, the bytes that they take), of the first `most` units; none failed for now."""
        return complete_units(path, (size * self.plan.n for size in self.plan.sizes[:most]), FAILED_FOR_NOW)

    def groups(self, verifier: Verifier | str) -> Iterator[RolloutGroup]:
        """Every group with its stored verdicts, in the planned order. Raises InputError where one is missing."""
        path = self.verdicts(verifier)
        verdicts = (decode(raw, StoredVerdict, str(path)) for _, raw in complete_lines(path))
        rollouts = self._rollouts()
        for row in self.plan.rows:
            mine = list(islice(rollouts, self.plan.n))
            words = list(islice(verdicts, self.plan.n))
            ids = {rollout.candidate_id for rollout in mine} | {word.candidate_id for word in words}
            if len(mine) != self.plan.n or len(words) != self.plan.n or ids != {row.id}:
                raise InputError(
                    f"{self.folder}: rollouts or verdicts of {row.id} are missing or out of order; "
                    "restore the files, or delete the folder and run the stage again"
                )
            yield RolloutGroup(
                candidate_id=row.id,
                completions=tuple(rollout.completion for rollout in mine),
                verdicts=tuple(word.verdict for word in words),
            )

    def _rollouts(self) -> Iterator[Rollout]:
        for number, (_, raw) in enumerate(complete_lines(self.rollouts), start=1):
            yield decode(raw, Rollout, f"{self.rollouts}:{number}")

    def unit_rollouts(self, skip_units: int) -> Iterator[list[Rollout]]:
        """The stored rollouts of each whole unit after the first `skip_units`."""
        rollouts = self._rollouts()
        for number, size in enumerate(self.plan.sizes):
            unit = list(islice(rollouts, size * self.plan.n))
            if len(unit) < size * self.plan.n:
                return
            if number >= skip_units:
                yield unit


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where collected rollouts go, and under which heading their cost."""

    store: RolloutStore
    candidates: CandidateStore
    ledger: Ledger
    stage: str
    name: str


def collect(place: Place, sampling: Sampling) -> None:
    """Sample and judge all that the plan still lacks. Interrupt it anywhere; the next call goes on."""
    store = place.store
    with store.writing():
        _catch_up(place, sampling.verifier, sampling.truncation)
        done, size = store.complete_units(store.rollouts)
        left, total = store.plan.rows[sum(store.plan.sizes[:done]) :], len(store.plan.rows)
        expect_judging(sampling.verifier, place.candidates, left, store.plan.n)
        if left and isinstance(sampling.policy, RemotePolicy):
            states = (candidate.state for _, candidate in place.candidates.loaded(left))
            sampling.policy.expect(states, n=sampling.n, params=sampling.params)
        with (
            PartWriter(store.rollouts, Pulse(1.0)) as rollouts,
            PartWriter(store.verdicts(sampling.verifier), Pulse(1.0)) as verdicts,
            Progress(place.stage + store.plan.share, total, total - len(left)) as progress,
        ):
            rollouts.keep(size)
            watch = Stopwatch()
            for trajectory_id, candidates in place.candidates.units(left):
                unit = f"{trajectory_id} round {store.plan.part}" if store.plan.part else trajectory_id
                with judging(place.ledger, place.stage, place.name, unit, sampling.verifier):
                    groups = sample_groups(sampling, candidates, store.plan.taken)
                usage = replace(sampling.policy.take_usage(), seconds=watch.lap())
                place.ledger.record(place.stage, place.name, unit, usage)
                taken = store.plan.taken
                samples = [sample for group in groups for sample in numbered(group, taken.get(group.candidate_id, 0))]
                rollouts.append(replace(rollout, completion=rollout.completion.stored) for rollout, _ in samples)
                verdicts.append(verdict_row(*sample) for sample in samples)
                progress.advance(len(candidates))
            rollouts.sync()
            verdicts.sync()


def rejudge(place: Place, verifier: Verifier, truncation: Truncation) -> None:
    """Judge stored rollouts that this verifier has not judged yet; samples nothing."""
    with place.store.writing():
        _catch_up(place, verifier, truncation)


def _catch_up(place: Place, verifier: Verifier, truncation: Truncation) -> None:
    """The work of `rejudge`, by a caller that holds the folder's lock."""
    store = place.store
    path = store.verdicts(verifier)
    sampled, _ = store.complete_units(store.rollouts)
    judged, size = store.complete_units(path, sampled)
    left = store.plan.rows[sum(store.plan.sizes[:judged]) : sum(store.plan.sizes[:sampled])]
    expect_judging(verifier, place.candidates, left, store.plan.n)
    with PartWriter(path) as part, Progress("verify", len(left)) as progress:
        part.keep(size)
        units = place.candidates.units(left)
        for (trajectory_id, candidates), rollouts in zip(units, store.unit_rollouts(judged), strict=False):
            by_id = {candidate.id: candidate for candidate in candidates}
            pairs = [(by_id[rollout.candidate_id], rollout.completion) for rollout in rollouts]
            with judging(place.ledger, place.stage, place.name, trajectory_id, verifier):
                verdicts = judge_all(verifier, pairs, truncation)
            part.append(map(verdict_row, rollouts, verdicts))
            progress.advance(len(candidates))


def numbered(group: RolloutGroup, first: int) -> Iterator[tuple[Rollout, Verdict]]:
    """Every sample of a group, numbered from `first`, with the verdict on it."""
    for sample, (completion, verdict) in enumerate(zip(group.completions, group.verdicts, strict=True), start=first):
        yield Rollout(candidate_id=group.candidate_id, sample=sample, completion=completion), verdict


def verdict_row(rollout: Rollout, verdict: Verdict) -> dict[str, Any]:
    """A `StoredVerdict` as it is written: `parts` only where there are some."""
    return {"candidate_id": rollout.candidate_id, "sample": rollout.sample, "verdict": _plain(verdict)}


def _plain(verdict: Verdict) -> dict[str, Any]:
    return {name: getattr(verdict, name) for name in verdict.__slots__ if name != "parts"} | (
        {"parts": [_plain(part) for part in verdict.parts]} if verdict.parts else {}
    )
