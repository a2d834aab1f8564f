"""A verifier as the reward function of another trainer: TRL's `GRPOTrainer(reward_funcs=trl_reward(...))`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from pivotrl.chat import ChatFormat
from pivotrl.errors import InputError
from pivotrl.protocols import Verifier
from pivotrl.rollouts import Truncation, judge_all
from pivotrl.types import Candidate


def trl_reward(
    verifier: Verifier, candidates: Iterable[Candidate], chat: ChatFormat, *, truncation: Truncation = "zero"
) -> Callable[..., list[float | None]]:
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
        pairs = [(one, chat.completion(ids, one.state)) for one, ids in zip(found, completion_ids, strict=True)]
        return [verdict.value for verdict in judge_all(verifier, pairs, truncation)]

    return pivot_reward
