"""The sampler and the learner against transformers' own forward pass, one sequence at a time."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
import torch
from transformers import FalconConfig, FalconForCausalLM

from pivotrl.grpo import LossSettings
from pivotrl.learners import OptimizerSettings
from pivotrl.learners.torch import TorchLearner
from pivotrl.policies.decoding import can_branch
from pivotrl.policies.forward import Trunk, action_logprobs, cache_name, can_share_prefix, common_length
from pivotrl.policies.torch import TorchPolicy, pick_tokens, uniforms
from pivotrl.types import SamplingParams, State, TrainingExample
from tiny import KINDS_OF_FULL_ATTENTION, desk_candidates, loaded_model

KINDS = ["llama", "qwen2", "mistral"]
PARAMS = SamplingParams(max_new_tokens=20)


def states(count=5):
    return [candidate.state for candidate in desk_candidates()[:count]]


def plain_logprobs(model, prompt, action):
    """One sequence, no cache, no padding."""
    ids = torch.tensor([[*prompt, *action]])
    logits = model(ids, use_cache=False).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits, -1).gather(1, torch.tensor(action)[:, None])[:, 0]


@pytest.mark.parametrize("kind", KINDS)
def test_sampled_logprobs_are_those_of_one_plain_forward(kind):
    policy = TorchPolicy(loaded_model(kind))
    for answer in policy.sample(states(), n=3, params=PARAMS, seed=7):
        for completion in answer.completions:
            plain = plain_logprobs(policy.loaded.model, answer.prompt_ids, completion.token_ids)
            assert np.allclose(completion.token_logprobs, plain.tolist(), atol=1e-4)
            assert completion.logprob == pytest.approx(float(plain.sum().detach()), abs=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_learner_agrees_with_sampler(kind):
    """Same weights, float32: within 1e-4, token by token (the learner shares prefixes where the model allows)."""
    learner = TorchLearner(loaded_model(kind), OptimizerSettings())
    answers = learner.policy().sample(states(), n=4, params=PARAMS, seed=1)
    examples = [
        TrainingExample(
            group_id=str(index),
            prompt_ids=answer.prompt_ids,
            action_ids=completion.token_ids,
            advantage=1.0,
            loss_mask=(True,) * len(completion.token_ids),
            sampler_logprobs=completion.token_logprobs,
        )
        for index, answer in enumerate(answers)
        for completion in answer.completions
    ]
    result = learner.forward_backward(examples, LossSettings(beta=0))
    assert result.sampler_gap is not None
    assert result.sampler_gap < 1e-4
    assert result.ratio_mean == pytest.approx(1.0)


@pytest.mark.parametrize(("kind", "pack"), [("llama", False), ("llama", True), ("qwen2", True), ("mistral", False)])
def test_shared_prefix_has_the_gradient_of_plain_sequences(kind, pack):
    """In float64, as far as transformers goes: its norms compute in float32 whatever the weights are."""
    loaded = loaded_model(kind, dtype=torch.float64)
    prompt = loaded.chat.prompt_ids(states(1)[0])
    actions = [[5, 9, 11, 30], [7], [5, 9, 2, 2, 6, 40]]
    weights = torch.randn(3, 6, generator=torch.Generator().manual_seed(0))
    logprobs, mask = action_logprobs(loaded.model, prompt, actions, share=can_share_prefix(loaded.model), pack=pack)
    (logprobs * weights * mask).sum().backward()
    shared = {name: p.grad.clone() for name, p in loaded.model.named_parameters()}
    loaded.model.zero_grad()
    for row, action in enumerate(actions):
        plain = plain_logprobs(loaded.model, prompt, action)
        assert torch.allclose(plain, logprobs[row, : len(action)], atol=2e-6)
        (plain * weights[row, : len(action)]).sum().backward()
    for name, p in loaded.model.named_parameters():
        assert torch.allclose(p.grad, shared[name], rtol=1e-4, atol=2e-6), name


@pytest.mark.parametrize("pack", [False, True])
@pytest.mark.parametrize("kind", KINDS_OF_FULL_ATTENTION)
def test_a_trunk_has_the_gradient_of_prompts_forwarded_alone(kind, pack):
    """Three prompts with a common beginning; one of them is hardly longer than it."""
    loaded = loaded_model(kind, dtype=torch.float64)
    first = loaded.chat.prompt_ids(states(1)[0])
    prompts = [first, (*first[:-4], 7, 8), (*first[:-4], 9, 4, 4, 30, 12)]
    actions = [[5, 9, 11, 30], [7, 2], [5]]

    def gradients(trunk):
        loaded.model.zero_grad()
        found = []
        for prompt in prompts:
            logprobs, mask = action_logprobs(loaded.model, prompt, actions, share=True, pack=pack, trunk=trunk)
            (logprobs * mask * torch.arange(1, 5)).sum().backward()
            found.append(logprobs.detach())
        if trunk is not None:
            trunk.backward()
        return found, {name: p.grad.clone() for name, p in loaded.model.named_parameters()}

    plain, alone = gradients(None)
    trunk = Trunk(loaded.model, prompts)
    assert trunk.length == len(first) - 4
    branched, together = gradients(trunk)
    for one, two in zip(plain, branched, strict=True):
        assert torch.allclose(one, two, atol=2e-6)
    for name, gradient in alone.items():
        assert torch.allclose(gradient, together[name], rtol=1e-4, atol=5e-6), name
    assert Trunk(loaded.model, [first]).length == len(first) - 1
    assert Trunk(loaded.model, [first, (first[0] + 1, *first[1:])]).length == 0


def test_only_full_attention_shares_prefixes():
    assert [can_share_prefix(loaded_model(kind).model) for kind in KINDS] == [True, True, False]


def test_only_models_that_keep_branches_apart_decode_them_in_one_row():
    """ALiBi models refuse the mask; a model that overlooks it gives other logits, and is found out as well."""

    class Overlooking(torch.nn.Module):
        def __init__(self, model) -> None:
            super().__init__()
            self.model, self.config, self.dtype = model, model.config, model.dtype

        def forward(self, input_ids, attention_mask=None, **options):
            return self.model(input_ids, attention_mask=None if attention_mask.ndim == 4 else attention_mask, **options)

    llama = loaded_model().model
    name = cache_name(llama)
    config = FalconConfig(vocab_size=90, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, alibi=True)
    assert can_branch(llama, name)
    assert not can_branch(Overlooking(llama), name)
    assert not can_branch(FalconForCausalLM(config).eval(), name)


def test_batches_do_not_change_samples():
    """What else is in the batch changes no sample (beyond rounding, which does not flip a choice here)."""
    policy = TorchPolicy(loaded_model())
    together = policy.sample(states(), n=3, params=PARAMS, seed=5)
    policy.batch_tokens = 1
    alone = policy.sample(states(), n=3, params=PARAMS, seed=5)
    single = [policy.sample([state], n=3, params=PARAMS, seed=5)[0] for state in states()]
    for one, two, three in zip(together, alone, single, strict=True):
        texts = [[completion.token_ids for completion in answer.completions] for answer in (one, two, three)]
        assert texts[0] == texts[1] == texts[2]


def test_samples_have_the_same_numbers_whatever_the_call():
    """Five at once, and two and then three: the same tokens; log-probabilities to within rounding."""
    policy = TorchPolicy(loaded_model())
    together = policy.sample(states(), n=5, params=PARAMS, seed=5)
    start = policy.sample(states(), n=2, params=PARAMS, seed=5)
    rest = policy.sample(states()[1:], n=3, params=PARAMS, seed=5, first=2)
    for one, two, three in zip(together[1:], start[1:], rest, strict=True):
        for whole, part in zip(one.completions, (*two.completions, *three.completions), strict=True):
            assert whole.token_ids == part.token_ids
            assert whole.logprob == pytest.approx(part.logprob, abs=1e-4)


def conversations():
    """States of four trajectories by turn; each continues that of the turn before, and trajectories end in between."""
    turns: dict[int, list[State]] = {}
    for candidate in desk_candidates():
        depth = sum(message.role == "assistant" for message in candidate.state.messages)
        turns.setdefault(depth, []).append(candidate.state)
    return [turns[depth] for depth in sorted(turns)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_conversation_goes_on_as_if_it_were_read_anew(kind):
    policy = TorchPolicy(loaded_model(kind))
    plain = [policy.sample(states, n=1, params=PARAMS, seed=3) for states in conversations()]
    anew = policy.take_usage()
    with policy.conversations():
        kept = [policy.sample(states, n=1, params=PARAMS, seed=3) for states in conversations()]
    usage = policy.take_usage()
    assert len({len(turn) for turn in plain}) > 1, "some conversations end before others"
    for one, two in zip(chain(*plain), chain(*kept), strict=True):
        assert one.prompt_ids == two.prompt_ids
        assert one.completions[0].token_ids == two.completions[0].token_ids
        assert np.allclose(one.completions[0].token_logprobs, two.completions[0].token_logprobs, atol=1e-4)
    shares = can_share_prefix(policy.loaded.model)
    assert (usage.prefilled_tokens < 0.8 * anew.prefilled_tokens) is shares
    read = sum(len(answer.prompt_ids) for turn in kept for answer in turn)
    assert usage.prefilled_tokens + usage.cached_tokens == anew.prefilled_tokens + anew.cached_tokens == read
    assert usage.generated_tokens == anew.generated_tokens


def test_a_call_that_continues_nothing_reads_everything():
    policy = TorchPolicy(loaded_model())
    first, second, *_ = conversations()
    plain = policy.sample(second[::-1], n=1, params=PARAMS, seed=3)
    anew = policy.take_usage()
    assert anew.cached_tokens > 0, "what all four begin with is read once"
    with policy.conversations():
        policy.sample(first, n=1, params=PARAMS, seed=3)
        policy.take_usage()
        swapped = policy.sample(second[::-1], n=1, params=PARAMS, seed=3)
        assert policy.take_usage() == anew
        policy.sample(second[::-1], n=1, params=PARAMS, seed=3)
        assert policy.take_usage() == anew, "the same states continue nothing"
    assert [one.completions[0].token_ids for one in swapped] == [one.completions[0].token_ids for one in plain]
    policy.sample(second, n=1, params=PARAMS, seed=3)
    assert policy.take_usage() == anew, "nothing is kept afterwards"


def test_counted_states_are_those_that_are_sampled():
    """Counting renders a state; another one under the same key is rendered anew."""
    policy = TorchPolicy(loaded_model())
    one, other, *_ = states()
    counted = policy.count_tokens(one)
    answer = policy.sample([replace(other, key=one.key)], n=1, params=PARAMS, seed=0)[0]
    assert len(answer.prompt_ids) == policy.count_tokens(other) != counted
    policy.count_tokens(one)
    assert len(policy.sample([one], n=1, params=PARAMS, seed=0)[0].prompt_ids) == counted


def test_samples_follow_the_distribution():
    """Chi-square of the first token over 2,000 samples against the model's probabilities."""
    policy = TorchPolicy(loaded_model())
    state = states(1)
    params = SamplingParams(max_new_tokens=1)
    answer = policy.sample(state, n=2000, params=params, seed=3)[0]
    counts = np.bincount([c.token_ids[0] for c in answer.completions], minlength=policy.loaded.model.config.vocab_size)
    with torch.no_grad():
        logits = policy.loaded.model(torch.tensor([answer.prompt_ids])).logits[0, -1]
    expected = torch.softmax(logits.double(), -1).numpy() * 2000
    often = expected > 5
    rest = ((counts[~often].sum() - expected[~often].sum()) ** 2) / max(expected[~often].sum(), 1)
    statistic = (((counts - expected) ** 2) / expected)[often].sum() + rest
    from scipy.stats import chi2

    assert chi2.sf(statistic, often.sum()) > 1e-3


def test_streams_are_independent_of_each_other():
    assert uniforms(1, "a", 0, 4).tolist() == uniforms(1, "a", 0, 8)[:4].tolist()
    different = [uniforms(1, "a", 0, 1), uniforms(1, "a", 1, 1), uniforms(2, "a", 0, 1), uniforms(1, "b", 0, 1)]
    assert len({float(value[0]) for value in different}) == 4


def test_pick_tokens_inverts_the_distribution():
    logits = torch.log(torch.tensor([[0.1, 0.2, 0.3, 0.4]]))
    picks = [int(pick_tokens(logits, [u], SamplingParams())[0]) for u in (0.0, 0.09, 0.11, 0.31, 0.59, 0.61, 0.999999)]
    assert picks == [0, 0, 1, 2, 2, 3, 3]
    assert int(pick_tokens(logits, [0.0], SamplingParams(temperature=0))[0]) == 3
    top2 = [int(pick_tokens(logits, [u], SamplingParams(top_k=2))[0]) for u in (0.0, 0.42, 0.44, 0.99)]
    assert top2 == [2, 2, 3, 3]
    nucleus = {int(pick_tokens(logits, [u], SamplingParams(top_p=0.65))[0]) for u in np.linspace(0, 0.999, 50)}
    assert nucleus == {2, 3}


def test_stop_and_length_are_told_apart_and_counted():
    policy = TorchPolicy(loaded_model())
    answers = policy.sample(states(), n=4, params=SamplingParams(max_new_tokens=6), seed=0)
    completions = [completion for answer in answers for completion in answer.completions]
    for completion in completions:
        stopped = completion.token_ids[-1] in policy.chat.stop_ids
        assert completion.finish_reason == ("stop" if stopped else "length")
        assert not any(token in policy.chat.stop_ids for token in completion.token_ids[:-1])
    usage = policy.take_usage()
    assert usage.generated_tokens == sum(len(completion.token_ids) for completion in completions)
    total = sum(len(answer.prompt_ids) for answer in answers)
    shared = common_length([answer.prompt_ids for answer in answers])
    assert usage.prefilled_tokens == total - 4 * shared < total, "five states, what they begin with read once"
    assert usage.prefilled_tokens + usage.cached_tokens == 4 * total
    assert usage.rollouts == 20
    assert policy.take_usage().rollouts == 0
