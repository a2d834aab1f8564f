"""The mathematics of the training step: advantage (Eq. 1), clipped ratio and KL (Eq. 7). Tensors in, tensors out.

Departures from the paper (arXiv 2603.21383), which gives no numbers for clip, beta or epsilon:
 1. Eq. 1 divides by std + eps; a group whose rewards are equal (to 1e-6) gets advantages of exactly 0, not 0/eps.
 2. Unscored members (the verifier failed) are no members: they enter neither mean nor std and get no advantage.
 3. The ratio of Eq. 7 is of actions; `ratio="token"` (default, as in NVIDIA's recipes) clips each token's own ratio,
    "action" the product over the action as written in Eq. 7, "gspo" its geometric mean (arXiv 2507.18071). A product
    past the largest number of its type stays just below it.
 4. The KL term is estimated on the sampled tokens: k2 = (log p - log q)^2 / 2 by default (on policy its gradient is
    that of the KL; Schulman 2020, "Approximating KL Divergence"), or k3. k1 = log p - log q is taken off the advantage
    of its token: as a loss its expected gradient is zero. On policy, k1 there and k2 have the same gradient.
 5. pi_old is recomputed by the learner. With one update per batch it equals pi, so the ratio is 1 and clipping is idle.
    `on_policy_ratio` says so whatever pi_old is stored (`force_on_policy_ratio` of NeMo RL).
 6. The mean over a batch is over tokens ("token", NVIDIA's recipes) or first over each action ("sequence", Eq. 7).
 7. Options that Eq. 1 does not have: leave-one-out; `std="sample"`, over the members that the baseline is the mean
    of, with n - 1, and not divided by where it is 0 (NeMo RL with leave-one-out, TRL with the mean); an advantage of
    its own for malformed actions, set after all else (NeMo RL).
 8. Options that Eq. 7 does not have: dual clip, which bounds the loss where A < 0 and the ratio is large (Ye et al.
    2020, arXiv 1912.09729); a detached, truncated weight pi_old/pi_sampler of each token where another engine samples,
    on the reward and the KL alike.

Shapes: _G members of a group, _B actions of a batch, _T tokens of an action, padded; masks are 1 where a token counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from pivotrl.errors import ConfigError
from pivotrl.metrics import REWARD_DECIMALS, GroupStatistics, group_statistics

if TYPE_CHECKING:
    from torch import Tensor

Ratio = Literal["token", "action", "gspo"]
KlEstimator = Literal["k1", "k2", "k3"]
Reduction = Literal["token", "sequence"]
Baseline = Literal["mean", "leave-one-out"]
Deviation = Literal["population", "sample", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageSettings:
    """How rewards of a group become advantages. Raises ConfigError for values that cannot work."""

    baseline: Baseline = "mean"
    """mean: of the whole group (Eq. 1). leave-one-out: of the other members."""
    std: Deviation = "population"
    """What is divided by. population: the group's (Eq. 1). sample: with n - 1, of those in the baseline, unless 0."""
    epsilon: float = 1e-6
    """Added to the standard deviation."""
    clip: float | None = None
    """Largest absolute advantage."""
    malformed: float | None = None
    """Advantage, below 0, of actions that came whole and cannot be parsed; their rewards stay in the baseline."""

    def __post_init__(self) -> None:
        if self.malformed is not None and not -math.inf < self.malformed < 0:
            raise ConfigError(f"advantage malformed {self.malformed}: must be below 0")
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
    dual_clip: float | None = None
    """Where the advantage is below 0, the loss is at most this times its size; above 1 + clip_high."""
    on_policy_ratio: bool = False
    """Take the ratio as 1, whatever pi_old is: no clipping, one update for each batch."""
    sampler_weight_cap: float | None = None
    """Weigh each token by pi_old/pi_sampler, truncated here: for a sampler that is another engine."""
    beta: float = 0.01
    """Weight of the KL to the reference policy; 0 leaves it out."""
    kl: KlEstimator = "k2"
    """KL estimator: k2 or k3 in the loss, k1 inside the advantage."""
    kl_weighted: bool = True
    """Weigh the estimate in the loss by the detached ratio, which makes it one of the current policy's KL (TRL: no)."""
    reduction: Reduction = "token"
    """Mean over all tokens of the batch, or over tokens of an action and then over actions."""

    def __post_init__(self) -> None:
        if not 0 <= self.clip_low < 1:
            raise ConfigError(f"clip-low {self.clip_low}: must be at least 0 and below 1")
        if not self.clip_high >= 0 or not 0 <= self.beta < math.inf:
            raise ConfigError(f"clip-high {self.clip_high} and beta {self.beta}: must be 0 or more")
        if self.dual_clip is not None and not 1 + self.clip_high < self.dual_clip < math.inf:
            raise ConfigError(f"dual-clip {self.dual_clip}: must be above 1 + clip-high ({1 + self.clip_high})")
        if self.dual_clip is not None and self.on_policy_ratio:
            raise ConfigError("dual-clip with on-policy-ratio: a ratio of 1 is never clipped; leave one of them out")
        if self.sampler_weight_cap is None:
            return
        if not 0 < self.sampler_weight_cap < math.inf:
            raise ConfigError(f"sampler-weight-cap {self.sampler_weight_cap}: must be above 0")
        if self.ratio != "token":
            raise ConfigError(
                f"sampler-weight-cap with ratio {self.ratio}: it weighs single tokens, the ratio is of whole actions; "
                "use --loss.ratio token"
            )


class LossTerms(NamedTuple):
    """The parts of a loss, each a scalar tensor; `total` carries the gradient."""

    total: Tensor
    reward: Tensor
    kl: Tensor | None
    clip_fraction: Tensor
    ratio_mean: Tensor


def advantages(
    rewards_G: Sequence[float | None], settings: AdvantageSettings, malformed_G: Sequence[bool] = ()
) -> tuple[float | None, ...]:
    """Eq. 1 over the scored members of a group; None for unscored ones, exactly 0.0 for all when rewards are equal.

    Members marked in `malformed_G` get `settings.malformed` instead, where that is set, also among equal rewards.
    """
    group, values_G = group_statistics(rewards_G), list[float | None]()
    limit = math.inf if settings.clip is None else settings.clip
    for index, reward in enumerate(rewards_G):
        if reward is None:
            values_G.append(None)
        elif settings.malformed is not None and malformed_G and malformed_G[index]:
            values_G.append(settings.malformed)
        elif group.variance == 0:
            values_G.append(0.0)
        else:
            alone = settings.baseline == "leave-one-out"
            base = group_statistics([*rewards_G[:index], *rewards_G[index + 1 :]]) if alone else group
            assert base.mean is not None, "a group with variance has two members"
            value = (round(reward, REWARD_DECIMALS) - base.mean) / _scale(group, base, settings)
            values_G.append(max(-limit, min(limit, value)))
    return tuple(values_G)


def _scale(group: GroupStatistics, base: GroupStatistics, settings: AdvantageSettings) -> float:
    """What a distance from the mean of `base` is divided by."""
    if settings.std == "none":
        return 1.0
    if settings.std == "population":
        return math.sqrt(group.variance or 0.0) + settings.epsilon
    if not base.variance:
        return 1.0
    return math.sqrt(base.variance * base.n / (base.n - 1)) + settings.epsilon


def log_ratio(logprobs_BT: Tensor, old_logprobs_BT: Tensor, mask_BT: Tensor, ratio: Ratio) -> Tensor:
    """log w for every token: its own, the sum over its action ("action"), or the mean over its action ("gspo")."""
    difference_BT = (logprobs_BT - old_logprobs_BT) * mask_BT
    if ratio == "token":
        return difference_BT
    total_B1 = difference_BT.sum(dim=1, keepdim=True)
    if ratio == "gspo":
        total_B1 = total_B1 / mask_BT.sum(dim=1, keepdim=True).clamp(min=1)
    return total_B1.expand_as(difference_BT)


def _representable(log_ratio_BT: Tensor, advantages_BT: Tensor) -> Tensor:
    """What `exp` would carry past the largest number, times the advantage where that is below 0, is held just below it.

    Its gradient stays, so that a clipped ratio has a gradient of 0, not of 0 times infinity.
    """
    import torch

    most = math.log(torch.finfo(log_ratio_BT.dtype).max) - 1e-4  # more than the roundings up to the sum of the loss
    most_BT = most - (-advantages_BT.detach()).clamp(min=1).log()
    return torch.where(log_ratio_BT > most_BT, most_BT + (log_ratio_BT - log_ratio_BT.detach()), log_ratio_BT)


def kl_estimate(logprobs_BT: Tensor, reference_BT: Tensor, estimator: KlEstimator) -> Tensor:
    """Per token: k1 = -d, k2 = d^2/2 or k3 = exp(d) - 1 - d with d = log reference - log policy."""
    difference_BT = reference_BT - logprobs_BT
    if estimator == "k1":
        return -difference_BT
    if estimator == "k2":
        return 0.5 * difference_BT**2
    return difference_BT.exp() - 1 - difference_BT


def sampler_weights(old_BT: Tensor, sampler_BT: Tensor, cap: float) -> Tensor:
    """min(pi_old/pi_sampler, cap) of every token, without gradient: to be multiplied into the weights of the mean."""
    return (old_BT - sampler_BT).exp().clamp(max=cap).detach()


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

    A row of advantage 0 has no reward gradient; its KL term stays. `reference_BT` may be None only when beta is 0.
    """
    import torch

    if settings.on_policy_ratio:
        old_logprobs_BT = logprobs_BT.detach()
    mask_BT = (weights_BT > 0).to(logprobs_BT.dtype)
    ratio_BT = log_ratio(logprobs_BT, old_logprobs_BT, mask_BT, settings.ratio)
    advantages_BT, kl_BT = advantages_B[:, None], None
    if settings.beta > 0:
        if reference_BT is None:
            raise ConfigError("beta > 0 needs the log-probabilities of a reference policy")
        if settings.kl == "k1":
            kl_BT = kl_estimate(old_logprobs_BT, reference_BT, "k1").detach()
            advantages_BT = advantages_BT - settings.beta * kl_BT
        else:
            kl_BT = kl_estimate(logprobs_BT, reference_BT, settings.kl)
            if settings.kl_weighted:
                kl_BT = kl_BT * ((logprobs_BT - old_logprobs_BT) * mask_BT).exp().detach()
    ratio_BT = (_representable(ratio_BT, advantages_BT) if settings.ratio == "action" else ratio_BT).exp()
    clipped_BT = ratio_BT.clamp(1 - settings.clip_low, 1 + settings.clip_high)
    surrogate_BT = torch.minimum(ratio_BT * advantages_BT, clipped_BT * advantages_BT)
    if settings.dual_clip is not None:
        least_BT = settings.dual_clip * advantages_BT
        surrogate_BT = torch.where(advantages_BT < 0, torch.maximum(surrogate_BT, least_BT), surrogate_BT)
    reward = -(surrogate_BT * weights_BT).sum()
    kl = None if kl_BT is None else (kl_BT * weights_BT).sum()
    bound_BT = ((surrogate_BT != ratio_BT * advantages_BT) * weights_BT).detach()
    return LossTerms(
        total=reward if kl is None or settings.kl == "k1" else reward + settings.beta * kl,
        reward=reward.detach(),
        kl=None if kl is None else kl.detach(),
        clip_fraction=bound_BT.sum(),
        ratio_mean=(ratio_BT * weights_BT).sum().detach(),
    )


def imitation_loss(logprobs_BT: Tensor, weights_BT: Tensor) -> LossTerms:
    """Negative log-likelihood of demonstrations (SFT), summed with `weights_BT`."""
    total = -(logprobs_BT * weights_BT).sum()
    zero = total.detach() * 0
    return LossTerms(total=total, reward=total.detach(), kl=None, clip_fraction=zero, ratio_mean=weights_BT.sum())
