"""One assistant turn in 80 columns of any terminal, control characters escaped."""

from __future__ import annotations

import difflib
import textwrap
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Final

from pivotrl.errors import MissingError
from pivotrl.storage import dump_json
from pivotrl.types import ToolCall
from pivotrl.viewer_data import Record, RunView

WIDTH: Final = 80
FOLD: Final = 1200
BEFORE: Final = 4
"""Characters of a text, and messages before the turn, that are shown."""


def turn_text(shown: RunView, key: str) -> Iterator[str]:
    """Lines about a turn: what came before, the demonstration, what was sampled. Raises MissingError."""
    id_, _, turn = key.rpartition("@")
    if id_ not in shown.store.index:
        id_, turn = key, ""
    record = shown.block([id_])[0] if id_ in shown.store.index else {"turns": {}}
    if turn not in record["turns"]:
        turns = ", ".join(record["turns"]) or "none (a candidate is named TRAJECTORY@TURN)"
        raise MissingError(f"{shown.run.path}: no candidate {key!r}; turns of this trajectory: {turns}")
    about, messages = record["turns"][turn], record["trajectory"].messages[: int(turn) + 1]
    yield from _lines(f"{key}: {about['state'].replace('_', ' ')} {about['detail']}".rstrip())
    if one := about["profile"]:
        yield f"mean {one.mean}, n {one.n}, unscored {one.unscored}, truncated {one.truncated}"
    for message in messages[-BEFORE - 1 : -1]:
        yield from _lines(f"\n{message.role} {message.name or ''}".rstrip())
        yield from _lines(_said(message.content, message.tool_calls), "    ")
    demonstrated = _said(messages[-1].content, messages[-1].tool_calls)
    yield from ("", "demonstration", *_lines(demonstrated, "    "))
    for sampled in about["samples"]:
        yield from _sampled(sampled, demonstrated)


def _sampled(sampled: Record, demonstrated: str) -> Iterator[str]:
    """What was sampled, in lines with what the demonstration has more (-) or less (+)."""
    verdict, action = sampled["verdict"], sampled["action"]
    word = f"reward {verdict.value}: {verdict.reason} {verdict.detail}" if verdict else "not judged"
    yield from _lines(f"\n{len(sampled['samples'])} x {word}".rstrip())
    failed = f"{sampled['parse_error'] or sampled['finish_reason']}: {_folded(sampled['text'] or '')}"
    both = demonstrated.split("\n"), (_said(action.text, action.calls) if action else failed).split("\n")
    for line in [*difflib.unified_diff(*both, n=len(both[0]), lineterm="")][3:] or [" as demonstrated"]:
        yield from _lines(line[1:], f"  {line[0]} ")


def _said(text: str | None, calls: Sequence[ToolCall]) -> str:
    lines = [_folded(text)] if text else []
    for call in calls:
        values = call.parsed.value
        lines += [call.name] if values is not None else [call.name, _folded(f"  {call.arguments or 'no arguments'}")]
        for name, value in (values or {}).items():
            many = isinstance(value, str) and "\n" in value
            lines += (
                [f"  {name}:", _folded(str(value))] if many else [f"  {name}: {_folded(dump_json(value).decode())}"]
            )
    return "\n".join(lines)


def _folded(text: str) -> str:
    more = len(text) - FOLD
    return text if more <= 0 else f"{text[:FOLD]} ... {more} characters more"


def _lines(text: str, indent: str = "") -> Iterator[str]:
    """Wrapped; whatever does not print is escaped, and wide characters are given twice the room."""
    for line in text.split("\n"):
        plain = "".join(ch if ch.isprintable() else ch.encode("unicode_escape").decode() for ch in line)
        wide = any(unicodedata.east_asian_width(ch) in "WF" for ch in plain)
        room = (WIDTH - len(indent)) // (1 + wide)
        parts = textwrap.wrap(plain, room, break_on_hyphens=False)
        yield from (f"{indent}{part}".rstrip() for part in parts or [""])
