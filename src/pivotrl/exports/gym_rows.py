"""One candidate as a row of NeMo Gym: Responses items up to the turn, the expected action, and what these leave out.

Gym has no word for unknown tools, arguments that are absent, results without an id, whether a tool failed, and drops
what is said beside a call: `restore` has it, and `ingest` gives back state, action and profile as they were.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import orjson

from pivotrl.exports.base import Item
from pivotrl.storage import dump_json
from pivotrl.trajectories.nemo_gym import LINEAGE, NemoGym
from pivotrl.types import Action, Message, Profile, Source, Tool, ToolCall
from pivotrl.verifiers.terminus import TerminusAction, read_terminus

AGENT: Final = "pivotrl_agent"
Row = dict[str, Any]


def row_of(item: Item, facts: Mapping[str, Any], *, parallel: bool) -> Row:
    """The row; `facts` are what all rows of an export share. Nothing is null but defaults in schemas of tools."""
    candidate, profile = item.candidate, item.profile
    trajectory = candidate.trajectory
    messages = trajectory.messages[: candidate.turn + 1]
    params = {
        "input": items_of(messages[:-1]),
        "tools": [_tool(tool) for tool in trajectory.tools or ()],
        "tool_choice": "auto",
        "parallel_tool_calls": parallel,
    }
    row: Row = {"responses_create_params": params, **_expected(candidate.demonstration)}
    lineage = {
        "candidate": candidate.id,
        "trajectory": trajectory.id,
        "turn": candidate.turn,
        "depth": item.row.depth,
        "split": item.row.split,
        "task": trajectory.task_id,
        "outcome": trajectory.outcome,
        "domain": trajectory.domain,
        "weight": item.weight,
        "restore": _restore(row, messages, trajectory.tools),
        **facts,
        "profile": profile,
    }
    if profile is None:
        lineage.pop("plan", None)
    row |= {"agent_ref": {"type": "responses_api_agents", "name": AGENT}, "trajectory_id": trajectory.id}
    return row | _rates(profile) | {LINEAGE: _without_null(_plain(lineage))}


def _plain(value: object) -> Any:
    return orjson.loads(dump_json(value))


def _without_null(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_null(one) for key, one in value.items() if one is not None}
    return [_without_null(one) for one in value] if isinstance(value, list) else value


def items_of(messages: Iterable[Message]) -> list[Row]:
    """Responses items of a history; calls without an id get one, and results are paired with calls as `ingest` does."""
    items: list[Row] = []
    waiting: list[tuple[str | None, str]] = []
    for at, message in enumerate(messages):
        if message.role == "tool":
            call_id = _answered(waiting, message.tool_call_id)
            items.append({"type": "function_call_output", "call_id": call_id, "output": message.content or ""})
        elif message.role == "assistant":
            ids = [call.id or f"call_{at}_{number}" for number, call in enumerate(message.tool_calls)]
            waiting = [(call.id, name) for call, name in zip(message.tool_calls, ids, strict=True)]
            items += _turn(message, at, ids)
        else:
            items.append({"type": "message", "role": message.role, "content": message.content or ""})
    return items


def _turn(message: Message, at: int, ids: Sequence[str]) -> list[Row]:
    items: list[Row] = []
    if message.reasoning is not None:
        summary = [{"type": "summary_text", "text": message.reasoning}]
        items.append({"type": "reasoning", "id": f"rs_{at}", "summary": summary})
    if message.content or not message.tool_calls:
        text = {"type": "output_text", "text": message.content or "", "annotations": list[str]()}
        head = {"type": "message", "id": f"msg_{at}", "role": "assistant", "status": "completed"}
        items.append({**head, "content": [text]})
    for call, name in zip(message.tool_calls, ids, strict=True):
        items.append({**_call(call), "call_id": name, "status": "completed"})
    return items


def _answered(waiting: list[tuple[str | None, str]], wanted: str | None) -> str:
    """The id of the call that a result answers, which waits no longer."""
    named = [pair for pair in waiting if wanted is not None and pair[0] == wanted]
    loose = [pair for pair in waiting if wanted is None or pair[0] is None]
    if not named and not loose:
        return wanted or "call_unknown"
    pair = named[-1] if named else loose[0]
    waiting.remove(pair)
    return pair[1]


def _call(call: ToolCall) -> Row:
    return {"type": "function_call", "name": call.name, "arguments": call.arguments or ""}


def _tool(tool: Tool) -> Row:
    parameters = {"type": "object", "properties": {}} if tool.parameters is None else tool.parameters
    described = {"description": tool.description} if tool.description else {}
    return {"type": "function", "name": tool.name, **described, "parameters": parameters, "strict": False}


def terminus_of(action: Action) -> tuple[str, str] | None:
    """(harness, the JSON text alone) of an action of Terminus."""
    text = action.text or ""
    found = None if action.calls else read_terminus(text)
    if not isinstance(found, TerminusAction):
        return None
    text = text.rpartition("</think>")[2]
    return found.harness, text[text.find("{") : text.rfind("}") + 1]


def _expected(action: Action) -> Row:
    terminus = terminus_of(action)
    if terminus is not None:
        return {"expected_answer": terminus[1], "metadata": {"harness": terminus[0]}}
    if not action.calls:
        return {"expected_action": {"type": "message", "content": action.text or ""}}
    calls = [_call(call) | ({} if call.id is None else {"call_id": call.id}) for call in action.calls]
    batch = {"type": "function_call_batch", "calls": calls}
    return {"expected_action": calls[0] if len(calls) == 1 else batch}


def _restore(row: Row, messages: Sequence[Message], tools: tuple[Tool, ...] | None) -> str | None:
    """What reading the row alone would not give, as JSON text."""
    (seen,) = NemoGym().read(row, Source(file="row", format=NemoGym.name))
    wanted, read = ([_plain(one) | {"excluded": None} for one in some] for some in (messages, seen.messages))
    found: Row = {}
    if len(read) != len(wanted):
        found["messages"] = wanted
    else:
        lost = {
            str(at): {key: one[key] for key in one if key != "excluded" and one[key] != other[key]}
            for at, (one, other) in enumerate(zip(wanted, read, strict=True))
        }
        found |= {"lost": lost} if (lost := {at: fields for at, fields in lost.items() if fields}) else {}
    if seen.tools != tools:
        found["tools"] = tools
    return dump_json(found).decode() if found else None


def _rates(profile: Profile | None) -> Row:
    """The pass rate, and the passes where every reward was 0 or 1."""
    if profile is None or profile.mean is None or profile.variance is None:
        return {}
    rates: Row = {"pass_rate": profile.mean, "pass_rate_total": profile.n}
    passed = round(profile.mean * profile.n)
    binary = abs(profile.variance - profile.mean * (1 - profile.mean)) < 1e-9
    return rates | ({"pass_rate_passed": passed} if binary else {})
