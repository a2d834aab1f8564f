"""Tool-call syntaxes: what is read, what is refused and why, round trips, and no text that raises or takes long."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pivotrl.actions import SYNTAXES, ParseFailure, detect, parse
from pivotrl.errors import ConfigError
from pivotrl.storage import dump_json
from pivotrl.types import Action, Tool, ToolCall

MARKS = [
    *("<tool_call>", "</tool_call>", "<think>", "</think>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<|python_tag|>"),
    *("Action: a", "Action Input:", "\nObservation: ", "[f(x=1)", "(", ")]", "'"),
    *("<function=", "<function=a>", "</function>", "<parameter=", "<parameter=b>", "</parameter>", "[", "]", ";", ","),
    *(
        '{"name": "a", "arguments": {}}',
        '{"name": "a", "parameters": {}}',
        '{"name":',
        '"name"',
        "{",
        "}",
        '"',
        "\\ud800",
    ),
    *(
        '{"name": "\\ud800", "arguments": "{}"}',
        '{"name": "a", "arguments": "{\\"x\\": \\"\\ud800\\"}"}',
        "\n",
        " ",
        "5",
    ),
]

READ_ONLY = ("react", "pythonic")
"""Written by no template."""
names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.-]{0,12}", fullmatch=True)
words = st.text("abc XYZ.,!?é中\n0123", max_size=30).map(str.strip)
texts = st.none() | words.filter(bool)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
strings = st.text('ab <>&"\\/{}[]\n\té中', max_size=12)
values = st.recursive(
    scalars | strings,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(strings, inner, max_size=3),
    max_leaves=6,
)


def is_free_text(value: object) -> bool:
    """Whether a string keeps its type in the XML syntax, which does not quote."""
    if not isinstance(value, str):
        return True
    try:
        return isinstance(json.loads(value.strip()), str)
    except ValueError:
        return True


def calls_of(keys, members, optional):
    raw = st.dictionaries(keys, members, max_size=4).map(lambda value: json.dumps(value, ensure_ascii=False))
    call = st.builds(ToolCall, name=names, arguments=(st.none() | raw) if optional else raw)
    return st.lists(call, min_size=1, max_size=3).map(tuple)


def actions_for(syntax):
    if syntax == "xml":
        calls = calls_of(names, values.filter(is_free_text), optional=False)
    elif syntax in READ_ONLY:
        return st.builds(Action, text=words.filter(bool), reasoning=st.none() | words.filter(bool))
    else:
        calls = calls_of(strings, values, optional=True)
    return st.builds(Action, text=texts, reasoning=st.none() | words.filter(bool), calls=calls) | st.builds(
        Action, text=words.filter(bool)
    )


def written(action, syntax):
    """The text in which a model writes an action, as the template of the syntax does."""

    def told(one, key="arguments"):
        members = {"name": json.dumps(one.name, ensure_ascii=False), key: one.arguments, "id": one.id and f'"{one.id}"'}
        return "{" + ", ".join(f'"{name}": {value}' for name, value in members.items() if value is not None) + "}"

    def tagged(one):
        lines = [f"<function={one.name}>"]
        for key, value in json.loads(one.arguments).items():
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            lines += [f"<parameter={key}>", text, "</parameter>"]
        return "\n".join([*lines, "</function>"])

    text, calls = action.text or "", action.calls
    if calls and syntax == "llama_json":
        tag = "<|python_tag|>" if text or any(one.arguments is None for one in calls) else ""
        text = text + tag + "; ".join(told(one, "parameters") for one in calls)
    elif calls and syntax == "mistral":
        text += f"[TOOL_CALLS][{', '.join(map(told, calls))}]"
    elif calls:
        blocks = [f"<tool_call>\n{(tagged if syntax == 'xml' else told)(one)}\n</tool_call>" for one in calls]
        text = "\n".join([text, *blocks] if text else blocks)
    return text if action.reasoning is None else f"<think>\n{action.reasoning}\n</think>\n\n{text}"


def call(name="f", arguments='{"x": 1}', identity=None):
    return ToolCall(name=name, arguments=arguments, id=identity)


def reason(text, syntax):
    failure = parse(text, syntax)
    assert isinstance(failure, ParseFailure), failure
    return failure.reason


@pytest.mark.parametrize("syntax", SYNTAXES)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_what_is_written_is_read_back(syntax, data):
    action = data.draw(actions_for(syntax))
    assert parse(written(action, syntax), syntax) == action


@pytest.mark.parametrize("syntax", SYNTAXES)
@settings(max_examples=300, deadline=None)
@given(pieces=st.lists(st.sampled_from(MARKS) | st.text(max_size=4), max_size=14))
def test_no_text_raises_and_every_action_can_be_stored(syntax, pieces):
    result = parse("".join(pieces), syntax)
    assert isinstance(result, Action | ParseFailure)
    dump_json(result)
    if isinstance(result, Action):
        assert result.text or result.calls
        assert all(one.name.strip() for one in result.calls)
        assert all(one.arguments is None or one.parsed.value is not None for one in result.calls)
        assert result.text is None or "<think>" not in result.text


@pytest.mark.parametrize("syntax", SYNTAXES)
@pytest.mark.parametrize("mark", [*MARKS, "<tool_call>{", "[TOOL_CALLS][", '<tool_call>{"name":"a"}</tool_call>'])
def test_long_texts_take_linear_time(syntax, mark):
    text = mark * (200_000 // len(mark))
    start = time.process_time()
    parse(text, syntax)
    assert time.process_time() - start < 5


def test_hermes_reads_text_and_parallel_calls_and_keeps_the_raw_arguments():
    raw = '{"b" : 1,\n "a": "</tool_call> é \\u00e9", "n": 9007199254740993}'
    first = f'<tool_call>\n{{"arguments": {raw}, "name": "f"}}\n</tool_call>'
    text = f'On it.\n{first}\n<tool_call>{{"name": "g"}}</tool_call>\n'
    assert parse(text, "hermes") == Action(text="On it.", calls=(call("f", raw), call("g", None)))
    held_as_string = '<tool_call>{"name": "f", "arguments": "{\\"x\\": 1}"}</tool_call>'
    assert parse(held_as_string, "hermes") == Action(calls=(call(),))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "empty"),
        (" \n ", "empty"),
        ("<think>done</think>\n", "empty"),
        ("<think>on and on", "unclosed_thinking"),
        ("a</think>b <think> c", "unclosed_thinking"),
        ("<think>a</think>b<think>c</think>d", "stray_thinking"),
        ('<tool_call>{"name": "f", "arg', "unclosed_call"),
        ('<tool_call>{"name": "f", "arguments": {}}', "unclosed_call"),
        ("<tool_call>", "unclosed_call"),
        ('{"name": "f"}</tool_call>', "unopened_call"),
        ("<tool_call>{'name': 'f'}</tool_call>", "invalid_json"),
        ('<tool_call>{"name": "f", "arguments": {"x": NaN}}</tool_call>', "invalid_json"),
        ('<tool_call>{"name": "f", "arguments": {"x": 1},}</tool_call>', "invalid_json"),
        ('<tool_call>{"name": "\\ud800"}</tool_call>', "invalid_json"),
        ("<tool_call>[]</tool_call>", "invalid_json"),
        ('<tool_call>{"arguments": {}}</tool_call>', "no_name"),
        ('<tool_call>{"name": " ", "arguments": {}}</tool_call>', "no_name"),
        ('<tool_call>{"name": 5, "arguments": {}}</tool_call>', "no_name"),
        ('<tool_call>{"name": "f", "arguments": [1]}</tool_call>', "arguments_not_object"),
        ('<tool_call>{"name": "f", "arguments": null}</tool_call>', "arguments_not_object"),
        ('<tool_call>{"name": "f", "arguments": "x"}</tool_call>', "arguments_not_object"),
        ('<tool_call>{"name": "f"}</tool_call> and more', "text_after_call"),
        ('<tool_call>{"name": "f"}</tool_call> and <tool_call>{"name": "f"}</tool_call>', "text_after_call"),
        ('<tool_call>{"name": "f"} {"name": "f"}</tool_call>', "unclosed_call"),
    ],
)
def test_hermes_refuses(text, expected):
    assert reason(text, "hermes") == expected


def test_thinking_is_split_off():
    assert parse("<think>\nhm\n</think>\n\nHi.", "hermes") == Action(text="Hi.", reasoning="hm")
    assert parse("hm, <tool_call>?\n</think>Hi.", "hermes") == Action(text="Hi.", reasoning="hm, <tool_call>?")
    assert parse("<think></think>Hi.", "hermes") == Action(text="Hi.")


def test_a_closing_think_tag_inside_arguments_is_an_argument():
    text = '<tool_call>{"name": "f", "arguments": {"x": "a</think>b"}}</tool_call>'
    assert parse(text, "hermes") == Action(calls=(call("f", '{"x": "a</think>b"}'),))


def test_xml_reads_values_by_json_or_by_the_tools():
    text = (
        "Sure.\n<tool_call>\n<function=f>\n<parameter=zip>\n01234\n</parameter>\n<parameter=n>\n5\n</parameter>\n"
        '<parameter=s>\n"q"\n</parameter>\n<parameter=code>\nif a:\n    b\n\n</parameter>\n</function>\n</tool_call>'
    )
    action = parse(text, "xml")
    assert isinstance(action, Action)
    assert action.text == "Sure."
    assert action.calls[0].parsed.value == {"zip": "01234", "n": 5, "s": '"q"', "code": "if a:\n    b\n"}
    tools = (Tool(name="f", parameters={"type": "object", "properties": {"n": {"type": "string"}}}),)
    typed = parse(text, "xml", tools)
    assert isinstance(typed, Action)
    assert typed.calls[0].parsed.value == {"zip": "01234", "n": "5", "s": '"q"', "code": "if a:\n    b\n"}


def test_xml_without_wrapper_and_several():
    bare = "<function=f>\n</function>\n<function=g><parameter=x>1</parameter></function>"
    assert parse(bare, "xml") == Action(calls=(call("f", "{}"), call("g", '{"x": 1}')))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<tool_call><function=f><parameter=x>1", "unclosed_call"),
        ("<tool_call><function=f></function>", "unclosed_call"),
        ("<tool_call><function=f", "unclosed_call"),
        ("<function=f>", "unclosed_call"),
        ("<tool_call><function=f><parameter=x>1</parameter>", "unclosed_call"),
        ("<function=></function>", "no_name"),
        ('<tool_call>{"name": "f"}</tool_call>', "malformed_call"),
        ("<function=f>junk</function>", "malformed_call"),
        ("<function=f><parameter=x>1</parameter><parameter=x>2</parameter></function>", "duplicate_parameter"),
        ("<function=f></function> more", "text_after_call"),
        ("hello </function>", "unopened_call"),
    ],
)
def test_xml_refuses(text, expected):
    assert reason(text, "xml") == expected


def test_llama_json():
    one = Action(calls=(call(),))
    assert parse('{"name": "f", "parameters": {"x": 1}}', "llama_json") == one
    assert parse('<|python_tag|>{"type": "function", "name": "f", "arguments": {"x": 1}}', "llama_json") == one
    two = Action(calls=(call(), call("g", "{}")))
    for separator in ("; ", "\n", ";\n"):
        joined = f'{{"name": "f", "parameters": {{"x": 1}}}}{separator}{{"name": "g", "parameters": {{}}}}'
        assert parse(joined, "llama_json") == two
    for message in ('{"city": "Paris"}', "{curly} talk", '{"name": "Ann", "age": 5}', "I call f"):
        assert parse(message, "llama_json") == Action(text=message)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"name": "f", "param', "invalid_json"),
        ('{"name": "f", "parameters": {}} so', "text_after_call"),
        ('{"name": "f", "parameters": {}}; {"city": 1}', "no_name"),
        ("<|python_tag|>", "no_call"),
        ("<|python_tag|>print(1)", "invalid_json"),
        ('{"name": "f", "parameters": 5}', "arguments_not_object"),
    ],
)
def test_llama_json_refuses(text, expected):
    assert reason(text, "llama_json") == expected


def test_mistral_reads_both_forms():
    array = 'Ok.[TOOL_CALLS] [{"name": "f", "arguments": {"x": 1}, "id": "abcdefghi"}, {"name": "g", "arguments": {}}]'
    assert parse(array, "mistral") == Action(text="Ok.", calls=(call(identity="abcdefghi"), call("g", "{}")))
    named = '[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{"x": 1}[TOOL_CALLS]g[ARGS]{}'
    assert parse(named, "mistral") == Action(calls=(call(identity="abcdefghi"), call("g", "{}")))
    with_id = Action(calls=(call(identity="abcdefghi"),))
    assert parse(written(with_id, "mistral"), "mistral") == with_id


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[TOOL_CALLS]", "unclosed_call"),
        ("[TOOL_CALLS][", "unclosed_call"),
        ('[TOOL_CALLS][{"name": "f", "arguments": {}}', "unclosed_call"),
        ("[TOOL_CALLS][]", "no_call"),
        ('[TOOL_CALLS][{"name": "f"}] more', "text_after_call"),
        ('[TOOL_CALLS][{"name": "f"} {"name": "f"}]', "invalid_json"),
        ("[TOOL_CALLS]two words[ARGS]{}", "no_name"),
        ("[TOOL_CALLS]f[ARGS]{", "invalid_json"),
    ],
)
def test_mistral_refuses(text, expected):
    assert reason(text, "mistral") == expected


def test_an_unknown_syntax_names_the_known_ones():
    with pytest.raises(ConfigError, match="hermes, xml, llama_json, mistral"):
        parse("hi", "nosuch")


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ('{{- \'\\n<tool_call>\\n{"name": "\' }}{{- tool_call.name }}', "hermes"),
        ("{{- '<tool_call>\\n<function=' + tool_call.name + '>\\n' }}", "xml"),
        ('{{- "[TOOL_CALLS] [" }}', "mistral"),
        ('{{- "<|python_tag|>" + tool_call.name + ".call(" }}', "llama_json"),
        ("{{- '{\"name\": \"' + tool_call.name + '\", ' }}{{- '\"parameters\": ' }}", "llama_json"),
        ("{{ message.content }}", "hermes"),
    ],
)
def test_detect(template, expected):
    assert detect(template) == expected


def test_a_failure_reads_as_one_line():
    assert str(ParseFailure(reason="no_name", detail="a call has no name")) == "no_name: a call has no name"
    assert str(ParseFailure(reason="empty")) == "empty"


def test_xml_reads_what_a_harness_stopped_before_the_last_tag():
    """OpenHands stops the model at `</function` and puts the tag back."""
    assert parse("<function=f>\n<parameter=x>1</parameter>\n", "xml") == Action(calls=(call(),))


@pytest.mark.parametrize(
    ("text", "said", "name", "arguments"),
    [
        ('Thought: look\nAction: search\nAction Input: {"q": 1}\nObservation: no', "Thought: look", "search", {"q": 1}),
        ("Action: search\nAction Input: two words", None, "search", {"input": "two words"}),
        ("Thought:\nI think\n\nAction:\nclick[B07 [x]]", "Thought:\nI think", "click", {"input": "B07 [x]"}),
        ("Thought: t\nAction: get_relations(Gas (x), #0)", "Thought: t", "get_relations", {"input": "Gas (x), #0"}),
        ("THOUGHT: t\nACTION: go to shelf 1", "THOUGHT: t", "action", {"input": "go to shelf 1"}),
        ("Think: t\n\nAct: bash\n\n```bash\nls | wc\n```", "Think: t", "bash", {"command": "ls | wc"}),
        ("Action: Operation\n```sql\nSELECT 1;\n```", None, "Operation", {"input": "SELECT 1;"}),
        ("Act: finish", None, "action", {"input": "finish"}),
    ],
)
def test_react_forms(text, said, name, arguments):
    action = parse(text, "react")
    assert (action.text, action.calls[0].name, action.calls[0].parsed.value) == (said, name, arguments)


def test_react_refuses_two_actions_and_none():
    assert reason("Action: a[b]\nThought: c\nAction: d[e]", "react") == "text_after_call"
    assert reason("Action: ", "react") == "no_call"
    assert reason("Action: \nAction Input: x", "react") == "no_name"
    assert parse("Action: a[b]\nObservation: c\nAction: d[e]", "react").calls[0].name == "a"


def test_react_thinking_that_the_template_opened_is_thinking():
    said = parse("I might write\nAction: rm\nAction Input: all\nbut no.</think>It is done.", "react")
    assert (said.calls, said.text) == ((), "It is done.")
    called = parse("Action: a?</think>Action: look[b]", "react")
    assert [call.name for call in called.calls] == ["look"]


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("[Get Weather(city='Rome')]", [("Get Weather", {"city": "Rome"})]),
        ("[v1/a.b(x=[1, -2.5], y={'k': true}), c()]", [("v1/a.b", {"x": [1, -2.5], "y": {"k": True}}), ("c", {})]),
        ("[f(a=1,)]", [("f", {"a": 1})]),
        ("[f(a=1),]", [("f", {"a": 1})]),
        ("[f(a=[1, ], ), g(), \n]", [("f", {"a": [1]}), ("g", {})]),
        ('[f(q="it\'s (a) [b]", n=None, m=null)]\n', [("f", {"q": "it's (a) [b]", "n": None, "m": None})]),
    ],
)
def test_pythonic_calls(text, calls):
    assert [(one.name, one.parsed.value) for one in parse(text, "pythonic").calls] == calls


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[f(1)]", "malformed_call"),
        ("[f(**x)]", "malformed_call"),
        ("[f(**{'a': 1})]", "malformed_call"),
        ("[f(x=open('a'))]", "malformed_call"),
        ("[f(x={1, 2})]", "malformed_call"),
        ("[f(x=1e999)]", "malformed_call"),
        ("[(x=1)]", "no_name"),
        ("[f(,)]", "malformed_call"),
        ("[f(x='(1)]", "unclosed_call"),
        ("[f(x=1) g(x=1)]", "malformed_call"),
        ("[f(x='\\d', y=z)]", "malformed_call"),
        ("[f(x=" + "[" * 5000 + "]" * 5000 + ")]", "malformed_call"),
    ],
)
def test_pythonic_refuses(text, expected):
    assert reason(text, "pythonic") == expected


def test_hermes_python_reads_literals_and_json():
    text = "<tool_call>\n{'arguments': {'on': True, 'x': \"it's\"}, 'name': 'f'}\n</tool_call>"
    assert parse(text, "hermes_python") == Action(calls=(call(arguments='{"on": true, "x": "it\'s"}'),))
    assert reason(text, "hermes") == "invalid_json"
    assert reason("<tool_call>{'name': open}</tool_call>", "hermes_python") == "malformed_call"
    assert reason("<tool_call>{'name'", "hermes_python") == "unclosed_call"
