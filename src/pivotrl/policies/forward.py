"""Log-probabilities of actions by a torch model, with or without gradient: one way for learner, reference and tests.

What prompts begin with is forwarded once (`Trunks`), and so is the rest of each; its actions stand side by side in one
row behind these keys and values, which stay in the graph, and logits are made for action tokens only. Where a model
cannot keep actions apart there (`decoding.can_branch`), the cache is repeated for each. Models with recurrent layers
forward prompt and action together; `can_share_prefix` decides.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from pivotrl.ledger import forward_flops
from pivotrl.prefix_tree import shared_length, shared_trunks
from pivotrl.types import ModelShape

Mask = Tensor | dict[str, Tensor]
"""What a model adds to its attention scores; by layer type where these differ."""


def can_share_prefix(model: Any) -> bool:
    """Whether every layer attends to keys and values, to all of them or within a window."""
    config = model.config.get_text_config()
    kinds = getattr(config, "layer_types", None)
    if kinds is not None:
        return all(kind in ("full_attention", "sliding_attention") for kind in kinds)
    return not any("mamba" in name or "rwkv" in name or "conv1d" in name for name, _ in model.named_modules())


def cache_name(model: Any) -> str:
    """What this model calls its key-value cache, as argument and as output (transformers renamed it in 5.x)."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


def growing(model: Any, cache: Any) -> dict[str, Any]:
    """The argument that carries a cache, or begins one. Windows get a whole one: what they hide, masks hide too."""
    if cache is None and not windows_of(model):
        return {}
    return {cache_name(model): DynamicCache() if cache is None else cache}


def fork_cache(cache: Any) -> Any:
    """A cache with the same tokens; what one of the two grows by is not seen by the other."""
    fork = copy.copy(cache)
    fork.layers = [copy.copy(layer) for layer in cache.layers]
    return fork


def windows_of(model: Any) -> dict[str, int | None]:
    """Attention window by layer type, None for a full one; empty where no layer has a window."""
    config = model.config.get_text_config()
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        return {} if window is None else {"": window}
    return {kind: window if kind == "sliding_attention" else None for kind in kinds} if window else {}


def added_to_scores(model: Any, seen_BQL: Tensor) -> Mask:
    """(B, 1, Q, L): 0 where something is seen, the least number of the model's type elsewhere.

    What a query sees are its own token and those that it follows. By layer type where the model has several: a window
    of W hides all but the last W of them.
    """
    windows = windows_of(model) or {"": None}
    masks = {kind: _added(_within(seen_BQL, window), model.dtype) for kind, window in windows.items()}
    return masks.get("", masks)


def _within(seen_BQL: Tensor, window: int | None) -> Tensor:
    if window is None:
        return seen_BQL
    later_BQL = seen_BQL.sum(dim=-1, keepdim=True) - seen_BQL.cumsum(dim=-1)
    return seen_BQL & (later_BQL < window)


def _added(seen_BQL: Tensor, dtype: torch.dtype) -> Tensor:
    zeros_BQL = torch.zeros(seen_BQL.shape, dtype=dtype, device=seen_BQL.device)
    return zeros_BQL.masked_fill(~seen_BQL, torch.finfo(dtype).min)[:, None]


def pad_right(rows: Sequence[Sequence[int]], value: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """(ids_BT, mask_BT): rows padded on the right, mask True on real tokens."""
    longest = max(len(row) for row in rows)
    ids_BT = torch.full((len(rows), longest), value, dtype=torch.long)
    mask_BT = torch.zeros((len(rows), longest), dtype=torch.bool)
    for index, row in enumerate(rows):
        ids_BT[index, : len(row)] = torch.as_tensor(row, dtype=torch.long)
        mask_BT[index, : len(row)] = True
    return ids_BT.to(device), mask_BT.to(device)


def common_length(prompts: Sequence[Sequence[int]]) -> int:
    """How many tokens all prompts begin with; no prompt is taken whole. Raises ValueError without prompts."""
    shortest = max(0, min(map(len, prompts)) - 1)
    columns = zip(*(prompt[:shortest] for prompt in prompts), strict=True)
    return next((at for at, ids in enumerate(columns) if len(set(ids)) > 1), shortest)


class Trunk:
    """The keys and values of what some prompts begin with, forwarded once, behind those of a parent if there is one.

    What hangs on it is differentiated branch by branch, as soon as it is forwarded; the gradients that arrive at the
    keys and values are added up, and `backward` sends their sum through the trunk. That is the gradient of the whole.
    """

    def __init__(self, model: Any, ids: Sequence[int], parent: Trunk | None = None) -> None:
        self.ids = tuple(ids)
        self.start = shared_length(parent.ids, ids) if parent else 0
        """Tokens that the parent has."""
        self._made: list[Tensor] = []
        self._leaves: list[Tensor] = []
        if not ids:
            return
        before = growing(model, parent.branch(self.start) if parent else None)
        ids_1P = torch.as_tensor([list(self.ids[self.start :])], device=next(model.parameters()).device)
        self._cache = getattr(model(ids_1P, use_cache=True, logits_to_keep=1, **before), cache_name(model))
        for layer in self._cache.layers:
            self._made += [layer.keys, layer.values]
            layer.keys, layer.values = (one.detach().requires_grad_(one.requires_grad) for one in self._made[-2:])
            self._leaves += [layer.keys, layer.values]

    def held(self, prompt: Sequence[int]) -> int:
        """How much of a prompt it has; never the last token, since that predicts an action."""
        return min(shared_length(self.ids, prompt), len(prompt) - 1)

    def branch(self, length: int) -> Any:
        """A cache that starts with so much of the trunk, to be grown by one branch; None for nothing."""
        if not length:
            return None
        fork = fork_cache(self._cache)
        if length < len(self.ids):
            for layer in fork.layers:
                layer.keys, layer.values = layer.keys[..., :length, :], layer.values[..., :length, :]
        return fork

    def backward(self) -> None:
        """Send the gradients that the branches left at the trunk through it."""
        pairs = [
            (made, leaf.grad) for made, leaf in zip(self._made, self._leaves, strict=True) if leaf.grad is not None
        ]
        if pairs:
            torch.autograd.backward([made for made, _ in pairs], [grad for _, grad in pairs])


class Trunks:
    """Iterates over prompts in the order in which they should be forwarded, each with the trunk that it hangs on.

    There is one for what all begin with, and behind it one for each bundle of prompts along a trajectory. When its
    prompts are through, a trunk sends their gradients on; so forward and differentiate each before asking for the next.
    """

    def __init__(self, model: Any, prompts: Sequence[tuple[int, ...]], *, share: bool) -> None:
        self.model, self.prompts, self.share = model, prompts, share
        self.forwarded: list[tuple[int, int]] = []
        """Ranges of positions of the trunks, as they are forwarded."""

    def __iter__(self) -> Iterator[tuple[int, Trunk | None]]:
        """Indices of prompts, and trunks; None where nothing is shared."""
        if not self.share or not self.prompts:
            yield from ((index, None) for index in range(len(self.prompts)))
            return
        root = self._grown(self.prompts[0][: common_length(self.prompts)], None)
        bundles, alone = shared_trunks(self.prompts)
        for bundle in bundles:
            longest = max((self.prompts[index] for index in bundle), key=len)
            trunk = self._grown(longest[:-1], root)
            yield from ((index, trunk) for index in bundle)
            trunk.backward()
        yield from ((index, root) for index in alone)
        root.backward()

    def _grown(self, ids: Sequence[int], parent: Trunk | None) -> Trunk:
        trunk = Trunk(self.model, ids, parent)
        self.forwarded.append((trunk.start, len(trunk.ids)))
        return trunk


def action_logprobs(
    model: Any,
    prompt_ids: Sequence[int],
    actions_G: Sequence[Sequence[int]],
    *,
    trunk: Trunk | None,
    pack: bool = False,
) -> tuple[Tensor, Tensor]:
    """(logprobs_GT, mask_GT) of the actions of one state, in nats, at least float32; 0 where the mask is False.

    The prompt must not be empty: its last token predicts the first token of every action. With a trunk, which holds as
    much of it as it may, the prompt is forwarded once, and `pack` besides puts the actions into one row; None forwards
    it with every action. Equal actions are computed once.
    """
    device = next(model.parameters()).device
    different = list(dict.fromkeys(map(tuple, actions_G)))
    targets_GT, mask_GT = pad_right(different, 0, device)
    inputs_GT = torch.cat([torch.full_like(targets_GT[:, :1], prompt_ids[-1]), targets_GT[:, :-1]], dim=1)
    prefix = prompt_ids[:-1]
    if trunk is not None and prefix:
        logits_GTV = _branch_logits(model, prefix, inputs_GT, mask_GT, pack=pack, trunk=trunk)
    else:
        logits_GTV = _joint_logits(model, prefix, inputs_GT, mask_GT)
    wide_GTV = logits_GTV.to(torch.promote_types(logits_GTV.dtype, torch.float32))
    logprobs_GT = -torch.nn.functional.cross_entropy(wide_GTV.transpose(1, 2), targets_GT, reduction="none")
    row = {action: index for index, action in enumerate(different)}
    rows_G = torch.as_tensor([row[tuple(action)] for action in actions_G], device=device)
    return logprobs_GT.masked_fill(~mask_GT, 0.0)[rows_G], mask_GT[rows_G]


def group_cost(
    shape: ModelShape, prompt: Sequence[int], actions: Sequence[Sequence[int]], trunk: Trunk | None
) -> tuple[int, float]:
    """(tokens, FLOPs) of one `action_logprobs`, the trunk's aside."""
    lengths = [*map(len, dict.fromkeys(map(tuple, actions)))]
    known, times = (trunk.held(prompt), 1) if trunk else (0, len(lengths))
    flops = times * forward_flops(shape, tokens=len(prompt) - known, context=known) + sum(
        forward_flops(shape, tokens=length, context=len(prompt)) for length in lengths
    )
    return times * (len(prompt) - known) + sum(lengths), flops


def _branch_logits(
    model: Any, prefix: Sequence[int], inputs_GT: Tensor, mask_GT: Tensor, *, pack: bool, trunk: Trunk
) -> Tensor:
    count, length = inputs_GT.shape
    name, known = cache_name(model), trunk.held((*prefix, 0))
    cache: Any = trunk.branch(known)
    if known < len(prefix):
        prefix_1P = torch.as_tensor([list(prefix[known:])], dtype=torch.long, device=inputs_GT.device)
        cache = getattr(model(prefix_1P, use_cache=True, logits_to_keep=1, **growing(model, cache)), name)
    positions_GT = torch.arange(len(prefix), len(prefix) + length, device=inputs_GT.device).expand(count, length)
    if pack:
        inputs_GT, positions_GT = inputs_GT.reshape(1, -1), positions_GT.reshape(1, -1)
        seen = _side_by_side(model, len(prefix), mask_GT)
    else:
        cache.batch_repeat_interleave(count)
        seen = torch.cat([mask_GT.new_ones((count, len(prefix))), mask_GT], dim=1).long()
    logits: Tensor = model(
        inputs_GT, attention_mask=seen, position_ids=positions_GT, use_cache=True, **{name: cache}
    ).logits
    return logits.reshape(count, length, -1)


def _side_by_side(model: Any, prefix: int, mask_GT: Tensor) -> Mask:
    """(1, 1, N, P + N), to be added to the scores: actions of one row see the prefix and what precedes in their own."""
    count, length = mask_GT.shape
    owner_N = torch.arange(count, device=mask_GT.device).repeat_interleave(length)
    time_N = torch.arange(length, device=mask_GT.device).repeat(count)
    seen_NN = (owner_N[:, None] == owner_N) & (time_N[:, None] >= time_N) & mask_GT.reshape(-1)
    seen_NL = torch.cat([seen_NN.new_ones((count * length, prefix)), seen_NN], dim=1)
    return added_to_scores(model, seen_NL[None])


def _joint_logits(model: Any, prefix: Sequence[int], inputs_GT: Tensor, mask_GT: Tensor) -> Tensor:
    count, length = inputs_GT.shape
    prefix_1P = torch.as_tensor([list(prefix)], dtype=torch.long, device=inputs_GT.device)
    ids = torch.cat([prefix_1P.expand(count, -1), inputs_GT], dim=1)
    mask = torch.cat([mask_GT.new_ones((count, len(prefix))), mask_GT], dim=1).long()
    logits: Tensor = model(ids, attention_mask=mask, use_cache=False, logits_to_keep=length).logits
    return logits
