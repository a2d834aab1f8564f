"""When two argument values do the same thing, and how sets of calls are paired.

Equal are: numbers of one value (5 and 5.0; true is never 1), integers exactly and of any size, two floats that the
caller calls close; strings that are `normalised` to the same; an optional property that is absent, null (where its
schema has no default) or its schema's default. Arrays are ordered.
Properties are looked up through `properties` and `items`; defaults behind `$ref` or `anyOf` are not seen.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any

from pydantic import JsonValue

Close = Callable[[float, float], bool]

_END = re.compile(r"(?<=[^\s\\])\s+\Z")
_LITERAL = re.compile(r"[\n\r\"'`\\]")
_SURPLUS = re.compile(r"\A (?=\S)|(?<=\S) +(?= )")


def difference(theirs: JsonValue, ours: JsonValue, schema: object, close: Close, path: str = "arguments") -> str | None:
    """The first difference between a demonstrated value and another, in words; None when they do the same."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        return _object_difference(theirs, ours, schema, close, path)
    if isinstance(theirs, list) and isinstance(ours, list):
        if len(theirs) != len(ours):
            return f"{path}: {len(ours)} items instead of {len(theirs)}"
        items = schema.get("items") if isinstance(schema, dict) else None
        pairs = enumerate(zip(theirs, ours, strict=True))
        found = (difference(a, b, items, close, f"{path}[{at}]") for at, (a, b) in pairs)
        return next((text for text in found if text is not None), None)
    if _same_scalar(theirs, ours, close):
        return None
    return f"{path}: {_shown(ours)} instead of {_shown(theirs)}"


def _object_difference(
    theirs: dict[str, JsonValue], ours: dict[str, JsonValue], schema: object, close: Close, path: str
) -> str | None:
    shape: dict[str, Any] = schema if isinstance(schema, dict) else {}
    properties, required = shape.get("properties", {}), shape.get("required", ())
    for key, value in (ours | theirs).items():
        inner = properties.get(key)
        if key in theirs and key in ours:
            found = difference(value, ours[key], inner, close, f"{path}.{key}")
        elif isinstance(inner, dict) and key not in required:  # valid, so null is allowed where it is the value
            found = difference(inner.get("default"), value, inner, close, f"{path}.{key}, absent on one side")
        else:
            found = f"{path}.{key}: {_shown(value)} is {'missing' if key in theirs else 'not in the demonstration'}"
        if found is not None:
            return found
    return None


def _same_scalar(a: JsonValue, b: JsonValue, close: Close) -> bool:
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, float) and isinstance(b, float):
        return close(a, b)
    if isinstance(a, str) and isinstance(b, str):
        return a == b or normalised(a) == normalised(b)
    return a == b


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
