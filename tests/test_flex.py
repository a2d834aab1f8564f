"""Trees in one pass by FlexAttention, against one sequence at a time and against the trunks.

torch has the gradient of the unfused kernel on a CPU too, but refuses to use it; the fixture lifts that refusal alone.
"""

from __future__ import annotations

from itertools import chain

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch.nn.attention import flex_attention as torch_flex

from pivotrl.grpo import LossSettings
from pivotrl.learners import OptimizerSettings
from pivotrl.learners.torch import TorchLearner
from pivotrl.policies.flex import can_flex, packs, tree_logprobs
from test_tree_training import KINDS, assert_same, examples, gradients, one_by_one, trees, weight
from tiny import loaded_model, random_model, widened


@pytest.fixture
def gradients_allowed(monkeypatch):
    monkeypatch.setattr(torch_flex, "_validate_device", lambda *_: None)


@pytest.fixture(scope="module")
def wide_models():
    return {kind: widened(random_model(kind, dtype=torch.float64)) for kind in KINDS}


def by_flex(model, prompts, groups):
    found, _ = tree_logprobs(model, list(zip(prompts, groups, strict=True)))
    rows = {(index, at): row for index, group in enumerate(found) for at, row in enumerate(group)}
    total = sum((row * weight(index, at, len(row))).sum() for (index, at), row in rows.items())
    if total.requires_grad:
        total.backward()
    return {key: row.detach() for key, row in rows.items()}, gradients(model)


@pytest.mark.usefixtures("gradients_allowed")
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(trees())
def test_a_pass_over_a_tree_is_exactly_its_sequences(wide_models, kind, tree):
    """float64: log-probabilities 1e-8, gradients 1e-6 relative; windows of 24 among them."""
    model, (prompts, groups) = wide_models[kind], tree
    assert_same(by_flex(model, prompts, groups), one_by_one(model, prompts, groups))


@pytest.mark.usefixtures("gradients_allowed")
def test_the_learner_takes_trees_and_leaves_large_ones_to_the_trunks():
    """The same loss, gradient and tokens, but for the last tokens of actions, which are forwarded here."""

    def update(flexes, **options):
        learner = TorchLearner(loaded_model("qwen2"), OptimizerSettings(**options))
        learner._flexes = flexes
        result = learner.forward_backward(examples(), LossSettings(beta=0.0))
        return result, gradients(learner.loaded.model), learner.take_usage()

    result, gradient, usage = update(False)
    for most in (60, 100, 8192):
        other, same, its_usage = update(True, batch_tokens=most)
        assert other.loss == pytest.approx(result.loss, abs=1e-5)
        assert (same - gradient).norm() <= 1e-4 * gradient.norm()
        assert 0 < its_usage.trained_tokens <= usage.trained_tokens * 1.6


@pytest.mark.usefixtures("gradients_allowed")
def test_who_can():
    assert can_flex(random_model("qwen2"))
    assert can_flex(random_model("mixed_windows"))
    assert not can_flex(random_model("gemma2"))  # its scores are capped


def test_nobody_on_a_cpu_as_torch_is():
    assert not can_flex(random_model("qwen2"))
    assert not TorchLearner(loaded_model("qwen2"), OptimizerSettings())._flexes


@settings(deadline=None)
@given(trees())
def test_packs_hold_every_group_once_and_no_more_tokens_than_told(tree):
    groups = list(zip(*tree, strict=True))
    for most in (5, 30, 200):
        taken, large = packs(groups, most)
        assert sorted([*chain(*taken), *large]) == list(range(len(groups)))
        for pack in taken:
            rows = [(*groups[index][0], *action) for index in pack for action in groups[index][1]]
            assert len({row[:end] for row in rows for end in range(1, len(row) + 1)}) <= most
        for index in large:
            assert len(groups[index][0]) + sum(map(len, set(groups[index][1]))) > most
