"""FlexAttention over trees (`pivotrl.policies.flex`), prepared for a few minutes of a GPU: correctness, speed, memory.

    python benchmarks/flex_gpu.py [--prompt 8192] [--group 16] [--new-tokens 256] [--layers 12] [--width 768]
                                  [--rows 4] [--repetitions 5] [--no-trl] [--json]

First a tiny float32 model: log-probabilities and gradients of one tree in one pass against one sequence at a time. On a
CPU only the log-probabilities, by the unfused kernel (`tests/test_flex.py` has its gradients), and nothing else.
Then a random Qwen2 (0.1B, bfloat16) on one prompt with a group of actions, forward and backward: FlexAttention
over the packed tree; pivotrl's own way (trunk once, actions side by side behind its keys and values, SDPA with a dense
mask); and TRL's GRPOTrainer in micro-batches of --rows sequences, training part only. Tokens a second are of useful
tokens: the prompt once for every action, on all sides. The last line with --json is one JSON object.
"""

from __future__ import annotations

import sys

del sys.path[0]  # this folder: the standard library has a module of the name of one here

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from pivotrl.models import quieten
from pivotrl.policies.flex import tree_logprobs
from pivotrl.policies.forward import Trunks, action_logprobs

VOCABULARY = 32_000
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompt", type=int, default=8192)
    parser.add_argument("--group", type=int, default=16)
    parser.add_argument("--new-tokens", type=int, default=256)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--no-trl", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    quieten()
    facts: dict[str, Any] = {"torch": torch.__version__, "device": DEVICE, "correctness": _correctness()}
    print(f"{DEVICE}: largest difference {facts['correctness']}")
    if DEVICE == "cuda":
        facts |= {"gpu": torch.cuda.get_device_name(), **vars(options), "speed": _speed(options)}
    if options.json:
        print(json.dumps(facts))


def _model(layers: int, width: int, vocabulary: int, dtype: torch.dtype) -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    heads = max(2, width // 64)
    sizes = {"hidden_size": width, "intermediate_size": 4 * width, "num_hidden_layers": layers}
    heads_of = {"num_attention_heads": heads, "num_key_value_heads": heads // 2}
    config = Qwen2Config(**sizes, **heads_of, vocab_size=vocabulary, max_position_embeddings=65_536)
    return Qwen2ForCausalLM(config).to(DEVICE, dtype).eval()


def _actions(group: int, length: int, vocabulary: int) -> list[tuple[int, ...]]:
    rng = np.random.default_rng(1)
    return [tuple(rng.integers(0, vocabulary, length).tolist()) for _ in range(group)]


def _prompt(length: int, vocabulary: int) -> tuple[int, ...]:
    return tuple(np.random.default_rng(2).integers(0, vocabulary, length).tolist())


def _by_flex(model: Qwen2ForCausalLM, prompts: list[tuple[int, ...]], actions: list[tuple[int, ...]]) -> torch.Tensor:
    """Log-probabilities of every action at every prompt, one after the other, from one pass over the tree."""
    found, _ = tree_logprobs(model, [(prompt, actions) for prompt in prompts])
    return torch.cat([row for rows in found for row in rows])


def _by_trunks(model: Qwen2ForCausalLM, prompts: list[tuple[int, ...]], actions: list[tuple[int, ...]]) -> None:
    for index, trunk in Trunks(model, prompts, share=True, pack=True):
        logprobs_GT, _ = action_logprobs(model, prompts[index], actions, trunk=trunk)
        logprobs_GT.sum().backward()


def _correctness() -> dict[str, float]:
    """Of a tree with pivots along a trunk: absolute for log-probabilities, relative for the gradient (not on a CPU)."""
    model = _model(2, 64, 90, torch.float32)
    trunk, actions = _prompt(300, 90), [*_actions(3, 20, 90), (7,)]
    prompts = [trunk[:100], trunk[:299], trunk]
    with torch.set_grad_enabled(DEVICE == "cuda"):
        found = _by_flex(model, prompts, actions)
        plain = torch.cat([_plain(model, prompt, action) for prompt in prompts for action in actions])
    facts = {"logprobs": float((plain - found).abs().max())}
    if DEVICE == "cuda":
        found.sum().backward()
        gradient = _gradient(model)
        plain.sum().backward()
        due = _gradient(model)
        facts["gradient"] = float((gradient - due).norm() / due.norm())
    assert max(facts.values()) < 1e-3, facts
    return facts


def _plain(model: Qwen2ForCausalLM, prompt: tuple[int, ...], action: tuple[int, ...]) -> torch.Tensor:
    logits = model(torch.tensor([[*prompt, *action]], device=DEVICE), use_cache=False).logits[0]
    chosen = torch.tensor(action, device=DEVICE)[:, None]
    return torch.log_softmax(logits[len(prompt) - 1 : -1], -1).gather(1, chosen)[:, 0]


def _gradient(model: Qwen2ForCausalLM) -> torch.Tensor:
    found = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    model.zero_grad()
    return found


def _speed(options: argparse.Namespace) -> dict[str, dict[str, float]]:
    model = _model(options.layers, options.width, VOCABULARY, torch.bfloat16)
    prompts, actions = [_prompt(options.prompt, VOCABULARY)], _actions(options.group, options.new_tokens, VOCABULARY)
    ways: dict[str, Callable[[], object]] = {
        "flex": lambda: _by_flex(model, prompts, actions).sum().backward(),
        "trunks": lambda: _by_trunks(model, prompts, actions),
    }
    tokens = options.group * (options.prompt + options.new_tokens)
    found = {name: _measured(work, model, tokens, options.repetitions) for name, work in ways.items()}
    if not options.no_trl:
        found["trl"] = _trl(model, options, tokens)
    for name, one in found.items():
        print(f"{name:8} {one['seconds']:.3f} s, {one['tokens_per_second']:.0f} tokens/s, {one['peak_gib']:.2f} GiB")
    return found


def _measured(work: Callable[[], object], model: Any, tokens: int, repetitions: int) -> dict[str, float]:
    seconds = []
    for _ in range(repetitions + 2):  # the first ones compile
        model.zero_grad()
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return _row(seconds[2:], tokens, torch.cuda.max_memory_allocated())


def _row(seconds: list[float], tokens: int, peak: int) -> dict[str, float]:
    middle = float(np.median(seconds))
    spread = {"least": min(seconds), "most": max(seconds)}
    return {"seconds": middle, **spread, "tokens_per_second": tokens / middle, "peak_gib": peak / 2**30}


def _trl(model: Qwen2ForCausalLM, options: argparse.Namespace, tokens: int) -> dict[str, float]:
    """The same forward and backward as its trainer does it; the optimiser's step is left out on all sides."""
    from datasets import Dataset
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast
    from trl import GRPOConfig, GRPOTrainer

    words = Tokenizer(WordLevel({f"w{at}": at for at in range(VOCABULARY)}, unk_token="w0"))
    words.pre_tokenizer = WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="w0", eos_token="w1")
    prompt = " ".join(f"w{at}" for at in _prompt(options.prompt, VOCABULARY))
    seconds: list[float] = []
    peaks: list[int] = []

    class Trainer(GRPOTrainer):
        def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
            self._sampled = 0.0
            torch.cuda.synchronize()
            start = time.perf_counter()
            result: torch.Tensor = super().training_step(*args, **kwargs)
            torch.cuda.synchronize()
            seconds.append(time.perf_counter() - start - self._sampled)
            peaks.append(torch.cuda.max_memory_allocated())
            return result

        def _generate_and_score_completions(self, inputs: Any) -> Any:
            start = time.perf_counter()
            scored = super()._generate_and_score_completions(inputs)
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            self._sampled = time.perf_counter() - start
            return scored

    steps = options.group // options.rows
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=options.rows,
        gradient_accumulation_steps=steps,
        num_generations=options.group,
        max_completion_length=options.new_tokens,
        generation_kwargs={"min_new_tokens": options.new_tokens},
        max_steps=options.repetitions + 1,
        beta=0.0,
        bf16=False,
        gradient_checkpointing=False,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
    )
    Trainer(
        model=model,
        reward_funcs=lambda completions, **_: [float(at % 2) for at in range(len(completions))],
        args=config,
        train_dataset=Dataset.from_dict({"prompt": [prompt] * (options.repetitions + 1)}),
        processing_class=tokenizer,
    ).train()
    whole = np.array(seconds).reshape(-1, steps).sum(axis=1)
    return _row(whole[1:].tolist(), tokens, max(peaks[steps:]))


if __name__ == "__main__":
    main()
