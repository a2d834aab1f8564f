"""What a training is told, and what it goes out from: a profile, and the verifier under which pivots were selected."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from pivotrl.errors import ConfigError, MissingError
from pivotrl.grpo import AdvantageSettings, LossSettings
from pivotrl.learners import LoraSettings, OptimizerSettings
from pivotrl.models import ModelSettings
from pivotrl.pivots import SelectConfig
from pivotrl.planning import Scope
from pivotrl.profiling import DEFAULT_PROFILE, ProfilePlan, load_plan, profiled_rows
from pivotrl.storage import RunDirectory, decode, dump_json

Method = Literal["pivotrl", "unfiltered", "strict-filtered", "strict", "sft", "rft"]
Data = Literal["profile", "pivots", "train"]
EXACT: Final = ("strict", "strict-filtered")
"""Methods whose reward is exact equality (Eq. 2)."""
IMITATION: Final = ("sft", "rft")
"""Methods that sample nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """Train on the pivots, or by one of the baselines on the same data."""

    run: Path
    """Run directory."""
    method: Method = "pivotrl"
    """pivotrl: pivots, the verifier's reward; unfiltered: every profiled candidate; strict-filtered: pivots, exact
    reward; strict: every profiled candidate, exact reward; sft: imitate demonstrations; rft: imitate what the profile
    sampled and the verifier accepted."""
    name: str | None = None
    """Name of the training; by default the method."""
    pivots: str = "base"
    """Selection to train on (pivotrl, strict-filtered, and --data pivots)."""
    profile: str | None = None
    """Profile whose policy, candidates and settings are used; by default that of the pivots, else `base`."""
    data: Data = "profile"
    """Candidates of sft and rft: those of the profile, the pivots, or (sft) all of the train split."""
    accepted: int = 4
    """rft: at most so many different accepted actions of a candidate, the first that were sampled."""
    policy: str | None = None
    """Initial weights and reference; by default the policy of the profile."""
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
    lora: LoraSettings = field(default_factory=LoraSettings)
    mask_truncated: bool = False
    """Keep truncated actions in the group's statistics but out of the loss."""
    scope: Scope = field(default_factory=Scope)
    model: ModelSettings = field(default_factory=ModelSettings)
    checkpoint_every: int = 10
    """Steps between checkpoints; an interrupted training loses no more than these."""
    samples_every: int = 10
    """Steps between full rollouts written to `samples/`."""
    allow_mismatch: bool = False
    """Train although policy, chat template, sampling or verifier are not those that were profiled."""
    seed: int = 0
    """Seed of batches, sampling and a new adapter."""

    @property
    def imitates(self) -> bool:
        return self.method in IMITATION

    @property
    def on_pivots(self) -> bool:
        return self.method in ("pivotrl", "strict-filtered") or self.data == "pivots"


def check(config: TrainConfig) -> None:
    """Raise ConfigError for settings that cannot work."""
    for name in ("steps", "prompts", "group_size", "updates", "accepted", "checkpoint_every", "samples_every"):
        if getattr(config, name) < 1:
            raise ConfigError(f"{name.replace('_', '-')} {getattr(config, name)}: must be at least 1")
    if config.max_new_tokens is not None and config.max_new_tokens < 1:
        raise ConfigError(f"max-new-tokens {config.max_new_tokens}: must be at least 1")
    if not config.imitates and config.group_size < 2:
        raise ConfigError("group-size 1: a group of one has no variance, so nothing would be learned; use 2 or more")
    if config.data == "train" and config.method != "sft":
        raise ConfigError(f"data train: method {config.method} needs the candidates of a profile")
    if config.data == "pivots" and not config.imitates:
        raise ConfigError(f"data pivots: for sft and rft; method {config.method} itself says what it trains on")
    if config.method in EXACT and config.verifier not in (None, "exact"):
        raise ConfigError(f"method {config.method} rewards exact matches only; leave out --verifier {config.verifier}")


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
    if config.on_pivots:
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
