"""The whole bill: what every stage cost, one line per unit of work in `ledger.jsonl`.

A unit's line is written before its result. A unit that ran twice (a kill between the two) has two lines with one key;
the later one counts. Work that a kill threw away before its line was written is not in the bill.

FLOPs are counted by formula: a forward pass costs 2 per parameter and token plus 4 * layers * width * context per token
for attention scores and values (Kaplan et al. 2020, arXiv 2001.08361, section 2.1; PaLM, arXiv 2204.02311, appendix B);
a backward pass costs twice the forward. Left out: embedding look-ups, norms, activations, softmax, sampling, the
optimiser, recomputation and padding (useful tokens are counted). `tests/test_ledger.py` holds it to torch's counter.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pivotrl.storage import FileLock, PartWriter, Pulse, complete_lines, decode
from pivotrl.types import ModelShape, Usage

BACKWARD_COST = 2.0
FROZEN_BACKWARD_COST = 1.0
"""Where only an adapter is trained: frozen weights pass gradients on, and get none."""


def forward_flops(shape: ModelShape, *, tokens: int, context: int = 0) -> float:
    """FLOPs of a forward pass over `tokens` new tokens that follow `context` cached ones, causal attention."""
    attended = tokens * context + tokens * (tokens + 1) / 2
    return 2.0 * shape.parameters * tokens + 4.0 * shape.layers * shape.attention_width * attended


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerLine:
    """What one unit of work of one stage cost."""

    stage: str
    name: str
    unit: str
    usage: Usage


class Ledger:
    """Appends to and adds up `ledger.jsonl`. The only artefact that holds clock values."""

    def __init__(self, path: Path) -> None:
        self.path, self._pulse = path, Pulse(1.0)

    def record(self, stage: str, name: str, unit: str, usage: Usage) -> None:
        lock = FileLock(self.path.with_name(f".{self.path.name}.lock"), wait=60.0)
        with lock, PartWriter(self.path, self._pulse) as part:
            part.keep_lines()
            part.append([LedgerLine(stage=stage, name=name, unit=unit, usage=usage)])

    def lines(self) -> list[LedgerLine]:
        """The last line of every unit, in the order in which these came."""
        latest: dict[tuple[str, str, str], LedgerLine] = {}
        for number, (_, raw) in enumerate(complete_lines(self.path), start=1):
            line = decode(raw, LedgerLine, f"{self.path}:{number}")
            latest.pop(key := (line.stage, line.name, line.unit), None)
            latest[key] = line
        return list(latest.values())

    def totals(self) -> dict[tuple[str, str], Usage]:
        """Usage by (stage, name), in the order in which these were last worked on."""
        totals: dict[tuple[str, str], Usage] = {}
        for line in self.lines():
            key = line.stage, line.name
            totals[key] = totals.pop(key, Usage()) + line.usage
        return totals


def by_stage(totals: Mapping[tuple[str, str], Usage]) -> dict[str, Usage]:
    """Totals by (stage, name), all names of a stage together."""
    stages: dict[str, Usage] = {}
    for (stage, _), usage in totals.items():
        stages[stage] = stages.get(stage, Usage()) + usage
    return stages


class Meter:
    """Whoever adds to `_usage` what it spends."""

    _usage = Usage()

    def take_usage(self) -> Usage:
        """What was spent since the last call of this method."""
        usage, self._usage = self._usage, Usage()
        return usage


class Stopwatch:
    """Seconds since it was made or last read."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    def lap(self) -> float:
        now = time.perf_counter()
        seconds, self._start = now - self._start, now
        return seconds


@contextmanager
def timed(ledger: Ledger, stage: str, name: str) -> Iterator[None]:
    """Record the seconds of a block that samples and trains nothing."""
    watch = Stopwatch()
    yield
    ledger.record(stage, name, "all", Usage(seconds=watch.lap()))
