"""Select: the pivots are the candidates with reward variance > 0 and mean < lambda_diff (Eq. 5, both strict).

Departures from the paper: none in the rule. lambda_diff is not given there; 0.6 is what NVIDIA's released
tau-bench data fit, and 16 rollouts. Candidates without a scored rollout are counted apart, never read as hopeless.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pivotrl.errors import ConfigError, MissingError
from pivotrl.ledger import Ledger, timed
from pivotrl.profiling import load_plan, profiled_rows, summary_path
from pivotrl.storage import RunDirectory, file_hash, read_jsonl, write_jsonl
from pivotrl.types import Pivot, Profile
from pivotrl.verifiers import load_verifier, verifier_id

FUNNEL: Final = {
    "unscored": "too few rollouts were scored",
    "solved": "every action was right: nothing to learn",
    "hopeless": "no action was right: nothing to reinforce",
    "flat": "all rewards equal, neither 0 nor 1",
    "low_spread": "standard deviation below min-std",
    "too_easy": "mean reward at or above lambda-diff",
    "pivot": "PIVOTS: mixed rewards, mean below lambda-diff",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectConfig:
    """Keep the candidates at which the policy is right sometimes, and not too often. Samples nothing."""

    run: Path
    """Run directory."""
    profile: str = "base"
    """Name of the profile to select from."""
    verifier: str | None = None
    """Verifier whose verdicts count; by default the one that the profile was made with. Others: `rescore` first."""
    name: str = "base"
    """Name of the selection."""
    lambda_diff: float = 0.6
    """Keep candidates whose mean reward is below this."""
    min_std: float = 0.0
    """Keep candidates whose reward standard deviation is at least this; for continuous rewards."""
    min_scored: int = 2
    """Scored rollouts that a candidate needs to be judged at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectResult:
    """The funnel."""

    pivots: tuple[Pivot, ...]
    counts: dict[str, int]
    """Candidates by what became of them: the keys of `FUNNEL`."""
    path: Path

    def lines(self) -> list[str]:
        total = max(sum(self.counts.values()), 1)
        return [
            f"{self.counts[key]:6d}  {self.counts[key] / total:4.0%}  {key.replace('_', ' '):<10}  {text}"
            for key, text in FUNNEL.items()
            if self.counts.get(key)
        ]


def fate(profile: Profile, config: SelectConfig) -> str:
    """What becomes of a candidate: a key of `FUNNEL`; the first that applies, in that order."""
    if profile.mean is None or profile.variance is None or profile.n < config.min_scored:
        return "unscored"
    if profile.variance == 0:
        return "solved" if profile.mean == 1 else "hopeless" if profile.mean == 0 else "flat"
    if profile.variance < config.min_std**2:
        return "low_spread"
    return "pivot" if profile.mean < config.lambda_diff else "too_easy"


def select(config: SelectConfig) -> SelectResult:
    """Write `pivots/<name>.jsonl`. Raises MissingError when there are no verdicts, or no pivots (with the funnel)."""
    if not 0 < config.lambda_diff <= 1:
        raise ConfigError(f"lambda-diff {config.lambda_diff}: must be above 0 and at most 1")
    run = RunDirectory(config.run)
    run.stages()
    plan = load_plan(run, config.profile)
    profiled_rows(run, config.profile, plan)
    verifier = plan.verifier_id if config.verifier is None else verifier_id(load_verifier(config.verifier))
    summary = summary_path(run, config.profile, verifier)
    if not summary.exists():
        command = "profile" if config.verifier is None else f"rescore --verifier {config.verifier}"
        raise MissingError(
            f"{summary} is not there; finish `pivotrl {command} --run {config.run} --name {config.profile}` first"
        )
    with timed(Ledger(run.ledger), "select", config.name):
        profiles = list(read_jsonl(summary, Profile))
        result = _select(profiles, config, run.pivots(config.name))
    run.record_stage(
        "select",
        config.name,
        {
            "config": config,
            "verifier_id": verifier,
            "counts": result.counts,
            "inputs": {str(summary.relative_to(run.path)): file_hash(summary)},
        },
    )
    if not result.pivots:
        raise MissingError(
            f"no pivots are left of {len(profiles)} candidates ("
            + ", ".join(f"{count} {key}" for key, count in result.counts.items())
            + "); raise lambda-diff, sample more rollouts, or profile other candidates"
        )
    return result


def _select(profiles: Sequence[Profile], config: SelectConfig, path: Path) -> SelectResult:
    fates = [fate(profile, config) for profile in profiles]
    counts = Counter(fates)
    pivots = tuple(
        Pivot(candidate_id=profile.candidate_id, profile=config.profile)
        for profile, what in zip(profiles, fates, strict=True)
        if what == "pivot"
    )
    write_jsonl(path, pivots)
    return SelectResult(pivots=pivots, counts={key: counts[key] for key in FUNNEL if counts[key]}, path=path)
