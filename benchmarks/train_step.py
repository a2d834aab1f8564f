"""One GRPO step against TRL's GRPOTrainer doing the same work, and what sharing a trajectory's trunk is worth.

    python benchmarks/train_step.py [--repetitions 5] [--svg FILE] [--json]

A random Qwen2 (4 layers of 256, float32, one thread); one prompt a step, 32 new tokens for every action, beta 0, one
update, no gradient checkpointing, the same random rewards. Both step in turns in one process, so that neighbours slow
both; a ratio is of the CPU seconds of such a pair. Peak memory is of the train part, above what was there before, in a
process for each. Intervals are 95%, of the mean over repetitions (Student's t). The last line with --json is one JSON
object. Needs the development extra.
"""

from __future__ import annotations

import sys

del sys.path[0]  # this folder: the standard library has a module of the name of one here

import argparse
import ctypes
import json
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from html import escape
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

import numpy as np
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from pivotrl.grpo import AdvantageSettings, LossSettings, advantages
from pivotrl.learners import OptimizerSettings
from pivotrl.learners.torch import TorchLearner
from pivotrl.metrics import clustered_mean
from pivotrl.models import LoadedModel, quieten
from pivotrl.policies.forward import added_to_scores
from pivotrl.prefix_tree import build_tree
from pivotrl.types import SamplingParams, TrainingExample

WORDS = 2800
NEW_TOKENS = 32
STEPS = (("whole step", 128, 8, 2.0), ("whole step", 1024, 8, 4.5), ("train part", 1024, 16, 6.0))
TRUNK, TURNS, PIVOTS, GROUP = 2048, 16, 8, 8
COUNTS = (1, 2, 4, 8, 16, 32, 64)
LOSS = LossSettings(beta=0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--svg", type=Path, help="where the cost against pivots per trajectory is drawn")
    parser.add_argument("--only", help="run only the part of this name: steps, trunks, counts, memory")
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    quieten()
    if options.peak:
        print(PEAKS[options.peak](1024, 16))
        return
    parts: dict[str, Callable[[int], Any]] = {"steps": _steps, "trunks": _trunks, "counts": _counts, "memory": _memory}
    facts: dict[str, Any] = {"torch": torch.__version__, "threads": 1, "repetitions": options.repetitions}
    for name, measure in parts.items():
        if options.only in (None, name):
            facts[name] = measure(options.repetitions)
    if options.svg and "counts" in facts:
        options.svg.write_text(_drawn(facts["counts"]))
    if options.json:
        print(json.dumps(facts))


class _Chat:
    """Prompts as text of words; no token stops an action, so that all have the same length on both sides."""

    stop_ids: tuple[int, ...] = ()

    def __init__(self) -> None:
        vocabulary = {f"w{at}": at for at in range(WORDS - 2)} | {"<pad>": WORDS - 2, "<eos>": WORDS - 1}
        words = Tokenizer(WordLevel(vocabulary, unk_token="w0"))
        words.pre_tokenizer = WhitespaceSplit()
        self.tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")

    def prompt_ids(self, state: Any) -> tuple[int, ...]:
        return tuple(self.tokenizer(state.text)["input_ids"])

    def text_of(self, ids: list[int]) -> str:
        return self.tokenizer.decode(ids)

    def parse(self, text: str, state: Any) -> Any:
        return SimpleNamespace(action=None, error="random")


def _model() -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 4}
    return Qwen2ForCausalLM(
        Qwen2Config(
            **sizes,
            num_key_value_heads=4,
            vocab_size=WORDS,
            max_position_embeddings=8192,
            tie_word_embeddings=True,
            pad_token_id=WORDS - 2,
            eos_token_id=WORDS - 1,
        )
    )


def _learner() -> TorchLearner:
    loaded = LoadedModel(path=Path(), model=_model().eval(), chat=_Chat(), weights="random")  # type: ignore[arg-type]
    return TorchLearner(loaded, OptimizerSettings())


def _prompts(count: int, length: int) -> list[str]:
    rng = np.random.default_rng(length)
    return [" ".join(f"w{at}" for at in rng.integers(0, WORDS - 2, length)) for _ in range(count)]


def _rewards(count: int) -> list[float]:
    return [float(at % 2) for at in range(count)]


def _sampled(learner: TorchLearner, prompt: str, group: int, seed: int) -> list[TrainingExample]:
    state: Any = SimpleNamespace(key=prompt[:40], text=prompt)
    params = SamplingParams(max_new_tokens=NEW_TOKENS)
    (answer,) = learner.policy().sample([state], n=group, params=params, seed=seed)
    values = advantages(_rewards(group), AdvantageSettings())
    return [
        TrainingExample(
            group_id=prompt[:40],
            prompt_ids=answer.prompt_ids,
            action_ids=one.token_ids,
            advantage=value or 0.0,
            loss_mask=(True,) * NEW_TOKENS,
            sampler_logprobs=one.token_logprobs,
        )
        for one, value in zip(answer.completions, values, strict=True)
    ]


def _trained(learner: TorchLearner, examples: list[TrainingExample]) -> None:
    learner.forward_backward(examples, LOSS)
    learner.optim_step()


def _trainer(prompts: list[str], group: int, between: Callable[[str, float], None]) -> Any:
    """TRL's trainer, one prompt a step. `between` is told what it does next, and its CPU seconds so far."""
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    class Trainer(GRPOTrainer):
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            between("sampling", time.process_time())
            scored = super()._generate_and_score_completions(inputs)
            between("training", time.process_time())
            return scored

    class Ends(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            between("done", time.process_time())

    folder = tempfile.mkdtemp()
    config = GRPOConfig(
        output_dir=folder,
        per_device_train_batch_size=group,
        num_generations=group,
        max_completion_length=NEW_TOKENS,
        generation_kwargs={"min_new_tokens": NEW_TOKENS},
        max_steps=len(prompts),
        beta=0.0,
        learning_rate=1e-6,
        lr_scheduler_type="constant",
        bf16=False,
        gradient_checkpointing=False,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        logging_steps=10**6,
        disable_tqdm=True,
        shuffle_dataset=False,
    )
    return Trainer(
        model=_model(),
        reward_funcs=lambda completions, **_: _rewards(len(completions)),
        args=config,
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        processing_class=_Chat().tokenizer,
        callbacks=[Ends()],
    )


def _steps(repetitions: int) -> list[dict[str, Any]]:
    rows = []
    for part, length, group, bar in STEPS:
        theirs, ours = _in_turns(_prompts(repetitions + 1, length), group)
        pairs = [
            (sum(one), sum(other)) if part == "whole step" else (one[1], other[1])
            for one, other in zip(theirs, ours, strict=True)
        ]
        row = _compared(f"{part}, P={length} G={group}", pairs, bar)
        row |= {"trl_sample_train": np.median(theirs, axis=0).tolist()}
        row |= {"sample_train": np.median(ours, axis=0).tolist()}
        print(f"    sampling and training: TRL {row['trl_sample_train']}, pivotrl {row['sample_train']}", flush=True)
        rows.append(row)
    return rows


def _in_turns(prompts: list[str], group: int) -> tuple[list[list[float]], list[list[float]]]:
    """Seconds of sampling and of training of every step but the first: TRL's, ours."""
    learner = _learner()
    theirs: list[list[float]] = []
    ours: list[list[float]] = []
    now: dict[str, float] = {}

    def between(what: str, at: float) -> None:
        now[what] = at
        if what == "done":
            theirs.append([now["training"] - now["sampling"], at - now["training"]])
            start = time.process_time()
            examples = _sampled(learner, prompts[len(ours)], group, len(ours))
            middle = time.process_time()
            _trained(learner, examples)
            ours.append([middle - start, time.process_time() - middle])

    _trainer(prompts, group, between).train()
    assert len(theirs) == len(ours) == len(prompts)
    return theirs[1:], ours[1:]


def _compared(name: str, pairs: list[tuple[float, float]], bar: float) -> dict[str, Any]:
    ratios = [slow / fast for slow, fast in pairs]
    mean = clustered_mean(ratios, range(len(ratios)), (0.0, float("inf")))
    slow, fast = np.median(pairs, axis=0)
    middle = float(np.median(ratios))
    low, high = ("?" if end is None else f"{end:.2f}" for end in (mean.low, mean.high))
    print(
        f"{name}: {slow:.3f} s against {fast:.3f} s: {middle:.2f} times, mean {low} to {high} "
        f"(n={len(ratios)}; wanted {bar})",
        flush=True,
    )
    facts = {"name": name, "seconds": [float(slow), float(fast)], "median": middle, "n": len(ratios), "bar": bar}
    return facts | {"mean_low_high": [mean.mean, mean.low, mean.high]}


def _groups(trunk: tuple[int, ...], count: int, group: int, rng: np.random.Generator) -> list[list[TrainingExample]]:
    """Pivots along a trunk, the last at its end, with random actions."""
    return [
        [
            TrainingExample(
                group_id=str(at),
                prompt_ids=trunk[: (at + 1) * len(trunk) // count],
                action_ids=tuple(rng.integers(0, WORDS - 2, NEW_TOKENS).tolist()),
                advantage=value,
                loss_mask=(True,) * NEW_TOKENS,
            )
            for value in _rewards(group)
        ]
        for at in range(count)
    ]


def _trunk(seed: int) -> tuple[tuple[int, ...], np.random.Generator]:
    rng = np.random.default_rng(seed)
    return tuple(rng.integers(0, WORDS - 2, TRUNK).tolist()), rng


def _seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def _cleared(learner: TorchLearner, groups: list[list[TrainingExample]]) -> None:
    learner.forward_backward([example for group in groups for example in group], LOSS)
    learner.optimizer.zero_grad()


def _trunks(repetitions: int) -> list[dict[str, Any]]:
    learner, pairs, packed = _learner(), [], []
    for seed in range(repetitions + 1):
        trunk, rng = _trunk(seed)
        groups = _groups(trunk, PIVOTS, GROUP, rng)
        shared = _seconds(lambda groups=groups: _cleared(learner, groups))
        each = _seconds(lambda groups=groups: [_cleared(learner, [group]) for group in groups])
        whole = _seconds(lambda groups=groups: _one_packed_row(learner, groups))
        pairs.append((each, shared))
        packed.append((whole, shared))
    what = f"{PIVOTS} pivots of {TURNS} turns, {TRUNK} tokens, G={GROUP}"
    return [
        _compared(f"{what}: prompt once per group against trunk once", pairs[1:], 2.0),
        _compared(f"{what}: one packed row with a mask against trunk once", packed[1:], 1.0),
    ]


def _one_packed_row(learner: TorchLearner, groups: list[list[TrainingExample]]) -> None:
    """The other way to the same gradient: the whole tree in one forward pass, a dense mask of who sees whom."""
    model = learner.loaded.model
    rows = [(*example.prompt_ids, *example.action_ids) for group in groups for example in group]
    tree = build_tree(rows)
    at_N = np.arange(len(tree.ids_N))
    states_NH = model.get_decoder()(
        torch.as_tensor(tree.ids_N)[None],
        attention_mask=added_to_scores(model, torch.as_tensor(tree.sees(at_N[:, None], at_N))[None]),
        position_ids=torch.as_tensor(tree.depth_N)[None],
        use_cache=False,
    ).last_hidden_state[0]
    predicting = np.stack([tree.positions(row)[-NEW_TOKENS - 1 : -1] for row in range(len(rows))])
    targets = torch.tensor([row[-NEW_TOKENS:] for row in rows])
    logits_GTV = model.get_output_embeddings()(states_NH[torch.as_tensor(predicting)])
    torch.nn.functional.cross_entropy(logits_GTV.transpose(1, 2), targets).backward()
    learner.optimizer.zero_grad()


def _counts(repetitions: int) -> dict[str, Any]:
    """Seconds by pivots per trajectory, and the line through the first point in proportion to the tree's tokens."""
    learner, seconds, spread, tokens = _learner(), [], [], []
    for count in COUNTS:
        times = []
        for seed in range(repetitions):
            trunk, rng = _trunk(seed)
            groups = _groups(trunk, count, GROUP, rng)
            times.append(_seconds(lambda groups=groups: _cleared(learner, groups)))
        seconds.append(float(np.median(times)))
        spread.append((min(times), max(times)))
        tokens.append(TRUNK - 1 + count * GROUP * NEW_TOKENS)
    line = [seconds[0] / tokens[0] * one for one in tokens]
    over = [second / due for second, due in zip(seconds, line, strict=True)]
    for count, token, second, share in zip(COUNTS, tokens, seconds, over, strict=True):
        print(
            f"{count:3} pivots on one trajectory: {token:6} tokens, {second:7.3f} s, {share:.2f} of the line",
            flush=True,
        )
    return {
        "pivots": COUNTS,
        "tokens": tokens,
        "seconds": seconds,
        "least_most": spread,
        "line": line,
        "over": max(over),
        "bar": 1.5,
    }


def _drawn(counts: dict[str, Any]) -> str:
    lines = {
        "measured": list(zip(counts["pivots"], counts["seconds"], strict=True)),
        "in proportion to the tree's tokens": list(zip(counts["pivots"], counts["line"], strict=True)),
    }
    return line_chart("Seconds of forward and backward", "pivots of one trajectory of 2,048 tokens", lines)


def line_chart(title: str, across: str, lines: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """Points joined by lines, both axes from 0; the first line is solid with dots, the others are dashed."""
    width, height, bottom = 400, 320, 270
    right, top = (max(point[axis] for line in lines.values() for point in line) for axis in (0, 1))
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width + 120}" height="{height}" font-family="sans-serif" '
        f'font-size="13" fill="black"><rect width="100%" height="100%" fill="white"/>',
        f'<text x="8" y="17" font-weight="bold">{escape(title)}</text>',
        f'<text x="{60 + width / 2}" y="{bottom + 36}" text-anchor="middle">{escape(across)}</text>',
        f'<path d="M60 40V{bottom}H{60 + width}" stroke="black" fill="none"/>',
        f'<text x="54" y="44" text-anchor="end">{top:.3g}</text><text x="54" y="{bottom}" text-anchor="end">0</text>',
        f'<text x="{60 + width}" y="{bottom + 16}" text-anchor="end">{right:g}</text>',
    ]
    for number, (name, line) in enumerate(lines.items()):
        places = [(60 + x / right * width, bottom - y / top * (bottom - 40)) for x, y in line]
        dash = ' stroke-dasharray="6 4"' if number else ""
        drawn.append(f'<path d="M{"L".join(f"{x:.1f} {y:.1f}" for x, y in places)}" stroke="black" fill="none"{dash}/>')
        drawn.append(f'<path d="M80 {60 + 20 * number}h30" stroke="black"{dash}/>')
        drawn.append(f'<text x="116" y="{65 + 20 * number}">{escape(name)}</text>')
        drawn += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in places if not number]
    return "\n".join([*drawn, "</svg>"]) + "\n"


def _memory(repetitions: int) -> dict[str, Any]:
    command = [sys.executable, __file__, "--peak"]
    peaks = {
        side: [
            float(subprocess.run([*command, side], check=True, capture_output=True, text=True).stdout.split()[-1])
            for _ in range(min(3, repetitions))
        ]
        for side in PEAKS
    }
    trl, ours, again = (float(np.median(peaks[side])) for side in PEAKS)
    print(
        f"train part, P=1024 G=16, peak MiB: TRL {trl:.0f}, pivotrl {ours:.0f}, with checkpointing {again:.0f}: "
        f"{ours / trl:.2f} of TRL's (wanted 0.5)"
    )
    return {"peak_mib": peaks, "share": ours / trl, "bar": 0.5}


def _peak(work: Callable[[], object]) -> float:
    """MiB at most while this runs, over what is there before (Linux)."""
    with suppress(OSError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = _resident("VmRSS")
    work()
    return _resident("VmHWM") - before


def _resident(what: str) -> float:
    found = re.search(rf"{what}:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) / 1024


def _peak_of_trl(length: int, group: int) -> float:
    peaks = []

    def between(what: str, at: float) -> None:
        if what == "training":
            with suppress(OSError):
                ctypes.CDLL("libc.so.6").malloc_trim(0)
            Path("/proc/self/clear_refs").write_text("5")
            peaks.append(_resident("VmRSS"))
        elif what == "done":
            peaks.append(_resident("VmHWM") - peaks.pop())

    _trainer(_prompts(1, length), group, between).train()
    return peaks[0]


def _peak_of_ours(length: int, group: int, **settings: Any) -> float:
    learner = _learner()
    learner.settings = OptimizerSettings(**settings)
    examples = _sampled(learner, _prompts(1, length)[0], group, 0)
    return _peak(lambda: _trained(learner, examples))


PEAKS: dict[str, Callable[[int, int], float]] = {
    "trl": _peak_of_trl,
    "ours": _peak_of_ours,
    "checkpointing": lambda length, group: _peak_of_ours(length, group, checkpointing=True),
}


if __name__ == "__main__":
    main()
