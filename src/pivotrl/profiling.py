"""Profile: a frozen policy samples K actions at every training candidate, a verifier rewards each (section 3).

Departures from the paper (arXiv 2603.21383):
 1. Demonstrations that their own verifier refuses are excluded first, and listed: they could only mislead.
 2. Unscored rollouts (the verifier failed) are left out of mean and variance, and counted.
 3. A truncated rollout is a wrong action (`zero`) or left out (`exclude`); training follows the same setting.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from pivotrl.budgets import Budget, StoppingSettings, check_stopping
from pivotrl.candidates import CandidateStore
from pivotrl.chat import same_action
from pivotrl.errors import ConfigError, MissingError
from pivotrl.ledger import Ledger, timed
from pivotrl.metrics import beta_posterior, group_statistics, known_mean
from pivotrl.models import ModelSettings
from pivotrl.planning import CandidateCheck, Choice, RolloutPlan, Scope, check_sampling, choose, rows_hash
from pivotrl.policies import OpenAISettings, load_policy
from pivotrl.rollouts import Place, RolloutStore, Sampling, Truncation, unscored
from pivotrl.rounds import Rounds, Spending
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
REASONS: Final = 5
"""Reasons that are printed; docs/verifiers.md says what they mean."""


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
    """K: actions sampled at each candidate (fixed), at most (curtailed), on average at most (bayes)."""
    budget: Budget = "fixed"
    """curtailed: stop where `select` decides alike whatever comes; bayes: more where it is undecided (`--rule
    posterior`)."""
    stopping: StoppingSettings = field(default_factory=StoppingSettings)
    topup: bool = False
    """Go on with a finished profile where early stopping left candidates unsettled under this verifier."""
    verifier: str = "auto"
    """A name of docs/verifiers.md, such as auto, FILE.py:function, or cascade(ONE, OTHER)."""
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
    """A name of docs/verifiers.md, such as auto, FILE.py:function, or cascade(ONE, OTHER)."""
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
    budget: Budget = "fixed"
    stopping: StoppingSettings = field(default_factory=StoppingSettings)

    @property
    def spending(self) -> Spending:
        return Spending(budget=self.budget, rollouts=self.rollouts, stopping=self.stopping)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileResult:
    """How a profile came out."""

    profiles: tuple[Profile, ...]
    mean: float | None
    """Mean reward, of the first round alone where later ones depended on it."""
    excluded: dict[str, int]
    """Candidates that were not sampled, by reason."""
    folder: Path
    truncation: Truncation
    verifier: str
    reasons: dict[str, int] = field(default_factory=dict)
    """Why rollouts earned less than 1, the most frequent first."""
    complaint: str = ""
    """What the commonest failure of the verifier or the policy said."""
    unsettled: int = 0
    """Candidates that early stopping leaves undecided under this verifier; `unsettled.jsonl` lists them."""
    warnings: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        known = [profile for profile in self.profiles if profile.variance is not None]
        flat = sum(profile.variance == 0 for profile in known)
        stopped = sum(profile.stopped_early for profile in self.profiles)
        scored = sum(profile.n for profile in self.profiles)
        lines = [f"{len(self.profiles)} candidates, {scored} scored rollouts, verifier {self.verifier}"]
        if known:
            lines.append(
                f"mean reward {self.mean:.3f}; {flat} of {len(known)} ({flat / len(known):.0%}) have zero variance"
            )
        if stopped:
            lines.append(f"{stopped} stopped early: their own means are biased, the mean reward is of the first round")
        if self.unsettled:
            lines.append(
                f"{self.unsettled} are unsettled under this verifier (unsettled.jsonl beside its verdicts); "
                "sample these alone: `pivotrl profile --topup` with the same settings and this verifier"
            )
        for label, count in (
            ("unscored (the verifier or the policy call failed)", sum(profile.unscored for profile in self.profiles)),
            (f"truncated ({self.truncation})", sum(profile.truncated for profile in self.profiles)),
            ("unparsable (reward 0)", sum(profile.unparsable for profile in self.profiles)),
        ):
            if count:
                lines.append(f"rollouts {label}: {count}")
        if self.complaint:
            lines.append(f"the commonest failure: {self.complaint}")
        if self.reasons:
            shown = [f"{count} {reason}" for reason, count in [*self.reasons.items()][:REASONS]]
            lines.append(f"less than full reward: {', '.join(shown)}")
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
    check_stopping(config.stopping)
    run = RunDirectory(config.run)
    run.stages()
    folder, store = run.profile(config.name), CandidateStore(run)
    verifier = verifier or load_verifier(config.verifier)
    policy = policy or load_policy(config.policy, config.model, config.openai)
    check = CandidateCheck(policy, verifier, config.sampling, config.scope.max_prompt_tokens)
    stopping = config.stopping
    if config.topup:
        before = load_plan(run, config.name)
        stopping = replace(stopping, round_size=before.stopping.round_size)
        choice = _stored_choice(run, config.name, before)
        plan = _plan_of(config, policy, verifier, before.candidates)
        plan = replace(plan, verifier=before.verifier, verifier_id=before.verifier_id, stopping=before.stopping)
    else:
        choice = choose(store, "train", config.scope, check, config.seed)
        plan = _plan_of(config, policy, verifier, rows_hash(store, choice.rows))
    if not choice.rows:
        raise MissingError(f"no candidate is left to profile: {choice}; change the scope, the template or the verifier")
    hints = {"verifier_id": "for another verifier alone: `pivotrl rescore`"}
    hold_to(folder / "profile.json", plan, free=("policy", "verifier"), hints=hints)
    write_jsonl(folder / "candidates.jsonl", choice.rows)
    write_jsonl(folder / "excluded.jsonl", choice.left_out)
    rounds = _rounds(run, config.name, replace(plan, stopping=stopping), choice.rows)
    sampling = Sampling(
        policy=policy,
        verifier=verifier,
        params=config.sampling,
        n=plan.spending.first,
        seed=config.seed,
        truncation=config.truncation,
    )
    rounds.spend(sampling, topup=config.topup)
    result = _summarise(rounds, verifier, plan, choice.left_out)
    result = replace(result, warnings=_warnings(plan, check.blind))
    if not config.topup:
        run.record_stage("profile", config.name, _facts(config, policy.fingerprint, verifier, run))
    elif verifier_id(verifier) != plan.verifier_id:
        own = load_verifier(plan.verifier)
        rounds.rejudge(own, plan.truncation)
        _summarise(rounds, own, plan, choice.left_out)
    return result


def rescore(config: RescoreConfig, *, verifier: Verifier | None = None) -> ProfileResult:
    """Add a verdicts folder to a profile. Raises MissingError when there is no such profile."""
    run = RunDirectory(config.run)
    run.stages()
    plan = load_plan(run, config.name)
    verifier = verifier or load_verifier(config.verifier)
    choice = _stored_choice(run, config.name, plan)
    rounds = _rounds(run, config.name, plan, choice.rows)
    if plan.budget != "fixed" and f"profile/{config.name}" not in run.stages():
        raise MissingError(f"{run.profile(config.name)}: the profile is unfinished; run `pivotrl profile` again first")
    rounds.place = place = replace(rounds.place, stage="rescore", name=f"{config.name}.{verifier_id(verifier)}")
    with timed(place.ledger, place.stage, place.name):
        rounds.rejudge(verifier, plan.truncation)
    result = _summarise(rounds, verifier, plan, choice.left_out)
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
    row = next((row for row in profiled_rows(run, name, plan) if row.id == candidate_id), None)
    if row is None:
        raise MissingError(f"{run.profile(name)}: {candidate_id!r} was not profiled")
    groups = profiled_groups(run, name, load_verifier(plan.verifier))
    group = next(group for group in groups if group.candidate_id == candidate_id)
    return group, Candidate(trajectory=store.trajectory(row.trajectory_id), turn=row.turn)


def profiled_groups(run: RunDirectory, name: str, verifier: Verifier) -> Iterator[RolloutGroup]:
    """What a profile sampled, with this verifier's stored verdicts. Raises MissingError where it never judged them."""
    if not summary_path(run, name, verifier_id(verifier)).exists():
        raise MissingError(
            f"{run.profile(name)}: verifier {verifier.name} has not judged these rollouts; finish `pivotrl profile`, "
            "or `pivotrl rescore --verifier` it"
        )
    plan = load_plan(run, name)
    return _rounds(run, name, plan, profiled_rows(run, name, plan)).groups(verifier)


def summary_path(run: RunDirectory, name: str, verifier: str) -> Path:
    """The summary of a profile under a verifier id."""
    return run.profile(name) / "verdicts" / verifier / "summary.jsonl"


def profile_group(group: RolloutGroup, policy: str, verifier: str, most: int = 0) -> Profile:
    """Counts of one group (Eq. 5's mean and population variance) that could have had `most` rollouts."""
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
        stopped_early=len(group.verdicts) < most,
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


def _rounds(run: RunDirectory, name: str, plan: ProfilePlan, rows: list[CandidateRow]) -> Rounds:
    place = Place(
        store=RolloutStore(run.profile(name), RolloutPlan(rows=tuple(rows), n=plan.spending.first)),
        candidates=CandidateStore(run),
        ledger=Ledger(run.ledger),
        stage="profile",
        name=name,
    )
    return Rounds(place, rows, plan.spending)


def _stored_choice(run: RunDirectory, name: str, plan: ProfilePlan) -> Choice:
    """What was chosen when the profile was begun."""
    left_out = list(read_jsonl(run.profile(name) / "excluded.jsonl", SkippedTurn, "profile"))
    return Choice(profiled_rows(run, name, plan), left_out)


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
        budget=config.budget,
        stopping=config.stopping,
    )


def _summarise(rounds: Rounds, verifier: Verifier, plan: ProfilePlan, left_out: list[SkippedTurn]) -> ProfileResult:
    """Write the summary, and where sampling stopped early, which candidates that left unsettled."""
    words, policy, spending = verifier_id(verifier), fingerprint_id(plan.fingerprint), rounds.spending
    profiles, rewards = [], {}
    reasons, complaints = Counter[str](), Counter[str]()
    for group in rounds.groups(verifier):
        reasons.update(verdict.reason for verdict in group.verdicts if verdict.value is not None and verdict.value < 1)
        complaints.update(f"{one.reason}: {one.detail}" for one in group.verdicts if unscored(one))
        profiles.append(profile_group(group, policy, words, spending.most))
        rewards[group.candidate_id] = group.rewards
    summary = rounds.place.store.verdicts(verifier).with_name("summary.jsonl")
    write_jsonl(summary, profiles)
    unsettled = frozenset(rounds.unsettled(rewards))
    if plan.budget != "fixed":
        rest = [one for one in profiles if one.candidate_id in unsettled]
        write_jsonl(summary.with_name("unsettled.jsonl"), rest)
    return ProfileResult(
        profiles=tuple(profiles),
        mean=known_mean(group_statistics(one[: spending.first]).mean for one in rewards.values()),
        excluded=Choice([], left_out).reasons,
        folder=rounds.place.store.folder,
        truncation=plan.truncation,
        verifier=verifier.name,
        reasons=dict(reasons.most_common()),
        complaint=next((text for text, _ in complaints.most_common(1)), ""),
        unsettled=len(unsettled),
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
