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
from pivotrl.trajectories import messages as m
from pivotrl.trajectories.messages import COPIED, Object, dig, expect, name_of, place, read_message
from pivotrl.trajectories.openai_chat import conversation
from pivotrl.types import Message, Source, Trajectory

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
    runs = [_History()]
    closed: list[_History] = []
    tools: JsonValue = None
    for at, value in events:
        event: Object = expect(value, dict, f"{place(source)}{at}")
        if event.get("observation") == "delegate" and len(runs) > 1:
            closed.append(runs.pop())
        tools = _add(runs[-1], event, f"{place(source)}{at}") or tools
        if event.get("action") == "delegate":
            runs.append(_History())
    segments = [part for history in (*runs, *closed) for part in history.segments()]
    owner, repo, number = (name_of(dig(row, "issue", key)) for key in ("owner", "repo", "number"))
    issue = f"{owner}/{repo}#{number}" if number else None
    row = {"task_id": issue, **row, "tools": tools}
    yield from m.segmented(conversation(row, part, source) for part in segments)


class _History:
    """What the model saw so far, each message with the ids of its event and response, and the segments before."""

    def __init__(self) -> None:
        self._closed: list[tuple[Message, ...]] = []
        self._view: list[tuple[tuple[str | None, ...], Message]] = []

    @property
    def awaits_model(self) -> bool:
        """Whether somebody else than the model spoke last."""
        return bool(self._view) and (self._view[-1][1].role != "assistant" or bool(self._view[-1][1].tool_calls))

    def add(self, key: str | None, message: Message) -> None:
        self._view.append(((key,), message))

    def say(self, key: str | None, response: str | None, message: Message) -> None:
        """A message of the model, or a further part of a response: its next call, or all of it again."""
        late = range(len(self._view) - 1, max(-1, len(self._view) - 200), -1)
        at = next((at for at in late if response is not None and response in self._view[at][0]), None)
        if at is None:
            self._view.append(((key, response), message))
        elif not set(message.tool_calls) <= set(self._view[at][1].tool_calls):
            keys, said = self._view[at]
            self._view[at] = (*keys, key), m.join([said, message])

    def answer(self, key: str | None, call: str | None, result: Message, keep: bool) -> None:
        """A result, put behind its call and the results that are there. Without a call: `keep`, else a user's word."""
        view = self._view
        places = reversed(range(len(view) if call else 0))
        end = 1 + next((at for at in places if any(one.id == call for one in view[at][1].tool_calls)), len(view))
        while end < len(view) and view[end][1].role == "tool":
            end += 1
        if end > len(view) and not keep and (call or not view or not view[-1][1].tool_calls):
            result = Message(role="user", content=result.content)
        view.insert(end, ((key,), replace(result, tool_call_id=call if result.role == "tool" else None)))

    def forget(self, ids: set[str], summary: JsonValue) -> None:
        """Close the segment; the next begins without these events, the summary in the place of the first of them."""
        places = [at for at, (keys, _) in enumerate(self._view) if ids.intersection(keys)]
        if places:
            self._closed.append(tuple(message for _, message in self._view))
            self._view = [(keys, m.copied(message)) for keys, message in self._view if not ids.intersection(keys)]
            if isinstance(summary, str) and summary:
                self._view.insert(places[0], ((None,), Message(role="user", content=summary)))

    def segments(self) -> list[tuple[Message, ...]]:
        """All segments with a turn of their own, and the last."""
        own = [part for part in self._closed if any(x.role == "assistant" and x.excluded != COPIED for x in part)]
        return [*own, tuple(message for _, message in self._view)]


def _add(history: _History, event: Object, where: str) -> JsonValue:
    """One event of either version; gives the tools where it says them with their names: later SDKs do not."""
    kind = event.get("kind") or event.get("action") or event.get("observation")
    if not isinstance(kind, str) or kind in _UNSEEN:
        return None
    args: Object = event["args"] if isinstance(event.get("args"), dict) else event
    key, meta = name_of(event.get("id")), event.get("tool_call_metadata")
    if kind in ("SystemPromptEvent", "system"):
        parts = [*_list(event.get("system_prompt")), *_list(event.get("dynamic_context")), *_list(args.get("content"))]
        history.add(key, Message(role="system", content=m.read_content(parts, f"{where}: system prompt").text))
        tools = _list(args.get("tools"))
        return tools if all("name" in tool or "function" in tool for tool in tools if isinstance(tool, dict)) else None
    if kind in ("Condensation", "condensation"):
        ids, start, end = (args.get(f"forgotten_event{name}") for name in ("_ids", "s_start_id", "s_end_id"))
        if isinstance(start, int) and isinstance(end, int):
            ids = list(range(start, min(end, start + 100_000) + 1))
        history.forget({str(item) for item in _list(ids)}, args.get("summary"))
    elif kind in ("MessageEvent", "message"):
        by_agent = event["source"] == "agent" if "source" in event else history.awaits_model
        plain = {"role": "assistant" if by_agent else "user", **args}
        told: Object = expect(event.get("llm_message") or plain, dict, f"{where}: llm_message")
        parts = [*_list(told.get("content")), *_list(event.get("extended_content"))]
        parts += [{"type": "image_url"}] if args.get("image_urls") or args.get("images_urls") else []
        history.add(key, read_message({**told, "content": parts}, where))
    elif kind in ("ActionEvent", event.get("action")):
        if event.get("source") == "user":
            history.add(key, Message(role="user", content=f"User executed {kind}: {json.dumps(_written(args))}"))
        else:
            _act(history, key, event, args, where)
    elif "tool_call_id" in event or kind == event.get("observation"):
        call = name_of(event.get("tool_call_id") or dig(meta, "tool_call_id"))
        history.answer(key, call or name_of(event.get("cause")), _result(event, where), keep=call is not None)
    return None


def _act(history: _History, key: str | None, event: Object, args: Object, where: str) -> None:
    """An action of the model: the response that it came with, else a call put together from its fields."""
    meta = event.get("tool_call_metadata")
    response = dig(meta, "model_response")
    message = dig(response, "choices", 0, "message")
    if not isinstance(message, dict) or not message.get("tool_calls"):
        call = event.get("tool_call") or {
            "id": event.get("tool_call_id") or dig(meta, "tool_call_id") or key,
            "name": event.get("tool_name") or dig(meta, "function_name") or event.get("action"),
            "arguments": _written(event["action"] if isinstance(event.get("action"), dict) else args),
        }
        message = {**event, "content": args.get("thought") or None, "tool_calls": [call]}
    name = name_of(event.get("llm_response_id") or dig(response, "id"))
    history.say(key, name, read_message({**message, "role": "assistant"}, where))


def _written(args: Object) -> Object:
    return {name: value for name, value in args.items() if name not in _NOT_WRITTEN and value is not None}


def _list(value: JsonValue) -> list[JsonValue]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _result(event: Object, where: str) -> Message:
    """A result as the model is shown it: with where a command ran and how it ended, as far as the event says."""
    told: Object = next((event[key] for key in ("observation", "extras") if isinstance(event.get(key), dict)), event)
    keys = ("content", "output", "error")
    content = next((part[key] for key in keys for part in (event, told) if part.get(key)), None)
    if "rejection_reason" in event:
        content = f"Action rejected: {event['rejection_reason']}"
    message = read_message({"role": "tool", "content": [*_list(content), *_list(event.get("extended_content"))]}, where)
    meta: Object = told["metadata"] if isinstance(told.get("metadata"), dict) else {"exit_code": event.get("exit_code")}
    text = f"{meta.get('prefix') or ''}{message.content or ''}{meta.get('suffix') or ''}"
    for key, words in (("working_dir", "Current working directory"), ("py_interpreter_path", "Python interpreter")):
        text += f"\n[{words}: {meta[key]}]" if meta.get(key) else ""
    if meta.get("exit_code") not in (None, -1):
        text += f"\n[Command finished with exit code {meta['exit_code']}]"
    failed = event.get("observation") == "error" or bool({"error", "rejection_reason"} & event.keys())
    flag = told.get("is_error")
    return replace(message, content=text, error=failed or (flag if isinstance(flag, bool) else None))
