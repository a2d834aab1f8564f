"""A tiny environment of known arithmetic, and policies for it: the shipped fakes of the tests of whole episodes.

The user names a number n; the agent has to call `add` with amount 1 n times, then say `done`. A wrong call, a call too
many, or `done` too early loses; anything else that is said changes nothing. An episode ends with `done` or 8 turns.
"""

from __future__ import annotations

import json
import random

from pivotrl.errors import ConfigError, InputError
from pivotrl.types import Action, EnvironmentStep, Message, State, Tool, ToolCall

TASKS = 40
"""Of each split."""
TURNS = 8
TOOLS = (Tool(name="add", parameters={"type": "object"}), Tool(name="take", parameters={"type": "object"}))
ADD = '<tool_call>\n{"name": "add", "arguments": {"amount": 1}}\n</tool_call>'
DOUBLE = ADD.replace("1", "2")
TAKE = ADD.replace("add", "take")


def number(task_id: str) -> int:
    """n of a task `steps-SPLIT-INDEX`: 1, 2 or 3. Raises ConfigError."""
    name, _, index = task_id.rpartition("-")
    if name not in ("steps-train", "steps-validation", "steps-test") or not index.isdigit() or int(index) >= TASKS:
        raise ConfigError(f"steps task {task_id!r} is unknown")
    return int(index) % 3 + 1


class Unguided:
    """Implements `Environment`."""

    def __init__(self) -> None:
        self._facts: dict | None = None

    def tasks(self, split, count, seed):
        if count > TASKS:
            raise ConfigError(f"steps: {count} {split} tasks were asked for, there are {TASKS}; take fewer")
        return tuple(f"steps-{split}-{index}" for index in random.Random(seed).sample(range(TASKS), count))

    def kind(self, task_id):
        return f"{number(task_id)} calls"

    @property
    def facts(self) -> dict:
        if self._facts is None:
            raise InputError("steps: call reset first")
        return self._facts

    @property
    def wanted(self) -> int:
        return number(self.facts["task"])

    @property
    def done(self):
        return self.facts["said_done"] or self.facts["turns"] >= TURNS

    @property
    def state(self):
        messages = [Message(role="system", content="Add up."), Message(role="user", content=str(self.wanted))]
        messages += [Message(role=role, content=text) for role, text in self.facts["said"]]
        return State(key=f"{self.facts['task']}@{self.facts['turns']}", messages=tuple(messages), tools=TOOLS)

    def reset(self, task_id):
        number(task_id)
        self._facts = {"task": task_id, "turns": 0, "added": 0, "broken": False, "said_done": False, "said": []}
        return self.state

    def step(self, action):
        if self.done:
            raise InputError("steps: the episode is over")
        facts, before = self.facts, len(self.facts["said"])
        facts["turns"] += 1
        facts["said"].append(["assistant", action.text])
        for call in action.calls:
            right = call.name == "add" and call.parsed.value == {"amount": 1}
            facts["added"] += right
            facts["broken"] = facts["broken"] or not right
            facts["said"].append(["tool", str(facts["added"])])
        if action.text == "done" and not action.calls:
            facts["said_done"] = True
        elif not action.calls:
            facts["said"].append(["user", "Go on."])
        new = tuple(Message(role=role, content=text) for role, text in facts["said"][before:])
        return EnvironmentStep(new=new, done=self.done)

    def outcome(self):
        facts = self.facts
        return float(facts["said_done"] and not facts["broken"] and facts["added"] == self.wanted)

    def snapshot(self):
        return json.dumps(self.facts).encode()

    def restore(self, data):
        self._facts = json.loads(data)
        return self.state


class Steps(Unguided):
    """Implements `Guided`."""

    def expert(self):
        if self.done:
            raise InputError("steps: the episode is over")
        if self.facts["added"] < self.wanted:
            return Action(calls=(ToolCall(name="add", arguments='{"amount": 1}'),))
        return Action(text="done")


class Generous(Unguided):
    """Its outcome is no reward."""

    def outcome(self):
        return 2.0


class Broken:
    """Cannot be made."""

    def __init__(self) -> None:
        raise FileNotFoundError("no books here")


class Modest(Unguided):
    """Says how many tasks are usual."""

    usual_tasks = 3


class Few(Unguided):
    """Gives fewer tasks than it was asked for."""

    def tasks(self, split, count, seed):
        return super().tasks(split, min(count, 3), seed)


class Threadless(Steps):
    threads = 0


class Nothing:
    """Is no environment."""


def asked(state: State) -> int:
    """The number that the user names; 0 in another environment."""
    return int(state.messages[1].content) if state.tools == TOOLS else 0


def expert(state: State, rng: random.Random) -> str:
    """Right at every state."""
    added = sum(message.role == "tool" for message in state.messages)
    return ADD if added < asked(state) else "done"


def small(state: State, rng: random.Random) -> str:
    """Right but for n = 3, where it calls the wrong tool first."""
    return TAKE if asked(state) == 3 and len(state.messages) == 2 else expert(state, rng)


def big(state: State, rng: random.Random) -> str:
    """Right for n = 3 only; else it is done before it begins."""
    return expert(state, rng) if asked(state) == 3 else "done"


def coin(state: State, rng: random.Random) -> str:
    """Right three times in four, else text that is no action, text without end, or a wrong call."""
    return expert(state, rng) if rng.random() < 0.75 else rng.choice(["<tool_call>{", "well " * 200, DOUBLE])


def mute(state: State, rng: random.Random) -> str:
    """Every call fails."""
    raise ConnectionError("the line is dead")


class Parity(Unguided):
    """n turns, in each of which something of odd length has to be said."""

    @property
    def done(self):
        return self.facts["turns"] >= self.wanted

    def outcome(self):
        said = [text for role, text in self.facts["said"] if role == "assistant"]
        return float(self.done and all(len(text or "") % 2 for text in said))
