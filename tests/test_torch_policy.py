"""The sampler and the learner against transformers' own forward pass, one sequence at a time."""

from __future__ import annotations

import inspect
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import FalconConfig, FalconForCausalLM

from pivotrl.grpo import LossSettings
from pivotrl.learners import OptimizerSettings
from pivotrl.learners.torch import TorchLearner
from pivotrl.policies.decoding import can_branch, can_continue
from pivotrl.policies.forward import can_share_prefix, group_cost
from pivotrl.policies.torch import TorchPolicy, pick_tokens, uniforms
from pivotrl.prefix_tree import shared_trunks
from pivotrl.types import SamplingParams, State, TrainingExample
from tiny import desk_candidates, loaded_model

KINDS = ["llama", "qwen2", "mistral", "gemma2", "mamba", "gpt_neo", "mpt"]
BRANCHING = KINDS[:4]
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


def test_equal_actions_are_computed_once():
    loaded = loaded_model()
    prompt, shape = loaded.chat.prompt_ids(states(1)[0]), loaded.shape
    assert group_cost(shape, prompt, [[5, 9], [7], [5, 9]], None) == group_cost(shape, prompt, [[5, 9], [7]], None)
    assert group_cost(shape, prompt, [[7], [8]], None)[0] == 2 * len(prompt) + 2


def test_only_attention_shares_prefixes():
    assert [kind for kind in KINDS if not can_share_prefix(loaded_model(kind).model)] == ["mamba"]


def test_only_models_that_keep_branches_apart_decode_them_in_one_row():
    """ALiBi models refuse the mask; a model that overlooks it gives other logits, and is found out as well."""

    class Overlooking(torch.nn.Module):
        def __init__(self, model) -> None:
            super().__init__()
            self.model, self.config, self.dtype, self.device = model, model.config, model.dtype, model.device

        def forward(self, input_ids, attention_mask=None, **options):
            return self.model(input_ids, attention_mask=None if attention_mask.ndim == 4 else attention_mask, **options)

    llama = loaded_model().model
    Overlooking.forward.__signature__ = inspect.signature(type(llama).forward)  # `cache_name` looks there
    config = FalconConfig(vocab_size=90, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, alibi=True)
    assert [kind for kind in KINDS if TorchPolicy(loaded_model(kind)).branches] == BRANCHING
    assert can_branch(llama)
    assert not can_branch(Overlooking(llama))
    assert not can_branch(FalconForCausalLM(config).eval())


def test_a_cache_that_is_not_understood_is_not_used(capsys):
    """Mamba's takes no mask of what was read before; sampling goes on without it, and says so once."""
    policy = TorchPolicy(loaded_model("mamba"))
    assert not policy.branches
    assert not can_continue(policy.loaded.model)
    assert can_continue(loaded_model().model)
    for _ in range(2):
        policy.sample(states(2), n=2, params=PARAMS, seed=0)
    assert capsys.readouterr().err.count("MambaForCausalLM: its cache is not understood") == 1


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


def count_unique(prompts) -> int:
    """Tokens of the tree of some prompts."""
    return len({prompt[:end] for prompt in prompts for end in range(1, len(prompt) + 1)})


def forked_states():
    """A trajectory's states, and such that end with another word of the user's or the tools'."""
    trunk = states(6)
    said = [replace(state.messages[-1], content=f"{state.messages[-1].content} please") for state in trunk]
    forks = [
        replace(state, key=f"{state.key}!", messages=(*state.messages[:-1], last))
        for state, last in zip(trunk, said, strict=True)
    ]
    return [*trunk[::2], *forks, *trunk[1::2]]


@pytest.mark.parametrize("kind", BRANCHING)
def test_a_tree_of_states_is_sampled_as_each_would_be_alone(kind):
    """Forks, a state that is given twice, and several trees in one call; every token of a tree is read once."""
    policy = TorchPolicy(loaded_model(kind))
    asked = [*forked_states(), *states(2), desk_candidates()[-1].state]
    trunks, alone = shared_trunks([policy.chat.prompt_ids(state) for state in asked])
    assert ([len(trunk) for trunk in trunks], alone) == ([7, 7], [14])
    together = policy.sample(asked, n=3, params=PARAMS, seed=11)
    read = policy.take_usage()
    assert read.prefilled_tokens == len(together[-1].prompt_ids) + sum(
        count_unique([together[index].prompt_ids for index in trunk]) for trunk in trunks
    )
    for state, answer in zip(asked, together, strict=True):
        (single,) = policy.sample([state], n=3, params=PARAMS, seed=11)
        for one, other in zip(answer.completions, single.completions, strict=True):
            plain = plain_logprobs(policy.loaded.model, answer.prompt_ids, one.token_ids)
            assert one.token_ids == other.token_ids
            assert np.allclose(one.token_logprobs, plain.tolist(), atol=1e-4)
    assert policy.take_usage().generated_tokens == read.generated_tokens


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8).map(tuple), max_size=9))
def test_trunks_hold_every_prompt_once_and_little_else(prompts):
    trunks, alone = shared_trunks(prompts)
    assert sorted(chain(alone, *trunks)) == list(range(len(prompts)))
    for trunk in trunks:
        assert max(len(prompts[index]) for index in trunk) >= 0.8 * count_unique([prompts[index] for index in trunk])


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
    assert (usage.prefilled_tokens < 0.8 * anew.prefilled_tokens) is policy.branches
    assert usage.generated_tokens == anew.generated_tokens
    read = sum(len(answer.prompt_ids) for turn in kept for answer in turn)
    if policy.continues:
        assert usage.prefilled_tokens + usage.cached_tokens == anew.prefilled_tokens + anew.cached_tokens == read
    else:
        again = [len(a.prompt_ids) + at for turn in kept for a in turn for at in range(len(a.completions[0].token_ids))]
        assert usage.prefilled_tokens == anew.prefilled_tokens == sum(again), "all is read again for every token"


def test_a_call_that_continues_nothing_reads_everything():
    policy = TorchPolicy(loaded_model())
    first, second, *_ = conversations()
    plain = policy.sample(second[::-1], n=1, params=PARAMS, seed=3)
    tree = policy.take_usage()
    with policy.conversations():
        policy.sample(second[::-1], n=1, params=PARAMS, seed=3)
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
    policy.sample(second[::-1], n=1, params=PARAMS, seed=3)
    assert policy.take_usage() == tree, "nothing is kept afterwards"


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
    trunks, alone = shared_trunks([answer.prompt_ids for answer in answers])
    assert not alone
    unique = sum(count_unique([answers[index].prompt_ids for index in trunk]) for trunk in trunks)
    assert usage.prefilled_tokens == unique < total / 1.5, "every token of a trajectory read once"
    assert usage.prefilled_tokens + usage.cached_tokens == 4 * total
    assert usage.rollouts == 20
    assert policy.take_usage().rollouts == 0
