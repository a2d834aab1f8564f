"""The grammar of `--verifier`.

    spec      composition | named | function
    composition  ("cascade" | "any" | "all") "(" spec {"," spec} ")"
    named     name [":" key "=" value {"," key "=" value}]
    function  (package.module | FILE.py) ":" name

A comma between members and `key=` after it: one more setting of the member before. Brackets come in pairs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pivotrl.errors import ConfigError

Setting = bool | int | float | str
COMPOSITIONS: Final = ("cascade", "any", "all")
MAX_DEPTH: Final = 8
_KEY: Final = re.compile(r"\s*\w+\s*=")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """A verifier as it was asked for: a name and what is behind its colon (None without one), or the members."""

    text: str
    name: str
    behind: str | None = None
    members: tuple[Spec, ...] = ()


def parse_spec(text: str, depth: int = 0) -> Spec:
    """Take a specification apart; names are not looked up. Raises ConfigError."""
    text = text.strip()
    name, bracket, inside = text.partition("(")
    if not bracket or name.strip() not in COMPOSITIONS:
        name, colon, behind = text.partition(":")
        return Spec(text=text, name=name, behind=behind if colon else None)
    where = f"verifier {text if len(text) <= 60 else f'{text[:57]}...'!r}"
    if depth == MAX_DEPTH:
        raise ConfigError(f"{where}: nested deeper than {MAX_DEPTH}")
    members = _split(inside.removesuffix(")")) if inside.endswith(")") else None
    if members is None:
        raise ConfigError(f"{where}: the brackets do not pair off; write {name.strip()}(ONE, OTHER)")
    if not all(map(str.strip, members)):
        raise ConfigError(f"{where}: there is nothing beside a comma or between brackets; name a verifier")
    return Spec(text=text, name=name.strip(), members=tuple(parse_spec(one, depth + 1) for one in members))


def _split(text: str) -> list[str] | None:
    """The members between commas outside of brackets; None where brackets do not pair off."""
    members, start, depth = list[str](), 0, 0
    for at, char in enumerate(f"{text},"):
        depth += (char == "(") - (char == ")")
        if depth < 0:
            return None
        if char == "," and (depth == 0 or at == len(text)):
            piece, start = text[start:at], at + 1
            if members and _KEY.match(piece):
                members[-1] += f",{piece}"
            else:
                members.append(piece)
    return None if depth else members


def read_settings(name: str, text: str | None, known: Mapping[str, Setting]) -> dict[str, Setting]:
    """The settings in `key=value,key=value`, each read as its default is. Raises ConfigError."""
    settings: dict[str, Setting] = {}
    for part in [] if text is None else text.split(","):
        key, equals, value = part.partition("=")
        key = key.strip()
        if not equals or key not in known or key in settings:
            hint = f"its settings are {', '.join(known)}" if known else "it has no settings"
            raise ConfigError(f"verifier {name}: {part!r} is no key=value that it knows, once each; {hint}")
        settings[key] = _value(f"verifier {name}: {key}", value.strip(), known[key])
    return settings


def _value(where: str, text: str, default: Setting) -> Setting:
    if isinstance(default, str):
        return text
    if isinstance(default, bool):
        if text not in ("true", "false"):
            raise ConfigError(f"{where}={text!r} is not true or false")
        return text == "true"
    try:
        return int(text) if isinstance(default, int) else float(text)
    except ValueError:
        raise ConfigError(f"{where}={text!r} is not a{' whole' * isinstance(default, int)} number") from None
