"""Markdown and counts as text, pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def counted(n: int, thing: str) -> str:
    """`1 task`, `2 tasks`, `0 trajectories`."""
    many = thing.removesuffix("y") + "ies" if thing.endswith("ry") else thing + "s"
    return f"{n} {thing if n == 1 else many}"


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table; pipes and line breaks in cells are escaped."""
    written = [[_escaped(value) for value in row] for row in (header, *rows)]
    lines = [f"| {' | '.join(row)} |" for row in written]
    return "\n".join([lines[0], "|" + " --- |" * len(header), *lines[1:]])


def _escaped(value: object) -> str:
    return harmless(cell(value)).replace("|", "\\|")


def harmless(text: str) -> str:
    """Text without HTML, and without links and images of anybody's."""
    return text.replace("<", "&lt;").replace("](", "]\\(")


def cell(value: object) -> str:
    """A value as the text of a table's cell, in one line."""
    text = "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
    return " ".join(text.split())
