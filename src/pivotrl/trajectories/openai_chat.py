"""OpenAI chat: rows of `messages`, the same under other names, `prompt` + `completion`, and request logs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from pydantic import JsonValue

from pivotrl.trajectories.messages import (
    Object,
    as_list,
    dig,
    name_of,
    place,
    read_message,
    read_messages,
    read_tools,
    reward,
    trajectory_id,
    unstring,
)
from pivotrl.types import Message, Source, Tool, Trajectory

CONTAINERS: Final = ("messages", "conversation", "conversations", "trajectory", "history", "final_messages")
_TOOL_KEYS: Final = (("tools",), ("tools_json",), ("available_tools",), ("info", "oai_tools"))
_TASK_KEYS: Final = ("task_id", "instance_id", "example_id")
_DOMAIN_KEYS: Final = ("domain", "domain_name")
_REWARD_KEYS: Final = (
    ("reward",), ("resolved",), ("target",), ("pass_rate",), ("success",), ("is_correct",), ("eval_result", "score"),
    ("verified",), ("outcome",), ("test_result", "report", "resolved"),
)  # fmt: skip


class OpenAIChat:
    """Reads one conversation per record; every assistant message is a turn unless the row says otherwise."""

    name = "openai_chat"

    def claims(self, record: JsonValue) -> bool:
        record = _unwrapped(record)
        return isinstance(record, dict) and ("messages" in record or _container(record) is not None)

    def read(self, record: JsonValue, source: Source) -> Sequence[Trajectory]:
        """One trajectory. Raises InputError naming the field that is wrong."""
        where, row = place(source), _unwrapped(record)
        assert isinstance(row, dict), "claims() was not asked"
        messages = _messages(row, where)
        return (
            Trajectory(
                id=trajectory_id(source),
                messages=messages + _response(row, where),
                source=source,
                tools=_tools(row, where),
                task_id=next((name for key in _TASK_KEYS if (name := name_of(row.get(key)))), None),
                outcome=next((value for keys in _REWARD_KEYS if (value := reward(dig(row, *keys))) is not None), None),
                domain=next((text for key in _DOMAIN_KEYS if isinstance(text := row.get(key), str)), None),
            ),
        )


def _unwrapped(record: JsonValue) -> JsonValue:
    """A bare list of messages, or the body of a logged request with its response, as a row."""
    if isinstance(record, list) and _are_messages(record):
        return {"messages": record}
    body = dig(record, "request", "body")
    if isinstance(record, dict) and isinstance(body, dict) and "messages" in body:
        return {**body, "response": dig(record, "response", "body") or record.get("response")}
    return record


def _are_messages(value: JsonValue) -> bool:
    """Whether a list holds messages: judged by its first item, so that a broken one is reported, not passed over."""
    return (
        isinstance(value, list)
        and isinstance(dig(value, 0, "role"), str)
        and not isinstance(dig(value, 0, "message"), dict)
    )


def _container(row: Object) -> str | None:
    for key in CONTAINERS:
        value = row.get(key)
        if _are_messages(value) or (isinstance(value, str) and value.lstrip().startswith('[{"role"')):
            return key
    if _are_messages(row.get("prompt")) and isinstance(row.get("completion"), list):
        return "prompt"
    return None


def _messages(row: Object, where: str) -> tuple[Message, ...]:
    key = _container(row) or "messages"
    messages = read_messages(unstring(row[key], f"{where}: {key}"), f"{where}: {key}")
    if key != "prompt":
        return messages
    completion = as_list(row["completion"], f"{where}: completion")
    return messages + read_messages(completion, f"{where}: completion")


def _response(row: Object, where: str) -> tuple[Message, ...]:
    """The answer that a request log keeps beside the request."""
    choice = dig(row, "response", "choices", 0)
    answer = dig(choice, "message")
    if answer is None:
        return ()
    message = read_message(answer, f"{where}: response.choices[0].message")
    return (replace(message, excluded="truncated") if dig(choice, "finish_reason") == "length" else message,)


def _tools(row: Object, where: str) -> tuple[Tool, ...] | None:
    for keys in _TOOL_KEYS:
        value = dig(row, *keys)
        if value is not None and value != "":
            return read_tools(value, f"{where}: {'.'.join(keys)}")
    return None
