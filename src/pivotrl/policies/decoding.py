"""Key-value caches of a batch of prompts, continued from call to call and branched into samples without copies.

The n samples of a prompt are decoded side by side in one row: each step feeds the row the newest token of every branch
that is still growing, and a mask lets a branch see the prompt and its own tokens only. The prompt's keys and values are
kept once, whatever n is. A model that cannot do this (sliding windows, recurrent layers) gets a row for each sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import DynamicLayer

from pivotrl.policies.forward import added_to_scores, fork_cache

ROOM = 64
"""Tokens that a cache grows by when it is full."""
_PADDING, _PROMPT = -2, -1
"""Owners of cache slots that no branch sees, and that every branch sees."""


@dataclass(slots=True)
class Row:
    """One sample in the making."""

    state: int
    """Index of its prompt."""
    sample: int
    numbers: np.ndarray[Any, np.dtype[np.float64]]
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    stopped: bool = False


class RoomyLayer(DynamicLayer):  # type: ignore[misc]
    """A plain cache layer with room behind its last token, so that a step appends instead of copying all."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.lazy_initialization(layer.keys, layer.values)
        self.keys, self.values = layer.keys, layer.values
        self._room: tuple[Tensor, Tensor] | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        old = self.keys.shape[-2]
        new = old + key_states.shape[-2]
        if self._room is None or self._room[0].shape[-2] < new:
            self._room = _with_room(self.keys, new + ROOM), _with_room(self.values, new + ROOM)
        for room, added in zip(self._room, (key_states, value_states), strict=True):
            room[..., old:new, :] = added
        self.keys, self.values = (room[..., :new, :] for room in self._room)
        return self.keys, self.values

    def batch_repeat_interleave(self, repeats: int) -> None:
        super().batch_repeat_interleave(repeats)
        self._room = None

    def batch_select_indices(self, indices: Tensor) -> None:
        super().batch_select_indices(indices)
        self._room = None


def _with_room(states: Tensor, length: int) -> Tensor:
    room = states.new_zeros((*states.shape[:-2], length, states.shape[-1]))
    room[..., : states.shape[-2], :] = states
    return room


@dataclass(slots=True)
class Prefilled:
    """The caches of some prompts. `owner_SL` is _PROMPT in the slots that hold a token, else _PADDING."""

    prompts: list[tuple[int, ...]]
    cache: Any
    logits_SV: Tensor
    owner_SL: Tensor

    def copy(self) -> Prefilled:
        """The same caches; tokens that one of the two grows by are not seen by the other."""
        return Prefilled(self.prompts, fork_cache(self.cache), self.logits_SV, self.owner_SL)

    def repeated(self, times: int) -> Prefilled:
        """The caches of one prompt, laid out for as many that continue it."""
        self.cache.batch_repeat_interleave(times)
        owner_SL, logits_SV = (one.repeat_interleave(times, dim=0) for one in (self.owner_SL, self.logits_SV))
        return Prefilled(self.prompts * times, self.cache, logits_SV, owner_SL)

    def continued_by(self, prompts: Sequence[tuple[int, ...]]) -> Prefilled | None:
        """The caches whose prompts these continue, in their order, the others dropped; None when one has none."""
        rows: list[int] = []
        at = 0
        for prompt in prompts:
            while at < len(self.prompts) and not _continues(prompt, self.prompts[at]):
                at += 1
            rows.append(at)
            at += 1
        if at > len(self.prompts):
            return None
        if len(rows) < len(self.prompts):
            rows_S = torch.as_tensor(rows, device=self.owner_SL.device)
            self.cache.batch_select_indices(rows_S)
            self.owner_SL = self.owner_SL[rows_S]
        return Prefilled([self.prompts[row] for row in rows], self.cache, self.logits_SV, self.owner_SL)


def _continues(prompt: tuple[int, ...], before: tuple[int, ...]) -> bool:
    return len(prompt) > len(before) and prompt[: len(before)] == before


def prefill(model: Any, cache_name: str, prompts: list[tuple[int, ...]], before: Prefilled | None) -> Prefilled:
    """Forward the prompts, or what they add to those before; padded on the left, so that the last slot is the last
    token of each."""
    device = next(model.parameters()).device
    known = [len(prompt) for prompt in before.prompts] if before else [0] * len(prompts)
    added = [prompt[old:] for prompt, old in zip(prompts, known, strict=True)]
    longest = max(map(len, added))
    ids_SP = torch.zeros((len(prompts), longest), dtype=torch.long)
    owner_SL = torch.full((len(prompts), longest), _PADDING)
    for index, ids in enumerate(added):
        ids_SP[index, longest - len(ids) :] = torch.as_tensor(ids)
        owner_SL[index, longest - len(ids) :] = _PROMPT
    ids_SP, owner_SL = ids_SP.to(device), owner_SL.to(device)
    seen_SP = owner_SL == _PROMPT
    positions_SP = (seen_SP.cumsum(dim=1) - 1).clamp(min=0) + torch.as_tensor(known, device=device)[:, None]
    if before:
        owner_SL = torch.cat([before.owner_SL, owner_SL], dim=1)
    output = model(
        ids_SP,
        attention_mask=(owner_SL == _PROMPT).long(),
        position_ids=positions_SP,
        use_cache=True,
        logits_to_keep=1,
        **({cache_name: before.cache} if before else {}),
    )
    cache = getattr(output, cache_name)
    cache.layers = [RoomyLayer(layer) if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return Prefilled(prompts, cache, output.logits[:, -1], owner_SL)


@torch.inference_mode()
def can_branch(model: Any, cache_name: str) -> bool:
    """Whether branches of one row give what separate rows give: tried on three tokens.

    Biases by distance (ALiBi) do not take a mask of four dimensions; a model that overlooks it would mix its branches.
    """
    ids = (2, 1, 0)
    try:
        plain_2V = torch.cat([prefill(model, cache_name, [(ids[0], one)], None).logits_SV for one in ids[1:]])
        rows = [Row(0, sample, np.zeros(1), [one]) for sample, one in enumerate(ids[1:])]
        decoding = Decoding(model, cache_name, prefill(model, cache_name, [ids[:1]], None), rows, packed=True)
        decoding.advance()
    except (ValueError, TypeError, RuntimeError, IndexError):
        return False
    return bool((decoding.logits_BV - plain_2V).abs().max() <= 0.02 * (1 + plain_2V.abs().max()))


class Decoding:
    """Samples of prefilled prompts, token by token. `rows` are n for each prompt, in the order of the prompts."""

    def __init__(self, model: Any, cache_name: str, start: Prefilled, rows: Sequence[Row], *, packed: bool) -> None:
        self.model, self.cache_name, self.cache, self.packed = model, cache_name, start.cache, packed
        n = len(rows) // len(start.prompts)
        self.owner_SL, logits_SV, lengths = start.owner_SL, start.logits_SV, [len(one) for one in start.prompts]
        groups = [list(rows[at : at + n]) for at in range(0, len(rows), n)]
        if not packed and n > 1:
            self.cache.batch_repeat_interleave(n)
            self.owner_SL, logits_SV = (one.repeat_interleave(n, dim=0) for one in (self.owner_SL, logits_SV))
            groups, lengths = [[row] for row in rows], [length for length in lengths for _ in range(n)]
        self.branches = [list(enumerate(group)) for group in groups]
        """By state: (branch, row) of those that are still growing."""
        self.positions_S = torch.as_tensor(lengths, device=self.owner_SL.device)
        self.logits_BV = logits_SV.repeat_interleave(torch.as_tensor([*map(len, groups)], device=logits_SV.device), 0)

    @property
    def growing(self) -> list[Row]:
        """The rows that `logits_BV` is of, in its order."""
        return [row for branches in self.branches for _, row in branches]

    def drop_stopped(self) -> None:
        """Leave out rows that have stopped, and states without rows once they are half of all that are kept."""
        self.branches = [[(at, row) for at, row in branches if not row.stopped] for branches in self.branches]
        alive = [state for state, branches in enumerate(self.branches) if branches]
        if 0 < len(alive) <= len(self.branches) // 2:
            rows_S = torch.as_tensor(alive, device=self.owner_SL.device)
            self.cache.batch_select_indices(rows_S)
            self.owner_SL, self.positions_S = self.owner_SL[rows_S], self.positions_S[rows_S]
            self.branches = [self.branches[state] for state in alive]

    def advance(self) -> None:
        """Feed the newest token of every growing row; `logits_BV` then is of what comes next."""
        device, states, width = self.owner_SL.device, len(self.branches), max(map(len, self.branches))
        tokens_SM = torch.zeros((states, width), dtype=torch.long)
        branch_SM = torch.full((states, width), _PADDING)
        for state, branches in enumerate(self.branches):
            for column, (branch, row) in enumerate(branches):
                tokens_SM[state, column], branch_SM[state, column] = row.ids[-1], branch
        branch_SM = branch_SM.to(device)
        self.owner_SL = torch.cat([self.owner_SL, branch_SM], dim=1)
        output = self.model(
            tokens_SM.to(device),
            attention_mask=self._mask(branch_SM),
            position_ids=self.positions_S[:, None].expand(-1, width),
            use_cache=True,
            **{self.cache_name: self.cache},
        )
        self.positions_S = self.positions_S + 1
        self.logits_BV = output.logits[branch_SM >= 0]

    def _mask(self, branch_SM: Tensor) -> Tensor:
        """Who sees what: (S, L) of ones and zeros for a row per sample, else (S, 1, M, L) to be added to the scores."""
        if not self.packed:
            return (self.owner_SL != _PADDING).long()
        owner_S1L = self.owner_SL[:, None]
        seen_SML = (owner_S1L == _PROMPT) | ((owner_S1L == branch_SM[:, :, None]) & (owner_S1L != _PADDING))
        return added_to_scores(seen_SML, self.model.dtype)[:, None]
