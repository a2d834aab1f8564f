"""Which action lost an episode: found by playing it again and letting the environment's expert go on from there.

Whether an episode can still be won is monotone, since what is lost stays lost; so a binary search over its turns is
enough. The expert is taken at its word: a state is won where the expert wins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final, TypeGuard

from pivotrl.logs import Progress
from pivotrl.protocols import Environment, Guided
from pivotrl.types import Action, Completion, Episode

EXPERT_TURNS: Final = 256
"""An expert that needs more does not win."""


def is_guided(env: Environment) -> TypeGuard[Guided]:
    """Whether the environment has an expert."""
    return callable(getattr(env, "expert", None))


def first_wrong_actions(env: Guided, episodes: Iterable[Episode], most: int | None = None) -> dict[str, int]:
    """How often each first wrong action lost one of the first `most` lost episodes, most frequent first.

    Unscored and won ones are left out.
    """
    lost = [episode for episode in episodes if episode.reward is not None and episode.reward < 1][:most]
    found: Counter[str] = Counter()
    with Progress("first wrong actions", len(lost)) as progress:
        for episode in lost:
            found[first_wrong_action(env, episode)] += 1
            progress.advance(1)
    return dict(found.most_common())


def first_wrong_action(env: Guided, episode: Episode) -> str:
    """The action after which the expert can no longer win, set against what the expert would have done instead.

    `no wrong action (turn_limit)` where it could still be won when it ended; `the expert fails` where it never could.
    """
    won, lost = 0, episode.turns  # turns after which it can be won, and after which it cannot
    if _wins(env, episode, lost):
        return f"no wrong action ({episode.ending})"
    if lost == 0 or not _wins(env, episode, won):
        return "the expert fails"
    while lost - won > 1:
        middle = (won + lost) // 2
        won, lost = (middle, lost) if _wins(env, episode, middle) else (won, middle)
    _replay(env, episode, won)
    return describe(episode.completions[won], env.expert())


def describe(completion: Completion, expected: Action) -> str:
    """`A instead of B`, or where both call the same tools `wrong arguments of A`, or `wrong message`."""
    wanted = _names(expected)
    broken = "truncated" if completion.truncated else "unparsable" if completion.unparsable else ""
    said = broken or _names(completion.played)
    if said != wanted:
        return f"{said} instead of {wanted}"
    return f"wrong arguments of {wanted}" if expected.calls else "wrong message"


def _names(action: Action) -> str:
    return " + ".join(sorted(call.name for call in action.calls)) or "message"


def _replay(env: Environment, episode: Episode, turns: int) -> None:
    env.reset(episode.task_id)
    for completion in episode.completions[:turns]:
        env.step(completion.played)


def _wins(env: Guided, episode: Episode, turns: int) -> bool:
    """Whether the expert wins after so many turns of the episode."""
    _replay(env, episode, turns)
    for _ in range(EXPERT_TURNS):
        if env.done:
            return env.outcome() == 1
        env.step(env.expert())
    return False
