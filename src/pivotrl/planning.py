"""Which candidates a stage works on, decided before anything is sampled, with a reason for every one left out."""

from __future__ import annotations

import hashlib
import math
from array import array
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final, NamedTuple

from pivotrl.candidates import CandidateStore, by_trajectory
from pivotrl.chat import RenderError
from pivotrl.errors import ConfigError, InputError, MissingError, check_least
from pivotrl.logs import Progress
from pivotrl.protocols import Policy, Verifier
from pivotrl.storage import dump_json, shuffle_key
from pivotrl.types import Candidate, CandidateRow, Completion, SamplingParams, SkippedTurn, Split
from pivotrl.verifiers import verify

REASONS: Final = {
    "demonstration_refused": "the verifier does not accept what the expert did",
    "demonstration_unscored": "the verifier cannot judge what the expert did",
    "template_error": "the template refuses the state, or leaves its tools out: try another --model.chat-template",
    "sft_template_rewrites_state": "the chat template writes the state otherwise once the action follows",
    "sft_no_stop_token": "the chat template ends the action without a stop token",
    "sft_not_recovered": "the demonstration as the chat template writes it does not read back as itself",
}
"""Why a candidate is left out, where the name does not say it."""


def in_words(reasons: Mapping[str, int]) -> list[str]:
    """How many were left out, and why."""
    return [f"{n} {name} ({REASONS[name]})" if name in REASONS else f"{n} {name}" for name, n in reasons.items()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """A part of the candidates. The default is all of them."""

    max_candidates: int | None = None
    """Take a random sample of at most this many, the same one for the same seed."""
    max_prompt_tokens: int | None = None
    """Leave out states that render to more tokens."""
    only: Path | None = None
    """Text file of trajectory ids, one per line: take no others."""
    exclude: Path | None = None
    """Text file of trajectory ids, one per line: leave these out."""


class Choice(NamedTuple):
    """The candidates to work on, trajectory by trajectory, and those left out."""

    rows: Sequence[CandidateRow]
    left_out: list[SkippedTurn]

    @property
    def reasons(self) -> dict[str, int]:
        """How many were left out, by reason."""
        return dict(Counter(skipped.reason for skipped in self.left_out))

    def __str__(self) -> str:
        """The reasons in words, with an example."""
        listed = ", ".join(f"{count} {reason}" for reason, count in self.reasons.items()) or "none left out"
        most = max(self.reasons, key=self.reasons.__getitem__, default=None)
        for one in self.left_out:
            if one.reason == most:
                return f"{listed} (such as {one.trajectory_id}@{one.turn}: {one.detail})"
        return listed


@dataclass(frozen=True, kw_only=True)
class RolloutPlan:
    """Which candidates, in which order, n rollouts each; those of one trajectory follow one another, and are a unit."""

    rows: Sequence[CandidateRow]
    n: int
    part: int = 0
    """Number of the part file; several rounds of sampling make several parts."""
    share: str = ""
    """Of a part of a round: what the name of its file has more, such as `.2-of-4`."""
    taken: Mapping[str, int] = field(default_factory=dict)
    """How many rollouts of a candidate lie in earlier parts; none where it is not named."""

    @cached_property
    def sizes(self) -> array[int]:
        """Candidates of each unit."""
        return array("Q", (len(rows) for _, rows in by_trajectory(self.rows)))


def check_sampling(rollouts: int, params: SamplingParams) -> None:
    """Raise ConfigError for numbers with which nothing can be sampled."""
    for name, value, good, bounds in (
        ("rollouts", rollouts, rollouts >= 1, "at least 1"),
        ("max-new-tokens", params.max_new_tokens, params.max_new_tokens >= 1, "at least 1"),
        ("temperature", params.temperature, 0 <= params.temperature < math.inf, "a number from 0 (greedy)"),
        ("top-p", params.top_p, 0 < params.top_p <= 1, "above 0 and at most 1"),
        ("top-k", params.top_k, params.top_k >= 0, "0 (off) or more"),
    ):
        if not good:
            raise ConfigError(f"{name} {value}: must be {bounds}")


class CandidateCheck:
    """Whether a policy can be asked at a candidate, and whether the verifier accepts the demonstration there."""

    def __init__(self, policy: Policy, verifier: Verifier, params: SamplingParams, limit: int | None) -> None:
        self.policy, self.verifier, self.params, self.limit = policy, verifier, params, limit
        self.blind = 0
        """Calls among those that passed whose policy is told of no tools, since they are unknown."""

    def __call__(self, candidate: Candidate) -> SkippedTurn | None:
        """None, or why not. Raises ConfigError where no candidate could be rendered (a template without tools)."""
        problem = refused(self.verifier, candidate)
        if problem is not None:
            return problem
        try:
            tokens = self.policy.count_tokens(candidate.state)
        except RenderError as error:
            return _left_out(candidate, "template_error", str(error))
        context = self.policy.context_length
        if self.limit is not None and tokens > self.limit:
            return _left_out(candidate, "over_max_prompt_tokens", f"{tokens} tokens")
        new = self.params.max_new_tokens
        if context is not None and tokens + new > context:
            return _left_out(candidate, "over_context", f"{tokens} state + {new} new > {context} tokens")
        structured = candidate.demonstration.kind == "call" and candidate.literal is None
        self.blind += structured and candidate.trajectory.tools is None
        return None


def refused(verifier: Verifier, candidate: Candidate) -> SkippedTurn | None:
    """Why a verifier does not accept the demonstration at a candidate; None if it does."""
    demonstration = Completion(action=candidate.demonstration, text="", finish_reason="stop")
    verdict = verify(verifier, candidate, demonstration)
    if verdict.value == 1.0:
        return None
    reason = "demonstration_unscored" if verdict.value is None else "demonstration_refused"
    return _left_out(candidate, reason, f"{verdict.verifier}: {verdict.reason} {verdict.detail}".strip())


def choose(
    store: CandidateStore,
    split: Split,
    scope: Scope,
    check: CandidateCheck,
    seed: int,
    among: Container[str] | None = None,
) -> Choice:
    """The candidates of a split, `among` these, that are in scope and pass the check. Raises MissingError for none."""
    rows = store.rows(split, _in_scope(store, scope, among))
    if not rows:
        raise MissingError(f"{store.run.path}: no {split} candidates in scope; see audit.jsonl, or ingest more")
    wanted = scope.max_candidates if scope.max_candidates is not None else len(rows)
    order = _shuffled(rows, seed) if wanted < len(rows) else range(len(rows))
    with Progress("candidates checked", None) as progress:
        passed, left_out = _sifted(store.loaded(rows.at(order)), check, progress, wanted)
    return Choice(rows.at(sorted(order[place] for place in passed)), left_out)


def fitting(store: CandidateStore, rows: Sequence[CandidateRow], check: CandidateCheck) -> Choice:
    """Those of the rows that pass the check, and the others."""
    with Progress("candidates checked", len(rows)) as progress:
        passed, left_out = _sifted(store.loaded(rows), check, progress, len(rows))
    return Choice([rows[place] for place in passed], left_out)


def _sifted(
    loaded: Iterable[tuple[CandidateRow, Candidate]], check: CandidateCheck, progress: Progress, wanted: int
) -> tuple[array[int], list[SkippedTurn]]:
    """Which ones in their order pass the check, until so many have; and the others."""
    passed, left_out = array("Q"), list[SkippedTurn]()
    for place, (_, candidate) in enumerate(loaded):
        if len(passed) == wanted:
            break
        problem = check(candidate)
        progress.advance()
        if problem is None:
            passed.append(place)
        else:
            left_out.append(problem)
    return passed, left_out


def rows_hash(store: CandidateStore, rows: Sequence[CandidateRow]) -> str:
    """Names candidates, their order, and what their trajectories held: the `content_hash` of all, one by one."""
    digest = hashlib.sha256(b"[")
    for at, row in enumerate(rows):
        ref = store.index.get(row.trajectory_id)
        digest.update(b"," * (at > 0) + dump_json((row.id, ref and ref.hash)))
    digest.update(b"]")
    return digest.hexdigest()[:16]


def random_rows(rows: Sequence[CandidateRow], most: int, seed: int) -> list[CandidateRow]:
    """At most so many of the rows, in their order; the same ones for the same seed."""
    return [rows[place] for place in sorted(_shuffled(rows, seed)[:most])]


def _shuffled(rows: Sequence[CandidateRow], seed: int) -> list[int]:
    """The places of rows in a random order."""
    keys = [shuffle_key(f"{seed}/{row.id}") for row in rows]
    return sorted(range(len(keys)), key=keys.__getitem__)


def _in_scope(store: CandidateStore, scope: Scope, among: Container[str] | None) -> Callable[[CandidateRow], bool]:
    check_least(scope, max_candidates=1)
    only = None if scope.only is None else _ids(scope.only, store)
    exclude = frozenset() if scope.exclude is None else _ids(scope.exclude, store)
    return lambda row: (
        (among is None or row.id in among)
        and (only is None or row.trajectory_id in only)
        and row.trajectory_id not in exclude
    )


def _ids(path: Path, store: CandidateStore) -> frozenset[str]:
    if not path.is_file():
        raise MissingError(f"{path}: no such file; it should hold trajectory ids, one per line")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InputError(f"{path}: not UTF-8 text; it should hold trajectory ids, one per line") from None
    ids = frozenset(line.strip() for line in text.splitlines() if line.strip())
    unknown = sorted(ids - store.index.keys())
    if unknown:
        raise ConfigError(
            f"{path}: {len(unknown)} of {len(ids)} ids are no trajectories of this run, such as {unknown[0]}"
        )
    return ids


def _left_out(candidate: Candidate, reason: str, detail: str) -> SkippedTurn:
    return SkippedTurn(trajectory_id=candidate.trajectory.id, turn=candidate.turn, reason=reason, detail=detail[:300])
