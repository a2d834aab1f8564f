"""A page as blocks, written once as Markdown and once as one self-contained HTML file: no script, no network.

Everything that comes from outside is text: HTML escapes it, and a content security policy forbids what it might be.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Final

from pivotrl.storage import write_atomic


@dataclass(frozen=True, slots=True)
class Heading:
    text: str
    level: int = 2


@dataclass(frozen=True, slots=True)
class Paragraph:
    text: str
    kind: str = ""
    """`good`, `bad` or `unsure` mark an answer, `note` what is said beside."""


@dataclass(frozen=True, slots=True)
class Bullets:
    items: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Table:
    header: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]


@dataclass(frozen=True, slots=True)
class Picture:
    """An SVG; in Markdown a file of this name, which the writer of the page has to put there."""

    file: str
    svg: str
    alt: str


@dataclass(frozen=True, slots=True)
class Verbatim:
    """Text as it is, line breaks included; control characters are shown as their symbols."""

    text: str


@dataclass(frozen=True, slots=True)
class Folded:
    """Blocks behind a line to click on."""

    summary: str
    blocks: tuple[Block, ...]


FOLDER: Final = "report_files"
"""Where the pictures of a Markdown page lie, beside it."""
Block = Heading | Paragraph | Bullets | Table | Picture | Verbatim | Folded
_LONGEST: Final = 20_000
"""Characters of a verbatim text that are shown."""
_SYMBOLS: Final = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {
    0x7F: 0x2421,
    **dict.fromkeys(
        [*range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x61C], 0xFFFD
    ),
}
"""Controls as symbols; those of the C1 set and those that turn the direction of text as U+FFFD."""


def file_name(name: str) -> str:
    """A name that does for a file."""
    return re.sub(r"[^\w.-]+", "_", name)


def shown(text: str) -> str:
    """Text that cannot do anything to a page or a terminal, and ends somewhere."""
    more = len(text) - _LONGEST
    return text[:_LONGEST].translate(_SYMBOLS) + (f"\n[{more:,} more characters]" if more > 0 else "")


def table_of(header: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    return Table(tuple(header), tuple(map(tuple, rows)))


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table; pipes and line breaks in cells are escaped."""
    written = [[harmless(cell(value)).replace("|", "\\|") for value in row] for row in (header, *rows)]
    lines = [f"| {' | '.join(row)} |" for row in written]
    return "\n".join([lines[0], "|" + " --- |" * len(header), *lines[1:]])


def harmless(text: str) -> str:
    """Text without HTML, and without links and images of anybody's."""
    return text.replace("<", "&lt;").replace("](", "]\\(").replace("![", "!\\[")


def cell(value: object) -> str:
    """A value as the text of a table's cell, in one line."""
    text = "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
    return " ".join(text.split())


def to_markdown(blocks: Iterable[Block]) -> str:
    return "\n\n".join(_markdown(block) for block in blocks).translate(_SYMBOLS) + "\n"


def prose(text: str) -> str:
    """Text as Markdown without HTML, and without links and images of anybody's; controls as symbols."""
    return harmless(text.translate(_SYMBOLS))


def _markdown(block: Block) -> str:
    match block:
        case Heading(text, level):
            return f"{'#' * level} {prose(cell(text))}"
        case Paragraph(text):
            return prose(cell(text))
        case Bullets(items):
            return "\n".join(f"- {prose(cell(item))}" for item in items)
        case Table(header, rows):
            return table(header, rows)
        case Picture(file, _, alt):
            return f"![{prose(cell(alt))}]({file})"
        case Verbatim(text):
            return "\n".join(f"    {line}" for line in shown(text).splitlines())
        case Folded(summary, blocks):
            return "\n\n".join([f"**{prose(cell(summary))}**", *map(_markdown, blocks)])


def write_pictures(blocks: Iterable[Block], folder: Path) -> None:
    """Write the pictures of a Markdown page in `folder` that lie in FOLDER; others are there already."""
    for block in blocks:
        if isinstance(block, Folded):
            write_pictures(block.blocks, folder)
        elif isinstance(block, Picture) and block.file.startswith(f"{FOLDER}/"):
            write_atomic(folder / block.file, block.svg.encode())


_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
STYLE: Final = """
:root { color-scheme: light dark; --ink: #1a1a1a; --soft: #5c5c5c; --line: #d4d4d4; --paper: #fff; --band: #f4f4f4;
  --fill: #9a9a9a; --strong: #2b2b2b; --good: #0b5c3b; --bad: #96281b; --unsure: #6b4e00; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e8e8; --soft: #a9a9a9; --line: #444; --paper: #161616;
  --band: #222; --fill: #777; --strong: #e0e0e0; --good: #7fd6a8; --bad: #ff9d8f; --unsure: #e6c35c; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 62rem;
  margin: 0 auto; padding: 1.5rem; }
h1 { font-size: 1.6rem; margin: 0 0 1rem; } h2 { font-size: 1.25rem; margin: 2.5rem 0 .6rem; }
h3 { font-size: 1.05rem; margin: 1.6rem 0 .4rem; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: .9rem; margin: .6rem 0; }
th, td { text-align: left; padding: .25rem .8rem .25rem 0; border-bottom: 1px solid var(--line); vertical-align: top;
  font-variant-numeric: tabular-nums; max-width: 30rem; } th { font-weight: 600; white-space: nowrap; }
p { margin: .5rem 0; overflow-wrap: anywhere; } p.note { color: var(--soft); font-size: .9rem; }
p.good, p.bad, p.unsure { border-left: .4rem solid; padding: .2rem 0 .2rem .8rem; }
p.good { border-color: var(--good); } p.bad { border-color: var(--bad); border-left-style: double; }
p.unsure { border-color: var(--unsure); border-left-style: dashed; }
pre { background: var(--band); padding: .7rem; overflow-x: auto; white-space: pre-wrap; overflow-wrap: anywhere;
  font-size: .85rem; max-height: 30rem; } code { background: var(--band); padding: 0 .2rem; }
summary { cursor: pointer; font-weight: 600; margin: .6rem 0; } svg, img { max-width: 100%; height: auto; }
"""


def to_html(title: str, blocks: Iterable[Block]) -> str:
    """One file that needs no other."""
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(shown(title))}</title><style>{STYLE}</style></head><body>",
            *map(_html, blocks),
            "</body></html>\n",
        ]
    )


def write_page(path: Path, title: str, blocks: Sequence[Block]) -> str:
    """Write PATH.html, and PATH.md with its pictures. Returns the Markdown."""
    write_pictures(blocks, path.parent)
    text = to_markdown(blocks)
    write_atomic(path.with_suffix(".md"), text.encode())
    write_atomic(path.with_suffix(".html"), to_html(title, blocks).encode())
    return text


def _html(block: Block) -> str:
    match block:
        case Heading(text, level):
            return f"<h{level}>{_inline(text)}</h{level}>"
        case Paragraph(text, kind):
            return f'<p class="{kind}">{_inline(text)}</p>' if kind else f"<p>{_inline(text)}</p>"
        case Bullets(items):
            return f"<ul>{''.join(f'<li>{_inline(item)}</li>' for item in items)}</ul>"
        case Table(header, rows):
            head = "".join(f"<th>{_inline(name)}</th>" for name in header)
            body = "".join(f"<tr>{''.join(f'<td>{_inline(cell(one))}</td>' for one in row)}</tr>" for row in rows)
            return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
        case Picture(_, svg, alt):
            return f'<figure role="img" aria-label="{escape(alt)}">{svg}</figure>'
        case Verbatim(text):
            return f"<pre>{escape(shown(text))}</pre>"
        case Folded(summary, blocks):
            return f"<details><summary>{_inline(summary)}</summary>{''.join(map(_html, blocks))}</details>"


def _inline(text: str) -> str:
    """Escaped, with `code` and **bold** as in Markdown; a mark without its pair stays a mark."""
    return _marked(escape(shown(text)), "`", "code", lambda rest: _marked(rest, "**", "b", str))


def _marked(text: str, mark: str, tag: str, outside: Callable[[str], str]) -> str:
    """What stands between two marks in a tag, and the rest as `outside` gives it."""
    pieces = text.split(mark)
    if len(pieces) % 2 == 0:
        return mark.join(map(outside, pieces))
    return "".join(f"<{tag}>{one}</{tag}>" if at % 2 else outside(one) for at, one in enumerate(pieces))
