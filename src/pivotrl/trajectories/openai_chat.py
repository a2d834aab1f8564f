"""OpenAI chat: rows of `messages`, the same under other names, `prompt` + `completion`, and request logs.

`conversation` makes the trajectory of a row for other readers of conversations too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from pydantic import JsonValue

from pivotrl.trajectories import messages as m
from pivotrl.trajectories.jsonfile import parse
from pivotrl.trajectories.messages import Object, dig, expect, name_of, place, read_message, read_messages, read_tools
from pivotrl.trajectories.text_protocols import read_protocol, tools_in
from pivotrl.types import Message, Source, Trajectory

CONTAINERS: Final = ("messages", "conversation", "conversations", "trajectory", "history", "final_messages")
_TOOL_KEYS: Final = (
    ("tools",), ("tools_json",), ("available_tools",), ("tool_definitions",), ("functions",), ("info", "oai_tools"),
    ("extra", "invocation_params", "tools"),
)  # fmt: skip
_TASK_KEYS: Final = ("task_id", "instance_id", "example_id", "item_id", "docker_image")
_DOMAIN_KEYS: Final = ("domain", "domain_name")
_REWARD_KEYS: Final = (
    ("reward",), ("resolved",), ("target",), ("pass_rate",), ("success",), ("is_correct",), ("eval_result", "score"),
    ("verified",), ("outcome",), ("test_result", "report", "resolved"), ("report", "resolved"), ("result",),
)  # fmt: skip
_LIKE_REWARDS: Final = ("reward", "rewards", "score", "scores", "resolved", "success", "is_correct", "pass_rate")
_LIST: Final = re.compile(r'\s*\[\s*\{\s*"')
_KIMI: Final = "<|im_system|>tool_declare<|im_middle|>"
"""Begins a system message that holds what Kimi's template makes of the tools (Toucan)."""


class OpenAIChat:
    """Reads one conversation per record; every assistant message is a turn unless the row says otherwise."""

    name = "openai_chat"

    def claims(self, record: JsonValue) -> bool:
        row = _unwrapped(record)
        if not isinstance(row, dict):
            return False
        return "messages" in row or container(row) is not None or any(row.get(key) == [] for key in CONTAINERS)

    def read(self, record: JsonValue, source: Source) -> Sequence[Trajectory]:
        """One trajectory. Raises InputError naming the field that is wrong."""
        where = place(source)
        row: Object = expect(_unwrapped(record), dict, where)
        return (conversation(row, _messages(row, where) + _response(row, where), source),)


def conversation(row: Object, messages: tuple[Message, ...], source: Source) -> Trajectory:
    """The trajectory of these messages with what the row says beside them. Raises InputError."""
    given = (read_tools(dig(row, *keys), f"{place(source)}: {'.'.join(keys)}") for keys in _TOOL_KEYS if keys[0] in row)
    tools = next((tools for tools in given if tools is not None), None)
    system = row.get("system")
    if isinstance(system, str) and system and all(message.role != "system" for message in messages):
        messages = (Message(role="system", content=system), *messages)
    if messages and (messages[0].content or "").startswith(_KIMI):
        tools, messages = tools_in(messages[0].content or "") if tools is None else tools, messages[1:]
    named = (*_TASK_KEYS, "task") if "trial_name" in row or "episode" in row else _TASK_KEYS  # of Harbor
    outcomes = (m.reward(dig(row, *keys)) for keys in _REWARD_KEYS if keys[0] in row)
    return read_protocol(
        Trajectory(
            id=name_of(dig(row, "pivotrl", "id")) or m.trajectory_id(source),
            parent_id=name_of(dig(row, "pivotrl", "parent_id")),
            messages=messages,
            source=source,
            tools=tools,
            task_id=next((name for key in named if (name := name_of(row.get(key)))), None),
            outcome=next((one for one in outcomes if one is not None), None),
            domain=next((text for key in _DOMAIN_KEYS if isinstance(text := row.get(key), str)), None),
        )
    )


def unclear(row: Object, read: Sequence[Trajectory]) -> Iterator[str]:
    """The keys whose values say something of outcome or task that was not understood."""
    if any(one.outcome is None for one in read):
        yield from (key for key in _LIKE_REWARDS if row.get(key) is not None)
    if row.get("task_id") and any(one.task_id is None for one in read):
        yield "task_id"


def join_logs(values: Iterator[tuple[int | None, JsonValue]]) -> Iterator[tuple[int | None, JsonValue]]:
    """Put a logged response that follows its request on a line of its own into one record with it."""
    request: tuple[int | None, Object] | None = None
    for line, value in values:
        row: Object = value if isinstance(value, dict) else {}
        answers = request is not None and "response" in row and "request" not in row
        if request is not None:
            yield (request[0], {**request[1], **row}) if answers else request
        request = (line, row) if isinstance(dig(row, "request", "body"), dict) and "response" not in row else None
        if request is None and not answers:
            yield line, value
    if request is not None:
        yield request


def goes_on(line: bytes) -> bool:
    """Whether a line may answer a request before it, or stand between the two: it is no JSON."""
    try:
        record = parse(line)
    except ValueError:
        return True
    return isinstance(record, dict) and "response" in record and "request" not in record


def _unwrapped(record: JsonValue) -> JsonValue:
    """A bare list of messages, or the body of a logged request with its response, as a row."""
    if _are_messages(record):
        return {"messages": record}
    body = dig(record, "request", "body")
    if isinstance(record, dict) and isinstance(body, dict) and "messages" in body:
        return {**body, "response": dig(record, "response", "body") or record.get("response")}
    return record


def _are_messages(value: JsonValue) -> bool:
    """Whether a list holds messages: judged by its first item, so that a broken one is reported, not passed over."""
    return isinstance(dig(value, 0, "role"), str) and not isinstance(dig(value, 0, "message"), dict)


def container(row: Object) -> str | None:
    """Where a row holds its messages."""
    for key in CONTAINERS:
        value = row.get(key)
        if value is None:
            continue
        if _are_messages(value) or (isinstance(value, str) and _LIST.match(value) and '"role"' in value):
            return key
    return "prompt" if _are_messages(row.get("prompt")) and isinstance(row.get("completion"), list) else None


def _messages(row: Object, where: str) -> tuple[Message, ...]:
    key = container(row) or next(key for key in CONTAINERS if key in row)
    messages = read_messages(m.unstring(row[key], f"{where}: {key}"), f"{where}: {key}")
    return messages if key != "prompt" else messages + read_messages(row["completion"], f"{where}: completion")


def _response(row: Object, where: str) -> tuple[Message, ...]:
    """The answer that a request log keeps beside the request."""
    choice = dig(row, "raw_response", "choices", 0) or dig(row, "response", "choices", 0)
    answer = dig(choice, "message")
    if answer is None:
        return ()
    message = read_message(answer, f"{where}: response.choices[0].message")
    return (replace(message, excluded="truncated") if dig(choice, "finish_reason") == "length" else message,)
