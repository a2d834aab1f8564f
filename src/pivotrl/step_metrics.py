"""One line of `metrics.jsonl` for every training step: rewards, group composition, what the learner did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pivotrl.metrics import group_statistics, known_mean
from pivotrl.rollouts import unscored
from pivotrl.saturation import Cause, SaturationSettings, saturated
from pivotrl.types import RolloutGroup, StepResult


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

    def values(self) -> dict[str, float]:
        """All numbers by name, those of the learner as `learner/NAME`, for a tracker."""
        own = {name: getattr(self, name) for name in self.__slots__ if name != "learner"}
        learned = {f"learner/{name}": getattr(self.learner, name) for name in StepResult.__slots__ if self.learner}
        return {name: float(value) for name, value in (own | learned).items() if isinstance(value, int | float)}


def step_metrics(
    step: int, drawn: Sequence[Sequence[RolloutGroup]], result: StepResult | None, stale: int = 0
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
    )


def watched(metrics: StepMetrics, before: Sequence[StepMetrics], settings: SaturationSettings) -> StepMetrics:
    """A step's metrics with the word of `saturation`, unless a step `before` has it."""
    if any(one.saturated for one in before):
        return metrics
    curve = [*before, metrics]
    cause = saturated([one.reward_std for one in curve], [one.reward_mean for one in curve], settings)
    return replace(metrics, saturated=cause)
