"""The curve of a training, a line of `metrics.jsonl` for each step, and what it shows: alarms, saturation. Pure.

Alarms say what goes wrong without looking wrong. The first steps are compared with the last ones, WINDOW each; the
bounds are ours: far outside what the demo's trainings show, and near enough to be said before a night is lost.

A training is saturated when it has learned what its pivots can teach, so that the policy should be profiled again.
Sources: the paper's Fig. 3 (the reward spread within groups decays as pivots are learned); Nemotron 3 Ultra (arXiv
2606.15007), which profiles again whenever accuracy saturates. A third, the windows and the gain are our choice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from pivotrl.errors import ConfigError, check_least
from pivotrl.metrics import group_statistics, known_mean
from pivotrl.rollouts import unscored
from pivotrl.types import Ending, Episode, RolloutGroup, StepResult

Cause = Literal["spread", "plateau"]
CAUSES: Final[dict[Cause, str]] = {
    "spread": "the reward spread within groups is below --saturation.share of its start",
    "plateau": "the reward has not risen by --saturation.gain for --saturation.patience windows",
}


WINDOW: Final = 10
RISE: Final = 0.02
"""Reward that counts as more."""
EXPLODED: Final = 1.5
"""Times the first window's length or call count."""
COLLAPSED: Final = 0.2
"""Of the first window's entropy."""
DRIFT: Final = 0.3
"""Nats between learner and sampler at one token, mean over steps of the largest."""
SHARE: Final = 0.2
"""Of the rollouts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMetrics:
    """One line of `metrics.jsonl`. Group composition is the pivot signal: only mixed groups teach."""

    step: int
    reward_mean: float | None
    reward_std: float | None
    """Mean over groups of the within-group population standard deviation."""
    groups_mixed: int
    groups_right: int
    groups_wrong: int
    groups_unscored: int
    rollouts: int
    unscored: int
    truncated: int
    unparsable: int
    calls_per_action: float
    action_tokens: float
    entropy: float | None = None
    """Nats per sampled token, estimated by minus the sampler's log-probability; None where it gave none."""
    learner: StepResult | None
    """None when no group gave a gradient."""
    saturated: Cause | None = None
    """At the first step at which the pivots are learned: how that shows."""

    redrawn: int = 0
    """Groups sampled again since their rewards were equal; their rollouts count, all else is of the first draw."""
    stale: int = 0
    """Examples dropped since the sampler's weights were too old."""
    turns: int = 0
    """Actions, where a rollout is an episode of several; truncated and unparsable are counts of these."""
    endings: dict[Ending, int] = field(default_factory=dict)
    """Why the episodes were over."""

    def values(self) -> dict[str, float]:
        """All numbers by name, those of the learner as `learner/NAME`, for a tracker."""
        own = {name: getattr(self, name) for name in self.__slots__ if name != "learner"}
        learned = {f"learner/{name}": getattr(self.learner, name) for name in StepResult.__slots__ if self.learner}
        return {name: float(value) for name, value in (own | learned).items() if isinstance(value, int | float)}


def mean_rewards(metrics: Sequence[StepMetrics]) -> tuple[int, float | None, float | None]:
    """(steps: a third of all, ten at most; the mean reward of so many first ones; and of so many last ones)."""
    span = max(1, min(10, len(metrics) // 3))
    first, last = (known_mean(one.reward_mean for one in part) for part in (metrics[:span], metrics[-span:]))
    return span, first, last


def step_metrics(
    step: int,
    drawn: Sequence[Sequence[RolloutGroup]],
    result: StepResult | None,
    stale: int = 0,
    episodes: Sequence[Episode] = (),
) -> StepMetrics:
    """What one step saw, draw by draw (none where demonstrations are imitated), and what the learner did."""
    groups = drawn[0] if drawn else []
    again = [group for groups in drawn[1:] for group in groups]
    statistics = [group_statistics(group.rewards) for group in groups]
    completions = [completion for group in groups for completion in group.completions]
    rewards = [reward for group in groups for reward in group.rewards]
    mixed = sum(one.variance is not None and one.variance > 0 for one in statistics)
    right = sum(one.variance == 0 and one.mean == 1 for one in statistics)
    unknown = sum(one.mean is None for one in statistics)
    actions = [completion.action for completion in completions if completion.action is not None]
    return StepMetrics(
        step=step,
        reward_mean=known_mean(rewards),
        reward_std=known_mean(one.variance**0.5 for one in statistics if one.variance is not None),
        groups_mixed=mixed,
        groups_right=right,
        groups_wrong=len(groups) - mixed - right - unknown,
        groups_unscored=unknown,
        rollouts=len(rewards) + sum(len(group.completions) for group in again),
        unscored=sum(unscored(verdict) for group in groups for verdict in group.verdicts),
        truncated=sum(completion.truncated for completion in completions),
        unparsable=sum(completion.unparsable for completion in completions),
        calls_per_action=known_mean(float(len(action.calls)) for action in actions) or 0.0,
        action_tokens=known_mean(float(len(completion.token_ids)) for completion in completions) or 0.0,
        entropy=known_mean(-one for completion in completions for one in completion.token_logprobs or ()),
        learner=result,
        redrawn=len(again),
        stale=stale,
        turns=sum(one.turns for one in episodes),
        endings=dict(Counter(one.ending for one in episodes)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SaturationSettings:
    """When a training is saturated. Raises ConfigError for values that cannot work."""

    window: int = 10
    """Steps whose mean is looked at."""
    share: float = 1 / 3
    """Saturated where the mean reward deviation within groups is below this share of that of the first window, ..."""
    patience: int = 3
    """... or where the mean reward is, compared with so many windows before, ..."""
    gain: float = 0.01
    """... higher by no more than this."""

    def __post_init__(self) -> None:
        check_least(self, "saturation ", window=1, patience=1)
        if not 0 <= self.share < 1:
            raise ConfigError(f"saturation share {self.share}: must be at least 0 (never) and below 1")


def saturated(
    spread_T: Sequence[float | None], reward_T: Sequence[float | None], settings: SaturationSettings
) -> Cause | None:
    """Why the last of these steps teaches little any more; None while it does, or too little is known."""
    window, before = settings.window, settings.window * settings.patience
    if len(spread_T) > window:
        start, now = known_mean(spread_T[:window]), known_mean(spread_T[-window:])
        if start is not None and now is not None and now < settings.share * start:
            return "spread"
    if len(reward_T) >= window + before:
        then, now = known_mean(reward_T[-window - before : -before]), known_mean(reward_T[-window:])
        if then is not None and now is not None and now - then <= settings.gain:
            return "plateau"
    return None


def watched(metrics: StepMetrics, before: Sequence[StepMetrics], settings: SaturationSettings) -> StepMetrics:
    """A step's metrics with the word of `saturated`, unless a step `before` has it."""
    if any(one.saturated for one in before):
        return metrics
    curve = [*before, metrics]
    cause = saturated([one.reward_std for one in curve], [one.reward_mean for one in curve], settings)
    return replace(metrics, saturated=cause)


Steps = Sequence[StepMetrics]


def alarms(metrics: Steps) -> dict[str, str]:
    """What is wrong at the last step, by kind; nothing before there are two windows."""
    if len(metrics) < 2 * WINDOW:
        return {}
    first, last = metrics[:WINDOW], metrics[-WINDOW:]
    found = (*_exploded(first, last), *_stuck(first, last), *_lost(last))
    return {kind: f"alarm at step {last[-1].step}: {text}" for kind, text in found}


def _mean(part: Steps, name: str) -> float:
    return known_mean(getattr(one, name) for one in part) or 0.0


def _exploded(first: Steps, last: Steps) -> Iterator[tuple[str, str]]:
    """What the verifier may pay for: what grows while the reward rises."""
    rises = _mean(last, "reward_mean") > _mean(first, "reward_mean") + RISE
    for kind, name, least, digits, what, paid in _GROWING if rises else ():
        before, after = _mean(first, name), _mean(last, name)
        if after > EXPLODED * before and after - before > least:
            yield (
                kind,
                f"the reward rises while {what[0]} from {before:.{digits}f} to {after:.{digits}f}{what[1]}; read "
                f"samples/: the verifier may pay for {paid} (`pivotrl audit`)",
            )


_GROWING: Final = (
    ("length", "action_tokens", 4.0, 0, ("actions grow", " tokens"), "length"),
    ("calls", "calls_per_action", 0.3, 2, ("calls per action grow", ""), "surplus calls"),
)
"""Kind of alarm, field, least growth, digits that are shown, and words."""


def _stuck(first: Steps, last: Steps) -> Iterator[tuple[str, str]]:
    before, after = (known_mean(one.entropy for one in part) for part in (first, last))
    if before is not None and after is not None and after < COLLAPSED * before:
        yield (
            "entropy",
            f"entropy collapse: {before:.3f} -> {after:.3f} nats a token; nothing new is tried any more: use fewer "
            "steps, a lower --optimizer.lr or a higher --loss.beta",
        )
    if any(one.rollouts for one in last) and not any(one.groups_mixed for one in last):
        yield "flat", f"no group was mixed in {WINDOW} steps, so nothing is learned; profile and select again"
    gap = known_mean(one.learner.sampler_gap for one in last if one.learner)
    if gap is not None and gap >= DRIFT:
        yield (
            "drift",
            f"sampler and learner drift apart: {gap:.2f} nats at a token; check that both have the same weights, "
            "template and numbers",
        )


def _lost(last: Steps) -> Iterator[tuple[str, str]]:
    rollouts, truncated, failed = (
        sum(getattr(one, name) for one in last) for name in ("rollouts", "truncated", "unscored")
    )
    actions = sum(one.turns for one in last) or rollouts
    if truncated > SHARE * actions:
        yield (
            "truncated",
            f"{truncated} of the last {actions} actions were truncated; raise --max-new-tokens (and profile with it)",
        )
    if failed > SHARE * rollouts:
        yield (
            "unscored",
            f"{failed} of the last {rollouts} rollouts have no reward: the verifier or the server failed; see samples/",
        )
