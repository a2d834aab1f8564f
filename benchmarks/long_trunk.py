"""The memory that sampling along one long trunk takes: one process, a made trajectory, a tiny model.

    python benchmarks/long_trunk.py [--tokens 32000] [--candidates 16] [--rollouts 8] [--new-tokens 64] [--json]

A random Llama of 2 layers with the demo's tokenizer samples at states that lie evenly on one trajectory of so many
tokens, actions of full length. Printed are the peak of the resident set of the process, what of it came while sampling,
and the largest single tensor that an operation made (--tensors, in a slower second pass; one mask of all tokens against
all would be the largest). The last line with --json is one JSON object.
"""

# ruff: noqa: E402
from __future__ import annotations

import sys

del sys.path[0]  # this folder: the standard library has a module by the name of one file in it

import argparse
import json
import random
import resource
import time
from dataclasses import replace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import LlamaConfig, LlamaForCausalLM

from pivotrl.chat import ChatFormat
from pivotrl.lab.shipped import shipped_base
from pivotrl.models import LoadedModel, ModelSettings, load_model, quieten
from pivotrl.policies.torch import TorchPolicy
from pivotrl.types import Message, SamplingParams, State

MIB = 2**20
PEAK_UNIT = 1 if sys.platform == "darwin" else 1024


class LargestTensor(TorchDispatchMode):
    """Notes the most elements of any tensor that an operation returns."""

    most: tuple[int, str, tuple[int, ...]] = (0, "", ())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        tensors = [one for one in tree_leaves(made) if isinstance(one, torch.Tensor)]
        self.most = max([self.most, *((one.numel(), str(func), tuple(one.shape)) for one in tensors)])
        return made


class _Endless:
    """A chat format without stop tokens."""

    stop_ids: tuple[int, ...] = ()

    def __init__(self, chat: ChatFormat) -> None:
        self._chat = chat

    def __getattr__(self, name: str) -> Any:
        return getattr(self._chat, name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=32_000)
    parser.add_argument("--candidates", type=int, default=16)
    parser.add_argument("--rollouts", type=int, default=8)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--tensors", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    quieten()
    policy = TorchPolicy(_model())
    states = _states(policy.chat, options.tokens, options.candidates)
    params = SamplingParams(max_new_tokens=options.new_tokens)
    policy.sample([states[0]], n=1, params=SamplingParams(max_new_tokens=2), seed=0)  # warm
    policy.take_usage()
    before, start = _peak(), time.perf_counter()
    answers = policy.sample(states, n=options.rollouts, params=params, seed=0)
    seconds, after = time.perf_counter() - start, _peak()
    facts = {
        "trunk_tokens": len(answers[-1].prompt_ids),
        "tokens_of_all_states": sum(len(answer.prompt_ids) for answer in answers),
        "prefilled_tokens": policy.take_usage().prefilled_tokens,
        "candidates": len(answers),
        "actions": sum(len(answer.completions) for answer in answers),
        "generated_tokens": sum(len(one.token_ids) for answer in answers for one in answer.completions),
        "threads": torch.get_num_threads(),
        "seconds": round(seconds, 1),
        "peak_mib": after // MIB,
        "peak_mib_while_sampling": (after - before) // MIB,
    }
    if options.tensors:
        with LargestTensor() as largest:
            policy.sample(states, n=options.rollouts, params=params, seed=0)
        facts["largest_tensor"] = largest.most
    for name, value in facts.items():
        print(f"{name:<28} {value}")
    if options.json:
        print(json.dumps(facts))


def _peak() -> int:
    """Bytes of the largest resident set so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * PEAK_UNIT


def _model() -> LoadedModel:
    loaded = load_model(str(shipped_base()), ModelSettings())
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=loaded.model.config.vocab_size,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=131_072,
    )
    chat: Any = _Endless(loaded.chat)
    return replace(loaded, model=LlamaForCausalLM(config).eval(), chat=chat, weights="random")


def _states(chat: ChatFormat, tokens: int, count: int) -> list[State]:
    """The states before every assistant turn of one trajectory; the last has about so many tokens."""
    source = random.Random(0)
    words = [source.choice(("yes", "no", "order", "ticket", "please", "the")) for _ in range(tokens)]
    few = [_state("", [Message(role="user", content=" ".join(words[:length]))]) for length in (1, 1001)]
    per_word = (len(chat.prompt_ids(few[1])) - len(chat.prompt_ids(few[0]))) / 1000
    size = int(tokens / per_word / count)
    messages: list[Message] = []
    states = []
    for turn in range(count):
        messages.append(Message(role="user", content=" ".join(words[turn * size : (turn + 1) * size])))
        states.append(_state(str(turn), messages))
        messages.append(Message(role="assistant", content="yes"))
    return states


def _state(key: str, messages: list[Message]) -> State:
    return State(key=key, messages=tuple(messages), tools=None)


if __name__ == "__main__":
    main()
