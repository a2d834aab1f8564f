"""While a training runs, and what it leaves: trackers, alarms, validation with the best weights, the model's card."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest
import yaml

import toy
import toy_environment
from pivotrl.auditing import AuditConfig, audit
from pivotrl.checkpoints import TrainState
from pivotrl.curves import WINDOW, StepMetrics, alarms
from pivotrl.episodes import EpisodeSettings
from pivotrl.errors import ConfigError, DependencyError, MissingError
from pivotrl.evaluation import evaluate
from pivotrl.evaluation_settings import EvaluateConfig, SamplingChoice
from pivotrl.grpo import LossSettings
from pivotrl.ingestion import IngestConfig, ingest
from pivotrl.learners import OptimizerSettings
from pivotrl.ledger import Ledger
from pivotrl.models import weights_hash
from pivotrl.pivots import SelectConfig, select
from pivotrl.planning import Scope
from pivotrl.profile_settings import ProfileConfig
from pivotrl.profiling import profile
from pivotrl.reporting import ReportConfig, report
from pivotrl.run_directory import RunDirectory
from pivotrl.storage import read_json, read_jsonl
from pivotrl.task_evaluation import evaluate_tasks
from pivotrl.tracking import load_tracker
from pivotrl.training import train
from pivotrl.training_settings import TrainConfig
from pivotrl.types import SamplingParams, StepResult
from pivotrl.validation import ValidationPoint, ValidationSettings
from tiny import saved_model

FILES = """
from pathlib import Path

def parity(candidate, action):
    return action == candidate.demonstration or len(action.text or "") % 2

class Notes:
    def start(self, name, settings, folder, step):
        self.path = folder / "notes.txt"
        self.write("start", name, settings["method"], step)

    def log(self, step, values):
        self.write("log", step, values["reward_mean"], values.get("validation/reward"), "learner/loss" in values)

    def finish(self):
        self.write("finish")

    def write(self, *words):
        with self.path.open("a") as file:
            print(*words, file=file)

class Broken(Notes):
    def log(self, step, values):
        raise OSError("no network")
"""


@pytest.fixture(scope="module")
def selected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `mine.py`, a model and a run with pivots; not to be written to."""
    folder = tmp_path_factory.mktemp("selected")
    toy.write_episodes(folder / "episodes.jsonl", 20, 0)
    (folder / "mine.py").write_text(FILES)
    saved_model(folder / "one", seed=1, chatty=False)
    ingest(IngestConfig(paths=(str(folder / "episodes.jsonl"),), run=folder / "run", validation_fraction=0.3))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        sampling = SamplingParams(max_new_tokens=12)
        profile(ProfileConfig(run=Path("run"), policy="one", rollouts=8, verifier="mine.py:parity", sampling=sampling))
        select(SelectConfig(run=Path("run"), lambda_diff=1.0))
    return folder


@pytest.fixture
def run(selected: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of `selected`, and the working directory in it."""
    import shutil

    shutil.copytree(selected, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    return Path("run")


def settings(run: Path, **more) -> TrainConfig:
    short = {"steps": 4, "prompts": 2, "group_size": 4, "loss": LossSettings(beta=0), "checkpoint_every": 1}
    return TrainConfig(run=run, **{**short, "optimizer": OptimizerSettings(lr=1e-2), **more})


# --- trackers


def test_trackers_see_every_step_and_a_broken_one_costs_nothing(run: Path, capsys: pytest.CaptureFixture[str]):
    trackers = ("mine.py:Notes", "mine.py:Broken")
    result = train(settings(run, track=trackers, validation=ValidationSettings(every=2, candidates=3)))
    lines = (run / "train" / "pivotrl" / "notes.txt").read_text().splitlines()
    assert [line.split()[0] for line in lines] == ["start", "start", "log", "log", "log", "log", "finish"]
    assert lines[0] == "start pivotrl pivotrl 0"
    rewards = {point.step: point.reward.mean for point in read_points(run)}
    for step, (line, metrics) in enumerate(zip(lines[2:6], result.metrics, strict=True)):
        validated = str(rewards[step + 1]) if step in (1, 3) else "None"
        assert line.split()[1:4] == [str(step), str(metrics.reward_mean), validated]
    said = capsys.readouterr().err
    assert said.count("track mine.py:Broken: OSError: no network; goes on without it") == 1


def test_a_tracker_that_is_none_is_refused_before_anything_is_done(run: Path):
    for spec, words in (
        ("mlflow", "use tensorboard"),
        ("mine.py:FILE", "has no FILE"),
        ("mine.py:parity", "cannot be made"),
    ):
        with pytest.raises(ConfigError, match=words):
            train(settings(run, track=(spec,)))
    assert not (run / "train" / "pivotrl" / "config.json").exists()


def test_a_training_that_failed_before_its_first_step_holds_nobody_to_its_settings(run: Path):
    begun = run / "train" / "pivotrl" / "config.json"
    begun.parent.mkdir(parents=True)
    begun.write_text('{"seed": 9}')
    train(settings(run, steps=1))
    with pytest.raises(ConfigError, match=r"other settings \(seed: 0 before, 9 now\)"):
        train(settings(run, steps=2, seed=9))


def test_tensorboard_files_hold_the_metrics_once_after_a_resumption(run: Path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    train(settings(run, steps=2, track=("tensorboard",)))
    result = train(settings(run, steps=4, track=("tensorboard",)))
    events = accumulator.EventAccumulator(str(run / "train" / "pivotrl" / "tensorboard"))
    events.Reload()
    found = events.Scalars("reward_mean")
    assert [one.step for one in found] == [0, 1, 2, 3]
    assert [one.value for one in found] == pytest.approx([one.reward_mean for one in result.metrics])


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "trackio"])
def test_a_missing_package_is_named(run: Path, monkeypatch: pytest.MonkeyPatch, name: str):
    monkeypatch.setitem(sys.modules, name, None)  # as Python marks what cannot be imported
    with pytest.raises(DependencyError, match="pip install"):
        load_tracker(name).start("name", {}, Path(), 0)


# --- alarms


def steps(count: int, **changes) -> list[StepMetrics]:
    """Healthy steps, and what differs in the last half: a name and its values before and after."""
    learner = StepResult(
        loss=0.0, reward_loss=0.0, kl=None, clip_fraction=0, ratio_mean=1, sampler_gap=1e-6, grad_norm=1, tokens=9
    )
    healthy = StepMetrics(
        step=0,
        reward_mean=0.4,
        reward_std=0.4,
        groups_mixed=5,
        groups_right=1,
        groups_wrong=1,
        groups_unscored=0,
        rollouts=56,
        unscored=0,
        truncated=0,
        unparsable=0,
        calls_per_action=1.0,
        action_tokens=20.0,
        entropy=0.5,
        learner=learner,
    )
    made = []
    for step in range(count):
        late = step >= count // 2
        values = {name: pair[late] for name, pair in changes.items() if name != "sampler_gap"}
        gap = changes.get("sampler_gap", (1e-6, 1e-6))[late]
        made.append(
            dataclasses.replace(healthy, step=step, learner=dataclasses.replace(learner, sampler_gap=gap), **values)
        )
    return made


@pytest.mark.parametrize(
    ("changes", "kinds"),
    [
        ({}, []),
        ({"reward_mean": (0.2, 0.8)}, []),
        ({"action_tokens": (20.0, 60.0)}, []),
        ({"reward_mean": (0.2, 0.3), "action_tokens": (20.0, 31.0)}, ["length"]),
        ({"reward_mean": (0.2, 0.3), "action_tokens": (20.0, 29.0)}, []),
        ({"reward_mean": (0.2, 0.3), "calls_per_action": (1.0, 1.6)}, ["calls"]),
        ({"reward_mean": (0.2, 0.3), "calls_per_action": (0.01, 0.1)}, []),
        ({"entropy": (0.5, 0.09)}, ["entropy"]),
        ({"entropy": (None, None)}, []),
        ({"groups_mixed": (5, 0)}, ["flat"]),
        ({"groups_mixed": (5, 0), "rollouts": (0, 0)}, []),
        ({"sampler_gap": (1e-6, 0.4)}, ["drift"]),
        ({"truncated": (0, 12)}, ["truncated"]),
        ({"unscored": (0, 12)}, ["unscored"]),
    ],
)
def test_alarms_ring_for_what_they_are_about_and_for_nothing_else(changes: dict, kinds: list[str]):
    assert [*alarms(steps(2 * WINDOW, **changes))] == kinds
    assert alarms(steps(2 * WINDOW - 1, **changes)) == {}
    assert all(text.startswith(f"alarm at step {2 * WINDOW - 1}: ") for text in alarms(steps(2 * WINDOW)).values())


def test_an_alarm_is_said_when_it_begins_and_in_the_end(run: Path, capsys: pytest.CaptureFixture[str]):
    """Sampling with no more than one token an action: everything is truncated."""
    config = settings(run, steps=2 * WINDOW + 3, max_new_tokens=1, checkpoint_every=100)
    lines = train(config).lines()
    said = capsys.readouterr().err
    assert said.count("actions were truncated") == 1
    assert f"alarm at step {2 * WINDOW - 1}: " in said
    assert any("actions were truncated" in line for line in lines)


# --- validation


def read_points(run: Path, name: str = "pivotrl") -> list[ValidationPoint]:
    return list(read_jsonl(run / "train" / name / "validation.jsonl", ValidationPoint))


def test_the_best_weights_are_kept_and_an_interruption_changes_nothing(run: Path):
    every = ValidationSettings(every=1, candidates=5, rollouts=4)
    train(settings(run, steps=4, validation=every))
    points = read_points(run)
    assert [point.step for point in points] == [0, 1, 2, 3, 4]
    best = max(points, key=lambda point: (point.reward.mean, -point.step)).step
    state = read_json(run / "train" / "pivotrl" / "model" / "state.json", TrainState)
    assert (state.step, state.weights_of) == (4, best)
    assert 0 < best < 4, "else nothing is tested"
    train(settings(run, steps=best, name="until"))
    kept = weights_hash(run / "train" / "pivotrl" / "model")
    assert kept == weights_hash(run / "train" / "until" / "model")
    train(settings(run, name="last", validation=dataclasses.replace(every, keep="last")))
    assert weights_hash(run / "train" / "last" / "model") != kept
    train(settings(run, steps=2, name="twice", validation=every))
    train(settings(run, steps=4, name="twice", validation=every))
    assert read_points(run, "twice") == points
    assert weights_hash(run / "train" / "twice" / "model") == kept


def test_validation_is_what_an_evaluation_finds(run: Path):
    """With many rollouts at every candidate, so that random numbers matter little."""
    result = train(settings(run, steps=1, validation=ValidationSettings(every=1, rollouts=60)))
    assert "validation reward" in result.validation
    (first, _) = read_points(run)
    sampling = SamplingChoice(max_new_tokens=12)
    score = (
        evaluate(EvaluateConfig(run=run, policies=("one",), split="validation", rollouts=64, sampling=sampling))
        .scores[0]
        .score
    )
    assert first.reward.n == score.n
    assert abs(first.reward.mean - score.mean) < 0.06


def test_any_method_can_be_validated_on_tasks_and_stopped_there(run: Path):
    env, every = f"{toy_environment.__file__}:Parity", ValidationSettings(every=1, tasks=12)
    episodes = EpisodeSettings(trials=30)
    result = train(settings(run, env=env, validation=every, episodes=episodes, stop_at=1e-9))
    with pytest.raises(ConfigError, match="begun with other settings"):
        train(settings(run, env=env, validation=every, episodes=episodes, stop_at=1e-9, group_size=3))
    (first,) = read_points(run)
    assert result.steps == 0 < first.reward.mean
    assert (first.reward.n, first.reward.clusters, first.unscored) == (12, 12, 0)
    (usage,) = [line.usage for line in Ledger(run / "ledger.jsonl").lines() if line.unit == "validation-000000"]
    assert usage.rollouts == 12 * 30 < usage.turns
    told = {
        "env": (env,),
        "split": "validation",
        "tasks": (12,),
        "seed": 0,
        "sampling": SamplingChoice(max_new_tokens=12),
    }
    score = evaluate_tasks(EvaluateConfig(run=run, policies=("one",), episodes=episodes, **told)).scores[0]
    assert abs(score.overall.success.mean - first.reward.mean) < 0.1


def test_episodes_may_take_the_policy_of_a_profile_without_being_charged_with_it(run: Path):
    train(settings(run, method="e2e", env=f"{toy_environment.__file__}:Parity", tasks=9, steps=1))
    facts = RunDirectory(run).stages()["train/e2e"]
    assert (facts["policy"], facts["profile"], facts["verifier"]) == ("one", None, None)
    assert facts["fingerprint"]["weights"] == weights_hash(Path("one"))


def test_no_validation_candidates_is_said_at_once(run: Path, tmp_path: Path):
    ingest(IngestConfig(paths=("episodes.jsonl",), run=tmp_path / "none", validation_fraction=0.0))
    config = settings(
        tmp_path / "none", method="sft", data="train", policy="one", validation=ValidationSettings(every=1)
    )
    with pytest.raises(MissingError, match="validation"):
        train(config)


@pytest.mark.parametrize("wrong", [{"every": -1}, {"candidates": 0}, {"rollouts": 0}])
def test_validation_settings_that_cannot_work(wrong: dict):
    with pytest.raises(ConfigError, match="must be at least"):
        ValidationSettings(**wrong)


def test_a_validation_that_would_keep_the_untrained_weights_is_refused(run: Path):
    with pytest.raises(ConfigError, match="of 4 steps none is validated"):
        train(settings(run, validation=ValidationSettings(every=5)))


# --- the card


def card_of(run: Path) -> tuple[dict, str]:
    text = (run / "train" / "pivotrl" / "model" / "README.md").read_text()
    _, front, body = text.split("---\n", 2)
    return yaml.safe_load(front), body


def test_the_card_says_what_the_run_knows(run: Path):
    few, sampling = Scope(max_candidates=2), SamplingParams(max_new_tokens=12)
    profile(ProfileConfig(run=run, name="aside", policy="one", rollouts=2, scope=few, sampling=sampling))
    train(settings(run))
    front, body = card_of(run)
    assert front["library_name"] == "transformers"
    assert "base_model" not in front  # a local directory is no id
    assert "method `pivotrl`" in body
    assert "error on this data is unknown" in body
    assert "None yet" in body
    assert "`mine.py:parity`, id `" in body
    assert "| zero variance | keep |" in body
    assert "| profile base |" in body
    assert "profile aside" not in body
    result = evaluate(
        EvaluateConfig(run=run, policies=("base=one", "mine=train/pivotrl"), rollouts=2, split="validation")
    )
    audit(AuditConfig(run=run, verifier="mine.py:parity"))
    report(ReportConfig(run=run))
    _, body = card_of(run)
    assert f"| reward at candidates | mine | {result.scores[1].score.mean:.3f} " in body
    assert "| Demonstrations (should earn 1) |" in body
    assert "| train pivotrl |" in body


def test_the_model_loads_elsewhere(run: Path):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = train(settings(run, steps=1)).model
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    ids = tokenizer.apply_chat_template([{"role": "user", "content": "hello"}], return_tensors="pt", return_dict=True)
    with torch.no_grad():
        assert model(**ids).logits.isfinite().all()
