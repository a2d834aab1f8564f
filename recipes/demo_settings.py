"""Compares settings of the demo on validation tasks, which no published number is measured on.

    python recipes/demo_settings.py --seeds 100 101 --runs runs/settings \\
        'lr=2e-4 beta=0.1 verifier=auto:same_facts=true' 'lr=4e-4 beta=0.1 verifier=auto:same_facts=true'

A setting left out is the demo's. Each seed draws its own expert episodes; settings of one verifier share the profile.
Interrupted, it goes on; about 2 minutes a seed and setting on 2 cores.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path

from pivotrl.errors import MissingError
from pivotrl.evaluation_settings import EvaluateConfig
from pivotrl.grpo import LossSettings
from pivotrl.ingestion import IngestConfig, ingest
from pivotrl.lab import demonstration
from pivotrl.lab.demonstration import DemoConfig
from pivotrl.lab.desk import write_episodes
from pivotrl.lab.shipped import shipped_base
from pivotrl.learners import OptimizerSettings
from pivotrl.metrics import format_short
from pivotrl.pivots import SelectConfig, select
from pivotrl.planning import Scope
from pivotrl.profile_settings import ProfileConfig
from pivotrl.profiling import profile
from pivotrl.run_directory import RunDirectory
from pivotrl.storage import content_hash
from pivotrl.task_evaluation import TaskScore, evaluate_tasks
from pivotrl.training import train
from pivotrl.training_settings import TrainConfig
from pivotrl.types import SamplingParams

DEFAULTS = {
    "lr": str(demonstration.LEARNING_RATE),
    "beta": str(demonstration.BETA),
    "verifier": demonstration.VERIFIER,
    "steps": str(DemoConfig().steps),
    "prompts": str(demonstration.PROMPTS),
    "lambda": str(SelectConfig(run=Path()).lambda_diff),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="+", metavar="'KEY=VALUE ...'", help=f"keys: {', '.join(DEFAULTS)}")
    parser.add_argument("--seeds", type=int, nargs="+", default=[100, 101])
    parser.add_argument("--runs", type=Path, default=Path("runs/settings"))
    parser.add_argument("--base", default=str(shipped_base()))
    options = parser.parse_args()
    print("| settings | seed | pivots | reward at pivots | success before | after | change | skills, change |")
    print("|---|---|---|---|---|---|---|---|")
    for text in options.settings:
        chosen = DEFAULTS | dict(part.split("=", 1) for part in text.split())
        for seed in options.seeds:
            with contextlib.redirect_stdout(sys.stderr):
                cells = _measured(options.runs / f"seed{seed}", seed, options.base, chosen)
            print(f"| {text} | {seed} | {' | '.join(cells)} |", flush=True)


def _measured(run: Path, seed: int, base: str, chosen: dict[str, str]) -> list[str]:
    demo = DemoConfig(run=run, seed=seed)
    profile_name, name = content_hash(chosen["verifier"]), content_hash(chosen)
    if not RunDirectory(run).manifest.exists():
        write_episodes(run / "input" / "episodes.jsonl", demo.episodes, seed)
        ingest(IngestConfig(paths=(str(run / "input" / "episodes.jsonl"),), run=run, seed=seed))
    profile(
        ProfileConfig(
            run=run,
            name=profile_name,
            policy=base,
            verifier=chosen["verifier"],
            rollouts=demo.rollouts,
            sampling=SamplingParams(max_new_tokens=demonstration.LONGEST_ACTION),
            scope=Scope(max_candidates=demo.profiled),
            seed=seed,
        )
    )
    selection = SelectConfig(run=run, profile=profile_name, name=name, lambda_diff=float(chosen["lambda"]))
    try:
        pivots = select(selection).pivots
    except MissingError as error:
        return [str(error)]
    trained = train(
        TrainConfig(
            run=run,
            pivots=name,
            name=name,
            steps=int(chosen["steps"]),
            prompts=int(chosen["prompts"]),
            cap_per_trajectory=demonstration.CAP_PER_TRAJECTORY,
            optimizer=OptimizerSettings(lr=float(chosen["lr"])),
            loss=LossSettings(beta=float(chosen["beta"])),
            seed=seed,
        )
    )
    result = evaluate_tasks(
        EvaluateConfig(
            run=run,
            name=name,
            profile=profile_name,
            policies=(f"base={base}", f"trained=train/{name}"),
            env=("desk", "skills"),
            tasks=(demo.tasks, demonstration.SKILL_ITEMS),
            split="validation",
            seed=seed + 1,
        )
    )
    rewards = [one.reward_mean or 0.0 for one in trained.metrics]
    span = max(1, len(rewards) // 4)
    first, last = sum(rewards[:span]) / span, sum(rewards[-span:]) / span
    before, after = result.environments["desk"]
    forgotten: TaskScore = result.environments["skills"][1]
    shown = [before.overall.success, after.overall.success, after.overall.change, forgotten.overall.change]
    return [str(len(pivots)), f"{first:.2f} -> {last:.2f}", *map(format_short, shown)]


if __name__ == "__main__":
    main()
