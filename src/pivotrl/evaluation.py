"""Evaluate: reward of policies on held-out candidates, before and after, by the same path as training.

A score is the mean over candidates of the mean reward of n sampled actions; its interval is clustered by task. Two
policies are compared on the same candidates with the same random streams, candidate by candidate.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pivotrl.candidates import CandidateStore
from pivotrl.errors import ConfigError, MissingError
from pivotrl.ledger import Ledger
from pivotrl.metrics import clustered_mean, format_estimate
from pivotrl.models import ModelSettings, resolve
from pivotrl.planning import CandidateCheck, Choice, RolloutPlan, Scope, check_sampling, choose, fitting, rows_hash
from pivotrl.policies import is_scripted, load_policy
from pivotrl.profiling import DEFAULT_PROFILE, ProfilePlan, fingerprint_id, load_plan
from pivotrl.rollouts import Place, RolloutStore, Sampling, Truncation, collect, unscored
from pivotrl.storage import RunDirectory, content_hash, file_hash, hold_to, read_json, write_json
from pivotrl.types import CandidateRow, Estimate, Policy, RolloutGroup, SamplingParams, Split
from pivotrl.verifiers import load_verifier, verifier_id


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingChoice:
    """How actions are sampled; by default as profiled, else as the policy itself samples."""

    temperature: float | None = None
    """0 is greedy."""
    top_p: float | None = None
    """Sample from the smallest set of tokens that holds this much probability; 1 is off."""
    top_k: int | None = None
    """0 is off."""
    max_new_tokens: int | None = None
    """Longest action; what is longer is truncated."""

    def inherit(self, before: SamplingParams) -> SamplingParams:
        """These settings, and `before` where they say nothing."""
        said = {name: getattr(self, name) for name in self.__slots__ if getattr(self, name) is not None}
        return replace(before, **said)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateConfig:
    """Reward of one or more policies on held-out candidates; the first is the one the others are compared with."""

    run: Path
    """Run directory."""
    policies: tuple[str, ...] = ()
    """Model directories, hub ids or scripted:..., or NAME=one of these; `train/NAME` is a trained model of this run.
    Default: the policy of the profile, then every finished training of the run."""
    profile: str = DEFAULT_PROFILE
    """Profile that gives the settings left at their default: policy, verifier, sampling, truncation, model."""
    name: str = "heldout"
    """Name of the evaluation."""
    split: Split = "test"
    """Which candidates: test, validation or train."""
    rollouts: int = 4
    """Actions sampled at each candidate."""
    verifier: str | None = None
    """auto, tool_call, message, tool_name, exact, or package.module:function; by default as profiled, else auto."""
    sampling: SamplingChoice = field(default_factory=SamplingChoice)
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
    run = RunDirectory(config.run)
    folder = run.evaluation(config.name)
    plan = _profile_plan(config, run)
    params = config.sampling.inherit(plan.sampling if plan else SamplingParams())
    check_sampling(config.rollouts, params)
    verifier = load_verifier(config.verifier or (plan.verifier if plan else "auto"))
    truncation: Truncation = config.truncation or (plan.truncation if plan else "zero")
    model = config.model.inherit(plan.model) if plan else config.model
    specs = {} if policies else _specs(config, run)
    scores: list[PolicyScore] = []
    first: dict[str, float] | None = None
    choice: Choice | None = None
    for name in policies or specs:
        policy = policies[name] if policies else load_policy(specs[name], model)
        check = CandidateCheck(policy, verifier, params, config.scope.max_prompt_tokens)
        choice = _same_candidates(config, CandidateStore(run), name, check, choice)
        sampling = Sampling(
            policy=policy, verifier=verifier, params=params, n=config.rollouts, seed=config.seed, truncation=truncation
        )
        groups = _play(_place(config, run, name, choice.rows), sampling)
        means = _means(groups)
        scores.append(_score(name, fingerprint_id(policy.fingerprint), choice.rows, groups, means, first))
        first = means if first is None else first
        del policy
    assert choice is not None, "there was a policy"
    result = EvaluationResult(
        split=config.split,
        verifier=verifier_id(verifier),
        rollouts=config.rollouts,
        temperature=params.temperature,
        candidates=len(choice.rows),
        left_out=choice.reasons,
        scores=tuple(scores),
    )
    write_json(folder / "result.json", result)
    facts = {
        "config": config,
        "sampling": params,
        "model": model,
        "verifier_id": result.verifier,
        "fingerprints": {score.policy: score.fingerprint for score in scores},
        "inputs": {"candidates.jsonl": file_hash(run.candidates)},
    }
    run.record_stage("evaluate", config.name, facts)
    return result


def _profile_plan(config: EvaluateConfig, run: RunDirectory) -> ProfilePlan | None:
    """The plan of the profile that gives defaults; None where nothing was profiled under the default name."""
    if f"profile/{config.profile}" in run.stages():
        return load_plan(run, config.profile)
    if config.profile != DEFAULT_PROFILE:
        raise MissingError(
            f"{run.profile(config.profile)} is not there or unfinished; profile first, or leave --profile out"
        )
    return None


def _same_candidates(
    config: EvaluateConfig, store: CandidateStore, name: str, check: CandidateCheck, choice: Choice | None
) -> Choice:
    """The first policy's check chooses the candidates; every other policy must be able to take them all."""
    if choice is None:
        choice = choose(store, config.split, config.scope, check, config.seed)
        if not choice.rows:
            raise MissingError(f"no {config.split} candidate can be evaluated: {choice}; widen the scope")
        return choice
    unfit = fitting(store, choice.rows, check)
    if unfit.left_out:
        raise ConfigError(
            f"{name} cannot be asked at {len(unfit.left_out)} of {len(choice.rows)} candidates: {unfit}; lower "
            "--scope.max-prompt-tokens, or evaluate it first"
        )
    return choice


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
            if not is_scripted(specs[name]):
                resolve(specs[name])  # before anything is sampled
        return specs
    found: dict[str, str] = {}
    for key, facts in run.stages().items():
        stage, _, name = key.partition("/")
        settings = facts.get("config")
        if stage == "profile" and name == config.profile and isinstance(settings, dict):
            found["base"] = str(settings["policy"])
    trained = sorted(path.parent.parent.name for path in (run.path / "train").glob("*/model/config.json"))
    for name in trained:
        found[f"train/{name}" if name in found else name] = str(run.train(name) / "model")
    if not found:
        raise MissingError(f"{run.path}: no profile and no trained model to evaluate; name them with --policies")
    return found


def _trained(run: RunDirectory, spec: str) -> str:
    prefix, _, name = spec.partition("/")
    if prefix != "train" or Path(spec).is_dir():
        if "/" not in spec and not Path(spec).is_dir() and (run.path / "train" / spec / "model").is_dir():
            raise MissingError(f"policy {spec!r}: no such directory; for the training of this run write train/{spec}")
        return spec
    model = run.train(name) / "model"
    if not model.is_dir():
        raise MissingError(f"{model} is not there; finish `pivotrl train --run {run.path} --name {name}` first")
    return str(model)


def _place(config: EvaluateConfig, run: RunDirectory, name: str, rows: Sequence[CandidateRow]) -> Place:
    readable = re.sub(r"[^\w.-]+", "_", name)[-60:]
    folder = run.evaluation(config.name) / "policies" / f"{readable}-{content_hash(name)[:6]}"
    return Place(
        store=RolloutStore(folder, RolloutPlan(rows=tuple(rows), n=config.rollouts)),
        candidates=CandidateStore(run),
        ledger=Ledger(run.ledger),
        stage="evaluate",
        name=f"{config.name}.{name}",
    )


def _play(place: Place, sampling: Sampling) -> list[RolloutGroup]:
    """Sample, or read what an earlier run of this evaluation sampled. Raises ConfigError when that was another."""
    plan = {
        "policy": fingerprint_id(sampling.policy.fingerprint),
        "rollouts": sampling.n,
        "sampling": sampling.params,
        "truncation": sampling.truncation,
        "seed": sampling.seed,
        "candidates": rows_hash(place.candidates, place.store.plan.rows),
    }
    hold_to(place.store.folder / "plan.json", plan)
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
    means: dict[str, float],
    first: dict[str, float] | None,
) -> PolicyScore:
    if not means:
        raise MissingError(f"{name}: no rollout was scored; see the verdicts' reasons in the evaluation's folder")
    known = [row for row in rows if row.id in means]
    both = [row for row in known if first is not None and row.id in first]
    reasons = Counter(verdict.reason for group in groups for verdict in group.verdicts)
    return PolicyScore(
        policy=name,
        fingerprint=fingerprint,
        score=_estimate(known, means, 0.0),
        change=_estimate(both, {row.id: means[row.id] - first[row.id] for row in both}, -1.0)
        if first and both
        else None,
        by_kind={
            kind: _estimate([row for row in known if row.kind == kind], means, 0.0)
            for kind in sorted({row.kind for row in known})
        },
        unscored=sum(unscored(verdict) for group in groups for verdict in group.verdicts),
        truncated=sum(completion.truncated for group in groups for completion in group.completions),
        unparsable=sum(completion.unparsable for group in groups for completion in group.completions),
        reasons=dict(reasons.most_common()),
    )


def _estimate(rows: Sequence[CandidateRow], values: dict[str, float], lowest: float) -> Estimate:
    """Clustered by task; values lie between `lowest` and 1."""
    return clustered_mean([values[row.id] for row in rows], [row.group for row in rows], (lowest, 1.0))
