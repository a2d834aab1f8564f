"""Profile: a frozen policy samples K actions at every training candidate, a verifier rewards each (section 3).

Departures from the paper (arXiv 2603.21383):
 1. Demonstrations that their own verifier refuses are excluded first, and listed: they could only mislead.
 2. Unscored rollouts (the verifier failed) are left out of mean and variance, and counted.
 3. A truncated rollout is a wrong action (`zero`) or left out (`exclude`); training follows the same setting.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from pivotrl.budgets import StoppingSettings
from pivotrl.candidates import CandidateStore
from pivotrl.errors import MissingError
from pivotrl.ledger import timed
from pivotrl.models import resolve, tokenizer_hash, trained_model, weights_hash
from pivotrl.piloting import pilot_rows, run_pilot
from pivotrl.planning import CandidateCheck, Choice, Scope, check_sampling, choose, rows_hash
from pivotrl.policies import has_weights, load_policy
from pivotrl.profile_result import ProfileResult, Tally, profile_group
from pivotrl.profile_settings import (
    DEFAULT_PROFILE,
    STABILITY_FILE,
    ProfileConfig,
    ProfilePlan,
    RescoreConfig,
    check,
    fingerprint_id,
    load_plan,
    profiled_groups,
    profiled_rows,
    rounds_of,
    summary_path,
    worth_another,
    wrote,
)
from pivotrl.protocols import Policy, Verifier
from pivotrl.rollouts import Sampling
from pivotrl.rounds import Rounds
from pivotrl.run_directory import AnyPath, RunDirectory, check_begun, hold_to
from pivotrl.sharding import Shard
from pivotrl.stability import Stability, stability_of
from pivotrl.storage import FileLock, content_hash, file_hash, read_jsonl, seed_of, write_json, write_jsonl
from pivotrl.types import Candidate, PolicyFingerprint, Profile, RolloutGroup, SkippedTurn
from pivotrl.verifiers import load_verifier, taken_over, verifier_id
from pivotrl.workers import call_all

_FREE: Final = ("policy", "verifier")
_HINTS: Final = {"verifier_id": "for another verifier alone: `pivotrl rescore`"}
"""Of what a begun profile is held to: names, for which ids are compared, and what to do otherwise."""


def profile(config: ProfileConfig, *, policy: Policy | None = None, verifier: Verifier | None = None) -> ProfileResult:
    """Run or resume a profile. `policy` and `verifier` may be given as objects instead of by the config's names.

    Raises MissingError (no run, no model, no candidates), ConfigError (a bad setting, or a profile of this name with
    other settings), BusyError (another process writes it), StorageError (the disk).
    """
    check(config, named=policy is None and verifier is None)
    result = _by_workers(config) if config.workers > 1 else _profile(config, policy, verifier)
    return replace(result, stability=_twice(config, result, policy, verifier)) if config.stability else result


class Profiled(NamedTuple):
    """A candidate with what was sampled at it, and the counts of that."""

    candidate: Candidate
    profile: Profile
    group: RolloutGroup


def profiled(run: AnyPath, name: str = DEFAULT_PROFILE, verifier: Verifier | str | None = None) -> Iterator[Profiled]:
    """Every candidate of a finished profile, by its own verifier or one that rescored it. Raises a PivotRLError."""
    home = RunDirectory(run)
    plan, store = load_plan(home, name), CandidateStore(home)
    given = load_verifier(verifier) if isinstance(verifier, str) else verifier
    judge = plan.verifier_id if given is None else verifier_id(given)
    groups = profiled_groups(home, name, judge)
    home.check(summary := summary_path(home, name, judge))
    profiles = read_jsonl(summary, Profile)
    loaded = store.loaded(profiled_rows(home, name, plan))
    for (_, candidate), counts, group in zip(loaded, profiles, groups, strict=True):
        yield Profiled(candidate, counts, group)


def _profile(config: ProfileConfig, policy: Policy | None, verifier: Verifier | None) -> ProfileResult:
    """By this process alone, or its shard of it."""
    run = RunDirectory(config.run)
    run.stages()
    config = _following(config, run)
    check_sampling(config.rollouts, config.sampling)
    shard = None if config.shard is None else Shard.parse(config.shard)
    folder = run.profile(config.name)
    verifier = verifier or load_verifier(config.verifier)
    _check_begun(config, folder / "profile.json", policy, verifier)
    policy = policy or load_policy(config.policy, config.model, config.openai)
    check = CandidateCheck(policy, verifier, config.sampling, config.scope.max_prompt_tokens)
    choice, plan, stopping = _choice(config, run, check)
    if not choice.rows:
        raise MissingError(f"no candidate is left to profile: {choice}; change the scope, the template or the verifier")
    if config.plan:
        return _planned(config, run, plan, choice, policy, verifier)
    with FileLock(folder / ".plan.lock", wait=600.0):
        hold_to(folder / "profile.json", plan, free=_FREE, hints=_HINTS)
        write_jsonl(folder / "candidates.jsonl", choice.rows)
        write_jsonl(folder / "excluded.jsonl", choice.left_out)
    rounds = rounds_of(run, config.name, replace(plan, stopping=stopping), choice.rows)
    waiting = rounds.spend(_sampling(config, plan, policy, verifier), topup=config.topup, shard=shard)
    if waiting:
        return _result(rounds, verifier, plan, choice.left_out, Tally(), waiting=waiting)
    result = _summarise(rounds, verifier, plan, choice.left_out)
    result = replace(result, warnings=tuple(_warnings(plan, check.blind)), follows=plan.follows)
    if config.topup:
        _topped_up(config.name, run, rounds, verifier, plan, choice.left_out)
    else:
        facts = _facts(config, policy.fingerprint, verifier, run) | {"reasons": result.reasons, "mean": result.mean}
        run.record_stage("profile", config.name, facts, wrote(run, config.name))
    return result


def _check_begun(config: ProfileConfig, path: Path, policy: Policy | None, verifier: Verifier) -> None:
    """Compare a profile of this name with what is known before a model is loaded, which may take minutes."""
    if config.plan or not path.exists():
        return
    told = _settings(config, verifier) | {"follows": config.again}
    if config.topup:  # all else is as it was
        told = {name: told[name] for name in told if name not in ("verifier_id", "stopping", "follows")}
    if policy is not None:
        told["fingerprint"] = policy.fingerprint
    elif has_weights(config.policy):
        model = resolve(config.policy)
        told["fingerprint"] = {"weights": weights_hash(model), "tokenizer": tokenizer_hash(model)}
    check_begun(path, told, free=_FREE, hints=_HINTS)


def _topped_up(
    name: str, run: RunDirectory, rounds: Rounds, verifier: Verifier, plan: ProfilePlan, left_out: list[SkippedTurn]
) -> None:
    """Have the profile's own verifier judge what another one asked for, and record the files as they are now."""
    if verifier_id(verifier) != plan.verifier_id:
        own = load_verifier(taken_over(plan.verifier, run.path))
        rounds.rejudge(own, plan.truncation)
        _summarise(rounds, own, plan, left_out)
    if before := run.stages().get(f"profile/{name}"):
        run.record_stage("profile", name, before, wrote(run, name))


def _choice(
    config: ProfileConfig, run: RunDirectory, check: CandidateCheck
) -> tuple[Choice, ProfilePlan, StoppingSettings]:
    """The candidates, the plan that is held to, and how this call stops: a top-up by its own settings."""
    if not config.topup:
        store = CandidateStore(run)
        choice = choose(store, "train", config.scope, check, config.seed, _among(config, run))
        return choice, _plan_of(config, check.policy, check.verifier, rows_hash(store, choice.rows)), config.stopping
    before = load_plan(run, config.name)
    plan = _plan_of(config, check.policy, check.verifier, before.candidates)
    plan = replace(plan, verifier=before.verifier, verifier_id=before.verifier_id, stopping=before.stopping)
    stopping = replace(config.stopping, round_size=before.stopping.round_size)
    return _stored_choice(run, config.name, before), replace(plan, follows=before.follows), stopping


def _sampling(config: ProfileConfig, plan: ProfilePlan, policy: Policy, verifier: Verifier) -> Sampling:
    return Sampling(
        policy=policy,
        verifier=verifier,
        params=config.sampling,
        n=plan.spending.first,
        seed=config.seed,
        truncation=config.truncation,
    )


def _by_workers(config: ProfileConfig) -> ProfileResult:
    """All shards of round after round, until the last one of them has finished the profile."""
    count = config.workers
    config = replace(config, stability=False)
    shards = [replace(config, workers=1, shard=str(Shard(number, count))) for number in range(1, count + 1)]
    while True:
        results: list[ProfileResult] = call_all("pivotrl.profiling:profile", shards)
        for result in results:
            if not result.waiting:
                return result


def _planned(
    config: ProfileConfig, run: RunDirectory, plan: ProfilePlan, choice: Choice, policy: Policy, verifier: Verifier
) -> ProfileResult:
    """Profile a pilot in a folder of its own, and write `plan.json`."""
    rows = pilot_rows(choice.rows, config.pilot, config.seed)
    key = content_hash([plan.settings, config.pilot])
    rounds, sampling = rounds_of(run, config.name, plan, rows, pilot=key), _sampling(config, plan, policy, verifier)
    forecast = run_pilot(rounds, sampling, choice.rows, plan.settings, config.openai)
    write_jsonl(rounds.place.store.folder / "excluded.jsonl", choice.left_out)
    write_json(run.profile(config.name) / "plan.json", forecast)
    run.record_stage("plan", config.name, _facts(config, policy.fingerprint, verifier, run))
    return replace(_summarise(rounds, verifier, plan, choice.left_out), forecast=forecast)


def _following(config: ProfileConfig, run: RunDirectory) -> ProfileConfig:
    """With the settings of the profile that it follows where it gives none, and a model of this run by its path."""
    config = replace(config, policy=trained_model(run, config.policy))
    if config.again is None:
        return config
    before, plain = load_plan(run, config.again), ProfileConfig(run=config.run, policy="")
    unsaid = [one for one in ("verifier", "sampling", "truncation") if getattr(config, one) == getattr(plain, one)]
    inherited = {name: getattr(before, name) for name in unsaid}
    taken_over(str(inherited.get("verifier", "auto")), run.path)
    return replace(config, **inherited, model=config.model.inherit(before.model))


def _among(config: ProfileConfig, run: RunDirectory) -> frozenset[str] | None:
    """The candidates to choose from, where the profile follows another."""
    if config.again is None:
        return None
    if config.everything:
        return frozenset(row.id for row in profiled_rows(run, config.again, load_plan(run, config.again)))
    return worth_another(run, config.again)


def _twice(config: ProfileConfig, first: ProfileResult, policy: Policy | None, verifier: Verifier | None) -> Stability:
    """Profile the same candidates by other samples and compare; written to `stability.json`."""
    name, seed = f"{config.name}.again", seed_of(f"stability/{config.seed}")
    twin = replace(config, name=name, again=config.name, everything=True, scope=Scope(), stability=False, seed=seed)
    second = profile(twin, policy=policy, verifier=verifier)
    found = stability_of(
        first.profiles,
        second.profiles,
        other=name,
        lambda_diff=config.stopping.lambda_diff,
        rollouts=config.rollouts if config.budget == "curtailed" else None,
    )
    write_json(RunDirectory(config.run).profile(config.name) / STABILITY_FILE, found)
    return found


def rescore(config: RescoreConfig, *, verifier: Verifier | None = None) -> ProfileResult:
    """Add a verdicts folder to a profile. Raises MissingError when there is no such profile."""
    run = RunDirectory(config.run)
    run.stages()
    plan = load_plan(run, config.name)
    verifier = verifier or load_verifier(config.verifier)
    choice = _stored_choice(run, config.name, plan)
    rounds = rounds_of(run, config.name, plan, choice.rows)
    if plan.budget != "fixed" and f"profile/{config.name}" not in run.stages():
        raise MissingError(f"{run.profile(config.name)}: the profile is unfinished; run `pivotrl profile` again first")
    rounds.place = place = replace(rounds.place, stage="rescore", name=f"{config.name}.{verifier_id(verifier)}")
    with timed(place.ledger, place.stage, place.name):
        rounds.rejudge(verifier, plan.truncation)
    result = _summarise(rounds, verifier, plan, choice.left_out)
    facts = {"config": config, "verifier_id": verifier_id(verifier)}
    made = [result.summary, result.summary.with_name("unsettled.jsonl")]
    run.record_stage(place.stage, place.name, facts, made)
    return result


def _stored_choice(run: RunDirectory, name: str, plan: ProfilePlan) -> Choice:
    """What was chosen when the profile was begun."""
    left_out = list(read_jsonl(run.profile(name) / "excluded.jsonl", SkippedTurn, "profile"))
    run.check(run.profile(name) / "excluded.jsonl")
    return Choice(profiled_rows(run, name, plan), left_out)


def _plan_of(config: ProfileConfig, policy: Policy, verifier: Verifier, candidates: str) -> ProfilePlan:
    told = _settings(config, verifier)
    return ProfilePlan(**told, fingerprint=policy.fingerprint, candidates=candidates, follows=config.again)


def _settings(config: ProfileConfig, verifier: Verifier) -> dict[str, Any]:
    """What of a plan the command and the verifier say."""
    shared = [name for name in ProfilePlan.__slots__ if name in ProfileConfig.__slots__]
    return {name: getattr(config, name) for name in shared} | {"verifier_id": verifier_id(verifier)}


def _summarise(rounds: Rounds, verifier: Verifier, plan: ProfilePlan, left_out: list[SkippedTurn]) -> ProfileResult:
    """Write the summary, and where sampling stopped early, which candidates that left unsettled."""
    words, policy, spending = verifier_id(verifier), fingerprint_id(plan.fingerprint), rounds.spending
    tally, rewards = Tally(), dict[str, Sequence[float | None]]()

    def profiles() -> Iterator[Profile]:
        for group in rounds.groups(verifier):
            one = profile_group(group, policy, words, spending.most)
            tally.add(group, one, spending.first)
            if plan.budget != "fixed":
                rewards[group.candidate_id] = group.rewards
            yield one

    summary = _summary(rounds, verifier)
    write_jsonl(summary, profiles())
    unsettled = frozenset(rounds.unsettled(rewards))
    if plan.budget != "fixed":
        rest = (one for one in read_jsonl(summary, Profile) if one.candidate_id in unsettled)
        write_jsonl(summary.with_name("unsettled.jsonl"), rest)
    return _result(rounds, verifier, plan, left_out, tally, unsettled=len(unsettled))


def _result(
    rounds: Rounds, verifier: Verifier, plan: ProfilePlan, left_out: list[SkippedTurn], tally: Tally, **facts: Any
) -> ProfileResult:
    return ProfileResult(
        tally=tally,
        summary=_summary(rounds, verifier),
        excluded=Choice([], left_out).reasons,
        folder=rounds.place.store.folder,
        truncation=plan.truncation,
        verifier=verifier.name,
        **facts,
    )


def _summary(rounds: Rounds, verifier: Verifier) -> Path:
    return rounds.place.store.verdicts(verifier).with_name("summary.jsonl")


def _warnings(plan: ProfilePlan, blind: int) -> Iterator[str]:
    """What would make the profile useless without looking wrong."""
    if blind:
        yield (
            f"warning: at {blind} candidates a call is demonstrated and the tools are unknown, so the policy is told "
            "of none; give their schemas to `pivotrl ingest --tools`"
        )
    if plan.rollouts == 1 or plan.sampling.temperature == 0:
        yield "warning: one rollout, or greedy sampling, shows no variance; nothing can be selected from this"


def _facts(
    config: ProfileConfig, fingerprint: PolicyFingerprint, verifier: Verifier, run: RunDirectory
) -> dict[str, Any]:
    judge = {"name": verifier.name, "version": verifier.version, "settings": dict(verifier.settings)}
    return {
        "config": replace(config, shard=None, workers=1),
        "fingerprint": fingerprint,
        "verifier": {"id": verifier_id(verifier)} | judge,
        "inputs": {"candidates.jsonl": file_hash(run.candidates)},
    }
