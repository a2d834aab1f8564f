"""Samples actions in process from any Hugging Face causal language model: one prefill per state, shared by its samples.

The random numbers of a sample come from a stream of its own, keyed by (seed, state, sample): what else is in the batch
changes nothing but rounding. One uniform number per token picks from the cumulative distribution.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pivotrl.ledger import forward_flops
from pivotrl.models import LoadedModel
from pivotrl.policies.forward import action_logprobs, cache_name, can_share_prefix
from pivotrl.types import Completion, PolicyFingerprint, Sampled, SamplingParams, State, TrainingExample, Usage

DEFAULT_BATCH_TOKENS = 32_768


def uniforms(seed: int, key: str, sample: int, count: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """`count` uniform numbers of the stream (seed, key, sample)."""
    digest = hashlib.sha256(f"{seed}/{key}/{sample}".encode()).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "little"))).random(count)


@dataclass(slots=True)
class _Row:
    """One sample in the making."""

    state: int
    sample: int
    numbers: np.ndarray[Any, np.dtype[np.float64]]
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    stopped: bool = False


class TorchPolicy:
    """A loaded model as a policy. It samples with the weights that the model has at the call."""

    def __init__(self, loaded: LoadedModel, *, batch_tokens: int = DEFAULT_BATCH_TOKENS) -> None:
        self.loaded = loaded
        self.chat = loaded.chat
        self.batch_tokens = batch_tokens
        self.shares_prefix = can_share_prefix(loaded.model)
        self._shape = loaded.shape
        self._cache_name = cache_name(loaded.model)
        self._usage = Usage()

    @property
    def fingerprint(self) -> PolicyFingerprint:
        return self.loaded.fingerprint

    @property
    def context_length(self) -> int | None:
        return self.loaded.context_length

    def count_tokens(self, state: State) -> int:
        return len(self.chat.prompt_ids(state))

    def take_usage(self) -> Usage:
        usage, self._usage = self._usage, Usage()
        return usage

    @torch.inference_mode()
    def sample(self, states: Sequence[State], *, n: int, params: SamplingParams, seed: int) -> list[Sampled]:
        prompts = [self.chat.prompt_ids(state) for state in states]
        finished: dict[int, list[_Row]] = {}
        for batch in self._batches(prompts, n, params.max_new_tokens):
            rows = [
                _Row(index, sample, uniforms(seed, states[index].key, sample, params.max_new_tokens))
                for index in batch
                for sample in range(n)
            ]
            self._generate([prompts[index] for index in batch], rows, n, params)
            for index, group in groupby(rows, key=lambda row: row.state):
                finished[index] = list(group)
        return [
            Sampled(
                prompt_ids=prompts[index], completions=tuple(self._completion(row, state) for row in finished[index])
            )
            for index, state in enumerate(states)
        ]

    def _batches(self, prompts: Sequence[Sequence[int]], n: int, new_tokens: int) -> Iterator[list[int]]:
        """States in order of length, as many as fit the token budget, at least one."""
        batch: list[int] = []
        for index in sorted(range(len(prompts)), key=lambda index: (len(prompts[index]), index)):
            if batch and (len(batch) + 1) * n * (len(prompts[index]) + new_tokens) > self.batch_tokens:
                yield batch
                batch = []
            batch.append(index)
        if batch:
            yield batch

    def _generate(self, prompts: list[tuple[int, ...]], rows: list[_Row], n: int, params: SamplingParams) -> None:
        model, device = self.loaded.model, next(self.loaded.model.parameters()).device
        longest = max(len(prompt) for prompt in prompts)
        ids_BP = torch.zeros((len(prompts), longest), dtype=torch.long)
        seen_BP = torch.zeros((len(prompts), longest), dtype=torch.long)
        for index, prompt in enumerate(prompts):
            ids_BP[index, longest - len(prompt) :] = torch.as_tensor(prompt)
            seen_BP[index, longest - len(prompt) :] = 1
        ids_BP, seen_BP = ids_BP.to(device), seen_BP.to(device)
        positions_BP = (seen_BP.cumsum(dim=1) - 1).clamp(min=0)
        output = model(ids_BP, attention_mask=seen_BP, position_ids=positions_BP, use_cache=True, logits_to_keep=1)
        cache = getattr(output, self._cache_name)
        cache.batch_repeat_interleave(n)
        logits_BV = output.logits[:, -1].repeat_interleave(n, dim=0)
        seen_BP = seen_BP.repeat_interleave(n, dim=0)
        lengths_B = seen_BP.sum(dim=1)
        self._count(prompts, n)
        self._decode(rows, _Decoding(self._cache_name, cache, logits_BV, seen_BP, lengths_B), params)
        self._count_generated(rows, prompts, n)

    def _decode(self, rows: list[_Row], now: _Decoding, params: SamplingParams) -> None:
        active = list(rows)
        for step in range(params.max_new_tokens):
            picks_B = pick_tokens(now.logits_BV, [row.numbers[step] for row in active], params)
            chosen_B = torch.log_softmax(now.logits_BV.float(), dim=-1).gather(1, picks_B[:, None])[:, 0]
            for row, token, logprob in zip(active, picks_B.tolist(), chosen_B.tolist(), strict=True):
                if not row.stopped:
                    row.ids.append(token)
                    row.logprobs.append(logprob)
                    row.stopped = token in self.chat.stop_ids
            alive = [index for index, row in enumerate(active) if not row.stopped]
            if not alive or step + 1 == params.max_new_tokens:
                return
            if len(alive) <= len(active) // 2:
                active = [active[index] for index in alive]
                keep_B = torch.as_tensor(alive, device=picks_B.device)
                picks_B = picks_B[keep_B]
                now.keep(keep_B)
            now.advance(self.loaded.model, picks_B)

    def _completion(self, row: _Row, state: State) -> Completion:
        text = self.chat.text_of(row.ids)
        parsed = self.chat.parse(text, state)
        return Completion(
            action=parsed.action,
            text=text,
            finish_reason="stop" if row.stopped else "length",
            token_ids=tuple(row.ids),
            logprob=float(sum(row.logprobs)),
            token_logprobs=tuple(row.logprobs),
            parse_error=parsed.error,
        )

    def _count(self, prompts: Sequence[Sequence[int]], n: int) -> None:
        tokens = sum(len(prompt) for prompt in prompts)
        flops = sum(forward_flops(self._shape, tokens=len(prompt)) for prompt in prompts)
        self._usage += Usage(prefilled_tokens=tokens, cached_tokens=tokens * (n - 1), flops=flops)

    def _count_generated(self, rows: Sequence[_Row], prompts: Sequence[Sequence[int]], n: int) -> None:
        flops = sum(
            forward_flops(self._shape, tokens=len(row.ids) - 1, context=len(prompts[index // n]))
            for index, row in enumerate(rows)
        )
        generated = sum(len(row.ids) for row in rows)
        self._usage += Usage(rollouts=len(rows), turns=len(rows), generated_tokens=generated, flops=flops)

    @torch.inference_mode()
    def logprobs(self, examples: Sequence[TrainingExample]) -> list[tuple[float, ...]]:
        """Log-probabilities of the examples' action tokens; neighbours with one prompt share its forward pass."""
        results: list[tuple[float, ...]] = []
        for prompt, group in groupby(examples, key=lambda example: example.prompt_ids):
            actions = [example.action_ids for example in group]
            logprobs_GT, _ = action_logprobs(self.loaded.model, prompt, actions, share=self.shares_prefix)
            results += [tuple(row[: len(action)]) for row, action in zip(logprobs_GT.tolist(), actions, strict=True)]
            times = 1 if self.shares_prefix else len(actions)
            flops = times * forward_flops(self._shape, tokens=len(prompt)) + sum(
                forward_flops(self._shape, tokens=len(action), context=len(prompt)) for action in actions
            )
            scored = times * len(prompt) + sum(len(action) for action in actions)
            self._usage += Usage(prefilled_tokens=scored, flops=flops)
        return results


@dataclass(slots=True)
class _Decoding:
    """What a batch carries from token to token."""

    cache_name: str
    cache: Any
    logits_BV: Tensor
    seen_BP: Tensor
    positions_B: Tensor

    def keep(self, rows_B: Tensor) -> None:
        self.cache.batch_select_indices(rows_B)
        self.seen_BP = self.seen_BP[rows_B]
        self.positions_B = self.positions_B[rows_B]

    def advance(self, model: Any, tokens_B: Tensor) -> None:
        self.seen_BP = torch.cat([self.seen_BP, self.seen_BP.new_ones((len(tokens_B), 1))], dim=1)
        output = model(
            tokens_B[:, None],
            attention_mask=self.seen_BP,
            position_ids=self.positions_B[:, None],
            use_cache=True,
            **{self.cache_name: self.cache},
        )
        self.logits_BV = output.logits[:, -1]
        self.positions_B = self.positions_B + 1


def pick_tokens(logits_BV: Tensor, numbers_B: Sequence[float], params: SamplingParams) -> Tensor:
    """One token per row: the arg max at temperature 0, else the inverse of the distribution function at its number."""
    if params.temperature == 0:
        return logits_BV.argmax(dim=-1)
    wide = torch.float32 if logits_BV.device.type == "mps" else torch.float64
    probabilities_BV = torch.softmax(logits_BV.to(wide) / params.temperature, dim=-1)
    if params.top_k > 0 or params.top_p < 1:
        probabilities_BV = _nucleus(probabilities_BV, params)
    cumulative_BV = probabilities_BV.cumsum(dim=-1)
    numbers_B1 = torch.as_tensor(np.asarray(numbers_B), dtype=wide, device=logits_BV.device)[:, None]
    picks_B1 = torch.searchsorted(cumulative_BV, numbers_B1 * cumulative_BV[:, -1:], right=True)
    return picks_B1[:, 0].clamp(max=logits_BV.shape[-1] - 1)


def _nucleus(probabilities_BV: Tensor, params: SamplingParams) -> Tensor:
    """Zero outside the top_k most likely tokens and outside the smallest set that holds top_p."""
    ordered_BV, order_BV = probabilities_BV.sort(dim=-1, descending=True, stable=True)
    before_BV = ordered_BV.cumsum(dim=-1) - ordered_BV
    keep_BV = before_BV < params.top_p
    if params.top_k > 0:
        keep_BV[:, params.top_k :] = False
    return torch.zeros_like(probabilities_BV).scatter(1, order_BV, ordered_BV * keep_BV)
