"""SWE-agent `.traj` files, versions 0, 1.0 and 1.1.

Since 1.1 each step holds its `query`, the exact input of its model call; 1.0 keeps the next step's input as `messages`.
A call goes on with the history that its input begins with, and begins a new segment where a history processor changed
it. Version 0 and demonstrations have only `history`, before any processor: the best that can be said there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from pydantic import JsonValue

from pivotrl.trajectories.messages import (
    Object,
    copied,
    dig,
    expect,
    name_of,
    outcome_of,
    place,
    read_message,
    segmented,
    task_of,
    trajectory_id,
    unstring,
)
from pivotrl.types import Message, Source, Trajectory

REJECTED: Final = "rejected_output"
"""Why a turn is no demonstration: the harness could not use it and asked again."""
_EXITS: Final = ("Exit due to ", "Exiting due to ", "Exited (")


class SweAgent:
    """Reads one run per record; every attempt of a run that was retried."""

    name = "swe_agent"

    def claims(self, record: JsonValue) -> bool:
        attempt = dig(record, "attempts", 0)
        step, first = (dig(row, "trajectory", 0) for row in (record, attempt))
        if any({"action", "observation"} <= dict(item).keys() for item in (step, first) if isinstance(item, dict)):
            return True
        told = dig(record, "history", 0)
        return isinstance(told, dict) and {"role", "agent"} <= told.keys()

    def read(self, record: JsonValue, source: Source) -> Sequence[Trajectory]:
        """The segments of each attempt. Raises InputError naming the field that is wrong."""
        where = place(source)
        row: Object = expect(record, dict, where)
        attempts = expect(row.get("attempts") or [row], list, f"{where}: attempts")
        found: list[Trajectory] = []
        for number, value in enumerate(attempts):
            attempt: Object = expect(value, dict, f"{where}: attempts[{number}]")
            name = trajectory_id(source) + (f"#{number}" if number else "")
            info = expect(attempt.get("info") or {}, dict, f"{where}: info")
            run = Trajectory(
                id=name, messages=(), source=source, task_id=_task(row, source, where), outcome=outcome_of(info | row)
            )
            found.extend(segmented(run, _segments(attempt, where)))
        return found


def _task(row: Object, source: Source, where: str) -> str | None:
    """The instance: what the run's settings call it, else the stem of a file of its own."""
    settings = unstring(row.get("replay_config"), f"{where}: replay_config")
    told = task_of(row) or name_of(dig(settings, "problem_statement", "id"))
    alone = source.line is None and source.index is None
    return told or (Path(source.file.removesuffix(".gz")).stem if alone else None)


def _messages(value: JsonValue, where: str) -> tuple[Message, ...]:
    items = enumerate(expect(value or [], list, where))
    return tuple(_message(item, f"{where}[{index}]") for index, item in items)


def _message(value: JsonValue, where: str) -> Message:
    item: Object = expect(value, dict, where)
    message = read_message(item, where)
    if message.role != "assistant":
        return message
    by_harness = (message.content or "").startswith(_EXITS) and not message.tool_calls
    reason = "demonstration" if item.get("is_demo") else "synthetic" if by_harness else message.excluded
    return replace(message, excluded=reason)


def _segments(row: Object, where: str) -> Iterator[list[Message]]:
    history = _messages(row.get("history"), f"{where}: history")
    values = enumerate(expect(row.get("trajectory") or [], list, f"{where}: trajectory"))
    steps: list[Object] = [expect(value, dict, f"{where}: trajectory[{i}]") for i, value in values]
    inputs = _inputs(steps, history, where)
    if inputs is None:
        yield list(history)
        return
    held: list[Message] = []
    seen: list[Message] = []
    for state, action, result in _calls(steps, inputs, history):
        if seen and seen != list(state[: len(seen)]):
            yield held
            held, seen = [], []
        held = [*held[: len(seen)], *(copied(message) for message in state[len(seen) :]), action, *result]
        seen = [*state, replace(action, excluded=None)]
    yield held


def _inputs(steps: list[Object], history: Sequence[Message], where: str) -> list[tuple[Message, ...]] | None:
    """What each step's model call was given, then what a further one would have been given where the file tells."""
    at = f"{where}: trajectory"
    if any(step.get("query") for step in steps):
        return [_messages(step.get("query"), f"{at}[{i}].query") for i, step in enumerate(steps)]
    if not any(step.get("messages") for step in steps):
        return None
    turns = (i for i, message in enumerate(history) if message.role == "assistant" and message.excluded is None)
    later = [_messages(step.get("messages"), f"{at}[{i}].messages") for i, step in enumerate(steps)]
    return [tuple(history[: next(turns, len(history))]), *later]


def _calls(
    steps: list[Object], inputs: list[tuple[Message, ...]], history: Sequence[Message]
) -> Iterator[tuple[tuple[Message, ...], Message, tuple[Message, ...]]]:
    """Input, action and results of each step. The action is what the next input or the history holds of it."""
    spoken = [message for message in history if message.role == "assistant"]
    for number, step in enumerate(steps):
        text = step.get("response") or ""
        state = inputs[number] or (inputs[number - 1] if number else ())
        after = inputs[number + 1][len(state) :][:1] if number + 1 < len(inputs) else ()
        place = next((i for i, message in enumerate(spoken) if (message.content or "") == text), None)
        if after and after[0].role == "assistant" and (after[0].content or "") == text:
            action = after[0]
        else:
            action = Message(role="assistant", content=str(text)) if place is None else spoken[place]
        if place is not None:
            spoken = spoken[place + 1 :]
        elif history:
            action = replace(action, excluded=action.excluded or REJECTED)
        answer = (
            (Message(role="tool", content=str(step.get("observation") or ""), tool_call_id=action.tool_calls[0].id),)
            if action.tool_calls
            else ()
        )
        yield state, action, answer
