"""How fast `ingest` reads: against `datasets.load_dataset("json")` and a loop over its rows, in memory, and by workers.

    python benchmarks/ingest.py [--repeats 5] [--megabytes 1000] [--folder DIR] [--json]

The files hold twelve-turn trajectories of 22 kB with tools and tool results. 2,000 of them are loaded in turn by
`datasets` (and every message looked at), by `read_path` (the same work: trajectories in memory, one after the other),
and by `ingest` (which judges, hashes, splits and writes all turns besides) with one process and with two, each time
with a fresh cache or run; ratios are given with 95% intervals over the repetitions, by the clock and by the processor
(that of all processes together). Then a file of so many megabytes is ingested by one process and by two in turn, as
often: seconds from the start of Python to its end, those of the processor by this process and by its worker, peak
memory as the system says it, and how many times as fast two are (95%). The last line with --json is one JSON object.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
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
TEXT = (
    "the order of this customer is pending and was paid with a gift card on flight HAT170 from Berlin to Lima as a "
    'trip for 2 passengers at a price of 312.50 with "free cancellation" until the day before departure;\n'
)
WORDS = TEXT.split(" ")
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
    from pivotrl.ingestion import IngestConfig, ingest

    return ingest(IngestConfig(paths=(str(path),), run=scratch / "run", workers=workers)).assistant_turns


def by_ingest_2(path: Path, scratch: Path) -> int:
    return by_ingest(path, scratch, workers=2)


def by_read_path(path: Path, scratch: Path) -> int:
    from pivotrl.trajectories import read_path

    return sum(message.role == "assistant" for found in read_path(path) for message in found.messages)


def by_datasets(path: Path, scratch: Path) -> int:
    import datasets

    datasets.disable_progress_bars()
    rows = datasets.load_dataset("json", data_files=str(path), split="train", cache_dir=str(scratch / "cache"))
    return sum(message["role"] == "assistant" for row in rows for message in row["messages"])


def spent() -> list[float]:
    """Seconds of the processor, by this process and by its children that ended."""
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return [round(one.ru_utime + one.ru_stime, 3) for one in used]


def timed(function, path: Path, folder: Path) -> tuple[float, float]:
    """Seconds by the clock and of the processor, all threads and processes together."""
    with tempfile.TemporaryDirectory(dir=folder) as scratch, contextlib.redirect_stderr(io.StringIO()):
        start, before = time.perf_counter(), sum(spent())
        turns = function(path, Path(scratch))
        seconds = time.perf_counter() - start, sum(spent()) - before
    assert turns == COUNT * TURNS, turns
    return seconds


def interval(ratios: list[float]) -> tuple[float, float, float]:
    """Geometric mean and its 95% interval."""
    logs = [math.log(ratio) for ratio in ratios]
    spread = T_975.get(len(logs), 2.0) * statistics.stdev(logs) / math.sqrt(len(logs))
    mean = statistics.fmean(logs)
    return math.exp(mean), math.exp(mean - spread), math.exp(mean + spread)


def large(folder: Path, megabytes: int, repeats: int) -> dict:
    """A file of so many megabytes by one process and by two; MiB are those of the process and its largest worker."""
    path = folder / "large.jsonl"
    found: dict = {"bytes": write(path, megabytes * 1_000_000 // SIZE)}
    for workers in [1, 2] * repeats:
        code = (
            f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import ingest; from pathlib import Path; "
        )
        code += f"ingest.by_ingest(Path({str(path)!r}), Path({str(folder)!r}), {workers}); "
        code += "import resource, re; print(*re.findall(r'VmHWM:\\s*(\\d+)', open('/proc/self/status').read()), "
        code += "resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, *ingest.spent())"
        start = time.perf_counter()
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
        found.setdefault(f"seconds_{workers}", []).append(round(time.perf_counter() - start, 2))
        told = done.stdout.split()
        found.setdefault(f"processor_{workers}", []).append([float(text) for text in told[2:]])
        found[f"mib_{workers}"] = [int(text) >> 10 for text in told[:2]]
        shutil.rmtree(folder / "run")
    ratios = [one / two for one, two in zip(found["seconds_1"], found["seconds_2"], strict=True)]
    return found | {"speedup": [round(number, 2) for number in (interval(ratios) if repeats > 1 else ratios)]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="for the files; else a temporary one")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as scratch:
        folder = Path(scratch)
        path = folder / "trajectories.jsonl"
        found: dict = {"bytes": write(path, COUNT), "trajectories": COUNT}
        functions = by_datasets, by_read_path, by_ingest, by_ingest_2
        for function in functions:  # imports and the page cache are nobody's merit
            timed(function, path, folder)
        times = [[timed(function, path, folder) for function in functions] for _ in range(options.repeats)]
        print(f"{COUNT} trajectories, {found['bytes'] / COUNT / 1000:.1f} kB each")
        for index, function in enumerate(functions):
            for kind, unit in enumerate(("clock", "processor")):
                seconds = statistics.median(row[index][kind] for row in times)
                ratio = interval([row[0][kind] / row[index][kind] for row in times])
                found[f"{function.__name__}_{unit}"] = [round(number, 3) for number in (seconds, *ratio)]
                print(
                    f"{function.__name__}: {seconds:.3f} s {unit}, {ratio[0]:.2f}x ({ratio[1]:.2f} to {ratio[2]:.2f})"
                )
        if options.megabytes:
            found["large"] = large(folder, options.megabytes, options.repeats)
            print(found["large"])
    if options.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
