"""Pictures, pure: shares, funnels, curves, costs, as SVG in greys that need no colour, without a library.

The greys are a page's own where it has them (`documents`), so that they are read on a dark one too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Final

from pivotrl.types import Estimate

_ROW: Final = 24
_LEFT: Final = 330
_WIDTH: Final = 400
_LIGHT, _DARK, _INK, _PAPER, _LINE = (
    f"var(--{name},{grey})"
    for name, grey in (("fill", "#999"), ("strong", "#333"), ("ink", "#000"), ("paper", "#fff"), ("line", "#ccc"))
)
_HIGH: Final = 110
"""Height of one curve."""
_BINS: Final = 16
_TICKS: Final = (0.0, 0.25, 0.5, 0.75, 1.0)


def share_chart(title: str, shares: Mapping[str, Estimate]) -> str:
    """Horizontal bars from 0 to 1 with their 95% intervals as lines, where those are known, and the value beside."""
    drawn = _begun(title, _ROW * (len(shares) + 3))
    bottom = _ROW * (len(shares) + 1.5)
    for tick in _TICKS:
        x = _LEFT + tick * _WIDTH
        drawn.append(f'<path d="M{x} {_ROW * 1.3}V{bottom}" style="stroke:{_LINE}"/>')
        drawn.append(f'<text x="{x}" y="{bottom + 16}" text-anchor="middle">{tick:g}</text>')
    for at, (name, share) in enumerate(shares.items()):
        drawn += _bar(escape(name), share, _ROW * (at + 1.5))
    return "\n".join([*drawn, "</svg>"]) + "\n"


def funnel_chart(title: str, counts: Mapping[str, int], means: Iterable[tuple[float, bool]], mark: float) -> str:
    """What became of all candidates, each bar a part of the one above that is left; below, how many have which mean
    reward, from 0 to 1, the kept ones (True) dark, with a line at the `mark`. The last of the counts is of the kept."""
    total = max(sum(counts.values()), 1)
    top, height, left = _ROW * (len(counts) + 3.5), 7 * _ROW, total
    drawn = [*_begun(title, top + height + _ROW), *_part("candidates", sum(counts.values()), 0, total, 1)]
    for at, (name, count) in enumerate(counts.items()):
        left -= count
        drawn += _part(escape(name), count, left, total, at + 2, last=at + 1 == len(counts))
    return "\n".join([*drawn, *_histogram(means, mark, top, height), "</svg>"]) + "\n"


def _part(name: str, count: int, start: int, total: int, row: int, *, last: bool = False) -> list[str]:
    """A bar of `count` of the total that begins at `start` of it."""
    y, x, width = _ROW * (row + 0.2), _LEFT + _WIDTH * start / total, _WIDTH * count / total
    return [
        f'<text x="{_LEFT - 8}" y="{y + 13:.1f}" text-anchor="end">{name}</text>',
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="16" style="fill:{_DARK if last else _LIGHT}"/>',
        f'<text x="{_LEFT + _WIDTH + 12}" y="{y + 13:.1f}">{count} ({count / total:.0%})</text>',
    ]


def _histogram(means: Iterable[tuple[float, bool]], mark: float, top: float, height: float) -> list[str]:
    """Bars around 0, 1/16, ..., 1: where 16 rollouts, or 4 or 8 of them, can put a mean."""
    bins = [[0, 0] for _ in range(_BINS + 1)]
    for mean, is_kept in means:
        bins[round(mean * _BINS)][is_kept] += 1
    most, width, bottom = max(max(map(sum, bins)), 1), _WIDTH / _BINS, top + height
    label = f"candidates by mean reward; tallest: {most}"
    drawn = [f'<text x="{_LEFT - 24}" y="{top + 13}" text-anchor="end">{label}</text>']
    for at, (others, pivots) in enumerate(bins):
        tall, dark = (height * count / most for count in (others + pivots, pivots))
        for size, fill in ((tall, _LIGHT), (dark, _DARK)):
            box = f'x="{_LEFT + (at - 0.45) * width:.1f}" y="{bottom - size:.1f}" width="{0.9 * width:.1f}"'
            drawn += [f'<rect {box} height="{size:.1f}" style="fill:{fill}"/>'] if size else []
    for tick in _TICKS:
        drawn.append(f'<text x="{_LEFT + tick * _WIDTH}" y="{bottom + 17}" text-anchor="middle">{tick:g}</text>')
    x = _LEFT + mark * _WIDTH
    line = (
        f'<path d="M{x:.1f} {top - 4}V{bottom + 4}" style="stroke:{_INK}" stroke-width="1.5" stroke-dasharray="5 3"/>'
    )
    return [*drawn, line, f'<text x="{x:.1f}" y="{top - 8}" text-anchor="middle">lambda {mark:g}</text>']


def _begun(title: str, height: float) -> list[str]:
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LEFT + _WIDTH + 130} {height:g}" '
        f'width="{_LEFT + _WIDTH + 130}" height="{height:g}" font-family="sans-serif" font-size="13" '
        f'style="fill:{_INK}">',
        f'<rect width="100%" height="100%" style="fill:{_PAPER}"/>'
        f'<text x="8" y="17" font-weight="bold">{escape(title)}</text>',
    ]


def _bar(name: str, share: Estimate, top: float) -> list[str]:
    middle, end = top + 8, _LEFT + share.mean * _WIDTH
    parts = [
        f'<text x="{_LEFT - 8}" y="{middle + 5}" text-anchor="end">{name}</text>',
        f'<rect x="{_LEFT}" y="{top}" width="{end - _LEFT:.1f}" height="16" style="fill:{_LIGHT}"/>',
        f'<text x="{_LEFT + _WIDTH + 12}" y="{middle + 5}">{share.mean:.3f} (n={share.n})</text>',
    ]
    if share.low is not None and share.high is not None:
        low, high = _LEFT + share.low * _WIDTH, _LEFT + share.high * _WIDTH
        ends = f"M{low:.1f} {middle - 4}v8M{high:.1f} {middle - 4}v8"
        parts.append(f'<path d="M{low:.1f} {middle}H{high:.1f}{ends}" style="stroke:{_INK}" stroke-width="1.5"/>')
    return parts


def curves_chart(title: str, curves: Mapping[str, Sequence[float | None]]) -> str:
    """Values by step, one small picture below the other, each with its own scale; gaps where a value is unknown."""
    drawn = _begun(title, _ROW * 2 + (_HIGH + _ROW * 1.5) * len(curves))
    for at, (name, values) in enumerate(curves.items()):
        top = _ROW * 1.5 + at * (_HIGH + _ROW * 1.5)
        known = [value for value in values if value is not None] or [0.0]
        low, high = min(0.0, *known), max(known)
        spread, last = high - low or 1.0, max(len(values) - 1, 1)
        drawn.append(f'<text x="{_LEFT - 60}" y="{top + _HIGH / 2}" text-anchor="end">{escape(name)}</text>')
        for value in (low, high):
            y = top + _HIGH * (1 - (value - low) / spread)
            drawn.append(f'<path d="M{_LEFT} {y:.1f}h{_WIDTH}" style="stroke:{_LINE}"/>')
            drawn.append(f'<text x="{_LEFT - 8}" y="{y + 5:.1f}" text-anchor="end">{value:.3g}</text>')
        path, pen = [], "M"
        for step, one in enumerate(values):
            if one is not None:
                path.append(f"{pen}{_LEFT + _WIDTH * step / last:.1f} {top + _HIGH * (1 - (one - low) / spread):.1f}")
            pen = "M" if one is None else "L"
        drawn.append(f'<path d="{"".join(path)}" fill="none" style="stroke:{_DARK}" stroke-width="1.5"/>')
        for step in (0, len(values) - 1):
            x, place = _LEFT + _WIDTH * step / last, "start" if step == 0 else "end"
            drawn.append(f'<text x="{x:.1f}" y="{top + _HIGH + 16}" text-anchor="{place}">step {step}</text>')
    return "\n".join([*drawn, "</svg>"]) + "\n"


def cost_chart(title: str, points: Mapping[str, tuple[float, Estimate]], unit: str) -> str:
    """Success (0 to 1, with its interval) against cost (from 0), a named point each."""
    height = 260.0
    drawn, top = _begun(title, height + 4 * _ROW), 1.5 * _ROW
    most = max((cost for cost, _ in points.values()), default=0.0) or 1.0
    for tick in _TICKS:
        y, x = top + height * (1 - tick), _LEFT + _WIDTH * tick
        drawn.append(f'<path d="M{_LEFT} {y}h{_WIDTH}" style="stroke:{_LINE}"/>')
        drawn.append(f'<text x="{_LEFT - 8}" y="{y + 5}" text-anchor="end">{tick:g}</text>')
        drawn.append(f'<text x="{x}" y="{top + height + 18}" text-anchor="middle">{most * tick:.3g}</text>')
    drawn.append(f'<text x="{_LEFT + _WIDTH / 2}" y="{top + height + 38}" text-anchor="middle">{escape(unit)}</text>')
    for name, (cost, success) in points.items():
        x, y = _LEFT + _WIDTH * cost / most, top + height * (1 - success.mean)
        if success.low is not None and success.high is not None:
            low, high = (top + height * (1 - one) for one in (success.low, success.high))
            drawn.append(f'<path d="M{x:.1f} {low:.1f}V{high:.1f}" style="stroke:{_DARK}" stroke-width="1.5"/>')
        drawn.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" style="fill:{_DARK}"/>')
        side, away = ("end", -9) if cost > most / 2 else ("start", 9)
        drawn.append(f'<text x="{x + away:.1f}" y="{y - 7:.1f}" text-anchor="{side}">{escape(name)}</text>')
    return "\n".join([*drawn, "</svg>"]) + "\n"


_DASHES: Final = ("", "9 4", "4 3", "1 3")
"""Of the lines of one panel, so that they are told apart without colour."""


def lines_chart(title: str, panels: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]], unit: str) -> str:
    """Panels below each other, each with up to four named lines of (x, y) over one range of x, and y from 0."""
    high, points = 1.6 * _HIGH, [one for lines in panels.values() for line in lines.values() for one in line]
    first, last = min(x for x, _ in points), max(x for x, _ in points)
    drawn = _begun(title, (high + 2.2 * _ROW) * len(panels) + 2.2 * _ROW)
    for number, (name, lines) in enumerate(panels.items()):
        top, most = (high + 2.2 * _ROW) * number + 2.2 * _ROW, max(y for line in lines.values() for _, y in line) or 1.0
        drawn.append(f'<text x="{_LEFT - 60}" y="{top + 8}" text-anchor="end" font-weight="bold">{escape(name)}</text>')
        for tick in _TICKS:
            x, y = _LEFT + _WIDTH * tick, top + high * (1 - tick)
            drawn.append(f'<path d="M{_LEFT} {y:.1f}h{_WIDTH}" style="stroke:{_LINE}"/>')
            drawn.append(f'<text x="{_LEFT - 8}" y="{y + 5:.1f}" text-anchor="end">{most * tick:.3g}</text>')
            at = f"{first + (last - first) * tick:.3g}" + (f" {escape(unit)}" if tick == 1 else "")
            drawn.append(f'<text x="{x:.1f}" y="{top + high + 17:.1f}" text-anchor="middle">{at}</text>')
        for row, ((label, line), dash) in enumerate(zip(lines.items(), _DASHES, strict=False)):
            pen = f'fill="none" style="stroke:{_DARK}" stroke-width="1.7" stroke-dasharray="{dash}"'
            places = (
                f"{_LEFT + _WIDTH * (x - first) / (last - first):.1f} {top + high * (1 - y / most):.1f}"
                for x, y in line
            )
            y = top + _ROW * (row + 1.5)
            drawn.append(f'<path d="M{"L".join(places)}" {pen}/><path d="M{_LEFT - 110} {y - 4:.1f}h50" {pen}/>')
            drawn.append(f'<text x="{_LEFT - 118}" y="{y:.1f}" text-anchor="end">{escape(label)}</text>')
    return "\n".join([*drawn, "</svg>"]) + "\n"
