"""One assistant turn in 80 columns of any terminal, control characters escaped."""

from __future__ import annotations

import difflib
import textwrap
import unicodedata
from collections.abc import Iterator
from typing import Final

from pivotrl.errors import MissingError
from pivotrl.storage import dump_json
from pivotrl.types import Action, Trajectory
from pivotrl.viewer_data import Record, RunView

WIDTH: Final = 80
FOLD: Final = 1200
"""Characters of a text that are shown."""
BEFORE: Final = 4
"""Messages before the turn that are shown."""


def candidate_text(shown: RunView, key: str) -> Iterator[str]:
    """Lines about a turn: what came before, the demonstration, what was sampled. Raises MissingError."""
    id_, _, turn = key.rpartition("@")
    if id_ not in shown.store.index:
        raise MissingError(f"{shown.run.path}: no trajectory {id_!r}; a candidate is named TRAJECTORY@TURN")
    (record,) = shown.block([id_])
    trajectory: Trajectory = record["trajectory"]
    if turn not in record["turns"]:
        raise MissingError(f"{key}: no turn of the assistant; those are {', '.join(record['turns'])}")
    about = record["turns"][turn]
    yield from _lines(f"{key}: {_state(about)}")
    messages = trajectory.messages[: int(turn) + 1]
    for message in messages[-BEFORE - 1 :]:
        last = message is messages[-1]
        yield from _titled("demonstration" if last else f"{message.role} {message.name or ''}".strip())
        yield from _lines(_said(Action(text=message.content, calls=message.tool_calls)), "  ")
    for sampled in about["samples"]:
        yield from _sampled(sampled, _said(Action(text=message.content, calls=message.tool_calls)))


def _state(about: Record) -> str:
    profile, detail = about["profile"], about["detail"]
    if profile is None:
        return f"{about['state']} {detail}".strip()
    mean = "no mean reward" if profile.mean is None else f"mean reward {profile.mean:.3f}"
    broken = "".join(
        f", {count} {kind}" for kind in ("unscored", "truncated", "unparsable") if (count := getattr(profile, kind))
    )
    return f"{about['state'].replace('_', ' ')}, {mean} of {profile.n} scored{broken}"


def _sampled(sampled: Record, demonstrated: str) -> Iterator[str]:
    """What was sampled, by lines with what the demonstration has more (-) or less (+)."""
    verdict, action = sampled["verdict"], sampled["action"]
    word = "not judged" if verdict is None else f"reward {verdict.value}: {verdict.reason} {verdict.detail}".strip()
    yield from _titled(f"{len(sampled['samples'])} x {word.replace('None', 'unknown', 1)}")
    if action is None:
        yield from _lines(f"{sampled['parse_error'] or sampled['finish']}: {_folded(sampled['text'])}", "  ")
        return
    said = _said(action)
    if said == demonstrated:
        yield "  as demonstrated"
    for line in difflib.ndiff(demonstrated.split("\n"), said.split("\n")) if said != demonstrated else ():
        if not line.startswith("?"):
            yield from _lines(line[2:], line[:2])


def _said(action: Action) -> str:
    lines = [_folded(action.text)] if action.text else []
    for call in action.calls:
        arguments = call.parsed.value
        lines.append(call.name)
        if arguments is None:
            lines.append(f"  {_folded(call.arguments or 'no arguments')}")
        for name, value in (arguments or {}).items():
            many = isinstance(value, str) and "\n" in value
            lines.append(f"  {name}: " + _folded(f"\n{value}" if many else dump_json(value).decode()))
    return "\n".join(lines)


def _folded(text: str) -> str:
    more = len(text) - FOLD
    return text if more <= 0 else f"{text[:FOLD]} ... {more} characters more"


def _titled(title: str) -> Iterator[str]:
    yield ""
    yield from _lines(title, "-- ")


def _lines(text: str, indent: str = "") -> Iterator[str]:
    """Wrapped; whatever does not print is escaped, and wide characters count twice."""
    for line in text.split("\n"):
        plain = "".join(ch if ch.isprintable() else ch.encode("unicode_escape").decode() for ch in line)
        wide = any(unicodedata.east_asian_width(ch) in "WF" for ch in plain)
        room = (WIDTH - len(indent)) // (1 + wide)
        parts = textwrap.wrap(plain, room, drop_whitespace=False, break_on_hyphens=False)
        yield from (f"{indent}{part.rstrip()}" for part in parts or [""])
