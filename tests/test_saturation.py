"""When a training is saturated, on curves whose answer is known; and a training that stops there."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from contextlib import chdir
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kill_harness import RUN, bill, copy, differences, make_trainable
from pivotrl.curves import CAUSES, SaturationSettings, saturated, step_metrics, watched
from pivotrl.errors import ConfigError
from pivotrl.learners import OptimizerSettings
from pivotrl.reporting import ReportConfig, report
from pivotrl.training import train
from pivotrl.training_settings import TrainConfig

SETTINGS = SaturationSettings()


def first(spread: Callable[[int], float | None], reward: Callable[[int], float | None], steps: int = 200, **settings):
    """(step, cause) of the first step that is saturated, as a training finds it."""
    empty, curve = step_metrics(0, [], None), []
    for step in range(steps):
        metrics = replace(empty, step=step, reward_std=spread(step), reward_mean=reward(step))
        curve.append(watched(metrics, curve, SaturationSettings(**settings)))
    return [(one.step, one.saturated) for one in curve if one.saturated]


def rising(step: int) -> float:
    return 0.001 * step


def test_spread_that_decays() -> None:
    """exp(-t/30) of the start: the ratio of two window means is that of their ends, below 1/3 from t = 30 ln 3."""
    (found,) = first(lambda t: 0.4 * math.exp(-t / 30), rising)
    assert found == (math.floor(30 * math.log(3)) + 1 + 9, "spread")


def test_spread_that_stays() -> None:
    assert first(lambda t: 0.4, rising) == []
    assert first(lambda t: 0.4 if t < 10 else 0.1334, rising) == []
    assert first(lambda t: 0.4 if t < 10 else 0.1333, rising) == [(19, "spread")]


def test_a_start_without_spread_is_no_decay() -> None:
    assert first(lambda t: 0.0, rising) == []


def test_reward_that_stops_rising() -> None:
    """Rises for 100 steps, then stays; the window that ends at t is compared with that which ended 30 steps before."""
    (found,) = first(lambda t: 0.4, lambda t: min(t, 100) / 200)
    means = [sum(min(t, 100) / 200 for t in range(end - 9, end + 1)) / 10 for end in range(200) if end >= 9]
    expected = next(9 + i for i in range(30, len(means)) if means[i] - means[i - 30] <= 0.01)
    assert found == (expected, "plateau")
    assert 120 < expected < 135


def test_reward_that_never_rises_and_one_that_falls() -> None:
    assert first(lambda t: 0.4, lambda t: 0.5) == [(39, "plateau")]
    assert first(lambda t: 0.4, lambda t: 0.5 - t / 1000, window=4, patience=2) == [(11, "plateau")]
    assert first(lambda t: 0.4, lambda t: 0.5, gain=-1.0) == []


def test_nothing_known_is_nothing_said() -> None:
    assert first(lambda t: None, lambda t: None) == []
    assert first(lambda t: None if t < 10 else 0.1, lambda t: None if t < 170 else 0.1) == []


@given(st.lists(st.none() | st.floats(0, 1), max_size=60), st.integers(1, 5), st.integers(1, 4))
def test_what_came_before_the_windows_changes_nothing(curve: list[float | None], window: int, patience: int) -> None:
    settings = SaturationSettings(window=window, patience=patience, share=0.0)
    recent = curve[-window * (patience + 1) :]
    assert saturated(curve, curve, settings) == saturated(recent, recent, settings)


@pytest.mark.parametrize("wrong", [{"window": 0}, {"patience": 0}, {"share": 1.0}, {"share": -0.1}])
def test_settings_that_cannot_work(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="saturation"):
        SaturationSettings(**wrong)


SOON = SaturationSettings(window=1, patience=2, gain=1.0, share=0.0)
"""Saturated at step 2, whatever the rewards are: they never rise by more than 1."""


def practise(folder: Path, **settings: object) -> list[str]:
    optimizer = OptimizerSettings(lr=3e-3)
    common = {"run": Path(RUN), "steps": 5, "prompts": 3, "group_size": 4, "checkpoint_every": 2, "saturation": SOON}
    with chdir(folder):
        return train(TrainConfig(**(common | {"optimizer": optimizer} | settings))).lines()


def metrics(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / RUN / "train/pivotrl/metrics.jsonl").open()]


def test_a_training_says_so_once_and_stops_where_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ready = make_trainable(tmp_path / "ready")
    whole, stopped, again = (copy(ready, tmp_path / name) for name in ("whole", "stopped", "again"))
    words = f"step 2: {CAUSES['plateau']}; profile with the trained policy: "
    command = "`pivotrl profile --run run --again base --policy train/pivotrl --name pivotrl`"
    assert practise(whole)[-1] == words + command
    assert capsys.readouterr().err.count(words) == 1
    curve = metrics(whole)
    assert [one["saturated"] for one in curve] == [None, None, "plateau", None, None]
    practise(stopped, stop_when_saturated=True)
    assert metrics(stopped) == curve[:3]
    assert (stopped / RUN / "train/pivotrl/model/model.safetensors").is_file()
    kept = copy(stopped, tmp_path / "kept")
    shutil.rmtree(stopped / RUN / "train/pivotrl/model")  # as a kill before the model leaves it
    practise(stopped, stop_when_saturated=True)
    assert differences(stopped / RUN, kept / RUN) == []
    practise(again, stop_when_saturated=True, steps=2)
    third = (stopped / RUN / "train/pivotrl/metrics.jsonl").read_bytes().splitlines(keepends=True)[2]
    with (again / RUN / "train/pivotrl/metrics.jsonl").open("ab") as file:
        file.write(third)  # as a kill leaves it after the step and before its checkpoint
    practise(again, stop_when_saturated=True)
    assert differences(again / RUN, kept / RUN) == []
    practise(stopped)
    assert differences(stopped / RUN, whole / RUN) == [], "it went on as if it had not been stopped"
    assert bill(stopped / RUN) == bill(whole / RUN)
    assert practise(whole, stop_when_saturated=True)[0].startswith("pivotrl: 5 steps"), "what is done stays done"
    report(ReportConfig(run=whole / RUN))
    assert f"Step 2: {CAUSES['plateau']}." in (whole / RUN / "report.md").read_text()
