"""Records that stay on disk: the lines of a JSON Lines file as a sequence, of which memory holds 12 bytes for each."""

from __future__ import annotations

import os
import weakref
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar, overload

from pivotrl.errors import InputError
from pivotrl.storage import decode, require_file

T = TypeVar("T")


class Records(Sequence[T]):
    """Some records of a file, in order; each is read when it is asked for."""

    def __init__(self, read: Callable[[int, int], T], starts: array[int], sizes: array[int]) -> None:
        self._read, self._starts, self._sizes = read, starts, sizes

    def __len__(self) -> int:
        return len(self._starts)

    def __iter__(self) -> Iterator[T]:
        return map(self._read, self._starts, self._sizes)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Records[T]: ...
    def __getitem__(self, index: int | slice) -> T | Records[T]:
        if isinstance(index, slice):
            return Records(self._read, self._starts[index], self._sizes[index])
        return self._read(self._starts[index], self._sizes[index])

    def at(self, places: Iterable[int]) -> Records[T]:
        """Those at these places, in their order."""
        places = array("Q", places)
        starts = array("Q", map(self._starts.__getitem__, places))
        sizes = array("I", map(self._sizes.__getitem__, places))
        return Records(self._read, starts, sizes)


def records(path: Path, type_: type[T], made_by: str = "", kept: Callable[[T], bool] = lambda _: True) -> Records[T]:
    """The validated records of one of our own JSON Lines files, as it is now: another may take its place.

    Raises MissingError (naming the command that makes the file) or InputError (naming line and field).
    """
    require_file(path, made_by)
    file = os.open(path, os.O_RDONLY)

    def read(start: int, size: int) -> T:
        try:
            return decode(os.pread(file, size, start), type_, str(path))
        except InputError:
            raise InputError(f"{path}: was changed while it was read; restore it, and run the command again") from None

    weakref.finalize(read, os.close, file)
    starts, sizes, start = array("Q"), array("I"), 0
    with open(file, "rb", closefd=False) as lines:
        for number, line in enumerate(lines, start=1):
            if kept(decode(line, type_, f"{path}:{number}")):
                starts.append(start)
                sizes.append(len(line))
            start += len(line)
    return Records(read, starts, sizes)
