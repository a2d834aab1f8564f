"""What a training goes out from: the selection's own profile, verifier and sampling; and that it stays finite."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest
import torch

import toy
from pivotrl.batches import TrainingData
from pivotrl.candidates import CandidateStore
from pivotrl.cli import _parse
from pivotrl.curves import StepMetrics
from pivotrl.errors import ConfigError, InputError, MissingError, StorageError
from pivotrl.evaluation import evaluate
from pivotrl.evaluation_settings import EvaluateConfig, SamplingChoice
from pivotrl.grpo import LossSettings
from pivotrl.ingestion import IngestConfig, ingest
from pivotrl.learners import OptimizerSettings
from pivotrl.learners.torch import OPTIMIZER_FILE, TorchLearner
from pivotrl.ledger import Ledger
from pivotrl.models import ModelSettings, load_model
from pivotrl.pivots import SelectConfig, select
from pivotrl.planning import Scope
from pivotrl.profile_settings import ProfileConfig, RescoreConfig
from pivotrl.profiling import profile, rescore
from pivotrl.run_directory import RunDirectory
from pivotrl.storage import read_jsonl
from pivotrl.training import train
from pivotrl.training_settings import TrainConfig, preset
from pivotrl.types import SamplingParams
from tiny import loaded_model, saved_model

SHORT = SamplingParams(max_new_tokens=12)
JUDGE = """
def half(candidate, action):
    return action == candidate.demonstration or len(action.text or "") % 2

def other(candidate, action):
    return action == candidate.demonstration or (len(action.text or "") + 1) % 2
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Ingested episodes, two models, and a verifier that a random model satisfies about every second time."""
    monkeypatch.chdir(tmp_path)
    toy.write_episodes(tmp_path / "episodes.jsonl", 12, 0)
    (tmp_path / "judge.py").write_text(JUDGE)
    saved_model(tmp_path / "one", seed=1, chatty=False)
    saved_model(tmp_path / "two", seed=2, chatty=False)
    ingest(IngestConfig(paths=(str(tmp_path / "episodes.jsonl"),), run=tmp_path / "run"))
    return tmp_path / "run"


def profiled(run: Path, name: str, policy: str, *, verifier: str = "judge.py:half", **settings):
    return profile(
        ProfileConfig(
            run=run, name=name, policy=policy, rollouts=8, verifier=verifier, **{"sampling": SHORT, **settings}
        )
    )


def test_training_follows_the_profile_that_its_pivots_came_from(run: Path):
    profiled(run, "base", "one")
    profiled(run, "strong", "two")
    select(SelectConfig(run=run, profile="strong", name="strong", lambda_diff=1.0))
    train(TrainConfig(run=run, pivots="strong", steps=1, loss=LossSettings(beta=0)))
    facts = RunDirectory(run).stages()["train/pivotrl"]
    assert facts["policy"] == "two"
    assert facts["fingerprint"]["weights"] == load_model("two", ModelSettings()).weights
    with pytest.raises(ConfigError, match="selected from profile 'strong'"):
        train(TrainConfig(run=run, pivots="strong", profile="base", name="other"))


def test_training_uses_the_verifier_of_the_selection(run: Path):
    profiled(run, "base", "one")
    rescore(RescoreConfig(run=run, verifier="judge.py:other"))
    select(SelectConfig(run=run, verifier="judge.py:other", lambda_diff=1.0))
    other = {"run": run, "steps": 1, "scope": Scope(), "loss": LossSettings(beta=0)}
    with pytest.raises(ConfigError, match="other verifier"):
        train(TrainConfig(**other, verifier="judge.py:half"))
    told = train(TrainConfig(**other, verifier="judge.py:half", allow_mismatch=True, name="told"))
    assert "rewarded by judge.py:half" in told.lines()
    assert "rewarded by judge.py:other" in train(TrainConfig(**other)).lines()


def test_an_edited_verifier_is_told_as_such(run: Path):
    """What judged is in the verdicts' ids; that its file was edited since is what the user has to be told."""
    profiled(run, "base", "one")
    select(SelectConfig(run=run, lambda_diff=1.0))
    Path("judge.py").write_text(JUDGE.replace("% 2", "% 3 == 1"))
    common = {"run": run, "steps": 1, "prompts": 2, "loss": LossSettings(beta=0)}
    advice = f"run `pivotrl rescore --verifier judge.py:half --run {run} --name base` again"
    told = rf"verifier 'judge.py:half' has changed since it judged profile 'base' \(.*\); {re.escape(advice)}"
    with pytest.raises(ConfigError, match=f"{told}, then `pivotrl select` with this --verifier; or say"):
        train(TrainConfig(**common))
    with pytest.raises(ConfigError, match=f"{told}, then this with that --verifier; or say"):
        train(TrainConfig(**common, method="unfiltered"))
    with pytest.raises(MissingError, match=told):
        train(TrainConfig(**common, method="rft", verifier="judge.py:half"))
    again = SelectConfig(run=run, verifier="judge.py:half", lambda_diff=1.0)
    with pytest.raises(MissingError, match=told):
        select(again)
    rescore(RescoreConfig(run=run, verifier="judge.py:half"))
    select(again)
    assert "rewarded by judge.py:half" in train(TrainConfig(**common)).lines()


def test_training_refuses_another_policy_and_another_template_unless_told(run: Path):
    profiled(run, "base", "one")
    select(SelectConfig(run=run, lambda_diff=1.0))
    settings = {"run": run, "steps": 1, "prompts": 2, "group_size": 2}
    other = ModelSettings(chat_template="chatml-tools")
    with pytest.raises(ConfigError, match=r"made with other weights than .* 'two'"):
        train(TrainConfig(**settings, policy="two"))
    with pytest.raises(ConfigError, match="made with other chat_template than"):
        train(TrainConfig(**settings, model=other))
    assert not list((run / "train").glob("*/metrics.jsonl"))
    train(TrainConfig(**settings, policy="two", model=other, allow_mismatch=True))


def test_rft_takes_the_verdicts_that_are_there_and_ids_that_mean_something(run: Path, tmp_path: Path):
    profiled(run, "base", "one")
    other = TrainConfig(run=run, method="rft", verifier="judge.py:other", steps=1, name="other")
    with pytest.raises(MissingError, match="rescore"):
        train(other)
    rescore(RescoreConfig(run=run, verifier="judge.py:other"))
    assert train(other).left_out != train(TrainConfig(run=run, method="rft", steps=1)).left_out
    with pytest.raises(ConfigError, match="other weights"):
        train(TrainConfig(run=run, method="rft", policy="two", name="two"))
    saved_model(tmp_path / "three", seed=1, chatty=False)
    tokenizer = tmp_path / "three" / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text() + "\n")
    with pytest.raises(ConfigError, match="another tokenizer"):
        train(TrainConfig(run=run, method="rft", policy="three", name="three", allow_mismatch=True))


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"method": "unfiltered", "data": "pivots"}, "itself says"),
        ({"method": "rft", "data": "train"}, "needs the candidates of a profile"),
        ({"method": "strict-filtered", "verifier": "auto"}, "exact matches only"),
        ({"method": "strict-filtered", "group_size": 1}, "no variance"),
        ({"method": "rft", "accepted": 0}, "accepted 0"),
    ],
)
def test_methods_refuse_what_contradicts_them(tmp_path: Path, settings: dict, why: str):
    with pytest.raises(ConfigError, match=why):
        train(TrainConfig(run=tmp_path, **settings))


def test_a_profile_goes_on_with_the_same_rules_at_another_place(run: Path):
    for name in ("rules.toml", "moved.toml"):
        Path(name).write_text('[find_order]\norder_id = "exact"\n')
    before = profiled(run, "base", "one", verifier="auto:rules=rules.toml")
    assert profiled(run, "base", "one", verifier="auto:rules=moved.toml").profiles == before.profiles
    Path("rules.toml").write_text('[find_order]\norder_id = "ignore"\n')
    with pytest.raises(ConfigError, match=r"other settings \(verifier\)"):
        profiled(run, "base", "one", verifier="auto:rules=rules.toml")


def test_training_refuses_pivots_that_were_sampled_otherwise(run: Path):
    profiled(run, "base", "one", sampling=SamplingParams(max_new_tokens=6, temperature=0.7, top_k=50))
    select(SelectConfig(run=run, lambda_diff=1.0))
    with pytest.raises(ConfigError, match="other temperature, top_k"):
        train(TrainConfig(run=run, steps=1))


def test_states_beyond_the_context_are_left_out_and_counted(run: Path):
    profiled(run, "base", "one")
    select(SelectConfig(run=run, lambda_diff=1.0))
    with pytest.raises(Exception, match="over_context"):
        train(TrainConfig(run=run, steps=1, max_new_tokens=500))


def test_every_policy_of_an_evaluation_must_fit_its_candidates(run: Path, tmp_path: Path):
    saved_model(tmp_path / "short")
    config = tmp_path / "short" / "config.json"
    config.write_text(config.read_text().replace('"max_position_embeddings": 512', '"max_position_embeddings": 40'))
    settings = {"run": run, "split": "train", "verifier": "judge.py:half", "sampling": SamplingChoice(max_new_tokens=6)}
    with pytest.raises(ConfigError, match=r"short cannot be asked at .* over_context"):
        evaluate(EvaluateConfig(policies=("one", "short"), **settings))


def test_evaluation_notices_weights_that_changed_in_place(run: Path, tmp_path: Path):
    settings = EvaluateConfig(
        run=run,
        policies=("m=one",),
        split="train",
        verifier="judge.py:half",
        sampling=SamplingChoice(max_new_tokens=6),
    )
    evaluate(settings)
    saved_model(tmp_path / "one", seed=9, chatty=False)
    with pytest.raises(ConfigError, match=r"other settings \(policy"):
        evaluate(settings)


def test_explicit_settings_win_over_the_profile(run: Path):
    profiled(run, "base", "one", sampling=SamplingParams(max_new_tokens=6, temperature=0.5))
    common = {"run": run, "split": "train"}
    assert evaluate(EvaluateConfig(**common)).temperature == 0.5
    told = evaluate(EvaluateConfig(**common, name="told", sampling=SamplingChoice(temperature=1.0)))
    assert told.temperature == 1.0


def test_divergence_stops_before_anything_is_written(run: Path, tmp_path: Path):
    saved_model(tmp_path / "three")
    config = TrainConfig(run=run, method="sft", data="train", policy="three", steps=4, checkpoint_every=1)
    with pytest.raises(ConfigError, match="diverged"):
        train(dataclasses.replace(config, optimizer=OptimizerSettings(lr=1e30)))
    folder = run / "train" / "sft"
    assert all(step.learner is not None for step in read_jsonl(folder / "metrics.jsonl", StepMetrics))
    assert not (folder / "model").exists()


def test_low_precision_training_is_refused():
    """AdamW on bfloat16 weights at a small learning rate changes nothing at all."""
    with pytest.raises(ConfigError, match="float32"):
        TorchLearner(loaded_model(dtype=torch.bfloat16), OptimizerSettings())


def test_broken_checkpoints_give_one_line(tmp_path: Path):
    learner = TorchLearner(loaded_model(), OptimizerSettings())
    (tmp_path / OPTIMIZER_FILE).write_bytes(b"torn")
    with pytest.raises(InputError, match="train again"):
        learner.load_optimizer(tmp_path)
    saved_model(tmp_path / "model")
    weights = tmp_path / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(InputError, match="cannot be loaded"):
        load_model(str(tmp_path / "model"), ModelSettings())
    (tmp_path / "file").write_text("")
    with pytest.raises((StorageError, InputError)):
        learner.save(tmp_path / "file", optimizer=True)


def test_batches_run_through_every_candidate_before_any_comes_again(run: Path):
    store = CandidateStore(RunDirectory(run))
    rows = store.rows("train")
    data = TrainingData(store, rows, {}, loaded_model().chat)
    size = 5
    drawn = [candidate.id for step in range(2 * len(rows)) for candidate in data.batch(step, size, seed=3)]
    steps = len(rows) // size
    first = drawn[: steps * size]
    assert len(set(first)) == len(first)
    counts = {row.id: drawn.count(row.id) for row in rows}
    assert max(counts.values()) - min(counts.values()) <= 2
    again = TrainingData(store, rows, {}, loaded_model().chat)
    assert [c.id for c in again.batch(7, size, seed=3)] == [c.id for c in data.batch(7, size, seed=3)]
    assert [c.id for c in data.batch(7, size, seed=4)] != [c.id for c in data.batch(7, size, seed=3)]


def test_batches_take_a_trajectory_up_to_its_cap(run: Path):
    store = CandidateStore(RunDirectory(run))
    rows = store.rows("train")
    data, again = (TrainingData(store, rows, {}, loaded_model().chat, cap=3) for _ in range(2))
    drawn = [[candidate.trajectory.id for candidate in data.batch(step, 6, seed=3)] for step in range(20)]
    assert all(batch.count(name) <= 3 for batch in drawn for name in batch)
    assert sum(len(set(batch)) for batch in drawn) / len(drawn) < 4.5
    assert [c.id for c in again.batch(13, 6, seed=3)] == [c.id for c in data.batch(13, 6, seed=3)]


@pytest.mark.parametrize("name", ["paper", "nemo-rl"])
def test_every_preset_trains_and_groups_are_drawn_again(run: Path, name: str):
    profiled(run, "base", "one")
    select(SelectConfig(run=run, lambda_diff=1.0))
    told = dataclasses.replace(
        preset(name, run), steps=3, group_size=3, name=name, zero_variance="resample", resamples=2
    )
    done = train(dataclasses.replace(told, optimizer=OptimizerSettings(lr=1e-3)))
    assert sum(step.redrawn for step in done.metrics) > 0
    turns = sum(line.usage.turns for line in Ledger(run / "ledger.jsonl").lines() if line.stage == "train")
    assert turns == sum(step.rollouts for step in done.metrics)
    evidence = [json.loads(line) for line in (run / "train" / name / "samples" / "step-000000.jsonl").open()]
    numbers = {(one["rollout"]["candidate_id"], one["rollout"]["sample"]) for one in evidence}
    assert len(numbers) == len(evidence) == done.metrics[0].rollouts
    assert any(step.learner and step.learner.grad_norm > 0 for step in done.metrics)


def test_options_beside_a_preset_win():
    """The command line's defaults are the preset's, and those of `TrainConfig` without one."""
    common = ["train", "--run", "x"]
    assert _parse(common) == preset("paper", Path("x")) == TrainConfig(run=Path("x"))
    nemo = preset("nemo-rl", Path("x"))
    assert _parse([*common, "--preset", "nemo-rl"]) == nemo
    told = _parse([*common, "--loss.beta", "0.1", "--preset=nemo-rl", "--advantage.malformed", "None"])
    assert told.loss == dataclasses.replace(nemo.loss, beta=0.1)
    assert told.advantage == dataclasses.replace(nemo.advantage, malformed=None)
    with pytest.raises(ConfigError, match=r"--preset: invalid choice: 'verl' \(choose from"):
        _parse([*common, "--preset", "verl"])
