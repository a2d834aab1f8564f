"""tau-bench and tau2-bench: native results, single simulations, AgentSuite dumps and NeMo Gym rollouts of tau2.

What the agent's model saw is kept: the tool calls of the user simulator and their results are dropped. Tool results
without an id (AgentSuite) stay without one; they answer the open calls in order.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pydantic import JsonValue

from pivotrl.trajectories import messages as m
from pivotrl.trajectories.messages import Object, dig, expect, name_of, place, read_message
from pivotrl.types import Message, Source, Trajectory

GREETING: Final = "scripted_greeting"
_MARKS: Final = (
    {"simulations"}, {"traj", "task_id"}, {"messages", "benchmark_name", "eval_result"},
    {"messages", "task_id", "reward_info"},
)  # fmt: skip
_POLICY_TITLE: Final = re.compile(r"\s*#\s*(\w+) agent policy", re.IGNORECASE)
_FINISHED: Final = ("user_stop", "agent_stop")
_REASONING: Final = (("message", "reasoning_content"), ("choices", 0, "message", "reasoning_content"))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Episode:
    """One simulation, whatever file layout it came from."""

    key: str
    messages: JsonValue
    task: JsonValue
    outcome: JsonValue
    ending: JsonValue = None
    """How the simulation ended; one that did not finish and has no reward has failed."""
    domain: JsonValue = None
    policy: JsonValue = None
    tools: JsonValue = None


class TauBench:
    """Reads results of tau-bench and tau2-bench."""

    name = "tau_bench"

    def claims(self, record: JsonValue) -> bool:
        return isinstance(record, dict) and (any(mark <= record.keys() for mark in _MARKS) or _is_gym(record))

    def read(self, record: JsonValue, source: Source) -> Sequence[Trajectory]:
        """The trajectories of a record. Raises InputError naming the field that is wrong."""
        where = place(source)
        row: Object = expect(record, dict, where)
        if "simulations" not in row:
            return (_trajectory(_episode(row, where), where, source),)
        simulations = expect(row["simulations"], list, f"{where}: simulations")
        environment = expect(dig(row, "info", "environment_info") or {}, dict, f"{where}: info.environment_info")
        return tuple(
            _trajectory(_simulation(item, environment, f"simulations[{i}]", where), where, replace(source, index=i))
            for i, item in enumerate(simulations)
        )


def _is_gym(row: Object) -> bool:
    return "responses_create_params" in row and dig(row, "result", "messages") is not None


def _simulation(value: JsonValue, environment: Object, key: str, where: str) -> _Episode:
    row: Object = expect(value, dict, f"{where}: {key}")
    return _Episode(
        key=f"{key}.messages",
        messages=row.get("messages"),
        task=row.get("task_id"),
        outcome=dig(row, "reward_info", "reward"),
        ending=row.get("termination_reason"),
        domain=environment.get("domain_name"),
        policy=row.get("policy") or environment.get("policy"),
        tools=environment.get("tool_defs"),
    )


def _episode(row: Object, where: str) -> _Episode:
    if {"traj", "task_id"} <= row.keys():
        return _Episode(key="traj", messages=row["traj"], task=row["task_id"], outcome=row.get("reward"))
    if {"messages", "eval_result"} <= row.keys():
        told = name_of(dig(row, "meta", "task_id")) or name_of(dig(row, "meta", "id"))
        return _Episode(
            key="messages",
            messages=row["messages"],
            task=told and told.removeprefix(f"{row.get('task_name')}_"),
            outcome=dig(row, "eval_result", "score"),
            ending=dig(row, "meta", "finish_reason"),
            domain=row.get("task_name"),
        )
    if not _is_gym(row):
        return _simulation(row, {}, "simulation", where)
    params = row["responses_create_params"]
    prompt = dig(params, "input", 0) if dig(params, "input", 0, "role") == "system" else None
    policy = m.read_content(dig(prompt, "content"), f"{where}: responses_create_params.input[0].content").text
    episode = _simulation(row["result"], {}, "result", where)
    domain, tools = dig(row, "config", "domain"), dig(params, "tools")
    return replace(episode, domain=domain, tools=tools, policy=policy or episode.policy)


def _trajectory(episode: _Episode, where: str, source: Source) -> Trajectory:
    messages = _agent_view(episode, f"{where}: {episode.key}")
    policy = next((message.content for message in messages if message.role == "system"), None) or ""
    title = _POLICY_TITLE.match(policy)
    domain = name_of(episode.domain) or (title.group(1).lower() if title else None)
    task, outcome = name_of(episode.task), m.reward(episode.outcome)
    if outcome is None and isinstance(episode.ending, str) and episode.ending not in _FINISHED:
        outcome = 0.0
    return Trajectory(
        id=m.trajectory_id(source),
        messages=messages,
        source=source,
        tools=m.read_tools(episode.tools, f"{where}: tools"),
        task_id=None if task is None else f"{domain or m.stem(source.file)}/{task}",
        outcome=outcome,
        domain=domain,
    )


def _agent_view(episode: _Episode, where: str) -> tuple[Message, ...]:
    """What the agent saw. An assistant message before any word of the user is the harness's, not the model's."""
    items = list(_flat(expect(episode.messages or [], list, where), where))
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
        messages.append(_message(item, at, is_result=no_tool_role and _awaits_results(messages)))
    if isinstance(episode.policy, str) and all(message.role != "system" for message in messages):
        messages.insert(0, Message(role="system", content=episode.policy))
    first = next((i for i, message in enumerate(messages) if message.role in ("user", "assistant")), None)
    if first is not None and messages[first].role == "assistant" and not messages[first].tool_calls:
        messages[first] = replace(messages[first], excluded=GREETING)
    return tuple(messages)


def _flat(values: list[JsonValue], where: str) -> Iterator[tuple[Object, str]]:
    """Every message with its place; the results of parallel calls may come as one `tool_messages` list."""
    for index, value in enumerate(values):
        at = f"{where}[{index}]"
        item: Object = expect(value, dict, at)
        for part in expect(item.get("tool_messages", [item]), list, at):
            yield expect(part, dict, at), at


def _awaits_results(messages: list[Message]) -> bool:
    for results, message in enumerate(reversed(messages)):
        if message.role != "tool":
            return len(message.tool_calls) > results
    return False


def _message(item: Object, where: str, *, is_result: bool) -> Message:
    """One message. Some dumps know no tool role: there the user message that follows an open call is its result."""
    role = item.get("role")
    if role == "tool" and item.get("tool_call_id") is None:
        item = {**item, "tool_call_id": item.get("id")}
    elif role == "user" and is_result:
        item = {**item, "role": "tool"}
    message = read_message(item, where)
    if message.role != "assistant" or message.reasoning is not None:
        return message
    thoughts = (dig(item, "raw_data", *keys) for keys in _REASONING)
    return replace(message, reasoning=next((text for text in thoughts if isinstance(text, str) and text), None))
