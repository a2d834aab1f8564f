"""`nemo_gym.multi_harness`: the server terminal_multi_harness of NeMo Gym 0.7.0.

By its app.py and common/: the action is of the demonstrated kind; any message with a visible character passes. A call's
arguments satisfy its tool's schema (no schema: 0), its name is equal, it has no argument that the demonstrated call
lacks, and the rule of harness and tool holds; any other harness or tool has no further check. Batches are sorted by
name and arguments and compared in pairs. Undecodable arguments on either side crash the server: unscored.

The server validates with openapi-schema-validator 0.6.3 (its pin), which is Draft 2020-12 but for one thing: a
`discriminator` beside `anyOf`, `oneOf` or `allOf` chooses by its mapping there, and is ignored here. Here a regular
expression of a schema is bounded (`schema.BACKTRACKS`): past the bound nothing is valid, nor with integers beyond 64
bits; and .3 is a multiple of .1, by floats it is none there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pivotrl.types import Action, Candidate, ToolCall, Verdict
from pivotrl.verifiers.base import check_range, judged
from pivotrl.verifiers.nemo_gym import MESSAGE, NO_ACTION, NemoGymVerifier, decoded, expected_kind, kind_of, ratio
from pivotrl.verifiers.schema import Schema, compiled

Arguments = Mapping[str, Any]
Rule = Callable[[Arguments, Arguments, float], str | None]
"""The fault of a call's arguments against the demonstrated ones (first), at a similarity threshold."""
Schemas = Mapping[str, dict[str, Any]]
_Clean = Callable[[str], str]
_OTHER_VALUE: Final = "argument_value_mismatch"


@dataclass(frozen=True, slots=True)
class MultiHarnessVerifier(NemoGymVerifier):
    string_similarity_threshold: float = 0.9
    """Least similarity of commands, code, queries and reasons; a row's `threshold` belongs here. NeMo Gym has no
    default; its configurations say 0.9."""
    harness: str = ""
    """`codex`, `opencode`, `agent006`, `stirrup`, or any other for none; empty: the trajectory's domain."""
    expected_type: str = ""
    """Type of the row's `expected_action`, for a batch of one call, which no single call satisfies; empty: as shown."""
    name = "nemo_gym.multi_harness"

    def __post_init__(self) -> None:
        check_range("string_similarity_threshold", self.string_similarity_threshold)

    def reward(self, candidate: Candidate, action: Action) -> Verdict:
        demonstration, kind = candidate.demonstration, kind_of(action)
        if kind == NO_ACTION:
            return judged(self, 0.0, "no_action_found")
        if kind != expected_kind(self.expected_type, demonstration):
            return judged(self, 0.0, "action_type_mismatch")
        if kind == MESSAGE:
            said = bool((action.text or "").strip())
            return judged(self, float(said), "expected_chat_message_found" if said else "empty_message")
        if len(demonstration.calls) != len(action.calls):
            return judged(self, 0.0, "function_call_batch_length_different")
        harness = self.harness or candidate.trajectory.domain or ""
        tools = candidate.trajectory.tools or ()
        schemas = {tool.name: tool.parameters for tool in tools if tool.parameters is not None}
        sides, batch = (demonstration.calls, action.calls), len(action.calls) > 1
        pairs = zip(*(sorted(calls, key=_sort_key) if batch else calls for calls in sides), strict=True)
        faults = (self._fault(harness, schemas, expected, call) for expected, call in pairs)
        fault = next(filter(None, faults), None)
        if fault is not None:
            return judged(self, 0.0, fault)
        return judged(self, 1.0, "expected_tool_call_batch" if batch else "expected_tool_call")

    def _fault(self, harness: str, schemas: Schemas, expected: ToolCall, call: ToolCall) -> str | None:
        """Why a call is not the expected one. Raises ValueError where either's arguments are no JSON object."""
        theirs, ours = (_decoded(one) for one in (expected, call))
        schema = schemas.get(call.name)
        if schema is None:
            return "tool_schema_not_found"
        ours = _coerced(ours, schema.get("properties"))
        if not _valid(ours, schema):
            return "tool_schema_validation_failed"
        if expected.name != call.name:
            return "unexpected_tool"
        if not ours.keys() <= theirs.keys():
            return "unexpected_argument_keys"
        rule = RULES.get((harness, call.name))
        return None if rule is None else rule(theirs, ours, self.string_similarity_threshold)


def _decoded(call: ToolCall) -> dict[str, Any]:
    value = json.loads(call.arguments or "")
    if not isinstance(value, dict):
        raise ValueError(f"arguments of {call.name} are a JSON {type(value).__name__}, not an object")
    return value


def _sort_key(call: ToolCall) -> tuple[str, str]:
    raw, value = call.arguments or "", decoded(call.arguments)
    return call.name, json.dumps(value, sort_keys=True, separators=(",", ":")) if isinstance(value, dict) else raw


def _coerced(arguments: dict[str, Any], properties: Any) -> dict[str, Any]:
    """The arguments; an array or object that came as its JSON text is itself, where its property says so."""
    schemas = properties if isinstance(properties, dict) else {}
    found = dict(arguments)
    for key in [key for key, value in arguments.items() if isinstance(value, str) and key in schemas]:
        match schemas[key], decoded(arguments[key]):
            case ({"type": "array"}, list(value)) | ({"type": "object"}, dict(value)):
                found[key] = value
    return found


def _valid(arguments: dict[str, Any], schema: dict[str, Any]) -> bool:
    """Nothing is valid under a schema that cannot be applied, as in the server."""
    ready = compiled(schema)
    return isinstance(ready, Schema) and ready.fault(arguments) is None


def _like(tool: str, key: str, clean: _Clean = str, said: Callable[[str], object] = lambda text: True) -> Rule:
    """Similar texts under a key, cleaned; a side without a text there, or one that says nothing, misses it."""

    def rule(theirs: Arguments, ours: Arguments, threshold: float) -> str | None:
        one, other = theirs.get(key), ours.get(key)
        if not (isinstance(one, str) and isinstance(other, str) and said(one) and said(other)):
            return f"{tool}_missing_{key}"
        return f"{tool}_{key}_similarity_below_threshold" if ratio(clean(one), clean(other)) < threshold else None

    return rule


def _same(*keys: str) -> Rule:
    """Equal values under all keys, by Python's `==`; absent ones are null."""

    def rule(theirs: Arguments, ours: Arguments, threshold: float) -> str | None:
        return None if all(theirs.get(key) == ours.get(key) for key in keys) else _OTHER_VALUE

    return rule


def _edit(theirs: Arguments, ours: Arguments, threshold: float) -> str | None:
    changes = ours.get("oldString") != ours.get("newString")
    return _same("filePath", "replaceAll")(theirs, ours, threshold) if changes else _OTHER_VALUE


def _update_plan(theirs: Arguments, ours: Arguments, threshold: float) -> str | None:
    plan = ours.get("plan")
    said = plan.strip() if isinstance(plan, str) else plan
    empty = said is None or (isinstance(said, str | list | dict) and not said)
    return "update_plan_empty_plan" if empty else None


def _return_result(theirs: Arguments, ours: Arguments, threshold: float) -> str | None:
    one, other = (json.dumps(arguments.get("result"), sort_keys=True) for arguments in (theirs, ours))
    return "return_result_similarity_below_threshold" if ratio(one, other) < threshold else None


def _todowrite(theirs: Arguments, ours: Arguments, threshold: float) -> str | None:
    wanted, made = theirs.get("todos"), ours.get("todos")
    if wanted == []:
        return None if made == [] else _OTHER_VALUE
    if not isinstance(wanted, list) or not isinstance(made, list):
        return "todowrite_empty_todos"
    same = len(wanted) == len(made) and all(map(_same_todo, wanted, made))
    return None if same else _OTHER_VALUE


def _same_todo(one: Any, other: Any) -> bool:
    both = isinstance(one, dict) and isinstance(other, dict)
    return both and all(one.get(key) == other.get(key) for key in ("status", "priority"))


def _fetch_web_page(theirs: Arguments, ours: Arguments, threshold: float) -> str | None:
    one, other = theirs.get("url"), ours.get("url")
    if not (isinstance(one, str) and isinstance(other, str) and one and other):
        return "fetch_web_page_missing_url"
    return None if _web_text(one) == _web_text(other) else "fetch_web_page_urls_do_not_match"


def _finish(theirs: Arguments, ours: Arguments, threshold: float) -> str | None:
    reason = _REASON(ours, theirs, threshold)  # in this order, which changes the ratio
    if reason == "finish_missing_reason":
        return reason
    paths: list[Any] = [arguments.get("paths") for arguments in (theirs, ours)]
    if not all(isinstance(some, list) and some and all(isinstance(path, str) for path in some) for some in paths):
        return "finish_missing_paths"
    one, other = (sorted(path.strip() for path in some) for some in paths)
    return reason if one == other else "finish_paths_do_not_match"


def _execute_python(theirs: Arguments, ours: Arguments, threshold: float) -> str | None:
    fault = _CODE(theirs, ours, threshold)
    return _OTHER_VALUE if fault == "execute_python_missing_code" else fault


def _command(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n").strip()


def _web_text(text: str) -> str:
    return text.lower().strip()


_CODE: Final = _like("execute_python", "code", said=str.strip)
_REASON: Final = _like("finish", "reason", _web_text, bool)
RULES: Final[Mapping[tuple[str, str], Rule]] = {
    ("codex", "exec_command"): _like("exec_command", "cmd", _command),
    ("codex", "update_plan"): _update_plan,
    ("opencode", "bash"): _like("bash", "command", _command),
    ("opencode", "todowrite"): _todowrite,
    ("opencode", "read"): _same("filePath"),
    ("opencode", "write"): _same("filePath"),
    ("opencode", "edit"): _edit,
    ("opencode", "glob"): _same("pattern", "path"),
    ("opencode", "grep"): _same("pattern", "path", "include"),
    ("opencode", "webfetch"): _same("url", "format"),
    ("opencode", "skill"): _same("name"),
    ("opencode", "task"): _same("subagent_type"),
    ("agent006", "execute_python"): _execute_python,
    ("agent006", "return_result"): _return_result,
    ("stirrup", "code_exec"): _like("exec_command", "cmd", _command),
    ("stirrup", "web_search"): _like("web_search", "query", _web_text, bool),
    ("stirrup", "fetch_web_page"): _fetch_web_page,
    ("stirrup", "finish"): _finish,
}
"""By harness and tool, as the server's rule books have it; a call that has none is not checked further."""
