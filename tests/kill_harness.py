"""Kills the real command line at chosen moments, starts it again, and compares the run with an undisturbed one.

`recipes/fault_suite.py` does so, and worse, at random.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import toy
from pivotrl.errors import StorageError
from pivotrl.ingestion import IngestConfig, ingest
from pivotrl.ledger import Ledger
from pivotrl.pivots import SelectConfig, select
from pivotrl.profile_settings import ProfileConfig
from pivotrl.profiling import profile
from pivotrl.storage import FileLock
from pivotrl.types import SamplingParams, Usage

TESTS = Path(__file__).parent
SOURCE = TESTS.parent / "src"
RUN = "run"

PROFILE = ("profile", "--run", RUN, "--policy", "scripted:desk_plugins:play", "--rollouts", "4", "--name", "scripted")
EVALUATE = ("evaluate", "--run", RUN, "--policies", "desk=scripted:desk_plugins:play", "--rollouts", "4")
TRAIN = (
    *("train", "--run", RUN, "--steps", "6", "--prompts", "3", "--group-size", "4", "--checkpoint-every", "2"),
    *("--samples-every", "3", "--optimizer.lr", "0.003"),
    *("--validation.every", "2", "--validation.candidates", "3", "--validation.rollouts", "2"),
)
TORCH = (
    *("profile", "--run", RUN, "--policy", "model", "--rollouts", "4", "--name", "torch"),
    *("--verifier", "desk_plugins:parity", "--sampling.max-new-tokens", "8"),
)
LORA = (*TRAIN, "--lora.rank", "2", "--loss.beta", "0.1")
NOT_COMPARED = ("ledger.jsonl", "report.md", "report.html")
"""The ledger holds seconds and the lines of work that was done twice; `bill` compares it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """When a process is killed: at a call of a plugin, or once a file is there with so many lines."""

    call: int = 0
    """The N-th call of a function of `desk_plugins`."""
    seen: str = ""
    """Path inside the run; a glob."""
    lines: int = 0
    tear: int | None = None
    """Seed: afterwards cut every file that was being appended to at a random byte."""

    def __str__(self) -> str:
        when = f"call {self.call}" if self.call else f"{self.seen}{f' has {self.lines} lines' * bool(self.lines)}"
        return when if self.tear is None else f"{when}, torn ({self.tear})"


def environment(**extra: str) -> dict[str, str]:
    path = os.pathsep.join([str(SOURCE), str(TESTS)])
    return os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"} | extra


def start(
    folder: Path, arguments: Sequence[str], before: Callable[[], object] | None = None, **extra: str
) -> subprocess.Popen[str]:
    """`python -m pivotrl ...` in a folder, after `before`; unlike a shell's background job it heeds Ctrl-C."""
    command = [sys.executable, "-m", "pivotrl", *arguments]

    def heed() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        if before is not None:
            before()

    pipe, env = subprocess.PIPE, environment(**extra)
    return subprocess.Popen(command, cwd=folder, env=env, stdout=pipe, stderr=pipe, text=True, preexec_fn=heed)


def finish(folder: Path, arguments: Sequence[str], **extra: str) -> subprocess.CompletedProcess[str]:
    """The same, until it ends."""
    process = start(folder, arguments, **extra)
    out, err = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def complete(folder: Path, arguments: Sequence[str]) -> None:
    """The same; raises AssertionError when it fails."""
    done = finish(folder, arguments)
    assert done.returncode == 0, done.stderr


def kill(folder: Path, arguments: Sequence[str], moment: Moment) -> bool:
    """Start, kill at the moment, tear. False when it ended before the moment came."""
    before = sizes(folder / RUN)
    process = start(folder, arguments, **({"DESK_SIGNAL": f"SIGKILL:{moment.call}"} if moment.call else {}))
    while moment.seen and process.poll() is None:
        if _came(folder / RUN, moment):
            process.kill()
            break
        time.sleep(0.0005)
    _, err = process.communicate()
    killed_worker = "--workers" in arguments and "status -9" in err
    assert process.returncode in (0, -9) or killed_worker, err
    if "--workers" in arguments:
        wait_for_orphans(folder / RUN)
    if process.returncode == 0:
        return False
    if moment.tear is not None:
        grown = [path for path, size in sizes(folder / RUN).items() if size != before.get(path)]
        tear(grown, random.Random(moment.tear))
    return True


def wait_for_orphans(run: Path) -> None:
    """Workers end by themselves, a moment after their parent."""
    for lock in run.glob("profiles/*/.lock"):
        with contextlib.suppress(StorageError), FileLock(lock, wait=60.0):  # nobody works where nothing can be written
            pass


def _came(run: Path, moment: Moment) -> bool:
    for path in run.glob(moment.seen):
        if not moment.lines:
            return True
        with contextlib.suppress(OSError):
            return path.read_bytes().count(b"\n") >= moment.lines
    return False


def sizes(run: Path) -> dict[Path, int]:
    """Of the files that are appended to."""
    parts = ("*/**/rollouts/part-*", "*/**/verdicts/*/part-*", "*/**/episodes/part-*")
    names = (*parts, "train/*/metrics.jsonl", "ledger.jsonl")
    return {path: path.stat().st_size for name in names for path in sorted(run.glob(name))}


def tear(paths: Sequence[Path], rng: random.Random) -> None:
    """Cut parts at a random byte; the ledger in its last line and metrics, but nothing from before a checkpoint."""
    for path in paths:
        size, floor = path.stat().st_size, 0
        lines = path.read_bytes().splitlines(keepends=True)
        if path.name == "metrics.jsonl":
            floor = sum(len(line) for line in lines[: _steps_kept(path.parent)])
        elif path.name == "ledger.jsonl":
            last = json.loads(lines[-1]) if lines[-1].endswith(b"\n") else {}
            done = _steps_kept(path.parent / "train" / last.get("name", "pivotrl"))
            kept = last.get("stage") == "train" and int(last["unit"].rpartition("-")[2]) < done
            floor = size if kept else size - len(lines[-1])
        if size > floor:
            os.truncate(path, rng.randrange(floor, size))


def _steps_kept(training: Path) -> int:
    states = [json.loads(state.read_bytes()) for state in training.glob("checkpoints/step-*/state.json")]
    return max((state["step"] for state in states), default=0)


def files(run: Path) -> dict[str, bytes]:
    """What must not depend on interruptions, by name."""
    found = sorted(path for path in run.rglob("*") if path.is_file() and path.name not in NOT_COMPARED)
    names = [path.relative_to(run) for path in found]
    return {str(name): (run / name).read_bytes() for name in names if not any(p.startswith(".") for p in name.parts)}


def differences(one: Path, other: Path) -> list[str]:
    """Names of the files in which two runs differ."""
    left, right = files(one), files(other)
    return sorted(name for name in left.keys() | right.keys() if left.get(name) != right.get(name))


def bill(run: Path) -> dict[tuple[str, str], Usage]:
    """What the ledger adds up to, seconds aside."""
    return {key: replace(usage, seconds=0.0) for key, usage in Ledger(run / "ledger.jsonl").totals().items()}


def make_desk(folder: Path, episodes: int = 8, validation: float = 0) -> Path:
    """A folder with episodes, ingested into `run`; `validation` is the share of that split."""
    toy.write_episodes(folder / "episodes.jsonl", episodes, 0)
    with contextlib.chdir(folder):
        ingest(
            IngestConfig(paths=("episodes.jsonl",), run=Path(RUN), validation_fraction=validation, test_fraction=0.3)
        )
    return folder


def make_model(folder: Path, seed: int = 0) -> Path:
    """A Llama of 2 layers without any training, which ends its turn with a probability of about 1/4 at each token."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from toy_model import make_tokenizer

    tokenizer, width = make_tokenizer(), 32
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=width,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=512,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
        model.model.embed_tokens.weight[:, 0] = 1.0  # a constant that the head of the end token reads
        model.lm_head.weight[tokenizer.eos_token_id, 0] = 1.0
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def make_trainable(folder: Path) -> Path:
    """A desk with an untrained model, profiled, and pivots selected."""
    make_desk(folder, validation=0.15)
    make_model(folder / "model")
    config = ProfileConfig(
        run=Path(RUN),
        policy="model",
        rollouts=4,
        verifier="desk_plugins:parity",
        sampling=SamplingParams(max_new_tokens=8),
    )
    with contextlib.chdir(folder):
        profile(config)
        select(SelectConfig(run=Path(RUN), lambda_diff=0.9))
    return folder


def copy(folder: Path, target: Path) -> Path:
    return Path(shutil.copytree(folder, target))
