"""What a training is told, and what it goes out from: a profile, and the verifier under which pivots were selected."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pivotrl.errors import ConfigError, MissingError
from pivotrl.grpo import AdvantageSettings, LossSettings
from pivotrl.learners import OptimizerSettings
from pivotrl.models import ModelSettings
from pivotrl.pivots import SelectConfig
from pivotrl.planning import Scope
from pivotrl.profiling import DEFAULT_PROFILE, ProfilePlan, load_plan, profiled_rows
from pivotrl.saturation import SaturationSettings
from pivotrl.storage import RunDirectory, decode, dump_json
from pivotrl.validation import ValidationSettings

Method = Literal["pivotrl", "unfiltered", "strict", "sft"]
Data = Literal["profile", "train"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """Train on the pivots, or by one of the baselines on the same data."""

    run: Path
    """Run directory."""
    method: Method = "pivotrl"
    """pivotrl; unfiltered: every profiled candidate; strict: every profiled candidate, exact reward; sft: imitation."""
    name: str | None = None
    """Name of the training; by default the method."""
    pivots: str = "base"
    """Selection to train on (method pivotrl)."""
    profile: str | None = None
    """Profile whose policy, candidates and settings are used; by default that of the pivots, else `base`."""
    data: Data = "profile"
    """Candidates of the baselines: those of the profile, or all of the train split (sft only)."""
    policy: str | None = None
    """Initial weights, also train/NAME; by default the policy of the profile."""
    reference: str | None = None
    """What the KL term holds to; by default the policy of the first profile that was followed (`profile --again`), else
    the initial weights."""
    steps: int = 100
    """Optimisation steps. A finished training goes on when this is raised."""
    prompts: int = 8
    """States in a batch."""
    group_size: int = 8
    """G: actions sampled at each state."""
    updates: int = 1
    """Optimiser steps on each batch; above 1, clipping starts to matter."""
    max_new_tokens: int | None = None
    """Longest action; by default as profiled."""
    verifier: str | None = None
    """By default the one that the pivots were selected by, else the profile's; method strict always uses exact."""
    loss: LossSettings = field(default_factory=LossSettings)
    advantage: AdvantageSettings = field(default_factory=AdvantageSettings)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    mask_truncated: bool = False
    """Keep truncated actions in the group's statistics but out of the loss."""
    scope: Scope = field(default_factory=Scope)
    model: ModelSettings = field(default_factory=ModelSettings)
    checkpoint_every: int = 10
    """Steps between checkpoints; an interrupted training loses no more than these."""
    samples_every: int = 10
    """Steps between full rollouts written to `samples/`."""
    validation: ValidationSettings = field(default_factory=ValidationSettings)
    track: tuple[str, ...] = ()
    """Also show the curves by tensorboard, wandb, trackio, or package.module:name; metrics.jsonl has them anyway."""
    allow_mismatch: bool = False
    """Train although policy, chat template, sampling or verifier are not those that were profiled."""
    saturation: SaturationSettings = field(default_factory=SaturationSettings)
    stop_when_saturated: bool = False
    """Stop, with a finished model, at the first step at which --saturation says that the pivots are learned."""
    seed: int = 0
    """Seed of batches and sampling."""


def check(config: TrainConfig) -> None:
    """Raise ConfigError for settings that cannot work."""
    for name in ("steps", "prompts", "group_size", "updates", "checkpoint_every", "samples_every"):
        if getattr(config, name) < 1:
            raise ConfigError(f"{name.replace('_', '-')} {getattr(config, name)}: must be at least 1")
    if config.max_new_tokens is not None and config.max_new_tokens < 1:
        raise ConfigError(f"max-new-tokens {config.max_new_tokens}: must be at least 1")
    if config.method != "sft" and config.group_size < 2:
        raise ConfigError("group-size 1: a group of one has no variance, so nothing would be learned; use 2 or more")
    if config.data == "train" and config.method != "sft":
        raise ConfigError(f"data train: method {config.method} needs the candidates of a profile")
    if config.reference is not None and (config.method == "sft" or config.loss.beta == 0):
        raise ConfigError(f"reference {config.reference!r}: without a KL term (sft, loss.beta 0) nothing is held to it")
    if config.method == "strict" and config.verifier not in (None, "exact"):
        raise ConfigError(f"method strict rewards exact matches only; leave out --verifier {config.verifier}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What a training goes out from: a profile, and the verifier under which its candidates were selected."""

    profile: str
    plan: ProfilePlan
    verifier: str
    """As the user named it, and what it was: a file behind a name may have changed since."""
    verifier_id: str


def origin_of(config: TrainConfig, run: RunDirectory) -> Origin | None:
    """None for imitation of the whole train split. Raises ConfigError where settings contradict the selection."""
    if config.data == "train":
        if config.policy is None:
            raise ConfigError("data train: say which weights to start from with --policy")
        return None
    profile, verifier, chosen = config.profile or DEFAULT_PROFILE, None, None
    if config.method == "pivotrl":
        facts = run.stages().get(f"select/{config.pivots}")
        if facts is None:
            command = f"pivotrl select --run {run.path} --name {config.pivots}"
            raise MissingError(f"{run.pivots(config.pivots)} is not there; run `{command}` first")
        selection = decode(dump_json(facts["config"]), SelectConfig, str(run.manifest))
        if config.profile not in (None, selection.profile):
            raise ConfigError(
                f"pivots {config.pivots!r} were selected from profile {selection.profile!r}, not {profile!r}"
            )
        profile, verifier, chosen = selection.profile, selection.verifier, str(facts["verifier_id"])
    plan = load_plan(run, profile)
    profiled_rows(run, profile, plan)
    return Origin(
        profile=profile, plan=plan, verifier=verifier or plan.verifier, verifier_id=chosen or plan.verifier_id
    )
