"""Pictures, pure: a bar chart of shares as SVG, readable in grey and without a library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

from pivotrl.types import Estimate

_ROW: Final = 24
_LEFT: Final = 330
_WIDTH: Final = 400


def share_chart(title: str, shares: Mapping[str, Estimate]) -> str:
    """Horizontal bars from 0 to 1 with their 95% intervals as lines, where those are known, and the value beside."""
    height = _ROW * (len(shares) + 3)
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LEFT + _WIDTH + 130}" height="{height}" '
        'font-family="sans-serif" font-size="13" fill="black">',
        f'<rect width="100%" height="100%" fill="white"/><text x="8" y="17" font-weight="bold">{escape(title)}</text>',
    ]
    bottom = _ROW * (len(shares) + 1.5)
    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        x = _LEFT + tick * _WIDTH
        drawn.append(f'<path d="M{x} {_ROW * 1.3}V{bottom}" stroke="#ccc"/>')
        drawn.append(f'<text x="{x}" y="{bottom + 16}" text-anchor="middle">{tick:g}</text>')
    for at, (name, share) in enumerate(shares.items()):
        drawn += _bar(escape(name), share, _ROW * (at + 1.5))
    return "\n".join([*drawn, "</svg>"]) + "\n"


def _bar(name: str, share: Estimate, top: float) -> list[str]:
    middle, end = top + 8, _LEFT + share.mean * _WIDTH
    parts = [
        f'<text x="{_LEFT - 8}" y="{middle + 5}" text-anchor="end">{name}</text>',
        f'<rect x="{_LEFT}" y="{top}" width="{end - _LEFT:.1f}" height="16" fill="#999"/>',
        f'<text x="{_LEFT + _WIDTH + 12}" y="{middle + 5}">{share.mean:.3f} (n={share.n})</text>',
    ]
    if share.low is not None and share.high is not None:
        low, high = _LEFT + share.low * _WIDTH, _LEFT + share.high * _WIDTH
        ends = f"M{low:.1f} {middle - 4}v8M{high:.1f} {middle - 4}v8"
        parts.append(f'<path d="M{low:.1f} {middle}H{high:.1f}{ends}" stroke="black" stroke-width="1.5"/>')
    return parts


def line_chart(title: str, across: str, lines: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """Points joined by lines, both axes from 0; the first line is solid with dots, the others are dashed."""
    height, bottom = 320, 270
    right, top = (max(point[axis] for line in lines.values() for point in line) for axis in (0, 1))
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH + 120}" height="{height}" font-family="sans-serif" '
        f'font-size="13" fill="black"><rect width="100%" height="100%" fill="white"/>',
        f'<text x="8" y="17" font-weight="bold">{escape(title)}</text>',
        f'<text x="{60 + _WIDTH / 2}" y="{bottom + 36}" text-anchor="middle">{escape(across)}</text>',
        f'<path d="M60 40V{bottom}H{60 + _WIDTH}" stroke="black" fill="none"/>',
        f'<text x="54" y="44" text-anchor="end">{top:.3g}</text><text x="54" y="{bottom}" text-anchor="end">0</text>',
        f'<text x="{60 + _WIDTH}" y="{bottom + 16}" text-anchor="end">{right:g}</text>',
    ]
    for number, (name, line) in enumerate(lines.items()):
        places = [(60 + x / right * _WIDTH, bottom - y / top * (bottom - 40)) for x, y in line]
        dash = ' stroke-dasharray="6 4"' if number else ""
        drawn.append(f'<path d="M{"L".join(f"{x:.1f} {y:.1f}" for x, y in places)}" stroke="black" fill="none"{dash}/>')
        drawn.append(f'<path d="M80 {60 + 20 * number}h30" stroke="black"{dash}/>')
        drawn.append(f'<text x="116" y="{65 + 20 * number}">{escape(name)}</text>')
        drawn += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in places if not number]
    return "\n".join([*drawn, "</svg>"]) + "\n"
