"""Forgetting: texts recomputed by numpy from the logits, tasks held to lm-eval's own numbers."""

from __future__ import annotations

import gc
import json
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import orjson
import pytest
import torch
import transformers

import toy_environment
from pivotrl.cli import main
from pivotrl.comparing import CompareConfig, compare
from pivotrl.errors import ConfigError, DependencyError, MissingError
from pivotrl.evaluation import evaluate, load_evaluation
from pivotrl.evaluation_settings import EvaluateConfig, ForgettingSettings, open_policies
from pivotrl.forgetting import PAPER, ForgettingResult
from pivotrl.ledger import Ledger
from pivotrl.models import LoadedModel
from pivotrl.policies import ScriptedPolicy
from pivotrl.reporting import ReportConfig, report
from pivotrl.result_files import read_results
from pivotrl.run_directory import RunDirectory
from tiny import saved_model

TEXTS = ("the order was refunded", "a refund of the order A1 was not what the customer wanted at all", "x")
TASKS = Path(__file__).parent.parent / "recipes" / "lm_eval_tasks"
OWN = Path(__file__).parent / "lm_eval_results"
needs_lm_eval = pytest.mark.skipif(not find_spec("lm_eval"), reason="lm-eval is not installed (extra eval)")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("models")
    return saved_model(folder / "base", seed=0), saved_model(folder / "mine", seed=1)


def config(run: Path, models: tuple[Path, Path], **forgetting) -> EvaluateConfig:
    policies = (f"base={models[0]}", f"mine={models[1]}")
    return EvaluateConfig(run=run, policies=policies, forgetting=ForgettingSettings(**forgetting))


def by_numpy(folder: Path, text: str, most: int) -> tuple[np.ndarray, np.ndarray]:
    """(T, V) log-probabilities of what may follow each token but the last, in float64."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(text, add_special_tokens=False).input_ids[:most]
    with torch.no_grad():
        logits = transformers.AutoModelForCausalLM.from_pretrained(folder)(torch.tensor([ids])).logits[0]
    wide = logits.double().numpy()
    return (wide - np.log(np.exp(wide).sum(-1, keepdims=True)))[:-1], np.array(ids[1:], dtype=int)


def test_a_text_is_measured_as_numpy_measures_it(tmp_path: Path, models: tuple[Path, Path]) -> None:
    (tmp_path / "text.txt").write_text("\n\n".join(TEXTS))
    result = evaluate(config(tmp_path / "run", models, text=tmp_path / "text.txt", tokens=9))
    likely, kl, clusters = {"base": [], "mine": []}, [], []
    for at, text in enumerate(TEXTS):
        (base, ids), (mine, _) = (by_numpy(folder, text, 9) for folder in models)
        for name, table in (("base", base), ("mine", mine)):
            likely[name] += table[np.arange(len(ids)), ids].tolist()
        kl += (np.exp(base) * (base - mine)).sum(-1).tolist()
        clusters += [at] * len(ids)
    first, second = result.scores
    for score in (first, second):
        assert score.rate.success.mean == pytest.approx(np.exp(-np.mean(likely[score.policy])), rel=1e-4)
    changes, clusters = np.subtract(likely["mine"], likely["base"]), np.array(clusters)
    assert second.rate.change.mean == pytest.approx(changes.mean(), abs=1e-5)
    assert second.kl.mean == pytest.approx(np.mean(kl), rel=1e-4)
    sums = np.array([changes[clusters == one].sum() for one in np.unique(clusters)])
    assert (second.rate.gained, second.rate.lost) == ((sums > 0).sum(), (sums < 0).sum())
    spread = np.array([(changes - changes.mean())[clusters == one].sum() for one in np.unique(clusters)])
    error = np.sqrt((spread**2).sum() * len(spread) / (len(spread) - 1)) / len(changes)
    half = {2: 12.7062, 3: 4.3027}[len(spread)] * error
    assert second.rate.change.high - second.rate.change.mean == pytest.approx(half, rel=1e-3)
    assert (first.rate.change, first.kl) == (None, None)
    usage = Ledger(tmp_path / "run" / "ledger.jsonl").totals()
    assert usage["evaluate", "forgetting/mine"].prefilled_tokens == 2 * len(changes)


def test_a_model_beside_itself_forgot_nothing(tmp_path: Path, models: tuple[Path, Path]) -> None:
    lines = [json.dumps({"text": text, "id": 1}) for text in TEXTS]
    (tmp_path / "text.jsonl").write_text("\n".join(lines))
    again = evaluate(config(tmp_path / "run", (models[0], models[0]), text=tmp_path / "text.jsonl"))
    assert again.scores[1].kl.mean == again.scores[1].rate.change.mean == 0
    assert load_evaluation(RunDirectory(tmp_path / "run"), "forgetting") == again


def test_the_report_says_it(tmp_path: Path, models: tuple[Path, Path]) -> None:
    (tmp_path / "text.txt").write_text("\n\n".join(TEXTS))
    result = evaluate(config(tmp_path / "run", models, text=tmp_path / "text.txt"))
    page = report(ReportConfig(run=tmp_path / "run")).text
    answer = page.split("### What was forgotten?")[1].split("###")[0]
    assert f"{result.scores[1].kl.mean:.3f}" in answer
    assert f"{result.scores[0].rate.success.mean:.3f} before" in answer
    assert "--forgetting.text" in page
    with pytest.raises(MissingError, match="no evaluation"):
        read_results(tmp_path / "run", None)  # tokens are no items to compare


@pytest.mark.parametrize(
    ("forgetting", "more", "complaint"),
    [
        ({"limit": 3}, {}, "give --forgetting.lm-eval"),
        ({"text": "none.txt"}, {"env": ("skills",)}, "env: has no part"),
        ({"text": "none.txt"}, {"rollouts": 2}, "rollouts: has no part"),
        ({"text": "none.txt"}, {}, "no such file"),
        ({"text": "none.txt", "tokens": -1}, {}, "tokens -1: must be at least 2"),
        ({"lm_eval": ("one",), "limit": 0}, {}, "limit 0: must be at least 1"),
    ],
)
def test_a_mistake_is_one_line(tmp_path: Path, forgetting: dict, more: dict, complaint: str) -> None:
    with pytest.raises((ConfigError, MissingError), match=complaint):
        evaluate(EvaluateConfig(run=tmp_path, policies=("x",), forgetting=ForgettingSettings(**forgetting), **more))


def test_the_first_model_and_one_other_are_in_memory(tmp_path: Path, models: tuple[Path, Path], monkeypatch) -> None:
    (tmp_path / "text.txt").write_text("\n\n".join(TEXTS))
    alive: list[int] = []

    def counted(*given):
        def opened(open_policy):
            alive.append(sum(type(one) is LoadedModel for one in gc.get_objects()))
            return open_policy()

        return {name: partial(opened, one) for name, one in open_policies(*given).items()}

    monkeypatch.setattr("pivotrl.forgetting.open_policies", counted)
    two = config(tmp_path / "run", models, text=tmp_path / "text.txt")
    evaluate(replace(two, policies=(*two.policies, f"other={models[1]}")))
    assert [count - alive[0] for count in alive] == [0, 1, 1]


def test_a_policy_without_weights_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("a b c")
    settings = EvaluateConfig(run=tmp_path / "run", forgetting=ForgettingSettings(text=tmp_path / "text.txt"))
    with pytest.raises(ConfigError, match="weights are here"):
        evaluate(settings, policies={"one": ScriptedPolicy(toy_environment.expert, name="one")})


@pytest.mark.skipif(bool(find_spec("lm_eval")), reason="lm-eval is installed")
def test_without_lm_eval_the_extra_is_named_after_the_table(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(DependencyError, match=r"pip install 'pivotrl\[eval\]'"):
        evaluate(EvaluateConfig(run=tmp_path, policies=("x",), forgetting=ForgettingSettings(paper=True)))
    shown = capsys.readouterr().err
    assert all(row[0] in shown and row[1] in shown for row in PAPER)
    assert len(PAPER) == 8


def test_the_page_has_the_same_table() -> None:
    page = (Path(__file__).parent.parent / "docs" / "forgetting.md").read_text()
    for row in PAPER:
        assert f"| {row[0]} | {row[1]} | {row[2]} |" in page


def test_lm_evals_own_files_give_the_numbers_that_it_printed() -> None:
    """Written by lm-eval 0.4.13 (recipes/lm_eval.sh)."""
    (printed,) = OWN.glob("results_*.json")
    results = orjson.loads(printed.read_bytes())["results"]
    for metric, tasks in ((None, {"largest": "acc_norm", "say": "exact_match"}), ("acc", {"largest": "acc"})):
        path = OWN if metric is None else next(OWN.glob("samples_largest_*"))
        items = read_results(path, None, metric).items
        for task, name in tasks.items():
            values = [one.mean for one in items if one.suite == f"{task} {name}"]
            assert len(values) == results[task]["sample_len"]
            assert np.mean(values) == pytest.approx(results[task][f"{name},none"])


def test_the_latest_of_two_runs_is_read_and_other_prompts_are_warned_of(tmp_path: Path) -> None:
    for side, prompt, times in (("base", "a", (1, 2)), ("mine", "b", (2,))):
        (tmp_path / side).mkdir()
        for time in times:
            rows = [
                {"doc_id": at, "target": "", "filter": "none", "acc": float(time == 2), "doc_hash": f"{at}0123456789",
                 "prompt_hash": prompt}
                for at in range(3)
            ]  # fmt: skip
            (tmp_path / side / f"samples_t_2026-01-0{time}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert [one.rewards for one in read_results(tmp_path / "base", None).items] == [(1.0,)] * 3
    result = compare(CompareConfig(results=(f"base={tmp_path / 'base'}", f"mine={tmp_path / 'mine'}")))
    assert result.rows[1].change.mean == 0
    assert result.warnings == ("t acc: prompts differs between mine and base",)


@needs_lm_eval
def test_tasks_of_lm_eval(tmp_path: Path, models: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "datasets"))
    monkeypatch.chdir(TASKS)
    settings = config(tmp_path / "run", models, lm_eval=("tiny_general",), include=TASKS, limit=5)
    result = evaluate(settings)
    assert isinstance(result, ForgettingResult)
    suites = {score.suite for score in result.scores}
    assert suites == {"tiny_general acc_norm", "tiny_general exact_match"}
    both = compare(CompareConfig(results=(f"base={tmp_path / 'run'}", f"mine={tmp_path / 'run'}")))
    for row in both.rows:
        (score,) = (one for one in result.scores if (one.suite, one.policy) == (row.suite, row.policy))
        assert (row.general, row.score.mean, row.score.n) == (True, score.rate.success.mean, 5)
        assert (row.gained, row.lost) == (score.rate.gained, score.rate.lost)
    assert (
        main(["evaluate", "--run", str(tmp_path / "run"), "--forgetting.lm-eval", "none", "--policies", str(models[0])])
        == 2
    )
