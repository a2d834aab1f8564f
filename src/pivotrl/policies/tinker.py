"""Samples through the Tinker API: a SkyRL server of one's own, or the hosted service. Ids go out, ids come back.

States are rendered and actions read here, by the base model's tokenizer, as with the `torch` policy. All samples of a
state are one request, with a seed of its own; the states of a call are asked for at once. The client (extra `tinker`)
does the retrying.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, TypeVar
from urllib.parse import parse_qsl

from pivotrl.errors import ConfigError, DependencyError, InputError, ServerError, brief
from pivotrl.ledger import Meter
from pivotrl.models import ModelSettings, load_chat
from pivotrl.policies.openai_wire import request_seed
from pivotrl.storage import decode, dump_json, read_json
from pivotrl.types import Completion, PolicyFingerprint, Sampled, SamplingParams, State, TrainingExample, Usage

T = TypeVar("T")
TINKER: Final = "tinker:"
TINKER_FILE: Final = "tinker.json"
"""In the place of a model directory: what was saved on the server, as a `TinkerSaved`."""
KEY: Final = "TINKER_API_KEY"
_NO_KEY: Final = "tml-none"
"""The client insists on one; a server that is named, perhaps by a run of somebody else's, does not get the key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TinkerSpec:
    """`tinker:BASE[@URL][?option=value&...]`; the options are the fields but the first two."""

    base: str
    """The base model by the server's name for it."""
    url: str | None = None
    """None: the hosted service, by the key in TINKER_API_KEY."""
    path: str | None = None
    """Saved sampler weights (tinker://...); None: those of the base model."""
    tokenizer: str | None = None
    """Directory or id; None: the base model's name."""
    rank: int = 32
    """Of the LoRA that is trained; SkyRL takes 0 for all weights where its backend can."""
    seed: int = 0
    """Of the LoRA's beginning."""
    reduction: Literal["sum", "mean"] = "sum"
    """How the server adds up a loss: sum over tokens; mean over tokens, then over sequences (SkyRL's JAX backend)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TinkerSaved:
    """What a training saved on its server."""

    weights: TinkerSpec
    """To sample from."""
    state: str | None = None
    """Weights and optimiser, to go on from (tinker://...)."""


def read_spec(text: str) -> TinkerSpec:
    """What stands behind `tinker:`. Raises ConfigError."""
    found = re.fullmatch(r"([^@?]+)(?:@(https?://[^@?]+))?(?:\?(.*))?", text)
    if not found:
        raise ConfigError("policy tinker: write tinker:BASE_MODEL@http://HOST:PORT, without user and password")
    options = {key: int(value) if value.isdecimal() else value for key, value in parse_qsl(found[3] or "")}
    if unknown := options.keys() - TinkerSpec.__slots__:
        raise ConfigError(f"policy tinker: unknown option {min(unknown)}; use rank, reduction, tokenizer, ...")
    try:
        return decode(dump_json({"base": found[1], "url": found[2], **options}), TinkerSpec, "tinker")
    except InputError as error:
        raise ConfigError(f"policy tinker: {str(error).split(';')[0].removeprefix('tinker: ')}") from None


class Service:
    """One server, or the hosted service. Opening it asks what it serves. Raises a PivotRLError."""

    def __init__(self, spec: TinkerSpec) -> None:
        try:
            import tinker
        except ImportError:
            raise DependencyError("the Tinker API needs tinker; pip install 'pivotrl[tinker]'") from None
        self.api, self._where = tinker, spec.url or "the hosted Tinker service"
        key = _NO_KEY if spec.url else os.environ.get(KEY)
        if not key:
            raise ConfigError(f"tinker:{spec.base}: set {KEY}, or name your own server: tinker:BASE@http://HOST:PORT")
        self.client: Any = self.ask(lambda: tinker.ServiceClient(base_url=spec.url, api_key=key))
        served = self.ask(self.client.get_server_capabilities).supported_models
        lengths = {model.model_name: model.max_context_length for model in served}
        if spec.base not in lengths:
            raise ConfigError(
                f"{self._where} does not serve {spec.base}; it has {', '.join(sorted(filter(None, lengths)))}"
            )
        self.context_length: int | None = lengths[spec.base]

    def ask(self, call: Callable[[], T]) -> T:
        """What the call gives. Raises ServerError; the client gives ValueError for what the server refuses."""
        try:
            return call()
        except (self.api.TinkerError, ValueError, OSError) as error:
            raise ServerError(f"{self._where}: {brief(error)}; mend it and run again: what was saved is kept") from None


class TinkerPolicy(Meter):
    """Satisfies `ReferencePolicy`. Samples from the base model, from saved weights, or from a learner's."""

    def __init__(self, spec: TinkerSpec, how: ModelSettings) -> None:
        self.spec = spec
        self.chat, self._tokenizer = load_chat(spec.tokenizer or spec.base, how)
        self.service = Service(spec)
        self.context_length = self.service.context_length
        self._open, self._client = self._stored, None

    def _stored(self) -> Any:
        path = self.spec.path
        wanted = {"model_path": path} if path else {"base_model": self.spec.base}
        return self.service.ask(lambda: self.service.client.create_sampling_client(**wanted))

    def following(self, current: Callable[[], Any]) -> TinkerPolicy:
        """The same policy with other weights: those of the sampling client that `current` gives after each `renew`."""
        other = copy(self)
        other._open, other._client, other._usage = current, None, Usage()
        return other

    def renew(self) -> None:
        """Ask for a new sampling client before the next sample."""
        self._client = None

    @property
    def client(self) -> Any:
        if self._client is None:
            self._client = self._open()
        return self._client

    @property
    def fingerprint(self) -> PolicyFingerprint:
        """What the user and the server say; where the server is does not make another policy."""
        return PolicyFingerprint(
            weights=f"tinker:{self.spec.path or self.spec.base}",
            tokenizer=self._tokenizer,
            chat_template=self.chat.template_hash,
            tool_parser=self.chat.parser,
            thinking=self.chat.thinking,
            numerics="Tinker API",
        )

    def count_tokens(self, state: State) -> int:
        return len(self.chat.prompt_ids(state))

    def conversations(self) -> AbstractContextManager[None]:
        """Nothing is kept here; the server's prefix cache does that."""
        return nullcontext()

    def sample(
        self, states: Sequence[State], *, n: int, params: SamplingParams, seed: int, first: int = 0
    ) -> list[Sampled]:
        """n actions per state. Raises ServerError."""
        prompts = [self.chat.prompt_ids(state) for state in states]
        keys = [request_seed(seed, state.key, first) for state in states]
        asked = [self._ask(prompt, n, params, key) for prompt, key in zip(prompts, keys, strict=True)]
        answers = [self.service.ask(future.result) for future in asked]
        found = []
        for state, prompt, answer in zip(states, prompts, answers, strict=True):
            made = tuple(self._completion(one, params, state) for one in answer.sequences)
            if len(made) != n:
                raise ServerError(f"{self.spec.url or 'Tinker'}: {len(made)} samples came where {n} were asked for")
            generated = sum(len(one.token_ids) for one in made)
            self._usage += Usage(rollouts=n, turns=n, generated_tokens=generated)
            self._usage += Usage(prefilled_tokens=len(prompt), cached_tokens=len(prompt) * (n - 1))
            found.append(Sampled(completions=made, prompt_ids=prompt))
        return found

    def _ask(self, prompt: Sequence[int], n: int, params: SamplingParams, seed: int) -> Any:
        types = self.service.api.types
        fields: Mapping[str, Any] = {
            "max_tokens": params.max_new_tokens,
            "temperature": params.temperature,
            "top_p": params.top_p,
            "top_k": params.top_k or -1,
            "stop": sorted(self.chat.stop_ids),
            "seed": seed,
        }
        return self.client.sample(types.ModelInput.from_ints(list(prompt)), n, types.SamplingParams(**fields))

    def _completion(self, one: Any, params: SamplingParams, state: State) -> Completion:
        told = one.logprobs and params.temperature == 1  # elsewhere, servers differ
        known = self.last(one.logprobs, len(one.tokens)) if told else None
        read = self.chat.completion(one.tokens, state, known)
        return replace(read, finish_reason=one.stop_reason, token_ids=tuple(one.tokens))

    def logprobs(self, examples: Sequence[TrainingExample]) -> list[tuple[float, ...]]:
        """Log-probabilities of the examples' action tokens, one request each, all at once. Raises ServerError."""
        wanted = self.service.api.types.ModelInput
        sequences = [[*example.prompt_ids, *example.action_ids] for example in examples]
        asked = [self.client.compute_logprobs(wanted.from_ints(ids)) for ids in sequences]
        self._usage += Usage(prefilled_tokens=sum(map(len, sequences)))
        rows = [self.service.ask(future.result) for future in asked]
        return [self.last(row, len(one.action_ids)) for row, one in zip(rows, examples, strict=True)]

    def last(self, row: Sequence[float | None], count: int) -> tuple[float, ...]:
        """So many from the end: SkyRL's JAX backend omits the first token's, which has none. Raises ServerError."""
        found = tuple(value for value in row[max(len(row) - count, 0) :] if value is not None and math.isfinite(value))
        if len(found) < count:
            raise ServerError(f"{self.spec.url or 'Tinker'}: {len(found)} log-probabilities came for {count} tokens")
        return found


def load_tinker(spec: str, how: ModelSettings) -> TinkerPolicy:
    """`tinker:...`, or a directory that a training wrote. Raises a PivotRLError."""
    if spec.startswith(TINKER):
        return TinkerPolicy(read_spec(spec.removeprefix(TINKER)), how)
    return TinkerPolicy(read_json(Path(spec) / TINKER_FILE, TinkerSaved).weights, how)
