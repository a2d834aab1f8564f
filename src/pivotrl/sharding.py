"""Shards: N processes on one disk sample a round of a profile, each its share of the units into files of its own.

A share is a stretch of the planned order that follows from the plan and N alone; so the files of all shares, one behind
the other, are the part file of one process. They are put together once all are whole. A round is either in one part
file or in the files of one N. Who writes a part file holds the folder's lock; shards share it, and have one each.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Final

from pivotrl.errors import BusyError, ConfigError
from pivotrl.protocols import Verifier
from pivotrl.rollouts import SHARE_SECONDS, Place, RolloutStore, Sampling, collect
from pivotrl.storage import FileLock, complete_units, write_atomic

_BLOCK: Final = 1 << 20
_SHOWN: Final = 8


@dataclass(frozen=True, slots=True)
class Shard:
    """Number I of N, from 1."""

    number: int
    count: int

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    @classmethod
    def parse(cls, text: str) -> Shard:
        """`I/N`. Raises ConfigError."""
        found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
        if found is None or not 1 <= int(found[1]) <= int(found[2]):
            raise ConfigError(f"shard {text!r}: write I/N, I from 1 to N, such as 2/8")
        return cls(int(found[1]), int(found[2]))


def shares_of(store: RolloutStore, count: int) -> list[RolloutStore]:
    """The stores of N shares of a round."""
    ends = [0, *accumulate(store.plan.sizes)]
    ends = [ends[(len(ends) - 1) * number // count] for number in range(count + 1)]
    return [
        RolloutStore(store.folder, replace(store.plan, rows=store.plan.rows[first:last], share=f".{number}-of-{count}"))
        for number, (first, last) in enumerate(pairwise(ends), start=1)
    ]


def is_whole(store: RolloutStore, verifier: Verifier) -> bool:
    """Whether all of a round, or of a share, is sampled and has verdicts, even such as may come out otherwise."""
    whole, paths = len(store.plan.sizes), (store.rollouts, store.verdicts(verifier))
    return all(complete_units(path, (size * store.plan.n for size in store.plan.sizes))[0] == whole for path in paths)


def collect_round(place: Place, sampling: Sampling) -> None:
    """`collect`, going on with what shards have left: their shares are finished one after the other, and merged."""
    store = place.store
    count = _begun(store)
    if count and not _has_units(store):
        for share in shares_of(store, count):
            collect(replace(place, store=share), sampling)
        _merge(store, count, sampling.verifier)
    collect(place, sampling)
    tidy(store)


def collect_share(place: Place, sampling: Sampling, shard: Shard) -> str:
    """Sample a shard's share of a round; whoever finds all shares whole merges them.

    Returns "" when that was done, else what has to happen first, in a line. Raises ConfigError where the round was
    begun otherwise, BusyError where somebody else writes this share or all of the round.
    """
    store = place.store
    share = shares_of(store, shard.count)[shard.number - 1]
    folder = FileLock(store.folder / ".lock", shared=True, wait=SHARE_SECONDS)
    with folder, FileLock(store.folder / ".shards.lock", wait=SHARE_SECONDS):
        if _has_units(store) and is_whole(store, sampling.verifier):
            return ""
        _check_begun(store, shard)
        share.rollouts.parent.mkdir(parents=True, exist_ok=True)
        share.rollouts.touch()
    collect(replace(place, store=share), sampling)
    done = f"shard {shard}: its share of round {store.plan.part + 1} is done"
    missing = _missing(store, shard.count, sampling.verifier)
    if missing:
        numbers = ", ".join(map(str, missing[:_SHOWN])) + ", ..." * (len(missing) > _SHOWN)
        return f"{done}; run the other shards ({numbers} of {shard.count}): the last one merges"
    try:
        _merge(store, shard.count, sampling.verifier)
    except BusyError:
        return f"{done}; another shard merges the round"
    return ""


def tidy(store: RolloutStore) -> None:
    """Delete what a kill left of shares that were merged, unless somebody else is at work."""
    if _begun(store):
        with suppress(BusyError), FileLock(store.folder / ".lock"):
            _discard(store)


def _check_begun(store: RolloutStore, shard: Shard) -> None:
    where = f"{store.folder}: round {store.plan.part + 1} was begun"
    if _has_units(store):
        raise ConfigError(f"{where} by one process; go on without shards and workers until it is finished")
    before = _begun(store)
    if before not in (0, shard.count):
        raise ConfigError(
            f"{where} with {before} shards; use --shard I/{before} (or --workers {before}), or neither: that finishes "
            "and merges their shares"
        )


def _has_units(store: RolloutStore) -> bool:
    return store.complete_units(store.rollouts, 1)[0] > 0


def _files(store: RolloutStore) -> list[Path]:
    """Those of all shares."""
    name = f"{store.rollouts.stem}.*-of-*.jsonl"
    return [*store.rollouts.parent.glob(name), *store.folder.glob(f"verdicts/*/{name}")]


def _begun(store: RolloutStore) -> int:
    """Into how many shares the round was divided; 0: it was not."""
    return next((int(path.stem.rpartition("-")[2]) for path in _files(store)), 0)


def _missing(store: RolloutStore, count: int, verifier: Verifier) -> list[int]:
    """Numbers of the shares that are not whole; none once the round is merged."""
    numbered = enumerate(shares_of(store, count), start=1)
    missing = [number for number, share in numbered if not is_whole(share, verifier)]
    return missing if missing and not is_whole(store, verifier) else []


def _merge(store: RolloutStore, count: int, verifier: Verifier) -> None:
    """Put shares together that were all found whole, unless somebody did so since. Raises BusyError."""
    with FileLock(store.folder / ".lock"):
        if is_whole(store, verifier):
            return
        missing = _missing(store, count, verifier)
        assert not missing, f"shares {missing} were whole a moment ago"
        shares = shares_of(store, count)
        write_atomic(store.verdicts(verifier), _blocks([share.verdicts(verifier) for share in shares]))
        write_atomic(store.rollouts, _blocks([share.rollouts for share in shares]))
        _discard(store)


def _blocks(paths: Sequence[Path]) -> Iterator[bytes]:
    for path in filter(Path.exists, paths):  # a share of no unit may never have been begun
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                yield block


def _discard(store: RolloutStore) -> None:
    """Delete what was merged, by a caller that holds the folder's lock."""
    for path in (*_files(store), *store.folder.glob(".*-of-*.lock")):
        path.unlink(missing_ok=True)
