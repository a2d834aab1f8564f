"""The whole chain through the command line: SFT makes a weak policy, which is profiled, trained and evaluated."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import orjson
import pytest
import torch

import toy
from pivotrl.batches import load_data
from pivotrl.candidates import CandidateStore
from pivotrl.chat import ChatFormat
from pivotrl.cli import main
from pivotrl.ledger import Ledger
from pivotrl.models import load_model
from pivotrl.policies.torch import TorchPolicy
from pivotrl.run_directory import RunDirectory
from pivotrl.training_settings import TrainConfig, origin_of
from pivotrl.types import Usage
from pivotrl.verifiers import load_verifier
from toy_model import make_tokenizer, new_model

SFT = ["--steps", "60", "--prompts", "16", "--optimizer.lr", "3e-3"]
NEW = ["--sampling.max-new-tokens", "40"]
SOME = [*NEW, "--scope.max-candidates", "24"]


def rows(path: Path) -> list[dict]:
    return [orjson.loads(line) for line in path.read_bytes().splitlines()]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A run directory with everything up to `select`."""
    folder = tmp_path_factory.mktemp("chain")
    toy.write_episodes(folder / "episodes.jsonl", 40, 0)
    tokenizer = make_tokenizer()
    torch.manual_seed(0)
    new_model(tokenizer).save_pretrained(folder / "random")
    tokenizer.save_pretrained(folder / "random")
    run = folder / "run"
    commands = [
        ["ingest", str(folder / "episodes.jsonl"), "--run", str(run), "--test-fraction", "0.3"],
        ["train", "--run", str(run), "--method", "sft", "--data", "train", "--policy", str(folder / "random"), *SFT],
        ["profile", "--run", str(run), "--policy", str(run / "train/sft/model"), "--rollouts", "8", *NEW],
        ["select", "--run", str(run), "--lambda-diff", "0.6"],
    ]
    for command in commands:
        assert main(command) == 0, command
    return run


def test_every_turn_is_accounted_for(run):
    turns = sum(
        message["role"] == "assistant"
        for record in rows(run.parent / "episodes.jsonl")
        for message in record["messages"]
    )
    assert len(rows(run / "candidates.jsonl")) + len(rows(run / "audit.jsonl")) == turns


def test_profile_reads_only_the_training_split(run):
    split = {row["id"]: row["split"] for row in rows(run / "candidates.jsonl")}
    profiled = {row["candidate_id"] for row in rows(run / "profiles/base/rollouts/part-00000.jsonl")}
    assert {split[key] for key in profiled} == {"train"}
    groups = [
        {row["group"] for row in rows(run / "candidates.jsonl") if row["split"] == name} for name in set(split.values())
    ]
    assert len(set.union(*groups)) == sum(len(group) for group in groups)


def test_funnel_is_eq_5_over_the_stored_verdicts(run):
    """Selection recomputed from the raw verdict lines."""
    (part,) = (run / "profiles/base/verdicts").glob("*/part-00000.jsonl")
    rewards: dict[str, list[float]] = {}
    for row in rows(part):
        rewards.setdefault(row["candidate_id"], []).append(row["verdict"]["value"])
    expected = [key for key, values in rewards.items() if sum(values) > 0 and sum(values) / 8 < 0.6 and min(values) < 1]
    assert [row["candidate_id"] for row in rows(run / "pivots/base.jsonl")] == expected
    assert len(expected) >= 5


@pytest.mark.parametrize("method", ["pivotrl", "unfiltered", "strict-filtered", "strict", "sft", "rft"])
def test_methods_differ_by_one_flag(run, method):
    command = ["train", "--run", str(run), "--method", method, "--name", f"m-{method}", "--steps", "3"]
    assert main([*command, "--prompts", "6", "--samples-every", "1"]) == 0
    metrics = rows(run / f"train/m-{method}/metrics.jsonl")
    assert [line["step"] for line in metrics] == [0, 1, 2]
    if method in ("sft", "rft"):
        assert all(line["learner"]["loss"] > 0 for line in metrics)
        return
    samples = rows(run / f"train/m-{method}/samples/step-000000.jsonl")
    verifiers = {
        row["verdict"]["verifier"] for row in samples if row["verdict"]["reason"] not in ("unparsable", "truncated")
    }
    assert verifiers <= ({"exact"} if method.startswith("strict") else {"tool_call", "message"})
    drawn = {row["rollout"]["candidate_id"] for row in samples}
    assert len(drawn) == 6
    on_pivots = drawn <= {row["candidate_id"] for row in rows(run / "pivots/base.jsonl")}
    assert on_pivots == (method in ("pivotrl", "strict-filtered"))
    for line in metrics:
        assert line["groups_mixed"] + line["groups_right"] + line["groups_wrong"] + line["groups_unscored"] == 6
        assert line["rollouts"] == 48


def test_rft_imitates_different_accepted_samples_as_they_were_sampled(run):
    """The targets, recomputed from the raw lines of rollouts and verdicts; what is left out is counted."""
    (part,) = (run / "profiles/base/verdicts").glob("*/part-00000.jsonl")
    expected: dict[str, list] = {}
    seen: set = set()
    for sample, judged in zip(rows(run / "profiles/base/rollouts/part-00000.jsonl"), rows(part), strict=True):
        key, action = sample["candidate_id"], sample["completion"]["action"]
        ids = expected.setdefault(key, [])
        if judged["verdict"]["value"] == 1 and len(ids) < 2 and (key, orjson.dumps(action)) not in seen:
            seen.add((key, orjson.dumps(action)))
            ids.append(tuple(sample["completion"]["token_ids"]))
    config = TrainConfig(run=run, method="rft", accepted=2)
    data = data_of(config)
    assert data.targets == {key: tuple(ids) for key, ids in expected.items() if ids}
    assert data.left_out == {"rft_none_accepted": sum(not ids for ids in expected.values())}
    assert max(map(len, data.targets.values())) == 2
    candidate = data.batch(0, 1, 0)[0]
    examples = data.imitated(candidate)
    assert [example.action_ids for example in examples] == expected[candidate.id]
    assert {example.prompt_ids for example in examples} == {data.chat.prompt_ids(candidate.state)}


def data_of(config: TrainConfig):
    """What a training of this config draws from."""
    directory = RunDirectory(config.run)
    origin = origin_of(config, directory)
    loaded = load_model(origin.plan.policy, origin.plan.model)
    return load_data(
        config, origin, directory, TorchPolicy(loaded), load_verifier(origin.verifier), origin.plan.sampling
    )


@pytest.mark.parametrize("method", ["sft", "rft"])
def test_imitation_of_pivots_alone(run, method):
    pivots = {row["candidate_id"] for row in rows(run / "pivots/base.jsonl")}
    narrow = data_of(TrainConfig(run=run, method=method, data="pivots"))
    assert {row.id for row in narrow.rows} == pivots
    assert {row.id for row in data_of(TrainConfig(run=run, method=method)).rows} > pivots


def test_what_was_trained_is_profiled_and_trained_again(run, tmp_path):
    """SFT, profile and RL (as above, and in `run`), then an adapter, profile, RL, profile, imitation."""
    again, steps = tmp_path / "run", ["--steps", "2", "--prompts", "4"]
    shutil.copytree(run, again)
    lora = ["--lora.rank", "2", "--optimizer.lr", "1e-2"]
    commands = [
        ["train", "--name", "one", *steps, *lora, "--lora.save", "adapter"],
        ["profile", "--name", "one", "--policy", str(again / "train/one/model"), "--rollouts", "4", *SOME],
        ["select", "--name", "one", "--profile", "one", "--lambda-diff", "1"],
        ["train", "--name", "two", "--pivots", "one", "--method", "strict-filtered", *steps, *lora],
        ["profile", "--name", "two", "--policy", str(again / "train/two/model"), "--rollouts", "2", *SOME],
        ["train", "--name", "three", "--profile", "two", "--method", "rft", *steps],
    ]
    for command in commands:
        assert main([*command, "--run", str(again)]) == 0, command
    stages = RunDirectory(again).stages()
    weights = [stages[f"profile/{name}"]["fingerprint"]["weights"] for name in ("base", "one", "two")]
    assert len(set(weights)) == 3
    assert [stages[f"train/{name}"]["fingerprint"]["weights"] for name in ("two", "three")] == weights[1:]


def test_training_on_pivots_raises_their_reward_and_evaluation_reports_it(run, capsys):
    command = ["train", "--run", str(run), "--steps", "20", "--prompts", "12", "--optimizer.lr", "1.5e-3"]
    assert main(command) == 0
    rewards = [line["reward_mean"] for line in rows(run / "train/pivotrl/metrics.jsonl")]
    assert sum(rewards[-5:]) / 5 > sum(rewards[:5]) / 5 + 0.1
    assert main(["evaluate", "--run", str(run), "--policies", "base=train/sft", "after=train/pivotrl"]) == 0
    result = json.loads((run / "eval/heldout/result.json").read_text())
    before, after = result["scores"]
    assert before["change"] is None
    assert after["change"]["mean"] == pytest.approx(after["score"]["mean"] - before["score"]["mean"])
    assert after["change"]["low"] < after["change"]["mean"] < after["change"]["high"]
    assert main(["report", "--run", str(run)]) == 0
    report = (run / "report.md").read_text()
    for heading in ("What was read", "Profile `base`", "Selection `base`", "Training `pivotrl`", "Evaluation", "cost"):
        assert heading in report
    assert f"{after['score']['mean']:.3f}" in report


def test_a_trained_model_is_an_ordinary_hugging_face_directory(run):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(run / "train/sft/model")
    tokenizer = AutoTokenizer.from_pretrained(run / "train/sft/model")
    ids = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], return_tensors="pt", return_dict=True)
    assert model(**ids).logits.shape[-1] == len(tokenizer)


def test_same_seed_same_bytes(run, tmp_path):
    """The run again in another folder: rollouts, verdicts, summary, pivots, metrics and weights."""
    again = tmp_path / "run"
    shutil.copytree(run, again)
    for name in ("profiles", "pivots", "train/det"):
        shutil.rmtree(again / name, ignore_errors=True)
    profile = ["profile", "--policy", str(run / "train/sft/model"), "--rollouts", "8", *NEW]
    train = ["train", "--name", "det", "--steps", "3", "--prompts", "4"]
    for command in (profile, ["select", "--lambda-diff", "0.6"], train):
        assert main([*command, "--run", str(again)]) == 0
    assert main([*train, "--run", str(run)]) == 0
    compared = 0
    for folder in ("profiles", "pivots", "train/det"):
        for path in sorted((run / folder).rglob("*")):
            if path.is_file() and not path.name.startswith("."):
                assert (again / path.relative_to(run)).read_bytes() == path.read_bytes(), path
                compared += 1
    assert compared > 12


def test_ledger_agrees_with_the_artefacts(run):
    usage = Ledger(run / "ledger.jsonl").totals()["profile", "base"]
    rollouts = rows(run / "profiles/base/rollouts/part-00000.jsonl")
    assert usage.rollouts == len(rollouts)
    assert usage.generated_tokens == sum(len(row["completion"]["token_ids"]) for row in rollouts)
    chat, store = ChatFormat(make_tokenizer()), CandidateStore(RunDirectory(run))
    profiled = {row["candidate_id"] for row in rollouts}
    units = store.units(row for row in store.rows() if row.id in profiled)
    lengths = [len(chat.prompt_ids(candidate.state)) for _, candidates in units for candidate in candidates]
    assert usage.prefilled_tokens + usage.cached_tokens == 8 * sum(lengths)
    assert usage.prefilled_tokens < sum(lengths), "states of one trajectory share their beginning"
    assert usage.flops > 0
    assert usage.seconds > 0
    assert Usage() + usage == usage


def test_rescoring_samples_nothing_and_select_can_use_it(run):
    part = run / "profiles/base/rollouts/part-00000.jsonl"
    before = part.read_bytes()
    assert main(["rescore", "--run", str(run), "--verifier", "tool_name"]) == 0
    assert part.read_bytes() == before
    assert (
        main(["select", "--run", str(run), "--name", "names", "--verifier", "tool_name", "--lambda-diff", "1.0"]) == 0
    )
    summaries = list((run / "profiles/base/verdicts").glob("*/summary.jsonl"))
    assert len(summaries) == 2
    assert len(Counter(row["verifier"] for path in summaries for row in rows(path))) == 2
