"""Learners: who trains. One Protocol (`Learner`), two members: `torch` (one device) and `tinker` (a server)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from pivotrl.errors import ConfigError, check_least
from pivotrl.grpo import LossSettings
from pivotrl.models import ModelSettings, load_model
from pivotrl.policies import has_weights, on_tinker
from pivotrl.protocols import ReferencePolicy
from pivotrl.types import StepResult, TrainingExample, Usage

if TYPE_CHECKING:
    from pivotrl.policies.tinker import TinkerPolicy
    from pivotrl.policies.torch import TorchPolicy

Trainable: TypeAlias = "TorchPolicy | TinkerPolicy"
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


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraSettings:
    """A LoRA adapter instead of all weights (extra `peft`). Raises ConfigError for values that cannot work."""

    rank: int = 0
    """Rank of its matrices, beside all linear layers but the output head; 0: train all weights."""
    alpha: int = 32
    """What it adds is scaled by alpha / rank."""
    save: Literal["merged", "adapter"] = "merged"
    """The trained model: a directory of whole weights, or the adapter alone, which needs its base."""

    def __post_init__(self) -> None:
        check_least(self, "lora ", rank=0, alpha=1)


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


def load_trainable(spec: str, settings: ModelSettings) -> Trainable:
    """The policy that a training starts from. Raises ConfigError where a name stands for no weights."""
    if on_tinker(spec):
        from pivotrl.policies.tinker import load_tinker

        return load_tinker(spec, settings)
    if not has_weights(spec):
        raise ConfigError(f"policy {spec!r} has no weights to train; name a model with --policy")
    from pivotrl.policies.torch import TorchPolicy

    return TorchPolicy(load_model(spec, settings))


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerPlan:
    """What a learner is made of."""

    base: str
    """The policy that it starts from, as the user named it."""
    model: ModelSettings
    optimizer: OptimizerSettings
    lora: LoraSettings
    loss: Loss
    seed: int
    reference: str | None
    """Model directory of a reference that is not where the training starts."""

    @property
    def refers(self) -> bool:
        """Whether the loss needs a reference."""
        return self.loss != "imitation" and self.loss.beta > 0


def load_learner(start: Trainable, plan: LearnerPlan, resume: Path | None) -> tuple[Learner, ReferencePolicy | None]:
    """A learner at the start or a checkpoint, and the frozen reference where the loss needs it. Raises a PivotRLError.

    `start` itself is trained, unless its weights come from a checkpoint.
    """
    from pivotrl.policies.torch import TorchPolicy

    made = _torch_learner(start, plan, resume) if isinstance(start, TorchPolicy) else _tinker_learner(start, plan)
    if resume:
        made[0].load_optimizer(resume)
    return made


def _torch_learner(
    start: TorchPolicy, plan: LearnerPlan, resume: Path | None
) -> tuple[Learner, ReferencePolicy | None]:
    from pivotrl.learners.lora import Adapter
    from pivotrl.learners.torch import TorchLearner
    from pivotrl.policies.torch import TorchPolicy

    whole = resume is not None and not plan.lora.rank
    loaded = load_model(str(resume), plan.model) if whole else start.loaded
    adapter = Adapter(loaded, plan.lora, base=plan.base, seed=plan.seed) if plan.lora.rank else None
    learner = TorchLearner(loaded, plan.optimizer, adapter)
    if not plan.refers:
        return learner, None
    if plan.reference is not None:
        return learner, TorchPolicy(load_model(plan.reference, plan.model))
    if adapter is not None:
        return learner, adapter.reference()
    return learner, start if whole else TorchPolicy(load_model(plan.base, plan.model))


def _tinker_learner(start: TinkerPolicy, plan: LearnerPlan) -> tuple[Learner, ReferencePolicy | None]:
    from pivotrl.learners.tinker import TinkerLearner

    if plan.lora.rank:
        raise ConfigError("lora: a server is told by the policy: tinker:BASE@URL?rank=32")
    if plan.reference is not None:
        raise ConfigError("reference: a training on a server holds to where it starts; leave --reference out")
    return TinkerLearner(start, plan.optimizer, plan.loss), start if plan.refers else None
