"""Records: a sequence that lies on disk is the list that one would read."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pivotrl.errors import InputError, MissingError
from pivotrl.records import records
from pivotrl.storage import write_jsonl
from pivotrl.types import Pivot

TEXTS = st.lists(st.text(max_size=20), max_size=12)


def pivots(texts: list[str]) -> list[Pivot]:
    return [Pivot(candidate_id=text, profile="base", weight=1.5) for text in texts]


@given(TEXTS, st.slices(12), st.integers(0, 3))
def test_records_are_the_list(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], part: slice, longest: int
) -> None:
    path, expected = tmp_path_factory.mktemp("records") / "pivots.jsonl", pivots(texts)
    write_jsonl(path, expected)
    found, short = records(path, Pivot), records(path, Pivot, kept=lambda one: len(one.candidate_id) <= longest)
    write_jsonl(path, pivots(["another file"]))  # what was opened stays
    assert [*found] == expected == [found[place] for place in range(-len(found), 0)]
    assert [*found[part]] == expected[part]
    assert [*found[part][::-1]] == expected[part][::-1]
    order = sorted(range(len(expected)), key=lambda place: texts[place])
    assert [*found.at(order)] == [expected[place] for place in order]
    assert [*short] == [one for one in expected if len(one.candidate_id) <= longest]
    assert bool(found) == bool(expected)
    with pytest.raises(IndexError):
        found[len(found)]


def test_some_records_are_left_out_as_they_are_read(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "p.jsonl", pivots(["a", "bb", "c"]))
    short = records(tmp_path / "p.jsonl", Pivot, kept=lambda one: len(one.candidate_id) == 1)
    assert [one.candidate_id for one in short] == ["a", "c"]


def test_a_damaged_line_is_told_at_once(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "p.jsonl", pivots(["a"]))
    with (tmp_path / "p.jsonl").open("a") as file:
        file.write('{"candidate_id": 3}\n')
    with pytest.raises(InputError, match=r"p.jsonl:2: candidate_id"):
        records(tmp_path / "p.jsonl", Pivot)
    with pytest.raises(MissingError, match="run `pivotrl select` first"):
        records(tmp_path / "none.jsonl", Pivot, "select")


def test_a_file_that_is_cut_meanwhile_is_told(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "p.jsonl", pivots(["a", "b"]))
    found = records(tmp_path / "p.jsonl", Pivot)
    os.truncate(tmp_path / "p.jsonl", 20)
    with pytest.raises(InputError, match="changed while it was read"):
        found[1]


def test_a_file_is_open_as_long_as_records_of_it_are_there(tmp_path: Path) -> None:
    def opened() -> int:
        gc.collect()
        return len([*Path("/proc/self/fd").iterdir()])

    write_jsonl(tmp_path / "p.jsonl", pivots(["a", "b"]))
    before, found = opened(), records(tmp_path / "p.jsonl", Pivot)
    assert opened() == before + 1
    found = found[1:]
    assert [one.candidate_id for one in found] == ["b"]
    del found
    assert opened() == before
    with pytest.raises(InputError):
        records(write_bad(tmp_path), Pivot)
    assert opened() == before


def write_bad(folder: Path) -> Path:
    (folder / "bad.jsonl").write_text("[]\n")
    return folder / "bad.jsonl"
