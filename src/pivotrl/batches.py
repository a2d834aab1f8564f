"""What a training run draws its batches from: the candidates of its method, and demonstrations as targets for SFT."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from pivotrl.candidates import CandidateStore
from pivotrl.chat import ChatFormat, RenderError
from pivotrl.errors import InputError, MissingError
from pivotrl.logs import Progress
from pivotrl.planning import CandidateCheck, choose, fitting
from pivotrl.profiling import profiled_rows
from pivotrl.storage import RunDirectory, read_jsonl
from pivotrl.training_settings import Origin, TrainConfig
from pivotrl.types import Candidate, CandidateRow, Pivot, SamplingParams, TrainingExample, Verifier

if TYPE_CHECKING:
    from pivotrl.policies.tinker import TinkerPolicy
    from pivotrl.policies.torch import TorchPolicy


@dataclass(frozen=True)
class TrainingData:
    """Candidates in a fixed order, loaded when they are drawn."""

    store: CandidateStore
    rows: Sequence[CandidateRow]
    left_out: dict[str, int]
    chat: ChatFormat
    targets: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Ids of the demonstrated actions (SFT only)."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """How often a candidate is drawn, in proportion; equally often where none is given."""

    @cached_property
    def by_id(self) -> dict[str, CandidateRow]:
        return {row.id: row for row in self.rows}

    @cached_property
    def _orders(self) -> dict[int, list[str]]:
        return {}

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
        if epoch not in self._orders:
            self._orders.clear()
            order = sorted(self.by_id, key=lambda key: hashlib.sha256(f"{seed}/{epoch}/{key}".encode()).digest())
            self._orders[epoch] = drawn_by_weight(order, self.weights) if self.weights else order
        return self._orders[epoch]

    def demonstration(self, candidate: Candidate) -> TrainingExample:
        ids = self.targets[candidate.id]
        return TrainingExample(
            group_id=candidate.id,
            prompt_ids=self.chat.prompt_ids(candidate.state),
            action_ids=ids,
            advantage=1.0,
            loss_mask=(True,) * len(ids),
        )


def drawn_by_weight(order: Sequence[str], weights: Mapping[str, float]) -> list[str]:
    """As many draws as there are candidates: each as often as its share of all weights says, rounded up or down.

    The draws go round and round, so that those of one candidate are apart (systematic sampling, Madow 1949).
    """
    each = len(order) / math.fsum(weights[key] for key in order)
    rounds: list[tuple[int, str]] = []
    total = 0.0
    for key in order:
        before, total = total, total + weights[key] * each
        rounds += [(copy, key) for copy in range(math.floor(total + 0.5) - math.floor(before + 0.5))]
    return [key for _, key in sorted(rounds, key=lambda one: one[0])]


def load_data(
    config: TrainConfig,
    origin: Origin | None,
    run: RunDirectory,
    start: TorchPolicy | TinkerPolicy,
    verifier: Verifier,
    params: SamplingParams,
) -> TrainingData:
    """The candidates of a method, less those that the model cannot take. Raises MissingError when none is left."""
    store, imitates = CandidateStore(run), config.method == "sft"
    length = replace(params, max_new_tokens=0) if imitates else params  # `_with_targets` looks at the target's length
    check = CandidateCheck(start, verifier, length, config.scope.max_prompt_tokens)
    if origin is None:
        choice = choose(store, "train", config.scope, check, config.seed)
    elif config.method == "pivotrl":
        choice = fitting(store, _pivot_rows(run.pivots(config.pivots), store, run.path), check)
    else:
        choice = fitting(store, profiled_rows(run, origin.profile, origin.plan), check)
    weights = _weights(run.pivots(config.pivots)) if config.method == "pivotrl" else {}
    data = TrainingData(store, choice.rows, choice.reasons, start.chat, weights=weights)
    if imitates:
        data = _with_targets(data, start.context_length)
    if not data.rows:
        why = choice if choice.left_out else data.left_out or "none left out"
        raise MissingError(
            f"{run.path}: no candidate is left to train on ({why}); run `pivotrl select`, see its funnel"
        )
    return data


def _pivot_rows(path: Path, store: CandidateStore, run: Path) -> list[CandidateRow]:
    by_id = {row.id: row for row in store.rows("train")}
    pivots = list(read_jsonl(path, Pivot, f"select --run {run} --name {path.stem}"))
    unknown = [pivot.candidate_id for pivot in pivots if pivot.candidate_id not in by_id]
    if unknown:
        raise InputError(f"{path}: {unknown[0]} is no training candidate of this run; select again")
    return [by_id[pivot.candidate_id] for pivot in pivots]


def _weights(path: Path) -> dict[str, float]:
    """Of the pivots; none where all are equal."""
    weights = {pivot.candidate_id: pivot.weight for pivot in read_jsonl(path, Pivot)}
    return weights if len(set(weights.values())) > 1 else {}


def _with_targets(data: TrainingData, context: int | None) -> TrainingData:
    """The same data with proven target ids; candidates that have none are left out with the reason."""
    targets: dict[str, tuple[int, ...]] = {}
    unproven: Counter[str] = Counter(data.left_out)
    with Progress("targets proven", len(data.rows)) as progress:
        for _, candidates in data.store.units(data.rows):
            for candidate in candidates:
                progress.advance()
                try:
                    ids = data.chat.demonstration_ids(candidate.state, candidate.demonstration)
                except RenderError as error:
                    unproven["sft_" + str(error).partition(":")[0]] += 1
                    continue
                if context is not None and len(data.chat.prompt_ids(candidate.state)) + len(ids) > context:
                    unproven["sft_over_context"] += 1
                    continue
                targets[candidate.id] = ids
    rows = [row for row in data.rows if row.id in targets]
    return replace(data, rows=rows, left_out=dict(unproven), targets=targets)
