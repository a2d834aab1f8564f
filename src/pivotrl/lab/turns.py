"""What the lab's environments share: how a task is played and ends, and an agent's message as a history keeps it."""

from __future__ import annotations

from collections.abc import Callable

from pivotrl.errors import InputError
from pivotrl.protocols import Environment
from pivotrl.types import Action, Message, ToolCall


def play(env: Environment, task_id: str, act: Callable[[], Action]) -> float:
    """Play one task to its end and give its outcome; `act` may look at the environment. Raises ConfigError."""
    env.reset(task_id)
    while not env.step(act()).done:
        pass
    return env.outcome()


def must_go_on(env: Environment, name: str) -> None:
    """Raises InputError once the episode is over."""
    if env.done:
        raise InputError(f"{name}: no episode is going on; call reset or restore first")


def own_message(action: Action, ids: str | None = None) -> Message:
    """An action as a message that a snapshot can hold; calls without an id are named `ids` and their number."""
    calls = []
    for at, call in enumerate(action.calls):
        name, arguments, id_ = encodable(call.name) or "", encodable(call.arguments), encodable(call.id)
        calls.append(ToolCall(name=name, arguments=arguments, id=id_ if ids is None else id_ or f"{ids}{at}"))
    text, reasoning = encodable(action.text), encodable(action.reasoning)
    return Message(role="assistant", content=text, reasoning=reasoning, tool_calls=tuple(calls))


def encodable(text: str | None) -> str | None:
    """The text with `?` for what is no character (half a surrogate pair), which no snapshot could hold."""
    return text if text is None or text.isascii() else text.encode(errors="replace").decode()
