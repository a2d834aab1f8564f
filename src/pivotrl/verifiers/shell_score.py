"""How far two programs agree, from 0 to 1, and which differences are never accepted.

The score is 1 for equal normal forms, times a factor for every difference (FACTORS): a difference weighs the same in a
long program as in a short one. Commands that delete, move, overwrite, kill or publish (`danger` in the table) must
agree in options, operands and all that feeds them, and redirections into files in their targets: else the score is 0.

What it cannot decide:
1. Whether the first of two commands fails: `;` for `&&` is a small difference.
2. Whether directories have the name of a file: `-type f` beside `-name '*.c'` is a small difference, and so is it
   before a command that only complains about directories.
3. A dangerous command inside `$(...)` or quoted for another program (`ssh host 'rm x'`) is an operand like others.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from pivotrl.verifiers.shell_find import Option
from pivotrl.verifiers.shell_normal import Program
from pivotrl.verifiers.shell_rules import PER_FILE, Command, written
from pivotrl.verifiers.shell_syntax import loosened, shown

FACTORS: Final = MappingProxyType(
    {
        "look": 0.95,  # how it is said: `grep -n`, `find -print0`, `2>/dev/null`
        "order": 0.95,  # `;` for `&&`; one run for each file or one for all; names with blanks in `xargs`
        "quotes": 0.95,  # a pattern without quotes: another one only where a file's name matches it
        "implied": 0.9,  # `-type f` beside `-name '*.c'`; `sudo`; another directory afterwards
        "option": 0.6,
        "operand": 0.5,
        "command": 0.4,  # times the share of commands that the two have in common
    }
)
_LINKS: Final = {"&&": ";", "batch": "each"}
_SOFT: Final = frozenset(("sudo", "time", "nohup", "timeout", "nice", "stdbuf"))
_STATE: Final = frozenset(
    (*"=[.", "for", "while", "until", "if", "elif", "case", "test", "export", "read", "cd", "eval")
)
"""What decides on the targets of dangerous commands that come later."""
_EXTENSION: Final = re.compile(r"\.\w+$")
_LARGE: Final = re.compile(r"\+?\d+[kMG]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """How far two programs agree; the reason code and the detail of the gravest difference."""

    score: float
    reason: str = "match"
    detail: str = ""


_Difference = tuple[str, str]
"""Its factor's name, and what it is."""


def agreement(theirs: Program, ours: Program, *, lasting: bool = False) -> Agreement:
    """How far our program does what theirs does; `lasting`: the shell goes on in the directory where it ends."""
    if theirs == ours:
        return Agreement(score=1.0)
    found = _dangers(ours), _dangers(theirs)
    if found[0] != found[1]:
        one = next(iter((found[0] - found[1]) or (found[1] - found[0])))
        side = "surplus" if found[0] - found[1] else "missing"
        return Agreement(score=0.0, reason="dangerous_difference", detail=_printable(f"{side}: {one}"))
    wanted, given = _skeleton(theirs), _skeleton(ours)
    if wanted != given:
        common = (Counter(wanted) & Counter(given)).total()
        share = 2 * common / (len(wanted) + len(given))
        names = [" ".join(f"{link} {name}" for link, name in one).strip("; ") for one in (given, wanted)]
        detail = f"{names[0] or 'nothing'} instead of {names[1] or 'nothing'}"
        return Agreement(score=FACTORS["command"] * share, reason="wrong_command", detail=_printable(detail))
    differences = list(_differences(theirs, ours))
    if theirs.directory != ours.directory:
        grave = lasting or not theirs.commands
        text = f"ends in {ours.directory or '.'} instead of {theirs.directory or '.'}"
        differences.append(("operand" if grave else "implied", text))
    score = 1.0
    for kind, _ in differences:
        score *= FACTORS[kind]
    worst = min(differences, key=lambda one: FACTORS[one[0]], default=("", "links"))
    return Agreement(score=score, reason="wrong_command", detail=_printable(f"{score:.2f}: {worst[1]}"))


def _printable(text: str) -> str:
    return shown(text).encode(errors="replace").decode()


def _skeleton(program: Program) -> list[tuple[str, str]]:
    return [(_LINKS.get(one.link, one.link), one.name) for one in program.commands]


def _dangers(program: Program) -> Counter[str]:
    """What changes the world beyond repair with all that decides on what, in words, each as often as it is there."""
    found: Counter[str] = Counter()
    if not any(command.known.danger or command.redirects for command in program.commands):
        return found
    state: list[str] = []
    feeding: list[str] = []
    for command in program.commands:
        facts = _facts(command)
        feeding = [*feeding, facts] if command.link in ("|", *PER_FILE) else [facts]
        if "*" in command.known.danger or any(key in command.known.danger for key, _ in command.options):
            found[" | ".join((*state, *feeding))] += 1
        if command.name in _STATE:
            state.append(facts)
        for how, where in command.redirects:
            if how.endswith(">") and not where.startswith("/dev/"):
                found[f"{how} {where}"] += 1
    return found


def _facts(command: Command) -> str:
    """What may not differ: all but looks, output and wrappers."""
    options = tuple(one for one in command.options if one[0] not in command.known.look)
    inputs = tuple(one for one in command.redirects if one[0].startswith("<"))
    places = tuple(one for one in command.context if one.startswith(("cd ", "git ", "xargs -")))
    return written("", command.name, options, command.operands, inputs, places)


def _differences(theirs: Program, ours: Program) -> Iterator[_Difference]:
    for at, (one, other) in enumerate(zip(theirs.commands, ours.commands, strict=True)):
        if one == other:
            continue
        after = theirs.commands[at + 1] if at + 1 < len(theirs.commands) else None
        piped = after is not None and after.link in ("|", *PER_FILE)
        written = any(how.endswith(">") for how, _ in (*one.redirects, *other.redirects))
        if one.link != other.link and ("each" not in one.known.flags or one.link not in PER_FILE):
            yield (
                ("order" if "files" in one.known.flags or one.link not in PER_FILE else "option"),
                f"{one.name}: order",
            )
        apart = list(_apart(one.options, other.options))
        if not apart and one.options != other.options:
            yield "option", f"{one.name}: the order of its options"
        for option, rival in apart:
            yield (
                _of_option(one, other, option, rival, after, visible=not (piped or written)),
                f"{one.name} -{' '.join(option)}".rstrip(),
            )
        yield from _operands(one, other)
        yield from _around(one, other)


def _of_option(
    one: Command, other: Command, option: Option, rival: Option | None, after: Command | None, *, visible: bool
) -> str:
    """The factor of an option that is not on both sides; the rival is the other side's value of it."""
    key, value = option
    if one.name != "find":
        return "look" if visible and key in one.known.look else "option"
    if key == "print":
        shows = {word for option in (*one.options, *other.options) if option[0] == key for word in option[1].split(" ")}
        return "look" if visible and shows <= {"0", "ls", "echo"} else "option"
    if rival is not None:
        return "quotes" if loosened(value) == loosened(rival[1]) else "option"
    return "implied" if option == ("type", "f") and _files_anyway(one, after) else "option"


def _files_anyway(find: Command, after: Command | None) -> bool:
    """Whether what a `find` comes upon is hardly ever a directory, or is of no account where it is one."""
    if after is not None and after.link in PER_FILE and "files" in after.known.flags:
        return True
    texts = [(key, loosened(value)) for key, value in find.options]
    named = any(key in ("name", "iname") and _EXTENSION.search(value) for key, value in texts)
    return named or any(key == "size" and _LARGE.fullmatch(value) for key, value in texts)


def _apart(theirs: tuple[Option, ...], ours: tuple[Option, ...]) -> Iterator[tuple[Option, Option | None]]:
    """What is on one side only; two values of one option are one difference."""
    surplus: dict[str, list[Option]] = {}
    for option in (Counter(ours) - Counter(theirs)).elements():
        surplus.setdefault(option[0], []).append(option)
    for option in (Counter(theirs) - Counter(ours)).elements():
        rivals = surplus.get(option[0])
        yield option, rivals.pop() if rivals else None
    yield from ((option, None) for rivals in surplus.values() for option in rivals)


def _operands(one: Command, other: Command) -> Iterator[_Difference]:
    if len(one.operands) != len(other.operands):
        yield "operand", f"{one.name}: {len(other.operands)} operands instead of {len(one.operands)}"
        return
    for at, (a, b) in enumerate(zip(one.operands, other.operands, strict=True)):
        if a != b:
            alike = one.known.kind(at) == "pattern" and loosened(a) == loosened(b)
            yield ("quotes" if alike else "operand"), f"{one.name}: {b} instead of {a}"


def _around(one: Command, other: Command) -> Iterator[_Difference]:
    """Differences in variables, wrappers and redirections."""
    for text in set(one.context) ^ set(other.context):
        kind = "order" if text == "xargs blanks" else "implied" if text.split()[0] in _SOFT else "operand"
        yield kind, text
    for how, where in set(one.redirects) ^ set(other.redirects):
        quiet = (how, where) in (("2>", "/dev/null"), ("2>&", "1"))
        yield ("look" if quiet else "operand"), f"{one.name} {how} {where}"
    if one.redirects != other.redirects and set(one.redirects) == set(other.redirects):
        yield "look", f"{one.name}: the order of its redirections"
