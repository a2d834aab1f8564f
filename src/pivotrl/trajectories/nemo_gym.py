"""NeMo Gym pivot rows: Responses API items up to a turn, the expected action at it, and what others measured there."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final, NamedTuple

from pydantic import JsonValue

from pivotrl.errors import InputError
from pivotrl.storage import decode, decode_value
from pivotrl.trajectories import messages as m
from pivotrl.trajectories.items import read_items, read_request
from pivotrl.trajectories.messages import Object, dig, expect, name_of, place, read_call, reward
from pivotrl.types import Action, Message, Source, Tool, Trajectory

PREFIX: Final = "prefix_of_pivot_row"
LINEAGE: Final = "pivotrl"
"""The key of a row that `export` adds: where it comes from, and two JSON texts, `restore` (a `Restore`) and `measured`
(its profile, and the plan of that)."""
IMPORTED: Final = "imported"
ROLLOUTS: Final = f"{IMPORTED}.rollouts"
_MOST: Final = 10**5
_NAME: Final = re.compile(r"[^\W\d]\w*")
"""Keys that do for a part of a profile's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restore:
    """What the rest of a row cannot say."""

    lost: dict[str, dict[str, JsonValue]]
    """Fields of messages by index."""
    whole: bool
    """Whether these are all messages, with all fields."""
    tools: tuple[tuple[Tool, ...] | None, ...] = ()
    """One entry, or none where the row's tools are right."""


class Measured(NamedTuple):
    """What a row tells of somebody's rollouts at its action: their rewards, or of a row of ours the JSON text."""

    profile: str
    rewards: tuple[float | None, ...] = ()
    ours: str = ""
    where: str = ""
    """Of ours: file, line and field."""


class NemoGym:
    """Reads one pivot row as a trajectory that ends in the expected action; earlier turns are other rows' business."""

    name = "nemo_gym"

    def claims(self, record: JsonValue) -> bool:
        return isinstance(record, dict) and isinstance(record.get("responses_create_params"), dict) and is_pivot(record)

    def read(self, record: JsonValue, source: Source) -> Sequence[Trajectory]:
        """One trajectory. Raises InputError naming the field that is wrong."""
        where = place(source)
        row: Object = expect(record, dict, where)
        at = f"{where}: responses_create_params"
        params: Object = expect(row.get("responses_create_params"), dict, at)
        uid = name_of(row.get("trajectory_id")) or name_of(dig(row, "metadata", "source_trajectory_uid"))
        lineage: Object = expect(row.get(LINEAGE) or {}, dict, f"{where}: {LINEAGE}")
        domain = lineage.get("domain") or row.get("domain") or row.get("harness") or dig(row, "metadata", "harness")
        tools, tools_at = params.get("tools"), f"{at}.tools"
        if tools is None:
            tools, tools_at = row.get("declared_tools"), f"{where}: declared_tools"
        trajectory = Trajectory(
            id=name_of(lineage.get("trajectory")) or m.trajectory_id(source),
            messages=(*read_request(params, at, PREFIX), _expected(row, where)),
            source=source,
            tools=m.read_tools(tools, tools_at),
            task_id=name_of(lineage.get("task")) or (uid and f"trajectory_id:{uid}"),
            outcome=reward(lineage.get("outcome")),
            domain=domain if isinstance(domain, str) else None,
            syntax=name_of(lineage.get("syntax")),
        )
        return (_restored(lineage, trajectory, f"{where}: {LINEAGE}.restore"),)

    def measured(self, record: JsonValue, where: str = "") -> Sequence[Measured]:
        """The profiles that a pivot row brings: ours, pass rates, rewards under a name, and that of a rollout."""
        if not isinstance(record, dict) or not is_pivot(record):
            return ()
        found, ours = list[Measured](), dig(record, LINEAGE, "measured")
        passed, total, rate = (record.get(f"pass_rate{key}") for key in ("_passed", "_total", ""))
        if passed is None and isinstance(rate, int | float) and isinstance(total, int):
            passed = rate * total
        if ours is not None:
            found.append(Measured(IMPORTED, ours=str(ours), where=f"{where}: {LINEAGE}.measured"))
        elif isinstance(passed, int | float) and isinstance(total, int) and 0 <= passed <= total <= _MOST:
            found.append(Measured(IMPORTED, (1.0,) * round(passed) + (0.0,) * (total - round(passed))))
        for key, value in record.items():
            if isinstance(rewards := dig(value, "rewards"), list) and _NAME.fullmatch(key) and len(key.encode()) < 60:
                found.append(Measured(f"{IMPORTED}.{key}", tuple(map(reward, rewards))))
        if "reward" in record and isinstance(record.get("response"), dict):
            failed = record.get("mask_sample") or record.get("_ng_failure_class")
            found.append(Measured(ROLLOUTS, (None if failed else reward(record["reward"]),)))
        return found


def is_pivot(row: Object) -> bool:
    """Whether a row says which action is expected."""
    return row.get("expected_action") is not None or _is_terminus(row)


def _is_terminus(row: Object) -> bool:
    """An `expected_answer` is an action only when it is a harness object; elsewhere a grader compares with it."""
    answer = row.get("expected_answer")
    return isinstance(answer, str) and (answer.lstrip().startswith("{") or dig(row, "metadata", "harness") is not None)


def _expected(row: Object, where: str) -> Message:
    value, at = row.get("expected_action"), f"{where}: expected_action"
    if value is None:
        return Message(role="assistant", content=expect(row.get("expected_answer"), str, f"{where}: expected_answer"))
    action: Object = expect(m.unstring(value, at), dict, at)
    kind = action.get("type", "function_call")
    if kind == "message":
        content = m.read_content(action.get("content"), f"{at}.content")
        return Message(role="assistant", content=content.text, omitted=content.omitted)
    if kind == "function_call":
        return Message(role="assistant", tool_calls=(read_call(action, at),))
    if kind == "function_call_batch":
        calls = enumerate(expect(action.get("calls"), list, f"{at}.calls"))
        return Message(role="assistant", tool_calls=tuple(read_call(call, f"{at}.calls[{i}]") for i, call in calls))
    raise InputError(
        f"{at}.type: {kind!r} is not function_call, function_call_batch or message; fix or remove the record"
    )


def _restored(lineage: Object, read: Trajectory, where: str) -> Trajectory:
    """With messages and tools as they were before `export` wrote them."""
    if lineage.get("restore") is None:
        return read
    told = decode(str(lineage["restore"]).encode(), Restore, where)
    bases: list[Object] = [{} for _ in told.lost] if told.whole else [asdict(one) for one in read.messages]
    patched = [one | told.lost.get(str(at), {}) for at, one in enumerate(bases)]
    messages = decode_value(patched, tuple[Message, ...], f"{where}.lost")
    return replace(read, messages=messages, tools=told.tools[0] if told.tools else read.tools)


def read_response(response: JsonValue, where: str) -> Action:
    """What the model does in one response of the Responses API."""
    messages = list(read_items(dig(response, "output") or [], f"{where}.output"))
    made = next((one for one in messages if one.role == "assistant"), Message(role="assistant"))
    return Action(text=made.content, reasoning=made.reasoning, calls=made.tool_calls)
