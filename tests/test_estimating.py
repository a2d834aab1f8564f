"""Plans of profiles: against every pilot that there could have been, and against what the profile then took."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import toy
from fake_openai import FakeServer
from kill_harness import make_desk
from pivotrl.cli import main
from pivotrl.errors import ConfigError
from pivotrl.estimating import MEASURES, Forecast, Sizes, estimated, measures, scaled, usage_by_trajectory
from pivotrl.ingestion import IngestConfig, ingest
from pivotrl.ledger import Ledger, LedgerLine
from pivotrl.piloting import pilot_rows
from pivotrl.policies import OpenAISettings
from pivotrl.policies.torch import TorchPolicy
from pivotrl.profile_settings import ProfileConfig
from pivotrl.profiling import ProfileResult, profile
from pivotrl.reporting import ReportConfig, report
from pivotrl.storage import read_json, read_jsonl
from pivotrl.types import CandidateRow, Rollout, SamplingParams, Usage
from tiny import loaded_model

PLAY = "scripted:desk_plugins:play"


def population(count: int, seed: int) -> tuple[dict[str, Sizes], list[LedgerLine]]:
    """Trajectories, and the ledger of a profile of all of them: what they took follows their sizes, with noise."""
    source = np.random.default_rng(seed)
    sizes, lines = {}, []
    for number in range(count):
        states = np.cumsum(source.integers(20, 400, source.integers(2, 12)))
        sizes[f"t {number}"] = one = Sizes(len(states), int(states.sum()), int(states.max()))
        generated = sum(map(int, source.geometric(0.03, 8 * len(states))))
        usage = Usage(rollouts=8 * len(states), prefilled_tokens=one.longest + 3 * len(states))
        more = Usage(generated_tokens=generated, seconds=float(one.longest * source.lognormal(0, 0.3)))
        lines += [LedgerLine(stage="plan", name="n", unit=f"t {number}", usage=usage)]
        lines += [LedgerLine(stage="plan", name="n", unit=f"t {number} round 1 judged 123", usage=more)]
    return sizes, lines


def test_intervals_hold_the_truth_for_nearly_every_pilot_that_there_could_be() -> None:
    held: dict[str, list[bool]] = {}
    for seed in range(4):
        sizes, lines = population(12, seed)
        took = {key: measures(usage) for key, usage in usage_by_trajectory(lines).items()}
        for pilot in combinations(sizes, 6):
            for name, total in estimated(sizes, {key: took[key] for key in pilot}).items():
                truth = sum(one[name] for one in took.values())
                held.setdefault(name, []).append(total.low - 1e-6 <= truth <= total.high + 1e-6)
    assert held.keys() == {"rollouts", "prefilled_tokens", "generated_tokens", "seconds"}
    assert len(held["seconds"]) == 4 * 924
    assert all(sum(one) / len(one) >= 0.92 for one in held.values()), {name: np.mean(one) for name, one in held.items()}
    assert all(held["rollouts"]), "they are so many per candidate"


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(1, 1e6)), min_size=3, max_size=9), st.integers(0, 50))
def test_the_ratio_estimator_is_the_textbooks(pairs: list[tuple[float, float]], more: int) -> None:
    y, x = np.array(pairs).T
    count, all_of_them = len(pairs), len(pairs) + more
    whole = float(x.sum()) + 1000 * more
    total, half = scaled(y.tolist(), x.tolist(), whole, all_of_them)
    ratio = y.mean() / x.mean()
    variance = (whole / x.mean()) ** 2 * (1 - count / all_of_them) / count * np.var(y - ratio * x, ddof=2)
    quantiles = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306}
    assert total == pytest.approx(whole * ratio)
    assert half == pytest.approx(quantiles[count - 2] * variance**0.5, rel=1e-3, abs=1e-3 * (1 + total))
    if not more:
        assert half == 0, "all was measured"


def test_what_is_the_same_everywhere_is_certain_and_what_was_not_seen_is_left_out() -> None:
    sizes = {str(number): Sizes(number + 1, 10 * number + 7, 3) for number in range(5)}
    took = {
        key: {"rollouts": 4.0 * sizes[key].candidates, "cached_tokens": 9.0 * sizes[key].tokens}
        for key in ("0", "1", "3")
    }
    totals = estimated(sizes, took)
    assert totals.keys() == {"rollouts", "cached_tokens"}
    for name, truth in (("rollouts", 4 * 15), ("cached_tokens", 9 * 135)):
        assert (totals[name].mean, totals[name].low, totals[name].high) == pytest.approx((truth,) * 3)
    text = Forecast(settings="s", trajectories=5, candidates=15, pilot=3, expected=totals).lines()
    assert text[1].split() == ["rollouts", "60"]
    assert "a pilot of 7 of 3," in text[0]
    assert MEASURES["seconds"][0] not in "\n".join(text)


def test_a_pilot_is_of_whole_trajectories() -> None:
    def row(at: int) -> CandidateRow:
        name = f"t{at // 3}"
        return CandidateRow(
            id=f"{name}@{at}", trajectory_id=name, turn=at, depth=0, kind="call", tools=(), split="train", group=name
        )

    rows = [row(at) for at in range(30)]
    some, more, other = (pilot_rows(rows, *which) for which in ((4, 0), (6, 0), (4, 1)))
    assert len(some) == 12
    assert some == [one for one in rows if one in some]
    assert all(one in more for one in some)
    assert some != other
    for most in (2, 10, 11):
        with pytest.raises(ConfigError, match="the profile has 10 trajectories"):
            pilot_rows(rows, most, 0)


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("desk")
    toy.write_episodes(folder / "episodes.jsonl", 36, 0)
    ingest(IngestConfig(paths=(str(folder / "episodes.jsonl"),), run=folder / "run"))
    return folder / "run"


def holds(run: Path, name: str, planned: ProfileResult, *, certain: tuple[str, ...]) -> None:
    """The plan holds what the profile `name` took, the clock aside."""
    took = measures(Ledger(run / "ledger.jsonl").totals()["profile", name])
    parts = [*(run / "profiles" / name / "rollouts").iterdir(), *(run / "profiles" / name).glob("verdicts/*/part-*")]
    took["bytes"] = sum(path.stat().st_size for path in parts)
    assert planned.forecast is not None
    expected = planned.forecast.expected
    assert expected.keys() == {key for key, value in took.items() if value}
    for key, total in expected.items():
        assert total.low is not None
        assert total.high is not None
        if key in certain:
            assert (total.mean, total.low, total.high) == pytest.approx((took[key],) * 3)
        elif key != "seconds":
            assert 0.95 * total.low <= took[key] <= 1.05 * total.high, (key, took[key], total)


def test_a_plan_foretells_a_profile_of_a_model(desk: Path) -> None:
    config = ProfileConfig(
        run=desk, policy="tiny", name="model", rollouts=3, pilot=8, sampling=SamplingParams(max_new_tokens=12)
    )
    policy = TorchPolicy(loaded_model())
    planned = profile(replace(config, plan=True), policy=policy)
    folder = desk / "profiles/model"
    assert {path.name for path in folder.iterdir()} == {"plan.json", "pilots"}
    pilot = (folder / "plan.json").read_bytes(), len([*folder.rglob("part-*")])
    profile(config, policy=policy)
    assert ((folder / "plan.json").read_bytes(), len([*(folder / "pilots").rglob("part-*")])) == pilot
    holds(desk, "model", planned, certain=("rollouts",))
    text = report(ReportConfig(run=desk)).text
    assert "| tokens generated |" in text
    (line,) = [line for line in text.splitlines() if line.startswith("| rollouts |")]
    planned_total, _, actual, ratio = [cell.strip() for cell in line.strip("|").split("|")][1:]
    assert planned_total == actual
    assert ratio == "1.00"


@pytest.mark.parametrize(("budget", "certain"), [("fixed", ("rollouts",)), ("curtailed", ()), ("bayes", ())])
def test_a_plan_foretells_budgets(desk: Path, budget: str, certain: tuple[str, ...]) -> None:
    config = ProfileConfig(run=desk, policy=PLAY, name=budget, rollouts=8, budget=budget)
    planned = profile(replace(config, plan=True))
    result = profile(config)
    holds(desk, budget, planned, certain=certain)
    mine = {one.candidate_id: one for one in result.profiles}
    if budget != "bayes":  # whose candidates share a budget
        assert all(mine[one.candidate_id] == one for one in planned.profiles), "the pilot is a part of the profile"


def test_planning_again_samples_nothing_and_pilots_are_not_mixed(desk: Path) -> None:
    config = ProfileConfig(run=desk, policy=PLAY, name="again", rollouts=4, plan=True)

    def rollouts() -> int:
        return sum(len(list(read_jsonl(path, Rollout))) for path in desk.glob("profiles/again/**/rollouts/part-*"))

    first = profile(config)
    count, bill = rollouts(), Ledger(desk / "ledger.jsonl").lines()
    assert profile(config).forecast == first.forecast
    assert (rollouts(), Ledger(desk / "ledger.jsonl").lines()) == (count, bill)
    other = profile(replace(config, rollouts=2))
    assert rollouts() == 1.5 * count
    assert (other.folder / "excluded.jsonl").is_file()
    assert other.forecast is not None
    assert read_json(desk / "profiles/again/plan.json", Forecast) == other.forecast
    assert other.forecast.expected["rollouts"].mean == 2 * other.forecast.candidates
    with pytest.raises(ConfigError, match="a new profile"):
        profile(replace(config, topup=True))


def test_what_servers_are_paid(desk: Path, tmp_path: Path) -> None:
    with FakeServer() as policy, FakeServer() as judge:
        config = ProfileConfig(
            run=desk,
            name="paid",
            policy=f"openai:m@{policy.url}",
            rollouts=2,
            verifier=f"judge:url={judge.url},model=m,cache={tmp_path},price_in=3,price_out=4",
            openai=OpenAISettings(price_in=1.0, price_out=2.0),
        )
        planned = profile(replace(config, plan=True))
        asked = sum(one.body["n"] for one in policy.asked if not one.is_probe)
        assert asked == 2 * len(planned.profiles), "the pilot alone"
        profile(config)
    totals = Ledger(desk / "ledger.jsonl").totals()
    (pilot,) = [usage for (stage, name), usage in totals.items() if stage == "plan" and name.startswith("paid.")]
    took = totals["profile", "paid"]
    assert planned.forecast is not None
    expected = planned.forecast.expected
    calls = took.judge_calls + pilot.judge_calls  # replies to the pilot's questions are on disk
    assert expected["judge_calls"].low <= calls <= expected["judge_calls"].high
    cost = took.prefilled_tokens + 2 * took.generated_tokens
    cost += calls / took.judge_calls * (3 * took.judge_prompt_tokens + 4 * took.judge_generated_tokens)
    assert expected["cost"].low <= cost / 1e6 <= expected["cost"].high
    assert expected["cost"].low > 0.8 * cost / 1e6
    assert took.prefilled_tokens == pytest.approx(expected["prefilled_tokens"].mean, rel=0.02), "probes aside"


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_desk(tmp_path) / "run"
    command = ["profile", "--run", str(run), "--policy", PLAY, "--rollouts", "2", "--plan", "--pilot", "3"]
    assert main(command) == 0
    out = capsys.readouterr().out
    assert "plan: 24 candidates of" in out
    assert "pilot: " in out
    assert main([*command, "--pilot", "99"]) == 2
    assert "pilot 99: the profile has" in capsys.readouterr().err
    assert json.loads((run / "run.json").read_text())["stages"]["plan/base"]["config"]["pilot"] == 3
