"""Anthropic Messages: content blocks, with tool results inside user messages; requests, logs of them, batches."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, Final

from pydantic import JsonValue

from pivotrl.trajectories.messages import Object, decoded, dig, expect, place, read_content, read_message
from pivotrl.trajectories.openai_chat import CONTAINERS, conversation
from pivotrl.types import Message, Source, Trajectory

_EMPTY: Final = "(no content)"
_MARKS: Final = {"tool_use", "tool_result", "server_tool_use", "mcp_tool_use", "redacted_thinking"}
_REQUESTS: Final = (("params",), ("request", "body"), ("request",), ("body",))
_DELTAS: Final = {"text": "text", "thinking": "thinking", "partial_json": "input"}
"""What a streamed response adds to, by the key of the addition."""
_RESPONSES: Final = (("response", "body"), ("response", "message"), ("response",), ("result", "message"))


class Anthropic:
    """Reads one request per record, with its response where the record holds one."""

    name = "anthropic"

    def claims(self, record: JsonValue) -> bool:
        return _request(record) is not None

    def read(self, record: JsonValue, source: Source) -> Sequence[Trajectory]:
        """One trajectory. Raises InputError naming the field that is wrong."""
        (row, key, answer), where = _request(record) or ({}, "messages", {}), place(source)
        values = [*expect(row[key], list, f"{where}: {key}"), *([{"role": "assistant", **answer}] if answer else [])]
        turns = (read_blocks(value, f"{where}: {key}[{index}]") for index, value in enumerate(values))
        system = read_content(row.get("system"), f"{where}: system").text
        return (conversation({**row, "system": system}, tuple(m for turn in turns for m in turn), source),)


def _request(record: JsonValue) -> tuple[Object, str, Object] | None:
    """The object that has messages, their key in it, and a response, where blocks or schemas tell the format."""
    outer: Object = record if isinstance(record, dict) else {"messages": record}
    answers: list[Any] = [dig(outer, *keys) for keys in _RESPONSES if keys[0] in outer]
    answers.append(_streamed(dig(outer, "response", "body_raw")))
    answer: Any = next((found for found in answers if isinstance(dig(found, "content"), list)), {})
    rows = [outer, *(dig(outer, *keys) for keys in _REQUESTS if keys[0] in outer)]
    for row in (row for row in rows if isinstance(row, dict)):
        for key in (key for key in CONTAINERS if key in row and isinstance(dig(row[key], 0, "role"), str)):
            contents = [m.get("content") for m in expect(row[key], list, key) if isinstance(m, dict)]
            kinds = {str(dig(part, "type")) for parts in contents if isinstance(parts, list) for part in parts}
            tools = row.get("tools")
            has_schemas = isinstance(tools, list) and any(dig(tool, "input_schema") is not None for tool in tools)
            if answer or has_schemas or isinstance(row.get("system"), list) or kinds & _MARKS:
                return row, key, answer
    return None


def _streamed(text: JsonValue) -> Object | None:
    """The message of a response that was logged as its events (`data:` lines), cut off where they end too early."""
    if not isinstance(text, str):
        return None
    message: Object = {"stop_reason": "max_tokens"}
    blocks: list[Object] = []
    for event in (decoded(line[5:]) for line in text.splitlines() if line.startswith("data:")):
        kind, block, delta = (dig(event, key) for key in ("type", "content_block", "delta"))
        if kind == "content_block_start" and isinstance(block, dict):
            blocks.append({**block, "input": ""} if "input" in block else {**block})
        elif kind == "content_block_delta" and isinstance(delta, dict) and blocks:
            for key, place_of in _DELTAS.items():
                if isinstance(more := delta.get(key), str):
                    blocks[-1][place_of] = f"{blocks[-1].get(place_of) or ''}{more}"
        elif kind == "message_delta" and dig(delta, "stop_reason"):
            message["stop_reason"] = dig(delta, "stop_reason")
    whole = [{**block, "input": block["input"] or {}} if "input" in block else block for block in blocks]
    return {**message, "content": whole} if whole else None


def read_blocks(value: JsonValue, where: str) -> list[Message]:
    """The messages of one: results before the rest of a user message; what a model said after each server result."""
    message: Object = expect(value, dict, where)
    content = message.get("content")
    found: list[Object] = []
    if not isinstance(content, list) or message.get("tool_calls"):
        found, content = [Object(message, content=None) if content == _EMPTY else message], []
    blocks: list[Object] = [expect(block, dict, f"{where}.content[{i}]") for i, block in enumerate(content)]
    if message.get("role") != "assistant":
        blocks.sort(key=lambda block: block.get("type") != "tool_result")
    for has_results, run in groupby(blocks, key=lambda block: str(block.get("type")).endswith("tool_result")):
        part = list(run)
        found += map(_result, part) if has_results else [_said(message, part)]
    *before, last = [read_message(item, where) for item in found or [Object(message, content=None)]]
    return [*before, replace(last, excluded="truncated") if message.get("stop_reason") == "max_tokens" else last]


def _said(message: Object, blocks: Sequence[Object]) -> Object:
    """What was said in one go. Encrypted thinking is lost, and `(no content)` is a placeholder of harnesses."""
    uses = [block for block in blocks if str(block.get("type")).endswith("tool_use")]
    calls = [{**use, "arguments": use["input"]} if "input" in use else use for use in uses]
    said = [block for block in blocks if block not in uses and block.get("type") != "redacted_thinking"]
    return {**message, "content": [part for part in said if part.get("text") != _EMPTY], "tool_calls": calls}


def _result(block: Object) -> Object:
    """A tool's result. Of a server's search only the addresses are there, so that the state is not whole."""
    content, kind = block.get("content"), str(block.get("type"))
    if kind not in ("tool_result", "mcp_tool_result"):
        text = json.dumps(content, ensure_ascii=False)
        content = [{"type": kind}] if "encrypted" in text else text
    elif isinstance(content, list):
        content = [{"text": dig(part, "tool_name")} if dig(part, "tool_name") else part for part in content]
    answers, error = block.get("tool_use_id"), block.get("is_error")
    return Object(role="tool", content=content, tool_call_id=answers, error=error)
