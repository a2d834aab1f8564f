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
from pivotrl.learners import (
    Learner,
    LearnerPlan,
    LoraSettings,
    Loss,
    OptimizerSettings,
    Trainable,
    load_learner,
    load_trainable,
)
from pivotrl.models import ModelSettings, load_model
from pivotrl.policies.torch import TorchPolicy
from pivotrl.protocols import ReferencePolicy
from pivotrl.types import SamplingParams, State, TrainingExample
from tiny import SHARED, desk_candidates, make_tokenizer

Rows = Sequence[Sequence[float]]
LOSS = LossSettings(beta=0.01)
MODEL = ModelSettings()
PARAMS = SamplingParams(max_new_tokens=1)
LR = 4e-3
"""Of a LoRA on a model this small."""


def plan(spec: str, loss: Loss) -> LearnerPlan:
    optimizer = OptimizerSettings(lr=LR)
    return LearnerPlan(
        base=spec, model=MODEL, optimizer=optimizer, lora=LoraSettings(), loss=loss, seed=0, reference=None
    )


def write_model(directory: str) -> None:
    """Its output head is wide: SkyRL's LoRA leaves it as it is, and a narrow one cannot tell enough tokens apart."""
    tokenizer = make_tokenizer()
    torch.manual_seed(1)
    sizes = SHARED | {"vocab_size": len(tokenizer), "max_position_embeddings": 512, "num_key_value_heads": 2}
    ids = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    model = Qwen3ForCausalLM(Qwen3Config(**sizes, **ids, head_dim=8, tie_word_embeddings=False))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.mul_(1.0 if "norm" in name else 16.0 if "lm_head" in name else 3.0)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def rollouts(
    policy: ReferencePolicy, states: Sequence[State], step: int, *, n: int = 8
) -> tuple[list[TrainingExample], float]:
    """Examples of one step, and their mean reward: 1 for an even first token. At odd steps pi_old is given."""
    examples, seen = [], []
    for index, answer in enumerate(policy.sample(states, n=n, params=PARAMS, seed=step)):
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
                old_logprobs=completion.token_logprobs if step % 2 else None,
            )
            examples.append(example)
    return examples, sum(seen) / len(seen)


def referred(reference: ReferencePolicy, examples: list[TrainingExample]) -> list[TrainingExample]:
    known = reference.logprobs(examples)
    return [dataclasses.replace(one, reference_logprobs=row) for one, row in zip(examples, known, strict=True)]


def largest_gap(here: Rows, there: Rows) -> float:
    return max(abs(a - b) for x, y in zip(here, there, strict=True) for a, b in zip(x, y, strict=True))


def learn(spec: str, steps: int) -> dict[str, Any]:
    start = load_trainable(spec, MODEL)
    learner, reference = load_learner(start, plan(spec, LOSS), None)
    states = sorted((candidate.state for candidate in desk_candidates()), key=start.count_tokens)[:4]
    here = TorchPolicy(load_model(start.spec.tokenizer or start.spec.base, MODEL))
    measured, before = rollouts(learner.policy(), states, 1000, n=32)
    first = referred(reference, measured[::4])
    known = here.logprobs(first)
    sampled, referring = [one.sampler_logprobs for one in first], [one.reference_logprobs for one in first]
    curve, results, began = [], [], time.monotonic()
    for step in range(steps):
        examples, reward = rollouts(learner.policy(), states, step)
        result = learner.forward_backward(referred(reference, examples), LOSS)
        results.append(dataclasses.replace(result, grad_norm=learner.optim_step()))
        curve.append(round(reward, 3))
        facts = f"KL {result.kl:.3f}, sampler gap {result.sampler_gap:.1e}, gradient {results[-1].grad_norm:.3f}"
        print(f"step {step}: reward {reward:.3f}, {facts}, {time.monotonic() - began:.1f} s", file=sys.stderr)
    seconds = time.monotonic() - began
    _, after = rollouts(learner.policy(), states, 1000, n=32)
    resumed_gap, moved = resume(learner, start, spec, first)
    return {
        "sequences_a_step": len(examples),
        "reward": curve,
        "reward_before_and_after": [before, after],
        "sequences_before_and_after": len(measured),
        "learned": before < 0.7 and after > 0.95 and sum(curve[-5:]) / 5 > 0.95,
        "sampler_to_torch": largest_gap(known, sampled),
        "reference_to_torch": largest_gap(known, referring),
        "largest_sampler_gap": max(result.sampler_gap for result in results),
        "gradient_norm": [round(result.grad_norm, 3) for result in results],
        "kl": [round(result.kl, 3) for result in results],
        "resumed_to_uninterrupted": resumed_gap,
        "that_step_moved_logprobs_by": moved,
        "resumed": resumed_gap < 1e-4 < 1e-2 < moved,
        "imitation": imitate(start, spec, first),
        "seconds_a_step": round(seconds / steps, 2),
    }


def resume(learner: Learner, start: Trainable, spec: str, examples: list[TrainingExample]) -> tuple[float, float]:
    """A saved and loaded training against the same one going on: how far one more step puts them apart, and moves."""
    old = learner.policy().logprobs(examples)
    with tempfile.TemporaryDirectory() as folder:
        learner.save(Path(folder), optimizer=True)
        resumed, _ = load_learner(start, plan(spec, LOSS), Path(folder))
    for one in (learner, resumed):
        one.forward_backward(examples, LOSS)
        one.optim_step()
    rows = [one.policy().logprobs(examples) for one in (learner, resumed)]
    return largest_gap(*rows), largest_gap(old, rows[0])


def imitate(start: Trainable, spec: str, examples: list[TrainingExample]) -> dict[str, list[float]]:
    """The loss of a new training that imitates the actions, at every step."""
    learner, _ = load_learner(start, plan(spec, "imitation"), None)
    losses = []
    for _ in range(5):
        losses.append(round(learner.forward_backward(examples, "imitation").loss, 3))
        learner.optim_step()
    return {"loss": losses}


if __name__ == "__main__":
    if sys.argv[1] == "model":
        write_model(sys.argv[2])
    else:
        found = learn(sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 20)
        print(json.dumps(found, indent=1))
        sys.exit(not (found["learned"] and found["resumed"]))
