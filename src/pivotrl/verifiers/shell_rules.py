"""Commands in normal form, and the rules that rewrite whole programs: equivalent spellings of more than one command.

A rule takes and gives the commands of a program; REWRITES lists them in the order in which they are applied.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from pivotrl.verifiers.shell_commands import UNKNOWN, Utility
from pivotrl.verifiers.shell_find import Option
from pivotrl.verifiers.shell_syntax import NEXT, OPTION

PER_FILE: Final = ("each", "batch")
_NOT_LINES: Final = frozenset("rRolLcqmABCnHZ")
"""Options with which the lines that `grep` prints are not those that it counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One simple command. Equal ones do the same."""

    link: str
    """`|`, `;`, `&&`, `||`; `each` and `batch`: run for what the one before lists, one by one or all together."""
    name: str
    options: tuple[Option, ...] = ()
    operands: tuple[str, ...] = ()
    context: tuple[str, ...] = ()
    """Variables that are set for it, what it is wrapped in (`sudo`), and its directory where that matters."""
    redirects: tuple[Option, ...] = ()
    known: Utility = field(default=UNKNOWN, compare=False, repr=False)

    @property
    def text(self) -> str:
        """All of it, written so that no two commands are written alike."""
        return written(self.link, self.name, self.options, self.operands, self.redirects, self.context)

    def has(self, option: str) -> bool:
        return any(key == option for key, _ in self.options)


def written(
    link: str,
    name: str,
    options: tuple[Option, ...],
    operands: tuple[str, ...],
    redirects: tuple[Option, ...],
    context: tuple[str, ...],
) -> str:
    """The fields of a command as one text."""
    marked = (f"{OPTION}{key} {value}" for key, value in options)
    directed = (f"{OPTION}{OPTION}{how} {to}" for how, to in redirects)
    around = (f"{OPTION}{OPTION}{OPTION}{one}" for one in context)
    return NEXT.join((link, name, *marked, *operands, *directed, *around))


def _shows_all(commands: list[Command]) -> list[Command]:
    """Without `| cat`, `| less` and `| more` behind what is shown anyway, and without `|| true`."""
    idle = {("|", "cat"), ("|", "less"), ("|", "more"), ("||", "true"), ("||", ":")}
    return [
        command
        for at, command in enumerate(commands)
        if not at
        or (command.link, command.name) not in idle
        or command.operands
        or command.options
        or command.redirects
        or command.context
    ]


def _input(commands: list[Command]) -> list[Command]:
    """`cat f | x`, `x < f` and `x f` are one where x reads files, and so are `echo t | x` and `x <<< t`."""
    done: list[Command] = []
    for command in commands:
        before = done[-1] if done else None
        fed = before is not None and command.link == "|" and before.link not in PER_FILE
        if before is not None and fed and not (before.options or before.context or before.redirects):
            if before.name == "echo":
                command = _fed(done.pop(), command, "<<<")
            elif before.name == "cat" and not _has_files(command) and _one_file(before, command):
                command = _fed(done.pop(), command, "<")
        files = tuple(where for how, where in command.redirects if how == "<")
        start = command.known.first("reads")
        if files and start is not None and len(command.operands) <= start:
            rest = tuple(one for one in command.redirects if one[0] != "<")
            command = replace(command, operands=(*command.operands, *files), redirects=rest)
        done.append(command)
    return done


def _one_file(cat: Command, command: Command) -> bool:
    return len(cat.operands) == 1 or (len(cat.operands) > 1 and command.name == "sort")


def _fed(before: Command, command: Command, how: str) -> Command:
    redirects = (*((how, one) for one in before.operands), *command.redirects)
    return replace(command, link=before.link, redirects=redirects)


def _has_files(command: Command) -> bool:
    start = command.known.first("reads")
    return any(how == "<" for how, _ in command.redirects) or (start is not None and len(command.operands) > start)


def _merged(commands: list[Command]) -> list[Command]:
    """`sort | uniq` as `sort -u`, `grep x f | wc -l` as `grep -c x f`, and `echo $(x)` as x."""
    done: list[Command] = []
    for command in commands:
        before = done[-1] if done else None
        if before is not None and not command.context and not before.redirects:
            keys = {key for key, _ in before.options}
            piped = command.link == "|" and not command.operands
            unique = piped and command.name == "uniq" and not command.options and before.name == "sort"
            counts = piped and command.name == "wc" and command.options == (("l", ""),) and before.name == "grep"
            again = command.link == "batch" and command.name == "echo" and command.operands == ("{}",)
            extra: Option | None = None
            if unique and not keys & set("kunfhV"):
                extra = ("u", "")
            elif counts and before.link not in PER_FILE and len(before.operands) < 3 and not keys & _NOT_LINES:
                extra = ("c", "")
            if extra or (again and before.name != "find"):
                options = tuple(sorted((*before.options, *([extra] if extra else []))))
                done[-1] = replace(before, options=options, redirects=command.redirects)
                continue
        done.append(command)
    return done


def _listed(commands: list[Command]) -> list[Command]:
    """What a `find` shows of what it finds as its option `print`: `| xargs ls`, `-exec echo {} ;`, `-ls`."""
    done: list[Command] = []
    for command in commands:
        find = done[-1] if done else None
        if find is not None and find.name == "find" and command.link in PER_FILE:
            if "xargs -0 " in command.context and ("print", "0") in find.options:
                find = done[-1] = replace(find, options=tuple(one for one in find.options if one != ("print", "0")))
                command = replace(command, context=tuple(one for one in command.context if one != "xargs -0 "))
            how = _how(command, find)
            if how and set(command.context) <= {"xargs blanks"} and not (command.redirects or find.has("print")):
                done[-1] = replace(find, options=(*find.options, ("print", how)), redirects=command.redirects)
                continue
        done.append(command)
    return done


def _how(command: Command, find: Command) -> str:
    """How a command for each found file shows it; empty where it is more than `ls` or `echo`."""
    if command.operands != ("{}",) or command.name not in ("ls", "echo"):
        return ""
    keys = {key for key, _ in command.options}
    if command.name == "echo" or not keys - {"d"}:
        how = command.name
    else:
        how = "long" if not keys - set("lgoinsdhF") else " ".join(sorted(keys))
    inside = command.name == "ls" and "d" not in keys and ("type", "f") not in find.options
    return f"{how} inside" if inside else how


Rule = Callable[[list[Command]], list[Command]]
REWRITES: Final[tuple[Rule, ...]] = (_shows_all, _input, _merged, _listed)
"""In the order in which they are applied; each takes and gives the commands of a whole program."""
