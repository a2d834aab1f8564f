"""Learning happens: a tiny random model goes from about one half to over .95 on a toy task, and a seed repeats it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pivotrl.grpo import AdvantageSettings, LossSettings, advantages
from pivotrl.learners import LoraSettings, OptimizerSettings
from pivotrl.learners.lora import Adapter
from pivotrl.learners.torch import TorchLearner
from pivotrl.policies.torch import TorchPolicy
from pivotrl.training_settings import preset
from pivotrl.types import SamplingParams, TrainingExample
from tiny import desk_candidates, loaded_model

PARAMS = SamplingParams(max_new_tokens=1)


def practise(steps, *, seed=0, updates=1, loss=None, advantage=None, rank=0):
    """Reward 1 for an even first token: about half of the vocabulary is right to begin with."""
    loaded = loaded_model(seed=1)
    adapter = Adapter(loaded, LoraSettings(rank=rank), base="", seed=0) if rank else None
    learner = TorchLearner(loaded, OptimizerSettings(lr=2e-2 if rank else 3e-3), adapter)
    states = [candidate.state for candidate in desk_candidates()[:6]]
    loss, advantage = loss or LossSettings(beta=0), advantage or AdvantageSettings()
    reference = TorchPolicy(loaded_model(seed=1))
    curve = []
    for step in range(steps):
        examples = []
        rewards_seen = []
        for index, answer in enumerate(learner.policy().sample(states, n=8, params=PARAMS, seed=seed * 1000 + step)):
            rewards = [float(completion.token_ids[0] % 2 == 0) for completion in answer.completions]
            rewards_seen += rewards
            for completion, value in zip(answer.completions, advantages(rewards, advantage), strict=True):
                examples.append(
                    TrainingExample(
                        group_id=str(index),
                        prompt_ids=answer.prompt_ids,
                        action_ids=completion.token_ids,
                        advantage=value,
                        loss_mask=(True,),
                        sampler_logprobs=completion.token_logprobs,
                    )
                )
        if loss.beta > 0:
            scored = zip(examples, reference.logprobs(examples), strict=True)
            examples = [replace(example, reference_logprobs=row) for example, row in scored]
        for _ in range(updates):
            learner.forward_backward(examples, loss)
            learner.optim_step()
        curve.append(sum(rewards_seen) / len(rewards_seen))
    return curve, learner


@pytest.mark.parametrize(("ratio", "rank"), [("token", 0), ("action", 0), ("gspo", 0), ("token", 8)])
def test_learns(ratio, rank):
    assert_learned(practise(60 if rank else 40, loss=LossSettings(beta=0, ratio=ratio), rank=rank)[0])


@pytest.mark.parametrize("name", ["paper", "nemo-rl"])
def test_learns_with_each_preset(name):
    settings = preset(name, Path())
    assert_learned(practise(40, loss=settings.loss, advantage=settings.advantage)[0])


def assert_learned(curve):
    assert 0.3 < curve[0] < 0.7
    assert sum(curve[-5:]) / 5 > 0.95


def test_deterministic():
    first, one = practise(4)
    second, two = practise(4)
    assert first == second
    for a, b in zip(one.loaded.model.parameters(), two.loaded.model.parameters(), strict=True):
        assert torch.equal(a, b)
    other, _ = practise(4, seed=1)
    assert other != first
