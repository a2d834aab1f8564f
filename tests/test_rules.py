"""The rules of `tool_call`: what each word lets pass, what is grounded, look-ups, questions, what `explain` shows."""

from __future__ import annotations

import json
import pickle
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pivotrl.cli import main
from pivotrl.errors import ConfigError, MissingError
from pivotrl.explaining import ExplainConfig, explain
from pivotrl.ingestion import IngestConfig, ingest
from pivotrl.lab.desk import DESK_RULES, STYLES, DeskEnvironment, Expert, draw_tasks
from pivotrl.lab.desk.tools import TOOLS as DESK_TOOLS
from pivotrl.lab.desk.tools import WRITE_TOOLS
from pivotrl.types import Action, Candidate, Completion, Message, Source, Tool, ToolCall, Trajectory
from pivotrl.verifiers import load_verifier, verifier_id, verify
from pivotrl.verifiers.auto import AutoVerifier
from pivotrl.verifiers.grounding import grounded, seen
from pivotrl.verifiers.tool_call import ToolCallVerifier


def calls(*members):
    return Action(calls=tuple(ToolCall(name=name, arguments=json.dumps(arguments)) for name, arguments in members))


def at(demonstration, tools=None, before=()):
    messages = (
        *before,
        Message(role="assistant", content=demonstration.text, tool_calls=demonstration.calls),
    )
    source = Source(file="t.jsonl", format="openai")
    return Candidate(trajectory=Trajectory(id="t", messages=messages, source=source, tools=tools), turn=len(before))


def judge(rules, demonstration, action, tools=None, before=()):
    """(value, reason) of `auto` with these rules, through `verify`."""
    verifier = AutoVerifier(tool_call=ToolCallVerifier(rules=json.dumps(rules)))
    verdict = verify(
        verifier, at(demonstration, tools, before), Completion(action=action, text="", finish_reason="stop")
    )
    return verdict.value, verdict.reason


def same(rule, theirs, ours, schema=None):
    """Whether two values of one argument do the same, whichever of them was demonstrated."""
    tools = None if schema is None else (Tool(name="f", parameters={"properties": {"x": schema}}),)
    rules = {} if rule is None else {"f": {"x": rule}}
    pair = calls(("f", {"x": theirs})), calls(("f", {"x": ours}))
    values = {judge(rules, *order, tools)[0] for order in (pair, pair[::-1])}
    assert len(values) == 1, "the comparison is symmetric"
    return values == {1.0}


@pytest.mark.parametrize(
    ("rule", "theirs", "ours", "expected"),
    [
        ("ignore", "a", [1], True),
        ("exact", 5, 5.0, False),
        ("exact", "a", "a ", False),
        ("exact", {"a": [1]}, {"a": [1]}, True),
        ("same", 5, 5.0, True),
        ("set", [1, 2], [2, 1.0], True),
        ("set", [1, 2], [2, 1, 1], True),
        ("set", [1, 2], [1], False),
        ("set", [1], [1, 2], False),
        ("set", [], [], True),
        ("set", [1], [True], False),
        ("set", "ab", "ba", False),
        ("path", "./a//b/", "a/b", True),
        ("path", "a/../b", "b", True),
        ("path", ["./a"], ["a"], True),
        ("path", "/a", "a", False),
        ("path", "", ".", False),
        ("path", "A", "a", False),
        ("date", "2024-05-17", "May 17, 2024", True),
        ("date", "2024-05-17", "17 may 2024", True),
        ("date", "2024/05/17", "20240517", True),
        ("date", "2024-05-17T10:00:00Z", "2024-05-17T12:00:00+02:00", True),
        ("date", "2024-05-17T10:00:00Z", "2024-05-17T10:00:00", False),
        ("date", "05/06/2024", "06/05/2024", False),
        ("date", "tomorrow", "tomorrow ", True),
        ("date", "2024-05-17", "2024-05-18", False),
        ("case", "Paris", " paRIS", True),
        ("case", "Straße", "STRASSE", True),
        ("case", "Paris", "Rome", False),
        ("text>=0.8", "Ring the bell twice, please", "please ring THE bell twice", True),
        ("text>=0.5", "red green", "red blue", True),
        ("text>=0.51", "red green", "red blue", False),
        ("text>=1", "red green", "green red", True),
        ("text>=0.1", ":)", ":(", False),
        ("text>=0.1", "", "anything", False),
        ("text>=0", 1, 2, False),
        (None, "Paris", "paris", False),
        (None, [1, 2], [2, 1], False),
    ],
)
def test_words(rule, theirs, ours, expected):
    assert same(rule, theirs, ours) is expected


def test_what_a_schema_implies_and_that_a_rule_goes_before():
    for form in ("date", "date-time"):
        assert same(None, "2024-05-17", "May 17, 2024", {"type": "string", "format": form})
        assert not same("same", "2024-05-17", "May 17, 2024", {"type": "string", "format": form})
    unique = {"type": "array", "uniqueItems": True, "items": {"format": "date"}}
    assert same(None, ["2024-05-17", "x"], ["x", "May 17, 2024"], unique)
    assert not same("same", ["a", "b"], ["b", "a"], unique)
    assert not same(None, ["a", "b"], ["b", "a"], {"type": "array"})


def test_case_takes_the_one_member_of_an_enum_that_is_meant():
    assert same("case", "eco", "eco", {"enum": ["eco", "business"]})
    tools = (Tool(name="f", parameters={"properties": {"x": {"enum": ["eco", "business"]}}}),)
    shown, ours = calls(("f", {"x": "eco"})), calls(("f", {"x": "Eco"}))
    assert judge({"f": {"x": "case"}}, shown, ours, tools) == (1.0, "match")
    assert judge({}, shown, ours, tools) == (0.0, "invalid_arguments")
    both = (Tool(name="f", parameters={"properties": {"x": {"enum": ["eco", "ECO"]}}}),)
    assert judge({"f": {"x": "case"}}, shown, ours, both) == (0.0, "invalid_arguments")


def test_tables_reach_into_objects_and_arrays_and_the_tools_own_goes_before_any():
    theirs = calls(("f", {"guests": [{"name": "Ann", "note": "x"}], "note": "a", "at": {"path": "./a"}}))
    ours = calls(("f", {"guests": [{"name": "ANN"}], "note": "b", "at": {"path": "a"}}))
    rules = {"f": {"guests": {"name": "case", "note": "ignore"}, "at": {"path": "path"}}, "*": {"note": "ignore"}}
    assert judge(rules, theirs, ours) == (1.0, "match")
    for tool, key in (("f", "guests"), ("f", "at"), ("*", "note")):
        less = {name: {at: rule for at, rule in table.items() if at != key} for name, table in rules.items()}
        assert judge(less if tool == "f" else {"f": rules["f"]}, theirs, ours) == (0.0, "wrong_arguments")
    assert judge({**rules, "f": {**rules["f"], "note": "same"}}, theirs, ours) == (0.0, "wrong_arguments")


def test_a_filter_may_be_left_out_but_not_added_nor_changed():
    rules, wide, narrow = {"f": {"x": "filter"}}, calls(("f", {})), calls(("f", {"x": 1}))
    assert judge(rules, narrow, wide) == (1.0, "match")
    assert judge(rules, wide, narrow) == (0.0, "wrong_arguments")
    assert judge(rules, narrow, calls(("f", {"x": 2}))) == (0.0, "wrong_arguments")


FIND = Tool(
    name="find",
    parameters={
        "type": "object",
        "properties": {"email": {"type": ["string", "null"]}, "phone": {"type": "string"}, "tier": {"type": "string"}},
        "additionalProperties": False,
    },
)
SAID = (Message(role="user", content="I am E3012@mail.com, phone 555-4012. It is order O12."),)
CONTACT = {"find": {"email": "grounded:.+@.+", "phone": "grounded"}}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"email": "E3012@mail.com"}, "match"),
        ({"phone": "555-4012"}, "match"),
        ({"email": "E3012@mail.com", "phone": "555-4012"}, "match"),
        ({"phone": "555-4013"}, "wrong_arguments"),
        ({"email": "E3012@mail.com", "phone": "555-9999"}, "wrong_arguments"),
        ({"phone": "555-40"}, "wrong_arguments"),
        ({"phone": "4012"}, "wrong_arguments"),
        ({"phone": "mail.com"}, "wrong_arguments"),
        ({"phone": ""}, "wrong_arguments"),
        ({"email": "O12"}, "wrong_arguments"),
        ({"email": None}, "wrong_arguments"),
        ({}, "wrong_arguments"),
        ({"phone": 5554012}, "invalid_arguments"),
        ({"phone": "555-4012", "items": True}, "invalid_arguments"),
        ({"phone": "555-4012", "tier": "gold"}, "wrong_arguments"),
    ],
)
def test_grounded_arguments(arguments, expected):
    shown = calls(("find", {"email": "E3012@mail.com"}))
    found = judge(CONTACT, shown, calls(("find", arguments)), (FIND,), SAID)
    assert found == (float(expected == "match"), expected)


def test_a_demonstrated_value_needs_no_ground():
    shown = calls(("find", {"phone": "nowhere"}))
    assert judge(CONTACT, shown, shown, (FIND,), SAID) == (1.0, "match")


def test_what_is_seen():
    """Contents and arguments before the turn, JSON decoded; not reasoning, and not what comes after."""
    before = (
        Message(role="user", content="Find café 12."),
        Message(
            role="assistant",
            reasoning="perhaps 77",
            tool_calls=(ToolCall(name="f", arguments='{"city": "Z\\u00fcrich"}'),),
        ),
        Message(role="tool", content='{"id": "a\\nb", "n": 5, "O2": {"list": ["x y"]}, "cut": '),
        Message(role="tool", content='{"id": "say \\"hi\\"", "n": 5, "O2": {"list": ["x y"], "half": 2.5}}'),
    )
    text = seen(before)
    for value in ("cafe\u0301", 12, "Zürich", 5, 5.0, "O2", "x y", 'say "hi"', 2.5, ["x y", {"a": 12}], None, True, []):
        assert grounded(value, None, text), value
    for value in ("caf", 1, 77, "rich", "", " ", 2, 25, ["x y", "z"], "12 x"):
        assert not grounded(value, None, text), value
    assert grounded("never", {"enum": ["never"]}, text)
    assert grounded(9, {"default": 9}, text)
    assert grounded([9], {"items": {"enum": [9]}}, text)


tokens = st.text(alphabet="ab1", min_size=1, max_size=3)


@settings(max_examples=200, deadline=None)
@given(words=st.lists(tokens, max_size=6), joint=st.sampled_from(["-", ".", "@", "/", "+"]), value=tokens)
def test_a_value_is_grounded_as_a_whole_token(words, joint, value):
    assert grounded(value, None, " ".join(words)) == (value in words)
    assert grounded(value, None, ", ".join(words) + ".") == (value in words)
    assert grounded(value, None, joint.join(words)) == (words == [value])
    assert grounded(joint.join(words), None, f"({joint.join(words)})") == bool(words)


GET, LIST, WRITE = (
    Tool(
        name=name,
        parameters={"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]},
    )
    for name in ("get", "list", "write")
)
READ = {"read_only": ["get", "list"]}
THREE = (Message(role="user", content="Orders O1, O2, O3, O4, O5, O6 and O7 of C1"),)


@pytest.mark.parametrize(
    ("shown", "action", "expected"),
    [
        (["get O1", "list C1"], ["list C1"], "match"),
        (["get O1"], ["list C1", "get O1"], "match"),
        (["get O1", "get O2"], ["get O2", "get O3"], "match"),
        (["get O1"], ["get O2"], "wrong_arguments"),
        (["get O1"], ["list C1"], "wrong_tool"),
        (["get O1", "list C1"], ["get O2"], "missing_calls"),
        (["get O1"], ["get O1", "get O9"], "ungrounded"),
        (["get O1", "get O2"], ["get O1", "get O9"], "ungrounded"),
        (["get O1"], ["get O1", "list 1"], "ungrounded"),
        (["get O1"], ["get O1", "write O1"], "surplus_calls"),
        (["get O1", "write O1"], ["get O1"], "missing_calls"),
        (["write O1"], ["get O1"], "wrong_tool"),
        (["get O1"], ["get O1", "drop O1"], "unknown_tool"),
        (["get O1"], ["get O1", "list C1", "get O2"], "match"),
        (["get O1"], ["get O1"] * 2, "surplus_calls"),
        (["get O1", "get O2"], ["get O1"] * 2, "surplus_calls"),
        (["get O1", "get O1"], ["get O1"] * 2, "match"),
    ],
)
def test_look_ups_come_one_by_one_or_at_once(shown, action, expected):
    shown, action = (calls(*((text.split()[0], {"id": text.split()[1]}) for text in one)) for one in (shown, action))
    found = judge(READ, shown, action, (GET, LIST, WRITE), THREE)
    assert found == (float(expected == "match"), expected)
    if shown.calls != action.calls:
        assert judge({}, shown, action, (GET, LIST, WRITE), THREE)[0] == 0.0, "only by a rule"


def test_a_surplus_look_up_has_to_satisfy_its_schema():
    shown = calls(("get", {"id": "O1"}))
    for wrong in ({}, {"id": None}, {"id": 1}):
        action = calls(("get", {"id": "O1"}), ("list", wrong))
        assert judge(READ, shown, action, (GET, LIST), THREE) == (0.0, "invalid_arguments")
    broken = Action(calls=(*shown.calls, ToolCall(name="list", arguments="{")))
    assert judge(READ, shown, broken, (GET, LIST), THREE) == (0.0, "bad_arguments")
    assert judge(READ, shown, Action(text="O1?"), (GET, LIST), THREE) == (0.0, "wrong_kind")


def test_a_question_does_as_well_as_a_look_up_and_the_reverse():
    rules = {"or_ask": {"list": ["Which order is it?"]}}
    question, look_up = Action(text="Which order is it, please?"), calls(("list", {"id": "C1"}))
    tools = (GET, LIST)
    assert judge(rules, look_up, question, tools, THREE) == (1.0, "match")
    assert judge(rules, question, look_up, tools, THREE) == (1.0, "match")
    assert (
        judge({}, look_up, question, tools, THREE) == judge({}, question, look_up, tools, THREE) == (0.0, "wrong_kind")
    )
    refusal = Action(text="The order is 30 days old, so I cannot refund it.")
    assert judge(rules, look_up, refusal, tools, THREE) == (0.0, "wrong_kind")
    assert judge(rules, refusal, look_up, tools, THREE) == (0.0, "wrong_kind")
    assert judge(rules, calls(("get", {"id": "O1"})), question, tools, THREE) == (0.0, "wrong_kind")
    for wrong in (("list", {"id": "C2"}), ("list", {}), ("get", {"id": "O1"})):
        assert judge(rules, question, calls(wrong), tools, THREE) == (0.0, "wrong_kind")
    assert judge(rules, question, calls(("list", {"id": "C1"})), (GET,), THREE) == (0.0, "wrong_kind")
    assert judge(rules, question, calls(*[("list", {"id": "C1"})] * 2), tools, THREE) == (0.0, "wrong_kind")


WORDS = ["same", "exact", "ignore", "set", "path", "date", "case", "filter", "text>=0.5", "grounded"]
keys = st.sampled_from(["a", "b", "c"])
scalars = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=6)
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3), max_leaves=6
)
tables = st.dictionaries(
    keys, st.sampled_from(WORDS) | st.dictionaries(keys, st.sampled_from(WORDS[:-1]), max_size=2), max_size=3
)
SCHEMA = {
    "type": "object",
    "properties": {"a": {}, "b": {"uniqueItems": True}, "c": {"format": "date"}},
    "required": ["a"],
}
F = (Tool(name="f", parameters=SCHEMA),)


@settings(max_examples=150, deadline=None)
@given(table=tables, read_only=st.booleans(), arguments=st.dictionaries(keys, values, max_size=3), data=st.data())
def test_the_demonstration_passes_in_any_writing_of_its_json(table, read_only, arguments, data):
    rules = {"f": table, "read_only": ["f"] if read_only else []}
    order = data.draw(st.permutations(sorted(arguments)))
    raw = json.dumps({key: arguments[key] for key in order}, indent=data.draw(st.sampled_from([None, 2])))
    again = Action(calls=(ToolCall(name="f", arguments=f" {raw}\n"),))
    for tools in (F, None):
        assert judge(rules, calls(("f", arguments)), again, tools) == (1.0, "match")


@settings(max_examples=150, deadline=None)
@given(table=tables, arguments=st.dictionaries(keys, values, max_size=3), a=scalars, other=scalars)
def test_a_required_argument_never_lacks_and_an_exact_one_never_differs(table, arguments, a, other):
    shown = arguments | {"a": a}
    less = {key: value for key, value in shown.items() if key != "a"}
    assert judge({"f": table}, calls(("f", shown)), calls(("f", less)), F) == (0.0, "invalid_arguments")
    changed = calls(("f", shown | {"a": other}))
    alike = type(a) is type(other) and a == other
    assert judge({"f": table | {"a": "exact"}}, calls(("f", shown)), changed, F)[0] == float(alike)


def test_the_verifier_is_its_rules_not_their_place(tmp_path):
    text = '[f]\nx = "set"\ny = "case"\n'
    (tmp_path / "one.toml").write_text(text)
    (tmp_path / "two.toml").write_text('# the same\n[f]\ny = "case"\nx = "set"\n')
    (tmp_path / "other.toml").write_text(text.replace("case", "path"))
    one, two, other, none = (
        load_verifier(f"tool_call:rules={tmp_path / name}.toml") if name else load_verifier("tool_call")
        for name in ("one", "two", "other", "")
    )
    assert one == two
    assert hash(one) == hash(two)
    assert len({verifier_id(verifier) for verifier in (one, two, other, none)}) == 3
    assert one.settings["rules"] == {"f": {"x": "set", "y": "case"}}
    assert pickle.loads(pickle.dumps(one)) == replace(one) == one
    auto = load_verifier(f"auto:rules={tmp_path / 'one.toml'},min_overlap=0.5")
    assert auto.tool_call == one
    (tmp_path / "one.toml").unlink()
    assert one(at(calls(("f", {"x": [1, 2]}))), calls(("f", {"x": [2, 1]}))).value == 1.0


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ('[f]\nx = "sets"', r"\[f\] x = 'sets': no rule; use one of same, exact"),
        ("[f]\nx = 5", r"\[f\] x = 5: no rule"),
        ('[f]\nx = "text>=1.5"', "no rule"),
        ('[f.x]\ny = "same "', r"\[f.x\] y = 'same '"),
        ('[f.x]\ny = "grounded"', "only a whole argument"),
        ('[f]\nx = "grounded:("', "no regular expression"),
        ('read_only = "f"', "read_only: write"),
        ("read_only = [1]", "read_only: write"),
        ('[or_ask]\nf = "Which?"', "or_ask: write"),
        ('f = "same"', "f: write"),
        ("[f", "no TOML"),
        ("{", "no TOML"),
    ],
)
def test_a_wrong_rules_file_is_one_line_that_says_where(tmp_path, text, hint):
    path = tmp_path / "rules.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=hint) as caught:
        load_verifier(f"tool_call:rules={path}")
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    for place in (tmp_path / "nowhere.toml", tmp_path):
        with pytest.raises(ConfigError, match=r"cannot be read.*give a TOML file"):
            load_verifier(f"auto:rules={place}")


def test_the_example_of_the_page_is_a_rules_file(tmp_path):
    page = (Path(__file__).parents[1] / "docs" / "verifiers.md").read_text()
    path = tmp_path / "rules.toml"
    path.write_text(re.search(r"```toml\n(.*?)```", page, re.DOTALL)[1])
    rules = load_verifier(f"auto:rules={path}").tool_call.settings["rules"]
    assert rules["book"] == {"tags": "set", "guest": {"name": "case"}}
    words = re.findall(
        r"^\| `([a-z]+)(?:>=X)?` \|", page[page.index("| rule |") : page.index("A value *occurs")], re.MULTILINE
    )
    assert len(words) == 10
    for word in words:
        path.write_text(f'[f]\nx = "{word if word != "text" else "text>=0.5"}"')
        load_verifier(f"tool_call:rules={path}")


def test_the_actions_of_a_group_share_the_text_of_the_state():
    verifier = ToolCallVerifier(rules=json.dumps(CONTACT))
    candidate = at(
        calls(("find", {"email": "E3012@mail.com"})), (FIND,), (Message(role="user", content="555-1"), *SAID)
    )
    before = seen.cache_info().misses
    for _ in range(8):
        assert verifier(candidate, calls(("find", {"phone": "555-4012"}))).value == 1.0
    assert seen.cache_info().misses == before + 1


def test_the_rules_of_the_desk_take_the_other_styles_and_read_what_does_not_write():
    verifier = load_verifier(f"auto:rules={DESK_RULES}")
    assert set(verifier.tool_call.settings["rules"]["read_only"]) == {tool.name for tool in DESK_TOOLS} - WRITE_TOOLS
    env, judged = DeskEnvironment(), 0
    for task in draw_tasks("validation", 6, 3):
        for name in STYLES:
            env.reset(task.id)
            while not env.done:
                shown, other = Expert(env, STYLES["plain"]).act(), Expert(env, STYLES[name]).act()
                if shown.calls:
                    verdict = verifier(at(shown, env.state.tools, env.state.messages), other)
                    assert verdict.value == 1.0, verdict
                    judged += 1
                env.step(shown)
    assert judged > 100


def test_explain_shows_the_rule_of_every_argument_and_its_origin(tmp_path, capsys):
    parameters = {
        "type": "object",
        "properties": {
            "day": {"type": "string", "format": "date"},
            "tags": {"type": "array", "uniqueItems": True, "items": {"type": "string"}},
            "guest": {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}},
            "rooms": {"type": "array", "items": {"type": "object", "properties": {"beds": {}}}},
            "note": {"type": "string"},
        },
    }
    tool = {"type": "function", "function": {"name": "book", "parameters": parameters}}
    ping = {"type": "function", "function": {"name": "ping", "parameters": {"type": "object", "properties": {}}}}
    call = {"id": "1", "type": "function", "function": {"name": "ping", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "pong"},
    ]
    data, run, rules = tmp_path / "data.jsonl", tmp_path / "run", tmp_path / "rules.toml"
    data.write_text(json.dumps({"messages": messages, "tools": [tool, ping]}) + "\n")
    rules.write_text('read_only = ["ping"]\n[book]\nguest.name = "case"\nextra = "ignore"\n["*"]\nnote = "text>=0.8"\n')
    ingest(IngestConfig(paths=(data,), run=run))
    book, other = explain(ExplainConfig(run=run, verifier=f"auto:rules={rules}")).tools
    assert [(one.argument, one.rule, one.origin) for one in book.rules] == [
        ("day", "date", "schema"),
        ("tags", "set", "schema"),
        ("guest.name", "case", "file"),
        ("guest.age", "same", "default"),
        ("rooms[].beds", "same", "default"),
        ("note", "text>=0.8", "file"),
        ("extra", "ignore", "file, but the schema has no such argument"),
    ]
    assert (other.name, other.read_only, other.rules) == ("ping", True, ())
    rules.write_text('read_only = ["pong"]\n[bok]\nday = "ignore"\n')
    strange = explain(ExplainConfig(run=run, verifier=f"auto:rules={rules}"))
    assert strange.strange == ("bok", "pong")
    assert strange.lines()[0] == "warning: the rules name bok, and no trajectory has such a tool"
    assert main(["explain", "--run", str(run), "--tool", "book"]) == 0
    assert re.search(r"^book\n +day +date +schema$", capsys.readouterr().out, re.MULTILINE)
    with pytest.raises(MissingError, match="no trajectory tells of nosuch; it has book, ping"):
        explain(ExplainConfig(run=run, tool="nosuch"))
    with pytest.raises(ConfigError, match="use auto or tool_call"):
        explain(ExplainConfig(run=run, verifier="message"))
