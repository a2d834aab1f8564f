"""Which policy the KL term of a training holds to: the one that was profiled first, however often it was since."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pivotrl.errors import ConfigError, InputError
from pivotrl.models import resolve, tokenizer_hash, trained_model, weights_hash
from pivotrl.policies import has_weights
from pivotrl.profile_settings import ProfilePlan, load_plan
from pivotrl.storage import RunDirectory
from pivotrl.training_settings import Origin, TrainConfig

if TYPE_CHECKING:
    from pivotrl.learners import Trainable


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A reference that is not where the training starts."""

    policy: str
    weights: str
    """Their hash."""


def reference_of(config: TrainConfig, run: RunDirectory, origin: Origin | None, start: Trainable) -> Reference | None:
    """None where the loss has no KL term, or the training starts at its reference.

    Raises ConfigError (no weights, another tokenizer, or no longer the weights that were profiled) or MissingError (an
    earlier profile, or the model, is gone).
    """
    if config.imitates or config.loss.beta == 0:
        return None
    first = first_plan(run, origin.plan) if origin and origin.plan.follows and config.reference is None else None
    spec = first.policy if first else config.reference
    if spec is None:
        return None
    if not has_weights(spec):
        raise ConfigError(f"reference {spec!r} has no weights; name a model with --reference")
    path = resolve(trained_model(run, spec))
    weights = weights_hash(path)
    if tokenizer_hash(path) != start.fingerprint.tokenizer:
        raise ConfigError(
            f"reference {spec!r}: its tokenizer is another than that of the policy; use one of its family"
        )
    if first and weights != first.fingerprint.weights and not config.allow_mismatch:
        raise ConfigError(
            f"reference {spec!r} has other weights than when it was profiled first; restore them, name another "
            "--reference, or say --allow-mismatch"
        )
    return None if weights == start.fingerprint.weights else Reference(policy=str(path), weights=weights)


def first_plan(run: RunDirectory, plan: ProfilePlan) -> ProfilePlan:
    """The first profile of a history. Raises MissingError where an earlier one is gone."""
    seen: set[str] = set()
    while plan.follows is not None:
        if plan.follows in seen:
            raise InputError(f"{run.profile(plan.follows)}: it follows itself; restore its profile.json")
        seen.add(plan.follows)
        plan = load_plan(run, plan.follows)
    return plan
