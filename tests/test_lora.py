"""LoRA: gradients through shared trunks, the base as reference, and adapters that load elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from pivotrl.errors import ConfigError, InputError, MissingError
from pivotrl.grpo import LossSettings
from pivotrl.learners import LoraSettings, OptimizerSettings
from pivotrl.learners.lora import Adapter
from pivotrl.learners.torch import TorchLearner
from pivotrl.models import ADAPTER_FILE, ModelSettings, load_model
from pivotrl.policies.torch import TorchPolicy
from pivotrl.types import SamplingParams, TrainingExample
from tiny import desk_candidates, saved_model

FLOAT32, BFLOAT16 = ModelSettings(dtype="float32"), ModelSettings(dtype="bfloat16")


def new_learner(path: Path, settings: ModelSettings = FLOAT32, **lora) -> TorchLearner:
    loaded = load_model(str(path), settings)
    adapter = Adapter(loaded, LoraSettings(**{"rank": 4, **lora}), base=str(path), seed=3)
    return TorchLearner(loaded, OptimizerSettings(lr=1e-2), adapter)


def drawn(learner: TorchLearner, seed: int = 0) -> list[TrainingExample]:
    """Groups of 3 at states of one trajectory, with rewards by position."""
    states = [candidate.state for candidate in desk_candidates()[:3]]
    answers = learner.policy().sample(states, n=3, params=SamplingParams(max_new_tokens=5), seed=seed)
    return [
        TrainingExample(
            group_id=str(index),
            prompt_ids=answer.prompt_ids,
            action_ids=completion.token_ids,
            advantage=float(sample - 1),
            loss_mask=(True,) * len(completion.token_ids),
            sampler_logprobs=completion.token_logprobs,
        )
        for index, answer in enumerate(answers)
        for sample, completion in enumerate(answer.completions)
    ]


def trained(learner: TorchLearner, steps: int = 2) -> list[TrainingExample]:
    for step in range(steps):
        examples = drawn(learner, step)
        learner.forward_backward(examples, LossSettings(beta=0))
        learner.optim_step()
    return examples


def gap(one: list[tuple[float, ...]], other: list[tuple[float, ...]]) -> float:
    return max(abs(a - b) for left, right in zip(one, other, strict=True) for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize("kind", ["llama", "qwen2", "mistral"])
def test_gradients_through_shared_trunks_are_those_of_whole_sequences(kind, tmp_path):
    learner = new_learner(saved_model(tmp_path / "base", kind))
    examples = trained(learner)
    assert learner.shares_prefix
    found = []
    for share in (True, False):
        learner.shares_prefix = share
        learner.forward_backward(examples, LossSettings(beta=0))
        found.append(torch.cat([weight.grad.flatten() for weight in learner.adapter.weights()]))
        learner.optimizer.zero_grad()
    assert found[0].norm() > 0
    assert (found[0] - found[1]).norm() / found[1].norm() < 1e-4
    frozen = [one for name, one in learner.loaded.model.named_parameters() if "lora_" not in name]
    assert all(one.grad is None and not one.requires_grad for one in frozen)


def test_the_reference_is_the_base_in_the_same_memory(tmp_path):
    path = saved_model(tmp_path / "base")
    learner = new_learner(path)
    base = TorchPolicy(load_model(str(path), FLOAT32))
    fresh = drawn(learner)
    assert gap(learner.policy().logprobs(fresh), base.logprobs(fresh)) == 0  # B is zero at first
    examples = trained(learner)
    reference = learner.adapter.reference()
    assert gap(learner.policy().logprobs(examples), base.logprobs(examples)) > 0.01
    assert reference.logprobs(examples) == base.logprobs(examples)
    states, params = [candidate.state for candidate in desk_candidates()[:2]], SamplingParams(max_new_tokens=4)
    assert reference.sample(states, n=2, params=params, seed=1) == base.sample(states, n=2, params=params, seed=1)
    assert reference.loaded.model is learner.loaded.model
    result = learner.forward_backward(drawn(learner, 9), LossSettings(beta=0))  # it is on again, and trained
    assert result.sampler_gap < 1e-4
    assert learner.optim_step() > 0


@pytest.mark.parametrize(("settings", "tolerance"), [(FLOAT32, 1e-4), (BFLOAT16, 0.1)], ids=["float32", "bfloat16"])
def test_adapter_and_merged_model_load_elsewhere(settings, tolerance, tmp_path):
    path = saved_model(tmp_path / "base")
    learner = new_learner(path, settings)
    examples = trained(learner)
    assert {one.dtype for one in learner.adapter.weights()} == {torch.float32}
    wanted = learner.policy().logprobs(examples)
    assert gap(wanted, learner.adapter.reference().logprobs(examples)) > 2 * tolerance
    learner.save(tmp_path / "merged", optimizer=False)
    learner.save(tmp_path / "adapter", optimizer=True)
    for name in ("merged", "adapter"):
        again = load_model(str(tmp_path / name), settings)
        assert gap(TorchPolicy(again).logprobs(examples), wanted) < tolerance
        assert again.weights not in (learner.loaded.weights, "")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=settings.dtype)
    assert not any("lora" in name for name, _ in theirs.named_parameters())
    base = AutoModelForCausalLM.from_pretrained(path, dtype=settings.dtype)
    theirs = PeftModel.from_pretrained(base, tmp_path / "adapter")
    ids = torch.tensor([examples[0].prompt_ids])
    with torch.inference_mode():
        gaps = theirs(ids).logits - learner.loaded.model(ids).logits
    assert float(gaps.abs().max()) < tolerance


def test_an_adapter_is_written_in_the_same_bytes_and_read_back(tmp_path):
    path = saved_model(tmp_path / "base")
    learner = new_learner(path)
    trained(learner)
    learner.save(tmp_path / "one", optimizer=True)
    again = new_learner(path)
    again.load_optimizer(tmp_path / "one")
    again.save(tmp_path / "two", optimizer=True)
    for file in (tmp_path / "one").iterdir():
        assert (tmp_path / "two" / file.name).read_bytes() == file.read_bytes(), file.name
    with pytest.raises(InputError, match="another rank"):
        new_learner(path, rank=2).load_optimizer(tmp_path / "one")
    (tmp_path / "one" / ADAPTER_FILE).write_bytes(b"torn")
    with pytest.raises(InputError, match="train again"):
        again.load_optimizer(tmp_path / "one")


def test_an_adapter_whose_base_is_gone_gives_one_line(tmp_path):
    learner = new_learner(saved_model(tmp_path / "base"))
    learner.save(tmp_path / "adapter", optimizer=True)
    (tmp_path / "base").rename(tmp_path / "moved")
    with pytest.raises(MissingError, match=r"adapter, and its base is gone: model .*base': no such directory"):
        load_model(str(tmp_path / "adapter"), FLOAT32)


@pytest.mark.parametrize("settings", [{"rank": -1}, {"rank": 1, "alpha": 0}])
def test_settings_that_cannot_work_are_refused(settings):
    with pytest.raises(ConfigError, match="must be"):
        LoraSettings(**settings)
