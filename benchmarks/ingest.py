"""How fast `ingest` reads: against `datasets.load_dataset("json")` and a loop over its rows, in memory, and by workers.

    python benchmarks/ingest.py [--repeats 5] [--gigabyte] [--folder DIR] [--json]

The files hold twelve-turn trajectories of 22 kB with tools and tool results. Both readers get 2,000 of them in turn, each
time with a fresh run or cache, and the ratio of their times is given with its 95% interval over the repetitions. With
--gigabyte a file of 1 GB is ingested by one process and by two: seconds, and peak memory as the system says it. The last
line with --json is one JSON object.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

COUNT, TURNS, SIZE = 2000, 12, 22_000
T_975 = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26}
"""Student's t for a 95% interval, by the number of repetitions."""
WORDS = (
    "the order of this customer is pending and was paid with a gift card on flight HAT170 from Berlin to Lima as a round "
    'trip for 2 passengers at a price of 312.50 with "free cancellation" until the day before departure;\n'
).split(" ")
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "What the books say of it.",
            "parameters": {"type": "object", "properties": {"id": {"type": "string"}, "limit": {"type": "integer"}}},
        },
    }
    for name in ("find_order", "list_flights", "refund", "search")
]


def trajectory(index: int) -> dict:
    """A conversation of twelve assistant turns: eleven calls with their results, and a message."""
    rng = random.Random(index)
    room = SIZE - 1000

    def text(size: int) -> str:
        return " ".join(rng.choices(WORDS, k=int(size / 5.9)))

    messages = [{"role": "system", "content": text(room // 4)}, {"role": "user", "content": f"{index} (€) {text(300)}"}]
    for turn in range(TURNS - 1):
        arguments = json.dumps({"id": f"{index}-{turn}", "limit": rng.randrange(100)})
        call = {"id": f"call_{turn}", "type": "function", "function": {"name": "search", "arguments": arguments}}
        messages.append({"role": "assistant", "content": text(150), "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"call_{turn}", "content": text(room // 20)})
    messages.append({"role": "assistant", "content": text(200)})
    return {"messages": messages, "tools": TOOLS, "task_id": f"task-{index}", "reward": 1.0}


def write(path: Path, count: int) -> int:
    """Write so many trajectories; every thousand begins anew with another task. Returns the bytes."""
    with path.open("w") as file:
        for index in range(count):
            file.write(json.dumps(trajectory(index), ensure_ascii=False) + "\n")
    return path.stat().st_size


def by_ingest(path: Path, scratch: Path, workers: int = 1) -> int:
    """Seconds are those of a user: candidates, split and audit are written."""
    from pivotrl.ingestion import IngestConfig, ingest

    result = ingest(IngestConfig(paths=(str(path),), run=scratch / "run"))
    return result.assistant_turns


def by_datasets(path: Path, scratch: Path) -> int:
    import datasets

    datasets.disable_progress_bars()
    rows = datasets.load_dataset("json", data_files=str(path), split="train", cache_dir=str(scratch / "cache"))
    return sum(message["role"] == "assistant" for row in rows for message in row["messages"])


def timed(function, path: Path, folder: Path) -> float:
    with tempfile.TemporaryDirectory(dir=folder) as scratch, contextlib.redirect_stderr(io.StringIO()):
        start = time.perf_counter()
        turns = function(path, Path(scratch))
        seconds = time.perf_counter() - start
    assert turns == COUNT * TURNS, turns
    return seconds


def interval(ratios: list[float]) -> tuple[float, float, float]:
    """Geometric mean and its 95% interval."""
    logs = [math.log(ratio) for ratio in ratios]
    spread = T_975.get(len(logs), 2.0) * statistics.stdev(logs) / math.sqrt(len(logs))
    mean = statistics.fmean(logs)
    return math.exp(mean), math.exp(mean - spread), math.exp(mean + spread)


def gigabyte(folder: Path) -> dict:
    """A file of 1 GB by one process and by two."""
    path = folder / "large.jsonl"
    size = write(path, 1_000_000_000 // SIZE)
    found = {"bytes": size}
    for workers in (1, 2):
        code = (
            f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import ingest; from pathlib import Path; "
        )
        code += f"ingest.by_ingest(Path({str(path)!r}), Path({str(folder)!r}), {workers})"
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        start = time.perf_counter()
        process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        assert not status
        del before
        found[f"seconds_{workers}"] = round(time.perf_counter() - start, 2)
        found[f"cpu_{workers}"] = round(usage.ru_utime + usage.ru_stime, 2)
        found[f"mib_{workers}"] = round(usage.ru_maxrss / 1024)
        shutil.rmtree(folder / "run")
    return found | {"speedup": round(found["seconds_1"] / found["seconds_2"], 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--gigabyte", action="store_true")
    parser.add_argument("--folder", type=Path, help="for the files; else a temporary one")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as scratch:
        folder = Path(scratch)
        path = folder / "trajectories.jsonl"
        found: dict = {"bytes": write(path, COUNT), "trajectories": COUNT}
        for function in (by_ingest, by_datasets):  # imports and the page cache are nobody's merit
            timed(function, path, folder)
        pairs = [(timed(by_ingest, path, folder), timed(by_datasets, path, folder)) for _ in range(options.repeats)]
        ratio, low, high = interval([theirs / ours for ours, theirs in pairs])
        found |= {
            "ingest_seconds": round(statistics.median(ours for ours, _ in pairs), 3),
            "datasets_seconds": round(statistics.median(theirs for _, theirs in pairs), 3),
            "ratio": [round(ratio, 2), round(low, 2), round(high, 2)],
        }
        print(f"{found['trajectories']} trajectories, {found['bytes'] / COUNT / 1000:.1f} kB each")
        print(f"ingest {found['ingest_seconds']} s, datasets {found['datasets_seconds']} s")
        print(f"{ratio:.2f}x ({low:.2f} to {high:.2f})")
        if options.gigabyte:
            found["gigabyte"] = gigabyte(folder)
            print(found["gigabyte"])
    if options.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
