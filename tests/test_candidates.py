"""Candidates: one reason per skipped turn, whole groups per split, and a store that notices edits."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pivotrl.candidates import CandidateRules, CandidateStore, extract, is_error
from pivotrl.errors import InputError, MissingError
from pivotrl.ingestion import IngestConfig, ingest
from pivotrl.run_directory import RunDirectory
from pivotrl.splits import connect, split_groups, ties_of
from pivotrl.types import Candidate, Message, SkippedTurn, Source, State, Tool, ToolCall, Trajectory

ALL = CandidateRules(keep_failed=True, keep_tool_errors=True, keep_repeated=True, max_state_tokens=0)


def user(text: str = "go") -> Message:
    return Message(role="user", content=text)


def call(name: str = "look", arguments: str | None = "{}", id: str | None = None) -> Message:
    return Message(role="assistant", tool_calls=(ToolCall(name=name, arguments=arguments, id=id),))


def result(text: str = "ok", id: str | None = None, error: bool | None = None) -> Message:
    return Message(role="tool", content=text, tool_call_id=id, error=error)


def say(text: str = "done", **fields: object) -> Message:
    return Message(role="assistant", content=text, **fields)


def trajectory(*messages: Message, **fields: object) -> Trajectory:
    return Trajectory(id="t", messages=messages, source=Source(file="f", format="openai_chat"), **fields)


def reasons(history: Trajectory, rules: CandidateRules = ALL) -> list[str]:
    """One word per assistant turn: `ok` or why not."""
    return [turn.reason if isinstance(turn, SkippedTurn) else "ok" for turn in extract(history, rules)]


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([user(), call(), result(), say()], ["ok", "ok"]),
        ([say(excluded="scripted_greeting"), user(), say()], ["scripted_greeting", "ok"]),
        ([user(), say(""), say("  \n"), say()], ["empty_action", "empty_action", "ok"]),
        ([user(), say(omitted=("image_url",))], ["non_text_action"]),
        ([user(), call(arguments=None)], ["bad_arguments"]),
        ([user(), call(arguments="[]")], ["bad_arguments"]),
        ([user(), call(arguments='{"a": NaN}')], ["bad_arguments"]),
        ([user(), call(), say(), user(), say()], ["ok", "orphan_in_prefix", "orphan_in_prefix"]),
        ([user(), call(), user(), say()], ["ok", "orphan_in_prefix"]),
        ([user(), result(), say()], ["orphan_in_prefix"]),
        ([user(), call(id="a"), result(id="b"), say()], ["ok", "orphan_in_prefix"]),
        ([user(), call(id="a"), result(id="a"), call(id="a"), result(id="a"), say()], ["ok", "ok", "ok"]),
        ([user(), call(id="a"), result(), say()], ["ok", "ok"]),
        ([user(), call(), result(id="a"), say()], ["ok", "ok"]),
        ([user(), call(), result(), result(), say()], ["ok", "orphan_in_prefix"]),
        ([replace(user(), omitted=("image_url",)), say()], ["non_text_state"]),
    ],
)
def test_reasons(messages: list[Message], expected: list[str]) -> None:
    assert reasons(trajectory(*messages)) == expected


def test_parallel_calls_need_all_their_results() -> None:
    calls = (ToolCall(name="a", arguments="{}", id="1"), ToolCall(name="b", arguments="{}", id="2"))
    both = Message(role="assistant", tool_calls=calls)
    assert reasons(trajectory(user(), both, result(id="2"), result(id="1"), say())) == ["ok", "ok"]
    assert reasons(trajectory(user(), both, result(id="2"), say())) == ["ok", "orphan_in_prefix"]


def test_tools_are_checked_only_when_known() -> None:
    history = (user(), call("jump"))
    assert reasons(trajectory(*history)) == ["ok"]
    assert reasons(trajectory(*history, tools=())) == ["unknown_tool"]
    assert reasons(trajectory(*history, tools=(Tool(name="jump"),))) == ["ok"]


@pytest.mark.parametrize(
    ("outcome", "expected"), [(None, "ok"), (1.0, "ok"), (0.999, "outcome_below_full"), (0.0, "outcome_below_full")]
)
def test_outcome(outcome: float | None, expected: str) -> None:
    history = trajectory(user(), say(), outcome=outcome)
    assert reasons(history, CandidateRules()) == [expected]
    assert reasons(history, CandidateRules(keep_failed=True)) == ["ok"]


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (result("Error: no"), True), (result("error: no"), True), (result("errors"), False),
        (result('{"error": "no"}'), True), (result('{"error": null}'), False), (result('{"isError": true}'), True),
        (result('{"error": '), False), (result('{"results": {"error": 1}}'), False), (result("fine", error=True), True),
        (result("Error: expected here", error=False), False), (Message(role="tool"), False),
    ],
)  # fmt: skip
def test_what_counts_as_an_error(message: Message, expected: bool) -> None:
    assert is_error(message) is expected
    history = trajectory(user(), call(), message, say())
    assert reasons(history, CandidateRules())[0] == ("tool_error" if expected else "ok")
    assert reasons(history, CandidateRules(keep_tool_errors=True))[0] == "ok"


def test_third_repetition_in_a_row_is_skipped() -> None:
    twice = [call(arguments='{"a": 1, "b": 2}'), result(), call(arguments='{"b":2,"a":1}'), result()]
    third = [call(arguments='{"a": 1, "b": 2}'), result()]
    rules = CandidateRules()
    assert reasons(trajectory(user(), *twice, *third, *third), rules) == ["ok", "ok", "repeated_call", "repeated_call"]
    assert reasons(trajectory(user(), *twice, say(), *third), rules) == ["ok"] * 4
    assert reasons(trajectory(user(), *twice, user(), *third), rules) == ["ok"] * 3
    assert reasons(trajectory(user(), *twice, *third), CandidateRules(keep_repeated=True)) == ["ok"] * 3


def test_over_context_by_estimate_and_by_counter() -> None:
    history = trajectory(user("x" * 400), say("y" * 4), user("z"), say())
    assert reasons(history, CandidateRules(max_state_tokens=100)) == ["ok", "over_context"]
    assert reasons(history, CandidateRules(max_state_tokens=102)) == ["ok", "ok"]

    def count(state: State) -> int | None:
        return len(state.messages) if len(state.messages) > 1 else None

    estimated, counted = extract(history, CandidateRules(max_state_tokens=2), count)
    assert estimated == SkippedTurn(trajectory_id="t", turn=1, reason="over_context", detail="100 tokens")
    assert counted == SkippedTurn(trajectory_id="t", turn=3, reason="over_context", detail="3 tokens")


MESSAGES = st.one_of(
    st.builds(user, st.text(max_size=3)),
    st.builds(
        say,
        st.sampled_from(["", "text"]),
        excluded=st.sampled_from([None, "loss_false"]),
        omitted=st.sampled_from([(), ("image",)]),
    ),
    st.builds(
        call,
        st.sampled_from(["look", "jump"]),
        st.sampled_from([None, "{}", "[", '{"a": 1}']),
        st.sampled_from([None, "1", "2"]),
    ),
    st.builds(result, st.sampled_from(["ok", "Error: x", '{"error": 1}']), st.sampled_from([None, "1", "2"])),
)


@settings(max_examples=300, deadline=None)
@given(
    messages=st.lists(MESSAGES, max_size=12),
    tools=st.sampled_from([None, (), (Tool(name="look"),)]),
    outcome=st.sampled_from([None, 0.0, 1.0]),
    rules=st.builds(
        CandidateRules, keep_failed=st.booleans(), keep_repeated=st.booleans(), max_state_tokens=st.integers(0, 20)
    ),
)
def test_every_turn_is_a_candidate_or_has_one_reason(messages, tools, outcome, rules) -> None:
    history = trajectory(*messages, tools=tools, outcome=outcome)
    found = list(extract(history, rules))
    assert [one.turn for one in found] == [turn for turn, message in enumerate(messages) if message.role == "assistant"]
    for candidate in (one for one in found if isinstance(one, Candidate)):
        assert candidate.demonstration.calls or candidate.demonstration.text
        assert all(parsed.parsed.value is not None for parsed in candidate.demonstration.calls)


def test_groups_follow_task_then_opening_then_parent() -> None:
    greeting = say("Hi!", excluded="scripted_greeting")
    made = {
        "task1": trajectory(user("a"), say(), task_id="x"),
        "task2": trajectory(user("b"), say(), task_id="x"),
        "same1": trajectory(greeting, user("c"), say()),
        "same2": trajectory(greeting, user("c"), say("other")),
        "alone": trajectory(greeting, user("d"), say()),
        "child": replace(trajectory(user("summary"), say()), parent_id="alone"),
    }
    groups = connect({name: ties_of(replace(made[name], id=name)) for name in made})
    assert groups["task1"] == groups["task2"] == "task:x"
    assert groups["same1"] == groups["same2"] != groups["alone"]
    assert groups["child"] == groups["alone"]
    assert len(set(groups.values())) == 3


def test_an_opening_of_one_task_stands_for_it_and_one_of_several_joins_nothing() -> None:
    made = {
        "known": trajectory(user("book a flight"), say(), task_id="flight"),
        "unknown": trajectory(user("book a flight"), say("other")),
        "again": trajectory(user("fly me"), say(), task_id="flight"),
        "hi 1": trajectory(user("hi"), say(), task_id="one"),
        "hi 2": trajectory(user("hi"), say(), task_id="two"),
        "hi": trajectory(user("hi"), say("who knows")),
        "hi too": trajectory(user("hi"), say("who knows more")),
    }
    groups = connect({name: ties_of(replace(made[name], id=name)) for name in made})
    assert groups["known"] == groups["unknown"] == groups["again"] == "task:flight"
    assert (groups["hi 1"], groups["hi 2"]) == ("task:one", "task:two")
    assert groups["hi"] == groups["hi too"]
    assert groups["hi"].startswith("opening:")


@settings(max_examples=200, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 50), max_size=30),
    fractions=st.sampled_from([(0.1, 0.1), (0.3, 0.2), (0.0, 0.5), (0.0, 0.0), (0.45, 0.45)]),
    seed=st.integers(0, 5),
)
def test_split_is_whole_stable_and_never_empty(sizes: list[int], fractions: tuple[float, float], seed: int) -> None:
    counts = {f"g{i}": size for i, size in enumerate(sizes)}
    validation, test = fractions
    split = split_groups(counts, validation=validation, test=test, seed=seed)
    again = split_groups(dict(reversed(counts.items())), validation=validation, test=test, seed=seed)
    assert split == again
    assert split.keys() == counts.keys()
    used = Counter(split.values())
    assert used["train"] >= (len(sizes) > 0)
    assert (used["test"] > 0) == (test > 0 and len(sizes) >= 2)
    assert (used["validation"] > 0) == (validation > 0 and len(sizes) >= 3)


def test_split_fills_the_fractions() -> None:
    split = split_groups({f"g{i}": 10 for i in range(100)}, validation=0.1, test=0.2, seed=3)
    assert Counter(split.values()) == {"train": 70, "test": 20, "validation": 10}
    assert split != split_groups({f"g{i}": 10 for i in range(100)}, validation=0.1, test=0.2, seed=4)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    look = {"name": "look", "arguments": {}}
    rows = [
        {"messages": [
            {"role": "user", "content": f"Task {i}"}, {"role": "assistant", "tool_calls": [look]},
            {"role": "tool", "content": "ok"}, {"role": "assistant", "content": f"é{i}"},
        ]}
        for i in range(6)
    ]  # fmt: skip
    data = tmp_path / "data.jsonl"
    data.write_text("\n".join(json.dumps(row) for row in rows))
    ingest(IngestConfig(paths=(str(data),), run=tmp_path / "run"))
    return RunDirectory(tmp_path / "run")


def test_store_gives_what_follows_one_another_as_a_unit(run: RunDirectory) -> None:
    store = CandidateStore(run)
    rows = store.rows()
    assert [row.id for row in rows[:2]] == ["data:1@1", "data:1@3"]
    assert [(row.depth, row.kind, row.tools) for row in rows[:2]] == [(0, "call", ("look",)), (1, "message", ())]
    shuffled = [rows[4], rows[5], rows[0], rows[4]]
    units = [(name, [candidate.turn for candidate in unit]) for name, unit in store.units(shuffled)]
    assert units == [("data:3", [1, 3]), ("data:1", [1]), ("data:3", [1])]
    assert [row.id for row, _ in store.loaded(shuffled)] == [row.id for row in shuffled]
    (candidate,) = next(store.units(rows[-1:]))[1]
    assert candidate.demonstration.text == "é5"
    assert sum(len(store.rows(split)) for split in ("train", "validation", "test")) == len(rows) == 12


def test_store_errors(run: RunDirectory, tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="run `pivotrl ingest` first"):
        CandidateStore(RunDirectory(tmp_path / "none")).rows()
    (row, *_) = CandidateStore(run).rows()
    with pytest.raises(InputError, match="not in this run"):
        list(CandidateStore(run).units([replace(row, trajectory_id="x")]))
    with pytest.raises(InputError, match="data:1@0 is no assistant turn"):
        list(CandidateStore(run).units([replace(row, turn=0)]))
    part = run.trajectories / "part-00000.jsonl"
    part.write_bytes(part.read_bytes().replace(b"Task 0", b"Task 9"))
    with pytest.raises(InputError, match="'data:1' was changed since ingest"):
        list(CandidateStore(run).units([row]))
    run.candidates.write_text('{"id": 3}\n')
    with pytest.raises(InputError, match=r"candidates.jsonl:1: "):
        CandidateStore(run).rows()
    part.unlink()
    with pytest.raises(InputError, match="cannot be read"):
        CandidateStore(run).trajectory("data:1")
