"""Evaluation on whole tasks: every number recomputed from the stored episodes, through the library and `--env`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from contextlib import chdir
from dataclasses import replace
from pathlib import Path

import numpy as np
import orjson
import pytest
import scipy.stats

import toy_environment as toy
from kill_harness import RUN, files, make_desk
from pivotrl.cli import main
from pivotrl.errors import ConfigError, MissingError
from pivotrl.evaluation import evaluate, load_evaluation
from pivotrl.evaluation_settings import EvaluateConfig, SamplingChoice
from pivotrl.ledger import Ledger
from pivotrl.models import ModelSettings
from pivotrl.policies import ScriptedPolicy
from pivotrl.profile_settings import ProfileConfig
from pivotrl.profiling import profile
from pivotrl.run_directory import RunDirectory
from pivotrl.task_evaluation import TaskEvaluationResult
from pivotrl.types import SamplingParams, Usage
from tiny import saved_model

STEPS = f"{toy.__file__}:Steps"
SAMPLING = SamplingChoice(max_new_tokens=64)
NEW = ("--sampling.max-new-tokens", "64")


def policies(*scripts) -> dict[str, ScriptedPolicy]:
    return {script.__name__: ScriptedPolicy(script, name=script.__name__) for script in scripts}


def config(run: Path, **settings) -> EvaluateConfig:
    return EvaluateConfig(**({"run": run, "env": (STEPS,), "tasks": (30,), "sampling": SAMPLING} | settings))


def rewards(run: Path, policy: str, name: str = "tasks") -> dict[str, list[float | None]]:
    """By task, from the stored lines."""
    (part,) = (run / "eval" / name / "policies").glob(f"{policy}-*/*/episodes/part-00000.jsonl")
    found: dict[str, list[float | None]] = {}
    for line in part.read_bytes().splitlines():
        row = orjson.loads(line)
        found.setdefault(row["task_id"], []).append(row["reward"])
    return found


def interval(values: list[float], bounds: tuple[float, float]) -> tuple[float, float]:
    """The t interval of independent values."""
    mean, unseen = np.mean(values), scipy.stats.binomtest(0, len(values)).proportion_ci(0.95).high
    low, high = scipy.stats.t.interval(0.95, len(values) - 1, mean, scipy.stats.sem(values))
    if np.isfinite(bounds[1]):
        low, high = min(low, mean - unseen * (mean - bounds[0])), max(high, mean + unseen * (bounds[1] - mean))
    return max(bounds[0], low), min(bounds[1], high)


@pytest.fixture
def result(tmp_path: Path) -> TaskEvaluationResult:
    return evaluate(config(tmp_path / "run"), policies=policies(toy.small, toy.big, toy.expert))


def test_success_change_and_flips_of_known_policies(result: TaskEvaluationResult) -> None:
    """`small` wins where n < 3, `big` where n = 3, the expert everywhere."""
    tasks = toy.Steps().tasks("test", 30, 1)
    three = sum(toy.number(task) == 3 for task in tasks)
    small, big, expert = (score.overall for score in result.scores)
    assert [score.policy for score in result.scores] == ["small", "big", "expert"]
    assert small.success.mean == pytest.approx((30 - three) / 30)
    assert big.success.mean == pytest.approx(three / 30)
    assert (small.change, small.gained, small.lost) == (None, 0, 0)
    assert (big.gained, big.lost) == (three, 30 - three)
    assert (expert.gained, expert.lost) == (three, 0)
    values = [float(toy.number(task) < 3) for task in tasks]
    assert (small.success.low, small.success.high) == pytest.approx(interval(values, (0, 1)), rel=1e-3)
    changes = [1.0 if toy.number(task) == 3 else -1.0 for task in tasks]
    assert big.change.mean == pytest.approx(np.mean(changes))
    assert (big.change.low, big.change.high) == pytest.approx(interval(changes, (-1, 1)), rel=1e-3)
    assert (small.success.n, small.success.clusters) == (30, 30)
    assert (expert.success.mean, expert.success.high) == (1.0, 1.0)
    assert expert.success.low == pytest.approx(scipy.stats.binomtest(30, 30).proportion_ci(0.95).low)


def test_without_tasks_the_environment_says_how_many(tmp_path: Path) -> None:
    env = (STEPS, f"{toy.__file__}:Modest")
    usual = evaluate(config(tmp_path / "usual", env=env[1:], tasks=()), policies=policies(toy.expert))
    assert list(usual.tasks.values()) == [3]
    with pytest.raises(ConfigError, match="200 test tasks were asked for"):
        evaluate(config(tmp_path / "many", env=env[:1], tasks=()), policies=policies(toy.expert))
    same = evaluate(config(tmp_path / "same", env=env, tasks=(4,)), policies=policies(toy.expert))
    assert list(same.tasks.values()) == [4, 4]


def test_kinds_turns_and_what_lost(result: TaskEvaluationResult) -> None:
    tasks = toy.Steps().tasks("test", 30, 1)
    numbers = Counter(map(toy.number, tasks))
    small, big, expert = result.scores
    for score, right in ((small, (1, 2)), (big, (3,)), (expert, (1, 2, 3))):
        assert list(score.by_kind) == ["1 calls", "2 calls", "3 calls"]
        for n in (1, 2, 3):
            kind = score.by_kind[f"{n} calls"]
            assert (kind.success.mean, kind.success.n) == (float(n in right), numbers[n])
            change = float(n in right) - float(n < 3)
            assert score is small or kind.change.mean == change
            assert (kind.gained, kind.lost) == ((change > 0) * numbers[n], (change < 0) * numbers[n])
    turns = [toy.number(task) + 1 for task in tasks]
    assert expert.turns.mean == pytest.approx(np.mean(turns))
    assert (expert.turns.low, expert.turns.high) == pytest.approx(interval(turns, (0, np.inf)), rel=1e-3)
    assert big.first_wrong == {"message instead of add": numbers[1] + numbers[2]}
    assert small.first_wrong == {"take instead of add": numbers[3]}
    assert expert.first_wrong == {}
    assert expert.endings == {"done": 30}


def test_several_trials_are_one_value_per_task(tmp_path: Path) -> None:
    run = tmp_path / "run"
    settings = config(run, episodes=replace(config(run).episodes, trials=5, width=7))
    first, coin = evaluate(settings, policies=policies(toy.small, toy.coin)).scores
    means = {name: {task: np.mean(got) for task, got in rewards(run, name).items()} for name in ("small", "coin")}
    values = list(means["coin"].values())
    assert len(values) == 30
    assert coin.overall.success.mean == pytest.approx(np.mean(values))
    assert 0.1 < np.mean(values) < 0.9
    assert coin.overall.success.low == pytest.approx(interval(values, (0, 1))[0], rel=1e-3)
    changes = [means["coin"][task] - means["small"][task] for task in means["small"]]
    assert coin.overall.change.high == pytest.approx(interval(changes, (-1, 1))[1], rel=1e-3)
    assert (coin.overall.gained, coin.overall.lost) == (sum(x > 0 for x in changes), sum(x < 0 for x in changes))
    assert coin.truncated > 0 < coin.unparsable
    assert first.turns.n == 150
    failed = sum(reward == 0 for got in rewards(run, "coin").values() for reward in got)
    assert sum(coin.first_wrong.values()) == failed
    assert list(coin.first_wrong.values()) == sorted(coin.first_wrong.values(), reverse=True)


def test_unscored_episodes_are_left_out_and_counted(tmp_path: Path) -> None:
    def flaky(state, rng):
        return toy.mute(state, rng) if toy.asked(state) == 2 else toy.small(state, rng)

    first, second = evaluate(config(tmp_path / "run"), policies=policies(flaky, toy.expert)).scores
    numbers = Counter(map(toy.number, toy.Steps().tasks("test", 30, 1)))
    assert first.unscored == numbers[2]
    assert first.endings["failed_call"] == numbers[2]
    assert first.overall.success.n == 30 - numbers[2]
    assert first.overall.success.mean == pytest.approx(numbers[1] / (numbers[1] + numbers[3]))
    assert list(first.by_kind) == ["1 calls", "3 calls"]
    assert (second.overall.change.n, second.overall.gained) == (30 - numbers[2], numbers[3])
    assert second.by_kind["2 calls"].change is None
    with pytest.raises(MissingError, match=r"mute in .*: no episode was scored.*the line is dead"):
        evaluate(config(tmp_path / "run", name="mute"), policies=policies(toy.mute))


def test_an_environment_without_an_expert_names_no_wrong_actions(tmp_path: Path) -> None:
    settings = config(tmp_path / "run", env=(f"{toy.__file__}:Unguided",))
    (score,) = evaluate(settings, policies=policies(toy.small)).scores
    assert score.first_wrong is None
    guided = config(tmp_path / "guided", explained=0)
    assert {one.first_wrong for one in evaluate(guided, policies=policies(toy.small)).scores} == {None}
    assert main(["report", "--run", str(tmp_path / "run")]) == 0
    assert "irst wrong action" not in (tmp_path / "run" / "report.md").read_text()


def test_the_report_says_in_how_many_episodes_the_first_wrong_action_was_looked_for(tmp_path: Path) -> None:
    run = tmp_path / "run"
    for most in (None, 0, 3):
        scores = evaluate(config(run, name=f"to{most}", explained=most), policies=policies(toy.small)).scores
        assert most is None or sum((scores[0].first_wrong or {}).values()) == most
    assert main(["report", "--run", str(run)]) == 0
    text = (run / "report.md").read_text()
    assert text.count("first wrong action of the failed episodes, the 8 most frequent") == 1
    assert text.count("first wrong action of the first 3 failed episodes (--explained), the 8 most frequent") == 1
    assert text.count("First wrong actions were not looked for (`--explained 0`).") == 1


def test_same_seed_same_bytes_also_when_resumed(tmp_path: Path) -> None:
    class Stopped(ScriptedPolicy):
        calls = 9

        def sample(self, states, **settings):
            self.calls -= 1
            if self.calls < 0:
                raise KeyboardInterrupt
            return super().sample(states, **settings)

    def settings(name: str) -> EvaluateConfig:
        plain = config(tmp_path / name / "run", env=(STEPS, "desk"), tasks=(12, 5))
        return replace(plain, episodes=replace(plain.episodes, width=5))

    calm = evaluate(settings("calm"), policies=policies(toy.coin, toy.expert))
    with pytest.raises(KeyboardInterrupt):
        evaluate(settings("one"), policies={"coin": Stopped(toy.coin, name="coin")})
    assert load_evaluation(RunDirectory(tmp_path / "one/run"), "tasks") is None
    assert evaluate(settings("one"), policies=policies(toy.coin, toy.expert)) == calm
    compared = [files(tmp_path / name / "run/eval") for name in ("calm", "one")]
    assert compared[0] == compared[1]
    assert len(compared[0]) >= 9
    assert load_evaluation(RunDirectory(tmp_path / "calm/run"), "tasks") == calm
    other = replace(settings("other"), seed=2)
    assert evaluate(other, policies=policies(toy.coin)).scores[0] != calm.scores[0]


def test_begun_work_is_held_to_its_plan(tmp_path: Path) -> None:
    settings = config(tmp_path / "run")
    evaluate(settings, policies=policies(toy.coin))
    longer = replace(settings.episodes, turn_limit=3)
    for changed, says in (
        ({"tasks": (20,)}, "tasks: 30 before, 20 now"),
        ({"seed": 2}, "seed: 1 before, 2 now"),
        ({"split": "train"}, "task_ids"),
        ({"episodes": longer}, r"episodes\.turn_limit"),
        ({"sampling": replace(SAMPLING, temperature=0.5)}, r"sampling\.temperature"),
    ):
        with pytest.raises(ConfigError, match=says):
            evaluate(replace(settings, **changed), policies=policies(toy.coin))
    with pytest.raises(ConfigError, match=r"other settings \(policy"):
        evaluate(settings, policies={"coin": ScriptedPolicy(toy.coin, name="other")})


def test_an_edited_environment_is_another_one(tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_bytes(Path(toy.__file__).read_bytes())
    settings = config(tmp_path / "run", env=(f"{mine}:Steps",))
    evaluate(settings, policies=policies(toy.coin))
    mine.write_text(mine.read_text().replace("TURNS = 8", "TURNS = 5"))
    with pytest.raises(ConfigError, match="the environment's source was edited"):
        evaluate(settings, policies=policies(toy.coin))


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., str]:
    """Runs `evaluate` in a folder without a run; it must fail in one line and write nothing. Gives the line."""

    def call(*arguments: str) -> str:
        with chdir(tmp_path):
            assert main(["evaluate", "--run", RUN, *arguments]) == 2
        captured = capsys.readouterr()
        assert captured.err.startswith("error: ")
        assert captured.err.count("\n") == 1, captured.err
        assert list(tmp_path.iterdir()) == []
        return captured.err

    return call


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--explained", "-1"), ["explained -1: must be 0 or more"]),
        (("--tasks", "0"), ["tasks 0: must be at least 1"]),
        (("--tasks", "5", "-1", "--env", STEPS, "desk"), ["tasks -1: must be at least 1"]),
        (("--tasks", "5", "6", "7", "--env", STEPS, "desk"), ["3 numbers for 2 environments"]),
        (("--tasks", "41"), ["41 test tasks were asked for, there are 40"]),
        (("--env", f"{toy.__file__}:Few"), ["3 tasks where 200 are wanted"]),
        (("--env", "nowhere"), ["'nowhere' is unknown", "desk, desk-long, desk-short, shell, skills"]),
        (("--env", STEPS, STEPS), ["every environment once"]),
        (("--episodes.trials", "0"), ["episodes.trials 0: must be at least 1"]),
        (("--rollouts", "8"), ["rollouts: only for candidates", "--episodes.trials"]),
        (("--verifier", "exact"), ["verifier: only for candidates; leave it out with --env"]),
        (("--scope.max-candidates", "8"), ["scope: only for candidates"]),
        (("--name", "a/b"), ["'a/b'"]),
        (("--profile", "typo"), ["profiles/typo is not there"]),
        (("--sampling.temperature", "-1"), ["temperature -1"]),
    ],
)
def test_bad_settings(refused: Callable[..., str], arguments: tuple[str, ...], says: list[str]) -> None:
    env = () if "--env" in arguments else ("--env", STEPS)
    line = refused("--policies", "x=scripted:toy_environment:coin", *env, *arguments)
    assert all(word in line for word in says), line


def test_settings_of_tasks_need_an_environment(refused: Callable[..., str]) -> None:
    assert "tasks: only for tasks; give --env" in refused("--tasks", "10")
    assert "episodes: only for tasks; give --env" in refused("--episodes.width", "10")
    assert "no profile and no trained model to evaluate; name them with --policies" in refused("--env", "desk")


def test_the_command_in_a_new_run_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "new" / "run"
    scripts = [f"{name}=scripted:toy_environment:{name}" for name in ("small", "expert")]
    command = [
        "evaluate",
        "--run",
        str(run),
        "--env",
        STEPS,
        "skills",
        "--tasks",
        "40",
        "16",
        "--policies",
        *scripts,
        *NEW,
    ]
    assert main(command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(" held-out")[0] for line in lines if "held-out" in line] == [f"{STEPS}: 40", "skills: 16"]
    three = sum(toy.number(task) == 3 for task in toy.Steps().tasks("test", 40, 1))
    assert f"    change {three / 40:.3f}" in lines[3]
    assert lines[3].endswith(f"; {three} tasks gained, 0 lost")
    document = json.loads((run / "eval/tasks/tasks.json").read_text())
    assert [(score["environment"], score["policy"]) for score in document["scores"]] == [
        (env, name) for env in (STEPS, "skills") for name in ("small", "expert")
    ]
    facts = RunDirectory(run).stages()["evaluate/tasks"]
    assert set(facts["environments"]) == {STEPS, "skills"}
    totals = Ledger(run / "ledger.jsonl").totals()
    turns = sum(len(orjson.loads(line)["completions"]) for part in (run / "eval").rglob("part-*") for line in
                part.read_bytes().splitlines())  # fmt: skip
    assert sum(totals.values(), Usage()).turns == turns
    assert sum(totals.values(), Usage()).rollouts == 112
    assert main(["report", "--run", str(run)]) == 0
    report = (run / "report.md").read_text()
    for text in ("16 test tasks of `skills`", "| take instead of add | ", "| 3 calls | expert | 1.000", "gained, lost"):
        assert text in report
    assert f"| {three}, 0 |" in report


def test_both_kinds_in_one_run(tmp_path: Path) -> None:
    """The profile of a run gives tasks the same defaults as candidates; the names do not collide, and hold one kind."""
    folder = make_desk(tmp_path / "desk")
    run = folder / RUN
    model = saved_model(tmp_path / "model")
    sampling = SamplingParams(max_new_tokens=24, temperature=0.7)
    scope = ProfileConfig(run=run, policy="").scope
    profile(
        ProfileConfig(
            run=run,
            policy=str(model),
            rollouts=2,
            sampling=sampling,
            scope=replace(scope, max_candidates=3),
            model=ModelSettings(dtype="float32"),
        )
    )
    assert main(["evaluate", "--run", str(run), "--rollouts", "1", "--scope.max-candidates", "3"]) == 0
    assert main(["evaluate", "--run", str(run), "--env", STEPS, "--tasks", "3"]) == 0
    stages = RunDirectory(run).stages()
    assert stages["evaluate/tasks"]["sampling"] == stages["evaluate/heldout"]["sampling"]
    assert stages["evaluate/tasks"]["sampling"]["temperature"] == 0.7
    assert stages["evaluate/tasks"]["fingerprints"] == stages["evaluate/heldout"]["fingerprints"]
    assert list(stages["evaluate/tasks"]["fingerprints"]) == ["base"]
    for name, env in (("tasks", ()), ("heldout", (STEPS,))):
        with pytest.raises(ConfigError, match="evaluation of another kind; use another --name"):
            evaluate(EvaluateConfig(run=run, name=name, env=env))
    assert main(["report", "--run", str(run)]) == 0
    report = (run / "report.md").read_text()
    assert "Evaluation `heldout`: 3 test candidates, 1 action each" in report
    assert "Evaluation `tasks`: 3 test tasks of" in report
    (run / "eval/tasks/tasks.json").unlink()
    assert main(["report", "--run", str(run)]) == 0
    assert "The evaluation `tasks` is in the manifest, but its files are gone" in (run / "report.md").read_text()
