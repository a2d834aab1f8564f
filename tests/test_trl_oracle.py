"""Our loss, its gradient and our advantages are those of TRL's GRPOTrainer, for every option that both have.

One stored batch with a random tiny model in float64: prompts of several lengths, equal actions, a group without
variance, ratios between .5 and 2. What TRL lacks is held against numpy in test_grpo_reference.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest
import torch

from pivotrl.grpo import AdvantageSettings, LossSettings, advantages
from pivotrl.learners import OptimizerSettings
from pivotrl.learners.torch import TorchLearner
from pivotrl.types import TrainingExample
from tiny import loaded_model

pytest.importorskip("trl", reason="TRL is not installed: `make dev` installs it")

PROMPTS = ((5, 9, 14, 3), (7, 8), (11, 12, 13, 4, 6, 9, 2))
LONGEST = 5
REWARDS = (1.0, 0.0, 0.25, 0.0, 0.5, 0.5, 0.5, 0.5, 1.0, 1.0, 0.0, 1.0)


@pytest.fixture(scope="module")
def loaded():
    return loaded_model(seed=3, dtype=torch.float64)


@pytest.fixture(scope="module")
def trainer(loaded, tmp_path_factory):
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    rewards = count()
    settings = GRPOConfig(
        output_dir=str(tmp_path_factory.mktemp("trl")),
        per_device_train_batch_size=12,
        num_generations=4,
        max_completion_length=LONGEST,
        use_cpu=True,
        bf16=False,
        report_to=[],
        disable_tqdm=True,
    )
    return GRPOTrainer(
        model=loaded.model,
        reward_funcs=lambda completions, **_: [REWARDS[next(rewards) % 12] for _ in completions],
        args=settings,
        train_dataset=Dataset.from_list([{"prompt": "find order"}] * 12),
        processing_class=loaded.chat.tokenizer,
    )


@pytest.fixture(scope="module")
def examples(loaded):
    """Three groups of four actions; old, reference and sampler within a factor of 2 of the current probabilities."""
    generator = torch.Generator().manual_seed(5)
    made = []
    for number, prompt in enumerate(PROMPTS):
        lengths = torch.randint(1, LONGEST + 1, (4,), generator=generator).tolist()
        actions = [tuple(torch.randint(2, 40, (length,), generator=generator).tolist()) for length in lengths]
        actions[3] = actions[2]
        advantages_G = advantages(REWARDS[4 * number : 4 * number + 4], AdvantageSettings())
        made += [
            TrainingExample(
                group_id=f"g{number}",
                prompt_ids=prompt,
                action_ids=action,
                advantage=advantage,
                loss_mask=(True,) * len(action),
            )
            for action, advantage in zip(actions, advantages_G, strict=True)
        ]

    def near(row):
        factors = 2.0 ** (torch.rand(len(row), generator=generator, dtype=torch.float64) * 2 - 1)
        return tuple((torch.tensor(row, dtype=torch.float64) + factors.log()).tolist())

    rows = TorchLearner(loaded, OptimizerSettings()).policy().logprobs(made)
    return [
        replace(example, old_logprobs=near(row), reference_logprobs=near(row), sampler_logprobs=near(row))
        for example, row in zip(made, rows, strict=True)
    ]


def padded(rows, *, left=False, value=0, dtype=torch.float64):
    width = max(map(len, rows))
    filled = [
        [value] * (width - len(row)) + list(row) if left else [*row, *[value] * (width - len(row))] for row in rows
    ]
    return torch.tensor(filled, dtype=dtype)


def stored(examples, pad):
    """The batch as TRL's trainer wants it."""
    mask = padded([example.loss_mask for example in examples], dtype=torch.long)
    old, sampler = (padded([getattr(e, name) for e in examples]) for name in ("old_logprobs", "sampler_logprobs"))
    return {
        "prompt_ids": padded([e.prompt_ids for e in examples], left=True, value=pad, dtype=torch.long),
        "prompt_mask": padded([[1] * len(e.prompt_ids) for e in examples], left=True, dtype=torch.long),
        "completion_ids": padded([e.action_ids for e in examples], value=pad, dtype=torch.long),
        "completion_mask": mask,
        "advantages": torch.tensor([example.advantage for example in examples], dtype=torch.float64),
        "old_per_token_logps": old,
        "ref_per_token_logps": padded([example.reference_logprobs for example in examples]),
        "num_items_in_batch": mask.sum(),
        "importance_sampling_ratio": (old - sampler).exp().clamp(max=1.3),
    }


def theirs(trainer, loaded, batch, options):
    """Loss and gradient of `_compute_loss`, which reads these options from the trainer and its arguments."""
    defaults = {"loss_type": "dapo", "importance_sampling_level": "token", "epsilon_low": 0.2, "epsilon_high": 0.2}
    defaults |= {"beta": 0.0, "use_vllm": False, "vllm_importance_sampling_correction": True}
    for name, value in (defaults | {"delta": None, "use_bias_correction_kl": False} | options).items():
        setattr(trainer.args if name in ("delta", "use_bias_correction_kl") else trainer, name, value)
    loaded.model.eval()
    loaded.model.zero_grad(set_to_none=True)
    loss = trainer._compute_loss(loaded.model, batch)
    loss.backward()
    return float(loss.detach()), gradient(loaded)


def ours(loaded, examples, settings):
    learner = TorchLearner(loaded, OptimizerSettings())
    loaded.model.zero_grad(set_to_none=True)
    return learner.forward_backward(examples, settings).loss, gradient(loaded)


def gradient(loaded):
    return torch.cat(
        [parameter.grad.flatten() for parameter in loaded.model.parameters() if parameter.grad is not None]
    )


def difference(one, other):
    return float((one - other).norm() / other.norm())


TOKEN, SEQUENCE = {"reduction": "token"}, {"reduction": "sequence"}
GSPO = {"loss_type": "grpo", "importance_sampling_level": "sequence"}
GSPO_OURS = SEQUENCE | {"ratio": "gspo"}
K3 = {"beta": 0.3, "kl": "k3", "kl_weighted": False}


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ({"loss_type": "dapo"}, TOKEN),
        ({"loss_type": "bnpo"}, TOKEN),
        ({"loss_type": "grpo"}, SEQUENCE),
        (GSPO, GSPO_OURS),
        ({"epsilon_low": 0.1, "epsilon_high": 0.4}, TOKEN | {"clip_low": 0.1, "clip_high": 0.4}),
        (GSPO | {"epsilon_low": 0.1, "epsilon_high": 0.15}, GSPO_OURS | {"clip_low": 0.1, "clip_high": 0.15}),
        ({"delta": 1.3}, TOKEN | {"dual_clip": 1.3}),
        ({"delta": 1.3, "loss_type": "grpo"}, SEQUENCE | {"dual_clip": 1.3}),
        (GSPO | {"delta": 1.25}, GSPO_OURS | {"dual_clip": 1.25}),
        ({"beta": 0.3}, TOKEN | K3),
        ({"beta": 0.3, "loss_type": "grpo"}, SEQUENCE | K3),
        (GSPO | {"beta": 0.3}, GSPO_OURS | K3),
        ({"beta": 0.3, "delta": 1.3}, TOKEN | {"dual_clip": 1.3} | K3),
        ({"use_vllm": True}, TOKEN | {"sampler_weight_cap": 1.3}),
        ({"use_vllm": True, "loss_type": "grpo"}, SEQUENCE | {"sampler_weight_cap": 1.3}),
    ],
)
@pytest.mark.parametrize("off_policy", [True, False])
def test_loss_and_gradient_are_those_of_trl(trainer, loaded, examples, options, settings, off_policy):
    batch = stored(examples, loaded.chat.tokenizer.pad_token_id)
    if not off_policy:
        examples = [replace(example, old_logprobs=None) for example in examples]
        batch |= {"old_per_token_logps": None}
        if options.get("use_vllm"):
            pytest.skip("TRL computes the weights from stored log-probabilities")
    loss, gradients = ours(loaded, examples, LossSettings(**{"beta": 0.0} | settings))
    expected, expected_gradients = theirs(trainer, loaded, batch, options)
    assert loss == pytest.approx(expected, rel=1e-6, abs=1e-7)
    assert difference(gradients, expected_gradients) < 1e-6


def test_options_that_differ_by_a_factor_or_in_the_gradient(trainer, loaded, examples):
    """dr_grpo divides by a constant instead of the tokens; TRL's weighted KL has a gradient through its weight."""
    batch = stored(examples, loaded.chat.tokenizer.pad_token_id)
    tokens = float(batch["num_items_in_batch"])
    loss, gradients = ours(loaded, examples, LossSettings(beta=0))
    expected, expected_gradients = theirs(trainer, loaded, batch, {"loss_type": "dr_grpo"})
    factor = tokens / (len(examples) * LONGEST)
    assert loss * factor == pytest.approx(expected, rel=1e-6)
    assert difference(gradients * factor, expected_gradients) < 1e-6
    loss, _ = ours(loaded, examples, LossSettings(beta=0.3, kl="k3"))
    expected, _ = theirs(trainer, loaded, batch, {"beta": 0.3, "use_bias_correction_kl": True})
    assert loss == pytest.approx(expected, rel=1e-6)


def test_masked_actions_leave_the_token_mean_of_both(trainer, loaded, examples):
    examples = [replace(e, loss_mask=(number != 1,) * len(e.action_ids)) for number, e in enumerate(examples)]
    batch = stored(examples, loaded.chat.tokenizer.pad_token_id)
    loss, gradients = ours(loaded, examples, LossSettings(beta=0))
    expected, expected_gradients = theirs(trainer, loaded, batch, {})
    assert loss == pytest.approx(expected, rel=1e-6)
    assert difference(gradients, expected_gradients) < 1e-6


@pytest.mark.parametrize(("scale", "std"), [("group", "sample"), ("none", "none")])
def test_advantages_are_those_of_trl(trainer, scale, std):
    """From its own rollouts, with the rewards that are given: a group's mean, and its deviation with n - 1."""
    trainer.scale_rewards = scale
    scored = trainer._generate_and_score_completions([{"prompt": "find order"}] * 12)
    settings = AdvantageSettings(std=std, epsilon=1e-4)
    expected = [value for start in (0, 4, 8) for value in advantages(REWARDS[start : start + 4], settings)]
    assert scored["advantages"].tolist() == pytest.approx(expected, rel=1e-5, abs=1e-6)
