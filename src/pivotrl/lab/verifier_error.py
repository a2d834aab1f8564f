"""`pivotrl lab verifier-error`: the true error of a verifier where what an action leads to can be tried.

At the states of expert episodes a policy samples actions. Each distinct one that is not the demonstration is judged;
then the episode is forked just before it (`snapshot`), the action is taken, and the expert plays on. If the episode
succeeds, the action was acceptable: that is the truth which the verdict is held against. An action that only costs
turns is acceptable by it; one that no expert could mend is not. Distinct actions count, not how often each is sampled.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pivotrl.chat import same_action
from pivotrl.errors import MissingError, check_least
from pivotrl.lab.domains import load_domain
from pivotrl.lab.gates import PARAMS
from pivotrl.lab.shipped import shipped_base
from pivotrl.logs import Progress
from pivotrl.metrics import format_estimate, mean_share
from pivotrl.models import ModelSettings
from pivotrl.planning import check_sampling
from pivotrl.policies import load_policy
from pivotrl.protocols import Guided
from pivotrl.rollouts import Sampling, sample_groups
from pivotrl.storage import write_jsonl
from pivotrl.types import Action, Candidate, Estimate, Source, Split, Trajectory
from pivotrl.verifiers import load_verifier


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierErrorConfig:
    """Hold a verifier's verdicts on `desk` or `shell` against what really happens when the action is taken."""

    env: str = "desk"
    """Where actions are tried: desk or shell."""
    policy: str | None = None
    """Who samples the actions; by default the base model that ships for it."""
    verifier: str = "auto"
    """The verifier, as in profile."""
    tasks: int = 200
    """Expert episodes, in styles that take turns."""
    rollouts: int = 8
    """Actions sampled at each state."""
    split: Split = "validation"
    """Which tasks: test, validation or train."""
    seed: int = 0
    """Of tasks and sampling."""
    out: Path | None = None
    """JSON Lines file with every judged action, for reading the errors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedAction:
    """One action that was not the demonstrated one: the verdict, and the truth."""

    task: str
    turn: int
    verifier: str
    """Whose verdict it is: of `auto` the inner one's."""
    demonstration: Action
    action: Action
    accepted: bool
    reason: str
    succeeded: bool
    """Whether the expert, playing on from it, brought the episode to success."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierError:
    """One verifier against the truth. Intervals are clustered by task."""

    verifier: str
    accepted: int
    refused: int
    success_accepted: Estimate | None
    """Success after accepted actions: the verifier's precision."""
    success_refused: Estimate | None
    """Success after refused actions: 0 where nothing is refused wrongly."""
    recall: Estimate | None
    """Share of the acceptable actions that are accepted."""
    false_accepts: dict[str, int]
    """By the verdict's reason, what was done and what was shown, the most frequent first."""
    false_refusals: dict[str, int]

    def lines(self) -> list[str]:
        lines = [
            f"{self.verifier}: {self.accepted} accepted and {self.refused} refused actions, none the demonstration"
        ]
        for what, estimate in (
            ("success after accepted (precision)", self.success_accepted),
            ("success after refused", self.success_refused),
            ("acceptable that were accepted (recall)", self.recall),
        ):
            lines.append(f"    {what:<39} {format_estimate(estimate) if estimate else 'none seen'}")
        for what, counts in (("wrongly accepted", self.false_accepts), ("wrongly refused", self.false_refusals)):
            lines += [f"    {what} {count:5d}  {name}" for name, count in list(counts.items())[:4]]
        return lines


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierErrorResult:
    """The errors by whose verdict it was, the most frequent first."""

    verifier: str
    """As given."""
    left_out: dict[str, int]
    """Samples that are not judged here: the demonstration itself (`same`), truncated, unparsable, unscored."""
    errors: tuple[VerifierError, ...]

    def lines(self) -> list[str]:
        lines = [f"verifier {self.verifier}"]
        lines.append("left out: " + ", ".join(f"{count} {reason}" for reason, count in self.left_out.items()))
        return lines + [line for error in self.errors for line in error.lines()]


def verifier_error(config: VerifierErrorConfig) -> VerifierErrorResult:
    """Sample, judge, fork and play on. Raises MissingError when nothing differed, ConfigError for a bad setting."""
    check_sampling(config.rollouts, PARAMS)
    check_least(config, tasks=1)
    domain = load_domain(config.env)
    policy = load_policy(config.policy or str(shipped_base(domain.base)), ModelSettings())
    sampling = Sampling(
        policy=policy,
        verifier=load_verifier(config.verifier),
        params=PARAMS,
        n=config.rollouts,
        seed=config.seed,
    )
    env = domain.make()
    experts = [domain.expert(env, style).act for style in domain.styles]
    judged: list[JudgedAction] = []
    left_out: Counter[str] = Counter()
    with Progress("fork", config.tasks) as progress:
        for number, task in enumerate(env.tasks(config.split, config.tasks, config.seed)):
            judged += judged_actions(env, task, experts[number % len(experts)], sampling, left_out)
            progress.advance()
    if not judged:
        raise MissingError("no sampled action differed from the demonstration; raise --tasks or --rollouts")
    if config.out is not None:
        write_jsonl(config.out, judged)
    return VerifierErrorResult(
        verifier=config.verifier, left_out=dict(left_out.most_common()), errors=tuple(errors_of(judged))
    )


def judged_actions(
    env: Guided, task: str, expert: Callable[[], Action], sampling: Sampling, left_out: Counter[str]
) -> Iterator[JudgedAction]:
    """Every distinct sampled action of one expert episode that is not the demonstration."""
    snapshots, turns = [], []
    env.reset(task)
    while not env.done:
        snapshots.append(env.snapshot())
        turns.append(len(env.state.messages))
        env.step(expert())
    state = env.state
    trajectory = Trajectory(
        id=task, messages=state.messages, tools=state.tools, source=Source(file="made", format="lab")
    )
    candidates = [Candidate(trajectory=trajectory, turn=turn) for turn in turns]
    for candidate, snapshot, group in zip(candidates, snapshots, sample_groups(sampling, candidates), strict=True):
        seen: list[Action] = [candidate.demonstration]
        for completion, verdict in zip(group.completions, group.verdicts, strict=True):
            action = completion.action
            if completion.truncated or verdict.value is None:
                left_out["truncated" if completion.truncated else "unscored"] += 1
            elif action is None:
                left_out["unparsable"] += 1
            elif same_action(action, candidate.demonstration):
                left_out["same"] += 1
            elif not any(same_action(action, one) for one in seen):
                seen.append(action)
                yield JudgedAction(
                    task=task,
                    turn=candidate.turn,
                    verifier=verdict.verifier,
                    demonstration=candidate.demonstration,
                    action=action,
                    accepted=verdict.value >= 0.5,
                    reason=verdict.reason,
                    succeeded=_succeeds(env, snapshot, action, expert),
                )


def _succeeds(env: Guided, snapshot: bytes, action: Action, expert: Callable[[], Action]) -> bool:
    env.restore(snapshot)
    env.step(action)
    while not env.done:
        env.step(expert())
    return env.outcome() == 1.0


def errors_of(judged: Sequence[JudgedAction]) -> Iterator[VerifierError]:
    """The errors of each verifier that gave verdicts, the one that gave most first."""
    by_verifier: dict[str, list[JudgedAction]] = defaultdict(list)
    for one in judged:
        by_verifier[one.verifier].append(one)
    for name in sorted(by_verifier, key=lambda name: -len(by_verifier[name])):
        yield error_of(name, by_verifier[name])


def error_of(name: str, judged: Sequence[JudgedAction]) -> VerifierError:
    """Both kinds of error of the verdicts on these actions."""
    accepted = [one for one in judged if one.accepted]
    refused = [one for one in judged if not one.accepted]
    right = [one for one in judged if one.succeeded]
    return VerifierError(
        verifier=name,
        accepted=len(accepted),
        refused=len(refused),
        success_accepted=mean_share([(one.succeeded, one.task) for one in accepted]) if accepted else None,
        success_refused=mean_share([(one.succeeded, one.task) for one in refused]) if refused else None,
        recall=mean_share([(one.accepted, one.task) for one in right]) if right else None,
        false_accepts=_counts([one for one in accepted if not one.succeeded]),
        false_refusals=_counts([one for one in refused if one.succeeded]),
    )


def _counts(judged: Sequence[JudgedAction]) -> dict[str, int]:
    found = Counter(f"{one.reason}: {_what(one.action)} where {_what(one.demonstration)} was shown" for one in judged)
    return dict(found.most_common())


def _what(action: Action) -> str:
    return " + ".join(call.name for call in action.calls) or "message"
