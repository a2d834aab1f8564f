"""Evaluate: policies compared on held-out candidates, or on whole held-out tasks of environments (`--env`)."""

from __future__ import annotations

from collections.abc import Mapping

from pivotrl.candidate_evaluation import EvaluationResult, PolicyScore, evaluate_candidates
from pivotrl.errors import ConfigError
from pivotrl.evaluation_settings import EvaluateConfig, SamplingChoice
from pivotrl.storage import RunDirectory, read_json
from pivotrl.task_evaluation import TaskEvaluationResult, TaskScore, evaluate_tasks
from pivotrl.types import Policy

__all__ = [
    "EvaluateConfig",
    "EvaluationResult",
    "PolicyScore",
    "SamplingChoice",
    "TaskEvaluationResult",
    "TaskScore",
    "evaluate",
    "load_evaluation",
]


def evaluate(
    config: EvaluateConfig, *, policies: Mapping[str, Policy] | None = None
) -> EvaluationResult | TaskEvaluationResult:
    """Run or resume an evaluation: on tasks where the config names environments, else on candidates.

    `policies` may be given as objects by name. Raises MissingError (no run, no candidates, no policy) or ConfigError
    (a bad setting, or a name that holds another evaluation).
    """
    other = RunDirectory(config.run).evaluation(config.title) / ("result.json" if config.env else "tasks.json")
    if other.exists():
        raise ConfigError(f"{other}: the name holds an evaluation of the other kind; use another --name")
    return evaluate_tasks(config, policies) if config.env else evaluate_candidates(config, policies)


def load_evaluation(run: RunDirectory, name: str) -> EvaluationResult | TaskEvaluationResult | None:
    """A finished evaluation of either kind; None where its files are gone."""
    folder = run.evaluation(name)
    if (folder / "tasks.json").exists():
        return read_json(folder / "tasks.json", TaskEvaluationResult)
    if (folder / "result.json").exists():
        return read_json(folder / "result.json", EvaluationResult)
    return None
