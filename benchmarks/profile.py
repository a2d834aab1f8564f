"""Sampling along a tree against independent batches through transformers' `generate`, on real trajectories.

    python benchmarks/profile.py FILE... [--model DIR] [--trajectories 5] [--states 0] [--rollouts 8] [--json]

The files are read by `pivotrl ingest`; trajectories of at least 12 usable assistant turns take part, the shortest
first, each with all of its states or --states of them, evenly spread from first to last (a coarser tree shares less).
Without --model a random Llama of 2 layers and the demo's tokenizer does the work, so that no download is needed.
Both sides sample as many actions of the same lengths (no stop token) in the same process, in turns: `generate` one
state at a time with all its rollouts, unpadded, which is its faster way here (docs/profiling.md). Ratios are of seconds
on the clock, and of the process's own. What was sampled is checked against plain forward passes over whole sequences:
log-probabilities, and the place of every token in its distribution. The last line with --json is one JSON object.
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
from scipy.stats import chisquare
from transformers import LlamaConfig, LlamaForCausalLM

from pivotrl.candidates import CandidateStore
from pivotrl.chat import ChatFormat
from pivotrl.ingestion import IngestConfig, ingest
from pivotrl.lab.shipped import shipped_base
from pivotrl.metrics import clustered_mean
from pivotrl.models import LoadedModel, ModelSettings, load_model, quieten
from pivotrl.policies.torch import TorchPolicy
from pivotrl.prefix_tree import build_tree
from pivotrl.run_directory import RunDirectory
from pivotrl.types import Sampled, SamplingParams, State

LEAST_TURNS = 12
BINS = 40


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument("--model", help="a Hugging Face directory")
    parser.add_argument("--chat-template", help="as --model.chat-template of pivotrl profile")
    parser.add_argument("--trajectories", type=int, default=5)
    parser.add_argument("--longest", type=int, default=4000, help="tokens of a state; longer ones are left out")
    parser.add_argument("--states", type=int, default=0, help="of a trajectory; 0: all")
    parser.add_argument("--rollouts", type=int, default=8)
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--samples", type=int, default=2000, help="first tokens for the test of one state")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    quieten()
    loaded = _model(options.model, options.chat_template)
    policy = TorchPolicy(replace(loaded, chat=_Endless(loaded.chat)))  # type: ignore[arg-type]
    trajectories = _trajectories(options.files, policy, options.longest)[: options.trajectories]
    params = SamplingParams(max_new_tokens=options.new_tokens)
    rows, places = [], list[float]()
    for states in trajectories:
        row, more = _measure(policy, _spread(states, options.states), options.rollouts, params)
        rows.append(row | {"turns": len(states)})
        places += more
        print(json.dumps(rows[-1]), flush=True)
    if not rows:
        raise SystemExit(f"no trajectory with {LEAST_TURNS} usable turns of at most {options.longest} tokens")
    speedup = clustered_mean([row["speedup"] for row in rows], range(len(rows)), (0.0, float("inf")))
    own = clustered_mean([row["cpu_speedup"] for row in rows], range(len(rows)), (0.0, float("inf")))
    facts = {
        "model": options.model or "random Llama",
        "threads": torch.get_num_threads(),
        "trajectories": len(rows),
        "states": sum(row["states"] for row in rows),
        "rollouts": options.rollouts,
        "prefilled_over_unique": max(row["prefilled_over_unique"] for row in rows),
        "speedup_median": float(np.median([row["speedup"] for row in rows])),
        "speedup_mean_low_high": [speedup.mean, speedup.low, speedup.high],
        "cpu_speedup_mean_low_high": [own.mean, own.low, own.high],
        "largest_logprob_difference": max(row["largest_logprob_difference"] for row in rows),
        "samples": options.samples,
        "chi_square_p": _chi_square(policy, trajectories[0][1], options.samples),
        "places": len(places),
        "places_chi_square_p": float(chisquare(np.histogram(places, BINS, (0, 1))[0]).pvalue),
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


def _spread(states: list[State], count: int) -> list[State]:
    """So many of the states, the first and the last among them; 0 for all."""
    if not count or count >= len(states):
        return states
    return [states[at] for at in np.linspace(0, len(states) - 1, count).round().astype(int)]


def _measure(
    policy: TorchPolicy, states: list[State], n: int, params: SamplingParams
) -> tuple[dict[str, Any], list[float]]:
    policy.sample(states[:1], n=1, params=SamplingParams(max_new_tokens=2), seed=0)  # warm
    policy.take_usage()
    start, cpu = time.perf_counter(), time.process_time()
    answers = policy.sample(states, n=n, params=params, seed=0)
    ours, our_cpu = time.perf_counter() - start, time.process_time() - cpu
    prompts = [answer.prompt_ids for answer in answers]
    unique = len(build_tree(prompts).ids_N)
    start, cpu = time.perf_counter(), time.process_time()
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
    theirs, their_cpu = time.perf_counter() - start, time.process_time() - cpu
    worst, places = _against_plain(policy, answers)
    row = {
        "states": len(states),
        "tokens": sum(map(len, prompts)),
        "unique_tokens": unique,
        "prefilled_over_unique": policy.take_usage().prefilled_tokens / unique,
        "seconds": ours,
        "generate_seconds": theirs,
        "speedup": theirs / ours,
        "cpu_speedup": their_cpu / our_cpu,
        "largest_logprob_difference": worst,
    }
    return row, places


@torch.inference_mode()
def _against_plain(policy: TorchPolicy, answers: list[Sampled]) -> tuple[float, list[float]]:
    """(largest difference of log-probabilities, places) of every state's last sample, from one plain forward pass.

    The place of a token is a uniform number within its share of the cumulative distribution: places are uniform on
    [0, 1] and independent, along an action too, exactly if tokens are drawn from the model's distribution.
    """
    worst, places, random = 0.0, list[float](), np.random.default_rng(0)
    for answer in answers:
        completion = answer.completions[-1]
        ids = torch.tensor([[*answer.prompt_ids, *completion.token_ids]])
        logits = policy.loaded.model(ids, use_cache=False).logits[0, len(answer.prompt_ids) - 1 : -1]
        chosen = torch.tensor(completion.token_ids)[:, None]
        plain = torch.log_softmax(logits.float(), -1).gather(1, chosen)[:, 0]
        worst = max(worst, float((plain - torch.tensor(completion.token_logprobs)).abs().max()))
        shares = torch.softmax(logits.double(), -1)
        share, up_to = (one.gather(1, chosen)[:, 0].numpy() for one in (shares, shares.cumsum(-1)))
        places += (up_to - share * random.random(len(share))).tolist()
    return worst, places


@torch.inference_mode()
def _chi_square(policy: TorchPolicy, state: State, samples: int) -> float:
    """Of the first token over many samples against the model's probabilities.

    Tokens that are due 5 times are counted by themselves, the others thrown together in 40 bins.
    """
    params = SamplingParams(max_new_tokens=1)
    answer = policy.sample([state], n=samples, params=params, seed=1)[0]
    logits = policy.loaded.model(torch.tensor([answer.prompt_ids])).logits[0, -1]
    expected = samples * torch.softmax(logits.double(), -1).numpy()
    counts = np.bincount([one.token_ids[0] for one in answer.completions], minlength=len(expected))
    likely = np.flatnonzero(expected >= 5)
    bin_of = np.random.default_rng(0).integers(0, BINS, len(expected))
    bin_of[likely] = BINS + np.arange(len(likely))
    seen, due = (np.bincount(bin_of, weights=one, minlength=BINS + len(likely)) for one in (counts, expected))
    often = due >= 5
    pooled = [np.append(one[often], one[~often].sum())[: often.sum() + (~often).any()] for one in (seen, due)]
    return float(chisquare(*pooled).pvalue)


if __name__ == "__main__":
    main()
