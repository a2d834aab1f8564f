"""Runs `pivotrl demo` for several seeds and prints the tables of docs/demo.md.

    python recipes/demo_seeds.py --seeds 0 1 2 3 4 --runs runs

Every seed draws its own expert episodes, profile samples, training order and test tasks. A finished seed is read, an
interrupted one goes on. About 3 minutes a seed on 2 cores.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path

from pivotrl.lab.demonstration import DemoConfig, DemoResult, demo
from pivotrl.ledger import Ledger, by_stage
from pivotrl.metrics import format_short


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    options = parser.parse_args()
    results = {}
    for seed in options.seeds:
        with contextlib.redirect_stdout(sys.stderr):
            results[seed] = demo(DemoConfig(run=options.runs / f"seed{seed}", seed=seed))
    print("\n".join([*_successes(options.runs, results), "", *_skills(results), "", *_losses(results)]))


def _successes(runs: Path, results: dict[int, DemoResult]) -> list[str]:
    lines = [
        "| seed | equal rewards | pivots | reward at pivots | success before | after | change (95%) | gained, lost "
        "| turns: profile, train, evaluate | seconds: the same |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for seed, result in results.items():
        before, after = result.evaluation.environments["desk"]
        flat = sum(one.variance == 0 for one in result.profile.profiles)
        span = max(1, min(10, len(result.training.metrics) // 3))
        rewards = [one.reward_mean or 0.0 for one in result.training.metrics]
        first, last = sum(rewards[:span]) / span, sum(rewards[-span:]) / span
        stages = by_stage(Ledger(runs / f"seed{seed}" / "ledger.jsonl").totals())
        usage = [stages[stage] for stage in ("profile", "train", "evaluate")]
        lines.append(
            f"| {seed} | {flat} of {len(result.profile.profiles)} | {len(result.selection.pivots)} "
            f"| {first:.2f} -> {last:.2f} "
            f"| {format_short(before.overall.success)} | {format_short(after.overall.success)} "
            f"| {format_short(after.overall.change)} | {after.overall.gained}, {after.overall.lost} "
            f"| {', '.join(str(one.turns) for one in usage)} | {', '.join(f'{one.seconds:.0f}' for one in usage)} |"
        )
    return lines


def _skills(results: dict[int, DemoResult]) -> list[str]:
    """Before -> after and the paired change of every skill."""
    names = list(next(iter(results.values())).evaluation.environments["skills"][0].by_kind)
    lines = [f"| skill | {' | '.join(f'seed {seed}' for seed in results)} |", f"|---|{'---|' * len(results)}"]
    for name in ["all eight", *names]:
        cells = []
        for result in results.values():
            before, after = result.evaluation.environments["skills"]
            one, other = (score.overall if name == "all eight" else score.by_kind[name] for score in (before, after))
            cells.append(f"{one.success.mean:.3f} -> {other.success.mean:.3f}, {format_short(other.change)}")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def _losses(results: dict[int, DemoResult]) -> list[str]:
    """The commonest first wrong actions before and after, all seeds together."""
    counts: list[dict[str, int]] = [{}, {}]
    for result in results.values():
        for score, count in zip(result.evaluation.environments["desk"], counts, strict=True):
            for what, number in (score.first_wrong or {}).items():
                count[what] = count.get(what, 0) + number
    before, after = counts
    names = sorted(before | after, key=lambda name: -before.get(name, 0) - after.get(name, 0))[:12]
    lines = ["| first wrong action | episodes before | after |", "|---|---|---|"]
    return lines + [f"| {name} | {before.get(name, 0)} | {after.get(name, 0)} |" for name in names]


if __name__ == "__main__":
    main()
