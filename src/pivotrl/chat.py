"""Messages and tools <-> token ids: the one way in which states are rendered and actions are read, for every stage.

Sampled ids are kept as they are; nothing is ever tokenised twice. Only SFT needs the ids of a demonstration, and
`demonstration_ids` proves them (they decode and parse back to the demonstration) or says why it cannot.
"""

from __future__ import annotations

import json
import math
import signal
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Final, Literal

from jinja2 import TemplateSyntaxError
from pydantic import JsonValue

from pivotrl import actions
from pivotrl.actions import ParseFailure
from pivotrl.errors import ConfigError, InputError, MissingError
from pivotrl.storage import content_hash
from pivotrl.types import Action, Completion, Message, State, Tool, ToolCall

Thinking = Literal["default", "on", "off"]
BUILTIN_TEMPLATES: Final = ("chatml-tools",)
TOKENIZER_PARSER: Final = "tokenizer"
LONGEST: Final = 1 << 28  # characters of a rendered conversation
_PROBE: Final = "pivotrlprobe"


class RenderError(InputError):
    """A chat template refused a state."""


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in a block that takes more of the processor; in the main thread only, as signals are."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGVTALRM, _stop)
    left = signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, *left)
        signal.signal(signal.SIGVTALRM, before or signal.SIG_DFL)


def _stop(*_: object) -> None:
    raise TimeoutError


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedText:
    """An action, or the reason why the text is none."""

    action: Action | None
    error: str | None = None


def parse_text(text: str, syntax: str, tools: Sequence[Tool] | None) -> ParsedText:
    """Read an action by one of our own syntaxes."""
    result = actions.parse(text, syntax, tools)
    if isinstance(result, ParseFailure):
        return ParsedText(action=None, error=str(result))
    return ParsedText(action=result)


def message_dict(message: Message) -> dict[str, JsonValue]:
    """A message as chat templates expect it: arguments decoded where they decode, null content as empty text."""
    result: dict[str, JsonValue] = {"role": message.role, "content": message.literal or message.content or ""}
    if message.reasoning is not None:
        result["reasoning_content"] = message.reasoning
    if message.tool_calls and message.literal is None:
        result["tool_calls"] = [_call_dict(call) for call in message.tool_calls]
    if message.tool_call_id is not None:
        result["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        result["name"] = message.name
    return result


def _call_dict(call: ToolCall) -> dict[str, JsonValue]:
    value = call.parsed.value
    arguments: JsonValue = value if value is not None else (call.arguments if call.arguments is not None else {})
    result: dict[str, JsonValue] = {"type": "function", "function": {"name": call.name, "arguments": arguments}}
    if call.id is not None:
        result["id"] = call.id
    return result


def tool_dict(tool: Tool) -> dict[str, JsonValue]:
    """A tool in the nested OpenAI form; an unknown schema becomes one that accepts any object."""
    parameters: dict[str, JsonValue] = {"type": "object"} if tool.parameters is None else tool.parameters
    return {
        "type": "function",
        "function": {"name": tool.name, "description": tool.description, "parameters": parameters},
    }


def read_template(spec: str) -> str:
    """The text of a chat template: the name of a shipped one, or a file. Raises MissingError or InputError."""
    if spec in BUILTIN_TEMPLATES:
        return (resources.files("pivotrl") / "chat_templates" / f"{spec}.jinja").read_text(encoding="utf-8")
    path = Path(spec)
    if not path.is_file():
        shipped = ", ".join(BUILTIN_TEMPLATES)
        raise MissingError(
            f"chat template {spec!r}: no such file; give a Jinja file, or one that is shipped: {shipped}"
        )
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InputError(f"chat template {spec!r}: not UTF-8 text; give a Jinja file") from None


class ChatFormat:
    """Renders states to ids and reads actions from ids, for one tokenizer, template and tool-call syntax."""

    def __init__(
        self,
        tokenizer: Any,
        *,
        template: str | None = None,
        parser: str = "auto",
        thinking: Thinking = "default",
        stop_ids: Iterable[int] = (),
        seconds: float = 10.0,
    ) -> None:
        self.tokenizer, self._seconds = tokenizer, seconds
        self.template: str = template or tokenizer.chat_template or ""
        if not self.template:
            raise ConfigError(
                "this tokenizer has no chat template; pass --model.chat-template FILE (or a shipped one: "
                f"{', '.join(BUILTIN_TEMPLATES)})"
            )
        self.thinking = thinking
        self.parser = self._choose_parser(parser)
        self.stop_ids = self._stop_ids() | frozenset(stop_ids)
        self.renders_tools = self._renders_tools()

    def _choose_parser(self, parser: str) -> str:
        own = getattr(self.tokenizer, "response_template", None) is not None
        if parser == "auto":
            return TOKENIZER_PARSER if own else actions.detect(self.template)
        if parser == TOKENIZER_PARSER and not own:
            raise ConfigError("tool parser 'tokenizer': this tokenizer brings no response template; use auto")
        if parser != TOKENIZER_PARSER and parser not in actions.SYNTAXES:
            choices = ", ".join(("auto", TOKENIZER_PARSER, *actions.SYNTAXES))
            raise ConfigError(f"tool parser {parser!r} is unknown; use one of {choices}")
        return parser

    def _stop_ids(self) -> frozenset[int]:
        """The tokenizer's end of sequence, and the token that its template puts behind an assistant message."""
        ids = {self.tokenizer.eos_token_id} - {None}
        probe = (Message(role="user", content=_PROBE), Message(role="assistant", content=_PROBE))
        try:
            _, said, tail = self._text(probe, None, generation=False).rpartition(_PROBE)
        except RenderError:
            said = tail = ""
        added = self.tokenizer.added_tokens_decoder.items()
        special = {*self.tokenizer.all_special_ids, *(token for token, facts in added if facts.special)}
        ids.update([token for token in self.encode(tail if said else "") if token in special][:1])
        return frozenset(ids)

    def _renders_tools(self) -> bool:
        messages = (Message(role="system", content=_PROBE), Message(role="user", content=_PROBE))
        tool = Tool(name=f"{_PROBE}_tool", parameters={"type": "object", "properties": {}})
        try:
            return tool.name in self._text(messages, (tool,), generation=True)
        except RenderError:
            return False

    @property
    def template_hash(self) -> str:
        return content_hash(self.template)

    def encode(self, text: str) -> list[int]:
        """Ids of a piece of rendered text: special tokens recognised, none added."""
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return ids

    def prompt_ids(self, state: State) -> tuple[int, ...]:
        """Ids of a state up to and with the opening of the assistant's turn. Raises as `prompt_text` does."""
        return tuple(self.encode(self.prompt_text(state)))

    def prompt_text(self, state: State) -> str:
        """A state up to and with the opening of the assistant's turn. Raises RenderError.

        Raises ConfigError when the state has tools that the template would silently leave out.
        """
        tools = state.told_tools
        if tools and not self.renders_tools:
            raise ConfigError(
                "this chat template leaves tools out, so the policy would not see them; pass --model.chat-template "
                f"{BUILTIN_TEMPLATES[0]} or a template of your own"
            )
        text = self._text(state.messages, tools, generation=True)
        if any(tool.name not in text for tool in tools or ()):
            raise RenderError(
                "tools_left_out: the template renders no tools in this state (no system message?); "
                f"--model.chat-template {BUILTIN_TEMPLATES[0]} does"
            )
        return text

    def _text(self, messages: Sequence[Message], tools: Sequence[Tool] | None, *, generation: bool) -> str:
        options: dict[str, bool] = {} if self.thinking == "default" else {"enable_thinking": self.thinking == "on"}
        try:
            with at_most(self._seconds):
                text: str = self.tokenizer.apply_chat_template(
                    [message_dict(message) for message in messages],
                    tools=[tool_dict(tool) for tool in tools] if tools else None,
                    chat_template=self.template,
                    add_generation_prompt=generation,
                    tokenize=False,
                    **options,
                )
            if len(text) > LONGEST:
                raise TimeoutError
        except TemplateSyntaxError as error:
            raise ConfigError(f"chat template, line {error.lineno}: {error.message}; mend the template") from None
        except TimeoutError:
            raise ConfigError(
                f"chat template: a conversation takes more than {self._seconds:g} s or {LONGEST:,} "
                "characters; give another --model.chat-template"
            ) from None
        except Exception as error:  # a template is anybody's code, in Jinja's sandbox
            raise RenderError(f"chat template: {type(error).__name__}: {error}") from None
        return text

    def text_of(self, action_ids: Sequence[int]) -> str:
        """The text of sampled ids, without the stop token that ends them."""
        ids = list(action_ids[:-1] if action_ids and action_ids[-1] in self.stop_ids else action_ids)
        text: str = self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text

    def parse(self, text: str, state: State) -> ParsedText:
        """Read an action from a model's text; a text that is none keeps its reason. No text raises."""
        if self.parser == TOKENIZER_PARSER and state.syntax is None:
            return self._parse_by_tokenizer(text, state)
        return parse_text(text, state.syntax or self.parser, state.tools)

    def _parse_by_tokenizer(self, text: str, state: State) -> ParsedText:
        try:
            prefix = self._text(state.messages, state.told_tools, generation=True)
            parsed: dict[str, Any] = self.tokenizer.parse_response(text, prefix=prefix)
            calls = tuple(_call_from(call) for call in parsed.get("tool_calls") or ())
        except Exception as error:  # transformers' parser documents no exceptions, and a bad action is data
            return ParsedText(action=None, error=f"response_template: {type(error).__name__}: {error}")
        content = (parsed.get("content") or "").strip() or None
        reasoning = parsed.get("reasoning_content") or parsed.get("thinking") or None
        if content is None and not calls:
            return ParsedText(action=None, error="empty")
        return ParsedText(action=Action(text=content, reasoning=reasoning, calls=calls))

    def completion(self, ids: Sequence[int], state: State, logprobs: Sequence[float] | None = None) -> Completion:
        """What sampled ids say, up to and with the first stop token; without one the action is truncated."""
        end = next((number for number, token in enumerate(ids, start=1) if token in self.stop_ids), None)
        text = self.text_of(ids[:end])
        parsed = self.parse(text, state)
        return Completion(
            action=parsed.action,
            text=text,
            finish_reason="length" if end is None else "stop",
            token_ids=tuple(ids[:end]),
            logprob=None if logprobs is None else math.fsum(logprobs),
            token_logprobs=None if logprobs is None else tuple(logprobs),
            parse_error=parsed.error,
        )

    def demonstration_ids(self, state: State, demonstration: Action, literal: str | None = None) -> tuple[int, ...]:
        """Ids of the demonstrated action after the state's, stop token included. Raises RenderError with the reason.

        `literal` is the text to write instead, if the demonstration was read out of one (`Candidate.literal`).

        Proven by two facts: the rendered state is a prefix of state and action, and the ids parse to the demonstration.
        """
        opened = self._text(state.messages, state.told_tools, generation=True)
        message = Message(
            role="assistant",
            content=demonstration.text,
            reasoning=demonstration.reasoning,
            tool_calls=demonstration.calls,
            literal=literal,
        )
        closed = self._text((*state.messages, message), state.told_tools, generation=False)
        if not closed.startswith(opened):
            raise RenderError("template_rewrites_state: the rendered state is no prefix of state and action")
        ids = self.encode(closed[len(opened) :])
        stop = next((index for index, token in enumerate(ids) if token in self.stop_ids), None)
        if stop is None:
            raise RenderError("no_stop_token: the template does not end an assistant turn with a stop token")
        target = tuple(ids[: stop + 1])
        parsed = self.parse(self.text_of(target), state)
        if parsed.action is None or not same_action(parsed.action, demonstration):
            raise RenderError(f"not_recovered: the target reads back as {parsed.error or parsed.action}")
        return target


def _call_from(call: dict[str, Any]) -> ToolCall:
    function = call.get("function", call)
    arguments = function.get("arguments")
    text = arguments if arguments is None or isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return ToolCall(name=function["name"], arguments=text)


def different(actions: Iterable[Action]) -> list[int]:
    """Where the first one of equal actions is, for each that there is."""
    found: dict[int, Action] = {}
    for at, action in enumerate(actions):
        if not any(same_action(action, other) for other in found.values()):
            found[at] = action
    return list(found)


def same_action(first: Action, second: Action) -> bool:
    """Equal text (outer whitespace aside) and calls, arguments compared as JSON values; reasoning is not compared."""
    if (first.text or "").strip() != (second.text or "").strip() or len(first.calls) != len(second.calls):
        return False
    return all(
        one.name == two.name and (one.arguments == two.arguments or one.parsed == two.parsed)
        for one, two in zip(first.calls, second.calls, strict=True)
    )
