"""What batches by trajectory change: the reward curve, the bill, and success on validation tasks, at equal turns.

    python recipes/sampling_effect.py --seeds 0 1 2 3 4 --caps None 4 --runs runs/sampling

Each seed draws its own expert episodes; its trainings share the profile and differ in --cap-per-trajectory alone. The
demo's own settings leave about 1.2 pivots a trajectory, where grouping changes nothing; here half its episodes are
profiled whole, and all mixed states are pivots. The table has the mean over seeds with a 95% interval (t, one cluster a
seed) and each cap's paired difference to the first. What is finished is read, what was interrupted goes on; --at-most N
starts no more than N unfinished trainings, and the table is of the seeds that have all of theirs. About 4 minutes a
seed with two caps on 2 cores.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pivotrl.curves import StepMetrics
from pivotrl.evaluation_settings import EvaluateConfig
from pivotrl.grpo import LossSettings
from pivotrl.ingestion import IngestConfig, ingest
from pivotrl.lab import demonstration
from pivotrl.lab.demonstration import DemoConfig
from pivotrl.lab.desk import write_episodes
from pivotrl.lab.shipped import shipped_base
from pivotrl.learners import OptimizerSettings
from pivotrl.ledger import Ledger
from pivotrl.metrics import clustered_mean, format_short
from pivotrl.pivots import SelectConfig, select
from pivotrl.profile_settings import ProfileConfig
from pivotrl.profiling import profile
from pivotrl.run_directory import RunDirectory
from pivotrl.task_evaluation import evaluate_tasks
from pivotrl.training import train
from pivotrl.training_settings import TrainConfig
from pivotrl.types import SamplingParams, Usage

SLICE = 10
"""Steps whose rewards are one point of the curve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One finished training."""

    metrics: tuple[StepMetrics, ...]
    usage: Usage
    success: float | None
    crowd: float
    """Pivots of a trajectory."""

    def reward(self, start: int) -> float:
        known = [one.reward_mean for one in self.metrics[start : start + SLICE] if one.reward_mean is not None]
        return sum(known) / len(known)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument(
        "--caps", nargs="+", default=["None", "4"], help="None: shuffled without regard to trajectories"
    )
    parser.add_argument("--episodes", type=int, default=DemoConfig().episodes // 2)
    parser.add_argument("--lambda-diff", type=float, default=1.0)
    parser.add_argument("--steps", type=int, default=DemoConfig().steps)
    parser.add_argument("--prompts", type=int, default=demonstration.PROMPTS)
    parser.add_argument("--tasks", type=int, default=100, help="validation tasks played after each training; 0: none")
    parser.add_argument("--runs", type=Path, default=Path("runs/sampling"))
    parser.add_argument("--at-most", type=int, default=sys.maxsize)
    options = parser.parse_args()
    started, outcomes = 0, {}
    for seed in options.seeds:
        run = options.runs / f"seed{seed}"
        for cap in options.caps:
            unfinished = not (run / "train" / f"cap-{cap}" / "model").exists()
            if unfinished and started == options.at_most:
                continue
            started += unfinished
            with contextlib.redirect_stdout(sys.stderr):
                outcomes[seed, cap] = _trained(run, seed, cap, options)
    seeds = [seed for seed in options.seeds if all((seed, cap) in outcomes for cap in options.caps)]
    print("\n".join(_table(outcomes, seeds, options)) if seeds else "no seed has all of its trainings yet")


def _trained(run: Path, seed: int, cap: str, options: argparse.Namespace) -> Outcome:
    demo, name = DemoConfig(run=run, seed=seed, episodes=options.episodes), f"cap-{cap}"
    if not RunDirectory(run).manifest.exists():
        write_episodes(run / "input" / "episodes.jsonl", demo.episodes, seed)
        ingest(IngestConfig(paths=(str(run / "input" / "episodes.jsonl"),), run=run, seed=seed))
    profile(
        ProfileConfig(
            run=run,
            policy=str(shipped_base()),
            verifier=demonstration.VERIFIER,
            rollouts=demo.rollouts,
            sampling=SamplingParams(max_new_tokens=demonstration.LONGEST_ACTION),
            seed=seed,
        )
    )
    pivots = select(SelectConfig(run=run, lambda_diff=options.lambda_diff)).pivots
    trained = train(
        TrainConfig(
            run=run,
            name=name,
            steps=options.steps,
            prompts=options.prompts,
            cap_per_trajectory=None if cap == "None" else int(cap),
            optimizer=OptimizerSettings(lr=demonstration.LEARNING_RATE),
            loss=LossSettings(beta=demonstration.BETA),
            seed=seed,
        )
    )
    usage = Ledger(RunDirectory(run).ledger).totals()["train", name]
    trajectories = {pivot.candidate_id.partition("@")[0] for pivot in pivots}
    return Outcome(
        metrics=trained.metrics,
        usage=usage,
        success=_success(run, seed, name, options.tasks),
        crowd=len(pivots) / len(trajectories),
    )


def _success(run: Path, seed: int, name: str, tasks: int) -> float | None:
    if not tasks:
        return None
    settings = EvaluateConfig(
        run=run,
        name=name,
        policies=(f"train/{name}",),
        env=("desk",),
        tasks=(tasks,),
        split="validation",
        seed=seed + 1,
    )
    return evaluate_tasks(settings).environments["desk"][0].overall.success.mean


def _table(outcomes: dict[tuple[int, str], Outcome], seeds: list[int], options: argparse.Namespace) -> list[str]:
    first, *others = options.caps
    heads = [f"cap {cap}" for cap in options.caps] + [f"cap {cap} less cap {first}" for cap in others]
    lines = [f"| {len(seeds)} seeds | {' | '.join(heads)} |", f"|---|{'---|' * len(heads)}"]

    def row(label: str, value: Callable[[Outcome], float]) -> str:
        found = {cap: [value(outcomes[seed, cap]) for seed in seeds] for cap in options.caps}
        columns = list(found.values())
        columns += [[a - b for a, b in zip(found[cap], found[first], strict=True)] for cap in others]
        return f"| {label} | {' | '.join(format_short(clustered_mean(values, seeds)) for values in columns)} |"

    lines.append(row("pivots a trajectory", lambda one: one.crowd))
    for start in range(0, options.steps, SLICE):
        lines.append(row(f"reward, steps {start + 1} on", lambda one, start=start: one.reward(start)))  # type: ignore[misc]
    if options.tasks:
        lines.append(row(f"success, {options.tasks} validation tasks", lambda one: one.success or 0.0))
    lines.append(row("turns", lambda one: float(one.usage.turns)))
    lines.append(row("tokens trained, thousands", lambda one: one.usage.trained_tokens / 1e3))
    lines.append(row("tokens prefilled, thousands", lambda one: one.usage.prefilled_tokens / 1e3))
    lines.append(row("seconds", lambda one: one.usage.seconds))
    return lines


if __name__ == "__main__":
    main()
