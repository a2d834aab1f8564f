"""Success of policies on whole held-out tasks of environments, before and after, with what lost the failed episodes.

A task's value is the mean outcome of its episodes; success is the mean over tasks. Two policies are compared on the
same tasks with the same random streams, task by task. One-turn environments show in the same way what was forgotten.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pivotrl.environments import LoadedEnvironment, load_environment, tasks_of
from pivotrl.episodes import Arena, EpisodeSettings, EpisodeStore, collect_episodes
from pivotrl.errors import MissingError
from pivotrl.evaluation_settings import EvaluateConfig, folder_name, inherit, open_policies
from pivotrl.failures import first_wrong_actions, is_guided
from pivotrl.ledger import Ledger
from pivotrl.metrics import clustered_mean, format_estimate
from pivotrl.outcomes import ItemScore, item_scores, pass_hat
from pivotrl.profile_settings import fingerprint_id
from pivotrl.protocols import Policy
from pivotrl.run_directory import RunDirectory, hold_to
from pivotrl.storage import content_hash
from pivotrl.types import Ending, Episode, Estimate, SamplingParams, Split

USUAL_TASKS: Final = 200
"""Where neither the user nor the environment, by an attribute `usual_tasks`, says how many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SuccessRate:
    """Mean outcome over tasks in [0, 1], and its change against the first policy, paired by task."""

    success: Estimate
    change: Estimate | None = None
    gained: int = 0
    """Tasks whose mean outcome is higher than the first policy's."""
    lost: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskScore:
    """How one policy fares in one environment."""

    policy: str
    environment: str
    fingerprint: str
    overall: SuccessRate
    by_kind: dict[str, SuccessRate]
    """By what the environment says that a task is of; kinds without a scored task are absent."""
    turns: Estimate
    """Per episode, scored or not."""
    endings: dict[Ending, int]
    """Why the episodes were over, most frequent first."""
    unscored: int
    """Episodes that a failed model call ended."""
    truncated: int
    """Turns, like the next."""
    unparsable: int
    first_wrong: dict[str, int] | None
    """What lost the failed episodes, most frequent first; None in an environment without an expert."""
    pass_hat: tuple[Estimate, ...] = ()
    """pass^k: the chance that k episodes of a task all earn full reward, for k = 1, 2, ... up to the trials."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskEvaluationResult:
    """`tasks.json` of an evaluation: environment by environment, the policies in their order."""

    split: Split
    tasks: dict[str, int]
    """By environment."""
    episodes: EpisodeSettings
    temperature: float
    scores: tuple[TaskScore, ...]
    general: tuple[str, ...] = ()
    """Environments of skills that training is not about: what is lost there was forgotten."""

    @property
    def environments(self) -> dict[str, list[TaskScore]]:
        """The scores by environment, in order."""
        names = dict.fromkeys(score.environment for score in self.scores)
        return {name: [score for score in self.scores if score.environment == name] for name in names}

    def lines(self) -> list[str]:
        trials = f", {self.episodes.trials} episodes each" if self.episodes.trials > 1 else ""
        lines: list[str] = []
        for environment, scores in self.environments.items():
            lines.append(f"{environment}: {self.tasks[environment]} held-out tasks ({self.split}){trials}")
            for score in scores:
                lines.append(f"{score.policy}: success {format_estimate(score.overall.success)}")
                if len(score.pass_hat) > 1:
                    chances = (f"pass^{k} {one.mean:.3f}" for k, one in enumerate(score.pass_hat, start=1))
                    lines.append(f"    {', '.join(chances)}")
                if score.overall.change is not None:
                    flips = f"{score.overall.gained} tasks gained, {score.overall.lost} lost"
                    lines.append(f"    change {format_estimate(score.overall.change)}; {flips}")
        return lines


@dataclass(frozen=True, slots=True, kw_only=True)
class _Suite:
    """Held-out tasks of one environment."""

    environment: LoadedEnvironment
    kinds: dict[str, str]
    """Kind by task id, in the order in which they are played."""
    general: bool
    """Whether training is not about it (`TaskEvaluationResult.general`)."""
    explained: int | None
    """In so many lost episodes the first wrong action is looked for; None: in all."""


def evaluate_tasks(config: EvaluateConfig, policies: Mapping[str, Policy] | None = None) -> TaskEvaluationResult:
    """Run or resume an evaluation on tasks. `policies` may be given as objects by name.

    Raises MissingError (no policy, nothing scored) or ConfigError (a bad setting, an unknown environment, fewer tasks
    than asked for, or a name that holds another evaluation).
    """
    run = RunDirectory(config.run)
    settings = inherit(config, run)
    suites = _suites(config)
    scores: list[TaskScore] = []
    items: list[ItemScore] = []
    first: dict[str, dict[str, float]] = {}
    for name, open_policy in open_policies(config, run, settings.model, policies).items():
        policy = open_policy()
        for suite in suites:
            episodes, environment = _episodes(config, settings.params, name, policy, suite), suite.environment.name
            scored = ((environment, one.task_id, one.reward) for one in episodes if one.reward is not None)
            mine = item_scores(name, scored)
            fingerprint = fingerprint_id(policy.fingerprint)
            scores.append(_score(name, fingerprint, suite, episodes, mine, first.get(environment)))
            first.setdefault(environment, _means(mine))
            items += mine
        del policy
    result = TaskEvaluationResult(
        split=config.split,
        tasks={suite.environment.name: len(suite.kinds) for suite in suites},
        episodes=config.episodes,
        temperature=settings.params.temperature,
        scores=tuple(sorted(scores, key=lambda score: config.env.index(score.environment))),
        general=tuple(suite.environment.name for suite in suites if suite.general),
    )
    versions = {suite.environment.name: suite.environment.version for suite in suites}
    facts = {"environments": versions, "fingerprints": {score.policy: score.fingerprint for score in scores}}
    settings.keep(config, "tasks.json", result, items, **facts, general=result.general)
    return result


def _suites(config: EvaluateConfig) -> list[_Suite]:
    """The tasks of every environment, chosen before anything is played."""
    counts = config.tasks if len(config.tasks) == len(config.env) else (config.tasks or (None,)) * len(config.env)
    suites = []
    for spec, wanted in zip(config.env, counts, strict=True):
        environment = load_environment(spec)
        env = environment.make()
        count = wanted if wanted is not None else getattr(env, "usual_tasks", USUAL_TASKS)
        tasks = tasks_of(environment, config.split, count, config.seed)
        kinds, general = {task: str(env.kind(task)) for task in tasks}, getattr(env, "general", False)
        suites.append(_Suite(environment=environment, kinds=kinds, general=general, explained=config.explained))
    return suites


def _episodes(
    config: EvaluateConfig, params: SamplingParams, name: str, policy: Policy, suite: _Suite
) -> list[Episode]:
    """Play, or read what an earlier run of this evaluation played. Raises ConfigError when that was another."""
    run = RunDirectory(config.run)
    environment, tasks, settings = suite.environment, tuple(suite.kinds), config.episodes
    folder = run.evaluation(config.title) / "policies" / folder_name(name) / folder_name(environment.name)
    plan = {
        "policy": fingerprint_id(policy.fingerprint),
        "environment": environment.version,
        "tasks": len(tasks),
        "task_ids": content_hash(tasks),
        "sampling": params,
        "episodes": settings,
        "seed": config.seed,
    }
    hold_to(folder / "plan.json", plan, hints={"environment": "the environment's source was edited"})
    place = f"{config.title}/{name}/{environment.name}"
    store = EpisodeStore(folder=folder, units=settings.units(tasks), ledger=Ledger(run.ledger), name=place)
    collect_episodes(store, Arena(environment=environment, settings=settings).playing(policy, params, config.seed))
    return list(store.episodes())


def _score(
    name: str,
    fingerprint: str,
    suite: _Suite,
    episodes: Sequence[Episode],
    items: Sequence[ItemScore],
    first: Mapping[str, float] | None,
) -> TaskScore:
    means = _means(items)
    if not means:
        complaint = next((episode.completions[-1].parse_error for episode in episodes), None)
        raise MissingError(
            f"{name} in {suite.environment.name}: no episode was scored, every one had a failed call ({complaint})"
        )
    env, most = suite.environment.make(), suite.explained
    completions = [completion for episode in episodes for completion in episode.completions]
    return TaskScore(
        policy=name,
        environment=suite.environment.name,
        fingerprint=fingerprint,
        overall=success_rate(means, first),
        by_kind={
            kind: success_rate({task: mean for task, mean in means.items() if suite.kinds[task] == kind}, first)
            for kind in sorted({suite.kinds[task] for task in means})
        },
        turns=clustered_mean(
            [episode.turns for episode in episodes], [episode.task_id for episode in episodes], (0.0, math.inf)
        ),
        endings=dict(Counter(episode.ending for episode in episodes).most_common()),
        unscored=sum(episode.reward is None for episode in episodes),
        truncated=sum(completion.truncated for completion in completions),
        unparsable=sum(completion.unparsable for completion in completions),
        first_wrong=first_wrong_actions(env, episodes, most) if is_guided(env) and most != 0 else None,
        pass_hat=pass_hat(items),
    )


def _means(items: Iterable[ItemScore]) -> dict[str, float]:
    """Mean outcome by task."""
    return {one.item: one.mean for one in items}


def success_rate(means: Mapping[str, float], first: Mapping[str, float] | None) -> SuccessRate:
    """Statistics of values by task, and of their differences where `first` has the task too."""
    changes = {task: mean - first[task] for task, mean in means.items() if task in first} if first else {}
    return SuccessRate(
        success=_estimate(means, 0.0),
        change=_estimate(changes, -1.0) if changes else None,
        gained=sum(change > 0 for change in changes.values()),
        lost=sum(change < 0 for change in changes.values()),
    )


def _estimate(values: Mapping[str, float], lowest: float) -> Estimate:
    """Over tasks; values lie between `lowest` and 1, or anywhere where one is not (scores of 0 to 100)."""
    unit = all(lowest <= value <= 1 for value in values.values())
    return clustered_mean(list(values.values()), list(values), (lowest, 1.0) if unit else (-math.inf, math.inf))
