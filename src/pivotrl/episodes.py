"""Plays episodes of a policy in an environment, in lockstep, and stores them: one model call per turn and unit.

A unit of work is `width` episodes, played side by side and written at once; what a kill left of an unfinished unit is
cut off and played again. The width is part of the plan, since what else is in a batch may change rounding. Random
streams are keyed by (seed, task, trial, turn).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import chain, groupby
from pathlib import Path

from pivotrl.environments import LoadedEnvironment, checked_state
from pivotrl.errors import InputError, PivotRLError, check_least
from pivotrl.ledger import Ledger, Stopwatch
from pivotrl.logs import Progress
from pivotrl.protocols import Environment, Policy
from pivotrl.storage import FileLock, PartWriter, complete_lines, complete_units, decode
from pivotrl.types import Completion, Ending, Episode, RolloutGroup, Sampled, SamplingParams, State, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeSettings:
    """How episodes are played."""

    trials: int = 1
    """Episodes of each task."""
    turn_limit: int = 64
    """End an episode after this many turns; an environment may have a shorter limit of its own."""
    width: int = 32
    """Episodes played side by side; as many environments are held in memory."""

    def __post_init__(self) -> None:
        check_least(self, "episodes.", trials=1, turn_limit=1, width=1)

    def units(self, tasks: Sequence[str], trials: int | None = None) -> list[list[tuple[str, int]]]:
        """(task, trial) of every episode, task by task, `width` in a unit; by default as many trials as set."""
        wanted = [(task, trial) for task in tasks for trial in range(trials or self.trials)]
        return [wanted[start : start + self.width] for start in range(0, len(wanted), self.width)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Playing:
    """Who plays in what, and how."""

    policy: Policy
    make: Callable[[], Environment]
    params: SamplingParams
    seed: int
    turn_limit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """An episode with what training needs besides: its tokens' log-probabilities, and the ids of each state."""

    episode: Episode
    prompts: tuple[tuple[int, ...], ...]


@dataclass(slots=True)
class _Seat:
    """One episode in the making."""

    task_id: str
    trial: int
    env: Environment
    completions: list[Completion] = field(default_factory=list)
    prompts: list[tuple[int, ...]] = field(default_factory=list)
    ending: Ending | None = None

    @property
    def state(self) -> State:
        """The environment's, under a key that no other episode or turn has."""
        state = checked_state(self.env.state, self.task_id)
        return replace(state, key=f"{self.task_id}/{self.trial}@{len(self.completions)}")

    def take(self, answer: Sampled) -> None:
        completion = answer.completions[0]
        self.completions.append(completion)
        self.prompts.append(answer.prompt_ids)
        if completion.finish_reason == "error":
            self.ending = "failed_call"
            return
        try:
            self.env.step(completion.played)
        except PivotRLError as error:
            raise type(error)(f"task {self.task_id}, turn {len(self.completions)}: {error}") from error

    def played(self) -> Played:
        """Raises InputError when the environment's outcome is no reward."""
        assert self.ending is not None, "it was played to its end"
        reward = None if self.ending == "failed_call" else self.env.outcome()
        if self.ending != "failed_call" and not (isinstance(reward, int | float) and 0 <= reward <= 1):
            raise InputError(f"task {self.task_id}: outcome {reward!r}; mend the environment, rewards lie in [0, 1]")
        turns = tuple(self.completions)
        episode = Episode(task_id=self.task_id, trial=self.trial, completions=turns, ending=self.ending, reward=reward)
        return Played(episode=episode, prompts=tuple(self.prompts))


def play_episodes(
    playing: Playing, wanted: Sequence[tuple[str, int]], progress: Progress | None = None
) -> list[Episode]:
    """The episodes of `play` as they are stored, without a number for every token."""
    episodes = [one.episode for one in play(playing, wanted, progress)]
    return [replace(one, completions=tuple(turn.stored for turn in one.completions)) for one in episodes]


def play(playing: Playing, wanted: Sequence[tuple[str, int]], progress: Progress | None = None) -> list[Played]:
    """Play (task, trial) side by side, every one to its end; `progress` is told how many still go on."""
    seats = [_Seat(task_id, trial, playing.make()) for task_id, trial in wanted]
    for seat in seats:
        seat.env.reset(seat.task_id)
        seat.ending = _ending(playing, seat)
    with playing.policy.conversations():
        while live := [seat for seat in seats if seat.ending is None]:
            states = [seat.state for seat in live]
            answers = playing.policy.sample(states, n=1, params=playing.params, seed=playing.seed)
            _take_all(live, answers)
            for seat in live:
                seat.ending = seat.ending or _ending(playing, seat)
            if progress is not None:
                progress.advance(0, f"{len(live)} going on")
    return [seat.played() for seat in seats]


def _take_all(seats: Sequence[_Seat], answers: Sequence[Sampled]) -> None:
    """Give each its answer; environments that say so (`threads`) are stepped several at a time."""
    threads = getattr(seats[0].env, "threads", 1)
    if threads == 1:
        for seat, answer in zip(seats, answers, strict=True):
            seat.take(answer)
    else:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(_Seat.take, seats, answers))


def _ending(playing: Playing, seat: _Seat) -> Ending | None:
    """Why the policy is not asked again; None where it is."""
    if seat.env.done:
        return "done"
    if len(seat.completions) >= playing.turn_limit:
        return "turn_limit"
    context = playing.policy.context_length
    if context is not None and playing.policy.count_tokens(seat.state) + playing.params.max_new_tokens > context:
        return "context_full"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Arena:
    """An environment, and how episodes are played in it."""

    environment: LoadedEnvironment
    settings: EpisodeSettings

    def playing(self, policy: Policy, params: SamplingParams, seed: int) -> Playing:
        make, limit = self.environment.make, self.settings.turn_limit
        return Playing(policy=policy, make=make, params=params, seed=seed, turn_limit=limit)

    def play(
        self, policy: Policy, params: SamplingParams, seed: int, tasks: Sequence[str], trials: int | None = None
    ) -> list[Played]:
        """So many episodes of each task, by default as set; task by task."""
        playing = self.playing(policy, params, seed)
        return [one for unit in self.settings.units(tasks, trials) for one in play(playing, unit)]


def by_task(episodes: Sequence[Episode]) -> list[RolloutGroup]:
    """Neighbours of one task as a group that has all their turns, and a verdict for each episode, of its outcome."""
    groups = []
    for task, some in groupby(episodes, key=lambda one: one.task_id):
        pairs = [(e.completions, Verdict(value=e.reward, reason=e.ending, verifier="", version="")) for e in some]
        turns, verdicts = zip(*pairs, strict=True)
        groups.append(RolloutGroup(candidate_id=task, completions=sum(turns, ()), verdicts=verdicts))
    return groups


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeStore:
    """`plan.json` aside, the folder of one policy in one environment: whole units in the planned order."""

    folder: Path
    units: Sequence[Sequence[tuple[str, int]]]
    """(task, trial) of every episode."""
    ledger: Ledger
    name: str
    """Heading of what an evaluation costs in the ledger."""

    @property
    def path(self) -> Path:
        return self.folder / "episodes" / "part-00000.jsonl"

    def episodes(self) -> Iterator[Episode]:
        """Every episode in the planned order. Raises InputError where one is missing."""
        stored = complete_lines(self.path)
        for number, wanted in enumerate(chain.from_iterable(self.units), start=1):
            _, raw = next(stored, (0, b"null"))
            episode = decode(raw, Episode, f"{self.path}:{number}")
            if (episode.task_id, episode.trial) != wanted:
                raise InputError(
                    f"{self.path}:{number}: {episode.task_id} instead of {wanted[0]}; delete the folder, evaluate again"
                )
            yield episode


def collect_episodes(store: EpisodeStore, playing: Playing) -> None:
    """Play all that the plan still lacks. Interrupt it anywhere; the next call goes on."""
    with FileLock(store.folder / ".lock"):
        units = store.units
        done, size = complete_units(store.path, map(len, units))
        total, before = sum(map(len, units)), sum(map(len, units[:done]))
        with PartWriter(store.path) as part, Progress(f"episodes {store.name}", total, before) as progress:
            part.keep(size)
            watch = Stopwatch()
            for number, unit in enumerate(units[done:], start=done):
                episodes = play_episodes(playing, unit, progress)
                usage = replace(playing.policy.take_usage(), seconds=watch.lap(), rollouts=len(unit))
                store.ledger.record("evaluate", store.name, f"{number}", usage)
                part.append(episodes)
                progress.advance(len(unit))
