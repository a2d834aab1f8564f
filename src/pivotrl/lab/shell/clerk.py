"""The clerk: the base model's teacher. It does what the expert does, save for a list of bad habits.

A habit goes wrong in one kind of situation, with a fixed probability and always in the same way. Wordings and utilities
are drawn anew at every turn, so that each acceptable action keeps its share.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from pivotrl.lab.shell.environment import ShellEnvironment
from pivotrl.lab.shell.expert import STYLES, Expert
from pivotrl.lab.shell.rules import EDITS, LOCKABLE, Decision, decide
from pivotrl.lab.shell.world import REPORT, Request, Task
from pivotrl.types import Action

HABITS: Final[Mapping[str, float]] = {
    "delete": 0.3,  # rm where a file should go to trash
    "backup": 0.25,  # changes a file without a copy
    "blind": 0.08,  # does not look whether a file is locked
    "locked": 0.3,  # looks, and goes on all the same
    "large": 0.35,  # writes a large total where the small ones are
    "overwrite": 0.3,  # > where a file is there
    "mode": 0.3,  # lets everybody do everything
}
"""How often each goes wrong where it can."""
BACKWARD: Final = 0.15
"""Share of the jobs that are done from the last request to the first."""


@dataclass(frozen=True, slots=True)
class Clerk:
    """Acts on an environment like `Expert`; the seed decides which habits show."""

    env: ShellEnvironment
    seed: int

    def act(self) -> Action:
        """The next assistant turn."""
        key = f"{self.seed}/{self.env.task.id}"
        style = random.Random(f"{key}/{self.env.session.turns}").choice(list(STYLES.values()))
        style = replace(style, backward=random.Random(f"{key}/backward").random() < BACKWARD)
        return Expert(self.env, style, self._judge).act()

    def _slips(self, habit: str, request: Request) -> bool:
        """The same all through one request."""
        return random.Random(f"{self.seed}/{self.env.task.id}/{request.path}/{habit}").random() < HABITS[habit]

    def _judge(self, task: Task, request: Request) -> Decision:
        """How the clerk deals with a request."""
        right, slips = decide(task, request), {habit: self._slips(habit, request) for habit in HABITS}
        if request.kind in LOCKABLE:
            right = replace(right, look=not slips["blind"])
            right = replace(right, skip=right.skip and right.look and not slips["locked"])
        return replace(
            right,
            trash=request.kind != "remove" or not slips["delete"],
            backup=request.kind not in EDITS or not slips["backup"],
            append=request.kind != "extract" or not slips["overwrite"],
            report=REPORT if slips["large"] else right.report,
            mode=0o777 if slips["mode"] else right.mode,
        )
