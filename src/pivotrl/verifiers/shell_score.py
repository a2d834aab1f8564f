"""How far two programs agree, from 0 to 1, and which differences are never accepted.

The score is 1 for equal normal forms, times a factor for every difference (FACTORS): a difference weighs the same in a
long program as in a short one. Where a command deletes, moves, overwrites, kills or publishes (`danger` in the table),
or writes into a file, nothing may differ but what is SAFE: else the score is 0.

What it cannot decide:
1. Whether the first of two commands fails: `;` for `&&` is a small difference.
2. Whether directories have the name of a file: `-type f` beside `-name '*.c'` is a small difference, and so is it
   before a command that only complains about directories.
3. A dangerous command inside `$(...)` or quoted for another program (`ssh host 'rm x'`) is an operand like others.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from types import MappingProxyType
from typing import Final, NamedTuple

from pivotrl.verifiers.shell_normal import PER_FILE, Command, Program
from pivotrl.verifiers.shell_syntax import shown

FACTORS: Final = MappingProxyType(
    {
        "look": 0.95,  # how it is said: `grep -n`, `find -print0`, `2>/dev/null`
        "order": 0.95,  # `;` for `&&`; one run for each file or one for all; names with blanks in `xargs`
        "around": 0.9,  # `sudo`; another directory afterwards
        "unquoted": 0.95,  # a pattern without quotes: another one only where a file's name matches it
        "files": 0.9,  # `-type f` beside `-name '*.c'`
        "option": 0.6,
        "operand": 0.5,
        "command": 0.4,
    }
)
SAFE: Final = frozenset(("look", "order", "around"))
_LINKS: Final = {"&&": ";", "batch": "each"}
_WRAPPERS: Final = frozenset(("sudo", "time", "nohup", "timeout", "nice", "stdbuf"))
_QUIET: Final = frozenset((("2>", "/dev/null"), ("2>&", "1")))


class Agreement(NamedTuple):
    """How far two programs agree; the reason code and the detail of the gravest difference."""

    score: float
    reason: str = "match"
    detail: str = ""


def agreement(theirs: Program, ours: Program, *, lasting: bool = False) -> Agreement:
    """How far our program does what theirs does; `lasting`: the shell goes on in the directory where it ends."""
    if theirs == ours:
        return Agreement(1.0)
    found = [*_differences(theirs, ours)]
    if theirs.directory != ours.directory:
        kind = "operand" if lasting or not theirs.commands else "around"
        found.append((kind, f"ends in {ours.directory or '.'} instead of {theirs.directory or '.'}"))
    score = math.prod(FACTORS[kind] for kind, _ in found)
    worst = min(found, key=lambda one: FACTORS[one[0]], default=("", "links"))[1]
    detail = shown(f"{score:.2f}: {worst}").encode(errors="replace").decode()
    if not SAFE.issuperset(kind for kind, _ in found) and any(map(_destroys, (*theirs.commands, *ours.commands))):
        return Agreement(0.0, "dangerous_difference", detail)
    return Agreement(score, "wrong_command", detail)


def _destroys(command: Command) -> bool:
    danger = command.known.danger
    files = (how for how, where in command.redirects if not where.startswith("/dev/"))
    return "*" in danger or command.has(*danger) or any(how.endswith(">") for how in files)


def _differences(theirs: Program, ours: Program) -> Iterator[tuple[str, str]]:
    """The kind of each difference, and what it is."""
    wanted, given = ([(_LINKS.get(c.link, c.link), c.name) for c in one.commands] for one in (theirs, ours))
    if wanted != given:
        names = [" ".join(f"{link} {name}" for link, name in one).strip("; ") for one in (given, wanted)]
        yield "command", " instead of ".join(name or "nothing" for name in names)
        return
    links = [command.link for command in theirs.commands[1:]]
    for one, other, following in zip(theirs.commands, ours.commands, [*links, ""], strict=False):
        if one.link != other.link:
            yield "option" if one.link in PER_FILE and not one.known.paths else "order", f"{one.name}: order"
        shows = following not in ("|", *PER_FILE) and not any(">" in how for how, _ in one.redirects)
        yield from _options(one, other, one.known.look if shows else frozenset())
        if one.operands != other.operands:
            yield "operand", f"{one.name} {' '.join(other.operands)} instead of {' '.join(one.operands)}"
        for text in set(one.context) ^ set(other.context):
            kind = "order" if text == "xargs blanks" else "around" if text.split()[0] in _WRAPPERS else "operand"
            yield kind, text
        apart = set(one.redirects) ^ set(other.redirects)
        if one.redirects != other.redirects:
            yield "look" if apart and apart <= _QUIET else "operand", f"{one.name}: {apart or 'order of redirections'}"


def _options(one: Command, other: Command, look: frozenset[str]) -> Iterator[tuple[str, str]]:
    theirs, ours = Counter(one.options), Counter(other.options)
    apart = [*((theirs - ours) + (ours - theirs)).elements()]
    if not apart and one.options != other.options:
        yield "option", f"{one.name}: the order of its options"
    for key, value in apart:
        yield key if key in FACTORS else "look" if key in look else "option", f"{one.name} -{key} {value}".rstrip()
