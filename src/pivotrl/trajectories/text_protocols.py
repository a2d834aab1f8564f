"""Calls that were written into the text: tags of Hermes, `<function=..>`, ReAct, Python-like lists.

The messages stay what the model saw and wrote. Beside its literal text a message gets the calls in it, and the
trajectory the syntax. Only turns of the assistant are read: prompts hold examples. Terminus JSON, bash fences and tags
of search agents stay text, which verifiers read; but what a search brought inside a turn is taken out of it, as no
model wrote it. Results are messages of the user: templates have a role `tool` for structured calls only.
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

UNPARSABLE: Final = "unparsable_call"
GREETING: Final = "scripted_greeting"
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
    if any(message.tool_calls for message in messages):
        return trajectory
    prompt = [one.content or "" for one in takewhile(lambda message: message.role != "assistant", messages)]
    told = next(filter(None, map(tools_in, prompt)), ()) if _marked(texts) else ()
    tools = told if any(tool.name in text for tool in told for text in texts) else trajectory.tools
    found = {syntax: _calls(texts, syntax, tools) for syntax in _marked(texts)}
    best = max(found, key=lambda syntax: found[syntax], default=None)
    if best is None or not found[best] or (best == "react" and not _is_react(prompt, texts)):
        return trajectory
    read = tuple(_read(message, best, tools) for message in messages)
    return replace(trajectory, messages=_greeted(read) if best == "react" else read, tools=tools, syntax=best)


def _is_react(prompt: Sequence[str], texts: Sequence[str]) -> bool:
    """`Action:` is a word of many texts: here the prompt asks for it, or thoughts have their label too."""
    return any(map(LABEL.search, prompt)) or any(map(_THOUGHT.search, texts))


def _marked(texts: Sequence[str]) -> list[str]:
    return [syntax for syntax, mark in _MARKS.items() if any(map(mark.search, texts))]


def _calls(texts: Sequence[str], syntax: str, tools: Sequence[Tool] | None) -> int:
    """How many turns have calls in this syntax; 0 where most of those that look so have none."""
    marked = [actions.parse(text, syntax, tools) for text in texts if _MARKS[syntax].search(text)]
    count = sum(isinstance(action, Action) and bool(action.calls) for action in marked)
    return count if 2 * count > len(marked) else 0


def _read(message: Message, syntax: str, tools: Sequence[Tool] | None) -> Message:
    if message.role == "tool":
        return replace(message, role="user", tool_call_id=None, name=None)
    if message.role != "assistant" or message.content is None:
        return message
    text = message.content
    action = actions.parse(text, syntax, tools)
    looks_so = _MARKS[syntax].search(text) is not None
    if isinstance(action, Action) and (action.calls or not looks_so):
        return replace(message, literal=text, content=action.text, tool_calls=action.calls)
    return replace(message, literal=text, excluded=message.excluded or (UNPARSABLE if looks_so else None))


def _greeted(messages: Sequence[Message]) -> tuple[Message, ...]:
    """A first turn without a call is the `OK.` to the instructions that the makers of ReAct sets wrote themselves."""
    first = next(at for at, message in enumerate(messages) if message.role == "assistant")
    own = messages[first]
    greets = not own.tool_calls and any(message.tool_calls for message in messages) and len(own.content or "") < 100
    own = replace(own, excluded=own.excluded or (GREETING if greets else None))
    return (*messages[:first], own, *messages[first + 1 :])


def _without_results(message: Message) -> Iterator[Message]:
    """A turn that goes on behind the results of its searches, as the turns that it is, results between them."""
    text, at = message.content or "", 0
    found = _CALLED.finditer(text) if message.role == "assistant" and not message.tool_calls else iter(())
    for called in found:
        tag = f"</{called[1]}>"
        end = text.find(tag, called.end())
        if called.start() >= at and end >= 0:
            end += len(tag)
            yield replace(message, content=text[at : called.end()].strip())
            yield Message(role="user", content=text[called.end() : end])
            at = end
        elif end < 0:
            break
    if at == 0 or text[at:].strip():
        yield replace(message, content=text[at:].strip() if at else message.content)
