"""Shell: jobs on a small file tree with written rules, real bash in the sandbox, and a checker of the files."""

from pivotrl.lab.shell.environment import ShellEnvironment
from pivotrl.lab.shell.episodes import write_episodes, write_trees
from pivotrl.lab.shell.expert import STYLES, Expert, Style
from pivotrl.lab.shell.tasks import draw_tasks, make_task
from pivotrl.lab.turns import play

__all__ = [
    "STYLES",
    "Expert",
    "ShellEnvironment",
    "Style",
    "draw_tasks",
    "make_task",
    "play",
    "write_episodes",
    "write_trees",
]
