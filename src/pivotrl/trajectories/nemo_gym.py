"""NeMo Gym pivot rows: Responses API items up to a turn, and the expected action at it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pydantic import JsonValue

from pivotrl.errors import InputError
from pivotrl.trajectories.items import read_request
from pivotrl.trajectories.messages import (
    Object,
    dig,
    expect,
    name_of,
    place,
    read_call,
    read_content,
    read_tools,
    trajectory_id,
    unstring,
)
from pivotrl.types import Message, Source, Trajectory

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
        row: Object = expect(record, dict, where)
        at = f"{where}: responses_create_params"
        params: Object = expect(row.get("responses_create_params"), dict, at)
        uid = name_of(row.get("trajectory_id")) or name_of(dig(row, "metadata", "source_trajectory_uid"))
        domain = row.get("domain") or row.get("harness") or dig(row, "metadata", "harness")
        told = params.get("tools")
        tools, tools_at = (
            (row.get("declared_tools"), f"{where}: declared_tools") if told is None else (told, f"{at}.tools")
        )
        return (
            Trajectory(
                id=trajectory_id(source),
                messages=(*read_request(params, at, PREFIX), _expected(row, where)),
                source=source,
                tools=read_tools(tools, tools_at),
                task_id=None if uid is None else f"trajectory_id:{uid}",
                domain=domain if isinstance(domain, str) else None,
            ),
        )


def _is_terminus(row: Object) -> bool:
    """An `expected_answer` is an action only when it is a harness object; elsewhere a grader compares with it."""
    answer = row.get("expected_answer")
    return isinstance(answer, str) and (answer.lstrip().startswith("{") or dig(row, "metadata", "harness") is not None)


def _expected(row: Object, where: str) -> Message:
    value, at = row.get("expected_action"), f"{where}: expected_action"
    if value is None:
        return Message(role="assistant", content=expect(row.get("expected_answer"), str, f"{where}: expected_answer"))
    action: Object = expect(unstring(value, at), dict, at)
    kind = action.get("type", "function_call")
    if kind == "message":
        content = read_content(action.get("content"), f"{at}.content")
        return Message(role="assistant", content=content.text, omitted=content.omitted)
    if kind == "function_call":
        return Message(role="assistant", tool_calls=(read_call(action, at),))
    if kind == "function_call_batch":
        calls = enumerate(expect(action.get("calls"), list, f"{at}.calls"))
        return Message(role="assistant", tool_calls=tuple(read_call(call, f"{at}.calls[{i}]") for i, call in calls))
    raise InputError(
        f"{at}.type: {kind!r} is not function_call, function_call_batch or message; fix or remove the record"
    )
