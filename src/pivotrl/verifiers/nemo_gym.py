"""NeMo Gym's verdicts, holes included: what the verifiers of its four pivot servers share.

For comparing and migrating, not for training: they are hacked easily (docs/verifiers.md). They give the rewards of the
servers in the wheel `nemo-gym` 0.7.0, `resources_servers/`, with the servers' knobs, defaults and order of checks;
reason codes are the servers' own in lower case. Where a server raises (HTTP 500, the row has no reward) the action is
unscored: `server_error`. A knob that no server reads is not there.

What a row has beside the action is a setting here, since a candidate does not hold it: `threshold` is the similarity
threshold, `harness` the trajectory's domain unless given. Left to the caller of the verifier: a completion that is
empty or no action is 0 (`unparsable`) before any verifier is asked; NeMo Gym's parsers make a message of it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any, ClassVar

from pivotrl.types import Action, Candidate, Verdict
from pivotrl.verifiers.base import BuiltIn, judged

NO_ACTION = "no_action"
MESSAGE = "message"
CALL = "function_call"
BATCH = "function_call_batch"


@dataclass(frozen=True, slots=True)
class NemoGymVerifier(BuiltIn):
    """A server. A subclass gives `reward`, which may raise ValueError or RecursionError where the server raises."""

    version: ClassVar[str] = "0.7.0"
    """NeMo Gym's, whose verdicts these are."""

    def reward(self, candidate: Candidate, action: Action) -> Verdict:
        raise NotImplementedError

    def __call__(self, candidate: Candidate, action: Action) -> Verdict:
        """NeMo Gym's reward; unscored where it has none."""
        try:
            return self.reward(candidate, action)
        except (ValueError, RecursionError) as error:  # JSON: broken, nested too deeply, an integer of over 4300 digits
            return judged(self, None, "server_error", f"{type(error).__name__}: {error}")


def kind_of(action: Action) -> str:
    """The type that NeMo Gym's extraction gives an action: calls win over text, absent text is no action."""
    if action.calls:
        return CALL if len(action.calls) == 1 else BATCH
    return NO_ACTION if action.text is None else MESSAGE


def expected_kind(given: str, demonstration: Action) -> str:
    """The type of a row's `expected_action`: as given, else as the demonstration shows it."""
    return given or (MESSAGE if not demonstration.calls else kind_of(demonstration))


def decoded(text: str | None, broken: Any = None) -> Any:
    """The value of a JSON text, `broken` where it is none; an absent one is empty. Raises what the servers raise."""
    try:
        return json.loads(text or "")
    except json.JSONDecodeError:
        return broken


def ratio(one: str, other: str) -> float:
    """As difflib has it, junk heuristic included: not symmetric, and 0 for equal long texts after a first new line."""
    return SequenceMatcher(None, one, other).ratio()
