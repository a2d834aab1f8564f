"""The desk by numbers: success of the expert and of chance, agreement of verifiers with other styles, speed.

    python benchmarks/desk.py [--tasks 1000] [--json]

One process, one thread. The last line with --json is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from dataclasses import asdict

from pivotrl.lab.desk import STYLES, DeskEnvironment, Expert, draw_tasks, play
from pivotrl.lab.desk.episodes import random_action
from pivotrl.metrics import clustered_mean
from pivotrl.types import Action, Candidate, Message, Source, Trajectory
from pivotrl.verifiers import load_verifier


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    tasks = [task.id for task in draw_tasks("test", options.tasks, 0)]
    facts = {**_expert(tasks), **_chance(tasks), **_verifiers(tasks[: max(1, options.tasks // 10)]), **_speed(tasks)}
    for name, value in facts.items():
        print(f"{name:<34} {value}")
    if options.json:
        print(json.dumps(facts))


def _expert(tasks: list[str]) -> dict[str, object]:
    env, won, turns = DeskEnvironment(), {}, []
    for name, style in STYLES.items():
        won[name] = 0.0
        for task in tasks:
            won[name] += play(env, task, Expert(env, style).act)
            turns.append(env.session.turns)
    return {
        "expert_success": {name: count / len(tasks) for name, count in won.items()},
        "tasks": len(tasks),
        "turns_least_mean_most": [min(turns), round(sum(turns) / len(turns), 2), max(turns)],
    }


def _chance(tasks: list[str]) -> dict[str, object]:
    env, rng = DeskEnvironment(), random.Random(0)
    won = [play(env, task, lambda: random_action(env.state, rng)) for task in tasks]
    return {"random_success": sum(won) / len(won)}


def _verifiers(tasks: list[str]) -> dict[str, object]:
    """Every expert action under `auto`, and other styles' actions at the same states under `auto` and `exact`."""
    env, auto, exact = DeskEnvironment(), load_verifier("auto"), load_verifier("exact")
    own, other, strict, labels = [], [], [], []
    for number, task in enumerate(tasks):
        trunk = list(STYLES)[number % len(STYLES)]
        env.reset(task)
        while not env.done:
            action = Expert(env, STYLES[trunk]).act()
            candidate = _candidate(env, action)
            own.append(auto(candidate, action).value or 0.0)
            for name in STYLES:
                if name != trunk:
                    theirs = Expert(env, STYLES[name]).act()
                    other.append(auto(candidate, theirs).value or 0.0)
                    strict.append(exact(candidate, theirs).value or 0.0)
                    labels.append(task)
            env.step(action)
    return {
        "auto_accepts_own": [sum(own) / len(own), len(own)],
        "auto_accepts_other_styles": asdict(clustered_mean(other, labels, (0.0, 1.0))),
        "exact_accepts_other_styles": asdict(clustered_mean(strict, labels, (0.0, 1.0))),
    }


def _candidate(env: DeskEnvironment, action: Action) -> Candidate:
    state = env.state
    own = Message(role="assistant", content=action.text, tool_calls=action.calls)
    source = Source(file="made", format="desk")
    trajectory = Trajectory(id=state.key, messages=(*state.messages, own), tools=state.tools, source=source)
    return Candidate(trajectory=trajectory, turn=len(state.messages))


def _speed(tasks: list[str]) -> dict[str, object]:
    env, steps, start = DeskEnvironment(), 0, time.perf_counter()
    for task in tasks:
        play(env, task, Expert(env, STYLES["plain"]).act)
        steps += env.session.turns
    seconds, forks = time.perf_counter() - start, 200
    env.reset(tasks[0])
    start = time.perf_counter()
    for _ in range(forks):
        env.restore(env.snapshot())
    forked = time.perf_counter() - start
    return {"steps_per_second": round(steps / seconds), "snapshot_and_restore_us": round(1e6 * forked / forks)}


if __name__ == "__main__":
    main()
