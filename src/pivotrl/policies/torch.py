"""Samples actions in process from any Hugging Face causal language model: one prefill per state, shared by its samples.

Inside `with policy.conversations():` a call whose states continue those of the call before, in their order, prefills
only what is new in each; what the model said itself is read again from the rendered state, so that sampled ids that a
template would render otherwise do no harm.

The random numbers of a sample come from a stream of its own, keyed by (seed, state, sample): what else is in the batch
changes nothing but rounding. One uniform number per token picks from the cumulative distribution.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pivotrl.ledger import forward_flops, group_cost
from pivotrl.models import LoadedModel
from pivotrl.policies.decoding import Decoding, Prefilled, Row, can_branch, prefill
from pivotrl.policies.forward import Trunk, action_logprobs, cache_name, can_share_prefix, common_length
from pivotrl.types import Completion, PolicyFingerprint, Sampled, SamplingParams, State, TrainingExample, Usage

DEFAULT_BATCH_TOKENS = 32_768
REMEMBERED = 256
"""Rendered states that are kept between counting and sampling."""


def uniforms(seed: int, key: str, sample: int, count: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """`count` uniform numbers of the stream (seed, key, sample)."""
    digest = hashlib.sha256(f"{seed}/{key}/{sample}".encode()).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "little"))).random(count)


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
        self._keeps = False
        self._kept: Prefilled | None = None
        self._rendered: dict[str, tuple[State, tuple[int, ...]]] = {}

    @cached_property
    def branches(self) -> bool:
        """Whether the samples of a state can stand side by side in one row; tried when it is first asked."""
        return self.shares_prefix and can_branch(self.loaded.model, self._cache_name)

    @property
    def fingerprint(self) -> PolicyFingerprint:
        return self.loaded.fingerprint

    @property
    def context_length(self) -> int | None:
        return self.loaded.context_length

    def count_tokens(self, state: State) -> int:
        if len(self._rendered) == REMEMBERED:
            self._rendered.clear()
        ids = self.chat.prompt_ids(state)
        self._rendered[state.key] = state, ids
        return len(ids)

    def _prompt(self, state: State) -> tuple[int, ...]:
        """The state's ids; what was counted just before is not rendered again."""
        known, ids = self._rendered.get(state.key, (None, ()))
        return ids if known == state else self.chat.prompt_ids(state)

    def take_usage(self) -> Usage:
        usage, self._usage = self._usage, Usage()
        return usage

    @contextlib.contextmanager
    def conversations(self) -> Iterator[None]:
        self._keeps = self.shares_prefix
        try:
            yield
        finally:
            self._keeps, self._kept = False, None

    @torch.inference_mode()
    def sample(
        self, states: Sequence[State], *, n: int, params: SamplingParams, seed: int, first: int = 0
    ) -> list[Sampled]:
        prompts = [self._prompt(state) for state in states]
        self._rendered.clear()
        finished: dict[int, list[Row]] = {}
        for batch in self._batches(prompts, n, params.max_new_tokens):
            rows = [
                Row(index, sample, uniforms(seed, states[index].key, sample, params.max_new_tokens))
                for index in batch
                for sample in range(first, first + n)
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
        """As many states as fit the token budget, at least one; in order of length where they do not all fit."""
        longest = max(map(len, prompts), default=0)
        if len(prompts) * n * (longest + new_tokens) <= self.batch_tokens:
            if prompts:
                yield [*range(len(prompts))]
            return
        batch: list[int] = []
        for index in sorted(range(len(prompts)), key=lambda index: (len(prompts[index]), index)):
            if batch and (len(batch) + 1) * n * (len(prompts[index]) + new_tokens) > self.batch_tokens:
                yield batch
                batch = []
            batch.append(index)
        if batch:
            yield batch

    def _generate(self, prompts: list[tuple[int, ...]], rows: list[Row], n: int, params: SamplingParams) -> None:
        before, self._kept = self._kept, None
        before = before.continued_by(prompts) if before else None
        before = before or self._common_start(prompts)
        now = prefill(self.loaded.model, self._cache_name, prompts, before)
        if self._keeps and n == 1:
            self._kept = now.copy()
        self._count(prompts, n, before)
        self._decode(Decoding(self.loaded.model, self._cache_name, now, rows, packed=self.branches), params)
        self._count_generated(rows, prompts, n)

    def _common_start(self, prompts: list[tuple[int, ...]]) -> Prefilled | None:
        """What all prompts begin with, forwarded once and laid out for each; None where that saves nothing."""
        length = common_length(prompts) if self.shares_prefix and len(prompts) > 1 else 0
        if not length:
            return None
        start = [prompts[0][:length]]
        self._count(start, 1, None)
        self._usage += Usage(cached_tokens=-length)  # each prompt counts it as known, but one had to be forwarded
        return prefill(self.loaded.model, self._cache_name, start, None).repeated(len(prompts))

    def _decode(self, now: Decoding, params: SamplingParams) -> None:
        for step in range(params.max_new_tokens):
            growing = now.growing
            picks_B = pick_tokens(now.logits_BV, [row.numbers[step] for row in growing], params)
            chosen_B = torch.log_softmax(now.logits_BV.float(), dim=-1).gather(1, picks_B[:, None])[:, 0]
            for row, token, logprob in zip(growing, picks_B.tolist(), chosen_B.tolist(), strict=True):
                row.ids.append(token)
                row.logprobs.append(logprob)
                row.stopped = token in self.chat.stop_ids
            now.drop_stopped()
            if not now.growing or step + 1 == params.max_new_tokens:
                return
            now.advance()

    def _completion(self, row: Row, state: State) -> Completion:
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

    def _count(self, prompts: Sequence[Sequence[int]], n: int, before: Prefilled | None) -> None:
        known = [len(prompt) for prompt in before.prompts] if before else [0] * len(prompts)
        pairs = list(zip(prompts, known, strict=True))
        tokens = sum(len(prompt) - old for prompt, old in pairs)
        flops = sum(forward_flops(self._shape, tokens=len(prompt) - old, context=old) for prompt, old in pairs)
        cached = sum(known) + sum(map(len, prompts)) * (n - 1)
        self._usage += Usage(prefilled_tokens=tokens, cached_tokens=cached, flops=flops)

    def _count_generated(self, rows: Sequence[Row], prompts: Sequence[Sequence[int]], n: int) -> None:
        flops = sum(
            forward_flops(self._shape, tokens=len(row.ids) - 1, context=len(prompts[index // n]))
            for index, row in enumerate(rows)
        )
        generated = sum(len(row.ids) for row in rows)
        self._usage += Usage(rollouts=len(rows), turns=len(rows), generated_tokens=generated, flops=flops)

    @torch.inference_mode()
    def logprobs(self, examples: Sequence[TrainingExample]) -> list[tuple[float, ...]]:
        """Log-probabilities of the examples' action tokens; neighbours share their prompt's forward pass."""
        results: list[tuple[float, ...]] = []
        shares = self.shares_prefix and bool(examples)
        trunk = Trunk(self.loaded.model, [one.prompt_ids for one in examples]) if shares else None
        known = trunk.length if trunk else 0
        self._usage += Usage(prefilled_tokens=known, flops=forward_flops(self._shape, tokens=known))
        for prompt, group in groupby(examples, key=lambda example: example.prompt_ids):
            actions = [example.action_ids for example in group]
            logprobs_GT, _ = action_logprobs(
                self.loaded.model, prompt, actions, share=shares, pack=self.branches, trunk=trunk
            )
            results += [tuple(row[: len(action)]) for row, action in zip(logprobs_GT.tolist(), actions, strict=True)]
            lengths = [len(action) for action in actions]
            tokens, flops = group_cost(self._shape, len(prompt), lengths, known=known, share=shares)
            self._usage += Usage(prefilled_tokens=tokens, flops=flops)
        return results


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
