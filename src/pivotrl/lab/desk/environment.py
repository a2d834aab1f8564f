"""The desk as an environment: one conversation at a time, actions in, messages out; nothing an agent does raises."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from pivotrl.errors import InputError
from pivotrl.lab.desk.books import Task
from pivotrl.lab.desk.expert import STYLES, Expert
from pivotrl.lab.desk.rules import POLICY
from pivotrl.lab.desk.tasks import draw_tasks, horizon_of, make_task
from pivotrl.lab.desk.tools import TOOLS, WRITE_TOOLS, RefusedError, arguments_of, execute
from pivotrl.lab.desk.user import Session, opening, reply
from pivotrl.lab.desk.world import contents, load_books, open_books, wanted_contents
from pivotrl.lab.turns import must_go_on, own_message
from pivotrl.storage import decode, dump_json
from pivotrl.types import Action, EnvironmentStep, Message, Split, State, ToolCall

CALL_LIMIT: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class _Saved:
    """The first line of a snapshot; the database follows."""

    task_id: str
    session: Session
    messages: tuple[Message, ...]


class DeskEnvironment:
    """Implements `Guided`. Success: the user ended the talk, was told what the policy demands, and had every
    change asked first, and the books hold just the changes that they should."""

    name = "desk"
    """Which tasks it offers; it plays those of every horizon."""

    def __init__(self) -> None:
        self._task: Task | None = None
        self._books = sqlite3.connect(":memory:")
        self._session = Session(stage="left")
        self._messages: list[Message] = []

    def tasks(self, split: Split, count: int, seed: int) -> tuple[str, ...]:
        """Ids of `count` distinct tasks. Raises ConfigError for more than there are."""
        return tuple(task.id for task in draw_tasks(split, count, seed, self.name))

    def kind(self, task_id: str) -> str:
        """How much the customer wants: `3 requests`. Raises ConfigError for an unknown id."""
        return f"{len(make_task(task_id).requests)} requests"

    @property
    def task(self) -> Task:
        """The task being played. Raises InputError before the first `reset` or `restore`."""
        if self._task is None:
            raise InputError("desk: no task was begun; call reset or restore first")
        return self._task

    @property
    def session(self) -> Session:
        """Where the conversation stands; for experts and reports, not for the agent."""
        return self._session

    @property
    def state(self) -> State:
        key = f"{self.task.id}@{len(self._messages)}"
        return State(key=key, messages=tuple(self._messages), tools=TOOLS)

    @property
    def done(self) -> bool:
        left = self.session.stage == "left"
        return left or self.session.turns >= horizon_of(self.task.id).turn_limit

    def reset(self, task_id: str) -> State:
        """Begin a task. Raises ConfigError for an unknown id."""
        self._task = make_task(task_id)
        self._books = open_books(self._task)
        self._session, text = opening(self._task)
        self._messages = [Message(role="system", content=POLICY), Message(role="user", content=text)]
        return self.state

    def step(self, action: Action) -> EnvironmentStep:
        """Take one assistant turn: tools answer calls, the user answers text. Raises InputError after the end."""
        must_go_on(self, "desk")
        before, turn = len(self._messages), self._session.turns
        self._session = replace(self._session, turns=turn + 1)
        own = own_message(action, f"call_{turn}_")
        self._messages.append(own)
        if own.tool_calls:
            self._messages.extend(self._results(own.tool_calls))
        else:
            self._session, answer = reply(self.task, self._session, own.content or "")
            if answer is not None:
                self._messages.append(Message(role="user", content=answer))
        return EnvironmentStep(new=tuple(self._messages[before:]), done=self.done)

    def _results(self, calls: tuple[ToolCall, ...]) -> Iterator[Message]:
        for position, call in enumerate(calls):
            result: dict[str, Any]
            try:
                if position >= CALL_LIMIT:
                    raise RefusedError("too many calls")
                result, failed = self._call(call), False
            except RefusedError as refusal:
                result, failed = {"error": str(refusal)}, True
            content = json.dumps(result)
            yield Message(role="tool", content=content, tool_call_id=call.id, name=call.name, error=failed)

    def _call(self, call: ToolCall) -> dict[str, Any]:
        arguments, session = arguments_of(call), self._session
        if call.name not in ("find_customer", "check_stock") and not session.verified:
            raise RefusedError("verify the customer first")
        result = execute(self._books, call.name, arguments)
        if call.name == "get_order":
            result = {("own" if key == "customer_id" else key): value for key, value in result.items()}
            result["own"] = result["own"] == session.verified
        if call.name == "find_customer":
            self._session = replace(session, verified=result["customer_id"])
        elif call.name in WRITE_TOOLS:
            order_id = arguments["order_id"]
            agreed = session.stage == "agreed" and order_id in self.task.requests[session.at].orders
            clean = session.clean and agreed
            self._session = replace(session, written=(*session.written, order_id), clean=clean)
        else:
            seen = (*session.seen, *_seen(call.name, arguments, result))
            self._session = replace(session, seen=tuple(dict.fromkeys(seen)))
        return result

    def expert(self) -> Action:
        """What the expert of the plain style would do now. Raises InputError after the end."""
        must_go_on(self, "desk")
        return Expert(self, STYLES["plain"]).act()

    def outcome(self) -> float:
        """1 for a success (see the class), else 0; 0 while the talk goes on."""
        session = self.session
        ended = session.stage == "left" and session.at == len(self.task.requests)
        right = ended and session.honest and session.clean
        return float(right and contents(self._books) == wanted_contents(self.task))

    def snapshot(self) -> bytes:
        """The task's id, the session, the messages, and the database."""
        saved = _Saved(task_id=self.task.id, session=self.session, messages=tuple(self._messages))
        return dump_json(saved) + b"\n" + self._books.serialize()

    def restore(self, data: bytes) -> State:
        """Go on from a snapshot. Raises InputError for other bytes, ConfigError for a task that is unknown here."""
        head, _, rest = data.partition(b"\n")
        saved = decode(head, _Saved, "desk snapshot")
        books, task = load_books(rest), make_task(saved.task_id)
        self._task, self._books, self._session, self._messages = task, books, saved.session, list(saved.messages)
        return self.state


class ShortDesk(DeskEnvironment):
    """One request, 4 to 7 turns of the expert."""

    name = "desk-short"


class LongDesk(DeskEnvironment):
    """Five or six requests, 20 to 30 turns of the expert."""

    name = "desk-long"


def _seen(name: str, arguments: dict[str, Any], result: dict[str, Any]) -> Iterator[str]:
    if name == "get_order":
        yield result["order_id"]
        if "items" in result:
            yield f"{result['order_id']} items"
    elif name == "list_orders":
        yield f"{arguments['item']} orders" if "item" in arguments else "orders"
    elif isinstance(result["left"], dict):
        yield from (f"{result['item']} {colour}" for colour in result["left"])
    else:
        yield f"{result['item']} {result['colour']}"
