"""Runs every training method on `desk` at equal budgets, prints the tables of docs/methods.md, and last a line of JSON.

    python recipes/methods.py --seeds 0 1 2 --runs runs/methods --svg methods.svg
    python recipes/methods.py --seeds 0 --runs runs/methods --slice 3       # three more points, then the tables so far

A budget is a number of turns sampled by the model. Methods that need the profile pay for it; `unfiltered` and `strict`
sample as many turns more in training instead. Imitation samples nothing, or the profile alone (rft): at each budget it
gets as many optimiser steps as `unfiltered`. All else is the demo's; every seed draws its own episodes and test tasks.
A point is one method at one budget: trained that far, then played with sampled and with greedy actions. Finished points
are read, interrupted ones go on. About 2 minutes a point on 2 cores (an estimate from the demo), 21 points a seed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path

from pivotrl.evaluation_settings import EvaluateConfig, SamplingChoice
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
from pivotrl.planning import Scope
from pivotrl.profile_settings import ProfileConfig
from pivotrl.profiling import profile
from pivotrl.storage import RunDirectory, hold_to, read_json, write_json
from pivotrl.task_evaluation import SuccessRate, evaluate_tasks
from pivotrl.training import train
from pivotrl.training_settings import TrainConfig
from pivotrl.types import Estimate, SamplingParams, Usage

METHODS = {
    "pivotrl": {},
    "unfiltered": {"method": "unfiltered"},
    "strict-filtered": {"method": "strict-filtered"},
    "strict": {"method": "strict"},
    "sft": {"method": "sft", "data": "train", "verifier": demonstration.VERIFIER},
    "sft-pivots": {"method": "sft", "data": "pivots"},
    "rft": {"method": "rft"},
}
WITHOUT_PROFILE = ("unfiltered", "strict", "sft")
"""What could be trained without sampling a profile first."""
TEMPERATURES = {"sampled": 1.0, "greedy": 0.0}
GROUP = 8
DASHES = ("", "8 3", "2 2", "8 3 2 3", "14 4", "1 4", "14 3 3 3 3 3")
SHADES = ("black", "#999", "#555")


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One method at one budget, of one seed. Scores by temperature: desk, then skills."""

    seed: int
    method: str
    budget: int
    steps: int
    candidates: int
    cost: Usage
    """Of the training, and of the profile where the method needs one."""
    scores: dict[str, tuple[SuccessRate, SuccessRate]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    demo = DemoConfig()
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument(
        "--steps", type=int, nargs="+", default=[10, 20, demo.steps], help="of pivotrl; set the budgets"
    )
    parser.add_argument("--lr", nargs="*", default=[], metavar="METHOD=RATE", help="else the demo's")
    parser.add_argument("--runs", type=Path, default=Path("runs/methods"))
    parser.add_argument("--split", default="test", help="validation for choices of settings")
    parser.add_argument("--slice", type=int, default=sys.maxsize, help="compute at most so many points")
    parser.add_argument("--svg", type=Path, help="draw the curves there")
    for name in ("episodes", "profiled", "tasks"):
        parser.add_argument(f"--{name}", type=int, default=getattr(demo, name))
    parser.add_argument("--skills", type=int, default=demonstration.SKILL_ITEMS)
    options = parser.parse_args()
    hold_to(options.runs / "methods.json", {n: getattr(options, n) for n in ("split", "episodes", "profiled", "tasks")})
    planned = [
        (seed, one, steps) for seed in options.seeds for one in options.methods for steps in sorted(options.steps)
    ]
    points: list[Point] = []
    left = options.slice
    for at in planned:
        path = options.runs / "points" / "-".join([f"seed{at[0]}", at[1], f"{at[2]:04d}.json"])
        if not path.exists() and left:
            with contextlib.redirect_stdout(sys.stderr):
                write_json(path, measured(options, *at))
            left -= 1
        points += [read_json(path, Point)] if path.exists() else []
    print("\n".join(tables(points)))
    if options.svg:
        options.svg.write_text(
            curve_chart("success on desk by turns sampled, actions sampled", curves(points, "sampled"))
        )
    rows = {temperature: curves(points, temperature) for temperature in TEMPERATURES}
    summary = {t: {m: [[x, asdict(y)] for x, y in c] for m, c in by.items()} for t, by in rows.items()}
    print(json.dumps({"points": len(points), "planned": len(planned), "seeds": options.seeds, "success": summary}))


def measured(options: argparse.Namespace, seed: int, name: str, steps: int) -> Point:
    run, base = options.runs / f"seed{seed}", str(shipped_base())
    if not RunDirectory(run).manifest.exists():
        write_episodes(run / "input" / "episodes.jsonl", options.episodes, seed)
        ingest(IngestConfig(paths=(str(run / "input" / "episodes.jsonl"),), run=run, seed=seed))
    sampling = SamplingParams(max_new_tokens=demonstration.LONGEST_ACTION)
    scope = Scope(max_candidates=options.profiled)
    asked = {"run": run, "policy": base, "verifier": demonstration.VERIFIER, "sampling": sampling, "scope": scope}
    if not RunDirectory(run).pivots("base").exists():
        profile(ProfileConfig(**asked, rollouts=DemoConfig().rollouts, seed=seed))
        select(SelectConfig(run=run))
    profiled = Ledger(run / "ledger.jsonl").totals()["profile", "base"]
    filtered = name in ("pivotrl", "strict-filtered")
    rates = dict(one.split("=") for one in options.lr)
    config = TrainConfig(
        run=run,
        name=name,
        policy=base,
        steps=steps if filtered else steps + profiled.turns // (demonstration.PROMPTS * GROUP),
        prompts=demonstration.PROMPTS,
        group_size=GROUP,
        optimizer=OptimizerSettings(lr=float(rates.get(name, demonstration.LEARNING_RATE))),
        loss=LossSettings(beta=demonstration.BETA),
        seed=seed,
        **METHODS[name],
    )
    trained = train(config)
    scores = {}
    for temperature, value in TEMPERATURES.items():
        result = evaluate_tasks(
            EvaluateConfig(
                run=run,
                name=temperature,
                policies=(f"base={base}", f"{name}-{steps}=train/{name}"),
                env=("desk", "skills"),
                tasks=(options.tasks, options.skills),
                split=options.split,
                sampling=SamplingChoice(temperature=value),
                seed=seed + 1,
            )
        )
        scores[temperature] = tuple(result.environments[env][1].overall for env in ("desk", "skills"))
    cost = Ledger(run / "ledger.jsonl").totals()["train", name]
    return Point(
        seed=seed,
        method=name,
        budget=profiled.turns + steps * demonstration.PROMPTS * GROUP,
        steps=config.steps,
        candidates=trained.candidates,
        cost=cost if name in WITHOUT_PROFILE else cost + profiled,
        scores=scores,
    )


def over_seeds(estimates: list[Estimate]) -> Estimate:
    """The mean over seeds with their t interval; one seed's own, over tasks."""
    if len(estimates) == 1:
        return estimates[0]
    return clustered_mean([one.mean for one in estimates], [*range(len(estimates))])


def by_method(points: list[Point]) -> Iterator[tuple[str, list[list[Point]]]]:
    """Each method's points, by budget; one of each seed that is through."""
    for name in dict.fromkeys(point.method for point in points):
        mine = [point for point in points if point.method == name]
        steps = sorted({point.steps for point in mine})
        yield name, [[point for point in mine if point.steps == one] for one in steps]


def success(group: list[Point], temperature: str) -> Estimate:
    """On desk, over the seeds of a group."""
    return over_seeds([point.scores[temperature][0].success for point in group])


def against(group: list[Point], first: dict[tuple[int, int], Point], temperature: str) -> str:
    """How success differs from pivotrl's on the same tasks, at the same budget, over seeds."""
    pairs = [(first[point.seed, point.budget], point) for point in group if (point.seed, point.budget) in first]
    means = [[point.scores[temperature][0].success.mean for point in pair] for pair in pairs]
    return format_short(clustered_mean([b - a for a, b in means], [*range(len(means))]) if means else None)


def curves(points: list[Point], temperature: str) -> dict[str, list[tuple[float, Estimate]]]:
    """Success on desk by budget."""
    return {
        name: [(group[0].budget, success(group, temperature)) for group in groups] for name, groups in by_method(points)
    }


def tables(points: list[Point]) -> list[str]:
    """Success at every budget, by temperature; then what the last budget changed and cost."""
    lines: list[str] = []
    for temperature in TEMPERATURES:
        lines += [f"Success on desk, actions {temperature}; mean over seeds (how many), by budget in turns:", ""]
        budgets = sorted({point.budget for point in points})
        lines += [f"| method | {' | '.join(map(str, budgets))} |", f"|---|{'---|' * len(budgets)}"]
        for name, groups in by_method(points):
            cells = {group[0].budget: f"{format_short(success(group, temperature))} ({len(group)})" for group in groups}
            lines.append(f"| {name} | {' | '.join(cells.get(budget, '') for budget in budgets)} |")
        lines.append("")
    lines += ["Against the base model, at the largest budget of each:", ""]
    heads = ["method", "candidates", "steps", "desk, sampled", "greedy", "skills, sampled", "greedy"]
    lines += [f"| {' | '.join([*heads, 'desk against pivotrl, sampled', 'greedy', 'turns', 'seconds'])} |"]
    lines += [f"|{'---|' * (len(heads) + 4)}"]
    first = {(point.seed, point.budget): point for point in points if point.method == "pivotrl"}
    for name, groups in by_method(points):
        last = groups[-1]
        changes = [
            format_short(over_seeds([point.scores[temperature][env].change for point in last]))
            for env in (0, 1)
            for temperature in TEMPERATURES
        ]
        changes += [against(last, first, temperature) for temperature in TEMPERATURES]
        costs = [
            f"{sum(values) / len(last):.0f}"
            for values in ([point.cost.turns for point in last], [point.cost.seconds for point in last])
        ]
        candidates = "/".join(str(point.candidates) for point in last)
        lines.append(f"| {name} | {candidates} | {last[0].steps} | {' | '.join([*changes, *costs])} |")
    return [*lines, ""]


def curve_chart(title: str, curves: dict[str, list[tuple[float, Estimate]]]) -> str:
    """SVG: shares over a cost, one line for each name, with their 95% intervals where those are known."""
    places = [x for curve in curves.values() for x, _ in curve] or [0.0]
    left, right = min(places), max(max(places), min(places) + 1)
    width, height, edge, foot = 560, 300, 50, 340
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width + edge + 220}" height="{foot + 40}" '
        'font-family="sans-serif" font-size="13" fill="black">',
        f'<rect width="100%" height="100%" fill="white"/><text x="8" y="17" font-weight="bold">{escape(title)}</text>',
    ]
    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = foot - tick * height
        drawn.append(f'<path d="M{edge} {y}h{width}" stroke="#ddd"/><text x="8" y="{y + 4}">{tick:g}</text>')
    for at in sorted(set(places)):
        x = edge + 20 + (width - 40) * (at - left) / (right - left)
        drawn.append(f'<text x="{x:.1f}" y="{foot + 18}" text-anchor="middle">{at:g}</text>')
    for number, (name, curve) in enumerate(curves.items()):
        style = f'stroke="{SHADES[number % 3]}" stroke-dasharray="{DASHES[number % 7]}" stroke-width="2" fill="none"'
        spots = [(edge + 20 + (width - 40) * (x - left) / (right - left) + 3 * number, one) for x, one in curve]
        line = "L".join(f"{x:.1f} {foot - one.mean * height:.1f}" for x, one in spots)
        bars = "".join(
            f"M{x:.1f} {foot - one.low * height:.1f}V{foot - one.high * height:.1f}"
            for x, one in spots
            if one.low is not None and one.high is not None
        )
        y = 50 + 24 * number
        drawn.append(f'<path d="M{line}" {style}/><path d="{bars}" stroke="{SHADES[number % 3]}"/>')
        drawn.append(f'<path d="M{width + edge + 12} {y}h40" {style}/>')
        drawn.append(f'<text x="{width + edge + 60}" y="{y + 4}">{escape(name)}</text>')
    return "\n".join([*drawn, "</svg>"]) + "\n"


if __name__ == "__main__":
    main()
