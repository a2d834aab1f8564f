"""Comparisons: pairing, intervals that cover, other harnesses' files, and what has to be said before it is believed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from kill_harness import RUN, make_desk
from pivotrl import comparing
from pivotrl.comparing import CompareConfig, bootstrap, compare
from pivotrl.documents import Paragraph
from pivotrl.errors import ConfigError, InputError, MissingError
from pivotrl.evaluation import evaluate
from pivotrl.evaluation_settings import EvaluateConfig
from pivotrl.frontier import cost_of, frontier, needed, score_at
from pivotrl.ledger import Ledger
from pivotrl.metrics import clustered_mean
from pivotrl.outcomes import ItemScore, pass_hat
from pivotrl.planning import Scope
from pivotrl.result_files import read_results
from pivotrl.run_directory import RunDirectory
from pivotrl.types import Estimate, Usage

SHARED = Path(os.environ.get("PIVOTRL_SHARED", Path(__file__).parents[2] / "shared" / "data"))


def tau2(folder: Path, name: str, rewards: dict[str, list[float | None]], **info: object) -> str:
    """Results as tau2-bench writes them."""
    simulations = [
        {"task_id": task, "trial": trial, "reward_info": reward if reward is None else {"reward": reward}}
        for task, values in rewards.items()
        for trial, reward in enumerate(values)
    ]  # fmt: skip
    header = {"environment_info": {"domain_name": "retail"}, "num_trials": 2, **info}
    (folder / f"{name}.json").write_text(json.dumps({"info": header, "tasks": [], "simulations": simulations}))
    return f"{name}={folder / f'{name}.json'}"


def test_paired_by_item_with_flips_and_words(tmp_path: Path) -> None:
    tasks = [f"t{at}" for at in range(40)]
    base = tau2(tmp_path, "base", {task: [0.0, 0.0] for task in tasks})
    good = tau2(tmp_path, "good", {task: [1.0, float(at % 2)] for at, task in enumerate(tasks)})
    same = tau2(tmp_path, "same", {task: [float(at == 3), 0.0] for at, task in enumerate(tasks)})
    rows = compare(CompareConfig(results=(base, good, same))).rows
    assert [(row.policy, row.word) for row in rows] == [("base", ""), ("good", "better"), ("same", "within noise")]
    assert rows[1].change is not None
    assert (rows[1].change.mean, rows[1].gained, rows[1].lost) == (0.75, 40, 0)
    assert rows[1].pass_hat == (0.75, 0.5)
    said = compare(CompareConfig(results=(base, good, same))).lines()
    assert "        change 0.750 [0.675, 0.825]: better; 40 gained, 0 lost" in said
    assert max(map(len, "\n".join(said).splitlines())) <= 80


def test_what_differs_is_said(tmp_path: Path) -> None:
    base = tau2(tmp_path, "base", {"a": [1.0], "b": [0.0], "c": [0.0]}, num_trials=1)
    other = tau2(tmp_path, "other", {"b": [1.0, 1.0], "c": [0.0, 0.0], "d": [1.0, 1.0]})
    said = compare(CompareConfig(results=(base, other))).warnings
    assert said == (
        "tau2 retail: other and base share 2 items of 3 and 3",
        "tau2 retail: items of other and base have 1 to 2 trials",
        "tau2 retail: num_trials differs between other and base",
    )


def test_paths_of_one_name_are_added_up(tmp_path: Path) -> None:
    one, other = (tau2(tmp_path, f"base{at}", {"a": [reward], "b": [reward]}) for at, reward in ((1, 1.0), (2, 0.0)))
    base = [f"base={entry.partition('=')[2]}" for entry in (one, other)]
    x = tau2(tmp_path, "x", {"a": [1.0, 1.0], "b": [1.0, 1.0]})
    first, second = compare(CompareConfig(results=(*base, x))).rows
    assert (first.score.mean, first.score.n) == (0.5, 2)
    assert first.pass_hat == (0.5, 0.0)
    assert second.change is not None
    assert (second.change.mean, second.gained) == (0.5, 2)


def test_costs_of_one_name_are_added_up(tmp_path: Path) -> None:
    runs = [tmp_path / name for name in ("one", "other")]
    config = {"method": "sft", "pivots": "base", "group_size": 8, "verifier": None}
    for run in runs:
        run.mkdir()
        RunDirectory(run).record_stage("train", "x", {"config": config, "policy": "p", "verifier_id": None})
        Ledger(run / "ledger.jsonl").record("train", "x", "step 0", Usage(turns=5))
    entries = [("x", run, None) for run in runs] + [("y", runs[0], None), ("z", tmp_path / "results.json", None)]
    assert comparing._costs(entries) == {"x": Usage(turns=10), "y": Usage()}


def test_suites_that_the_first_lacks_have_no_mean_change(tmp_path: Path) -> None:
    base = tau2(tmp_path, "base", {"a": [1.0]})
    other = tau2(tmp_path, "other", {"a": [1.0]}, environment_info={"domain_name": "telecom"})
    blocks = compare(CompareConfig(results=(base, other), general=("tau2 telecom",))).blocks()
    assert not any(isinstance(one, Paragraph) for one in blocks)


def test_a_failed_simulation_is_a_failure_as_in_tau2(tmp_path: Path) -> None:
    entry = tau2(tmp_path, "x", {"a": [None, 1.0]})
    assert read_results(Path(entry.partition("=")[2]), None).items[0].rewards == (0.0, 1.0)


@given(st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=2, max_size=8))
def test_pass_hat_is_the_share_of_draws_that_all_succeed(trials: list[list[bool]]) -> None:
    """By counting every subset of k trials."""
    from itertools import combinations

    items = [
        ItemScore(policy="p", suite="s", item=str(at), cluster=str(at), rewards=tuple(map(float, some)))
        for at, some in enumerate(trials)
    ]
    for k, found in enumerate(pass_hat(items), start=1):
        shares = [np.mean([all(draw) for draw in combinations(some, k)]) for some in trials]
        assert found.mean == pytest.approx(np.mean(shares))


def test_the_bootstrap_is_scipys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparing, "SAMPLES", 4000)
    rng = np.random.default_rng(3)
    values = rng.normal(0.1, 1, 60)
    mine = bootstrap(values.tolist(), [str(at) for at in range(60)], np.random.default_rng(0))
    its = stats.bootstrap((values,), np.mean, n_resamples=4000, method="percentile", rng=np.random.default_rng(1))
    assert mine.mean == pytest.approx(values.mean())
    assert mine.low == pytest.approx(its.confidence_interval.low, abs=0.02)
    assert mine.high == pytest.approx(its.confidence_interval.high, abs=0.02)


def test_no_change_in_n_items_is_not_a_proof_of_none() -> None:
    """With n equal items a change in 1 - 0.025^(1/n) of them may go unseen (Clopper and Pearson)."""
    for value in (0.0, 0.25):
        found = bootstrap([value] * 20, [str(at) for at in range(20)], np.random.default_rng(0))
        unseen = stats.binomtest(0, 20).proportion_ci(method="exact").high
        assert found.mean == value
        assert found.low == pytest.approx(value - unseen * (1 + value))
        assert found.high == pytest.approx(value + unseen * (1 - value))


@pytest.mark.parametrize("kind", ["plain", "paired", "clustered"])
def test_95_percent_intervals_cover(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By simulation, both kinds of interval: 93 to 97% of 1,500 studies hold the true mean."""
    monkeypatch.setattr(comparing, "SAMPLES", 500)
    rng, hits = np.random.default_rng(7), np.zeros(2)
    studies, true = 1500, 0.1 if kind == "paired" else 0.4
    for _ in range(studies):
        if kind == "paired":
            chance = rng.uniform(0.2, 0.7, 150)
            values = (rng.random(150) < chance + 0.1).astype(float) - (rng.random(150) < chance)
            clusters = np.arange(150)
        elif kind == "plain":
            values, clusters = (rng.random(150) < 0.4).astype(float), np.arange(150)
        else:
            clusters = np.repeat(np.arange(80), 4)
            values = (rng.random(320) < np.repeat(rng.beta(0.8, 1.2, 80), 4)).astype(float)
        names = [str(one) for one in clusters]
        for at, found in enumerate((clustered_mean(values.tolist(), names), bootstrap(values.tolist(), names, rng))):
            assert found.low is not None
            assert found.high is not None
            hits[at] += found.low <= true <= found.high
    assert ((hits / studies >= 0.93) & (hits / studies <= 0.97)).all(), hits / studies


def test_swe_bench_and_lm_eval_and_gym(tmp_path: Path) -> None:
    """The numbers that their own tools print: resolved of submitted, a metric's mean, the mean reward."""
    report = {"total_instances": 500, "submitted_instances": 4, "resolved_instances": 2, "schema_version": 2}
    lists = {
        "submitted_ids": ["a", "b", "c", "d"],
        "resolved_ids": ["a", "d"],
        "empty_patch_ids": ["c"],
        "error_ids": [],
    }
    (tmp_path / "swe.json").write_text(json.dumps(report | lists))
    (tmp_path / "lm").mkdir()
    samples = [
        {"doc_id": at, "target": "x", "filter": f, "exact_match": float(at == 0)} for f in ("a", "b") for at in range(4)
    ]
    (tmp_path / "lm" / "samples_gsm8k_2026-01-01T00.jsonl").write_text("\n".join(map(json.dumps, samples)))
    (tmp_path / "lm" / "results_2026.json").write_text(json.dumps({"results": {"gsm8k": {"exact_match,a": 0.25}}}))
    rollouts = [
        {"responses_create_params": {}, "reward": at % 2, "_ng_task_index": at // 2, "agent_ref": {"name": "ag"}}
        for at in range(6)
    ]
    (tmp_path / "gym.jsonl").write_text("\n".join(map(json.dumps, rollouts)))
    for name, suite, n, mean in (
        ("swe.json", "SWE-bench", 4, 0.5), ("lm", "gsm8k exact_match", 4, 0.25), ("gym.jsonl", "ag", 3, 0.5),
    ):  # fmt: skip
        items = read_results(tmp_path / name, None).items
        assert ({one.suite for one in items}, len(items)) == ({suite}, n)
        assert np.mean([one.mean for one in items]) == mean


def test_real_result_files() -> None:
    """The mean rewards that tau2-bench prints, counted in the raw JSON."""
    folder = SHARED / "trajectories"
    if not folder.exists():
        pytest.skip("the shared data are not there")
    for path in [folder / "tau2_results" / "toolorchestra_airline_gpt5.json", *folder.glob("tau_bench/*0-100.json")]:
        raw = json.loads(path.read_text())
        rows = raw["simulations"] if isinstance(raw, dict) else raw
        rewards = [(row.get("reward_info") or row)["reward"] for row in rows]
        items = read_results(path, None).items
        assert sum(len(one.rewards) for one in items) == len(rows)
        assert sum(sum(one.rewards) for one in items) == pytest.approx(sum(rewards))


def test_a_chain_costs_what_each_link_costs() -> None:
    stages = {
        "train/warm": {"config": {}, "policy": "base", "profile": None},
        "profile/warm": {"config": {"policy": "runs/r/train/warm/model", "again": None}},
        "profile/second": {"config": {"policy": "runs/r/train/rl/model", "again": "warm"}},
        "train/rl": {"config": {}, "policy": "runs/r/train/warm/model", "profile": "warm"},
        "train/last": {"config": {}, "policy": "runs/r/train/rl/model", "profile": "second"},
    }
    turns = {"train/warm": 1, "profile/warm": 10, "train/rl": 100, "profile/second": 1000, "train/last": 10000}
    totals = {tuple(key.split("/")): Usage(turns=some) for key, some in turns.items()}
    costs = {name: needed(stages, totals, name).turns for name in ("warm", "rl", "last", "base")}
    assert costs == {"warm": 1, "rl": 111, "last": 11111, "base": 0}


def test_our_runs_with_cost(tmp_path: Path) -> None:
    """Policies of a run by name, their states clustered by task, sampled with the same settings."""
    run = make_desk(tmp_path) / RUN
    policies = ("a=scripted:desk_plugins:play", "b=scripted:desk_plugins:play")
    evaluate(EvaluateConfig(run=run, policies=policies, rollouts=2, split="train"))
    result = compare(CompareConfig(results=(f"a={run}", f"x={run}:b"), output=tmp_path / "out"))
    assert [(row.suite, row.policy) for row in result.rows] == [("candidates", "a"), ("candidates", "x")]
    n, clusters = result.rows[0].score.n, result.rows[0].score.clusters
    assert result.rows[1].change == clustered_mean([0.0] * n, [at % clusters for at in range(n)], (-1.0, 1.0))
    assert not result.warnings
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {"compare.html", "compare.md", "compare.json"}


@pytest.mark.parametrize(
    ("results", "said"),
    [
        (("a=x.json",), "no such file"),
        (("nonsense",), "write NAME=PATH"),
        (("a=empty.json", "b=empty.json"), "no results in it"),
    ],
)
def test_mistakes_are_one_line(
    results: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty.json").write_text("{}")
    with pytest.raises((ConfigError, MissingError, InputError), match=said):
        compare(CompareConfig(results=results))
    one = tau2(tmp_path, "a", {"x": [1.0]})
    with pytest.raises(ConfigError, match="two names"):
        compare(CompareConfig(results=(one,)))


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 50)), min_size=1, max_size=6), st.integers(0, 50))
def test_costs_and_scores_lie_on_the_line(steps: list[tuple[int, int]], wanted: int) -> None:
    costs = np.cumsum([0, *(cost for cost, _ in steps)]).tolist()
    scores = [0.0, *(score / 50 for _, score in steps)]
    curve = list(zip(map(float, costs), scores, strict=True))
    for cost in np.linspace(0, costs[-1], 7):
        assert score_at(curve, float(cost)) == pytest.approx(float(np.interp(cost, costs, scores)))
    if wanted / 50 <= max(scores):
        at = cost_of(curve, wanted / 50)
        assert score_at(curve, at) == pytest.approx(wanted / 50, abs=1e-9) or (wanted == 0 and at == 0)


def test_methods_are_held_against_each_other_at_matched_success_and_cost() -> None:
    def one(turns: int, mean: float) -> tuple[Usage, Estimate]:
        return Usage(turns=turns), Estimate(mean=mean, low=None, high=None, n=9, clusters=9)

    found = {"base": one(0, 0.2), "e2e": one(400, 0.4), "pivotrl@1": one(50, 0.4), "pivotrl@2": one(100, 0.5)}
    said = [block.text for block in frontier("desk", found) if hasattr(block, "text")]
    assert "Model calls for a score of 0.400, which all reach: e2e 400, pivotrl 50." in said
    assert "Score at 100 model calls, which all have: e2e 0.250, pivotrl 0.500." in said


COUNTING = """
import gc
from pivotrl.policies import ScriptedPolicy

HELD = sum(type(one) is ScriptedPolicy for one in gc.get_objects())

def act(state, random):
    return str(HELD)
"""
"""Says how many policies there were when it was opened."""


def test_a_policy_is_gone_before_the_next_is_opened(tmp_path: Path) -> None:
    """Two models of 8B do not fit where one does."""
    run = make_desk(tmp_path) / RUN
    (tmp_path / "counting.py").write_text(COUNTING)
    policies = tuple(f"{name}=scripted:{tmp_path}/counting.py:act" for name in "ab")
    scope = Scope(max_candidates=2)
    evaluate(EvaluateConfig(run=run, policies=policies, rollouts=1, split="train", scope=scope, verifier="exact"))
    lines = [line for path in run.glob("eval/*/policies/*/rollouts/*.jsonl") for line in path.read_text().splitlines()]
    assert len(lines) == 4
    assert len({json.loads(line)["completion"]["text"] for line in lines}) == 1
