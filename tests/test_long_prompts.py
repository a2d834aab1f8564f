"""Prompts that are longer than one forward pass takes: what is held while they are read, and what comes out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pivotrl.policies.decoding import LONGEST_FEED
from pivotrl.policies.torch import TorchPolicy
from pivotrl.types import Message, SamplingParams, State
from test_torch_policy import BRANCHING, plain_logprobs
from tiny import loaded_model

LONG = 2 * LONGEST_FEED
PARAMS = SamplingParams(max_new_tokens=3)


class SecondLongestAxis(TorchDispatchMode):
    """The longest second axis of any tensor that an operation returns: N for a mask or scores of N tokens by N."""

    most = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        shapes = [sorted(one.shape) for one in tree_leaves(made) if isinstance(one, torch.Tensor) and one.dim() > 1]
        self.most = max([self.most, *(shape[-2] for shape in shapes)])
        return made


def user(text: str, times: int) -> Message:
    return Message(role="user", content=" ".join([text] * times))


def state(*messages: Message) -> State:
    return State(key=messages[0].content or "", messages=messages, tools=None)


def strangers() -> list[State]:
    """Of two lengths, with nothing but the template's first words in common; a pass of the shorter is all padding."""
    return [state(user("yes", LONG)), state(user("no", LONG // 3))]


def trunk() -> list[State]:
    """Four states along one trajectory, and one that ends otherwise."""
    messages = [
        message for _ in range(4) for message in (user("yes", LONG // 4), Message(role="assistant", content="no"))
    ]
    ends = [state(*messages[: 2 * at + 1]) for at in range(4)]
    return [*ends, state(*messages[:4], user("no", LONG // 4))]


def test_nothing_is_of_all_tokens_by_all_tokens():
    policy = TorchPolicy(loaded_model())
    grown = [state(*asked.messages, Message(role="assistant", content="no"), user("no", LONG)) for asked in strangers()]
    with SecondLongestAxis() as axis:
        prompts = [policy.sample(asked, n=2, params=PARAMS, seed=0) for asked in (strangers(), trunk(), trunk()[3:4])]
        with policy.conversations():
            prompts += [policy.sample(asked, n=1, params=PARAMS, seed=0) for asked in (strangers(), grown)]
    assert min(max(len(answer.prompt_ids) for answer in answers) for answers in prompts) >= LONG
    assert axis.most <= LONGEST_FEED
    with SecondLongestAxis() as dense, torch.inference_mode():
        ids = torch.zeros((1, LONG), dtype=torch.long)
        policy.loaded.model(ids, attention_mask=(torch.arange(LONG) > 0)[None].long(), use_cache=False)
    assert dense.most == LONG, "one forward pass over a padded row would be seen here"


@pytest.mark.parametrize("kind", BRANCHING)
def test_prompts_in_several_passes_are_sampled_as_in_one(kind):
    policy = TorchPolicy(loaded_model(kind))
    for answer in policy.sample([*strangers(), *trunk()], n=1, params=PARAMS, seed=2):
        (made,) = answer.completions
        plain = plain_logprobs(policy.loaded.model, answer.prompt_ids, made.token_ids)
        assert np.allclose(made.token_logprobs, plain.tolist(), atol=1e-4)
