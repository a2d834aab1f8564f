"""The shell as an environment: one job at a time, JSON actions in, screens out; nothing an agent does raises."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from pivotrl.errors import InputError
from pivotrl.lab.shell.expert import STYLES, Expert
from pivotrl.lab.shell.rules import POLICY, comparable, kept, wanted_tree
from pivotrl.lab.shell.tasks import draw_tasks, job, make_task
from pivotrl.lab.shell.terminal import SandboxTerminal, Terminal, complaint, observation, prompt, read_action
from pivotrl.lab.shell.world import NOTHING, WORKDIR, Task, Tree
from pivotrl.lab.turns import must_go_on, own_message
from pivotrl.storage import decode, dump_json
from pivotrl.types import Action, EnvironmentStep, Message, Split, State

TURN_LIMIT: Final = 28


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """Where a job stands, the files and the messages aside."""

    turns: int = 0
    place: str = WORKDIR
    """The shell's directory."""
    typed: str = ""
    """What stands at the prompt and was not sent off."""
    asked: bool = False
    """Whether the agent called the task complete and was asked whether it is sure."""
    kept: bool = True
    """Whether no rule was broken beyond repair after any turn so far."""
    over: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Saved:
    """The first line of a snapshot; the packed files follow."""

    task_id: str
    session: Session
    messages: tuple[Message, ...]


class ShellEnvironment:
    """Implements `Guided`. Success: the agent said twice that the task is complete, the files are just those that are
    wanted, and after no turn something was lost, changed without a copy, or changed though it is locked."""

    threads: Final = 8
    """Bash is waited for, so that several jobs are stepped at a time."""

    def __init__(self, terminal: Terminal | None = None) -> None:
        self.terminal: Terminal = terminal or SandboxTerminal()
        self._task: Task | None = None
        self._files = b""
        self._tree: Tree = NOTHING
        self._session = Session(over=True)
        self._messages: list[Message] = []

    def tasks(self, split: Split, count: int, seed: int) -> tuple[str, ...]:
        """Ids of `count` distinct tasks. Raises ConfigError for more than there are."""
        return tuple(task.id for task in draw_tasks(split, count, seed))

    def kind(self, task_id: str) -> str:
        """How much is wanted: `3 requests`. Raises ConfigError for an unknown id."""
        return f"{len(make_task(task_id).requests)} requests"

    @property
    def task(self) -> Task:
        """The task being played. Raises InputError before the first `reset` or `restore`."""
        if self._task is None:
            raise InputError("shell: no task was begun; call reset or restore first")
        return self._task

    @property
    def session(self) -> Session:
        """Where the job stands; for experts and reports, not for the agent."""
        return self._session

    @property
    def tree(self) -> Tree:
        """The files as they are now; for experts and reports, not for the agent."""
        return self._tree

    @property
    def screens(self) -> str:
        """Everything that the terminal has shown."""
        return "\n".join(message.content or "" for message in self._messages[2:] if message.role == "user")

    @property
    def state(self) -> State:
        key = f"{self.task.id}@{len(self._messages)}"
        return State(key=key, messages=tuple(self._messages), tools=None)

    @property
    def done(self) -> bool:
        return self._session.over or self._session.turns >= TURN_LIMIT

    def reset(self, task_id: str) -> State:
        """Begin a task. Raises ConfigError for an unknown id."""
        self._task = task = make_task(task_id)
        self._tree = dict(task.tree)
        self._files, self._session = self.terminal.pack(self._tree), Session()
        text = f"Task Description:\n{job(task)}\n\nCurrent terminal state:\n{prompt(WORKDIR)}"
        self._messages = [Message(role="system", content=POLICY), Message(role="user", content=text)]
        return self.state

    def step(self, action: Action) -> EnvironmentStep:
        """Take one assistant turn. Raises InputError after the end, DependencyError where there is no sandbox."""
        must_go_on(self, "shell")
        before = len(self._messages)
        own = own_message(action)
        answer = self._answer(Action(text=own.content, calls=own.tool_calls))
        self._messages.append(own)
        if answer:
            self._messages.append(Message(role="user", content=answer))
        return EnvironmentStep(new=tuple(self._messages[before:]), done=self.done)

    def _answer(self, action: Action) -> str:
        """What the agent is shown; nothing when the job is over."""
        session = replace(self._session, turns=self._session.turns + 1)
        typed = read_action(action, session.typed)
        if isinstance(typed, str):
            self._session = replace(session, asked=False)
            return complaint(typed)
        screen, place = "", session.place
        if typed.commands:
            screen, place, self._files = self.terminal.run(typed.commands, place, self._files)
            self._tree = self.terminal.look(self._files)
            session = replace(session, kept=session.kept and kept(self.task, self._tree))
        over = typed.complete and session.asked
        self._session = replace(session, place=place, typed=typed.rest, asked=typed.complete, over=over)
        return "" if over else observation(f"{screen}{prompt(place)}{typed.rest}", asks=typed.complete)

    def expert(self) -> Action:
        """What the expert of the plain style would do now. Raises InputError after the end."""
        must_go_on(self, "shell")
        return Expert(self, STYLES["plain"]).act()

    def outcome(self) -> float:
        """1 for a success (see the class), else 0; 0 while the job goes on."""
        session = self._session
        return float(session.over and session.kept and comparable(self._tree) == comparable(wanted_tree(self.task)))

    def snapshot(self) -> bytes:
        """The task's id, the session, the messages, and the files."""
        saved = _Saved(task_id=self.task.id, session=self._session, messages=tuple(self._messages))
        return dump_json(saved) + b"\n" + self._files

    def restore(self, data: bytes) -> State:
        """Go on from a snapshot. Raises InputError for other bytes, ConfigError for a task that is unknown here."""
        head, _, files = data.partition(b"\n")
        saved = decode(head, _Saved, "shell snapshot")
        task, tree = make_task(saved.task_id), self.terminal.look(files)
        self._task, self._tree, self._files = task, tree, files
        self._session, self._messages = saved.session, list(saved.messages)
        return self.state
