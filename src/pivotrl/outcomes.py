"""What a policy scored, item by item: the common ground of our evaluations and of other harnesses' result files.

An item is a task, a state or a question; its rewards are those of its trials. `pass^k` is the chance that k trials all
succeed, the mean over tasks of C(c, k) / C(n, k) for c successes in n trials (tau-bench, arXiv 2406.12045, section 3).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pivotrl.metrics import clustered_mean
from pivotrl.types import Estimate, Shared

ITEMS_FILE = "items.jsonl"
_SUCCESS = 1.0 - 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemScore:
    """A line of `items.jsonl`."""

    policy: Shared
    suite: Shared
    """The environment, or `candidates`; elsewhere what its harness calls it."""
    item: str
    cluster: str
    """Items of one cluster may be correlated: the task that a state comes from."""
    rewards: tuple[float, ...]
    """Of its scored trials, at least one."""

    @property
    def mean(self) -> float:
        return math.fsum(self.rewards) / len(self.rewards)


def item_scores(policy: str, scored: Iterable[tuple[str, str, float]]) -> list[ItemScore]:
    """Of (suite, item, reward) of every scored trial; each item is a cluster of its own."""
    by_item: dict[tuple[str, str], list[float]] = {}
    for suite, item, reward in scored:
        by_item.setdefault((suite, item), []).append(reward)
    return [
        ItemScore(policy=policy, suite=suite, item=item, cluster=item, rewards=tuple(rewards))
        for (suite, item), rewards in by_item.items()
    ]


def pass_hat(items: Sequence[ItemScore]) -> tuple[Estimate, ...]:
    """pass^1, pass^2, ... as far as every item has trials; a trial succeeds with full reward."""
    seen = [(sum(reward >= _SUCCESS for reward in item.rewards), len(item.rewards)) for item in items]
    clusters = [item.cluster for item in items]
    return tuple(
        clustered_mean([math.comb(c, k) / math.comb(n, k) for c, n in seen], clusters, (0.0, 1.0))
        for k in range(1, min((n for _, n in seen), default=0) + 1)
    )
