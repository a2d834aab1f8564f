"""Advantage, ratio, clip, KL and loss against a derivation in numpy float64, and against finite differences."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pivotrl.errors import ConfigError
from pivotrl.grpo import (
    AdvantageSettings,
    LossSettings,
    advantages,
    imitation_loss,
    policy_loss,
    sampler_weights,
    weights_of,
)

REWARDS = st.lists(st.one_of(st.none(), st.sampled_from([0.0, 1.0]), st.floats(0, 1)), min_size=1, max_size=16)


def numpy_advantages(rewards, baseline, std, epsilon):
    """Eq. 1 written anew: over scored members, with the group's deviation, that of those in the baseline, or none."""
    scored = np.array([round(r, 6) for r in rewards if r is not None], dtype=np.float64)
    if scored.size < 2 or np.all(scored == scored[0]):
        return [None if r is None else 0.0 for r in rewards]
    out = []
    for r in rewards:
        if r is None:
            out.append(None)
            continue
        others = list(scored)
        if baseline == "leave-one-out":
            others.remove(round(r, 6))
        value = round(r, 6) - np.mean(others)
        if std == "population":
            value /= scored.std() + epsilon
        elif std == "sample" and len(set(others)) > 1:
            value /= np.std(others, ddof=1) + epsilon
        out.append(value)
    return out


@given(
    REWARDS, st.sampled_from(["mean", "leave-one-out"]), st.sampled_from(["population", "sample", "none"]), st.data()
)
def test_advantages_are_those_of_numpy(rewards, baseline, std, data):
    settings = AdvantageSettings(baseline=baseline, std=std, malformed=data.draw(st.sampled_from([None, -5.0])))
    malformed = data.draw(st.lists(st.booleans(), min_size=len(rewards), max_size=len(rewards)))
    expected = numpy_advantages(rewards, baseline, std, settings.epsilon)
    for ours, theirs, bad in zip(advantages(rewards, settings, malformed), expected, malformed, strict=True):
        if theirs is None:
            assert ours is None
        elif bad and settings.malformed is not None:
            assert ours == -5.0
        else:
            assert ours == pytest.approx(theirs, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize(
    ("group", "right", "of_right", "of_wrong"),
    [(16, 1, 1.0, -0.258), (16, 2, 3.615, -0.378), (16, 15, 0.258, -1.0), (8, 1, 1.0, -0.378)],
)
def test_values_of_nemo_rl(group, right, of_right, of_wrong):
    """As computed from NeMo RL's formula: the lone success gets 1, undivided, since the others' deviation is 0."""
    settings = AdvantageSettings(baseline="leave-one-out", std="sample")
    values = advantages([1.0] * right + [0.0] * (group - right), settings)
    assert values[0] == pytest.approx(of_right, abs=2e-3)
    assert values[-1] == pytest.approx(of_wrong, abs=2e-3)


def test_paper_values():
    """G = 16 with one success: the success gets +3.873, the failures -0.258 (population standard deviation)."""
    values = advantages([1.0] + [0.0] * 15, AdvantageSettings(epsilon=0))
    assert values[0] == pytest.approx(math.sqrt(15))
    assert values[1] == pytest.approx(-1 / math.sqrt(15))


@pytest.mark.parametrize("reward", [0.0, 1.0, 0.1, 1 / 3, 0.7])
def test_equal_rewards_give_exactly_zero(reward):
    """Not 1e-7: a group of equal rewards, whatever their value, has no reward gradient at all."""
    assert advantages([reward] * 7, AdvantageSettings()) == (0.0,) * 7
    assert advantages([reward, None, reward + 1e-9], AdvantageSettings()) == (0.0, None, 0.0)


def test_unscored_members_are_no_members():
    settings = AdvantageSettings()
    with_gaps = advantages([1.0, None, 0.0, None, 0.0], settings)
    assert [value for value in with_gaps if value is not None] == list(advantages([1.0, 0.0, 0.0], settings))
    assert with_gaps[1] is None
    assert advantages([None, None], settings) == (None, None)
    assert advantages([1.0, None], settings) == (0.0, None)


def test_advantage_clip():
    assert max(advantages([1.0] + [0.0] * 15, AdvantageSettings(clip=2.0))) == 2.0


def numpy_loss(logp, old, reference, adv, mask, settings, sampler=None):
    """Eq. 7, negated, in loops: tokens of actions, ratios, clipping, KL estimate, mean."""
    if settings.on_policy_ratio:
        old = logp
    total = kl_total = 0.0
    tokens = mask.sum()
    for b in range(len(logp)):
        length = int(mask[b].sum())
        if length == 0:
            continue
        weight = 1 / tokens if settings.reduction == "token" else 1 / length / len(logp)
        difference = logp[b, :length] - old[b, :length]
        ratios = {
            "token": np.exp(difference),
            "action": np.full(length, np.exp(difference.sum())),
            "gspo": np.full(length, np.exp(difference.mean())),
        }[settings.ratio]
        for t in range(length):
            clipped = min(max(ratios[t], 1 - settings.clip_low), 1 + settings.clip_high)
            trust = 1.0 if sampler is None else min(np.exp(old[b, t] - sampler[b, t]), settings.sampler_weight_cap)
            advantage = adv[b] - (settings.beta * (old[b, t] - reference[b, t]) if settings.kl == "k1" else 0.0)
            value = min(ratios[t] * advantage, clipped * advantage)
            if settings.dual_clip is not None and advantage < 0:
                value = max(value, settings.dual_clip * advantage)
            total -= trust * weight * value
            if settings.kl == "k1":
                continue
            d = reference[b, t] - logp[b, t]
            estimate = d * d / 2 if settings.kl == "k2" else math.exp(d) - 1 - d
            kl_total += trust * weight * estimate * (math.exp(difference[t]) if settings.kl_weighted else 1.0)
    return total + settings.beta * kl_total


def random_batch(seed, rows=5, length=7, spread=0.3):
    rng = np.random.default_rng(seed)
    mask = np.zeros((rows, length))
    for row in range(rows):
        mask[row, : rng.integers(1, length + 1)] = 1
    logp = -rng.exponential(1.0, (rows, length)) * mask
    old = (logp + rng.normal(0, spread, logp.shape)) * mask
    reference = (logp + rng.normal(0, 0.5, logp.shape)) * mask
    return logp, old, reference, rng.normal(0, 1.5, rows), mask


def loss_of(logp, old, reference, adv, mask, settings):
    weights = weights_of(mask, settings.reduction, len(mask), float(mask.sum()))
    return policy_loss(logp, old, reference, adv, weights, settings)


@pytest.mark.parametrize("ratio", ["token", "action", "gspo"])
@pytest.mark.parametrize("kl", ["k1", "k2", "k3"])
@pytest.mark.parametrize("reduction", ["token", "sequence"])
def test_loss_is_that_of_numpy(ratio, kl, reduction):
    settings = LossSettings(ratio=ratio, kl=kl, reduction=reduction, beta=0.3, clip_low=0.2, clip_high=0.28)
    for seed in range(8):
        batch = random_batch(seed)
        ours = loss_of(*(torch.tensor(part) for part in batch), settings)
        assert float(ours.total) == pytest.approx(numpy_loss(*batch, settings), rel=1e-10)


@pytest.mark.parametrize("ratio", ["token", "action", "gspo"])
@pytest.mark.parametrize("extra", [{"dual_clip": 1.5}, {"on_policy_ratio": True}, {"kl_weighted": False}])
@pytest.mark.parametrize("kl", ["k1", "k2"])
def test_options_of_the_ratio_are_those_of_numpy(ratio, extra, kl):
    settings = LossSettings(ratio=ratio, kl=kl, beta=0.3, **extra)
    bound = 0.0
    for seed in range(8):
        batch = random_batch(seed, spread=0.8)
        ours = loss_of(*(torch.tensor(part) for part in batch), settings)
        assert float(ours.total) == pytest.approx(numpy_loss(*batch, settings), rel=1e-10)
        bound += float(ours.clip_fraction)
    assert (bound == 0) == settings.on_policy_ratio
    assert settings.on_policy_ratio == (float(ours.ratio_mean) == pytest.approx(1.0))


@pytest.mark.parametrize("beta", [0.0, 0.3])
@pytest.mark.parametrize("on_policy", [True, False])
def test_sampler_weights_are_those_of_numpy(beta, on_policy):
    settings = LossSettings(sampler_weight_cap=1.3, beta=beta, on_policy_ratio=on_policy)
    for seed in range(8):
        logp, old, reference, adv, mask = random_batch(seed)
        sampler = random_batch(seed + 100)[0] * mask
        tensors = [torch.tensor(part) for part in (logp, old, reference, adv)]
        start = tensors[0] if on_policy else tensors[1]
        trust = sampler_weights(start, torch.tensor(sampler), settings.sampler_weight_cap)
        assert float(trust.max()) <= settings.sampler_weight_cap
        weights = weights_of(torch.tensor(mask), "token", len(mask), float(mask.sum())) * trust
        expected = numpy_loss(logp, old, reference, adv, mask, settings, sampler)
        assert float(policy_loss(*tensors, weights, settings).total) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("extra", [{"beta": 0.0}, {"beta": 0.3, "kl": "k1"}, {"beta": 0.0, "dual_clip": 1.5}])
@pytest.mark.parametrize("total", [80.0, 88.6, 89.0, 300.0, 1e5, -300.0])
@pytest.mark.parametrize("advantage", [3.9, 1.0, 0.0, -0.2, -1.0, -3.9])
def test_a_ratio_past_float32_leaves_a_finite_loss_and_gradient(extra, total, advantage):
    """As in numpy's float64, derivatives of it too, cut off where float32 ends."""
    settings, most = LossSettings(ratio="action", **extra), float(np.finfo(np.float32).max)
    batch = random_batch(3, rows=2)
    logp, old, reference, _, mask = (part.astype(np.float32).astype(np.float64) for part in batch)
    length = int(mask[0].sum())
    logp[0, :length] = old[0, :length] + total / length
    adv = np.array([advantage, 0.5])
    policy = torch.tensor(logp, dtype=torch.float32).requires_grad_()
    ours = loss_of(policy, *(torch.tensor(part, dtype=torch.float32) for part in (old, reference, adv, mask)), settings)
    ours.total.backward()
    weight = weights_of(torch.tensor(mask), "token", 2, float(mask.sum())).numpy()[0, :length]
    with np.errstate(over="ignore"):
        ratio = np.exp(np.float64(total))
    penalty = settings.beta * (old - reference)[0, :length] if settings.kl == "k1" else np.zeros(length)
    advantages_T = advantage - penalty
    surrogate_T = np.minimum(min(ratio, most) * advantages_T, np.clip(ratio, 0.8, 1.2) * advantages_T)
    follows_T = (advantages_T < 0) if ratio > 1.2 else (advantages_T > 0)
    if settings.dual_clip is not None:
        bounded_T = (advantages_T < 0) & (surrogate_T < settings.dual_clip * advantages_T)
        surrogate_T, follows_T = (
            np.where(bounded_T, settings.dual_clip * advantages_T, surrogate_T),
            follows_T & ~bounded_T,
        )
    slope = -(np.clip(surrogate_T, -most, most) * weight * follows_T).sum()
    alone = loss_of(
        *(torch.tensor(part[1:], dtype=torch.float64) for part in (logp, old, reference, adv, mask)), settings
    )
    expected = -(np.clip(surrogate_T, -most, most) * weight).sum() + float(alone.total) * mask[1].sum() / mask.sum()
    assert all(torch.isfinite(part).all() for part in (ours.total, policy.grad, ours.ratio_mean))
    assert float(ours.total.detach()) == pytest.approx(expected, rel=1e-2, abs=1e-6)
    assert policy.grad[0, :length].tolist() == pytest.approx([slope] * length, rel=1e-2, abs=1e-6)


def test_on_policy_gradients_of_k1_and_k2_are_the_same():
    """k1 inside the advantage is no loss, and moves the policy as k2 in the loss does."""
    logp, _, reference, adv, mask = (torch.tensor(part) for part in random_batch(4))
    gradients = []
    for kl in ("k1", "k2"):
        policy = logp.clone().requires_grad_()
        loss_of(policy, logp, reference, adv, mask, LossSettings(beta=0.3, kl=kl)).total.backward()
        gradients.append(policy.grad)
    assert torch.allclose(*gradients, rtol=1e-12)


def test_dual_clip_bounds_the_loss_of_a_bad_action():
    """A < 0 and a ratio of e^3: the loss is 3 times the advantage's size, and has no gradient; without, it is e^3."""
    logp = torch.full((1, 1), 3.0, dtype=torch.float64, requires_grad=True)
    batch = (torch.zeros(1, 1).double(), None, torch.tensor([-1.0]).double(), torch.ones(1, 1).double())
    terms = loss_of(logp, *batch, LossSettings(beta=0, dual_clip=3.0))
    terms.total.backward()
    assert (float(terms.total.detach()), float(logp.grad), float(terms.clip_fraction)) == (3.0, 0.0, 1.0)
    assert float(loss_of(logp, *batch, LossSettings(beta=0)).total.detach()) == pytest.approx(math.exp(3))


@pytest.mark.parametrize("ratio", ["token", "action", "gspo"])
@pytest.mark.parametrize("kl", ["k2", "k3"])
def test_gradient_is_that_of_finite_differences(ratio, kl):
    """The importance weight of the KL is constant by construction, so beta is checked on policy, where it is 1."""
    settings = LossSettings(ratio=ratio, kl=kl, beta=0.0)
    logp, old, reference, adv, mask = (torch.tensor(part) for part in random_batch(11))
    assert torch.autograd.gradcheck(
        lambda x: loss_of(x, old, None, adv, mask, settings).total, (logp.requires_grad_(),), eps=1e-7, atol=1e-6
    )
    weights = weights_of(mask, "token", len(mask), float(mask.sum()))
    fixed = logp.detach().clone()

    def kl_part(x):
        settings_kl = LossSettings(ratio=ratio, kl=kl, beta=1.0)
        return policy_loss(x, x.detach(), reference, adv * 0, weights, settings_kl).total

    assert torch.autograd.gradcheck(kl_part, (fixed.requires_grad_(),), eps=1e-7, atol=1e-6)


def test_zero_advantage_has_exactly_zero_reward_gradient():
    logp, old, _, adv, mask = (torch.tensor(part) for part in random_batch(5))
    logp.requires_grad_()
    terms = loss_of(logp, old, None, adv * 0, mask, LossSettings(beta=0))
    terms.total.backward()
    assert torch.count_nonzero(logp.grad) == 0


def test_kl_term_of_a_dead_group_stays():
    logp, old, reference, adv, mask = (torch.tensor(part) for part in random_batch(5))
    logp.requires_grad_()
    loss_of(logp, old, reference, adv * 0, mask, LossSettings(beta=0.1)).total.backward()
    assert torch.count_nonzero(logp.grad) > 0


def test_clipping_stops_the_gradient_only_where_it_binds():
    """A > 0 and ratio above 1 + clip: no gradient; A < 0 at the same ratio: the pessimistic branch keeps it."""
    old = torch.zeros(2, 1, dtype=torch.float64)
    logp = torch.full((2, 1), math.log(1.5), dtype=torch.float64, requires_grad=True)
    terms = loss_of(
        logp, old, None, torch.tensor([1.0, -1.0]).double(), torch.ones(2, 1).double(), LossSettings(beta=0)
    )
    terms.total.backward()
    assert logp.grad[0, 0] == 0
    assert logp.grad[1, 0] == pytest.approx(1.5 / 2)
    assert float(terms.clip_fraction) == 0.5


def test_k2_gradient_is_the_kl_gradient_on_policy():
    """Averaged over a policy's own samples, the gradient of k2 is that of KL(pi || ref); checked by enumeration."""
    torch.manual_seed(0)
    logits = torch.randn(6, dtype=torch.float64, requires_grad=True)
    reference = torch.log_softmax(torch.randn(6, dtype=torch.float64), 0)
    logp = torch.log_softmax(logits, 0)
    exact = torch.autograd.grad((logp.exp() * (logp - reference)).sum(), logits, retain_graph=True)[0]
    weights = logp.exp().detach()[:, None]
    terms = policy_loss(
        logp[:, None],
        logp.detach()[:, None],
        reference[:, None],
        torch.zeros(6).double(),
        weights,
        LossSettings(beta=1.0),
    )
    assert torch.allclose(torch.autograd.grad(terms.total, logits)[0], exact, atol=1e-12)


def test_microbatches_add_up():
    settings = LossSettings(beta=0.2, reduction="sequence")
    batch = [torch.tensor(part) for part in random_batch(2, rows=6)]
    weights = weights_of(batch[4], settings.reduction, 6, float(batch[4].sum()))
    whole = policy_loss(*batch[:4], weights, settings).total
    parts = [
        policy_loss(*(part[rows] for part in batch[:4]), weights[rows], settings).total
        for rows in (slice(0, 2), slice(2, 6))
    ]
    assert float(sum(parts)) == pytest.approx(float(whole), rel=1e-12)


def test_imitation_is_negative_log_likelihood():
    logp, *_, mask = random_batch(1)
    weights = torch.tensor(mask / mask.sum())
    assert float(imitation_loss(torch.tensor(logp), weights).total) == pytest.approx(-logp.sum() / mask.sum())


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"clip_low": 1.0}, "below 1"),
        ({"clip_low": -0.1}, "at least 0"),
        ({"clip_high": -1}, "0 or more"),
        ({"beta": -0.1}, "0 or more"),
        ({"dual_clip": 1.2}, "above 1 \\+ clip-high"),
        ({"dual_clip": 3.0, "on_policy_ratio": True}, "never clipped"),
        ({"sampler_weight_cap": 0.0}, "above 0"),
        ({"sampler_weight_cap": 5.0, "ratio": "action"}, "single tokens"),
        ({"sampler_weight_cap": 5.0, "ratio": "gspo"}, "single tokens"),
    ],
)
def test_impossible_settings_are_refused(wrong, why):
    with pytest.raises(ConfigError, match=why):
        LossSettings(**wrong)


@pytest.mark.parametrize("wrong", [{"epsilon": -1}, {"clip": 0}, {"malformed": 0.0}, {"malformed": -math.inf}])
def test_impossible_advantages_are_refused(wrong):
    with pytest.raises(ConfigError):
        AdvantageSettings(**wrong)


def test_beta_without_reference_is_refused():
    logp, old, _, adv, mask = (torch.tensor(part) for part in random_batch(0))
    with pytest.raises(ConfigError, match="reference"):
        loss_of(logp, old, None, adv, mask, LossSettings(beta=0.1))
