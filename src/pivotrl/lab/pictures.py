"""The one picture of the lab's own: shares over a cost, a line for each method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

from pivotrl.types import Estimate

DASHES: Final = ("", "8 3", "2 2", "8 3 2 3", "14 4", "1 4")
SHADES: Final = ("black", "#999", "#555")


def curve_chart(title: str, curves: Mapping[str, Sequence[tuple[float, Estimate]]]) -> str:
    """SVG: shares over a cost, one line for each name, with their 95% intervals where those are known."""
    places = [x for curve in curves.values() for x, _ in curve] or [0.0]
    left, right = min(places), max(max(places), min(places) + 1)
    width, height, edge, foot = 560, 300, 50, 340
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width + edge + 220}" height="{foot + 40}" '
        'font-family="sans-serif" font-size="13" fill="black">',
        f'<rect width="100%" height="100%" fill="white"/><text x="8" y="17" font-weight="bold">{escape(title)}</text>',
    ]
    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = foot - tick * height
        drawn.append(f'<path d="M{edge} {y}h{width}" stroke="#ddd"/><text x="8" y="{y + 4}">{tick:g}</text>')
    for at in sorted(set(places)):
        x = edge + 20 + (width - 40) * (at - left) / (right - left)
        drawn.append(f'<text x="{x:.1f}" y="{foot + 18}" text-anchor="middle">{at:g}</text>')
    for number, (name, curve) in enumerate(curves.items()):
        style = f'stroke="{SHADES[number % 3]}" stroke-dasharray="{DASHES[number % 6]}" stroke-width="2" fill="none"'
        spots = [(edge + 20 + (width - 40) * (x - left) / (right - left) + 3 * number, one) for x, one in curve]
        line = "L".join(f"{x:.1f} {foot - one.mean * height:.1f}" for x, one in spots)
        bars = "".join(
            f"M{x:.1f} {foot - one.low * height:.1f}V{foot - one.high * height:.1f}"
            for x, one in spots
            if one.low is not None and one.high is not None
        )
        y = 50 + 24 * number
        drawn.append(f'<path d="M{line}" {style}/><path d="{bars}" stroke="{SHADES[number % 3]}"/>')
        drawn.append(f'<path d="M{width + edge + 12} {y}h40" {style}/>')
        drawn.append(f'<text x="{width + edge + 60}" y="{y + 4}">{escape(name)}</text>')
    return "\n".join([*drawn, "</svg>"]) + "\n"
