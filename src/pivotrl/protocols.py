"""Who reads, samples, judges and answers: the Protocols behind which there are open families, in terms of `types`.

`Learner` stands in `learners`, since it is told the loss of `grpo`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, runtime_checkable

from pydantic import JsonValue

from pivotrl.types import (
    Action,
    Candidate,
    EnvironmentStep,
    PolicyFingerprint,
    Sampled,
    SamplingParams,
    Source,
    Split,
    State,
    TrainingExample,
    Trajectory,
    Usage,
    Verdict,
)

Record = tuple[int | None, JsonValue]
"""A value of a file, with its line where the file is JSON Lines."""


class TrajectoryReader(Protocol):
    """Reads one format. `claims` looks at content, never at names."""

    name: str

    def claims(self, record: JsonValue) -> bool:
        """Whether this record (a JSON line, or a whole JSON document) is of this format."""

    def read(self, record: JsonValue, source: Source) -> Sequence[Trajectory]:
        """The trajectories of one record. Raises InputError naming the field that is wrong."""


@runtime_checkable
class SessionReader(Protocol):
    """Reads a format whose records are events: all records of a file together make its trajectories."""

    name: str

    def begins(self, record: JsonValue) -> bool:
        """Whether a file whose first record is this one is of this format."""

    def read_session(self, records: Iterable[Record], source: Source) -> Iterator[Trajectory]:
        """The trajectories of a file. Raises InputError naming the line and field that are wrong."""


class Verifier(Protocol):
    """Decides whether an action is acceptable at a state: r(s, a) = 1[a in M(s)] (Eq. 6)."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...

    @property
    def settings(self) -> Mapping[str, JsonValue]:
        """What, besides name and version, changes its verdicts."""

    def __call__(self, candidate: Candidate, action: Action) -> Verdict: ...


@runtime_checkable
class RemoteVerifier(Verifier, Protocol):
    """A verifier that asks somebody else, which takes time and perhaps money."""

    def expect(self, candidates: Iterable[Candidate], actions: int) -> None:
        """Say what judging so many actions at each candidate may take, before the first is judged."""

    def prepare(self, pairs: Sequence[tuple[Candidate, Action]]) -> None:
        """Ask about all of these at once; the calls for them that follow find the answers."""

    def take_usage(self) -> Usage:
        """What was spent since the last call of this method."""


@runtime_checkable
class RemotePolicy(Protocol):
    """What a policy has besides that asks somebody else, which takes time and perhaps money."""

    def expect(self, states: Iterable[State], *, n: int, params: SamplingParams) -> None:
        """Say what n samples of each state may take, before the first is asked for."""


@runtime_checkable
class LaggingPolicy(Protocol):
    """What a policy has besides that samples for a learner with weights that may not be the latest."""

    @property
    def age(self) -> int:
        """Optimiser steps that its weights are behind."""


class Policy(Protocol):
    """Samples actions."""

    @property
    def fingerprint(self) -> PolicyFingerprint: ...

    @property
    def context_length(self) -> int | None:
        """Tokens that state and action may have together; None when unknown."""

    def count_tokens(self, state: State) -> int:
        """Tokens of the rendered state."""

    def sample(
        self, states: Sequence[State], *, n: int, params: SamplingParams, seed: int, first: int = 0
    ) -> list[Sampled]:
        """n actions per state, numbered from `first`. Sample i of a state depends on (seed, state.key, i), and on the
        other states and samples of this call by no more than rounding."""

    def conversations(self) -> AbstractContextManager[None]:
        """While open, a call whose states continue those of the call before may reuse that call's work."""

    def take_usage(self) -> Usage:
        """What was spent since the last call of this method."""


class ReferencePolicy(Policy, Protocol):
    """A policy that also gives the log-probabilities of given actions."""

    def logprobs(self, examples: Sequence[TrainingExample]) -> list[tuple[float, ...]]:
        """Per action token, in nats, at temperature 1."""


class Environment(Protocol):
    """Plays one task at a time. The agent acts on `state`; nothing that an action holds makes `step` raise."""

    def tasks(self, split: Split, count: int, seed: int) -> tuple[str, ...]:
        """Ids of `count` distinct tasks of a split. Raises ConfigError where there are fewer."""

    def kind(self, task_id: str) -> str:
        """What a task is of, for break-downs (`2 requests`). Raises ConfigError for an unknown id."""

    @property
    def done(self) -> bool:
        """Whether the episode is over."""

    @property
    def state(self) -> State:
        """What the agent sees now. Raises InputError before the first `reset` or `restore`."""

    def reset(self, task_id: str) -> State:
        """Begin a task; the id alone decides it. Raises ConfigError for an unknown id."""

    def step(self, action: Action) -> EnvironmentStep:
        """Take one assistant turn. Raises InputError once the episode is over."""

    def outcome(self) -> float:
        """The reward of the episode as it stands, in [0, 1]; 0 while it goes on."""

    def snapshot(self) -> bytes:
        """Everything that decides how the episode goes on and what it earns."""

    def restore(self, data: bytes) -> State:
        """Go on from a snapshot, taken by this environment or another one of its kind. Raises InputError."""


class Guided(Environment, Protocol):
    """An environment with an expert, who tells which action lost an episode."""

    def expert(self) -> Action:
        """What an expert would do now; right wherever the episode can still be won. Raises InputError after the end."""
