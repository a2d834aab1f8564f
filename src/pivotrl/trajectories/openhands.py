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
    begun,
    dig,
    expect,
    name_of,
    place,
    read_content,
    read_message,
    read_tools,
    segmented,
)  # fmt: skip
from pivotrl.types import Message, Source, Tool, Trajectory

_CONTAINERS: Final = ("history", "trajectory", "events", "items")
_UNSEEN: Final = ("null", "agent_state_changed", "change_agent_state", "recall", "condensation_request")
"""What no model is shown; but what `recall` found is, by a template that the file lacks."""
_ACTIONS: Final = ("message", "run", "run_ipython", "browse", "browse_interactive", "read", "write", "edit", "finish")
"""By which an event of version 0 is known that says no source."""
_KINDS: Final = ("Event", "Observation", "Condensation", "CondensationRequest")
_NOT_WRITTEN: Final = (
    "thought", "is_confirmed", "confirmation_state", "action_risk", "security_risk", "keep_prompt", "kernel_init_code",
    "blocking", "hidden", "is_static", "is_input", "cwd", "impl_source", "translated_ipython_code", "include_extra",
    "action", "source", "id", "timestamp", "message", "timeout", "kind",
)  # fmt: skip
"""Fields of an action that are no arguments of the model's."""


class OpenHands:
    """Reads a list of events, a file of one event per line, or rows that hold a list (`output.jsonl`)."""

    name = "openhands"

    def claims(self, record: JsonValue) -> bool:
        return any(self.begins(event) for event in _events(record)[:3])

    def begins(self, record: JsonValue) -> bool:
        """An event says what it did or what was seen, and has no role; since version 1 by its `kind`."""
        if not isinstance(record, dict) or "role" in record:
            return False
        kind, action, seen = (record.get(key) for key in ("kind", "action", "observation"))
        if "source" in record and isinstance(kind, str):
            return kind.endswith(_KINDS)
        return isinstance(action, str) != isinstance(seen, str) and ("source" in record or (action or seen) in _ACTIONS)

    def read(self, record: JsonValue, source: Source) -> Sequence[Trajectory]:
        """The segments of a row. Raises InputError naming the event that is wrong."""
        row: Object = record if isinstance(record, dict) else {}
        return tuple(_read([(f"[{i}]", event) for i, event in enumerate(_events(record))], row, source))

    def read_session(self, records: Iterable[Record], source: Source) -> Iterator[Trajectory]:
        yield from _read([(f":{line}" if line else "", value) for line, value in records], {}, source)


def _events(record: JsonValue) -> list[JsonValue]:
    """The events of a row; old ones come as pairs of action and observation."""
    held = record
    if isinstance(record, dict):
        held = next((record[key] for key in _CONTAINERS if isinstance(record.get(key), list)), None)
    parts = (item if isinstance(item, list) else [item] for item in (held if isinstance(held, list) else []))
    return [event for part in parts for event in part]


def _read(events: list[tuple[str, JsonValue]], row: Object, source: Source) -> Iterator[Trajectory]:
    """A delegate's events are a history of their own, between the call and its result."""
    runs = [History()]
    closed: list[History] = []
    tools: tuple[Tool, ...] | None = None
    for at, value in events:
        event: Object = expect(value, dict, f"{place(source)}{at}")
        if event.get("observation") == "delegate" and len(runs) > 1:
            closed.append(runs.pop())
        tools = _add(runs[-1], event, f"{place(source)}{at}") or tools
        if event.get("action") == "delegate":
            runs.append(History())
    segments = [part for history in (*runs, *closed) for part in history.segments()]
    called = {call.name for part in segments for message in part for call in message.tool_calls}
    run = begun(row, source)
    owner, repo, number = (name_of(dig(row, "issue", key)) for key in ("owner", "repo", "number"))
    issue = f"{owner}/{repo}#{number}" if number else None
    known = None if called - {tool.name for tool in tools or ()} else tools
    yield from segmented(replace(run, task_id=run.task_id or issue, tools=known), segments)


def _add(history: History, event: Object, where: str) -> tuple[Tool, ...] | None:
    """One event of either version; gives the tools where it is the one that says them."""
    kind = event.get("kind") or event.get("action") or event.get("observation")
    args: Object = event["args"] if isinstance(event.get("args"), dict) else event
    key, meta = name_of(event.get("id")), event.get("tool_call_metadata")
    if kind in ("SystemPromptEvent", "system"):
        parts = [
            part for part in (event.get("system_prompt"), event.get("dynamic_context"), args.get("content")) if part
        ]
        history.add(key, Message(role="system", content=read_content(parts, f"{where}: system prompt").text))
        return _tools(args.get("tools"), f"{where}: tools")
    if kind in ("Condensation", "condensation"):
        ids, start, end = (args.get(f"forgotten_event{name}") for name in ("_ids", "s_start_id", "s_end_id"))
        if isinstance(start, int) and isinstance(end, int):
            ids = range(start, end + 1)
        history.forget({str(item) for item in ids or ()}, args.get("summary"))
    elif kind in ("MessageEvent", "message"):
        history.add(key, _said(history, event, args, where))
    elif kind == "ActionEvent" or (
        "kind" not in event and isinstance(event.get("action"), str) and kind not in _UNSEEN
    ):
        if event.get("source") == "user":
            history.add(key, Message(role="user", content=f"User executed {kind}: {json.dumps(_written(args))}"))
        else:
            _act(history, key, event, args, where)
    elif "tool_call_id" in event or (isinstance(event.get("observation"), str) and kind not in _UNSEEN):
        call = name_of(event.get("tool_call_id") or dig(meta, "tool_call_id"))
        history.answer(key, call or name_of(event.get("cause")), _result(event, where), keep=call is not None)
    return None


def _said(history: History, event: Object, args: Object, where: str) -> Message:
    by_agent = event["source"] == "agent" if "source" in event else history.awaits_model
    told: Object = event.get("llm_message") or {
        "role": "assistant" if by_agent else "user",
        "content": args.get("content"),
    }
    images = [{"type": "image_url"}] if args.get("image_urls") or args.get("images_urls") else []
    return read_message(
        {**told, "content": [*_list(told.get("content")), *_list(event.get("extended_content")), *images]}, where
    )


def _act(history: History, key: str | None, event: Object, args: Object, where: str) -> None:
    """An action of the model: the response that it came with, else a call put together from its fields."""
    meta = event.get("tool_call_metadata")
    response = dig(meta, "model_response")
    message = dig(response, "choices", 0, "message")
    if isinstance(message, dict) and message.get("tool_calls"):
        history.say(
            key, name_of(dig(response, "id")), read_message({**message, "role": "assistant"}, where), whole=True
        )
        return
    call = event.get("tool_call") or {
        "id": event.get("tool_call_id") or dig(meta, "tool_call_id") or key,
        "name": event.get("tool_name") or dig(meta, "function_name") or event.get("action"),
        "arguments": _written(event["action"] if isinstance(event["action"], dict) else args),
    }
    spoken = {**event, "role": "assistant", "content": args.get("thought") or None, "tool_calls": [call]}
    history.say(key, name_of(event.get("llm_response_id")), read_message(spoken, where))


def _written(args: Object) -> Object:
    return {name: value for name, value in args.items() if name not in _NOT_WRITTEN and value is not None}


def _list(value: JsonValue) -> list[JsonValue]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _result(event: Object, where: str) -> Message:
    """A result as the model is shown it: with where a command ran and how it ended, as far as the event says."""
    told: Object = next((event[key] for key in ("observation", "extras") if isinstance(event.get(key), dict)), event)
    content = next(
        (
            part[key]
            for part, key in (
                (event, "content"),
                (told, "content"),
                (told, "output"),
                (event, "error"),
                (event, "rejection_reason"),
            )
            if part.get(key) is not None
        ),
        None,
    )
    message = read_message({"role": "tool", "content": [*_list(content), *_list(event.get("extended_content"))]}, where)
    meta: Object = told["metadata"] if isinstance(told.get("metadata"), dict) else {"exit_code": event.get("exit_code")}
    text = f"{meta.get('prefix') or ''}{message.content or ''}{meta.get('suffix') or ''}"
    for key, words in (("working_dir", "Current working directory"), ("py_interpreter_path", "Python interpreter")):
        text += f"\n[{words}: {meta[key]}]" if meta.get(key) else ""
    if meta.get("exit_code") not in (None, -1):
        text += f"\n[Command finished with exit code {meta['exit_code']}]"
    failed = event.get("observation") == "error" or content in (event.get("error"), event.get("rejection_reason"))
    return replace(message, content=text, error=True if failed and content is not None else told.get("is_error"))


def _tools(value: JsonValue, where: str) -> tuple[Tool, ...] | None:
    """The SDK's definitions have no name but a title, and the schemas of MCP tools alone."""
    tools: list[JsonValue] = []
    for tool in _list(value):
        named = isinstance(tool, dict) and ("name" in tool or "function" in tool)
        title: JsonValue = {"name": dig(tool, "title"), "description": dig(tool, "description")}
        tools.append(tool if named else dig(tool, "mcp_tool") or title)
    return None if value is None else read_tools(tools, where)
