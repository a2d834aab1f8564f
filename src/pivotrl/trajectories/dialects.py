"""Formats that are recognised and not read: a user gets the right reason instead of a guess."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pydantic import JsonValue

from pivotrl.trajectories.messages import Object, dig
from pivotrl.trajectories.openai_chat import CONTAINERS

_STREAMS: Final = ("thread.started", "step_start", "turn.started", "item.started", "item.completed")
_STREAM: Final = "output of `codex exec --json` or `opencode run`, without prompts; give the rollout or the export"
_TAU2_EMPTY: Final = "tau2-bench results without simulations (a folder beside may hold them); give the simulation files"
_ONE_MESSAGE: Final = 'one message per record; put each conversation into one record: {"messages": [...]}'


def refusal(record: JsonValue) -> str | None:
    """Why a record is not read, when it is of a format that we know by sight."""
    if not isinstance(record, dict):
        return None
    return next((reason for looks, reason in _DIALECTS if looks(record)), None)


def _bare(row: Object) -> bool:
    """Whether a row holds no conversation, whatever else it says."""
    return not any(key in row for key in CONTAINERS)


def _has(*keys: str) -> Callable[[Object], bool]:
    return lambda row: all(key in row for key in keys) and _bare(row)


def _items(row: Object, *keys: str) -> list[Object]:
    """The objects in the first of these fields that is a list."""
    value: list[JsonValue] = next((row[key] for key in keys if isinstance(row.get(key), list)), [])
    return [item for item in value if isinstance(item, dict)]


def _is_tool_list(row: Object) -> bool:
    return isinstance(row.get("function"), dict) or (bool(_items(row, "tools")) and _bare(row))


_DIALECTS: Final[tuple[tuple[Callable[[Object], bool], str], ...]] = (
    (_has("resourceSpans"), "OpenTelemetry traces; not read yet"),
    (_has("result", "custom_id"), "Anthropic batch result without its request; put it into the row of its `params`"),
    (lambda row: row.get("type") in _STREAMS and "uuid" not in row, _STREAM),
    (lambda row: "type" in row and isinstance(row.get("data"), dict), "Copilot CLI events; not read yet"),
    (lambda row: isinstance(dig(row, "message", "content"), list) and "role" in row, "Cursor transcript; not read yet"),
    (_has("role", "sessionID"), "OpenCode message without its parts; give the storage folder, or `opencode export`"),
    (lambda row: any("type" in m and "role" not in m for m in _items(row, "messages")), "Gemini CLI log; not read yet"),
    (_has("eval", "status"), "Inspect AI log; not read yet"),
    (lambda row: any("class_" in i for i in _items(row, "content")), "ADP standardised trajectory; not read yet"),
    (_has("agent", "workspace"), "OpenHands conversation state; give the folder that holds it and `events`"),
    (
        lambda row: any("actorType" in i for i in _items(row, "entries")),
        "what a viewer shows of events; give the events",
    ),
    (_has("responses_create_params"), "NeMo Gym task without an action or a response; give pivot rows or rollouts"),
    (_has("user_scenario", "evaluation_criteria"), "tau2-bench task list; it holds no trajectory"),
    (lambda row: "tasks" in row and dig(row, "info", "environment_info") is not None, _TAU2_EMPTY),
    (_has("messages_display"), "tau-bench few-shot display text; it holds no messages"),
    (_has("parser_results", "is_resolved"), "Terminal-Bench result (a score); it holds no trajectory"),
    (_has("model_patch", "model_name_or_path"), "SWE-bench prediction (a patch); it holds no trajectory"),
    (_has("question", "answer"), "questions and answers; no agent turns"),
    (_has("question", "function"), "BFCL questions; the answers lie in another file, and no model gave them"),
    (
        lambda row: _bare(row) and "request" not in row and ("response" in row or "output" in row),
        "a logged model response without its request",
    ),
    (lambda row: isinstance(row.get("role"), str) and "content" in row, _ONE_MESSAGE),
    (lambda row: any(row.get(key) == [] for key in CONTAINERS[1:]), "an empty conversation; nothing to learn from"),
    (_is_tool_list, "tool schemas, no trajectory; pass the file with --tools"),
)
