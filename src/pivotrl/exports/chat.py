"""Conversations as TRL's trainers and most others read them; `ingest` reads them back as they were."""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pivotrl.exports.base import Item, Material, Target
from pivotrl.storage import dump_json, write_jsonl
from pivotrl.trajectories.jsonfile import parse
from pivotrl.trajectories.messages import arguments_text
from pivotrl.types import Message, Tool, ToolCall, Trajectory

Row = dict[str, Any]


class Chat:
    """`train.jsonl` and `validation.jsonl`: the trajectories that hold exported candidates, one per line.

    With everything all trajectories, by the split of their candidates; `rest.jsonl` has those without any.
    """

    name: Target = "chat"

    def write(self, material: Material, folder: Path) -> list[str]:
        lines = []
        for name, ids in _files(material).items():
            marks: dict[str, list[Row]] = defaultdict(list)
            for item in material.items("train") if name == "train" and not material.config.everything else ():
                marks[item.row.trajectory_id].append(_mark(item))
            rows = (chat_row(material.store.trajectory(id_)) | _said(pivots=marks.get(id_)) for id_ in ids)
            write_jsonl(folder / f"{name}.jsonl", rows)
            lines.append(f"{name}.jsonl: {len(ids)} conversations")
        return lines


def _files(material: Material) -> dict[str, list[str]]:
    """Ids of trajectories by the name of the file that they go to."""
    rows = [row for rows in material.rows.values() for row in rows]
    ids: list[str] = [row.trajectory_id for row in rows]
    if material.config.everything:
        rows, ids = material.store.rows(), list(material.store.index)
    split_of: dict[str, str] = {row.trajectory_id: row.split for row in rows}
    files: dict[str, list[str]] = defaultdict(list)
    for id_ in dict.fromkeys(ids):
        files[split_of.get(id_, "rest")].append(id_)
    return files


def _mark(item: Item) -> Row:
    profile = item.profile
    return {"turn": item.row.turn, "weight": item.weight} | ({"mean": profile.mean, "n": profile.n} if profile else {})


def chat_row(trajectory: Trajectory) -> Row:
    """A trajectory in the chat schema; what that cannot say is under keys of ours, which our reader knows."""
    source = {"id": trajectory.id, "parent_id": trajectory.parent_id, "source": asdict(trajectory.source)}
    return {"messages": [_message(message) for message in trajectory.messages]} | _said(
        tools=None if trajectory.tools is None else [_tool(tool) for tool in trajectory.tools],
        task_id=trajectory.task_id,
        domain=trajectory.domain,
        outcome=trajectory.outcome,
        pivotrl=source,
    )


def _said(**fields: Any) -> Row:
    return {name: value for name, value in fields.items() if value is not None}


def _message(message: Message) -> Row:
    return {"role": message.role, "content": message.content} | _said(
        reasoning_content=message.reasoning,
        tool_calls=[_call(call) for call in message.tool_calls] or None,
        tool_call_id=message.tool_call_id,
        name=message.name,
        error=message.error,
        omitted=list(message.omitted) or None,
        loss=None if message.excluded is None else False,
        excluded=message.excluded,
    )


def _call(call: ToolCall) -> Row:
    """With its arguments as an object, as templates want them, and as text where the object would not give it back."""
    value, text = call.parsed.value, call.arguments
    function: Row = {"name": call.name} | _said(arguments=text)
    with suppress(ValueError, TypeError):  # JSON that Python reads, and a file of ours cannot hold
        if value is not None and parse(dump_json(value).decode()) is not None:
            function |= _said(arguments=value, arguments_text=None if arguments_text(value) == text else text)
    return _said(id=call.id, type="function", function=function)


def _tool(tool: Tool) -> Row:
    return {
        "type": "function",
        "function": {"name": tool.name, "description": tool.description} | _said(parameters=tool.parameters),
    }
