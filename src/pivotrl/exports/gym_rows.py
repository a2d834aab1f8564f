"""One candidate as a row of NeMo Gym: Responses items up to the turn, the expected action, and what these leave out.

Gym has no word for unknown tools, arguments that are absent, results without an id, whether a tool failed, and drops
what is said beside a call: `restore` has it, and `ingest` gives back state, action and profile as they were.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import orjson

from pivotrl.exports.base import Item, Row
from pivotrl.storage import dump_json
from pivotrl.trajectories.nemo_gym import LINEAGE, PREFIX, NemoGym, Restore
from pivotrl.types import Action, Message, Profile, Source, Tool, ToolCall
from pivotrl.verifiers.terminus import TerminusAction, read_terminus

AGENT: Final = "pivotrl_agent"


def row_of(item: Item, facts: Mapping[str, Any], *, parallel: bool) -> Row:
    """The row; `facts` are of the whole export. Nothing is null but defaults in schemas of tools."""
    candidate, trajectory = item.candidate, item.candidate.trajectory
    messages, tools = trajectory.messages[: candidate.turn + 1], candidate.state.told_tools or ()
    params = {
        "input": response_items(messages[:-1]),
        "tools": [_tool(tool) for tool in tools],
        "parallel_tool_calls": parallel,
    }
    if tools:  # without tools Gym 0.4 would hand it to vLLM, which then answers HTTP 400
        params["tool_choice"] = "auto"
    row: Row = {"responses_create_params": params, **_expected(candidate.demonstration)}
    profiled = item.profile and dump_json({"profile": item.profile, "plan": facts["plan"]}).decode()
    lineage = {
        "candidate": candidate.id, "trajectory": trajectory.id, "turn": candidate.turn, "depth": item.row.depth,
        "split": item.row.split, "weight": item.weight, "task": trajectory.task_id, "outcome": trajectory.outcome,
        "domain": trajectory.domain, "syntax": trajectory.syntax,
        "verifier": facts["verifier"], "profile": profiled and facts["profile_name"],
        "measured": profiled, "restore": _restore(row, messages, trajectory.tools),
    }  # fmt: skip
    row |= {"agent_ref": {"type": "responses_api_agents", "name": AGENT}, "trajectory_id": trajectory.id}
    return row | _rates(item.profile) | {LINEAGE: {key: one for key, one in lineage.items() if one is not None}}


def response_items(messages: Iterable[Message]) -> list[Row]:
    """Responses items of a history; calls without an id get one, which the results that follow them take."""
    items: list[Row] = []
    waiting: list[tuple[str | None, str]] = []
    for at, message in enumerate(messages):
        if message.role == "tool":
            named = [pair for pair in waiting if pair[0] is not None and pair[0] == message.tool_call_id]
            pair = next(reversed(named), waiting[0] if waiting else (None, message.tool_call_id or "call_unknown"))
            waiting = [other for other in waiting if other is not pair]
            items.append({"type": "function_call_output", "call_id": pair[1], "output": message.content or ""})
        elif message.role == "assistant":
            calls = message.tool_calls if message.literal is None else ()
            waiting = [(call.id, call.id or f"call_{at}_{n}") for n, call in enumerate(calls)]
            items += _turn(message, at, [name for _, name in waiting])
        else:
            items.append({"type": "message", "role": message.role, "content": message.content or ""})
    return items


def _turn(message: Message, at: int, ids: Sequence[str]) -> list[Row]:
    if message.literal is not None:
        message = Message(role="assistant", content=message.literal)
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


def _call(call: ToolCall) -> Row:
    return {"type": "function_call", "name": call.name, "arguments": call.arguments or ""}


def _tool(tool: Tool) -> Row:
    parameters = {"type": "object", "properties": {}} if tool.parameters is None else tool.parameters
    described = {"description": tool.description} if tool.description else {}
    return {"type": "function", "name": tool.name, **described, "parameters": parameters, "strict": False}


def terminus_of(action: Action) -> tuple[str, str] | None:
    """(harness, the JSON text alone) of an action of Terminus."""
    text = (action.text or "").rpartition("</think>")[2]
    found = None if action.calls else read_terminus(text)
    return (found.harness, text[text.find("{") : text.rfind("}") + 1]) if isinstance(found, TerminusAction) else None


def _expected(action: Action) -> Row:
    terminus = terminus_of(action)
    if terminus is not None:
        return {"expected_answer": terminus[1], "metadata": {"harness": terminus[0]}}
    if not action.calls:
        return {"expected_action": {"type": "message", "content": action.text or ""}}
    calls = [_call(call) | ({} if call.id is None else {"call_id": call.id}) for call in action.calls]
    return {"expected_action": calls[0] if len(calls) == 1 else {"type": "function_call_batch", "calls": calls}}


def _restore(row: Row, messages: Sequence[Message], tools: tuple[Tool, ...] | None) -> str | None:
    """What reading the row alone would not give, as JSON text: fields of messages by index, and tools."""
    (seen,) = NemoGym().read(row, Source(file="row", format=NemoGym.name))
    wanted, read = (orjson.loads(dump_json(some)) for some in (messages, seen.messages))
    for one in wanted:
        one["excluded"] = PREFIX if one["role"] == "assistant" and one is not wanted[-1] else None
    whole = len(read) != len(wanted)
    lost = {
        str(at): {key: value for key, value in one.items() if whole or value != read[at][key]}
        for at, one in enumerate(wanted)
    }
    lost, other = {at: fields for at, fields in lost.items() if fields}, () if seen.tools == tools else (tools,)
    return dump_json(Restore(lost=lost, whole=whole, tools=other)).decode() if lost or other else None


def _rates(profile: Profile | None) -> Row:
    """The pass rate, and the passes where every reward was 0 or 1."""
    if profile is None or profile.mean is None or profile.variance is None:
        return {}
    rates: Row = {"pass_rate": profile.mean, "pass_rate_total": profile.n}
    binary = abs(profile.variance - profile.mean * (1 - profile.mean)) < 1e-9
    return rates | ({"pass_rate_passed": round(profile.mean * profile.n)} if binary else {})
