"""One cell of a grid: made, trained, measured; what it found is one JSON file.

Episodes, candidates and profile are made once for all cells that share them, and copied: a cell's run directory is its
own, so that any number of processes work side by side. Every stage resumes, and so does a cell.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from pivotrl.candidates import CandidateStore
from pivotrl.curves import StepMetrics
from pivotrl.errors import ConfigError, MissingError
from pivotrl.evaluation_settings import EvaluateConfig, ForgettingSettings, SamplingChoice
from pivotrl.forgetting import evaluate_forgetting
from pivotrl.grpo import LossSettings
from pivotrl.ingestion import IngestConfig, ingest
from pivotrl.lab.demonstration import LONGEST_ACTION
from pivotrl.lab.grids import TEMPERATURES, Cell
from pivotrl.lab.setups import TREES, setup_of
from pivotrl.lab.shipped import shipped_base
from pivotrl.lab.verifier_error import JudgedAction, VerifierErrorConfig, verifier_error
from pivotrl.learners import OptimizerSettings
from pivotrl.ledger import Ledger, by_stage
from pivotrl.pivots import SelectConfig, select
from pivotrl.planning import Scope
from pivotrl.profile_settings import ProfileConfig, RescoreConfig
from pivotrl.profiling import profile, profiled, rescore
from pivotrl.run_directory import RunDirectory
from pivotrl.storage import FileLock, content_hash, dump_json, read_json, read_jsonl, replace_directory, write_json
from pivotrl.task_evaluation import evaluate_tasks
from pivotrl.training import train
from pivotrl.training_result import TrainResult
from pivotrl.training_settings import TrainConfig
from pivotrl.types import Estimate, SamplingParams, Usage

TRUTH_TASKS: Final = 60
_DIGITS: Final = 6
"""Of every number that is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileFacts:
    """What a profile shows before anything is trained."""

    states: int
    mixed: int
    """States whose rewards differ."""
    right: int
    wrong: int
    samples: int
    accepted: int
    """By the profile's verifier."""
    refused: int
    """Of the accepted ones by exact equality (Eq. 2)."""
    usage: Usage

    @property
    def flat(self) -> int:
        """States without signal."""
        return self.states - self.mixed


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Success in one environment at one temperature."""

    environment: str
    temperature: str
    success: Estimate
    """The interval is over tasks."""
    turns: float
    """Per episode."""
    kinds: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A policy after so many steps."""

    steps: int
    scores: tuple[Score, ...]
    training: Usage
    """Up to here, a second profile included, the first not."""
    perplexity: Estimate | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CellResult:
    """What one cell found."""

    cell: Cell
    points: tuple[Point, ...]
    profile: ProfileFacts | None = None
    candidates: int = 0
    """That were trained on."""
    stds: tuple[float | None, ...] = ()
    """Mean within-group standard deviation of the rewards, step by step."""
    groups: tuple[int, int, int, int] = (0, 0, 0, 0)
    """Of all steps: mixed, all right, all wrong, unscored."""
    truth: tuple[int, int, int] | None = None
    """Distinct sampled actions that are not the demonstration; those that lead to success; those of these accepted."""
    failed: str = ""
    """Why there is no training: no pivot was left, or it diverged."""
    cpu_seconds: float = 0.0
    wall_seconds: float = 0.0
    """Of the call that finished it."""

    def score(self, environment: str, temperature: str) -> float | None:
        """Success of the last point; None where it was not measured."""
        found = (one for point in self.points[-1:] for one in point.scores)
        means = [one.success.mean for one in found if (one.environment, one.temperature) == (environment, temperature)]
        return means[0] if means else None


def run_cell(cell: Cell, root: Path) -> CellResult:
    """Run or resume a cell in `root`. Raises a PivotRLError; BusyError where another process is at it."""
    clock, wall = time.process_time(), time.monotonic()
    folder = root / "cells" / cell.key
    with FileLock(folder.with_suffix(".lock")):
        if result_path(cell, root).exists():
            return read_json(result_path(cell, root), CellResult)
        result = _Cell(cell, root, folder).measured()
        cpu, passed = time.process_time() - clock, time.monotonic() - wall
        result = replace(result, cpu_seconds=round(cpu, 1), wall_seconds=round(passed, 1))
        short = json.loads(dump_json(result), parse_float=lambda text: float(f"{float(text):.{_DIGITS}g}"))
        write_json(result_path(cell, root), short)
        shutil.rmtree(folder, ignore_errors=True)
    return result


def result_path(cell: Cell, root: Path) -> Path:
    return root / "results" / f"{cell.key}.json"


class _Cell:
    """One cell at work in a run directory of its own."""

    def __init__(self, cell: Cell, root: Path, folder: Path) -> None:
        self.cell, self.root, self.run = cell, root, folder
        self.setup = setup_of(cell.domain)
        self.base = cell.base or str(shipped_base(self.setup.base))
        self.verifier = cell.verifier or self.setup.verifier
        self.facts: ProfileFacts | None = None

    def measured(self) -> CellResult:
        if self.cell.method == "truth":
            return CellResult(cell=self.cell, points=(), truth=self._truth())
        if self.cell.method == "base":
            return CellResult(cell=self.cell, points=(self._point(0, self.base, last=True),))
        if self.cell.method != "e2e":
            self.facts = self._prepare()
        try:
            return self._trained()
        except (ConfigError, MissingError) as error:
            if not _is_result(error):
                raise
            return CellResult(cell=self.cell, points=(), profile=self.facts, failed=str(error))

    def _truth(self) -> tuple[int, int, int]:
        cell, path = self.cell, self.run / "judged.jsonl"
        config = VerifierErrorConfig(
            policy=self.base, verifier=self.verifier, tasks=TRUTH_TASKS, split=cell.split, seed=cell.seed + 1, out=path
        )
        verifier_error(config)
        verdicts = [(one.succeeded, one.accepted) for one in read_jsonl(path, JudgedAction)]
        return len(verdicts), sum(right for right, _ in verdicts), verdicts.count((True, True))

    def _prepare(self) -> ProfileFacts | None:
        """Copy what is shared, when it is made."""
        cell, sizes = self.cell, self.cell.sizes
        shared: dict[str, Any] = {"domain": cell.domain, "seed": cell.seed, "episodes": sizes.episodes}
        if cell.profiles:
            shared |= {"base": cell.base, "verifier": cell.verifier, "states": sizes.profiled, "k": sizes.rollouts}
        source = self.root / "shared" / content_hash(shared)
        self.verifier = self.verifier.replace(TREES, str(source / "input" / "trees"))
        facts = source / "facts.json"
        with FileLock(source.with_suffix(".lock"), wait=3600.0):
            if not facts.exists():
                write_json(facts, self._make(source))
        if not RunDirectory(self.run).manifest.exists():
            copy = self.run.with_suffix(".copy")
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(source, copy)
            replace_directory(copy, self.run)
        return read_json(facts, ProfileFacts) if cell.profiles else None

    def _make(self, run: Path) -> ProfileFacts | None:
        cell, episodes = self.cell, run / "input" / "episodes.jsonl"
        if not RunDirectory(run).manifest.exists():
            self.setup.write_episodes(episodes, cell.sizes.episodes, cell.seed)
            ingest(IngestConfig(paths=(str(episodes),), run=run, seed=cell.seed))
        if not cell.profiles:
            return None
        scope = Scope(max_candidates=cell.sizes.profiled)
        found = profile(self._profiling(run=run, policy=self.base, scope=scope)).profiles
        rescore(RescoreConfig(run=run, verifier="exact"))
        pairs = [
            (value, strict)
            for one, other in zip(profiled(run), profiled(run, verifier="exact"), strict=True)
            for value, strict in zip(one.group.rewards, other.group.rewards, strict=True)
        ]
        flat = [one.mean for one in found if one.variance == 0]
        return ProfileFacts(
            states=len(found),
            mixed=sum(one.variance is not None and one.variance > 0 for one in found),
            right=flat.count(1.0),
            wrong=flat.count(0.0),
            samples=len(pairs),
            accepted=sum(value == 1 for value, _ in pairs),
            refused=sum(value == 1 and strict != 1 for value, strict in pairs),
            usage=by_stage(Ledger(run / "ledger.jsonl").totals())["profile"],
        )

    def _trained(self) -> CellResult:
        cell, run = self.cell, RunDirectory(self.run)
        if cell.profiles and not run.pivots("base").exists():
            self._select("base")
        steps = list(cell.steps) or [self._epochs()]
        halves, first = ["cell"], 0
        if cell.again:
            halves, first = ["first", "cell"], max(1, steps[-1] // 2)
            self._train("first", first)
            self._profile_again()
        points = [self._reached(step, first, last=step == steps[-1]) for step in steps]
        metrics = [one for half in halves for one in read_jsonl(run.train(half) / "metrics.jsonl", StepMetrics)]
        counts = [[one.groups_mixed, one.groups_right, one.groups_wrong, one.groups_unscored] for one in metrics]
        mixed, right, wrong, unscored = map(sum, zip(*counts, strict=True))
        return CellResult(
            cell=cell,
            points=tuple(points),
            profile=self.facts,
            candidates=self._train("cell", max(1, steps[-1] - first)).candidates,
            stds=tuple(one.reward_std for one in metrics),
            groups=(mixed, right, wrong, unscored),
        )

    def _reached(self, step: int, first: int, *, last: bool) -> Point:
        """The policy after a step, `first` of them before it was profiled again."""
        path = self.run / "points" / f"{step:06d}.json"
        if not path.exists():
            model = self._train("cell", max(1, step - first)).model
            write_json(path, self._point(step, str(model), last=last))
        return read_json(path, Point)

    def _epochs(self) -> int:
        """Steps of so many passes over the train split's turns."""
        turns = len(CandidateStore(RunDirectory(self.run)).rows("train"))
        return max(1, math.ceil(self.cell.setting.epochs * turns / self.cell.prompts))

    def _select(self, name: str) -> None:
        rule: Any = self.cell.rule
        select(SelectConfig(run=self.run, profile=name, name=name, rule=rule, lambda_diff=self.cell.lambda_diff))

    def _profiling(self, **asked: Any) -> ProfileConfig:
        sampling = SamplingParams(max_new_tokens=LONGEST_ACTION)
        sizes, seed = self.cell.sizes, self.cell.seed
        return ProfileConfig(verifier=self.verifier, rollouts=sizes.rollouts, sampling=sampling, seed=seed, **asked)

    def _profile_again(self) -> None:
        if not RunDirectory(self.run).pivots("again").exists():
            profile(self._profiling(run=self.run, name="again", again="base", policy="train/first"))
            self._select("again")

    def _train(self, name: str, steps: int) -> TrainResult:
        cell = self.cell
        if cell.method == "e2e":
            asked: dict[str, Any] = {"env": cell.domain, "policy": self.base, "max_new_tokens": LONGEST_ACTION}
        else:
            asked = {"data": cell.data, "cap_per_trajectory": None}
            asked |= {} if cell.profiles else {"policy": self.base, "verifier": self.verifier}
        if cell.again and name == "cell":
            asked |= {"pivots": "again"}
        method: Any = cell.method
        return train(
            TrainConfig(
                run=self.run,
                method=method,
                name=name,
                steps=steps,
                prompts=cell.prompts,
                group_size=cell.group,
                optimizer=OptimizerSettings(lr=cell.setting.lr),
                loss=LossSettings(beta=cell.setting.beta),
                seed=cell.seed,
                **asked,
            )
        )

    def _point(self, steps: int, policy: str, *, last: bool) -> Point:
        cell, policies = self.cell, (f"policy={policy}",)
        spent = Ledger(self.run / "ledger.jsonl").totals()
        training = by_stage(spent).get("train", Usage()) + spent.get(("profile", "again"), Usage())
        played = {cell.domain: cell.sizes.tasks}
        if last and cell.sizes.skills:
            played["skills"] = cell.sizes.skills
        scores = [
            score
            for temperature in (cell.temperatures if last else ("sampled",))
            for score in self._scores(f"{steps}-{temperature}", policies, temperature, played)
        ]
        read: Estimate | None = None
        if last and cell.text:
            text = ForgettingSettings(text=cell.text)
            config = EvaluateConfig(run=self.run, name=f"{steps}-text", policies=policies, forgetting=text)
            read = evaluate_forgetting(config).scores[0].rate.success
        return Point(steps=steps, scores=tuple(scores), training=training, perplexity=read)

    def _scores(self, name: str, policies: tuple[str], temperature: str, played: Mapping[str, int]) -> Iterator[Score]:
        """Of one policy at one temperature; `played` are tasks by environment."""
        result = evaluate_tasks(
            EvaluateConfig(
                run=self.run,
                name=name,
                policies=policies,
                env=tuple(played),
                tasks=tuple(played.values()),
                explained=0,
                split=self.cell.split,
                sampling=SamplingChoice(temperature=TEMPERATURES[temperature], max_new_tokens=LONGEST_ACTION),
                seed=self.cell.seed + 1,
            )
        )
        for one in result.scores:
            yield Score(
                environment=one.environment,
                temperature=temperature,
                success=one.overall.success,
                turns=one.turns.mean,
                kinds={kind: rate.success.mean for kind, rate in one.by_kind.items()},
            )


def _is_result(error: Exception) -> bool:
    """Whether an error is what a cell found, not a mistake of whoever runs it."""
    return any(text in str(error) for text in ("diverged", "no pivots are left", "no candidate is left"))
