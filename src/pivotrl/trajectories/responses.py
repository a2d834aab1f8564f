"""OpenAI Responses API: NeMo Gym rollouts, logged requests with their responses, and bare lists of items."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from pydantic import JsonValue

from pivotrl.trajectories.items import read_items, read_request
from pivotrl.trajectories.messages import Object, dig, name_of, place
from pivotrl.trajectories.nemo_gym import PREFIX
from pivotrl.trajectories.openai_chat import conversation
from pivotrl.types import Message, Source, Trajectory

_TERMINUS: Final = re.compile(r'"commands"\s*:\s*\['), re.compile(r'"keystrokes"\s*:')


class Responses:
    """Reads what was asked (`instructions`, `input`) and what came (`output`, a whole agent's with its results)."""

    name = "openai_responses"

    def claims(self, record: JsonValue) -> bool:
        if isinstance(record, list):
            return any(_is_item(item) for item in record)
        request, response = _halves(record)
        output = response.get("output")
        rollout = isinstance(record, dict) and "responses_create_params" in record and isinstance(output, list)
        return (rollout or _is_item(dig(output, 0))) and isinstance(request.get("input"), str | list)

    def read(self, record: JsonValue, source: Source) -> Sequence[Trajectory]:
        """One trajectory. Raises InputError naming the field that is wrong."""
        where = place(source)
        row: Object = record if isinstance(record, dict) else {"input": record, "output": []}
        request, response = _halves(row)
        if request.get("instructions") is None:
            request = {**request, "instructions": response.get("instructions")}
        answer = list(_as_written(read_items(response.get("output"), f"{where}: output")))
        cut = response.get("status") == "incomplete" or response.get("incomplete_details")
        if answer and answer[-1].role == "assistant" and cut:
            answer[-1] = replace(answer[-1], excluded="truncated")
        messages = (*read_request(request, where, PREFIX if "responses_create_params" in row else None), *answer)
        tools = response.get("tools") if request.get("tools") is None else request["tools"]
        if not tools and any(message.tool_calls for message in messages):
            tools = None  # the request's list is empty: the agent had tools of its own
        got, index = conversation({**row, "tools": tools}, messages, source), name_of(row.get("_ng_task_index"))
        task = got.task_id or (index and f"{Path(source.file).stem}:{index}")
        return (replace(got, task_id=task, outcome=None if row.get("mask_sample") else got.outcome),)


def _as_written(messages: Iterable[Message]) -> Iterator[Message]:
    """Terminus writes its commands as JSON text; the calls that Gym puts beside are copies, with one result for all."""
    is_copy = False
    for message in messages:
        if message.role == "assistant":
            is_copy = bool(message.tool_calls) and _is_terminus(message.content or "")
            message = replace(message, tool_calls=()) if is_copy else message
        elif message.role == "tool" and is_copy:
            message = Message(role="user", content=message.content)
        yield message


def _is_terminus(text: str) -> bool:
    began = _TERMINUS[0].search(text)
    return began is not None and _TERMINUS[1].search(text, began.end()) is not None


def _is_item(value: JsonValue) -> bool:
    kind = dig(value, "type")
    known = isinstance(kind, str) and (kind == "reasoning" or kind.endswith(("_call", "_call_output")))
    return known or (kind == "message" and dig(value, "role") is not None)


def _halves(record: JsonValue) -> tuple[Object, Object]:
    """Request and response, wherever the record keeps them."""
    row: Object = record if isinstance(record, dict) else {}
    asked = (row.get("responses_create_params"), dig(row, "request", "body"), row.get("request"), row)
    came = (dig(row, "response", "body"), row.get("response"), row)
    request, response = (next(part for part in parts if isinstance(part, dict)) for parts in (asked, came))
    return request, response
