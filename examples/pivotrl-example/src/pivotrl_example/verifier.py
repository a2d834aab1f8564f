"""Nobody feels a degree: a setting within `tolerance` of the demonstrated one is as good."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pivotrl import Action, Candidate, Verdict
from pivotrl.verifiers.base import BuiltIn, judged


@dataclass(frozen=True, slots=True)
class Degrees(BuiltIn):
    """Satisfies `pivotrl.Verifier`. Calls must be alike but for the degrees; any message will do for a message."""

    name: ClassVar[str] = "degrees"
    version: ClassVar[str] = "1"
    tolerance: int = 0

    def __call__(self, candidate: Candidate, action: Action) -> Verdict:
        wanted, given = candidate.demonstration, action
        if [call.name for call in wanted.calls] != [call.name for call in given.calls]:
            return judged(self, 0.0, "wrong_tool")
        for one, other in zip(wanted.calls, given.calls, strict=True):
            want, have = dict(one.parsed.value or {}), dict(other.parsed.value or {})
            degrees, got = want.pop("degrees", 0), have.pop("degrees", 0)
            if want != have or not isinstance(degrees, int) or not isinstance(got, int):
                return judged(self, 0.0, "wrong_arguments")
            if abs(degrees - got) > self.tolerance:
                return judged(self, 0.0, "too_far", f"{got} instead of {degrees}")
        return judged(self, 1.0, "match")
