"""How a training came out, in lines for a person."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from pivotrl.curves import CAUSES, StepMetrics, mean_rewards
from pivotrl.logs import counted
from pivotrl.metrics import known_mean
from pivotrl.planning import in_words
from pivotrl.training_settings import IMITATION, Method


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainResult:
    """How a training came out."""

    method: Method
    steps: int
    candidates: int
    prompts: int
    left_out: dict[str, int]
    metrics: tuple[StepMetrics, ...]
    model: Path
    alarms: tuple[str, ...] = ()
    validation: str = ""
    verifier: str = ""
    again: str = ""
    """The command that profiles with what was trained."""

    def lines(self) -> list[str]:
        things = "tasks" if self.method == "e2e" else "candidates"
        made, on = counted(self.steps, "step"), counted(self.candidates, things[:-1])
        lines = [f"{self.method}: {made} on {on} -> {self.model}"]
        lines += [f"rewarded by {self.verifier}"] if self.verifier else []
        lines += [f"left out: {said}" for said in in_words(dict(sorted(self.left_out.items())))]
        if self.candidates < self.prompts:
            lines.append(f"a batch holds {self.candidates}, not {self.prompts}: there are no more {things}")
        lines += [text for text in (*self.alarms, self.validation) if text]
        span, before, after = mean_rewards(self.metrics)
        steps = counted(span, "step")
        if self.method in IMITATION:
            parts = (self.metrics[:span], self.metrics[-span:])
            first, last = (known_mean(one.learner.loss for one in part if one.learner) or 0.0 for part in parts)
            return [*lines, f"loss {first:.3f} -> {last:.3f} nats per token (first and last {steps})"]
        mixed = sum(metrics.groups_mixed for metrics in self.metrics)
        groups = mixed + sum(m.groups_right + m.groups_wrong + m.groups_unscored for m in self.metrics)
        lines.append(f"reward {before or 0:.3f} -> {after or 0:.3f} (mean of the first and the last {steps})")
        lines.append(f"{mixed} of {groups} groups were mixed ({mixed / max(groups, 1):.0%})")
        endings = sum((Counter(one.endings) for one in self.metrics), Counter[str]())
        if endings:
            said = ", ".join(f"{ending} {count}" for ending, count in endings.most_common())
            lines.append(f"{sum(one.turns for one in self.metrics) / endings.total():.1f} turns an episode; {said}")
        for label in ("unscored", "truncated", "unparsable"):
            count, unit = sum(getattr(one, label) for one in self.metrics), "turns" if endings else "rollouts"
            lines += [f"{'rollouts' if label == 'unscored' else unit} {label}: {count}"] if count else []
        return lines + [learned(one, self.again) for one in self.metrics if one.saturated]


def learned(metrics: StepMetrics, again: str) -> str:
    """What to do after the step at which a training is saturated."""
    assert metrics.saturated is not None
    return f"step {metrics.step}: {CAUSES[metrics.saturated]}; profile with the trained policy: `{again}`"
