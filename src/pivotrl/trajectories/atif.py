"""ATIF, Harbor's trajectories (v1.0 to v1.8): steps with calls and what was observed after them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from pydantic import JsonValue

from pivotrl.trajectories import messages as chat
from pivotrl.trajectories.messages import COPIED, Object, dig, expect, name_of, read_message
from pivotrl.types import Message, Source, Trajectory

_CALL: Final = {"id": "tool_call_id", "name": "function_name", "arguments": "arguments"}
_PART: Final = re.compile(r"-(cont|summarization)-\d+.*$")
"""What Harbor adds to a session's id where a rewritten history goes on in another file."""


class Atif:
    """Reads a trajectory and those of sub-agents in it; files of one session share a task."""

    name = "atif"

    def claims(self, record: JsonValue) -> bool:
        is_atif = str(dig(record, "schema_version")).startswith("ATIF") or dig(record, "steps", 0, "source") is not None
        return is_atif and isinstance(dig(record, "steps"), list)

    def read(self, record: JsonValue, source: Source) -> Sequence[Trajectory]:
        """The trajectory, then those of its sub-agents. Raises InputError naming the field that is wrong."""
        session, rows, found = name_of(dig(record, "session_id")), [record], list[Trajectory]()
        trial = dig(record, "harbor_result")
        task = name_of(dig(trial, "task_name")) or (session and _PART.sub("", session))
        name = name_of(dig(record, "trajectory_id")) or session or chat.trajectory_id(source)
        for index, row in enumerate(rows):
            at = chat.place(source) + (f": sub-agent {index}" if index else "")
            rows += expect(dig(row, "subagent_trajectories") or [], list, f"{at}: subagent_trajectories")
            steps = enumerate(expect(dig(row, "steps"), list, f"{at}: steps"))
            found.append(
                Trajectory(
                    id=f"{name}:{index}" if index else name,
                    messages=tuple(m for i, step in steps for m in _messages(step, f"{at}: steps[{i}]")),
                    source=source,
                    tools=chat.read_tools(dig(row, "agent", "tool_definitions"), f"{at}: agent.tool_definitions"),
                    task_id=task,
                    outcome=None if index else chat.reward(dig(trial, "verifier_result", "rewards", "reward")),
                    parent_id=name if index else None,
                    domain=name_of(dig(row, "agent", "name")),
                )
            )
        return found


def _messages(value: JsonValue, where: str) -> Iterator[Message]:
    """What a step adds: its message, and what was observed; without a call that is the environment's word.

    Results without ids answer the last calls: a terminal shows what all keystrokes did after the last ones.
    """
    step: Object = expect(value, dict, where)
    calls: list[JsonValue] = expect(step.get("tool_calls") or [], list, f"{where}.tool_calls")
    named = [{key: dig(call, field) for key, field in _CALL.items()} for call in calls]
    role = step["source"] if step.get("source") in ("system", "user") else "assistant"
    message = read_message(Object(step, role=role, content=step.get("message"), tool_calls=named), where)
    count = step["llm_call_count"] if isinstance(step.get("llm_call_count"), int) else 1
    reason = "no_model_call" if count < 1 else "several_model_calls" if count > 1 else None
    reason = COPIED if step.get("is_copied_context") is True else reason
    yield replace(message, excluded=reason) if role == "assistant" else message
    at = f"{where}.observation.results"
    results: list[JsonValue] = expect(dig(step, "observation", "results") or [], list, at)
    ids = [dig(result, "source_call_id") for result in results]
    if 0 < len(results) <= len(calls) and not any(ids):
        ids = [call["id"] for call in named]
    for name, result in zip(ids, [None] * (len(ids) - len(results)) + results, strict=True):
        role = "tool" if calls else "user"
        yield read_message(Object(role=role, content=dig(result, "content") or "", tool_call_id=name), at)
