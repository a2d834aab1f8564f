"""Evaluate: reward of policies on held-out candidates, before and after, by the same path as training.

A score is the mean over candidates of the mean reward of n sampled actions; its interval is clustered by task. Two
policies are compared on the same candidates with the same random streams, candidate by candidate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pydantic import JsonValue

from pivotrl import __version__
from pivotrl.candidates import CandidateStore
from pivotrl.errors import ConfigError, MissingError
from pivotrl.ledger import Ledger
from pivotrl.metrics import clustered_mean, format_estimate
from pivotrl.models import ModelSettings
from pivotrl.planning import CandidateCheck, RolloutPlan, Scope, check_sampling, choose, rows_hash
from pivotrl.policies import load_policy
from pivotrl.profiling import fingerprint_id, inherited, load_plan
from pivotrl.rollouts import Place, RolloutStore, Sampling, Truncation, collect
from pivotrl.storage import RunDirectory, content_hash, file_hash, read_json, write_json
from pivotrl.types import CandidateRow, Estimate, Policy, RolloutGroup, SamplingParams, Split
from pivotrl.verifiers import load_verifier, verifier_id


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateConfig:
    """Reward of one or more policies on held-out candidates; the first is the one the others are compared with."""

    run: Path
    """Run directory."""
    policies: tuple[str, ...] = ()
    """Model directories, hub ids or scripted:..., or NAME=one of these; `train/NAME` is a trained model of this run.
    Default: the policy of the profile, then every finished training of the run."""
    profile: str = "base"
    """Profile that gives the settings left at their default: policy, verifier, sampling, truncation, model."""
    name: str = "heldout"
    """Name of the evaluation."""
    split: Split = "test"
    """Which candidates: test, validation or train."""
    rollouts: int = 4
    """Actions sampled at each candidate."""
    verifier: str | None = None
    """auto, tool_call, message, tool_name, exact, or package.module:function; by default as profiled, else auto."""
    sampling: SamplingParams = field(default_factory=SamplingParams)
    truncation: Truncation | None = None
    """A truncated action counts as wrong (zero) or is left out (exclude); by default as profiled, else zero."""
    scope: Scope = field(default_factory=Scope)
    model: ModelSettings = field(default_factory=ModelSettings)
    seed: int = 1
    """Seed of all sampling; keep it apart from the profile's."""


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

    def lines(self) -> list[str]:
        lines = [f"{self.candidates} held-out candidates ({self.split}), {self.rollouts} actions each"]
        for score in self.scores:
            lines.append(f"{score.policy}: reward {format_estimate(score.score)}")
            if score.change is not None:
                lines.append(f"    change {format_estimate(score.change)}")
        return lines


def evaluate(config: EvaluateConfig, *, policies: dict[str, Policy] | None = None) -> EvaluationResult:
    """Run or resume an evaluation. `policies` may be given as objects by name.

    Raises MissingError (no run, no candidates, no policy), ConfigError (a bad setting, or a name that holds another
    evaluation).
    """
    check_sampling(config.rollouts, config.sampling)
    run = RunDirectory(config.run)
    run.stages()
    run.evaluation(config.name)
    config = _as_profiled(config, run)
    store, verifier = CandidateStore(run), load_verifier(config.verifier or "auto")
    specs = {} if policies else _specs(config, run)
    names = list(policies or specs)
    scores: list[PolicyScore] = []
    first: dict[str, float] | None = None
    rows: list[CandidateRow] = []
    left_out: dict[str, int] = {}
    for name in names:
        policy = policies[name] if policies else load_policy(specs[name], config.model)
        if not rows:
            check = CandidateCheck(policy, verifier, config.sampling, config.scope.max_prompt_tokens)
            choice = choose(store, config.split, config.scope, check, config.seed)
            rows, left_out = choice.rows, dict(Counter(skipped.reason for skipped in choice.left_out))
            if not rows:
                raise MissingError(f"no {config.split} candidate can be evaluated: {left_out}; widen the scope")
        sampling = Sampling(
            policy=policy,
            verifier=verifier,
            params=config.sampling,
            n=config.rollouts,
            seed=config.seed,
            truncation=config.truncation or "zero",
        )
        groups = _play(_place(config, run, name, rows), sampling)
        means = _means(groups)
        scores.append(_score(name, fingerprint_id(policy.fingerprint), rows, groups, first))
        first = means if first is None else first
        del policy
    result = EvaluationResult(
        split=config.split,
        verifier=verifier_id(verifier),
        rollouts=config.rollouts,
        temperature=config.sampling.temperature,
        candidates=len(rows),
        left_out=left_out,
        scores=tuple(scores),
    )
    write_json(run.evaluation(config.name) / "result.json", result)
    facts = {"config": config, "version": __version__, "inputs": {"candidates.jsonl": file_hash(run.candidates)}}
    run.record_stage("evaluate", config.name, facts)
    return result


def _as_profiled(config: EvaluateConfig, run: RunDirectory) -> EvaluateConfig:
    """The config with what it leaves at the default as the profile had it; unchanged where there is no such profile."""
    if f"profile/{config.profile}" not in run.stages():
        return config
    plan = load_plan(run, config.profile)
    return replace(
        config,
        verifier=config.verifier or plan.verifier,
        truncation=config.truncation or plan.truncation,
        sampling=inherited(config.sampling, plan.sampling),
        model=inherited(config.model, plan.model),
    )


def load_evaluation(run: RunDirectory, name: str) -> EvaluationResult:
    """`result.json` of an evaluation. Raises MissingError."""
    return read_json(run.evaluation(name) / "result.json", EvaluationResult, f"evaluate --run {run.path}")


def _specs(config: EvaluateConfig, run: RunDirectory) -> dict[str, str]:
    """Policies by name, in order."""
    if config.policies:
        specs: dict[str, str] = {}
        for entry in config.policies:
            name, _, spec = entry.rpartition("=") if "=" in entry else (entry, "", entry)
            if not name or name in specs:
                raise ConfigError(f"policies {entry!r}: give every policy a name of its own, NAME=POLICY")
            specs[name] = _trained(run, spec)
        return specs
    found = {}
    for key, facts in run.stages().items():
        stage, _, name = key.partition("/")
        settings = facts.get("config")
        if stage == "profile" and name == config.profile and isinstance(settings, dict):
            found["base"] = str(settings["policy"])
    trained = sorted(path.parent.parent.name for path in (run.path / "train").glob("*/model/config.json"))
    found.update({name: str(run.train(name) / "model") for name in trained})
    if not found:
        raise MissingError(f"{run.path}: no profile and no trained model to evaluate; name them with --policies")
    return found


def _trained(run: RunDirectory, spec: str) -> str:
    prefix, _, name = spec.partition("/")
    if prefix != "train" or Path(spec).is_dir():
        return spec
    model = run.train(name) / "model"
    if not model.is_dir():
        raise MissingError(f"{model} is not there; finish `pivotrl train --run {run.path} --name {name}` first")
    return str(model)


def _place(config: EvaluateConfig, run: RunDirectory, name: str, rows: Sequence[CandidateRow]) -> Place:
    folder = run.evaluation(config.name) / "policies" / content_hash(name)
    return Place(
        store=RolloutStore(folder, RolloutPlan(rows=tuple(rows), n=config.rollouts)),
        candidates=CandidateStore(run),
        ledger=Ledger(run.ledger),
        stage="evaluate",
        name=f"{config.name}.{name}",
    )


def _play(place: Place, sampling: Sampling) -> list[RolloutGroup]:
    """Sample, or read what an earlier run of this evaluation sampled. Raises ConfigError when that was another."""
    rows, folder = place.store.plan.rows, place.store.folder
    plan = {
        "policy": fingerprint_id(sampling.policy.fingerprint),
        "rollouts": sampling.n,
        "sampling": content_hash(sampling.params),
        "truncation": sampling.truncation,
        "seed": sampling.seed,
        "candidates": rows_hash(place.candidates, rows),
    }
    if (folder / "plan.json").exists():
        before = read_json(folder / "plan.json", dict[str, JsonValue])
        changed = [key for key, value in plan.items() if before.get(key) != value]
        if changed:
            raise ConfigError(
                f"{folder}: evaluated before with another {', '.join(changed)}; use another --name, or delete it"
            )
    write_json(folder / "plan.json", plan)
    collect(place, sampling)
    return list(place.store.groups(sampling.verifier))


def _means(groups: Sequence[RolloutGroup]) -> dict[str, float]:
    """Mean reward by candidate, of those with a scored rollout."""
    scored = {group.candidate_id: [reward for reward in group.rewards if reward is not None] for group in groups}
    return {key: sum(rewards) / len(rewards) for key, rewards in scored.items() if rewards}


def _score(
    name: str,
    fingerprint: str,
    rows: Sequence[CandidateRow],
    groups: Sequence[RolloutGroup],
    first: dict[str, float] | None,
) -> PolicyScore:
    means = _means(groups)
    if not means:
        raise MissingError(f"{name}: no rollout was scored; see the verdicts' reasons in the evaluation's folder")
    known = [row for row in rows if row.id in means]
    both = [row for row in known if first is not None and row.id in first]
    reasons = Counter(verdict.reason for group in groups for verdict in group.verdicts)
    return PolicyScore(
        policy=name,
        fingerprint=fingerprint,
        score=_estimate(known, means),
        change=_estimate(both, {row.id: means[row.id] - first[row.id] for row in both}) if first and both else None,
        by_kind={
            kind: _estimate([row for row in known if row.kind == kind], means)
            for kind in sorted({row.kind for row in known})
        },
        unscored=sum(reward is None for group in groups for reward in group.rewards),
        truncated=sum(completion.truncated for group in groups for completion in group.completions),
        unparsable=sum(completion.parse_error is not None for group in groups for completion in group.completions),
        reasons=dict(reasons.most_common()),
    )


def _estimate(rows: Sequence[CandidateRow], values: dict[str, float]) -> Estimate:
    return clustered_mean([values[row.id] for row in rows], [row.group for row in rows])
