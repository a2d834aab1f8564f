"""Verifiers made of verifiers: `cascade(...)`, `any(...)` and `all(...)`. What each member said is kept as `parts`.

A member that does not apply (SILENT) is as if it were not there; where none applies the action is unscored. A member
that raises or fails (a judge out of reach) has failed, which is not a refusal:

    cascade  In order, up to the first acceptance (value 1), which is final: after a refusal, a value below 1 or a
             failure the next member is asked, and the last one asked has the word. `schema` is a gate: its refusal is
             final, and what it lets through the others judge.
    any      The highest value, up to the first acceptance; without one a failure leaves the action unscored.
    all      The lowest value, up to the first refusal (value 0); without one a failure leaves the action unscored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final

from pydantic import JsonValue

from pivotrl.protocols import RemoteVerifier, Verifier
from pivotrl.types import Action, Candidate, Usage, Verdict
from pivotrl.verifiers.base import asked, judged
from pivotrl.verifiers.schema import SchemaVerifier

SILENT: Final = frozenset(("not_applicable", "bad_demonstration", "verifier_declined"))
"""Reasons of an unscored action with which a verifier leaves the word to others."""
_FINAL: Final = {"cascade": 1.0, "any": 1.0, "all": 0.0}
"""The value after which nobody else is asked."""


@dataclass(frozen=True, slots=True)
class ComposedVerifier:
    """Asks its members by the rule that its name says."""

    name: str
    members: tuple[Verifier, ...]
    version: ClassVar[str] = "1"

    @property
    def settings(self) -> Mapping[str, JsonValue]:
        """The members in order: what changes one of them changes this."""
        return {"members": [[one.name, one.version, dict(one.settings)] for one in self.members]}

    def __call__(self, candidate: Candidate, action: Action) -> Verdict:
        """The deciding member's value and reason, with the words of all that were asked."""
        parts, words = list[Verdict](), list[Verdict]()
        for member in self.members:
            part = asked(member, candidate, action)
            silent = part.reason in SILENT if part.value is None else self._gate(member) and part.value == 1.0
            parts.append(part)
            words += [] if silent else [part]
            if self._settled(member, part):
                break
        if not words:
            return replace(judged(self, None, "not_applicable", "no member applies"), parts=tuple(parts))
        word = self._deciding(words)
        detail = f"{word.verifier}: {word.detail}" if word.detail else word.verifier
        return replace(judged(self, word.value, word.reason, detail), parts=tuple(parts))

    def _gate(self, member: Verifier) -> bool:
        return self.name == "cascade" and isinstance(member, SchemaVerifier)

    def _settled(self, member: Verifier, part: Verdict) -> bool:
        return part.value == (0.0 if self._gate(member) else _FINAL[self.name])

    def _deciding(self, words: Sequence[Verdict]) -> Verdict:
        failed = [one for one in words if one.value is None]
        if self.name == "cascade" or words[-1].value == _FINAL[self.name]:
            return words[-1]
        return failed[0] if failed else (max if self.name == "any" else min)(words, key=lambda one: one.value or 0.0)

    @property
    def _remote(self) -> list[RemoteVerifier]:
        """The members that ask somebody else, or have such members."""
        return [
            one
            for one in self.members
            if isinstance(one, RemoteVerifier) and (not isinstance(one, ComposedVerifier) or one._remote)
        ]

    def expect(self, candidates: Iterable[Candidate], actions: int) -> None:
        """As if every action came to each remote member."""
        known = list(candidates) if self._remote else []
        for member in self._remote:
            member.expect(known, actions)

    def prepare(self, pairs: Sequence[tuple[Candidate, Action]]) -> None:
        """Each remote member asks at once about the actions that come to it; those before it are asked twice."""
        remote, left = self._remote, list(pairs)
        for member in self.members:
            if any(member is one for one in remote):
                remote.pop(0).prepare(left)
            if not remote:
                return
            left = [pair for pair in left if not self._settled(member, asked(member, *pair))]

    def take_usage(self) -> Usage:
        return sum((member.take_usage() for member in self._remote), Usage())
