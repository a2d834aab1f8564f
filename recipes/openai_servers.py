"""For recipes/openai_servers.sh: a reward that a model earns which can do nothing else, and a comparison of replies.

    python recipes/openai_servers.py RUN NAME

prints one JSON object: for traits of the sampled texts, which tell a wrong template, temperature, token limit or stop
token, the mean of each policy of the evaluation NAME, and the paired difference from the first one over the same states
with its 95% interval, clustered by task. Truncated texts take part.
"""

from __future__ import annotations

import json
import re
import sys
from collections import defaultdict
from pathlib import Path
from statistics import fmean
from typing import Any

from pivotrl.metrics import clustered_mean
from pivotrl.types import Action, Candidate

TRAITS = {
    "ended": lambda one: one["finish_reason"] == "stop",
    "digit": lambda one: bool(re.search("[0-9]", one["text"])),
    "line_break": lambda one: "\n" in one["text"].strip(),
    "comma": lambda one: "," in one["text"],
}


def brief(candidate: Candidate, action: Action) -> bool:
    """Accepts the demonstration, and replies of at most 30 words; truncated ones are wrong in any case."""
    return action == candidate.demonstration or len((action.text or "").split()) <= 30


def compare(run: Path, name: str) -> dict[str, Any]:
    """The traits by policy, in the order of the evaluation."""
    groups = {row["id"]: row["group"] for row in _lines([run / "candidates.jsonl"])}
    folder = run / "eval" / name
    policies = [one["policy"] for one in json.loads((folder / "result.json").read_text())["scores"]]
    texts = [_texts(folder, policy) for policy in policies]
    both = sorted(set.intersection(*map(set, texts)))
    found: dict[str, Any] = {
        "policies": policies,
        "states": len(both),
        "tasks": len({groups[state] for state in both}),
        "rollouts": [sum(len(one[state]) for state in both) for one in texts],
    }
    for trait, holds in TRAITS.items():
        means = [[fmean(map(holds, one[state])) for state in both] for one in texts]
        found[trait] = {"means": list(map(fmean, means)), "differences": []}
        for other in means[1:]:
            pairs = [b - a for a, b in zip(means[0], other, strict=True)]
            change = clustered_mean(pairs, [groups[state] for state in both])
            found[trait]["differences"].append([change.mean, change.low, change.high])
    return found


def _texts(folder: Path, policy: str) -> dict[str, list[Any]]:
    """The completions that came, by state."""
    texts = defaultdict(list)
    for row in _lines(folder.glob(f"policies/{policy}-*/rollouts/*.jsonl")):
        if row["completion"]["finish_reason"] != "error":
            texts[row["candidate_id"]].append(row["completion"])
    return texts


def _lines(paths: Any) -> Any:
    return (json.loads(line) for path in sorted(paths) for line in path.open())


if __name__ == "__main__":
    print(json.dumps(compare(Path(sys.argv[1]), sys.argv[2])))
