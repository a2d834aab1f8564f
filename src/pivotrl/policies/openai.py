"""Samples actions from any OpenAI-compatible server: vLLM, SGLang, llama.cpp, Ollama, TGI, a hosted service.

Without `tokenizer`, messages and tools are sent; the server's template renders them and its parser reads the calls, or
we do where it leaves them in the text (a completion's text is then that text, else the JSON of the server's message).
With it, the ids that our own chat format renders are sent and ids come back, as with the `torch` policy. Where a server
gives no ids, completions have none; nothing can be trained on what was sampled here, only profiled.

On opening, a few short requests find out which parameters the server refuses, and whether the choices of one request
are independent: SGLang in its deterministic mode clones one (Tencent-Hunyuan/UniRL#208), `transformers serve` ignores
`n`, and samples greedily unless the model's generation settings say otherwise.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from pivotrl import actions
from pivotrl.chat import ChatFormat, tool_dict
from pivotrl.errors import ConfigError, ServerError
from pivotrl.ledger import Meter
from pivotrl.logs import say
from pivotrl.models import ModelSettings, load_chat
from pivotrl.openai_client import BYTES_PER_TOKEN, Client, OverBudget, Refused, Tokens, Unanswered
from pivotrl.plugins import remember
from pivotrl.policies.openai_wire import (
    NEUTRAL,
    RAW_TEXT,
    REPORTS,
    SILENT,
    Answer,
    Body,
    Choice,
    OpenAISettings,
    read_action,
    read_answer,
    request_seed,
    sampling_fields,
    to_leave_out,
    wire_messages,
    without,
)
from pivotrl.storage import content_hash, dump_json
from pivotrl.trajectories.messages import dig
from pivotrl.types import Completion, Message, PolicyFingerprint, Sampled, SamplingParams, State, Usage

MOST_CHOICES: Final = 128
"""Of one request, as OpenAI has it."""
PROBE: Final = State(key="probe", messages=(Message(role="user", content="Name ten random words."),), tools=None)
PROBE_PARAMS: Final = SamplingParams(max_new_tokens=16)
PROBE_CHOICES: Final = 4


@dataclass(frozen=True, slots=True)
class _Job:
    """One request: some samples of one state."""

    index: int
    """Which of the states of a call."""
    state: State
    params: SamplingParams
    count: int
    body: Body

    @property
    def bound(self) -> Tokens:
        """The most that it may take: a token a byte where we cannot count."""
        ids = self.body.get("prompt")
        sent = len(dump_json(self.body)) if ids is None else len(ids)
        return Tokens(sent, self.count * self.params.max_new_tokens)


class OpenAIPolicy(Meter):
    """A model behind a server; opening it asks the server, and says what a user should know."""

    def __init__(self, model: str, settings: OpenAISettings, how: ModelSettings) -> None:
        self.model, self.settings, self._client = model, settings, Client(settings)
        self._chat: ChatFormat | None = None
        self._tokenizer, self._parser, self._thinking = "server", how.tool_parser or "auto", how.thinking or "default"
        if settings.tokenizer is not None:
            self._chat, self._tokenizer = load_chat(settings.tokenizer, how)
        elif self._parser not in ("auto", *actions.SYNTAXES):
            raise ConfigError(f"model.tool-parser {self._parser!r}: needs --openai.tokenizer; or use auto")
        elif how.chat_template is not None:
            say(f"{model}: the server renders, so --model.chat-template is not used (--openai.tokenizer renders here)")
        self._path = "/completions" if self._chat else "/chat/completions"
        self.context_length: int | None = settings.context_length or None
        self._left_out: frozenset[str] = frozenset()
        self._width = settings.samples_per_request or MOST_CHOICES
        self._gives_ids = self._answered = False
        self._client.run(self._open())

    async def _open(self) -> None:
        """Find out what the server takes and gives. Raises a PivotRLError where nothing can be had from it."""
        if self._chat and self.context_length is None:
            self.context_length = await self._listed_length()
        wanted = min(self._width, PROBE_CHOICES)
        first = await self._agree(wanted, seed=0)
        self._gives_ids = all(choice.token_ids for choice in first.choices)
        if missing := sorted(self._left_out - SILENT):
            say(f"{self.model}: the server does not take {', '.join(missing)}: its own defaults hold for them")
        if not self._gives_ids:
            say(f"{self.model}: the server gives no token ids: good for profiles and evaluations only")
        if len(first.choices) > 1 and (self.settings.samples_per_request or len({*_texts(first)}) > 1):
            return
        self._width = 1
        second = await self._agree(1, seed=1)
        if len(first.choices) > 1:
            say(f"{self.model}: choices of one request came out equal, so every sample is asked for by itself")
        if _texts(second)[0] == _texts(first)[0] != "":
            say(f"warning: {self.model}: two seeds gave the same text at temperature 1: the server may sample greedily")

    async def _listed_length(self) -> int | None:
        """What the list of models says of this one's context; None where it says nothing."""
        try:
            models = await self._client.ask("/models", None, lambda document: dig(document, "data"), Tokens())
        except (Unanswered, ConfigError):
            return None
        mine = [one for one in models if dig(one, "id") == self.model] if isinstance(models, list) else []
        lengths = [dig(one, name) for one in mine for name in ("max_model_len", "context_length")]
        return next((length for length in lengths if isinstance(length, int)), None)

    async def _agree(self, wanted: int, *, seed: int) -> Answer:
        """The answer to a short request; what the server refuses is left out from now on. Raises a PivotRLError."""
        complaint = ""
        while True:
            count = 1 if "n" in self._left_out else wanted
            body = self._body(self._prompt(PROBE), PROBE_PARAMS, count, seed)
            try:
                return await self._ask(_Job(0, PROBE, PROBE_PARAMS, count, body), {1, count})
            except Refused as refused:
                complaint = complaint or str(refused)
                more = to_leave_out(str(refused), self._left_out)
                if not more:
                    raise ConfigError(f"{self._client.url} refuses every request: {complaint}") from None
                self._left_out |= more
            except Unanswered as error:
                raise ServerError(f"{self._client.url} does not answer: {error}; mend the server") from None

    @property
    def fingerprint(self) -> PolicyFingerprint:
        """What the user and the server say; where the server is does not make another policy."""
        facts = ["over HTTP"] + ["no token ids"] * (not self._gives_ids)
        if missing := sorted(self._left_out - SILENT):
            facts.append(f"not sent: {', '.join(missing)}")
        if extra := self.settings.fields:
            facts.append(f"extra {content_hash(extra)}")
        if not (self.settings.history_reasoning or self._chat):
            facts.append("no earlier reasoning")
        return PolicyFingerprint(
            weights=f"openai:{self.model}",
            tokenizer=self._tokenizer,
            chat_template=self._chat.template_hash if self._chat else "server",
            tool_parser=self._chat.parser if self._chat else f"server, else {self._parser}",
            thinking=self._thinking,
            numerics="; ".join(facts),
        )

    def count_tokens(self, state: State) -> int:
        """Exact with a tokenizer, else estimated from the bytes of the request."""
        return _size(self._prompt(state))

    def conversations(self) -> AbstractContextManager[None]:
        """Nothing is kept here; the server's prefix cache does that."""
        return nullcontext()

    def take_usage(self) -> Usage:
        """What the server says, also for tries that came to nothing; where it says nothing, the most it may be."""
        _, tokens = self._client.budget.take()
        money = self.settings.cost(tokens)
        paid = Usage(prefilled_tokens=tokens.prompt, generated_tokens=tokens.completion, money=money)
        return super().take_usage() + paid

    def expect(self, states: Iterable[State], *, n: int, params: SamplingParams) -> None:
        """Say what n samples of each state will take, actions as long as they may get and nothing asked for twice."""
        sizes = [self.count_tokens(state) for state in states]
        times = -(-n // self._choices(params))
        tokens = Tokens(sum(sizes) * times, len(sizes) * n * params.max_new_tokens)
        cost, cap = self.settings.cost(tokens), self.settings.max_cost
        say(
            f"{self.model}: {len(sizes) * times:,} requests for {len(sizes) * n:,} actions, {tokens.prompt:,} prompt "
            f"{'' if self._chat else '(estimated) '}and at most {tokens.completion:,} generated tokens"
            + (f"; at most {cost:.2f} at these prices, and the cap is {cap:g}" if cost else "")
        )

    def _choices(self, params: SamplingParams) -> int:
        """The most that one request asks for; greedy ones singly, since vLLM refuses more."""
        return 1 if params.temperature == 0 else self._width

    def sample(
        self, states: Sequence[State], *, n: int, params: SamplingParams, seed: int, first: int = 0
    ) -> list[Sampled]:
        """n actions per state; one that could not be had ended in "error", with its reason.

        Raises ServerError where the server is gone or the cap could be exceeded, ConfigError for a parameter that it
        does not take, or where it refuses all that it is first asked.
        """
        fields = sampling_fields(params)
        for name in sorted(self._left_out & NEUTRAL.keys()):
            if fields[name] != NEUTRAL[name]:
                raise ConfigError(f"{self._client.url} does not take {name}; leave it at its default")
        jobs = self._jobs(states, range(first, first + n), params, seed)
        needed = Tokens(sum(_size(job.body) for job in jobs), len(states) * n * params.max_new_tokens)
        self._hold_to_cap(needed)
        completions: list[list[Completion]] = [[] for _ in states]
        prompt_ids: list[tuple[int, ...]] = [() for _ in states]
        for job, (found, ids) in zip(jobs, self._ask_all(jobs), strict=True):
            completions[job.index] += found
            prompt_ids[job.index] = prompt_ids[job.index] or ids
        self._usage += Usage(rollouts=n * len(states), turns=n * len(states))
        both = zip(completions, prompt_ids, strict=True)
        return [Sampled(completions=tuple(done), prompt_ids=ids) for done, ids in both]

    def _hold_to_cap(self, needed: Tokens) -> None:
        """Raise ServerError where a unit of work may not be paid to its end: half a unit would not be kept."""
        budget, cost = self._client.budget, self.settings.cost
        if not budget.fits(needed):
            raise ServerError(
                f"{self._client.url}: {cost(budget.spent):.4f} of the cap of {self.settings.max_cost:g} are spent, and "
                f"the next trajectory may take {cost(needed):.4f}; raise --openai.max-cost and run again"
            )

    def _jobs(self, states: Sequence[State], samples: range, params: SamplingParams, seed: int) -> list[_Job]:
        """The requests, shortest state first, so that the server's prefix cache has met most of the longer ones."""
        prompts, most = [self._prompt(state) for state in states], self._choices(params)
        jobs = []
        for index in sorted(range(len(states)), key=lambda index: (_size(prompts[index]), index)):
            for first in samples[::most]:
                count = min(most, samples.stop - first)
                body = self._body(prompts[index], params, count, request_seed(seed, states[index].key, first))
                jobs.append(_Job(index, states[index], params, count, body))
        return jobs

    def _prompt(self, state: State) -> Body:
        """The part of a request that says the state."""
        if self._chat is not None:
            return {"prompt": [*self._chat.prompt_ids(state)]}
        prompt: Body = {"messages": wire_messages(state.messages, reasoning=self.settings.history_reasoning)}
        if state.told_tools:
            prompt["tools"] = [tool_dict(tool) for tool in state.told_tools]
        if self._thinking in ("on", "off"):
            prompt["chat_template_kwargs"] = {"enable_thinking": self._thinking == "on"}
        return prompt

    def _body(self, prompt: Body, params: SamplingParams, count: int, seed: int) -> Body:
        body: Body = {"model": self.model, **prompt, **sampling_fields(params), "n": count, "seed": seed, **REPORTS}
        if self._chat:
            body |= {**RAW_TEXT, "stop_token_ids": sorted(self._chat.stop_ids), "logprobs": 1}
        else:
            body |= {"logprobs": True}
        return without(body, self._left_out) | self.settings.fields

    async def _ask(self, job: _Job, counts: set[int]) -> Answer:
        try:
            answer = await self._client.ask(self._path, job.body, partial(read_answer, counts=counts), job.bound)
        except OverBudget as error:
            raise ServerError(f"{self._client.url}: {error}; what was finished is kept") from None
        shared = answer.prompt_tokens * (len(answer.choices) - 1)
        self._usage += Usage(cached_tokens=answer.cached_tokens + shared, prefilled_tokens=-answer.cached_tokens)
        return answer

    def _ask_all(self, jobs: Sequence[_Job]) -> list[tuple[list[Completion], tuple[int, ...]]]:
        """Completions and prompt ids of each job, asked in this order. Raises the first PivotRLError."""
        refused: list[str] = []

        async def one(job: _Job) -> tuple[list[Completion], tuple[int, ...]]:
            try:
                answer = await self._ask(job, {job.count})
            except Unanswered as error:
                refused.extend([str(error)] * isinstance(error, Refused))
                return [_failed(f"server: {error}")] * job.count, ()
            self._answered = True
            ids = tuple(job.body.get("prompt") or answer.prompt_ids)
            return [self._completion(choice, job) for choice in answer.choices], ids

        answered = self._client.run_all(map(one, jobs))
        if refused and not self._answered:
            raise ConfigError(f"{self._client.url} refuses all that it is first asked: {refused[0]}")
        return answered

    def _completion(self, choice: Choice, job: _Job) -> Completion:
        if choice.finish_reason == "error":
            return _failed("server: content_filter", choice.text)
        text = choice.text
        if self._chat is None:
            parsed = read_action(choice, self._parser, job.state)
        else:
            text = self._chat.text_of(choice.token_ids) if choice.token_ids else text
            parsed = self._chat.parse(text, job.state)
        known = choice.token_logprobs if job.params.temperature == 1 else None  # elsewhere, servers differ
        return Completion(
            action=parsed.action,
            text=text,
            finish_reason=choice.finish_reason,
            token_ids=choice.token_ids,
            logprob=None if known is None else math.fsum(known),
            token_logprobs=known,
            parse_error=parsed.error,
        )


def _texts(answer: Answer) -> list[str]:
    return [choice.text for choice in answer.choices]


def _failed(reason: str, text: str = "") -> Completion:
    return Completion(action=None, text=text, finish_reason="error", parse_error=reason)


def _size(prompt: Body) -> int:
    """Tokens of a request's state: its ids, or an estimate from its bytes."""
    ids: list[Any] | None = prompt.get("prompt")
    return len(ids) if ids is not None else -(-len(dump_json(prompt)) // BYTES_PER_TOKEN)


def load_openai(spec: str, how: ModelSettings, settings: OpenAISettings) -> OpenAIPolicy:
    """Open `MODEL` at the address of the settings, or `MODEL@http://HOST:PORT/v1`. Raises a PivotRLError."""
    found = re.fullmatch(r"(.+?)(?:@(https?:.+))?", spec)
    url = (found and found[2]) or settings.url
    if not found or not url:
        raise ConfigError(
            "policy: write openai:MODEL@http://HOST:PORT/v1, or openai:MODEL and the address in --openai.url"
        )
    policy = OpenAIPolicy(found[1], replace(settings, url=url), how)
    remember(settings.recipient)
    return policy
