"""docs/stacks, docs/plugins.md: every pivotrl command on the pages is one that the command line takes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from pivotrl.cli import COMMANDS, _parse

DOCS = Path(__file__).parents[1] / "docs"
PAGES = [
    *sorted((DOCS / "stacks").glob("*.md")),
    DOCS / "plugins.md",
    DOCS.parent / "examples/pivotrl-example/README.md",
]
NAMES = {name for name, _ in COMMANDS.values()}


def commands(page: Path) -> list[list[str]]:
    """The arguments of each indented line that calls pivotrl, its continuations joined and its comment left out."""
    text = re.sub(r" \\\n +", " ", page.read_text())
    lines = re.findall(r"^    (?:\w+=\S+ )?pivotrl (.*)$", text, re.MULTILINE)
    found = [part.removeprefix("pivotrl ") for line in lines for part in line.split(" && ")]
    return [shlex.split(one, comments=True) for one in found]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_is_taken(page: Path) -> None:
    for arguments in commands(page):
        if arguments == ["--help"] or "..." in arguments:
            continue
        assert arguments[0] in NAMES | {"export"}
        if arguments[0] in NAMES:
            _parse(arguments)


def test_the_pages_have_commands() -> None:
    assert sum(len(commands(page)) for page in PAGES) > 20


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
        target = page.parent / link
        assert target.exists(), link
