"""NeMo Gym pivot rows: Responses API items up to a turn, and the expected action at it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from pydantic import JsonValue

from pivotrl.errors import InputError
from pivotrl.trajectories.messages import (
    Object,
    as_list,
    as_object,
    as_text,
    dig,
    name_of,
    place,
    read_call,
    read_content,
    read_message,
    read_tools,
    trajectory_id,
    unstring,
)
from pivotrl.types import Message, Source, ToolCall, Trajectory

PREFIX: Final = "prefix_of_pivot_row"


class NemoGym:
    """Reads one pivot row as a trajectory that ends in the expected action; earlier turns are other rows' business."""

    name = "nemo_gym"

    def claims(self, record: JsonValue) -> bool:
        if not isinstance(record, dict) or not isinstance(record.get("responses_create_params"), dict):
            return False
        return record.get("expected_action") is not None or _is_terminus(record)

    def read(self, record: JsonValue, source: Source) -> Sequence[Trajectory]:
        """One trajectory. Raises InputError naming the field that is wrong."""
        where = place(source)
        row = as_object(record, where)
        params = as_object(row.get("responses_create_params"), f"{where}: responses_create_params")
        at = f"{where}: responses_create_params"
        uid = name_of(row.get("trajectory_id")) or name_of(dig(row, "metadata", "source_trajectory_uid"))
        domain = row.get("domain") or dig(row, "metadata", "harness")
        return (
            Trajectory(
                id=trajectory_id(source),
                messages=(*read_items(params, at), _expected(row, where)),
                source=source,
                tools=read_tools(params.get("tools"), f"{at}.tools"),
                task_id=None if uid is None else f"trajectory_id:{uid}",
                domain=domain if isinstance(domain, str) else None,
            ),
        )


def _is_terminus(row: Object) -> bool:
    """An `expected_answer` is an action only when it is a harness object; elsewhere a grader compares with it."""
    answer = row.get("expected_answer")
    return isinstance(answer, str) and (answer.lstrip().startswith("{") or dig(row, "metadata", "harness") is not None)


def _expected(row: Object, where: str) -> Message:
    value = row.get("expected_action")
    if value is None:
        return Message(role="assistant", content=as_text(row.get("expected_answer"), f"{where}: expected_answer"))
    at = f"{where}: expected_action"
    action = as_object(unstring(value, at), at)
    kind = action.get("type", "function_call")
    if kind == "message":
        content = read_content(action.get("content"), f"{at}.content")
        return Message(role="assistant", content=content.text, omitted=content.omitted)
    if kind == "function_call":
        return Message(role="assistant", tool_calls=(read_call(action, at),))
    if kind == "function_call_batch":
        calls = as_list(action.get("calls"), f"{at}.calls")
        return Message(
            role="assistant", tool_calls=tuple(read_call(c, f"{at}.calls[{i}]") for i, c in enumerate(calls))
        )
    raise InputError(
        f"{at}.type: {kind!r} is not function_call, function_call_batch or message; fix or remove the record"
    )


@dataclass(slots=True)
class _Turn:
    """Items of one model call: everything up to the next tool output or the next message of somebody else."""

    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    omitted: list[str] = field(default_factory=list)

    def message(self) -> Message:
        return Message(
            role="assistant",
            content="\n".join(self.texts) if self.texts else None,
            reasoning="\n".join(self.thoughts) or None,
            tool_calls=tuple(self.calls),
            omitted=tuple(self.omitted),
            excluded=PREFIX,
        )

    def add(self, kind: str, item: Object, where: str) -> None:
        if kind == "function_call":
            self.calls.append(read_call(item, where))
        elif kind == "reasoning":
            for key in ("content", "summary"):
                content = read_content(item.get(key), f"{where}.{key}")
                self.thoughts.extend(text for text in (content.text, content.thought) if text and not self.thoughts)
        elif kind == "message":
            content = read_content(item.get("content"), f"{where}.content")
            self.texts.extend(() if content.text is None else (content.text,))
            self.omitted.extend(content.omitted)
        else:
            self.omitted.append(kind)


def read_items(params: Object, where: str) -> Iterator[Message]:
    """The messages that `instructions` and `input` stand for. Raises InputError."""
    instructions, value = params.get("instructions"), params.get("input")
    if instructions is not None:
        yield Message(role="system", content=as_text(instructions, f"{where}.instructions"))
    if isinstance(value, str):
        yield Message(role="user", content=value)
        return
    turn: _Turn | None = None
    for index, entry in enumerate(as_list(value, f"{where}.input", "text or a list of items")):
        at = f"{where}.input[{index}]"
        item = as_object(entry, at)
        kind = as_text(item.get("type") or "message", f"{at}.type")
        theirs = kind == "function_call_output" or (kind == "message" and item.get("role") != "assistant")
        if not theirs:
            turn = turn or _Turn()
            turn.add(kind, item, at)
            continue
        if turn is not None:
            yield turn.message()
            turn = None
        yield _output(item, at) if kind == "function_call_output" else read_message(item, at)
    if turn is not None:
        yield turn.message()


def _output(item: Object, where: str) -> Message:
    content = read_content(item.get("output"), f"{where}.output")
    return Message(
        role="tool", content=content.text, omitted=content.omitted, tool_call_id=name_of(item.get("call_id"))
    )
