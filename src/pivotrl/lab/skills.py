"""The forgetting suite: eight general skills of one turn each, drawn by rule and scored by the exact answer.

No problem occurs in two parts or two wordings: its hash decides both, and drawing goes on until the part is right.
"""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import ClassVar, Final

from pivotrl.errors import ConfigError, InputError
from pivotrl.lab.desk.books import CITIES, COLOURS, ITEMS, NAMES, Part
from pivotrl.lab.desk.tasks import pool
from pivotrl.lab.domain import NUMBERS
from pivotrl.lab.turns import must_go_on, own_message
from pivotrl.storage import decode, dump_json
from pivotrl.types import Action, EnvironmentStep, Message, Split, State

# How hard an item is: lengths are drawn between the two. The base model makes few mistakes at lists like those that it
# was trained on, and many at one skill, and a skill at its ceiling or floor tells little: so outside of base some items
# have fewer distinct words, which copying by the word before mixes up, or other lengths.
COPY_LENGTHS: Final = (12, 24)
COPY_WEIGHTS: Final = (2, 1, 1)
"""Of words, ids and numbers."""
ELSEWHERE_COPY_WORDS: Final = 3
REVERSE_LENGTHS: Final = (8, 18)
ELSEWHERE_REVERSE_WORDS: Final = 2
SORT_LENGTHS: Final = (3, 6)
LARGEST_LENGTHS, ELSEWHERE_LARGEST_LENGTHS = (5, 9), (8, 14)
TWICE_LENGTHS, ELSEWHERE_TWICE_LENGTHS = (5, 10), (9, 17)
ZIP_LENGTHS, ELSEWHERE_ZIP_LENGTHS = (3, 6), (4, 8)
ELSEWHERE_ZIP_WORDS: Final = 3
WITHOUT_LENGTHS, ELSEWHERE_WITHOUT_LENGTHS = (3, 6), (3, 3)
FILTER_LENGTHS: Final = (4, 8)

TASKS_PER_PART: Final = 1_000_000
"""Ids of each skill; where it has fewer problems, they come again."""
MOST_TASKS: Final = 50_000
"""Of all skills together; every skill has more problems than that."""
_SHARE: Final[Mapping[Part, int]] = {"base": 5, "train": 2, "validation": 1, "test": 2}
"""Of the problems, in tenths."""
_SLOTS: Final = [part for part, share in _SHARE.items() for _ in range(share)]

_NUMBERS: Final = tuple(map(str, range(NUMBERS)))
_IDS: Final = tuple(id_ for part in _SHARE for letter in "CO" for id_ in pool(part, letter))
_KINDS: Final = {"items": ITEMS, "colours": COLOURS, "cities": CITIES, "numbers": _NUMBERS}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Problem:
    """What is asked, before it has its wording; `about` is the word that is asked for, if any."""

    given: str
    answer: str
    about: str = ""


def _copy(rng: random.Random, distinct: int = 0) -> _Problem:
    """A list of so many different words; 0: of any words, ids and numbers."""
    length, words = rng.randint(*COPY_LENGTHS), rng.sample(NAMES, distinct)
    groups = [words] * length if distinct else rng.choices((NAMES, _IDS, _NUMBERS), COPY_WEIGHTS, k=length)
    given = " ".join(map(rng.choice, groups))
    return _Problem(given=given, answer=given)


def _reverse(rng: random.Random, distinct: int = 0) -> _Problem:
    """A list of so many different words; 0: of any."""
    words = rng.choices(rng.sample(NAMES, distinct) if distinct else NAMES, k=rng.randint(*REVERSE_LENGTHS))
    return _Problem(given=" ".join(words), answer=" ".join(words[::-1]))


def _sort(rng: random.Random) -> _Problem:
    numbers = rng.sample(_NUMBERS, rng.randint(*SORT_LENGTHS))
    return _Problem(given=" ".join(numbers), answer=" ".join(sorted(numbers, key=int)))


def _largest(rng: random.Random, lengths: tuple[int, int] = LARGEST_LENGTHS) -> _Problem:
    numbers = rng.sample(_NUMBERS, rng.randint(*lengths))
    return _Problem(given=" ".join(numbers), answer=max(numbers, key=int))


def _twice(rng: random.Random, lengths: tuple[int, int] = TWICE_LENGTHS) -> _Problem:
    words = rng.sample(NAMES, rng.randint(*lengths) - 1)
    first = rng.randrange(len(words))
    words.insert(rng.randint(first + 1, len(words)), words[first])
    return _Problem(given=" ".join(words), answer=words[first])


def _zip(rng: random.Random, distinct: int = 0, lengths: tuple[int, int] = ZIP_LENGTHS) -> _Problem:
    """Two lists of so many different words; 0: of any."""
    length, known = rng.randint(*lengths), rng.sample(NAMES, distinct) if distinct else NAMES
    one, other = rng.choices(known, k=length), rng.choices(known, k=length)
    answer = " ".join(map(" ".join, zip(one, other, strict=True)))
    return _Problem(given=f"{' '.join(one)} / {' '.join(other)}", answer=answer)


def _without(rng: random.Random, lengths: tuple[int, int] = WITHOUT_LENGTHS) -> _Problem:
    words = rng.sample(NAMES, rng.randint(*lengths))
    about = rng.choice(words)
    return _Problem(given=" ".join(words), about=about, answer=" ".join(word for word in words if word != about))


def _filter(rng: random.Random) -> _Problem:
    kinds = rng.choices(tuple(_KINDS), k=rng.randint(*FILTER_LENGTHS))
    words, about = [rng.choice(_KINDS[kind]) for kind in kinds], rng.choice(kinds)
    kept = [word for kind, word in zip(kinds, words, strict=True) if kind == about]
    return _Problem(given=" ".join(words), about=about, answer=" ".join(kept))


_Draw = Callable[[random.Random], _Problem]
_SKILLS: Final[Mapping[str, tuple[_Draw, str, str]]] = {
    "copy": (_copy, "Say: {given}", "Repeat: {given}"),
    "reverse": (_reverse, "Reverse: {given}", "Backwards: {given}"),
    "sort": (_sort, "Sort: {given}", "Small to big: {given}"),
    "largest": (_largest, "Largest: {given}", "Biggest: {given}"),
    "twice": (_twice, "Twice: {given}", "Which comes again: {given}"),
    "zip": (_zip, "Zip: {given}", "Pair: {given}"),
    "without": (_without, "Without {about}: {given}", "Drop {about}: {given}"),
    "filter": (_filter, "Only {about}: {given}", "Keep {about}: {given}"),
}
_ELSEWHERE: Final[Mapping[str, _Draw]] = {
    "copy": partial(_copy, distinct=ELSEWHERE_COPY_WORDS),
    "reverse": partial(_reverse, distinct=ELSEWHERE_REVERSE_WORDS),
    "largest": partial(_largest, lengths=ELSEWHERE_LARGEST_LENGTHS),
    "twice": partial(_twice, lengths=ELSEWHERE_TWICE_LENGTHS),
    "zip": partial(_zip, distinct=ELSEWHERE_ZIP_WORDS, lengths=ELSEWHERE_ZIP_LENGTHS),
    "without": partial(_without, lengths=ELSEWHERE_WITHOUT_LENGTHS),
}
"""Outside of base."""
SKILLS: Final = tuple(_SKILLS)
_TASK_ID: Final = re.compile(rf"skills-({'|'.join(SKILLS)})-({'|'.join(_SHARE)})-(?:0|[1-9][0-9]{{0,5}})")


@lru_cache(maxsize=4096)
def skill_item(task_id: str) -> tuple[str, str]:
    """Prompt and right answer of `skills-SKILL-PART-INDEX`. Raises ConfigError for any other text."""
    found = _TASK_ID.fullmatch(task_id)
    if found is None:
        raise ConfigError(
            f"skills task {task_id!r} is unknown; use skills-SKILL-PART-INDEX with SKILL one of {', '.join(SKILLS)}, "
            f"PART one of {', '.join(_SHARE)}, and INDEX below {TASKS_PER_PART}"
        )
    skill, part = found.groups()
    rng, (draw, *wordings) = random.Random(task_id), _SKILLS[skill]
    draw = draw if part == "base" else _ELSEWHERE.get(skill, draw)
    while True:
        problem = draw(rng)
        wording, slot = divmod(zlib.crc32(f"{skill} {problem.about} {problem.given}".encode()), len(_SLOTS))
        if _SLOTS[slot] == part:
            return wordings[wording % 2].format(about=problem.about, given=problem.given), problem.answer


@dataclass(frozen=True, slots=True, kw_only=True)
class _Saved:
    """A snapshot: the task and what the agent said."""

    task_id: str
    own: Message | None = None


class SkillsEnvironment:
    """Implements `Guided`: one question, one turn. Success: no calls, and the text is the answer."""

    usual_tasks: ClassVar[int] = 2000
    """Held-out tasks where the user does not say how many."""
    general: ClassVar[bool] = True
    """Training is not about it: a loss here is forgetting."""

    def __init__(self) -> None:
        self._saved: _Saved | None = None

    @property
    def _now(self) -> _Saved:
        if self._saved is None:
            raise InputError("skills: no task was begun; call reset or restore first")
        return self._saved

    @property
    def state(self) -> State:
        saved = self._now
        asked = Message(role="user", content=skill_item(saved.task_id)[0])
        messages = (asked, saved.own) if saved.own else (asked,)
        return State(key=f"{saved.task_id}@{len(messages)}", messages=messages, tools=None)

    @property
    def done(self) -> bool:
        return self._saved is None or self._saved.own is not None

    def tasks(self, split: Split, count: int, seed: int) -> tuple[str, ...]:
        """Ids of `count` tasks with distinct prompts, skills in turn. Raises ConfigError beyond MOST_TASKS."""
        if count > MOST_TASKS:
            raise ConfigError(f"skills: {count} tasks; ask for at most {MOST_TASKS}")
        rng, found = random.Random(f"{split}-{seed}"), dict[str, str]()
        while len(found) < count:
            skill = SKILLS[len(found) % len(SKILLS)]
            task_id = f"skills-{skill}-{split}-{rng.randrange(TASKS_PER_PART)}"
            found.setdefault(skill_item(task_id)[0], task_id)
        return tuple(found.values())

    def kind(self, task_id: str) -> str:
        """The skill of a task. Raises ConfigError for an unknown id."""
        skill_item(task_id)
        return task_id.split("-")[1]

    def expert(self) -> Action:
        """The right answer. Raises InputError once one was given."""
        must_go_on(self, "skills")
        return Action(text=skill_item(self._now.task_id)[1])

    def reset(self, task_id: str) -> State:
        """Begin a task. Raises ConfigError for an unknown id."""
        skill_item(task_id)
        self._saved = _Saved(task_id=task_id)
        return self.state

    def step(self, action: Action) -> EnvironmentStep:
        """Take the only turn. Raises InputError after it."""
        must_go_on(self, "skills")
        own = own_message(action)
        self._saved = replace(self._now, own=own)
        return EnvironmentStep(new=(own,), done=True)

    def outcome(self) -> float:
        """1 for the right answer, else 0; 0 before it."""
        own, answer = self._now.own, skill_item(self._now.task_id)[1]
        return float(own is not None and not own.tool_calls and (own.content or "").strip() == answer)

    def snapshot(self) -> bytes:
        """The task's id and what the agent said."""
        return dump_json(self._now)

    def restore(self, data: bytes) -> State:
        """Go on from a snapshot. Raises InputError for other bytes, ConfigError for a task that is unknown here."""
        saved = decode(data, _Saved, "skills snapshot")
        skill_item(saved.task_id)  # refuses an unknown id before anything changes
        self._saved = saved
        return self.state
