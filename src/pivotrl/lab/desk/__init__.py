"""Desk: conversations of a shop's service desk, with a written policy, eight tools over SQLite, and a scripted user."""

from pivotrl.lab.desk.environment import DeskEnvironment
from pivotrl.lab.desk.episodes import play, write_episodes
from pivotrl.lab.desk.expert import STYLES, Expert, Style
from pivotrl.lab.desk.tasks import draw_tasks, make_task

__all__ = ["STYLES", "DeskEnvironment", "Expert", "Style", "draw_tasks", "make_task", "play", "write_episodes"]
