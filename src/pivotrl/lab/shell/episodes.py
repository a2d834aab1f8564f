"""Whole shell jobs: played by the expert or at random, written as OpenAI chat JSON Lines for `ingest`."""

from __future__ import annotations

import random
import re
from itertools import cycle
from pathlib import Path
from typing import Any

from pivotrl.lab.desk.books import Part
from pivotrl.lab.desk.tasks import TASKS_PER_PART
from pivotrl.lab.shell.environment import ShellEnvironment
from pivotrl.lab.shell.expert import STYLES, Expert, Style
from pivotrl.lab.shell.simulation import SimulatedTerminal
from pivotrl.lab.shell.tasks import ID_PATTERN, draw_tasks, make_task
from pivotrl.lab.shell.world import FOLDERS
from pivotrl.lab.turns import play
from pivotrl.storage import write_jsonl
from pivotrl.types import Action, State

Record = dict[str, Any]


def random_action(state: State, rng: random.Random) -> Action:
    """What an expert does at some state of another task, about files of this one."""
    env, styles, actions = ShellEnvironment(SimulatedTerminal()), list(STYLES.values()), list[Action]()
    env.reset(f"shell-train-{rng.randrange(TASKS_PER_PART)}")
    while not env.done:
        actions.append(Expert(env, rng.choice(styles)).act())
        env.step(actions[-1])
    ids = re.findall(ID_PATTERN, " ".join(message.content or "" for message in state.messages[1:]))
    return Action(text=re.sub(ID_PATTERN, lambda _: rng.choice(ids), rng.choice(actions).text or ""))


def episode(task_id: str, style: Style) -> Record:
    """One expert episode as a record of OpenAI chat. Raises ConfigError for an unknown task."""
    env = ShellEnvironment()
    reward = play(env, task_id, Expert(env, style).act)
    messages = [{"role": one.role, "content": one.content} for one in env.state.messages]
    return {"task_id": task_id, "messages": messages, "reward": reward}


def write_episodes(path: Path, count: int, seed: int, part: Part = "train") -> None:
    """Write expert episodes of `count` distinct tasks of a part, in styles that take turns. Raises StorageError."""
    tasks = draw_tasks(part, count, seed)
    write_jsonl(path, (episode(task.id, style) for task, style in zip(tasks, cycle(STYLES.values()), strict=False)))


def write_trees(folder: Path, task_ids: list[str]) -> None:
    """Lay down each task's files at the start in a directory of its name: the `snapshots` of `execution`."""
    for task_id in task_ids:
        root = folder / task_id
        for name in FOLDERS:
            (root / name).mkdir(parents=True, exist_ok=True)
        for path, file in make_task(task_id).tree:
            (root / path).write_text(file.text, encoding="utf-8")
            (root / path).chmod(file.mode)
