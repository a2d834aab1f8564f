"""The shell by numbers: success of the expert and of chance, agreement of verifiers with other styles, speed.

    python benchmarks/shell.py [--tasks 300] [--json]

One process, one thread; real bash in the sandbox (docs/sandbox.md). The last line with --json is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from pivotrl.lab.shell import STYLES, Expert, ShellEnvironment, draw_tasks, play, write_trees
from pivotrl.lab.shell.episodes import random_action
from pivotrl.metrics import clustered_mean
from pivotrl.types import Action, Candidate, Message, Source, Trajectory
from pivotrl.verifiers import load_verifier


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=300)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    tasks = [task.id for task in draw_tasks("test", options.tasks, 0)]
    facts = {**_speed(tasks), **_chance(tasks), **_verifiers(tasks[: max(1, options.tasks // 10)])}
    for name, value in facts.items():
        print(f"{name:<34} {value}")
    if options.json:
        print(json.dumps(facts))


def _speed(tasks: list[str]) -> dict[str, object]:
    """Success and turns of every style, and steps a second by the clock and by all CPU time, bash's included."""
    env, won, turns = ShellEnvironment(), {}, []
    start, before = time.perf_counter(), sum(os.times()[:4])
    for name, style in STYLES.items():
        won[name] = 0.0
        for task in tasks:
            won[name] += play(env, task, Expert(env, style).act)
            turns.append(env.session.turns)
    seconds, busy = time.perf_counter() - start, sum(os.times()[:4]) - before
    return {
        "expert_success": {name: count / len(tasks) for name, count in won.items()},
        "tasks": len(tasks),
        "turns_least_mean_most": [min(turns), round(sum(turns) / len(turns), 2), max(turns)],
        "steps": sum(turns),
        "steps_per_second": round(sum(turns) / seconds, 1),
        "steps_per_cpu_second": round(sum(turns) / busy, 1),
    }


def _chance(tasks: list[str]) -> dict[str, object]:
    env, rng = ShellEnvironment(), random.Random(0)
    won = [play(env, task, lambda: random_action(env.state, rng)) for task in tasks]
    return {"random_success": sum(won) / len(won)}


def _verifiers(tasks: list[str]) -> dict[str, object]:
    """Every expert action under its own verdict, and other styles' actions at the same states, by verifier."""
    with tempfile.TemporaryDirectory() as folder:
        write_trees(Path(folder), tasks)
        found = {}
        for name, spec in {"auto": "auto", "exact": "exact", "execution": f"execution:snapshots={folder}"}.items():
            found |= _agreement(name, load_verifier(spec), tasks)
    return found


def _agreement(name: str, verifier: Callable[[Candidate, Action], object], tasks: list[str]) -> dict[str, object]:
    env, own, other, labels = ShellEnvironment(), [], [], []
    for number, task in enumerate(tasks):
        trunk = list(STYLES)[number % len(STYLES)]
        env.reset(task)
        while not env.done:
            action = Expert(env, STYLES[trunk]).act()
            candidate = _candidate(env, task, action)
            own.append(verifier(candidate, action).value)
            for style in STYLES:
                value = None if style == trunk else verifier(candidate, Expert(env, STYLES[style]).act()).value
                if value is not None:
                    other.append(value)
                    labels.append(task)
            env.step(action)
    scored = [value for value in own if value is not None]
    return {
        f"{name}_accepts_own": [sum(scored) / len(scored), len(scored), len(own)],
        f"{name}_accepts_other_styles": asdict(clustered_mean(other, labels, (0.0, 1.0))),
    }


def _candidate(env: ShellEnvironment, task: str, action: Action) -> Candidate:
    own, source = Message(role="assistant", content=action.text), Source(file="made", format="shell")
    trajectory = Trajectory(id=f"{task}-made", task_id=task, messages=(*env.state.messages, own), source=source)
    return Candidate(trajectory=trajectory, turn=len(env.state.messages))


if __name__ == "__main__":
    main()
