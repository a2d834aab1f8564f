"""How an OpenAI-compatible server is asked for actions and what it answers, as plain values: no network here.

Every sampling parameter is sent, the neutral ones too, since a server fills what it is not told from its own defaults
(llama.cpp: top_k 40, min_p 0.05; vLLM and SGLang: the model's generation settings).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from pivotrl import actions
from pivotrl.chat import ParsedText, parse_text
from pivotrl.errors import ConfigError, InputError, check_least
from pivotrl.openai_client import MOST_TOKENS, ClientSettings, Garbled, error_message
from pivotrl.storage import dump_json
from pivotrl.trajectories.messages import dig, read_message
from pivotrl.types import Action, FinishReason, Message, SamplingParams, State, ToolCall

Body = dict[str, Any]
"""A JSON object."""
NEUTRAL: Final[Mapping[str, float]] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
}
"""What changes the distribution, with the value that leaves it as it is."""
REPORTS: Final[Mapping[str, Any]] = {"return_token_ids": True}
"""Asks vLLM for the sampled ids."""
RAW_TEXT: Final[Mapping[str, Any]] = {"skip_special_tokens": False, "spaces_between_special_tokens": False}
"""Asks for the text as it was sampled, for our own parsers."""
SILENT: Final = frozenset({"n", "max_tokens", "seed", "logprobs", *REPORTS})
"""What can be left out without changing what the policy does."""
_EXTENSIONS: Final = frozenset({"top_k", "min_p", "repetition_penalty", "stop_token_ids", *RAW_TEXT, *REPORTS})
_OPTIONAL: Final = _EXTENSIONS | NEUTRAL.keys() | {"n", "seed", "logprobs"}
_FINISHED: Final[Mapping[str, FinishReason]] = {
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",
    "content_filter": "error",
}
"""Every other reason is a stop."""
_SECRET: Final = re.compile(r"(?i)(api|access|auth|secret|private)[_-]?key|secret|password|authorization|bearer ")
_BROKEN_OFF: Final = ("error", "abort", "cancelled", "insufficient_system_resource")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAISettings(ClientSettings):
    """How a server is asked, where the policy is openai:MODEL."""

    cap_option = "--openai.max-cost"
    timeout: float = 600.0
    """Seconds that one try of a request may take."""
    tokenizer: str | None = None
    """Directory or id of the model's tokenizer: render states here, send token ids and read what comes back here."""
    samples_per_request: int = 0
    """Choices that one request asks for; 0: all, if the server is found to give independent ones."""
    context_length: int = 0
    """Tokens that state and action may have together; 0: what the server says where tokens can be counted."""
    history_reasoning: bool = True
    """Send the reasoning of earlier turns as `reasoning_content`, where the server renders; OpenAI's own refuses it."""
    extra: str = "{}"
    """Further fields of every request, as a JSON object."""

    def __post_init__(self) -> None:
        ClientSettings.__post_init__(self)
        check_least(self, "openai.", samples_per_request=0, context_length=0)
        self.fields  # noqa: B018 - it raises

    @property
    def fields(self) -> Body:
        """Of `extra`. Raises ConfigError."""
        value = ToolCall(name="extra", arguments=self.extra).parsed.value
        if value is None:
            raise ConfigError(f"openai.extra {self.extra!r}: must be a JSON object")
        if _SECRET.search(self.extra):
            raise ConfigError(
                "openai.extra: no keys and passwords here, since a run keeps its settings; see key_variable"
            )
        return dict(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One completion as the server gave it."""

    text: str
    """The text; of a chat message that holds more than content, the JSON of what it holds."""
    message: Message | None
    finish_reason: FinishReason
    token_ids: tuple[int, ...]
    token_logprobs: tuple[float, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One answered request."""

    choices: tuple[Choice, ...]
    prompt_tokens: int
    """This and the next are 0 where the server does not say."""
    cached_tokens: int
    prompt_ids: tuple[int, ...]


def request_seed(seed: int, key: str, sample: int) -> int:
    """31 bits that name the stream (seed, key, sample)."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{key}/{sample}".encode()).digest()[:4], "big") >> 1


def sampling_fields(params: SamplingParams) -> Body:
    """The sampling parameters by the names that servers know them under."""
    given = {"temperature": params.temperature, "top_p": params.top_p, "top_k": params.top_k or -1}
    return {**NEUTRAL, **given, "max_tokens": params.max_new_tokens}


def without(body: Body, left_out: Collection[str]) -> Body:
    """The body without these fields; for `max_tokens` it has `max_completion_tokens`."""
    kept = {name: value for name, value in body.items() if name not in left_out}
    return kept | {"max_completion_tokens": body["max_tokens"]} if "max_tokens" in left_out else kept


def to_leave_out(refusal: str, left_out: Collection[str]) -> set[str]:
    """What else to leave out after a refusal: the fields that it names, else the first group that is still sent."""
    if "max_completion_tokens" in refusal and "max_tokens" not in left_out:
        return {"max_tokens"}
    named = {name for name in _OPTIONAL - {"n"} if re.search(rf"\b{name}\b", refusal)}
    if re.search(r"['\"`]n['\"`]|\bchoices?\b", refusal):
        named.add("n")
    groups = (named, {"n"}, _EXTENSIONS, _OPTIONAL)
    return next((set(left) for group in groups if (left := group - {*left_out})), set())


def wire_messages(messages: Sequence[Message], *, reasoning: bool) -> list[Any]:
    """A history in the OpenAI schema: arguments as text, an id for every call and for the result that answers it."""
    wired: list[Any] = []
    waiting: list[str] = []
    for index, message in enumerate(messages):
        entry: Body = {"role": message.role, "content": message.literal or message.content or ""}
        if message.name is not None:
            entry["name"] = message.name
        if reasoning and message.reasoning is not None:
            entry["reasoning_content"] = message.reasoning
        if message.tool_calls and message.literal is None:
            waiting = [call.id or _made_id(index, place) for place, call in enumerate(message.tool_calls)]
            entry["tool_calls"] = [
                {"id": name, "type": "function", "function": {"name": call.name, "arguments": call.arguments or "{}"}}
                for name, call in zip(waiting, message.tool_calls, strict=True)
            ]
        if message.role == "tool":
            answered = message.tool_call_id or (waiting[0] if waiting else _made_id(index, 0))
            waiting = [name for name in waiting if name != answered]
            entry["tool_call_id"] = answered
        wired.append(entry)
    return wired


def _made_id(index: int, place: int) -> str:
    """Nine letters and digits, as Mistral's templates want them."""
    return f"c{index:06d}{place:02d}"


def read_answer(document: Any, counts: Collection[int]) -> Answer:
    """The answer in a decoded body. Raises Garbled where it is none, or has another number of choices than `counts`."""
    choices = dig(document, "choices")
    if not isinstance(choices, list):
        raise Garbled(f"no choices in the answer {error_message(document)}".strip())
    if len(choices) not in counts:
        raise Garbled(f"{len(choices)} choices where {max(counts)} were asked for")
    usage = dig(document, "usage")
    ids = dig(document, "prompt_token_ids") or dig(choices, 0, "prompt_token_ids")
    return Answer(
        choices=tuple(map(_choice, choices)),
        prompt_tokens=_count(dig(usage, "prompt_tokens")),
        cached_tokens=_count(dig(usage, "prompt_tokens_details", "cached_tokens")),
        prompt_ids=_numbers(ids, int) or (),
    )


def _choice(choice: Any) -> Choice:
    reason, spoken = dig(choice, "finish_reason"), dig(choice, "message")
    if reason in _BROKEN_OFF:
        raise Garbled(f"the server ended a choice with {reason!r} {error_message(choice)}".strip())
    message, text = _spoken(spoken) if isinstance(spoken, dict) else (None, dig(choice, "text"))
    if not isinstance(text, str):
        raise Garbled("a choice without message and text")
    listed, scores = dig(choice, "logprobs", "content"), dig(choice, "logprobs", "token_logprobs")
    if isinstance(listed, list):  # chat
        scores = [dig(token, "logprob") for token in listed]
    ids, values = _numbers(dig(choice, "token_ids"), int) or (), _numbers(scores, float)
    return Choice(
        text=text,
        message=message,
        finish_reason=_FINISHED.get(str(reason), "stop"),
        token_ids=ids,
        token_logprobs=values if values and len(values) == len(ids or values) else None,
    )


def _spoken(raw: Body) -> tuple[Message, str]:
    """A chat message and its raw text. Raises Garbled."""
    held = {name: value for name, value in raw.items() if name != "role" and value not in (None, [], {}, "")}
    try:
        message = read_message({**raw, "role": "assistant"}, "message")
    except InputError as error:
        raise Garbled(str(error).partition(";")[0]) from None
    return message, (message.content or "") if held.keys() <= {"content"} else dump_json(held).decode()


def read_action(choice: Choice, syntax: str, state: State) -> ParsedText:
    """The action in a chat message: its calls as the server parsed them, or as we do where it left them in the text.

    `auto` takes the syntax by its marks in the text; a state's own syntax goes before both.
    """
    message = choice.message or Message(role="assistant", content=choice.text)
    text = message.content or ""
    syntax = state.syntax or (actions.detect(text) if syntax == "auto" else syntax)
    parsed = parse_text(text, syntax, state.tools)
    action = parsed.action
    if message.tool_calls:
        said = action if action and not action.calls else Action(text=text.strip() or None)
        action = replace(said, calls=message.tool_calls)
    if action is None:
        return parsed
    return ParsedText(action=replace(action, reasoning=message.reasoning or action.reasoning))


def _count(value: Any) -> int:
    return min(max(0, value), MOST_TOKENS) if isinstance(value, int) else 0


def _numbers(value: Any, kind: type) -> Any:
    """A list of log-probabilities or of ids as a tuple of one kind; None for anything else."""
    kinds, low, high = ((int, float), -1e6, 1.0) if kind is float else ((int,), 0, 1 << 31)
    fit = isinstance(value, list) and all(type(one) in kinds and low <= one < high for one in value)
    return tuple(map(kind, value)) if fit else None
