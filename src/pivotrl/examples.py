"""From a batch of states to training examples: samples, what becomes of groups without variance, advantages, masks."""

from __future__ import annotations

from collections.abc import Sequence

from pivotrl.errors import ConfigError
from pivotrl.grpo import advantages
from pivotrl.metrics import group_statistics
from pivotrl.protocols import LaggingPolicy, Policy
from pivotrl.rollouts import Sampling, sample_groups
from pivotrl.training_settings import TrainConfig
from pivotrl.types import Candidate, RolloutGroup, TrainingExample


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
            if config.loss.sampler_weight_cap is not None and completion.token_logprobs is None:
                raise ConfigError("sampler-weight-cap: the sampler gives no log-probabilities; leave it out")
            learns = not (config.mask_truncated and completion.truncated)
            examples.append(
                TrainingExample(
                    group_id=group.candidate_id,
                    prompt_ids=group.prompt_ids,
                    action_ids=completion.token_ids,
                    advantage=advantage,
                    loss_mask=(learns,) * len(completion.token_ids),
                    sampler_logprobs=completion.token_logprobs,
                )
            )
    teaches = config.loss.beta > 0 or any(example.advantage and any(example.loss_mask) for example in examples)
    return examples if teaches else []


def too_old(policy: Policy, config: TrainConfig) -> bool:
    """Whether what a policy samples now is not to be trained on."""
    return config.max_age is not None and isinstance(policy, LaggingPolicy) and policy.age > config.max_age
