"""What a base model must show before anything is measured on it: it copies ids, is neither lost nor done, and gives
every acceptable action a share that reinforcement can start from."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pivotrl.chat import same_action
from pivotrl.lab.domains import DESK, Domain, Situation
from pivotrl.metrics import format_estimate, mean_share
from pivotrl.protocols import Policy
from pivotrl.types import Action, Estimate, SamplingParams

COPIED: Final = 0.95
SUCCESS: Final = (0.20, 0.40)
MASS: Final = 0.03
LEAST_STATES: Final = 10
"""A class that fewer states offer is not judged, but counted."""
SHOWN: Final = 5
"""Classes of the smallest mass that are printed."""
PARAMS: Final = SamplingParams(max_new_tokens=96)
Form = tuple[str, ...]


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


def measure_actions(policy: Policy, tasks: Iterable[str], *, n: int, seed: int, domain: Domain = DESK) -> ActionGates:
    """Ids copied, and mass by class, at the states of expert episodes; `n` samples a state.

    Raises ValueError when no sampled call is right in all but its ids.
    """
    copied: list[tuple[float, str]] = []
    shares: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for task in tasks:
        found = list(domain.situations(task, seed))
        for situation, sampled in zip(
            found, policy.sample([one.state for one in found], n=n, params=PARAMS, seed=seed), strict=True
        ):
            actions = [completion.action for completion in sampled.completions]
            likes = [copies(action, situation.acceptable, domain) for action in actions if action]
            copied += [(float(like), task) for like in likes if like is not None]
            for name, share in _shares(situation, actions, domain):
                shares[name].append((share, task))
    judged = {name: mean_share(values) for name, values in shares.items() if len(values) >= LEAST_STATES}
    masses = dict(sorted(judged.items(), key=lambda pair: pair[1].mean))
    return ActionGates(copied=mean_share(copied), masses=masses, unjudged=len(shares) - len(judged))


def form(action: Action, domain: Domain = DESK) -> Form:
    """An action without its facts: calls by name and argument names, a text with its facts masked."""
    if action.calls:
        return tuple(f"{call.name}({', '.join(sorted(call.parsed.value or {}))})" for call in action.calls)
    return (domain.copied.sub("_", action.text or ""),)


def _facts(action: Action, domain: Domain) -> list[object]:
    if action.calls:
        return [sorted((call.parsed.value or {}).items(), key=str) for call in action.calls]
    return [*domain.copied.findall(action.text or "")]


def copies(action: Action, acceptable: Sequence[Action], domain: Domain = DESK) -> bool | None:
    """Whether a call that is acceptable in all but its ids has the right ones; None for any other action.

    Where calls are written in the text, the text without its ids decides, if it holds any.
    """
    if not action.calls and not (domain.calls_in_text and re.search(domain.id_pattern, action.text or "")):
        return None
    bare = _without_ids(action, domain)
    likes = [one for one in acceptable if bool(one.calls) == bool(action.calls)]
    likes = [one for one in likes if same_action(_without_ids(one, domain), bare)]
    whole = replace(action, text=None) if action.calls else action
    return any(same_action(one, whole) for one in likes) if likes else None


def _without_ids(action: Action, domain: Domain) -> Action:
    calls = tuple(
        replace(call, arguments=re.sub(domain.id_pattern, "", call.arguments or ""), id=None) for call in action.calls
    )
    return Action(calls=calls) if calls else Action(text=re.sub(domain.id_pattern, "", action.text or ""))


def _shares(situation: Situation, actions: Sequence[Action | None], domain: Domain) -> Iterator[tuple[str, float]]:
    made = [(form(action, domain), _facts(action, domain)) for action in actions if action]
    wanted = {form(action, domain): _facts(action, domain) for action in situation.acceptable}
    for shape, facts in wanted.items():
        yield f"{situation.name}: {' + '.join(shape)}", sum(one == (shape, facts) for one in made) / len(actions)
