"""Sampling in rounds: after each, all that was sampled decides which candidates get another (`budgets`).

`fixed` is one round. A round is written down in `rounds.jsonl` before it is sampled, and has part files of its own; it
follows from the merged rounds before it, so an interruption changes nothing. One budget for all candidates acts between
rounds only, and with shards when all of them are merged. Verdicts of another verifier may leave open what was settled;
a top-up then goes on by that verifier.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, groupby

from pivotrl.budgets import Budget, Counts, Stopping, StoppingSettings, curtailed, fit_prior
from pivotrl.errors import MissingError
from pivotrl.metrics import group_statistics
from pivotrl.planning import RolloutPlan
from pivotrl.protocols import Verifier
from pivotrl.rollouts import Place, RolloutStore, Sampling, Truncation, rejudge
from pivotrl.sharding import Shard, collect_round, collect_share, is_whole, tidy
from pivotrl.storage import read_jsonl, summed, write_atomic
from pivotrl.types import CandidateRow, RolloutGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Spending:
    """How many rollouts there are, and where they go."""

    budget: Budget
    rollouts: int
    stopping: StoppingSettings

    @property
    def first(self) -> int:
        """Rollouts of every candidate in the first round."""
        return self.rollouts if self.budget == "fixed" else min(self.rollouts, self.stopping.round_size)

    @property
    def most(self) -> int:
        """Rollouts that a candidate gets at most."""
        return self.stopping.most if self.budget == "bayes" else self.rollouts


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """A line of `rounds.jsonl`: a round after the first."""

    candidates: tuple[str, ...]
    n: int
    price: float | None
    """What a rollout was worth, as a part of a wrong decision (budget bayes)."""


Rewards = Mapping[str, Sequence[float | None]]
"""Of every candidate, in the order of sampling."""


class Rounds:
    """The stores of a profile's rounds, in order."""

    def __init__(self, place: Place, rows: Sequence[CandidateRow], spending: Spending) -> None:
        self.place, self.rows, self.spending = place, rows, spending
        self.path = place.store.folder / "rounds.jsonl"
        self.rounds = list(read_jsonl(self.path, Round)) if self.path.exists() else []
        self.stores = [place.store]
        self._taken: dict[str, int] = {}
        """Rollouts of the candidates that had more than one round."""
        for one in self.rounds:
            self._open(one)

    def _open(self, one: Round) -> None:
        chosen = frozenset(one.candidates)
        rows = tuple(row for row in self.rows if row.id in chosen)
        taken = {row.id: self._taken.get(row.id, self.spending.first) for row in rows}
        plan = RolloutPlan(rows=rows, n=one.n, part=len(self.stores), taken=taken)
        self.stores.append(RolloutStore(self.place.store.folder, plan))
        self._taken |= {key: before + one.n for key, before in taken.items()}

    def spend(self, sampling: Sampling, *, topup: bool = False, shard: Shard | None = None) -> str:
        """Sample round after round until the budget is spent or all is settled; a top-up until all is settled.

        A shard samples its share of one round at most. Returns in a line what has to happen before it can go on.
        """
        worked, fixed = False, self.spending.budget == "fixed"
        rewards: dict[str, list[float | None]] = {} if fixed else {row.id: [] for row in self.rows}
        for number in count():
            if number == len(self.stores) and (fixed or not self._add(self._plan(rewards, topup=topup))):
                break
            store = self.stores[number]
            place, mine = replace(self.place, store=store), replace(sampling, n=store.plan.n)
            if shard is None:
                collect_round(place, mine)
            elif is_whole(store, sampling.verifier):
                tidy(store)
            elif worked:
                return f"round {number} is merged; run all {shard.count} shards again, for round {number + 1}"
            else:
                worked, waiting = True, collect_share(place, mine, shard)
                if waiting:
                    return waiting
            for group in () if fixed else store.groups(sampling.verifier):
                rewards[group.candidate_id] += group.rewards
        return ""

    def _add(self, planned: Round | None) -> bool:
        if planned is not None:
            self.rounds.append(planned)
            write_atomic(self.path, map(summed, self.rounds))
            self._open(planned)
        return planned is not None

    def _plan(self, rewards: Rewards, *, topup: bool) -> Round | None:
        spending, price = self.spending, None
        if spending.budget == "bayes" and not topup:
            left = spending.rollouts * len(self.rows) - sum(map(len, rewards.values()))
            keys, problem, counts = self._problem(rewards)
            at, price = problem.next_round(counts, left)
            wanted = [keys[index] for index in at]
        else:
            wanted = self.unsettled(rewards)
            price = self.rounds[-1].price if self.rounds else None
        if not wanted:
            return None
        room = min(spending.most - len(rewards[key]) for key in wanted)
        return Round(candidates=tuple(wanted), n=min(spending.stopping.round_size, room), price=price)

    def _problem(self, rewards: Rewards) -> tuple[list[str], Stopping, Counts]:
        """(candidates with room for another round, what to do with them, their counts)."""
        settings = self.spending.stopping
        seen = {key: group_statistics(values) for key, values in rewards.items()}
        stopping = Stopping(fit_prior(Counts.of(list(seen.values()))), settings)
        keys = [key for key, values in rewards.items() if len(values) + settings.round_size <= settings.most]
        return keys, stopping, Counts.of([seen[key] for key in keys])

    def unsettled(self, rewards: Rewards) -> list[str]:
        """Candidates whose fate more rollouts may change (curtailed), or are worth their last price (bayes)."""
        spending = self.spending
        if spending.budget == "bayes":
            keys, problem, counts = self._problem(rewards)
            price = self.rounds[-1].price if self.rounds else None
            return [keys[index] for index in problem.unsettled(counts, price or 0.0)]
        lambda_diff = spending.stopping.lambda_diff
        left = {key: spending.most - len(values) for key, values in rewards.items()}
        return [
            key
            for key, values in rewards.items()
            if left[key] > 0 and curtailed(group_statistics(values), left[key], lambda_diff) is None
        ]

    def rejudge(self, verifier: Verifier, truncation: Truncation) -> None:
        """Judge what was sampled by another verifier. Raises MissingError where sampling is not finished."""
        for store in self.stores:
            if store.complete_units(store.rollouts)[0] < len(store.plan.sizes):
                folder = store.folder
                raise MissingError(f"{folder}: the profile is unfinished; run `pivotrl profile` again before rescoring")
        for store in self.stores:
            rejudge(replace(self.place, store=store), verifier, truncation)

    def groups(self, verifier: Verifier | str) -> Iterator[RolloutGroup]:
        """Every candidate's rollouts of all rounds, in the planned order."""
        if len(self.stores) == 1:
            yield from self.place.store.groups(verifier)
            return
        position = {row.id: index for index, row in enumerate(self.rows)}
        parts = heapq.merge(
            *(store.groups(verifier) for store in self.stores), key=lambda group: position[group.candidate_id]
        )
        for key, some in groupby(parts, key=lambda group: group.candidate_id):
            groups = list(some)
            yield RolloutGroup(
                candidate_id=key,
                completions=tuple(one for group in groups for one in group.completions),
                verdicts=tuple(one for group in groups for one in group.verdicts),
            )
