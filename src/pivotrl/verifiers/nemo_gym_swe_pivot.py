"""`nemo_gym.swe_pivot`: the server swe_pivot of NeMo Gym 0.7.0.

By its app.py: the first call alone is judged, level by level. Its name is equal but for case or of the same category;
its target is the same; its edit or command is similar over the first 2000 characters; in continuous mode a long edit
costs a little. Argument names of OpenCode (`filePath`) and Codex (`input`) are not known, so such edits all pass.
Undecodable arguments are the empty object; what the levels cannot handle (a list of arguments) is 0, `unknown_error`.
Earlier releases than 0.7.0 accepted a missing `command`. The paper's coarse mode: enable_target_match=false and
enable_argument_similarity=false.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

from pivotrl.types import Action, Candidate, ToolCall, Verdict
from pivotrl.verifiers.base import check_choice, check_range, judged
from pivotrl.verifiers.nemo_gym import CALL, MESSAGE, NemoGymVerifier, decoded, expected_kind, ratio

Mode = Literal["binary", "continuous"]
_COMPARED: Final = 2000
_LONG_EDIT: Final = 500
_COMMAND_FLOOR: Final = 0.3
_VIEW_COVERED: Final = 0.8
_PATH_KEYS: Final = ("path", "file", "file_path", "filename", "file_name")
_COMMAND_KEYS: Final = ("command", "cmd")
_CONTENT_KEYS: Final = ("patch", "diff", "content", "file_text")
_PATH: Final = re.compile(r"(?:^|[\s='\"(])((?:/[\w.-]+)+|[\w.-]+/[\w./-]+)")
_ALIASES: Final = {
    "edit": """str_replace_editor text_editor file_editor code_editor edit_file modify_file update_file file_edit edit
        modify apply_patch patch_file apply_diff apply_changes write write_file save_file create_file""",
    "bash": """execute_bash run_bash bash_exec shell_run shell bash terminal shell_command shell_cmd run_shell_cmd
        exec_command exec_cmd""",
    "search": """grep search_text find_pattern text_search glob find_files file_glob match_files grep_files search_files
        find_in_files code_search list_dir ls show_dir ls_dir list_directory""",
    "read": "read read_file view_file cat_file view file_view inspect show_file read_file_content",
    "finish": "finish submit",
    "think": "think",
    "planning": """task_tracker todo_tracker plan_tracker todo_read todo_write update_plan list_tasks update_tasks
        read_todos write_todos edit_plan modify_plan""",
}
_CATEGORIES: Final = {
    spelling: category
    for category, names in _ALIASES.items()
    for name in names.split()
    for spelling in (name, name.replace("_", ""))
}
"""Names in lower case, also without underscores: CamelCase."""


@dataclass(frozen=True, slots=True)
class SwePivotVerifier(NemoGymVerifier):
    reward_mode: Mode = "binary"
    """0 or 1, or partial credit between the two similarity thresholds."""
    enable_target_match: bool = True
    """Level 1: sub-command, file and viewed lines of an edit; first word and paths of a command; file of a read."""
    enable_argument_similarity: bool = True
    """Level 2: similarity of edits and commands; all else counts as equal."""
    similarity_threshold: float = 0.4
    """Continuous mode: similarity that is worth 0.5; nothing below."""
    similarity_full_credit: float = 0.8
    """Similarity that is worth 1."""
    enable_diff_size_shaping: bool = True
    """Continuous mode: whether long edits cost."""
    diff_size_alpha: float = 0.1
    """Share of the reward that an edit of 500 characters or more loses; shorter ones lose less, none loses nothing."""
    expected_type: str = ""
    """Type of the row's `expected_action`, for a batch of one call, which no call satisfies; empty: as shown."""
    name = "nemo_gym.swe_pivot"

    def __post_init__(self) -> None:
        check_choice("reward_mode", self.reward_mode, get_args(Mode))
        check_range("similarity_threshold", self.similarity_threshold)
        check_range("similarity_full_credit", self.similarity_full_credit)
        check_range("diff_size_alpha", self.diff_size_alpha, 1.0)

    def reward(self, candidate: Candidate, action: Action) -> Verdict:
        try:
            expected = self._expected(candidate.demonstration)
            if expected is None:
                return judged(self, 0.0, "expected_action_invalid")
            theirs = decoded(expected.arguments, {})
            if not action.calls:
                return judged(self, 0.0, "model_output_invalid")
            return self._levels(expected.name, theirs, action.calls[0])
        except Exception as error:  # the server's own: whatever its levels cannot handle earns nothing
            return judged(self, 0.0, "unknown_error", f"{type(error).__name__}: {error}")

    def _expected(self, demonstration: Action) -> ToolCall | None:
        """The one demonstrated call, or the one that a demonstrated text (`expected_answer`) is the JSON of."""
        kind = expected_kind(self.expected_type, demonstration)
        if kind == CALL and demonstration.calls:
            return demonstration.calls[0]
        answer = decoded(demonstration.text) if kind == MESSAGE else None
        if not isinstance(answer, dict) or answer.get("type") != CALL or not isinstance(answer.get("name"), str):
            return None
        given = answer.get("arguments", "")
        return ToolCall(name=answer["name"], arguments=given if isinstance(given, str) else json.dumps(given))

    def _levels(self, name: str, theirs: Any, call: ToolCall) -> Verdict:
        ours = decoded(call.arguments, {})
        category, wanted = (_CATEGORIES.get(one.lower(), "") for one in (call.name, name))
        if call.name.lower() != name.lower() and (not category or category != wanted):
            return judged(self, 0.0, "tool_name_mismatch")
        if self.enable_target_match and not _same_target(category, ours, theirs):
            return judged(self, 0.0, "target_mismatch")
        value, detail = 1.0, ""
        if self.enable_argument_similarity:
            score = _similarity(category, ours, theirs)
            value, detail = self._credit(score), f"similarity {score:.3f}"
            if not value:
                return judged(self, value, "similarity_below_threshold", detail)
        if self.enable_diff_size_shaping and self.reward_mode == "continuous" and category == "edit":
            value *= 1.0 - self.diff_size_alpha * min(len(_content(ours)) / _LONG_EDIT, 1.0)
        return judged(self, value, "none", detail)

    def _credit(self, score: float) -> float:
        low, full = self.similarity_threshold, self.similarity_full_credit
        if score >= full:
            return 1.0
        return 0.0 if self.reward_mode == "binary" or score < low else 0.5 + 0.5 * (score - low) / (full - low)


def _same_target(category: str, ours: Any, theirs: Any) -> bool:
    if category == "edit":
        return _same_edit_target(ours, theirs)
    if category == "bash":
        return _same_command_target(_first(ours, _COMMAND_KEYS), _first(theirs, _COMMAND_KEYS))
    return category not in ("search", "read") or _same_path(ours, theirs, 3)


def _same_edit_target(ours: Any, theirs: Any) -> bool:
    one, other = (str(arguments.get("command", "")) for arguments in (ours, theirs))
    if one != other or not _same_path(ours, theirs, 2):
        return False
    seen, wanted = (_lines(arguments.get("view_range")) for arguments in (ours, theirs))
    if one != "view" or seen is None or wanted is None:
        return True
    covered = max(0, min(seen[1], wanted[1]) - max(seen[0], wanted[0]))
    return covered / max(1, wanted[1] - wanted[0]) >= _VIEW_COVERED


def _lines(view: Any) -> tuple[int, int] | None:
    try:
        found = json.loads(view) if isinstance(view, str) else view
        return (int(found[0]), int(found[1])) if isinstance(found, list) and len(found) == 2 else None
    except (ValueError, TypeError):
        return None


def _same_command_target(one: str, other: str) -> bool:
    if not one or not other:
        return one == other
    verbs = {command.split()[0].rsplit("/", 1)[-1] for command in (one, other)}
    if len(verbs - {""}) > 1:
        return False
    ours, theirs = ({_ending(path, 3) for path in _paths(command)} - {""} for command in (one, other))
    return not (ours and theirs and ours.isdisjoint(theirs)) and _likeness(one, other) >= _COMMAND_FLOOR


def _paths(command: str) -> list[str]:
    return [path for path in _PATH.findall(command) if not path.startswith("--") and len(path) > 2]


def _same_path(ours: Any, theirs: Any, parts: int) -> bool:
    """Whether the last parts of both paths are equal; true where one side names none."""
    one, other = (_first(arguments, _PATH_KEYS) for arguments in (ours, theirs))
    return not one or not other or _ending(one, parts) == _ending(other, parts)


def _ending(path: str, parts: int) -> str:
    return "/".join(path.strip("/").split("/")[-parts:])


def _first(arguments: Any, keys: Iterable[str]) -> str:
    """The value under the first of the keys that is there, as text."""
    return next((str(arguments[key]) for key in keys if key in arguments), "").strip()


def _similarity(category: str, ours: Any, theirs: Any) -> float:
    if category == "bash":
        return _likeness(_first(ours, _COMMAND_KEYS), _first(theirs, _COMMAND_KEYS))
    if category != "edit":
        return 1.0
    old, new = ([str(side.get(key, "")) for side in (ours, theirs)] for key in ("old_str", "new_str"))
    if (old[0] or new[0]) and (old[1] or new[1]):
        return min(_likeness(*old), _likeness(*new))
    return _likeness(_content(ours), _content(theirs))


def _content(arguments: Any) -> str:
    """What an edit writes, for its similarity and its size."""
    if "new_str" in arguments:
        return f"{arguments.get('old_str', '')}\n{arguments['new_str']}"
    return next((str(arguments[key]) for key in _CONTENT_KEYS if key in arguments), "")


def _likeness(one: str, other: str) -> float:
    if not one or not other:
        return float(one == other)
    return ratio(one[:_COMPARED], other[:_COMPARED])
