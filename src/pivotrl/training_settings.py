"""What a training is told and goes out from: a profile, the verifier that pivots were selected under, a KL reference.

The reference is the policy that was profiled first, however often it was since.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from pivotrl.curves import SaturationSettings
from pivotrl.episodes import EpisodeSettings
from pivotrl.errors import ConfigError, InputError, MissingError, check_least
from pivotrl.grpo import AdvantageSettings, LossSettings
from pivotrl.learners import LoraSettings, OptimizerSettings, Trainable
from pivotrl.models import ModelSettings, resolve, tokenizer_hash, trained_model, weights_hash
from pivotrl.pivots import SelectConfig
from pivotrl.planning import Scope
from pivotrl.policies import has_weights
from pivotrl.profile_settings import DEFAULT_PROFILE, ProfilePlan, load_plan, profiled_rows
from pivotrl.run_directory import AnyPath, RunDirectory
from pivotrl.storage import decode, dump_json
from pivotrl.validation import ValidationSettings

ZeroVariance = Literal["keep", "drop", "resample"]
Preset = Literal["paper", "nemo-rl"]
Method = Literal["pivotrl", "unfiltered", "strict-filtered", "strict", "sft", "rft", "e2e"]
Data = Literal["profile", "pivots", "train"]
EXACT: Final = ("strict", "strict-filtered")
"""Methods whose reward is exact equality (Eq. 2)."""
IMITATION: Final = ("sft", "rft")
"""Methods that sample nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """Train on the pivots, or by one of the baselines on the same data.

    --preset paper (as without it) or nemo-rl changes the defaults below; explicit options win (docs/training.md).
    """

    run: AnyPath
    """Run directory."""
    method: Method = "pivotrl"
    """pivotrl: pivots, the verifier's reward; unfiltered: every profiled candidate; strict-filtered: pivots, exact
    reward; strict: every profiled candidate, exact reward; sft: imitate demonstrations; rft: imitate what the profile
    sampled and the verifier accepted; e2e: whole episodes of tasks of --env, rewarded by their outcome."""
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
    """Initial weights, also train/NAME; by default the policy of the profile."""
    reference: str | None = None
    """What the KL term holds to; by default the policy of the first profile that was followed (`profile --again`), else
    the initial weights."""
    steps: int = 100
    """Optimisation steps. A finished training goes on when this is raised."""
    prompts: int = 8
    """States in a batch (e2e: tasks); fewer where the cap leaves no more."""
    cap_per_trajectory: int | None = 4
    """Most states of one trajectory in a batch, which then come together; None: shuffled without regard to it."""
    group_size: int = 8
    """G: actions sampled at each state (e2e: episodes of each task)."""
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
    zero_variance: ZeroVariance = "keep"
    """Groups of equal rewards: keep them in the mean over the batch and in the KL, drop them, or sample them again."""
    resamples: int = 2
    """Most fresh groups at a state whose rewards were equal (zero-variance resample); what stays equal is dropped."""
    max_age: int | None = None
    """Drop what a sampler gave whose weights were more optimiser steps behind."""
    scope: Scope = field(default_factory=Scope)
    model: ModelSettings = field(default_factory=ModelSettings)
    checkpoint_every: int = 10
    """Steps between checkpoints; an interrupted training loses no more than these."""
    samples_every: int = 10
    """Steps between full rollouts written to `samples/`."""
    validation: ValidationSettings = field(default_factory=ValidationSettings)
    env: str | None = None
    """desk, skills, package.module:name or FILE.py:name: e2e plays its train tasks, the validation of any method its
    validation tasks."""
    tasks: int = 1000
    """e2e: train tasks that are drawn from."""
    episodes: EpisodeSettings = field(default_factory=EpisodeSettings)
    """How episodes are played; trials: of each validation task."""
    stop_at: float | None = None
    """Stop, with a finished model, at the first validation whose mean is this or more."""
    track: tuple[str, ...] = ()
    """Also show the curves by tensorboard, wandb, trackio, or package.module:name; metrics.jsonl has them anyway."""
    allow_mismatch: bool = False
    """Train although policy, chat template, sampling or verifier are not those that were profiled."""
    saturation: SaturationSettings = field(default_factory=SaturationSettings)
    stop_when_saturated: bool = False
    """Stop, with a finished model, at the first step at which --saturation says that the pivots are learned."""
    seed: int = 0
    """Seed of batches, sampling and a new adapter."""

    @property
    def plays(self) -> bool:
        """Whether it is trained on episodes, not at candidates of the run."""
        return self.method == "e2e"

    @property
    def imitates(self) -> bool:
        return self.method in IMITATION

    @property
    def on_pivots(self) -> bool:
        return self.method in ("pivotrl", "strict-filtered") or self.data == "pivots"


def preset(name: Preset, run: Path) -> TrainConfig:
    """The settings of a recipe, to be changed with `dataclasses.replace`: advantage, loss, masks; not sizes or rates.

    paper: Eq. 1 and 7; the paper gives no numbers, clip .2 and beta .01 are ours. nemo-rl: NVIDIA's recipes for pivots
    (grpo_qwen3_30ba3b_thinking_swe1).
    """
    if name == "paper":
        return TrainConfig(run=run)
    return TrainConfig(
        run=run,
        advantage=AdvantageSettings(baseline="leave-one-out", std="sample", clip=100.0, malformed=-5.0),
        loss=LossSettings(clip_high=0.28, on_policy_ratio=True, sampler_weight_cap=5.0, beta=0.0),
        mask_truncated=True,
    )


def check(config: TrainConfig) -> None:
    """Raise ConfigError for settings that cannot work."""
    check_least(config, steps=1, prompts=1, group_size=1, updates=1, accepted=1, checkpoint_every=1, samples_every=1)
    check_least(config, tasks=1, max_new_tokens=1, cap_per_trajectory=1, max_age=0)
    if not config.imitates and config.group_size < 2:
        raise ConfigError("group-size 1: a group of one has no variance, so nothing would be learned; use 2 or more")
    _check_together(config)
    _check_method(config)


def _check_method(config: TrainConfig) -> None:
    """Raise ConfigError for settings that the method has no use for, or that it lacks."""
    if config.plays and config.env is None:
        raise ConfigError("method e2e: say which environment's tasks to play with --env (desk, FILE.py:name)")
    if config.env is not None and not config.plays and not config.validation.every:
        raise ConfigError(f"env: {config.method} plays in validation only; add --validation.every N or drop --env")
    if config.plays and (config.verifier or config.zero_variance == "resample" or config.stop_when_saturated):
        raise ConfigError("method e2e has no verifier, resamples nothing and knows no pivots; leave these options out")
    if config.data == "train" and config.method != "sft":
        raise ConfigError(f"data train: method {config.method} needs the candidates of a profile")
    if config.reference is not None and (config.imitates or config.loss.beta == 0):
        raise ConfigError(
            f"reference {config.reference!r}: without a KL term (sft, rft, loss.beta 0) nothing is held to it"
        )
    if config.data == "pivots" and not config.imitates:
        raise ConfigError(f"data pivots: for sft and rft; method {config.method} itself says what it trains on")
    if config.method in EXACT and config.verifier not in (None, "exact"):
        raise ConfigError(f"method {config.method} rewards exact matches only; leave out --verifier {config.verifier}")


def _check_together(config: TrainConfig) -> None:
    """Raise ConfigError for settings of which each could work, but not all."""
    advantage, validation = config.advantage, config.validation
    if validation.keep == "best" and validation.every > config.steps:
        raise ConfigError(
            f"validation.every {validation.every}: of {config.steps} steps none is validated, and the model would be "
            "the untrained one; use fewer, or --validation.keep last"
        )
    if config.stop_at is not None and not (0 < config.stop_at <= 1 and validation.every):
        raise ConfigError(f"stop-at {config.stop_at}: use a number above 0 and up to 1, with --validation.every N")
    if config.zero_variance == "resample" and config.resamples < 1:
        raise ConfigError(f"zero-variance resample with resamples {config.resamples}: must be at least 1")
    if config.loss.on_policy_ratio and config.updates > 1:
        raise ConfigError(
            f"on-policy-ratio with updates {config.updates}: after the first update the ratio is not 1; use --updates 1"
        )
    if config.group_size == 2 and advantage.baseline == "leave-one-out" and advantage.std == "sample":
        raise ConfigError("group-size 2 with leave-one-out and std sample: one other has no deviation; use 3 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What a training goes out from: a profile, and the verifier under which its candidates were selected."""

    profile: str
    plan: ProfilePlan
    verifier: str
    """As the user named it, and what it was: a file behind a name may have changed since."""
    verifier_id: str


def origin_of(config: TrainConfig, run: RunDirectory) -> Origin | None:
    """None for all of the train split, and episodes of a named policy. Raises ConfigError against the selection."""
    if config.plays and config.policy is not None and config.profile is None:
        return None
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
    try:
        plan = load_plan(run, profile)
    except MissingError as error:
        if config.method != "sft" or config.on_pivots:
            raise
        way = "or imitate all of the train split with --data train --policy MODEL"
        raise MissingError(f"{error}, {way}") from None
    profiled_rows(run, profile, plan)
    return Origin(
        profile=profile, plan=plan, verifier=verifier or plan.verifier, verifier_id=chosen or plan.verifier_id
    )


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
