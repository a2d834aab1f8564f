"""`find` as a utility with options: its tests are options in any order, its actions are commands that follow.

`-name a -type f` has the options `name=a` and `type=f`, `( -name a -o -name b )` the option `or` with both. An
expression that acts before its end (`-prune -o -print`) is one option in its own order: `walks`, or `acts` where it
runs or changes anything.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from pivotrl.verifiers.shell_commands import Utility
from pivotrl.verifiers.shell_syntax import loosened

Option = tuple[str, str]

MAX_DEPTH: Final = 20
_EXECS: Final = frozenset(("exec", "execdir", "ok", "okdir"))
_ACTS: Final = _EXECS | {"print", "print0", "printf", "ls", "delete", "fprint", "fprint0", "fprintf", "fls"}
_IMPURE: Final = _ACTS | {"prune", "quit"}
_CHANGES: Final = re.compile(r"(?:exec|execdir|ok|okdir|delete|fprint\w*|fls)\(")
_GLOBAL: Final = frozenset(("maxdepth", "mindepth", "depth", "xdev", "daystart", "L", "regextype", "noleaf"))
_ALWAYS: Final = frozenset((("true", ""), ("name", "*"), ("path", "*"), ("noleaf", ""), ("P", "")))


@dataclass(slots=True)
class Found:
    """A `find` taken apart."""

    roots: list[str] = field(default_factory=list)
    options: list[Option] = field(default_factory=list)
    actions: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    """What is done with all that is found, in order: the name and its words."""


@dataclass(frozen=True, slots=True)
class _Term:
    kind: str
    """`and`, `or`, `!`, or a test's name."""
    words: tuple[str, ...] = ()
    inner: tuple[_Term, ...] = ()

    @property
    def pure(self) -> bool:
        return self.kind not in _IMPURE and all(one.pure for one in self.inner)

    @property
    def text(self) -> str:
        return f"{self.kind}({' '.join((*self.words, *(one.text for one in self.inner)))})"

    @property
    def option(self) -> Option:
        if self.kind == "!" and not self.inner[0].inner:
            return "!" + self.inner[0].kind, " ".join(self.inner[0].words)
        return self.kind, self.text if self.inner else " ".join(self.words)


def read_find(words: tuple[str, ...], known: Utility) -> Found:
    """The parts of a `find` command. Raises ValueError where its expression is none that is read."""
    found, at = Found(), 1
    while words[at : at + 1] and words[at] in ("-L", "-H", "-P"):
        found.options.append((words[at][1:], ""))
        at += 1
    while words[at : at + 1] and not words[at].startswith(("-", "(", "!", ")")):
        found.roots.append(words[at])
        at += 1
    reader = _Expression(words[at:], known)
    top = reader.whole()
    terms = list(top.inner) if top.kind == "and" else [top]
    while terms and terms[-1].kind in _ACTS:
        last = terms.pop()
        found.actions.insert(0, (last.kind, last.words))
    if all(term.pure for term in terms):
        found.options += [term.option for term in terms]
    else:
        text = _Term("and", inner=tuple(terms)).text
        found.options.append(("acts" if _CHANGES.search(text) else "walks", text))
    found.options += reader.settings
    found.options = [one for one in found.options if (one[0], loosened(one[1])) not in _ALWAYS]
    if ("type", "f") in found.options:
        found.options = [("empty", "") if one == ("size", "0") else one for one in found.options]
    return found


class _Expression:
    """Reads `find`'s grammar: not binds before and, and before or."""

    def __init__(self, words: tuple[str, ...], known: Utility) -> None:
        self.words, self.known, self.at, self.depth = words, known, 0, 0
        self.settings: list[Option] = []

    def whole(self) -> _Term:
        term = self._or() if self.words else _Term("and")
        if self.at < len(self.words):
            raise ValueError(f"{self.words[self.at]!r} is not expected")
        return term

    def _peek(self) -> str:
        word = self.words[self.at] if self.at < len(self.words) else ""
        name = word[1:] if word.startswith("-") and word not in ("-L", "-H", "-P") else word
        return self.known.same.get(name, name)

    def _take(self, what: str) -> str:
        if self.at >= len(self.words):
            raise ValueError(f"{what}")
        self.at += 1
        return self.words[self.at - 1]

    def _or(self) -> _Term:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise ValueError(f"nested deeper than {MAX_DEPTH}")
        terms = [self._and()]
        while self._peek() == "o":
            self.at += 1
            terms.append(self._and())
        self.depth -= 1
        return _joined("or", terms)

    def _and(self) -> _Term:
        terms = self._term()
        while self._peek() not in ("", "o", ")", ","):
            self.at += self._peek() == "a"
            terms += self._term()
        return _joined("and", terms)

    def _term(self) -> list[_Term]:
        """One term, or none for a setting that holds for the whole expression."""
        negated = False
        while self._peek() == "!":
            negated, self.at = not negated, self.at + 1
        kind = self._peek()
        self._take("the expression ends too early")
        if kind in (")", ",", "o", "a"):
            raise ValueError(f"{kind!r} is not expected")
        if kind in _GLOBAL:
            self.settings.append((kind, " ".join(self._value(kind))))
            return []
        if kind == "(":
            term = self._or()
            if self._take("no closing bracket") != ")":
                raise ValueError("no closing bracket")
        else:
            term = _Term(kind, self._command() if kind in _EXECS else self._value(kind))
        return [_Term("!", inner=(term,)) if negated else term]

    def _value(self, kind: str) -> tuple[str, ...]:
        if kind not in self.known.takes:
            return ()
        value = self._take(f"-{kind} without a value")
        if kind == "perm":
            digits = value.lstrip("-/")
            value = value[: len(value) - len(digits)] + (digits.lstrip("0") or "0")
        return (value,)

    def _command(self) -> tuple[str, ...]:
        start = self.at
        while True:
            word = self._take("-exec without an end")
            if word == ";" or (word == "+" and self.words[self.at - 2] == "{}"):
                return self.words[start : self.at]


def _joined(kind: str, terms: list[_Term]) -> _Term:
    """One term for many; where nothing acts sorted and without repetitions."""
    flat = [inner for term in terms for inner in (term.inner if term.kind == kind else (term,))]
    if all(term.pure for term in flat):
        texts = {term.text: term for term in flat}
        flat = [texts[text] for text in sorted(texts)]
    return flat[0] if len(flat) == 1 else _Term(kind, inner=tuple(flat))
