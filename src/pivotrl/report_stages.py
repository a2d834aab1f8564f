"""What a report says of each stage, in blocks: what was read, where the policy stood, what training did, who won."""

from __future__ import annotations

from array import array
from base64 import b64encode
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pivotrl.budgets import Counts, expected_signal, fit_prior
from pivotrl.charts import curves_chart, share_chart
from pivotrl.curves import CAUSES, StepMetrics, alarms
from pivotrl.documents import FOLDER, Block, Bullets, Folded, Heading, Paragraph, Picture, Table, file_name, table_of
from pivotrl.estimating import MEASURES, Forecast, measures, number, numbers
from pivotrl.evaluation import AnyResult, EvaluationResult
from pivotrl.forgetting import ForgettingResult
from pivotrl.logs import counted
from pivotrl.manifests import named
from pivotrl.metrics import format_estimate, known_mean
from pivotrl.pivots import FUNNEL
from pivotrl.profile_settings import STABILITY_FILE, ProfilePlan, load_plan, summary_path
from pivotrl.records import records
from pivotrl.run_directory import RunDirectory
from pivotrl.stability import Stability
from pivotrl.storage import file_hash, read_json, read_jsonl
from pivotrl.task_evaluation import SuccessRate, TaskEvaluationResult, TaskScore
from pivotrl.types import Pivot, Profile, Usage

Stages = Mapping[str, Any]
Totals = Mapping[tuple[str, str], Usage]
"""Usage by stage and name."""
Evaluations = Mapping[str, AnyResult | None]
"""By name; None where the files of one are gone."""
TOP: Final = 8
"""First wrong actions that are shown of each policy."""
REASONS: Final = 10
"""Reasons that are shown of each profile."""
BROKEN: Final = ("unscored", "truncated", "unparsable")
"""Counted each in a column of its own: a failure of the verifier, of the length, of the syntax."""
FILTERED: Final = ("pivotrl", "strict-filtered")
"""Methods that train on pivots alone, by reward."""
EARLY: Final = 5
"""First steps, in which the policy is still that of the profile."""
_RATE: Final = ("success", "change", "tasks gained, lost")


def doubtful(run: RunDirectory, stages: Stages, totals: Totals) -> Iterator[Block]:
    """A line for every stage whose inputs, artefacts or bill are not what they were, or that is unfinished."""
    lines = []
    for key, facts in stages.items():
        inputs = facts.get("inputs", {}) if key[:7] != "ingest/" else {}
        if changed := [one for one, before in inputs.items() if _hash(run.path / one) != before]:
            where = f" in {facts['config']['output']}" if "output" in facts.get("config", {}) else ""
            lines.append(f"{key}{where} is stale: {', '.join(changed)} changed since. Run it again.")
    for stage, begun in (("profile", "profiles/*/profile.json"), ("train", "train/*/config.json")):
        names = [path.parent.name for path in sorted(run.path.glob(begun))]
        lines += [f"{stage}/{one} is unfinished. Run it again." for one in names if f"{stage}/{one}" not in stages]
    if all(stage == "report" for stage, _ in totals):
        lines.append("ledger.jsonl is gone: what the run has cost is not known. Restore it.")
    lines += [f"{path.relative_to(run.path)} is not what {key} wrote. Restore it." for path, key in run.changed()]
    if lines:
        yield Bullets(tuple(lines))


def _hash(path: Path) -> str:
    return file_hash(path) if path.is_file() else ""


def ingested(stages: Stages) -> Iterator[Block]:
    for _, facts in named(stages, "ingest"):
        counts = facts["counts"]
        rows = [(key.replace("_", " "), value) for key, value in counts.items() if isinstance(value, int)]
        rows += [
            (f"{key.replace('_', ' ')}: {name}", value)
            for key, values in counts.items()
            if isinstance(values, dict)
            for name, value in values.items()
        ]
        yield from (Heading("What was read"), table_of(["", "count"], rows))


def profiles(run: RunDirectory, stages: Stages, totals: Totals) -> Iterator[Block]:
    rescored = [facts["config"] for _, facts in named(stages, "rescore")]
    for name, facts in named(stages, "profile"):
        summary = summary_path(run, name, facts["verifier"]["id"])
        if not summary.exists():
            yield _gone("profile", name)
            continue
        plan = load_plan(run, name)
        counts, mean = _counted(summary)
        known, flat = counts["known"], counts["flat"]
        first = "" if plan.budget == "fixed" or facts.get("mean") is None else " of the first round"
        rows = [
            ("policy", plan.policy),
            ("verifier", plan.verifier),
            ("rescored by", ", ".join(one["verifier"] for one in rescored if one["name"] == name) or "none"),
            ("rollouts per candidate", plan.rollouts if plan.budget == "fixed" else _spent(counts["stopped"], plan)),
            ("candidates", counts["candidates"]),
            ("mean reward" + first, (facts["mean"] if first else mean) if known else "no rollout was scored"),
            ("zero variance", f"{flat} of {known} ({flat / known:.0%})" if known else ""),
            *((f"rollouts {kind}", counts[kind]) for kind in BROKEN),
            *([("follows profile", plan.follows)] if plan.follows else []),
        ]
        yield from (Heading(f"Profile `{name}`"), table_of(["", ""], rows))
        if reasons := list(facts.get("reasons", {}).items())[:REASONS]:
            yield table_of(["less than full reward: reason", "rollouts"], reasons)
        if (planned := run.profile(name) / "plan.json").exists():
            yield _planned(read_json(planned, Forecast), plan, totals.get(("profile", name), Usage()))
        if (twice := run.profile(name) / STABILITY_FILE).exists():
            yield Bullets(tuple(read_json(twice, Stability).lines()))


def _counted(summary: Path) -> tuple[Counter[str], float | None]:
    """(candidates and rollouts by what is told of them, the mean of the candidates' mean rewards)."""
    counts, means = Counter[str](), array("d")
    for one in read_jsonl(summary, Profile):  # a million of them would fill half a gigabyte
        counts.update(candidates=1, known=one.variance is not None, flat=one.variance == 0)
        counts.update(stopped=one.stopped_early, **{kind: getattr(one, kind) for kind in BROKEN})
        means.extend(() if one.mean is None else (one.mean,))
    return counts, known_mean(means)


def _planned(forecast: Forecast, plan: ProfilePlan, usage: Usage) -> Block:
    """What `profile --plan` foretold beside what the profile took."""
    took = measures(usage)
    if forecast.settings != plan.settings:
        return Paragraph("The plan of this profile was for other settings.", "note")
    rows = [
        (MEASURES[key][0], *numbers(key, one), number(key, took[key]), f"{took[key] / one.mean:.2f}")
        for key, one in forecast.expected.items()
        if key in took
    ]
    return table_of(["planned", "total", "95% interval", "actual", "ratio"], rows)


def _spent(stopped: int, plan: ProfilePlan) -> str:
    return f"{plan.rollouts}, budget {plan.budget}" + (f"; {stopped} stopped early" if stopped else "")


def _gone(stage: str, name: str) -> Paragraph:
    return Paragraph(f"The {stage} `{name}` is in the manifest, but its files are gone.", "unsure")


def selections(run: RunDirectory, stages: Stages) -> Iterator[Block]:
    for name, facts in named(stages, "select"):
        counts = facts["counts"]
        total = max(sum(counts.values()), 1)
        rows = [
            (key.replace("_", " "), counts[key], f"{counts[key] / total:.0%}", text)
            for key, text in FUNNEL.items()
            if counts.get(key)
        ]
        yield Heading(f"Selection `{name}` (lambda_diff {facts['config']['lambda_diff']})")
        yield table_of(["fate", "candidates", "share", "meaning"], rows)
        if facts.get("alike"):
            yield Paragraph(f"{facts['alike']} pivots are near-duplicates of another.", "note")
        if (picture := run.pivots(name).with_suffix(".svg")).is_file():
            drawn = b64encode(picture.read_bytes()).decode()  # as an image it does nothing, whoever drew it
            svg = f'<img alt="" src="data:image/svg+xml;base64,{drawn}">'
            yield Picture(f"pivots/{picture.name}", svg, "funnel and mean rewards, the kept ones dark")
        if facts.get("moves"):
            yield table_of([f"since profile `{facts['follows']}`", "candidates"], facts["moves"].items())


def trainings(run: RunDirectory, stages: Stages, points: int) -> Iterator[Block]:
    for name, facts in named(stages, "train"):
        path = run.train(name) / "metrics.jsonl"
        if not path.exists():
            yield _gone("training", name)
            continue
        metrics = list(read_jsonl(path, StepMetrics))
        settings = facts["config"]
        yield Heading(f"Training `{name}`: method {settings['method']}, {len(metrics)} steps from `{facts['policy']}`")
        yield from (_curves(name, metrics), _curve(metrics, points))
        yield from _predicted(run, stages, facts, metrics)
        yield from (Paragraph(f"Step {one.step}: {CAUSES[one.saturated]}.") for one in metrics if one.saturated)
        yield from (Paragraph(alarm, "bad") for alarm in alarms(metrics).values())


def _curves(name: str, metrics: Sequence[StepMetrics]) -> Picture:
    """What a training that works shows: the reward rises, mixed groups get fewer."""
    series: dict[str, list[float | None]] = {
        "mean reward": [one.reward_mean for one in metrics],
        "mixed groups": [one.groups_mixed if one.rollouts else None for one in metrics],
        "KL to the reference": [one.learner.kl if one.learner else None for one in metrics],
        "loss": [one.learner.loss if one.learner else None for one in metrics],
        "tokens per action": [one.action_tokens if one.rollouts else None for one in metrics],
    }
    known = {title: values for title, values in series.items() if any(value is not None for value in values)}
    drawn = curves_chart(f"training {name}, step by step", known)
    return Picture(f"{FOLDER}/{file_name(name)}-curves.svg", drawn, f"curves of {name}: {', '.join(known)}")


def _predicted(
    run: RunDirectory, stages: Stages, facts: Mapping[str, Any], metrics: Sequence[StepMetrics]
) -> Iterator[Block]:
    """How many groups were to be mixed by the profile of the pivots, and how many were, in the first steps."""
    config = facts["config"]
    selection = stages.get(f"select/{config['pivots']}")
    path = run.pivots(config["pivots"])
    if config["method"] not in FILTERED or selection is None or not path.exists():
        return
    summary = summary_path(run, selection["config"]["profile"], facts["verifier_id"])
    seen = records(summary, Profile) if summary.exists() else ()
    kept = {pivot.candidate_id for pivot in read_jsonl(path, Pivot)}
    if not seen:
        return
    counts = Counts.of(seen)
    signal = expected_signal(counts, fit_prior(counts), "mixed", config["group_size"], 1.0)
    expected = [float(value) for one, value in zip(seen, signal, strict=True) if one.candidate_id in kept]
    first = metrics[:EARLY]
    groups = sum(one.groups_mixed + one.groups_right + one.groups_wrong for one in first)
    mixed = sum(one.groups_mixed for one in first)
    if expected and groups:
        yield Paragraph(
            f"Mixed groups of {config['group_size']}: {known_mean(expected):.0%} predicted from the profile, "
            f"{mixed / groups:.0%} observed in the first {len(first)} steps ({mixed} of {groups})."
        )


def _curve(metrics: Sequence[StepMetrics], points: int) -> Table:
    size = max(1, -(-len(metrics) // points))
    rows = []
    for start in range(0, len(metrics), size):
        part = metrics[start : start + size]
        learned = [one.learner for one in part if one.learner]
        rows.append(
            (
                str(start) if len(part) == 1 else f"{start}-{start + len(part) - 1}",
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
    header = ["steps", "reward", "std in group", "mixed", "all right", "all wrong", "loss", "KL", "tokens", *BROKEN]
    return table_of(header, rows)


def evaluations(found: Evaluations, stages: Stages) -> Iterator[Block]:
    for name, result in found.items():
        if result is None:
            yield _gone("evaluation", name)
        elif isinstance(result, TaskEvaluationResult):
            yield from _task_evaluation(name, result, stages[f"evaluate/{name}"]["config"].get("explained"))
        elif isinstance(result, ForgettingResult):
            yield from (Heading(f"Evaluation `{name}`: what was forgotten"), *result.blocks())
        else:
            what, each = f"{result.candidates} {result.split} candidates", counted(result.rollouts, "action")
            yield Heading(f"Evaluation `{name}`: {what}, {each} each")
            note = "Rewards are means with 95% intervals clustered by task; changes are paired by candidate."
            yield Paragraph(note, "note")
            rewards = {score.policy: score.score for score in result.scores}
            yield Picture(f"{FOLDER}/{file_name(name)}.svg", share_chart("reward", rewards), "rewards by policy")
            yield from (_scores(result), Folded("by tool and by depth", (_broken_down(result),)))


def _task_evaluation(name: str, result: TaskEvaluationResult, explained: int | None) -> Iterator[Block]:
    for environment, scores in result.environments.items():
        times = f", {result.episodes.trials} episodes each" if result.episodes.trials > 1 else ""
        what = f"{result.tasks[environment]} {result.split} tasks of `{environment}`"
        yield Heading(f"Evaluation `{name}`: {what}{times}")
        note = (
            f"Temperature {result.temperature:g}. Success is the mean outcome with its 95% interval over tasks; "
            "changes and flips are paired by task. Without any change one interval in twenty leaves zero out."
        )
        yield Paragraph(note, "note")
        rates = {score.policy: score.overall.success for score in scores}
        file = f"{FOLDER}/{file_name(f'{name}-{environment}')}.svg"
        yield Picture(file, share_chart(f"success in {environment}", rates), f"success in {environment} by policy")
        yield from (_success(scores), Folded("by kind of task", (_kinds(scores),)))
        if len(scores[0].pass_hat) > 1:
            header = ["policy", *(f"pass^{k}" for k in range(1, len(scores[0].pass_hat) + 1))]
            rows = [(score.policy, *map(format_estimate, score.pass_hat)) for score in scores]
            yield table_of(header, rows)
        wrong = [(score.policy, *pair) for score in scores for pair in list((score.first_wrong or {}).items())[:TOP]]
        if wrong:
            which = "failed episodes" if explained is None else f"first {explained} failed episodes (--explained)"
            first = f"first wrong action of the {which}, the {TOP} most frequent"
            yield Folded(first, (table_of(["policy", "first wrong action", "episodes"], wrong),))
        elif explained == 0:
            yield Paragraph("First wrong actions were not looked for (`--explained 0`).", "note")


def _success(scores: Sequence[TaskScore]) -> Table:
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
    return table_of(["policy", *_RATE, *more], rows)


def _kinds(scores: Sequence[TaskScore]) -> Table:
    kinds = sorted({kind for score in scores for kind in score.by_kind})
    rows = [
        (kind, score.policy, *_rate(score.by_kind[kind])) for kind in kinds for score in scores if kind in score.by_kind
    ]
    return table_of(["kind", "policy", *_RATE], rows)


def _rate(rate: SuccessRate) -> tuple[str, str, str]:
    flips = "" if rate.change is None else f"{rate.gained}, {rate.lost}"
    return format_estimate(rate.success), format_estimate(rate.change), flips


def _scores(result: EvaluationResult) -> Table:
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
    return table_of(["policy", "reward", "change", "by kind", *BROKEN], rows)


def _broken_down(result: EvaluationResult) -> Table:
    rows = [
        (what, label, score.policy, format_estimate(estimate))
        for what in ("tool", "depth")
        for score in result.scores
        for label, estimate in getattr(score, f"by_{what}").items()
    ]
    return table_of(["by", "", "policy", "reward"], sorted(rows, key=lambda row: (row[0], len(str(row[1])), row[1])))
