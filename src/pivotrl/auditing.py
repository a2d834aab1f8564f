"""`audit`: is this verifier any good on this data? Nothing is sampled.

    demonstrations  the gradable ones, which parse and satisfy their tools' schemas (decided before the verifier is
                    asked): it should accept them all, and every one that it refuses is listed
    samples         of a profile, where there is one: how often strict matching (Eq. 2) refuses what is accepted
    other actions   what demonstrations of other states earn: other turns of the trajectory, and turns of other tasks
                    that call the same tools (or say something, as this one). Some of them may really be acceptable
    attacks         what the actions of `verifiers.attacks` earn: nothing, where the verifier has no hole
    labels          agreement with a file of labelled actions; one that is unscored is not accepted, in no agreement

Shares are mean rewards with 95% intervals clustered by trajectory: accept rates, where a verifier says 0 or 1.
A judge is asked about all actions of a trajectory at once, and billed.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from pivotrl.audit_result import ATTACKS, DEMONSTRATIONS, LABELS, OTHERS, SAMPLES, AuditResult, Earned, Earnings
from pivotrl.candidates import CandidateStore, by_trajectory
from pivotrl.errors import InputError, MissingError, check_least
from pivotrl.evaluation_settings import folder_name
from pivotrl.ledger import Ledger, timed
from pivotrl.logs import Progress
from pivotrl.planning import RolloutPlan, random_rows
from pivotrl.profile_settings import DEFAULT_PROFILE, ProfilePlan, load_plan, profiled_rows
from pivotrl.protocols import Verifier
from pivotrl.rollouts import RolloutStore, Truncation, expect_judging, judge_all, judging
from pivotrl.run_directory import AnyPath, RunDirectory
from pivotrl.storage import file_hash, read_jsonl, write_atomic, write_json
from pivotrl.types import Action, Candidate, CandidateRow, Completion, SkippedTurn, Verdict
from pivotrl.verifiers import load_verifier, taken_over, verifier_id
from pivotrl.verifiers.attacks import MOST, attacks, substance
from pivotrl.verifiers.exact import ExactVerifier
from pivotrl.verifiers.schema import demonstrated

ACCEPTED: Final = 0.5
"""The least reward that counts as acceptance."""
SAME_TRAJECTORY: Final = "another turn of this trajectory"
OTHER_TASK: Final = "the same tools in another task"
_OF_LABELS: Final = "a line has candidate_id, label (0 or 1), and text or action"
_Pool = dict[tuple[str, ...], list[tuple[str, Action]]]
"""(group, demonstration) by the names of the called tools."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditConfig:
    """Say how good a verifier is on this data: what it refuses, accepts, and can be tricked into. Samples nothing."""

    run: AnyPath
    """Run directory, made by `ingest`."""
    verifier: str | None = None
    """As in profile; by default the profile's, else auto."""
    profile: str = DEFAULT_PROFILE
    """Profile whose samples show how strict matching compares; left out where none is named or called so."""
    labels: Path | None = None
    """JSON Lines of candidate_id, label (0 or 1), and text (of a message) or action ({"text", "calls"})."""
    max_candidates: int = 1000
    """Audit a random sample of at most this many, of the profile's, too; each costs some 20 verdicts."""
    others: int = 4
    """Demonstrations of other states tried at each: of its own trajectory, and as many of other tasks."""
    seed: int = 0
    """Of both choices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledAction:
    """A line of the file of labels: whether an action is acceptable at a candidate."""

    candidate_id: str
    label: Literal[0, 1]
    action: Action | None = None
    text: str | None = None
    """A message that says this."""


def audit(config: AuditConfig, *, verifier: Verifier | None = None) -> AuditResult:
    """Write `audit.md`, `audit.json` and `audit.svg` in a folder of the verifier's own, and give what they say.

    Raises MissingError (no run, no candidates, no labels), ConfigError (a bad setting), InputError (bad labels), and
    what a judge raises.
    """
    check_least(config, max_candidates=1, others=1)
    run = RunDirectory(config.run)
    run.stages()
    profiled = config.profile != DEFAULT_PROFILE or (run.profile(config.profile) / "profile.json").exists()
    plan = load_plan(run, config.profile) if profiled else None
    verifier = verifier or load_verifier(config.verifier or (taken_over(plan.verifier, run.path) if plan else "auto"))
    name, store = verifier_id(verifier), CandidateStore(run)
    rows = store.rows()
    if not rows:
        raise MissingError(f"{run.path}: no candidates; see audit.jsonl, or ingest more")
    with timed(Ledger(run.ledger), "audit", name):
        result = _audited(config, plan, verifier, store, random_rows(rows, config.max_candidates, config.seed))
        write_json(result.path.with_suffix(".json"), replace(result, path=Path(result.path.name)))
        write_atomic(result.path.with_suffix(".svg"), result.picture().encode())
        write_atomic(result.path, result.page().encode())
    facts = {"config": config, "verifier_id": name, "inputs": {"candidates.jsonl": file_hash(run.candidates)}}
    run.record_stage("audit", name, facts, [result.path.with_suffix(end) for end in (".json", ".svg", ".md")])
    return result


def _audited(
    config: AuditConfig,
    plan: ProfilePlan | None,
    verifier: Verifier,
    store: CandidateStore,
    rows: Sequence[CandidateRow],
) -> AuditResult:
    tallies: dict[str, dict[str, Earnings]] = {
        title: defaultdict(Earnings) for title in (DEMONSTRATIONS, OTHERS, ATTACKS)
    }
    ungradable, refused = list[SkippedTurn](), list[SkippedTurn]()
    labels = _labels(config, store, verifier)
    samples = _samples(config, plan, store, verifier) if plan else ()
    by_id, pool = {row.id: row for row in rows}, _pool(store, rows)
    expect_judging(verifier, store, rows, 1 + 2 * config.others + MOST)
    with Progress("audit", len(rows)) as progress:
        for trajectory_id, candidates in store.units(rows):
            tried = [(one, *what) for one in candidates for what in _tried(by_id[one.id], one, pool, config)]
            pairs = [(candidate, completion) for candidate, _, _, completion in tried]
            verdicts = _verdicts(verifier, store.run, trajectory_id, pairs)
            for (candidate, title, name, _), verdict in zip(tried, verdicts, strict=True):
                tallies[title][name].judged(candidate, verdict)
                if title == DEMONSTRATIONS and verdict.value != 1.0:
                    refused.append(_turn(candidate, verdict.reason, verdict.detail))
            ungradable += filter(None, map(_ungradable, candidates))
            progress.advance(len(candidates))
    shares = {title: tuple(tally.share(name) for name, tally in some.items()) for title, some in tallies.items()}
    return AuditResult(
        path=store.run.path / "audits" / folder_name(verifier.name, verifier_id(verifier)) / "audit.md",
        verifier=verifier.name,
        verifier_id=verifier_id(verifier),
        candidates=len(rows),
        trajectories=len({row.trajectory_id for row in rows}),
        ungradable=tuple(ungradable),
        refused=tuple(refused),
        shares=shares | {title: some for title, some in ((SAMPLES, samples), (LABELS, labels)) if some},
    )


def _verdicts(
    verifier: Verifier,
    run: RunDirectory,
    trajectory_id: str,
    pairs: Sequence[tuple[Candidate, Completion]],
    truncation: Truncation = "zero",
) -> list[Verdict]:
    with judging(Ledger(run.ledger), "audit", verifier_id(verifier), trajectory_id, verifier):
        return judge_all(verifier, pairs, truncation)


def _tried(
    row: CandidateRow, candidate: Candidate, pool: _Pool, config: AuditConfig
) -> Iterator[tuple[str, str, Completion]]:
    """Section, name and action of everything that is tried at a candidate."""
    if _ungradable(candidate) is None:
        yield DEMONSTRATIONS, f"gradable {row.kind}s", _done(candidate.demonstration)
    yield from ((OTHERS, name, _done(action)) for name, action in _others(row, candidate, pool, config))
    yield from ((ATTACKS, name, completion) for name, completion in attacks(candidate))


def _done(action: Action) -> Completion:
    return Completion(action=action, text="", finish_reason="stop")


def _turn(candidate: Candidate, reason: str, detail: str) -> SkippedTurn:
    return SkippedTurn(trajectory_id=candidate.trajectory.id, turn=candidate.turn, reason=reason, detail=detail)


def _ungradable(candidate: Candidate) -> SkippedTurn | None:
    problems = (one.problem for one in demonstrated(candidate) if one.problem)
    return next((_turn(candidate, "schema", problem) for problem in problems), None)


def _pool(store: CandidateStore, rows: Sequence[CandidateRow]) -> _Pool:
    pool: _Pool = defaultdict(list)
    for row, candidate in store.loaded(rows):
        pool[row.tools].append((row.group, candidate.demonstration))
    return pool


def _others(row: CandidateRow, candidate: Candidate, pool: _Pool, config: AuditConfig) -> Iterator[tuple[str, Action]]:
    """Demonstrations of other states that are not this one, in a random order of their own."""
    own = substance(candidate.demonstration)
    turns = [
        replace(candidate, turn=turn).demonstration
        for turn, message in enumerate(candidate.trajectory.messages)
        if message.role == "assistant" and message.excluded is None
    ]
    abroad = [action for group, action in pool[row.tools] if group != row.group]
    source = random.Random(f"{config.seed}/{row.id}")
    for name, actions in ((SAME_TRAJECTORY, turns), (OTHER_TASK, abroad)):
        tried = source.sample(actions, min(len(actions), 4 * config.others))
        different = [action for action in tried if substance(action) not in (own, "")]
        yield from ((name, action) for action in different[: config.others])


def _samples(config: AuditConfig, plan: ProfilePlan, store: CandidateStore, verifier: Verifier) -> tuple[Earned, ...]:
    run, strict = store.run, ExactVerifier()
    folder = run.profile(config.profile)
    rows = profiled_rows(run, config.profile, plan)
    chosen = {row.id for row in random_rows(rows, config.max_candidates, config.seed)}
    stored = RolloutStore(folder, RolloutPlan(rows=rows, n=plan.rollouts))
    ours, theirs, missed = Earnings(), Earnings(), Earnings()
    expect_judging(verifier, store, [row for row in rows if row.id in chosen], plan.rollouts)
    for (_, unit), rollouts in zip(by_trajectory(rows), stored.unit_rollouts(0), strict=False):
        for trajectory_id, candidates in store.units(row for row in unit if row.id in chosen):
            by_id = {candidate.id: candidate for candidate in candidates}
            pairs = [(by_id[one.candidate_id], one.completion) for one in rollouts if one.candidate_id in by_id]
            verdicts = _verdicts(verifier, run, trajectory_id, pairs, plan.truncation)
            exacts = _verdicts(strict, run, trajectory_id, pairs, plan.truncation)
            for (candidate, _), verdict, exact in zip(pairs, verdicts, exacts, strict=True):
                ours.judged(candidate, verdict)
                theirs.judged(candidate, exact)
                if exact.value is not None and _accepted(verdict):
                    missed.add(candidate, 1.0 - exact.value)
    return ours.share(verifier.name), theirs.share(strict.name), missed.share("accepted ones that exact refuses")


def _labels(config: AuditConfig, store: CandidateStore, verifier: Verifier) -> tuple[Earned, ...]:
    if config.labels is None:
        return ()
    labelled: dict[str, list[LabelledAction]] = defaultdict(list)
    read = _read_labels(config.labels)
    named = {one.candidate_id for one in read}
    known = {row.id: row for row in store.rows() if row.id in named}
    for number, one in enumerate(read, start=1):
        if one.candidate_id not in known or (one.action is None) == (one.text is None):
            wrong = "text or action, one of them" if one.candidate_id in known else f"no candidate {one.candidate_id!r}"
            raise InputError(f"{config.labels}:{number}: {wrong}; {_OF_LABELS}")
        labelled[one.candidate_id].append(one)
    made: dict[str, Earnings] = defaultdict(Earnings)
    chosen, judges = [*known.values()], {one.name: one for one in (verifier, ExactVerifier())}
    expect_judging(verifier, store, chosen, max(map(len, labelled.values())))
    for judge in judges.values():
        for trajectory_id, candidates in store.units(chosen):
            tried = [(candidate, one) for candidate in candidates for one in labelled[candidate.id]]
            pairs = [(candidate, _done(one.action or Action(text=one.text))) for candidate, one in tried]
            verdicts = _verdicts(judge, store.run, trajectory_id, pairs)
            for (candidate, one), verdict in zip(tried, verdicts, strict=True):
                accepted, right = _accepted(verdict), one.label == 1
                agrees = None if verdict.value is None else float(accepted == right)
                made[f"agreement of {judge.name}"].add(candidate, agrees)
                if accepted:
                    made[f"precision of {judge.name}"].add(candidate, float(right))
                if right:
                    made[f"recall of {judge.name}"].add(candidate, float(accepted))
    names = [f"{what} of {judge}" for judge in judges for what in ("agreement", "precision", "recall")]
    return tuple(made[name].share(name) for name in names if name in made)


def _read_labels(path: Path) -> list[LabelledAction]:
    try:
        if labels := list(read_jsonl(path, LabelledAction)):
            return labels
    except InputError as error:
        raise InputError(f"{str(error).rpartition('; ')[0]}; {_OF_LABELS}") from None
    raise InputError(f"{path}: no line in it; {_OF_LABELS}")


def _accepted(verdict: Verdict) -> bool:
    return verdict.value is not None and verdict.value >= ACCEPTED
