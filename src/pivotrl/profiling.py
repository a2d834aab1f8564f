"""Profile: a frozen policy samples K actions at every training candidate, a verifier rewards each (section 3).

Departures from the paper (arXiv 2603.21383):
 1. Demonstrations that their own verifier refuses are excluded first, and listed: they could only mislead.
 2. Unscored rollouts (the verifier failed) are left out of mean and variance, and counted.
 3. A truncated rollout is a wrong action (`zero`) or left out (`exclude`); training follows the same setting.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from pivotrl.candidates import CandidateStore
from pivotrl.chat import same_action
from pivotrl.errors import ConfigError, MissingError
from pivotrl.ledger import Ledger, timed
from pivotrl.metrics import beta_posterior, group_statistics
from pivotrl.models import ModelSettings
from pivotrl.planning import CandidateCheck, Choice, RolloutPlan, Scope, check_sampling, choose, rows_hash
from pivotrl.policies import OpenAISettings, load_policy
from pivotrl.rollouts import Place, RolloutStore, Sampling, Truncation, collect, rejudge, unscored
from pivotrl.storage import RunDirectory, content_hash, file_hash, hold_to, read_json, read_jsonl, write_jsonl
from pivotrl.types import (
    Action,
    Candidate,
    CandidateRow,
    Completion,
    Policy,
    PolicyFingerprint,
    Profile,
    RolloutGroup,
    SamplingParams,
    SkippedTurn,
    Verifier,
)
from pivotrl.verifiers import load_verifier, verifier_id

DEFAULT_PROFILE: Final = "base"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileConfig:
    """Sample a frozen policy at every training candidate and reward each action."""

    run: Path
    """Run directory, made by `ingest`."""
    policy: str
    """Hugging Face model directory or id, openai:MODEL behind a server, or scripted:package.module:function."""
    name: str = DEFAULT_PROFILE
    """Name of the profile."""
    rollouts: int = 16
    """K: actions sampled at each candidate."""
    verifier: str = "auto"
    """auto, tool_call, message, tool_name, exact, or package.module:function."""
    sampling: SamplingParams = field(default_factory=SamplingParams)
    truncation: Truncation = "zero"
    """A truncated action counts as wrong (zero) or is left out (exclude)."""
    scope: Scope = field(default_factory=Scope)
    model: ModelSettings = field(default_factory=ModelSettings)
    openai: OpenAISettings = field(default_factory=OpenAISettings)
    seed: int = 0
    """Seed of all sampling."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RescoreConfig:
    """Judge the stored rollouts of a profile with another verifier; samples nothing."""

    run: Path
    """Run directory."""
    verifier: str
    """auto, tool_call, message, tool_name, exact, or package.module:function."""
    name: str = DEFAULT_PROFILE
    """Name of the profile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilePlan:
    """`profile.json`: what was sampled, so that a resumed or later stage can hold itself to it."""

    rollouts: int
    sampling: SamplingParams
    truncation: Truncation
    seed: int
    policy: str
    """As the user named it, like the verifier; the fingerprint says what it was."""
    model: ModelSettings
    verifier: str
    verifier_id: str
    fingerprint: PolicyFingerprint
    candidates: str
    """`planning.rows_hash` of the chosen candidates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileResult:
    """How a profile came out."""

    profiles: tuple[Profile, ...]
    excluded: dict[str, int]
    """Candidates that were not sampled, by reason."""
    folder: Path
    truncation: Truncation
    verifier: str
    warnings: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        known = [profile for profile in self.profiles if profile.variance is not None]
        flat = sum(profile.variance == 0 for profile in known)
        mean = sum(profile.mean or 0.0 for profile in known) / max(len(known), 1)
        scored = sum(profile.n for profile in self.profiles)
        lines = [f"{len(self.profiles)} candidates, {scored} scored rollouts, verifier {self.verifier}"]
        if known:
            lines.append(f"mean reward {mean:.3f}; {flat} of {len(known)} ({flat / len(known):.0%}) have zero variance")
        for label, count in (
            ("unscored (the verifier or the policy call failed)", sum(profile.unscored for profile in self.profiles)),
            (f"truncated ({self.truncation})", sum(profile.truncated for profile in self.profiles)),
            ("unparsable (reward 0)", sum(profile.unparsable for profile in self.profiles)),
        ):
            if count:
                lines.append(f"rollouts {label}: {count}")
        lines += [f"excluded before sampling: {count} {reason}" for reason, count in sorted(self.excluded.items())]
        if self.excluded:
            lines.append(f"each with its reason: {self.folder / 'excluded.jsonl'}")
        return lines + list(self.warnings)


def profile(config: ProfileConfig, *, policy: Policy | None = None, verifier: Verifier | None = None) -> ProfileResult:
    """Run or resume a profile. `policy` and `verifier` may be given as objects instead of by the config's names.

    Raises MissingError (no run, no model, no candidates), ConfigError (a bad setting, or a profile of this name with
    other settings), BusyError (another process writes it), StorageError (the disk).
    """
    check_sampling(config.rollouts, config.sampling)
    run = RunDirectory(config.run)
    run.stages()
    folder, store = run.profile(config.name), CandidateStore(run)
    verifier = verifier or load_verifier(config.verifier)
    policy = policy or load_policy(config.policy, config.model, config.openai)
    check = CandidateCheck(policy, verifier, config.sampling, config.scope.max_prompt_tokens)
    choice = choose(store, "train", config.scope, check, config.seed)
    if not choice.rows:
        raise MissingError(f"no candidate is left to profile: {choice}; change the scope, the template or the verifier")
    plan = _plan_of(config, policy, verifier, rows_hash(store, choice.rows))
    hints = {"verifier_id": "for another verifier alone: `pivotrl rescore`"}
    hold_to(folder / "profile.json", plan, free=("policy", "verifier"), hints=hints)
    write_jsonl(folder / "candidates.jsonl", choice.rows)
    write_jsonl(folder / "excluded.jsonl", choice.left_out)
    place = _place(run, store, config.name, config.rollouts, choice.rows)
    collect(
        place,
        Sampling(
            policy=policy,
            verifier=verifier,
            params=config.sampling,
            n=config.rollouts,
            seed=config.seed,
            truncation=config.truncation,
        ),
    )
    result = _summarise(place, verifier, plan, choice.left_out)
    result = replace(result, warnings=_warnings(plan, check.blind))
    run.record_stage("profile", config.name, _facts(config, policy.fingerprint, verifier, run))
    return result


def rescore(config: RescoreConfig, *, verifier: Verifier | None = None) -> ProfileResult:
    """Add a verdicts folder to a profile. Raises MissingError when there is no such profile."""
    run = RunDirectory(config.run)
    run.stages()
    plan = load_plan(run, config.name)
    verifier = verifier or load_verifier(config.verifier)
    folder = run.profile(config.name)
    rows = profiled_rows(run, config.name, plan)
    place = _place(run, CandidateStore(run), config.name, plan.rollouts, rows)
    units, _ = place.store.complete_units(place.store.rollouts)
    if units < len(place.store.plan.units()):
        raise MissingError(f"{folder}: the profile is unfinished; run `pivotrl profile` again before rescoring")
    place = replace(place, stage="rescore", name=f"{config.name}.{verifier_id(verifier)}")
    with timed(place.ledger, place.stage, place.name):
        rejudge(place, verifier, plan.truncation)
    left_out = list(read_jsonl(folder / "excluded.jsonl", SkippedTurn, "profile"))
    result = _summarise(place, verifier, plan, left_out)
    facts = {"config": config, "verifier_id": verifier_id(verifier)}
    run.record_stage(place.stage, place.name, facts)
    return result


def load_plan(run: RunDirectory, name: str) -> ProfilePlan:
    """`profile.json` of a profile. Raises MissingError."""
    return read_json(run.profile(name) / "profile.json", ProfilePlan, f"profile --run {run.path} --name {name}")


def profiled_rows(run: RunDirectory, name: str, plan: ProfilePlan) -> list[CandidateRow]:
    """The candidates of a profile. Raises ConfigError when the run was ingested anew since, with other trajectories."""
    folder = run.profile(name)
    rows = list(read_jsonl(folder / "candidates.jsonl", CandidateRow, f"profile --run {run.path} --name {name}"))
    if rows_hash(CandidateStore(run), rows) != plan.candidates:
        raise ConfigError(
            f"{folder}: the trajectories are not those that were profiled; delete the folder and profile again"
        )
    return rows


def profiled_group(run: RunDirectory, name: str, candidate_id: str) -> tuple[RolloutGroup, Candidate]:
    """What a profile sampled at one candidate, with its own verifier's verdicts. Raises MissingError."""
    plan, store = load_plan(run, name), CandidateStore(run)
    rows = profiled_rows(run, name, plan)
    row = next((row for row in rows if row.id == candidate_id), None)
    if row is None:
        raise MissingError(f"{run.profile(name)}: {candidate_id!r} was not profiled")
    groups = _place(run, store, name, plan.rollouts, rows).store.groups(load_verifier(plan.verifier))
    group = next(group for group in groups if group.candidate_id == candidate_id)
    return group, Candidate(trajectory=store.trajectory(row.trajectory_id), turn=row.turn)


def summary_path(run: RunDirectory, name: str, verifier: str) -> Path:
    """The summary of a profile under a verifier id."""
    return run.profile(name) / "verdicts" / verifier / "summary.jsonl"


def profile_group(group: RolloutGroup, policy: str, verifier: str) -> Profile:
    """Counts of one group (Eq. 5's mean and population variance)."""
    statistics = group_statistics(group.rewards)
    return Profile(
        candidate_id=group.candidate_id,
        n=statistics.n,
        mean=statistics.mean,
        variance=statistics.variance,
        unscored=sum(unscored(verdict) for verdict in group.verdicts),
        truncated=sum(completion.truncated for completion in group.completions),
        unparsable=sum(completion.unparsable for completion in group.completions),
        distinct_actions=_distinct(group.completions),
        posterior=beta_posterior(group.rewards),
        policy=policy,
        verifier=verifier,
    )


def _distinct(completions: Iterable[Completion]) -> int:
    different: list[Action] = []
    for completion in completions:
        action = completion.action
        if action is not None and not any(same_action(action, other) for other in different):
            different.append(action)
    return len(different)


def fingerprint_id(fingerprint: PolicyFingerprint) -> str:
    """16 hexadecimal digits."""
    return content_hash(fingerprint)


def _place(run: RunDirectory, store: CandidateStore, name: str, n: int, rows: list[CandidateRow]) -> Place:
    plan = RolloutPlan(rows=tuple(rows), n=n)
    return Place(
        store=RolloutStore(run.profile(name), plan),
        candidates=store,
        ledger=Ledger(run.ledger),
        stage="profile",
        name=name,
    )


def _plan_of(config: ProfileConfig, policy: Policy, verifier: Verifier, candidates: str) -> ProfilePlan:
    return ProfilePlan(
        rollouts=config.rollouts,
        sampling=config.sampling,
        truncation=config.truncation,
        seed=config.seed,
        policy=config.policy,
        model=config.model,
        verifier=config.verifier,
        verifier_id=verifier_id(verifier),
        fingerprint=policy.fingerprint,
        candidates=candidates,
    )


def _summarise(place: Place, verifier: Verifier, plan: ProfilePlan, left_out: list[SkippedTurn]) -> ProfileResult:
    words = verifier_id(verifier)
    policy = fingerprint_id(plan.fingerprint)
    profiles = tuple(profile_group(group, policy, words) for group in place.store.groups(verifier))
    write_jsonl(place.store.verdicts(verifier).with_name("summary.jsonl"), profiles)
    return ProfileResult(
        profiles=profiles,
        excluded=Choice([], left_out).reasons,
        folder=place.store.folder,
        truncation=plan.truncation,
        verifier=verifier.name,
    )


def _warnings(plan: ProfilePlan, blind: int) -> tuple[str, ...]:
    """What would make the profile useless without looking wrong."""
    warnings = []
    if blind:
        warnings.append(
            f"warning: at {blind} candidates a call is demonstrated and the tools are unknown, so the policy is told "
            "of none; give their schemas to `pivotrl ingest --tools`"
        )
    if plan.rollouts == 1 or plan.sampling.temperature == 0:
        warnings.append(
            "warning: one rollout, or greedy sampling, shows no variance; nothing can be selected from this"
        )
    return tuple(warnings)


def _facts(
    config: ProfileConfig, fingerprint: PolicyFingerprint, verifier: Verifier, run: RunDirectory
) -> dict[str, Any]:
    return {
        "config": config,
        "fingerprint": fingerprint,
        "verifier": {
            "id": verifier_id(verifier),
            "name": verifier.name,
            "version": verifier.version,
            "settings": dict(verifier.settings),
        },
        "inputs": {"candidates.jsonl": file_hash(run.candidates)},
    }
