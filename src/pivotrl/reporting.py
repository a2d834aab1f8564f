"""The report of a run in Markdown: what was read, where the policy stood, what training did, what it all cost."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pivotrl.curves import CAUSES, StepMetrics
from pivotrl.errors import ConfigError
from pivotrl.estimating import MEASURES, Forecast, in_words, measures, number
from pivotrl.evaluation import EvaluationResult, load_evaluation
from pivotrl.ledger import Ledger, timed
from pivotrl.markdown import table
from pivotrl.metrics import format_estimate, known_mean
from pivotrl.model_card import write_model_card
from pivotrl.pivots import FUNNEL
from pivotrl.profile_settings import STABILITY_FILE, ProfilePlan, load_plan, summary_path
from pivotrl.stability import Stability
from pivotrl.storage import AnyPath, RunDirectory, file_hash, read_json, read_jsonl, write_atomic
from pivotrl.task_evaluation import SuccessRate, TaskEvaluationResult, TaskScore
from pivotrl.types import Profile, Usage

TOP: Final = 8
"""First wrong actions that are shown of each policy."""
REASONS: Final = 10
"""Reasons that are shown of each profile."""
BROKEN: Final = ("unscored", "truncated", "unparsable")
"""Counted each in a column of its own: a failure of the verifier, of the length, of the syntax."""
_HASH: Final = re.compile(r"[ .][0-9a-f]{16}$")
_RATE: Final = ("success", "change", "tasks gained, lost")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportConfig:
    """Write `report.md` in the run directory: every finished stage in tables."""

    run: AnyPath
    """Run directory."""
    curve_points: int = 12
    """Rows of each training curve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportResult:
    """Where the report is."""

    path: Path
    text: str

    def lines(self) -> list[str]:
        return [f"report: {self.path}"]


def report(config: ReportConfig) -> ReportResult:
    """Write the report. Raises MissingError for a folder that is no run."""
    if config.curve_points < 2:
        raise ConfigError(f"curve-points {config.curve_points}: must be at least 2")
    run = RunDirectory(config.run)
    stages = run.stages()
    ledger = Ledger(run.ledger)
    path = run.path / "report.md"
    for name, _ in _named(stages, "train"):
        if (run.train(name) / "model").is_dir():
            write_model_card(run, name)
    with timed(ledger, "report", "report"):
        sections = [f"# PivotRL run `{run.path.name}`", *_doubtful(run, stages), *_ingest(stages)]
        sections += [*_profiles(run, stages, ledger), *_selections(run, stages)]
        sections += [*_trainings(run, stages, config.curve_points), *_evaluations(run, stages), *_bill(ledger)]
        text = "\n\n".join(sections) + "\n"
        write_atomic(path, text.encode())
    return ReportResult(path=path, text=text)


def _named(stages: dict[str, Any], stage: str) -> list[tuple[str, Any]]:
    return [(key.partition("/")[2], facts) for key, facts in stages.items() if key.startswith(f"{stage}/")]


def _doubtful(run: RunDirectory, stages: dict[str, Any]) -> list[str]:
    """A line for every stage whose inputs are not what they were, and for every one that was begun and not finished."""
    lines = []
    for key, facts in stages.items():
        inputs = facts.get("inputs", {})
        changed = (
            [name for name in inputs if not _is_same(run.path / name, inputs[name])] if key[:7] != "ingest/" else []
        )
        if changed:
            lines.append(f"- {key} is stale: {', '.join(changed)} changed since. Run it again.")
    for stage, begun in (("profile", "profiles/*/profile.json"), ("train", "train/*/config.json")):
        names = [path.parent.name for path in sorted(run.path.glob(begun))]
        lines += [f"- {stage}/{one} is unfinished. Run it again." for one in names if f"{stage}/{one}" not in stages]
    return ["\n".join(lines)] if lines else []


def _is_same(path: Path, before: str) -> bool:
    return path.is_file() and file_hash(path) == before


def _ingest(stages: dict[str, Any]) -> list[str]:
    sections: list[str] = []
    for _, facts in _named(stages, "ingest"):
        counts = facts.get("counts", {})
        rows = [(key.replace("_", " "), value) for key, value in counts.items() if isinstance(value, int)]
        rows += [
            (f"{key.replace('_', ' ')}: {name}", value)
            for key, values in counts.items()
            if isinstance(values, dict)
            for name, value in values.items()
        ]
        sections += ["## What was read", table(["", "count"], rows)]
    return sections


def _profiles(run: RunDirectory, stages: dict[str, Any], ledger: Ledger) -> list[str]:
    sections: list[str] = []
    totals = ledger.totals()
    rescored = [facts["config"] for _, facts in _named(stages, "rescore")]
    for name, facts in _named(stages, "profile"):
        summary = summary_path(run, name, facts["verifier"]["id"])
        if not summary.exists():
            sections.append(_gone("profile", name))
            continue
        plan = load_plan(run, name)
        profiles = list(read_jsonl(summary, Profile))
        known = [profile for profile in profiles if profile.variance is not None]
        flat = sum(profile.variance == 0 for profile in known)
        first = "" if plan.budget == "fixed" or facts.get("mean") is None else " of the first round"
        mean = facts["mean"] if first else known_mean(one.mean for one in profiles)
        rows = [
            ("policy", plan.policy),
            ("verifier", plan.verifier),
            ("rescored by", ", ".join(one["verifier"] for one in rescored if one["name"] == name) or "none"),
            ("rollouts per candidate", plan.rollouts if plan.budget == "fixed" else _spent(profiles, plan)),
            ("candidates", len(profiles)),
            ("mean reward" + first, mean if known else "no rollout was scored"),
            ("zero variance", f"{flat} of {len(known)} ({flat / len(known):.0%})" if known else ""),
            *((f"rollouts {kind}", sum(getattr(one, kind) for one in profiles)) for kind in BROKEN),
            *([("follows profile", plan.follows)] if plan.follows else []),
        ]
        sections += [f"## Profile `{name}`", table(["", ""], rows)]
        if reasons := list(facts.get("reasons", {}).items())[:REASONS]:
            sections.append(table(["less than full reward: reason", "rollouts"], reasons))
        sections += _planned(run, name, plan, totals.get(("profile", name), Usage()))
        twice = run.profile(name) / STABILITY_FILE
        sections += ["\n".join(f"- {line}" for line in read_json(twice, Stability).lines())] if twice.exists() else []
    return sections


def _planned(run: RunDirectory, name: str, plan: ProfilePlan, usage: Usage) -> list[str]:
    """What `profile --plan` foretold beside what the profile took."""
    path = run.profile(name) / "plan.json"
    if not path.exists():
        return []
    forecast, took = read_json(path, Forecast), measures(usage)
    if forecast.settings != plan.settings:
        return ["*The plan of this profile was for other settings.*"]
    rows = [
        (MEASURES[key][0], *in_words(key, one), number(key, took[key]), f"{took[key] / one.mean:.2f}")
        for key, one in forecast.expected.items()
        if key in took
    ]
    return [table(["planned", "total", "95% interval", "actual", "ratio"], rows)]


def _spent(profiles: Sequence[Profile], plan: ProfilePlan) -> str:
    stopped = sum(profile.stopped_early for profile in profiles)
    return f"{plan.rollouts}, budget {plan.budget}" + (f"; {stopped} stopped early" if stopped else "")


def _gone(stage: str, name: str) -> str:
    return f"*The {stage} `{name}` is in the manifest, but its files are gone.*"


def _selections(run: RunDirectory, stages: dict[str, Any]) -> list[str]:
    sections: list[str] = []
    for name, facts in _named(stages, "select"):
        counts = facts["counts"]
        total = max(sum(counts.values()), 1)
        rows = [
            (key.replace("_", " "), counts[key], f"{counts[key] / total:.0%}", text)
            for key, text in FUNNEL.items()
            if counts.get(key)
        ]
        title = f"## Selection `{name}` (lambda_diff {facts['config']['lambda_diff']})"
        sections += [title, table(["fate", "candidates", "share", "meaning"], rows)]
        if facts.get("alike"):
            sections.append(f"{facts['alike']} pivots are near-duplicates of another.")
        if (picture := run.pivots(name).with_suffix(".svg")).exists():
            sections.append(f"![funnel and mean rewards](pivots/{picture.name})")
        if facts.get("moves"):
            sections.append(table([f"since profile `{facts['follows']}`", "candidates"], facts["moves"].items()))
    return sections


def _trainings(run: RunDirectory, stages: dict[str, Any], points: int) -> list[str]:
    sections: list[str] = []
    for name, facts in _named(stages, "train"):
        path = run.train(name) / "metrics.jsonl"
        if not path.exists():
            sections.append(_gone("training", name))
            continue
        metrics = list(read_jsonl(path, StepMetrics))
        settings = facts["config"]
        title = f"## Training `{name}`: method {settings['method']}, {len(metrics)} steps from `{facts['policy']}`"
        sections += [title, _curve(metrics, points)]
        sections += [f"Step {one.step}: {CAUSES[one.saturated]}." for one in metrics if one.saturated]
    return sections


def _curve(metrics: Sequence[StepMetrics], points: int) -> str:
    size = max(1, -(-len(metrics) // points))
    rows = []
    for start in range(0, len(metrics), size):
        part = metrics[start : start + size]
        learned = [one.learner for one in part if one.learner]
        rows.append(
            (
                f"{start}-{start + len(part) - 1}",
                known_mean(one.reward_mean for one in part),
                known_mean(one.reward_std for one in part),
                sum(one.groups_mixed for one in part),
                sum(one.groups_right for one in part),
                sum(one.groups_wrong for one in part),
                known_mean(one.loss for one in learned),
                known_mean(one.kl for one in learned),
                known_mean(one.action_tokens for one in part),
                *(sum(getattr(one, kind) for one in part) for kind in BROKEN),
            )
        )
    header = [
        "steps",
        "reward",
        "std in group",
        "mixed",
        "all right",
        "all wrong",
        "loss",
        "KL",
        "tokens",
        *BROKEN,
    ]
    return table(header, rows)


def _evaluations(run: RunDirectory, stages: dict[str, Any]) -> list[str]:
    sections: list[str] = []
    for name, _ in _named(stages, "evaluate"):
        result = load_evaluation(run, name)
        if result is None:
            sections.append(_gone("evaluation", name))
        elif isinstance(result, TaskEvaluationResult):
            sections += _task_evaluation(name, result)
        else:
            title = f"## Evaluation `{name}`: {result.candidates} {result.split} candidates, "
            note = "Rewards are means with 95% intervals clustered by task; changes are paired by candidate."
            sections += [f"{title}{result.rollouts} actions each", note, _scores(result)]
    return sections


def _task_evaluation(name: str, result: TaskEvaluationResult) -> list[str]:
    sections: list[str] = []
    for environment, scores in result.environments.items():
        times = f", {result.episodes.trials} episodes each" if result.episodes.trials > 1 else ""
        title = f"## Evaluation `{name}`: {result.tasks[environment]} {result.split} tasks of `{environment}`{times}"
        note = (
            f"Temperature {result.temperature:g}. Success is the mean outcome with its 95% interval over tasks; "
            "changes and flips are paired by task. Without any change one interval in twenty leaves zero out."
        )
        sections += [title, note, _success(scores), _kinds(scores)]
        wrong = [(score.policy, *pair) for score in scores for pair in list((score.first_wrong or {}).items())[:TOP]]
        if wrong:
            first = f"First wrong action of the failed episodes, the {TOP} most frequent:"
            sections += [first, table(["policy", "first wrong action", "episodes"], wrong)]
    return sections


def _success(scores: Sequence[TaskScore]) -> str:
    rows = [
        (
            score.policy,
            *_rate(score.overall),
            f"{score.turns.mean:.1f}",
            ", ".join(f"{ending} {count}" for ending, count in score.endings.items()),
            *(getattr(score, kind) for kind in BROKEN),
        )
        for score in scores
    ]
    more = ["turns", "endings", "episodes unscored", "turns truncated", "turns unparsable"]
    return table(["policy", *_RATE, *more], rows)


def _kinds(scores: Sequence[TaskScore]) -> str:
    kinds = sorted({kind for score in scores for kind in score.by_kind})
    rows = [
        (kind, score.policy, *_rate(score.by_kind[kind])) for kind in kinds for score in scores if kind in score.by_kind
    ]
    return table(["kind", "policy", *_RATE], rows)


def _rate(rate: SuccessRate) -> tuple[str, str, str]:
    flips = "" if rate.change is None else f"{rate.gained}, {rate.lost}"
    return format_estimate(rate.success), format_estimate(rate.change), flips


def _scores(result: EvaluationResult) -> str:
    rows = [
        (
            score.policy,
            format_estimate(score.score),
            format_estimate(score.change),
            ", ".join(f"{kind} {estimate.mean:.3f}" for kind, estimate in score.by_kind.items()),
            *(getattr(score, kind) for kind in BROKEN),
        )
        for score in result.scores
    ]
    return table(["policy", "reward", "change", "by kind", *BROKEN], rows)


def _bill(ledger: Ledger) -> list[str]:
    totals = ledger.totals()
    rows = [(_HASH.sub("", f"{stage} {name}"), *_cost(usage)) for (stage, name), usage in totals.items()]
    rows.append(("all", *_cost(sum(totals.values(), Usage()))))
    header = ["stage", "rollouts", "tokens prefilled", "cached", "generated", "trained", "GFLOPs", "seconds"]
    return ["## What it cost", table(header, rows), *_judging(totals)]


def _judging(totals: Mapping[tuple[str, str], Usage]) -> list[str]:
    return [
        f"Judging in {stage} {name}: {usage.judge_calls} calls, {usage.judge_prompt_tokens} prompt tokens, "
        f"{usage.judge_generated_tokens} generated."
        for (stage, name), usage in totals.items()
        if usage.judge_calls
    ]


def _cost(usage: Usage) -> tuple[object, ...]:
    tokens = (usage.prefilled_tokens, usage.cached_tokens, usage.generated_tokens, usage.trained_tokens)
    return (usage.rollouts, *tokens, f"{usage.flops / 1e9:.0f}", f"{usage.seconds:.1f}")
