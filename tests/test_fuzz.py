"""A few hundred damaged files, of the 20,000 that `recipes/fuzz_readers.py` makes, and what it is made of."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from test_readers import ROWS

sys.path.insert(0, str(Path(__file__).parents[1] / "recipes"))

import fuzz_readers


def test_damaged_files_are_refused_in_one_line(tmp_path: Path) -> None:
    seeds = fuzz_readers.seeds_of([]) + [json.dumps(row).encode() for row in ROWS] * 2
    failures, ends = fuzz_readers.fuzz(seeds, 400, 1, tmp_path, seconds=10.0)
    assert failures == []
    assert {"Read", "not_json", "bad_record", "unknown_format", "damaged_file"} <= ends.keys()
