"""`pivotrl demo`: the main job, all of it, on the embedded default. Its output says what a pivot is."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from pivotrl.errors import ConfigError
from pivotrl.evaluation import EvaluateConfig, EvaluationResult, evaluate
from pivotrl.grpo import LossSettings
from pivotrl.ingestion import IngestConfig, IngestResult, ingest
from pivotrl.learners import OptimizerSettings
from pivotrl.ledger import Ledger
from pivotrl.metrics import format_estimate
from pivotrl.pivots import SelectConfig, SelectResult, select
from pivotrl.planning import Scope
from pivotrl.profiling import ProfileConfig, ProfileResult, profile
from pivotrl.reporting import ReportConfig, report
from pivotrl.storage import RunDirectory, hold_to, replace_directory
from pivotrl.training import TrainResult, train
from pivotrl.training_settings import TrainConfig
from pivotrl.types import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoConfig:
    """Run the whole chain on a toy order desk and a tiny model made on the spot: no GPU, no download."""

    run: Path = Path("runs/demo")
    """Run directory; its `input/` holds the episodes and the base model. An interrupted demo goes on where it was."""
    episodes: int = 120
    """Expert episodes, 3 to 5 assistant turns each."""
    rollouts: int = 16
    """K: actions sampled at each profiled state."""
    profiled: int = 200
    """States that are profiled."""
    steps: int = 40
    """Training steps."""
    evaluated: int = 120
    """Held-out states."""
    seed: int = 0
    """Seed of everything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoResult:
    """What the demo found."""

    profile: ProfileResult
    selection: SelectResult
    training: TrainResult
    evaluation: EvaluationResult
    report: Path
    bill: tuple[str, ...]

    def lines(self) -> list[str]:
        before, after = self.evaluation.scores
        change = after.change
        verdict = "no change that the interval can tell from none"
        if change is not None and change.low is not None and change.high is not None:
            verdict = "better" if change.low > 0 else "WORSE" if change.high < 0 else verdict
        return [
            "",
            f"held-out reward before  {format_estimate(before.score)}",
            f"held-out reward after   {format_estimate(after.score)}",
            f"change                  {format_estimate(change) if change else 'unknown'}: {verdict}",
            "",
            *self.bill,
            "",
            f"report  {self.report}",
            f"model   {self.training.model}",
            "your own data: pivotrl ingest FILES --run runs/mine   (see README)",
        ]


def demo(config: DemoConfig) -> DemoResult:
    """Run or resume the demo. Raises ConfigError for settings too small to show anything, and what its stages raise."""
    if config.episodes < 20 or config.profiled < 20 or config.evaluated < 10:
        raise ConfigError("the demo needs at least 20 episodes, 20 profiled and 10 evaluated states")
    base, episodes = _prepare(config)
    sampling = SamplingParams(max_new_tokens=48)
    _say("2/6 ingest", "every assistant turn of an expert episode is a candidate: a state, and what the expert did")
    if not RunDirectory(config.run).manifest.exists():
        _show(ingest(IngestConfig(paths=(str(episodes),), run=config.run, test_fraction=0.25, seed=config.seed)))
    _say(
        "3/6 profile",
        f"the model acts {config.rollouts} times at each state; a verifier rewards acceptable actions with 1",
    )
    profiled = profile(
        ProfileConfig(
            run=config.run,
            policy=str(base),
            rollouts=config.rollouts,
            sampling=sampling,
            scope=Scope(max_candidates=config.profiled),
            seed=config.seed,
        )
    )
    _show(profiled)
    _say("4/6 select", "a pivot is a state where the model is right sometimes: only there do rewards differ and teach")
    selection = select(SelectConfig(run=config.run))
    _show(selection)
    _say("5/6 train", "GRPO on the pivots alone: more of what was rewarded, less of what was not")
    training = train(
        TrainConfig(
            run=config.run,
            steps=config.steps,
            prompts=16,
            optimizer=OptimizerSettings(lr=2e-4),
            loss=LossSettings(beta=0.1),
            seed=config.seed,
        )
    )
    _show(training)
    _say("6/6 evaluate", "states of other tasks, never seen in profile or training, before and after")
    evaluation = evaluate(
        EvaluateConfig(
            run=config.run,
            rollouts=8,
            scope=Scope(max_candidates=config.evaluated),
            seed=config.seed + 1,
        )
    )
    written = report(ReportConfig(run=config.run))
    return DemoResult(
        profile=profiled,
        selection=selection,
        training=training,
        evaluation=evaluation,
        report=written.path,
        bill=_bill(config.run),
    )


def _prepare(config: DemoConfig) -> tuple[Path, Path]:
    """The base model and the expert's episodes, made once per run directory, whole or not at all."""
    from pivotrl.lab import toy, toy_model

    folder = config.run / "input"
    episodes, base = folder / "episodes.jsonl", folder / "base"
    _say("1/6 prepare", "an expert's episodes at an order desk, and a tiny model with bad habits")
    hold_to(folder / "demo.json", {"episodes": config.episodes, "seed": config.seed})
    toy.write_episodes(episodes, config.episodes, config.seed)
    if not base.exists():
        start, making = time.monotonic(), folder / ".base.making"
        replace_directory(toy_model.make_base_model(making, config.seed), base)
        print(f"    base model trained from nothing in {time.monotonic() - start:.0f} s")
    return base, episodes


def _say(stage: str, what: str) -> None:
    print(f"{stage:<13} {what}", flush=True)


def _show(result: IngestResult | ProfileResult | SelectResult | TrainResult) -> None:
    for line in result.lines():
        print(f"    {line}", flush=True)


def _bill(run: Path) -> tuple[str, ...]:
    totals = Ledger(RunDirectory(run).ledger).totals()
    rows = [
        f"{stage:<9} {usage.rollouts:6d} rollouts  {usage.generated_tokens:7d} tokens generated  "
        f"{usage.trained_tokens:8d} trained  {usage.seconds:6.1f} s"
        for (stage, _), usage in totals.items()
        if usage.rollouts or usage.trained_tokens
    ]
    return ("what it cost (profiling included):", *rows)
