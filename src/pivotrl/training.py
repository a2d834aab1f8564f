"""Train: Algorithm 1. Each step takes a batch of states, samples G fresh actions at each, verifies, and updates once.

Methods are options of this one loop: `pivotrl` (pivots, functional reward), `unfiltered` (all profiled candidates,
functional reward), `strict` (all profiled candidates, exact reward; the paper's Table 4),
`sft` (imitate demonstrations).

Departures from the paper (those of the loss are listed in `grpo`):
 1. A group without reward variance has no reward gradient; with beta = 0 it is not even forwarded. It is counted.
 2. Unscored rollouts are left out of the group; truncated ones follow the setting that the profile was made with.
 3. States are drawn without replacement, epoch by epoch, in an order that depends on the seed alone; weighted pivots as
    often as their weights say.

Every step is written to `metrics.jsonl`; checkpoints hold weights and optimiser. An interrupted training goes on from
the last checkpoint and ends with the same bytes, because all randomness is keyed by (seed, step, candidate, sample).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pivotrl.batches import TrainingData, load_data
from pivotrl.checkpoints import Checkpoints
from pivotrl.errors import ConfigError
from pivotrl.grpo import advantages
from pivotrl.learners import Learner, Loss, load_learner, load_trainable
from pivotrl.ledger import Ledger, Stopwatch, with_seconds
from pivotrl.logs import Progress
from pivotrl.metrics import known_mean
from pivotrl.planning import rows_hash
from pivotrl.rollouts import Sampling, Truncation, bill_judging, over_budget, sample_groups
from pivotrl.step_metrics import StepMetrics, step_metrics
from pivotrl.storage import (
    FileLock,
    PartWriter,
    RunDirectory,
    content_hash,
    file_hash,
    hold_to,
    read_jsonl,
    write_jsonl,
)
from pivotrl.training_settings import Method, Origin, TrainConfig, check, origin_of
from pivotrl.types import (
    Candidate,
    ReferencePolicy,
    RemoteVerifier,
    Rollout,
    RolloutGroup,
    SamplingParams,
    StepResult,
    TrainingExample,
    Usage,
    Verifier,
)
from pivotrl.verifiers import load_verifier, verifier_id


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
        if "template_error" in self.left_out:
            lines.append(
                "the chat template refuses these states, or leaves their tools out: try another --model.chat-template"
            )
        if self.candidates < self.prompts:
            lines.append(f"a batch holds {self.candidates} states, not {self.prompts}: there are no more")
        span = max(1, min(10, len(self.metrics) // 3))
        if self.method == "sft":
            first, last = _mean_loss(self.metrics[:span]), _mean_loss(self.metrics[-span:])
            return [*lines, f"loss {first:.3f} -> {last:.3f} nats per token (first and last {span} steps)"]
        rewards = [
            known_mean(m.reward_mean for m in part) or 0.0 for part in (self.metrics[:span], self.metrics[-span:])
        ]
        mixed = sum(metrics.groups_mixed for metrics in self.metrics)
        groups = mixed + sum(m.groups_right + m.groups_wrong + m.groups_unscored for m in self.metrics)
        lines.append(f"reward {rewards[0]:.3f} -> {rewards[1]:.3f} (mean of the first and the last {span} steps)")
        return [*lines, f"{mixed} of {groups} groups were mixed ({mixed / max(groups, 1):.0%})"]


def train(config: TrainConfig) -> TrainResult:
    """Run or resume a training.

    Raises MissingError (no run, profile, pivots or model), ConfigError (settings that cannot work, a policy that is not
    the profiled one, a training of this name with other settings), BusyError, StorageError.
    """
    check(config)
    run = RunDirectory(config.run)
    run.stages()
    folder = run.train(config.name or config.method)
    origin = origin_of(config, run)
    with FileLock(folder / ".lock"):
        return _Training(config, run, folder, origin).run_all()


class _Training:
    """One training run: its data, its learner, and the loop."""

    def __init__(self, config: TrainConfig, run: RunDirectory, folder: Path, origin: Origin | None) -> None:
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
        initial = load_trainable(self.initial, self.settings)
        self.fingerprint = initial.fingerprint
        self._hold_to_origin()
        data = load_data(self.config, self.origin, self.run, initial, self.verifier, self.params)
        self._hold_to_begun(data)
        if not self.checkpoints.finished(steps):
            start, checkpoint = resume or (0, None)
            loss: Loss = "imitation" if self.config.method == "sft" else self.config.loss
            learner, reference = load_learner(initial, self.settings, self.config.optimizer, loss, checkpoint)
            self._loop(learner, reference, data, start)
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

    def _hold_to_origin(self) -> None:
        """Refuse a policy, sampling or verifier that is not the profiled one; imitation does not need them."""
        if self.origin is None or self.config.method == "sft" or self.config.allow_mismatch:
            return
        plan = self.origin.plan
        different = plan.fingerprint.differences(self.fingerprint)
        for name in ("temperature", "top_p", "top_k"):
            different += [name] if getattr(plan.sampling, name) != getattr(self.params, name) else []
        given = self.config.verifier is not None
        if self.config.method == "pivotrl" or (self.config.method == "unfiltered" and not given):
            different += ["verifier"] if verifier_id(self.verifier) != self.origin.verifier_id else []
        if different:
            raise ConfigError(
                f"profile {self.origin.profile!r} was made with another {', '.join(different)} than this training has "
                f"(policy {self.initial!r}, temperature 1); profile anew under another --name, or say --allow-mismatch"
            )

    def _hold_to_begun(self, data: TrainingData) -> None:
        """Refuse settings or data that changed since the training was begun."""
        free = ("run", "name", "steps", "policy", "profile", "checkpoint_every", "allow_mismatch", "model")
        settings = {name: getattr(self.config, name) for name in TrainConfig.__slots__ if name not in free}
        settings |= {"policy": self.fingerprint.weights, "model": self.settings, "verifier": verifier_id(self.verifier)}
        settings["candidates"] = rows_hash(data.store, data.rows)
        settings["weights"] = content_hash(data.weights)
        hold_to(self.checkpoints.folder / "config.json", settings)

    def _loop(self, learner: Learner, reference: ReferencePolicy | None, data: TrainingData, start: int) -> None:
        config = self.config
        if isinstance(self.verifier, RemoteVerifier) and config.method != "sft":
            steps = config.steps - start
            self.verifier.expect(data.batch(start, config.prompts, config.seed), config.group_size * steps)
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
            return step_metrics(step, [], self._update(learner, targets, "imitation"))
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
        return step_metrics(step, groups, result)

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
        try:
            groups = sample_groups(sampling, batch)
        finally:
            bill_judging(self.ledger, "train", self.name, f"step-{step:06d}", self.verifier)
        if any(over_budget(verdict) for group in groups for verdict in group.verdicts):
            raise ConfigError(
                f"training {self.name!r}: the judge's spending cap is reached in step {step}; raise max_cost and run "
                "again: it goes on from the last checkpoint, and no answer is paid twice"
            )
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


def _mean_loss(metrics: Sequence[StepMetrics]) -> float:
    return known_mean(one.learner.loss for one in metrics if one.learner) or 0.0
