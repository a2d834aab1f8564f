"""README and docs/: every block is run or read, every link leads somewhere, every quoted message is in the source.

A fenced `python` block is run, in its page's order and in one folder; one that opens with `# FILE.py` is that file. The
commands of a fenced `sh` block are run too, unless `<!-- not run: WHY -->` stands above it. Those, and the commands of
indented blocks, are held against the real command line, the Makefile, the extras and the scripts' own options. The
lines of a `text` block that follows a block which is run are printed by it, in this order, with seconds left aside;
below `<!-- sampled: WHY -->` its numbers are near.
"""

from __future__ import annotations

import ast
import importlib
import json
import re
import shlex
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

from pivotrl.cli import COMMANDS, LAB, _parse, main
from pivotrl.planning import REASONS

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES += sorted((ROOT / "examples").rglob("*.md"))
NAMES = {name for name, _ in COMMANDS.values()} | {"lab"}
NOT_RUN = "<!-- not run:"
SAMPLED = "<!-- sampled:"
PARSED = "<!-- commands are parsed, not run:"
READ = {"json": json.loads, "toml": tomllib.loads, "yaml": yaml.safe_load}


@dataclass(frozen=True)
class Block:
    kind: str
    """The fence's word; `indented` without a fence."""
    text: str
    run: bool = True
    sampled: bool = False

    def commands(self) -> list[list[str]]:
        """The words of each command line, continuations joined, comments and settings of the environment left out."""
        joined = re.sub(r" \\\n *", " ", self.text)
        parts = [part for line in joined.splitlines() for part in line.split(" && ")]
        words = [re.sub(r"^(\w+=\S+ )+", "", part.strip()) for part in parts]
        return [shlex.split(one, comments=True) for one in words if re.match(r"(pivotrl|python3?|make|pip|head) ", one)]


def blocks(page: Path) -> list[Block]:
    found, rest = [], page.read_text()
    fence = re.compile(r"(?:^(<!-- [^\n]* -->)\n)?^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
    for mark, kind, text in fence.findall(rest):
        found.append(Block(kind or "text", text, not mark.startswith(NOT_RUN), mark.startswith(SAMPLED)))
    plain = fence.sub("", rest)
    for text in re.findall(r"(?<=\n\n)(?:    .*\n(?:\n(?=    ))?)+", plain):
        found.append(Block("indented", re.sub("^    ", "", text, flags=re.MULTILINE), run=False))
    return found


def by_name(page: Path) -> str:
    return str(page.relative_to(ROOT))


RUN = [page for page in PAGES if any(block.run and block.kind in ("python", "sh") for block in blocks(page))]


@pytest.mark.parametrize("page", RUN, ids=by_name)
def test_every_block_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(sys.path))
    names: dict[str, object] = {}
    printed: str | None = None
    for block in blocks(page):
        if block.kind == "text" and printed is not None:
            assert lines_missing(block, printed) == []
        printed = None if block.kind in ("sh", "python") and not block.run else ""
        file = re.match(r"# (\S+\.py)\n", block.text)
        if block.kind == "python" and file:
            Path(file[1]).write_text(block.text)
            importlib.invalidate_caches()
        elif block.kind == "python":
            exec(compile(block.text, str(page), "exec"), names)
        elif block.kind == "sh" and block.run:
            for program, *arguments in block.commands():
                if program == "pivotrl":
                    assert main(arguments) == 0, arguments
                else:
                    done = subprocess.run([program, *arguments], check=True, capture_output=True, text=True)
                    print(done.stdout)
        if printed is not None:
            printed = capsys.readouterr().out


def lines_missing(block: Block, printed: str) -> list[str]:
    """The first line of a text block that was not printed, or not after the line above it."""
    said = iter(printed.splitlines())
    for line in filter(str.strip, block.text.splitlines()):
        if not any(alike(line, one, near=block.sampled) for one in said):
            return [line, printed]
    return []


def alike(shown: str, said: str, *, near: bool) -> bool:
    """The same words and numbers, whatever the spaces and the seconds; `near`: numbers may be off by a fifth."""
    shown, said = (" ".join(re.sub(r"[\d.]+ (?=s\b|seconds)", "", one).split()) for one in (shown, said))
    if not near:
        return shown == said
    number = r"\d+(?:\.\d+)?"
    pairs = list(zip(re.findall(number, shown), re.findall(number, said), strict=False))
    close = all(abs(float(a) - float(b)) <= max(float(a) / 5, 0.1 if "." in a else 3) for a, b in pairs)
    return close and re.sub(number, "", shown) == re.sub(number, "", said)


def test_a_line_that_is_not_printed_is_missed() -> None:
    printed = "5 rows in 3 groups\nmean 0.64 in 2.5 s\n   3  pivot\n"
    for shown, near, found in (
        ("5 rows in 3 groups\n3 pivot", False, True),
        ("mean 0.64 in 9.0 s", False, True),
        ("5 rows in 4 groups", False, False),
        ("5 rows in 4 groups", True, True),
        ("mean 0.80 in 2.5 s", True, False),
        ("3 pivot\n5 rows in 3 groups", False, False),
    ):
        assert (lines_missing(Block("text", shown, sampled=near), printed) == []) is found, shown


@pytest.mark.parametrize("page", PAGES, ids=by_name)
def test_every_block_is_read(page: Path) -> None:
    """Data by its own reader, and no block of a kind that nobody looks at."""
    for block in blocks(page):
        assert block.kind in {"python", "sh", "text", "indented", *READ}, block.kind
        if block.kind in READ:
            READ[block.kind](block.text)
        elif block.kind == "indented" and block.text.startswith('{"'):
            json.loads(block.text)
        elif block.kind == "indented" and block.text.startswith("[project"):
            tomllib.loads(block.text)


@pytest.mark.parametrize("page", PAGES, ids=by_name)
def test_every_command_is_taken(page: Path) -> None:
    found = [words for block in blocks(page) if block.kind in ("sh", "indented") for words in block.commands()]
    for words in found:
        CHECKS[words[0]](words[1:])
    indented = [words for block in blocks(page) if block.kind == "indented" for words in block.commands()]
    if any(words[0] == "pivotrl" for words in indented):
        assert PARSED in page.read_text(), f"{page.name}: say at its top why its commands are only parsed"


def _pivotrl(arguments: list[str]) -> None:
    if arguments[0].startswith("--") or "..." in arguments:
        return
    assert arguments[0] in NAMES
    _parse(arguments)


def _script(arguments: list[str]) -> None:
    path = ROOT / arguments[0]
    if not re.match(r"(recipes|benchmarks)/", arguments[0]):
        return
    text = path.read_text()
    for option in [one for one in arguments if one.startswith("--")]:
        name = option.partition("=")[0][2:]
        assert f"--{name}" in text or name.replace("-", "_") in text, option


def _make(arguments: list[str]) -> None:
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert all(one in targets for one in arguments if "=" not in one), arguments


def _pip(arguments: list[str]) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for name in re.findall(r"pivotrl\[([\w,]+)\]", " ".join(arguments)):
        assert set(name.split(",")) <= set(extras), name


CHECKS = {"pivotrl": _pivotrl, "python": _script, "python3": _script, "make": _make, "pip": _pip, "head": len}


def test_every_command_has_its_place() -> None:
    said = " ".join(page.read_text() for page in PAGES)
    for name in [*(name for name, _ in COMMANDS.values()), *(f"lab {name}" for name, _ in LAB.values())]:
        assert f"pivotrl {name}" in said, name


def slugs(page: Path) -> set[str]:
    """The places of a page, as code hosts and the site name them."""
    plain = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.+)$", plain, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=by_name)
def test_every_link_leads_somewhere(page: Path) -> None:
    """Of links to other hosts only the form is looked at: no test uses the network."""
    for link in re.findall(r"(?<!`)\]\(([^)\s]+)\)", page.read_text()):
        parts = urlsplit(link)
        if parts.scheme:
            assert parts.scheme == "https", link
            assert "." in parts.netloc, link
            continue
        target = page.parent / parts.path if parts.path else page
        assert target.exists(), link
        assert not parts.fragment or parts.fragment in slugs(target), link


def said_by_the_source() -> str:
    """Every text of the source on a line of its own, with `...` for what is put in."""
    texts = []
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = [one.value if isinstance(one, ast.Constant) else "..." for one in node.values]
                texts.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
    return "\n".join(text.replace("\n", " ") for text in texts)


def test_every_message_is_one_of_ours() -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    messages = re.findall(r"^### `(.+)`$", page, re.MULTILINE)
    assert len(messages) > 20
    source = said_by_the_source()
    for message in messages:
        pattern = ".*".join(map(re.escape, message.strip(".").split("...")))
        assert re.search(pattern, source), message


def test_every_script_has_its_numbers_listed() -> None:
    page = (ROOT / "docs" / "numbers.md").read_text()
    for script in [*(ROOT / "recipes").iterdir(), *(ROOT / "benchmarks").iterdir()]:
        if script.suffix in (".py", ".sh"):
            assert f"`{script.parent.name}/{script.name}`" in page, script.name


def test_every_reason_for_leaving_out_is_on_the_page_of_messages() -> None:
    page = (ROOT / "docs/troubleshooting.md").read_text()
    codes = re.findall(r'RenderError\(f?"(\w+): ', (ROOT / "src/pivotrl/chat.py").read_text())
    proving = {"template_rewrites_state", "no_stop_token", "not_recovered"}
    assert proving <= set(codes)
    assert [name for name in (*REASONS, *(f"sft_{code}" for code in proving)) if f"`{name}`" not in page] == []
