"""Calls that were written into the text: tags of Hermes, `<function=..>`, ReAct, Python-like lists.

The messages stay what the model saw and wrote; beside its literal text a turn gets the calls in it, and the trajectory
their syntax. Only turns are read: prompts hold examples. Terminus JSON, bash fences and tags of search agents stay
text, which verifiers read; but what a search brought inside a turn is taken out of it, as no model wrote it. Results
are messages of the user: templates have a role `tool` for structured calls only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import takewhile
from typing import Final

from pydantic import JsonValue

from pivotrl import actions
from pivotrl.actions.base import Malformed, python_json
from pivotrl.actions.react import LABEL
from pivotrl.errors import InputError
from pivotrl.trajectories.messages import read_tools
from pivotrl.types import DECODER, Action, Message, Tool, Trajectory

_MARKS: Final = {
    "hermes": re.compile("<tool_call>"),
    "hermes_python": re.compile("<tool_call>"),
    "xml": re.compile("<function="),
    "react": LABEL,
    "pythonic": re.compile(r"\A\s*\[[^\[\]()]+\("),
}
"""What a turn with a call holds."""
_THOUGHT: Final = re.compile(r"^(?:Thought|THOUGHT|Think)[ \t]*:", re.M)
_CALLED: Final = re.compile(r"</(?:search|tool_call|call_tool)>\s*(?=<(information|result|tool_response|tool_output)>)")

_FUNCTION: Final = "---- BEGIN FUNCTION #"
_PARAMETER: Final = re.compile(r"^ +\(\d+\) (\w+) \((\w+), (required|optional)\): ?(.*)$", re.M)
_LIST: Final = re.compile(r"\[\s*\{")
_GAP: Final = re.compile(r"[\s,]*")


def read_protocol(trajectory: Trajectory) -> Trajectory:
    """The trajectory with the calls that it holds as text, if most of what looks like one is one."""
    if any(message.tool_calls for message in trajectory.messages):
        return trajectory
    messages = tuple(part for message in trajectory.messages for part in _without_results(message))
    trajectory = replace(trajectory, messages=messages) if messages != trajectory.messages else trajectory
    texts = [message.content for message in messages if message.role == "assistant" and message.content]
    marked = {syntax: count for syntax, mark in _MARKS.items() if (count := sum(map(bool, map(mark.search, texts))))}
    if not marked:
        return trajectory
    prompt = [one.content or "" for one in takewhile(lambda message: message.role != "assistant", messages)]
    told = next(filter(None, map(tools_in, prompt)), ())
    tools = told if any(tool.name in text for tool in told for text in texts) else trajectory.tools
    found = {syntax: [_read(message, syntax, tools) for message in messages] for syntax in marked}
    counts = {syntax: sum(bool(message.tool_calls) for message in read) for syntax, read in found.items()}
    best = max(counts, key=lambda syntax: counts[syntax])
    is_react = any(map(LABEL.search, prompt)) or any(map(_THOUGHT.search, texts))  # `Action:` is a word of many texts
    if 2 * counts[best] <= marked[best] or not {"react": is_react, "pythonic": bool(tools)}.get(best, True):
        return trajectory
    if best == "react":
        _exclude_greeting(found[best])
    return replace(trajectory, messages=tuple(found[best]), tools=tools, syntax=best)


def _read(message: Message, syntax: str, tools: Sequence[Tool] | None) -> Message:
    if message.role == "tool":
        return replace(message, role="user", tool_call_id=None, name=None)
    if message.role != "assistant" or message.content is None:
        return message
    text = message.content
    looks_so = _MARKS[syntax].search(text) is not None
    action = actions.parse(text, syntax, tools)
    if isinstance(action, Action) and (action.calls or not looks_so):
        return replace(message, literal=text, content=action.text, tool_calls=action.calls)
    return replace(message, literal=text, excluded=message.excluded or ("unparsable_call" if looks_so else None))


def _exclude_greeting(messages: list[Message]) -> None:
    """A short first turn without a call is the `OK.` to the instructions that the makers of ReAct sets wrote."""
    first, own = next(one for one in enumerate(messages) if one[1].role == "assistant")
    if not own.tool_calls and own.excluded is None and len(own.content or "") < 100:
        messages[first] = replace(own, excluded="scripted_greeting")


def _without_results(message: Message) -> Iterator[Message]:
    """A turn that goes on behind the results of its searches, as the turns that it is, results between them."""
    text, at = message.content or "", 0
    for called in _CALLED.finditer(text) if message.role == "assistant" and not message.tool_calls else ():
        tag = f"</{called[1]}>"
        end = text.find(tag, called.end()) + len(tag) if called.start() >= at else 0
        if end > len(tag):
            yield replace(message, content=text[at : called.end()].strip())
            yield Message(role="user", content=text[called.end() : end])
            at = end
        elif called.start() >= at:
            break
    if not at or text[at:].strip():
        yield replace(message, content=text[at:].strip()) if at else message


def tools_in(prompt: str) -> tuple[Tool, ...] | None:
    """The tools that a prompt tells of: in Hermes' `<tools>`, as a JSON list, or as OpenHands describes functions."""
    found: list[JsonValue] = [_documented(part) for part in prompt.split(_FUNCTION)[1:]]
    start = _LIST.search(prompt)
    blocks = [part.partition("</tools>")[0] for part in prompt.split("<tools>", 9)[1:]]
    blocks += [prompt[start.start() :]] if start else []
    with suppress(InputError):
        return read_tools(found or next(filter(None, map(_objects, blocks)), []), "prompt") or None
    return None


def _objects(text: str) -> list[JsonValue]:
    """The JSON objects that a text begins with, in lists or not, or the literals of Python that it is."""
    text, found, at = text.strip(), list[JsonValue](), 0
    with suppress(ValueError, RecursionError):
        while at < len(text):
            value, at = DECODER.raw_decode(text, at)
            found += value if isinstance(value, list) else [value]
            at = _GAP.match(text, at).end()  # type: ignore[union-attr]
    if not found:
        with suppress(Malformed):
            value = json.loads(python_json(text))
            found = value if isinstance(value, list) else [value]
    return found


def _documented(part: str) -> JsonValue:
    """A function as OpenHands describes it to models without tool calls, and SWE-smith and R2E-Gym after it."""
    head, _, rest = part.partition("---- END FUNCTION")[0].partition("\n")
    described, _, listed = rest.removeprefix("Description:").partition("\nParameters:")
    parameters = _PARAMETER.findall(listed)
    properties: dict[str, JsonValue] = {name: {"type": kind, "description": text} for name, kind, _, text in parameters}
    required: list[JsonValue] = [name for name, _, need, _ in parameters if need == "required"]
    schema: JsonValue = {"type": "object", "properties": properties, "required": required}
    name = head.partition(":")[2].strip().removesuffix("----").strip()
    return {"name": name, "description": described.strip(), "parameters": schema}
