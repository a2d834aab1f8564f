"""Formats that are recognised and not read: a user gets the right reason instead of a guess."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pydantic import JsonValue

from pivotrl.trajectories.langchain import message_of
from pivotrl.trajectories.messages import Object, dig
from pivotrl.trajectories.openai_chat import CONTAINERS

_STREAMS: Final = ("thread.started", "step_start", "turn.started", "item.started", "item.completed")
_STREAM: Final = "output of `codex exec --json` or `opencode run`, without prompts; give the rollout or the export"
_TAU2_EMPTY: Final = "tau2-bench results without simulations (a folder beside may hold them); give the simulation files"
_CURSOR: Final = "Cursor transcript; not read yet"
_GEMINI: Final = "Gemini CLI log; not read yet"
_LANGSMITH: Final = "LangSmith run without `outputs.generations`; give those of LangChain's chat models (type llm)"
_INSPECT: Final = "Inspect AI log; not read yet: write its samples as `messages`"
_ADP: Final = "ADP standardised trajectory; not read yet"
_SHOWN: Final = "what a viewer shows of events; give the events"
_EMPTY: Final = "an empty conversation; nothing to learn from"
_ONE_MESSAGE: Final = 'one message per record; put each conversation into one record: {"messages": [...]}'


def refusal(record: JsonValue) -> str | None:
    """Why a record is not read, when it is of a format that we know by sight."""
    if not isinstance(record, dict):
        return None
    keys = record.keys()
    return next((why for needed, looks, why in _DIALECTS if keys >= needed and looks(record)), None)


def _bare(row: Object) -> bool:
    """Whether a row holds no conversation, whatever else it says."""
    return not any(key in row for key in CONTAINERS)


def _items(row: Object, *keys: str) -> list[Object]:
    """The objects in the first of these fields that is a list."""
    value: list[JsonValue] = next((row[key] for key in keys if isinstance(row.get(key), list)), [])
    return [item for item in value if isinstance(item, dict)]


def _is_tool_list(row: Object) -> bool:
    return isinstance(row.get("function"), dict) or (bool(_items(row, "tools")) and _bare(row))


_DIALECTS: Final[tuple[tuple[set[str], Callable[[Object], bool], str], ...]] = (
    ({"resourceSpans"}, _bare, "OpenTelemetry traces; not read yet"),
    ({"result", "custom_id"}, _bare, "Anthropic batch result without its request; put it into the row of its `params`"),
    ({"type"}, lambda row: row["type"] in _STREAMS and "uuid" not in row, _STREAM),
    ({"type"}, lambda row: message_of(row) is not None, _ONE_MESSAGE),
    ({"run_type", "inputs"}, _bare, _LANGSMITH),
    ({"type", "data"}, lambda row: isinstance(row["data"], dict), "Copilot CLI events; not read yet"),
    ({"message", "role"}, lambda row: isinstance(dig(row["message"], "content"), list), _CURSOR),
    ({"role", "sessionID"}, _bare, "OpenCode message without its parts; give the storage folder, or `opencode export`"),
    ({"messages"}, lambda row: any("type" in m and "role" not in m for m in _items(row, "messages")), _GEMINI),
    ({"eval", "plan"}, _bare, _INSPECT),
    ({"epoch", "input", "scores"}, lambda row: "target" in row, _INSPECT),
    ({"content"}, lambda row: any("class_" in i for i in _items(row, "content")), _ADP),
    ({"agent", "workspace"}, _bare, "OpenHands conversation state; give the folder that holds it and `events`"),
    ({"entries"}, lambda row: any("actorType" in i for i in _items(row, "entries")), _SHOWN),
    ({"responses_create_params"}, _bare, "NeMo Gym task without an action or a response; give pivot rows or rollouts"),
    ({"verifier", "verifier_id", "inputs"}, _bare, "what an export of ours says of itself; it holds no trajectory"),
    ({"user_scenario", "evaluation_criteria"}, _bare, "tau2-bench task list; it holds no trajectory"),
    ({"tasks", "info"}, lambda row: dig(row, "info", "environment_info") is not None, _TAU2_EMPTY),
    ({"messages_display"}, _bare, "tau-bench few-shot display text; it holds no messages"),
    ({"parser_results", "is_resolved"}, _bare, "Terminal-Bench result (a score); it holds no trajectory"),
    ({"model_patch", "model_name_or_path"}, _bare, "SWE-bench prediction (a patch); it holds no trajectory"),
    ({"question", "answer"}, _bare, "questions and answers; no agent turns"),
    ({"question", "function"}, _bare, "BFCL questions; the answers lie in another file, and no model gave them"),
    (
        set(),
        lambda row: ("response" in row or "output" in row) and _bare(row) and "request" not in row,
        "a logged model response without its request",
    ),
    ({"role", "content"}, lambda row: isinstance(row["role"], str), _ONE_MESSAGE),
    (set(), lambda row: any(row.get(key) == [] for key in CONTAINERS[1:]), _EMPTY),
    (set(), _is_tool_list, "tool schemas, no trajectory; pass the file with --tools"),
)
"""The keys that such a record has, what else it looks like, and why it is not read."""
