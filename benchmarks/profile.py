"""Sampling along a tree against independent batches through transformers' `generate`, on real trajectories.

    python benchmarks/profile.py FILE... [--model DIR] [--trajectories 5] [--rollouts 8] [--new-tokens 32] [--json]

The files are read by `pivotrl ingest`; trajectories of at least 12 usable assistant turns take part, the shortest
first. Without --model a random Llama of 2 layers and the demo's tokenizer does the work, so that no download is needed.
Both sides sample as many actions of the same lengths (no stop token) in the same process, in turns; ratios are of
seconds. The last line with --json is one JSON object.
"""

from __future__ import annotations

import sys

del sys.path[0]  # this folder: the standard library has a module of this file's name

import argparse
import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from pivotrl.candidates import CandidateStore
from pivotrl.chat import ChatFormat
from pivotrl.ingestion import IngestConfig, ingest
from pivotrl.lab.shipped import shipped_base
from pivotrl.metrics import clustered_mean
from pivotrl.models import LoadedModel, ModelSettings, load_model, quieten
from pivotrl.policies.torch import TorchPolicy
from pivotrl.prefix_tree import build_tree
from pivotrl.storage import RunDirectory
from pivotrl.types import Sampled, SamplingParams, State

LEAST_TURNS = 12
CHI_SQUARE_SAMPLES = 2000
BINS = 40


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument("--model", help="a Hugging Face directory")
    parser.add_argument("--chat-template", help="as --model.chat-template of pivotrl profile")
    parser.add_argument("--trajectories", type=int, default=5)
    parser.add_argument("--longest", type=int, default=4000, help="tokens of a state; longer ones are left out")
    parser.add_argument("--rollouts", type=int, default=8)
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    quieten()
    loaded = _model(options.model, options.chat_template)
    policy = TorchPolicy(replace(loaded, chat=_Endless(loaded.chat)))  # type: ignore[arg-type]
    trajectories = _trajectories(options.files, policy, options.longest)[: options.trajectories]
    params = SamplingParams(max_new_tokens=options.new_tokens)
    rows = [_measure(policy, states, options.rollouts, params) for states in trajectories]
    if not rows:
        raise SystemExit(f"no trajectory with {LEAST_TURNS} usable turns of at most {options.longest} tokens")
    speedup = clustered_mean([row["speedup"] for row in rows], range(len(rows)), (0.0, float("inf")))
    facts = {
        "model": options.model or "random Llama",
        "threads": torch.get_num_threads(),
        "trajectories": len(rows),
        "states": sum(row["states"] for row in rows),
        "rollouts": options.rollouts,
        "prefilled_over_unique": max(row["prefilled_over_unique"] for row in rows),
        "speedup_median": float(np.median([row["speedup"] for row in rows])),
        "speedup_mean_low_high": [speedup.mean, speedup.low, speedup.high],
        "largest_logprob_difference": max(row["largest_logprob_difference"] for row in rows),
        "chi_square_p": _chi_square(policy, trajectories[0][1]),
        "rows": rows,
    }
    for name, value in facts.items():
        if name != "rows":
            print(f"{name:<28} {value}")
    if options.json:
        print(json.dumps(facts))


class _Endless:
    """A chat format without stop tokens: every action has the full length, on both sides."""

    stop_ids: tuple[int, ...] = ()

    def __init__(self, chat: ChatFormat) -> None:
        self._chat = chat

    def __getattr__(self, name: str) -> Any:
        return getattr(self._chat, name)


def _model(directory: str | None, template: str | None) -> LoadedModel:
    if directory:
        return load_model(directory, ModelSettings(chat_template=template))
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
    return replace(loaded, model=LlamaForCausalLM(config).eval(), weights="random")


def _trajectories(files: list[str], policy: TorchPolicy, longest: int) -> list[list[State]]:
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        ingest(IngestConfig(paths=tuple(files), run=run))
        store = CandidateStore(RunDirectory(run))
        found = []
        for _, candidates in store.units(store.rows()):
            states = [one.state for one in candidates if policy.count_tokens(one.state) <= longest]
            if len(states) >= LEAST_TURNS:
                found.append(states)
    return sorted(found, key=lambda states: policy.count_tokens(states[-1]))


def _measure(policy: TorchPolicy, states: list[State], n: int, params: SamplingParams) -> dict[str, Any]:
    policy.sample(states[:1], n=1, params=SamplingParams(max_new_tokens=2), seed=0)  # warm
    policy.take_usage()
    start = time.perf_counter()
    answers = policy.sample(states, n=n, params=params, seed=0)
    ours = time.perf_counter() - start
    prompts = [answer.prompt_ids for answer in answers]
    unique = len(build_tree(prompts).ids_N)
    start = time.perf_counter()
    with torch.inference_mode():
        for prompt in prompts:
            policy.loaded.model.generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                do_sample=True,
                num_return_sequences=n,
                min_new_tokens=params.max_new_tokens,
                max_new_tokens=params.max_new_tokens,
                pad_token_id=0,
                eos_token_id=None,
            )
    theirs = time.perf_counter() - start
    return {
        "states": len(states),
        "tokens": sum(map(len, prompts)),
        "unique_tokens": unique,
        "prefilled_over_unique": policy.take_usage().prefilled_tokens / unique,
        "seconds": ours,
        "generate_seconds": theirs,
        "speedup": theirs / ours,
        "largest_logprob_difference": _largest_difference(policy, answers),
    }


@torch.inference_mode()
def _largest_difference(policy: TorchPolicy, answers: list[Sampled]) -> float:
    """Of sampled log-probabilities from those of one plain forward pass: first and last sample of every state."""
    worst = 0.0
    for answer in answers:
        for completion in (answer.completions[0], answer.completions[-1]):
            ids = torch.tensor([[*answer.prompt_ids, *completion.token_ids]])
            logits = policy.loaded.model(ids, use_cache=False).logits[0, len(answer.prompt_ids) - 1 : -1]
            chosen = torch.tensor(completion.token_ids)[:, None]
            plain = torch.log_softmax(logits.float(), -1).gather(1, chosen)[:, 0]
            worst = max(worst, float((plain - torch.tensor(completion.token_logprobs)).abs().max()))
    return worst


@torch.inference_mode()
def _chi_square(policy: TorchPolicy, state: State) -> float:
    """Of the first token over many samples against the model's probabilities, tokens thrown together in 40 bins."""
    from scipy.stats import chisquare

    params = SamplingParams(max_new_tokens=1)
    answer = policy.sample([state], n=CHI_SQUARE_SAMPLES, params=params, seed=1)[0]
    logits = policy.loaded.model(torch.tensor([answer.prompt_ids])).logits[0, -1]
    expected = CHI_SQUARE_SAMPLES * torch.softmax(logits.double(), -1).numpy()
    counts = np.bincount([one.token_ids[0] for one in answer.completions], minlength=len(expected))
    bin_of = np.random.default_rng(0).integers(0, BINS, len(expected))
    seen, due = (np.bincount(bin_of, weights=one, minlength=BINS) for one in (counts, expected))
    often = due >= 5
    pooled = [np.append(one[often], one[~often].sum())[: often.sum() + (~often).any()] for one in (seen, due)]
    return float(chisquare(*pooled).pvalue)


if __name__ == "__main__":
    main()
