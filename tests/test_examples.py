"""From groups to examples: draws after equal rewards, what dead groups, malformed and truncated actions become."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pivotrl.curves import step_metrics
from pivotrl.errors import ConfigError
from pivotrl.examples import draw, examples_of, last_of, too_old
from pivotrl.grpo import AdvantageSettings, LossSettings
from pivotrl.policies import ScriptedPolicy
from pivotrl.rollouts import Sampling
from pivotrl.training_settings import TrainConfig, check, preset
from pivotrl.types import Action, Completion, RolloutGroup, SamplingParams, Verdict
from pivotrl.verifiers import load_verifier
from tiny import desk_candidates

CONFIG = TrainConfig(run=Path())
OFF = LossSettings(beta=0)


def is_yes(candidate, action):
    return action.text == "yes"


def group(rewards, *, bad=(), cut=(), logprobs=True, name="c"):
    """A group with these rewards, of which some are malformed or truncated."""
    completions = [
        Completion(
            action=None if number in (*bad, *cut) else Action(text="x"),
            text="x",
            finish_reason="length" if number in cut else "stop",
            token_ids=(1, 2),
            token_logprobs=(-1.0, -1.0) if logprobs else None,
        )
        for number in range(len(rewards))
    ]
    verdicts = tuple(Verdict(value=reward, reason="r", verifier="v", version="1") for reward in rewards)
    return RolloutGroup(candidate_id=name, completions=tuple(completions), verdicts=verdicts, prompt_ids=(9,))


def drawn(p_yes, draws, n=4):
    sampling = Sampling(
        policy=ScriptedPolicy(lambda state, random: "yes" if random.random() < p_yes else "no"),
        verifier=load_verifier(f"{__name__}:is_yes"),
        params=SamplingParams(max_new_tokens=8),
        n=n,
        seed=0,
    )
    return draw(sampling, desk_candidates()[:12], draws)


def flat(groups):
    return {one.candidate_id for one in groups if len(set(one.rewards)) == 1}


def test_only_equal_rewards_are_drawn_again_from_the_same_streams():
    """The samples of later draws are those that a group of three times the size has after the first's."""
    first, *again = drawn(0.15, 3)
    assert [{one.candidate_id for one in groups} for groups in again] == [flat(first), flat(again[0])]
    whole = {one.candidate_id: one.completions for one in drawn(0.15, 1, n=12)[0]}
    for start, groups in zip((4, 8), again, strict=True):
        assert all(one.completions == whole[one.candidate_id][start : start + 4] for one in groups)
    last = last_of([first, *again])
    assert [one.candidate_id for one in last] == [one.candidate_id for one in first]
    assert flat(last) < flat(first)
    metrics = step_metrics(0, [first, *again], None)
    assert metrics.redrawn == sum(map(len, again))
    assert metrics.rollouts == 4 * (len(first) + metrics.redrawn)
    assert metrics.groups_mixed == len(first) - len(flat(first))


def test_draws_end():
    assert len(drawn(0.0, 3)) == 3
    assert len(drawn(0.0, 1)) == 1
    assert [len(groups) for groups in drawn(1.0, 2)] == [12, 12]


@pytest.mark.parametrize(("zero_variance", "kept"), [("keep", 7), ("drop", 4), ("resample", 4)])
@pytest.mark.parametrize("beta", [0.0, 0.1])
def test_dead_groups_stay_in_the_mean_or_leave_it(zero_variance, kept, beta):
    config = replace(CONFIG, zero_variance=zero_variance, loss=LossSettings(beta=beta))
    examples = examples_of([group([1.0, 0.0, None, 0.0, 1.0]), group([1.0, 1.0, 1.0], name="dead")], config)
    assert len(examples) == kept
    assert all(example.advantage != 0 for example in examples if example.group_id == "c")


def test_nothing_to_learn_is_no_example_unless_the_kl_pulls():
    dead = [group([0.0, 0.0])]
    assert examples_of(dead, replace(CONFIG, loss=OFF)) == []
    assert len(examples_of(dead, CONFIG)) == 2
    truncated = [group([1.0, 0.0], cut=(0, 1))]
    assert examples_of(truncated, replace(CONFIG, loss=OFF, mask_truncated=True)) == []


def test_malformed_actions_get_their_own_advantage_also_among_equal_rewards():
    advantage = AdvantageSettings(malformed=-5.0, clip=1.0)
    examples = examples_of(
        [group([0.0, 0.0, 0.0], bad=(1,), cut=(2,))],
        replace(CONFIG, loss=OFF, advantage=advantage, zero_variance="drop"),
    )
    assert [example.advantage for example in examples] == [0.0, -5.0, 0.0]
    mixed = examples_of([group([1.0, 0.0], bad=(1,))], replace(CONFIG, advantage=advantage))
    assert [example.advantage for example in mixed] == [pytest.approx(1.0, abs=1e-5), -5.0]


def test_masked_truncated_actions_stay_in_the_baseline():
    rewards = [1.0, 0.0, 0.0]
    masked = examples_of([group(rewards, cut=(2,))], replace(CONFIG, mask_truncated=True))
    plain = examples_of([group(rewards)], CONFIG)
    assert [example.advantage for example in masked] == [example.advantage for example in plain]
    assert [any(example.loss_mask) for example in masked] == [True, True, False]


def test_weights_of_a_foreign_sampler_need_its_logprobs():
    config = replace(CONFIG, loss=LossSettings(sampler_weight_cap=5.0))
    assert len(examples_of([group([1.0, 0.0])], config)) == 2
    with pytest.raises(ConfigError, match="no log-probabilities"):
        examples_of([group([1.0, 0.0], logprobs=False)], config)


class Behind(ScriptedPolicy):
    age = 2


def test_a_sampler_too_far_behind_is_noticed():
    policy, fresh = Behind(lambda state, random: "yes"), ScriptedPolicy(lambda state, random: "yes")
    assert [too_old(policy, replace(CONFIG, max_age=most)) for most in (None, 1, 2)] == [False, True, False]
    assert not too_old(fresh, replace(CONFIG, max_age=0))


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"cap_per_trajectory": 0}, "at least 1"),
        ({"max_age": -1}, "at least 0"),
        ({"zero_variance": "resample", "resamples": 0}, "at least 1"),
        ({"updates": 2, "loss": LossSettings(on_policy_ratio=True)}, "--updates 1"),
        ({"group_size": 1}, "no variance"),
        ({"group_size": 2, "advantage": AdvantageSettings(baseline="leave-one-out", std="sample")}, "3 or more"),
    ],
)
def test_impossible_combinations_are_refused_at_the_start(wrong, why):
    with pytest.raises(ConfigError, match=why):
        check(replace(CONFIG, **wrong))


def test_presets_can_be_trained_with():
    for name in ("paper", "nemo-rl"):
        check(preset(name, Path()))
    assert preset("paper", Path()) == CONFIG
