"""Reads the log of a house: one JSON object per line, `{"app": "homelog/1", "wish": ..., "steps": [...], "ok": true}`.

A step is a call `{"do": NAME, "with": {...}, "got": TEXT}` or a message `{"say": TEXT}`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from pivotrl import InputError, Message, Source, ToolCall, Trajectory
from pivotrl_example.house import SYSTEM, TOOLS


class HomeLog:
    """Satisfies `pivotrl.TrajectoryReader`."""

    name = "homelog"

    def claims(self, record: Any) -> bool:
        return isinstance(record, dict) and str(record.get("app")).startswith("homelog/")

    def read(self, record: Any, source: Source) -> Sequence[Trajectory]:
        where = f"{source.file}:{source.line}"
        if not isinstance(record.get("steps"), list):
            raise InputError(f"{where}: steps: a list is needed")
        messages = [Message(role="system", content=SYSTEM), Message(role="user", content=record["wish"])]
        for number, step in enumerate(record["steps"]):
            messages += _messages(step, f"{where}: steps.{number}")
        return [
            Trajectory(
                id=f"{source.file}:{source.line}",
                task_id=record["wish"],
                messages=tuple(messages),
                tools=TOOLS,
                outcome=1.0 if record.get("ok") else 0.0,
                source=source,
            )
        ]


def _messages(step: Any, where: str) -> Iterator[Message]:
    if "say" in step:
        yield Message(role="assistant", content=step["say"])
        return
    if "do" not in step:
        raise InputError(f"{where}: neither do nor say")
    yield Message(role="assistant", tool_calls=(ToolCall(name=step["do"], arguments=json.dumps(step["with"])),))
    yield Message(role="tool", content=step["got"])
