"""Train: Algorithm 1. Each step takes a batch of states, samples G fresh actions at each, verifies, and updates once.

Methods (`TrainConfig.method`, docs/methods.md) are options of this one loop; `e2e` is in `episode_training`.

Departures from the paper (those of the loss are listed in `grpo`):
 1. A group without reward variance has no reward gradient; with beta = 0 it is not even forwarded. It is counted, and
    stays in the mean over the batch (Eq. 7), unless it is dropped or drawn again (`zero_variance`).
 2. Unscored rollouts are left out of the group; truncated ones follow the setting that the profile was made with.
 3. States are drawn without replacement, epoch by epoch, in an order that depends on the seed alone; weighted pivots as
    often as their weights say. Pivots of a trajectory come in runs, of which a batch holds up to `cap_per_trajectory`.

Every step is written to `metrics.jsonl`; checkpoints hold weights and optimiser. An interrupted training goes on from
the last checkpoint and ends with the same bytes, because all randomness is keyed by (seed, step, candidate, sample).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from pivotrl.batches import TrainingData, load_data
from pivotrl.checkpoints import Checkpoints
from pivotrl.curves import StepMetrics, alarms, step_metrics, watched
from pivotrl.environments import load_environment
from pivotrl.episode_training import TaskData, episode_examples
from pivotrl.episodes import Arena, by_task
from pivotrl.errors import ConfigError
from pivotrl.examples import draw, examples_of, last_of, too_old
from pivotrl.learners import Learner, LearnerPlan, Loss, load_learner, load_trainable
from pivotrl.ledger import Ledger, Stopwatch
from pivotrl.logs import Progress, say
from pivotrl.model_card import write_model_card
from pivotrl.models import trained_model
from pivotrl.planning import rows_hash
from pivotrl.profile_settings import changed_verifier
from pivotrl.protocols import ReferencePolicy, RemoteVerifier, Verifier
from pivotrl.rollouts import Sampling, Truncation, judging, numbered, over_budget
from pivotrl.run_directory import RunDirectory, hold_to
from pivotrl.storage import FileLock, PartWriter, content_hash, file_hash, read_jsonl, seed_of, write_jsonl
from pivotrl.tracking import Trackers
from pivotrl.training_result import TrainResult, learned
from pivotrl.training_settings import EXACT, Origin, TrainConfig, check, origin_of, reference_of
from pivotrl.types import Candidate, Episode, RolloutGroup, SamplingParams, StepResult, TrainingExample, Usage
from pivotrl.validation import Validation, mean_of, validation_line
from pivotrl.verifiers import load_verifier, taken_over, verifier_id

_Data = TrainingData | TaskData


def train(config: TrainConfig) -> TrainResult:
    """Run or resume a training.

    Raises MissingError (no run, profile, pivots or model), ConfigError (settings that cannot work, a policy that is not
    the profiled one, a training of this name with other settings), BusyError, StorageError.
    """
    check(config)
    run = RunDirectory(config.run)
    if run.manifest.exists() or not config.plays:
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
        self.initial = trained_model(run, config.policy or (origin.plan.policy if origin else ""))
        self.named = named = (
            "exact"
            if config.method in EXACT
            else config.verifier or (taken_over(origin.verifier, run.path) if origin else "auto")
        )
        self.verifier: Verifier = load_verifier(named)
        self.arena = Arena(environment=load_environment(config.env), settings=config.episodes) if config.env else None
        self.truncation: Truncation = origin.plan.truncation if origin else "zero"
        profiled = origin.plan.sampling if origin else SamplingParams()
        self.params = SamplingParams(max_new_tokens=config.max_new_tokens or profiled.max_new_tokens)
        self.ledger = Ledger(run.ledger)
        self.stop_at = math.inf if config.stop_at is None else config.stop_at
        self.validation = Validation(config.validation, folder / "validation.jsonl", self.ledger, self.name, self.arena)
        self.trackers = Trackers(config.track)

    def run_all(self) -> TrainResult:
        done, checkpoint = self.checkpoints.latest(self.config.steps) or (0, None)
        self.steps = steps = self._end(done)
        start = load_trainable(self.initial, self.settings)
        self.fingerprint = start.fingerprint
        self._hold_to_origin()
        self.reference = reference_of(self.config, self.run, self.origin, start)
        if self.arena and self.config.plays:
            data: _Data = TaskData(self.arena, self.config)
        else:
            data = load_data(self.config, self.origin, self.run, start, self.verifier, self.params)
        self._hold_to_begun(data)
        if not self.checkpoints.finished(steps):
            learner, reference = load_learner(start, self._plan(), checkpoint)
            del start  # where a checkpoint's weights are trained, these need no memory any more
            self._loop(learner, reference, data, done)
        metrics = tuple(read_jsonl(self.checkpoints.metrics, StepMetrics))
        self.run.record_stage("train", self.name, self._facts())
        write_model_card(self.run, self.name)
        return TrainResult(
            method=self.config.method,
            steps=self.steps,
            candidates=len(data.rows),
            prompts=self.config.prompts,
            left_out=data.left_out,
            metrics=metrics,
            model=self.checkpoints.model,
            alarms=tuple(alarms(metrics).values()),
            verifier="" if self.config.imitates or self.config.plays else self.named,
            validation=validation_line(self.validation.stored(), self.config.validation.keep),
            again=self._again(),
        )

    def _end(self, done: int) -> int:
        """Steps of this training: as configured, or up to that at which it was to stop and did."""
        ends = [self.config.steps]
        if self.config.stop_when_saturated:
            ends += [one.step + 1 for one in self.checkpoints.curve() if one.saturated and one.step >= done - 1]
        ends += [one.step for one in self.validation.stored() if mean_of(one) >= self.stop_at and one.step >= done]
        return min(ends)

    def _again(self) -> str:
        """The command that profiles with what this training made."""
        profile = self.origin.profile if self.origin else ""
        return f"pivotrl profile --run {self.run.path} --again {profile} --policy train/{self.name} --name {self.name}"

    def _plan(self) -> LearnerPlan:
        config = self.config
        return LearnerPlan(
            base=self.initial,
            model=self.settings,
            optimizer=config.optimizer,
            lora=config.lora,
            loss="imitation" if config.imitates else config.loss,
            seed=config.seed,
            reference=self.reference.policy if self.reference else None,
        )

    def _hold_to_origin(self) -> None:
        """Refuse a policy, sampling or verifier that is not the profiled one; demonstrations do not need them."""
        if self.origin is None or self.config.method in ("sft", "e2e") or self.config.allow_mismatch:
            return
        plan = self.origin.plan
        different = plan.fingerprint.differences(self.fingerprint)
        for name in () if self.config.imitates else ("temperature", "top_p", "top_k"):
            different += [name] if getattr(plan.sampling, name) != getattr(self.params, name) else []
        given = self.config.verifier is not None
        if self.config.method == "pivotrl" or (self.config.method in ("unfiltered", "rft") and not given):
            different += ["verifier"] if verifier_id(self.verifier) != self.origin.verifier_id else []
        if different == ["verifier"] and self.config.verifier in (None, self.origin.verifier):
            again = "`pivotrl select` with this --verifier" if self.config.on_pivots else "this with that --verifier"
            said = changed_verifier(self.run, self.origin.profile, self.origin.verifier)
            raise ConfigError(f"{said}, then {again}; or say --allow-mismatch")
        if different:
            raise ConfigError(
                f"profile {self.origin.profile!r} was made with other {', '.join(different)} than this training has "
                f"(policy {self.initial!r}, temperature 1); profile anew under another --name, or say --allow-mismatch"
            )

    def _hold_to_begun(self, data: _Data) -> None:
        """Refuse settings or data that changed since the training was begun."""
        free = {"run", "name", "steps", "policy", "profile", "checkpoint_every", "allow_mismatch", "model", "track"}
        free |= {"stop_when_saturated", "stop_at"}
        settings = {name: getattr(self.config, name) for name in TrainConfig.__slots__ if name not in free}
        settings |= {"policy": self.fingerprint.weights, "model": self.settings, "verifier": verifier_id(self.verifier)}
        settings["reference"] = self.reference.weights if self.reference else None
        settings["environment"] = self.arena.environment.version if self.arena else None
        if isinstance(data, TrainingData):
            settings["candidates"] = rows_hash(data.store, data.rows)
            settings["weights"] = content_hash(data.weights)
            settings["targets"] = content_hash(data.targets)
        begun = self.checkpoints.folder / "config.json"
        held = self.checkpoints.model.exists() or self.checkpoints.curve()
        if not (held or self.checkpoints.latest(self.config.steps)):
            begun.unlink(missing_ok=True)  # it failed before its first step: nothing to be true to
        hold_to(begun, settings)

    def _loop(self, learner: Learner, reference: ReferencePolicy | None, data: _Data, start: int) -> None:
        config = self.config
        if isinstance(self.verifier, RemoteVerifier) and isinstance(data, TrainingData) and not config.imitates:
            batch = data.batch(start, config.prompts, config.seed)
            self.verifier.expect(batch, config.group_size * (self.steps - start))
        with (
            PartWriter(self.checkpoints.metrics) as part,
            Progress(f"train {self.name}", self.steps, start) as progress,
        ):
            part.keep(self.checkpoints.metrics_size(start))
            self.validation.begin(data.store, self._sampling(learner, 0), start, config.seed)
            self.trackers.tell(lambda one: one.start(self.name, asdict(config), self.checkpoints.folder, start))
            self._validate(start, learner)
            curve = self.checkpoints.curve()
            for step in range(start, self.steps):
                watch = Stopwatch()
                metrics = self._step(step, learner, reference, data)
                metrics = metrics if config.plays else watched(metrics, curve, config.saturation)
                usage = learner.policy().take_usage() + learner.take_usage()
                usage += reference.take_usage() if reference else Usage()
                part.append([metrics])
                usage = replace(usage, rollouts=metrics.rollouts, seconds=watch.lap())
                self.ledger.record("train", self.name, f"step-{step:06d}", usage)
                if metrics.saturated:
                    say(learned(metrics, self._again()))
                    self.steps = step + 1 if config.stop_when_saturated else self.steps
                self._validate(step + 1, learner)
                if (step + 1) % config.checkpoint_every == 0 or step + 1 == self.steps:
                    self.checkpoints.save(learner, step + 1)
                self._watch(curve, metrics)
                progress.advance(note=_note(metrics))
                if step + 1 == self.steps:
                    break
        self.trackers.tell(lambda one: one.finish())
        if config.validation.every and config.validation.keep == "best":
            self.checkpoints.keep_best(self.steps)
        else:
            self.checkpoints.save_model(learner, self.steps)

    def _validate(self, steps: int, learner: Learner) -> None:
        """Validate the weights where that is due, keep them if they are the best, and end where they match."""
        every = self.config.validation.every
        if every and steps % every == 0:
            if self.validation.measure(steps, self._sampling(learner, self.config.seed)):
                self.checkpoints.write(learner, self.checkpoints.best, steps)
            if mean_of(self.validation.points[-1]) >= self.stop_at:
                self.steps = steps

    def _watch(self, curve: list[StepMetrics], metrics: StepMetrics) -> None:
        """Show the step, and say what has gone wrong since the step before."""
        before = alarms(curve)
        curve.append(metrics)
        for kind, text in alarms(curve).items():
            if kind not in before:
                say(text)
        reward = next((point.reward for point in self.validation.points if point.step == metrics.step + 1), None)
        values = metrics.values() | ({"validation/reward": reward.mean} if reward else {})
        self.trackers.tell(lambda one: one.log(metrics.step, values))

    def _step(self, step: int, learner: Learner, reference: ReferencePolicy | None, data: _Data) -> StepMetrics:
        episodes: list[Episode] = []
        if isinstance(data, TaskData):
            played = data.play(step, learner.policy(), self.params)
            episodes = [one.episode for one in played]
            drawn, examples = [by_task(episodes)], episode_examples(played, self.config)
        elif self.config.imitates:
            batch = data.batch(step, self.config.prompts, self.config.seed)
            targets = [example for candidate in batch for example in data.imitated(candidate)]
            return step_metrics(step, [], self._update(learner, targets, "imitation"))
        else:
            drawn = self._sample(step, learner, data.batch(step, self.config.prompts, self.config.seed))
            examples = examples_of(last_of(drawn), self.config)
        if step % self.config.samples_every == 0:
            path = self.checkpoints.folder / "samples" / f"step-{step:06d}.jsonl"
            samples = (
                {"rollout": rollout, "verdict": verdict}
                for before, groups in enumerate(drawn)
                for group in groups
                for rollout, verdict in numbered(group, before * len(group.completions))
            )
            write_jsonl(path, episodes or samples)
        stale = len(examples) if too_old(learner.policy(), self.config) else 0
        result = self._fit(learner, reference, examples) if examples and not stale else None
        return step_metrics(step, drawn, result, stale, episodes)

    def _fit(self, learner: Learner, reference: ReferencePolicy | None, examples: list[TrainingExample]) -> StepResult:
        if reference is not None:
            scored = zip(examples, reference.logprobs(examples), strict=True)
            examples = [replace(example, reference_logprobs=logprobs) for example, logprobs in scored]
        if self.config.updates > 1:
            scored = zip(examples, learner.policy().logprobs(examples), strict=True)
            examples = [replace(example, old_logprobs=logprobs) for example, logprobs in scored]
        return [self._update(learner, examples, self.config.loss) for _ in range(self.config.updates)][-1]

    def _sample(self, step: int, learner: Learner, batch: Sequence[Candidate]) -> list[list[RolloutGroup]]:
        sampling = self._sampling(learner, seed_of(f"train/{self.config.seed}/{step}"))
        draws = 1 + self.config.resamples if self.config.zero_variance == "resample" else 1
        with judging(self.ledger, "train", self.name, f"step-{step:06d}", self.verifier):
            drawn = draw(sampling, batch, draws)
        if any(over_budget(verdict) for groups in drawn for group in groups for verdict in group.verdicts):
            raise ConfigError(
                f"training {self.name!r}: the judge's spending cap is reached in step {step}; raise max_cost and run "
                "again: it goes on from the last checkpoint, and no answer is paid twice"
            )
        return drawn

    def _sampling(self, learner: Learner, seed: int) -> Sampling:
        return Sampling(
            policy=learner.policy(),
            verifier=self.verifier,
            params=self.params,
            n=self.config.group_size,
            seed=seed,
            truncation=self.truncation,
        )

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
        inputs = [] if self.config.plays else [self.run.candidates]
        if self.config.on_pivots:
            inputs.append(self.run.pivots(self.config.pivots))
        return {
            "config": self.config,
            "policy": self.initial,
            "reference": self.reference.policy if self.reference else self.initial,
            "fingerprint": self.fingerprint,
            "model": self.settings,
            "profile": self.origin.profile if self.origin and not self.config.plays else None,
            "verifier": None if self.config.plays else self.named,
            "verifier_id": verifier_id(self.verifier),
            "inputs": {str(path.relative_to(self.run.path)): file_hash(path) for path in inputs},
        }


def _note(metrics: StepMetrics) -> str:
    if metrics.reward_mean is not None:
        return f"reward {metrics.reward_mean:.2f}, {metrics.groups_mixed} mixed groups"
    return f"loss {metrics.learner.loss:.3f}" if metrics.learner else ""
