"""The benchmark on BFCL cases, on cases made here: what is counted, and that a missed bar is told."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def module(name: str):
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


export = module("bfcl_export")

TRUTH = {
    "pay": {"amount": [5.0], "to": ["Ann Lee", "Ann  Lee", "ANN LEE"], "urgent": ["", False], "how": [{"by": ["card"]}]}
}
SHAPE = {
    "type": "dict",
    "properties": {
        "amount": {"type": "float"},
        "to": {"type": "string"},
        "urgent": {"type": "boolean", "default": False},
        "how": {"type": "dict", "properties": {"by": {"type": "string"}}},
    },
    "required": ["amount", "to"],
}
CASE = {
    "id": "made_0",
    "category": "simple_python",
    "truth": [TRUTH],
    "function": [{"name": "pay", "parameters": SHAPE}],
}


def found(valid):
    return export.exported(CASE | {"question": [[{"role": "user", "content": "Pay."}]]}, valid)


def by_class(case):
    classes = {}
    for probe in case["probes"]:
        classes.setdefault(probe["class"], []).append(probe["calls"][0]["arguments"] if probe["calls"] else None)
    return classes


def test_gold_is_the_first_alternative_and_leaves_out_what_is_optional():
    assert export.gold(CASE) == [{"name": "pay", "arguments": {"amount": 5.0, "to": "Ann Lee", "how": {"by": "card"}}}]


def test_probes_change_one_thing_and_say_what():
    classes = by_class(found(lambda case, calls: True))
    gold = export.gold(CASE)[0]["arguments"]
    assert classes["added_default"] == [gold | {"urgent": False}]
    assert classes["int_for_float"] == [gold | {"amount": 5}]
    assert classes["string_spacing"] == [gold | {"to": "Ann  Lee"}]
    assert classes["string_case_punctuation"] == [gold | {"to": "ANN LEE"}]
    assert classes["required_removed"] == [{k: v for k, v in gold.items() if k != name} for name in ("amount", "to")]
    assert {"number_changed", "number_negated", "last_word_changed", "wrong_type", "key_removed"} <= classes.keys()
    assert {"surplus_call", "other_function", "unknown_argument", "key_changed"} <= classes.keys()


def test_schemas_become_json_schema():
    made = export.schema(SHAPE)
    assert (made["type"], made["properties"]["amount"], made["properties"]["how"]["type"]) == (
        "object",
        {"type": "number"},
        "object",
    )
    assert export.schema({"type": "dict", "properties": {"type": {"type": "any"}}})["properties"] == {"type": {}}


@pytest.mark.parametrize("lax", [False, True])
def test_the_benchmark_counts_and_exits(tmp_path, lax):
    """With BFCL's word made up: `lax` lets it refuse a right spelling of a number, which our verifier accepts."""
    wrong = {"number_changed", "number_negated", "last_word_changed", "wrong_type", "required_removed", "key_changed"}
    wrong |= {"surplus_call", "other_function", "unknown_argument", "key_removed"}
    case = found(lambda case, calls: True)
    for probe in case["probes"]:
        probe["valid"] = probe["class"] not in wrong
        if lax and probe["class"] == "int_for_float":
            probe["kind"], probe["class"], probe["valid"] = "corruption", "number_changed", False
    (tmp_path / "cases.jsonl").write_text(json.dumps(case) + "\n")
    ran = subprocess.run(
        [sys.executable, BENCHMARKS / "bfcl.py", tmp_path, "--json"], capture_output=True, text=True, check=False
    )
    told = json.loads(ran.stdout.splitlines()[-1])
    assert told["gold_accepted"] == {"tool_call": 1, "nemo_gym.single_step": 1, "bfcl": 1}
    assert sum(map(sum, told["accepted_by_us_and_bfcl"])) == told["n"] == len(case["probes"]) + 1
    corruptions = [probe for probe in case["probes"] if probe["kind"] == "corruption"]
    assert told["corruptions_refused"]["tool_call"]["mean"] == pytest.approx(1 - lax / len(corruptions))
    assert ran.returncode == lax == bool(told["missed"])
