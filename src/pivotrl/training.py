"""Train: Algorithm 1. Each step takes a batch of states, samples G fresh actions at each, verifies, and updates once.

Methods are options of this one loop: `pivotrl` (pivots, functional reward), `unfiltered` (all profiled candidates,
functional reward), `strict` (all profiled candidates, exact reward; the paper's
Table 4), `sft` (imitate demonstrations).

Departures from the paper (those of the loss are listed in `grpo`):
 1. A group without reward variance has no reward gradient; with beta = 0 it is not even forwarded. It is counted.
 2. Unscored rollouts are left out of the group; truncated ones follow the setting that the profile was made with.
 3. States are drawn without replacement, epoch by epoch, in an order that depends on the seed alone.

Every step is written to `metrics.jsonl`; checkpoints hold weights and optimiser. An interrupted training goes on from
the last checkpoint and ends with the same bytes, because all randomness is keyed by (seed, step, candidate, sample).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from pivotrl.batches import DataRequest, TrainingData, load_data
from pivotrl.checkpoints import Checkpoints
from pivotrl.errors import ConfigError, MissingError
from pivotrl.grpo import AdvantageSettings, LossSettings, advantages
from pivotrl.learners import Learner, Loss, OptimizerSettings
from pivotrl.ledger import Ledger, Stopwatch, with_seconds
from pivotrl.logs import Progress
from pivotrl.metrics import group_statistics
from pivotrl.models import LoadedModel, ModelSettings, load_model
from pivotrl.pivots import SelectConfig
from pivotrl.planning import Scope, rows_hash
from pivotrl.policies import is_scripted
from pivotrl.profiling import DEFAULT_PROFILE, ProfilePlan, load_plan, profiled_rows
from pivotrl.rollouts import Sampling, Truncation, sample_groups, unscored
from pivotrl.storage import (
    FileLock,
    PartWriter,
    RunDirectory,
    decode,
    dump_json,
    file_hash,
    hold_to,
    read_jsonl,
    write_jsonl,
)
from pivotrl.types import (
    Candidate,
    ReferencePolicy,
    Rollout,
    RolloutGroup,
    SamplingParams,
    StepResult,
    TrainingExample,
    Usage,
    Verifier,
)
from pivotrl.verifiers import load_verifier, verifier_id

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
    """Seed of batches and sampling."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMetrics:
    """One line of `metrics.jsonl`. Group composition is the pivot signal: only mixed groups teach."""

    step: int
    reward_mean: float | None
    reward_std: float | None
    """Mean over groups of the within-group population standard deviation."""
    groups_mixed: int
    groups_right: int
    groups_wrong: int
    groups_unscored: int
    rollouts: int
    unscored: int
    truncated: int
    unparsable: int
    calls_per_action: float
    action_tokens: float
    learner: StepResult | None
    """None when no group gave a gradient."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainResult:
    """How a training came out."""

    method: Method
    steps: int
    candidates: int
    prompts: int
    left_out: dict[str, int]
    metrics: tuple[StepMetrics, ...]
    model: Path

    def lines(self) -> list[str]:
        lines = [f"{self.method}: {self.steps} steps on {self.candidates} candidates -> {self.model}"]
        lines += [f"left out: {count} {reason}" for reason, count in sorted(self.left_out.items())]
        if self.candidates < self.prompts:
            lines.append(f"a batch holds {self.candidates} states, not {self.prompts}: there are no more")
        span = max(1, min(10, len(self.metrics) // 3))
        if self.method == "sft":
            first, last = _mean_loss(self.metrics[:span]), _mean_loss(self.metrics[-span:])
            return [*lines, f"loss {first:.3f} -> {last:.3f} nats per token (first and last {span} steps)"]
        rewards = [_mean(m.reward_mean for m in part) for part in (self.metrics[:span], self.metrics[-span:])]
        mixed = sum(metrics.groups_mixed for metrics in self.metrics)
        groups = mixed + sum(m.groups_right + m.groups_wrong + m.groups_unscored for m in self.metrics)
        lines.append(f"reward {rewards[0]:.3f} -> {rewards[1]:.3f} (mean of the first and the last {span} steps)")
        return [*lines, f"{mixed} of {groups} groups were mixed ({mixed / max(groups, 1):.0%})"]


def train(config: TrainConfig) -> TrainResult:
    """Run or resume a training.

    Raises MissingError (no run, profile, pivots or model), ConfigError (settings that cannot work, a policy that is not
    the profiled one, a training of this name with other settings), BusyError, StorageError.
    """
    _check(config)
    run = RunDirectory(config.run)
    run.stages()
    folder = run.train(config.name or config.method)
    origin = _origin(config, run)
    with FileLock(folder / ".lock"):
        return _Training(config, run, folder, origin).run_all()


def _check(config: TrainConfig) -> None:
    for name in ("steps", "prompts", "group_size", "updates", "checkpoint_every", "samples_every"):
        if getattr(config, name) < 1:
            raise ConfigError(f"{name.replace('_', '-')} {getattr(config, name)}: must be at least 1")
    if config.max_new_tokens is not None and config.max_new_tokens < 1:
        raise ConfigError(f"max-new-tokens {config.max_new_tokens}: must be at least 1")
    _check_optimizer(config.optimizer)
    if config.method != "sft" and config.group_size < 2:
        raise ConfigError("group-size 1: a group of one has no variance, so nothing would be learned; use 2 or more")
    if config.data == "train" and config.method != "sft":
        raise ConfigError(f"data train: method {config.method} needs the candidates of a profile")
    if config.method == "strict" and config.verifier not in (None, "exact"):
        raise ConfigError(f"method strict rewards exact matches only; leave out --verifier {config.verifier}")


def _check_optimizer(settings: OptimizerSettings) -> None:
    for name, good, bounds in (
        ("lr", 0 < settings.lr < math.inf, "above 0"),
        ("weight_decay", 0 <= settings.weight_decay < math.inf, "0 or more"),
        ("beta1", 0 <= settings.beta1 < 1, "from 0 and below 1"),
        ("beta2", 0 <= settings.beta2 < 1, "from 0 and below 1"),
        ("max_grad_norm", settings.max_grad_norm > 0, "above 0"),
    ):
        if not good:
            raise ConfigError(f"{name.replace('_', '-')} {getattr(settings, name)}: must be {bounds}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Origin:
    """What a training goes out from: a profile, and the verifier under which its candidates were selected."""

    profile: str
    plan: ProfilePlan
    verifier: str


def _origin(config: TrainConfig, run: RunDirectory) -> _Origin | None:
    """None for imitation of the whole train split. Raises ConfigError where settings contradict the selection."""
    if config.data == "train":
        if config.policy is None:
            raise ConfigError("data train: say which weights to start from with --policy")
        return None
    profile, verifier = config.profile or DEFAULT_PROFILE, None
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
        profile, verifier = selection.profile, selection.verifier
    plan = load_plan(run, profile)
    profiled_rows(run, profile, plan)
    return _Origin(profile=profile, plan=plan, verifier=verifier or plan.verifier)


class _Training:
    """One training run: its data, its learner, and the loop."""

    def __init__(self, config: TrainConfig, run: RunDirectory, folder: Path, origin: _Origin | None) -> None:
        self.config, self.run, self.origin = config, run, origin
        self.name = config.name or config.method
        self.checkpoints = Checkpoints(folder)
        self.settings = config.model.inherit(origin.plan.model) if origin else config.model
        self.initial = config.policy or (origin.plan.policy if origin else "")
        named = "exact" if config.method == "strict" else config.verifier or (origin.verifier if origin else "auto")
        self.verifier: Verifier = load_verifier(named)
        self.truncation: Truncation = origin.plan.truncation if origin else "zero"
        profiled = origin.plan.sampling if origin else SamplingParams()
        self.params = SamplingParams(max_new_tokens=config.max_new_tokens or profiled.max_new_tokens)
        self.ledger = Ledger(run.ledger)

    def run_all(self) -> TrainResult:
        steps = self.config.steps
        resume = self.checkpoints.latest(steps)
        if is_scripted(self.initial):
            raise ConfigError(f"policy {self.initial!r} has no weights to train; name a model with --policy")
        initial = load_model(self.initial, self.settings)
        self.fingerprint = initial.fingerprint
        self._hold_to_origin(initial)
        data = load_data(self._request(), self.run, initial, self.verifier, self.params)
        self._hold_to_begun(initial, data)
        if not self.checkpoints.finished(steps):
            loaded = load_model(str(resume[1]), self.settings) if resume else initial
            self._loop(
                self._learner(loaded, resume), self._reference(initial, loaded), data, resume[0] if resume else 0
            )
        metrics = tuple(read_jsonl(self.checkpoints.metrics, StepMetrics))
        self.run.record_stage("train", self.name, self._facts())
        return TrainResult(
            method=self.config.method,
            steps=steps,
            candidates=len(data.rows),
            prompts=self.config.prompts,
            left_out=data.left_out,
            metrics=metrics,
            model=self.checkpoints.model,
        )

    def _request(self) -> DataRequest:
        config = self.config
        return DataRequest(
            method=config.method,
            pivots=config.pivots if config.method == "pivotrl" else None,
            profile=self.origin.profile if self.origin else None,
            scope=config.scope,
            seed=config.seed,
        )

    def _hold_to_origin(self, initial: LoadedModel) -> None:
        """Refuse a policy, sampling or verifier that is not the profiled one; imitation does not need them."""
        if self.origin is None or self.config.method == "sft" or self.config.allow_mismatch:
            return
        plan = self.origin.plan
        different = plan.fingerprint.differences(initial.fingerprint)
        for name in ("temperature", "top_p", "top_k"):
            different += [name] if getattr(plan.sampling, name) != getattr(self.params, name) else []
        if self.config.verifier is not None and self.config.method == "pivotrl":
            chosen = verifier_id(load_verifier(self.origin.verifier))
            different += ["verifier"] if verifier_id(self.verifier) != chosen else []
        if different:
            raise ConfigError(
                f"profile {self.origin.profile!r} was made with another {', '.join(different)} than this training has "
                f"(policy {self.initial!r}, temperature 1); profile anew under another --name, or say --allow-mismatch"
            )

    def _hold_to_begun(self, initial: LoadedModel, data: TrainingData) -> None:
        """Refuse settings or data that changed since the training was begun."""
        free = ("run", "name", "steps", "policy", "profile", "checkpoint_every", "allow_mismatch", "model")
        settings = {name: getattr(self.config, name) for name in TrainConfig.__slots__ if name not in free}
        settings |= {"policy": initial.weights, "model": self.settings, "verifier": verifier_id(self.verifier)}
        settings["candidates"] = rows_hash(data.store, data.rows)
        hold_to(self.checkpoints.folder / "config.json", settings)

    def _learner(self, loaded: LoadedModel, resume: tuple[int, Path] | None) -> Learner:
        from pivotrl.learners.torch import TorchLearner

        learner = TorchLearner(loaded, self.config.optimizer)
        if resume:
            learner.load_optimizer(resume[1])
        return learner

    def _reference(self, initial: LoadedModel, training: LoadedModel) -> ReferencePolicy | None:
        """The frozen initial policy, where the loss needs it."""
        from pivotrl.policies.torch import TorchPolicy

        if self.config.method == "sft" or self.config.loss.beta == 0:
            return None
        return TorchPolicy(load_model(self.initial, self.settings) if initial is training else initial)

    def _loop(self, learner: Learner, reference: ReferencePolicy | None, data: TrainingData, start: int) -> None:
        config = self.config
        with (
            PartWriter(self.checkpoints.metrics) as part,
            Progress(f"train {self.name}", config.steps, start) as progress,
        ):
            part.keep(self.checkpoints.metrics_size(start))
            for step in range(start, config.steps):
                watch = Stopwatch()
                metrics = self._step(step, learner, reference, data)
                usage = learner.policy().take_usage() + learner.take_usage()
                usage += reference.take_usage() if reference else Usage()
                part.append([metrics])
                self.ledger.record("train", self.name, f"step-{step:06d}", with_seconds(usage, watch))
                if (step + 1) % config.checkpoint_every == 0 or step + 1 == config.steps:
                    self.checkpoints.save(learner, step + 1)
                progress.advance(note=_note(metrics))
        self.checkpoints.save_model(learner, config.steps)

    def _step(self, step: int, learner: Learner, reference: ReferencePolicy | None, data: TrainingData) -> StepMetrics:
        batch = data.batch(step, self.config.prompts, self.config.seed)
        if self.config.method == "sft":
            targets = [data.demonstration(candidate) for candidate in batch]
            return _metrics(step, [], self._update(learner, targets, "imitation"))
        groups = self._sample(step, learner, batch)
        examples = self._examples(groups)
        result: StepResult | None = None
        if examples:
            if reference is not None:
                scored = zip(examples, reference.logprobs(examples), strict=True)
                examples = [replace(example, reference_logprobs=logprobs) for example, logprobs in scored]
            if self.config.updates > 1:
                scored = zip(examples, learner.policy().logprobs(examples), strict=True)
                examples = [replace(example, old_logprobs=logprobs) for example, logprobs in scored]
            for _ in range(self.config.updates):
                result = self._update(learner, examples, self.config.loss)
        return _metrics(step, groups, result)

    def _sample(self, step: int, learner: Learner, batch: Sequence[Candidate]) -> list[RolloutGroup]:
        key = hashlib.sha256(f"train/{self.config.seed}/{step}".encode()).digest()
        sampling = Sampling(
            policy=learner.policy(),
            verifier=self.verifier,
            params=self.params,
            n=self.config.group_size,
            seed=int.from_bytes(key[:6], "little"),
            truncation=self.truncation,
        )
        groups = sample_groups(sampling, batch)
        if step % self.config.samples_every == 0:
            write_jsonl(self.checkpoints.folder / "samples" / f"step-{step:06d}.jsonl", _evidence(groups))
        return groups

    def _examples(self, groups: Sequence[RolloutGroup]) -> list[TrainingExample]:
        """One example per sampled action that can carry a gradient."""
        examples: list[TrainingExample] = []
        for group in groups:
            advantages_G = advantages(group.rewards, self.config.advantage)
            if self.config.loss.beta == 0 and not any(advantages_G):
                continue
            for completion, advantage in zip(group.completions, advantages_G, strict=True):
                if advantage is None or not completion.token_ids:
                    continue
                learns = not (self.config.mask_truncated and completion.truncated)
                examples.append(
                    TrainingExample(
                        group_id=group.candidate_id,
                        prompt_ids=group.prompt_ids,
                        action_ids=completion.token_ids,
                        advantage=advantage,
                        loss_mask=(learns,) * len(completion.token_ids),
                        sampler_logprobs=completion.token_logprobs,
                    )
                )
        return examples

    def _update(self, learner: Learner, examples: Sequence[TrainingExample], loss: Loss) -> StepResult:
        result = learner.forward_backward(examples, loss)
        result = replace(result, grad_norm=learner.optim_step())
        if not (math.isfinite(result.loss) and math.isfinite(result.grad_norm)):
            raise ConfigError(
                f"training {self.name!r} diverged (loss {result.loss}, gradient norm {result.grad_norm}); what was "
                "saved before is intact: use a lower --optimizer.lr and another --name"
            )
        return result

    def _facts(self) -> dict[str, object]:
        inputs = [self.run.candidates]
        if self.config.method == "pivotrl":
            inputs.append(self.run.pivots(self.config.pivots))
        return {
            "config": self.config,
            "policy": self.initial,
            "fingerprint": self.fingerprint,
            "model": self.settings,
            "verifier_id": verifier_id(self.verifier),
            "inputs": {str(path.relative_to(self.run.path)): file_hash(path) for path in inputs},
        }


def _metrics(step: int, groups: Sequence[RolloutGroup], result: StepResult | None) -> StepMetrics:
    statistics = [group_statistics(group.rewards) for group in groups]
    completions = [completion for group in groups for completion in group.completions]
    rewards = [reward for group in groups for reward in group.rewards]
    scored = [reward for reward in rewards if reward is not None]
    spreads = [one.variance**0.5 for one in statistics if one.variance is not None]
    mixed = sum(one.variance is not None and one.variance > 0 for one in statistics)
    right = sum(one.variance == 0 and one.mean == 1 for one in statistics)
    unknown = sum(one.mean is None for one in statistics)
    actions = [completion.action for completion in completions if completion.action is not None]
    return StepMetrics(
        step=step,
        reward_mean=_mean(scored) if scored else None,
        reward_std=_mean(spreads) if spreads else None,
        groups_mixed=mixed,
        groups_right=right,
        groups_wrong=len(groups) - mixed - right - unknown,
        groups_unscored=unknown,
        rollouts=len(rewards),
        unscored=sum(unscored(verdict) for group in groups for verdict in group.verdicts),
        truncated=sum(completion.truncated for completion in completions),
        unparsable=sum(completion.unparsable for completion in completions),
        calls_per_action=_mean(float(len(action.calls)) for action in actions),
        action_tokens=_mean(float(len(completion.token_ids)) for completion in completions),
        learner=result,
    )


def _evidence(groups: Sequence[RolloutGroup]) -> list[dict[str, object]]:
    return [
        {
            "rollout": Rollout(candidate_id=group.candidate_id, sample=index, completion=completion),
            "verdict": group.verdicts[index],
        }
        for group in groups
        for index, completion in enumerate(group.completions)
    ]


def _note(metrics: StepMetrics) -> str:
    if metrics.reward_mean is not None:
        return f"reward {metrics.reward_mean:.2f}, {metrics.groups_mixed} mixed groups"
    return f"loss {metrics.learner.loss:.3f}" if metrics.learner else ""


def _mean(values: Iterable[float | None]) -> float:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else 0.0


def _mean_loss(metrics: Sequence[StepMetrics]) -> float:
    return _mean(one.learner.loss for one in metrics if one.learner)
