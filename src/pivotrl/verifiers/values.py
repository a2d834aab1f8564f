"""When two argument values do the same thing, and how sets of calls are paired.

Equal are: numbers of one value (5 and 5.0; true is never 1), integers exactly and of any size, two floats that the
caller calls close; strings that are `normalised` to the same; an optional property that is absent, null (where its
schema has no default) or its schema's default. Arrays are ordered.
A rule may say otherwise: a word for the value, or a table of rules for its properties (and those of an array's items).
Without one the schema's word holds (`inferred`).
Properties are looked up through `properties` and `items`; what is behind `$ref` or `anyOf` is not seen.
"""

from __future__ import annotations

import posixpath
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, TypeVar

from pydantic import JsonValue

from pivotrl.verifiers.exact import identical
from pivotrl.verifiers.message import alike

Close = Callable[[float, float], bool]
Rule = str | dict[str, Any] | None
_Other = TypeVar("_Other")

TEXT: Final = "text>="
_END = re.compile(r"(?<=[^\s\\])\s+\Z")
_LITERAL = re.compile(r"[\n\r\"'`\\]")
_SURPLUS = re.compile(r"\A (?=\S)|(?<=\S) +(?= )")
_DATES: Final = ("%Y/%m/%d", "%B %d, %Y", "%b %d, %Y", "%d %B %Y", "%d %b %Y")
"""What is read as a date besides ISO 8601: nothing in which day and month could change places."""


def difference(
    theirs: JsonValue, ours: JsonValue, schema: object, close: Close, path: str = "arguments", rule: Rule = None
) -> str | None:
    """The first difference between a demonstrated value and another, in words; None when they do the same."""
    word = rule if isinstance(rule, str) else inferred(schema)
    if word in ("ignore", "exact"):
        if word == "ignore" or identical(theirs, ours):
            return None
    elif isinstance(theirs, dict) and isinstance(ours, dict):
        return _object_difference(theirs, ours, schema, close, path, rule)
    elif isinstance(theirs, list) and isinstance(ours, list):
        return _array_difference(theirs, ours, schema, close, path, rule)
    elif _same_scalar(theirs, ours, close, word):
        return None
    return f"{path}: {_shown(ours)} instead of {_shown(theirs)}"


def inferred(schema: object) -> str:
    """What a schema implies: `date` for a date or date-time, `set` for an array of unique items, else `same`."""
    if not isinstance(schema, dict):
        return "same"
    if schema.get("format") in ("date", "date-time"):
        return "date"
    return "set" if schema.get("uniqueItems") is True else "same"


def _array_difference(
    theirs: list[JsonValue], ours: list[JsonValue], schema: object, close: Close, path: str, rule: Rule
) -> str | None:
    items = schema.get("items") if isinstance(schema, dict) else None
    if "set" in (rule, inferred(schema) if not isinstance(rule, str) else ""):
        inner = None if rule == "set" else rule
        equal = [[difference(a, b, items, close, "", inner) is None for b in ours] for a in theirs]
        both = all(map(any, equal)) and all(any(row[at] for row in equal) for at in range(len(ours)))
        return None if both else f"{path}: {_shown(ours)} instead of {_shown(theirs)}, as sets"
    if len(theirs) != len(ours):
        return f"{path}: {len(ours)} items instead of {len(theirs)}"
    pairs = enumerate(zip(theirs, ours, strict=True))
    found = (difference(a, b, items, close, f"{path}[{at}]", rule) for at, (a, b) in pairs)
    return next((text for text in found if text is not None), None)


def _object_difference(
    theirs: dict[str, JsonValue], ours: dict[str, JsonValue], schema: object, close: Close, path: str, rule: Rule
) -> str | None:
    shape: dict[str, Any] = schema if isinstance(schema, dict) else {}
    properties, required = shape.get("properties", {}), shape.get("required", ())
    rules = rule if isinstance(rule, dict) else {}
    for key, value in (ours | theirs).items():
        inner, own = properties.get(key), rules.get(key)
        if key in theirs and key in ours:
            found = difference(value, ours[key], inner, close, f"{path}.{key}", own)
        elif key not in required and (own == "ignore" or (own == "filter" and key in theirs)):
            found = None
        elif isinstance(inner, dict) and key not in required:  # valid, so null is allowed where it is the value
            found = difference(inner.get("default"), value, inner, close, f"{path}.{key}, absent on one side", own)
        else:
            found = f"{path}.{key}: {_shown(value)} is {'missing' if key in theirs else 'not in the demonstration'}"
        if found is not None:
            return found
    return None


def _same_scalar(a: JsonValue, b: JsonValue, close: Close, word: str) -> bool:
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, float) and isinstance(b, float):
        return close(a, b)
    if isinstance(a, str) and isinstance(b, str):
        return a == b or _same_text(a, b, word)
    return a == b


def _same_text(a: str, b: str, word: str) -> bool:
    if word.startswith(TEXT):
        return any(map(str.isalnum, a)) and alike(a, b, float(word.removeprefix(TEXT)))
    if word in _FORMS:
        return _FORMS[word](a) == _FORMS[word](b)
    return normalised(a) == normalised(b)


def _path(text: str) -> str:
    """`./a`, `a//b/` and `x/../a/b` in one way; nothing is looked up, so links do not count."""
    text = normalised(text)
    return posixpath.normpath(re.sub("/+", "/", text)) if text else text


def _date(text: str) -> datetime | str:
    """A date is its midnight; a time with an offset is never one without."""
    text = text.strip()
    for read in (datetime.fromisoformat, *(lambda t, form=form: datetime.strptime(t, form) for form in _DATES)):
        try:
            return read(text)
        except ValueError:
            continue
    return normalised(text)


def respelt(arguments: dict[str, JsonValue], properties: Mapping[str, Any], rules: Mapping[str, Any]) -> Any:
    """The arguments; one with the rule `case` in the spelling of its schema's enum, where a single member is meant."""
    found: dict[str, JsonValue] = {}
    for key, value in arguments.items():
        if rules.get(key) == "case" and isinstance(value, str):
            schema = properties.get(key)
            enum = schema.get("enum", ()) if isinstance(schema, dict) else ()
            members = [one for one in enum if isinstance(one, str) and _case(one) == _case(value)]
            found |= {key: members[0]} if len(members) == 1 else {}
    return arguments | found


def _case(text: str) -> str:
    return normalised(text).casefold()


_FORMS: Final[Mapping[str, Callable[[str], object]]] = {"path": _path, "date": _date, "case": _case}


def normalised(text: str) -> str:
    """NFC without blanks at the end; in a line without quotes and backslashes also without surplus spaces.

    Surplus are all but one between words, and a single one at the start: more of them, or a tab, are an indentation.
    """
    text = _END.sub("", unicodedata.normalize("NFC", text))
    return text if _LITERAL.search(text) else _SURPLUS.sub("", text)


def _shown(value: JsonValue) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def match(edges: Sequence[Sequence[int]]) -> list[int]:
    """Maximum bipartite matching (Kuhn): edges[i] lists the right nodes that left node i may take.

    Returns the right node of every left node, -1 for none. Needed because "does the same" is not transitive with
    tolerances and defaults, so taking the first fit can miss a perfect pairing.
    """
    owner: dict[int, int] = {}

    def augment(left: int, seen: set[int]) -> bool:
        for right in edges[left]:
            if right not in seen:
                seen.add(right)
                if right not in owner or augment(owner[right], seen):
                    owner[right] = left
                    return True
        return False

    for left in range(len(edges)):
        augment(left, set())
    taken = {left: right for right, left in owner.items()}
    return [taken.get(left, -1) for left in range(len(edges))]


def unpaired(rows: Sequence[Mapping[int, _Other | None]]) -> tuple[list[int], _Other | None]:
    """Which rows pair off with no column of their own, and the first thing that is in the way (None: nothing is).

    A row says for the columns in question what is in the way of a pair, None where they pair.
    """
    taken = match([[at for at, other in row.items() if other is None] for row in rows])
    left = [at for at, right in enumerate(taken) if right < 0]
    return left, next((other for at in left for other in rows[at].values() if other is not None), None)
