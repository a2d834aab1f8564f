"""Select: the pivots are the candidates with reward variance > 0 and mean < lambda_diff (Eq. 5, both strict).

lambda_diff is not given there; 0.6 is what NVIDIA's released tau-bench data fit, and 16 rollouts. Candidates without a
scored rollout are counted apart, never read as hopeless.

Departures from the paper, none by default:
 1. Rule `posterior` keeps where P(low <= p < lambda_diff) > level, under a prior fitted to all candidates (`budgets`).
 2. Rule `signal` keeps where a training group is expected to teach at least min_signal; pivots may be weighted by it.
 3. Quotas; what they leave out has the least signal.
"""

from __future__ import annotations

import math
import shlex
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress, repeat, zip_longest
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from pivotrl.budgets import Counts, Signal, StoppingSettings, curtailed, expected_signal, fit_prior, worth_keeping
from pivotrl.candidates import CandidateStore
from pivotrl.charts import funnel_chart
from pivotrl.errors import ConfigError, InputError, MissingError, check_least
from pivotrl.ledger import Ledger, timed
from pivotrl.metrics import REWARD_DECIMALS
from pivotrl.profile_settings import ProfilePlan, check_changed, load_plan, profiled_rows, summary_path
from pivotrl.quotas import Label, Limit, labels, parse_quotas, within
from pivotrl.records import Records, records
from pivotrl.run_directory import AnyPath, RunDirectory
from pivotrl.storage import content_hash, file_hash, read_jsonl, write_atomic, write_jsonl
from pivotrl.theorems import Array
from pivotrl.types import CandidateRow, Pivot, Profile
from pivotrl.verifiers import load_verifier, verifier_id

FUNNEL: Final = {
    "unscored": "too few rollouts were scored",
    "solved": "every action was right: nothing to learn",
    "hopeless": "no action was right: nothing to reinforce",
    "flat": "all rewards equal, neither 0 nor 1",
    "low_spread": "standard deviation below min-std",
    "too_easy": "mean reward at or above lambda-diff",
    "doubtful": "mixed rewards, but too little by the rule",
    "over_quota": "left out by a quota",
    "pivot": "PIVOTS: right sometimes, and not too often",
}
NO_MOVES: Final = "its verdicts by this verifier are not there (`pivotrl rescore` makes them)"
GONE: Final = "not profiled again"
_ADVICE: Final = {
    "unscored": "see what `pivotrl profile` says of failures, mend the verifier or the policy; one rollout is too few",
    "hopeless": "see the reasons that `pivotrl profile` prints, and by `pivotrl audit` if the verifier is too strict; "
    "else warm the policy up (`train --method sft`) or profile easier candidates",
    "solved": "the policy can do most of this already: profile harder candidates, or raise lambda-diff",
    "flat": "the verifier gives every action the same: a reward has to differ where actions do",
    "low_spread": "lower min-std, or profile other candidates",
    "doubtful": "ease the rule (--level, --min-signal), sample more rollouts (`profile --topup`), or use --rule paper",
    "over_quota": "the quotas leave nothing: a share is of the pivots that stay; ease --quota",
    "too_easy": "raise lambda-diff, sample more rollouts, or profile other candidates",
}
"""Where nothing is left, by what became of most candidates, or by the quota that took the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectConfig:
    """Keep the candidates at which the policy is right sometimes, and not too often. Samples nothing."""

    run: AnyPath
    """Run directory."""
    profile: str = "base"
    """Name of the profile to select from."""
    verifier: str | None = None
    """Verifier whose verdicts count; by default the one that the profile was made with. Others: `rescore` first."""
    name: str = "base"
    """Name of the selection."""
    rule: Literal["paper", "posterior", "signal"] = "paper"
    """paper: variance above 0 and mean below lambda-diff; posterior: what is probably so; signal: what teaches most."""
    lambda_diff: float = 0.6
    """Keep candidates whose mean reward (posterior, signal: success probability) is below this."""
    low: float = 0.05
    """posterior: keep where the success probability is at least this, and below lambda-diff, ..."""
    level: float = 0.35
    """... with more than this probability."""
    signal: Signal = "mixed"
    """What a group teaches: the probability that its rewards differ, or their standard deviation (std)."""
    group_size: int = 8
    """The group that `mixed` is about; as in training."""
    min_signal: float = 0.3
    """signal: keep where at least this is expected."""
    weighted: bool = False
    """Weight pivots by their signal: training then draws them in proportion."""
    quota: tuple[str, ...] = ()
    """NAME=NUMBER or NAME=SHARE%: message=30% middle=80% task=5 tool=50% domain=50% depth=20% alike=1 (near-duplicates:
    the same action after the same message)."""
    min_std: float = 0.0
    """Keep candidates whose reward standard deviation is at least this; for continuous rewards."""
    min_scored: int = 2
    """Scored rollouts that a candidate needs to be judged at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectResult:
    """The funnel."""

    pivots: Sequence[Pivot]
    """As they were written, read from the file when they are asked for."""
    counts: dict[str, int]
    """Candidates by what became of them: the keys of `FUNNEL`."""
    path: Path
    hopeless: Path
    profile: str = "base"
    alike: int = 0
    """Pivots that are near-duplicates of another (`quotas.labels`)."""
    imported: object = None
    """Whose policy it was, where the profile came with the data."""
    follows: str | None = None
    moves: dict[str, int] = field(default_factory=dict)
    """What became, at these settings, of the candidates of the profile that this one follows: `BEFORE -> NOW`."""
    stopped: int = 0
    unsettled: int = 0
    """Candidates that were stopped early; those whose fate by the paper's rule more rollouts could change."""

    def lines(self) -> list[str]:
        return [*self._lines()]

    def _lines(self) -> Iterator[str]:
        if self.counts.get("hopeless"):
            yield f"hopeless candidates with their demonstrations: {self.hopeless}"
        if self.imported:
            whose = f"of somebody else's policy ({self.imported}) and verifier"
            yield f"the profile came with the data, {whose}: `train` may want --allow-mismatch"
        if (name := self.path.stem) != self.profile:
            yield f"selection {name!r} is now from profile {self.profile!r}: {self.path} (--name names another)"
        if self.alike:
            yield (
                f"{self.alike} pivots are near-duplicates of another (the same action after the same message); "
                "`--quota alike=1` keeps one of each"
            )
        if self.stopped:
            yield f"{self.stopped} candidates were stopped early: their own means are biased"
        if self.unsettled:
            yield f"{self.unsettled} of these are unsettled at these settings: `pivotrl profile --topup` samples them"
        if self.follows is not None:
            yield f"since profile {self.follows}" + ("" if self.moves else f": {NO_MOVES}")
            yield from (f"{count:6d}  {move}" for move, count in self.moves.items())
        total = max(sum(self.counts.values()), 1)
        for key, text in FUNNEL.items():
            if count := self.counts.get(key):
                yield f"{count:6d}  {count / total:4.0%}  {key.replace('_', ' '):<10}  {text}"


def fate(profile: Profile, config: SelectConfig) -> str:
    """What becomes of a candidate: a key of `FUNNEL`; the first that applies, in that order."""
    if profile.mean is None or profile.variance is None or profile.n < config.min_scored:
        return "unscored"
    if profile.variance == 0:
        return "solved" if profile.mean == 1 else "hopeless" if profile.mean == 0 else "flat"
    if round(math.sqrt(profile.variance), REWARD_DECIMALS) < config.min_std:
        return "low_spread"
    return "pivot" if profile.mean < config.lambda_diff else "too_easy"


def select(config: SelectConfig) -> SelectResult:
    """Write `pivots/<name>.jsonl`. Raises MissingError when there are no verdicts, or no pivots (with the funnel)."""
    _thresholds(config)  # raises ConfigError for some that cannot work
    limits = parse_quotas(config.quota)
    check_least(config, group_size=2)
    for name in ("min_std", "min_signal"):
        if not 0 <= getattr(config, name) <= 1:
            raise ConfigError(f"{name.replace('_', '-')} {getattr(config, name)}: must be from 0 to 1")
    run = RunDirectory(config.run)
    imported = run.stages().get(f"profile/{config.profile}", {}).get("imported")
    plan = load_plan(run, config.profile)
    rows = profiled_rows(run, config.profile, plan)
    verifier = plan.verifier_id if config.verifier is None else verifier_id(load_verifier(config.verifier))
    summary = summary_path(run, config.profile, verifier)
    if not summary.exists():
        check_changed(run, config.profile, plan, config.verifier or "", verifier)
        command = "profile" if config.verifier is None else f"rescore --verifier {shlex.quote(config.verifier)}"
        raise MissingError(
            f"{summary} is not there; finish `pivotrl {command} --run {config.run} --name {config.profile}` first"
        )
    with timed(Ledger(run.ledger), "select", config.name):
        seen = _see(summary, rows, config, plan)
        run.check(summary)
        result = replace(_select(seen, rows, config, plan, run, limits), imported=imported, profile=config.profile)
        moves = _moves(run, plan, verifier, zip(rows, seen.fates, strict=True), config)
        stopped, unsettled = len(seen.early), sum(seen.early)
        result = replace(result, follows=plan.follows, moves=moves, stopped=stopped, unsettled=unsettled)
    inputs = {str(summary.relative_to(run.path)): file_hash(summary)}
    told = {name: getattr(result, name) for name in ("counts", "alike", "follows", "moves")}
    facts = {"config": config, "verifier_id": verifier, **told, "inputs": inputs}
    run.record_stage("select", config.name, facts, [result.path, result.path.with_suffix(".svg"), result.hopeless])
    if not result.pivots:
        raise MissingError(_none_left(result.counts))
    return result


def _none_left(counts: Mapping[str, int]) -> str:
    fates = ", ".join(f"{count} {key}" for key, count in counts.items())
    commonest = max(counts, key=lambda fate: (fate == "over_quota", counts[fate]))
    advice = _ADVICE.get(commonest, _ADVICE["too_easy"])
    return f"no pivots are left of {sum(counts.values())} candidates ({fates}); {advice}"


def _thresholds(config: SelectConfig) -> StoppingSettings:
    low = config.low if config.rule == "posterior" else 0.0
    return StoppingSettings(lambda_diff=config.lambda_diff, low=low, level=config.level)


def _unsettled(profile: Profile, config: SelectConfig, plan: ProfilePlan) -> bool:
    """Whether Eq. 5 at these settings may decide otherwise once a curtailed candidate has all its rollouts."""
    if plan.budget != "curtailed" or config.rule != "paper":
        return False
    taken = profile.n + profile.unscored + (profile.truncated if plan.truncation == "exclude" else 0)
    left, least = plan.rollouts - taken, config.min_scored
    return curtailed(profile, left, config.lambda_diff, min_scored=least, min_std=config.min_std) is None


class _Beliefs(NamedTuple):
    """Of every candidate, in order: what training is expected to learn there, and P(low <= p < lambda_diff)."""

    signal_M: Array
    chance_M: Array

    @classmethod
    def of(cls, counts: Counts, config: SelectConfig) -> _Beliefs:
        prior = fit_prior(counts)
        signal_M = expected_signal(counts, prior, config.signal, config.group_size, config.lambda_diff)
        return cls(signal_M.round(6), worth_keeping(counts, prior, _thresholds(config)).round(6))

    def kept(self, config: SelectConfig) -> list[bool]:
        """By the rule, which is not the paper's."""
        if config.rule == "posterior":
            return [bool(chance > config.level) for chance in self.chance_M]
        return [bool(signal >= config.min_signal) for signal in self.signal_M]


class _Seen(NamedTuple):
    """What one pass over a summary leaves, candidate by candidate: a million profiles would fill half a gigabyte."""

    fates: list[str]
    """By the rule, quotas aside."""
    beliefs: _Beliefs
    means: array[float]
    """NaN where no rollout was scored."""
    most: int
    """Scored rollouts of a candidate."""
    early: list[bool]
    """Of those that were stopped early alone: whether they are unsettled."""


def _see(summary: Path, rows: Sequence[CandidateRow], config: SelectConfig, plan: ProfilePlan) -> _Seen:
    """Raises InputError for a summary of other candidates."""
    became, means, early = list[str](), array("d"), list[bool]()

    def read() -> Iterator[Profile]:
        for row, one in zip_longest(rows, read_jsonl(summary, Profile)):
            if row is None or one is None or row.id != one.candidate_id:
                raise InputError(
                    f"{summary}: not of the profiled candidates; run `pivotrl profile` again, or `rescore`"
                )
            became.append(fate(one, config))
            means.append(math.nan if one.mean is None else one.mean)
            early.extend([_unsettled(one, config, plan)] if one.stopped_early else [])
            yield one

    counts = Counts.of(read())
    beliefs = _Beliefs.of(counts, config)
    return _Seen(_ruled(became, beliefs, config), beliefs, means, int(counts.scored_M.max(initial=0)), early)


def fates(profiles: Sequence[Profile], config: SelectConfig) -> list[str]:
    """What becomes of each candidate by the rule, quotas aside."""
    found = [fate(profile, config) for profile in profiles]
    return found if config.rule == "paper" else _ruled(found, _Beliefs.of(Counts.of(profiles), config), config)


def _ruled(found: list[str], beliefs: _Beliefs, config: SelectConfig) -> list[str]:
    """What becomes of candidates by the rule, where by the paper's it is what was found."""
    if config.rule == "paper":
        return found
    return [
        what if what in ("unscored", "low_spread") else "pivot" if keep else "doubtful" if what == "pivot" else what
        for what, keep in zip(found, beliefs.kept(config), strict=True)
    ]


def _moves(
    run: RunDirectory,
    plan: ProfilePlan,
    verifier: str,
    found: Iterable[tuple[CandidateRow, str]],
    config: SelectConfig,
) -> dict[str, int]:
    """Candidates of the earlier profile by what they were and are by the same rule, quotas aside; none without both."""
    if plan.follows is None or not (summary := summary_path(run, plan.follows, verifier)).exists():
        return {}
    run.check(summary)
    new = {row.id: fate for row, fate in found}
    before = records(summary, Profile)
    old = zip((one.candidate_id for one in before), fates(before, config), strict=True)
    places = [*FUNNEL, GONE]
    pairs = Counter((fate, new.get(key, GONE)) for key, fate in old)
    order = sorted(pairs, key=lambda pair: [places.index(name) for name in pair])
    return {" -> ".join(pair).replace("_", " "): pairs[pair] for pair in order}


class _Marks(NamedTuple):
    """What the pivots, quotas aside, have in common."""

    places: array[int]
    alike: array[int]
    """Equal for near-duplicates."""
    limited: dict[int, tuple[Label, ...]]
    """By place, the labels that quotas are about; empty without quotas."""


def _marks(
    seen: _Seen, rows: Records[CandidateRow], limits: Mapping[str, Limit], store: CandidateStore, hopeless: Path
) -> _Marks:
    """Those of the pivots; on the way, so that a trajectory is loaded once, the hopeless candidates are written."""
    places = array("Q", (place for place, what in enumerate(seen.fates) if what in ("hopeless", "pivot")))
    marks, shared = _Marks(array("Q"), array("Q"), {}), dict[Label, Label]()

    def read() -> Iterator[dict[str, Any]]:
        for place, (row, one) in zip(places, store.loaded(rows.at(places)), strict=True):
            if seen.fates[place] == "hopeless":
                chance = float(seen.beliefs.chance_M[place])
                yield {"candidate_id": row.id, "chance": chance, "demonstration": one.demonstration}
                continue
            mine = list(labels(row, one))
            marks.places.append(place)
            marks.alike.extend(int(mark.value, 16) for mark in mine if mark.name == "alike")
            if limits:
                marks.limited[place] = tuple(shared.setdefault(mark, mark) for mark in mine if mark.name in limits)

    write_jsonl(hopeless, read())
    return marks


def _within_quotas(seen: _Seen, rows: Records[CandidateRow], marks: _Marks, limits: Mapping[str, Limit]) -> list[str]:
    """What becomes of all candidates, those that a quota leaves out marked as such."""
    signal_M, became = seen.beliefs.signal_M, [*seen.fates]
    order = sorted(marks.places, key=lambda place: (-signal_M[place], content_hash(rows[place].id)))
    for place in marks.limited.keys() - within(order, marks.limited, limits):
        became[place] = "over_quota"
    return became


def _select(
    seen: _Seen,
    rows: Records[CandidateRow],
    config: SelectConfig,
    plan: ProfilePlan,
    run: RunDirectory,
    limits: Mapping[str, Limit],
) -> SelectResult:
    path = run.pivots(config.name)
    hopeless = path.parent / "hopeless" / path.name
    marks = _marks(seen, rows, limits, CandidateStore(run), hopeless)
    became = _within_quotas(seen, rows, marks, limits) if limits else seen.fates
    stays = [became[place] == "pivot" for place in marks.places]
    kept, alike = (array("Q", compress(some, stays)) for some in (marks.places, marks.alike))
    weights = map(float, seen.beliefs.signal_M[kept]) if config.weighted else repeat(1.0)
    chosen = zip(rows.at(kept), weights, strict=False)
    write_jsonl(path, (Pivot(candidate_id=row.id, profile=config.profile, weight=weight) for row, weight in chosen))
    found = Counter(became)
    counts = {key: found[key] for key in FUNNEL if found[key]}
    write_atomic(path.with_suffix(".svg"), _picture(counts, became, seen, config, plan).encode())
    duplicates = len(alike) - len(np.unique(alike))
    return SelectResult(pivots=records(path, Pivot), counts=counts, path=path, hopeless=hopeless, alike=duplicates)


def _picture(
    found: Mapping[str, int], became: Sequence[str], seen: _Seen, config: SelectConfig, plan: ProfilePlan
) -> str:
    """`pivots/<name>.svg`: the funnel, and the mean rewards."""
    means = ((mean, what == "pivot") for mean, what in zip(seen.means, became, strict=True) if not math.isnan(mean))
    counts = {name.replace("_", " "): found.get(name, 0) for name in FUNNEL if name in {*found, "pivot"}}
    verifier = config.verifier or plan.verifier
    verifier = verifier if len(verifier) <= 40 else f"{verifier:.37}..."
    title = f"Selection {config.name:.24} from profile {config.profile:.24}: {verifier}, "
    return funnel_chart(
        f"{title}lambda {config.lambda_diff:g}, {seen.most} rollouts", counts, means, config.lambda_diff
    )
