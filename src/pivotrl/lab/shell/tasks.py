"""Tasks by name: a task's id alone decides its files and its requests.

No id of a file occurs in two of train, validation and test; `base`, for pretraining, uses all of them.
"""

from __future__ import annotations

import random
import re
from functools import lru_cache
from typing import Final, get_args

from pivotrl.errors import ConfigError
from pivotrl.lab.desk.books import CITIES, COLOURS, ITEMS, Part
from pivotrl.lab.desk.tasks import draw_indices, pool
from pivotrl.lab.shell.rules import LOCKABLE
from pivotrl.lab.shell.world import LOCK, LOOSE, SKIPPED, File, Kind, Request, Task

LONGEST: Final = 5
"""Requests of a job."""
ID_PATTERN: Final = r"[CO][0-9]{4}"
"""The ids that files are named by: what a tokenizer should keep whole."""
QUICK: Final[tuple[Kind, ...]] = ("count", "extract", "script")
_TASK_ID: Final = re.compile(r"shell-([a-z]+)-(?:0|[1-9][0-9]{0,5})")
_KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
TEXTS: Final[dict[Kind, tuple[str, str]]] = {
    "remove": ("Remove {path}.", "We do not need {path} now."),
    "set": ("Set {key} to {value} in {path}.", "The {key} in {path} has to be {value}."),
    "sort": ("Sort {path}.", "Put the lines of {path} in order."),
    "unique": ("Sort {path} without double lines.", "Put {path} in order, each line once."),
    "count": ("Count the lines of {path}.", "How many lines has {path}?"),
    "total": ("Add up the prices of {path}.", "What is the total of {path}?"),
    "extract": ("Put the {key} lines of {path} into {value}.", "Copy what is {key} in {path} to {value}."),
    "archive": ("Find {name} and move it to archive.", "Archive {name}."),
    "script": ("Make {path} a script.", "{path} has to be a script."),
}


def draw_tasks(part: Part, count: int, seed: int) -> list[Task]:
    """`count` distinct tasks of one part. Raises ConfigError for more than there are."""
    indices = draw_indices("shell", part, count, f"shell-{part}-{seed}")
    return [make_task(f"shell-{part}-{index}") for index in indices]


@lru_cache(maxsize=1024)
def make_task(task_id: str) -> Task:
    """The task of that id, `shell-PART-INDEX`. Raises ConfigError for any other text."""
    found = _TASK_ID.fullmatch(task_id)
    part = next((part for part in get_args(Part) if found and found[1] == part), None)
    if part is None:
        parts = ", ".join(get_args(Part))
        raise ConfigError(f"shell task {task_id!r} is unknown; use shell-PART-INDEX with PART one of {parts}")
    return _Maker(random.Random(task_id), task_id, part).make()


class _Maker:
    """Draws one task."""

    def __init__(self, rng: random.Random, task_id: str, part: Part) -> None:
        self.rng, self.task_id, self.part = rng, task_id, part
        self.orders, self.people = (rng.sample(pool(part, letter), 12) for letter in "OC")
        self.more = [id_ for id_ in pool(part, "O") if id_ not in self.orders]
        self.tree: dict[str, File] = {}

    def make(self) -> Task:
        rng = self.rng
        count = rng.choice((1, 2, 2, 3, 3, 4, LONGEST))
        kinds = rng.choices(_KINDS, k=count)
        if count == 1 and kinds[0] in QUICK:
            kinds = [rng.choice(LOCKABLE)]  # no job is over at once
        requests = tuple(map(self._request, kinds))
        for kind in ("remove", "archive", "script"):
            self._request(kind)  # never asked for
        for path in LOOSE:
            if rng.random() < 0.5:
                self.tree[path] = File(f"{self._order()} {rng.randint(2, 9)}\n" if path != SKIPPED else "")
        tree = tuple(sorted(self.tree.items()))
        return Task(id=self.task_id, part=self.part, tree=tree, requests=requests, wording=rng.randint(0, 1))

    def _request(self, kind: Kind) -> Request:
        rng = self.rng
        id_ = self.people.pop() if kind in ("set", "script") else self._order()
        path, key, value = f"orders/{id_}.txt", "", ""
        if kind == "set":
            path, (key, words) = (
                f"conf/{id_}.conf",
                rng.choice((("city", CITIES), ("colour", COLOURS), ("item", ITEMS))),
            )
            values = {"city": rng.choice(CITIES), "colour": rng.choice(COLOURS), "item": rng.choice(ITEMS)}
            lines = [f"{name} {word}" for name, word in rng.sample(list(values.items()), 3)]
            value = rng.choice([word for word in words if word != values[key]])
        elif kind == "script":
            path, lines = f"bin/{id_}.sh", [f"echo {rng.choice(ITEMS)}"]
        else:
            count = rng.choice((3, 4) if kind == "total" else (2, 3, 4))
            lines = [self._line(item) for item in rng.sample(ITEMS, count)]
        if kind == "archive":
            path = f"logs/{rng.choice(('new', 'old'))}/{id_}.log"
        if kind == "unique":
            lines.insert(rng.randint(0, len(lines)), rng.choice(lines))
        if kind in ("sort", "unique") and lines == sorted(lines):
            lines.reverse()
        if kind == "extract":
            key, value = rng.choice(lines).split()[1], f"out/{self._order()}.txt"
            if rng.random() < 0.5:
                self.tree[value] = File(f"{self._line(rng.choice(ITEMS))}\n")
        if kind in LOCKABLE and rng.random() < 0.25:
            lines.insert(0, LOCK)
        self.tree[path] = File("\n".join(lines) + "\n")
        return Request(kind=kind, path=path, key=key, value=value)

    def _order(self) -> str:
        return (self.orders or self.more).pop()

    def _line(self, item: str) -> str:
        return f"{item} {self.rng.choice(COLOURS)} {self.rng.randint(15, 39)}"


def request_text(task: Task, at: int) -> str:
    """Request `at` in words."""
    request = task.requests[at]
    wording = TEXTS[request.kind][(task.wording + at) % 2]
    return wording.format(path=request.path, key=request.key, value=request.value, name=request.name)


def job(task: Task) -> str:
    """All requests, one a line, numbered from 1."""
    return "\n".join(f"#{at + 1} {request_text(task, at)}" for at in range(len(task.requests)))
