"""How the chain scales: seconds and peak memory of ingest, profile, select and report by the number of candidates.

    python benchmarks/scale.py [--candidates 10000 100000 1000000] [--kilobytes 0] [--folder DIR] [--json]
    python benchmarks/scale.py --candidates 1000000 --kilobytes 10    # 10 GB of trajectories; 25 GB of disk

Episodes of ten assistant turns (eight look-ups, a refund, a message) are written as OpenAI chat, ingested, profiled
with K=4 by a scripted policy that is right with a probability of its own at every state, selected and reported.
--kilobytes makes the tools' results so long that there are as many for each candidate. Every stage is a process of its
own; peak memory is what the system says of it and of its workers, the largest. The last line with --json is one JSON
object.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from pivotrl.types import State

TURNS, K = 10, 4
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": about,
            "parameters": {"type": "object", "properties": fields, "required": list(fields)},
        },
    }
    for name, about, fields in (
        ("find_order", "What the books say of an order.", {"order_id": {"type": "string"}}),
        ("refund", "Give money back.", {"order_id": {"type": "string"}, "amount": {"type": "integer"}}),
    )
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--candidates", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--kilobytes", type=float, default=0.0, help="of trajectories for each candidate; 0: 0.5")
    parser.add_argument(
        "--folder", type=Path, help="for the runs, 3 KB a candidate and twice the kilobytes; else a temporary one"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = {}
    for count in options.candidates:
        with tempfile.TemporaryDirectory(dir=options.folder) as scratch:
            found[str(count)] = measured(Path(scratch), count, int(options.kilobytes * 1000))
    if options.json:
        print(json.dumps(found))


def measured(folder: Path, count: int, size: int) -> dict[str, dict[str, float]]:
    """Seconds, seconds of processor time and MiB of each stage; the bytes of the input and of the run."""
    write_episodes(folder / "episodes.jsonl", count // TURNS, size)
    run = ["--run", str(folder / "run")]
    none = ["--validation-fraction", "0", "--test-fraction", "0"]
    stages = {
        "ingest": ["ingest", str(folder / "episodes.jsonl"), *run, *none],
        "profile": ["profile", *run, "--policy", f"scripted:{__file__}:play", "--rollouts", str(K)],
        "select": ["select", *run],
        "report": ["report", *run],
    }
    found = {"bytes": {"input": float((folder / "episodes.jsonl").stat().st_size)}}
    for stage, arguments in stages.items():
        found[stage] = one = finished([sys.executable, "-m", "pivotrl", *arguments])
        words = "  ".join(f"{value:9.1f} {name}" for name, value in one.items())
        print(f"{count:9,} candidates  {stage:8} {words}", flush=True)
    found["bytes"]["run"] = float(sum(path.stat().st_size for path in (folder / "run").rglob("*")))
    print(f"{count:9,} candidates  {found['bytes']['input'] / 1e9:.2f} GB in, run {found['bytes']['run'] / 1e9:.2f} GB")
    return found


def finished(command: list[str]) -> dict[str, float]:
    """A process that has to end well, and what it took."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, command
    return {
        "seconds": time.perf_counter() - start,
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "peak_mib": usage.ru_maxrss / 1024,
    }


def write_episodes(path: Path, count: int, size: int = 0) -> None:
    with path.open("w") as file:
        for number in range(count):
            file.write(json.dumps(episode(number, size * TURNS // (TURNS - 1))) + "\n")


def episode(number: int, size: int = 0) -> dict[str, Any]:
    """With results of tools of at least so many bytes, of words that differ from episode to episode."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": f"Customer {number}: please refund my late orders."}]
    for turn in range(TURNS - 1):
        name, arguments = expert(number, turn)
        call = {"id": f"c{turn}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        books = arguments | {"status": "late", "price": 20 + turn, "next": f"{number:x}-{turn + 1}"}
        if size:
            books["log"] = f"{number:x} {turn} shipped, delayed, opened; " * (size // 32)
        messages.append({"role": "tool", "tool_call_id": f"c{turn}", "name": name, "content": json.dumps(books)})
    messages.append({"role": "assistant", "content": "Your money is on its way."})
    return {"task_id": f"task-{number}", "messages": messages, "tools": TOOLS, "reward": 1.0}


def expert(number: int, turn: int) -> tuple[str, dict[str, Any]]:
    """The call of a turn."""
    order = {"order_id": f"{number:x}-{turn}"}
    return ("refund", order | {"amount": 5}) if turn == TURNS - 2 else ("find_order", order)


def play(state: State, rng: random.Random) -> str:
    """The expert's action with a probability that belongs to the state: 0, 1, or anything between."""
    turn = len(state.messages) // 2
    skill = min(max(random.Random(state.key).uniform(-0.5, 1.5), 0.0), 1.0)
    if rng.random() >= skill:
        return f"Bananas {rng.randrange(1000)}."
    if turn == TURNS - 1:
        return "Your money is on its way."
    number = str(state.messages[0].content).split()[1].rstrip(":")
    name, arguments = expert(int(number), turn)
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


if __name__ == "__main__":
    main()
