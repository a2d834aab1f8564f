"""A command line in normal form: what equivalent ones have in common, by the table of utilities and by rewriting rules.

Flag order, clusters, long and short spellings are gone; paths are joined to the last `cd`; `find -exec` and `xargs` are
commands that follow; a file that is only piped in is an operand. REWRITES are the rules over whole programs.

What it cannot decide:
1. `cd X` is followed as text: symbolic links are not known. After a `cd` to what is not literal, or that may not take
   place, relative paths stay as they are.
2. An option of a listed utility that the table does not know is taken to have no value.
3. `x $(cmd)` is read like `cmd | xargs x`: with no output at all they differ.
4. A slash at a path's end is dropped, also where it asks for a directory.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from pivotrl.verifiers.shell_commands import TABLE, UNKNOWN, Table, Utility
from pivotrl.verifiers.shell_find import Option, read_find
from pivotrl.verifiers.shell_rules import REWRITES, Command
from pivotrl.verifiers.shell_syntax import CLOSE, HOME, NEXT, OPEN, Step, loosened, parse

MAX_WRAPPERS: Final = 5
_BINARIES: Final = ("/bin/", "/usr/bin/", "/usr/local/bin/", "/sbin/", "/usr/sbin/")
_SHELLS: Final = frozenset(("bash", "sh", "zsh"))
_REGEX: Final = frozenset(r"\.[]^$*+?{}|()")
_NEWER: Final = frozenset(r"\+?{}|()")
"""Characters that basic and extended regular expressions read differently."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A command line in normal form."""

    commands: tuple[Command, ...]
    directory: str
    """Where it leaves the shell; empty where it does not move."""


@lru_cache(maxsize=1024)
def program(text: str, table: Table = TABLE, start: str = "") -> Program:
    """The normal form of a command line that is run in `start` (empty: not known). Raises NotShellError."""
    return _Normal(table, start).program(parse(text, lambda steps: _written(steps, table, start)))


def _written(steps: list[Step], table: Table, start: str) -> str:
    return f"{NEXT};{NEXT}".join(one.text for one in _Normal(table, start).program(steps).commands)


class _Normal:
    """Goes through steps with the directory in which each is run."""

    def __init__(self, table: Table, start: str) -> None:
        self.table, self.start, self.here = table, start, start

    def program(self, steps: Sequence[Step]) -> Program:
        commands: list[Command] = []
        outer: list[str] = []
        for at, step in enumerate(steps):
            if step.words == ("(",):
                outer.append(self.here)
            elif step.words == (")",) and outer:
                self.here = outer.pop()
            if not self._moved(step, steps[at + 1].link if at + 1 < len(steps) else ";"):
                commands += self.command(step)
        for rule in REWRITES:
            commands = rule(commands)
        if commands:
            commands[0] = replace(commands[0], link="")
        return Program(commands=tuple(commands), directory="" if self.here == self.start else self.here)

    def _moved(self, step: Step, next_link: str) -> bool:
        """Follow a `cd` that is certain to take place, and to where the text says."""
        where = step.words[1:] or (HOME,)
        certain = step.link in (";", "&&") and next_link in (";", "&&") and not step.redirects and len(where) == 1
        if step.words[:1] != ("cd",) or not certain or where[0] == "-" or OPEN in where[0].removeprefix(HOME):
            return False
        self.here = path(where[0], self.here)
        return True

    def command(self, step: Step) -> list[Command]:
        """The commands that one step stands for."""
        words, link, context = step.words, step.link, list(step.assigned)
        if link == "args":
            words, link = (*words, "{}"), "batch"
        words = self._unwrapped(words, context)
        name = words[0] if words else "="
        for folder in _BINARIES:
            name = name.removeprefix(folder) if "/" not in name.removeprefix(folder) else name
        if name in _SHELLS and len(words) == 3 and words[1] in ("-c", "-lc", "-ec") and OPEN not in words[2]:
            made = self._inner(words[2], link)
        else:
            words = (name, *words[1:-1]) if name == "[" and words[-1] == "]" else (name, *words[1:])
            made = self._made(words, link)
        if "here" in made[0].known.flags and self.here:
            context.append(f"cd {self.here}")
        redirects = tuple(
            (how, path(to, self.here) if how.strip("0123456789") in ("<", ">", ">>", "<>") else to)
            for how, to in step.redirects
        )
        if context:
            made[0] = replace(made[0], context=tuple(sorted((*made[0].context, *context))))
        if redirects:
            made[-1] = replace(made[-1], redirects=(*made[-1].redirects, *redirects))
        return made

    def _inner(self, text: str, link: str) -> list[Command]:
        inner = _Normal(self.table, self.here)
        commands = inner.program(parse(text, lambda steps: _written(steps, self.table, self.here))).commands
        if len(commands) == 1:
            return [replace(commands[0], link=link)]
        return [Command(link=link, name="("), *commands, Command(link=";", name=")")]

    def _unwrapped(self, words: tuple[str, ...], context: list[str]) -> tuple[str, ...]:
        """The command inside `sudo`, `timeout 5`, `env A=1` and the like, which go into the context."""
        for _ in range(MAX_WRAPPERS):
            known = self.table.known.get(words[0], UNKNOWN) if words else UNKNOWN
            start = known.first("wraps")
            if start is None:
                break
            options, rest = options_of(words[1:], known)
            options = [one for one in options if one[0] not in known.drop]
            while words[0] == "env" and rest and "=" in rest[0]:
                context.append(rest.pop(0))
            if len(rest) <= start:
                break
            if options or words[0] not in ("command", "builtin", "env"):
                context.append(" ".join((words[0], *(f"-{key} {value}" for key, value in options))))
            words = tuple(rest[start:])
        return words

    def _made(self, words: tuple[str, ...], link: str) -> list[Command]:
        known = self.table.known.get(words[0], UNKNOWN)
        if known.becomes:
            words = (*known.becomes, *words[1:])
            known = self.table.known.get(words[0], UNKNOWN)
        name = words[0]
        if name == "find":
            return self._find(words, known, link)
        if "words" in known.flags:
            return [Command(link=link, name=name, operands=words[1:], known=known)]
        options, operands = options_of(words[1:], known)
        if name == "xargs":
            return self._xargs(options, operands, link)
        if name == "git" and operands:
            made = self._made((f"git {operands[0]}", *operands[1:]), link)
            return [replace(made[0], context=tuple(f"git -{key} {value}" for key, value in options))]
        if name == "grep":
            options, operands = _grep(options, operands)
        if name == "tar" and len(words) > 1 and not words[1].startswith("-"):
            options, operands = options_of((f"-{words[1]}", *words[2:]), known)
        if name == "echo":
            operands = [" ".join(operands)]
        return [self._plain(name, options, operands, known, link)]

    def _plain(self, name: str, options: list[Option], operands: list[str], known: Utility, link: str) -> Command:
        """A command whose options and operands are of the kinds that the table says."""
        options = [one for one in options if one[0] not in known.drop and known.default.get(one[0]) != one[1]]
        if name in ("mv", "cp", "ln") and "t" in dict(options):
            operands, options = [*operands, dict(options)["t"]], [one for one in options if one[0] != "t"]
        if not operands and "" in known.default:
            operands = [known.default[""]]
        placed = [self._operand(word, known.kind(at)) for at, word in enumerate(operands)]
        start = known.first("sorted")
        if start is not None:
            placed[start:] = sorted(placed[start:])
        options.sort(key=lambda one: one[0])
        return Command(link=link, name=name, options=tuple(options), operands=tuple(placed), known=known)

    def _operand(self, word: str, kind: str) -> str:
        if kind == "path":
            return path(word, self.here)
        return word.lstrip("0") or "0" if kind == "mode" and word.isdigit() else word

    def _find(self, words: tuple[str, ...], known: Utility, link: str) -> list[Command]:
        try:
            found = read_find(words, known)
        except ValueError:
            return [Command(link=link, name="find", operands=words[1:], known=replace(known, danger=frozenset("*")))]
        made = [self._plain("find", found.options, found.roots, known, link)]
        for kind, value in found.actions:
            if kind in ("exec", "execdir"):
                made += self._run(value[:-1], "each" if value[-1] == ";" else "batch")
            elif kind == "delete":
                made += self._run(("rm", "{}") if ("type", "f") in found.options else ("rm", "-d", "{}"), "each")
            elif kind == "ls":
                made += self._run(("ls", "-d", "-l", "{}"), "each")
            elif kind in ("print0", "printf") and len(found.actions) == 1:
                made[0] = replace(made[0], options=(*made[0].options, ("print", "".join(value) or "0")))
            elif kind != "print" or len(found.actions) > 1:
                made.append(Command(link="each", name=f"find -{kind}", operands=value))
        return made

    def _xargs(self, options: list[Option], rest: list[str], link: str) -> list[Command]:
        held = dict(options)
        mark = held.get("I") or ("i" in held and (held["i"] or "{}")) or ""
        single = mark or "1" in (held.get("n"), held.get("L"), held.get("l"))
        if mark:
            words = [word.replace("{}", "{ }" if mark != "{}" else "{}").replace(mark, "{}") for word in rest]
        else:
            words = [*(rest or ["echo"]), "{}"]
        made = self._run(tuple(words), "each" if single else "batch")
        kept = [f"xargs -{key} {value}" for key, value in options if key not in set("IinLlPtr")]
        blanks = [] if {"0", "d"} & held.keys() else ["xargs blanks"]
        made[0] = replace(made[0], context=tuple(sorted((*made[0].context, *kept, *blanks))))
        return made

    def _run(self, words: tuple[str, ...], link: str) -> list[Command]:
        return self.command(Step(link=link, words=words))


def options_of(words: Sequence[str], known: Utility) -> tuple[list[Option], list[str]]:
    """Options with their values, under their canonical names, and operands."""
    options: list[Option] = []
    operands: list[str] = []
    rest = list(words)[::-1]
    while rest:
        word = rest.pop()
        if word == "--" or (operands and "stops" in known.flags):
            operands += [*([] if word == "--" else [word]), *rest[::-1]]
            break
        if not word.startswith("-") or word == "-":
            operands.append(word)
        elif word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            name = known.same.get(name, name)
            options.append((name, rest.pop() if not equals and name in known.takes and rest else value))
        elif known.digits and word[1:].isdigit():
            options.append((known.digits, word[1:]))
        else:
            options += _cluster(word[1:], rest, known)
    return options, operands


def _cluster(letters: str, rest: list[str], known: Utility) -> Iterator[Option]:
    """`-rfn5` letter by letter; the first that takes a value takes what follows, or else the next word."""
    for at, letter in enumerate(letters):
        name = known.same.get(letter, letter)
        if name in known.takes or name in known.maybe:
            yield name, letters[at + 1 :] or (rest.pop() if rest and name in known.takes else "")
            return
        yield name, ""


def _grep(options: list[Option], operands: list[str]) -> tuple[list[Option], list[str]]:
    """`-e x` as the first operand; without -E, -F and -P where the pattern means the same in all of them."""
    patterns = [value for key, value in options if key == "e"]
    if len(patterns) == 1:
        options, operands = [one for one in options if one[0] != "e"], [patterns[0], *operands]
    if operands and not patterns[1:] and not any(key == "f" for key, _ in options):
        signs = set(loosened(operands[0]))
        same = "FEP" if not _REGEX & signs else "E" if not _NEWER & signs else ""
        options = [one for one in options if one[0] not in same]
    return options, operands


def path(word: str, here: str) -> str:
    """A path from `here` without `.`, `..` and surplus slashes; only its end where it begins with an expansion."""
    if word in ("-", "{}", "") or "://" in word:
        return word
    if word.startswith(OPEN):
        head, mark, tail = word.rpartition(CLOSE)
        return head + mark + (posixpath.normpath(tail) if tail.startswith("/") else tail).removesuffix("/")
    if OPEN in word:
        return word
    if here.startswith(OPEN) and not word.startswith("/"):
        return path(f"{here}/{word}", "")
    joined = posixpath.normpath(posixpath.join(here, word))
    joined = joined[1:] if joined.startswith("//") else joined
    return f"./{joined}" if joined.startswith("-") else joined
