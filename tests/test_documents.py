"""Pages: the same in both forms, and nothing that a model wrote does anything in them."""

from __future__ import annotations

from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from pivotrl.charts import cost_chart, curves_chart, lines_chart
from pivotrl.documents import (
    Bullets,
    Folded,
    Heading,
    Paragraph,
    Picture,
    Verbatim,
    shown,
    table_of,
    to_html,
    to_markdown,
)
from pivotrl.types import Estimate

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(1)>\x1b[2J\u202eexe.txt`**\x00"


class Seen(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]

    def handle_data(self, data):
        self.text.append(data)


def seen(page: str) -> Seen:
    parser = Seen()
    parser.feed(page)
    parser.close()
    return parser


def blocks_with(text: str):
    inner = (Verbatim(text), table_of([text], [[text, 0.5, None]]))
    return [Heading(text), Paragraph(text, "bad"), Bullets((text,)), Folded(text, inner)]


@given(st.text() | st.just(HOSTILE))
def test_text_is_never_markup(text: str) -> None:
    """The tags of the page are those of the blocks, whatever they hold; and text without marks comes out whole."""
    plain, page = seen(to_html("x", blocks_with("x"))), to_html(text, blocks_with(text))
    found = seen(page)
    drawn = ("code", "b")
    assert [tag for tag in found.tags if tag not in drawn] == plain.tags
    assert found.attributes == plain.attributes
    pre = page.split("<pre>")[1].split("</pre>")[0]
    assert "".join(seen(f"<pre>{pre}</pre>").text) == shown(text).replace("\r\n", "\n").replace("\r", "\n")


def test_what_could_turn_a_terminal_or_the_direction_is_shown_as_a_symbol() -> None:
    assert shown("a\x1b[2J\u202eb\tc\n") == "a\u241b[2J\ufffdb\tc\n"
    assert shown("x" * 30_000).endswith("\n[10,000 more characters]")


def test_the_page_asks_for_nothing() -> None:
    page = to_html("t", [Picture("f.svg", "<svg></svg>", "a"), *blocks_with("http://example.org")])
    assert "default-src 'none'" in page
    assert not {"src", "href", "srcset"} & {*seen(page).attributes}
    assert "url(" not in page
    assert "@import" not in page


def test_both_forms_say_the_same() -> None:
    blocks = [Heading("one", 1), Paragraph("**two** `three`"), Bullets(("four",)), table_of(["five"], [["a|b<c"]])]
    page, text = " ".join(seen(to_html("t", blocks)).text), to_markdown(blocks)
    for word in ("one", "two", "three", "four", "five"):
        assert word in page
        assert word in text
    assert "a\\|b&lt;c" in text
    assert "a|b<c" in page


@given(st.lists(st.none() | st.floats(-1e6, 1e6), max_size=40))
def test_curves_stay_in_their_frame(values: list[float | None]) -> None:
    drawn = curves_chart("t & u", {"a < b": values})
    path = next(line for line in drawn.splitlines() if 'fill="none"' in line).split('d="')[1].split('"')[0]
    points = [point.split() for point in path.replace("M", " L").split("L") if point.strip()]
    assert len(points) == sum(value is not None for value in values)
    assert all(330 <= float(x) <= 730 and 0 <= float(y) <= 200 for x, y in points)


def test_costs_have_a_point_each() -> None:
    wide = Estimate(mean=0.5, low=0.4, high=0.6, n=9, clusters=9)
    alone = Estimate(mean=0.2, low=None, high=None, n=1, clusters=1)
    drawn = cost_chart("t", {"a": (0.0, alone), "b<": (10.0, wide)}, "turns")
    assert drawn.count("<circle") == 2
    assert "b&lt;" in drawn


def test_lines_that_are_0_everywhere_are_drawn() -> None:
    assert "<path" in lines_chart("t", {"a": {"b": [(0.0, 0.0), (1.0, 0.0)]}}, "turns")
