"""`code_edit`: calls of a coding agent's editing tools that do to each file what the demonstrated ones do (Eq. 6).

Departures from the paper, whose verifier for software engineering looks at the tool's name only (`tool_name`):
1. The calls of a turn are taken together. Where a file is known from earlier turns, or made anew, what comes of it
   must be the same, whatever tools of the harness led there. An old text that is not in it, or not once, is refused as
   the tool would. Known is what a numbered output showed whole, what was created, and what edits made of it; it is
   forgotten at an edit whose outcome cannot be told, at `undo`, and all is at a call of another tool that looks as if
   it wrote (`sed -i`, `>`, `git checkout`, ...).
2. Edits of an unknown file must be of one kind and pair off: the old text of one holds that of the other and both make
   the same of it, or both put the same at the same lines.
   The same: but for blanks at the ends of lines, empty lines, and lines with nothing but a comment (of plain text, in
   the languages of `_COMMENTS`), unless nothing else was to change.
3. A view must show the demonstrated lines (SWE-agent's window: the demonstrated line) and at most `max_extra_lines`
   more; one to the end of a file of unknown length passes.
4. Arguments outside the table of tools are not compared; tool schemas hold.
Holes: 5. What a shell wrote and did not look like it. 6. What looks like a comment in a string; an empty line that
counts. 7. Looser searches, of OpenCode and Codex, are not followed; hunks are looked for from the top.
8. `cat f` for a view, or a patch through a shell, is refused. 9. No view of a part is remembered.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice, takewhile
from math import inf
from posixpath import normpath, splitext
from typing import Final

from pivotrl.types import Action, Candidate, Message, ToolCall, Verdict
from pivotrl.verifiers.base import BuiltIn, Refusal, check_range, decided, judged
from pivotrl.verifiers.code_tools import UNWRITTEN, Act, read_call
from pivotrl.verifiers.schema import schema_refusal
from pivotrl.verifiers.values import match

_GAP: Final = "\0"  # a part of a file that is not known; no edit finds anything in it
_COMMENTS: Final = {
    **dict.fromkeys((".py", ".pyi", ".rb", ".sh", ".bash", ".toml"), "#"),
    **dict.fromkeys((".c", ".cc", ".cpp", ".h", ".hpp", ".cs", ".go", ".java", ".js", ".kt", ".rs", ".swift"), "//"),
    ".ts": "//",
}
_NO_COMMENT: Final = re.compile(r"""["'`${}*\\]|coding[:=]""")  # it may end what is around the line, or run
_ROOTS: Final = ("/testbed", "/workspace", "/repo", "/app")  # where relative paths start, if nothing else says it
_ROOT: Final = re.compile(r"(?:<uploaded_files>|<cwd>|\b(?:current|working) directory:?)\s*(/[^\s`'\")\]<]+)", re.I)
_OPEN: Final = re.compile(r"\(Open file: (/[^)\n]*)\)")
_LINE: Final = re.compile(r"^ *(\d{1,7})(?:\t|→|\| ?)(.*)$|^(\d{1,7}):(.*)$", re.M)
_CLIPPED: Final = re.compile(r"<response clipped>|<NOTE>|\(\d+ more lines|\((?:File has more|Output (?:capped|trunc))")
_DONE: Final = re.compile(r"success|applied|replaced|(?:has been|file) (?:edited|updated|created)|\A\[File: ", re.I)
_FAILED: Final = re.compile(r"\A\W*(?:error|invalid|fail|no )|_error>|syntax error|\bnot (?:applied|found)", re.I)
_WRITES: Final = re.compile(
    r"(?<![0-9&=-])>(?!&|\s*/dev/null)|\b(?:sed|perl)\b[^|;&]{0,999}? -\w{0,99}i|"
    r"\b(?:tee|mv|cp|rm|patch|black)\b|write|--fix|"
    r"\bgit (?:checkout|stash|apply|reset|restore|clean|pull|merge|rebase|revert)"
)


@dataclass(frozen=True, slots=True)
class CodeEditVerifier(BuiltIn):
    max_extra_lines: float = 100.0
    """How many lines more than demonstrated a view may show."""
    name = "code_edit"
    version = "2"

    def __post_init__(self) -> None:
        check_range("max_extra_lines", self.max_extra_lines)

    def __call__(self, candidate: Candidate, action: Action) -> Verdict:
        """1 for the same effect on the same files, 0 for another, unscored where other tools were demonstrated, too."""
        theirs, fault = _read(candidate.demonstration.calls)
        if not theirs:
            reason, text = fault or ("wrong_tool", "no call was demonstrated")
            return judged(self, None, "not_applicable" if reason == "wrong_tool" else "bad_demonstration", text)
        ours, fault = _read(action.calls)
        world = _worlds(candidate.trajectory.messages)[candidate.turn]
        return decided(self, fault or schema_refusal(candidate, action) or self._refusal(world, theirs, ours))

    def _refusal(self, world: World, theirs: Sequence[Act], ours: Sequence[Act]) -> Refusal | None:
        """Why the acts have another effect."""
        folders = (root for act in theirs for root in _ROOTS if act.path.startswith(f"{root}/"))
        world = replace(world, root=world.root or next(folders, ""))
        wanted, found = world.by_file(theirs), world.by_file(ours)
        text = f"{', '.join(map(' '.join, found)) or 'message'} instead of {', '.join(map(' '.join, wanted))}"
        if {family for family, *_ in found} != {family for family, *_ in wanted}:
            return "wrong_kind", text
        if {act.harness for act in ours} != {act.harness for act in theirs}:
            return "wrong_tool", "a tool of another harness"
        if found.keys() != wanted.keys():
            return "wrong_target", text
        refusals = (self._compared(key, world.files.get(key[1]), acts, found[key]) for key, acts in wanted.items())
        return next(filter(None, refusals), None)

    def _compared(self, key: tuple[str, ...], text: str | None, theirs: list[Act], ours: list[Act]) -> Refusal | None:
        """Why the acts of one family on one file have another effect."""
        family, path, _ = key
        if family == "change":
            wanted, made = _made(text, tuple(theirs)), _made(text, tuple(ours))
            if isinstance(wanted, str):
                same = isinstance(made, str) and _same(path, text or "", wanted, made)
                different = made if isinstance(made, tuple) else ("wrong_edit", "the file becomes another one")
                return None if same else different
        if len(theirs) != len(ours):
            return "missing_calls" if len(ours) < len(theirs) else "surplus_calls", f"{len(ours)} for {len(theirs)}"
        length = inf if text is None else text.count("\n") + 1
        losses = [[_loss(family, path, one, other, length) for one in theirs] for other in ours]
        if -1 not in match([[at for at, loss in enumerate(row) if loss <= self.max_extra_lines] for row in losses]):
            return None
        least = min(map(min, losses))
        found = "demonstrated ones are missing" if least == inf else f"{least:g} more"
        return ("wrong_edit", "another edit") if family == "change" else ("wrong_lines", found)


@dataclass(frozen=True, slots=True)
class World:
    """Files by path, the one that is open, and the folder that relative paths start from (empty: unknown)."""

    files: Mapping[str, str] = field(default_factory=dict)
    opened: str = ""
    root: str = ""

    def place(self, path: str, harness: str) -> str:
        """A path in its one form, without one the file that is open; tools of `editor` refuse relative ones."""
        absolute = path[:1] == "/" or not self.root or harness == "editor"
        return normpath(re.sub(r"\A/+", "/", path if absolute else f"{self.root}/{path}")) if path else self.opened

    def located(self, message: Message) -> World:
        """With the folder and the open file that a message names, the last ones, of a tool those at its end."""
        tail = (message.content or "")[-400 if message.role == "tool" else 0 :]
        root, opened = ([was, *found.findall(tail)][-1] for was, found in ((self.root, _ROOT), (self.opened, _OPEN)))
        return replace(self, root=root, opened=opened)

    def by_file(self, acts: Sequence[Act]) -> dict[tuple[str, ...], list[Act]]:
        """By family (all that writes is one: `change`), file, and where it is moved to."""
        found: dict[tuple[str, ...], list[Act]] = {}
        for act in acts:
            family = act.kind if act.kind in UNWRITTEN else "change"
            to = act.to and self.place(act.to, act.harness)
            found.setdefault((family, self.place(act.path, act.harness), to), []).append(act)
        return found


def _read(calls: Sequence[ToolCall]) -> tuple[list[Act], Refusal | None]:
    """The acts of all calls, or none and why not."""
    found = [read_call(call) for call in calls]
    fault = next((one for one in found if isinstance(one, tuple)), None)
    return [act for one in found for act in one if isinstance(act, Act) and fault is None], fault


@lru_cache(maxsize=64)
def _made(text: str | None, acts: tuple[Act, ...]) -> str | Refusal | None:
    """A file after edits, without blanks at ends; why a tool would fail; or None where that cannot be known."""
    for act in acts:
        made = _applied(text, act)
        if not isinstance(made, str):
            return made
        if made == text:
            return "surplus_calls", "an edit changes nothing"
        text = made
    return None if text is None else _trimmed(text).rstrip("\n")


def _applied(text: str | None, act: Act) -> str | Refusal | None:
    if act.kind in ("create", "write"):
        return ("edit_fails", "the file exists") if act.kind == "create" and text is not None else act.text
    if text is None or act.kind in ("replace", "hunk"):
        return None if text is None else _replaced(text, act)
    lines = text.split("\n")
    start, end = (act.start, act.end) if act.kind == "lines" else (act.line + 1, act.line)
    if end is None or not 1 <= start <= end + 1 <= len(lines) + 1:
        return "edit_fails", f"there are no lines {start} to {end}"
    return "\n".join([*lines[: start - 1], act.text.removesuffix("\n"), *lines[end:]])


def _replaced(text: str, act: Act) -> str | Refusal | None:
    fails: Refusal = "edit_fails", "the old text is not there, or nothing changes"
    if act.kind == "hunk":
        whole = f"\n{_trimmed(text)}\n"
        anchor = re.search(rf"\n[ \t]*{re.escape(act.anchor)}(?=\n)", whole) if act.anchor else None
        start = whole.find(act.old + "\n", anchor.end() if anchor else 0) if act.old else len(whole.rstrip("\n"))
        if start >= 0 and (anchor or not act.anchor or _GAP in text):
            return (whole[:start] + act.text + whole[start + len(act.old) :])[1:-1]
        return None if _GAP in text else fails
    for tidy in (str, _trimmed) if act.old not in ("", act.text) and _GAP not in act.old else ():
        whole, old = tidy(text), tidy(act.old)
        count = whole.count(old)
        if count:
            several = "edit_fails", f"the old text is there {count} times"
            return whole.replace(old, tidy(act.text)) if count == 1 or act.every else several
    return None if _GAP in text else fails


def _trimmed(text: str) -> str:
    return "\n".join([line.rstrip(" \t\r") for line in text.split("\n")])


def _same(path: str, before: str, wanted: str, made: str) -> bool:
    """Whether what becomes of a text is the same but for what does not count, unless nothing else was to change."""
    if _trimmed(wanted) == _trimmed(made):
        return True
    mark = _COMMENTS.get(splitext(path)[1].lower())
    return _bare(wanted, mark) == _bare(made, mark) != _bare(before, mark)


def _bare(text: str, mark: str | None) -> list[str]:
    """The lines that are neither empty nor only a comment, and those that another one goes on with."""
    lines = _trimmed(text).split("\n")
    pairs = zip(["", *lines], lines, strict=False)
    return [line for last, line in pairs if last.endswith("\\") or (line and not _is_comment(line, mark))]


def _is_comment(line: str, mark: str | None) -> bool:
    first, _, rest = line.expandtabs().lstrip(" ").partition(" ")
    return first == mark and rest.isprintable() and not _NO_COMMENT.search(rest)


def _loss(family: str, path: str, theirs: Act, ours: Act, length: float) -> float:
    """The surplus lines of a view; inf where some are missing, or where an act does something else."""
    if family != "view":
        return 0.0 if family != "change" or _alike(path, theirs, ours) else inf
    ends = [min(inf if one.end is None else one.end, length) for one in (theirs, ours)]
    lowest, highest = (theirs.line, theirs.line) if theirs.line else (theirs.start, ends[0])
    lacking = ours.start > lowest or ends[1] < highest
    return inf if lacking else theirs.start - ours.start + (0 if ends[1] == inf else ends[1] - ends[0])


def _alike(path: str, theirs: Act, ours: Act) -> bool:
    """Whether two edits of an unknown file do the same."""
    one, other = (replace(act, path="", old=_trimmed(act.old), text="") for act in (theirs, ours))
    if one == other and (not one.old or _trimmed(theirs.text) == _trimmed(ours.text)):
        return _same(path, "", theirs.text, ours.text)
    for act in (theirs, ours) if replace(one, old="") == replace(other, old="") and one.old else ():
        text = f"{_GAP}{act.old}\n{_GAP}" if act.kind == "hunk" else f"{_GAP}{act.old}{_GAP}"  # as if the file held it
        wanted, made = _made(text, (theirs,)), _made(text, (ours,))
        if isinstance(wanted, str) and isinstance(made, str) and _same(path, text, wanted, made):
            return True
    return False


@lru_cache(maxsize=4)
def _worlds(messages: tuple[Message, ...]) -> list[World]:
    """What is known before each message: one pass for all candidates of a trajectory."""
    worlds, world = list[World](), World()
    for at, message in enumerate(messages):
        worlds.append(world)
        if message.role != "assistant":
            world = world.located(message)
            continue
        results = list(takewhile(lambda one: one.role != "assistant", islice(messages, at + 1, None)))
        for order, call in enumerate(message.tool_calls):
            named = [one for one in results if call.id and one.tool_call_id == call.id]
            placed = [one for one in results[order : order + 1] if one.tool_call_id is None]
            world = _after(world, call, next(iter(named + placed), None))
    return worlds


def _after(world: World, call: ToolCall, result: Message | None) -> World:
    """What is known after a call and its result."""
    acts, said = read_call(call), ((result and result.content) or "").replace("\r\n", "\n")
    if isinstance(acts, tuple):
        return replace(world, files={}) if _WRITES.search(call.arguments or "") else world
    world = world.located(result) if result else world
    head = said.removeprefix("OBSERVATION:").lstrip().partition("\n")[0]
    if result and (result.error or _FAILED.search(head)):
        return world
    done = result and (result.error is False or _DONE.search(head))
    files = dict(world.files)
    for act in acts:
        target = world.place(act.path, act.harness)
        before = files.pop(target, None)
        text = _applied(before, act) if done and act.kind not in UNWRITTEN else None
        text = _shown(act, said) or before if act.kind == "view" else text
        files |= {target: text} if isinstance(text, str) and _GAP not in text else {}
    return replace(world, files=files)


def _shown(act: Act, said: str) -> str | None:
    """The file that a view showed whole, with a newline at its end."""
    found = _LINE.findall(said)
    sure = act.end is None and not act.line and not _CLIPPED.search(said) and len(found) % 2000
    if not sure or [int(at or other) for at, _, other, _ in found] != list(range(1, len(found) + 1)):
        return None
    blank = "" if "[File: " in said[:200] else " "
    lines = [line if at else rest.removeprefix(blank) for at, line, _, rest in found]
    return "\n".join([*lines, ""] if lines[-1] else lines)
