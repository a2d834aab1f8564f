"""Desk: conversations of a shop's service desk, with a written policy, eight tools over SQLite, and a scripted user."""

from pathlib import Path

from pivotrl.lab.desk.environment import DeskEnvironment
from pivotrl.lab.desk.episodes import play, write_episodes
from pivotrl.lab.desk.expert import STYLES, Expert, Style
from pivotrl.lab.desk.tasks import draw_tasks, make_task

__all__ = [
    "STYLES",
    "DeskEnvironment",
    "Expert",
    "Style",
    "desk_rules",
    "draw_tasks",
    "make_task",
    "play",
    "write_episodes",
]


def desk_rules() -> Path:
    """The rules file of `tool_call` for the desk: `auto:rules=PATH`."""
    return Path(__file__).with_name("rules.toml")
