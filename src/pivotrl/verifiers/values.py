"""When two argument values do the same thing, and how sets of calls are paired.

Equal are: numbers of one value (5 and 5.0; true is never 1), integers exactly and of any size, two floats within a
tolerance; strings of one Unicode normal form (NFC) whatever the amount of blank space between words; an optional
property that is absent, null (where its schema has no default) or its schema's default. Line breaks and the
indentation of later lines are kept: in code and commands they carry meaning. Arrays are ordered.
Properties are looked up through `properties` and `items`; defaults behind `$ref` or `anyOf` are not seen.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from pivotrl.verifiers.base import shown

_BLANKS = re.compile(r"(?<=\S)[^\S\n]+")


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Two floats a, b are equal when |a - b| <= max(relative * max(|a|, |b|), absolute)."""

    relative: float
    absolute: float


def difference(
    theirs: JsonValue, ours: JsonValue, schema: JsonValue, tolerance: Tolerance, path: str = "arguments"
) -> str | None:
    """The first difference between a demonstrated value and another, in words; None when they do the same."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        return _object_difference(theirs, ours, schema, tolerance, path)
    if isinstance(theirs, list) and isinstance(ours, list):
        if len(theirs) != len(ours):
            return f"{path}: {len(ours)} items instead of {len(theirs)}"
        items = schema.get("items") if isinstance(schema, dict) else None
        pairs = enumerate(zip(theirs, ours, strict=True))
        found = (difference(a, b, items, tolerance, f"{path}[{at}]") for at, (a, b) in pairs)
        return next((text for text in found if text is not None), None)
    if _same_scalar(theirs, ours, tolerance):
        return None
    return f"{path}: {shown(ours)} instead of {shown(theirs)}"


def _object_difference(
    theirs: dict[str, JsonValue], ours: dict[str, JsonValue], schema: JsonValue, tolerance: Tolerance, path: str
) -> str | None:
    properties = schema.get("properties") if isinstance(schema, dict) else None
    declared = properties if isinstance(properties, dict) else {}
    for key, value in theirs.items():
        if key in ours:
            found = difference(value, ours[key], declared.get(key), tolerance, f"{path}.{key}")
            if found is not None:
                return found
        elif not _means_absent(key, value, schema, declared, tolerance):
            return f"{path}.{key}: missing, {shown(value)} expected"
    for key, value in ours.items():
        if key not in theirs and not _means_absent(key, value, schema, declared, tolerance):
            return f"{path}.{key}: {shown(value)} is not in the demonstration"
    return None


def _means_absent(
    key: str, value: JsonValue, schema: JsonValue, declared: dict[str, JsonValue], tolerance: Tolerance
) -> bool:
    """Whether leaving out this property does the same as this value. Values were validated, so null is allowed here."""
    property_schema = declared.get(key)
    if not isinstance(schema, dict) or not isinstance(property_schema, dict):
        return False
    required = schema.get("required")
    if isinstance(required, list) and key in required:
        return False
    default = property_schema.get("default")
    return difference(default, value, property_schema, tolerance) is None


def _same_scalar(a: JsonValue, b: JsonValue, tolerance: Tolerance) -> bool:
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=tolerance.relative, abs_tol=tolerance.absolute)
    if isinstance(a, str) and isinstance(b, str):
        return a == b or normalised(a) == normalised(b)
    return a == b


def normalised(text: str) -> str:
    """NFC; no outer or trailing blanks, runs of blanks inside a line as one space, line breaks as \\n."""
    lines = unicodedata.normalize("NFC", text).replace("\r\n", "\n").strip().split("\n")
    return "\n".join(_BLANKS.sub(" ", line.rstrip()) for line in lines)


def match(edges: Sequence[Sequence[int]]) -> list[int]:
    """Maximum bipartite matching (Kuhn): edges[i] lists the right nodes that left node i may take.

    Returns the right node of every left node, -1 for none. Needed because "does the same" is not transitive with
    tolerances and defaults, so taking the first fit can miss a perfect pairing.
    """
    owner: dict[int, int] = {}
    for left in range(len(edges)):
        _augment(left, edges, owner, set())
    result = [-1] * len(edges)
    for right, left in owner.items():
        result[left] = right
    return result


def _augment(left: int, edges: Sequence[Sequence[int]], owner: dict[int, int], seen: set[int]) -> bool:
    for right in edges[left]:
        if right in seen:
            continue
        seen.add(right)
        if right not in owner or _augment(owner[right], edges, owner, seen):
            owner[right] = left
            return True
    return False
