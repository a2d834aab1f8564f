"""Evaluate: policies compared on held-out candidates, by the same path as training; by `--env` on whole tasks.

A score is the mean over candidates of the mean reward of n sampled actions; its interval is clustered by task. Two
policies are compared on the same candidates with the same random streams, candidate by candidate. Tasks are for
`task_evaluation`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pivotrl.candidates import CandidateStore
from pivotrl.errors import ConfigError, MissingError
from pivotrl.evaluation_settings import EvaluateConfig, folder_name, inherit, open_policies
from pivotrl.forgetting import FILE, ForgettingResult, evaluate_forgetting
from pivotrl.ledger import Ledger
from pivotrl.logs import counted
from pivotrl.metrics import clustered_mean, format_estimate, known_mean
from pivotrl.outcomes import ItemScore
from pivotrl.planning import CandidateCheck, Choice, RolloutPlan, choose, fitting, in_words, rows_hash
from pivotrl.profile_settings import fingerprint_id
from pivotrl.protocols import Policy
from pivotrl.rollouts import Place, RolloutStore, Sampling, Truncation, collect, unscored
from pivotrl.run_directory import RunDirectory, hold_to
from pivotrl.storage import file_hash, read_json
from pivotrl.task_evaluation import TaskEvaluationResult, evaluate_tasks
from pivotrl.types import CandidateRow, Estimate, RolloutGroup, Split
from pivotrl.verifiers import load_verifier, taken_over, verifier_id


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyScore:
    """One policy's score, and its change against the first policy where there is one."""

    policy: str
    fingerprint: str
    score: Estimate
    change: Estimate | None
    by_kind: dict[str, Estimate]
    """Score by kind of the demonstrated action."""
    unscored: int
    truncated: int
    unparsable: int
    reasons: dict[str, int]
    """Verdict reasons, most frequent first."""
    by_tool: dict[str, Estimate] = field(default_factory=dict)
    """By the tools that it calls."""
    by_depth: dict[str, Estimate] = field(default_factory=dict)
    """By how many assistant turns come before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationResult:
    """`result.json` of an evaluation."""

    split: Split
    verifier: str
    rollouts: int
    temperature: float
    candidates: int
    left_out: dict[str, int]
    scores: tuple[PolicyScore, ...]
    judged_by: str = ""

    def lines(self) -> list[str]:
        lines = [f"{self.candidates} held-out candidates ({self.split}), {counted(self.rollouts, 'action')} each"]
        lines += [f"judged by {self.judged_by} (another: --verifier)"] if self.judged_by else []
        lines += [f"left out: {said}" for said in in_words(self.left_out)]
        for score in self.scores:
            lines.append(f"{score.policy}: reward {format_estimate(score.score)}")
            if score.change is not None:
                lines.append(f"    change {format_estimate(score.change)}")
        return lines


AnyResult = EvaluationResult | TaskEvaluationResult | ForgettingResult
_KINDS: Final[Mapping[str, type[AnyResult]]] = {
    FILE: ForgettingResult,
    "tasks.json": TaskEvaluationResult,
    "result.json": EvaluationResult,
}
"""The file that an evaluation of each kind leaves."""


def evaluate(
    config: EvaluateConfig, *, policies: Mapping[str, Policy] | None = None
) -> EvaluationResult | TaskEvaluationResult | ForgettingResult:
    """Run or resume an evaluation: of forgetting, on tasks where the config names environments, else on candidates.

    `policies` may be given as objects by name. Raises MissingError (no run, no candidates, no policy) or ConfigError
    (a bad setting, or a name that holds another evaluation).
    """
    mine = FILE if config.of_forgetting else "tasks.json" if config.env else "result.json"
    for other in _KINDS:
        if other != mine and (path := RunDirectory(config.run).evaluation(config.title) / other).exists():
            raise ConfigError(f"{path}: the name holds an evaluation of another kind; use another --name")
    if config.of_forgetting:
        return evaluate_forgetting(config, policies)
    return evaluate_tasks(config, policies) if config.env else _evaluate_candidates(config, policies)


def load_evaluation(run: RunDirectory, name: str) -> AnyResult | None:
    """A finished evaluation of any kind; None where its files are gone."""
    files = {run.evaluation(name) / file: kind for file, kind in _KINDS.items()}
    run.check(*files)
    return next((read_json(path, kind) for path, kind in files.items() if path.exists()), None)


def _evaluate_candidates(config: EvaluateConfig, policies: Mapping[str, Policy] | None) -> EvaluationResult:
    run = RunDirectory(config.run)
    settings = inherit(config, run)
    plan, params, store = settings.profile, settings.params, CandidateStore(run)
    named = config.verifier or (taken_over(plan.verifier, run.path) if plan else "auto")
    verifier = load_verifier(named)
    truncation: Truncation = config.truncation or (plan.truncation if plan else "zero")
    scores: list[PolicyScore] = []
    items: list[ItemScore] = []
    first: dict[str, float] = {}
    choice: Choice | None = None
    for name, open_policy in open_policies(config, run, settings.model, policies).items():
        sampling = Sampling(
            policy=open_policy(),
            verifier=verifier,
            params=params,
            n=config.rollouts,
            seed=config.seed,
            truncation=truncation,
        )
        choice = _same_candidates(config, store, name, sampling, choice)
        groups = _sampled(config, store, name, choice.rows, sampling)
        means = _means(groups)
        scores.append(_score(name, fingerprint_id(sampling.policy.fingerprint), choice.rows, groups, means, first))
        first = first or means
        items += _items(name, choice.rows, groups)
        del sampling  # with its policy, before the next one is opened
    assert choice is not None, "there was a policy"
    result = EvaluationResult(
        split=config.split,
        verifier=verifier_id(verifier),
        rollouts=config.rollouts,
        temperature=params.temperature,
        candidates=len(choice.rows),
        left_out=choice.reasons,
        scores=tuple(scores),
        judged_by=named,
    )
    facts = {"verifier_id": result.verifier, "fingerprints": {score.policy: score.fingerprint for score in scores}}
    inputs = {"candidates.jsonl": file_hash(run.candidates)}
    settings.keep(config, "result.json", result, items, **facts, inputs=inputs)
    return result


def _same_candidates(
    config: EvaluateConfig, store: CandidateStore, name: str, sampling: Sampling, choice: Choice | None
) -> Choice:
    """The first policy chooses the candidates; every other one must be able to take them all."""
    longest = None if choice else config.scope.max_prompt_tokens
    check = CandidateCheck(sampling.policy, sampling.verifier, sampling.params, longest)
    if choice is None:
        choice = choose(store, config.split, config.scope, check, config.seed)
        if not choice.rows:
            raise MissingError(f"no {config.split} candidate can be evaluated: {choice}; widen the scope")
        return choice
    unfit = fitting(store, choice.rows, check)
    if unfit.left_out:
        raise ConfigError(
            f"{name} cannot be asked at {len(unfit.left_out)} of {len(choice.rows)} candidates: {unfit}; mend "
            "that, narrow --scope, or name it first: the first policy chooses the candidates"
        )
    return choice


def _sampled(
    config: EvaluateConfig, store: CandidateStore, name: str, rows: Sequence[CandidateRow], sampling: Sampling
) -> list[RolloutGroup]:
    """Sample, or read what an earlier run of this evaluation sampled. Raises ConfigError when that was another."""
    folder, run = store.run.evaluation(config.title) / "policies" / folder_name(name), store.run
    place = Place(
        store=RolloutStore(folder, RolloutPlan(rows=rows, n=config.rollouts)),
        candidates=store,
        ledger=Ledger(run.ledger),
        stage="evaluate",
        name=f"{config.title}/{name}",
    )
    plan = {
        "policy": fingerprint_id(sampling.policy.fingerprint),
        "rollouts": sampling.n,
        "sampling": sampling.params,
        "truncation": sampling.truncation,
        "seed": sampling.seed,
        "candidates": rows_hash(store, rows),
    }
    hold_to(folder / "plan.json", plan)
    collect(place, sampling)
    return list(place.store.groups(sampling.verifier))


def _items(name: str, rows: Sequence[CandidateRow], groups: Sequence[RolloutGroup]) -> Iterator[ItemScore]:
    cluster = {row.id: row.group for row in rows}
    for group in groups:
        rewards = tuple(reward for reward in group.rewards if reward is not None)
        if rewards:
            key = group.candidate_id
            yield ItemScore(policy=name, suite="candidates", item=key, cluster=cluster[key], rewards=rewards)


def _means(groups: Sequence[RolloutGroup]) -> dict[str, float]:
    """Mean reward by candidate, of those with a scored rollout."""
    means = {group.candidate_id: known_mean(group.rewards) for group in groups}
    return {key: mean for key, mean in means.items() if mean is not None}


def _score(
    name: str,
    fingerprint: str,
    rows: Sequence[CandidateRow],
    groups: Sequence[RolloutGroup],
    means: dict[str, float],
    first: dict[str, float],
) -> PolicyScore:
    if not means:
        raise MissingError(f"{name}: no rollout was scored; see the verdicts' reasons in the evaluation's folder")
    known = [row for row in rows if row.id in means]
    both = [row for row in known if row.id in first]
    changes = {row.id: means[row.id] - first[row.id] for row in both}
    reasons = Counter(verdict.reason for group in groups for verdict in group.verdicts)
    return PolicyScore(
        policy=name,
        fingerprint=fingerprint,
        score=_estimate(known, means, 0.0),
        change=_estimate(both, changes, -1.0) if both else None,
        by_kind=_by(known, means, lambda row: (row.kind,)),
        by_tool=_by(known, means, lambda row: row.tools),
        by_depth=_by(known, means, _depth),
        unscored=sum(unscored(verdict) for group in groups for verdict in group.verdicts),
        truncated=sum(completion.truncated for group in groups for completion in group.completions),
        unparsable=sum(completion.unparsable for group in groups for completion in group.completions),
        reasons=dict(reasons.most_common()),
    )


def _by(
    rows: Sequence[CandidateRow], means: dict[str, float], labels: Callable[[CandidateRow], tuple[str, ...]]
) -> dict[str, Estimate]:
    """Score by label; a candidate may have several."""
    found: dict[str, list[CandidateRow]] = {}
    for row in rows:
        for label in dict.fromkeys(labels(row)):
            found.setdefault(label, []).append(row)
    order = sorted(found, key=lambda label: (len(label), label))
    return {label: _estimate(found[label], means, 0.0) for label in order}


def _depth(row: CandidateRow) -> tuple[str, ...]:
    """0, 1, 2-3, 4-7, ...: each as long as all before it."""
    start = 1 << (row.depth.bit_length() - 1) if row.depth else 0
    return (str(start) if start < 2 else f"{start}-{2 * start - 1}",)


def _estimate(rows: Sequence[CandidateRow], values: dict[str, float], lowest: float) -> Estimate:
    """Clustered by task; values lie between `lowest` and 1."""
    return clustered_mean([values[row.id] for row in rows], [row.group for row in rows], (lowest, 1.0))
