"""Log-probabilities of actions by a torch model, with or without gradient: one way for learner, reference and tests.

Actions of one state share its prompt: the prompt is forwarded once, its key-value cache (kept in the graph) is repeated
for the actions, and logits are made for action tokens only. Models whose cache does not allow this (sliding windows,
recurrent layers) forward prompt and action together; `can_share_prefix` decides.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def can_share_prefix(model: Any) -> bool:
    """Whether every layer keeps a plain, full cache of keys and values."""
    config = model.config.get_text_config()
    kinds = getattr(config, "layer_types", None)
    if kinds is not None:
        return all(kind == "full_attention" for kind in kinds)
    recurrent = any("mamba" in name or "rwkv" in name or "conv1d" in name for name, _ in model.named_modules())
    return not recurrent and getattr(config, "sliding_window", None) is None


def cache_name(model: Any) -> str:
    """What this model calls its key-value cache, as argument and as output (transformers renamed it in 5.x)."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


def pad_right(rows: Sequence[Sequence[int]], value: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """(ids_BT, mask_BT): rows padded on the right, mask True on real tokens."""
    longest = max(len(row) for row in rows)
    ids_BT = torch.full((len(rows), longest), value, dtype=torch.long)
    mask_BT = torch.zeros((len(rows), longest), dtype=torch.bool)
    for index, row in enumerate(rows):
        ids_BT[index, : len(row)] = torch.as_tensor(row, dtype=torch.long)
        mask_BT[index, : len(row)] = True
    return ids_BT.to(device), mask_BT.to(device)


def action_logprobs(
    model: Any, prompt_ids: Sequence[int], actions_G: Sequence[Sequence[int]], *, share: bool
) -> tuple[Tensor, Tensor]:
    """(logprobs_GT, mask_GT) of the actions of one state, in nats, at least float32; 0 where the mask is False.

    The prompt must not be empty: its last token predicts the first token of every action.
    """
    device = next(model.parameters()).device
    targets_GT, mask_GT = pad_right(actions_G, 0, device)
    inputs_GT = torch.cat([torch.full_like(targets_GT[:, :1], prompt_ids[-1]), targets_GT[:, :-1]], dim=1)
    prefix = prompt_ids[:-1]
    if share and prefix:
        logits_GTV = _branch_logits(model, prefix, inputs_GT, mask_GT)
    else:
        logits_GTV = _joint_logits(model, prefix, inputs_GT, mask_GT)
    wide_GTV = logits_GTV.to(torch.promote_types(logits_GTV.dtype, torch.float32))
    logprobs_GT = -torch.nn.functional.cross_entropy(wide_GTV.transpose(1, 2), targets_GT, reduction="none")
    return logprobs_GT.masked_fill(~mask_GT, 0.0), mask_GT


def _branch_logits(model: Any, prefix: Sequence[int], inputs_GT: Tensor, mask_GT: Tensor) -> Tensor:
    count, length = inputs_GT.shape
    prefix_1P = torch.as_tensor([list(prefix)], dtype=torch.long, device=inputs_GT.device)
    name = cache_name(model)
    cache = getattr(model(prefix_1P, use_cache=True, logits_to_keep=1), name)
    cache.batch_repeat_interleave(count)
    seen_GP = mask_GT.new_ones((count, len(prefix)))
    positions_1T = torch.arange(len(prefix), len(prefix) + length, device=inputs_GT.device)[None]
    logits: Tensor = model(
        inputs_GT,
        attention_mask=torch.cat([seen_GP, mask_GT], dim=1).long(),
        position_ids=positions_1T.expand(count, length),
        use_cache=True,
        **{name: cache},
    ).logits
    return logits


def _joint_logits(model: Any, prefix: Sequence[int], inputs_GT: Tensor, mask_GT: Tensor) -> Tensor:
    count, length = inputs_GT.shape
    prefix_1P = torch.as_tensor([list(prefix)], dtype=torch.long, device=inputs_GT.device)
    ids = torch.cat([prefix_1P.expand(count, -1), inputs_GT], dim=1)
    mask = torch.cat([mask_GT.new_ones((count, len(prefix))), mask_GT], dim=1).long()
    logits: Tensor = model(ids, attention_mask=mask, use_cache=False, logits_to_keep=length).logits
    return logits
