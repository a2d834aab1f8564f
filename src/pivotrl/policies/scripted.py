"""A policy that plays from a script: the shipped fake of tests, dry runs and scale measurements. Needs no model."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

from pivotrl.chat import parse_text
from pivotrl.errors import ConfigError
from pivotrl.ledger import Meter
from pivotrl.plugins import load_object, module_hash, takes_two
from pivotrl.types import Completion, PolicyFingerprint, Sampled, SamplingParams, State, Usage

Script = Callable[[State, random.Random], str]
CHARACTERS_PER_TOKEN = 4


class ScriptedPolicy(Meter):
    """`script(state, random)` gives the text of one action; text longer than `max_new_tokens` is truncated.

    A token is four characters. An exception of the script is a failed call: a completion with finish reason "error".
    """

    context_length: int | None = None

    def __init__(self, script: Script, *, name: str = "scripted", version: str = "", syntax: str = "hermes") -> None:
        self.script, self.name, self.version, self.syntax = script, name, version, syntax

    @property
    def fingerprint(self) -> PolicyFingerprint:
        return PolicyFingerprint(
            weights=f"{self.name} {self.version}".strip(),
            tokenizer="characters",
            chat_template="none",
            tool_parser=self.syntax,
            thinking="default",
            numerics="exact",
        )

    def count_tokens(self, state: State) -> int:
        characters = sum(len(message.content or "") for message in state.messages)
        return 1 + characters // CHARACTERS_PER_TOKEN

    def sample(
        self, states: Sequence[State], *, n: int, params: SamplingParams, seed: int, first: int = 0
    ) -> list[Sampled]:
        answers = []
        for state in states:
            completions = tuple(self._one(state, index, params, seed) for index in range(first, first + n))
            generated = sum(1 + len(one.text) // CHARACTERS_PER_TOKEN for one in completions)
            tokens = self.count_tokens(state)
            self._usage += Usage(
                rollouts=n, turns=n, prefilled_tokens=tokens, cached_tokens=tokens * (n - 1), generated_tokens=generated
            )
            answers.append(Sampled(completions=completions))
        return answers

    def _one(self, state: State, index: int, params: SamplingParams, seed: int) -> Completion:
        try:
            text = self.script(state, random.Random(f"{seed}/{state.key}/{index}"))
        except Exception as error:  # a script stands for a model call, whose failure is data
            return Completion(
                action=None, text="", finish_reason="error", parse_error=f"{type(error).__name__}: {error}"
            )
        if not isinstance(text, str):
            raise ConfigError(f"{self.name} returned {type(text).__name__}; return the text of an action")
        limit = params.max_new_tokens * CHARACTERS_PER_TOKEN
        parsed = parse_text(text[:limit], state.syntax or self.syntax, state.tools)
        return Completion(
            action=parsed.action,
            text=text[:limit],
            finish_reason="length" if len(text) > limit else "stop",
            parse_error=parsed.error,
        )

    def conversations(self) -> AbstractContextManager[None]:
        return nullcontext()


def load_scripted(spec: str) -> ScriptedPolicy:
    """`package.module:function` or `FILE.py:function`. Raises ConfigError."""
    found, module = load_object(spec, "scripted policy")
    script = takes_two(found, f"scripted policy {spec!r}", "act(state, random) -> str")
    return ScriptedPolicy(script, name=f"scripted:{spec}", version=module_hash(module))
