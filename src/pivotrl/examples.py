"""What is trained on: sampled groups as examples (advantages, masks), and what imitation imitates at each candidate.

Imitated are proven ids of demonstrations (sft), or the profile's accepted samples, as sampled (rft): rejection sampling
fine-tuning (Yuan et al. 2023, arXiv 2308.01825). Accepted are samples of reward 1, of equal actions the first; each
counts once, so a candidate with more ways that are right counts for more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from pivotrl.candidates import CandidateStore
from pivotrl.chat import RenderError, different
from pivotrl.errors import ConfigError
from pivotrl.grpo import advantages
from pivotrl.learners import Trainable
from pivotrl.logs import Progress
from pivotrl.metrics import group_statistics
from pivotrl.protocols import LaggingPolicy, Policy
from pivotrl.rollouts import Sampling, sample_groups
from pivotrl.training_settings import TrainConfig
from pivotrl.types import Candidate, CandidateRow, Completion, PolicyFingerprint, RolloutGroup, TrainingExample

Targets: TypeAlias = dict[str, tuple[tuple[int, ...], ...]]
"""Action ids by candidate."""


def draw(sampling: Sampling, batch: Sequence[Candidate], draws: int) -> list[list[RolloutGroup]]:
    """A group at each state; then, up to `draws` in all, another at each state whose last one had no variance.

    The samples of a draw are those after the last draw's in the streams keyed by (seed, candidate, sample).
    """
    drawn = [sample_groups(sampling, batch)]
    while len(drawn) < draws:
        flat = {group.candidate_id for group in drawn[-1] if group_statistics(group.rewards).variance == 0}
        left = [candidate for candidate in batch if candidate.id in flat]
        if not left:
            break
        drawn.append(sample_groups(sampling, left, dict.fromkeys(flat, len(drawn) * sampling.n)))
    return drawn


def last_of(drawn: Sequence[Sequence[RolloutGroup]]) -> list[RolloutGroup]:
    """The last group of every state, in the order of the first draw."""
    return list({group.candidate_id: group for groups in drawn for group in groups}.values())


def examples_of(groups: Sequence[RolloutGroup], config: TrainConfig) -> list[TrainingExample]:
    """One example for each scored action that has token ids; none at all where nothing would carry a gradient.

    A group whose advantages are all 0 stays in the mean over the batch if zero-variance groups are kept, and is left
    out otherwise. Raises ConfigError where the loss needs the sampler's log-probabilities and has none.
    """
    examples: list[TrainingExample] = []
    for group in groups:
        malformed_G = [completion.unparsable for completion in group.completions]
        advantages_G = advantages(group.rewards, config.advantage, malformed_G)
        if config.zero_variance != "keep" and not any(advantages_G):
            continue
        for completion, advantage in zip(group.completions, advantages_G, strict=True):
            if advantage is None or not completion.token_ids:
                continue
            examples.append(example_of(group.candidate_id, group.prompt_ids, completion, advantage, config))
    return teaching(examples, config)


def example_of(
    group: str, prompt: tuple[int, ...], completion: Completion, advantage: float, config: TrainConfig
) -> TrainingExample:
    """Raises ConfigError where the loss needs the sampler's log-probabilities and there are none."""
    if config.loss.sampler_weight_cap is not None and completion.token_logprobs is None:
        raise ConfigError("sampler-weight-cap: the sampler gives no log-probabilities; leave it out")
    learns = not (config.mask_truncated and completion.truncated)
    return TrainingExample(
        group_id=group,
        prompt_ids=prompt,
        action_ids=completion.token_ids,
        advantage=advantage,
        loss_mask=(learns,) * len(completion.token_ids),
        sampler_logprobs=completion.token_logprobs,
    )


def teaching(examples: list[TrainingExample], config: TrainConfig) -> list[TrainingExample]:
    """The examples, or none where none carries a gradient."""
    teaches = config.loss.beta > 0 or any(example.advantage and any(example.loss_mask) for example in examples)
    return examples if teaches else []


def too_old(policy: Policy, config: TrainConfig) -> bool:
    """Whether what a policy samples now is not to be trained on."""
    return config.max_age is not None and isinstance(policy, LaggingPolicy) and policy.age > config.max_age


def proven_targets(
    store: CandidateStore, rows: Sequence[CandidateRow], policy: Trainable
) -> tuple[Targets, Counter[str]]:
    """The demonstration of each candidate as ids that are proven, and how many have none, by reason."""
    targets: Targets = {}
    unproven: Counter[str] = Counter()
    chat, context = policy.chat, policy.context_length
    with Progress("targets proven", len(rows)) as progress:
        for row, candidate in store.loaded(rows):
            progress.advance()
            try:
                ids = chat.demonstration_ids(candidate.state, candidate.demonstration, candidate.literal)
            except RenderError as error:
                unproven["sft_" + str(error).partition(":")[0]] += 1
                continue
            if context is not None and len(chat.prompt_ids(candidate.state)) + len(ids) > context:
                unproven["sft_over_context"] += 1
            else:
                targets[row.id] = (ids,)
    return targets, unproven


def accepted_targets(
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
            kept = different(one.played for one in usable)[:most]
            targets[group.candidate_id] = tuple(usable[at].token_ids for at in kept)
        else:
            without["rft_without_ids" if right else "rft_none_accepted"] += 1
    return targets, without
