"""Learners: who trains. One Protocol (`Learner`), one member so far: `torch` (one process, one device)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from pivotrl.errors import ConfigError
from pivotrl.grpo import LossSettings
from pivotrl.types import ReferencePolicy, StepResult, TrainingExample, Usage

Loss = LossSettings | Literal["imitation"]
"""Eq. 7 with its settings, or the negative log-likelihood of demonstrations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSettings:
    """AdamW with a constant learning rate, as in NVIDIA's recipes. Raises ConfigError for values that cannot work."""

    lr: float = 1e-6
    """Learning rate."""
    weight_decay: float = 0.0
    """Decoupled weight decay."""
    beta1: float = 0.9
    """Decay of the first moment."""
    beta2: float = 0.999
    """Decay of the second moment."""
    max_grad_norm: float = 1.0
    """Gradients are scaled down to this norm."""
    batch_tokens: int = 8192
    """Activations of so many tokens are kept at once: less memory for longer passes over long prompts."""
    checkpointing: bool = False
    """Gradient checkpointing: prompts are forwarded twice, and only keys and values of them kept in between."""

    def __post_init__(self) -> None:
        for name, good, bounds in (
            ("lr", 0 < self.lr < math.inf, "above 0"),
            ("weight_decay", 0 <= self.weight_decay < math.inf, "0 or more"),
            ("beta1", 0 <= self.beta1 < 1, "from 0 and below 1"),
            ("beta2", 0 <= self.beta2 < 1, "from 0 and below 1"),
            ("max_grad_norm", self.max_grad_norm > 0, "above 0"),
            ("batch_tokens", self.batch_tokens >= 1, "1 or more"),
        ):
            if not good:
                raise ConfigError(f"{name.replace('_', '-')} {getattr(self, name)}: must be {bounds}")


class Learner(Protocol):
    """Trains weights in place."""

    def policy(self) -> ReferencePolicy:
        """A policy that samples with the current weights."""
        ...

    def forward_backward(self, examples: Sequence[TrainingExample], loss: Loss) -> StepResult:
        """Add the gradient of the mean loss over the examples."""
        ...

    def optim_step(self) -> float:
        """Apply and clear the gradient. Returns its norm before clipping."""
        ...

    def save(self, directory: Path, *, optimizer: bool) -> None:
        """Write the weights, and what a resumed run needs besides. Raises StorageError."""
        ...

    def load_optimizer(self, directory: Path) -> None:
        """Restore what `save` wrote besides the weights. Raises InputError."""
        ...

    def take_usage(self) -> Usage: ...
