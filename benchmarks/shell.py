"""The shell by numbers: success of the expert and of chance, verifiers against the truth, speed.

    python benchmarks/shell.py [--tasks 300] [--executed 10] [--json]

One process, one thread; real bash in the sandbox (docs/sandbox.md). The last line with --json is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from pivotrl.lab.shell import STYLES, Expert, ShellEnvironment, draw_tasks, play, write_trees
from pivotrl.lab.shell.clerk import Clerk
from pivotrl.lab.shell.episodes import random_action
from pivotrl.lab.shell.simulation import SimulatedTerminal
from pivotrl.lab.verifier_error import JudgedAction, error_of
from pivotrl.types import Action, Candidate, Message, Source, Trajectory, Verdict
from pivotrl.verifiers import load_verifier

CLERKS = 6
"""Clerks with different slips that are asked at each state."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=300)
    parser.add_argument("--executed", type=int, default=10, help="tasks whose actions `execution` judges, too")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    tasks = [task.id for task in draw_tasks("test", options.tasks, 0)]
    facts = {**_verifiers(tasks, options.executed), **_speed(tasks), **_chance(tasks)}
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


def _verifiers(tasks: list[str], executed: int) -> dict[str, object]:
    """Verdicts on what other styles and clerks do at the states of experts, against what the action leads to.

    The truth is played without bash, which the test of the simulation allows; `execution` judges the first tasks only.
    """
    judged: dict[str, list[JudgedAction]] = {"auto": [], "exact": [], "execution": [], "either": []}
    with tempfile.TemporaryDirectory() as folder:
        write_trees(Path(folder), tasks[:executed])
        verifiers = {"auto": load_verifier("auto"), "exact": load_verifier("exact")}
        for number, task in enumerate(tasks):
            if number < executed:
                verifiers["execution"] = load_verifier(f"execution:snapshots={folder}")
            else:
                verifiers.pop("execution", None)
            for candidate, action, succeeded in _tried(task, list(STYLES)[number % len(STYLES)]):
                found = {name: verifier(candidate, action) for name, verifier in verifiers.items()}
                if "execution" in found:
                    found["either"] = max(found["auto"], found["execution"], key=lambda one: one.value or 0.0)
                for name, verdict in found.items():
                    if verdict.value is not None:
                        judged[name].append(_judged(name, candidate, action, verdict, succeeded))
    return {f"against_truth_{name}": asdict(error_of(name, found)) for name, found in judged.items() if found}


def _tried(task: str, trunk: str) -> Iterator[tuple[Candidate, Action, bool]]:
    """Every distinct action that differs from the demonstrated one, and whether the expert succeeds from there."""
    env, fork = ShellEnvironment(SimulatedTerminal()), ShellEnvironment(SimulatedTerminal())
    env.reset(task)
    while not env.done:
        shown, state = Expert(env, STYLES[trunk]).act(), env.snapshot()
        others = [Expert(env, style).act() for style in STYLES.values()]
        others += [Clerk(env, seed).act() for seed in range(CLERKS)]
        for action in dict.fromkeys(one for one in others if one != shown):
            fork.restore(state)
            fork.step(action)
            while not fork.done:
                fork.step(Expert(fork, STYLES[trunk]).act())
            yield _candidate(env, task, shown), action, fork.outcome() == 1.0
        env.step(shown)


def _judged(name: str, candidate: Candidate, action: Action, verdict: Verdict, succeeded: bool) -> JudgedAction:
    return JudgedAction(
        task=candidate.trajectory.task_id or "",
        turn=candidate.turn,
        verifier=name,
        demonstration=candidate.demonstration,
        action=action,
        accepted=(verdict.value or 0.0) >= 0.5,
        reason=verdict.reason,
        succeeded=succeeded,
    )


def _candidate(env: ShellEnvironment, task: str, action: Action) -> Candidate:
    own, source = Message(role="assistant", content=action.text), Source(file="made", format="shell")
    trajectory = Trajectory(id=f"{task}-made", task_id=task, messages=(*env.state.messages, own), source=source)
    return Candidate(trajectory=trajectory, turn=len(env.state.messages))


if __name__ == "__main__":
    main()
