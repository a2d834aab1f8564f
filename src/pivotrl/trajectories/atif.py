"""ATIF, Harbor's trajectories (v1.0 to v1.8): steps with calls and what was observed after them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from pydantic import JsonValue

from pivotrl.trajectories.messages import (COPIED, Object, dig, expect, name_of, place, read_call, read_content, read_tools, trajectory_id)
from pivotrl.types import Message, Source, ToolCall, Trajectory

_PART: Final = re.compile(r"-(cont|summarization)-\d+.*$")
"""What Harbor adds to a session's id where a rewritten history goes on in another file."""


class Atif:
    """Reads a trajectory and those of sub-agents in it; files of one session share a task."""

    name = "atif"

    def claims(self, record: JsonValue) -> bool:
        return isinstance(dig(record, "steps"), list) and (
            str(dig(record, "schema_version")).startswith("ATIF")
            or (dig(record, "agent") is not None and dig(record, "steps", 0, "source") is not None)
        )

    def read(self, record: JsonValue, source: Source) -> Sequence[Trajectory]:
        """The trajectory, then those of its sub-agents. Raises InputError naming the field that is wrong."""
        found: list[Trajectory] = []
        rows: list[tuple[JsonValue, str]] = [(record, place(source))]
        for value, where in rows:
            row: Object = expect(value, dict, where)
            session, own = name_of(row.get("session_id")), name_of(row.get("trajectory_id"))
            name = (own or session or trajectory_id(source)) if not found else f"{found[0].id}:{own or len(found)}"
            steps = enumerate(expect(row.get("steps"), list, f"{where}: steps"))
            found.append(
                Trajectory(
                    id=name,
                    messages=tuple(m for i, step in steps for m in _messages(step, f"{where}: steps[{i}]")),
                    source=source,
                    tools=read_tools(dig(row, "agent", "tool_definitions"), f"{where}: agent.tool_definitions"),
                    task_id=found[0].task_id if found else session and _PART.sub("", session),
                    parent_id=found[0].id if found else None,
                )
            )
            inner = enumerate(expect(row.get("subagent_trajectories") or [], list, f"{where}: subagent_trajectories"))
            rows += [(item, f"{where}: subagent_trajectories[{i}]") for i, item in inner]
        return found


def _messages(value: JsonValue, where: str) -> Iterator[Message]:
    """What a step adds: its message, and what was observed; without a call that is the environment's word.

    Results without ids answer the last calls: a terminal shows what all keystrokes did after the last ones.
    """
    step: Object = expect(value, dict, where)
    content = read_content(step.get("message"), f"{where}.message")
    given = enumerate(expect(step.get("tool_calls") or [], list, f"{where}.tool_calls"))
    calls = tuple(_call(call, f"{where}.tool_calls[{i}]") for i, call in given)
    message = Message(role="user", content=content.text, omitted=content.omitted)
    if step.get("source") in ("system", "user"):
        yield replace(message, role="system" if step["source"] == "system" else "user")
    else:
        thought = step.get("reasoning_content")
        reasoning = thought if isinstance(thought, str) and thought else content.thought
        yield replace(message, role="assistant", reasoning=reasoning, tool_calls=calls, excluded=_reason(step))
    at = f"{where}.observation.results"
    results = expect(dig(step, "observation", "results") or [], list, at)
    ids = [name_of(dig(result, "source_call_id")) for result in results]
    if results and len(calls) >= len(results) and not any(ids):
        yield from (Message(role="tool", content="", tool_call_id=call.id) for call in calls[: -len(results)])
        ids = [call.id for call in calls[-len(results) :]]
    for name, result in zip(ids, results, strict=True):
        seen = read_content(dig(result, "content"), at)
        yield Message(role="tool" if calls else "user", content=seen.text, omitted=seen.omitted, tool_call_id=name)


def _call(value: JsonValue, where: str) -> ToolCall:
    call: Object = expect(value, dict, where)
    return read_call({**call, "name": call.get("function_name"), "id": call.get("tool_call_id")}, where)


def _reason(step: Object) -> str | None:
    """Why a step is no decision of the model."""
    if step.get("is_copied_context") is True:
        return COPIED
    count = step.get("llm_call_count")
    return None if count in (None, 1) else "several_model_calls" if count else "no_model_call"
