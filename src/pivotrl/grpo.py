"""The mathematics of the training step: advantage (Eq. 1), clipped ratio and KL (Eq. 7). Tensors in, tensors out.

Departures from the paper (arXiv 2603.21383), which gives no numbers for clip, beta or epsilon:
 1. Eq. 1 divides by std + eps; a group whose rewards are equal (to 1e-6) gets advantages of exactly 0, not 0/eps.
 2. Unscored members (the verifier failed) are no members: they enter neither mean nor std and get no advantage.
 3. The ratio of Eq. 7 is of actions; `ratio="token"` (default, as in NVIDIA's recipes) clips each token's own ratio,
    "action" the product over the action as written in Eq. 7, "gspo" its geometric mean (arXiv 2507.18071).
 4. The KL term is estimated on the sampled tokens: k2 = (log p - log q)^2 / 2 by default (on policy its gradient is
    that of the KL; Schulman 2020, "Approximating KL Divergence"), or k3. k1 is not offered: as a loss its expected
    gradient is zero.
 5. pi_old is recomputed by the learner. With one update per batch it equals pi, so the ratio is 1 and clipping is idle.
 6. The mean over a batch is over tokens ("token", NVIDIA's recipes) or first over each action ("sequence", Eq. 7).

Shapes: _G members of a group, _B actions of a batch, _T tokens of an action, padded; masks are 1 where a token counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from pivotrl.errors import ConfigError
from pivotrl.metrics import REWARD_DECIMALS, group_statistics

if TYPE_CHECKING:
    from torch import Tensor

Ratio = Literal["token", "action", "gspo"]
KlEstimator = Literal["k2", "k3"]
Reduction = Literal["token", "sequence"]
Baseline = Literal["mean", "leave-one-out"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageSettings:
    """How rewards of a group become advantages. Raises ConfigError for values that cannot work."""

    baseline: Baseline = "mean"
    """mean: of the whole group (Eq. 1). leave-one-out: of the other members."""
    normalise: bool = True
    """Divide by the group's population standard deviation (Eq. 1)."""
    epsilon: float = 1e-6
    """Added to the standard deviation."""
    clip: float | None = None
    """Largest absolute advantage."""

    def __post_init__(self) -> None:
        if not 0 <= self.epsilon < math.inf:
            raise ConfigError(f"advantage epsilon {self.epsilon}: must be 0 or more")
        if self.clip is not None and not self.clip > 0:
            raise ConfigError(f"advantage clip {self.clip}: must be above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSettings:
    """The loss of Eq. 7. Raises ConfigError for values that cannot work."""

    ratio: Ratio = "token"
    """Importance ratio per token, per action (Eq. 7 as written), or its geometric mean (gspo)."""
    clip_low: float = 0.2
    """The ratio is clipped from below at 1 - clip_low."""
    clip_high: float = 0.2
    """The ratio is clipped from above at 1 + clip_high."""
    beta: float = 0.01
    """Weight of the KL to the reference policy; 0 leaves it out."""
    kl: KlEstimator = "k2"
    """KL estimator in the loss."""
    reduction: Reduction = "token"
    """Mean over all tokens of the batch, or over tokens of an action and then over actions."""

    def __post_init__(self) -> None:
        if not 0 <= self.clip_low < 1:
            raise ConfigError(f"clip-low {self.clip_low}: must be at least 0 and below 1")
        if not self.clip_high >= 0 or not 0 <= self.beta < math.inf:
            raise ConfigError(f"clip-high {self.clip_high} and beta {self.beta}: must be 0 or more")


class LossTerms(NamedTuple):
    """The parts of a loss, each a scalar tensor; `total` carries the gradient."""

    total: Tensor
    reward: Tensor
    kl: Tensor | None
    clip_fraction: Tensor
    ratio_mean: Tensor


def advantages(rewards_G: Sequence[float | None], settings: AdvantageSettings) -> tuple[float | None, ...]:
    """Eq. 1 over the scored members of a group; None for unscored ones, exactly 0.0 for all when rewards are equal."""
    statistics = group_statistics(rewards_G)
    if statistics.mean is None or statistics.variance is None:
        return tuple(None for _ in rewards_G)
    if statistics.variance == 0 or statistics.n < 2:
        return tuple(None if reward is None else 0.0 for reward in rewards_G)
    scale = math.sqrt(statistics.variance) + settings.epsilon if settings.normalise else 1.0
    # leaving one member out multiplies its distance from the mean by n / (n - 1)
    factor = statistics.n / (statistics.n - 1) if settings.baseline == "leave-one-out" else 1.0
    limit = math.inf if settings.clip is None else settings.clip
    return tuple(
        None
        if reward is None
        else max(-limit, min(limit, factor * (round(reward, REWARD_DECIMALS) - statistics.mean) / scale))
        for reward in rewards_G
    )


def log_ratio(logprobs_BT: Tensor, old_logprobs_BT: Tensor, mask_BT: Tensor, ratio: Ratio) -> Tensor:
    """log w for every token: its own, the sum over its action ("action"), or the mean over its action ("gspo")."""
    difference_BT = (logprobs_BT - old_logprobs_BT) * mask_BT
    if ratio == "token":
        return difference_BT
    total_B1 = difference_BT.sum(dim=1, keepdim=True)
    if ratio == "gspo":
        total_B1 = total_B1 / mask_BT.sum(dim=1, keepdim=True).clamp(min=1)
    return total_B1.expand_as(difference_BT)


def kl_estimate(logprobs_BT: Tensor, reference_BT: Tensor, estimator: KlEstimator) -> Tensor:
    """Per token: k2 = d^2/2 or k3 = exp(d) - 1 - d with d = log reference - log policy."""
    difference_BT = reference_BT - logprobs_BT
    if estimator == "k2":
        return 0.5 * difference_BT**2
    return difference_BT.exp() - 1 - difference_BT


def weights_of(mask_BT: Tensor, reduction: Reduction, actions: float, tokens: float) -> Tensor:
    """The weight of every token in the mean: 1/tokens each, or 1/(actions * length of its action).

    `actions` and `tokens` are of the whole batch, so that micro-batches add up to it.
    """
    if reduction == "token":
        return mask_BT / max(tokens, 1.0)
    return mask_BT / mask_BT.sum(dim=1, keepdim=True).clamp(min=1) / max(actions, 1.0)


def policy_loss(
    logprobs_BT: Tensor,
    old_logprobs_BT: Tensor,
    reference_BT: Tensor | None,
    advantages_B: Tensor,
    weights_BT: Tensor,
    settings: LossSettings,
) -> LossTerms:
    """Eq. 7, negated: minus the clipped surrogate plus beta times the KL estimate, summed with `weights_BT`.

    The KL estimate is weighted by the detached ratio's own importance weight where samples are off policy. A row of
    advantage 0 has no reward gradient; its KL term stays. `reference_BT` may be None only when beta is 0.
    """
    import torch

    mask_BT = (weights_BT > 0).to(logprobs_BT.dtype)
    ratio_BT = log_ratio(logprobs_BT, old_logprobs_BT, mask_BT, settings.ratio).exp()
    advantages_B1 = advantages_B[:, None]
    clipped_BT = ratio_BT.clamp(1 - settings.clip_low, 1 + settings.clip_high)
    surrogate_BT = torch.minimum(ratio_BT * advantages_B1, clipped_BT * advantages_B1)
    reward = -(surrogate_BT * weights_BT).sum()
    total, kl = reward, None
    if settings.beta > 0:
        if reference_BT is None:
            raise ConfigError("beta > 0 needs the log-probabilities of a reference policy")
        importance_BT = ((logprobs_BT - old_logprobs_BT) * mask_BT).exp().detach()
        kl = (importance_BT * kl_estimate(logprobs_BT, reference_BT, settings.kl) * weights_BT).sum()
        total = reward + settings.beta * kl
    bound_BT = ((ratio_BT * advantages_B1 > clipped_BT * advantages_B1) * weights_BT).detach()
    return LossTerms(
        total=total,
        reward=reward.detach(),
        kl=None if kl is None else kl.detach(),
        clip_fraction=bound_BT.sum(),
        ratio_mean=(ratio_BT * weights_BT).sum().detach(),
    )


def imitation_loss(logprobs_BT: Tensor, weights_BT: Tensor) -> LossTerms:
    """Negative log-likelihood of demonstrations (SFT), summed with `weights_BT`."""
    total = -(logprobs_BT * weights_BT).sum()
    zero = total.detach() * 0
    return LossTerms(total=total, reward=total.detach(), kl=None, clip_fraction=zero, ratio_mean=zero + 1)
