"""What a base model must show before anything is measured on it: it copies ids, is neither lost nor done, and gives
every acceptable action a share that reinforcement can start from."""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pivotrl.chat import same_action
from pivotrl.lab.desk import STYLES, DeskEnvironment, Expert
from pivotrl.lab.desk.books import NAMES
from pivotrl.lab.desk.rules import decide, item_of
from pivotrl.lab.desk.tasks import ID_PATTERN
from pivotrl.metrics import format_estimate, mean_share
from pivotrl.protocols import Policy
from pivotrl.types import Action, Estimate, SamplingParams, State

COPIED: Final = 0.95
SUCCESS: Final = (0.20, 0.40)
MASS: Final = 0.03
LEAST_STATES: Final = 10
"""A class that fewer states offer is not judged, but counted."""
SHOWN: Final = 5
"""Classes of the smallest mass that are printed."""
PARAMS: Final = SamplingParams(max_new_tokens=96)
_ID: Final = re.compile(ID_PATTERN)
_FACT: Final = re.compile(rf"{ID_PATTERN}|\b[0-9]+\b|\b(?:{'|'.join(NAMES)})\b")

Form = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """A state of an expert's episode, and what experts of every style do there."""

    name: str
    state: State
    acceptable: tuple[Action, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionGates:
    """What sampled actions show. Intervals are clustered by task."""

    copied: Estimate
    """Share of the calls that are right in all but their ids whose ids are right too."""
    masses: dict[str, Estimate]
    """Mean probability of each judged class of acceptable action where it is one, the smallest first."""
    unjudged: int
    """Classes that fewer than LEAST_STATES states offer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateReport:
    """The three measurements."""

    actions: ActionGates
    success: Estimate
    """Sampled, over validation tasks."""

    @property
    def passed(self) -> bool:
        low, high = SUCCESS
        smallest = min((one.mean for one in self.actions.masses.values()), default=0.0)
        return self.actions.copied.mean >= COPIED and low <= self.success.mean <= high and smallest >= MASS

    def lines(self) -> list[str]:
        low, high = SUCCESS
        actions = self.actions
        classes = f"{len(actions.masses)} classes judged, {actions.unjudged} in fewer than {LEAST_STATES} states not"
        return [
            f"ids copied right      {format_estimate(actions.copied)}, gate: at least {COPIED}",
            f"sampled success       {format_estimate(self.success)}, gate: {low} to {high}",
            f"mass of every class of acceptable action, gate: at least {MASS}; {classes}; the smallest:",
            *(f"    {format_estimate(mass)}  {name}" for name, mass in list(actions.masses.items())[:SHOWN]),
            "gates passed" if self.passed else "GATES FAILED: do not compare methods on this model",
        ]


def measure_actions(policy: Policy, tasks: Iterable[str], *, n: int, seed: int) -> ActionGates:
    """Ids copied, and mass by class, at the states of expert episodes; `n` samples a state.

    Raises ValueError when no sampled call is right in all but its ids.
    """
    copied: list[tuple[float, str]] = []
    shares: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for task in tasks:
        found = list(situations(task, seed))
        for situation, sampled in zip(
            found, policy.sample([one.state for one in found], n=n, params=PARAMS, seed=seed), strict=True
        ):
            actions = [completion.action for completion in sampled.completions]
            likes = [copies(action, situation.acceptable) for action in actions if action]
            copied += [(float(like), task) for like in likes if like is not None]
            for name, share in _shares(situation, actions):
                shares[name].append((share, task))
    judged = {name: mean_share(values) for name, values in shares.items() if len(values) >= LEAST_STATES}
    masses = dict(sorted(judged.items(), key=lambda pair: pair[1].mean))
    return ActionGates(copied=mean_share(copied), masses=masses, unjudged=len(shares) - len(judged))


def situations(task: str, seed: int) -> Iterator[Situation]:
    """The states of an episode in which a style drawn at every turn acts."""
    env, rng = DeskEnvironment(), random.Random(f"{seed}/{task}")
    env.reset(task)
    while not env.done:
        acceptable = tuple(Expert(env, style).act() for style in STYLES.values())
        yield Situation(name=_name(env), state=env.state, acceptable=acceptable)
        env.step(rng.choice(acceptable))


def _name(env: DeskEnvironment) -> str:
    """Stage and case of the policy: `asked refund fee`."""
    session, task = env.session, env.task
    if session.stage in ("greeting", "closing") or not session.verified:
        return session.stage
    request = task.requests[session.at]
    decision, order = decide(task, request), task.order(request.orders[0])
    case: str = decision.reasons[0] if decision.reasons else ""
    if request.kind == "refund" and decision.amount is not None:
        case = "fee" if decision.amount < item_of(order, request).price else case
    if request.kind == "exchange" and not decision.reasons:
        case = task.caller.tier
    if request.kind == "address" and not decision.reasons:
        case = order.status
    return " ".join(filter(None, (session.stage, request.kind, case)))


def form(action: Action) -> Form:
    """An action without its facts: calls by name and argument names, a text with its facts masked."""
    if action.calls:
        return tuple(f"{call.name}({', '.join(sorted(call.parsed.value or {}))})" for call in action.calls)
    return (_FACT.sub("_", action.text or ""),)


def _facts(action: Action) -> list[object]:
    if action.calls:
        return [sorted((call.parsed.value or {}).items(), key=str) for call in action.calls]
    return [*_FACT.findall(action.text or "")]


def copies(action: Action, acceptable: Sequence[Action]) -> bool | None:
    """Whether a call that is acceptable in all but its ids has the right ones; None for any other action."""
    if not action.calls:
        return None
    likes = [one for one in acceptable if one.calls and same_action(_without_ids(one), _without_ids(action))]
    return any(same_action(one, replace(action, text=None)) for one in likes) if likes else None


def _without_ids(action: Action) -> Action:
    calls = tuple(replace(call, arguments=_ID.sub("", call.arguments or ""), id=None) for call in action.calls)
    return Action(calls=calls)


def _shares(situation: Situation, actions: Sequence[Action | None]) -> Iterator[tuple[str, float]]:
    made = [(form(action), _facts(action)) for action in actions if action]
    wanted = {form(action): _facts(action) for action in situation.acceptable}
    for shape, facts in wanted.items():
        yield f"{situation.name}: {' + '.join(shape)}", sum(one == (shape, facts) for one in made) / len(actions)
