"""`nemo_gym.terminus`: the server terminus_judge of NeMo Gym 0.7.0.

By its app.py and schemas.py: the text of the action is a JSON object of the harness's schema, taken from behind the
last `</think>` but from no code fence. It says that the task is complete where the demonstration does, not the reverse.
Then all keystrokes in a row are similar, or a judge says that the two are equivalent; with both off that is all.
The configuration that NVIDIA trains with, `_string_only`: enable_string_similarity=true,
string_similarity_threshold=0.9, enable_llm_judge=false.

A judge that fails, or that there is none of where one is to be asked, leaves the action unscored: `judge_failed`. A
judge's answer without a verdict is 0. `reward_if_swap_fails` is from 0 to 1 here; NeMo Gym also takes less.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from pydantic import JsonValue

from pivotrl.types import Action, Candidate, Verdict
from pivotrl.verifiers.base import check_choice, check_range, judged
from pivotrl.verifiers.nemo_gym import NemoGymVerifier, decoded, ratio
from pivotrl.verifiers.terminus import DONE, SCHEMAS

Judge = Callable[[str, str], str]
"""The judge's answer on two JSON texts, the demonstrated one first, with a label in it; raises when it fails."""
_VERDICT_AT_END: Final = 200


@dataclass(frozen=True, slots=True)
class TerminusVerifier(NemoGymVerifier):
    enable_string_similarity: bool = False
    """Whether similar keystrokes are enough."""
    string_similarity_threshold: float = 0.95
    """Least similarity; a row's `threshold` belongs here."""
    enable_llm_judge: bool = True
    """Whether the judge is asked where keystrokes are not similar or not compared."""
    judge_equal_label: str = "[[A=B]]"
    """What the judge says of equivalent answers."""
    judge_not_equal_label: str = "[[A!=B]]"
    """What the judge says of others."""
    check_twice_swap: bool = False
    """Whether a positive verdict must hold with the two answers exchanged."""
    reward_if_swap_fails: float = 0.0
    """The reward where it does not."""
    harness: str = ""
    """`terminus_1` or `terminus_2`; empty: the trajectory's domain."""
    judge: Judge | None = None
    """Answers for NeMo Gym's judge: prompt, model and their settings are its own."""
    name = "nemo_gym.terminus"

    def __post_init__(self) -> None:
        check_range("string_similarity_threshold", self.string_similarity_threshold)
        check_range("reward_if_swap_fails", self.reward_if_swap_fails, 1.0)
        check_choice("harness", self.harness, ("", *SCHEMAS))

    @property
    def settings(self) -> Mapping[str, JsonValue]:
        """The knobs, and the judge by its `name` or what Python calls it; its own settings are not covered."""
        knobs = {field.name: getattr(self, field.name) for field in fields(self)}
        names = (getattr(self.judge, key, None) for key in ("name", "__qualname__"))
        return {**knobs, "judge": self.judge and next(filter(None, names), type(self.judge).__name__)}

    def reward(self, candidate: Candidate, action: Action) -> Verdict:
        expected, text = candidate.demonstration.text or "", (action.text or "").strip()
        if not expected:
            return judged(self, 0.0, "expected_answer_invalid")
        if not text:
            return judged(self, 0.0, "model_output_invalid")
        text = text.rpartition("</think>")[2].strip()
        theirs = decoded(expected)
        if not isinstance(theirs, dict):
            return judged(self, 0.0, "expected_answer_invalid")
        ours = decoded(text)
        if not isinstance(ours, dict):
            return judged(self, 0.0, "model_output_invalid")
        code = _fault(self.harness or candidate.trajectory.domain or "", theirs, ours)
        return judged(self, 0.0, code) if code else self._equivalence(theirs, ours, expected, text)

    def _equivalence(self, theirs: dict[str, Any], ours: dict[str, Any], expected: str, text: str) -> Verdict:
        if self.enable_string_similarity:
            score = _command_similarity(theirs, ours)
            detail = f"similarity {score:.3f}"
            if score >= self.string_similarity_threshold:
                return judged(self, 1.0, "none", detail)
            if not self.enable_llm_judge:
                return judged(self, 0.0, "string_similarity_below_threshold", detail)
        if not self.enable_llm_judge:
            return judged(self, 1.0, "none")
        if self.judge is None:
            return judged(self, None, "judge_failed", "no judge is given; set enable_llm_judge=false or give one")
        try:
            return self._judged(self.judge, expected, text)
        except Exception as error:  # a judge is anybody's code and a server may be away: no word on the action
            return judged(self, None, "judge_failed", f"{type(error).__name__}: {error}")

    def _judged(self, judge: Judge, expected: str, text: str) -> Verdict:
        equal = self._verdict(judge(expected, text))
        if equal is None:
            return judged(self, 0.0, "judge_parsing_failed")
        if not equal:
            return judged(self, 0.0, "judge_not_equivalent")
        swapped = self._verdict(judge(text, expected)) if self.check_twice_swap else True
        if swapped is None:
            return judged(self, 0.0, "judge_swap_parsing_failed")
        return judged(self, 1.0, "none") if swapped else judged(self, self.reward_if_swap_fails, "judge_not_equivalent")

    def _verdict(self, answer: str) -> bool | None:
        """The last label within the last 200 characters, else the first anywhere; None without one."""
        labels = self.judge_equal_label, self.judge_not_equal_label
        equal, other = map(answer[-_VERDICT_AT_END:].rfind, labels)
        if max(equal, other) >= 0:
            return equal > other
        equal, other = map(answer.find, labels)
        return equal >= 0 and (other < 0 or equal < other) if max(equal, other) >= 0 else None


def _fault(harness: str, theirs: dict[str, Any], ours: dict[str, Any]) -> str:
    schema = SCHEMAS.get(harness)
    if schema is None:
        return "unknown_harness"
    if not schema.is_valid(theirs):
        return "expected_answer_invalid"
    if not schema.is_valid(ours):
        return "schema_check_failed"
    done = DONE[harness]
    return "task_complete_check_failed" if theirs.get(done) and not ours.get(done) else ""


def _command_similarity(theirs: dict[str, Any], ours: dict[str, Any]) -> float:
    one, other = ([command["keystrokes"] for command in answer["commands"]] for answer in (theirs, ours))
    return ratio("".join(one), "".join(other)) if one and other else float(one == other)
