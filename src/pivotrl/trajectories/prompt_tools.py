"""Tools that a prompt tells of in its own text: `<tools>` of Hermes, a JSON list, functions as OpenHands has them."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import Final

from pydantic import JsonValue

from pivotrl.actions.base import Malformed, python_json
from pivotrl.errors import InputError
from pivotrl.trajectories.messages import read_tools
from pivotrl.types import DECODER, Tool

_FUNCTION: Final = "---- BEGIN FUNCTION #"
_PARAMETER: Final = re.compile(r"^ +\(\d+\) (\w+) \((\w+), (required|optional)\): ?(.*)$", re.M)
_LIST: Final = re.compile(r"\[\s*\{")
_GAP: Final = re.compile(r"[\s,]*")


def tools_in(prompt: str) -> tuple[Tool, ...] | None:
    """The tools, None where the text tells of none in a way that is known."""
    found: list[JsonValue] = [_documented(part) for part in prompt.split(_FUNCTION)[1:]]
    start = _LIST.search(prompt)
    blocks = [part.partition("</tools>")[0] for part in prompt.split("<tools>")[1:]]
    blocks += [prompt[start.start() :]] if start else []
    with suppress(InputError):
        return read_tools(found or next(filter(None, map(_objects, blocks)), []), "prompt") or None
    return None


def _objects(text: str) -> list[JsonValue]:
    """The JSON objects that a text begins with, in lists or not, or the literals of Python that it is."""
    text, found, at = text.strip(), list[JsonValue](), 0
    with suppress(ValueError, RecursionError):
        while at < len(text):
            value, at = DECODER.raw_decode(text, at)
            found += value if isinstance(value, list) else [value]
            at = _GAP.match(text, at).end()  # type: ignore[union-attr]
    if not found:
        with suppress(Malformed):
            value = json.loads(python_json(text))
            found = value if isinstance(value, list) else [value]
    return found


def _documented(part: str) -> JsonValue:
    """A function as OpenHands describes it to models without tool calls, and SWE-smith and R2E-Gym after it."""
    head, _, rest = part.partition("---- END FUNCTION")[0].partition("\n")
    described, _, listed = rest.removeprefix("Description:").partition("\nParameters:")
    parameters = _PARAMETER.findall(listed)
    properties: dict[str, JsonValue] = {name: {"type": kind, "description": text} for name, kind, _, text in parameters}
    required: list[JsonValue] = [name for name, _, need, _ in parameters if need == "required"]
    schema: JsonValue = {"type": "object", "properties": properties, "required": required}
    name = head.partition(":")[2].strip().removesuffix("----").strip()
    return {"name": name, "description": described.strip(), "parameters": schema}
