"""`README.md` of a trained model: from which data, by which method and verifier, with which numbers, at what cost.

Everything comes from the run directory. `train` writes it, and `report` anew, with later audits and evaluations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from pivotrl._version import __version__
from pivotrl.audit_result import AuditResult
from pivotrl.curves import StepMetrics, alarms, mean_rewards
from pivotrl.documents import cell, prose, table
from pivotrl.evaluation import load_evaluation
from pivotrl.forgetting import ForgettingResult
from pivotrl.ledger import Ledger
from pivotrl.logs import counted
from pivotrl.manifests import named
from pivotrl.metrics import format_estimate
from pivotrl.models import ADAPTER_CONFIG
from pivotrl.run_directory import RunDirectory
from pivotrl.storage import read_json, read_jsonl, write_atomic
from pivotrl.task_evaluation import TaskEvaluationResult
from pivotrl.types import Estimate
from pivotrl.validation import ValidationPoint, validation_line

Stages = Mapping[str, Any]


def write_model_card(run: RunDirectory, name: str) -> None:
    """Write the card of a finished training, beside its weights. Raises StorageError."""
    stages: Stages = run.stages()
    facts: Mapping[str, Any] = stages[f"train/{name}"]
    adapter = (run.train(name) / "model" / ADAPTER_CONFIG).exists()
    parts = [
        _front(facts, "peft" if adapter else "transformers"),
        f"# {name}",
        f"`{facts['policy']}` trained with PivotRL {facts['version']} (arXiv 2603.21383), method `"
        f"{facts['config']['method']}`. Written by `pivotrl {__version__}`; numbers in brackets are 95% intervals.",
        "## Data",
        *_data(stages, facts),
        "## Verifier and its error",
        *_verifier(run, facts),
        "## Training",
        *_training(run, name, facts),
        "## Evaluation",
        *(list(_evaluations(run, stages, name)) or ["None yet: `pivotrl evaluate`, then `pivotrl report`."]),
        "## Cost",
        _cost(Ledger(run.ledger), name, _profiles(stages, facts)),
    ]
    write_atomic(
        run.train(name) / "model" / "README.md", ("\n\n".join([parts[0], *map(prose, parts[1:])]) + "\n").encode()
    )


def _front(facts: Mapping[str, Any], library: str) -> str:
    policy = facts["policy"]
    base = [] if Path(policy).exists() else [f"base_model: {cell(policy)}"]
    return "\n".join(
        ["---", *base, f"library_name: {library}", "pipeline_tag: text-generation", "tags:", *_TAGS, "---"]
    )


_SETTINGS: Final = (
    *("steps", "prompts", "group_size", "updates", "loss", "advantage", "optimizer", "lora", "zero_variance"),
    *("mask_truncated", "cap_per_trajectory", "seed"),
)
_TAGS = ("- pivotrl", "- reinforcement-learning", "- agents")


def _data(stages: Stages, facts: Mapping[str, Any]) -> Iterator[str]:
    for _, one in named(stages, "ingest"):
        counts = one["counts"]
        split = ", ".join(f"{number} {name}" for name, number in counts["candidates"].items())
        hashes = ", ".join(f"{entry.get('file')} ({entry.get('hash')})" for entry in one.get("inputs", ()))
        yield (
            f"{counts['trajectories']} trajectories with {counts['assistant_turns']} assistant turns; candidates: "
            f"{split}. Files: {hashes}."
        )
    selection = stages.get(f"select/{facts['config']['pivots']}")
    if facts["config"]["method"] in ("pivotrl", "strict-filtered") and selection:
        fates = ", ".join(f"{number} {fate.replace('_', ' ')}" for fate, number in selection["counts"].items())
        yield f"Of the profiled candidates: {fates}. Trained on the pivots."


def _verifier(run: RunDirectory, facts: Mapping[str, Any]) -> Iterator[str]:
    key = facts["verifier_id"]
    if facts["config"]["method"] in ("sft", "e2e"):
        outcome = f"whole episodes were rewarded by their outcome in `{facts['config'].get('env')}`."
        yield "None: demonstrations were imitated." if facts["config"]["method"] == "sft" else f"None: {outcome}"
        return
    yield f"`{facts.get('verifier') or facts['config']['verifier'] or 'that of the profile'}`, id `{key}`."
    for path in sorted(run.path.glob(f"audits/*-{key[:6]}/audit.json")):
        run.check(path)
        audit = read_json(path, AuditResult)
        if audit.verifier_id == key:
            rows = [
                (section, share.name, format_estimate(share.reward) or "none scored")
                for section, shares in audit.shares.items()
                for share in shares
            ]
            yield table(["actions", "kind", "mean reward"], rows)
            return
    yield "Its error on this data is unknown: `pivotrl audit`, then `pivotrl report`."


def _training(run: RunDirectory, name: str, facts: Mapping[str, Any]) -> Iterator[str]:
    config, folder = facts["config"], run.train(name)
    metrics = list(read_jsonl(folder / "metrics.jsonl", StepMetrics))
    yield table(["setting", ""], [(key.replace("_", " "), _words(config[key])) for key in _SETTINGS if key in config])
    span, first, last = mean_rewards(metrics)
    if first is not None and last is not None:
        yield f"Mean training reward {first:.3f} in the first {counted(span, 'step')}, {last:.3f} in the last {span}."
    if config.get("validation", {}).get("every"):
        points = list(read_jsonl(folder / "validation.jsonl", ValidationPoint))
        yield validation_line(points, config["validation"]["keep"])
        rows = [(point.step, format_estimate(point.reward) or "none scored") for point in points]
        yield table(["steps", "validation reward"], rows)
    yield from alarms(metrics).values()


def _words(value: object) -> str:
    return ", ".join(f"{key} {one}" for key, one in value.items()) if isinstance(value, dict) else str(value)


def _evaluations(run: RunDirectory, stages: Stages, name: str) -> Iterator[str]:
    for key, facts in stages.items():
        stage, _, title = key.partition("/")
        result = load_evaluation(run, title) if stage == "evaluate" else None
        if result is None or isinstance(result, ForgettingResult):
            continue
        mine = _names_in(facts["config"]["policies"], name)
        if isinstance(result, TaskEvaluationResult):
            rows = [
                (f"success in {place}", score.policy, *_pair(score.overall.success, score.overall.change))
                for place, scores in result.environments.items()
                for score in _with_first(scores, mine)
            ]
        else:
            rows = [
                ("reward at candidates", score.policy, *_pair(score.score, score.change))
                for score in _with_first(result.scores, mine)
            ]
        if rows:
            yield f"`{title}`: {result.split} split, temperature {result.temperature:g}; changes are paired."
            yield table(["measured", "policy", "", "change"], rows)


def _names_in(policies: Sequence[str], name: str) -> frozenset[str]:
    """What an evaluation calls this training."""
    if not policies:
        return frozenset((name, f"train/{name}"))
    labels = (entry.rpartition("=") for entry in policies)
    return frozenset(label or spec for label, _, spec in labels if spec == f"train/{name}")


def _with_first(scores: Sequence[Any], mine: frozenset[str]) -> list[Any]:
    """This training's scores, after those of the policy that it is compared with."""
    own = [score for score in scores if score.policy in mine]
    return [*([scores[0]] if own and scores[0] not in own else []), *own]


def _pair(value: Estimate, change: Estimate | None) -> tuple[str, str]:
    return format_estimate(value), format_estimate(change)


def _profiles(stages: Stages, facts: Mapping[str, Any]) -> frozenset[str]:
    """The profile that a training went out from, and those that it followed."""
    found, name = set[str](), facts.get("profile")
    while name and name not in found:
        found.add(name)
        name = stages.get(f"profile/{name}", {}).get("config", {}).get("again")
    return frozenset(found)


def _cost(ledger: Ledger, name: str, profiles: frozenset[str]) -> str:
    """Of what this model needed, evaluations aside."""
    shown = ("rollouts", "prefilled_tokens", "cached_tokens", "generated_tokens", "trained_tokens")
    rows = []
    for (stage, part), usage in ledger.totals().items():
        if (stage == "profile" and part in profiles) or (stage, part) == ("train", name):
            values = asdict(usage)
            rows.append((f"{stage} {part}", *(values[key] for key in shown), f"{usage.flops / 1e9:.0f}"))
    return table(["", *(key.replace("_", " ") for key in shown), "GFLOPs"], rows)
