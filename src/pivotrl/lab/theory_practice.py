"""`pivotrl lab theory-check`: the theory of `theorems` against a run's trained models, predicted beside observed.

How many groups are mixed: predicted from what a profile saw at each state, observed in fresh groups of the same policy
and in the batches that trainings wrote down. What training did to ratios: by Theorem 3.3 log pi changes alike for all
accepted actions of a state, and alike for all refused ones.

An action is a sequence of tokens, accepted where the verifier gives 0.5 or more; truncated and unscored ones are left
out, each distinct sampled one counts once. States are "pivots" (of the selection), "others" (profiled, no pivots) and
"held out" (validation split, not profiled). Intervals are clustered by trajectory, and take the fitted prior as given.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import numpy as np
import tyro

from pivotrl.budgets import POINTS_P, Counts, fit_prior, posterior_mean
from pivotrl.candidates import CandidateStore
from pivotrl.documents import table_of, to_markdown
from pivotrl.errors import ConfigError
from pivotrl.evaluation_settings import EvaluateConfig, open_policies
from pivotrl.logs import Progress
from pivotrl.metrics import clustered_mean, format_short, mean_share
from pivotrl.planning import CandidateCheck, Scope, check_sampling, choose
from pivotrl.policies import has_weights
from pivotrl.profile_settings import DEFAULT_PROFILE, ProfilePlan, load_plan, profiled_groups, profiled_rows
from pivotrl.protocols import Policy
from pivotrl.rollouts import Sampling, sample_groups
from pivotrl.run_directory import AnyPath, RunDirectory
from pivotrl.storage import read_json, read_jsonl, write_json
from pivotrl.theorems import Array, BlockChange, block_change, chance_mixed, mean_chance_mixed, share_mixed
from pivotrl.types import Estimate, Pivot, Rollout, RolloutGroup, TrainingExample, Verdict
from pivotrl.verifiers import load_verifier, taken_over

if TYPE_CHECKING:
    from pivotrl.policies.torch import TorchPolicy

KINDS: Final = ("pivots", "others", "held out")
SIZES: Final = (2, 4, 8, 16, 32, 64)


@dataclass(frozen=True, slots=True, kw_only=True)
class TheoryCheckConfig:
    """Hold the theory against a run: predicted mixed groups, and how far ratios inside blocks survived training."""

    run: AnyPath
    """Run directory with a profile, a selection and trained models, such as the demo's."""
    profile: str = DEFAULT_PROFILE
    """Profile whose policy is pi_0."""
    pivots: str = "base"
    """Selection that was trained on."""
    policies: Annotated[tuple[str, ...], tyro.conf.arg(aliases=("--policy",))] = ()
    """Trained models as NAME=train/NAME, the one that others are compared with first; by default all of the run."""
    rollouts: int = 16
    """Fresh actions of pi_0 at every state."""
    held_out: int = 500
    """Candidates of the validation split, besides the profiled ones."""
    seed: int = 1
    """Seed of the fresh actions; keep it apart from the profile's."""
    out: AnyPath | None = None
    """JSON file with all numbers; by default theory.json in the run directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A row: groups of one size, or a training at states of one kind. docs/theory.md says what each number is."""

    of: str
    at: str
    found: dict[str, Estimate]


@dataclass(frozen=True, slots=True, kw_only=True)
class TheoryCheckResult:
    """All that was held against the theory."""

    mixed: tuple[Comparison, ...]
    blocks: tuple[Comparison, ...]
    path: Path

    def lines(self) -> list[str]:
        tables = []
        for title, rows in (("groups", self.mixed), ("training", self.blocks))[: 2 if self.blocks else 1]:
            names = [*dict.fromkeys(name for row in rows for name in row.found)]
            cells = [
                (row.of, row.at, *(format_short(row.found[name]) if name in row.found else "" for name in names))
                for row in rows
            ]
            tables.append(table_of([title, "at", *names], cells))
        few = "none is finished, or its fresh actions were nowhere both accepted and refused: raise --rollouts"
        missing = [] if self.blocks else [f"no training is compared: {few}, --held-out"]
        return [*to_markdown(tables).splitlines(), *missing, f"all numbers: {self.path}"]


_Seen = tuple[int, int]
"""Accepted and scored rollouts."""
_Drawn = tuple[str, _Seen, _Seen]
"""A trajectory; what was seen at one of its states before, and what came."""


def _seen(verdicts: Iterable[Verdict]) -> _Seen:
    values = [verdict.value >= 0.5 for verdict in verdicts if verdict.value is not None]
    return sum(values), len(values)


class _State(NamedTuple):
    kind: str
    trajectory: str
    group: RolloutGroup
    """Fresh."""
    actions: dict[tuple[int, ...], bool]
    """Whole distinct ones, and whether each is accepted."""
    seen: Sequence[Verdict]
    """In the profile."""


def theory_check(config: TheoryCheckConfig) -> TheoryCheckResult:
    """Sample, score, compare. Raises ConfigError where weights are not here or others, MissingError for a stage."""
    run = RunDirectory(config.run)
    plan = load_plan(run, config.profile)
    check_sampling(config.rollouts, plan.sampling)
    if not has_weights(plan.policy):
        raise ConfigError(f"{plan.policy}: theory-check needs weights that are here")
    given = (f"base={plan.policy}", *config.policies) if config.policies else ()
    named = EvaluateConfig(run=config.run, policies=given, profile=config.profile)
    opened = dict(open_policies(named, run, plan.model, None))
    base = _weights("base", opened.pop("base"), plan.fingerprint.tokenizer)
    if base.fingerprint != plan.fingerprint:
        raise ConfigError(f"{plan.policy}: changed since it was profiled; restore it, or profile again")
    states = [*_states(config, run, plan, base)]
    both = [one for one in states if len(set(one.actions.values())) == 2]
    before, blocks, first = _logprobs(base, both), list[Comparison](), dict[str, BlockChange]()
    for name, open_policy in opened.items():
        after = _logprobs(_weights(name, open_policy, plan.fingerprint.tokenizer), both)
        moved = [block_change(after[at] - before[at], np.array([*one.actions.values()])) for at, one in enumerate(both)]
        changes = {one.group.candidate_id: change for one, change in zip(both, moved, strict=True) if change}
        blocks += _blocks(name, both, changes, first)
        first = first or changes
    path = Path(config.out or run.path / "theory.json")
    result = TheoryCheckResult(mixed=tuple(_mixed(run, states, [*opened])), blocks=tuple(blocks), path=path)
    write_json(path, result)
    return result


def _weights(name: str, open_policy: Callable[[], Policy], tokenizer: str) -> TorchPolicy:
    from pivotrl.policies.torch import TorchPolicy

    policy = open_policy()
    if not isinstance(policy, TorchPolicy) or policy.fingerprint.tokenizer != tokenizer:
        raise ConfigError(f"{name}: theory-check needs weights that are here, and the profiled policy's tokenizer")
    return policy


def _states(config: TheoryCheckConfig, run: RunDirectory, plan: ProfilePlan, base: TorchPolicy) -> Iterator[_State]:
    store, verifier, params = CandidateStore(run), load_verifier(taken_over(plan.verifier, run.path)), plan.sampling
    pivots = {one.candidate_id for one in read_jsonl(run.pivots(config.pivots), Pivot, f"select --run {run.path}")}
    profiled = {group.candidate_id: group.verdicts for group in profiled_groups(run, config.profile, verifier)}
    check, scope = CandidateCheck(base, verifier, params, None), Scope(max_candidates=config.held_out)
    rows = [*profiled_rows(run, config.profile, plan), *choose(store, "validation", scope, check, config.seed).rows]
    sampling = Sampling(policy=base, verifier=verifier, params=params, n=config.rollouts, seed=config.seed)
    with Progress("theory-check", len(rows)) as progress:
        for trajectory, candidates in store.units(rows):
            for group in sample_groups(sampling, candidates):
                seen = profiled.get(group.candidate_id, ())
                kind = KINDS[0 if group.candidate_id in pivots else 1 if seen else 2]
                actions = {
                    completion.token_ids: verdict.value >= 0.5
                    for completion, verdict in zip(group.completions, group.verdicts, strict=True)
                    if verdict.value is not None and not completion.truncated
                }
                yield _State(kind, trajectory, group, actions, seen)
            progress.advance(len(candidates))


@dataclass(frozen=True, slots=True)
class _Sampled:
    """A line of a training's `samples/`."""

    rollout: Rollout
    verdict: Verdict


def _mixed(run: RunDirectory, states: Sequence[_State], names: Sequence[str]) -> Iterator[Comparison]:
    """Halves of the profile, the prior fitted to first halves alone; fresh groups; batches of trainings."""
    halves = [(one, len(one.seen) // 2) for one in states if one.seen]
    split = [(one.trajectory, _seen(one.seen[:at]), _seen(one.seen[at:])) for one, at in halves]
    yield from _check("second half of the profile", split, fit_prior(_counts(split)), SIZES)
    known = {one.group.candidate_id: (one.trajectory, _seen(one.seen)) for one in states}
    prior = fit_prior(_counts([(*known[one.group.candidate_id], (0, 0)) for one, _ in halves]))
    for kind in KINDS:
        fresh = [one.group for one in states if one.kind == kind]
        drawn = [(*known[group.candidate_id], _seen(group.verdicts)) for group in fresh]
        yield from _check(f"fresh, {kind}", drawn, prior, SIZES)
    for name in names:
        for path in sorted((run.train(name) / "samples").glob("step-*.jsonl")):
            size = read_json(path.parent.parent / "config.json", dict[str, Any])["group_size"]
            groups: dict[str, list[Verdict]] = defaultdict(list)
            for row in read_jsonl(path, _Sampled):
                if row.rollout.sample < size:  # further ones were drawn since the first were equal
                    groups[row.rollout.candidate_id].append(row.verdict)
            batch = [(*known[key], _seen(verdicts)) for key, verdicts in groups.items() if key in known]
            yield from _check(f"{name}, {path.stem}", batch, prior, [size])


def _counts(drawn: Sequence[_Drawn]) -> Counts:
    """What was seen before."""
    return Counts(*np.array([seen for _, seen, _ in drawn], dtype=float).reshape(-1, 2).T)


def _check(of: str, drawn: Sequence[_Drawn], prior: Sequence[float], sizes: Sequence[int]) -> Iterator[Comparison]:
    """For every size that some group has: the share of mixed groups, and predicted minus observed by each way."""
    for size in sizes:
        fit = [one for one in drawn if one[2][1] >= size]
        if not fit:
            continue
        clusters, (right_M, scored_M) = [trajectory for trajectory, _, _ in fit], _counts(fit)
        observed_M = np.array([share_mixed(*came, size) for _, _, came in fit])
        predicted = {"fitted prior": posterior_mean(_counts(fit), prior, chance_mixed(POINTS_P, size))}
        if scored_M.all():
            predicted["mean"] = chance_mixed(right_M / scored_M, size)
            predicted["Jeffreys"] = mean_chance_mixed(0.5 + right_M, 0.5 + scored_M - right_M, size)
        found = {"mixed, observed": mean_share([*zip(observed_M.tolist(), clusters, strict=True)])}
        # equal outcomes say little of how they vary: then the interval is the exact one's width at least
        bounds = (-1.0, 1.0) if np.ptp(observed_M) == 0 else (-math.inf, math.inf)
        for name, values_M in predicted.items():
            found[f"{name}: too much by"] = clustered_mean((values_M - observed_M).tolist(), clusters, bounds)
        yield Comparison(of=of, at=f"G {size}, {len(fit)} states", found=found)


def _logprobs(policy: TorchPolicy, states: Sequence[_State]) -> list[Array]:
    """log pi of the distinct actions of each state."""
    examples = [
        TrainingExample(
            group_id="", prompt_ids=one.group.prompt_ids, action_ids=ids, advantage=0.0, loss_mask=(True,) * len(ids)
        )
        for one in states
        for ids in one.actions
    ]
    sums = map(math.fsum, policy.logprobs(examples))
    return [np.array([*islice(sums, len(one.actions))]) for one in states]


def _blocks(
    name: str, states: Sequence[_State], changes: dict[str, BlockChange], first: dict[str, BlockChange]
) -> Iterator[Comparison]:
    """Means over the states of each kind; `first` are the changes of the training that others are compared with."""
    numbers: dict[str, Callable[[str], float | None]] = {
        "spread accepted": lambda key: changes[key].accepted,
        "spread refused": lambda key: changes[key].refused,
        "across": lambda key: changes[key].across,
        "share across": lambda key: changes[key].share,
        "by chance": lambda key: changes[key].chance,
        "share against first": lambda key: (changes[key].share or 0.0) - (first[key].share or 0.0) if first else None,
    }
    for kind in KINDS:
        mine = [one for one in states if one.kind == kind and one.group.candidate_id in changes]
        found = {}
        for title, read in numbers.items():
            known = [(value, one.trajectory) for one in mine if (value := read(one.group.candidate_id)) is not None]
            if known:
                found[title] = clustered_mean([value for value, _ in known], [cluster for _, cluster in known])
        if found:
            yield Comparison(of=name, at=f"{kind}, {len(mine)} states", found=found)
