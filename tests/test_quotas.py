"""Quotas: every limit holds, nothing is left out without need, and what candidates have in common."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pivotrl.batches import drawn_by_weight
from pivotrl.errors import ConfigError
from pivotrl.quotas import Label, labels, parse_quotas, within
from pivotrl.types import Candidate, CandidateRow, Message, Source, ToolCall, Trajectory

MARKS = st.frozensets(st.builds(Label, st.sampled_from(["tool", "task"]), st.sampled_from("abc")), max_size=3)


@given(st.lists(MARKS, max_size=20), st.integers(1, 5), st.integers(1, 100))
def test_every_limit_holds_and_the_first_stays(marks: list[frozenset[Label]], most: int, share: int) -> None:
    order = [f"c{number}" for number in range(len(marks))]
    by_id = dict(zip(order, marks, strict=True))
    limits = parse_quotas([f"task={most}", f"tool={share}%"])
    kept = within(order, by_id, limits)
    counts = Counter(mark for key in kept for mark in by_id[key])
    assert all(count <= (most if mark.name == "task" else share / 100 * len(kept)) for mark, count in counts.items())
    assert {key for key in order if not by_id[key]} <= kept
    alone = parse_quotas([f"task={most}"])
    counts = Counter(mark for key in within(order, by_id, alone) for mark in by_id[key] if mark.name == "task")
    for key in set(order) - within(order, by_id, alone):
        assert any(counts[mark] == most for mark in by_id[key] if mark.name == "task"), "it would have fitted"


def test_the_best_stay() -> None:
    order = ["a", "b", "c", "d"]
    same = {key: frozenset({Label("task", "t")}) for key in order}
    assert within(order, same, parse_quotas(["task=2"])) == {"a", "b"}
    mixed = same | {"d": frozenset()}
    assert within(order, mixed, parse_quotas(["task=50%"])) == {"a", "d"}
    assert within(order, same, parse_quotas(["task=50%"])) == set()


@pytest.mark.parametrize(
    "text", ["message", "message=", "word=3", "task=0", "tool=0%", "tool=101%", "task=-1", "task=1.5"]
)
def test_what_is_no_quota(text: str) -> None:
    with pytest.raises(ConfigError, match="write NAME=NUMBER or NAME=SHARE%"):
        parse_quotas([text])


def candidate(order: str, greeting: str = "Cancel {0}, please", thanks: str | None = None) -> Candidate:
    call = ToolCall(name="cancel", arguments='{"order": "A1"}')
    messages = (
        Message(role="user", content=greeting.format(order)),
        Message(role="assistant", tool_calls=(call,)),
        Message(role="tool", content="ok"),
        *((Message(role="assistant", content=thanks),) if thanks else ()),
    )
    source = Source(file="f", format="f")
    return Candidate(trajectory=Trajectory(id="t", messages=messages, source=source, domain="desk"), turn=1)


def marks(one: Candidate) -> dict[str, str]:
    row = CandidateRow(
        id=one.id, trajectory_id="t", turn=1, depth=0, kind="call", tools=("cancel",), split="train", group="g"
    )
    return {label.name: label.value for label in labels(row, one)}


def test_labels() -> None:
    found = marks(candidate("A1", thanks="Done."))
    assert found.keys() == {"middle", "domain", "tool", "task", "depth", "alike"}
    assert (found["domain"], found["tool"], found["task"], found["depth"]) == ("desk", "cancel", "g", "0")
    last = marks(candidate("A1"))
    assert "middle" not in last
    assert last["alike"] == found["alike"] == marks(candidate("A1", "CANCEL  {0}, please"))["alike"]
    assert last["alike"] == marks(candidate("A2"))["alike"], "digits of the message aside"
    assert last["alike"] != marks(candidate("A1", "Where is {0}?"))["alike"]
    other = candidate("A1")
    call = ToolCall(name="cancel", arguments='{"order": "A2"}')
    changed = replace(
        other.trajectory, messages=(other.trajectory.messages[0], Message(role="assistant", tool_calls=(call,)))
    )
    assert last["alike"] != marks(replace(other, trajectory=changed))["alike"], "but not of the action"


@given(st.dictionaries(st.text("abcdef", min_size=1, max_size=3), st.floats(0.01, 1), min_size=1, max_size=12))
def test_draws_follow_the_weights(weights: dict[str, float]) -> None:
    order = sorted(weights)
    drawn = drawn_by_weight(order, weights)
    assert len(drawn) == len(order)
    for key, count in Counter(drawn).items():
        share = weights[key] / sum(weights.values()) * len(order)
        assert abs(count - share) < 1 + 1e-9
    assert drawn_by_weight(order, dict.fromkeys(order, 0.7)) == order
