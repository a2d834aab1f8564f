"""Formats that are recognised and not read: a user gets the right reason instead of a guess."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pydantic import JsonValue

from pivotrl.trajectories.messages import Object, dig

_CODEX_TYPES: Final = {"session_meta", "response_item", "turn_context", "event_msg"}
_ANTHROPIC_PARTS: Final = {"tool_use", "tool_result", "server_tool_use", "redacted_thinking"}
_ADP: Final = "ADP standardised trajectory; not read yet"
_OPENHANDS: Final = "OpenHands events or conversation state; not read yet (its LLM completion logs are)"
_SWE_AGENT: Final = "SWE-agent .traj; not read yet"
_TAU2_EMPTY: Final = "tau2-bench results without simulations (a folder beside may hold them); give the simulation files"
_ONE_MESSAGE: Final = 'one message per record; put each conversation into one record: {"messages": [...]}'
_TOOLS: Final = "tool schemas, no trajectory; pass the file with --tools"
_SHAREGPT: Final = "ShareGPT conversations (from/value); not read yet"


def refusal(record: JsonValue) -> str | None:
    """Why a record is not read, when it is of a format that we know by sight."""
    if not isinstance(record, dict):
        return None
    return next((reason for looks, reason in _DIALECTS if looks(record)), None)


def _has(*keys: str) -> Callable[[Object], bool]:
    return lambda row: all(key in row for key in keys)


def _items(row: Object, *keys: str) -> list[Object]:
    value = next((row[key] for key in keys if isinstance(row.get(key), list)), None)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _part_with(row: Object, test: Callable[[Object], bool]) -> bool:
    return any(
        test(part) for message in _items(row, "messages", "conversations") for part in _items(message, "content")
    )


def _is_anthropic(row: Object) -> bool:
    return _part_with(row, lambda part: part.get("type") in tuple(_ANTHROPIC_PARTS))


def _is_llama_factory(row: Object) -> bool:
    return _part_with(row, lambda part: "value" in part and "text" not in part)


def _is_sharegpt(row: Object) -> bool:
    first = next(iter(_items(row, "conversations", "conversation", "messages")), {})
    return {"from", "value"} <= first.keys() or {"human", "assistant"} <= first.keys()


def _is_event(row: Object) -> bool:
    return "source" in row and ("action" in row or "observation" in row or "kind" in row)


def _is_openhands(row: Object) -> bool:
    history = _items(row, "history")
    return (
        _is_event(row)
        or any("action" in item and "role" not in item for item in history)
        or _has("agent", "workspace")(row)
    )


def _is_session_event(row: Object) -> bool:
    message = row.get("message")
    if isinstance(row.get("type"), str) and ("sessionId" in row or "leafUuid" in row or "parentUuid" in row):
        return True
    return isinstance(row.get("type"), str) and isinstance(message, dict) and "content" in message


def _is_query_response(row: Object) -> bool:
    return ("query" in row or "response" in row) and not isinstance(row.get("response"), dict) and "messages" not in row


def _is_lone_response(row: Object) -> bool:
    return "response" in row and "messages" not in row and "request" not in row


_DIALECTS: Final[tuple[tuple[Callable[[Object], bool], str], ...]] = (
    (_has("resourceSpans"), "OpenTelemetry traces; not read yet"),
    (lambda row: str(row.get("schema_version")).startswith("ATIF"), "ATIF trajectory; not read yet"),
    (lambda row: "payload" in row and row.get("type") in tuple(_CODEX_TYPES), "Codex rollout; not read yet"),
    (_is_session_event, "coding-agent session log (Claude Code style, one event per line); not read yet"),
    (lambda row: isinstance(dig(row, "message", "content"), list) and "role" in row, "Cursor transcript; not read yet"),
    (lambda row: "role" in row and "sessionID" in row, "OpenCode message file; not read yet"),
    (lambda row: any("type" in m and "role" not in m for m in _items(row, "messages")), "Gemini CLI log; not read yet"),
    (lambda row: "eval" in row and "status" in row, "Inspect AI log; not read yet"),
    (lambda row: any({"action", "observation"} <= i.keys() for i in _items(row, "trajectory")), _SWE_AGENT),
    (lambda row: any("class_" in item for item in _items(row, "content")), _ADP),
    (_is_openhands, _OPENHANDS),
    (_is_sharegpt, _SHAREGPT),
    (_is_llama_factory, "LLaMA-Factory messages (content parts with `value`); not read yet"),
    (_is_anthropic, "Anthropic content blocks (tool_use, tool_result); not read yet"),
    (_has("responses_create_params", "response"), "NeMo Gym rollout without an expected action; not read yet"),
    (_has("responses_create_params"), "NeMo Gym task without an expected action; give pivot rows or rollouts of tau2"),
    (_has("user_scenario", "evaluation_criteria"), "tau2-bench task list; it holds no trajectory"),
    (lambda row: "tasks" in row and dig(row, "info", "environment_info") is not None, _TAU2_EMPTY),
    (_has("messages_display"), "tau-bench few-shot display text; it holds no messages"),
    (_has("parser_results", "is_resolved"), "Terminal-Bench result (a score); it holds no trajectory"),
    (_has("query", "answers"), "xLAM rows (query/answers); not read yet"),
    (_has("question", "answer"), "questions and answers; no agent turns"),
    (_is_query_response, "query/response rows; not read yet: write them as `messages`"),
    (_is_lone_response, "a logged model response without its request"),
    (lambda row: isinstance(row.get("role"), str) and "content" in row, _ONE_MESSAGE),
    (
        lambda row: isinstance(row.get("function"), dict) or (bool(_items(row, "tools")) and "messages" not in row),
        _TOOLS,
    ),
)
