"""Learners: who trains. One Protocol (`Learner`), two members: `torch` (one device) and `tinker` (a server)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from pivotrl.errors import ConfigError
from pivotrl.grpo import LossSettings
from pivotrl.models import ModelSettings, load_model
from pivotrl.policies import has_weights, on_tinker
from pivotrl.types import ReferencePolicy, StepResult, TrainingExample, Usage

if TYPE_CHECKING:
    from pivotrl.policies.tinker import TinkerPolicy
    from pivotrl.policies.torch import TorchPolicy

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

    def __post_init__(self) -> None:
        for name, good, bounds in (
            ("lr", 0 < self.lr < math.inf, "above 0"),
            ("weight_decay", 0 <= self.weight_decay < math.inf, "0 or more"),
            ("beta1", 0 <= self.beta1 < 1, "from 0 and below 1"),
            ("beta2", 0 <= self.beta2 < 1, "from 0 and below 1"),
            ("max_grad_norm", self.max_grad_norm > 0, "above 0"),
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


def load_trainable(spec: str, settings: ModelSettings) -> TorchPolicy | TinkerPolicy:
    """The policy that a training starts from. Raises ConfigError where a name stands for no weights."""
    if on_tinker(spec):
        from pivotrl.policies.tinker import load_tinker

        return load_tinker(spec, settings)
    if not has_weights(spec):
        raise ConfigError(f"policy {spec!r} has no weights to train; name a model with --policy")
    from pivotrl.policies.torch import TorchPolicy

    return TorchPolicy(load_model(spec, settings))


def load_learner(
    start: TorchPolicy | TinkerPolicy,
    settings: ModelSettings,
    optimizer: OptimizerSettings,
    loss: Loss,
    resume: Path | None,
) -> tuple[Learner, ReferencePolicy | None]:
    """A learner at the start or a checkpoint, and the frozen start where the loss needs it. Raises a PivotRLError."""
    from pivotrl.learners.torch import TorchLearner
    from pivotrl.policies.torch import TorchPolicy

    reference: ReferencePolicy = start
    learner: Learner
    if isinstance(start, TorchPolicy):
        learner = TorchLearner(load_model(str(resume), settings) if resume else start.loaded, optimizer)
        if not resume and loss != "imitation" and loss.beta > 0:
            reference = TorchPolicy(load_model(str(start.loaded.path), settings))
    else:
        from pivotrl.learners.tinker import TinkerLearner

        learner = TinkerLearner(start, optimizer, loss)
    if resume:
        learner.load_optimizer(resume)
    return learner, None if loss == "imitation" or loss.beta == 0 else reference
