"""Log-probabilities and gradients of trees against one sequence at a time, and what holds the learner's memory down."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import ClassVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pivotrl.grpo import LossSettings
from pivotrl.learners import OptimizerSettings
from pivotrl.learners.torch import TorchLearner
from pivotrl.policies import forward
from pivotrl.policies.forward import Trunks, action_logprobs, has_plain_head
from pivotrl.types import TrainingExample
from tiny import loaded_model, random_model, widened

KINDS = ["llama", "qwen2", "qwen3", "mistral", "mixed_windows"]
IDS = st.integers(0, 40)


@pytest.fixture(scope="module")
def wide_models():
    """In float64 throughout: norms and rotary positions, which transformers computes in float32, replaced."""
    return {kind: widened(random_model(kind, dtype=torch.float64)) for kind in KINDS}


@st.composite
def trees(draw):
    """Prompts along trunks, some beyond the windows of 24, with a group of actions each.

    Nested pivots, forks, equal prompts, strangers, prompts of one token; equal actions, actions without tokens.
    """
    trunk = draw(st.lists(IDS, min_size=1, max_size=40))
    prompts, groups = [], []
    for _ in range(draw(st.integers(1, 4))):
        cut = draw(st.integers(0, len(trunk)))
        prompts.append((*trunk[:cut], *draw(st.lists(IDS, min_size=0 if cut else 1, max_size=5))))
        actions = draw(st.lists(st.lists(IDS, max_size=6).map(tuple), min_size=1, max_size=3))
        groups.append(actions + actions[: draw(st.integers(0, 1))])
    return prompts, groups


def one_sequence(model, prompt, action):
    """transformers' own forward pass: no cache, no padding, no mask."""
    logits = model(torch.tensor([[*prompt, *action]]), use_cache=False).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits, -1).gather(1, torch.tensor(action, dtype=torch.long)[:, None])[:, 0]


def weight(prompt, number, length):
    """Any weights do, as long as both sides have the same."""
    return torch.randn(length, generator=torch.Generator().manual_seed(1000 * prompt + number), dtype=torch.float64)


def gradients(model):
    found = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in model.parameters()])
    model.zero_grad()
    return found


def by_trunks(model, prompts, groups, *, pack, **options):
    found = {}
    for index, trunk in Trunks(model, prompts, share=True, pack=pack, **options):
        logprobs_GT, mask_GT = action_logprobs(model, prompts[index], groups[index], trunk=trunk)
        assert mask_GT.sum(dim=1).tolist() == [*map(len, groups[index])]
        assert not logprobs_GT[~mask_GT].any()
        rows = [row[: len(action)] for row, action in zip(logprobs_GT, groups[index], strict=True)]
        total = sum((row * weight(index, at, len(row))).sum() for at, row in enumerate(rows))
        if total.requires_grad:
            total.backward()
        found |= {(index, at): row.detach() for at, row in enumerate(rows)}
    return found, gradients(model)


def one_by_one(model, prompts, groups):
    found, total = {}, 0.0 * next(model.parameters()).sum()
    for index, (prompt, actions) in enumerate(zip(prompts, groups, strict=True)):
        for at, action in enumerate(actions):
            found[index, at] = one_sequence(model, prompt, action) if action else torch.zeros(0)
            total = total + (found[index, at] * weight(index, at, len(action))).sum()
    total.backward()
    return {key: row.detach() for key, row in found.items()}, gradients(model)


def assert_same(tree, plain):
    assert tree[0].keys() == plain[0].keys()
    for key, row in plain[0].items():
        assert torch.allclose(tree[0][key].double(), row.double(), rtol=0, atol=1e-8), key
    assert (tree[1] - plain[1]).norm() <= 1e-6 * plain[1].norm()


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=5, deadline=None)
@given(trees(), st.booleans(), st.none() | st.integers(1, 9), st.booleans())
def test_a_tree_is_exactly_its_sequences(wide_models, kind, tree, pack, most, again):
    """However the trunks are cut, and whether they are forwarded once or twice: 1e-8, gradients 1e-6 relative."""
    model, (prompts, groups) = wide_models[kind], tree
    made = by_trunks(model, prompts, groups, pack=pack, most=most, again=again)
    assert_same(made, one_by_one(model, prompts, groups))


@settings(max_examples=12, deadline=None)
@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9).map(tuple), max_size=8))
def test_every_token_of_the_prompts_is_forwarded_once(wide_models, prompts):
    """But for their last ones, which go with the actions; a prompt of one token has no other."""
    with torch.no_grad():
        trunks = Trunks(wide_models["llama"], prompts, share=True, most=4)
        assert sorted(index for index, _ in trunks) == list(range(len(prompts)))
    prefixes = {prompt[:end] for prompt in prompts for end in range(1, len(prompt))}
    assert sum(end - start for start, end in trunks.forwarded) == len(prefixes)
    assert all(end - start <= 4 for start, end in trunks.forwarded)


@pytest.mark.parametrize("kind", [*KINDS, "gemma2"])
def test_in_float32_it_is_the_models_own_forward_pass(kind):
    model = random_model(kind)
    trunk = torch.randint(0, 90, (60,), generator=torch.Generator().manual_seed(1)).tolist()
    prompts = [tuple(trunk[:end]) for end in (20, 45, 60)]
    groups = [[(5, 9, 11, 30), (7,), (5, 9, 2, 2, 6, 40), (7,)]] * 3
    for pack in (False, True):
        found, _ = by_trunks(model, prompts, groups, pack=pack)
        for (index, at), row in found.items():
            own = one_sequence(model, prompts[index], groups[index][at])
            assert torch.allclose(row, own, rtol=0, atol=1e-4)


def outputs_seen(model):
    """Numbers of positions at which the output layer is asked, as it goes."""
    seen: list[int] = []
    model.get_output_embeddings().register_forward_hook(lambda _, given, __: seen.append(given[0][..., 0].numel()))
    return seen


def test_logits_are_made_at_action_tokens_only():
    """Of different actions; besides, one for every trunk, as `generate` makes for a prompt."""
    model = random_model()
    assert has_plain_head(model)
    seen = outputs_seen(model)
    prompts, groups = [tuple(range(1, 40)), tuple(range(1, 30))], [[(3, 4, 5), (6,), (3, 4, 5)], [(7, 8)]]
    trunks = Trunks(model, prompts, share=True, pack=True)
    for index, trunk in trunks:
        action_logprobs(model, prompts[index], groups[index], trunk=trunk)
    assert sorted(seen) == [1] * len(trunks.forwarded) + [2, 4]


@pytest.mark.parametrize("kind", ["qwen2", "gemma2"])
def test_logits_in_parts_are_the_same_logits(kind, monkeypatch):
    """With a cap on logits too (Gemma). In the backward pass each part is made again."""
    model = random_model(kind)
    prompts, groups = [tuple(range(1, 40))], [[(3, 4, 5, 9, 11), (6,), (2, 2, 8)]]
    whole = by_trunks(model, prompts, groups, pack=True)
    monkeypatch.setattr(forward, "LOGITS_AT_ONCE", 4 * model.config.vocab_size)
    seen = outputs_seen(model)
    parts = by_trunks(model, prompts, groups, pack=True)
    assert sorted(seen) == [1, 1, 1, 4, 4, 4, 4]
    for key, row in whole[0].items():
        assert torch.allclose(parts[0][key], row, atol=1e-6)
    assert (parts[1] - whole[1]).norm() <= 1e-5 * whole[1].norm()


def test_a_head_of_the_models_own_is_left_to_it():
    """Logits that are not simply the output layer's: as the model makes them."""

    class Scaled(torch.nn.Module):
        def __init__(self, model) -> None:
            super().__init__()
            self.model, self.config, self.dtype, self.device = model, model.config, model.dtype, model.device
            self.get_decoder, self.get_output_embeddings = model.get_decoder, model.get_output_embeddings

        def forward(self, input_ids, past_key_values=None, **options):
            options |= {} if past_key_values is None else {"past_key_values": past_key_values}
            output = self.model(input_ids, **options)
            output.logits = output.logits * 0.25
            return output

    model = Scaled(random_model())
    assert not has_plain_head(model)
    prompts, groups = [tuple(range(1, 40)), tuple(range(1, 20))], [[(3, 4, 5), (6,)], [(9, 9)]]
    with torch.no_grad():
        for index, trunk in Trunks(model, prompts, share=True, pack=True):
            got, _ = action_logprobs(model, prompts[index], groups[index], trunk=trunk)
            for row, action in zip(got, groups[index], strict=True):
                own = one_sequence(model, prompts[index], action)
                assert torch.allclose(row[: len(action)], own, atol=1e-5)


def examples():
    """Four pivots on one trajectory, two groups of another, with equal actions."""
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(0, 90, (2, 70), generator=generator).tolist()
    prompts = [*(tuple(ids[0][:end]) for end in (20, 35, 50, 70)), tuple(ids[1][:30]), tuple(ids[0][:9] + ids[1])]
    lengths = [5, 1, 9, 5]
    return [
        TrainingExample(
            group_id=str(index),
            prompt_ids=prompt,
            action_ids=tuple(range(index, index + length)),
            advantage=(-1.0) ** at + 0.25 * at,
            loss_mask=(True,) * length,
        )
        for index, prompt in enumerate(prompts)
        for at, length in enumerate(lengths)
    ]


def update_of(kind, **options):
    """(result, gradient, tokens) of one call of a learner."""
    learner = TorchLearner(loaded_model(kind), OptimizerSettings(**options))
    result = learner.forward_backward(examples(), LossSettings(beta=0.0))
    return result, gradients(learner.loaded.model), learner.take_usage()


@pytest.mark.parametrize(
    ("kind", "options"),
    [("qwen2", {"checkpointing": True}), ("qwen2", {"batch_tokens": 7}), ("mamba", {"batch_tokens": 150})],
)
def test_less_memory_is_the_same_gradient(kind, options):
    """Checkpointed, and with actions and trunks in parts; usage is of useful tokens, so it does not change either."""
    result, gradient, usage = update_of(kind)
    other, thrifty, same_usage = update_of(kind, **options)
    assert other.loss == pytest.approx(result.loss, abs=1e-5)
    assert other.tokens == result.tokens
    assert (thrifty - gradient).norm() <= 1e-4 * gradient.norm()
    assert same_usage.trained_tokens == usage.trained_tokens
    assert same_usage.flops == pytest.approx(usage.flops)


class Saved:
    """A tensor that autograd keeps for a gradient, and the bytes of all such; weights aside, which are there anyway."""

    times: ClassVar[Counter[int]] = Counter()
    alive = most = 0

    def __init__(self, tensor) -> None:
        self.tensor, storage = tensor.detach(), tensor.untyped_storage()
        self.place, self.size = storage.data_ptr(), storage.nbytes()
        self.count(1)

    def __del__(self) -> None:
        self.count(-1)

    def count(self, change: int) -> None:
        before = Saved.times[self.place] > 0
        Saved.times[self.place] += change
        Saved.alive += self.size * ((Saved.times[self.place] > 0) - before)
        Saved.most = max(Saved.most, Saved.alive)


def kept_at_most(examples, **options):
    """Bytes that autograd keeps at a time."""
    learner = TorchLearner(loaded_model("qwen2"), OptimizerSettings(**options))
    assert learner.policy().branches
    weights = [Saved(parameter) for parameter in learner.loaded.model.parameters()]
    Saved.most = before = Saved.alive
    with torch.autograd.graph.saved_tensors_hooks(Saved, lambda saved: saved.tensor):
        learner.forward_backward(examples, LossSettings(beta=0.0))
    assert Saved.alive == before > 0
    assert len(weights)
    return Saved.most - before


def test_the_settings_hold_memory_down():
    """Of a trunk of 1,500 tokens (a model as narrow as this keeps mostly masks), and of groups of 20 action tokens."""
    long = [replace(examples()[0], prompt_ids=tuple(at % 90 for at in range(1500)))]
    assert kept_at_most(long, checkpointing=True) < 0.8 * kept_at_most(long)
    assert kept_at_most(examples(), batch_tokens=10) < 0.5 * kept_at_most(examples())


def test_models_that_cannot_share_say_so_once(capsys):
    learner = TorchLearner(loaded_model("mamba"), OptimizerSettings())
    for _ in range(2):
        learner.forward_backward(examples()[:4], LossSettings(beta=0.0))
    assert capsys.readouterr().err.count("MambaForCausalLM has recurrent layers") == 1
    TorchLearner(loaded_model(), OptimizerSettings())
    assert capsys.readouterr().err == ""
