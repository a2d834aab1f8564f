"""Scripted policies and verifiers that tests name on the command line: `scripted:desk_plugins:play` and the like.

A process that runs with DESK_SIGNAL=SIGKILL:7 sends itself that signal at its seventh call of a function here, which
is the same moment every time. Nothing else reads the variable.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
from typing import Any

import toy
from pivotrl.types import Action, Candidate, Message, State

ODDS = {"right": 0.45, "wrong": 0.35, "garbled": 0.08, "endless": 0.06, "broken": 0.06}
DONE = {"refund": "refunded", "cancel": "cancelled", "resend": "sent"}

_signal, _, _count = os.environ.get("DESK_SIGNAL", "").partition(":")
_calls_left = int(_count or 0)


def _tick() -> None:
    global _calls_left
    _calls_left -= 1
    if _calls_left == 0:
        os.kill(os.getpid(), signal.Signals[_signal])


def play(state: State, rng: random.Random) -> str:
    """The expert's action, a wrong one, text that no parser reads, text without end, or a failed call, by `ODDS`."""
    _tick()
    what = rng.choices(list(ODDS), list(ODDS.values()))[0]
    if what == "broken":
        raise ConnectionError("the line is dead")
    if what == "endless":
        return "I see. " * 400
    if what == "garbled":
        return '<tool_call>{"name": find_order'
    return expert(state) if what == "right" else f"Bananas {rng.randrange(1000)}."


def always_right(state: State, rng: random.Random) -> str:
    return expert(state)


def never_right(state: State, rng: random.Random) -> str:
    return "Bananas."


def expert(state: State) -> str:
    """What the expert of the toy desk does in this state, as text."""
    order = str(re.search(r"[A-F]1[0-9]", str(state.messages[1].content))[0])
    last = state.messages[-1]
    if last.role == "user":
        return _call("find_order", {"order_id": order})
    books = _books(state.messages)
    looked = sum(call.name == "find_order" for message in state.messages for call in message.tool_calls)
    if looked == 1 and last.name == "find_order":
        facts = {name: books[name] for name in ("status", "amount", "fee")}
        move = toy.expert_act(toy.Task(id="", order=order, opening=0, recheck=False, **facts))
        return _call(move.tool, move.arguments) if move.tool else str(move.text)
    acts = [call.name for message in state.messages for call in message.tool_calls if call.name in DONE]
    return f"Order {order} is {DONE[acts[-1]] if acts else 'delivered'}."


def _books(messages: tuple[Message, ...]) -> dict[str, Any]:
    return [json.loads(str(message.content)) for message in messages if message.name == "find_order"][-1]


def _call(name: str, arguments: object) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def parity(candidate: Candidate, action: Action) -> bool:
    """Accepts the demonstration, and texts of even length: a reward that even a model without training earns."""
    _tick()
    return action == candidate.demonstration or len(action.text or "") % 2 == 0


def raises(candidate: Candidate, action: Action) -> bool:
    """Accepts the demonstration, and fails at anything else."""
    if action == candidate.demonstration:
        return True
    raise RuntimeError("the judge is ill")


def refuses_calls(candidate: Candidate, action: Action) -> bool:
    """Accepts messages only, and so refuses the demonstrations that are calls."""
    return action.kind == "message"


NOT_CALLABLE = 7


def deaf(state: State) -> str:
    """Takes one argument, where a policy and a verifier are given two."""
    return ""
