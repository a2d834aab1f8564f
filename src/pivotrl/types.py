"""The nouns of PivotRL, in the order in which data flows: frozen, slotted, keyword-only.

Reward, advantage and score are three words for three things: a *reward* is a verifier's value for one action, an
*advantage* is what the loss multiplies (Eq. 1), a *score* is the mean reward of a policy over a set, with an interval.
Shape suffixes used everywhere: `_G` members of a group, `_B` rows of a batch, `_T` tokens, `_V` vocabulary.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated, Final, Literal, NoReturn

from pydantic import AfterValidator, JsonValue

Role = Literal["system", "user", "assistant", "tool"]
FinishReason = Literal["stop", "length", "error"]
Split = Literal["train", "validation", "test"]
ActionKind = Literal["call", "message"]
Shared = Annotated[str, AfterValidator(sys.intern)]
"""A text that many records have in common: one object of it is kept in memory when they are read."""
Ending = Literal["done", "turn_limit", "context_full", "failed_call"]
"""Why an episode is over: by the environment, our cap on turns, the policy's context, or a model call that failed."""


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
DEEPEST: Final = 200
"""Levels of a call's arguments: what walks through them, or compares them, calls itself."""


def _too_deep(value: JsonValue) -> bool:
    level = [value]
    for _ in range(DEEPEST):
        level = [inner for one in level for inner in _members(one)]
    return any(isinstance(one, dict | list) for one in level)


def _members(value: JsonValue) -> Iterable[JsonValue]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """The decoded arguments of a call: the object, or the reason why there is none."""

    value: dict[str, JsonValue] | None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One call of a tool. Absent (None), null ("null") and empty ("{}") arguments stay three things."""

    name: str
    arguments: str | None
    """The raw JSON text as it came; a source that holds an object is written as JSON once, by its reader."""
    id: str | None = None

    @property
    def parsed(self) -> Arguments:
        """The argument object; absent arguments, invalid JSON and anything but an object give an error instead."""
        if self.arguments is None:
            return Arguments(value=None, error="arguments are absent")
        try:
            value = DECODER.decode(self.arguments)
        except (ValueError, RecursionError) as error:
            return Arguments(value=None, error=f"arguments are not JSON: {error}")
        if not isinstance(value, dict):
            return Arguments(value=None, error=f"arguments are a JSON {type(value).__name__}, not an object")
        if self.arguments.count("{") + self.arguments.count("[") > DEEPEST and _too_deep(value):
            return Arguments(value=None, error=f"arguments are nested more than {DEEPEST} levels deep")
        return Arguments(value=value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A tool as the model is told of it; `parameters` is its JSON Schema, None when the source gives none."""

    name: str
    description: str = ""
    parameters: dict[str, JsonValue] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of the OpenAI chat schema."""

    role: Role
    content: str | None = None
    """Text; the text parts of multi-part content joined by newlines."""
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    error: bool | None = None
    """Tool results: whether the source says that the tool failed (None: it does not say)."""
    omitted: tuple[str, ...] = ()
    """Kinds of content parts that are not text (`image_url`, ...); a state that holds one cannot be rendered."""
    excluded: str | None = None
    """Assistant turns: why the reader says that this turn is no demonstration (`scripted_greeting`, ...)."""
    literal: str | None = None
    """Assistant turns of a trajectory with a `syntax`: the exact text in which content and calls were written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a trajectory came from."""

    file: str
    format: str
    line: int | None = None
    """Line of a JSON Lines file, counted from 1."""
    index: int | None = None
    """Record inside a JSON document, counted from 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """One linear history of an agent; T assistant turns make T candidates."""

    id: str
    messages: tuple[Message, ...]
    source: Source
    tools: tuple[Tool, ...] | None = None
    """None: the source does not say which tools there were; () : it says that there were none."""
    task_id: str | None = None
    outcome: float | None = None
    """Reward of the whole episode, 1.0 being full; None when unknown."""
    parent_id: str | None = None
    """Set on the segments of a history that the harness rewrote; they share `task_id` and split."""
    domain: str | None = None
    syntax: str | None = None
    """Of `actions.SYNTAXES`, where the prompt has the model write calls into its text; None: its template does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One whole assistant response at a model call. Calls make it a call, else it is a message."""

    text: str | None = None
    reasoning: str | None = None
    calls: tuple[ToolCall, ...] = ()

    @property
    def kind(self) -> ActionKind:
        return "call" if self.calls else "message"


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What a policy is asked to act on. `key` names its random stream and is the candidate's id."""

    key: str
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] | None
    syntax: str | None = None
    """How actions are written here, whatever the model's own way is (`Trajectory.syntax`)."""

    @property
    def told_tools(self) -> tuple[Tool, ...] | None:
        """The tools that a template has to tell of: none where the prompt of a text protocol does."""
        told = any(tool.name in (message.content or "") for message in self.messages[:2] for tool in self.tools or ())
        return None if self.syntax and told else self.tools


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One assistant turn of a trajectory, by reference: the state before it and the demonstrated action."""

    trajectory: Trajectory
    turn: int
    """Index of the assistant message in `trajectory.messages`."""

    @property
    def id(self) -> str:
        return candidate_id(self.trajectory.id, self.turn)

    @property
    def state(self) -> State:
        whole = self.trajectory
        return State(key=self.id, messages=whole.messages[: self.turn], tools=whole.tools, syntax=whole.syntax)

    @property
    def demonstration(self) -> Action:
        message = self.trajectory.messages[self.turn]
        return Action(text=message.content, reasoning=message.reasoning, calls=message.tool_calls)

    @property
    def literal(self) -> str | None:
        """The exact text of the demonstration, where it holds its calls (`Message.literal`)."""
        return self.trajectory.messages[self.turn].literal


def candidate_id(trajectory_id: str, turn: int) -> str:
    return f"{trajectory_id}@{turn}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateRow:
    """A candidate as `candidates.jsonl` holds it."""

    id: str
    trajectory_id: Shared
    turn: int
    depth: int
    """How many assistant turns come before it."""
    kind: ActionKind
    tools: tuple[Shared, ...]
    """Names of the tools that the demonstration calls."""
    split: Split
    group: Shared
    """The unit of the split: a task, or trajectories that share their opening."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedTurn:
    """An assistant turn that is no candidate, with its reason (`audit.jsonl`)."""

    trajectory_id: str
    turn: int
    reason: str
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How actions are sampled. The defaults sample from the policy itself, which Eq. 5 and Eq. 7 assume."""

    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    """Sample from the smallest set of tokens that holds this much probability; 1 is off."""
    top_k: int = 0
    """0 is off."""
    max_new_tokens: int = 512
    """Longest action; what is longer is truncated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What came back from one model call: an action, or the reason why there is none."""

    action: Action | None
    text: str
    """The raw text, stop token excluded; evidence when parsing fails."""
    finish_reason: FinishReason
    token_ids: tuple[int, ...] = ()
    """The sampled ids, stop token included; empty when a server does not give them."""
    logprob: float | None = None
    """Sum of the sampled tokens' log-probabilities under the sampler at temperature 1, in nats."""
    token_logprobs: tuple[float, ...] | None = None
    parse_error: str | None = None

    @property
    def truncated(self) -> bool:
        return self.finish_reason == "length"

    @property
    def unparsable(self) -> bool:
        """Whether it came whole and is no action; truncated and failed calls are counted as such."""
        return self.finish_reason == "stop" and self.action is None

    @property
    def stored(self) -> Completion:
        """Without a number for every token."""
        return self if self.token_logprobs is None else replace(self, token_logprobs=None)

    @property
    def played(self) -> Action:
        """What an environment is given: the action, or the raw text as a message where it is none or truncated."""
        return Action(text=self.text) if self.action is None or self.truncated else self.action


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A verifier's word on one action."""

    value: float | None
    """The reward, in [0, 1]; None when the *verifier* failed, or a truncated action is to be excluded: left out of
    every statistic, never read as 0."""
    reason: str
    """A short code (`match`, `wrong_tool`, `unparsable`, `verifier_error`, ...), counted in reports."""
    verifier: str
    version: str
    detail: str = ""
    parts: tuple[Verdict, ...] = ()
    """Of a composed verifier: what its members said, in the order in which they were asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One sampled action at a candidate, as stored; its verdicts are kept apart so that criteria can change."""

    candidate_id: str
    sample: int
    completion: Completion


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredVerdict:
    """A verdict as stored, beside the rollout that it judges."""

    candidate_id: str
    sample: int
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutGroup:
    """G samples at one state, with their verdicts."""

    candidate_id: str
    completions: tuple[Completion, ...]
    verdicts: tuple[Verdict, ...]
    prompt_ids: tuple[int, ...] = ()

    @property
    def rewards(self) -> tuple[float | None, ...]:
        """G rewards; None where the verifier failed."""
        return tuple(verdict.value for verdict in self.verdicts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Posterior:
    """Beta posterior of the success probability, from Jeffreys' prior (facts of the field: Beta(1/2, 1/2))."""

    a: float
    b: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """How a frozen policy fares at one candidate, under one verifier. Never the rollouts themselves."""

    candidate_id: str
    n: int
    """Scored rollouts: the base of mean and variance."""
    mean: float | None
    """None when nothing was scored."""
    variance: float | None
    """Population variance (Eq. 5)."""
    unscored: int
    """Rollouts whose verifier or server failed."""
    truncated: int
    unparsable: int
    distinct_actions: int
    posterior: Posterior
    policy: Shared
    """Hash of the policy's fingerprint."""
    verifier: Shared
    """Hash of the verifier's name, version and settings (`verifiers.verifier_id`)."""
    stopped_early: bool = False
    """It got fewer rollouts than it could have, because of their rewards: the mean is biased, the posterior is not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pivot:
    """A candidate worth training on."""

    candidate_id: str
    profile: str
    """Name of the profile that justified it."""
    weight: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyFingerprint:
    """Everything but the sampling that changes what a policy does, so that train and profile can be held together."""

    weights: str
    tokenizer: str
    chat_template: str
    tool_parser: str
    thinking: str
    numerics: str

    def differences(self, other: PolicyFingerprint) -> list[str]:
        """Names of the fields in which the two differ."""
        return [name for name in self.__slots__ if getattr(self, name) != getattr(other, name)]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingExample:
    """One sequence for the learner: the rendered state and the action, in the ids that were sampled."""

    group_id: str
    prompt_ids: tuple[int, ...]
    action_ids: tuple[int, ...]
    advantage: float
    loss_mask: tuple[bool, ...]
    """Which action tokens enter the loss."""
    sampler_logprobs: tuple[float, ...] | None = None
    """As the sampler reported them."""
    old_logprobs: tuple[float, ...] | None = None
    """log pi_old by the learner; None: the current weights are pi_old (one update per batch)."""
    reference_logprobs: tuple[float, ...] | None = None
    weight: float = 1.0
    """How much each of its tokens counts in the mean over the batch, beside those of other examples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """One optimisation step, as the learner saw it; token means unless said otherwise."""

    loss: float
    reward_loss: float
    kl: float | None
    """Mean of the KL estimator in the loss, in nats per token; None when beta is 0."""
    clip_fraction: float
    ratio_mean: float
    sampler_gap: float | None
    """Largest |learner - sampler| log-probability difference of a token."""
    grad_norm: float
    tokens: int
    """Action tokens in the loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a piece of work cost."""

    rollouts: int = 0
    turns: int = 0
    """Model calls; one per rollout here, several per episode end to end."""
    prefilled_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens that a shared prefill saved."""
    generated_tokens: int = 0
    trained_tokens: int = 0
    """Tokens forwarded and differentiated by the learner, prompts included."""
    flops: float = 0.0
    seconds: float = 0.0
    judge_calls: int = 0
    judge_prompt_tokens: int = 0
    judge_generated_tokens: int = 0
    money: float = 0.0
    """What servers were paid, policy and judge, at the prices that the user gave."""

    def __add__(self, other: Usage) -> Usage:
        return Usage(**{name: getattr(self, name) + getattr(other, name) for name in self.__slots__})


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean with its 95% interval; the bounds are None where one cluster allows none."""

    mean: float
    low: float | None
    high: float | None
    n: int
    clusters: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """A policy's answer for one state."""

    completions: tuple[Completion, ...]
    prompt_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """What the FLOP formulas need to know of a decoder."""

    parameters: int
    """All parameters but the input embedding table (an untied output head is counted)."""
    layers: int
    attention_width: int
    """Heads x head size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentStep:
    """What one turn in an environment brought."""

    new: tuple[Message, ...]
    """The agent's own message as the history keeps it, then tool results or what the user says."""
    done: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """One task played to its end, as stored; the messages between the actions follow by playing them again."""

    task_id: str
    trial: int
    completions: tuple[Completion, ...]
    """One per turn."""
    ending: Ending
    reward: float | None
    """The environment's outcome, in [0, 1]; None after a failed call, never read as 0."""

    @property
    def turns(self) -> int:
        return len(self.completions)
