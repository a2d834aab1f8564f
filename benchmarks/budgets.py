"""Profiling budgets on simulated states: what curtailed saves, what bayes finds with the same number of rollouts.

    python benchmarks/budgets.py [--states 4000] [--seeds 8] [--json]

65% of the states are uniform: a part is hopeless, the others are solved; at the rest p is spread. Shapes:
`plain` never, always, p uniform on [0, 1]; `hard` the same with p from Beta(0.7, 1.7); `soft` hopeless and solved p
from Beta(0.3, 30) and its mirror image, so that some hopeless states have p of 2 to 5%. The oracle knows p: a pivot is
a state with .05 <= p < lambda. Intervals are over seeds. One process; the last line with --json is one JSON object.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from pivotrl.budgets import Counts, Stopping, StoppingSettings, curtailed, fit_prior, worth_keeping
from pivotrl.metrics import GroupStatistics, clustered_mean

LAMBDA, LOW, MOST = 0.6, 0.05, 64
SHAPES = {"plain": (1.0, 1.0), "hard": (0.7, 1.7), "soft": (1.0, 1.0)}
HOPELESS = (0.15, 0.3, 0.5)
Row = dict[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--states", type=int, default=4000)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found: defaultdict[str, defaultdict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for shape in SHAPES:
        for hopeless in HOPELESS:
            for seed in range(options.seeds):
                for name, row in _compare(shape, hopeless, options.states, seed):
                    for key, value in row.items():
                        found[f"{shape} {hopeless:.0%} {name}"][key].append(value)
            _print(found, f"{shape} {hopeless:.0%} ", options.seeds)
    if options.json:
        print(json.dumps({name: {key: _mean(values) for key, values in row.items()} for name, row in found.items()}))


def _mean(values: list[float]) -> list[float | None]:
    """Mean, and the bounds of its interval."""
    estimate = clustered_mean(values, list(range(len(values))))
    return [None if one is None else round(one, 4) for one in (estimate.mean, estimate.low, estimate.high)]


def _print(found: dict[str, dict[str, list[float]]], start: str, seeds: int) -> None:
    for name, row in found.items():
        if name.startswith(start):
            cells = [f"{key} {np.mean(values):.3f} +- {_half(values):.3f}" for key, values in row.items()]
            print(f"{name:<36} " + "   ".join(cells), flush=True)


def _half(values: list[float]) -> float:
    mean, _, high = _mean(values)
    return float("nan") if high is None else high - mean


def _compare(shape: str, hopeless: float, states: int, seed: int) -> Iterator[tuple[str, Row]]:
    """Every method on the same states and the same outcomes."""
    rng = np.random.default_rng([seed, int(100 * hopeless), list(SHAPES).index(shape)])
    p = _states(rng, shape, hopeless, states)
    right = (rng.random((states, MOST)) < p[:, None]).cumsum(axis=1)
    sums = np.concatenate([np.zeros((states, 1), int), right], axis=1)
    for k in (8, 16):
        fixed = (sums[:, k] > 0) & (sums[:, k] / k < LAMBDA)
        yield f"fixed K={k}", _score(fixed, p)
        counts = Counts(sums[:, k].astype(float), np.full(states, float(k)))
        yield f"fixed K={k}, posterior", _score(_keep(counts, StoppingSettings()), p)
        for size in (1, 4) if shape == "plain" else (4,):
            keeps, taken = _curtailed(sums, k, size)
            different = int((keeps != fixed).sum())
            yield f"curtailed K={k} in rounds of {size}", {"different": different, "rollouts": float(taken.mean() / k)}
            counts, rounds = _bayes(sums, k, StoppingSettings(round_size=size, most=MOST))
            used = {"rollouts": float(counts.scored_M.mean() / k), "rounds": float(rounds)}
            yield f"bayes {k} in rounds of {size}", _score(_keep(counts, StoppingSettings()), p) | used


def _states(rng: np.random.Generator, shape: str, hopeless: float, states: int) -> np.ndarray:
    which, p = rng.random(states), rng.beta(*SHAPES[shape], states)
    never, noise = np.zeros(states), rng.beta(0.3, 30, states)
    if shape == "soft":
        never = noise
    return np.where(which < hopeless, never, np.where(which < 0.65, 1 - never, p))


def _score(keep: np.ndarray, p: np.ndarray) -> Row:
    pivot = (p >= LOW) & (p < LAMBDA)
    hits = (keep & pivot).sum()
    return {
        "recall": hits / pivot.sum(),
        "precision": hits / max(keep.sum(), 1),
        "F1": 2 * hits / (keep.sum() + pivot.sum()),
    }


def _keep(counts: Counts, settings: StoppingSettings) -> np.ndarray:
    return worth_keeping(counts, fit_prior(counts), settings) > settings.level


def _curtailed(sums: np.ndarray, k: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """(keep, rollouts taken) of every state."""
    table = {(s, n): _settled(s, n, k - n) for n in range(k + 1) for s in range(n + 1)}
    keep, taken = np.zeros(len(sums), dtype=bool), np.zeros(len(sums), dtype=int)
    for state, row in enumerate(sums):
        n = size
        while (word := table[int(row[n]), n]) is None:
            n += size
        keep[state], taken[state] = word, n
    return keep, taken


def _settled(successes: int, n: int, left: int) -> bool | None:
    mean = successes / n if n else None
    seen = GroupStatistics(n=n, mean=mean, variance=None if mean is None else mean * (1 - mean))
    return curtailed(seen, left, LAMBDA)


def _bayes(sums: np.ndarray, k: int, settings: StoppingSettings) -> tuple[Counts, int]:
    """(counts when the budget of k for each is spent, rounds)."""
    size, states = settings.round_size, np.arange(len(sums))
    taken, budget, rounds = np.full(len(sums), size), (k - size) * len(sums), 1
    while True:
        counts = Counts(sums[states, taken].astype(float), taken.astype(float))
        wanted, _ = Stopping(fit_prior(counts), settings).next_round(counts, budget)
        if not wanted:
            return counts, rounds
        taken[wanted] += size
        budget, rounds = budget - size * len(wanted), rounds + 1


if __name__ == "__main__":
    main()
