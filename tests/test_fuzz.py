"""Some hundred damaged inputs, of the 100,000 that `recipes/fuzz.py` makes, and what the readers' are made of."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from test_readers import ROWS

sys.path.insert(0, str(Path(__file__).parents[1] / "recipes"))

import fuzz

SOME = {"readers": 120, "arguments": 6, "artefacts": 0, "template": 20}


@pytest.mark.parametrize("name", [name for name in fuzz.PARSERS if SOME.get(name, 30)])
def test_damaged_input_is_refused_in_one_line(name: str) -> None:
    more = [json.dumps(row).encode() for row in ROWS] * 2 if name == "readers" else []
    failures, ends = fuzz.fuzz(name, range(SOME.get(name, 30)), 1, more=more, seconds=10.0)
    assert failures == []
    assert sum(ends.values()) >= SOME.get(name, 30)
    if name == "readers":
        assert {"Read", "not_json", "bad_record", "damaged_file"} <= ends.keys()


def test_a_case_is_its_number_alone() -> None:
    both = [fuzz.fuzz("rules", cases, 3)[1] for cases in (range(40), range(20), range(20, 40))]
    assert both[0] == both[1] + both[2]
    assert len(both[0]) > 1
