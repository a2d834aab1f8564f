"""Key-value caches of prompts, continued from call to call and branched into samples without copies.

Prompts that are states of one trajectory lie in one row, as the tree of their common beginnings (`prefill_tree`);
others have a row each (`prefill`). Samples are decoded side by side in the row of their prompt: each step feeds the row
the newest token of every branch that is still growing, and a mask lets a branch see its prompt and its own tokens only.
Keys and values of a prompt are kept once, whatever n is. Sliding windows are a matter of the mask. A model that cannot
do this (recurrent layers, biases by distance) gets a row for each sample, and its state is copied for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers.cache_utils import DynamicCache, DynamicLayer

from pivotrl.policies.forward import HALF, Mask, added_to_scores, cache_name, fork_cache, growing, probe, windows_of
from pivotrl.prefix_tree import Feed, PrefixTree, plan_walk

ROOM = 64
"""Tokens that a cache grows by when it is full."""
LONGEST_FEED = 1024
"""Tokens of a tree, or of a prompt, in one forward pass; what is masked is so many by all at most."""
_PADDING = -1
"""Branch of a slot that holds no token."""


@dataclass(slots=True)
class Draft:
    """One sample in the making."""

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

    def reorder_cache(self, beam_idx: Tensor) -> None:
        super().reorder_cache(beam_idx)
        self._room = None


def _with_room(states: Tensor, length: int) -> Tensor:
    room = states.new_zeros((*states.shape[:-2], length, states.shape[-1]))
    room[..., : states.shape[-2], :] = states
    return room


@dataclass(slots=True)
class Prefilled:
    """The caches of some prompts. `seen_PL` is True in the slots of a prompt's row that hold one of its tokens."""

    prompts: list[tuple[int, ...]]
    cache: Any
    logits_PV: Tensor
    seen_PL: Tensor
    one_row: bool = False
    """All prompts lie in the cache's only row; otherwise each has its own."""

    def copy(self) -> Prefilled:
        """The same caches; tokens that one of the two grows by are not seen by the other."""
        return replace(self, cache=fork_cache(self.cache))

    def repeated(self, times: int) -> Prefilled:
        """The caches of one prompt, laid out for as many that continue it."""
        rows_P = torch.zeros(times, dtype=torch.long, device=self.seen_PL.device)
        self.cache.reorder_cache(rows_P)
        return Prefilled(self.prompts * times, self.cache, self.logits_PV[rows_P], self.seen_PL[rows_P])

    def part(self, start: int, end: int) -> Prefilled:
        """Some of the prompts that lie in one row, to be decoded before others."""
        kept = slice(start, end)
        return replace(
            self.copy(), prompts=self.prompts[kept], logits_PV=self.logits_PV[kept], seen_PL=self.seen_PL[kept]
        )

    def continued_by(self, prompts: Sequence[tuple[int, ...]]) -> Prefilled | None:
        """The caches whose prompts these continue, in their order, the others dropped; None when one has none."""
        rows: list[int] = []
        held = iter(enumerate(self.prompts))
        for prompt in prompts:
            row = next((at for at, before in held if prompt[: len(before)] == before != prompt), None)
            if row is None:
                return None
            rows.append(row)
        if len(rows) < len(self.prompts):
            rows_P = torch.as_tensor(rows, device=self.seen_PL.device)
            self.cache.reorder_cache(rows_P)
            self.seen_PL = self.seen_PL[rows_P]
        return Prefilled([self.prompts[row] for row in rows], self.cache, self.logits_PV, self.seen_PL)


def prefill(model: Any, prompts: list[tuple[int, ...]], before: Prefilled | None, most: int | None = None) -> Prefilled:
    """Forward the prompts, or what they add to those before, each in a row of its own; padded on the left, so that the
    last slot is the last token of each. Of a row, at most `most` tokens in one pass (recurrent layers: None)."""
    device = model.device
    known = [len(prompt) for prompt in before.prompts] if before else [0] * len(prompts)
    added = [prompt[old:] for prompt, old in zip(prompts, known, strict=True)]
    ids_PT = pad_sequence([torch.as_tensor(ids, dtype=torch.long) for ids in added], True, padding_side="left")
    longest = ids_PT.shape[1]
    lengths_P1, known_P1 = (torch.as_tensor(one)[:, None] for one in ([*map(len, added)], known))
    seen_PT = torch.arange(longest) >= longest - lengths_P1
    positions_PT = (seen_PT.cumsum(dim=1) - 1).clamp(min=0) + known_P1
    seen_PL = seen_PT.to(device)
    if before:
        seen_PL = torch.cat([before.seen_PL, seen_PL], dim=1)
    cache, old, step = before.cache if before else None, seen_PL.shape[1] - longest, most or longest
    for start in range(0, longest, step):
        ids_PF, positions_PF = (one[:, start : start + step].to(device) for one in (ids_PT, positions_PT))
        output = model(
            ids_PF,
            attention_mask=_prefill_mask(model, seen_PL[:, : old + start + step], ids_PF.shape[1]),
            position_ids=positions_PF,
            use_cache=True,
            logits_to_keep=1,
            **growing(model, cache),
        )
        cache = _with_roomy_layers(getattr(output, cache_name(model)))
    return Prefilled(prompts, cache, output.logits[:, -1], seen_PL)


def _prefill_mask(model: Any, seen_PL: Tensor, fed: int) -> Mask:
    """For the last `fed` slots. Padding before them makes windows differ from distances in the row."""
    length = seen_PL.shape[1]
    if length == fed or not windows_of(model):
        return seen_PL.long()
    causal_TL = torch.ones((fed, length), dtype=torch.bool, device=seen_PL.device).tril(length - fed)
    return added_to_scores(model, seen_PL[:, None] & causal_TL)


def prefill_tree(model: Any, prompts: list[tuple[int, ...]], tree: PrefixTree) -> Prefilled:
    """Forward every token of the tree of these prompts once, into one row in the packed order."""
    device = model.device
    cache: Any = DynamicCache()
    logits: dict[int, Tensor] = {}
    for feed in plan_walk(tree, LONGEST_FEED):
        ends = [int(tree.length_L[index]) - 1 - feed.crop_to for index in feed.ends]
        output = model(
            torch.as_tensor(tree.ids_N[None, feed.start : feed.end], device=device),
            attention_mask=_tree_mask(model, tree, feed, device),
            position_ids=torch.as_tensor(tree.depth_N[None, feed.start : feed.end], device=device),
            use_cache=True,
            logits_to_keep=torch.as_tensor(ends or [0], device=device),
            **{cache_name(model): cache},
        )
        cache = _with_roomy_layers(getattr(output, cache_name(model)))
        logits |= dict(zip(feed.ends, output.logits[0], strict=False))
    seen_PN = np.zeros((len(prompts), len(tree.ids_N)), dtype=np.bool_)
    for index in range(len(prompts)):
        seen_PN[index, tree.positions(index)] = True
    logits_PV = torch.stack([logits[index] for index in range(len(prompts))])
    return Prefilled(prompts, cache, logits_PV, torch.as_tensor(seen_PN, device=device), one_row=True)


def _tree_mask(model: Any, tree: PrefixTree, feed: Feed, device: torch.device) -> Mask | None:
    """(1, 1, T, L) for a feed that does not see all that was fed before; None where the causal mask is right."""
    if feed.crop_to == feed.start:
        return None
    fed_T, all_L = np.arange(feed.start, feed.end), np.arange(feed.end)
    return added_to_scores(model, torch.as_tensor(tree.sees(fed_T[:, None], all_L), device=device)[None])


def _with_roomy_layers(cache: Any) -> Any:
    cache.layers = [RoomyLayer(layer) if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


def can_branch(model: Any) -> bool:
    """Whether branches of one row give what whole sequences give.

    Biases by distance (ALiBi) do not take a mask of four dimensions, or count slots; a model that overlooks the mask
    would mix its branches. Local attention under a name that `windows_of` does not know has to be refused unseen, since
    its windows may be longer than any trial.
    """
    kinds = getattr(model.config.get_text_config(), "attention_layers", ())
    return "local" not in kinds and _tried(model, [probe()], 3, packed=True)


def can_continue(model: Any) -> bool:
    """Whether steps with a cache, of prompts of two lengths, give what whole sequences give."""
    return _tried(model, [probe(40), probe(20)], 1, packed=False)


@torch.inference_mode()
def _tried(model: Any, prompts: list[tuple[int, ...]], n: int, *, packed: bool) -> bool:
    """Three steps of n samples of each prompt, against forward passes over whole sequences."""
    rows = [Draft(np.zeros(3), [at % 5]) for at in range(n * len(prompts))]
    device = model.device
    tolerance = 0.02 if model.dtype in HALF else 1e-3
    try:
        decoding = Decoding(model, prefill(model, prompts, None), rows, packed=packed)
        for token in (1, 0, 2):
            decoding.advance()
            sequences = [[*prompts[at // n], *row.ids] for at, row in enumerate(rows)]
            whole = [model(torch.as_tensor([ids], device=device), use_cache=False).logits[:, -1] for ids in sequences]
            whole_BV = torch.cat(whole)
            if (decoding.logits_BV - whole_BV).abs().max() > tolerance * (1 + whole_BV.abs().max()):
                return False
            for at, row in enumerate(rows):
                row.ids.append((token + at) % 5)
    except torch.OutOfMemoryError:
        raise
    except (ValueError, TypeError, RuntimeError, IndexError, AttributeError):
        return False
    return True


class Recomputing:
    """Stands in for `Decoding` where a model's cache is not understood: every step reads every row again."""

    def __init__(self, model: Any, prompts: Sequence[tuple[int, ...]], rows: Sequence[Draft]) -> None:
        self.model = model
        n = len(rows) // len(prompts)
        self._rows = [(prompts[at // n], row) for at, row in enumerate(rows)]
        self.advance()

    @property
    def growing(self) -> list[Draft]:
        return [row for _, row in self._rows]

    def drop_stopped(self) -> None:
        self._rows = [(prompt, row) for prompt, row in self._rows if not row.stopped]

    def advance(self) -> None:
        device = self.model.device
        groups = [list(group) for _, group in groupby(self._rows, key=lambda pair: pair[0])]
        ids = [torch.as_tensor([[*prompt, *row.ids] for prompt, row in group], device=device) for group in groups]
        self.logits_BV = torch.cat([self.model(one, use_cache=False).logits[:, -1] for one in ids])


class Decoding:
    """Samples of prefilled prompts, token by token. `rows` are n for each prompt, in the order of the prompts.

    _R rows of the cache, _B branches that grow, in the order of their rows, _M the most of them in one row.
    """

    def __init__(self, model: Any, start: Prefilled, rows: Sequence[Draft], *, packed: bool) -> None:
        self.model, self.cache_name, self.cache, self.packed = model, cache_name(model), start.cache, packed
        n = len(rows) // len(start.prompts)
        branches = [_Branch(at if start.one_row else at % n, at // n, row) for at, row in enumerate(rows)]
        if start.one_row:
            self.branches = [branches]
        elif packed:
            self.branches = [branches[at : at + n] for at in range(0, len(rows), n)]
        else:
            self.cache.reorder_cache(torch.as_tensor([one.prompt for one in branches], device=start.seen_PL.device))
            self.branches = [[branch] for branch in branches]
        self.seen_PL = start.seen_PL
        self.branch_RL = start.seen_PL.new_zeros((len(self.branches), 0), dtype=torch.long)
        """The branch of each slot behind the prompts."""
        self.lengths_P = torch.as_tensor([*map(len, start.prompts)])
        self.logits_BV = start.logits_PV.repeat_interleave(n, dim=0)
        self._steps = 0

    @property
    def growing(self) -> list[Draft]:
        """The rows that `logits_BV` is of, in its order."""
        return [branch.row for branches in self.branches for branch in branches]

    def drop_stopped(self) -> None:
        """Leave out rows that have stopped, and cache rows without any once they are half of all that are kept."""
        self.branches = [[branch for branch in branches if not branch.row.stopped] for branches in self.branches]
        alive = [row for row, branches in enumerate(self.branches) if branches]
        if 0 < len(alive) <= len(self.branches) // 2:
            rows_R = torch.as_tensor(alive, device=self.branch_RL.device)
            self.cache.reorder_cache(rows_R)
            self.branch_RL = self.branch_RL[rows_R]
            self.branches = [self.branches[row] for row in alive]

    def advance(self) -> None:
        """Feed the newest token of every growing row; `logits_BV` then is of what comes next."""
        device, rows, width = self.branch_RL.device, len(self.branches), max(map(len, self.branches))
        tokens_RM, prompt_RM = torch.zeros((2, rows, width), dtype=torch.long)
        branch_RM = torch.full((rows, width), _PADDING)
        for at, branches in enumerate(self.branches):
            for column, branch in enumerate(branches):
                tokens_RM[at, column], branch_RM[at, column] = branch.row.ids[-1], branch.number
                prompt_RM[at, column] = branch.prompt
            prompt_RM[at, len(branches) :] = prompt_RM[at, 0]
        branch_RM = branch_RM.to(device)
        self.branch_RL = torch.cat([self.branch_RL, branch_RM], dim=1)
        output = self.model(
            tokens_RM.to(device),
            attention_mask=self._mask(branch_RM, prompt_RM.to(device)),
            position_ids=(self.lengths_P[prompt_RM] + self._steps).to(device),
            use_cache=True,
            **{self.cache_name: self.cache},
        )
        self._steps += 1
        self.logits_BV = output.logits[branch_RM >= 0]

    def _mask(self, branch_RM: Tensor, prompt_RM: Tensor) -> Mask:
        """Who sees what: (R, L) of ones and zeros for a row per sample, else (R, 1, M, L) to be added to the scores."""
        if not self.packed:
            return torch.cat([self.seen_PL[prompt_RM[:, 0]], self.branch_RL != _PADDING], dim=1).long()
        own_RML = (self.branch_RL[:, None] == branch_RM[:, :, None]) & (branch_RM >= 0)[:, :, None]
        return added_to_scores(self.model, torch.cat([self.seen_PL[prompt_RM], own_RML], dim=2))


@dataclass(frozen=True, slots=True)
class _Branch:
    """A sample's place: its number within the cache's row, and its prompt's among those that were prefilled."""

    number: int
    prompt: int
    row: Draft
