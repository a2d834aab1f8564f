"""Desk: conversations of a shop's service desk, with a written policy, eight tools over SQLite, and a scripted user."""

from typing import Final

from pivotrl.lab.desk.environment import DeskEnvironment, LongDesk, ShortDesk
from pivotrl.lab.desk.episodes import write_episodes
from pivotrl.lab.desk.expert import STYLES, Expert, Style
from pivotrl.lab.desk.tasks import draw_tasks, make_task
from pivotrl.lab.turns import play

__all__ = [
    "DESK_RULES",
    "STYLES",
    "DeskEnvironment",
    "Expert",
    "LongDesk",
    "ShortDesk",
    "Style",
    "draw_tasks",
    "make_task",
    "play",
    "write_episodes",
]


DESK_RULES: Final = "@pivotrl.lab.desk/rules.toml"
"""The rules file of `tool_call` for the desk: `auto:rules=@pivotrl.lab.desk/rules.toml`."""
