"""`pivotrl theory`: the paper's proposition and theorems in words, with numbers for one state, and as pictures."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pivotrl.charts import lines_chart
from pivotrl.errors import ConfigError
from pivotrl.run_directory import AnyPath
from pivotrl.storage import write_atomic
from pivotrl.theorems import accepted_mass, chance_mixed, grpo_score, moved_kl, rollouts_for


@dataclass(frozen=True, slots=True, kw_only=True)
class TheoryConfig:
    """Say what Proposition 3.1 and Theorems 3.2 and 3.3 come to at one state, and what they do not say."""

    rho: float = 0.2
    """Probability that the policy's action is accepted there."""
    beta: float = 1.0
    """Weight of the KL to the initial policy."""
    rollouts: int = 8
    """G: actions in a group."""
    out: AnyPath | None = None
    """SVG file for pictures: chance of a mixed group, q_beta, sigma / beta^2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TheoryResult:
    """The statements, with the numbers of a config."""

    config: TheoryConfig

    def lines(self) -> list[str]:
        rho, beta, size = self.config.rho, self.config.beta, self.config.rollouts
        mass, needed = accepted_mass(rho, beta), rollouts_for(rho, 0.95)
        moved = "one block is all there is, and nothing moves."
        if 0 < rho < 1:
            moved = f"accepted actions x {mass / rho:.4g}, refused ones x {math.exp(-1 / beta) * mass / rho:.4g}."
        lines = f"""One state where {rho:g} of the policy's actions earn 1 and the others 0; KL weight beta {beta:g}.
Proposition 3.1: a group of equal rewards has no advantages, and so teaches nothing.
    {size} rollouts are mixed with a chance of {float(chance_mixed(rho, size)):.3f}; \
{f"{needed} rollouts have 95%" if needed else "no number of rollouts has 95%"}.
    Not said: that an equal group does nothing. The KL term acts on it, and it counts in the mean over the batch.
Theorem 3.2: what a step can gain, by Fisher's metric, is at most the reward's standard deviation.
    The natural gradient has norm sigma = {math.sqrt(rho * (1 - rho)):.4g} (0.5 at rho 0.5; 0 at 0 and 1).
    On the path pi_0 exp(r / beta) GRPO's population score is sigma / beta^2 = {_score(rho, beta):.6g}.
    Not said: that training walks that path, or that every spread teaches: a verifier's noise spreads rewards too.
Theorem 3.3: the best policy under the KL rescales two blocks, accepted and refused; ratios inside each stay.
    Accepted mass {rho:g} -> q_beta = {mass:.6g} at a KL of {moved_kl(mass, rho):.4g} nats: {moved}
    Not said: how many steps it takes, what other states do to shared weights, or that Eq. 1, which divides by
    sigma, ends there. `pivotrl lab theory-check` measures trained models.""".splitlines()
        return [*lines, *([f"pictures: {self.config.out}"] if self.config.out else [])]


def theory(config: TheoryConfig) -> TheoryResult:
    """Raises ConfigError for numbers out of range, StorageError where the pictures cannot be written."""
    rho, beta, size = config.rho, config.beta, config.rollouts
    if not 0 <= rho <= 1 or not 1e-3 <= beta < math.inf or not 1 <= size <= 10**6:
        wanted = "rho must be from 0 to 1, beta at least 0.001, rollouts from 1 to a million"
        raise ConfigError(f"rho {rho}, beta {beta}, rollouts {size}: {wanted}")
    if config.out is not None:
        write_atomic(Path(config.out), pictures().encode())
    return TheoryResult(config=config)


def _score(rho: float, beta: float) -> float:
    return grpo_score(np.array([rho, 1 - rho]), np.array([1.0, 0.0]), beta)


def pictures() -> str:
    """One SVG: over p or rho, the chance of a mixed group, q_beta and sigma / beta^2."""
    points = np.linspace(0, 1, 201).tolist()

    def panel(
        name: str, values: Sequence[float], f: Callable[[float, float], float]
    ) -> dict[str, Sequence[tuple[float, float]]]:
        return {f"{name} {value:g}": [(x, f(x, value)) for x in points] for value in values}

    panels = {
        "chance of a mixed group": panel("G", (4, 8, 16, 32), lambda rho, size: float(chance_mixed(rho, int(size)))),
        "q_beta": panel("beta", (2.0, 1.0, 0.5, 0.3), accepted_mass),
        "sigma / beta^2 at q_beta": panel("beta", (2.0, 1.0, 0.5, 0.3), _score),
    }
    return lines_chart("One state, by the share rho of its actions that are accepted", panels, "rho")
