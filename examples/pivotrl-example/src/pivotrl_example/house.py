"""What the four parts share: the tools, and what a good agent does next."""

from __future__ import annotations

import json
import re

from pydantic import JsonValue

from pivotrl import Action, Message, Tool, ToolCall

SYSTEM = "You keep a house warm. Look before you set anything, then say what you did."
_ROOM: dict[str, JsonValue] = {"room": {"type": "string"}}
_DEGREES: dict[str, JsonValue] = {"degrees": {"type": "integer"}}
TOOLS = (
    Tool(name="look", parameters={"type": "object", "properties": _ROOM, "required": ["room"]}),
    Tool(
        name="set_degrees",
        parameters={
            "type": "object",
            "properties": _ROOM | _DEGREES,
            "required": ["room", "degrees"],
        },
    ),
)


def call(name: str, **arguments: object) -> Action:
    """A call of one tool."""
    return Action(calls=(ToolCall(name=name, arguments=json.dumps(arguments)),))


def wish(messages: tuple[Message, ...]) -> tuple[str, int]:
    """Room and degrees that the user asked for. Raises ValueError where nothing was asked for."""
    for message in messages:
        found = re.fullmatch(r"Make the (\w+) (\d+) degrees\.", message.content or "")
        if message.role == "user" and found:
            return found[1], int(found[2])
    raise ValueError("the user asked for nothing")


def next_action(messages: tuple[Message, ...]) -> Action:
    """Look, set, say: by how often a tool has answered."""
    room, degrees = wish(messages)
    answers = sum(message.role == "tool" for message in messages)
    if answers == 0:
        return call("look", room=room)
    if answers == 1:
        return call("set_degrees", room=room, degrees=degrees)
    return Action(text=f"The {room} is set to {degrees} degrees.")
