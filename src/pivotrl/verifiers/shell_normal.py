"""A command line in normal form: what equivalent ones have in common, by the table of utilities and by rewriting rules.

Flag order, clusters, long and short spellings are gone; paths are joined to the last `cd`; what `find` and `xargs` run
are commands that follow. The tests of a `find` are options in any order, brackets and all between them one; with
alternatives outside brackets, or acting before its end (`-prune -o -print`), it has one option `acts`.

What it cannot decide:
1. `cd X` is followed as text: symbolic links are not known. A `cd` to what is not literal, or that may not take place
   (in a branch, a loop, a function, the background), is a command like others, and not followed.
2. An option of a listed utility that the table does not know is taken to have no value.
3. `x $(cmd)` is read like `cmd | xargs x`: with no output at all they differ.
4. A slash at a path's end is dropped, also where it asks for a directory.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import takewhile
from typing import Final, NamedTuple

from pivotrl.verifiers.shell_commands import PATHS, TABLE, UNKNOWN, Option, Utilities, Utility, options_of
from pivotrl.verifiers.shell_syntax import HOME, NEXT, OPEN, NotShellError, Step, loosened, parse

MAX_WRAPPERS: Final = 5
PER_FILE: Final = ("each", "batch")
_EXECS: Final = ("-exec", "-execdir", "-ok", "-okdir")
_ACTION: Final = re.compile(r"-((exec|ok)(dir)?|f?print[0f]?|f?ls|delete)")
_IN_ORDER: Final = re.compile(rf"{_ACTION.pattern}|-prune|-quit")
_EXTENSION: Final = re.compile(r"\.\w+$")
_REGEX: Final = frozenset(r"\.[]^$*+?{}|()")


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

    def has(self, *options: str) -> bool:
        return any(key in options for key, _ in self.options)

    @property
    def destroys(self) -> bool:
        """Whether it is dangerous by the table, or writes into a file."""
        files = (how for how, where in self.redirects if how.endswith(">") and not where.startswith("/dev/"))
        return "*" in self.known.danger or self.has(*self.known.danger) or any(files)


class Program(NamedTuple):
    """A command line in normal form."""

    commands: tuple[Command, ...]
    directory: str
    """Where it leaves the shell; empty where it does not move."""


_OPENING: Final = ("if", "for", "while", "until", "select", "case", "{")
_CLOSING: Final = ("fi", "done", "esac", "}")
_ECHO_FLAGS: Final = re.compile(r"-[neE]+")
_IDLE: Final = (Command(link="|", name="cat"), Command(link="||", name="true"))


@lru_cache(maxsize=1024)
def program(text: str, table: Utilities = TABLE, start: str = "") -> Program:
    """The normal form of a command line that is run in `start` (empty: not known). Raises NotShellError."""
    reader, outer = _Normal(table, start), list[str]()
    commands: list[Command] = []
    try:
        steps = parse(text)
        links = ["&" if step.words == ("&",) else step.link for step in steps[1:]]
        for step, link in zip(steps, [*links, ";"], strict=False):
            first = step.words[0] if step.words else ""
            reader.depth += (first in _OPENING) - (first in _CLOSING)
            if step.words == ("(",):
                outer.append(reader.here)
            elif step.words == (")",) and outer:
                reader.here = outer.pop()
            for command in [] if reader.moved(step, link) else reader.command(step):
                commands += _rewritten(commands.pop(), command) if commands else [replace(command, link="")]
    except RecursionError as error:
        raise NotShellError("too_long", "nested too deep") from error
    return Program(tuple(commands), "" if reader.here == start else reader.here)


class _Normal:
    """Reads steps, with the directory in which each is run."""

    def __init__(self, table: Utilities, here: str) -> None:
        self.table, self.here = table, here
        self.depth = 0
        """Of branches, loops and blocks around the step."""

    def moved(self, step: Step, next_link: str) -> bool:
        """Follow a `cd` that is certain to take place, and to where the text says."""
        name, where = step.words[:1], step.words[1:] or (HOME,)
        certain = {step.link, next_link} <= {";", "&&"} and not (step.redirects or self.depth) and len(where) == 1
        if name != ("cd",) or not certain or where[0] == "-" or OPEN in where[0].removeprefix(HOME):
            return False
        self.here = path(where[0], self.here)
        return True

    def command(self, step: Step) -> list[Command]:
        """The commands that one step stands for."""
        words, link, context = [*step.words], step.link, [*step.assigned]
        if link == "args":
            words, link = [*words, "{}"], "batch"
        words = self._unwrapped(words, context) or ["="]
        made = self._made(words[0], words[1:], link)
        if made[0].known.here and self.here:
            context.append(f"cd {self.here}")
        redirects = [(how, path(to, self.here) if how in ("<", ">", ">>", "2>") else to) for how, to in step.redirects]
        redirects.sort(key=lambda one: "<" not in one[0])
        made[0] = replace(made[0], context=tuple(sorted((*made[0].context, *context))))
        made[-1] = replace(made[-1], redirects=(*made[-1].redirects, *redirects))
        return made

    def _unwrapped(self, words: list[str], context: list[str]) -> list[str]:
        """The command inside `sudo`, `timeout 5` and the like, which go into the context."""
        for _ in range(MAX_WRAPPERS):
            known = self.table.known.get(words[0], UNKNOWN) if words else UNKNOWN
            if "command" not in known.operands or words[0] in ("xargs", "git"):
                break
            start = known.operands.index("command")
            options, rest = options_of(words[1:], known)
            if len(rest) <= start:
                break
            said = (f"-{key} {value}" for key, value in options if key not in known.look)
            context.append(" ".join((words[0], *said)))
            words = rest[start:]
        return words

    def _made(self, name: str, words: list[str], link: str) -> list[Command]:
        if name in ("egrep", "fgrep"):
            name, words = "grep", [f"-{name[0].upper()}", *words]
        known = self.table.known.get(name, UNKNOWN)
        if name == "find":
            return self._find(words, known, link)
        if name == "echo":
            flags = [*takewhile(_ECHO_FLAGS.fullmatch, words)]
            echoed = tuple((flag, "") for flag in sorted({*"".join(flags)} - {"-"}))
            return [
                Command(link=link, name=name, options=echoed, operands=(" ".join(words[len(flags) :]),), known=known)
            ]
        if not known.operands:
            return [Command(link=link, name=name, operands=tuple(words), known=known)]
        if name == "tar" and words:
            words = [f"-{words[0].removeprefix('-')}", *words[1:]]
        options, rest = options_of(words, known)
        if name == "xargs":
            return self._xargs(options, rest, link)
        if name == "git" and rest:
            made = self._made(f"git {rest[0]}", rest[1:], link)
            return [replace(made[0], context=tuple(f"git -{key} {value}" for key, value in options))]
        if name == "grep":
            options, rest = _grep(options, rest)
        if name in ("mv", "cp", "ln") and "t" in dict(options):
            rest, options = [*rest, dict(options)["t"]], [one for one in options if one[0] != "t"]
        return [self._plain(name, options, rest, known, link)]

    def _plain(self, name: str, options: list[Option], operands: list[str], known: Utility, link: str) -> Command:
        """A command whose options and operands are of the kinds that the table says."""
        operands = operands or [value for key, value in known.default.items() if not key]
        placed = [path(one, self.here) if known.kind(at) in PATHS else one for at, one in enumerate(operands)]
        if "any" in known.operands:
            start = known.operands.index("any")
            placed[start:] = sorted(placed[start:])
        kept = sorted((one for one in options if known.default.get(one[0]) != one[1]), key=lambda one: one[0])
        return Command(link=link, name=name, options=tuple(kept), operands=tuple(placed), known=known)

    def _find(self, words: list[str], known: Utility, link: str) -> list[Command]:
        options, roots, actions = _read_find(words, known)
        made = [self._plain("find", options, roots, known, link)]
        for kind, value in actions:
            parts = value.split(NEXT)
            if kind in ("-exec", "-execdir"):
                made += self._run(parts[:-1], "each" if parts[-1] == ";" else "batch")
            elif kind == "-delete":
                made += self._run(["rm", "{}"] if _no_directories(made[0]) else ["rm", "-d", "{}"], "each")
            elif kind in ("-print0", "-printf") and len(actions) == 1:
                made[0] = _showing(made[0], value or "0")
            elif kind != "-print" or len(actions) > 1:
                made.append(Command(link="each", name=f"find {kind}", operands=tuple(parts)))
        return made

    def _xargs(self, options: list[Option], rest: list[str], link: str) -> list[Command]:
        held = dict(options)
        mark = held.get("I") or ("i" in held and (held["i"] or "{}")) or ""
        words = [word.replace(mark, "{}") for word in rest] if mark else [*(rest or ["echo"]), "{}"]
        single = mark or "1" in (held.get("n"), held.get("L"), held.get("l"))
        made = self._run(words, "each" if single else "batch")
        kept = [f"xargs -{key} {value}" for key, value in options if key not in set("IinLlPtr")]
        kept += ["xargs ||"] if link == "||" else []
        blanks = [] if {"0", "d"} & held.keys() else ["xargs blanks"]
        made[0] = replace(made[0], context=tuple(sorted((*made[0].context, *kept, *blanks))))
        return made

    def _run(self, words: Sequence[str], link: str) -> list[Command]:
        return self.command(Step(link=link, words=tuple(words)))


def _grep(options: list[Option], operands: list[str]) -> tuple[list[Option], list[str]]:
    """`-e x` as the first operand, with its globs quoted; without -E, -F and -P where nothing in it is special."""
    patterns = [value for key, value in options if key == "e"]
    if len(patterns) == 1:
        options, operands = [one for one in options if one[0] != "e"], [patterns[0], *operands]
    if operands and not patterns[1:] and "f" not in dict(options):
        pattern = loosened(operands[0])
        options = [one for one in options if one[0] not in "FEP" or _REGEX & set(pattern)]
        options += [("unquoted", "")] if pattern != operands[0] else []
        operands = [pattern, *operands[1:]]
    return options, operands


def path(word: str, here: str) -> str:
    """A path from `here` without `.`, `..` and surplus slashes, which all stay where there is an expansion."""
    if word in ("-", "{}", "") or "://" in word:
        return word
    joined = word if word.startswith(OPEN) else posixpath.join(here, word)
    if OPEN in joined:
        return joined.removesuffix("/")
    joined = posixpath.normpath(joined).replace("//", "/")
    return f"./{joined}" if joined.startswith("-") else joined


def _rewritten(before: Command, command: Command) -> list[Command]:
    """What two commands in a row are in normal form."""
    if before.name == "find" and command.link in PER_FILE:
        return _listed(before, command)
    if command in _IDLE:
        return [before]
    known = command.known.operands
    cat = before == Command(link=before.link, name="cat", operands=before.operands[:1]) and before.link not in PER_FILE
    piped = cat and command.link == "|"
    if piped and "file" in known and len(command.operands) <= known.index("file"):  # `cat f | x` is `x f`
        return [replace(command, link=before.link, operands=(*command.operands, *before.operands))]
    unique = command == Command(link="|", name="uniq", redirects=command.redirects)
    whole = {"r", "u"}.issuperset(key for key, _ in before.options)  # by a key, as with -n, `-u` drops more lines
    if unique and before.name == "sort" and whole and not before.redirects:  # `sort | uniq` is `sort -u`
        return [replace(before, options=(*before.options, ("u", "")), redirects=command.redirects)]
    return [before, command]


def _listed(find: Command, command: Command) -> list[Command]:
    """What a `find` shows of what it finds as its option: `| xargs ls`, `-exec echo {} ;`."""
    if "xargs -0 " in command.context and ("print", "0") in find.options:
        find = replace(find, options=tuple(one for one in find.options if one != ("print", "0")))
        command = replace(command, context=tuple(one for one in command.context if one != "xargs -0 "))
    plain = not command.redirects and not set(command.context) - {"xargs blanks"} and not find.has("print", "show")
    if not plain or command.operands != ("{}",) or command.name not in ("echo", "ls"):
        return [find, command]
    inside = command.name == "ls" and not command.has("d") and not _no_directories(find)
    letters = sorted(key for key, _ in command.options if key != "d")
    return [_showing(find, " ".join((command.name, *letters, *(["inside"] if inside else []))))]


def _no_directories(find: Command) -> bool:
    return not {("-type", "f"), ("files", "")}.isdisjoint(find.options)


def _showing(find: Command, how: str) -> Command:
    """A `find` that shows what it finds: the option `print` where those are only the names, else `show`."""
    return replace(find, options=(*find.options, ("print" if how in ("0", "ls", "echo") else "show", how)))


def _read_find(words: Sequence[str], known: Utility) -> tuple[list[Option], list[str], list[Option]]:
    """The options of a `find`, where it starts, and what is done with all that is found, in order.

    Names have their dash; the value of an action such as `-exec` is its words, set off by NEXT.
    """
    first = next((at for at, word in enumerate(words) if word not in ("-L", "-H", "-P")), len(words))
    start = next((at for at in range(first, len(words)) if words[at].startswith(("-", "(", "!", ")"))), len(words))
    options = [(word, "") for word in words[:first] if word != "-P"]
    roots, actions = [*words[first:start]], list[Option]()
    try:
        terms = _terms([*words[start:]][::-1], known)
    except (ValueError, IndexError):
        return [*options, ("acts", NEXT.join(words[start:]))], roots, []
    while terms and _ACTION.fullmatch(terms[-1][0]):
        actions.insert(0, terms.pop())
    if any(_IN_ORDER.fullmatch(word) for key, value in terms for word in (key.lstrip("!"), *value.split(NEXT))):
        return [*options, ("acts", NEXT.join(map(NEXT.join, terms)))], roots, actions
    return [*options, *_tests(terms)], roots, actions


def _terms(rest: list[str], known: Utility) -> list[Option]:
    """The terms that must all hold, from reversed words; what is in brackets is one. Raises ValueError, IndexError."""
    terms: list[Option] = []
    while rest:
        word, mark, taken = rest.pop(), "", list[str]()
        while word in ("!", "-not"):
            word, mark = rest.pop(), "" if mark else "!"
        name = known.same.get(word[1:], word[1:])
        if word == "(":
            while ")" not in taken[-1:]:
                taken.append(rest.pop())
        elif word in _EXECS:
            while taken[-1:] != [";"] and taken[-2:] != ["{}", "+"]:
                taken.append(rest.pop())
        elif not word.startswith("-") or word in ("-o", "-or"):
            raise ValueError(f"{word!r} is not expected")
        elif name in known.takes:
            taken.append(rest.pop())
        terms += [] if word in ("-a", "-and") else [(f"{mark}-{name}", NEXT.join(taken))]
    return terms


def _tests(terms: list[Option]) -> list[Option]:
    """Tests with their globs quoted, `unquoted` where they were not, without what is always true.

    `-type f` beside a name that directories hardly have is the option `files`.
    """
    tests = sorted((key, loosened(value)) for key, value in terms if key[0] == "!" or loosened(value) != "*")
    if any(key in ("-name", "-iname") and _EXTENSION.search(value) for key, value in tests):
        tests = [("files", "") if one == ("-type", "f") else one for one in tests]
    return [*tests, ("unquoted", "")] if any(loosened(value) != value for _, value in terms) else tests
