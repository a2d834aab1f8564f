"""Conversations as TRL's trainers and most others read them; `ingest` reads them back as they were."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path

from pivotrl.chat import message_dict
from pivotrl.exports.base import Material, Row
from pivotrl.storage import write_atomic
from pivotrl.types import Message, Trajectory


def write_chat(material: Material, folder: Path) -> list[str]:
    """`train.jsonl` and `validation.jsonl`: the trajectories that hold exported candidates, one per line.

    With everything all trajectories, by the split of their candidates; `rest.jsonl` has those without any.
    """
    store, whole = material.store, material.config.everything
    rows = store.rows() if whole else [row for rows in material.rows.values() for row in rows]
    split_of = {row.trajectory_id: row.split for row in rows}
    files: defaultdict[str, list[str]] = defaultdict(list)
    for id_ in store.index if whole else split_of:
        files[split_of.get(id_, "rest")].append(id_)
    for name, ids in files.items():
        lines = (json.dumps(chat_row(store.trajectory(id_))).encode() + b"\n" for id_ in ids)
        write_atomic(folder / f"{name}.jsonl", lines)
    return [f"{name}.jsonl: {len(ids)} conversations" for name, ids in files.items()]


def chat_row(trajectory: Trajectory) -> Row:
    """A trajectory in the chat schema; what that cannot say is under keys of ours, which our reader knows."""
    tools = trajectory.tools
    return {
        "messages": [_message(message) for message in trajectory.messages],
        "tools": None if tools is None else [{"type": "function", "function": asdict(tool)} for tool in tools],
        **_known(trajectory, "task_id", "domain", "outcome"),
        "pivotrl": {"source": asdict(trajectory.source)} | _known(trajectory, "id", "parent_id"),
    }


def _known(one: Trajectory | Message, *names: str) -> Row:
    return {name: value for name in names if (value := getattr(one, name)) not in (None, ())}


def _message(message: Message) -> Row:
    row: Row = (
        message_dict(message)
        | {"content": message.literal or message.content}
        | _known(message, "error", "omitted", "excluded")
    )
    if message.excluded is not None:
        row["loss"] = False
    for call, written in zip(message.tool_calls, row.get("tool_calls", ()), strict=message.literal is None):
        function = written["function"]
        if function["arguments"] != call.arguments != json.dumps(function["arguments"], ensure_ascii=False):
            function["arguments_text"] = call.arguments
    return row
