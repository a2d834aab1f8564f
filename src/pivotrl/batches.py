"""What a training run draws its batches from: the candidates of its method, and demonstrations as targets for SFT."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Protocol

from pivotrl.candidates import CandidateStore
from pivotrl.chat import RenderError
from pivotrl.errors import InputError, MissingError
from pivotrl.models import LoadedModel
from pivotrl.planning import CandidateCheck, Scope, choose
from pivotrl.storage import RunDirectory, read_jsonl
from pivotrl.types import Candidate, CandidateRow, Pivot, SamplingParams, TrainingExample, Verifier


class DataSettings(Protocol):
    """The part of a training's config that says on what it trains."""

    @property
    def method(self) -> str: ...
    @property
    def data(self) -> str: ...
    @property
    def pivots(self) -> str: ...
    @property
    def profile(self) -> str: ...
    @property
    def scope(self) -> Scope: ...
    @property
    def seed(self) -> int: ...


@dataclass(frozen=True)
class TrainingData:
    """Candidates in a fixed order, loaded when they are drawn."""

    store: CandidateStore
    rows: Sequence[CandidateRow]
    left_out: dict[str, int]
    targets: dict[str, TrainingExample] = field(default_factory=dict)

    @cached_property
    def by_id(self) -> dict[str, CandidateRow]:
        return {row.id: row for row in self.rows}

    def batch(self, step: int, size: int, seed: int) -> list[Candidate]:
        """The candidates of a step: position step * size and on in the epochs' shuffled orders, each at most once."""
        count = len(self.rows)
        size = min(size, count)
        drawn: dict[str, None] = {}
        for position in range(step * size, (step + 1) * size):
            epoch, place = divmod(position, count)
            drawn[self._order(epoch, seed)[place]] = None
        candidates = {
            candidate.id: candidate
            for _, unit in self.store.units([self.by_id[key] for key in drawn])
            for candidate in unit
        }
        return [candidates[key] for key in drawn]

    def _order(self, epoch: int, seed: int) -> list[str]:
        return sorted(self.by_id, key=lambda key: hashlib.sha256(f"{seed}/{epoch}/{key}".encode()).digest())

    def demonstration(self, candidate: Candidate) -> TrainingExample:
        return self.targets[candidate.id]


def load_data(
    settings: DataSettings, run: RunDirectory, loaded: LoadedModel, verifier: Verifier, params: SamplingParams
) -> TrainingData:
    """The candidates of a method. Raises MissingError when none is left."""
    from pivotrl.policies.torch import TorchPolicy

    store = CandidateStore(run)
    left_out: dict[str, int] = {}
    if settings.data == "train":
        limit = settings.scope.max_prompt_tokens
        fits = replace(
            params, max_new_tokens=0
        )  # imitation samples nothing; `_targets` looks at the target's own length
        check = CandidateCheck(TorchPolicy(loaded), verifier, fits, limit)
        choice = choose(store, "train", settings.scope, check, settings.seed)
        rows, left_out = choice.rows, dict(Counter(skipped.reason for skipped in choice.left_out))
    elif settings.method == "pivotrl":
        rows = _pivot_rows(run.pivots(settings.pivots), store, run.path)
    else:
        folder = run.profile(settings.profile)
        rows = list(read_jsonl(folder / "candidates.jsonl", CandidateRow, f"profile --run {run.path}"))
    if settings.method != "sft":
        if not rows:
            raise MissingError(f"{run.path}: no candidates to train on; run `pivotrl select` and see its funnel")
        return TrainingData(store, rows, left_out)
    targets, unproven = _targets(store, rows, loaded)
    left_out |= unproven
    rows = [row for row in rows if row.id in targets]
    if not rows:
        raise MissingError(f"{run.path}: no demonstration can be used as a target: {left_out}")
    return TrainingData(store, rows, left_out, targets)


def _pivot_rows(path: Path, store: CandidateStore, run: Path) -> list[CandidateRow]:
    by_id = {row.id: row for row in store.rows("train")}
    pivots = list(read_jsonl(path, Pivot, f"select --run {run} --name {path.stem}"))
    unknown = [pivot.candidate_id for pivot in pivots if pivot.candidate_id not in by_id]
    if unknown:
        raise InputError(f"{path}: {unknown[0]} is no training candidate of this run; select again")
    return [by_id[pivot.candidate_id] for pivot in pivots]


def _targets(
    store: CandidateStore, rows: Sequence[CandidateRow], loaded: LoadedModel
) -> tuple[dict[str, TrainingExample], dict[str, int]]:
    """Proven target ids of demonstrations by candidate id, and the reasons of those that have none."""
    targets: dict[str, TrainingExample] = {}
    unproven: Counter[str] = Counter()
    chat, context = loaded.chat, loaded.context_length
    for _, candidates in store.units(rows):
        for candidate in candidates:
            try:
                ids = chat.demonstration_ids(candidate.state, candidate.demonstration)
            except RenderError as error:
                unproven["sft_" + str(error).partition(":")[0]] += 1
                continue
            prompt_ids = chat.prompt_ids(candidate.state)
            if context is not None and len(prompt_ids) + len(ids) > context:
                unproven["sft_over_context"] += 1
                continue
            targets[candidate.id] = TrainingExample(
                group_id=candidate.id,
                prompt_ids=prompt_ids,
                action_ids=ids,
                advantage=1.0,
                loss_mask=(True,) * len(ids),
            )
    return targets, dict(unproven)
