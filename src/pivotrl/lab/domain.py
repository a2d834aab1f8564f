"""What the base model's making has to know of a domain: its words, its clerk's episodes, the states of its experts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from pivotrl.lab.desk.books import NAMES
from pivotrl.lab.desk.tasks import pool
from pivotrl.protocols import Guided
from pivotrl.types import Action, Message, State

NUMBERS: Final = 160
"""Numbers from 0 up to here, exclusive, are tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """A state of an expert's episode, and what experts of every style do there."""

    name: str
    state: State
    acceptable: tuple[Action, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """A domain with a clerk, from whom a base model learns."""

    name: str
    make: Callable[[], Guided]
    expert: Callable[[Any, Any], Any]
    """Of an environment and a style; its `act` says what to do."""
    styles: tuple[Any, ...]
    clerk: Callable[[int], tuple[tuple[Message, ...], list[dict[str, Any]] | None]]
    """The messages and tools of the clerk's episode of a base task, by its index."""
    situations: Callable[[str, int], Iterator[Situation]]
    """The states of an episode in which a style drawn at every turn acts."""
    pieces: str
    """The pattern of the tokenizer's pieces."""
    ids: tuple[str, ...]
    """The kinds of ids (`pool`) that are tokens."""
    id_pattern: str
    calls_in_text: bool
    """Whether commands are written in the messages' text."""
    base: str
    """The package whose folder `base` holds the shipped model."""

    @property
    def copied(self) -> re.Pattern[str]:
        """What gets copied from place to place."""
        return re.compile(rf"{self.id_pattern}|\b[0-9]+\b|\b(?:{'|'.join(NAMES)})\b")

    def known(self) -> list[str]:
        """What is a token wherever it occurs."""
        ids = sorted(one for letter in self.ids for one in pool("base", letter))
        return [*ids, *map(str, range(NUMBERS)), *NAMES]


# What gets copied from place to place (ids, numbers, names) is one token that looks the same everywhere, because
# copying does not form otherwise; a JSON key keeps its punctuation, a word the space before it, and the one after it
# where a name follows. Nothing is lost.
NAMES_PATTERN: Final = "|".join(NAMES)


def copied_pattern(ids: str) -> str:
    """A pattern of ids, numbers and names."""
    return rf"(?:{ids}|[0-9]+|(?:{NAMES_PATTERN})\b)"
