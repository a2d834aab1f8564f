"""Formats that are recognised and not read: a user gets the right reason instead of a guess."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pydantic import JsonValue

from pivotrl.trajectories.messages import Object, dig

_CODEX_TYPES: Final = ("session_meta", "response_item", "turn_context", "event_msg")
_ANTHROPIC_PARTS: Final = ("tool_use", "tool_result", "server_tool_use", "redacted_thinking")
_SESSION_KEYS: Final = ("sessionId", "leafUuid", "parentUuid")
_OPENHANDS: Final = "OpenHands events or conversation state; not read yet (its LLM completion logs are)"
_TAU2_EMPTY: Final = "tau2-bench results without simulations (a folder beside may hold them); give the simulation files"
_ONE_MESSAGE: Final = 'one message per record; put each conversation into one record: {"messages": [...]}'


def refusal(record: JsonValue) -> str | None:
    """Why a record is not read, when it is of a format that we know by sight."""
    if not isinstance(record, dict):
        return None
    return next((reason for looks, reason in _DIALECTS if looks(record)), None)


def _has(*keys: str) -> Callable[[Object], bool]:
    return lambda row: all(key in row for key in keys)


def _items(row: Object, *keys: str) -> list[Object]:
    """The objects in the first of these fields that is a list."""
    value: list[JsonValue] = next((row[key] for key in keys if isinstance(row.get(key), list)), [])
    return [item for item in value if isinstance(item, dict)]


def _parts(row: Object) -> list[Object]:
    return [part for message in _items(row, "messages", "conversations") for part in _items(message, "content")]


def _is_sharegpt(row: Object) -> bool:
    first = next(iter(_items(row, "conversations", "conversation", "messages")), {})
    return {"from", "value"} <= first.keys() or {"human", "assistant"} <= first.keys()


def _is_openhands(row: Object) -> bool:
    is_event = "source" in row and any(key in row for key in ("action", "observation", "kind"))
    old = any("action" in item and "role" not in item for item in _items(row, "history"))
    return is_event or old or {"agent", "workspace"} <= row.keys()


def _is_session_event(row: Object) -> bool:
    message = row.get("message")
    named = any(key in row for key in _SESSION_KEYS) or (isinstance(message, dict) and "content" in message)
    return isinstance(row.get("type"), str) and named


def _is_query_response(row: Object) -> bool:
    return ("query" in row or "response" in row) and not isinstance(row.get("response"), dict) and "messages" not in row


def _is_tool_list(row: Object) -> bool:
    return isinstance(row.get("function"), dict) or (bool(_items(row, "tools")) and "messages" not in row)


_DIALECTS: Final[tuple[tuple[Callable[[Object], bool], str], ...]] = (
    (_has("resourceSpans"), "OpenTelemetry traces; not read yet"),
    (lambda row: str(row.get("schema_version")).startswith("ATIF"), "ATIF trajectory; not read yet"),
    (lambda row: "payload" in row and row.get("type") in _CODEX_TYPES, "Codex rollout; not read yet"),
    (_is_session_event, "coding-agent session log (Claude Code style, one event per line); not read yet"),
    (lambda row: isinstance(dig(row, "message", "content"), list) and "role" in row, "Cursor transcript; not read yet"),
    (_has("role", "sessionID"), "OpenCode message file; not read yet"),
    (lambda row: any("type" in m and "role" not in m for m in _items(row, "messages")), "Gemini CLI log; not read yet"),
    (_has("eval", "status"), "Inspect AI log; not read yet"),
    (
        lambda row: any({"action", "observation"} <= item.keys() for item in _items(row, "trajectory")),
        "SWE-agent .traj; not read yet",
    ),
    (lambda row: any("class_" in i for i in _items(row, "content")), "ADP standardised trajectory; not read yet"),
    (_is_openhands, _OPENHANDS),
    (_is_sharegpt, "ShareGPT conversations (from/value); not read yet"),
    (
        lambda row: any("value" in part and "text" not in part for part in _parts(row)),
        "LLaMA-Factory messages (content parts with `value`); not read yet",
    ),
    (
        lambda row: any(part.get("type") in _ANTHROPIC_PARTS for part in _parts(row)),
        "Anthropic content blocks (tool_use, tool_result); not read yet",
    ),
    (_has("responses_create_params"), "NeMo Gym task without an expected action; give pivot rows or rollouts"),
    (_has("user_scenario", "evaluation_criteria"), "tau2-bench task list; it holds no trajectory"),
    (lambda row: "tasks" in row and dig(row, "info", "environment_info") is not None, _TAU2_EMPTY),
    (_has("messages_display"), "tau-bench few-shot display text; it holds no messages"),
    (_has("parser_results", "is_resolved"), "Terminal-Bench result (a score); it holds no trajectory"),
    (_has("query", "answers"), "xLAM rows (query/answers); not read yet"),
    (_has("question", "answer"), "questions and answers; no agent turns"),
    (_is_query_response, "query/response rows; not read yet: write them as `messages`"),
    (
        lambda row: "response" in row and "messages" not in row and "request" not in row,
        "a logged model response without its request",
    ),
    (lambda row: isinstance(row.get("role"), str) and "content" in row, _ONE_MESSAGE),
    (_is_tool_list, "tool schemas, no trajectory; pass the file with --tools"),
)
