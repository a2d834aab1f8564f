"""The learning test of tests/test_learns.py through a Tinker API server: a toy reward must rise. Prints JSON.

tinker_learns.py model DIRECTORY: write the tiny random Qwen3 that the server is to serve.
tinker_learns.py learn SPEC [STEPS]: train it, SPEC being a policy `tinker:DIRECTORY@URL?reduction=mean`.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from pivotrl.grpo import AdvantageSettings, LossSettings, advantages
from pivotrl.learners import OptimizerSettings, load_learner, load_trainable
from pivotrl.learners.torch import TorchLearner
from pivotrl.models import ModelSettings, load_model
from pivotrl.policies.torch import TorchPolicy
from pivotrl.protocols import ReferencePolicy
from pivotrl.types import SamplingParams, State, TrainingExample
from tiny import SHARED, desk_candidates, make_tokenizer

LOSS = LossSettings(beta=0.01)
PARAMS = SamplingParams(max_new_tokens=1)
LR = 4e-3
"""Of a LoRA on a model this small."""


def write_model(directory: str) -> None:
    tokenizer = make_tokenizer()
    torch.manual_seed(1)
    sizes = SHARED | {"vocab_size": len(tokenizer), "max_position_embeddings": 512, "num_key_value_heads": 2}
    ids = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    model = Qwen3ForCausalLM(Qwen3Config(**sizes, **ids, head_dim=8, tie_word_embeddings=False))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.mul_(1.0 if "norm" in name else 3.0)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def rollouts(
    policy: ReferencePolicy, reference: ReferencePolicy, states: Sequence[State], step: int
) -> tuple[list[TrainingExample], float]:
    """Examples of one step, and their mean reward: 1 for an even first token."""
    examples, seen = [], []
    for index, answer in enumerate(policy.sample(states, n=8, params=PARAMS, seed=step)):
        rewards = [float(completion.token_ids[0] % 2 == 0) for completion in answer.completions]
        seen += rewards
        for completion, advantage in zip(answer.completions, advantages(rewards, AdvantageSettings()), strict=True):
            example = TrainingExample(
                group_id=str(index),
                prompt_ids=answer.prompt_ids,
                action_ids=completion.token_ids,
                advantage=advantage,
                loss_mask=(True,),
                sampler_logprobs=completion.token_logprobs,
            )
            examples.append(example)
    known = reference.logprobs(examples)
    examples = [dataclasses.replace(one, reference_logprobs=row) for one, row in zip(examples, known, strict=True)]
    return examples, sum(seen) / len(seen)


def learn(spec: str, steps: int) -> dict[str, Any]:
    settings, optimizer = ModelSettings(), OptimizerSettings(lr=LR)
    start = load_trainable(spec, settings)
    learner, reference = load_learner(start, settings, optimizer, LOSS, None)
    states = [candidate.state for candidate in desk_candidates()[:4]]
    directory = start.spec.tokenizer or start.spec.base
    here = TorchLearner(load_model(directory, settings), optimizer)
    first, _ = rollouts(reference, TorchPolicy(load_model(directory, settings)), states, 0)
    mine, curve, results, began = here.forward_backward(first, LOSS), [], [], time.monotonic()
    for step in range(steps):
        examples, reward = rollouts(learner.policy(), reference, states, step)
        result = learner.forward_backward(examples, LOSS)
        results.append(dataclasses.replace(result, grad_norm=learner.optim_step()))
        curve.append(reward)
        facts = f"KL {result.kl:.3f}, sampler gap {result.sampler_gap:.1e}, gradient {results[-1].grad_norm:.3f}"
        print(f"step {step}: reward {reward:.3f}, {facts}, {time.monotonic() - began:.1f} s", file=sys.stderr)
    seconds = time.monotonic() - began
    examples, reward = rollouts(learner.policy(), reference, states, steps)
    with tempfile.TemporaryDirectory() as folder:
        learner.save(Path(folder), optimizer=True)
        resumed, _ = load_learner(start, settings, optimizer, LOSS, Path(folder))
        for one in (learner, resumed):
            one.forward_backward(examples, LOSS)
            one.optim_step()
        rows = [one.policy().logprobs(examples) for one in (learner, resumed)]
    gap = max(abs(a - b) for x, y in zip(*rows, strict=True) for a, b in zip(x, y, strict=True))
    return {
        "reward": [round(value, 3) for value in [*curve, reward]],
        "learned": curve[0] < 0.7 and sum([*curve, reward][-5:]) / 5 > 0.95,
        "loss_difference_to_torch": abs(results[0].loss - mine.loss),
        "first_sampler_to_torch": mine.sampler_gap,
        "largest_sampler_gap": max(result.sampler_gap for result in results),
        "kl": round(results[-1].kl, 4),
        "resumed_against_uninterrupted": gap,
        "seconds_a_step": round(seconds / steps, 2),
    }


if __name__ == "__main__":
    if sys.argv[1] == "model":
        write_model(sys.argv[2])
    else:
        found = learn(sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 40)
        print(json.dumps(found, indent=1))
        sys.exit(not found["learned"])
