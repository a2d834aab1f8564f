"""Whole episodes as a training method: what is learned from them, with which weights, until when."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import toy_environment
from pivotrl.cli import _parse
from pivotrl.curves import WINDOW, alarms, step_metrics
from pivotrl.environments import load_environment
from pivotrl.episode_training import TaskData, episode_examples
from pivotrl.episodes import Arena, EpisodeSettings, Played, by_task
from pivotrl.errors import ConfigError
from pivotrl.grpo import AdvantageSettings, LossSettings
from pivotrl.learners import OptimizerSettings
from pivotrl.learners.torch import TorchLearner
from pivotrl.ledger import Ledger
from pivotrl.models import weights_hash
from pivotrl.policies.torch import TorchPolicy
from pivotrl.repeating import commands
from pivotrl.reporting import ReportConfig, report
from pivotrl.run_directory import RunDirectory
from pivotrl.storage import read_jsonl
from pivotrl.training import train
from pivotrl.training_settings import TrainConfig
from pivotrl.types import Completion, Episode, SamplingParams
from pivotrl.validation import ValidationPoint, ValidationSettings, mean_of
from tiny import loaded_model, saved_model

PARITY = f"{toy_environment.__file__}:Parity"
STOPS = """
class Stops:
    start = finish = lambda *known: None
    def log(self, step, values):
        if step == 2: raise KeyboardInterrupt
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(saved_model(tmp_path_factory.mktemp("model") / "one", seed=1, chatty=False))


def settings(run: Path, model: str, **more) -> TrainConfig:
    usual = {"method": "e2e", "env": PARITY, "policy": model, "tasks": 40, "max_new_tokens": 6, "checkpoint_every": 2}
    usual |= {"prompts": 3, "group_size": 8, "loss": LossSettings(beta=0), "optimizer": OptimizerSettings(lr=1e-2)}
    return TrainConfig(run=run, **(usual | more))


def validated(run: Path, name: str) -> list[float]:
    return [mean_of(one) for one in read_jsonl(run / "train" / name / "validation.jsonl", ValidationPoint)]


def artefacts(run: Path, name: str = "e2e") -> list[object]:
    folder = run / "train" / name
    files = [*sorted(folder.glob("*.jsonl")), *sorted(folder.glob("samples/*"))]
    return [weights_hash(folder / "model"), *(path.read_bytes() for path in files)]


def test_it_learns_in_a_new_run_directory_and_is_billed(tmp_path: Path, model: str):
    run = tmp_path / "run"
    result = train(settings(run, model, steps=14))
    first, last = (np.mean([one.reward_mean for one in part]) for part in (result.metrics[:3], result.metrics[-3:]))
    assert first < 0.4
    assert last > 0.8
    for one in result.metrics:
        assert one.rollouts == 24 == one.endings["done"]
        assert one.groups_mixed + one.groups_right + one.groups_wrong == 3
    episodes = [*read_jsonl(run / "train/e2e/samples/step-000000.jsonl", Episode)]
    assert result.metrics[0].turns == sum(len(episode.completions) for episode in episodes)
    assert result.metrics[0].reward_mean == np.mean([episode.reward for episode in episodes])
    usage = Ledger(RunDirectory(run).ledger).totals()["train", "e2e"]
    assert (usage.rollouts, usage.turns) == (24 * 14, sum(one.turns for one in result.metrics))
    assert usage.trained_tokens > usage.generated_tokens > 0
    assert any("turns an episode; done 336" in line for line in result.lines())
    (command,) = commands(RunDirectory(run).stages(), str(run))
    assert _parse(command.split()[1:]) == settings(run, model, steps=14)
    assert "method e2e" in report(ReportConfig(run=run)).page.read_text()
    assert "rewarded by their outcome" in (result.model / "README.md").read_text()


def test_an_interruption_changes_nothing(tmp_path: Path, model: str):
    (tmp_path / "stops.py").write_text(STOPS)
    every = ValidationSettings(every=2, tasks=5)
    whole = settings(tmp_path / "whole", model, steps=4, validation=every, samples_every=1)
    train(whole)
    broken = replace(whole, run=tmp_path / "broken")
    with pytest.raises(KeyboardInterrupt):
        train(replace(broken, track=(f"{tmp_path / 'stops.py'}:Stops",)))
    assert (tmp_path / "broken/train/e2e/checkpoints/step-000002").exists()
    train(broken)
    assert artefacts(tmp_path / "broken") == artefacts(tmp_path / "whole")


def test_it_stops_at_the_first_validation_that_is_good_enough(tmp_path: Path, model: str):
    whole = settings(tmp_path, model, steps=6, validation=ValidationSettings(every=1, tasks=20), name="whole")
    train(whole)
    means = validated(tmp_path, "whole")
    until = next(step for step in range(2, 6) if means[step] > max(means[:step]))
    stopping = replace(whole, name="stopping", stop_at=means[until])
    result = train(stopping)
    assert (result.steps, len(result.metrics)) == (until, until)
    assert validated(tmp_path, "stopping") == means[: until + 1]
    assert train(stopping) == result
    train(replace(stopping, stop_at=None))
    assert artefacts(tmp_path, "stopping") == artefacts(tmp_path, "whole")


def turn(tokens: int, **more) -> Completion:
    return Completion(action=None, text="x", finish_reason="length", token_ids=tuple(range(tokens)), **more)


def played(task: str, trial: int, reward: float | None, *turns: Completion, ending="done") -> Played:
    episode = Episode(task_id=task, trial=trial, completions=turns, ending=ending, reward=reward)
    return Played(episode=episode, prompts=tuple((1,) * (at + 1) for at in range(len(turns))))


def test_every_episode_weighs_the_same(tmp_path: Path):
    malformed = replace(turn(4), finish_reason="stop")
    episodes = [
        played("a", 0, 1.0, turn(2), turn(3), turn(5)),
        played("a", 1, 0.0, malformed, turn(2), ending="turn_limit"),
        played("a", 2, None, turn(9), ending="failed_call"),
        played("b", 0, 1.0, turn(7)),
        played("b", 1, 1.0, turn(1), turn(1)),
    ]
    config = settings(tmp_path, "none", advantage=AdvantageSettings(malformed=-3.0), loss=LossSettings(beta=0.1))
    found = episode_examples(episodes, config)
    seen = [(one.group_id, len(one.action_ids), one.advantage, one.weight * len(one.action_ids)) for one in found]
    up = 1 / (1 + 2e-6)  # the deviation of 1 and 0 is a half
    wanted = [("a", 2, up, 0.2), ("a", 3, up, 0.3), ("a", 5, up, 0.5), ("a", 4, -3.0, 4 / 6), ("a", 2, -up, 2 / 6)]
    wanted += [("b", 7, 0.0, 1.0), ("b", 1, 0.0, 0.5), ("b", 1, 0.0, 0.5)]
    assert [one[:2] for one in sorted(seen)] == [one[:2] for one in sorted(wanted)]
    np.testing.assert_allclose([one[2:] for one in sorted(seen)], [one[2:] for one in sorted(wanted)])
    by_turns = episode_examples(episodes, replace(config, loss=LossSettings(beta=0.1, reduction="sequence")))
    assert sorted(round(1 / one.weight) for one in by_turns) == [1, 2, 2, 2, 2, 3, 3, 3]
    assert {one.group_id for one in episode_examples(episodes, replace(config, zero_variance="drop"))} == {"a"}
    assert episode_examples(episodes, replace(config, mask_truncated=True)) == []  # all else is truncated or cut off
    alone = [one.episode for one in episodes]
    metrics = step_metrics(0, [by_task(alone)], None, episodes=alone)
    assert (metrics.rollouts, metrics.unscored, metrics.turns, metrics.truncated, metrics.unparsable) == (5, 1, 9, 8, 1)
    assert (metrics.groups_mixed, metrics.groups_right, metrics.reward_mean, metrics.reward_std) == (1, 1, 0.75, 0.25)
    assert metrics.endings == {"done": 3, "turn_limit": 1, "failed_call": 1}
    assert [*alarms([metrics] * 2 * WINDOW)] == ["truncated"]
    assert alarms([replace(metrics, turns=41)] * 2 * WINDOW) == {}


@pytest.mark.parametrize("reduction", ["token", "sequence"])
def test_the_loss_is_a_mean_over_episodes(tmp_path: Path, reduction: str):
    """Recomputed from the sampled episodes in numpy, with ratios that are not 1 and some that are clipped."""
    loaded = loaded_model(seed=1)
    policy, arena = TorchPolicy(loaded), Arena(environment=load_environment(PARITY), settings=EpisodeSettings(width=5))
    tasks = toy_environment.Parity().tasks("train", 4, 0)
    config = settings(tmp_path, "none", loss=LossSettings(beta=0.2, kl="k3", reduction=reduction))
    episodes = arena.play(policy, SamplingParams(max_new_tokens=6), 3, tasks, 4)
    examples = episode_examples(episodes, config)
    assert len(examples) == sum(one.episode.turns for one in episodes) > 16
    now = policy.logprobs(examples)
    np.testing.assert_allclose(
        np.concatenate([one.sampler_logprobs for one in examples]), np.concatenate(now), atol=1e-4
    )
    rng = np.random.default_rng(0)
    shifts = [rng.normal(0, 0.2, len(row)) for row in now]
    moved = [(tuple(row - shift), tuple(row + shift)) for row, shift in zip(now, shifts, strict=True)]
    both = zip(examples, moved, strict=True)
    examples = [replace(one, old_logprobs=old, reference_logprobs=other) for one, (old, other) in both]
    result = TorchLearner(loaded, OptimizerSettings()).forward_backward(examples, config.loss)
    by_turn = {(one.group_id, one.prompt_ids, one.action_ids): at for at, one in enumerate(examples)}
    losses, kls = [], []
    for task in tasks:
        group = [one for one in episodes if one.episode.task_id == task]
        rewards = [one.episode.reward for one in group]
        for one in group:
            advantage = (one.episode.reward - np.mean(rewards)) / (np.std(rewards) + 1e-6)
            rows, kl_rows = [], []
            for prompt, completion in zip(one.prompts, one.episode.completions, strict=True):
                ratio = np.exp(shifts[by_turn[task, prompt, completion.token_ids]])
                rows.append(np.minimum(ratio * advantage, np.clip(ratio, 0.8, 1.2) * advantage))
                kl_rows.append((ratio - 1 - np.log(ratio)) * ratio)
            joined = np.concatenate if reduction == "token" else lambda some: [np.mean(row) for row in some]
            losses.append(-np.mean(joined(rows)))
            kls.append(np.mean(joined(kl_rows)))
    assert np.any(np.abs(losses) > 0.1)
    np.testing.assert_allclose(result.reward_loss, np.mean(losses), atol=1e-5)
    np.testing.assert_allclose(result.kl, np.mean(kls), atol=1e-5)
    assert result.tokens == sum(len(one.action_ids) for one in examples)


def test_tasks_come_again_when_all_were_there(tmp_path: Path):
    arena = Arena(environment=load_environment(PARITY), settings=EpisodeSettings())
    data = TaskData(arena, settings(tmp_path, "none", tasks=20, prompts=6))
    drawn = [data.batch(step) for step in range(10)]
    assert len({task for batch in drawn[:3] for task in batch}) == 18
    assert {task for batch in drawn[:4] for task in batch} == set(data.rows)
    counts = [sum(task in batch for batch in drawn) for task in data.rows]
    assert max(counts) - min(counts) <= 2
    assert [*map(TaskData(arena, data.config).batch, range(10))] == drawn
    assert TaskData(arena, replace(data.config, seed=1)).batch(0) != drawn[0]
    with pytest.raises(ConfigError, match="there are 40"):
        TaskData(arena, replace(data.config, tasks=41))


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"env": None}, "--env"),
        ({"method": "unfiltered"}, "in validation only"),
        ({"stop_at": 0.5}, "--validation.every"),
        ({"stop_at": 1.5, "validation": ValidationSettings(every=1)}, "up to 1"),
        ({"verifier": "exact"}, "no verifier"),
        ({"zero_variance": "resample"}, "resamples nothing"),
        ({"policy": None}, "profile"),
        ({"env": "nowhere"}, "nowhere"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(tmp_path: Path, model: str, wrong: dict, why: str):
    with pytest.raises(Exception, match=why) as refused:
        train(settings(tmp_path, model, **wrong))
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "run.json").exists()
