"""A verifier as the reward function of another trainer: TRL's `GRPOTrainer(reward_funcs=trl_reward(...))`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Protocol

from pivotrl.chat import ChatFormat
from pivotrl.errors import InputError
from pivotrl.protocols import Verifier
from pivotrl.rollouts import Truncation, judge_all
from pivotrl.types import Candidate, Completion, State


class TRLReward(Protocol):
    """How TRL calls a reward function; every column of the dataset comes as a list, one entry per completion."""

    __name__: str

    def __call__(
        self, *, completion_ids: Sequence[Sequence[int]], candidate_id: Sequence[str], **columns: object
    ) -> list[float | None]: ...


def completion_of(ids: Sequence[int], state: State, chat: ChatFormat) -> Completion:
    """What sampled ids say, up to and with the first stop token; without one the action is truncated."""
    end = next((number for number, token in enumerate(ids, start=1) if token in chat.stop_ids), None)
    taken = tuple(islice(ids, end))
    text = chat.text_of(taken)
    parsed = chat.parse(text, state)
    return Completion(
        action=parsed.action,
        text=text,
        finish_reason="length" if end is None else "stop",
        token_ids=taken,
        parse_error=parsed.error,
    )


def trl_reward(
    verifier: Verifier, candidates: Iterable[Candidate], chat: ChatFormat, *, truncation: Truncation = "zero"
) -> TRLReward:
    """A function that TRL calls as `reward(prompts, completions, completion_ids, **columns)`.

    The column `candidate_id` says which candidate's state a prompt renders. Actions are read from the sampled ids by
    our own chat format, never from TRL's text, and judged as in `profile`: 0 for an unparsable or (`truncation`) a
    truncated one, None (TRL leaves it out of the group) for what the verifier failed at. Raises InputError for an
    unknown id.
    """
    by_id = {candidate.id: candidate for candidate in candidates}

    def pivot_reward(
        *, completion_ids: Sequence[Sequence[int]], candidate_id: Sequence[str], **columns: object
    ) -> list[float | None]:
        if unknown := set(candidate_id) - by_id.keys():
            raise InputError(f"candidate {min(unknown)!r} is not among those that this reward function was made for")
        found = [by_id[name] for name in candidate_id]
        pairs = [(one, completion_of(ids, one.state, chat)) for one, ids in zip(found, completion_ids, strict=True)]
        return [verdict.value for verdict in judge_all(verifier, pairs, truncation)]

    return pivot_reward
