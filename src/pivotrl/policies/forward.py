"""Log-probabilities of actions by a torch model, with or without gradient: one way for learner, reference and tests.

Prompts are forwarded as the tree of their common beginnings, every token once (`Trunks`). The actions of a prompt stand
side by side in one row behind these keys and values, and logits are made for action tokens only, so many at a time that
few are alive at once. Where a model cannot keep actions apart in a row (`decoding.can_branch`), the cache is repeated
for each. Models with recurrent layers forward prompt and action together; `can_share_prefix` decides.
"""

from __future__ import annotations

import copy
import inspect
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.checkpoint import checkpoint
from transformers.cache_utils import DynamicCache

from pivotrl.ledger import forward_flops
from pivotrl.prefix_tree import build_tree, shared_length
from pivotrl.types import ModelShape

Mask = Tensor | dict[str, Tensor]
"""What a model adds to its attention scores; by layer type where these differ."""
HALF: Final = (torch.bfloat16, torch.float16)
"""Number formats of 16 bits, in which small differences are rounded away."""
LOGITS_AT_ONCE: Final = 2**23
"""Numbers in one tensor of tokens x vocabulary; more are made in parts, and again for the gradient."""
_THROUGH: Final = -1
"""Stands for a segment when all that hangs on a trunk is through."""
_PLAIN_HEADS: Final[WeakKeyDictionary[Any, bool]] = WeakKeyDictionary()


def probe(length: int = 40) -> tuple[int, ...]:
    """A prompt on which a model is tried."""
    return tuple(at * at % 7 for at in range(length))


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


def pad_right(rows: Sequence[Sequence[int] | Tensor], value: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """(rows_BT, mask_BT): rows of ids, or of any numbers as tensors, padded on the right; mask True on real tokens."""
    tensors = [row if isinstance(row, Tensor) else torch.as_tensor(row, dtype=torch.long) for row in rows]
    rows_BT = pad_sequence(tensors, True, value)
    mask_BT = torch.arange(rows_BT.shape[1]) < torch.as_tensor([*map(len, rows)])[:, None]
    return rows_BT.to(device), mask_BT.to(device)


def common_length(prompts: Sequence[Sequence[int]]) -> int:
    """How many tokens all prompts begin with; no prompt is taken whole. Raises ValueError without prompts."""
    shortest = max(0, min(map(len, prompts)) - 1)
    return min(shortest, *(shared_length(prompts[0], prompt) for prompt in prompts))


class Trunk:
    """The keys and values of a run of tokens that some prompts share, forwarded once, behind those of a parent.

    What hangs on it is differentiated branch by branch, as soon as it is forwarded; the gradients that arrive at the
    keys and values are added up, and `backward` sends their sum through the trunk. That is the gradient of the whole.
    With `again` no activations are kept meanwhile: `backward` forwards the tokens once more. `pack` says that the model
    keeps to a mask, so that branches may stand side by side.
    """

    def __init__(self, model: Any, ids: Sequence[int], parent: Trunk | None, *, pack: bool, again: bool) -> None:
        self.parent, self.pack = parent, pack
        self.start: int = parent.end if parent else 0
        self.end: int = self.start + len(ids)
        self._model = model
        self._ids_1T = torch.as_tensor(ids, device=model.device)[None]
        learns = torch.is_grad_enabled()
        with torch.set_grad_enabled(learns and not again):
            cache, made = self._forward()
        self._empty = fork_cache(cache)
        for layer in self._empty.layers:
            layer.keys = layer.values = None
        self._made = None if again else made
        self._leaves = [one.detach().contiguous().requires_grad_(learns) for one in made]

    def _forward(self) -> tuple[Any, list[Tensor]]:
        """The cache, and keys and values of these tokens, layer by layer."""
        inputs = growing(self._model, self.parent.branch(self.start) if self.parent else None)
        if self.parent and self.pack:  # else every layer would make one of its own, and keep it
            seen_TL = torch.ones((self.end - self.start, self.end), dtype=torch.bool, device=self._ids_1T.device)
            inputs["attention_mask"] = added_to_scores(self._model, seen_TL.tril(self.start)[None])
        cache = getattr(self._model(self._ids_1T, use_cache=True, logits_to_keep=1, **inputs), cache_name(self._model))
        made = [one[..., self.start :, :] for layer in cache.layers for one in (layer.keys, layer.values)]
        return cache, made

    def branch(self, length: int) -> Any:
        """A cache of the first `length` tokens from the root on, to be grown by one branch."""
        fork, lineage = fork_cache(self._empty), [self]
        while lineage[-1].parent:
            lineage.append(lineage[-1].parent)
        parts = [[leaf[..., : length - t.start, :] for leaf in t._leaves] for t in lineage[::-1] if t.start < length]
        whole = [torch.cat(one, dim=-2) if len(one) > 1 else one[0] for one in zip(*parts, strict=True)]
        for layer, keys, values in zip(fork.layers, whole[::2], whole[1::2], strict=True):
            layer.keys, layer.values = keys, values
        return fork

    def backward(self) -> None:
        """Send the gradients that the branches left at the trunk through it, to its parent's keys and values."""
        if all(leaf.grad is None for leaf in self._leaves):
            return
        made = self._forward()[1] if self._made is None else self._made
        pairs = [(one, leaf.grad) for one, leaf in zip(made, self._leaves, strict=True) if one.requires_grad]
        pairs = [(one, grad) for one, grad in pairs if grad is not None]
        if pairs:
            torch.autograd.backward([one for one, _ in pairs], [grad for _, grad in pairs])


class Trunks:
    """Iterates over prompts in the order in which they should be forwarded, each with the trunk that it hangs on.

    There is a trunk for every run of tokens without a fork, so that each token is forwarded once; it holds a prompt but
    for the last token, since that predicts an action. When its prompts are through, a trunk sends their gradients on;
    so forward and differentiate each before asking for the next. A trunk of over `most` tokens is cut, and its parts
    are forwarded again for their gradients, as all are with `again`.
    """

    def __init__(
        self,
        model: Any,
        prompts: Sequence[tuple[int, ...]],
        *,
        share: bool,
        pack: bool = False,
        most: int | None = None,
        again: bool = False,
    ) -> None:
        self.model, self.prompts, self.most = model, prompts, most
        self._pack, self._again = pack, again
        self._shared = [index for index, prompt in enumerate(prompts) if share and len(prompt) > 1]
        self.forwarded: list[tuple[int, int]] = []
        """Ranges of positions of the trunks, as they are forwarded."""

    def __iter__(self) -> Iterator[tuple[int, Trunk | None]]:
        """Indices of prompts, and trunks; None where nothing is shared."""
        shared = {*self._shared}
        yield from ((index, None) for index in range(len(self.prompts)) if index not in shared)
        tree = build_tree([self.prompts[index][:-1] for index in self._shared])
        children, ends = defaultdict[int, list[int]](list), defaultdict[int, list[int]](list)
        for segment, above in enumerate(tree.parent_S.tolist()):
            children[above].append(segment)
        for index, leaf in zip(self._shared, tree.leaf_L.tolist(), strict=True):
            ends[leaf].append(index)
        waiting: list[tuple[int, Trunk | None]] = [(segment, None) for segment in reversed(children[-1])]
        while waiting:
            top, trunk = waiting.pop()
            if trunk and top == _THROUGH:
                trunk.backward()
                continue
            run = [top]
            while len(children[run[-1]]) == 1:
                run += children[run[-1]]
            grown = self._grown(tree.ids_N[tree.start_S[top] : tree.end_S[run[-1]]].tolist(), trunk)
            waiting += [(_THROUGH, part) for part in grown]
            trunk = grown[-1]
            yield from ((index, trunk) for segment in run for index in ends[segment])
            waiting += [(child, trunk) for child in reversed(children[run[-1]])]

    def _grown(self, ids: Sequence[int], parent: Trunk | None) -> list[Trunk]:
        most = self.most or len(ids)
        grown: list[Trunk] = []
        for start in range(0, len(ids), most):
            again = self._again or len(ids) > most
            parent = Trunk(self.model, ids[start : start + most], parent, pack=self._pack, again=again)
            grown.append(parent)
        self.forwarded += [(trunk.start, trunk.end) for trunk in grown]
        return grown


def action_logprobs(
    model: Any, prompt_ids: Sequence[int], actions_G: Sequence[Sequence[int]], *, trunk: Trunk | None
) -> tuple[Tensor, Tensor]:
    """(logprobs_GT, mask_GT) of the actions of one state, in nats, at least float32; 0 where the mask is False.

    The prompt must not be empty: its last token predicts the first token of every action. The trunk holds the rest;
    None forwards the prompt with every action. Equal actions are computed once.
    """
    device = model.device
    different = list(dict.fromkeys(map(tuple, actions_G)))
    targets_GT, mask_GT = pad_right(different, 0, device)
    inputs_GT = torch.cat([torch.full_like(targets_GT[:, :1], prompt_ids[-1]), targets_GT[:, :-1]], dim=1)
    row = {action: index for index, action in enumerate(different)}
    rows_G = torch.as_tensor([row[tuple(action)] for action in actions_G], device=device)
    if not mask_GT.any():
        return torch.zeros(targets_GT.shape, device=device)[rows_G], mask_GT[rows_G]
    if trunk is None:
        hidden_NH = _after_prompts(model, prompt_ids[:-1], inputs_GT, mask_GT)
    elif trunk.pack:
        hidden_NH = _side_by_side(model, trunk, len(prompt_ids) - 1, inputs_GT, mask_GT)
    else:
        hidden_NH = _below_each_other(model, trunk, len(prompt_ids) - 1, inputs_GT, mask_GT)
    logprobs_N = chosen_logprobs(model, hidden_NH, targets_GT[mask_GT])
    logprobs_GT = logprobs_N.new_zeros(mask_GT.shape).masked_scatter(mask_GT, logprobs_N)
    return logprobs_GT[rows_G], mask_GT[rows_G]


def group_cost(
    shape: ModelShape, prompt: Sequence[int], actions: Sequence[Sequence[int]], trunk: Trunk | None
) -> tuple[int, float]:
    """(tokens, FLOPs) of one `action_logprobs`, the trunk's aside."""
    lengths = [*map(len, dict.fromkeys(map(tuple, actions)))]
    known, times = (len(prompt) - 1, 1) if trunk else (0, len(lengths))
    flops = times * forward_flops(shape, tokens=len(prompt) - known, context=known) + sum(
        forward_flops(shape, tokens=length, context=len(prompt)) for length in lengths
    )
    return times * (len(prompt) - known) + sum(lengths), flops


def _side_by_side(model: Any, trunk: Trunk, known: int, inputs_GT: Tensor, mask_GT: Tensor) -> Tensor:
    """(N, H or V) of one row of all action tokens; each sees the prompt and what precedes it in its own action."""
    owner_N, time_N = mask_GT.nonzero(as_tuple=True)
    seen_NN = (owner_N[:, None] == owner_N) & (time_N[:, None] >= time_N)
    seen_NL = torch.cat([seen_NN.new_ones((len(owner_N), known)), seen_NN], dim=1)
    inputs: dict[str, Any] = {
        "attention_mask": added_to_scores(model, seen_NL[None]),
        "position_ids": (known + time_N)[None],
    }
    return outputs(model, inputs_GT[mask_GT][None], use_cache=True, **inputs, **growing(model, trunk.branch(known)))[0]


def _below_each_other(model: Any, trunk: Trunk, known: int, inputs_GT: Tensor, mask_GT: Tensor) -> Tensor:
    count, length = inputs_GT.shape
    cache = trunk.branch(known)
    cache.batch_repeat_interleave(count)
    inputs: dict[str, Any] = {
        "attention_mask": torch.cat([mask_GT.new_ones((count, known)), mask_GT], dim=1).long(),
        "position_ids": torch.arange(known, known + length, device=inputs_GT.device).expand(count, length),
    }
    return outputs(model, inputs_GT, use_cache=True, **inputs, **growing(model, cache))[mask_GT]


def _after_prompts(model: Any, prefix: Sequence[int], inputs_GT: Tensor, mask_GT: Tensor) -> Tensor:
    count, length = inputs_GT.shape
    prefix_1P = torch.as_tensor([list(prefix)], dtype=torch.long, device=inputs_GT.device)
    ids = torch.cat([prefix_1P.expand(count, -1), inputs_GT], dim=1)
    mask = torch.cat([mask_GT.new_ones((count, len(prefix))), mask_GT], dim=1).long()
    return outputs(model, ids, keep=length, attention_mask=mask, use_cache=False)[mask_GT]


def outputs(model: Any, ids_BT: Tensor, *, keep: int = 0, **inputs: Any) -> Tensor:
    """What the head gets of the last `keep` tokens (0 for all), or logits where it is not just called."""
    if not has_plain_head(model):
        return model(ids_BT, logits_to_keep=keep, **inputs).logits  # type: ignore[no-any-return]
    return model.get_decoder()(ids_BT, **inputs).last_hidden_state[:, -keep:]  # type: ignore[no-any-return]


def has_plain_head(model: Any) -> bool:
    """Whether logits are the output layer of the decoder's last states, capped at most; tried once for each model."""
    if model not in _PLAIN_HEADS:
        ids_1T = torch.zeros((1, 2), dtype=torch.long, device=model.device)
        try:
            with torch.no_grad():
                logits = _logits(model, model.get_decoder()(ids_1T).last_hidden_state)
                _PLAIN_HEADS[model] = torch.allclose(logits, model(ids_1T).logits, atol=1e-5)
        except (AttributeError, TypeError, NotImplementedError):
            _PLAIN_HEADS[model] = False
    return _PLAIN_HEADS[model]


def _logits(model: Any, states: Tensor) -> Tensor:
    logits: Tensor = model.get_output_embeddings()(states)
    cap = getattr(model.config.get_text_config(), "final_logit_softcapping", None)
    return logits if cap is None else torch.tanh(logits / cap) * cap


def chosen_logprobs(model: Any, outputs_NH: Tensor, targets_N: Tensor) -> Tensor:
    """Log-probabilities of the targets; where not all logits fit, part by part, and again for the gradient."""
    plain = has_plain_head(model)

    def score(outputs_NH: Tensor, targets_N: Tensor) -> Tensor:
        logits_NV = _logits(model, outputs_NH) if plain else outputs_NH
        wide_NV = logits_NV.to(torch.promote_types(logits_NV.dtype, torch.float32))
        return -torch.nn.functional.cross_entropy(wide_NV, targets_N, reduction="none")

    step = max(1, LOGITS_AT_ONCE // model.config.get_text_config().vocab_size)
    if len(targets_N) <= step or not plain:
        return score(outputs_NH, targets_N)
    parts = zip(torch.split(outputs_NH, step), torch.split(targets_N, step), strict=True)
    return torch.cat([checkpoint(score, *part, use_reentrant=False) for part in parts])
