"""Faults over all stages of the real command line: nothing lost, nothing doubled, a clear end (docs/faults.md).

    python recipes/fault_suite.py --scenarios 300 --first 0 --jobs 2 --log faults.jsonl

A scenario is its seed: kind, stage and parameters follow from it. Each starts from a small run, is disturbed once or
twice, then run to its end and compared with an undisturbed one: every file byte for byte, the bill but for seconds. An
artefact that was edited, cut off or deleted has to be told in one line, or to make no difference. The last line of the
log is the summary. As root on Linux a full disk is a small tmpfs and a read-only folder a mount; otherwise a limit on
the size of files, and modes. The clock needs `faketime` (Debian: faketime). What cannot be done is skipped, and said.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import chdir, redirect_stderr, redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import fault_kinds as faults
import torch
from fault_kinds import HELPERS, SLOW, STAGES, Scene, Skipped, WrongError, before

import toy
from kill_harness import copy, make_model
from pivotrl.cli import main as pivotrl

KINDS: dict[str, tuple[int, Callable[[Scene], None]]] = {
    "SIGKILL": (3, partial(faults.signalled, sign=signal.SIGKILL)),
    "SIGINT": (1, partial(faults.signalled, sign=signal.SIGINT)),
    "SIGTERM": (1, partial(faults.signalled, sign=signal.SIGTERM)),
    "disk full": (2, faults.full),
    "read-only": (1, faults.read_only),
    "clock": (1, faults.clock),
    "two at once": (2, faults.twice),
    "stale locks": (1, faults.stale),
    "moved": (1, faults.moved),
    "edited": (4, partial(faults.damaged, damage=faults.edit)),
    "cut off": (2, partial(faults.damaged, damage=faults.cut)),
    "deleted": (1, partial(faults.damaged, damage=faults.delete)),
    "older format": (1, faults.older),
}
"""How often each comes in a round of all stages, and what it does."""


def plan(seed: int) -> tuple[str, str]:
    """Kind and stage of a scenario; a round of 294 seeds has all pairs, the last 21 those of whole episodes."""
    first, last = list[tuple[str, str]](), list[tuple[str, str]]()
    for kind, (times, _) in KINDS.items():
        for stage in (one for one in STAGES if one not in HELPERS):
            (last if stage == "episodes" else first).extend([(kind, stage)] * times)
    random.Random(0).shuffle(first)
    return [*first, *last][seed % (len(first) + len(last))]


def tenth(scenarios: int) -> list[int]:
    """A tenth of the first so many seeds: every kind, every stage, and then those that are cheap."""
    seeds = sorted(range(scenarios), key=lambda seed: (plan(seed)[1] in SLOW, seed))
    chosen, seen = list[int](), set[str]()
    for seed in seeds:
        if not seen.issuperset(plan(seed)):
            chosen.append(seed)
            seen.update(plan(seed))
    return sorted([*chosen, *(seed for seed in seeds if seed not in chosen)][: scenarios // 10])


class Desks:
    """Folders in which stages were run without trouble, made when they are asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.made: dict[tuple[str, ...], Path] = {(): folder / "nothing"}
        self.made[()].mkdir()
        toy.write_episodes(self.made[()] / "episodes.jsonl", 8, 0)
        make_model(self.made[()] / "model")

    def __call__(self, stages: tuple[str, ...]) -> Path:
        if stages not in self.made:
            made = copy(self(stages[:-1]), self.folder / "-".join(stages))
            with chdir(made), redirect_stdout(StringIO()), redirect_stderr(StringIO()) as err:
                assert pivotrl(STAGES[stages[-1]][0].split()) == 0, err.getvalue()
            self.made[stages] = made
        return self.made[stages]


def play(seed: int, desks: Desks, folder: Path) -> dict[str, Any]:
    """One scenario, as a line of the log."""
    kind, stage = plan(seed)
    needs = before(stage)
    scene = Scene(
        seed, kind, stage, folder / f"{seed}" / "desk", random.Random(seed), desks(needs), desks((*needs, stage))
    )
    scene.folder.parent.mkdir()
    begun, outcome, why = time.perf_counter(), "kept", {}
    try:
        KINDS[kind][1](scene)
    except Skipped as error:
        outcome, why = "skipped", {"why": str(error)}
    except Exception as error:
        outcome, why = "BROKEN", {"why": f"{error}" if isinstance(error, WrongError) else repr(error)}
    finally:
        shutil.rmtree(folder / f"{seed}", ignore_errors=True)
    line = {"seed": seed, "kind": kind, "stage": stage, "how": scene.how, "runs": scene.runs, "outcome": outcome}
    return line | why | {"seconds": round(time.perf_counter() - begun, 1)}


def suite(seeds: list[int], jobs: int, log: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """All scenarios; returns the summary."""
    begun, lines = time.perf_counter(), list[dict[str, Any]]()
    with tempfile.TemporaryDirectory() as scratch:
        (place := Path(scratch) / "desks").mkdir()
        desks = Desks(place)
        for stage in sorted({plan(seed)[1] for seed in seeds}):
            desks((*before(stage), stage))
        with ThreadPoolExecutor(jobs) as pool:
            for done in as_completed([pool.submit(play, seed, desks, Path(scratch)) for seed in seeds]):
                lines.append(done.result())
                log(lines[-1])
    counts: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}
    for line in lines:
        counts[line["kind"]][line["stage"]] += 1
    outcomes = Counter(line["outcome"] for line in lines)
    return {
        "scenarios": len(lines),
        "outcomes": outcomes,
        "runs": sum(len(line["runs"]) for line in lines),
        "minutes": round((time.perf_counter() - begun) / 60, 1),
        "counts": counts,
        "ok": not outcomes["BROKEN"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenarios", type=int, default=300)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seeds", type=int, nargs="*", help="these alone")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--log", type=Path, default=Path("faults.jsonl"))
    options = parser.parse_args()
    torch.set_num_threads(1)  # undisturbed runs are made here, and have to be as those of the processes
    seeds = options.seeds or list(range(options.first, options.first + options.scenarios))
    with options.log.open("w") as file:

        def log(line: dict[str, Any]) -> None:
            print(json.dumps(line), file=file, flush=True)
            print(*(line[key] for key in ("seed", "kind", "stage", "outcome", "how")), line.get("why", ""), sep="  ")

        summary = suite(seeds, options.jobs, log)
        print(json.dumps(summary), file=file)
    print(json.dumps(summary))
    return 0 if summary["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
