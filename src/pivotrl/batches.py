"""What a training run draws its batches from: the candidates of its method, and what is to be imitated at them."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from pathlib import Path

from pivotrl.candidates import CandidateStore
from pivotrl.chat import ChatFormat
from pivotrl.errors import InputError, MissingError
from pivotrl.examples import Targets, accepted_targets, proven_targets
from pivotrl.learners import Trainable
from pivotrl.planning import CandidateCheck, choose, fitting, in_words
from pivotrl.profile_settings import profiled_groups, profiled_rows
from pivotrl.protocols import Verifier
from pivotrl.run_directory import RunDirectory
from pivotrl.storage import read_jsonl, shuffle_key
from pivotrl.training_settings import Origin, TrainConfig
from pivotrl.types import Candidate, CandidateRow, Pivot, SamplingParams, TrainingExample


@dataclass(frozen=True)
class TrainingData:
    """Candidates in a fixed order, loaded when they are drawn."""

    store: CandidateStore
    rows: Sequence[CandidateRow]
    left_out: dict[str, int]
    chat: ChatFormat
    targets: Targets = field(default_factory=dict)
    """Ids of the actions to imitate (sft, rft)."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """How often a candidate is drawn, in proportion; equally often where none is given."""
    cap: int | None = None
    """Most candidates of one trajectory in a batch, which then come together; None: as chance has it."""
    _orders: dict[tuple[int, int], list[str]] = field(default_factory=dict, init=False)
    _streams: dict[tuple[int, int], tuple[list[list[str]], Iterator[list[str]]]] = field(
        default_factory=dict, init=False
    )
    """The batches so far, and those to come, of a (size, seed)."""

    @cached_property
    def by_id(self) -> dict[str, CandidateRow]:
        return {row.id: row for row in self.rows}

    def batch(self, step: int, size: int, seed: int) -> list[Candidate]:
        """The candidates of a step, from the epochs' shuffled orders, each at most once.

        Without a cap those at position step * size and on; with one, `grouped` ones, of which the cap may leave fewer.
        """
        size = min(size, len(self.rows))
        drawn = self._grouped(step, size, seed) if self.cap else self._plain(step, size, seed)
        rows = sorted((self.by_id[key] for key in drawn), key=lambda row: (row.trajectory_id, row.turn))
        candidates = {row.id: candidate for row, candidate in self.store.loaded(rows)}
        return [candidates[key] for key in drawn]

    def _plain(self, step: int, size: int, seed: int) -> list[str]:
        places = (divmod(position, len(self.rows)) for position in range(step * size, (step + 1) * size))
        return list(dict.fromkeys(self._order(epoch, seed)[place] for epoch, place in places))

    def _grouped(self, step: int, size: int, seed: int) -> list[str]:
        cap = self.cap or size
        if (size, seed) not in self._streams:
            trajectories = {row.id: row.trajectory_id for row in self.rows}
            orders = (in_runs(self._order(epoch, seed), trajectories, cap, f"{seed}/{epoch}") for epoch in count())
            self._streams[size, seed] = [], grouped(orders, trajectories, size, cap)
        batches, stream = self._streams[size, seed]
        while len(batches) <= step:
            batches.append(next(stream))
        return batches[step]

    def _order(self, epoch: int, seed: int) -> list[str]:
        if (epoch, seed) not in self._orders:
            self._orders.clear()
            order = sorted(self.by_id, key=lambda key: shuffle_key(f"{seed}/{epoch}/{key}"))
            self._orders[epoch, seed] = drawn_by_weight(order, self.weights) if self.weights else order
        return self._orders[epoch, seed]

    def imitated(self, candidate: Candidate) -> list[TrainingExample]:
        """The targets of a candidate, as one group."""
        prompt = self.chat.prompt_ids(candidate.state)
        return [
            TrainingExample(
                group_id=candidate.id, prompt_ids=prompt, action_ids=ids, advantage=1.0, loss_mask=(True,) * len(ids)
            )
            for ids in self.targets[candidate.id]
        ]


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


def in_runs(order: Sequence[str], trajectories: Mapping[str, str], cap: int, key: str) -> list[str]:
    """The same draws in runs of up to `cap` of one trajectory; a trajectory's runs lie evenly over the order."""
    draws: defaultdict[str, list[str]] = defaultdict(list)
    for name in order:
        draws[trajectories[name]].append(name)
    runs: list[tuple[float, str, list[str]]] = []
    for trajectory, names in draws.items():
        starts = range(0, len(names), cap)
        offset = int.from_bytes(shuffle_key(f"{key}/{trajectory}")[:6]) / 2**48
        runs += [
            ((number + offset) / len(starts), trajectory, names[start : start + cap])
            for number, start in enumerate(starts)
        ]
    return [name for _, _, run in sorted(runs) for name in run]


def grouped(
    orders: Iterator[Sequence[str]], trajectories: Mapping[str, str], size: int, cap: int
) -> Iterator[list[str]]:
    """Batches of up to `size` draws, each candidate at most once and at most `cap` of one trajectory.

    What does not fit a batch waits for the next. No draw of an epoch comes before the last of the epoch before has its
    place, so that batches are short where only candidates of a trajectory at its cap are left.
    """
    waiting: Sequence[str] = ()
    while True:
        batch: dict[str, str] = {}
        waiting = _fill(batch, waiting, trajectories, size, cap)
        if not waiting:
            waiting = _fill(batch, next(orders), trajectories, size, cap)
        yield list(batch)


def _fill(
    batch: dict[str, str], draws: Sequence[str], trajectories: Mapping[str, str], size: int, cap: int
) -> list[str]:
    """Put draws into the batch (candidate to trajectory) while they fit. Returns the others."""
    left: list[str] = []
    held = Counter(batch.values())
    for name in draws:
        trajectory = trajectories[name]
        if len(batch) == size or name in batch or held[trajectory] == cap:
            left.append(name)
        else:
            batch[name] = trajectory
            held[trajectory] += 1
    return left


def load_data(
    config: TrainConfig,
    origin: Origin | None,
    run: RunDirectory,
    start: Trainable,
    verifier: Verifier,
    params: SamplingParams,
) -> TrainingData:
    """The candidates of a method, less those that the model cannot take. Raises MissingError when none is left."""
    store = CandidateStore(run)
    length = replace(params, max_new_tokens=0) if config.imitates else params  # targets have their own
    check = CandidateCheck(start, verifier, length, config.scope.max_prompt_tokens)
    weights: dict[str, float] = {}
    if origin is None:
        choice = choose(store, "train", config.scope, check, config.seed)
    elif config.on_pivots:
        rows, weights = pivot_rows(run.pivots(config.pivots), store)
        choice = fitting(store, rows, check)
    else:
        choice = fitting(store, profiled_rows(run, origin.profile, origin.plan), check)
    data = TrainingData(store, choice.rows, choice.reasons, start.chat, weights=weights, cap=config.cap_per_trajectory)
    if config.method == "sft":
        data = _with(data, *proven_targets(store, data.rows, start))
    elif config.method == "rft":
        assert origin is not None, "rft needs a profile"
        samples = profiled_groups(run, origin.profile, verifier)
        data = _with(data, *accepted_targets(samples, data.rows, config.accepted, origin.plan.fingerprint, start))
    if not data.rows:
        why = ", ".join(in_words(data.left_out)) if choice.rows else choice
        raise MissingError(
            f"{run.path}: no candidate is left to train on ({why}); change --scope, --max-new-tokens, "
            "--model.chat-template, --model.tool-parser or --method"
        )
    return data


def pivot_rows(path: Path, store: CandidateStore) -> tuple[list[CandidateRow], dict[str, float]]:
    """The candidates of a selection, and their weights: none where all are equal. Raises MissingError or InputError."""
    run = store.run.path
    pivots = list(read_jsonl(path, Pivot, f"select --run {run} --name {path.stem}"))
    store.run.check(path)
    if not pivots:
        raise MissingError(f"selection {path.stem!r} holds no pivots; `pivotrl report --run {run}` shows why")
    weights = {pivot.candidate_id: pivot.weight for pivot in pivots}
    by_id = {row.id: row for row in store.rows("train") if row.id in weights}
    unknown = [pivot.candidate_id for pivot in pivots if pivot.candidate_id not in by_id]
    if unknown:
        raise InputError(f"{path}: {unknown[0]} is no training candidate of this run; select again")
    rows = [by_id[pivot.candidate_id] for pivot in pivots]
    return rows, weights if len(set(weights.values())) > 1 else {}


def _with(data: TrainingData, targets: Targets, without: dict[str, int]) -> TrainingData:
    """The same data with targets; candidates without any are left out with the reason."""
    rows = [row for row in data.rows if row.id in targets]
    return replace(data, rows=rows, left_out=data.left_out | without, targets=targets)
