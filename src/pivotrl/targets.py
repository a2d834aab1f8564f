"""What imitation imitates: proven ids of demonstrations (sft), or the profile's accepted samples, as sampled (rft).

`rft` is rejection sampling fine-tuning (Yuan et al. 2023, arXiv 2308.01825): accepted are samples of reward 1, of equal
actions the first; each counts once, so a candidate with more ways that are right counts for more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from pivotrl.candidates import CandidateStore
from pivotrl.chat import RenderError, same_action
from pivotrl.errors import ConfigError
from pivotrl.logs import Progress
from pivotrl.types import CandidateRow, Completion, PolicyFingerprint, RolloutGroup

if TYPE_CHECKING:
    from pivotrl.learners import Trainable

Targets: TypeAlias = dict[str, tuple[tuple[int, ...], ...]]
"""Action ids by candidate."""


def demonstrated(
    store: CandidateStore, rows: Sequence[CandidateRow], policy: Trainable
) -> tuple[Targets, Counter[str]]:
    """The demonstration of each candidate as ids that are proven, and how many have none, by reason."""
    targets: Targets = {}
    unproven: Counter[str] = Counter()
    chat, context = policy.chat, policy.context_length
    with Progress("targets proven", len(rows)) as progress:
        for _, candidates in store.units(rows):
            for candidate in candidates:
                progress.advance()
                try:
                    ids = chat.demonstration_ids(candidate.state, candidate.demonstration)
                except RenderError as error:
                    unproven["sft_" + str(error).partition(":")[0]] += 1
                    continue
                if context is not None and len(chat.prompt_ids(candidate.state)) + len(ids) > context:
                    unproven["sft_over_context"] += 1
                    continue
                targets[candidate.id] = (ids,)
    return targets, unproven


def accepted(
    groups: Iterable[RolloutGroup],
    rows: Sequence[CandidateRow],
    most: int,
    sampler: PolicyFingerprint,
    policy: Trainable,
) -> tuple[Targets, Counter[str]]:
    """The accepted samples of each candidate, `most` of them, and how many candidates have none, by reason.

    Raises ConfigError where the sampler had another tokenizer: its ids mean nothing to this model.
    """
    if sampler.tokenizer != policy.fingerprint.tokenizer:
        raise ConfigError("method rft: the profile was sampled with another tokenizer than this policy has")
    wanted = {row.id for row in rows}
    targets: Targets = {}
    without: Counter[str] = Counter()
    for group in groups:
        if group.candidate_id not in wanted:
            continue
        right = [one for one, reward in zip(group.completions, group.rewards, strict=True) if reward == 1.0]
        usable = [one for one in right if one.token_ids]
        if usable:
            targets[group.candidate_id] = tuple(one.token_ids for one in _different(usable)[:most])
        else:
            without["rft_without_ids" if right else "rft_none_accepted"] += 1
    return targets, without


def _different(completions: Sequence[Completion]) -> list[Completion]:
    kept: list[Completion] = []
    for one in completions:
        if not any(same_action(one.played, other.played) for other in kept):
            kept.append(one)
    return kept
