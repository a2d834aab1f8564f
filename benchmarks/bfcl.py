"""`tool_call` on the function calls of BFCL, beside NeMo Gym's comparer and BFCL's own checker.

    python -m venv bfcl && bfcl/bin/pip install --no-deps bfcl-eval
    python benchmarks/bfcl.py DIR --export bfcl/bin/python     # once: DIR/cases.jsonl
    python benchmarks/bfcl.py DIR [--json]

The demonstration is the call of the first listed alternatives. It must be accepted, and 99% of its corruptions refused.
The other listed alternatives are permitted, which a verifier that sees one demonstration and the schema can know in
some classes only (`DECIDABLE`): there it must refuse fewer than NeMo Gym's comparer (`nemo_gym.single_step`, our port).
Counted are the cases whose demonstration BFCL's checker accepts, permitted calls that it accepts and corruptions that
it refuses; agreement with it is over everything. Intervals are 95%, clustered by case. Exits 1 where a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from pivotrl.metrics import clustered_mean
from pivotrl.types import Action, Candidate, Completion, Estimate, Message, Source, Tool, ToolCall, Trajectory
from pivotrl.verifiers import load_verifier, verify

OURS, NEMO, BFCL = "tool_call", "nemo_gym.single_step", "bfcl"
DECIDABLE = {
    "added_default": "the schema says that it is the default",
    "omitted_default": "the schema says that it is the default",
    "int_for_float": "JSON has one kind of number",
    "calls_reordered": "parallel calls have no order",
}
UNDECIDABLE = {
    "added_described": "the default stands in prose only",
    "omitted_described": "the default stands in prose only",
    "added_unsaid": "no default is told",
    "omitted_unsaid": "no default is told",
    "added_against_default": "the schema says another default",
    "omitted_against_default": "the schema says another default",
    "string_case_punctuation": "case and punctuation may matter",
    "string_other": "another wording",
    "list_order": "no schema says that the array is a set",
    "list_other": "other items",
    "number_other": "another number",
    "other": "another value or type",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument(
        "--export", metavar="PYTHON", help="the Python of an environment with bfcl-eval: make the cases"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    options = parser.parse_args()
    path = options.directory / "cases.jsonl"
    if options.export:
        options.directory.mkdir(parents=True, exist_ok=True)
        return subprocess.run([options.export, str(Path(__file__).with_name("bfcl_export.py")), str(path)]).returncode
    if not path.is_file():
        sys.exit(f"{path} is not there; make it with --export")
    found = measured([row for case in map(json.loads, path.open(encoding="utf-8")) for row in judged(case)])
    show(found)
    if options.json:
        print(json.dumps(found))
    return 1 if found["missed"] else 0


def judged(case) -> Iterator[dict]:
    """The demonstration and every probe: kind, class, and whether each judge accepts."""
    candidate = candidate_of(case)
    probes = [{"kind": "gold", "class": "gold", "calls": case["gold"], "valid": case["valid"]}, *case["probes"]]
    for probe in probes:
        made = Completion(action=Action(calls=calls_of(probe["calls"])), text="", finish_reason="stop")
        words = {name: verify(VERIFIERS[name], candidate, made) for name in (OURS, NEMO)}
        yield {
            "case": case["id"],
            "good": case["valid"],
            "kind": probe["kind"],
            "class": probe["class"],
            BFCL: probe["valid"],
            **{name: word.value == 1.0 for name, word in words.items()},
            "unscored": words[OURS].value is None,
            "reason": f"{words[OURS].reason}: {words[OURS].detail}",
        }


VERIFIERS = {name: load_verifier(name) for name in (OURS, NEMO)}


def candidate_of(case) -> Candidate:
    tools = tuple(Tool(**one) for one in case["tools"])
    asked = Message(role="user", content=case["question"])
    shown = Message(role="assistant", tool_calls=calls_of(case["gold"]))
    source = Source(file="bfcl", format="bfcl")
    return Candidate(trajectory=Trajectory(id=case["id"], messages=(asked, shown), tools=tools, source=source), turn=1)


def calls_of(calls) -> tuple[ToolCall, ...]:
    return tuple(ToolCall(name=one["name"], arguments=json.dumps(one["arguments"])) for one in calls)


def rate(rows, value) -> dict:
    return asdict(clustered_mean([float(value(row)) for row in rows], [row["case"] for row in rows], (0.0, 1.0)))


def measured(rows) -> dict:
    """Everything that is printed."""
    golds = [row for row in rows if row["kind"] == "gold"]
    wrong = [row for row in rows if row["kind"] == "corruption" and row["good"] and not row[BFCL]]
    right = [row for row in rows if row["kind"] == "permitted" and row["good"] and row[BFCL]]
    found = {
        "cases": len(golds),
        "gold_accepted": {name: sum(row[name] for row in golds) for name in (OURS, NEMO, BFCL)},
        "unscored": sum(row["unscored"] for row in rows),
        "corruptions_refused": {name: rate(wrong, lambda row, name=name: not row[name]) for name in (OURS, NEMO)},
        "corruptions": by_class(wrong),
        "permitted": by_class(right),
        "permitted_decidable": by_group(right, decidable=True),
        "permitted_undecidable": by_group(right, decidable=False),
        "agreement_with_bfcl": {
            name: rate(rows, lambda row, name=name: row[name] == row[BFCL]) for name in (OURS, NEMO)
        },
        "accepted_by_us_and_bfcl": [
            [sum((row[OURS], row[BFCL]) == (ours, theirs) for row in rows) for theirs in (True, False)]
            for ours in (True, False)
        ],
        "n": len(rows),
    }
    return found | {"missed": missed(found)}


def by_class(rows) -> dict:
    """Class -> n and how many each of the two refuses."""
    classes = defaultdict(list)
    for row in rows:
        classes[row["class"]].append(row)
    return {
        name: {"n": len(some)} | {judge: sum(not row[judge] for row in some) for judge in (OURS, NEMO)}
        for name, some in sorted(classes.items())
    }


def by_group(rows, *, decidable: bool) -> dict:
    some = [row for row in rows if (row["class"] in DECIDABLE) == decidable]
    return {name: rate(some, lambda row, name=name: not row[name]) for name in (OURS, NEMO)}


def missed(found) -> list[str]:
    """The bars that are missed, in words."""
    bars = [
        ("gold refused", found["gold_accepted"][OURS] == found["cases"]),
        ("under 99% of the corruptions refused", found["corruptions_refused"][OURS]["mean"] >= 0.99),
    ]
    for name, counts in found["permitted"].items():
        if name in DECIDABLE:
            fewer = counts[OURS] < counts[NEMO] or counts[OURS] == counts[NEMO] == 0
            bars.append((f"{name}: as many permitted calls refused as by the comparer", fewer))
    return [name for name, good in bars if not good]


def shown(share) -> str:
    estimate = Estimate(**share)
    bounds = "" if estimate.low is None or estimate.high is None else f" [{estimate.low:.4f}, {estimate.high:.4f}]"
    return f"{estimate.mean:.4f}{bounds} (n={estimate.n}, {estimate.clusters} cases)"


def show(found) -> None:
    accepted = ", ".join(f"{name} {count}" for name, count in found["gold_accepted"].items())
    print(f"gold accepted, of {found['cases']}: {accepted}")
    for title in ("corruptions_refused", "agreement_with_bfcl"):
        for name, share in found[title].items():
            print(f"{title.replace('_', ' ')}: {name:<22} {shown(share)}")
    (both, ours), (theirs, none) = found["accepted_by_us_and_bfcl"]
    print(f"accepted by {OURS} and BFCL {both}, only by {OURS} {ours}, only by BFCL {theirs}, by none {none}")
    for title, whys in (("decidable", DECIDABLE), ("undecidable", UNDECIDABLE)):
        for name, share in found[f"permitted_{title}"].items():
            print(f"permitted refused, {title}: {name:<22} {shown(share)}")
        print(f"\n| permitted, {title} | n | {OURS} refuses | {NEMO} refuses | why |\n|---|---|---|---|---|")
        for name, counts in found["permitted"].items():
            if name in whys:
                print(f"| {name} | {counts['n']} | {counts[OURS]} | {counts[NEMO]} | {whys[name]} |")
        print()
    print(f"| corruption | n | {OURS} accepts | {NEMO} accepts |\n|---|---|---|---|")
    for name, counts in found["corruptions"].items():
        n = counts["n"]
        print(f"| {name} | {n} | {n - counts[OURS]} | {n - counts[NEMO]} |")
    print(f"\nmissed: {'; '.join(found['missed']) or 'nothing'}")


if __name__ == "__main__":
    sys.exit(main())
