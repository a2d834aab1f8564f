"""What a profile is told, what it was made of (`profile.json`), and how later stages read it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from pivotrl.budgets import Budget, StoppingSettings
from pivotrl.candidates import CandidateStore
from pivotrl.errors import ConfigError, InputError, MissingError, check_least
from pivotrl.ledger import Ledger
from pivotrl.manifests import named
from pivotrl.models import ModelSettings
from pivotrl.planning import RolloutPlan, Scope, rows_hash
from pivotrl.policies import OpenAISettings
from pivotrl.protocols import Verifier
from pivotrl.records import Records, records
from pivotrl.rollouts import Place, RolloutStore, Truncation
from pivotrl.rounds import Rounds, Spending
from pivotrl.run_directory import AnyPath, RunDirectory, check_name
from pivotrl.storage import content_hash, read_json, read_jsonl
from pivotrl.types import CandidateRow, Pivot, PolicyFingerprint, Profile, RolloutGroup, SamplingParams
from pivotrl.verifiers import verifier_id

DEFAULT_PROFILE: Final = "base"
STABILITY_FILE: Final = "stability.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileConfig:
    """Sample a frozen policy at every training candidate and reward each action."""

    run: AnyPath
    """Run directory, made by `ingest`."""
    policy: str
    """Hugging Face model directory or id, train/NAME (a model of this run), openai:MODEL behind a server, or
    scripted:package.module:function."""
    name: str = DEFAULT_PROFILE
    """Name of the profile."""
    rollouts: int = 16
    """K: actions sampled at each candidate (fixed), at most (curtailed), on average at most (bayes)."""
    budget: Budget = "fixed"
    """curtailed: stop where `select` decides alike whatever comes; bayes: more where it is undecided (`--rule
    posterior`)."""
    stopping: StoppingSettings = field(default_factory=StoppingSettings)
    shard: str | None = None
    """I/N: sample only the I-th of N shares of every round, beside other processes on the same disk."""
    workers: int = 1
    """Processes of this machine that share the work; every one of them loads the policy."""
    topup: bool = False
    """Go on with a finished profile where early stopping left candidates unsettled under this verifier."""
    again: str | None = None
    """Earlier profile to follow: those of its candidates that a selection from it kept, found hopeless or could not
    decide are profiled with this policy. Verifier, sampling, truncation and model stay as they were where they are left
    at their default."""
    everything: bool = False
    """With --again: all of its candidates."""
    stability: bool = False
    """Then profile the same candidates once more with other samples, as NAME.again, and say how far Eq. 5 with
    --stopping.lambda-diff selects the same."""
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
    plan: bool = False
    """Sample a pilot alone, and say what the whole profile will take."""
    pilot: int = 12
    """Trajectories of the pilot, 3 or more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RescoreConfig:
    """Judge the stored rollouts of a profile with another verifier; samples nothing."""

    run: AnyPath
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
    follows: str | None = None
    """Earlier profile that this one follows."""
    budget: Budget = "fixed"
    stopping: StoppingSettings = field(default_factory=StoppingSettings)

    @property
    def spending(self) -> Spending:
        return Spending(budget=self.budget, rollouts=self.rollouts, stopping=self.stopping)

    @property
    def settings(self) -> str:
        """16 hexadecimal digits that name what is sampled and how, whatever it is called."""
        return content_hash(replace(self, policy="", verifier=""))


def check(config: ProfileConfig, *, named: bool) -> None:
    """Raise ConfigError for what does not go together. `named`: policy and verifier are given by the config."""
    check_least(config, workers=1)
    check_name(f"{config.name}.again" if config.stability else config.name)
    several, sharded = config.workers > 1, config.shard is not None
    for wrong, why in (
        (several and not named, "workers: other processes can only be given a policy and a verifier by name"),
        (several and config.policy.startswith("openai:"), "workers: for a server raise --openai.concurrency instead"),
        (several and sharded, "workers: these are shards already; use --shard or --workers"),
        (config.topup and (several or sharded), "topup: it is done by one process; leave out --shard and --workers"),
        (config.plan and (several or sharded), "plan: measures one process; leave out --shard and --workers"),
        (config.stability and sharded, "stability: profile by shards first, then ask for it without --shard"),
        (config.plan and config.topup, "plan: is for a new profile; a top-up says at its start what it lacks"),
        (config.plan and config.stability, "plan: is of one profile; --stability takes twice as much"),
        (
            config.everything and config.again is None,
            "everything: only with --again; without it all candidates are profiled anyway",
        ),
        (
            config.topup and (config.stability or config.again is not None),
            "topup: goes on with one profile; leave out --again and --stability",
        ),
        (config.again == config.name, f"again {config.again!r}: a profile cannot follow itself; use another --name"),
    ):
        if wrong:
            raise ConfigError(why)


def load_plan(run: RunDirectory, name: str) -> ProfilePlan:
    """`profile.json` of a profile. Raises MissingError or InputError."""
    path = run.profile(name) / "profile.json"
    plan = read_json(path, ProfilePlan, f"profile --run {run.path} --name {name}")
    run.check(path)
    if not 1 <= plan.rollouts <= 10**6:
        raise InputError(
            f"{path}: rollouts {plan.rollouts}: must be from 1 to a million; restore it, or delete the folder and "
            "profile again"
        )
    return plan


def profiled_rows(run: RunDirectory, name: str, plan: ProfilePlan) -> Records[CandidateRow]:
    """The candidates of a profile. Raises ConfigError when the run was ingested anew since, with other trajectories."""
    folder = run.profile(name)
    rows = records(folder / "candidates.jsonl", CandidateRow, f"profile --run {run.path} --name {name}")
    run.check(folder / "candidates.jsonl")
    if rows_hash(CandidateStore(run), rows) != plan.candidates:
        raise ConfigError(
            f"{folder}: the trajectories are not those that were profiled; delete the folder and profile again"
        )
    return rows


def profiled_groups(run: RunDirectory, name: str, verifier: Verifier | str) -> Iterator[RolloutGroup]:
    """What a profile sampled, with the stored verdicts of a verifier or its id. Raises MissingError without any."""
    key, plan = verifier_id(verifier), load_plan(run, name)
    if not summary_path(run, name, key).exists():
        if not isinstance(verifier, str) and not verifier.settings:
            check_changed(run, name, plan, verifier.name, key)
        raise MissingError(
            f"{run.profile(name)}: verifier {key} has not judged these rollouts; finish `pivotrl profile`, "
            "or `pivotrl rescore --verifier` it"
        )
    return rounds_of(run, name, plan, profiled_rows(run, name, plan)).groups(verifier)


def check_changed(run: RunDirectory, name: str, plan: ProfilePlan, spec: str, verifier: str) -> None:
    """Raise MissingError where what this spec named before has judged a profile, and it is another verifier now."""
    rescored = {key: facts["config"] for key, facts in named(run.stages(), "rescore") if key != f"{name}.{verifier}"}
    earlier = [(plan.verifier, plan.verifier_id != verifier)]
    earlier += [(one["verifier"], True) for one in rescored.values() if one["name"] == name]
    if (spec, True) in earlier:
        raise MissingError(changed_verifier(run, name, spec))


def changed_verifier(run: RunDirectory, name: str, spec: str) -> str:
    """What to do where a verifier is no longer the one of this spec that judged a profile."""
    return (
        f"verifier {spec!r} has changed since it judged profile {name!r} (its file was edited, or its version is "
        f"another); run `pivotrl rescore --verifier {shlex.quote(spec)} --run {run.path} --name {name}` again"
    )


def summary_path(run: RunDirectory, name: str, verifier: str) -> Path:
    """The summary of a profile under a verifier id."""
    return run.profile(name) / "verdicts" / check_name(verifier) / "summary.jsonl"


def wrote(run: RunDirectory, name: str) -> list[Path]:
    """What a profile is made of besides its part files, whose lines have sums of their own."""
    folder = run.profile(name)
    made = [folder / f"{one}.jsonl" for one in ("candidates", "excluded")]
    return [folder / "profile.json", *made, *folder.glob("verdicts/*/[!p]*.jsonl")]


def fingerprint_id(fingerprint: PolicyFingerprint) -> str:
    """16 hexadecimal digits."""
    return content_hash(fingerprint)


def worth_another(run: RunDirectory, profile: str) -> frozenset[str]:
    """Ids of the candidates that a selection from this profile kept, or that had too few scored rollouts for it, or a
    mean reward below its lambda-diff. Raises MissingError where nothing was selected from it.

    What it found solved or too easy has hardly become harder for a policy that has trained on the rest.
    """
    chosen: set[str] = set()
    selections = [one for one in named(run.stages(), "select") if one[1]["config"]["profile"] == profile]
    for name, facts in selections:
        settings = facts["config"]
        summary = summary_path(run, profile, facts["verifier_id"])
        made_by = f"select --run {run.path} --profile {profile} --name {name}"
        chosen.update(pivot.candidate_id for pivot in read_jsonl(run.pivots(name), Pivot, made_by))
        chosen.update(
            one.candidate_id
            for one in read_jsonl(summary, Profile, made_by)
            if one.mean is None or one.n < settings["min_scored"] or one.mean < settings["lambda_diff"]
        )
        run.check(run.pivots(name), summary)
    if not selections:
        raise MissingError(
            f"nothing was selected from profile {profile!r}, which would say what is worth profiling again; run "
            f"`pivotrl select --run {run.path} --profile {profile}` first, or take --everything"
        )
    return frozenset(chosen)


def rounds_of(run: RunDirectory, name: str, plan: ProfilePlan, rows: Sequence[CandidateRow], pilot: str = "") -> Rounds:
    """Those of a profile, or of one of its pilots."""
    folder = run.profile(name) / "pilots" / pilot if pilot else run.profile(name)
    place = Place(
        store=RolloutStore(folder, RolloutPlan(rows=rows, n=plan.spending.first)),
        candidates=CandidateStore(run),
        ledger=Ledger(run.ledger),
        stage="plan" if pilot else "profile",
        name=f"{name}.{pilot}" if pilot else name,
    )
    return Rounds(place, rows, plan.spending)
