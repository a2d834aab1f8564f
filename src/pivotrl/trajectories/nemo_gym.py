"""NeMo Gym rows: Responses API items up to a turn, and the expected action at it; or what a whole agent then did."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Final, NamedTuple

from pydantic import JsonValue

from pivotrl.errors import InputError
from pivotrl.protocols import Record
from pivotrl.storage import decode, dump_json
from pivotrl.trajectories.messages import (
    Object,
    dig,
    expect,
    name_of,
    place,
    read_call,
    read_content,
    read_message,
    read_tools,
    reward,
    trajectory_id,
    unstring,
)
from pivotrl.types import Action, Message, Source, Tool, ToolCall, Trajectory

PREFIX: Final = "prefix_of_pivot_row"
LINEAGE: Final = "pivotrl"
"""The key of a row that `export` adds: where it comes from, and two JSON texts, `restore` (a `Restore`) and `measured`
(its profile, and the plan of that)."""
IMPORTED: Final = "imported"
ROLLOUTS: Final = f"{IMPORTED}.rollouts"
_OUTPUT: Final = "function_call_output"
_MOST: Final = 10**5
_Item = tuple[str, Object, str]
"""Kind, item, place."""


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


class NemoGym:
    """Reads one pivot row as a trajectory that ends in the expected action; earlier turns are other rows' business.

    A rollout without an expected action is a trajectory of all turns of its response.
    """

    name = "nemo_gym"

    def claims(self, record: JsonValue) -> bool:
        if not isinstance(record, dict) or not isinstance(record.get("responses_create_params"), dict):
            return False
        return is_pivot(record) or isinstance(dig(record, "response", "output"), list)

    def read(self, record: JsonValue, source: Source) -> Sequence[Trajectory]:
        """One trajectory. Raises InputError naming the field that is wrong."""
        where = place(source)
        row: Object = expect(record, dict, where)
        at = f"{where}: responses_create_params"
        params: Object = expect(row.get("responses_create_params"), dict, at)
        lineage: Object = expect(row.get(LINEAGE) or {}, dict, f"{where}: {LINEAGE}")
        domain = lineage.get("domain") or row.get("domain") or row.get("harness") or dig(row, "metadata", "harness")
        told = params.get("tools")
        tools, tools_at = (
            (row.get("declared_tools"), f"{where}: declared_tools") if told is None else (told, f"{at}.tools")
        )
        pivot = is_pivot(row)
        trajectory = Trajectory(
            id=name_of(lineage.get("trajectory")) or trajectory_id(source),
            messages=(*_read_prefix(params, at), *((_expected(row, where),) if pivot else _played(row, where))),
            source=source,
            tools=read_tools(tools, tools_at),
            task_id=name_of(lineage.get("task")) or _task(row, source),
            outcome=reward(lineage.get("outcome") if pivot or row.get("mask_sample") else row.get("reward")),
            domain=domain if isinstance(domain, str) else None,
        )
        return (_restored(lineage, trajectory, f"{where}: {LINEAGE}.restore"),)

    def measured(self, record: JsonValue) -> Sequence[Measured]:
        """The profiles that a pivot row brings: ours, pass rates, rewards under a name, and that of a rollout."""
        if not isinstance(record, dict) or not is_pivot(record):
            return ()
        found, ours = list[Measured](), dig(record, LINEAGE, "measured")
        passed, total, rate = (record.get(f"pass_rate{key}") for key in ("_passed", "_total", ""))
        if passed is None and isinstance(rate, int | float) and isinstance(total, int):
            passed = rate * total
        if isinstance(ours, str):
            found.append(Measured(IMPORTED, ours=ours))
        elif isinstance(passed, int | float) and isinstance(total, int) and 0 <= passed <= total <= _MOST:
            found.append(Measured(IMPORTED, (1.0,) * round(passed) + (0.0,) * (total - round(passed))))
        for key, value in record.items():
            if isinstance(rewards := dig(value, "rewards"), list) and key.isidentifier() and len(key) < 60:
                found.append(Measured(f"{IMPORTED}.{key}", tuple(map(reward, rewards))))
        if "reward" in record and isinstance(record.get("response"), dict):
            failed = record.get("mask_sample") or record.get("_ng_failure_class")
            found.append(Measured(ROLLOUTS, (None if failed else reward(record["reward"]),)))
        return found


def is_pivot(row: Object) -> bool:
    """Whether a row says which action is expected."""
    return row.get("expected_action") is not None or _is_terminus(row)


def join_rollouts(values: Iterable[Record], inputs: Iterable[Record]) -> Iterator[Record]:
    """The rollouts of a file with what `inputs`, their rows, have besides: a server's answer may leave it out."""
    rows: dict[int, Object] = {}
    for _, row in inputs:
        if isinstance(row, dict) and isinstance(index := row.get("_ng_task_index"), int):
            rows.setdefault(index, {key: row[key] for key in row if key != "responses_create_params"})
    for line, value in values:
        index = dig(value, "_ng_task_index")
        yield line, {**rows.get(index, {}), **value} if isinstance(value, dict) and isinstance(index, int) else value


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


def _task(row: Object, source: Source) -> str | None:
    uid = name_of(row.get("trajectory_id")) or name_of(dig(row, "metadata", "source_trajectory_uid"))
    if uid is not None:
        return f"trajectory_id:{uid}"
    instance, index = name_of(row.get("instance_id")), None if is_pivot(row) else name_of(row.get("_ng_task_index"))
    return instance or (None if index is None else f"{Path(source.file).stem}:{index}")


def _restored(lineage: Object, read: Trajectory, where: str) -> Trajectory:
    """With messages and tools as they were before `export` wrote them."""
    if lineage.get("restore") is None:
        return read
    told = decode(str(lineage["restore"]).encode(), Restore, where)
    bases: list[Object] = [{} for _ in told.lost] if told.whole else [asdict(one) for one in read.messages]
    patched = dump_json([one | told.lost.get(str(at), {}) for at, one in enumerate(bases)])
    messages = decode(patched, tuple[Message, ...], f"{where}.lost")
    return replace(read, messages=messages, tools=told.tools[0] if told.tools else read.tools)


def _played(row: Object, where: str) -> Iterator[Message]:
    """The turns of a response; the last one is no demonstration where it was cut off."""
    messages = list(_read_items(dig(row, "response", "output"), f"{where}: response.output", None))
    if dig(row, "response", "incomplete_details") and messages and messages[-1].role == "assistant":
        messages[-1] = replace(messages[-1], excluded="truncated")
    yield from messages


def read_response(response: JsonValue, where: str) -> Action:
    """What the model does in one response of the Responses API."""
    messages = list(_read_items(dig(response, "output") or [], f"{where}.output", None))
    made = next((one for one in messages if one.role == "assistant"), Message(role="assistant"))
    return Action(text=made.content, reasoning=made.reasoning, calls=made.tool_calls)


def _read_prefix(params: Object, where: str) -> Iterator[Message]:
    """The messages that `instructions` and `input` stand for; neighbouring items of the model are one call of it."""
    instructions, value = params.get("instructions"), params.get("input")
    if instructions is not None:
        yield Message(role="system", content=expect(instructions, str, f"{where}.instructions"))
    if isinstance(value, str):
        yield Message(role="user", content=value)
        return
    yield from _read_items(value, f"{where}.input", PREFIX)


def _read_items(value: JsonValue, where: str, excluded: str | None) -> Iterator[Message]:
    entries = enumerate(expect(value, list, where, "text or a list of items"))
    items = (_item(entry, f"{where}[{index}]") for index, entry in entries)
    for is_model, run in groupby(items, key=_is_model):
        if is_model:
            yield _model_call(run, excluded)
        else:
            yield from (_output(item, at) if kind == _OUTPUT else read_message(item, at) for kind, item, at in run)


def _item(entry: JsonValue, where: str) -> _Item:
    item: Object = expect(entry, dict, where)
    return expect(item.get("type") or "message", str, f"{where}.type"), item, where


def _is_model(item: _Item) -> bool:
    kind, content, _ = item
    return kind != _OUTPUT and (kind != "message" or content.get("role") == "assistant")


def _model_call(items: Iterable[_Item], excluded: str | None) -> Message:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    omitted: list[str] = []
    for kind, item, at in items:
        if kind == "function_call":
            calls.append(read_call(item, at))
        elif kind == "reasoning":
            for key in ("content", "summary"):
                content = read_content(item.get(key), f"{at}.{key}")
                thoughts.extend(text for text in content[:2] if text and not thoughts)
        elif kind == "message":
            content = read_content(item.get("content"), f"{at}.content")
            texts.extend(() if content.text is None else (content.text,))
            omitted.extend(content.omitted)
        else:
            omitted.append(kind)
    return Message(
        role="assistant",
        content="\n".join(texts) if texts else None,
        reasoning="\n".join(thoughts) or None,
        tool_calls=tuple(calls),
        omitted=tuple(omitted),
        excluded=excluded,
    )


def _output(item: Object, where: str) -> Message:
    content, call_id = read_content(item.get("output"), f"{where}.output"), name_of(item.get("call_id"))
    return Message(role="tool", content=content.text, omitted=content.omitted, tool_call_id=call_id)
