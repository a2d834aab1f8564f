"""`find` as a utility with options: its tests are options in any order, its actions are commands that follow.

`-name a -type f` has the options `name=a` and `type=f`, `( -name a -o -name b )` the option `or` with both. An
expression that acts before its end (`-prune -o -print`), or is not understood, is the option `acts`, in its own order.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from pivotrl.verifiers.shell_commands import Option, Utility
from pivotrl.verifiers.shell_syntax import NEXT, loosened

_EXECS: Final = ("-exec", "-execdir", "-ok", "-okdir")
_ACTION: Final = re.compile(r"-(?:(?:exec|ok)(?:dir)?|f?print[0f]?|f?ls|delete)")
_IN_ORDER: Final = re.compile(rf"(?:{_ACTION.pattern}|-prune|-quit)\(")
_OR: Final = ("-o", "-or")
_LARGE: Final = re.compile(r"\+?\d+[kMG]")
_EXTENSION: Final = re.compile(r"\.\w+$")


def read_find(words: Sequence[str], known: Utility) -> tuple[list[Option], list[str], list[Option]]:
    """The options of a `find`, where it starts, and what is done with all that is found, in order.

    Names have their dash; the value of an action such as `-exec` is its words, set off by NEXT.
    """
    first = next((at for at, word in enumerate(words) if word not in ("-L", "-H", "-P")), len(words))
    start = next((at for at in range(first, len(words)) if words[at].startswith(("-", "(", "!", ")"))), len(words))
    options = [(word, "") for word in words[:first] if word != "-P"]
    rest = [*words[start:]][::-1]
    actions: list[Option] = []
    try:
        terms = _alternatives(rest, known) if rest else []
    except (ValueError, IndexError):
        rest = ["?"]
    if rest:
        return [*options, ("acts", NEXT.join(words[start:]))], [*words[first:start]], []
    while terms and _ACTION.fullmatch(terms[-1][0]):
        actions.insert(0, terms.pop())
    text = _text(terms)
    options += [("acts", text)] if _IN_ORDER.search(text) else _plain(terms)
    return options, [*words[first:start]], actions


def _plain(terms: list[Option]) -> list[Option]:
    """Tests with their globs quoted, `unquoted` where they were not, without what is always true.

    `-type f` beside a name or a size that directories hardly have is the option `files`.
    """
    plain = sorted((key, loosened(value)) for key, value in terms if loosened(value) != "*")
    if any(
        (key in ("-name", "-iname") and _EXTENSION.search(value)) or (key == "-size" and _LARGE.fullmatch(value))
        for key, value in plain
    ):
        plain = [("files", "") if one == ("-type", "f") else one for one in plain]
    return [*plain, *([("unquoted", "")] if any(loosened(value) != value for _, value in terms) else [])]


def _text(terms: list[Option]) -> str:
    """Terms in one text, sorted unless their order counts."""
    texts = [f"{key}({value})" for key, value in terms]
    return " ".join(texts if any(map(_IN_ORDER.search, texts)) else sorted(texts))


def _alternatives(words: list[str], known: Utility) -> list[Option]:
    """Takes an expression from the end of the reversed words; all of the terms hold. Raises ValueError, IndexError."""
    found = [_conjunction(words, known)]
    while words and words[-1] in _OR:
        words.pop()
        found.append(_conjunction(words, known))
    texts = dict.fromkeys(map(_text, found))
    return found[0] if len(texts) == 1 else [("or", _text([("and", text) for text in texts]))]


def _conjunction(words: list[str], known: Utility) -> list[Option]:
    terms = _term(words, known)
    while words and words[-1] not in (*_OR, ")", ","):
        if words[-1] in ("-a", "-and"):
            words.pop()
        terms += _term(words, known)
    return terms


def _term(words: list[str], known: Utility) -> list[Option]:
    """One term, or more from between brackets."""
    negated = False
    while (word := words.pop()) in ("!", "-not"):
        negated = not negated
    name = known.same.get(word[1:], word[1:])
    if word == "(":
        terms = _alternatives(words, known)
        if words.pop() != ")":
            raise ValueError("no closing bracket")
    elif word in _EXECS:
        taken = [words.pop()]
        while taken[-1] != ";" and taken[-2:] != ["{}", "+"]:
            taken.append(words.pop())
        terms = [(word, NEXT.join(taken))]
    elif word.startswith("-") and word not in _OR:
        terms = [(f"-{name}", words.pop() if name in known.takes else "")]
    else:
        raise ValueError(f"{word!r} is not expected")
    if not negated:
        return terms
    return [(f"!{terms[0][0]}", terms[0][1])] if len(terms) == 1 else [("!", _text(terms))]
