"""`nemo_gym.single_step`: the server single_step_tool_use_with_argument_comparison of NeMo Gym 0.7.0.

By its app.py and common/: any message passes where one was demonstrated, the empty one too. A call passes whose name is
equal and whose arguments are of the same types, keys and lengths and, leaf by leaf, alike: floats within a tolerance,
strings of two words or more by shared words over all words of both (at most 0.5, so a threshold above refuses the
demonstration itself), all else as Python's `==` has it, so that 1 is `true` and 5 is not 5.0. Surplus calls are free.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

from pivotrl.types import Action, Candidate, ToolCall, Verdict
from pivotrl.verifiers.base import check_choice, check_range, judged
from pivotrl.verifiers.nemo_gym import MESSAGE, NO_ACTION, NemoGymVerifier, decoded, kind_of
from pivotrl.verifiers.values import match

RewardMode = Literal["binary_strict", "fractional", "f1"]
_OTHER_TOOL: Final = "unexpected_tool"
_OTHER_VALUE: Final = "argument_value_different"
_OTHER_COUNT: Final = "function_call_batch_length_different"


@dataclass(frozen=True, slots=True)
class SingleStepVerifier(NemoGymVerifier):
    word_count_similarity_threshold: float = 0.1
    """Least share of words, from 0 to 0.5. NeMo Gym has no default; its configurations say 0.1 (conversation, function
    calls, parallel calls), 0.3 (search) and 0.0 (software engineering, droid)."""
    floating_point_comparison_threshold: float = 1e-6
    """Two floats differ by less than this, in absolute terms."""
    parallel_tool_call_rewarding: bool = False
    """Whether the number of calls counts; the next three settings are read only then."""
    allow_subset: bool = False
    """Whether fewer calls than demonstrated may earn something."""
    allow_superset: bool = False
    """Whether more calls than demonstrated may earn something."""
    parallel_tool_call_reward_mode: RewardMode = "binary_strict"
    """All required calls or nothing, their matched share, or 2 matched / (demonstrated + made)."""
    name = "nemo_gym.single_step"

    def __post_init__(self) -> None:
        check_range("word_count_similarity_threshold", self.word_count_similarity_threshold)
        check_range("floating_point_comparison_threshold", self.floating_point_comparison_threshold)
        check_choice("parallel_tool_call_reward_mode", self.parallel_tool_call_reward_mode, get_args(RewardMode))

    def reward(self, candidate: Candidate, action: Action) -> Verdict:
        demonstration, kind = candidate.demonstration, kind_of(action)
        if kind == NO_ACTION:
            return judged(self, 0.0, "no_action_found")
        if not demonstration.calls:
            found = kind == MESSAGE
            return judged(self, float(found), "expected_chat_message_found" if found else "no_expected_chat_message")
        if kind == MESSAGE:
            return judged(self, 0.0, "no_expected_tool_call")
        if len(demonstration.calls) == len(action.calls) == 1:
            code = self._fault(demonstration.calls[0], action.calls[0])
            return judged(self, 1.0, "expected_tool_call") if code is None else judged(self, 0.0, code)
        return self._batch(demonstration.calls, action.calls)

    def _batch(self, theirs: Sequence[ToolCall], ours: Sequence[ToolCall]) -> Verdict:
        allowed = self.allow_superset if len(ours) > len(theirs) else self.allow_subset
        if self.parallel_tool_call_rewarding and len(ours) != len(theirs) and not allowed:
            return judged(self, 0.0, _OTHER_COUNT)
        faults = [[self._fault(expected, call) for call in ours] for expected in theirs]
        edges = [[at for at, fault in enumerate(row) if fault is None] for row in faults]
        order = sorted(range(len(theirs)), key=lambda at: len(edges[at]))
        taken = match([edges[at] for at in order])
        unmatched = sorted(at for at, found in zip(order, taken, strict=True) if found < 0)
        matched = len(theirs) - len(unmatched)
        value = self._value(matched, len(theirs), len(ours))
        if value == 1.0:
            return judged(self, value, "expected_tool_call" if len(theirs) == 1 else "expected_tool_call_batch")
        if not unmatched or matched == len(ours):
            return judged(self, value, _OTHER_COUNT)
        near = (code for code in faults[unmatched[0]] if code is not None and code != _OTHER_TOOL)
        return judged(self, value, next(near, _OTHER_TOOL))

    def _value(self, matched: int, expected: int, made: int) -> float:
        counts, mode = self.parallel_tool_call_rewarding, self.parallel_tool_call_reward_mode
        required = min(expected, made) if counts and self.allow_subset else expected
        if counts and mode == "f1":
            return 2 * matched / (expected + made)
        return matched / required if counts and mode == "fractional" else float(matched == required)

    def _fault(self, expected: ToolCall, call: ToolCall) -> str | None:
        """Why a call is not the expected one. Raises ValueError where the expected arguments are no JSON."""
        if expected.name != call.name:
            return _OTHER_TOOL
        theirs, ours = json.loads(expected.arguments or ""), decoded(call.arguments, ...)
        return "arguments_decode_error" if ours is ... else self._difference(theirs, ours)

    def _difference(self, theirs: Any, ours: Any) -> str | None:
        if not isinstance(ours, type(theirs)):
            return "argument_value_type_different"
        if isinstance(theirs, dict):
            if theirs.keys() != ours.keys():
                return "argument_object_keys_different"
            return self._first((value, ours[key]) for key, value in theirs.items())
        if isinstance(theirs, list):
            if len(theirs) != len(ours):
                return "argument_list_length_different"
            return self._first(zip(theirs, ours, strict=True))
        if isinstance(theirs, float):
            same = abs(ours - theirs) < self.floating_point_comparison_threshold
        elif isinstance(theirs, str):
            same = self._same_text(theirs, ours)
        else:
            same = theirs == ours
        return None if same else _OTHER_VALUE

    def _first(self, pairs: Iterable[tuple[Any, Any]]) -> str | None:
        return next(filter(None, (self._difference(*pair) for pair in pairs)), None)

    def _same_text(self, theirs: str, ours: str) -> bool:
        one, other = (Counter(text.lower().split()) for text in (theirs, ours))
        if min(one.total(), other.total()) < 2:
            return theirs == ours
        shared = (one & other).total() / (one.total() + other.total())
        return not shared < self.word_count_similarity_threshold
