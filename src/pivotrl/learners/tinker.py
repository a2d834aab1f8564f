"""Trains through the Tinker API (SkyRL on Ray with FSDP, Megatron or JAX; the hosted service): our step, elsewhere.

The server knows losses per token and adds them up in its own way, so that ours is folded into what it multiplies:
 1. Reduction. Where it sums over tokens, a token's advantage is multiplied by its weight in our mean; where it means
    over a sequence, prompt included, and then over N sequences (SkyRL's JAX backend), by N and that length as well.
 2. Ratio. With several updates per batch, its `ppo` clips each token's own ratio to pi_old. With one, clipping is idle
    (see `grpo`), and pi_old is the sampler: `importance_sampling`. Ratios of whole actions, the dual clip and
    truncated weights to the sampler are refused.
 3. KL. It has none: the advantages get the penalty, beta times k1, or the derivative of k2 or k3 by log pi, taken at
    pi_old. With one update per batch that is the gradient of our loss; with more, it is clipped along.
 4. Imitation is `cross_entropy`; where the server divides by its weights, `importance_sampling` at the current weights,
    which has the same gradient.

What a step reports is computed here, by `grpo`, from the log-probabilities that the server gives back.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from pivotrl.errors import ConfigError, InputError, MissingError
from pivotrl.grpo import LossSettings, LossTerms, imitation_loss, policy_loss, weights_of
from pivotrl.learners import Loss, OptimizerSettings
from pivotrl.learners.torch import sampler_gap, step_result
from pivotrl.ledger import Meter
from pivotrl.policies.tinker import TINKER_FILE, TinkerPolicy, TinkerSaved
from pivotrl.storage import read_json, write_json
from pivotrl.types import StepResult, TrainingExample, Usage

UNCLIPPED: Final = 1e6
"""The upper bound of a ratio that stands for none."""


class TinkerLearner(Meter):
    """Satisfies `Learner`. Raises ConfigError for a loss that the server cannot compute."""

    def __init__(self, start: TinkerPolicy, settings: OptimizerSettings, loss: Loss) -> None:
        if loss != "imitation" and loss.ratio != "token":
            raise ConfigError(f"loss.ratio {loss.ratio}: the Tinker API clips the ratio of each token; use token")
        if loss != "imitation" and loss.dual_clip is not None:
            raise ConfigError(f"loss.dual-clip {loss.dual_clip}: the Tinker API has no such bound; leave it out")
        if loss != "imitation" and loss.sampler_weight_cap is not None:
            raise ConfigError(
                f"loss.sampler-weight-cap {loss.sampler_weight_cap}: the Tinker API weighs no token so; "
                "leave it out, or with a preset say --loss.sampler-weight-cap None"
            )
        if start.spec.path:
            raise ConfigError(f"tinker path={start.spec.path}: a training starts from the base model; leave path out")
        self.settings, self.spec, self._service = settings, start.spec, start.service
        self._client: Any = None
        self._policy = start.following(self._sampler)
        self._waiting, self._means = False, start.spec.reduction == "mean"

    @property
    def client(self) -> Any:
        """The training client; a new LoRA, unless a checkpoint was loaded."""
        if self._client is None:
            spec, make = self.spec, self._service.client.create_lora_training_client
            self._client = self._service.ask(lambda: make(spec.base, rank=spec.rank, seed=spec.seed))
        return self._client

    def _sampler(self) -> Any:
        """Of the current weights."""
        return self._service.ask(self.client.save_weights_and_get_sampling_client)

    def policy(self) -> TinkerPolicy:
        return self._policy

    def forward_backward(self, examples: Sequence[TrainingExample], loss: Loss) -> StepResult:
        """Add the gradient of the mean loss over the examples. Raises ServerError.

        Raises ConfigError where a second batch before `optim_step` would change the server's mean.
        """
        useful = [example for example in examples if any(example.loss_mask)]
        if self._waiting and self._means:
            raise ConfigError("reduction mean: one batch per optimiser step; the server's mean runs over all of them")
        if not useful:
            return step_result([], [], 0)
        mask_BT = _padded([[float(learns) for learns in example.loss_mask] for example in useful])
        reduction = "token" if loss == "imitation" else loss.reduction
        weight_B1 = torch.tensor([example.weight for example in useful])[:, None]
        weights_BT = weights_of(mask_BT, reduction, float(weight_B1.sum()), float((mask_BT * weight_B1).sum()))
        weights_BT = weights_BT * weight_B1
        if loss == "imitation":
            logprobs_BT = self._imitate(useful, weights_BT)
            terms = imitation_loss(logprobs_BT, weights_BT)
        else:
            logprobs_BT, terms = self._reinforce(useful, weights_BT, loss)
        self._waiting = True
        self._usage += Usage(trained_tokens=sum(len(one.prompt_ids) + len(one.action_ids) for one in useful))
        return step_result([terms], [sampler_gap(logprobs_BT, mask_BT, useful)], int(mask_BT.sum()))

    def _reinforce(
        self, examples: Sequence[TrainingExample], weights_BT: Tensor, loss: LossSettings
    ) -> tuple[Tensor, LossTerms]:
        old = [example.old_logprobs or example.sampler_logprobs for example in examples]
        if not all(old):
            raise InputError("an action came without log-probabilities, so there is no pi_old; sample at temperature 1")
        old_BT, reference_BT = _padded([row or () for row in old]), None
        advantages_B = torch.tensor([example.advantage for example in examples])
        folded_BT = advantages_B[:, None].expand_as(weights_BT)
        if loss.beta > 0:
            reference = [example.reference_logprobs for example in examples if example.reference_logprobs]
            assert len(reference) == len(examples), f"{len(reference)} of {len(examples)} examples have a reference"
            reference_BT = _padded(reference)
            difference_BT = old_BT - reference_BT
            slope_BT = 1 - (-difference_BT).exp() if loss.kl == "k3" else difference_BT
            folded_BT = folded_BT - loss.beta * slope_BT
        name, bounds = "importance_sampling", None
        if any(example.old_logprobs for example in examples):
            high = min(1 + loss.clip_high, UNCLIPPED)
            name, bounds = "ppo", {"clip_low_threshold": 1 - loss.clip_low, "clip_high_threshold": high}
        data = self._data(examples, folded_BT * weights_BT, old_BT)
        logprobs_BT = self._run(self.client.forward_backward, data, examples, name, bounds)
        return logprobs_BT, policy_loss(logprobs_BT, old_BT, reference_BT, advantages_B, weights_BT, loss)

    def _imitate(self, examples: Sequence[TrainingExample], weights_BT: Tensor) -> Tensor:
        weighted = self._data(examples, weights_BT)
        if not self._means:
            return self._run(self.client.forward_backward, weighted, examples, "cross_entropy", None)
        now_BT = self._run(self.client.forward, weighted, examples, "cross_entropy", None)
        data = self._data(examples, weights_BT, now_BT)
        return self._run(self.client.forward_backward, data, examples, "importance_sampling", None)

    def _data(self, examples: Sequence[TrainingExample], folded_BT: Tensor, old_BT: Tensor | None = None) -> list[Any]:
        """One datum an example: predicted tokens, with `folded_BT` as advantages, or as weights without `old_BT`."""
        types = self._service.api.types
        data = []
        for index, example in enumerate(examples):
            ids = [*example.prompt_ids, *example.action_ids]
            before, actions = len(example.prompt_ids) - 1, len(example.action_ids)
            scale = float(len(examples) * (len(ids) - 1)) if old_BT is not None and self._means else 1.0
            rows = {"weights" if old_BT is None else "advantages": folded_BT[index, :actions] * scale}
            if old_BT is not None:
                rows["logprobs"] = old_BT[index, :actions]
            inputs = {name: torch.cat([torch.zeros(before), row]) for name, row in rows.items()}
            tensors = {name: types.TensorData.from_torch(row.float()) for name, row in inputs.items()}
            tensors["target_tokens"] = types.TensorData(data=ids[1:], dtype="int64", shape=[len(ids) - 1])
            data.append(types.Datum(model_input=types.ModelInput.from_ints(ids[:-1]), loss_fn_inputs=tensors))
        return data

    def _run(
        self,
        call: Any,
        data: list[Any],
        examples: Sequence[TrainingExample],
        loss: str,
        bounds: dict[str, float] | None,
    ) -> Tensor:
        """Log-probabilities of the action tokens, padded. Raises ConfigError where the server reduces otherwise."""
        output = self._service.ask(lambda: call(data, loss, bounds).result())
        sums = any(name.endswith(":sum") for name in output.metrics)
        if sums == self._means and (sums or "elementwise_loss" in output.loss_fn_outputs[0]):
            raise ConfigError(
                f"tinker:{self.spec.base}: this server does not take the {self.spec.reduction} over tokens; add "
                f"reduction={'sum' if sums else 'mean'} to the policy's options (docs/stacks/tinker_skyrl.md)"
            )
        rows = [one["logprobs"].to_torch() for one in output.loss_fn_outputs]
        last = self._policy.last
        return _padded([last(row.tolist(), len(one.action_ids)) for row, one in zip(rows, examples, strict=True)])

    def optim_step(self) -> float:
        """Step and clear. Returns the gradient norm before clipping, 0 where the server does not say."""
        settings = self.settings
        params = self._service.api.types.AdamParams(
            learning_rate=settings.lr,
            beta1=settings.beta1,
            beta2=settings.beta2,
            eps=1e-8,
            weight_decay=settings.weight_decay,
            grad_clip_norm=settings.max_grad_norm if math.isfinite(settings.max_grad_norm) else 0.0,
        )
        metrics = self._service.ask(lambda: self.client.optim_step(params).result()).metrics or {}
        self._policy.renew()
        self._waiting = False
        return next((float(value) for name, value in metrics.items() if name.endswith("grad_norm")), 0.0)

    def save(self, directory: Path, *, optimizer: bool) -> None:
        """Save on the server, and write here where that lies. Raises ServerError or StorageError."""
        name, ask = f"pivotrl-{secrets.token_hex(6)}", self._service.ask
        path = ask(lambda: self.client.save_weights_for_sampler(name).result()).path
        state = ask(lambda: self.client.save_state(name).result()).path if optimizer else None
        write_json(directory / TINKER_FILE, TinkerSaved(weights=replace(self.spec, path=path), state=state))

    def load_optimizer(self, directory: Path) -> None:
        """Go on from a checkpoint: its weights and its optimiser, in a new training client. Raises a PivotRLError."""
        state = read_json(directory / TINKER_FILE, TinkerSaved).state
        if state is None:
            raise MissingError(f"{directory / TINKER_FILE} names no optimiser state; train again under another --name")
        load = self._service.client.create_training_client_from_state_with_optimizer
        self._client = self._service.ask(lambda: load(state))
        self._policy.renew()


def _padded(rows: Sequence[Sequence[float]]) -> Tensor:
    """[B, T], zeros behind shorter rows."""
    return pad_sequence([torch.tensor(row, dtype=torch.float32) for row in rows], batch_first=True)
