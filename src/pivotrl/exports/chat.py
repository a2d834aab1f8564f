"""Conversations as TRL's trainers and most others read them; `ingest` reads them back as they were."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pivotrl.chat import message_dict
from pivotrl.exports.base import Material, Target
from pivotrl.storage import write_atomic
from pivotrl.trajectories.messages import arguments_text
from pivotrl.types import Message, Trajectory

Row = dict[str, Any]


class Chat:
    """`train.jsonl` and `validation.jsonl`: the trajectories that hold exported candidates, one per line.

    With everything all trajectories, by the split of their candidates; `rest.jsonl` has those without any.
    """

    name: Target = "chat"

    def write(self, material: Material, folder: Path) -> list[str]:
        store, whole = material.store, material.config.everything
        rows = store.rows() if whole else [row for rows in material.rows.values() for row in rows]
        turns: defaultdict[str, Row] = defaultdict(dict)
        for row in rows:
            turns[row.trajectory_id][str(row.turn)] = material.weights.get(row.id, 1.0)
        split_of = {row.trajectory_id: row.split for row in rows}
        files: defaultdict[str, list[str]] = defaultdict(list)
        for id_ in store.index if whole else split_of:
            files[split_of.get(id_, "rest")].append(id_)
        for name, ids in files.items():
            lines = (chat_row(store.trajectory(id_)) | {"candidates": turns[id_]} for id_ in ids)
            write_atomic(folder / f"{name}.jsonl", (json.dumps(line).encode() + b"\n" for line in lines))
        return [f"{name}.jsonl: {len(ids)} conversations" for name, ids in files.items()]


def chat_row(trajectory: Trajectory) -> Row:
    """A trajectory in the chat schema; what that cannot say is under keys of ours, which our reader knows."""
    tools = trajectory.tools
    named = {name: getattr(trajectory, name) for name in ("task_id", "domain", "outcome")}
    return {
        "messages": [_message(message) for message in trajectory.messages],
        "tools": None if tools is None else [{"type": "function", "function": asdict(tool)} for tool in tools],
        **{name: value for name, value in named.items() if value is not None},
        "pivotrl": {"id": trajectory.id, "parent_id": trajectory.parent_id, "source": asdict(trajectory.source)},
    }


def _message(message: Message) -> Row:
    row: Row = message_dict(message) | {"content": message.content}
    ours = {"error": message.error, "omitted": list(message.omitted) or None, "excluded": message.excluded}
    row |= {name: value for name, value in ours.items() if value is not None}
    row |= {} if message.excluded is None else {"loss": False}
    for call, written in zip(message.tool_calls, row.get("tool_calls", ()), strict=True):
        function = written["function"]
        if arguments_text(function["arguments"]) != call.arguments:
            function["arguments_text"] = call.arguments
    return row
