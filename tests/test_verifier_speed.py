"""The inputs of the speed benchmark: all different, and judged as it says."""

from __future__ import annotations

import importlib.util
from itertools import islice
from pathlib import Path

import pytest

from pivotrl.verifiers import VERIFIERS, load_verifier

_SPEC = importlib.util.spec_from_file_location("speed", Path(__file__).parents[1] / "benchmarks/verifier_speed.py")
speed = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(speed)


@pytest.mark.parametrize("name", [name for name, verifier, _ in speed.RUNS if verifier in VERIFIERS])
def test_inputs_are_distinct_and_half_of_them_right(name):
    verifier, made = next((verifier, made) for run, verifier, made in speed.RUNS if run == name)
    pairs = list(islice(made(), 64))
    assert len({str(action) for _, action in pairs}) == 64
    assert len({candidate.id for candidate, _ in pairs}) == 64 // speed.GROUP
    verdicts = [load_verifier(verifier)(candidate, action).value for candidate, action in pairs]
    assert set(verdicts) == {0.0, 1.0}
    if not verifier.startswith("nemo_gym"):
        assert sum(verdicts) == 32
