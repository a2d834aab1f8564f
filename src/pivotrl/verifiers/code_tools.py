"""The editing tools of coding agents in one table, and what a call of one of them does to which file.

A row: harness, tool names, value of `command` (- for none), kind of act, and the arguments as role=name, `?` for
optional ones. A tool may have several rows: the first that the arguments fit says what the call does. An act without a
path is on the file that is open.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Final

from pydantic import JsonValue

from pivotrl.types import ToolCall
from pivotrl.verifiers.base import Refusal, arguments_of

_EDITOR: Final = "str_replace_editor|file_editor|str_replace_based_edit_tool"
_TABLE: Final = f"""
editor   {_EDITOR} view view path=path range=view_range?
editor   {_EDITOR} create create path=path text=file_text
editor   {_EDITOR} str_replace replace path=path old=old_str text=new_str?
editor   {_EDITOR} insert insert path=path line=insert_line text=new_str
editor   str_replace_based_edit_tool insert insert path=path line=insert_line text=insert_text
editor   {_EDITOR} undo_edit undo path=path
claude   Edit - replace path=file_path old=old_string text=new_string every=replace_all?
claude   MultiEdit - edits path=file_path edits=edits
claude   Write - write path=file_path text=content
claude   Read - view path=file_path start=offset? limit=limit?
opencode edit - replace path=filePath old=oldString text=newString every=replaceAll?
opencode write - write path=filePath text=content
opencode read - view path=filePath start=offset? limit=limit?
opencode patch|apply_patch - patch patch=patchText
codex    apply_patch - patch patch=input
sweagent open - view path=path line=line_number?
sweagent goto - view line=line_number
sweagent scroll_up - scroll_up
sweagent scroll_down - scroll_down
sweagent create - create path=filename
sweagent edit - lines start=start_line end=end_line text=replacement_text
sweagent edit - replace old=search text=replace every=replace-all?
sweagent insert - insert line=line text=text
"""
UNWRITTEN: Final = frozenset({"view", "undo", "scroll_up", "scroll_down", "delete", "move"})
"""Kinds of acts that leave the content of files as it is."""
_PATCH: Final = re.compile(r"\*\*\* Begin Patch[ \t]*\n(.*\n)\*\*\* End Patch", re.DOTALL)
_FILE: Final = re.compile(r"^\*\*\* (Add|Update|Delete) File: (.*\S)[ \t]*\n(?:\*\*\* Move to: (.*\S)[ \t]*\n)?", re.M)
_ROWS: Final = re.compile(r"(?:(?:[ +-].*|@@.*|\*\*\* End of File)?\n)*")
_Shape = tuple[str, str, str, tuple[tuple[str, str, bool], ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """What a call does to one file. `start` to `end` are the lines that it shows or replaces, None: to the end.

    `line` is of a view the one that its window was opened for (0: none), of an insertion the one before. A hunk of a
    patch has its old and new lines in `old` and `text`, each after a newline, and is looked for below the `anchor`.
    """

    kind: str
    harness: str
    path: str = ""
    old: str = ""
    text: str = ""
    every: bool = False
    start: int = 1
    end: int | None = None
    line: int = 0
    anchor: str = ""
    to: str = ""


def _shapes(rows: list[str]) -> Mapping[str, list[_Shape]]:
    found: dict[str, list[_Shape]] = {}
    for harness, names, command, kind, *arguments in map(str.split, rows):
        pairs = [(argument.rstrip("?").partition("="), argument[-1] != "?") for argument in arguments]
        roles = tuple((role, name, needed) for (role, _, name), needed in pairs)
        for name in names.split("|"):
            found.setdefault(name, []).append((harness, command.strip("-"), kind, roles))
    return found


SHAPES: Final = _shapes(_TABLE.strip().splitlines())


@lru_cache(maxsize=512)
def read_call(call: ToolCall) -> list[Act] | Refusal:
    """What a call does, or why nothing can be said: `wrong_tool` where it is of no tool of the table."""
    shapes, arguments = SHAPES.get(call.name), arguments_of(call)
    if shapes is None:
        return "wrong_tool", f"{call.name} edits no file"
    if arguments.value is None:
        return "bad_arguments", f"{call.name}: {arguments.error}"
    fault = "no such command"
    for shape in shapes:
        acts = _acts(shape, arguments.value) if shape[1] in ("", arguments.value.get("command")) else fault
        if isinstance(acts, list):
            return acts
        fault = acts
    return "invalid_arguments", f"{call.name}: {fault}"


def _acts(shape: _Shape, arguments: Mapping[str, JsonValue]) -> list[Act] | str:
    """The acts of a call of this shape, or what is wrong with its arguments."""
    harness, _, kind, roles = shape
    values: dict[str, Any] = {}
    for role, name, needed in roles:
        given = arguments.get(name)
        if given is not None:
            values[role] = _CHECKS[role](given)
        if values.get(role) is None and (needed or given is not None):
            return f"{name} is {'missing' if given is None else f'no {role}'}"
    if kind == "patch":
        return _patch(values["patch"], harness)
    if kind == "edits":
        found = [_acts(SHAPES["Edit"][0], {**item, "file_path": values["path"]}) for item in values["edits"]]
        fault = next((one for one in found if isinstance(one, str)), None)
        return fault or [act for one in found if isinstance(one, list) for act in one]
    if kind == "view":
        values["start"], end = values.pop("range", (values.get("start", 1), -1))
        if "limit" in values:
            end = max(values["start"], 1) + values.pop("limit") - 1
        if "line" in values:  # what SWE-agent's window shows
            values["start"], end = values["line"] - 17, values["line"] + 82
        values |= {"start": max(values["start"], 1), "end": None if end == -1 else end}
    creates = kind == "replace" and not values["old"] and harness in ("claude", "opencode")
    return [Act(kind="create" if creates else kind, harness=harness, **values)]


def _integers(*values: JsonValue) -> list[int] | None:
    good = all(isinstance(one, str | int) and re.fullmatch(r"-?[0-9]{1,9}", str(one)) for one in values)
    return [int(str(one)) for one in values] if good else None


_CHECKS: Final[Mapping[str, Callable[[JsonValue], Any]]] = {
    "path": lambda one: one if isinstance(one, str) and one.strip() else None,
    **dict.fromkeys(("old", "text", "patch"), lambda one: one.replace("\r\n", "\n") if isinstance(one, str) else None),
    **dict.fromkeys(("start", "end", "line", "limit"), lambda one: next(iter(_integers(one) or ()), None)),
    "every": lambda one: one if isinstance(one, bool) else None,
    "range": lambda one: _integers(*one) if isinstance(one, list) and len(one) == 2 else None,
    "edits": lambda one: one if isinstance(one, list) and one and all(isinstance(item, dict) for item in one) else None,
}


def _patch(text: str, harness: str) -> list[Act] | str:
    """The acts of a patch in the syntax of Codex, or what is wrong with it."""
    whole = _PATCH.fullmatch(text.strip())
    first, *parts = _FILE.split(whole[1]) if whole else ["?"]
    if first.strip() or not parts:
        return "no patch from *** Begin Patch to *** End Patch"
    acts: list[Act] = []
    for kind, path, to, body in zip(*(parts[at::4] for at in range(4)), strict=True):
        act = partial(Act, harness=harness, path=path)
        pieces = re.split(r"^@@(.*)\n", f"@@\n{body}", flags=re.M)[1:]
        pairs = [(anchor.strip(), rows) for anchor, rows in zip(pieces[0::2], pieces[1::2], strict=True) if rows]
        hunks = [act(kind="hunk", anchor=anchor, old=_side(rows, "+"), text=_side(rows, "-")) for anchor, rows in pairs]
        bare = not any(hunk.anchor or hunk.old for hunk in hunks)
        if not _ROWS.fullmatch(body) or not {"Add": bare, "Update": hunks or to, "Delete": not hunks}[kind]:
            return f"no {kind.lower()} of {path}"
        if kind == "Update":
            acts += [*hunks, act(kind="move", to=to)] if to else hunks
        else:
            text = "".join(hunk.text for hunk in hunks)[1:] + "\n"
            acts.append(act(kind="write" if kind == "Add" else "delete", text=text))
    return acts


def _side(body: str, other: str) -> str:
    rows = [row.rstrip() or " " for row in body.split("\n")[:-1] if row != "*** End of File"]
    return "".join(f"\n{row[1:]}" for row in rows if row[0] != other)
