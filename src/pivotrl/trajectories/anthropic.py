"""Anthropic Messages: content blocks, with tool results inside user messages; requests, logs of them, batches."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Final

from pydantic import JsonValue

from pivotrl.trajectories.messages import Object, dig, expect, name_of, place, read_content, read_message
from pivotrl.trajectories.openai_chat import CONTAINERS, OpenAIChat
from pivotrl.types import Message, Source, ToolCall, Trajectory

Block = tuple[Object, str]
"""A content block and its place."""
_MARKS: Final = ("tool_use", "tool_result", "server_tool_use", "mcp_tool_use", "redacted_thinking")
_REQUESTS: Final = (("params",), ("request", "body"), ("request",), ("body",), ())
_RESPONSES: Final = (("response", "body"), ("response", "message"), ("response",), ("result", "message"))


class Anthropic:
    """Reads one request per record, with its response where the record holds one."""

    name = "anthropic"

    def claims(self, record: JsonValue) -> bool:
        return _request(record) is not None

    def read(self, record: JsonValue, source: Source) -> Sequence[Trajectory]:
        """One trajectory. Raises InputError naming the field that is wrong."""
        where, (row, key) = place(source), _request(record) or ({"messages": record}, "messages")
        (base,) = OpenAIChat().read({**row, "messages": []}, source)
        messages = [Message(role="system", content=text) for text in (_system(row, where),) if text]
        for index, value in enumerate(expect(row[key], list, f"{where}: {key}")):
            at = f"{where}: {key}[{index}]"
            message: Object = expect(value, dict, at)
            if message.get("role") in ("user", "assistant") and not message.get("tool_calls"):
                messages += read_blocks(message["role"], message.get("content"), f"{at}.content")
            else:
                messages.append(read_message(message, at))
        answers = (dig(record, *keys) for keys in _RESPONSES)
        answer = next((found for found in answers if isinstance(dig(found, "content"), list)), None)
        if answer is not None:
            turns = read_blocks("assistant", dig(answer, "content"), f"{where}: response.content")
            messages += truncated(turns) if dig(answer, "stop_reason") == "max_tokens" else turns
        return (replace(base, messages=tuple(messages)),)


def _request(record: JsonValue) -> tuple[Object, str] | None:
    """The object that holds messages with blocks, and the name of its list of messages."""
    for keys in _REQUESTS:
        row = {"messages": record} if isinstance(record, list) else dig(record, *keys)
        if isinstance(row, dict):
            found = (key for key in CONTAINERS if isinstance(dig(row, key, 0, "role"), str))
            key = next(found, None)
            if key is not None and _has_blocks(row, key):
                return row, key
    return None


def _has_blocks(row: Object, key: str) -> bool:
    """Whether blocks, schemas or a system prompt beside the messages tell the format."""
    messages = [message for message in row[key] if isinstance(message, dict)]
    contents = [message["content"] for message in messages if isinstance(message.get("content"), list)]
    tools = row.get("tools")
    return (
        any(dig(part, "type") in _MARKS for content in contents for part in content)
        or (isinstance(tools, list) and any(dig(tool, "input_schema") is not None for tool in tools))
        or (bool(row.get("system")) and all(message.get("role") in ("user", "assistant") for message in messages))
    )


def _system(row: Object, where: str) -> str | None:
    return read_content(row.get("system"), f"{where}: system").text


def read_blocks(role: str, content: JsonValue, where: str) -> list[Message]:
    """The messages of one: results before the rest of a user message; what a model said after each server result."""
    if content is None or isinstance(content, str):
        content = [{"type": "text", "text": content}] if content else []
    values = enumerate(expect(content, list, where, "text or a list of blocks"))
    blocks: list[Block] = [(expect(value, dict, f"{where}[{i}]"), f"{where}[{i}]") for i, value in values]
    if role == "assistant":
        runs = groupby(blocks, key=lambda block: _kind(block).endswith("_tool_result"))
        found = [m for served, run in runs for m in (map(_result, run) if served else (_turn(list(run)),))]
        return found or [Message(role="assistant")]
    results = [_result(block) for block in blocks if _kind(block) == "tool_result"]
    rest = read_content([block for block, _ in blocks if block.get("type") != "tool_result"], where)
    if results and not (rest.text or rest.omitted):
        return results
    return [*results, Message(role="user", content=rest.text or "", omitted=rest.omitted)]


def truncated(messages: Sequence[Message]) -> Iterator[Message]:
    """The messages, the last of which the token limit cut."""
    yield from messages[:-1]
    yield from (replace(message, excluded="truncated") for message in messages[-1:])


def _kind(block: Block) -> str:
    return str(block[0].get("type"))


def _turn(blocks: Sequence[Block]) -> Message:
    """What a model said in one go. Thinking that is encrypted is lost, `(no content)` is a harness's placeholder."""
    said = [block for block, _ in blocks if not str(block.get("type")).endswith(("tool_use", "redacted_thinking"))]
    content = read_content(said, blocks[0][1])
    return Message(
        role="assistant",
        content=None if content.text == "(no content)" else content.text,
        reasoning=content.thought,
        tool_calls=tuple(_call(block, at) for block, at in blocks if str(block.get("type")).endswith("tool_use")),
        omitted=content.omitted,
    )


def _call(block: Object, where: str) -> ToolCall:
    given = block.get("input")
    text = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
    name = expect(block.get("name"), str, f"{where}.name")
    return ToolCall(name=name, arguments=text if "input" in block else None, id=name_of(block.get("id")))


def _result(block: Block) -> Message:
    """A tool's result. Of a server's search only the addresses are there, so that the state is not whole."""
    result, at = block
    content, error = result.get("content"), result.get("is_error")
    message = Message(
        role="tool",
        tool_call_id=name_of(result.get("tool_use_id")),
        error=error if isinstance(error, bool) else None,
    )
    if _kind(block) not in ("tool_result", "mcp_tool_result"):
        text = json.dumps(content, ensure_ascii=False)
        return replace(message, omitted=(_kind(block),)) if "encrypted" in text else replace(message, content=text)
    if isinstance(content, list):
        names = [part.get("tool_name") if isinstance(part, dict) else None for part in content]
        content = [part if name is None else {"text": name} for part, name in zip(content, names, strict=True)]
    read = read_content(content, f"{at}.content")
    return replace(message, content=read.text, omitted=read.omitted)
