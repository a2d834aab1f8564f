"""A whole tree of prompts and actions in one pass by FlexAttention: for a GPU, which skips what the block mask hides.

A row of the tree's tokens in packed order (`prefix_tree`), each once; a token sees itself and its ancestors, in
sliding layers the last W of them. It gives what the trunks of `forward` give, and keeps the activations of all tokens
meanwhile. torch refuses gradients of FlexAttention on a CPU, so there the trunks train.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from transformers import AttentionInterface

from pivotrl.ledger import forward_flops
from pivotrl.policies.forward import HALF, action_logprobs, chosen_logprobs, has_plain_head, outputs, probe, windows_of
from pivotrl.prefix_tree import PrefixTree, build_tree, shared_length
from pivotrl.types import ModelShape

Group = tuple[tuple[int, ...], Sequence[tuple[int, ...]]]
"""A prompt and its actions."""
_NAME: Final = "pivotrl_tree"
_BLOCK: Final = 128
"""Rows are filled up to a multiple of it, so that few shapes are compiled."""


@cache
def _kernel(device: str) -> Any:
    return torch.compile(flex_attention) if device == "cuda" else flex_attention


def _attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: BlockMask, **options: Any
) -> tuple[Tensor, None]:
    """transformers' attention interface: (B, heads, N, width) in, (B, N, heads, width) out."""
    if any(options.get(name) is not None for name in ("softcap", "s_aux", "position_bias")):
        raise NotImplementedError("scores that are capped, or have sinks or biases")
    grouped, scale = query.shape[1] != key.shape[1], options.get("scaling")
    found = _kernel(query.device.type)(query, key, value, block_mask=attention_mask, scale=scale, enable_gqa=grouped)
    return found.transpose(1, 2), None


AttentionInterface.register(_NAME, _attend)


def can_flex(model: Any) -> bool:
    """Whether it gives the model's own log-probabilities, with a gradient, on the device where the model lies."""
    prompt, actions = probe(), [(1, 2), (1, 3, 3)]
    if not has_plain_head(model):
        return False
    try:
        with torch.enable_grad():
            found = torch.cat([row for group in tree_logprobs(model, [(prompt, actions)])[0] for row in group])
            torch.autograd.grad(found.sum(), next(model.get_decoder().parameters()), allow_unused=True)
    except (NotImplementedError, TypeError, ValueError, RuntimeError):
        return False
    with torch.no_grad():
        plain_GT, mask_GT = action_logprobs(model, prompt, actions, trunk=None)
    tolerance = 0.05 if model.dtype in HALF else 1e-3
    return bool((found - plain_GT[mask_GT]).abs().max() < tolerance)


def packs(groups: Sequence[Group], most: int) -> tuple[list[list[int]], list[int]]:
    """(indices of groups whose trees have at most so many tokens together, those that are larger alone)."""
    taken: list[list[int]] = []
    large: list[int] = []
    tokens = 0
    for index in sorted(range(len(groups)), key=lambda index: groups[index][0]):
        prompt, actions = groups[index]
        own = sum(map(len, set(actions)))
        if len(prompt) + own > most:
            large.append(index)
            continue
        added = own + len(prompt) - (shared_length(groups[taken[-1][-1]][0], prompt) if taken else 0)
        if taken and tokens + added <= most:
            taken[-1].append(index)
            tokens += added
        else:
            taken.append([index])
            tokens = len(prompt) + own
    return taken, large


def tree_logprobs(model: Any, groups: Sequence[Group]) -> tuple[list[list[Tensor]], PrefixTree]:
    """The log-probabilities of every action of every group, in nats, at least float32; and the tree they came from.

    No prompt may be empty: its last token predicts the first token of its actions.
    """
    device = model.device
    rows = [(*prompt, *action) for prompt, actions in groups for action in actions]
    tree = build_tree(rows)
    lengths = [len(action) for _, actions in groups for action in actions]
    at = [tree.positions(row)[len(rows[row]) - length - 1 : -1] for row, length in enumerate(lengths)]
    targets = [token for row, length in zip(rows, lengths, strict=True) for token in row[len(row) - length :]]
    asked_2P, back_A = np.unique(np.stack([np.concatenate(at), targets]), axis=1, return_inverse=True)
    where_P, target_P = torch.as_tensor(asked_2P.astype(np.int64), device=device)
    logprobs_P = chosen_logprobs(model, _states(model, tree, device)[where_P], target_P)
    parts = iter(torch.split(logprobs_P[torch.as_tensor(back_A.ravel(), device=device)], lengths))
    return [[next(parts) for _ in actions] for _, actions in groups], tree


def _states(model: Any, tree: PrefixTree, device: torch.device) -> Tensor:
    """(N, H): what the output layer gets, of the row in packed order."""
    count = len(tree.ids_N)
    size = -(-count // _BLOCK) * _BLOCK
    ids_N = torch.as_tensor(np.pad(tree.ids_N, (0, size - count)), device=device)
    depth_N = torch.as_tensor(np.pad(tree.depth_N, (0, size - count)), device=device)
    leave_N = torch.as_tensor(np.concatenate([tree.leave_N, np.arange(count, size) + 1]), device=device)
    windows = windows_of(model) or {"": None}
    masks = {kind: _mask(depth_N, leave_N, window) for kind, window in windows.items()}
    before = model.config._attn_implementation
    model.set_attn_implementation(_NAME)
    try:
        seen: dict[str, Any] = {"attention_mask": masks.get("", masks), "position_ids": depth_N[None]}
        return outputs(model, ids_N[None], use_cache=False, **seen)[0]
    finally:
        model.set_attn_implementation(before)


def _mask(depth_N: Tensor, leave_N: Tensor, window: int | None) -> BlockMask:
    def sees(_batch: Any, _head: Any, query: Tensor, key: Tensor) -> Tensor:
        below = (key <= query) & (query < leave_N[key])
        return below if window is None else below & (depth_N[query] - depth_N[key] < window)

    return create_block_mask(sees, None, None, len(leave_N), len(leave_N), device=str(leave_N.device))


def tree_cost(shape: ModelShape, tree: PrefixTree) -> tuple[int, float]:
    """(tokens, FLOPs) of the forward pass; a last token of an action is not useful, yet forwarded."""
    starts = tree.depth_N[tree.start_S]
    spans = zip(starts.tolist(), (tree.end_S - tree.start_S).tolist(), strict=True)
    return len(tree.ids_N), sum(forward_flops(shape, tokens=tokens, context=start) for start, tokens in spans)
