"""tau-bench and tau2-bench: native results, single simulations, AgentSuite dumps and NeMo Gym rollouts of tau2.

What the agent's model saw is kept: the tool calls of the user simulator and their results are dropped. Tool results
without an id (AgentSuite) stay without one; they answer the open calls in order.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Final

from pydantic import JsonValue

from pivotrl.trajectories.messages import (
    Object,
    as_list,
    as_object,
    dig,
    name_of,
    place,
    read_content,
    read_message,
    read_tools,
    reward,
    trajectory_id,
)
from pivotrl.types import Message, Source, Tool, Trajectory

GREETING: Final = "scripted_greeting"
_POLICY_TITLE: Final = re.compile(r"\s*#\s*(\w+) agent policy", re.IGNORECASE)
_REASONING: Final = (("message", "reasoning_content"), ("choices", 0, "message", "reasoning_content"))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Episode:
    """One simulation, whatever file layout it came from."""

    key: str
    messages: JsonValue
    task: JsonValue
    outcome: JsonValue
    domain: JsonValue = None
    policy: JsonValue = None
    tools: JsonValue = None


class TauBench:
    """Reads results of tau-bench and tau2-bench."""

    name = "tau_bench"

    def claims(self, record: JsonValue) -> bool:
        if not isinstance(record, dict):
            return False
        if "simulations" in record or ("traj" in record and "task_id" in record):
            return True
        if dig(record, "result", "messages") is not None and "responses_create_params" in record:
            return True
        marks = {"benchmark_name", "eval_result"}, {"task_id", "reward_info"}
        return "messages" in record and any(mark <= record.keys() for mark in marks)

    def read(self, record: JsonValue, source: Source) -> Sequence[Trajectory]:
        """The trajectories of a record. Raises InputError naming the field that is wrong."""
        where = place(source)
        row = as_object(record, where)
        if "simulations" not in row:
            return (_trajectory(_episode(row, where), where, source),)
        simulations = as_list(row["simulations"], f"{where}: simulations")
        environment = as_object(dig(row, "info", "environment_info") or {}, f"{where}: info.environment_info")
        return tuple(
            _trajectory(_simulation(item, environment, f"simulations[{i}]", where), where, replace(source, index=i))
            for i, item in enumerate(simulations)
        )


def _simulation(value: JsonValue, environment: Object, key: str, where: str) -> _Episode:
    row = as_object(value, f"{where}: {key}")
    return _Episode(
        key=f"{key}.messages",
        messages=row.get("messages"),
        task=row.get("task_id"),
        outcome=dig(row, "reward_info", "reward"),
        domain=environment.get("domain_name"),
        policy=row.get("policy") or environment.get("policy"),
        tools=environment.get("tool_defs"),
    )


def _episode(row: Object, where: str) -> _Episode:
    if "traj" in row:
        return _Episode(key="traj", messages=row["traj"], task=row["task_id"], outcome=row.get("reward"))
    if "eval_result" in row:
        task = dig(row, "meta", "task_id") or dig(row, "meta", "id")
        score = dig(row, "eval_result", "score")
        return _Episode(key="messages", messages=row["messages"], task=task, outcome=score, domain=row.get("task_name"))
    if "result" not in row:
        return _simulation(row, {}, "simulation", where)
    params = row["responses_create_params"]
    prompt = dig(params, "input", 0) if dig(params, "input", 0, "role") == "system" else None
    policy = read_content(dig(prompt, "content"), f"{where}: responses_create_params.input[0].content").text
    episode = _simulation(row["result"], {}, "result", where)
    domain, tools = dig(row, "config", "domain"), dig(params, "tools")
    return replace(episode, domain=domain, tools=tools, policy=policy or episode.policy)


def _trajectory(episode: _Episode, where: str, source: Source) -> Trajectory:
    messages = _agent_view(episode, f"{where}: {episode.key}")
    policy = next((message.content for message in messages if message.role == "system"), None) or ""
    title = _POLICY_TITLE.match(policy)
    domain = name_of(episode.domain) or (title.group(1).lower() if title else None)
    task = name_of(episode.task)
    tools: tuple[Tool, ...] | None = read_tools(episode.tools, f"{where}: tools")
    stem = Path(source.file.removesuffix(".gz")).stem
    return Trajectory(
        id=trajectory_id(source),
        messages=messages,
        source=source,
        tools=tools,
        task_id=None if task is None else f"{domain or stem}/{task}",
        outcome=reward(episode.outcome),
        domain=domain,
    )


def _agent_view(episode: _Episode, where: str) -> tuple[Message, ...]:
    items = _flat(as_list(episode.messages, where), where)
    no_tool_role = all(item.get("role") != "tool" for item, _ in items)
    messages: list[Message] = []
    by_user = False
    for item, at in items:
        role = item.get("role")
        if role == "user" and item.get("tool_calls"):
            by_user = True
            continue
        if role == "tool" and (item.get("requestor") == "user" or (item.get("requestor") is None and by_user)):
            continue
        by_user = by_user and role == "tool"
        messages.append(_message(item, at, answered=not (no_tool_role and _awaits_results(messages))))
    if isinstance(episode.policy, str) and all(message.role != "system" for message in messages):
        messages.insert(0, Message(role="system", content=episode.policy))
    return _mark_greeting(messages)


def _flat(values: list[JsonValue], where: str) -> list[tuple[Object, str]]:
    """Every message with its place; the results of parallel calls may come as one `tool_messages` list."""
    items = [(as_object(value, f"{where}[{i}]"), f"{where}[{i}]") for i, value in enumerate(values)]
    nested = (
        [(as_object(part, at), at) for part in as_list(item["tool_messages"], at)]
        if "tool_messages" in item
        else [(item, at)]
        for item, at in items
    )
    return list(chain.from_iterable(nested))


def _awaits_results(messages: list[Message]) -> bool:
    for results, message in enumerate(reversed(messages)):
        if message.role != "tool":
            return len(message.tool_calls) > results
    return False


def _message(item: Object, where: str, *, answered: bool) -> Message:
    """One message. Some dumps know no tool role: there the user message that follows an open call is its result."""
    role = item.get("role")
    if role == "tool" and item.get("tool_call_id") is None:
        item = {**item, "tool_call_id": item.get("id")}
    elif role == "user" and not answered:
        item = {**item, "role": "tool"}
    message = read_message(item, where)
    if message.role != "assistant" or message.reasoning is not None:
        return message
    thoughts = (dig(item, "raw_data", *keys) for keys in _REASONING)
    return replace(message, reasoning=next((text for text in thoughts if isinstance(text, str) and text), None))


def _mark_greeting(messages: list[Message]) -> tuple[Message, ...]:
    """An assistant message before any word of the user is the harness's, not the model's."""
    for index, message in enumerate(messages):
        if message.role == "user":
            break
        if message.role == "assistant":
            messages[index] = replace(message, excluded=GREETING)
            break
    return tuple(messages)
