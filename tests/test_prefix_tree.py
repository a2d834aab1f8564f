"""The packed tree: against brute force on random sequences, at its limits, at size, and through a model."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pivotrl.errors import InputError
from pivotrl.policies.forward import cache_name
from pivotrl.prefix_tree import build_tree, plan_walk
from tiny import random_model


@st.composite
def families(draw):
    """Sequences with much in common: cut from one trunk, rewritten from some place on, continued, repeated."""
    ids = st.integers(0, 2)
    trunk = draw(st.lists(ids, min_size=1, max_size=12))
    sequences = []
    for _ in range(draw(st.integers(0, 8))):
        cut = draw(st.integers(0, len(trunk)))
        sequence = trunk[:cut] + draw(st.lists(ids, min_size=0 if cut else 1, max_size=4))
        sequences += [sequence] * draw(st.integers(1, 2))
    return draw(st.permutations(sequences))


def prefixes_of(sequences):
    return {tuple(sequence[:end]) for sequence in sequences for end in range(1, len(sequence) + 1)}


def prefix_at(tree, position):
    """The ids from the first token to a packed position, by walking up from parent to parent."""
    ids = []
    while position >= 0:
        ids.append(int(tree.ids_N[position]))
        segment = max(s for s, start in enumerate(tree.start_S) if start <= position)
        inside = position > tree.start_S[segment]
        parent = tree.parent_S[segment]
        position = position - 1 if inside else (tree.end_S[parent] - 1 if parent >= 0 else -1)
    return tuple(ids[::-1])


@given(families())
def test_unpacking_gives_the_sequences_back(sequences):
    tree = build_tree(sequences)
    assert [tree.ids_N[tree.positions(index)].tolist() for index in range(len(sequences))] == sequences
    assert tree.length_L.tolist() == [len(sequence) for sequence in sequences]
    assert tree.total == sum(map(len, sequences))


@given(families())
def test_each_distinct_prefix_is_one_token_at_its_depth(sequences):
    tree = build_tree(sequences)
    held = [prefix_at(tree, position) for position in range(len(tree.ids_N))]
    assert len(held) == len(set(held))
    assert set(held) == prefixes_of(sequences)
    assert tree.depth_N.tolist() == [len(prefix) - 1 for prefix in held]


@given(families())
def test_a_token_sees_exactly_its_prefix(sequences):
    tree = build_tree(sequences)
    held = [prefix_at(tree, position) for position in range(len(tree.ids_N))]
    positions_N = np.arange(len(held))
    seen_NN = tree.sees(positions_N[:, None], positions_N[None, :])
    for query, key in product(range(len(held)), repeat=2):
        assert seen_NN[query, key] == (held[query][: len(held[key])] == held[key])
    for position in range(len(held)):
        assert tree.lineage(position).tolist() == np.flatnonzero(seen_NN[position]).tolist()


@given(families(), st.data())
def test_a_range_sees_itself_and_the_lineage_of_its_first_token(sequences, data):
    """So any range of the packed order can be computed from a cache of one path."""
    tree = build_tree(sequences)
    if not sequences:
        return
    start = data.draw(st.integers(0, len(tree.ids_N) - 1))
    end = data.draw(st.integers(start + 1, len(tree.ids_N)))
    known = {*tree.lineage(start).tolist(), *range(start, end)}
    assert all(known.issuperset(tree.lineage(position).tolist()) for position in range(start, end))


@given(families())
def test_positions_hold_the_prefix_up_to_each_token(sequences):
    tree = build_tree(sequences)
    for index, sequence in enumerate(sequences):
        positions = tree.positions(index).tolist()
        held = [prefix_at(tree, position) for position in positions]
        assert held == [tuple(sequence[: at + 1]) for at in range(len(sequence))]


@given(families())
def test_segments_are_packed_depth_first_and_as_long_as_can_be(sequences):
    tree = build_tree(sequences)
    count = len(tree.start_S)
    assert tree.start_S.tolist() == [0, *tree.end_S[:-1].tolist()][:count]
    assert all(tree.start_S < tree.end_S)
    assert all(tree.parent_S < np.arange(count))
    below = [int(tree.leave_N[start] - start) for start in tree.start_S]
    for segment in range(count):
        children = np.flatnonzero(tree.parent_S == segment).tolist()
        assert segment in tree.leaf_L or len(children) > 1
        assert [below[child] for child in children] == sorted((below[child] for child in children), reverse=True)
        assert not children or children[0] == segment + 1
        assert below[segment] == tree.end_S[segment] - tree.start_S[segment] + sum(below[child] for child in children)


@given(families(), st.none() | st.integers(1, 5))
def test_a_walk_feeds_every_token_once_behind_its_own_prefix(sequences, most):
    tree = build_tree(sequences)
    cache: list[int] = []
    fed, ended, peak = [], [], 0
    for feed in plan_walk(tree, most):
        assert 0 <= feed.crop_to <= len(cache)
        assert 0 < feed.end - feed.start <= (most or len(tree.ids_N))
        cache = cache[: feed.crop_to] + list(range(feed.start, feed.end))
        fed += range(feed.start, feed.end)
        assert cache == tree.lineage(feed.end - 1).tolist()
        lengths = [len(sequences[index]) for index in feed.ends]
        assert lengths == sorted(lengths)
        for index, length in zip(feed.ends, lengths, strict=True):
            assert length > feed.crop_to
            assert tree.ids_N[cache[:length]].tolist() == sequences[index]
        ended += feed.ends
        peak = max(peak, len(cache))
    assert fed == list(range(len(tree.ids_N)))
    assert sorted(ended) == list(range(len(sequences)))
    assert peak == max(map(len, sequences), default=0)


def test_nothing_makes_an_empty_tree():
    tree = build_tree([])
    assert (len(tree.ids_N), tree.total) == (0, 0)
    assert plan_walk(tree) == plan_walk(tree, 3) == ()


def test_a_sequence_without_tokens_is_refused():
    with pytest.raises(InputError, match="sequence 1 has no tokens"):
        build_tree([[1], [], [2]])


def test_one_token():
    tree = build_tree([(7,)])
    assert (tree.ids_N.tolist(), tree.depth_N.tolist(), tree.leave_N.tolist()) == ([7], [0], [1])
    (feed,) = plan_walk(tree)
    assert (feed.crop_to, feed.start, feed.end, feed.ends) == (0, 0, 1, (0,))


def test_equal_sequences_share_one_leaf():
    tree = build_tree([[4, 5, 6]] * 3)
    assert (tree.ids_N.tolist(), tree.leaf_L.tolist(), tree.total) == ([4, 5, 6], [0, 0, 0], 9)


def test_sequences_that_share_nothing_are_roots():
    tree = build_tree([[1, 2], [2, 1], [3]])
    assert tree.parent_S.tolist() == [-1, -1, -1]
    assert [(feed.crop_to, feed.ends) for feed in plan_walk(tree)] == [(0, (0,)), (0, (1,)), (0, (2,))]


def test_a_trunk_is_fed_once_with_all_states_on_it():
    """States are prefixes of one another; one feed computes them all, the walk crops for the rewritten one only."""
    trunk = list(range(100, 120))
    tree = build_tree([trunk[:5], trunk, trunk[:12], [*trunk[:8], 1, 2]])
    feeds = [(feed.crop_to, feed.end - feed.start, feed.ends) for feed in plan_walk(tree)]
    assert feeds == [(0, 20, (0, 2, 1)), (8, 2, (3,))]
    assert [feed.ends for feed in plan_walk(tree, 10)] == [(0,), (2, 1), (3,)]
    assert tree.ids_N.tolist() == [*trunk, 1, 2]


def branches(trunk, candidates, samples, length, rng, vocabulary=50_000):
    cuts = np.linspace(0, len(trunk), candidates + 1).astype(int)[1:]
    draws = rng.integers(0, vocabulary, (candidates, samples, length))
    return [np.concatenate([trunk[:cut], draw]) for cut, group in zip(cuts, draws, strict=True) for draw in group]


def test_a_long_trunk_is_one_feed_by_chunks():
    rng = np.random.default_rng(0)
    sequences = branches(rng.integers(0, 50_000, 100_000), 16, 8, 64, rng)
    tree = build_tree(sequences)
    assert (len(tree.ids_N), tree.total) == (100_000 + 16 * 8 * 64, sum(map(len, sequences)))
    for index, sequence in enumerate(sequences):
        assert np.array_equal(tree.ids_N[tree.positions(index)], sequence)
    assert len(plan_walk(tree, 4096)) == 25 + 127


def test_many_nested_states_are_one_feed():
    trunk = np.arange(3000)
    tree = build_tree([trunk[:end] for end in range(1, 3001)])
    assert (len(tree.start_S), len(plan_walk(tree))) == (3000, 1)


def small_family(vocabulary, rng):
    trunk = rng.integers(0, vocabulary, 40)
    rewritten = np.concatenate([trunk[:15], rng.integers(0, vocabulary, 10)])
    nested, apart = branches(trunk, 3, 3, 6, rng, vocabulary), branches(rewritten, 1, 2, 4, rng, vocabulary)
    return [*nested, *apart, trunk[:9], trunk[:9], trunk]


@pytest.fixture(scope="module")
def in_full():
    """A model, sequences, their tree, and the logits of each sequence forwarded by itself."""
    model = random_model("llama")
    sequences = small_family(model.config.vocab_size, np.random.default_rng(1))
    with torch.inference_mode():
        logits = [model(torch.as_tensor(sequence)[None]).logits[0] for sequence in sequences]
    return model, build_tree(sequences), logits


def same(tree, logits_NV, logits):
    return all(
        torch.allclose(logits_NV[torch.as_tensor(tree.positions(index))], expected, atol=1e-4, rtol=0)
        for index, expected in enumerate(logits)
    )


@pytest.mark.parametrize("most", [None, 7])
@torch.inference_mode()
def test_walking_the_plan_with_a_cropped_cache_gives_the_logits_of_plain_forward_passes(in_full, most):
    model, tree, logits = in_full
    name, ids_N, cache, parts = cache_name(model), torch.as_tensor(tree.ids_N), None, []
    for feed in plan_walk(tree, most):
        if cache is not None and feed.crop_to < cache.get_seq_length():
            cache.crop(feed.crop_to - cache.get_seq_length())
        cache = cache if feed.crop_to else None
        output = model(ids_N[None, feed.start : feed.end], use_cache=True, **{name: cache})
        cache = getattr(output, name)
        parts.append(output.logits[0])
    assert same(tree, torch.cat(parts), logits)


@torch.inference_mode()
def test_one_packed_forward_pass_gives_the_logits_of_plain_forward_passes(in_full):
    model, tree, logits = in_full
    positions_N = np.arange(len(tree.ids_N))
    seen_NN = torch.as_tensor(tree.sees(positions_N[:, None], positions_N[None, :]))
    mask_NN = torch.zeros(seen_NN.shape).masked_fill(~seen_NN, torch.finfo(torch.float32).min)
    output = model(
        torch.as_tensor(tree.ids_N)[None],
        attention_mask=mask_NN[None, None],
        position_ids=torch.as_tensor(tree.depth_N)[None],
        use_cache=False,
    )
    assert same(tree, output.logits[0], logits)
