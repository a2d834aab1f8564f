"""Log-probabilities of actions by a torch model, with or without gradient: one way for learner, reference and tests.

Actions of one state share its prompt: the prompt is forwarded once, the actions stand side by side in one row behind
its key-value cache (kept in the graph), and logits are made for action tokens only; where a model cannot keep them
apart there (`decoding.can_branch`), the cache is repeated for each. What all prompts of a batch begin with is a
`Trunk`, forwarded once for them all. Models whose cache does not allow this (sliding windows, recurrent layers)
forward prompt and action together; `can_share_prefix` decides.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

Mask = Tensor | dict[str, Tensor]
"""What a model adds to its attention scores; by layer type where these differ."""


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
    """The keys and values of what some prompts begin with, forwarded once.

    What hangs on it is differentiated branch by branch, as soon as it is forwarded; the gradients that arrive at the
    keys and values are added up, and `backward` sends their sum through the trunk. That is the gradient of the whole.
    """

    def __init__(self, model: Any, prompts: Sequence[Sequence[int]]) -> None:
        """A prompt's last token is left out, since it predicts an action. Raises ValueError without prompts."""
        self.length = common_length(prompts)
        self._made: list[Tensor] = []
        self._leaves: list[Tensor] = []
        if not self.length:
            return
        ids_1P = torch.as_tensor([list(prompts[0][: self.length])], device=next(model.parameters()).device)
        self._cache = getattr(model(ids_1P, use_cache=True, logits_to_keep=1), cache_name(model))
        for layer in self._cache.layers:
            self._made += [layer.keys, layer.values]
            layer.keys, layer.values = (one.detach().requires_grad_(one.requires_grad) for one in self._made[-2:])
            self._leaves += [layer.keys, layer.values]

    def branch(self) -> Any:
        """A cache that starts with the trunk, to be grown by one branch; None where nothing is shared."""
        if not self.length:
            return None
        return fork_cache(self._cache)

    def backward(self) -> None:
        """Send the gradients that the branches left at the trunk through it."""
        pairs = [
            (made, leaf.grad) for made, leaf in zip(self._made, self._leaves, strict=True) if leaf.grad is not None
        ]
        if pairs:
            torch.autograd.backward([made for made, _ in pairs], [grad for _, grad in pairs])


def action_logprobs(
    model: Any,
    prompt_ids: Sequence[int],
    actions_G: Sequence[Sequence[int]],
    *,
    share: bool,
    pack: bool = False,
    trunk: Trunk | None = None,
) -> tuple[Tensor, Tensor]:
    """(logprobs_GT, mask_GT) of the actions of one state, in nats, at least float32; 0 where the mask is False.

    The prompt must not be empty: its last token predicts the first token of every action. `share` forwards it once,
    `pack` besides puts the actions into one row; `trunk` is one that was made with this prompt among its own.
    """
    device = next(model.parameters()).device
    targets_GT, mask_GT = pad_right(actions_G, 0, device)
    inputs_GT = torch.cat([torch.full_like(targets_GT[:, :1], prompt_ids[-1]), targets_GT[:, :-1]], dim=1)
    prefix = prompt_ids[:-1]
    if share and prefix:
        logits_GTV = _branch_logits(model, prefix, inputs_GT, mask_GT, pack=pack, trunk=trunk)
    else:
        logits_GTV = _joint_logits(model, prefix, inputs_GT, mask_GT)
    wide_GTV = logits_GTV.to(torch.promote_types(logits_GTV.dtype, torch.float32))
    logprobs_GT = -torch.nn.functional.cross_entropy(wide_GTV.transpose(1, 2), targets_GT, reduction="none")
    return logprobs_GT.masked_fill(~mask_GT, 0.0), mask_GT


def _branch_logits(
    model: Any, prefix: Sequence[int], inputs_GT: Tensor, mask_GT: Tensor, *, pack: bool, trunk: Trunk | None
) -> Tensor:
    count, length = inputs_GT.shape
    name, known = cache_name(model), trunk.length if trunk else 0
    cache: Any = trunk.branch() if trunk else None
    if known < len(prefix):
        prefix_1P = torch.as_tensor([list(prefix[known:])], dtype=torch.long, device=inputs_GT.device)
        cache = getattr(model(prefix_1P, use_cache=True, logits_to_keep=1, **({name: cache} if cache else {})), name)
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
