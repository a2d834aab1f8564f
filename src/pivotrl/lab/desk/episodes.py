"""Whole desk conversations: played by the expert or at random, and written as OpenAI chat JSON Lines for `ingest`."""

from __future__ import annotations

import json
import random
import re
from itertools import cycle
from pathlib import Path
from typing import Any, Final

from pydantic import JsonValue

from pivotrl.chat import tool_dict
from pivotrl.lab.desk.books import CITIES, COLOURS, ITEMS, Part
from pivotrl.lab.desk.environment import DeskEnvironment
from pivotrl.lab.desk.expert import STYLES, Expert, Style
from pivotrl.lab.desk.tasks import ID_PATTERN, draw_tasks
from pivotrl.lab.desk.tools import TOOLS
from pivotrl.lab.turns import play
from pivotrl.storage import write_jsonl
from pivotrl.types import Action, Message, State, Tool, ToolCall

Record = dict[str, Any]
_ID: Final = re.compile(ID_PATTERN)
_CANNED: Final = (
    "What is your email or phone?", "What can I do for you?", "Which order is it?", "Thank you. Bye.",
    "I can refund {amount} for order {id}. Shall I do it?", "Cancel order {id} and pay back {amount}?",
    "Order {id}: {date}.", "I cannot do that. Order {id} is delivered.", "Order {id} is cancelled.",
    "Exchange it for order {id}? It costs 3.", "I cannot do that. Order {id} is more than 30 days old.",
)  # fmt: skip


def random_action(state: State, rng: random.Random) -> Action:
    """A valid call or a canned message, filled at random with what the conversation shows."""
    text = " ".join(message.content or "" for message in state.messages[1:])
    ids = _ID.findall(text) or ["O2000"]
    amounts = [int(number) for number in re.findall(r"\b[0-9]{1,2}\b", text)] or [0]
    if rng.random() < 0.5:
        dates = re.findall(r"(?:May|June|July) [0-9]+", text) or ["May 1"]
        orders = [id_ for id_ in ids if id_.startswith("O")] or ids
        said = rng.choice(_CANNED)
        return Action(text=said.format(id=rng.choice(orders), amount=rng.choice(amounts), date=rng.choice(dates)))
    return Action(calls=(_random_call(rng.choice(TOOLS), ids, amounts, rng),))


def _random_call(tool: Tool, ids: list[str], amounts: list[int], rng: random.Random) -> ToolCall:
    starts = {"order_id": "O", "customer_id": "C", "email": "E", "phone": "5"}
    words = {"item": ITEMS, "colour": COLOURS, "city": CITIES}
    schema: Any = tool.parameters
    arguments: dict[str, JsonValue] = {}
    for name, shape in schema["properties"].items():
        if name not in schema["required"] and rng.random() < 0.5:
            continue
        if name in starts:
            arguments[name] = rng.choice([id_ for id_ in ids if id_.startswith(starts[name])] or ids)
        elif name in words:
            arguments[name] = rng.choice(words[name])
        else:
            arguments[name] = rng.random() < 0.5 if shape["type"] == "boolean" else rng.choice(amounts)
    if tool.name == "find_customer" and not arguments:
        arguments["email"] = rng.choice(ids)
    return ToolCall(name=tool.name, arguments=json.dumps(arguments))


def episode(task_id: str, style: Style) -> Record:
    """One expert episode as a record of OpenAI chat. Raises ConfigError for an unknown task."""
    env = DeskEnvironment()
    reward = play(env, task_id, Expert(env, style).act)
    messages = [_plain(message) for message in env.state.messages]
    return {"task_id": task_id, "messages": messages, "tools": tools(), "reward": reward}


def tools() -> list[Record]:
    """The desk's tools in OpenAI's schema."""
    return [tool_dict(tool) for tool in TOOLS]


def _plain(message: Message) -> Record:
    record: Record = {"role": message.role, "content": message.content}
    if message.tool_calls:
        record["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    if message.role == "tool":
        record |= {"tool_call_id": message.tool_call_id, "name": message.name}
    return record


def write_episodes(path: Path, count: int, seed: int, part: Part = "train", environment: str = "desk") -> None:
    """Write expert episodes of `count` distinct tasks of a part, in styles that take turns. Raises StorageError."""
    tasks = draw_tasks(part, count, seed, environment)
    write_jsonl(path, (episode(task.id, style) for task, style in zip(tasks, cycle(STYLES.values()), strict=False)))
