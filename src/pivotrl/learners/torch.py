"""Trains a loaded model in place, on one device: AdamW over all weights or an adapter's, gradients added up by groups.

What prompts of a batch begin with is forwarded once, and so are equal actions of a group (`policies.forward`).
On a GPU, groups whose tree has at most `batch_tokens` tokens go through in one pass (`policies.flex`). Elsewhere, and
for larger ones, it holds memory down: actions of one group that are more go in several passes, longer trunks in parts.

Weights in half precision are trained beside only, by an adapter (`lora`): AdamW's small updates, and gradients added up
over groups, would be rounded away, and float32 copies of all weights need as much memory as float32 does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from itertools import groupby
from operator import add
from pathlib import Path
from typing import Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from pivotrl.errors import ConfigError, InputError, StorageError
from pivotrl.grpo import LossTerms, imitation_loss, policy_loss, sampler_weights, weights_of
from pivotrl.learners import Loss, OptimizerSettings
from pivotrl.learners.lora import Adapter
from pivotrl.ledger import BACKWARD_COST, FROZEN_BACKWARD_COST, Meter, forward_flops
from pivotrl.logs import say
from pivotrl.models import LoadedModel, save_model
from pivotrl.policies.flex import can_flex, packs, tree_cost, tree_logprobs
from pivotrl.policies.forward import HALF, Trunks, action_logprobs, can_share_prefix, group_cost, pad_right
from pivotrl.policies.torch import TorchPolicy
from pivotrl.types import StepResult, TrainingExample, Usage

OPTIMIZER_FILE = "optimizer.safetensors"
_Lose = Callable[[Tensor, Tensor, Sequence[TrainingExample]], Tensor]
"""The loss of some examples of one group, from logprobs_GT and mask_GT."""
CHECKPOINTED_TOKENS: Final = 512
"""With gradient checkpointing, activations of so many tokens of a trunk are alive at once."""


class TorchLearner(Meter):
    """Satisfies `Learner`. The policy that it gives shares its weights."""

    def __init__(self, loaded: LoadedModel, settings: OptimizerSettings, adapter: Adapter | None = None) -> None:
        """`adapter` is one of the loaded model. Raises ConfigError for a number format that cannot be trained."""
        if loaded.model.dtype in HALF and adapter is None:
            raise ConfigError(
                f"training in {loaded.model.dtype} would round small updates away; profile and train with "
                "--model.dtype float32, or train an adapter (--lora.rank 32)"
            )
        self.loaded, self.settings, self.adapter = loaded, settings, adapter
        self._weights = adapter.weights() if adapter else list(loaded.model.parameters())
        self._backward = BACKWARD_COST if adapter is None else FROZEN_BACKWARD_COST
        self.shares_prefix = can_share_prefix(loaded.model)
        if not self.shares_prefix:
            say(f"{type(loaded.model).__name__} has recurrent layers: every action is trained with its whole prompt")
        on_gpu = loaded.model.device.type == "cuda" and not settings.checkpointing
        self._flexes = on_gpu and self.shares_prefix and can_flex(loaded.model)
        self._shape = loaded.shape
        self._policy = TorchPolicy(loaded)
        self.optimizer = torch.optim.AdamW(
            self._weights, lr=settings.lr, betas=(settings.beta1, settings.beta2), weight_decay=settings.weight_decay
        )

    def policy(self) -> TorchPolicy:
        return self._policy

    def forward_backward(self, examples: Sequence[TrainingExample], loss: Loss) -> StepResult:
        """Add the gradient of the mean loss over the examples. Neighbours of one group are one micro-batch.

        An example with an empty mask is none; a group without a gradient counts, and is not forwarded. The result's
        `grad_norm` is 0 until `optim_step` measures it.
        """
        useful = [example for example in examples if any(example.loss_mask)]
        actions = sum(example.weight for example in useful)
        tokens = sum(example.weight * sum(example.loss_mask) for example in useful)
        reduction = "token" if loss == "imitation" else loss.reduction
        terms: list[LossTerms] = []
        gaps: list[float | None] = []

        def lose(logprobs_GT: Tensor, mask_GT: Tensor, group: Sequence[TrainingExample]) -> Tensor:
            counted_GT = _rows([example.loss_mask for example in group], mask_GT)
            weight_G1 = torch.tensor([example.weight for example in group], device=logprobs_GT.device)[:, None]
            weights_GT = weights_of(counted_GT, reduction, actions, tokens) * weight_G1
            part = _loss(logprobs_GT, weights_GT, group, loss)
            terms.append(part._replace(total=part.total.detach()))
            gaps.append(sampler_gap(logprobs_GT, mask_GT, group))
            return part.total

        always = loss == "imitation" or loss.beta > 0
        found = (list(some) for _, some in groupby(useful, key=lambda example: (example.group_id, example.prompt_ids)))
        groups = [group for group in found if always or any(example.advantage for example in group)]
        self._by_trunks(self._by_trees(groups, lose), lose)
        return step_result(terms, gaps, sum(sum(example.loss_mask) for example in useful))

    def _by_trees(self, groups: Sequence[list[TrainingExample]], lose: _Lose) -> list[list[TrainingExample]]:
        """Groups in passes over whole trees, on a GPU. Returns those that do not fit."""
        if not self._flexes:
            return list(groups)
        asked = [(group[0].prompt_ids, [example.action_ids for example in group]) for group in groups]
        taken, large = packs(asked, self.settings.batch_tokens)
        for pack in taken:
            found, tree = tree_logprobs(self.loaded.model, [asked[index] for index in pack])
            self._count(*tree_cost(self._shape, tree))
            padded = (pad_right(rows, 0, self.loaded.model.device) for rows in found)
            losses = [lose(*both, groups[index]) for index, both in zip(pack, padded, strict=True)]
            torch.stack(losses).sum().backward()  # type: ignore[no-untyped-call]
        return [groups[index] for index in large]

    def _by_trunks(self, groups: Sequence[list[TrainingExample]], lose: _Lose) -> None:
        for index, trunk in (trunks := self._trunks([group[0].prompt_ids for group in groups])):
            group, prompt = groups[index], groups[index][0].prompt_ids
            self._count(*group_cost(self._shape, prompt, [example.action_ids for example in group], trunk))
            for part in _parts(group, self.settings.batch_tokens, 0 if trunk else len(prompt)):
                actions = [example.action_ids for example in part]
                logprobs_GT, mask_GT = action_logprobs(self.loaded.model, prompt, actions, trunk=trunk)
                lose(logprobs_GT, mask_GT, part).backward()  # type: ignore[no-untyped-call]
        for start, end in trunks.forwarded:
            self._count(end - start, forward_flops(self._shape, tokens=end - start, context=start))

    def _trunks(self, prompts: Sequence[tuple[int, ...]]) -> Trunks:
        again, most = self.settings.checkpointing, self.settings.batch_tokens
        return Trunks(
            self.loaded.model,
            prompts,
            share=self.shares_prefix,
            pack=self._policy.branches,
            most=min(most, CHECKPOINTED_TOKENS) if again else most,
            again=again,
        )

    def _count(self, tokens: int, flops: float) -> None:
        self._usage += Usage(trained_tokens=tokens, flops=flops * (1 + self._backward))

    def optim_step(self) -> float:
        """Clip, step, clear. Returns the gradient norm before clipping."""
        norm = float(torch.nn.utils.clip_grad_norm_(self._weights, self.settings.max_grad_norm))
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return norm

    def save(self, directory: Path, *, optimizer: bool) -> None:
        """Write a Hugging Face directory, and with `optimizer` what a resumed run needs. Raises StorageError."""
        try:
            if self.adapter:
                self.adapter.save(directory, whole=not optimizer)
            else:
                save_model(self.loaded, directory)
            if optimizer:
                save_optimizer(self.optimizer, directory)
        except (OSError, SafetensorError) as error:
            raise StorageError(
                f"{directory}: cannot write the checkpoint ({error}); free space and run again"
            ) from error

    def load_optimizer(self, directory: Path) -> None:
        """Restore the optimiser of a checkpoint whose weights are loaded, and an adapter. Raises InputError."""
        load_optimizer(self.optimizer, directory)
        if self.adapter:
            try:
                self.adapter.load(directory)
            except (OSError, SafetensorError) as error:
                raise InputError(_unreadable(directory, error)) from None


def save_optimizer(optimizer: torch.optim.Optimizer, directory: Path) -> None:
    """Write what an optimiser remembers to OPTIMIZER_FILE. Raises OSError or SafetensorError."""
    state = sorted(optimizer.state_dict()["state"].items())
    flat = {f"{index}.{name}": value.contiguous() for index, entry in state for name, value in entry.items()}
    save_file(flat, directory / OPTIMIZER_FILE)


def load_optimizer(optimizer: torch.optim.Optimizer, directory: Path) -> None:
    """Restore what `save_optimizer` wrote. Raises InputError."""
    path = directory / OPTIMIZER_FILE
    try:
        flat = load_file(path)
    except (OSError, SafetensorError) as error:
        raise InputError(_unreadable(path, error)) from None
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in flat.items():
        index, _, name = key.partition(".")
        state.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict(optimizer.state_dict() | {"state": state})


def _unreadable(path: Path, error: Exception) -> str:
    return f"{path}: cannot be read ({error}); restore it, or delete the training's folder and train again"


def _parts(group: Sequence[TrainingExample], most: int, each: int) -> Iterator[list[TrainingExample]]:
    """Examples of at most `most` tokens, or one action; equal actions together. `each` comes with every action."""
    same: dict[tuple[int, ...], list[TrainingExample]] = {}
    for example in group:
        same.setdefault(example.action_ids, []).append(example)
    part: list[TrainingExample] = []
    tokens = 0
    for action, examples in same.items():
        if part and tokens + each + len(action) > most:
            yield part
            part, tokens = [], 0
        part, tokens = part + examples, tokens + each + len(action)
    yield part


def _rows(rows: Sequence[Sequence[float]], like_GT: Tensor) -> Tensor:
    result_GT = torch.zeros(like_GT.shape, dtype=torch.float32)
    for index, row in enumerate(rows):
        result_GT[index, : len(row)] = torch.as_tensor(row, dtype=torch.float32)
    return result_GT.to(like_GT.device)


def _loss(logprobs_GT: Tensor, weights_GT: Tensor, group: Sequence[TrainingExample], loss: Loss) -> LossTerms:
    if loss == "imitation":
        return imitation_loss(logprobs_GT, weights_GT)
    old = [example.old_logprobs for example in group if example.old_logprobs is not None]
    reference = [example.reference_logprobs for example in group if example.reference_logprobs is not None]
    assert len(old) in (0, len(group)), f"{len(old)} of {len(group)} examples have old log-probabilities"
    assert len(reference) in (0, len(group)), f"{len(reference)} of {len(group)} examples have a reference"
    old_GT = _rows(old, logprobs_GT) if old and not loss.on_policy_ratio else logprobs_GT.detach()
    if loss.sampler_weight_cap is not None:
        sampled_GT = _rows([example.sampler_logprobs or () for example in group], logprobs_GT)
        weights_GT = weights_GT * sampler_weights(old_GT, sampled_GT, loss.sampler_weight_cap)
    return policy_loss(
        logprobs_GT,
        old_GT,
        _rows(reference, logprobs_GT) if reference else None,
        torch.tensor([example.advantage for example in group], device=logprobs_GT.device),
        weights_GT,
        loss,
    )


def sampler_gap(logprobs_GT: Tensor, mask_GT: Tensor, group: Sequence[TrainingExample]) -> float | None:
    """The largest difference to the sampler's log-probability of a token; None where some are not known."""
    sampled = [example.sampler_logprobs for example in group if example.sampler_logprobs is not None]
    if len(sampled) < len(group):
        return None
    return float(((logprobs_GT.detach() - _rows(sampled, logprobs_GT)) * mask_GT).abs().max())


def step_result(terms: Sequence[LossTerms], gaps: Sequence[float | None], tokens: int) -> StepResult:
    """Micro-batches added up in their order; by `reduce`, since `sum` rounds otherwise from Python 3.12 on."""

    def total(values: Iterable[Tensor]) -> float:
        return reduce(add, map(float, values), 0.0)

    kls = [one.kl for one in terms if one.kl is not None]
    known = [gap for gap in gaps if gap is not None]
    return StepResult(
        loss=total(one.total for one in terms),
        reward_loss=total(one.reward for one in terms),
        kl=total(kls) if kls else None,
        clip_fraction=total(one.clip_fraction for one in terms),
        ratio_mean=total(one.ratio_mean for one in terms),
        sampler_gap=max(0.0, *known) if known else None,
        grad_norm=0.0,
        tokens=tokens,
    )
