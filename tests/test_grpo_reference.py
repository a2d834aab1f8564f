"""Advantage, ratio, clip, KL and loss against a derivation in numpy float64, and against finite differences."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pivotrl.errors import ConfigError
from pivotrl.grpo import AdvantageSettings, LossSettings, advantages, imitation_loss, policy_loss, weights_of

REWARDS = st.lists(st.one_of(st.none(), st.sampled_from([0.0, 1.0]), st.floats(0, 1)), min_size=1, max_size=16)


def numpy_advantages(rewards, baseline, normalise, epsilon):
    """Eq. 1 written anew: over scored members, population standard deviation."""
    scored = np.array([round(r, 6) for r in rewards if r is not None], dtype=np.float64)
    if scored.size < 2 or np.all(scored == scored[0]):
        return [None if r is None else 0.0 for r in rewards]
    out = []
    for r in rewards:
        if r is None:
            out.append(None)
            continue
        r = round(r, 6)
        others = list(scored)
        if baseline == "leave-one-out":
            others.remove(r)
        value = r - np.mean(others)
        out.append(value / (scored.std() + epsilon) if normalise else value)
    return out


@given(REWARDS, st.sampled_from(["mean", "leave-one-out"]), st.booleans())
def test_advantages_are_those_of_numpy(rewards, baseline, normalise):
    settings = AdvantageSettings(baseline=baseline, normalise=normalise)
    expected = numpy_advantages(rewards, baseline, normalise, settings.epsilon)
    for ours, theirs in zip(advantages(rewards, settings), expected, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            assert ours == pytest.approx(theirs, rel=1e-6, abs=1e-9)


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


def numpy_loss(logp, old, reference, adv, mask, settings):
    """Eq. 7, negated, in loops: tokens of actions, ratios, clipping, KL estimate, mean."""
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
            total -= weight * min(ratios[t] * adv[b], clipped * adv[b])
            d = reference[b, t] - logp[b, t]
            estimate = d * d / 2 if settings.kl == "k2" else math.exp(d) - 1 - d
            kl_total += weight * estimate * math.exp(difference[t])
    return total + settings.beta * kl_total


def random_batch(seed, rows=5, length=7):
    rng = np.random.default_rng(seed)
    mask = np.zeros((rows, length))
    for row in range(rows):
        mask[row, : rng.integers(1, length + 1)] = 1
    logp = -rng.exponential(1.0, (rows, length)) * mask
    old = (logp + rng.normal(0, 0.3, logp.shape)) * mask
    reference = (logp + rng.normal(0, 0.5, logp.shape)) * mask
    return logp, old, reference, rng.normal(0, 1.5, rows), mask


def loss_of(logp, old, reference, adv, mask, settings):
    weights = weights_of(mask, settings.reduction, len(mask), float(mask.sum()))
    return policy_loss(logp, old, reference, adv, weights, settings)


@pytest.mark.parametrize("ratio", ["token", "action", "gspo"])
@pytest.mark.parametrize("kl", ["k2", "k3"])
@pytest.mark.parametrize("reduction", ["token", "sequence"])
def test_loss_is_that_of_numpy(ratio, kl, reduction):
    settings = LossSettings(ratio=ratio, kl=kl, reduction=reduction, beta=0.3, clip_low=0.2, clip_high=0.28)
    for seed in range(8):
        batch = random_batch(seed)
        ours = loss_of(*(torch.tensor(part) for part in batch), settings)
        assert float(ours.total) == pytest.approx(numpy_loss(*batch, settings), rel=1e-10)


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


@pytest.mark.parametrize("wrong", [{"clip_low": 1.0}, {"clip_low": -0.1}, {"clip_high": -1}, {"beta": -0.1}])
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(ConfigError):
        LossSettings(**wrong)


def test_beta_without_reference_is_refused():
    logp, old, _, adv, mask = (torch.tensor(part) for part in random_batch(0))
    with pytest.raises(ConfigError, match="reference"):
        loss_of(logp, old, None, adv, mask, LossSettings(beta=0.1))
