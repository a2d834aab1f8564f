"""Samples actions in process from any Hugging Face causal language model.

The states of a trajectory, and whatever else lies on one trunk, are forwarded as a tree, every token once; other states
are forwarded one by one. The samples of a state branch off it.

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
from itertools import chain, groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pivotrl.ledger import Meter, forward_flops
from pivotrl.logs import say
from pivotrl.models import LoadedModel
from pivotrl.policies.decoding import (
    LONGEST_FEED,
    Decoding,
    Draft,
    Prefilled,
    Recomputing,
    can_branch,
    can_continue,
    prefill,
    prefill_tree,
)
from pivotrl.policies.forward import Trunks, action_logprobs, can_share_prefix, common_length, group_cost
from pivotrl.prefix_tree import build_tree, plan_walk, shared_trunks
from pivotrl.types import PolicyFingerprint, Sampled, SamplingParams, State, TrainingExample, Usage

DEFAULT_BATCH_TOKENS = 32_768
REMEMBERED = 256
"""Rendered states that are kept between counting and sampling."""
MOST_BRANCHES = 64
"""Samples that stand side by side behind one trunk; each pays for the tokens of all."""


def uniforms(seed: int, key: str, sample: int, count: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """`count` uniform numbers of the stream (seed, key, sample)."""
    digest = hashlib.sha256(f"{seed}/{key}/{sample}".encode()).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "little"))).random(count)


class TorchPolicy(Meter):
    """A loaded model as a policy. It samples with the weights that the model has at the call."""

    def __init__(self, loaded: LoadedModel, *, batch_tokens: int = DEFAULT_BATCH_TOKENS) -> None:
        self.loaded, self.chat, self.batch_tokens = loaded, loaded.chat, batch_tokens
        self.shares_prefix = can_share_prefix(loaded.model)
        self._shape, self.context_length = loaded.shape, loaded.context_length
        self._keeps = False
        self._kept: Prefilled | None = None
        self._rendered: dict[str, tuple[State, tuple[int, ...]]] = {}

    @cached_property
    def branches(self) -> bool:
        """Whether the samples of a state can stand side by side in one row; tried when it is first asked."""
        return self.shares_prefix and can_branch(self.loaded.model)

    @cached_property
    def continues(self) -> bool:
        """Whether its cache can be grown token by token; if not, that is said once, and everything is read again."""
        if self.branches or can_continue(self.loaded.model):
            return True
        kind = type(self.loaded.model).__name__
        say(f"warning: {kind}: its cache is not understood, so every token reads the whole prompt again, slowly")
        return False

    @property
    def fingerprint(self) -> PolicyFingerprint:
        return self.loaded.fingerprint

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

    @contextlib.contextmanager
    def conversations(self) -> Iterator[None]:
        self._keeps = self.branches  # elsewhere padding between turns may count as distance
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
        rows = [
            [Draft(uniforms(seed, state.key, sample, params.max_new_tokens)) for sample in range(first, first + n)]
            for state in states
        ]
        alone = [*range(len(states))]
        if self.branches and not self._keeps:
            trunks, alone = shared_trunks(prompts)
            for trunk in trunks:
                self._along_trunk([prompts[index] for index in trunk], [rows[index] for index in trunk], params)
        for batch in self._batches([prompts[index] for index in alone], n, params.max_new_tokens):
            chosen = [alone[at] for at in batch]
            self._generate([prompts[index] for index in chosen], [rows[index] for index in chosen], params)
        read = self.chat.completion
        return [
            Sampled(prompt_ids=prompt, completions=tuple(read(row.ids, state, row.logprobs) for row in made))
            for prompt, made, state in zip(prompts, rows, states, strict=True)
        ]

    def _batches(self, prompts: Sequence[Sequence[int]], n: int, new_tokens: int) -> Iterator[list[int]]:
        """As many states as fit the token budget, at least one; in order of length where they do not all fit."""
        longest, order = max(map(len, prompts), default=0), [*range(len(prompts))]
        if len(prompts) * n * (longest + new_tokens) > self.batch_tokens:
            order.sort(key=lambda index: len(prompts[index]))
        batch: list[int] = []
        for index in order:
            if batch and (len(batch) + 1) * n * (len(prompts[index]) + new_tokens) > self.batch_tokens:
                yield batch
                batch = []
            batch.append(index)
        if batch:
            yield batch

    def _generate(self, prompts: list[tuple[int, ...]], rows: list[list[Draft]], params: SamplingParams) -> None:
        """Prompts that have little in common, or go on where those of the call before ended."""
        n = len(rows[0])
        if not self.continues:
            self._count([(0, len(prompt)) for prompt in prompts])
            self._grow(Recomputing(self.loaded.model, prompts, list(chain(*rows))), params)
            lengths = self._count_generated(prompts, rows)
            again = [(0, old + new) for old, length in lengths for new in range(1, length)]  # by every further step
            self._count([*again, *((0, old) for at, (old, _) in enumerate(lengths) if at % n)])
            return
        before, self._kept = self._kept, None
        before = before.continued_by(prompts) if before else None
        before = before or self._common_start(prompts)
        known = [len(prompt) for prompt in before.prompts] if before else [0] * len(prompts)
        self._count(list(zip(known, map(len, prompts), strict=True)))
        self._usage += Usage(cached_tokens=sum(known) + sum(map(len, prompts)) * (n - 1))
        now = prefill(self.loaded.model, prompts, before, LONGEST_FEED if self.branches else None)
        if self._keeps and n == 1:
            self._kept = now.copy()
        self._decode(now, rows, params)

    def _along_trunk(self, prompts: list[tuple[int, ...]], rows: list[list[Draft]], params: SamplingParams) -> None:
        """Prompts that nearly all lie on one trunk: every token once, samples as branches, some prompts at a time."""
        n, tree = len(rows[0]), build_tree(prompts)
        now = prefill_tree(self.loaded.model, prompts, tree)
        self._count([(feed.crop_to, feed.crop_to + feed.end - feed.start) for feed in plan_walk(tree)])
        self._usage += Usage(cached_tokens=n * tree.total - len(tree.ids_N))
        step = max(1, min(MOST_BRANCHES, self.batch_tokens // params.max_new_tokens) // n)
        for start in range(0, len(prompts), step):
            self._decode(now.part(start, start + step), rows[start : start + step], params)

    def _common_start(self, prompts: list[tuple[int, ...]]) -> Prefilled | None:
        """What all prompts begin with, forwarded once and laid out for each; None where that saves nothing."""
        length = common_length(prompts) if self.branches and len(prompts) > 1 else 0
        if not length:
            return None
        self._count([(0, length)])
        self._usage += Usage(cached_tokens=-length)  # each prompt counts it as known, but one had to be forwarded
        return prefill(self.loaded.model, [prompts[0][:length]], None, LONGEST_FEED).repeated(len(prompts))

    def _decode(self, start: Prefilled, rows: list[list[Draft]], params: SamplingParams) -> None:
        """Fill the rows, n of each prompt."""
        self._grow(Decoding(self.loaded.model, start, list(chain(*rows)), packed=self.branches), params)
        self._count_generated(start.prompts, rows)

    def _count_generated(
        self, prompts: Sequence[Sequence[int]], rows: Sequence[Sequence[Draft]]
    ) -> list[tuple[int, int]]:
        """(tokens of the prompt, tokens generated) of every sample."""
        lengths = [(len(prompt), len(row.ids)) for prompt, group in zip(prompts, rows, strict=True) for row in group]
        flops = sum(forward_flops(self._shape, tokens=new - 1, context=old) for old, new in lengths)
        generated = sum(new for _, new in lengths)
        self._usage += Usage(rollouts=len(lengths), turns=len(lengths), generated_tokens=generated, flops=flops)
        return lengths

    def _grow(self, now: Decoding | Recomputing, params: SamplingParams) -> None:
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

    def _count(self, forwarded: Sequence[tuple[int, int]]) -> None:
        """Prompt tokens that were forwarded, as ranges of positions."""
        flops = sum(forward_flops(self._shape, tokens=end - start, context=start) for start, end in forwarded)
        self._usage += Usage(prefilled_tokens=sum(end - start for start, end in forwarded), flops=flops)

    @torch.inference_mode()
    def logprobs(self, examples: Sequence[TrainingExample]) -> list[tuple[float, ...]]:
        """Log-probabilities of the examples' action tokens; neighbours share their prompt's forward pass."""
        groups = [list(group) for _, group in groupby(examples, key=lambda example: example.prompt_ids)]
        found: dict[int, list[tuple[float, ...]]] = {}
        prompts = [group[0].prompt_ids for group in groups]
        trunks = Trunks(self.loaded.model, prompts, share=self.shares_prefix, pack=self.branches)
        for index, trunk in trunks:
            prompt, actions = groups[index][0].prompt_ids, [example.action_ids for example in groups[index]]
            logprobs_GT, _ = action_logprobs(self.loaded.model, prompt, actions, trunk=trunk)
            rows = zip(logprobs_GT.tolist(), actions, strict=True)
            found[index] = [tuple(row[: len(action)]) for row, action in rows]
            tokens, flops = group_cost(self._shape, prompt, actions, trunk)
            self._usage += Usage(prefilled_tokens=tokens, flops=flops)
        self._count(trunks.forwarded)
        return [row for index in range(len(groups)) for row in found[index]]


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
