"""Rows that hold no chat messages yet: for each format a function that makes them, or says that a row is not its."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import JsonValue

from pivotrl.trajectories.messages import Object, decoded, expect, place, read_messages
from pivotrl.trajectories.openai_chat import CONTAINERS, container, conversation
from pivotrl.types import Source, Trajectory

_PROMPTS: Final = ("query", "prompt", "instruction", "question")
_ANSWERS: Final = ("response", "completion", "output", "trajectory")
_CALL: Final = "call"
_OWN_ROLES: Final = {"function_call": _CALL, "tool_call": _CALL, **dict.fromkeys(
    ("observation", "tool_response", "function_response"), "tool")}  # fmt: skip
_ROLES: Final = {**_OWN_ROLES, "human": "user", **dict.fromkeys(("gpt", "model", "bot", "chatgpt"), "assistant")}


@dataclass(slots=True)
class RowReader:
    """Reads one conversation per record."""

    name: str
    messages: Callable[[Object], list[Any] | None]
    """What a row holds, for `read_messages`; None: nothing of this format."""

    def claims(self, record: JsonValue) -> bool:
        return isinstance(record, dict) and self.messages(record) is not None

    def read(self, record: JsonValue, source: Source) -> Sequence[Trajectory]:
        """One trajectory. Raises InputError naming the message that is wrong."""
        row: Object = expect(record, dict, place(source))
        messages = read_messages(self.messages(row), f"{place(source)}: messages")
        return (conversation(row, messages, source),)


def r2e_gym(row: Object) -> list[Any] | None:
    """Runs of R2E-Gym: steps of thought, action and observation. The prompts around the problem are not in the file."""
    if not isinstance(row.get("trajectory_steps"), list):
        return None
    said: list[Any] = [{"role": "user", "content": row.get("problem_statement")}]
    for step in row["trajectory_steps"]:
        if not isinstance(step, dict):
            return [*said, step]
        written = [step[key] for key in ("thought", "action") if isinstance(step.get(key), str) and step[key]]
        said.append({"role": "assistant", "content": "\n\n".join(written)})
        said += [{"role": "user", "content": step["observation"]}] if step.get("observation") else []
    return said


def prompt_response(row: Object) -> list[Any] | None:
    """A prompt and its response as texts: ms-swift's query/response/history, Alpaca, Search-R1, xLAM's query/answers.

    A response without a prompt is text for pre-training, and excluded.
    """
    asked = next((key for key in _PROMPTS if isinstance(row.get(key), str)), None)
    answer = next((key for key in _ANSWERS if isinstance(row.get(key), str)), None)
    listed = row["prompt"] if isinstance(row.get("prompt"), list) else []
    is_xlam = asked is not None and {"answers", "tools"} <= row.keys()
    is_one = is_xlam or (answer is not None and bool(asked or listed or answer == "response"))
    if not is_one or container(row) is not None or "messages" in row:
        return None
    said: list[Any] = []
    for pair in row["history"] if isinstance(row.get("history"), list) else []:
        turns = zip(("user", "assistant"), pair, strict=False) if isinstance(pair, list) else ()
        said += [{"role": role, "content": text} for role, text in turns if text] if turns else [pair]
    said += listed
    texts = [text for text in (row.get(asked or ""), row.get("input")) if isinstance(text, str) and text]
    said += [{"role": "user", "content": "\n".join(texts)}] if asked and texts else []
    if is_xlam:
        return [*said, {"role": "assistant", "tool_calls": row["answers"]}]
    return [*said, {"role": "assistant", "content": row[answer or ""], **({} if said else {"loss": False})}]


def sharegpt(row: Object) -> list[Any] | None:
    """`from`/`value` (LLaMA-Factory, ToolACE, APIGen-MT, Hermes), ms-swift's roles for calls, pairs of human/assistant.

    A call whose text is no JSON is text of the model like any other.
    """
    for key in CONTAINERS:
        value = row.get(key)
        value = decoded(value) if isinstance(value, str) and '"from"' in value and '"value"' in value else value
        items: list[Any] = value if isinstance(value, list) else []
        first = {*items[0]} if items and isinstance(items[0], dict) else set()
        roles = {str(item.get("role")) for item in items if isinstance(item, dict)}
        if not roles.isdisjoint(_OWN_ROLES) or {"from", "value"} <= first or {"human", "assistant"} <= first:
            return [one for item in items for one in (_said(item) if isinstance(item, dict) else [item])]
    return None


def _said(item: Object) -> Iterator[Object]:
    if {"human", "assistant"} <= item.keys():
        yield from ({"role": role, "content": item[key]} for key, role in (("human", "user"), ("assistant",) * 2))
        return
    given = item.get("from", item.get("role"))
    role = _ROLES.get(given, given) if isinstance(given, str) else given
    content = item.get("value", item.get("content"))
    said: Object = {**item, "role": role, "content": content}
    if role == _CALL:
        thought, _, text = content.rpartition("</think>") if isinstance(content, str) else ("", "", content)
        calls = decoded(text)
        calls = calls if isinstance(calls, list) else [calls]
        said["role"] = "assistant"
        if calls and all(isinstance(call, dict) and "name" in call for call in calls):
            said |= {"content": None, "reasoning": thought.partition("<think>")[2].strip(), "tool_calls": calls}
    yield said
