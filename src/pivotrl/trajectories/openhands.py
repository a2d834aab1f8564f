"""OpenHands: event streams of version 0 and of the agent SDK (version 1), and evaluation rows that hold either.

The history is put together as the harness does for its model: calls of one response are one message, a result stands
behind its call, a condensation forgets events, puts a summary in their place and begins a new segment.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from pydantic import JsonValue

from pivotrl.protocols import Record
from pivotrl.trajectories.history import History
from pivotrl.trajectories.messages import (
    Object,
    dig,
    expect,
    name_of,
    outcome_of,
    place,
    read_call,
    read_content,
    read_message,
    read_tools,
    segmented,
    task_of,
    trajectory_id,
)
from pivotrl.types import Message, Source, Tool, Trajectory

_CONTAINERS: Final = ("history", "trajectory", "events", "items")
_UNSEEN: Final = ("null", "agent_state_changed", "change_agent_state", "recall", "condensation_request")
"""Actions and observations that no model is shown. What `recall` found is shown, by a template that the file lacks."""
_ACTIONS: Final = ("message", "run", "run_ipython", "browse", "browse_interactive", "read", "write", "edit", "finish")
"""By which an event is known that says no source."""
_KINDS: Final = ("Event", "Observation", "Condensation", "CondensationRequest")
_BOOKKEEPING: Final = (
    "thought", "is_confirmed", "confirmation_state", "action_risk", "security_risk", "keep_prompt", "kernel_init_code",
    "blocking", "hidden", "is_static", "is_input", "cwd", "impl_source", "translated_ipython_code", "include_extra",
    "action", "source", "id", "timestamp", "message", "timeout",
)  # fmt: skip
"""Fields of an action that the model did not write."""


class OpenHands:
    """Reads a list of events, a file of one event per line, or rows that hold a list (`output.jsonl`)."""

    name = "openhands"

    def claims(self, record: JsonValue) -> bool:
        return any(_is_event(event) for event in _events(record)[:3])

    def begins(self, record: JsonValue) -> bool:
        return _is_event(record)

    def read(self, record: JsonValue, source: Source) -> Sequence[Trajectory]:
        """The segments of a row. Raises InputError naming the event that is wrong."""
        row: Object = record if isinstance(record, dict) else {}
        return tuple(_read([(f"[{i}]", event) for i, event in enumerate(_events(record))], row, source))

    def read_session(self, records: Iterable[Record], source: Source) -> Iterator[Trajectory]:
        yield from _read([(f":{line}" if line else "", value) for line, value in records], {}, source)


def _is_event(value: JsonValue) -> bool:
    """An event says what it did or what was seen, and has no role; since version 1 by its `kind`."""
    if not isinstance(value, dict) or "role" in value:
        return False
    kind, action, seen = (value.get(key) for key in ("kind", "action", "observation"))
    if "source" in value and isinstance(kind, str):
        return kind.endswith(_KINDS)
    return isinstance(action, str) != isinstance(seen, str) and ("source" in value or (action or seen) in _ACTIONS)


def _events(record: JsonValue) -> list[JsonValue]:
    """The events of a row; old ones come as pairs of action and observation."""
    held = record
    if isinstance(record, dict):
        held = next((record[key] for key in _CONTAINERS if isinstance(record.get(key), list)), None)
    parts = (item if isinstance(item, list) else [item] for item in (held if isinstance(held, list) else []))
    return [event for part in parts for event in part]


def _read(events: list[tuple[str, JsonValue]], row: Object, source: Source) -> Iterator[Trajectory]:
    where = place(source)
    main = History()
    open_runs, closed = [main], list[History]()
    tools: tuple[Tool, ...] | None = None
    for at, value in events:
        event: Object = expect(value, dict, f"{where}{at}")
        if event.get("kind"):
            tools = _add_sdk(open_runs[-1], event, f"{where}{at}") or tools
            continue
        if event.get("observation") == "delegate" and len(open_runs) > 1:
            closed.append(open_runs.pop())
        tools = _add(open_runs[-1], event, f"{where}{at}") or tools
        if event.get("action") == "delegate":
            open_runs.append(History())
    histories = (main, *closed, *open_runs[1:])
    segments = [part for history in histories for part in history.segments()]
    called = {call.name for part in segments for message in part for call in message.tool_calls}
    number = name_of(dig(row, "issue", "number"))
    run = Trajectory(
        id=trajectory_id(source),
        messages=(),
        source=source,
        tools=None if called - {tool.name for tool in tools or ()} else tools,
        task_id=task_of(row) or (number and f"{dig(row, 'issue', 'owner')}/{dig(row, 'issue', 'repo')}#{number}"),
        outcome=outcome_of(row),
    )
    yield from segmented(run, segments)


def _add(history: History, event: Object, where: str) -> tuple[Tool, ...] | None:
    """One event of version 0; gives the tools where it is the one that says them."""
    action, seen = event.get("action"), event.get("observation")
    given = event.get("args")
    args: Object = given if isinstance(given, dict) else event
    key = name_of(event.get("id"))
    if action in _UNSEEN or seen in _UNSEEN:
        return None
    if isinstance(seen, str):
        call_id = name_of(dig(event, "tool_call_metadata", "tool_call_id"))
        text = _output(read_content(event.get("content"), f"{where}.content").text or "", event.get("extras"), event)
        cause = call_id or name_of(event.get("cause"))
        text += "\n[Error occurred in processing last action]" if seen == "error" else ""
        history.answer(
            key, cause, Message(role="tool", content=text, error=seen == "error" or None), keep=bool(call_id)
        )
    elif action == "system":
        history.add(key, Message(role="system", content=expect(args.get("content"), str, f"{where}.content")))
        return read_tools(args.get("tools"), f"{where}.tools")
    elif action == "condensation":
        ids = args.get("forgotten_event_ids")
        start, end = args.get("forgotten_events_start_id"), args.get("forgotten_events_end_id")
        if not isinstance(ids, list):
            ids = list(range(start, end + 1)) if isinstance(start, int) and isinstance(end, int) else []
        history.forget({str(item) for item in ids}, args.get("summary"))
    elif action == "message":
        said = read_content(args.get("content"), f"{where}.content").text
        images = args.get("image_urls") or args.get("images_urls")
        by_agent = event["source"] == "agent" if "source" in event else history.awaits_model
        omitted = ("image_url",) if images else ()
        history.add(key, Message(role="assistant" if by_agent else "user", content=said, omitted=omitted))
    elif isinstance(action, str) and event.get("source") == "user":
        history.add(key, Message(role="user", content=f"User ran {action}: {json.dumps(_written(args))}"))
    elif isinstance(action, str):
        _act(history, key, event, args, where)
    return None


def _act(history: History, key: str | None, event: Object, args: Object, where: str) -> None:
    """An action of the model: the response that it came with, else a call put together from its fields."""
    meta: Object = event.get("tool_call_metadata") or {}
    answer = dig(meta, "model_response", "choices", 0)
    message = dig(answer, "message")
    if isinstance(message, dict) and message.get("tool_calls"):
        cut = {"excluded": "truncated"} if dig(answer, "finish_reason") == "length" else {}
        history.say(
            key, name_of(dig(meta, "model_response", "id")), read_message({**message, **cut}, where), whole=True
        )
        return
    call = {
        "id": meta.get("tool_call_id") or key,
        "name": meta.get("function_name") or event.get("action"),
        "arguments": _written(args),
    }
    thought = args.get("thought")
    text = thought if isinstance(thought, str) and thought else None
    history.say(key, None, Message(role="assistant", content=text, tool_calls=(read_call(call, where),)))


def _written(args: Object) -> Object:
    return {name: value for name, value in args.items() if name not in _BOOKKEEPING and value is not None}


def _output(text: str, told: JsonValue, event: Object) -> str:
    """A command's output as the model is shown it: with where it ran and how it ended, as far as the event says."""
    meta = dig(told, "metadata")
    if not isinstance(meta, dict):
        code = event.get("exit_code")
        return text if code is None else f"{text}\n[Command finished with exit code {code}]"
    text = f"{meta.get('prefix') or ''}{text}{meta.get('suffix') or ''}"
    for key, words in (("working_dir", "Current working directory"), ("py_interpreter_path", "Python interpreter")):
        text += f"\n[{words}: {meta[key]}]" if meta.get(key) else ""
    code = meta.get("exit_code")
    return text if code in (None, -1) else f"{text}\n[Command finished with exit code {code}]"


def _add_sdk(history: History, event: Object, where: str) -> tuple[Tool, ...] | None:
    """One event of version 1; gives the tools where it is the one that says them."""
    kind, key, call_id = event["kind"], name_of(event.get("id")), name_of(event.get("tool_call_id"))
    if kind == "SystemPromptEvent":
        parts = [part for part in (event.get("system_prompt"), event.get("dynamic_context")) if part]
        history.add(key, Message(role="system", content=read_content(parts, f"{where}.system_prompt").text))
        return _sdk_tools(event.get("tools"), f"{where}.tools")
    if kind == "MessageEvent":
        message: Object = expect(event.get("llm_message"), dict, f"{where}.llm_message")
        content = message.get("content") or []
        parts = [*([content] if isinstance(content, str) else content), *(event.get("extended_content") or [])]
        history.add(key, read_message({**message, "content": parts}, f"{where}.llm_message"))
    elif kind == "ActionEvent":
        call = event.get("tool_call") or {
            "id": call_id,
            "name": event.get("tool_name"),
            "arguments": {name: value for name, value in (event.get("action") or {}).items() if name != "kind"},
        }
        spoken = {"role": "assistant", "content": event.get("thought"), "tool_calls": [call]}
        kept = {name: event.get(name) for name in ("reasoning_content", "thinking_blocks")}
        history.say(key, name_of(event.get("llm_response_id")), read_message({**spoken, **kept}, where))
    elif kind == "ObservationEvent":
        told: Object = expect(event.get("observation"), dict, f"{where}.observation")
        content = told.get("content") if told.get("content") is not None else told.get("output")
        parts = [*([content] if isinstance(content, str) else content or []), *(event.get("extended_content") or [])]
        result = read_message({"role": "tool", "content": parts, "error": told.get("is_error")}, f"{where}.observation")
        history.answer(key, call_id, replace(result, content=_output(result.content or "", told, {})))
    elif kind in ("AgentErrorEvent", "UserRejectObservation"):
        text = event.get("error") or f"Action rejected: {event.get('rejection_reason')}"
        history.answer(key, call_id, Message(role="tool", content=str(text), error=True))
    elif kind == "Condensation":
        history.forget({str(item) for item in event.get("forgotten_event_ids") or ()}, event.get("summary"))
    elif kind == "CondensationSummaryEvent":
        history.add(key, Message(role="user", content=name_of(event.get("summary"))))
    return None


def _sdk_tools(value: JsonValue, where: str) -> tuple[Tool, ...] | None:
    """The tools of a system prompt. A definition without a name goes by its title; its schema is not in the file."""
    if not isinstance(value, list):
        return None
    tools: list[JsonValue] = []
    for tool in value:
        named = isinstance(tool, dict) and ("name" in tool or "function" in tool)
        title: JsonValue = {"name": dig(tool, "title"), "description": dig(tool, "description")}
        tools.append(tool if named else dig(tool, "mcp_tool") or title)
    return read_tools(tools, where)
