"""Kills the real command line at chosen moments, starts it again, and compares the run with an undisturbed one.

python tests/kill_harness.py --points 20 --seed 0    # 20 random moments; the last line is JSON
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import toy
from pivotrl.ingestion import IngestConfig, ingest
from pivotrl.ledger import Ledger
from pivotrl.pivots import SelectConfig, select
from pivotrl.profiling import ProfileConfig, profile
from pivotrl.types import SamplingParams, Usage

TESTS = Path(__file__).parent
SOURCE = TESTS.parent / "src"
RUN = "run"

PROFILE = ("profile", "--run", RUN, "--policy", "scripted:desk_plugins:play", "--rollouts", "4", "--name", "scripted")
EVALUATE = ("evaluate", "--run", RUN, "--policies", "desk=scripted:desk_plugins:play", "--rollouts", "4")
TRAIN = (
    *("train", "--run", RUN, "--steps", "6", "--prompts", "3", "--group-size", "4", "--checkpoint-every", "2"),
    *("--samples-every", "3", "--optimizer.lr", "0.003"),
)
LORA = (*TRAIN, "--lora.rank", "2", "--loss.beta", "0.1")
NOT_COMPARED = ("ledger.jsonl", "report.md")
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


def start(folder: Path, arguments: Sequence[str], **extra: str) -> subprocess.Popen[str]:
    """`python -m pivotrl ...` in a folder; a shell's background job ignores Ctrl-C, but not this one."""
    command = [sys.executable, "-m", "pivotrl", *arguments]
    pipe, heed = subprocess.PIPE, partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    env = environment(**extra)
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
    before = _sizes(folder / RUN)
    process = start(folder, arguments, **({"DESK_SIGNAL": f"SIGKILL:{moment.call}"} if moment.call else {}))
    while moment.seen and process.poll() is None:
        if _came(folder / RUN, moment):
            process.kill()
            break
        time.sleep(0.0005)
    _, err = process.communicate()
    assert process.returncode in (0, -9), err
    if process.returncode == 0:
        return False
    if moment.tear is not None:
        grown = [path for path, size in _sizes(folder / RUN).items() if size != before.get(path)]
        tear(grown, random.Random(moment.tear))
    return True


def _came(run: Path, moment: Moment) -> bool:
    for path in run.glob(moment.seen):
        if not moment.lines:
            return True
        with contextlib.suppress(OSError):
            return path.read_bytes().count(b"\n") >= moment.lines
    return False


def _sizes(run: Path) -> dict[Path, int]:
    """Of the files that are appended to."""
    names = ("*/**/rollouts/part-*", "*/**/verdicts/*/part-*", "train/*/metrics.jsonl", "ledger.jsonl")
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
            kept = last.get("stage") == "train" and int(last["unit"][5:]) < _steps_kept(path.parent / "train/pivotrl")
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


def make_desk(folder: Path, episodes: int = 8) -> Path:
    """A folder with episodes, ingested into `run`."""
    toy.write_episodes(folder / "episodes.jsonl", episodes, 0)
    with contextlib.chdir(folder):
        ingest(IngestConfig(paths=("episodes.jsonl",), run=Path(RUN), validation_fraction=0, test_fraction=0.3))
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
    make_desk(folder)
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


def random_moment(stage: Sequence[str], rng: random.Random) -> Moment:
    """A moment that surely comes in an undisturbed run of the stage."""
    if stage not in (TRAIN, LORA):
        return Moment(call=rng.randint(1, 40), tear=rng.choice([None, rng.randrange(1000)]))
    step = 2 * rng.randint(1, 3)
    return rng.choice(
        [
            Moment(call=rng.randint(1, 20), tear=rng.randrange(1000)),
            Moment(seen="train/*/metrics.jsonl", lines=rng.randint(1, 6), tear=rng.randrange(1000)),
            Moment(seen=f"train/*/checkpoints/.step-{step:06d}.making"),
            Moment(seen=f"train/*/checkpoints/step-{step:06d}"),
            Moment(seen="train/*/.model.making"),
        ]
    )


def suite(folder: Path, points: int, seed: int) -> tuple[int, int]:
    """Kill at random points, one stage after the other. How often that came in time, and how many runs ended equal."""
    rng, kills, equals = random.Random(seed), 0, 0
    desk = make_trainable(folder / "desk")
    stages = (PROFILE, TRAIN, EVALUATE, LORA)
    calm: dict[Sequence[str], Path] = {}
    for point in range(points):
        stage = stages[point % len(stages)]
        if stage not in calm:
            calm[stage] = copy(desk, folder / f"calm-{len(calm)}")
            complete(calm[stage], stage)
        disturbed = copy(desk, folder / "disturbed")
        moment = random_moment(stage, rng)
        killed = kill(disturbed, stage, moment)
        complete(disturbed, stage)
        found = differences(calm[stage] / RUN, disturbed / RUN)
        equal = not found and bill(calm[stage] / RUN) == bill(disturbed / RUN)
        kills, equals = kills + killed, equals + equal
        word = "equal" if equal else f"DIFFERS in {found or 'the bill'}"
        what = f"killed at {moment}" if killed else f"ended before {moment}"
        print(f"{point + 1:3d}/{points} {stage[0]:9s} {word:8s} {what}", flush=True)
        shutil.rmtree(disturbed)
    return kills, equals


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "desk").mkdir()
        kills, equals = suite(Path(scratch), arguments.points, arguments.seed)
    ok = equals == arguments.points
    print(json.dumps({"points": arguments.points, "seed": arguments.seed, "kills": kills, "equal": equals, "ok": ok}))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
