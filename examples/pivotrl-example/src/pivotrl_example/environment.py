"""The house to play in: a task is a wish, and it is fulfilled when the room has the degrees that were asked for."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping

from pivotrl import Action, ConfigError, EnvironmentStep, InputError, Message, State, ToolCall
from pivotrl_example.house import SYSTEM, TOOLS, wish

ROOMS = ("study", "kitchen", "hall", "nursery")
TASKS = tuple(f"Make the {room} {degrees} degrees." for room in ROOMS for degrees in range(15, 26))
PARTS = {"train": TASKS[::2], "validation": TASKS[1::4], "test": TASKS[3::4]}
MOST_TURNS = 6


class Home:
    """Satisfies `pivotrl.Environment`."""

    def __init__(self) -> None:
        self._messages: tuple[Message, ...] = ()
        self._house: dict[str, int] = {}
        self._said = False

    def tasks(self, split: str, count: int, seed: int) -> tuple[str, ...]:
        known = PARTS[split]
        if count > len(known):
            raise ConfigError(f"home: {split} has {len(known)} tasks, not {count}; ask for fewer")
        return tuple(random.Random(seed).sample(known, count))

    def kind(self, task_id: str) -> str:
        return wish((Message(role="user", content=self._known(task_id)),))[0]

    def _known(self, task_id: str) -> str:
        if task_id not in TASKS:
            raise ConfigError(f"home: no task {task_id!r}")
        return task_id

    @property
    def done(self) -> bool:
        return self._said or sum(message.role == "assistant" for message in self._messages) >= MOST_TURNS

    @property
    def state(self) -> State:
        if not self._messages:
            raise InputError("home: begin a task with reset first")
        return State(key=self._messages[1].content or "", messages=self._messages, tools=TOOLS)

    def reset(self, task_id: str) -> State:
        user = Message(role="user", content=self._known(task_id))
        self._messages = (Message(role="system", content=SYSTEM), user)
        self._house, self._said = dict.fromkeys(ROOMS, 17), False
        return self.state

    def step(self, action: Action) -> EnvironmentStep:
        if self.done:
            raise InputError("home: the episode is over")
        own = Message(role="assistant", content=action.text, tool_calls=action.calls)
        answers = [Message(role="tool", content=self._run(one.name, one.parsed.value or {})) for one in action.calls]
        new = (own, *answers)
        self._messages += new
        self._said = not action.calls
        return EnvironmentStep(new=new, done=self.done)

    def _run(self, name: str, arguments: Mapping[str, object]) -> str:
        room, degrees = str(arguments.get("room")), arguments.get("degrees")
        if room not in self._house:
            return "Error: no such room"
        if name == "set_degrees" and isinstance(degrees, int):
            self._house[room] = degrees
        return f"{self._house[room]} degrees"

    def outcome(self) -> float:
        room, degrees = wish(self._messages)
        return float(self.done and self._house[room] == degrees)

    def snapshot(self) -> bytes:
        """The actions so far: playing them again brings everything back."""
        own = [message for message in self._messages if message.role == "assistant"]
        turns = [[m.content, [[c.name, c.arguments, c.id] for c in m.tool_calls]] for m in own]
        return json.dumps([self._messages[1].content, turns]).encode()

    def restore(self, data: bytes) -> State:
        try:
            task_id, turns = json.loads(data)
            self.reset(task_id)
            for text, calls in turns:
                made = tuple(ToolCall(name=name, arguments=arguments, id=key) for name, arguments, key in calls)
                self.step(Action(text=text, calls=made))
        except (ValueError, TypeError, ConfigError) as error:
            raise InputError(f"home: no snapshot of this environment: {error}") from None
        return self.state
