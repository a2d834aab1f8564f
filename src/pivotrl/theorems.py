"""Proposition 3.1, Theorems 3.2 and 3.3 of the paper for one state with finitely many actions, as closed forms. Pure.

`pivotrl theory` shows them with numbers; docs/theory.md has the proofs, which are ours, as we know the statements from
those who quote them. `lab/theory_practice` holds them against trained models.

Departures from the statements (arXiv 2603.21383):
 1. The score of Theorem 3.2 is quoted as E[A |d/d beta log pi|]. Bars inside the mean would make it sigma (1 - 2 q) /
    beta^2; what is proved, sigma/beta^2, is the mean along falling beta, E[A (-d/d beta log pi)].
 2. sigma = 0 has no advantage to divide by: advantage, gradient and score are then exactly 0, as in `grpo`.
 3. rho = 0 or 1: one block is all there is. q_beta is rho, the optimum is pi_0 itself, and no other mass of M can be
    reached by rescaling (ValueError).
 4. Rewards need not be 0 or 1 in Proposition 3.1 and Theorem 3.2; in Theorem 3.3 they are.

What none of them says: a language model has shared weights, so that a step at one state moves others, and one action
others; they are about whole distributions and optima, not about a number of steps with a learning rate; and "accepted"
is what the verifier says.

Shapes: _A actions of a state, _G sampled members of a group. A policy is a vector of probabilities that sum to 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]


def checked(policy_A: Array) -> Array:
    """The same as float64. Raises ValueError for what is no distribution."""
    probabilities_A = np.asarray(policy_A, dtype=np.float64)
    if not (np.all(probabilities_A >= 0) and abs(probabilities_A.sum() - 1) < 1e-9):
        raise ValueError("a policy needs probabilities of 0 or more that sum to 1")
    return probabilities_A


def group_gradient(policy_A: Array, sampled_G: Sequence[int], rewards_G: Sequence[float]) -> Array:
    """(A,): what a sampled group adds to the softmax logits, on policy: the mean of A_i times d log pi(a_i) / d logits.

    Proposition 3.1: it is exactly 0 where all rewards of the group are equal. For rewards of 0 and 1 the converse holds
    too, as accepted and refused actions are different ones: a mixed group always moves the policy.
    Not said: that nothing happens. A KL term acts on every group, and in a batch mean an equal group counts.
    """
    rewards = np.asarray(rewards_G, dtype=np.float64)
    gradient_A = np.zeros_like(checked(policy_A))
    deviation = rewards.std()
    if rewards.min() < rewards.max() and deviation > 0:
        # the advantages of a group sum to 0, so that the policy's own share of each score drops out
        np.add.at(gradient_A, np.asarray(sampled_G), (rewards - rewards.mean()) / deviation / len(rewards))
    return gradient_A


def natural_gradient(policy_A: Array, rewards_A: Array) -> Array:
    """(A,): pi (r - E r), the direction of steepest ascent of E r by Fisher's metric, as a change of probabilities.

    Theorem 3.2: its Fisher norm is the standard deviation of the reward. It changes log pi by r - E r, the same for all
    actions of equal reward, so that ratios among them stay. Conditions: any table, any reward; 0 at sigma = 0.
    Not said: anything of plain gradient steps on logits, which favour likely actions within a block; nor of a model
    whose weights reach only some directions. Its natural gradient is a projection of this one, no longer than sigma.
    """
    probabilities_A, rewards = checked(policy_A), np.asarray(rewards_A, dtype=np.float64)
    return probabilities_A * (rewards - probabilities_A @ rewards)


def fisher_norm(policy_A: Array, direction_A: Array) -> float:
    """sqrt(sum of d^2 / pi) over the actions that can happen. Raises ValueError for a direction that leaves these."""
    probabilities_A, direction = checked(policy_A), np.asarray(direction_A, dtype=np.float64)
    alive_A = probabilities_A > 0
    if np.any(direction[~alive_A] != 0):
        raise ValueError("a direction may not move an action of probability 0")
    return math.sqrt(float((direction[alive_A] ** 2 / probabilities_A[alive_A]).sum()))


def reward_std(policy_A: Array, rewards_A: Array) -> float:
    """sigma: the standard deviation of the reward under the policy."""
    probabilities_A, rewards = checked(policy_A), np.asarray(rewards_A, dtype=np.float64)
    return math.sqrt(float(probabilities_A @ (rewards - probabilities_A @ rewards) ** 2))


def tilted(policy_A: Array, rewards_A: Array, beta: float) -> Array:
    """(A,): pi_beta, in proportion to pi_0 exp(r / beta): what maximises E r - beta KL(pi || pi_0). beta above 0."""
    if not beta > 0:
        raise ValueError(f"beta {beta}: must be above 0")
    probabilities_A, rewards = checked(policy_A), np.asarray(rewards_A, dtype=np.float64)
    top = rewards[probabilities_A > 0].max()
    weights_A = probabilities_A * np.exp(np.minimum((rewards - top) / beta, 0.0))
    normal_A: Array = weights_A / weights_A.sum()
    return normal_A


def grpo_score(policy_A: Array, rewards_A: Array, beta: float) -> float:
    """sigma / beta^2, with sigma of `tilted`: how well Eq. 1's advantages agree with the path to lower beta.

    Theorem 3.2: the mean of (r - mu) / sigma times -d log pi_beta / d beta. Conditions: the whole distribution in place
    of a group, beta above 0; 0 at sigma = 0. Not said: that training walks along this path.
    """
    return reward_std(tilted(policy_A, rewards_A, beta), rewards_A) / beta**2


def accepted_mass(rho: float, beta: float) -> float:
    """q_beta = rho e^(1/beta) / ((1 - rho) + rho e^(1/beta)): the optimum's probability of an accepted action.

    Theorem 3.3: above rho for 0 < rho < 1. Its log-odds are those of rho plus 1/beta. Conditions: rewards 0 or 1.
    """
    if not (0 <= rho <= 1 and beta > 0):
        raise ValueError(f"rho {rho}, beta {beta}: rho must be from 0 to 1, beta above 0")
    if rho in (0.0, 1.0):
        return float(rho)
    odds = math.log(rho) - math.log1p(-rho) + 1 / beta
    return 1 / (1 + math.exp(-odds)) if odds > 0 else math.exp(odds) / (1 + math.exp(odds))


def rescaled(policy_A: Array, accepted_A: Array, mass: float) -> Array:
    """(A,): (mass / rho) pi_0 on the accepted actions M, ((1 - mass) / (1 - rho)) pi_0 off M.

    Theorem 3.3: with mass q_beta it is the optimum of E r - beta KL(pi || pi_0), and for every mass the one policy with
    that mass of M that is nearest to pi_0 by KL. Ratios inside each block are those of pi_0. Conditions: pi_0 > 0.
    Not said: that ratios across blocks stay, nor what happens where several states share weights, nor that GRPO gets
    there: Eq. 1 divides by sigma, and where its pull and beta balance the log-ratio across is 1 / (beta sigma).
    """
    probabilities_A, accepted = checked(policy_A), np.asarray(accepted_A, dtype=bool)
    rho, rest = float(probabilities_A[accepted].sum()), float(probabilities_A[~accepted].sum())
    if not 0 <= mass <= 1:
        raise ValueError(f"mass {mass}: must be from 0 to 1")
    if rho == 0 or rest == 0:
        if not math.isclose(mass, rho, abs_tol=1e-9):
            raise ValueError(f"rho is {rho:g}: no rescaling of one block gives it a mass of {mass:g}")
        return probabilities_A
    return probabilities_A * np.where(accepted, mass / rho, (1 - mass) / rest)


def kl(policy_A: Array, reference_A: Array) -> float:
    """KL(policy || reference) in nats; infinite where the reference excludes what the policy does."""
    mine_A, other_A = checked(policy_A), checked(reference_A)
    alive_A = mine_A > 0
    if np.any(other_A[alive_A] == 0):
        return math.inf
    return float((mine_A[alive_A] * np.log(mine_A[alive_A] / other_A[alive_A])).sum())


def moved_kl(mass: float, rho: float) -> float:
    """KL of (mass, 1 - mass) from (rho, 1 - rho): what the KL-minimal move of the accepted mass costs (Theorem 3.3)."""
    return kl(np.array([mass, 1 - mass]), np.array([rho, 1 - rho]))


def chance_mixed(p: Array | float, group_size: int) -> Array:
    """1 - p^G - (1 - p)^G: that G independent rewards of 0 or 1 differ. As a function of p it is concave.

    So the mean over states is at most that of the mean p, and to put a sampled mean in the place of p says too little.
    """
    chances = np.asarray(p, dtype=np.float64)
    return 1 - chances**group_size - (1 - chances) ** group_size


def mean_chance_mixed(a: Array | float, b: Array | float, group_size: int) -> Array:
    """The mean of `chance_mixed` where p is from Beta(a, b): a posterior, or the spread of p over states."""
    steps, ones, zeros = np.arange(group_size), np.asarray(a)[..., None], np.asarray(b)[..., None]
    whole = ones + zeros + steps
    mixed: Array = 1 - ((ones + steps) / whole).prod(axis=-1) - ((zeros + steps) / whole).prod(axis=-1)
    return mixed


def share_mixed(successes: int, scored: int, group_size: int) -> float:
    """How many of all groups of G among `scored` draws are mixed: unbiased for `chance_mixed`, whatever p is."""
    if not 1 <= group_size <= scored:
        raise ValueError(f"{scored} draws hold no group of {group_size}")
    equal = math.comb(successes, group_size) + math.comb(scored - successes, group_size)
    return 1 - equal / math.comb(scored, group_size)


def rollouts_for(p: float, chance: float) -> int | None:
    """The fewest rollouts whose rewards differ with this chance, in (0, 1); None for p = 0 or 1, or above a million."""
    low, high = 1, 2**20
    if not 0 < p < 1 or chance_mixed(p, high) < chance:
        return None
    while high - low > 1:  # low has less than the chance, as a single rollout has none
        middle = (low + high) // 2
        low, high = (low, middle) if chance_mixed(p, middle) >= chance else (middle, high)
    return high


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockChange:
    """What a training did to log pi at one state. By Theorem 3.3: both spreads 0, `across` 1/beta, `share` 1."""

    accepted: float | None
    """Standard deviation (n - 1) of the changes of log pi among accepted actions; None for fewer than two."""
    refused: float | None
    across: float
    """Mean change of the accepted minus mean change of the refused ones."""
    share: float | None
    """Of the changes' sum of squares, what lies between the blocks; None where all changes are equal."""
    chance: float
    """The share that verdicts dealt at random have on average: 1 / (n - 1), whatever the changes are."""


def block_change(changes_A: Array, accepted_A: Array) -> BlockChange | None:
    """Of distinct actions, each counted once; None where a block is empty, or there are but two actions."""
    changes, accepted = np.asarray(changes_A, dtype=np.float64), np.asarray(accepted_A, dtype=bool)
    inside, outside = changes[accepted], changes[~accepted]
    if not len(inside) or not len(outside) or len(changes) < 3:
        return None
    across, total = float(inside.mean() - outside.mean()), float(((changes - changes.mean()) ** 2).sum())
    between = len(inside) * len(outside) / len(changes) * across**2
    return BlockChange(
        accepted=float(inside.std(ddof=1)) if len(inside) > 1 else None,
        refused=float(outside.std(ddof=1)) if len(outside) > 1 else None,
        across=across,
        share=between / total if total > 1e-18 else None,
        chance=1 / (len(changes) - 1),
    )
