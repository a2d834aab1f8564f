"""`lab theory-check`: on a toy run recomputed from plain forward passes, on simulated states held to the truth."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

import toy
from pivotrl.budgets import fit_prior
from pivotrl.chat import ChatFormat
from pivotrl.cli import main
from pivotrl.errors import ConfigError
from pivotrl.grpo import LossSettings
from pivotrl.ingestion import IngestConfig, ingest
from pivotrl.lab.theory_practice import SIZES, TheoryCheckConfig, _check, _counts, theory_check
from pivotrl.pivots import SelectConfig, select
from pivotrl.profile_settings import ProfileConfig
from pivotrl.profiling import profile, profiled
from pivotrl.training import train
from pivotrl.training_settings import TrainConfig
from pivotrl.types import SamplingParams
from tiny import saved_model

JUDGE = "def half(candidate, action):\n    return action == candidate.demonstration or len(action.text or '') % 2\n"


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A random model profiled twice, the second time as the fresh groups will be sampled; one step of training."""
    folder = tmp_path_factory.mktemp("theory")
    toy.write_episodes(folder / "episodes.jsonl", 10, 0)
    (folder / "judge.py").write_text(JUDGE)
    base, run = saved_model(folder / "one", seed=1, chatty=False), folder / "run"
    saved_model(folder / "two", seed=2, chatty=False)
    ingest(IngestConfig(paths=(str(folder / "episodes.jsonl"),), run=run))
    usual = {"run": run, "policy": str(base), "verifier": f"{folder / 'judge.py'}:half"}
    usual["sampling"] = SamplingParams(max_new_tokens=12)
    profile(ProfileConfig(rollouts=8, **usual))
    profile(ProfileConfig(rollouts=4, name="fresh", seed=1, **usual))
    select(SelectConfig(run=run, lambda_diff=0.5))
    train(TrainConfig(run=run, steps=1, prompts=4, loss=LossSettings(beta=0)))
    return run


def _scores(model, prompt, action) -> float:
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *action]])).logits[0].double().log_softmax(-1)
    return sum(float(logits[len(prompt) + at - 1, token]) for at, token in enumerate(action))


def test_numbers_are_those_of_plain_forward_passes(run: Path, capsys) -> None:
    names = ("base", "two", "pivotrl")
    folders = dict(zip(names, (run.parent / "one", run.parent / "two", run / "train/pivotrl/model"), strict=True))
    arguments = ["--policies", f"two={folders['two']}", "pivotrl=train/pivotrl", "--rollouts", "4", "--held-out", "3"]
    assert main(["lab", "theory-check", "--run", str(run), *arguments]) == 0
    models = {name: transformers.AutoModelForCausalLM.from_pretrained(path) for name, path in folders.items()}
    tokenizer = transformers.AutoTokenizer.from_pretrained(folders["base"])
    pivots = {json.loads(line)["candidate_id"] for line in (run / "pivots/base.jsonl").read_text().splitlines()}
    across, mixed = {"two": [], "pivotrl": []}, []
    for candidate, _, group in profiled(run, "fresh"):
        if candidate.id not in pivots:
            continue
        rewards = [bool(reward) for reward in group.rewards]
        mixed.append(np.mean([one != other for one, other in itertools.combinations(rewards, 2)]))
        whole = [one.token_ids if one.finish_reason == "stop" else () for one in group.completions]
        actions = {ids: reward for ids, reward in zip(whole, rewards, strict=True) if ids}
        if len(actions) < 3 or len(set(actions.values())) < 2:
            continue
        prompt = ChatFormat(tokenizer).prompt_ids(candidate.state)
        scores = {name: np.array([_scores(model, prompt, ids) for ids in actions]) for name, model in models.items()}
        for name, found in across.items():
            moved, right = scores[name] - scores["base"], np.array([*actions.values()])
            found.append(moved[right].mean() - moved[~right].mean())
    said = json.loads((run / "theory.json").read_text())
    rows = {(row["of"], row["at"].split(",")[0]): row["found"] for row in said["blocks"]}
    for name, found in across.items():
        assert len(found) > 2
        assert rows[name, "pivots"]["across"]["mean"] == pytest.approx(np.mean(found), abs=1e-4)
        assert rows[name, "pivots"]["across"]["n"] == len(found)
    assert abs(rows["pivotrl", "pivots"]["across"]["mean"]) < abs(rows["two", "pivots"]["across"]["mean"])
    fresh = next(row for row in said["mixed"] if row["of"] == "fresh, pivots" and row["at"].startswith("G 2,"))
    assert fresh["found"]["mixed, observed"]["mean"] == pytest.approx(np.mean(mixed))
    assert any(row["of"] == "pivotrl, step-000000" and row["at"].startswith("G 8,") for row in said["mixed"])
    assert "share against first" in capsys.readouterr().out


def test_a_model_beside_itself_has_not_moved_and_the_bytes_repeat(run: Path, tmp_path: Path) -> None:
    same = (f"same={run.parent / 'one'}",)
    config = TheoryCheckConfig(run=run, policies=same, rollouts=4, held_out=3, out=tmp_path / "a.json")
    result = theory_check(config)
    assert {row.found["across"].mean for row in result.blocks} == {0.0}
    assert all("share across" not in row.found for row in result.blocks), "nothing moved, so no share of it"
    first = (tmp_path / "a.json").read_bytes()
    theory_check(config)
    assert first == (tmp_path / "a.json").read_bytes()


def test_a_table_without_rows_says_why(run: Path, tmp_path: Path) -> None:
    lines = theory_check(TheoryCheckConfig(run=run, rollouts=1, held_out=2, out=tmp_path / "a.json")).lines()
    assert lines[-2].startswith("no training is compared: ")
    assert "raise --rollouts" in lines[-2]
    assert not any(line.startswith("| training |") for line in lines)


def test_what_cannot_be_checked_is_one_line(run: Path) -> None:
    scripted = ("x=scripted:desk_plugins:act",)
    for wrong in ({"policies": scripted}, {"rollouts": 0}, {"held_out": 0}):
        with pytest.raises(ConfigError):
            theory_check(TheoryCheckConfig(run=run, **{"rollouts": 2, "held_out": 2, **wrong}))


def test_the_fitted_prior_predicts_where_the_plain_ways_do_not() -> None:
    """300 trajectories of 2 states, p mostly near 0 and 1: too little by the mean, too much by Jeffreys."""
    rng = np.random.default_rng(0)
    drawn = []
    for at in range(600):
        p = (0.0, 1.0, rng.beta(1, 3))[rng.choice(3, p=[0.3, 0.4, 0.3])]
        drawn.append((f"t{at // 2}", (int(rng.binomial(8, p)), 8), (int(rng.binomial(16, p)), 16)))
    rows = [*_check("made", drawn, fit_prior(_counts(drawn)), SIZES)]
    assert [row.at for row in rows] == [f"G {size}, 600 states" for size in (2, 4, 8, 16)]
    found = rows[-1].found
    assert found["fitted prior: too much by"].low < 0 < found["fitted prior: too much by"].high
    assert found["mean: too much by"].high < 0
    assert found["Jeffreys: too much by"].low > 0
