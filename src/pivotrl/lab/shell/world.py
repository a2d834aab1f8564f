"""The nouns of the shell: a tree of small files, the requests of a job, and the task that joins both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

from pivotrl.lab.desk.books import Part

Kind = Literal["remove", "set", "sort", "unique", "count", "total", "extract", "archive", "script"]

WORKDIR: Final = "/work"
LOCK: Final = "locked"
"""First line of a file that must stay as it is."""
FOLDERS: Final = ("archive", "bin", "conf", "logs", "logs/new", "logs/old", "orders", "out", "trash")
REPORT, LARGE, SKIPPED = "report.txt", "large.txt", "skipped.txt"
LOOSE: Final = (REPORT, LARGE, SKIPPED)
"""Files of lines whose order does not matter."""


class File(NamedTuple):
    """What lies at a path: text, mode; `text` of what is no regular file is its kind."""

    text: str
    mode: int = 0o644


Tree = Mapping[str, File]
"""Files by their path below WORKDIR."""
NOTHING: Final[Tree] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One thing that is wanted."""

    kind: Kind
    path: str
    """The file that it is about."""
    key: str = ""
    """The setting of `set`, the word of `extract`."""
    value: str = ""
    """The new value of `set`, the new file of `extract`."""

    @property
    def name(self) -> str:
        """The file's name without folders."""
        return self.path.rpartition("/")[2]

    @property
    def id(self) -> str:
        """The name without its ending."""
        return self.name.partition(".")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One job: the files as they are at the start, and the requests, numbered from 1."""

    id: str
    part: Part
    tree: tuple[tuple[str, File], ...]
    requests: tuple[Request, ...]
    wording: int
    """Which wording the requests have."""

    def text(self, path: str) -> str:
        """What the file holds at the start; nothing where there is none."""
        return next((file.text for name, file in self.tree if name == path), "")

    def locked(self, request: Request) -> bool:
        return self.text(request.path).startswith(LOCK)
