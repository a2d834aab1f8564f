"""Verifiers: their invariants, the failures of NVIDIA's comparer, and how `verify` turns failures into verdicts."""

from __future__ import annotations

import itertools
import json
import sys
from dataclasses import FrozenInstanceError

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from pivotrl.errors import ConfigError
from pivotrl.types import Action, Candidate, Completion, Message, Source, Tool, ToolCall, Trajectory, Verdict
from pivotrl.verifiers import VERIFIERS, load_verifier, verifier_id, verify
from pivotrl.verifiers.message import MessageVerifier, facts, overlap
from pivotrl.verifiers.schema import applicable
from pivotrl.verifiers.tool_call import ToolCallVerifier
from pivotrl.verifiers.values import match, normalised

BOOK = Tool(
    name="book",
    parameters={
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "guests": {"type": "integer"},
            "class": {"type": "string", "enum": ["eco", "business"], "default": "eco"},
            "note": {"type": ["string", "null"]},
            "limit": {"type": ["number", "null"], "default": 10},
            "rooms": {"type": "array", "items": {"type": "object", "properties": {"beds": {"default": 2}}}},
        },
        "required": ["city", "guests"],
        "additionalProperties": False,
    },
)
SHELL = Tool(
    name="bash",
    parameters={"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
)
PING = Tool(name="ping")
TOOLS = (BOOK, SHELL, PING)


def call(name="book", arguments=None, raw=None):
    return ToolCall(name=name, arguments=json.dumps(arguments) if raw is None and arguments is not None else raw)


def calls(*members):
    return Action(calls=tuple(members))


HELLO = (Message(role="user", content="Hello"),)


def at(demonstration, tools=TOOLS, state=HELLO):
    messages = (*state, Message(role="assistant", content=demonstration.text, tool_calls=demonstration.calls))
    source = Source(file="t.jsonl", format="openai")
    return Candidate(trajectory=Trajectory(id="t", messages=messages, source=source, tools=tools), turn=len(state))


def judge(spec, demonstration, action, tools=TOOLS):
    """(value, reason) through `verify`."""
    completion = Completion(action=action, text="", finish_reason="stop")
    verdict = verify(load_verifier(spec), at(demonstration, tools), completion)
    return verdict.value, verdict.reason


def booked(**arguments):
    return calls(call(arguments={"city": "Paris", "guests": 2, **arguments}))


def bash(command):
    return calls(call("bash", {"command": command}))


DEMONSTRATIONS = [
    booked(),
    booked(note=None, limit=None, **{"class": "business"}),
    booked(rooms=[{"beds": 1}, {}, {"beds": 3, "view": "sea"}]),
    calls(call(arguments={"city": "Zürich", "guests": 2**70}), call("ping", {}), call("ping")),
    calls(call("ping", raw="")),
    calls(call("elsewhere", {"a": [1, 2.5, None, True, {"b": "x"}]})),
    calls(call(arguments={"city": 5})),
    bash("rm -rf build"),
    Action(text="Your order #W123 of $1,234.50 ships on 2024-05-17."),
    Action(text="👍"),
    Action(text="Okay."),
    Action(text="I will do it."),
]


@pytest.mark.parametrize("demonstration", DEMONSTRATIONS)
@pytest.mark.parametrize("tools", [TOOLS, (), None])
@pytest.mark.parametrize("spec", ["auto", "tool_name", "exact"])
def test_the_demonstration_is_accepted(spec, demonstration, tools):
    assert judge(spec, demonstration, demonstration, tools) == (1.0, "match")


keys = st.sampled_from(["city", "guests", "class", "note", "limit", "rooms", "other", "é"])
scalars = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8)
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3), max_leaves=8
)
objects = st.dictionaries(keys, values, max_size=5)
valid = st.fixed_dictionaries(
    {"city": st.text(max_size=8), "guests": st.integers()},
    optional={
        "class": st.sampled_from(["eco", "business"]),
        "note": st.none() | st.text(max_size=5),
        "limit": st.none() | st.floats(allow_nan=False, allow_infinity=False) | st.just(10),
        "rooms": st.lists(st.fixed_dictionaries({}, optional={"beds": st.integers(0, 3)}), max_size=2),
    },
)
call_lists = st.lists(
    st.builds(call, name=st.sampled_from(["book", "bash", "ping", "elsewhere"]), arguments=objects | valid),
    min_size=1,
    max_size=3,
).map(lambda members: calls(*members))


@settings(max_examples=150, deadline=None)
@given(demonstration=call_lists, tools=st.sampled_from([TOOLS, None]))
def test_calls_are_reflexive(demonstration, tools):
    for spec in ("tool_call", "exact", "tool_name", "auto"):
        assert judge(spec, demonstration, demonstration, tools) == (1.0, "match")


@settings(max_examples=100, deadline=None)
@given(text=st.text(min_size=1, max_size=60))
def test_messages_are_reflexive(text):
    assume(text.strip())
    for spec in ("message:min_overlap=1", "exact", "tool_name", "auto"):
        assert judge(spec, Action(text=text), Action(text=text)) == (1.0, "match")


def rewritten(value, draw):
    """The same JSON value in another key order."""
    if isinstance(value, dict):
        order = draw(st.permutations(sorted(value)))
        return {key: rewritten(value[key], draw) for key in order}
    return [rewritten(item, draw) for item in value] if isinstance(value, list) else value


@settings(max_examples=100, deadline=None)
@given(arguments=objects | valid, indent=st.sampled_from([None, 0, 3]), ascii_only=st.booleans(), data=st.data())
def test_key_order_whitespace_and_escapes_of_the_raw_json_do_not_matter(arguments, indent, ascii_only, data):
    raw = json.dumps(rewritten(arguments, data.draw), indent=indent, ensure_ascii=ascii_only)
    for spec in ("tool_call", "exact"):
        assert judge(spec, calls(call(arguments=arguments)), calls(call(raw=f" {raw}\n"))) == (1.0, "match")


@settings(max_examples=100, deadline=None)
@given(arguments=valid, gone=st.sampled_from(["city", "guests"]), tools=st.sampled_from([TOOLS, None]))
def test_a_missing_required_argument_is_never_accepted(arguments, gone, tools):
    action = calls(call(arguments={key: value for key, value in arguments.items() if key != gone}))
    for spec in ("tool_call", "exact", "auto"):
        assert judge(spec, calls(call(arguments=arguments)), action, tools)[0] == 0.0


@pytest.mark.parametrize(
    "raw", [None, "", " ", "null", "[]", '"x"', "5", "{", "{'city': 1}", '{"city": NaN}', "[" * 99999]
)
@pytest.mark.parametrize("tools", [TOOLS, None])
def test_malformed_and_absent_arguments_are_never_accepted(raw, tools):
    for spec in ("tool_call", "exact", "auto"):
        assert judge(spec, booked(), calls(call(raw=raw)), tools)[0] == 0.0


def test_absent_arguments_are_the_empty_object_where_nothing_is_required():
    for theirs, ours in itertools.product([None, "", "{}"], repeat=2):
        assert judge("tool_call", calls(call("ping", raw=theirs)), calls(call("ping", raw=ours))) == (1.0, "match")
    assert judge("exact", calls(call("ping", raw=None)), calls(call("ping", raw="{}"))) == (0.0, "wrong_arguments")


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        (booked(note=None), "match"),
        (booked(**{"class": "eco"}), "match"),
        (booked(limit=10.0), "match"),
        (booked(city=" Paris  "), "match"),
        (booked(guests=2.0), "match"),
        (booked(limit=None), "wrong_arguments"),
        (booked(note=""), "wrong_arguments"),
        (booked(city="paris"), "wrong_arguments"),
        (booked(guests=3), "wrong_arguments"),
        (booked(**{"class": "business"}), "wrong_arguments"),
        (booked(**{"class": "Eco"}), "invalid_arguments"),
        (booked(**{"class": None}), "invalid_arguments"),
        (booked(guests=True), "invalid_arguments"),
        (booked(guests="2"), "invalid_arguments"),
        (booked(surplus=None), "invalid_arguments"),
        (calls(call("nosuch", {"city": "Paris", "guests": 2})), "unknown_tool"),
        (calls(call("Book", {"city": "Paris", "guests": 2})), "unknown_tool"),
        (calls(call("bash", {"city": "Paris", "guests": 2})), "wrong_tool"),
        (calls(call(raw="{")), "bad_arguments"),
        (Action(text="Shall I book Paris for 2?"), "wrong_kind"),
        (Action(), "wrong_kind"),
        (Action(text="Booking.", calls=booked().calls), "match"),
    ],
)
def test_tool_call_by_schema(action, expected):
    assert judge("tool_call", booked(), action) == (float(expected == "match"), expected)
    assert judge("auto", booked(), action) == (float(expected == "match"), expected)


def test_defaults_and_nulls_on_the_demonstrated_side_and_inside_arrays():
    assert judge("tool_call", booked(note=None, limit=10), booked()) == (1.0, "match")
    assert judge("tool_call", booked(rooms=[{"beds": 2}]), booked(rooms=[{}])) == (1.0, "match")
    assert judge("tool_call", booked(rooms=[{"beds": 3}]), booked(rooms=[{}])) == (0.0, "wrong_arguments")
    assert judge("tool_call", booked(rooms=[{}, {"beds": 3}]), booked(rooms=[{"beds": 3}, {}]))[0] == 0.0
    assert judge("tool_call", booked(note=None), booked(), None) == (0.0, "wrong_arguments")


@pytest.mark.parametrize(
    ("theirs", "ours", "same"),
    [
        (5, 5.0, True),
        (1, True, False),
        (0, False, False),
        (None, False, False),
        ("5", 5, False),
        (2**53, 2**53 + 1, False),
        (2**53 + 1, float(2**53), False),
        (10**400, 10**400, True),
        (10**400, 1.0, False),
        (0.1 + 0.2, 0.3, True),
        (1e9, 1e9 + 1e-4, True),
        (1234567890.5, 1234567891.5, False),
        (1e-9, 5e-7, False),
        (1.0, 1.001, False),
        ("caf\u00e9", "cafe\u0301", True),
        (" a   b ", "a b", True),
        ("a\tb", "a    b", False),
        ('rm -rf "a  b"', 'rm -rf "a b"', False),
        ("echo 'a  b'", "echo 'a b'", False),
        ("rm a\\  b", "rm a\\ b", False),
        ("rm a\\ ", "rm a\\", False),
        ("rm 'a b' ", "rm 'a b'", True),
        ("    return x", "return x", False),
        ("    return x", "  return x", False),
        ("\treturn x", "return x", False),
        (" ", "", False),
        (",", "\t", False),
        ("a b", "ab", False),
        ("if a:\n  b\nc", "if a:\n  b\n  c", False),
        ("ls\nrm x", "ls rm x", False),
        ("a \nb", "a\nb", False),
        ("  a\nb", "a\nb", False),
        ("a\n  b  c", "a\n  b c", False),
        ("a\r\nb", "a\nb", False),
        ("a\nb \n", "a\nb", True),
        ("a\n", "a", True),
        ([1, 2], [2, 1], False),
        ([1, 2], [1, 2, 2], False),
        ({"a": 1}, {"a": 1, "b": None}, False),
        ({}, [], False),
    ],
)
def test_values_without_a_schema(theirs, ours, same):
    for one, other in ((theirs, ours), (ours, theirs)):
        value, _ = judge("tool_call", calls(call("f", {"x": one})), calls(call("f", {"x": other})), None)
        assert value == float(same)


def test_exact_is_strict_about_types_and_order():
    for theirs, ours in [(5, 5.0), (1, True), ("a", "a "), (None, False), ([1], [1.0])]:
        assert judge("exact", calls(call("f", {"x": theirs})), calls(call("f", {"x": ours})))[0] == 0.0
    a, b = call("f", {"x": 1}), call("g", {})
    assert judge("exact", calls(a, b), calls(b, a)) == (0.0, "wrong_tool")
    assert judge("exact", calls(a), calls(a, b)) == (0.0, "surplus_calls")
    assert judge("exact", calls(a, b), calls(a)) == (0.0, "missing_calls")
    assert judge("exact", Action(text="Hi."), Action(text=" Hi.\n")) == (1.0, "match")
    assert judge("exact", Action(text="Hi."), Action(text="hi.")) == (0.0, "wrong_text")
    assert judge("exact", Action(text="Hi."), calls(a)) == (0.0, "wrong_kind")
    assert judge("exact", calls(a), calls(call("f", raw="{"))) == (0.0, "bad_arguments")


def test_failures_of_nvidias_comparer():
    assert judge("auto", bash("rm -rf build"), bash("rm -rf /"))[0] == 0.0
    assert judge("auto", bash("cat a.py b.py"), bash("cat evil.sh"))[0] == 0.0
    assert judge("auto", bash("rm -rf build"), bash("rm  -rf build"))[0] == 1.0
    for text in (None, "", " \n"):
        assert judge("auto", Action(text="Which order?"), Action(text=text)) == (0.0, "empty")
    junk = [call("ping", {}) for _ in range(20)]
    assert judge("auto", booked(), calls(*booked().calls, *junk)) == (0.0, "surplus_calls")
    assert judge("auto", booked(), calls(*booked().calls * 2)) == (0.0, "surplus_calls")
    assert judge("auto", booked(limit=5), booked(limit=5.0))[0] == 1.0
    assert judge("auto", booked(limit=5.0), booked(limit=5))[0] == 1.0
    assert judge("auto", calls(call("f", {"x": 1})), calls(call("f", {"x": True})))[0] == 0.0
    assert judge("auto", booked(note=None), booked())[0] == 1.0


def test_parallel_calls_are_unordered_and_paired_one_to_one():
    a, b = call("f", {"x": 1}), call("f", {"x": 2})
    assert judge("tool_call", calls(a, b), calls(b, a), None) == (1.0, "match")
    assert judge("tool_call", calls(a, b), calls(a, a), None) == (0.0, "wrong_arguments")
    assert judge("tool_call", calls(a, b), calls(a), None) == (0.0, "missing_calls")
    assert judge("tool_call", calls(a, a), calls(a, a), None) == (1.0, "match")
    # the first fit of 0.5 takes away the only partner of 1.4: a pairing needs the augmenting path
    theirs, ours = [call("f", {"x": value}) for value in (0.0, 1.0)], [call("f", {"x": value}) for value in (0.5, 1.4)]
    for order in itertools.permutations(ours):
        assert judge("tool_call:abs_tol=0.6", calls(*theirs[::-1]), calls(*order), None) == (1.0, "match")


@settings(max_examples=200, deadline=None)
@given(edges=st.lists(st.lists(st.integers(0, 4), max_size=5, unique=True), max_size=5))
def test_matching_is_maximum(edges):
    found = match(edges)
    taken = [right for right in found if right >= 0]
    assert len(set(taken)) == len(taken)
    assert all(right in edges[left] for left, right in enumerate(found) if right >= 0)
    orders = itertools.permutations(range(5), len(edges))
    best = max(sum(right in edges[left] for left, right in enumerate(order)) for order in orders)
    assert len(taken) == best


def test_tiny_numbers_are_no_zeros():
    assert judge("tool_call", flux(8.854e-12), flux(8.854187e-12 / 1.00002e0)) == (0.0, "wrong_arguments")
    assert judge("tool_call", flux(8.854e-12), flux(-8.854e-12)) == (0.0, "wrong_arguments")
    assert judge("tool_call", flux(0.3), flux(0.1 + 0.2)) == (1.0, "match")


def flux(value: float) -> Action:
    return calls(call("ping", {"flux": value}))


INNER = st.recursive(
    st.sampled_from([{}, {"type": "string"}, {"type": "integer"}, {"type": ["number", "null"]}, {"enum": [1, "a"]},
                     {"minimum": 2}, {"minLength": 2}, {"const": 1.0}, {"pattern": "^a"}]),
    lambda inner: st.one_of(
        st.builds(lambda one: {"type": "array", "items": one, "uniqueItems": True}, inner),
        st.builds(lambda one, other: {"anyOf": [one, other]}, inner, inner),
        st.builds(lambda one: {"type": "object", "properties": {"b": one}, "required": ["b"]}, inner),
        st.builds(lambda one: {"type": "object", "additionalProperties": one}, inner),
    ),
    max_leaves=4,
)  # fmt: skip
VALUES = st.recursive(
    st.sampled_from([None, True, 0, 1, 1.0, 2, 2.5, "a", "ab", "", 10**20]),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("ab"), inner, max_size=2)),
    max_leaves=6,
)


@given(INNER, VALUES)
def test_schemas_are_checked_as_another_implementation_checks_them(inner, value):
    document = {"type": "object", "properties": {"a": inner}, "required": ["a"]}
    schema = applicable("f", (), Tool(name="f", parameters=document))
    error = next(Draft202012Validator(document).iter_errors({"a": value}), None)
    assert (schema.fault({"a": value}) is None) == (error is None)


def test_what_a_schema_cannot_check_does_not_pass_and_does_not_hang():
    tools = (Tool(name="f", parameters={"properties": {"x": {"type": "string", "pattern": "^(a+)+$"}}}),)
    shown = calls(call("f", {"x": "aa"}))
    for value in ("a" * 40 + "!", "\ud800"):
        assert judge("schema", shown, calls(call("f", {"x": value})), tools) == (0.0, "invalid_arguments")
    assert judge("schema", shown, calls(call("f", {"x": "a" * 400})), tools) == (1.0, "match")


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "dict"},
        {"type": "object", "properties": {"x": {"$ref": "#/nowhere"}}},
        {"type": "object", "properties": {"x": {"$ref": "http://127.0.0.1:9/schema.json"}}},
        {"type": "object", "properties": {"x": {"type": "string", "pattern": "("}}},
        {"type": "object", "required": "x"},
        {"maximum": 2**70, "required": 5},
        {"type": "object", "required": ["y"]},
    ],
)
def test_a_broken_schema_leaves_the_comparison(schema):
    tools = (Tool(name="f", parameters=schema),)
    demonstration = calls(call("f", {"x": "a"}))
    verdict = load_verifier("tool_call")(at(demonstration, tools), demonstration)
    assert (verdict.value, verdict.reason) == (1.0, "match")
    assert "schema" in verdict.detail
    assert judge("tool_call", demonstration, calls(call("f", {"x": "b"})), tools) == (0.0, "wrong_arguments")
    assert judge("tool_call", demonstration, calls(call("f", {})), tools)[0] == 0.0


def test_a_required_argument_is_required_even_where_the_schema_cannot_be_applied():
    schema = {
        "properties": {"a": {"type": ["string", "null"]}, "x": {"$ref": "#/nowhere"}},
        "required": ["a"],
    }
    tools = (Tool(name="f", parameters=schema),)
    demonstration, action = calls(call("f", {"a": None})), calls(call("f", {"x": None}))
    assert judge("tool_call", demonstration, action, tools) == (0.0, "wrong_arguments")


def test_no_schema_makes_a_connection(monkeypatch):
    opened = []
    monkeypatch.setattr("urllib.request.urlopen", lambda *args, **kwargs: opened.append(args))
    tools = (Tool(name="f", parameters={"$ref": "http://localhost/schema.json"}),)
    assert judge("tool_call", calls(call("f", {})), calls(call("f", {})), tools) == (1.0, "match")
    assert opened == []


def test_what_cannot_be_judged_is_unscored():
    broken = calls(call(raw="{"))
    for spec in ("tool_call", "exact", "auto"):
        assert judge(spec, broken, booked()) == (None, "bad_demonstration")
    assert judge("tool_call", Action(text="Hi"), Action(text="Hi")) == (None, "not_applicable")
    assert judge("message", booked(), Action(text="Hi")) == (None, "not_applicable")


def test_tool_name():
    demonstration = calls(call("bash", {"command": "ls"}), call("ping"))
    assert judge("tool_name", demonstration, calls(call("ping", raw="{"), call("bash"))) == (1.0, "match")
    assert judge("tool_name", demonstration, calls(call("ping"))) == (0.0, "missing_calls")
    assert judge("tool_name", demonstration, calls(call("ping"), call("book"))) == (0.0, "wrong_tool")
    assert judge("tool_name", demonstration, calls(*demonstration.calls, call("ping"))) == (0.0, "surplus_calls")
    assert judge("tool_name", demonstration, Action(text="Hi")) == (0.0, "wrong_kind")
    assert judge("tool_name", Action(text="Hi"), Action(text="Anything")) == (1.0, "match")
    assert judge("tool_name", Action(text="Hi"), Action(text=" ")) == (0.0, "empty")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Your refund of $1234.5 for order W123 is on its way.", "match"),
        ("Order **#w123**: refund on its way, 1,234.50 dollars.", "match"),
        ("Your refund of $1,234.60 for order W123 is on its way.", "missing_fact"),
        ("Your refund for order W123 is on its way.", "missing_fact"),
        ("W123 1234.5 is the name of a fancy new bistro downtown, serving oysters.", "low_overlap"),
        (" ", "empty"),
    ],
)
def test_message(text, expected):
    demonstration = Action(text="The refund of $1,234.50 for order #W123 is on its way.")
    assert judge("message", demonstration, Action(text=text)) == (float(expected == "match"), expected)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("I cannot cancel reservation ABC123.", "I can cancel reservation ABC123.", False),
        ("Your request was approved.", "Your request was not approved.", False),
        ("I can’t change the flight.", "I can change the flight.", False),
        ("We never refund tickets.", "We refund tickets.", False),
        ("I am unable to book the flight.", "I am able to book the flight.", False),
        ("No, the flight cannot be changed.", "The flight can't be changed.", True),
        ("I cannot cancel reservation ABC123.", "I am not able to cancel reservation ABC123.", True),
        ("Order no. 12 has shipped.", "Order 12 has shipped.", True),
        ("A notable note: nothing.", "A notable note.", False),
        ("A notable note.", "A notable note!", True),
    ],
)
def test_opposites_are_refused_both_ways(one, other, same):
    expected = (1.0, "match") if same else (0.0, "negation")
    for theirs, ours in ((one, other), (other, one)):
        assert judge("message", Action(text=theirs), Action(text=ours)) == expected


def test_message_refuses_calls_and_takes_only_the_same_where_there_are_no_words():
    assert judge("message", Action(text="Hi"), booked()) == (0.0, "wrong_kind")
    for spec in ("message", "message:min_overlap=0"):
        assert judge(spec, Action(text="👍"), Action(text="Sure")) == (0.0, "wrong_text")
        assert judge(spec, Action(text="👍"), Action(text=" 👍\n")) == (1.0, "match")
    anything = "message:min_overlap=0,min_recall=0"
    assert judge(anything, Action(text="Hello there"), Action(text="Sure")) == (1.0, "match")
    assert judge("message", Action(text="请稍等，我查一下。"), Action(text="请等一下，我来查。")) == (1.0, "match")
    verdict = load_verifier("message")(at(Action(text="5 of 7 on 2024-05-17")), Action(text="5"))
    assert verdict.detail == "2024-05-17, 7"


def test_beginnings_salads_and_copies_are_no_answers():
    """With all the facts, and nothing negated."""
    shown = Action(text="Order W12 leaves our house on Monday and reaches you by Thursday evening at the latest.")
    half = Action(text="Order W12 leaves our house on Monday and okay")
    assert judge("message", shown, half) == (0.0, "low_overlap")
    assert judge("message:min_recall=0.3", shown, half) == (1.0, "match")
    salad = Action(text=" ".join(sorted(shown.text.split())))
    assert judge("message", shown, salad) == (0.0, "word_order")
    assert judge("message", shown, Action(text=f"{shown.text} Anything else?")) == (1.0, "match")
    asked = "When does order W12 reach me, on Thursday by the evening?"
    state = (Message(role="user", content=asked), Message(role="tool", content="W12: leaves Monday, Thursday evening"))

    def said(text: str, demonstration: Action = shown) -> str:
        return MessageVerifier(min_recall=0)(at(demonstration, state=state), Action(text=text)).reason

    for echo in (asked, f"So: {asked}", "order W12 reach me, on Thursday by the evening?"):
        assert said(echo) in ("copied", "word_order")
    assert said("W12: leaves Monday, Thursday evening") == "copied"
    assert said("Order W12: leaves Monday, Thursday evening") == "match", "what a tool says may be passed on"
    quoting = Action(text=f"You ask: {asked} So do I.")
    assert said(asked, quoting) == "copied", "also where the demonstration quotes it"
    assert said(f"{asked} By Thursday.", Action(text=f"You ask: {asked} By Thursday.")) == "match"


def test_the_prompt_over_again_is_no_answer():
    """README's own example: a short question and a short result, which hold all words of the answer."""
    asked, found = (
        Message(role="user", content="Where is order A17?"),
        Message(role="tool", content='{"status": "late"}'),
    )
    looked = Message(role="assistant", tool_calls=(call("ping", {}),))
    shown = at(Action(text="Order A17 is late."), state=(asked, looked, found))
    echo = f"{asked.content}\n\n{found.content}"
    assert MessageVerifier()(shown, Action(text=echo)).reason == "copied"
    assert MessageVerifier()(shown, Action(text="Your order A17 is late.")).value == 1.0


def test_same_facts_refuses_a_reason_that_was_not_demonstrated():
    shown = Action(text="I cannot refund it. Order O2004 has a sale item.")
    other = Action(text="I cannot refund it. Order O2004 is more than 30 days old.")
    assert judge("message", shown, other) == (0.0, "low_overlap")
    assert judge("message:min_recall=0", shown, other) == (1.0, "match")
    assert judge("message:same_facts=true,min_recall=0", shown, other) == (0.0, "surplus_fact")
    assert judge("message:same_facts=true,min_recall=0", other, shown) == (0.0, "missing_fact")
    assert judge(
        "message:same_facts=true,min_recall=0", shown, Action(text="Order #o2004 has a sale item: no refund.")
    ) == (
        1.0,
        "match",
    )


def test_facts_and_overlap():
    text = "-$1,234.50, (#W123-4); 3–5 days: 1,2,3 at 10:30. 20% by 2024-05-17's, v1.0, 007, 0.0"
    expected = {"-1234.5", "w123-4", "3-5", "1", "2", "3", "10:30", "20", "2024-05-17", "v1.0", "007", "0"}
    assert facts(text) == expected
    assert facts("May 15th, the 1,001st; a 3rd and 2nd") == facts("May 15, 1001, 3, 2")
    assert facts("15th") != facts("15a")
    assert facts("$.50, -.5 or .5.") == facts("0.50, -0.5") != facts("50, -5")
    assert facts("well...5") == {"well...5"}
    assert overlap("Book a table", "book the TABLE!") == 1.0
    assert overlap("red green", "red blue") == 0.5
    assert overlap("I did not cancel it", "I did cancel it") < 1.0
    assert overlap("I will", "they are") == 0.0


def test_normalised():
    assert normalised("  a\t b \n   c  d\r\n") == "  a\t b \n   c  d"
    assert normalised(" a  b   c \t ") == "a b c"
    assert normalised("   a  b") == "   a b"


def test_auto_names_the_inner_verifier():
    assert load_verifier("auto")(at(booked()), booked()).verifier == "tool_call"
    assert load_verifier("auto")(at(Action(text="Hi")), Action(text="Hi")).verifier == "message"


def test_auto_builds_its_members_once_and_takes_the_settings_of_all():
    auto = load_verifier("auto:abs_tol=0.5,min_overlap=0.9")
    assert (auto.tool_call, auto.message) == (ToolCallVerifier(abs_tol=0.5), MessageVerifier(min_overlap=0.9))
    inner = ["tool_call:abs_tol=0.5", "message:min_overlap=0.9", "shell", "code_edit", "search"]
    inner = [load_verifier(spec) for spec in inner]
    assert auto.settings == {one.name: {"version": one.version, **one.settings} for one in inner}
    one, other = (calls(call("f", {"x": value})) for value in (1.0, 1.4))
    assert judge("auto:abs_tol=0.5", one, other, None)[0] == 1.0
    assert judge("auto", one, other, None)[0] == 0.0


def test_settings_from_the_specification():
    assert load_verifier("message:min_overlap=0.5").settings == {
        "min_overlap": 0.5,
        "min_recall": 0.6,
        "same_facts": False,
    }
    assert load_verifier("tool_call:rel_tol=0, abs_tol=0.1").settings == {"rel_tol": 0.0, "abs_tol": 0.1, "rules": {}}
    for spec, hint in [
        ("message:overlap=1", "min_overlap"),
        ("message:", "min_overlap"),
        ("message:min_overlap", "min_overlap"),
        ("message:min_overlap=1,min_overlap=1", "once"),
        ("message:min_overlap=a", "not a number"),
        ("message:min_overlap=nan", "from 0 to 1"),
        ("auto:min_overlap=1.5", "from 0 to 1"),
        ("auto:overlap=1", "rel_tol, abs_tol, rules, min_overlap"),
        ("tool_call:abs_tol=-1", "0 or more"),
        ("exact:x=1", "no settings"),
    ]:
        with pytest.raises(ConfigError, match=hint) as caught:
            load_verifier(spec)
        assert "\n" not in str(caught.value)
    with pytest.raises(FrozenInstanceError):
        load_verifier("message").min_overlap = 0.0


def test_ids_change_with_name_version_and_settings():
    bare = [name for name in VERIFIERS if name not in ("judge", "execution")]  # which have to be told whom and where
    specs = [*bare, "message:min_overlap=0.5", "auto:min_overlap=0.5", "tool_call:abs_tol=1", "auto:abs_tol=1"]
    ids = [verifier_id(load_verifier(spec)) for spec in specs]
    assert len(set(ids)) == len(ids)
    assert verifier_id(load_verifier("auto")) == verifier_id(load_verifier("auto:min_overlap=0.4"))


PLUGIN = """
import numpy as np

from pivotrl.types import Verdict

def share(candidate, action): return 0.25
def yes(candidate, action): return True
def numpys(candidate, action): return np.float64(1) == 1
def declines(candidate, action): return None
def full(candidate, action): return Verdict(value=1, reason="mine", verifier="me", version="7")
def fails(candidate, action): raise KeyError("no such row")
def too_much(candidate, action): return 1.5
def nan(candidate, action): return float("nan")
def text(candidate, action): return "yes"
def bad(candidate, action): return Verdict(value="1", reason="mine", verifier="me", version="7")
def interrupt(candidate, action): raise KeyboardInterrupt
constant = 5
"""


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """The name of a module in the working directory."""
    name = f"rules_{abs(hash(str(tmp_path)))}"
    (tmp_path / f"{name}.py").write_text(PLUGIN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(sys.path))
    return name


@pytest.mark.parametrize(
    ("function", "value", "reason", "detail"),
    [
        ("share", 0.25, "graded", ""),
        ("yes", 1.0, "accepted", ""),
        ("numpys", 1.0, "accepted", ""),
        ("declines", None, "verifier_declined", ""),
        ("full", 1.0, "mine", ""),
        ("fails", None, "verifier_error", "KeyError: 'no such row'"),
        ("too_much", None, "verifier_error", "ValueError: the value 1.5 is not from 0 to 1"),
        ("nan", None, "verifier_error", "ValueError: the value nan is not from 0 to 1"),
        ("text", None, "verifier_error", "returned str"),
        ("bad", None, "verifier_error", "TypeError: the value is a str, not a float"),
    ],
)
def test_a_function_of_the_users(plugin, function, value, reason, detail):
    verifier = load_verifier(f"{plugin}:{function}")
    verdict = verify(verifier, at(booked()), Completion(action=booked(), text="", finish_reason="stop"))
    assert (verdict.value, verdict.reason) == (value, reason)
    assert detail in verdict.detail
    assert value is None or type(verdict.value) is float


def test_an_interrupt_passes_and_the_version_is_the_source(plugin, tmp_path):
    verifier = load_verifier(f"{plugin}:interrupt")
    with pytest.raises(KeyboardInterrupt):
        verify(verifier, at(booked()), Completion(action=booked(), text="", finish_reason="stop"))
    before = verifier_id(verifier)
    assert before == verifier_id(load_verifier(f"{plugin}:interrupt")) != verifier_id(load_verifier(f"{plugin}:yes"))
    (tmp_path / f"{plugin}.py").write_text(PLUGIN + "\n# edited\n")
    assert verifier_id(load_verifier(f"{plugin}:interrupt")) != before


def test_a_function_in_a_file_replaces_no_module(tmp_path):
    path = tmp_path / "json.py"
    path.write_text(PLUGIN)
    verifier = load_verifier(f"{path}:share")
    verdict = verify(verifier, at(booked()), Completion(action=booked(), text="", finish_reason="stop"))
    assert (verdict.value, verdict.verifier) == (0.25, f"{path}:share")
    assert sys.modules["json"] is json
    path.write_text(PLUGIN + "\n# edited\n")
    assert verifier_id(load_verifier(f"{path}:share")) != verifier_id(verifier)


@pytest.mark.parametrize(
    "spec", ["nosuch.py:f", "nosuch_module:f", "{}:nosuch", "{}:constant", "{}:", ":f", "a b:f", "json:nosuch.f"]
)
def test_a_missing_module_or_function_is_one_line(plugin, spec):
    with pytest.raises(ConfigError) as caught:
        load_verifier(spec.format(plugin))
    assert "\n" not in str(caught.value)


def test_an_unknown_name_lists_the_known_ones():
    known = r"auto, schema, tool_call, message, shell, .*nemo_gym.single_step, .*; or package.module:name"
    with pytest.raises(ConfigError, match=known):
        load_verifier("nosuch")


def test_failed_completions():
    verifier = load_verifier("auto")
    unparsable = Completion(action=None, text="<tool", finish_reason="stop", parse_error="unclosed_call")
    assert verify(verifier, at(booked()), unparsable) == Verdict(
        value=0.0, reason="unparsable", verifier="auto", version="2", detail="unclosed_call"
    )
    failed = Completion(action=None, text="", finish_reason="error")
    assert verify(verifier, at(booked()), failed) == Verdict(
        value=None, reason="no_completion", verifier="auto", version="2"
    )
    cut = Completion(action=None, text="<think>", finish_reason="length", parse_error="unclosed_thinking")
    assert verify(verifier, at(booked()), cut).value == 0.0
