"""The closed forms against autograd, pseudo-inverses, random search, enumeration, and the numbers of other readers."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import scipy.integrate
import scipy.optimize
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pivotrl import theorems as t
from pivotrl.cli import main
from pivotrl.grpo import AdvantageSettings, LossSettings, advantages, policy_loss

SEEDS, BETAS = st.integers(0, 2**32 - 1), st.floats(0.1, 5)
VECTORS = [(0.2, 1.0, 0.404610, 0.490816), (0.5, 0.5, 0.880797, 1.296109), (0.05, 0.3, 0.596017, 5.452158)]


def _state(seed, actions=5):
    """(a policy, rewards from 0 to 1, an accepted block that is neither empty nor everything)."""
    rng = np.random.default_rng(seed)
    accepted_A = rng.permutation(np.arange(actions) < rng.integers(1, actions))
    return rng.dirichlet(np.ones(actions) * 2) * 0.999 + 0.001 / actions, rng.random(actions), accepted_A


def _objective(policy_A, start_A, rewards_A, beta):
    return policy_A @ rewards_A - beta * (policy_A @ np.log(policy_A / start_A))


@given(SEEDS, st.lists(st.tuples(st.integers(0, 4), st.sampled_from([0.0, 0.25, 1.0])), min_size=1, max_size=8))
def test_group_gradient_is_that_of_the_training_loss(seed, group):
    """Proposition 3.1 and, for 0 and 1, its converse; autograd through `policy_loss`, logits in float64."""
    sampled_G, rewards_G = zip(*group, strict=True)
    policy_A, _, accepted_A = _state(seed)
    logits = torch.tensor(np.log(policy_A), requires_grad=True)
    logprobs_B1 = logits.log_softmax(0)[list(sampled_G)][:, None]
    values = torch.tensor(advantages(rewards_G, AdvantageSettings(epsilon=0.0)), dtype=torch.float64)
    weights = torch.full((len(group), 1), 1 / len(group), dtype=torch.float64)
    policy_loss(logprobs_B1, logprobs_B1.detach(), None, values, weights, LossSettings(beta=0.0)).total.backward()
    mine_A = t.group_gradient(policy_A, sampled_G, rewards_G)
    assert mine_A == pytest.approx(-logits.grad.numpy(), abs=1e-12)
    assert len(set(rewards_G)) > 1 or not mine_A.any()
    right_G = accepted_A[[*sampled_G]]
    assert bool(t.group_gradient(policy_A, sampled_G, right_G).any()) == (len({*right_G.tolist()}) > 1)


@given(SEEDS, st.integers(1, 4))
def test_natural_gradient_is_the_fisher_pseudo_inverse_and_its_norm_sigma(seed, weights):
    """Theorem 3.2 (i): F^+ times the gradient by autograd, in logits; F is the covariance of the scores.

    What it does not say: a model that reaches some directions (logits = J w) has a shorter one.
    """
    policy_A, rewards_A, _ = _state(seed)
    logits = torch.tensor(np.log(policy_A), requires_grad=True)
    (logits.softmax(0) @ torch.tensor(rewards_A)).backward()
    scores_AA = np.eye(5) - policy_A
    fisher_AA = scores_AA.T @ np.diag(policy_A) @ scores_AA
    step_A = np.linalg.pinv(fisher_AA) @ logits.grad.numpy()
    moved_A = (np.diag(policy_A) - np.outer(policy_A, policy_A)) @ step_A
    mine_A = t.natural_gradient(policy_A, rewards_A)
    assert mine_A == pytest.approx(moved_A, abs=1e-9)
    sigma = math.sqrt(np.cov(rewards_A, aweights=policy_A, ddof=0))
    assert math.sqrt(step_A @ fisher_AA @ step_A) == pytest.approx(sigma, abs=1e-9)
    assert t.fisher_norm(policy_A, mine_A) == pytest.approx(sigma, abs=1e-12)
    assert t.reward_std(policy_A, rewards_A) == pytest.approx(sigma, abs=1e-12)
    scores_AW = scores_AA @ np.random.default_rng(seed).normal(size=(5, weights))
    gradient_W, fisher_WW = scores_AW.T @ (policy_A * rewards_A), scores_AW.T @ np.diag(policy_A) @ scores_AW
    assert math.sqrt(gradient_W @ np.linalg.pinv(fisher_WW, rcond=1e-9) @ gradient_W) <= sigma + 1e-6


@given(SEEDS)
def test_natural_steps_keep_ratios_inside_a_block_and_plain_ones_do_not(seed):
    policy_A, _, accepted_A = _state(seed)
    natural_A = t.natural_gradient(policy_A, accepted_A.astype(float)) / policy_A
    gradient_A = policy_A * (accepted_A - policy_A[accepted_A].sum())
    plain_A = gradient_A - policy_A @ gradient_A
    for block_A in (accepted_A, ~accepted_A):
        assert np.ptp(natural_A[block_A]) < 1e-12
        assert (np.ptp(plain_A[block_A]) > 0) == (block_A.sum() > 1)


@given(SEEDS, st.floats(0.3, 5))
def test_score_along_the_path_by_finite_differences(seed, beta):
    """Theorem 3.2 (ii): sigma / beta^2; with bars inside the mean and rewards of 0 and 1, sigma (1 - 2 q) / beta^2."""
    policy_A, rewards_A, accepted_A = _state(seed)
    for rewards in (rewards_A, accepted_A.astype(float)):
        now_A, step = t.tilted(policy_A, rewards, beta), 1e-5 * beta
        logs = [np.log(t.tilted(policy_A, rewards, beta + sign * step)) for sign in (1, -1)]
        slope_A = (logs[0] - logs[1]) / (2 * step)
        advantage_A = (rewards - now_A @ rewards) / t.reward_std(now_A, rewards)
        assert now_A @ (advantage_A * -slope_A) == pytest.approx(t.grpo_score(policy_A, rewards, beta), rel=1e-5)
    q, sigma = now_A[accepted_A].sum(), t.reward_std(now_A, rewards)
    assert now_A @ (advantage_A * abs(slope_A)) == pytest.approx(sigma * (1 - 2 * q) / beta**2, abs=1e-5 / beta**2)


@pytest.mark.parametrize(("rho", "beta", "mass", "score"), VECTORS)
def test_known_vectors(rho, beta, mass, score):
    state = np.array([rho, 1 - rho]), np.array([1.0, 0.0])
    assert t.accepted_mass(rho, beta) == pytest.approx(mass, abs=1e-6)
    assert t.grpo_score(*state, beta) == pytest.approx(score, abs=1e-6)
    assert t.accepted_mass(rho, beta) > rho


@given(SEEDS, BETAS)
@settings(max_examples=40)
def test_the_optimum_is_found_by_a_numerical_search_too(seed, beta):
    """Theorem 3.3: scipy climbs E r - beta KL over softmax logits; so do tilting and rescaling, in closed form."""
    start_A, _, accepted_A = _state(seed, actions=4)
    rewards_A = accepted_A.astype(float)

    def loss(logits_A):
        policy_A = np.exp(logits_A - logits_A.max())
        return -_objective(policy_A / policy_A.sum(), start_A, rewards_A, beta)

    found = scipy.optimize.minimize(loss, np.log(start_A), method="BFGS", options={"gtol": 1e-9})
    searched_A = np.exp(found.x) / np.exp(found.x).sum()
    best_A = t.rescaled(start_A, accepted_A, t.accepted_mass(start_A[accepted_A].sum(), beta))
    assert best_A == pytest.approx(t.tilted(start_A, rewards_A, beta), abs=1e-12)
    assert best_A == pytest.approx(searched_A, abs=1e-4)
    value = beta * math.log(start_A @ np.exp(rewards_A / beta))
    assert _objective(best_A, start_A, rewards_A, beta) == pytest.approx(value, abs=1e-9)
    assert np.ptp((np.log(best_A / start_A))[accepted_A]) < 1e-9


@given(SEEDS, st.floats(0.01, 0.99))
def test_nothing_of_the_same_mass_is_nearer(seed, mass):
    """Theorem 3.3: random policies with that mass, near and far, have a larger KL; the least is Bernoulli's."""
    start_A, _, accepted_A = _state(seed)
    best_A, rng = t.rescaled(start_A, accepted_A, mass), np.random.default_rng(seed)
    assert best_A[accepted_A].sum() == pytest.approx(mass)
    assert t.kl(best_A, start_A) == pytest.approx(t.moved_kl(mass, start_A[accepted_A].sum()), abs=1e-12)
    for spread in (0.01, 0.1, 1.0, 3.0):
        other_A = best_A * np.exp(spread * rng.normal(size=5))
        for block_A, part in ((accepted_A, mass), (~accepted_A, 1 - mass)):
            other_A[block_A] *= part / other_A[block_A].sum()
        assert t.kl(other_A, start_A) > t.kl(best_A, start_A) - (1e-12 if np.ptp(other_A / best_A) < 1e-3 else 0)


@given(SEEDS, st.floats(0.05, 0.95), BETAS)
def test_where_the_pull_of_eq_1_and_the_kl_balance(seed, mass, beta):
    """What Theorem 3.3 does not say: with advantages over sigma, a log-ratio of 1 / (beta sigma) is stationary."""
    now_A, _, accepted_A = _state(seed)
    now_A = t.rescaled(now_A, accepted_A, mass)
    shift = 1 / (beta * math.sqrt(mass * (1 - mass)))
    start_A = now_A * np.exp(-shift * accepted_A)
    start_A /= start_A.sum()
    policy = torch.tensor(np.log(now_A), requires_grad=True)
    now, fixed = policy.softmax(0), torch.tensor(now_A)
    advantage_A = torch.tensor((accepted_A - mass) / math.sqrt(mass * (1 - mass)))
    kl_to_start = (now * (now.log() - torch.tensor(start_A).log())).sum()
    ((fixed * advantage_A * now.log()).sum() - beta * kl_to_start).backward()
    assert policy.grad.numpy() == pytest.approx(0, abs=1e-9)
    masses = np.linspace(1e-6, 1 - 1e-6, 10**4)  # at rho 0.2 and beta 0.1 the pull wins everywhere, up to q = 1
    across, pull = np.log(masses / (1 - masses)) - math.log(0.2 / 0.8), 10 / np.sqrt(masses * (1 - masses))
    assert np.all(pull > across)


@pytest.mark.parametrize("accepted", [[True] * 3, [False] * 3])
def test_one_block_stays_as_it_is(accepted):
    """Boundaries: rho 0 and 1, sigma 0; another mass cannot be had."""
    policy_A, rewards_A = np.array([0.5, 0.3, 0.2]), np.array(accepted, dtype=float)
    rho = float(rewards_A[0])
    assert t.accepted_mass(rho, 0.01) == rho
    assert t.rescaled(policy_A, np.array(accepted), rho).tolist() == policy_A.tolist()
    assert t.reward_std(policy_A, rewards_A) == t.grpo_score(policy_A, rewards_A, 0.1) == 0
    assert not t.natural_gradient(policy_A, rewards_A).any()
    assert t.chance_mixed(rho, 9) == 0
    assert t.rollouts_for(rho, 0.5) is None
    with pytest.raises(ValueError, match="rescaling"):
        t.rescaled(policy_A, np.array(accepted), 0.5)


@pytest.mark.parametrize("call", [
    lambda: t.checked([0.5, 0.6]), lambda: t.tilted([1.0], [1.0], 0.0), lambda: t.accepted_mass(1.2, 1.0),
    lambda: t.rescaled([0.5, 0.5], [True, False], 1.5), lambda: t.fisher_norm([1.0, 0.0], [-0.1, 0.1]),
    lambda: t.share_mixed(1, 2, 3),
])  # fmt: skip
def test_what_cannot_be_is_refused(call):
    with pytest.raises(ValueError, match=r".+"):
        call()
    assert t.kl([0.5, 0.5], [1.0, 0.0]) == math.inf
    assert [t.accepted_mass(1e-320, beta) for beta in (1e-3, 1.0)] == pytest.approx([1.0, 0.0])


@pytest.mark.parametrize(
    ("p", "chances"), [(0.05, (0.337, 0.560, 0.806)), (0.1, (0.570, 0.815, 0.966)), (0.01, (0.077, 0.149, 0.275))]
)
def test_chance_of_a_mixed_group(p, chances):
    """Known values for G = 8, 16, 32, and every outcome of four draws counted."""
    assert [float(t.chance_mixed(p, size)) for size in (8, 16, 32)] == pytest.approx(chances, abs=6e-4)
    rights = [sum(one) for one in itertools.product((0, 1), repeat=4) if len(set(one)) == 2]
    assert float(t.chance_mixed(p, 4)) == pytest.approx(sum(p**right * (1 - p) ** (4 - right) for right in rights))
    needed = t.rollouts_for(p, 0.95)
    assert t.chance_mixed(p, needed) >= 0.95 > t.chance_mixed(p, needed - 1)


@given(st.floats(0.2, 20), st.floats(0.2, 20), st.integers(1, 40))
@settings(max_examples=30)
def test_mean_chance_under_a_beta_by_integration(a, b, size):
    density = scipy.stats.beta(a, b).pdf
    found = scipy.integrate.quad(lambda u: density(u * u) * t.chance_mixed(u * u, size) * 2 * u, 0, 1, limit=200)[0]
    assert t.mean_chance_mixed(a, b, size) == pytest.approx(found, abs=1e-4)
    assert t.mean_chance_mixed(a, b, size) <= t.chance_mixed(a / (a + b), size) + 1e-12, "concave"


@given(st.lists(st.booleans(), min_size=2, max_size=8), st.data())
def test_share_of_mixed_subsets_is_counted_and_unbiased(draws, data):
    size = data.draw(st.integers(1, len(draws)))
    groups = [*itertools.combinations(draws, size)]
    share = sum(len(set(group)) == 2 for group in groups) / len(groups)
    assert t.share_mixed(sum(draws), len(draws), size) == pytest.approx(share)
    p, n = 0.3, len(draws)
    mean = sum(scipy.stats.binom.pmf(s, n, p) * t.share_mixed(s, n, size) for s in range(n + 1))
    assert mean == pytest.approx(float(t.chance_mixed(p, size)))


@given(SEEDS, BETAS)
def test_what_theorem_3_3_predicts_of_a_change_and_what_chance_does(seed, beta):
    start_A, noise_A, accepted_A = _state(seed, actions=6)
    change = t.block_change(np.log(t.tilted(start_A, accepted_A.astype(float), beta) / start_A), accepted_A)
    assert change.across == pytest.approx(1 / beta)
    assert change.share == pytest.approx(1)
    assert max(change.accepted or 0, change.refused or 0) < 1e-9
    dealt = itertools.combinations(range(6), accepted_A.sum())
    assert np.mean([t.block_change(noise_A, np.isin(range(6), some)).share for some in dealt]) == pytest.approx(
        change.chance
    )
    assert t.block_change(noise_A, np.ones(6, dtype=bool)) is None
    assert t.block_change(np.zeros(3), np.array([True, False, False])).share is None


def test_command_says_the_numbers_and_draws(tmp_path, capsys):
    out = tmp_path / "theory.svg"
    assert main(["theory", "--rho", "0.05", "--beta", "0.3", "--rollouts", "16", "--out", str(out)]) == 0
    said, drawn = capsys.readouterr().out, out.read_bytes()
    assert all(text in said for text in ("0.560", "0.596017", "5.45216", "Not said", str(out)))
    assert main(["theory", "--out", str(out)]) == 0
    assert drawn == out.read_bytes()
    assert drawn.count(b"<path") == 3 * (5 + 2 * 4)
    assert main(["theory", "--rho", "1"]) == 0
    assert "nothing moves" in capsys.readouterr().out
    assert main(["theory", "--beta", "0"]) == 2
    assert "at least 0.001" in capsys.readouterr().err
