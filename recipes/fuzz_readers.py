"""Throws damaged files at every reader: nothing but refusals of one line, a second and a gigabyte may come of any.

    python recipes/fuzz_readers.py [--inputs 20000] [--seed 0] [DIRECTORY ...]

Seeds are the files of the directories (large ones cut down), and a few rows of our own in every container. Each input
is a seed with a few changes of its bytes or of its JSON, given to `find` and read as `ingest --redact` reads it.
Seconds are those of the processor, so that a loaded machine changes nothing.
"""

from __future__ import annotations

import argparse
import bz2
import gzip
import io
import json
import lzma
import random
import resource
import sys
import tarfile
import tempfile
import time
import traceback
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import zstandard

from pivotrl.errors import PivotRLError
from pivotrl.intake import IntakeSettings, Share, read_events
from pivotrl.trajectories import Refusal, find

SIZE = 64_000
"""Bytes of a seed, at most."""
STRANGE: tuple[Any, ...] = (
    None, True, 0, -1, 10**25, 1.5, float("nan"), float("inf"), "", "x", "\ud800", "[", '{"a": 1}', "\x00\x1b[31m",
    [], {}, [[]], [None], [{}], {"": None}, {"role": "assistant"}, {"name": "f", "arguments": "{"}, "<tool_call>",
    "```", "a" * 5000,
)  # fmt: skip
BYTES = (
    b"", b"\n", b"\r\n", b'"', b"\\", b"{", b"}", b"[" * 2000, b"]", b",", b":", b"\\ud800", b"\xed\xa0\x80", b"\xff",
    b"[" * 970 + b"]" * 970, b'{"a":' * 400 + b"1" + b"}" * 400,
    b"\x00", b"\xef\xbb\xbf", b"1e999", b"NaN", b"-0", b"9" * 30, b"9" * 5000, b"null", b"<function=", b"</think>",
)  # fmt: skip


def rows() -> list[Any]:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    chat = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": "Bearer abcdefghijklmnopqrst1", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "seen"},
        {"role": "assistant", "content": [{"type": "text", "text": "done"}]},
    ]
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
    return [{"messages": chat, "tools": tools, "reward": 1}, {"traj": chat, "task_id": 1, "reward": 1.0}, chat]


def containers(data: bytes) -> list[bytes]:
    """The same in all that files come in."""
    plain, packed = io.BytesIO(), io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as archive:
        info = tarfile.TarInfo("a.jsonl")
        info.size = len(data)
        archive.addfile(info, io.BytesIO(data))
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as folder:
        folder.writestr("b.jsonl", data)
    found = [data, gzip.compress(data), bz2.compress(data), lzma.compress(data), zstandard.compress(data)]
    return [*found, plain.getvalue(), gzip.compress(plain.getvalue()), packed.getvalue(), *_parquet(data)]


def _parquet(data: bytes) -> list[bytes]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        return []
    table = pyarrow.table(
        {"messages": [line.decode() for line in data.splitlines()], "id": list(range(data.count(b"\n")))}
    )
    buffer = io.BytesIO()
    parquet.write_table(table, buffer)
    return [buffer.getvalue()]


def seeds_of(directories: Sequence[Path]) -> list[bytes]:
    ours = b"".join(json.dumps(row).encode() + b"\n" for row in rows())
    found = containers(ours)
    for path in sorted(path for top in directories for path in top.rglob("*") if path.is_file()):
        found.append(cut_down(path.read_bytes()))
    return found


def cut_down(data: bytes) -> bytes:
    """A file with long lists and texts cut, else its first bytes."""
    if len(data) <= SIZE:
        return data
    try:
        if data[:1] in b"{[":
            return json.dumps(_short(json.loads(data)), indent=1).encode()[:SIZE]
    except ValueError:
        lines = data.split(b"\n")[:20]
        with_json = (json.dumps(_short(json.loads(line))).encode() for line in lines if line.startswith(b"{"))
        return b"\n".join(with_json)[:SIZE]
    return data[:SIZE]


def _short(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _short(item) for key, item in list(value.items())[:40]}
    if isinstance(value, list):
        return [_short(item) for item in value[:8]]
    return value[:1000] if isinstance(value, str) else value


def mutated(rng: random.Random, seeds: Sequence[bytes]) -> bytes:
    data = rng.choice(seeds)
    for _ in range(rng.choice((1, 1, 2, 3, 6))):
        data = rng.choice((_bytes, _bytes, _json, _json, _spliced))(rng, data, seeds)
    return data


def _bytes(rng: random.Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
    at = rng.randrange(len(data) + 1)
    size = rng.choice((0, 0, 1, 1, 4, 30, len(data)))
    return (
        data[:at]
        + rng.choice((rng.choice(BYTES), rng.randbytes(rng.randrange(4)), data[at : at + 9] * 3))
        + data[at + size :]
    )


def _spliced(rng: random.Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
    other = rng.choice(seeds)
    return data[: rng.randrange(len(data) + 1)] + other[rng.randrange(len(other)) :][:SIZE]


def _json(rng: random.Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
    """A change of one value, in a line or in the document."""
    lines = data.split(b"\n")
    number = rng.randrange(len(lines))
    for text, before, after in ((lines[number], lines[:number], lines[number + 1 :]), (data, [], [])):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            continue
        return b"\n".join([*before, json.dumps(_changed(rng, value)).encode(), *after])
    return data


def _changed(rng: random.Random, value: Any, depth: int = 0) -> Any:
    if not isinstance(value, dict | list) or not value or rng.random() < 0.1:
        return rng.choice(STRANGE)
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    key = rng.choice(keys)
    value = value.copy()
    action = rng.random()
    if action < 0.1:
        del value[key]
    elif action < 0.2 and isinstance(value, list):
        value.insert(key, value[rng.choice(keys)])
    elif action < 0.2:
        value[rng.choice(("role", "content", "type", "from", "tool_calls", "messages", str(key) + "x"))] = value.pop(
            key
        )
    else:
        value[key] = _changed(rng, value[key], depth + 1)
    return value


def fuzz(
    seeds: Sequence[bytes], inputs: int, seed: int, folder: Path, *, seconds: float = 1.0
) -> tuple[list[str], Counter[str]]:
    """What went wrong, and how often which end was met; memory is what this process has come to need meanwhile."""
    rng, before = random.Random(seed), _peak()
    failures: list[str] = []
    ends: Counter[str] = Counter()
    for number in range(inputs):
        path = folder / f"input-{number}"
        path.write_bytes(mutated(rng, seeds))
        start = time.process_time()
        try:
            for event in _events(path):
                ends[event.reason if isinstance(event, Refusal) else type(event).__name__] += 1
                if isinstance(event, Refusal) and "\n" in event.text:
                    failures.append(f"{number}: more than one line: {event.text!r}")
        except PivotRLError as error:
            ends[type(error).__name__] += 1
        except Exception:
            failures.append(f"{number}: {' | '.join(traceback.format_exc().splitlines()[-5:])}")
        if time.process_time() - start > seconds:
            failures.append(f"{number}: {time.process_time() - start:.1f} s")
        if _peak() - before > 1000:
            return [*failures, f"{number}: {_peak() - before} MiB"], ends
        path.unlink()
    return failures, ends


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def _events(path: Path) -> Iterator[Any]:
    with ExitStack() as stack:
        inputs = tuple(enumerate(find((str(path),), path.parent / "run", stack)))
        yield from read_events(Share(inputs=inputs, settings=IntakeSettings(redact=True), lists=[], inferred={}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directories", nargs="*", type=Path)
    parser.add_argument("--inputs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        failures, ends = fuzz(seeds_of(options.directories), options.inputs, options.seed, Path(scratch))
    for failure in failures[:50]:
        print(failure)
    print(f"{options.inputs} inputs, {len(failures)} failures, peak {_peak()} MiB: {dict(ends.most_common())}")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
