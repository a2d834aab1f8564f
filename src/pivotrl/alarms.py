"""What goes wrong in a training without looking wrong, in plain words, from `metrics.jsonl` alone. Pure.

The first steps are compared with the last ones, WINDOW each. The bounds are ours: far outside what the demo's trainings
show, and near enough to be said before a night is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from pivotrl.metrics import known_mean
from pivotrl.step_metrics import StepMetrics

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

Steps = Sequence[StepMetrics]


def alarms(metrics: Steps) -> dict[str, str]:
    """What is wrong at the last step, by kind; nothing before there are two windows."""
    if len(metrics) < 2 * WINDOW:
        return {}
    first, last = metrics[:WINDOW], metrics[-WINDOW:]
    found = {kind: check(first, last) for kind, check in _CHECKS.items()}
    return {kind: f"alarm at step {last[-1].step}: {text}" for kind, text in found.items() if text}


def _grew(first: Steps, last: Steps, what: Callable[[StepMetrics], float], least: float) -> tuple[float, float] | None:
    """(before, after) where it exploded while the reward rose."""
    before, after = (known_mean(map(what, part)) or 0.0 for part in (first, last))
    rose = (_mean(last, "reward_mean") or 0.0) > (_mean(first, "reward_mean") or 0.0) + RISE
    return (before, after) if rose and after > EXPLODED * before and after - before > least else None


def _mean(part: Steps, name: str) -> float | None:
    return known_mean(getattr(one, name) for one in part)


def _length(first: Steps, last: Steps) -> str:
    grown = _grew(first, last, lambda one: one.action_tokens, 4.0)
    return (
        f"the reward rises while actions grow from {grown[0]:.0f} to {grown[1]:.0f} tokens; read samples/: the "
        "verifier may pay for length (`pivotrl audit`)"
        if grown
        else ""
    )


def _calls(first: Steps, last: Steps) -> str:
    grown = _grew(first, last, lambda one: one.calls_per_action, 0.3)
    return (
        f"the reward rises while calls per action grow from {grown[0]:.2f} to {grown[1]:.2f}; read samples/: the "
        "verifier may pay for surplus calls (`pivotrl audit`)"
        if grown
        else ""
    )


def _entropy(first: Steps, last: Steps) -> str:
    before, after = _mean(first, "entropy"), _mean(last, "entropy")
    if before is None or after is None or after >= COLLAPSED * before:
        return ""
    return (
        f"entropy collapse: {before:.3f} -> {after:.3f} nats a token; nothing new is tried any more: use fewer steps, "
        "a lower --optimizer.lr or a higher --loss.beta"
    )


def _flat(first: Steps, last: Steps) -> str:
    if not any(one.rollouts for one in last) or any(one.groups_mixed for one in last):
        return ""
    return f"no group was mixed in {WINDOW} steps, so nothing is learned; profile and select again"


def _drift(first: Steps, last: Steps) -> str:
    gap = known_mean(one.learner.sampler_gap for one in last if one.learner)
    if gap is None or gap < DRIFT:
        return ""
    return (
        f"sampler and learner drift apart: {gap:.2f} nats at a token; check that both have the same weights, template "
        "and numbers"
    )


def _truncated(first: Steps, last: Steps) -> str:
    rollouts, count = (sum(getattr(one, name) for one in last) for name in ("rollouts", "truncated"))
    if count <= SHARE * rollouts:
        return ""
    return f"{count} of the last {rollouts} actions were truncated; raise --max-new-tokens (and profile with it)"


def _unscored(first: Steps, last: Steps) -> str:
    rollouts, count = (sum(getattr(one, name) for one in last) for name in ("rollouts", "unscored"))
    if count <= SHARE * rollouts:
        return ""
    return f"the verifier failed on {count} of the last {rollouts} actions; see the reasons in samples/"


_CHECKS: Final[dict[str, Callable[[Steps, Steps], str]]] = {
    "length": _length,
    "calls": _calls,
    "entropy": _entropy,
    "flat": _flat,
    "drift": _drift,
    "truncated": _truncated,
    "unscored": _unscored,
}
