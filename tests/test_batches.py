"""Batches by trajectory: the cap holds, every epoch is whole, runs stay together, and nothing depends on the past."""

from __future__ import annotations

from collections import Counter
from itertools import chain, count, islice, repeat

from hypothesis import given
from hypothesis import strategies as st

from pivotrl.batches import TrainingData, drawn_by_weight, grouped, in_runs
from pivotrl.types import CandidateRow

SIZES = st.lists(st.integers(1, 9), min_size=1, max_size=8)


def candidates(sizes):
    """So many candidates of each trajectory, and the trajectory of each."""
    return {f"t{number}#{turn}": f"t{number}" for number, size in enumerate(sizes) for turn in range(size)}


def batches(trajectories, size, cap, weights=None):
    names = sorted(trajectories)
    orders = (
        in_runs(drawn_by_weight(names, weights) if weights else names, trajectories, cap, f"seed/{epoch}")
        for epoch in count()
    )
    return grouped(orders, trajectories, size, cap)


@given(SIZES, st.integers(1, 12), st.integers(1, 5))
def test_every_epoch_is_whole_and_no_batch_above_the_cap(sizes, size, cap):
    trajectories = candidates(sizes)
    size = min(size, len(trajectories))
    drawn = list(islice(batches(trajectories, size, cap), 4 * len(trajectories)))
    for batch in drawn:
        assert 1 <= len(batch) <= size
        assert len(set(batch)) == len(batch)
        assert max(Counter(trajectories[name] for name in batch).values()) <= cap
    counts = Counter(chain.from_iterable(drawn))
    assert max(counts.values()) - min(counts[name] for name in trajectories) <= 1, "an epoch began before another ended"


@given(SIZES, st.integers(1, 12), st.integers(1, 5))
def test_a_batch_is_short_only_where_the_cap_leaves_no_more(sizes, size, cap):
    trajectories = candidates(sizes)
    size = min(size, len(trajectories))
    seen: Counter[str] = Counter()
    for batch in islice(batches(trajectories, size, cap), 3 * len(trajectories)):
        seen.update(batch)
        if len(batch) < size:
            behind = [name for name in trajectories if seen[name] == min(seen[key] for key in trajectories)]
            full = Counter(trajectories[name] for name in batch)
            assert all(name in batch or full[trajectories[name]] == cap for name in behind)


@given(SIZES, st.integers(1, 5), st.text(max_size=3))
def test_runs_are_the_same_draws_together(sizes, cap, key):
    trajectories = candidates(sizes)
    order = in_runs(sorted(trajectories), trajectories, cap, key)
    assert sorted(order) == sorted(trajectories)
    runs = sum(
        a != b for a, b in zip([None, *map(trajectories.get, order)], map(trajectories.get, order), strict=False)
    )
    assert runs <= sum(-(-size // cap) for size in sizes)


def test_trajectories_come_together_and_shuffled():
    """Of 30 trajectories with 6 candidates each, batches of 16 hold 4 or 5 trajectories, with a cap of 1 all differ."""
    trajectories = candidates([6] * 30)
    held = [len({trajectories[name] for name in batch}) for batch in islice(batches(trajectories, 16, 4), 40)]
    assert sum(held) / len(held) < 6.5
    assert all(len({trajectories[n] for n in batch}) == 16 for batch in islice(batches(trajectories, 16, 1), 40))
    one, other = (in_runs(sorted(trajectories), trajectories, 4, key) for key in ("seed/0", "seed/1"))
    assert one != other


def test_weights_count():
    """A weight of 3 is drawn three times as often, never twice in a batch."""
    trajectories = candidates([4] * 6)
    weights = dict(zip(sorted(trajectories), chain([3.0], repeat(1.0)), strict=False))
    drawn = list(islice(batches(trajectories, 8, 4, weights), 78))
    counts = Counter(chain.from_iterable(drawn))
    heavy = counts.pop("t0#0")
    assert 2.5 < heavy / (sum(counts.values()) / len(counts)) < 3.5
    assert all(len(set(batch)) == len(batch) for batch in drawn)


def test_a_batch_is_of_its_seed_whatever_was_drawn_before():
    names = [f"t{number}@1" for number in range(9)]
    rows = [
        CandidateRow(id=name, trajectory_id=name, turn=1, depth=0, kind="call", tools=(), split="train", group=name)
        for name in names
    ]
    data, fresh = (TrainingData(store=None, rows=rows, left_out={}, chat=None) for _ in range(2))
    first = data._plain(0, 9, seed=1)
    assert data._plain(0, 9, seed=2) == fresh._plain(0, 9, seed=2) != first
