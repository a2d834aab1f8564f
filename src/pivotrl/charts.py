"""Pictures, pure: a bar chart of shares as SVG, readable in grey and without a library."""

from __future__ import annotations

from collections.abc import Mapping
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
