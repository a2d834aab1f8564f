"""Builds the site of this folder into build/docs/html: `make docs`. Warnings, and links that lead nowhere, are errors.

The pages are plain Markdown, whose links work on a code host as well. What only the site has is made here: every
command's --help, the API from its docstrings, and the navigation, which is the lists of docs/README.md. No network.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import io
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pivotrl
from pivotrl import protocols, types
from pivotrl.cli import COMMANDS, LAB, main

DOCS = Path(__file__).parent
ROOT = DOCS.parent
BUILD = ROOT / "build" / "docs"
SOURCE, HTML = BUILD / "source", BUILD / "html"
FROM_ROOT = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md", "README.md": "index.md"}


def prepare() -> None:
    """A copy of the pages, with those that are made here."""
    shutil.rmtree(BUILD, ignore_errors=True)
    shutil.copytree(DOCS, SOURCE, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    for page in SOURCE.rglob("*.md"):
        page.write_text(with_titles(inside(page.read_text()), "../" * len(page.relative_to(SOURCE).parents[1:])))
    for name, target in FROM_ROOT.items():
        if target != "index.md":
            (SOURCE / target).write_text(with_titles(re.sub(r"\]\(docs/", "](", (ROOT / name).read_text()), ""))
    (SOURCE / "README.md").rename(SOURCE / "index.md")
    (SOURCE / "index.md").write_text(navigation((SOURCE / "index.md").read_text()))
    (SOURCE / "commands.md").write_text(commands())
    for name, text in api().items():
        (SOURCE / f"{name}.rst").write_text(text)


def inside(text: str) -> str:
    """Links that leave docs/ lead to the copy of that page, or to nowhere: then their words stay."""

    def replaced(link: re.Match[str]) -> str:
        target = FROM_ROOT.get(link[3])
        return f"[{link[1]}]({link[2]}{target}{link[4] or ''})" if target else link[1]

    return re.sub(
        r"(?<!!)\[([^\]]+)\]\(((?:\.\./)*)\.\./([A-Z][\w.]*|(?:src|examples)/[\w./-]*)(#[\w-]+)?\)", replaced, text
    )


def with_titles(text: str, up: str) -> str:
    """A link that shows a file's name shows that page's title, and `docs/NAME.md` in plain words is a link; no code."""

    def linked(name: re.Match[str]) -> str:
        return f"[]({up}{name[1]})" if (DOCS / name[1]).exists() else name[0]

    parts = re.split(r"(^```.*?^```$|<!--.*?-->)", text, flags=re.DOTALL | re.MULTILINE)
    for at in range(0, len(parts), 2):
        named = re.sub(r"\[[\w/-]+\.md\]\((?=[\w./-]+\.md)", "[](", parts[at])
        parts[at] = re.sub(r"(?<!\]\()(?<![\w/\[`])docs/([\w/-]+\.md)\b(?!`)", linked, named)
    return "".join(parts)


def navigation(text: str) -> str:
    """The index with a hidden table of contents for each list; `<!-- page: NAME -->` stands for a page made here."""
    text = re.sub(r"^- ([^:\n]+): (.*)<!-- page: (\S+) -->$", r"- [\1](\3): \2", text, flags=re.MULTILINE)
    for caption, part in re.findall(r"^## (.+)\n((?:(?!^## ).*\n?)*)", text, flags=re.MULTILINE):
        found = re.findall(r"^- \[([^\]]+)\]\(([\w/-]+)(?:\.md|\.rst)\)", part, flags=re.MULTILINE)
        pages = [f"{title} <{page}>" for title, page in found]
        text += "\n".join(["", "```{toctree}", ":hidden:", f":caption: {caption}", "", *pages, "```", ""])
    return text


def commands() -> str:
    """Every command with what its --help says."""
    os.environ |= {"COLUMNS": "88", "NO_COLOR": "1", "TERM": "dumb"}
    about = "What each command says with `--help`. Every one may be interrupted and goes on when it is called again."
    parts = ["# Every command", about]
    for names in [[name] for name, _ in COMMANDS.values()] + [["lab", name] for name, _ in LAB.values()]:
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
            main([*names, "--help"])
        parts.append(f"## {' '.join(names)}\n\n```text\n{said.getvalue().strip()}\n```")
    return "\n\n".join(parts) + "\n"


def api() -> dict[str, str]:
    """The public names in four pages: stages in the order of the commands, nouns, Protocols, and the others."""
    public = {name: value for name in dir(pivotrl) if not name.startswith("_") for value in [getattr(pivotrl, name)]}
    stages, seen = [], set[str]()
    for config, (name, function) in COMMANDS.items():
        result = inspect.signature(function).return_annotation
        members = [name, config.__name__, *re.findall(r"\w+", str(result))]
        stages.append((name, [one for one in members if one in public and one not in seen]))
        seen |= set(members)
    nouns = [name for name, value in vars(types).items() if public.get(name) is value]
    met = [name for name, value in vars(protocols).items() if public.get(name) is value and name not in nouns]
    rest = sorted(set(public) - seen - set(nouns) - set(met), key=str.lower)
    about = "All of it is in ``pivotrl``. :doc:`python` shows it at work."
    pages = [f"   {name}" for name in ("api_stages", "api_nouns", "api_protocols", "api_others")]
    return {
        "api": "\n".join([titled("The API"), about, "", ".. toctree::", "", *pages, ""]),
        "api_stages": titled("Stages") + "".join(titled(name, "-") + documented(names) for name, names in stages),
        "api_nouns": titled("Nouns") + documented(nouns),
        "api_protocols": titled("Protocols") + documented(met),
        "api_others": titled("Settings, and other functions") + documented(rest),
    }


def titled(title: str, mark: str = "=") -> str:
    return f"{title}\n{mark * len(title)}\n\n"


def documented(names: list[str]) -> str:
    text = ""
    for name in names:
        value = getattr(pivotrl, name)
        kind = "class" if inspect.isclass(value) else "function" if callable(value) else "data"
        plain = kind == "class" and not dataclasses.is_dataclass(value)
        text += f".. auto{kind}:: pivotrl.{name}\n" + ("   :show-inheritance:\n" if plain else "") + "\n"
    return text


class _Page(HTMLParser):
    """The places of a page, and where its links lead."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.places, self.links = set[str](), list[str]()
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value and name == "id":
                self.places.add(value)
            elif value and name in ("href", "src") and tag != "link":
                self.links.append(value)


def broken() -> list[str]:
    """Links of the built pages that lead to no file or no place of it; of external ones only the form is looked at."""
    pages = {path: _Page(path) for path in HTML.rglob("*.html")}
    found = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if parts.scheme:
                good = parts.scheme in ("http", "https", "data", "mailto") and " " not in link
            else:
                good = target.is_file() and (not parts.fragment or unquote(parts.fragment) in pages[target].places)
            if not good:
                found.append(f"{path.relative_to(HTML)}: {link}")
    return sorted(set(found))


if __name__ == "__main__":
    prepare()
    build = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-c", str(DOCS), str(SOURCE), str(HTML)]
    code = subprocess.run(build, check=False).returncode
    lost = broken() if not code else []
    print("\n".join([*lost, f"{len(list(HTML.rglob('*.html')))} pages in {HTML}"]))
    sys.exit(code or bool(lost))
