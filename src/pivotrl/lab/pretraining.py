"""`pivotrl lab pretrain`: make the base model from nothing, and check that it may be used."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pivotrl.episodes import Playing, play_episodes
from pivotrl.errors import ConfigError
from pivotrl.lab import gates
from pivotrl.lab.domains import DESK, Domain, load_domain
from pivotrl.metrics import clustered_mean
from pivotrl.models import ModelSettings, quieten
from pivotrl.policies import load_policy

MOST_STEPS = 24_000
"""Base tasks of one seed are 100,000; a step takes 4."""
WIDTH = 32
"""Episodes played side by side."""
ROLLOUTS = 16
"""Actions sampled at a state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainConfig:
    """Pretrain the embedded base model and check its gates; the shipped one was made by this command."""

    domain: str = "desk"
    """What the model learns: desk or shell (its gates play real bash, see docs/sandbox.md)."""
    out: Path = Path("base-model")
    """Directory to be made: weights in bfloat16, tokenizer, chat template, SHA256SUMS."""
    steps: int = 7000
    """Optimiser steps, each on 4 episodes and 16 skill items."""
    lr: float = 3e-3
    """Peak learning rate of AdamW; warm-up over 60 steps, then linear to 0."""
    episodes: int = 200
    """Validation episodes that the success gate plays."""
    states: int = 200
    """Validation tasks at whose states the other two gates sample."""
    seed: int = 0
    """Of the weights, the episodes and the gates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainResult:
    """Where the model lies, and its gates."""

    out: Path
    parameters: int
    size: int
    """Bytes of the weights."""
    gates: gates.GateReport

    def lines(self) -> list[str]:
        made = f"{self.out}: {self.parameters:,} parameters, {self.size / 1e6:.2f} MB in bfloat16"
        return [made, *self.gates.lines()]

    @property
    def passed(self) -> bool:
        return self.gates.passed


def pretrain(config: PretrainConfig) -> PretrainResult:
    """Train, store, load what was stored, and measure the gates. The same seed and threads give the same bytes."""
    from pivotrl.lab.mixture import forget_progress, make_base

    if min(config.steps, config.episodes, config.states) < 1 or not 0 <= config.seed < 8 or config.steps > MOST_STEPS:
        raise ConfigError(
            f"steps {config.steps} (1 to {MOST_STEPS}), episodes {config.episodes} and states {config.states} (1 or "
            f"more), seed {config.seed} (0 to 7): out of range"
        )
    quieten()
    domain = load_domain(config.domain)
    parameters, size = make_base(config.out, steps=config.steps, lr=config.lr, seed=config.seed, domain=domain)
    measured = check_gates(config.out, episodes=config.episodes, states=config.states, seed=config.seed, domain=domain)
    forget_progress(config.out)
    return PretrainResult(out=config.out, parameters=parameters, size=size, gates=measured)


def check_gates(model: Path, *, episodes: int, states: int, seed: int, domain: Domain = DESK) -> gates.GateReport:
    """Play and sample on validation tasks, which neither pretraining nor any test has seen."""
    policy = load_policy(str(model), ModelSettings())
    tasks = domain.make().tasks("validation", max(episodes, states), seed)
    playing = Playing(policy=policy, make=domain.make, params=gates.PARAMS, seed=seed, turn_limit=64)
    won: list[float] = []
    for start in range(0, episodes, WIDTH):
        won += [one.reward or 0.0 for one in play_episodes(playing, [(id_, 0) for id_ in tasks[start : start + WIDTH]])]
    success = clustered_mean(won, tasks[:episodes], (0.0, 1.0))
    actions = gates.measure_actions(policy, tasks[:states], n=ROLLOUTS, seed=seed, domain=domain)
    return gates.GateReport(actions=actions, success=success)
