"""Fakes that are real: tiny random models with a real tokenizer and chat template, and candidates to ask them at."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPTNeoConfig,
    GPTNeoForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MptConfig,
    MptForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

import toy
from pivotrl.chat import ChatFormat
from pivotrl.models import LoadedModel
from pivotrl.types import Candidate, Message, Source, Tool, ToolCall, Trajectory
from toy_model import make_tokenizer

KINDS_OF_FULL_ATTENTION = ("llama", "qwen2")
SHARED = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}


def random_model(kind: str = "llama", *, seed: int = 0, dtype: torch.dtype = torch.float32):
    """A tiny model with random weights.

    llama, qwen2 (tied head, biases), qwen3 (norms of queries and keys), mistral (sliding windows of 24), gemma2 and
    mixed_windows (every other layer has one), mamba, gpt_neo (windows under another name), mpt (biases by distance).
    """
    tokenizer = make_tokenizer()
    common = SHARED | {"vocab_size": len(tokenizer), "max_position_embeddings": 512, "num_key_value_heads": 2}
    common |= {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    torch.manual_seed(seed)
    if kind == "qwen2":
        model = Qwen2ForCausalLM(Qwen2Config(**common, tie_word_embeddings=True))
    elif kind == "qwen3":
        model = Qwen3ForCausalLM(Qwen3Config(**common, head_dim=8))
    elif kind == "mixed_windows":
        kinds = ["sliding_attention", "full_attention"]
        windows = {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1, "layer_types": kinds}
        model = Qwen2ForCausalLM(Qwen2Config(**common, **windows))
    elif kind == "mistral":
        model = MistralForCausalLM(MistralConfig(**common, sliding_window=24))
    elif kind == "gemma2":
        model = Gemma2ForCausalLM(Gemma2Config(**common, head_dim=8, sliding_window=24))
    elif kind == "gpt_neo":
        attention = {"attention_types": [[["global", "local"], 1]], "window_size": 24, "num_layers": 2, "num_heads": 4}
        sizes = {"vocab_size": len(tokenizer), "hidden_size": 32, "max_position_embeddings": 512}
        model = GPTNeoForCausalLM(GPTNeoConfig(**sizes, **attention))
    elif kind == "mpt":
        sizes = {"vocab_size": len(tokenizer), "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 512}
        model = MptForCausalLM(MptConfig(**sizes))
    elif kind == "mamba":
        model = MambaForCausalLM(MambaConfig(vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2))
    else:
        model = LlamaForCausalLM(LlamaConfig(**common))
    with torch.no_grad():  # sharper than the usual start, so that mistakes show
        for parameter in model.parameters():
            parameter.mul_(3.0)
    return model.to(dtype).eval()


class WideNorm(torch.nn.Module):
    """An RMS norm in the type of what it gets, with the parameter of one that computes in float32."""

    def __init__(self, norm) -> None:
        super().__init__()
        self.weight, self.epsilon = norm.weight, norm.variance_epsilon

    def forward(self, states):
        return self.weight * states * torch.rsqrt(states.pow(2).mean(-1, keepdim=True) + self.epsilon)


class WideRotary(torch.nn.Module):
    """Plain rotary positions in the type of what is rotated."""

    def __init__(self, rotary) -> None:
        super().__init__()
        self.frequencies = rotary.inv_freq

    def forward(self, states, position_ids, *_):
        angles = position_ids[..., None].to(states.dtype) * self.frequencies.to(states.dtype)
        both = torch.cat([angles, angles], dim=-1)
        return both.cos(), both.sin()


def widened(model):
    """The model with its norms and rotary positions computed in its own type, float64 say, as transformers does not."""
    for parent in [*model.modules()]:
        for name, child in [*parent.named_children()]:
            if type(child).__name__.endswith("RMSNorm"):
                setattr(parent, name, WideNorm(child))
            elif type(child).__name__.endswith("RotaryEmbedding"):
                setattr(parent, name, WideRotary(child))
    return model


def loaded_model(kind: str = "llama", **options) -> LoadedModel:
    return LoadedModel(
        path=Path(),
        model=random_model(kind, **options),
        chat=ChatFormat(make_tokenizer()),
        weights=kind,
    )


def saved_model(folder: Path, kind: str = "llama", *, chatty: bool = True, **options) -> Path:
    """A random model on disk; one that is not chatty stops at every second token, by its generation settings."""
    model = random_model(kind, **options)
    if not chatty:
        model.generation_config.eos_token_id = list(range(0, model.config.vocab_size, 2))
    model.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


@lru_cache
def desk_candidates(count: int = 4, seed: int = 3) -> tuple[Candidate, ...]:
    """Every assistant turn of a few episodes of the toy desk."""
    candidates: list[Candidate] = []
    for number, task in enumerate(toy.draw_tasks("desk", count, seed)):
        trajectory = _trajectory(f"t{number}", toy.episode(task))
        turns = [turn for turn, message in enumerate(trajectory.messages) if message.role == "assistant"]
        candidates += [Candidate(trajectory=trajectory, turn=turn) for turn in turns]
    return tuple(candidates)


def _trajectory(name: str, record: dict) -> Trajectory:
    return Trajectory(
        id=name,
        task_id=record["task_id"],
        source=Source(file="made", format="toy"),
        outcome=1.0,
        tools=tuple(Tool(**tool["function"]) for tool in record["tools"]),
        messages=tuple(_message(message) for message in record["messages"]),
    )


def _message(message: dict) -> Message:
    calls = tuple(
        ToolCall(
            id=call["id"],
            name=call["function"]["name"],
            arguments=call["function"]["arguments"]
            if isinstance(call["function"]["arguments"], str)
            else json.dumps(call["function"]["arguments"]),
        )
        for call in message.get("tool_calls") or ()
    )
    return Message(
        role=message["role"],
        content=message.get("content"),
        tool_calls=calls,
        tool_call_id=message.get("tool_call_id"),
    )
