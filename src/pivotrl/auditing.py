"""`audit`: is this verifier any good on this data? Nothing is sampled.

    demonstrations  the gradable ones, which parse and satisfy their tools' schemas (decided before the verifier is
                    asked): it should accept them all, and every one that it refuses is listed
    samples         of a profile, where there is one: how often strict matching (Eq. 2) refuses what is accepted
    other actions   what demonstrations of other states earn: other turns of the trajectory, and turns of other tasks
                    that call the same tools (or say something, as this one). Some of them may really be acceptable
    attacks         what the actions of `verifiers.attacks` earn: nothing, where the verifier has no hole
    labels          agreement with a file of labelled actions

Shares are mean rewards with 95% intervals clustered by trajectory: accept rates, where a verifier says 0 or 1.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from pivotrl.candidates import CandidateStore
from pivotrl.charts import share_chart
from pivotrl.errors import ConfigError, InputError, MissingError
from pivotrl.ledger import Ledger, timed
from pivotrl.logs import Progress
from pivotrl.metrics import clustered_mean, format_estimate
from pivotrl.planning import RolloutPlan
from pivotrl.profiling import DEFAULT_PROFILE, load_plan, profiled_rows
from pivotrl.reporting import table
from pivotrl.rollouts import RolloutStore, judge
from pivotrl.storage import RunDirectory, file_hash, read_jsonl, write_atomic, write_json
from pivotrl.types import Action, Candidate, CandidateRow, Completion, Estimate, SkippedTurn, Verdict, Verifier
from pivotrl.verifiers import load_verifier, verifier_id, verify
from pivotrl.verifiers.attacks import attacks, substance
from pivotrl.verifiers.exact import ExactVerifier
from pivotrl.verifiers.schemas import demonstrated

LISTED: Final = 50
"""Demonstrations that `audit.md` lists of each kind; `audit.json` has all."""
EXAMPLES: Final = 3
"""Rewarded actions of each kind that are named."""
ACCEPTED: Final = 0.5
"""The least reward that counts as acceptance."""
DEMONSTRATIONS: Final = "Demonstrations (should earn 1)"
OTHERS: Final = "Other actions (should earn next to nothing)"
ATTACKS: Final = "Attacks (should earn nothing)"
SAMPLES: Final = "Samples of the profile"
LABELS: Final = "Labelled actions"
SAME_TRAJECTORY: Final = "another turn of this trajectory"
OTHER_TASK: Final = "the same tools in another task"
_OF_LABELS: Final = "a line has candidate_id, label (0 or 1), and text or action"
_Pool = dict[tuple[str, ...], list[tuple[str, Action]]]
"""(group, demonstration) by the names of the called tools."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditConfig:
    """Say how good a verifier is on this data: what it refuses, accepts, and can be tricked into. Samples nothing."""

    run: Path
    """Run directory, made by `ingest`."""
    verifier: str = "auto"
    """As in profile."""
    profile: str = DEFAULT_PROFILE
    """Profile whose samples show how strict matching compares; without one of this name that is left out."""
    labels: Path | None = None
    """JSON Lines of candidate_id, label (0 or 1), and text (of a message) or action ({"text", "calls"})."""
    max_candidates: int = 1000
    """Audit a random sample of at most this many; each costs some 20 verdicts."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one kind of action earns."""

    name: str
    reward: Estimate | None
    """None where nothing was scored."""
    rewarded: int
    """Actions that earn anything at all."""
    unscored: int
    reasons: dict[str, int]
    """Reason codes, the most frequent first."""
    examples: tuple[str, ...]
    """Rewarded ones."""

    def __str__(self) -> str:
        known = "none scored" if self.reward is None else format_estimate(self.reward).replace("tasks", "trajectories")
        return f"{known}, {self.unscored} unscored" if self.unscored else known


class _Tally:
    """The rewards of one kind of action."""

    def __init__(self) -> None:
        self.rewards: list[float] = []
        self.trajectories: list[str] = []
        self.reasons: Counter[str] = Counter()
        self.examples: list[str] = []
        self.unscored = 0

    def judged(self, candidate: Candidate, verdict: Verdict) -> None:
        self.reasons[verdict.reason] += 1
        if verdict.value is None:
            self.unscored += 1
            return
        self.add(candidate, verdict.value)
        if verdict.value > 0 and len(self.examples) < EXAMPLES:
            self.examples.append(f"{candidate.id}: {verdict.reason} {verdict.detail}".strip())

    def add(self, candidate: Candidate, value: float) -> None:
        self.rewards.append(value)
        self.trajectories.append(candidate.trajectory.id)

    def share(self, name: str) -> Share:
        return Share(
            name=name,
            reward=clustered_mean(self.rewards, self.trajectories, (0.0, 1.0)) if self.rewards else None,
            rewarded=sum(reward > 0 for reward in self.rewards),
            unscored=self.unscored,
            reasons=dict(self.reasons.most_common()),
            examples=tuple(self.examples),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditResult:
    """How a verifier came out, and where `audit.md` is."""

    path: Path
    verifier: str
    verifier_id: str
    candidates: int
    trajectories: int
    ungradable: tuple[SkippedTurn, ...]
    """Demonstrations that no verifier can be held to: their tool's schema is broken, or they violate it."""
    refused: tuple[SkippedTurn, ...]
    """Gradable demonstrations that earn less than 1 or are unscored."""
    shares: dict[str, tuple[Share, ...]]
    """By section."""

    def lines(self) -> list[str]:
        lines = [f"verifier {self.verifier} on {self.candidates} candidates of {self.trajectories} trajectories"]
        for title, shares in self.shares.items():
            lines += [f"{title}:", *(f"    {share.name:<42} {share}" for share in shares)]
        for what, turns in (("refused or unscored", self.refused), ("not gradable, left out", self.ungradable)):
            if turns:
                lines.append(f"demonstrations {what}: {len(turns)}, such as {' '.join(_row(turns[0]))}")
        paid = [share for share in self.shares[ATTACKS] if share.rewarded]
        lines += [f"rewarded attack {share.name}: {share.rewarded}, such as {share.examples[0]}" for share in paid]
        return [*lines, f"all of it, with a picture: {self.path}"]


def audit(config: AuditConfig, *, verifier: Verifier | None = None) -> AuditResult:
    """Write `audit.md`, `audit.json` and `audit.svg` of the run, and give what they say.

    Raises MissingError (no run, no candidates, no labels), ConfigError (a bad setting), InputError (bad labels).
    """
    for name, value in (("max-candidates", config.max_candidates), ("others", config.others)):
        if value < 1:
            raise ConfigError(f"{name} {value}: must be at least 1")
    run = RunDirectory(config.run)
    run.stages()
    verifier = verifier or load_verifier(config.verifier)
    name, store = verifier_id(verifier), CandidateStore(run)
    rows = store.rows()
    if not rows:
        raise MissingError(f"{run.path}: no candidates; see audit.jsonl, or ingest more")
    order = random.Random(config.seed).sample(range(len(rows)), min(len(rows), config.max_candidates))
    rows = [rows[at] for at in sorted(order)]
    with timed(Ledger(run.ledger), "audit", name):
        result = _audited(config, verifier, store, rows)
        write_json(result.path.with_suffix(".json"), replace(result, path=Path(result.path.name)))
        write_atomic(result.path.with_suffix(".svg"), _picture(result).encode())
        write_atomic(result.path, _page(result).encode())
    facts = {"config": config, "verifier_id": name, "inputs": {"candidates.jsonl": file_hash(run.candidates)}}
    run.record_stage("audit", name, facts)
    return result


def _audited(
    config: AuditConfig, verifier: Verifier, store: CandidateStore, rows: Sequence[CandidateRow]
) -> AuditResult:
    tallies: dict[str, dict[str, _Tally]] = {title: defaultdict(_Tally) for title in (DEMONSTRATIONS, OTHERS, ATTACKS)}
    ungradable: list[SkippedTurn] = []
    refused: list[SkippedTurn] = []
    pool = _pool(store, rows)
    with Progress("audit", len(rows)) as progress:
        for row, candidate in _loaded(store, rows):
            problem = _ungradable(candidate)
            if problem is None:
                verdict = _word(verifier, candidate, candidate.demonstration)
                tallies[DEMONSTRATIONS][f"gradable {row.kind}s"].judged(candidate, verdict)
                refused += [] if verdict.value == 1.0 else [_turn(candidate, verdict.reason, verdict.detail)]
            else:
                ungradable.append(problem)
            for name, action in _others(row, candidate, pool, config):
                tallies[OTHERS][name].judged(candidate, _word(verifier, candidate, action))
            for name, completion in attacks(candidate):
                tallies[ATTACKS][name].judged(candidate, judge(verifier, candidate, completion, "zero"))
            progress.advance()
    shares = {title: tuple(tally.share(name) for name, tally in some.items()) for title, some in tallies.items()}
    more = {SAMPLES: _samples(config, store, verifier), LABELS: _labels(config, store, verifier)}
    return AuditResult(
        path=store.run.path / "audit.md",
        verifier=verifier.name,
        verifier_id=verifier_id(verifier),
        candidates=len(rows),
        trajectories=len({row.trajectory_id for row in rows}),
        ungradable=tuple(ungradable),
        refused=tuple(refused),
        shares=shares | {title: some for title, some in more.items() if some},
    )


def _loaded(store: CandidateStore, rows: Iterable[CandidateRow]) -> Iterator[tuple[CandidateRow, Candidate]]:
    by_id = {row.id: row for row in rows}
    for _, candidates in store.units(by_id.values()):
        for candidate in candidates:
            yield by_id[candidate.id], candidate


def _word(verifier: Verifier, candidate: Candidate, action: Action) -> Verdict:
    return verify(verifier, candidate, Completion(action=action, text="", finish_reason="stop"))


def _turn(candidate: Candidate, reason: str, detail: str) -> SkippedTurn:
    return SkippedTurn(trajectory_id=candidate.trajectory.id, turn=candidate.turn, reason=reason, detail=detail)


def _ungradable(candidate: Candidate) -> SkippedTurn | None:
    tools = {tool.name: tool for tool in candidate.trajectory.tools or ()}
    problems = [demonstrated(call, tools.get(call.name)).problem for call in candidate.demonstration.calls]
    return next((_turn(candidate, "schema", problem) for problem in problems if problem), None)


def _pool(store: CandidateStore, rows: Sequence[CandidateRow]) -> _Pool:
    pool: _Pool = defaultdict(list)
    for row, candidate in _loaded(store, rows):
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


def _samples(config: AuditConfig, store: CandidateStore, verifier: Verifier) -> tuple[Share, ...]:
    run, strict = store.run, ExactVerifier()
    folder = run.profile(config.profile)
    if config.profile == DEFAULT_PROFILE and not folder.exists():
        return ()
    plan = load_plan(run, config.profile)
    rows = profiled_rows(run, config.profile, plan)
    units = RolloutStore(folder, RolloutPlan(rows=tuple(rows), n=plan.rollouts)).unit_rollouts(0)
    ours, theirs, missed = _Tally(), _Tally(), _Tally()
    for (_, candidates), rollouts in zip(store.units(rows[: config.max_candidates]), units, strict=False):
        by_id = {candidate.id: candidate for candidate in candidates}
        for rollout in (one for one in rollouts if one.candidate_id in by_id):
            candidate = by_id[rollout.candidate_id]
            verdict = judge(verifier, candidate, rollout.completion, plan.truncation)
            exact = judge(strict, candidate, rollout.completion, plan.truncation)
            ours.judged(candidate, verdict)
            theirs.judged(candidate, exact)
            if exact.value is not None and _accepted(verdict):
                missed.add(candidate, 1.0 - exact.value)
    return ours.share(verifier.name), theirs.share(strict.name), missed.share("accepted ones that exact refuses")


def _labels(config: AuditConfig, store: CandidateStore, verifier: Verifier) -> tuple[Share, ...]:
    if config.labels is None:
        return ()
    labelled: dict[str, list[LabelledAction]] = defaultdict(list)
    rows = {row.id: row for row in store.rows()}
    for number, one in enumerate(_read_labels(config.labels), start=1):
        if one.candidate_id not in rows or (one.action is None) == (one.text is None):
            wrong = "text or action, one of them" if one.candidate_id in rows else f"no candidate {one.candidate_id!r}"
            raise InputError(f"{config.labels}:{number}: {wrong}; {_OF_LABELS}")
        labelled[one.candidate_id].append(one)
    made: dict[str, _Tally] = defaultdict(_Tally)
    for judging in (verifier, ExactVerifier()):
        for row, candidate in _loaded(store, [rows[name] for name in labelled]):
            for one in labelled[row.id]:
                verdict = _word(judging, candidate, one.action or Action(text=one.text))
                accepted, right = _accepted(verdict), one.label == 1
                if verdict.value is not None:
                    made[f"agreement of {judging.name}"].add(candidate, float(accepted == right))
                    if accepted:
                        made[f"precision of {judging.name}"].add(candidate, float(right))
                    if right:
                        made[f"recall of {judging.name}"].add(candidate, float(accepted))
    return tuple(tally.share(name) for name, tally in made.items())


def _read_labels(path: Path) -> list[LabelledAction]:
    try:
        return list(read_jsonl(path, LabelledAction))
    except InputError as error:
        raise InputError(f"{str(error).rpartition('; ')[0]}; {_OF_LABELS}") from None


def _accepted(verdict: Verdict) -> bool:
    return verdict.value is not None and verdict.value >= ACCEPTED


def _row(turn: SkippedTurn) -> tuple[str, str, str]:
    return f"{turn.trajectory_id}@{turn.turn}", turn.reason, turn.detail


def _page(result: AuditResult) -> str:
    parts = [f"# Audit of verifier `{result.verifier}`", result.lines()[0], "![shares](audit.svg)"]
    for title, shares in result.shares.items():
        rows = [
            (
                share.name,
                str(share),
                share.rewarded,
                ", ".join(f"{reason} {count}" for reason, count in share.reasons.items()),
                "; ".join(share.examples),
            )
            for share in shares
        ]
        parts += [f"## {title}", table(["", "mean reward", "rewarded", "reasons", "rewarded ones"], rows)]
    for title, turns in (("refused or unscored", result.refused), ("not gradable", result.ungradable)):
        if turns:
            listed = f", the first {LISTED} (all are in audit.json)" if len(turns) > LISTED else ""
            parts.append(f"## Demonstrations {title}: {len(turns)}{listed}")
            parts.append(table(["candidate", "reason", "detail"], map(_row, turns[:LISTED])))
    return "\n\n".join(parts) + "\n"


def _picture(result: AuditResult) -> str:
    known = [(share.name, share.reward) for shares in result.shares.values() for share in shares]
    shares = {name: reward for name, reward in known if reward is not None}
    return share_chart(f"Mean reward under {result.verifier}", shares)
