"""How often `shell` agrees with people on shell commands, beside what others use, on the same rows in the same run.

    python benchmarks/shell_judgements.py FILE [--json]

FILE is JSON Lines: `prediction`, `references` (a list), `correct`, and `description` (or `id`), which says what rows
belong to one question. A prediction is accepted if it is equivalent to any reference. Precision and recall have 95%
intervals clustered by question. The halves are those of the questions, every other one; the rules were written against
the first, on top of what is known of the shell.
With --json the last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path

from pivotrl.metrics import clustered_mean
from pivotrl.verifiers.shell import ShellVerifier

THRESHOLDS = (1.0, 0.95, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)
SHELL = ShellVerifier()


@dataclass(frozen=True, slots=True)
class Row:
    """One judged prediction and its scores."""

    question: str
    half: str
    correct: bool
    scores: dict[str, float]


def word_overlap(a: str, b: str) -> float:
    """NeMo Gym's similarity: shared words by all words of both, so that 0.5 is the most; single words must be equal."""
    left, right = a.lower().split(), b.lower().split()
    if len(left) < 2 or len(right) < 2:
        return float(a == b)
    return (Counter(left) & Counter(right)).total() / (len(left) + len(right))


SIMILARITIES = {
    "shell": lambda reference, prediction: SHELL.compare(reference, prediction).score,
    "strict": lambda reference, prediction: float(reference == prediction),
    "word_overlap": word_overlap,
    "sequence_matcher": lambda reference, prediction: SequenceMatcher(
        None, reference[:2000], prediction[:2000]
    ).ratio(),
    "first_word": lambda reference, prediction: float(reference.split()[:1] == prediction.split()[:1]),
}
PEERS = (
    *(("strict", 1.0), ("word_overlap", 0.1), ("word_overlap", 0.3)),
    *(("sequence_matcher", 0.4), ("sequence_matcher", 0.8), ("first_word", 1.0)),
)


def read(path: Path) -> tuple[list[Row], dict[str, float]]:
    """The rows with every similarity's best score, and the CPU seconds that each similarity took."""
    try:
        records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        kept = [(r.get("description", r.get("id")), r["references"], r["prediction"], r["correct"]) for r in records]
    except (OSError, ValueError, KeyError, AttributeError) as error:
        sys.exit(f"{path}: {type(error).__name__}: {error}; a row has prediction, references, correct, description")
    halves = {
        question: ("first", "second")[at % 2] for at, question in enumerate(dict.fromkeys(row[0] for row in kept))
    }
    scores: list[dict[str, float]] = [{} for _ in kept]
    seconds: dict[str, float] = {}
    for name, similarity in SIMILARITIES.items():
        start = time.process_time()
        for at, (_, references, prediction, _) in enumerate(kept):
            scores[at][name] = max((similarity(one, prediction) for one in references), default=0.0)
        seconds[name] = time.process_time() - start
    rows = [
        Row(question=str(question), half=halves[question], correct=bool(correct), scores=scored)
        for (question, _, _, correct), scored in zip(kept, scores, strict=True)
    ]
    return rows, seconds


def measured(rows: list[Row], name: str, threshold: float) -> dict[str, object]:
    """Precision, recall and the share of wrong ones that are accepted; None where there is nothing to divide by."""
    accepted = [row.scores[name] >= threshold for row in rows]
    chosen = [(float(row.correct), row.question) for row, yes in zip(rows, accepted, strict=True) if yes]
    right = [(float(yes), row.question) for row, yes in zip(rows, accepted, strict=True) if row.correct]
    wrong = [(float(yes), row.question) for row, yes in zip(rows, accepted, strict=True) if not row.correct]
    found: dict[str, object] = {"verifier": name, "threshold": threshold, "accepted": len(chosen)}
    for key, pairs in (("precision", chosen), ("recall", right), ("false_accept", wrong)):
        estimate = clustered_mean(*zip(*pairs, strict=True), bounds=(0.0, 1.0)) if pairs else None
        found[key] = None if estimate is None else estimate.mean
        found[f"{key}_95"] = None if estimate is None else [estimate.low, estimate.high]
    return found


def line(found: dict[str, object]) -> str:
    parts = [f"{found['verifier']:<17}{found['threshold']:>5}{found['accepted']:>7}"]
    for key in ("precision", "recall", "false_accept"):
        value, interval = found[key], found[f"{key}_95"]
        known = interval is not None and None not in interval
        shown = "undefined" if value is None else f"{value:.3f}"
        parts.append(f"{shown + (' [{:.3f}, {:.3f}]'.format(*interval) if known else ''):>22}")
    return "  ".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description="precision and recall of shell verifiers on human judgements")
    parser.add_argument("file", type=Path)
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    options = parser.parse_args()
    rows, seconds = read(options.file)
    if not rows:
        sys.exit(f"{options.file}: no rows")
    curve = [measured(rows, "shell", threshold) for threshold in THRESHOLDS]
    peers = [measured(rows, name, threshold) for name, threshold in PEERS]
    chosen = measured(rows, "shell", SHELL.threshold)
    halves = {
        half: measured(part, "shell", SHELL.threshold) | {"n": len(part)}
        for half in ("first", "second")
        if (part := [row for row in rows if row.half == half])
    }
    count = {
        "n": len(rows),
        "right": sum(row.correct for row in rows),
        "questions": len({row.question for row in rows}),
        "verdicts_per_second": round(len(rows) / seconds["shell"]),
    }
    print(", ".join(f"{key} {value}" for key, value in count.items()))
    print(f"{'verifier':<17}{'from':>5}{'taken':>7}  {'precision':>22}  {'recall':>22}  {'false accepts':>22}")
    for found in (*curve, *peers):
        print(line(found))
    for half, found in halves.items():
        print(f"{half} half of the questions, n={found['n']}:\n{line(found)}")
    if options.json:
        result = {**count, "default": chosen, "curve": curve, "peers": peers, "halves": halves}
        print(json.dumps(result, allow_nan=False))


if __name__ == "__main__":
    main()
