"""While a training goes on: its reward at held-out candidates or tasks, and the weights that did best there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from pivotrl.candidates import CandidateStore
from pivotrl.environments import tasks_of
from pivotrl.episodes import Arena, by_task
from pivotrl.errors import MissingError, check_least
from pivotrl.ledger import Ledger, Stopwatch
from pivotrl.metrics import group_statistics, mean_share
from pivotrl.planning import CandidateCheck, Scope, choose
from pivotrl.rollouts import Sampling, judging, sample_groups, unscored
from pivotrl.storage import read_jsonl, seed_of, summed, write_atomic
from pivotrl.types import Candidate, Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationSettings:
    """Sampling at candidates or tasks of the validation split, always with the same random numbers."""

    every: int = 0
    """Steps between validations, the first before any step; 0: never."""
    candidates: int = 64
    """A random sample of at most this many."""
    rollouts: int = 4
    """Actions sampled at each."""
    tasks: int = 100
    """With --env: so many tasks are played instead, --episodes.trials times each, and the reward is their success."""
    keep: Literal["best", "last"] = "best"
    """Which weights become `model`: the ones with the highest validation reward (of equal ones the first), or the last
    ones."""

    def __post_init__(self) -> None:
        check_least(self, "validation ", every=0, candidates=1, rollouts=1, tasks=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationPoint:
    """A line of `validation.jsonl`."""

    step: int
    """Steps done."""
    reward: Estimate | None
    """Clustered by task; None where no rollout was scored."""
    unscored: int
    truncated: int


class Validation:
    """The validations of one training, in `validation.jsonl`."""

    def __init__(
        self, settings: ValidationSettings, path: Path, ledger: Ledger, name: str, arena: Arena | None
    ) -> None:
        self.settings, self.path, self.ledger, self.name, self.arena = settings, path, ledger, name, arena
        self.points: list[ValidationPoint] = []
        self._candidates: list[Candidate] = []
        self._tasks: dict[str, str] = {}

    def begin(self, store: CandidateStore | None, sampling: Sampling, start: int, seed: int) -> None:
        """Choose what to ask; forget the point at `start`, whose weights may not have been kept, and later ones.

        Raises MissingError where there are no candidates, ConfigError where there are not so many tasks.
        """
        if not self.settings.every:
            return
        self.points = [point for point in self.stored() if point.step < start]
        if self.arena:
            tasks = tasks_of(self.arena.environment, "validation", self.settings.tasks, seed)
            self._tasks = {task: task for task in tasks}
            return
        assert store is not None, "whoever has no candidates has an arena"
        check = CandidateCheck(sampling.policy, sampling.verifier, sampling.params, None)
        choice = choose(store, "validation", Scope(max_candidates=self.settings.candidates), check, seed)
        if not choice.rows:
            raise MissingError(f"validation: no candidate of the validation split can be asked: {choice}")
        self._tasks = {row.id: row.group for row in choice.rows}
        self._candidates = [candidate for _, candidate in store.loaded(choice.rows)]

    def stored(self) -> list[ValidationPoint]:
        return list(read_jsonl(self.path, ValidationPoint)) if self.path.exists() else []

    def measure(self, step: int, sampling: Sampling) -> bool:
        """Validate the weights after `step` steps. Returns whether no earlier ones did as well."""
        watch = Stopwatch()
        sampling = replace(sampling, n=self.settings.rollouts, seed=seed_of(f"validation/{sampling.seed}"))
        if self.arena:
            played = self.arena.play(sampling.policy, sampling.params, sampling.seed, [*self._tasks])
            groups = by_task([one.episode for one in played])
        else:
            with judging(self.ledger, "train", self.name, f"validation-{step:06d}", sampling.verifier):
                groups = sample_groups(sampling, self._candidates)
        rollouts = sum(len(group.verdicts) for group in groups)
        usage = replace(sampling.policy.take_usage(), seconds=watch.lap(), rollouts=rollouts)
        self.ledger.record("train", self.name, f"validation-{step:06d}", usage)
        means = [(group_statistics(group.rewards).mean, self._tasks[group.candidate_id]) for group in groups]
        scored = [(mean, task) for mean, task in means if mean is not None]
        point = ValidationPoint(
            step=step,
            reward=mean_share(scored) if scored else None,
            unscored=sum(unscored(verdict) for group in groups for verdict in group.verdicts),
            truncated=sum(completion.truncated for group in groups for completion in group.completions),
        )
        best = max(self.points, key=mean_of, default=None)
        self.points.append(point)
        write_atomic(self.path, map(summed, self.points))
        return best is None or mean_of(point) > mean_of(best)


def mean_of(point: ValidationPoint) -> float:
    """-1 where nothing was scored."""
    return -1.0 if point.reward is None else point.reward.mean


def validation_line(points: Sequence[ValidationPoint], keep: str) -> str:
    """First, best and last, for a person; empty without points."""
    if not points:
        return ""
    best = max(points, key=mean_of)
    said = ", ".join(f"{mean_of(one):.3f} after {one.step}" for one in (points[0], points[-1]))
    kept = "these weights are the model" + ", NOT trained" * (best.step == 0) if keep == "best" else "kept in best/"
    return f"validation reward {said} steps; best {mean_of(best):.3f} after {best.step}: {kept}"
