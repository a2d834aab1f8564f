"""Calls that were written into the text: tags of Hermes, `<function=..>`, ReAct, Python-like lists.

The messages stay what the model saw and wrote; beside its literal text a turn gets the calls in it, and the trajectory
their syntax. Only turns are read: prompts hold examples. Terminus JSON, bash fences and tags of search agents stay
text, which verifiers read; but what a search brought inside a turn is taken out of it, as no model wrote it. Results
are messages of the user: templates have a role `tool` for structured calls only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Final

from pivotrl import actions
from pivotrl.actions.react import LABEL
from pivotrl.trajectories.prompt_tools import tools_in
from pivotrl.types import Action, Message, Tool, Trajectory

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


def read_protocol(trajectory: Trajectory) -> Trajectory:
    """The trajectory with the calls that it holds as text, if most of what looks like one is one."""
    messages = tuple(part for message in trajectory.messages for part in _without_results(message))
    trajectory = replace(trajectory, messages=messages)
    texts = [message.content for message in messages if message.role == "assistant" and message.content]
    marked = {syntax: count for syntax, mark in _MARKS.items() if (count := sum(map(bool, map(mark.search, texts))))}
    if not marked or any(message.tool_calls for message in messages):
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
        end = text.find(tag, called.end()) + len(tag)
        if end < len(tag):
            break
        if called.start() >= at:
            yield replace(message, content=text[at : called.end()].strip())
            yield Message(role="user", content=text[called.end() : end])
            at = end
    if not at or text[at:].strip():
        yield replace(message, content=text[at:].strip()) if at else message
