"""Token sequences as one packed tree: what they share from their first token on is held, and computed, once.

Used by sampling (the states of a trajectory, one key-value cache) and by training (states with their actions). Sharing
is found on ids alone: where a template rewrites history, only what is really the same is shared.

The packed order is depth-first, parents before children and the child with most tokens below it first, so that a trunk
is contiguous. Two comparisons then say whether token q sees token k, that is, whether k is q or one of its ancestors:
`k <= q < leave_N[k]`. A window of W adds `depth_N[q] - depth_N[k] < W`. So all that the tokens of a range [a, b) see
lies in the range itself and in `lineage(a)`.

Shapes: _N unique tokens in packed order, _S segments in packed order, _L input sequences, _T tokens of one sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pivotrl.errors import InputError

Ints = NDArray[np.int64]

TRUNK_SHARE: Final = 0.8
"""Sequences are computed as one tree while the longest holds at least this part of its tokens."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PrefixTree:
    """A forest of segments: longest runs of tokens within which no sequence ends and none branches off.

    Segment s holds the packed positions start_S[s] <= n < end_S[s].
    """

    ids_N: Ints
    """One token for each distinct prefix of the sequences."""
    depth_N: Ints
    """Position of each token in every sequence that holds it."""
    leave_N: Ints
    """The first packed position after the subtree of each token."""
    start_S: Ints
    end_S: Ints
    parent_S: Ints
    """-1 for a segment that begins sequences."""
    leaf_L: Ints
    """The segment whose last token is the last one of each sequence; not always one without children."""
    length_L: Ints

    @property
    def total(self) -> int:
        """Tokens of all sequences."""
        return int(self.length_L.sum())

    def lineage(self, position: int) -> Ints:
        """Packed positions of a token's ancestors and, last, its own; in order of depth."""
        parts: list[Ints] = []
        segment, end = int(np.searchsorted(self.start_S, position, side="right")) - 1, position + 1
        while segment >= 0:
            parts.append(np.arange(self.start_S[segment], end))
            segment = int(self.parent_S[segment])
            end = int(self.end_S[segment])
        return np.concatenate(parts[::-1])

    def positions(self, sequence: int) -> Ints:
        """The packed position of each token of a sequence."""
        return self.lineage(int(self.end_S[self.leaf_L[sequence]]) - 1)

    def sees(self, queries: Ints, keys: Ints) -> NDArray[np.bool_]:
        """Whether each query is the key or below it; packed positions of any two shapes that broadcast."""
        return (keys <= queries) & (queries < self.leave_N[keys])


@dataclass(slots=True, eq=False)
class _Node:
    """A segment in the making; `ids_T` is a view of an input."""

    ids_T: Ints
    children: dict[int, _Node] = field(default_factory=dict)
    ends: list[int] = field(default_factory=list)
    size: int = 0  # tokens in it and below

    def split(self, at: int) -> None:
        """Keep the first `at` ids and give the others, with all that hangs on them, to an only child."""
        lower = _Node(self.ids_T[at:], self.children, self.ends)
        self.ids_T, self.children, self.ends = self.ids_T[:at], {int(lower.ids_T[0]): lower}, []


def build_tree(sequences: Sequence[Sequence[int] | Ints]) -> PrefixTree:
    """The tree of some sequences of token ids; equal ones share a leaf.

    Arrays of int64 are not copied on the way; a tuple of Python integers takes longer to convert than to insert.
    Raises InputError for a sequence without tokens.
    """
    arrays = [np.asarray(sequence, dtype=np.int64) for sequence in sequences]
    root = _Node(np.arange(0))
    # the longest first: a state is then found at the top of the trunk that it splits, not by a walk over all splits
    for index in sorted(range(len(arrays)), key=lambda index: -len(arrays[index])):
        if not len(arrays[index]):
            raise InputError(f"sequence {index} has no tokens; leave it out, or give it at least one")
        _insert(root, arrays[index]).ends.append(index)
    return _packed(_ordered(root), np.array([len(ids_T) for ids_T in arrays], dtype=np.int64))


def _insert(node: _Node, ids_T: Ints) -> _Node:
    """The node below this one at whose last id a sequence ends, made where it is missing."""
    while len(ids_T):
        node = node.children.setdefault(int(ids_T[0]), _Node(ids_T))
        most = min(len(node.ids_T), len(ids_T))
        differs_T = node.ids_T[:most] != ids_T[:most]
        shared = int(differs_T.argmax()) or most  # the first ids are equal: argmax 0 says that none differs
        if shared < len(node.ids_T):
            node.split(shared)
        ids_T = ids_T[shared:]
    return node


def _ordered(root: _Node) -> list[_Node]:
    """All nodes below the root in the packed order; of equally large children, the one inserted first."""
    nodes = _depth_first(root)
    for node in reversed(nodes):
        node.size = len(node.ids_T) + sum(child.size for child in node.children.values())
        node.children = dict(sorted(node.children.items(), key=lambda item: -item[1].size))
    return _depth_first(root)[1:]


def _depth_first(root: _Node) -> list[_Node]:
    found: list[_Node] = []
    waiting = [root]
    while waiting:
        found.append(waiting.pop())
        waiting += reversed(found[-1].children.values())
    return found


def _packed(nodes: Sequence[_Node], length_L: Ints) -> PrefixTree:
    lengths_S = np.array([len(node.ids_T) for node in nodes], dtype=np.int64)
    end_S = lengths_S.cumsum()
    start_S = end_S - lengths_S
    leave_S = start_S + np.array([node.size for node in nodes], dtype=np.int64)
    parent_S, top_S = np.full_like(start_S, -1), np.zeros_like(start_S)
    leaf_L = np.zeros_like(length_L)
    number = {node: index for index, node in enumerate(nodes)}
    for index, node in enumerate(nodes):
        leaf_L[node.ends] = index
        below = [number[child] for child in node.children.values()]
        parent_S[below] = index
        top_S[below] = top_S[index] + lengths_S[index]
    return PrefixTree(
        ids_N=np.concatenate([np.arange(0), *(node.ids_T for node in nodes)]),
        depth_N=np.arange(lengths_S.sum()) + np.repeat(top_S - start_S, lengths_S),
        leave_N=np.repeat(leave_S, lengths_S),
        start_S=start_S,
        end_S=end_S,
        parent_S=parent_S,
        leaf_L=leaf_L,
        length_L=length_L,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """One forward pass of a walk: packed positions start <= n < end, which follow one another in a sequence.

    Their depths begin at `crop_to`. Behind a cache that is cropped to so many tokens the ordinary causal mask is right;
    behind all that was fed before (`decoding.prefill_tree`) a mask has to hide the other branches.
    """

    crop_to: int
    start: int
    end: int
    ends: tuple[int, ...]
    """The sequences whose last token is fed, the shorter first."""


def plan_walk(tree: PrefixTree, most: int | None = None) -> tuple[Feed, ...]:
    """Every token once, in the packed order: a trunk in one feed, one for every branch, none of over `most` tokens."""
    step = most or max(1, len(tree.ids_N))
    order_L = tree.leaf_L.argsort(kind="stable")
    last_L = tree.end_S[tree.leaf_L[order_L]] - 1
    branches = np.flatnonzero(tree.parent_S[1:] != np.arange(len(tree.parent_S) - 1)) + 1
    feeds = []
    for begin, after in pairwise([0, *tree.start_S[branches].tolist(), len(tree.ids_N)]):
        for start in range(begin, after, step):
            end = min(after, start + step)
            ends = tuple(order_L[slice(*np.searchsorted(last_L, [start, end]))].tolist())
            feeds.append(Feed(crop_to=int(tree.depth_N[start]), start=start, end=end, ends=ends))
    return tuple(feeds)


def shared_trunks(sequences: Sequence[tuple[int, ...]]) -> tuple[list[list[int]], list[int]]:
    """(groups of sequences that are best forwarded as one tree, the indices of the others).

    In lexicographic order a sequence shares with those before it what it shares with the last of them.
    """
    groups: list[list[int]] = []
    unique = longest = 0
    for index in sorted(range(len(sequences)), key=sequences.__getitem__):
        sequence = sequences[index]
        added = len(sequence) - (shared_length(sequences[groups[-1][-1]], sequence) if groups else 0)
        if groups and max(longest, len(sequence)) >= TRUNK_SHARE * (unique + added):
            groups[-1].append(index)
            unique, longest = unique + added, max(longest, len(sequence))
        else:
            groups.append([index])
            unique = longest = len(sequence)
    alone = sorted(group[0] for group in groups if len(group) == 1)
    return [sorted(group) for group in groups if len(group) > 1], alone


def shared_length(one: Sequence[int], other: Sequence[int]) -> int:
    """How many ids both begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))
