"""Whether a value occurs in what the model could see at a state: what nobody mentioned is made up, or a lucky guess.

Seen is the content of the messages before the turn (leaves and keys of what is JSON) and the arguments of their calls;
reasoning is not. A value occurs as a whole token, verbatim: 12 not in 312 nor in 12.5, `mail.com` not in `a@mail.com`.
Truth values, null, a member of the schema's enum and its default need no occurrence; of arrays and objects every part
does. It is blind to what a value is of: a name that was mentioned is grounded as an order id, too.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from pydantic import JsonValue

from pivotrl.types import DECODER, Message

_JOINT = r"[-.@/+]"
"""Between two word characters these join one token."""


@lru_cache(maxsize=64)
def seen(messages: tuple[Message, ...]) -> str:
    """What the messages show, one leaf a line."""
    texts = (text for one in messages for text in (one.content, *(call.arguments for call in one.tool_calls)) if text)
    return unicodedata.normalize("NFC", "\n".join(leaf for text in texts for leaf in _leaves(text)))


def grounded(value: JsonValue, schema: object, text: str) -> bool:
    """Whether a value occurs in what is `seen`, or its schema names it."""
    shape: dict[str, Any] = schema if isinstance(schema, dict) else {}
    if value is None or isinstance(value, bool) or value in shape.get("enum", ()) or value == shape.get("default"):
        return True
    if isinstance(value, dict):
        return all(grounded(one, shape.get("properties", {}).get(key), text) for key, one in value.items())
    if isinstance(value, list):
        return all(grounded(one, shape.get("items"), text) for one in value)
    if isinstance(value, float) and value.is_integer() and _occurs(str(int(value)), text):
        return True
    return _occurs(unicodedata.normalize("NFC", str(value)), text)


def _occurs(word: str, text: str) -> bool:
    if not word.strip() or word not in text:
        return False
    pattern = rf"(?<!\w)(?<!\w{_JOINT}){re.escape(word)}(?!\w)(?!{_JOINT}\w)"
    return re.search(pattern, text) is not None


def _leaves(text: str) -> Iterator[str]:
    """The leaves and keys of a text that is a JSON object or array; any other text."""
    try:
        left: list[JsonValue] = [DECODER.decode(text) if text.lstrip().startswith(("{", "[")) else text]
    except (ValueError, RecursionError):
        left = [text]
    while left:
        one = left.pop()
        if isinstance(one, dict):
            left += one.values()
            yield from one
        elif isinstance(one, list):
            left += one
        else:
            yield str(one)
