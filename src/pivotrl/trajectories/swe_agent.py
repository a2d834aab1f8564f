"""SWE-agent `.traj` files, versions 0, 1.0 and 1.1.

Since 1.1 each step holds its `query`, the exact input of its model call; 1.0 keeps the next step's as `messages`. A
call goes on with the history that its input begins with, and begins a segment where a history processor changed it.
Version 0 and demonstrations have only `history`, as it was before any processor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from pydantic import JsonValue

from pivotrl.trajectories import messages as m
from pivotrl.trajectories.messages import Object, copied, dig, expect, name_of, place, unstring
from pivotrl.trajectories.openai_chat import conversation
from pivotrl.types import Message, Source, Trajectory

_EXITS: Final = ("Exit due to ", "Exiting due to ")


class SweAgent:
    """Reads one run per record; every attempt of a run that was retried."""

    name = "swe_agent"

    def claims(self, record: JsonValue) -> bool:
        steps = (dig(record, "trajectory", 0), dig(record, "attempts", 0, "trajectory", 0))
        told = dig(record, "history", 0)
        return any(isinstance(step, dict) and {"action", "observation"} <= step.keys() for step in steps) or (
            isinstance(told, dict) and {"role", "agent"} <= told.keys()
        )

    def read(self, record: JsonValue, source: Source) -> Sequence[Trajectory]:
        """The segments of each attempt. Raises InputError naming the field that is wrong."""
        where = place(source)
        row: Object = expect(record, dict, where)
        settings = unstring(row.get("replay_config"), f"{where}: replay_config")
        alone = source.line is None and source.index is None
        stem = m.stem(source.file) if alone else None
        found: list[Trajectory] = []
        for number, value in enumerate(expect(row.get("attempts") or [row], list, f"{where}: attempts")):
            attempt: Object = expect(value, dict, f"{where}: attempts[{number}]")
            told = expect(attempt.get("info") or {}, dict, f"{where}: info") | row
            for run in m.segmented(conversation(told, tuple(part), source) for part in _segments(attempt, where)):
                task = run.task_id or name_of(dig(settings, "problem_statement", "id")) or stem
                name = f"#{number}" if number else ""
                parent = run.parent_id and run.parent_id + name
                found.append(replace(run, id=run.id + name, parent_id=parent, task_id=task))
        return found


def _messages(value: JsonValue, where: str) -> tuple[Message, ...]:
    return tuple(_message(item, f"{where}[{i}]") for i, item in enumerate(expect(value or [], list, where)))


def _message(value: JsonValue, where: str) -> Message:
    item: Object = expect(value, dict, where)
    message = m.read_message(item, where)
    if message.role != "assistant":
        return message
    by_harness = (message.content or "").startswith(_EXITS) and not message.tool_calls
    reason = "demonstration" if item.get("is_demo") else "synthetic" if by_harness else message.excluded
    return replace(message, excluded=reason)


def _segments(row: Object, where: str) -> Iterator[Sequence[Message]]:
    history = _messages(row.get("history"), f"{where}: history")
    values = enumerate(expect(row.get("trajectory") or [], list, f"{where}: trajectory"))
    steps: list[Object] = [expect(value, dict, f"{where}: trajectory[{i}]") for i, value in values]
    key = "query" if any(step.get("query") for step in steps) else "messages"
    inputs = [_messages(step.get(key), f"{where}: trajectory[{i}].{key}") for i, step in enumerate(steps)]
    if not any(inputs):
        yield history
        return
    if key == "messages":
        turns = (i for i, message in enumerate(history) if message.role == "assistant" and not message.excluded)
        inputs.insert(0, history[: next(turns, len(history))])
    spoken = [message for message in history if message.role == "assistant"]
    held: list[Message] = []
    seen: list[Message] = []
    for number, step in enumerate(steps):
        state = list(inputs[number] or seen)
        if seen != state[: len(seen)]:
            yield held
            held, seen = [], []
        after = inputs[number + 1][len(state) :] if number + 1 < len(inputs) else ()
        action = _action(step, after, spoken, bool(history))
        held = [*held[: len(seen)], *(copied(message) for message in state[len(seen) :]), action]
        seen = [*state, replace(action, excluded=None)]
        text = str(step.get("observation") or "")
        held += [Message(role="tool", content=text, tool_call_id=call.id) for call in action.tool_calls]
    yield held


def _action(step: Object, after: Sequence[Message], spoken: list[Message], told: bool) -> Message:
    """A step's message as the next input or the history has it; `spoken`, what the history holds, is used up.

    What the history lacks the harness could not use, and asked again.
    """
    text = str(step.get("response") or "")
    same = (i for i, message in enumerate(spoken) if (message.content or "") == text and step.get("action"))
    at = next(same, None)
    action = _message({"role": "assistant", "content": text}, "") if at is None else spoken[at]
    del spoken[: 0 if at is None else at + 1]
    if after and after[0].role == "assistant" and (after[0].content or "") == text:
        action = after[0]
    return replace(action, excluded=action.excluded or "rejected_output") if at is None and told else action
