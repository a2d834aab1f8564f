"""`search`: other words for the same query, other addresses of the same document; nothing else is accepted."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pivotrl.errors import ConfigError
from pivotrl.types import Action, Candidate, Completion, Message, Source, Tool, ToolCall, Trajectory
from pivotrl.verifiers import verify
from pivotrl.verifiers.search import SearchVerifier, answer, canonical

VERIFIER = SearchVerifier()
SHARED = Path(os.environ.get("PIVOTRL_SHARED", Path(__file__).parents[2] / "shared" / "data"))
TRACES = SHARED / "trajectories" / "search_traces" / "webdancer_sample_traj.jsonl"
VISIT = Tool(
    name="visit",
    parameters={
        "type": "object",
        "properties": {"url": {"type": "array", "items": {"type": "string"}}, "goal": {"type": "string"}},
        "required": ["url", "goal"],
    },
)


def call(name, raw=None, **arguments):
    return ToolCall(name=name, arguments=json.dumps(arguments) if raw is None else raw)


def action(side):
    if isinstance(side, str):
        return Action(text=side)
    return side if isinstance(side, Action) else Action(calls=side if isinstance(side, tuple) else (side,))


def judge(theirs, ours, tools=None, verifier=VERIFIER):
    """(value, reason) through `verify`; a text is a message, a call or a tuple of calls a turn of calls."""
    one, other = action(theirs), action(ours)
    messages = (
        Message(role="user", content="Find it."),
        Message(role="assistant", content=one.text, tool_calls=one.calls),
    )
    trajectory = Trajectory(id="t", messages=messages, source=Source(file="t", format="openai"), tools=tools)
    completion = Completion(action=other, text="", finish_reason="stop")
    verdict = verify(verifier, Candidate(trajectory=trajectory, turn=1), completion)
    return verdict.value, verdict.reason


def search(query):
    return call("search", query=query)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("Epsom Derby winner 1964", "1964 winner of the Epsom derby"),
        ("Who led the Parliamentary forces?", "who led parliamentary forces"),
        ('"Santa Claus" horse', "horse “santa  claus”"),
        ("derby site:nytimes.com -football", "-football site:NYTimes.com Derby"),
        ("ｆｕｌｌ width", "full width"),
        ("天気 東京", "東京 天気"),
        (["a b c", "d e f"], ["F e d", "c b a"]),
        ("who won the election without Trump", "election without Trump: who won?"),
        ("hotels without the Hilton", "without any Hilton: hotels"),
        ("python sort a list in ascending order", "sort python list ascending"),
        ("cheap hotels Paris Louvre museum walk breakfast", "budget hotels Paris Louvre museum walk breakfast"),
    ],
)
def test_the_same_query_in_other_words(theirs, ours):
    assert judge(search(theirs), search(ours)) == (1.0, "match")


@pytest.mark.parametrize(
    ("theirs", "ours", "reason"),
    [
        ("Epsom Derby winner 1964", "Epsom Derby winner", "missing_fact"),
        ("Epsom Derby winner 1964", "Epsom Derby winner 1965", "missing_fact"),
        ("Epsom Derby winner", "Epsom Derby winner 1964", "surplus_fact"),
        ('"Santa Claus" horse', "Santa Claus horse", "missing_fact"),
        ("derby site:nytimes.com", "derby site:bbc.com", "missing_fact"),
        ("derby -football", "derby football", "missing_fact"),
        ("weather in Paris", "weather in London", "low_overlap"),
        ("weather Paris", "weather Paris hotels flights food museums", "low_overlap"),
        (["weather paris", "hotels rome"], ["weather paris"], "low_overlap"),
        (["weather paris"], [f"weather paris word{chr(97 + at)}" for at in range(20)], "low_overlap"),
        ("who won the election without Trump", "who won the election with Trump", "missing_fact"),
        ("who won the election with Trump", "who won the election without Trump", "surplus_fact"),
        ("who won, not Trump but Biden", "who won, not Biden but Trump", "missing_fact"),
        ("non-smoking hotels Paris center", "smoking hotels Paris center", "missing_fact"),
        ("derby −football", "derby football", "missing_fact"),
        ("git push does not work", "git push does work", "missing_fact"),
        ("git push doesn’t work", "git push does work", "missing_fact"),
        ("python sort list ascending", "python sort list descending", "negation"),
        ("how to sort rows of a pandas data frame ascending", "sort rows pandas data frame descending how", "negation"),
        ("list of all legal ways to sell used car parts", "all illegal ways to sell used car parts list", "negation"),
        ("cheap hotels Paris museum", "cheap hotels Rome museum", "low_overlap"),
        ("cheap hotels near Paris museum", "cheap hotels", "low_overlap"),
        ("?!", "anything", "low_overlap"),
        ("x", "", "wrong_arguments"),
        ("x", ["x", 1.5], "wrong_arguments"),
        ("x", ["x"], "wrong_arguments"),
    ],
)
def test_another_query(theirs, ours, reason):
    assert judge(search(theirs), search(ours)) == (0.0, reason)


def test_documents():
    same = [
        "https://www.Example.com/a/b?x=1&y=2",
        "http://example.com/a/b/?y=2&x=1#part",
        "example.com/a/b?x=1&y=2",
        "https://example.com:443/a/b?utm_source=z&x=1&fbclid=q&y=2",
        "https://example.com/a/%62?x=1&y=2",
    ]
    assert len({canonical(url) for url in same}) == 1
    for url in same:
        assert judge(call("visit", url=same[0]), call("visit", url=url)) == (1.0, "match")
    for other in (
        "https://example.com/a/b?x=1",
        "https://example.com/a/b?x=1&y=3",
        "https://example.com/a/c?x=1&y=2",
        "https://example.com/A/b?x=1&y=2",
        "https://example.org/a/b?x=1&y=2",
        "https://en.example.com/a/b?x=1&y=2",
        "https://example.com:8080/a/b?x=1&y=2",
        "ftp://example.com/a/b?x=1&y=2",
        "https://example.com@evil.com/a/b?x=1&y=2",
        "https://example.com/#/a/b?x=1&y=2",
        "https://example.com/a%2Fb?x=1&y=2",
        "https://example.com/a%252Fb?x=1&y=2",
        "https://example.com/a/b?x=1&y=2#L5",
    ):
        assert judge(call("visit", url=same[0]), call("visit", url=other)) == (0.0, "wrong_target"), other
    assert canonical("https://example.com/#/a") != canonical("https://example.com/#/b")
    lines = ["L5", "L900", "L5-L9", "lines-5", "line-7", ""]
    assert len({canonical(f"https://example.com/a.py#{one}") for one in lines}) == len(lines)
    assert canonical("https://example.com/a#Later") == canonical("https://example.com/a")
    assert canonical("https://example.com/a%2fb/") == canonical("https://example.com/a%2Fb")
    assert canonical("https://example.com/a%ff") != canonical("https://example.com/a%fe")
    assert judge(call("open", id=3), call("open", id=3)) == (1.0, "match")
    assert judge(call("open", id=3), call("open", id=4)) == (0.0, "wrong_target")
    several = call("visit", url=["https://a.com", "https://b.com"])
    assert judge(several, call("visit", url=["http://b.com/", "www.a.com"])) == (1.0, "match")
    assert judge(several, call("visit", url=["https://a.com"])) == (0.0, "wrong_target")
    assert judge(several, call("visit", url=["https://a.com", "https://b.com", "https://c.com"])) == (
        0.0,
        "wrong_target",
    )


def test_other_arguments_and_schemas_are_those_of_tool_call():
    theirs = call("visit", url=["https://a.com"], goal="find the date of birth")
    assert judge(theirs, call("visit", url=["http://a.com/"], goal="When was she born?"), (VISIT,)) == (1.0, "match")
    assert judge(theirs, call("visit", url=["http://a.com/"]), (VISIT,)) == (0.0, "invalid_arguments")
    assert judge(theirs, call("visit", url=["http://a.com/"])) == (0.0, "wrong_arguments")
    assert judge(theirs, call("visit", url="http://a.com/", goal="x"), (VISIT,)) == (0.0, "invalid_arguments")
    assert judge(theirs, call("visits", url=["http://a.com/"], goal="x"), (VISIT,)) == (0.0, "unknown_tool")
    assert judge(theirs, call("visit", raw="{"), (VISIT,)) == (0.0, "bad_arguments")
    assert judge(call("search", query="a b", page=2), call("search", query="b a", page=2.0)) == (1.0, "match")
    assert judge(call("search", query="a b", page=2), call("search", query="b a", page=3)) == (0.0, "wrong_arguments")
    assert judge(search("a"), call("search", queries="a")) == (0.0, "wrong_arguments")


def test_parallel_calls_pair_off():
    one, two = call("web", query="paris weather"), call("wiki", query="paris weather")
    spelled = call("web", query="weather paris"), call("wiki", query="Weather in Paris")
    assert judge((one, two), spelled[::-1]) == (1.0, "match")
    assert judge((one, two), (one, one)) == (0.0, "wrong_tool")
    assert judge((one, two), (one,)) == (0.0, "missing_calls")
    assert judge((one,), (one, two)) == (0.0, "surplus_calls")
    close = call("web", query="a b c d"), call("web", query="a b c d e")
    assert judge(close, (call("web", query="a b c d e f"), call("web", query="c d b a"))) == (1.0, "match")


def test_tags():
    theirs = "<think>I look for <search>x</search></think>\n<search> Derby winner 1964 </search>"
    assert judge(theirs, "<search>winner, derby 1964</search>") == (1.0, "match")
    assert judge(theirs, "<think>so</think><search>winner, derby 1964</search>") == (1.0, "match")
    assert judge(theirs, "<search>winner, derby 1965</search>") == (0.0, "missing_fact")
    assert judge(theirs, "<search>winner, derby 1964") == (0.0, "wrong_kind")
    assert judge(theirs, "winner, derby 1964") == (0.0, "wrong_kind")
    assert judge(theirs, "<answer>Santa Claus</answer>") == (0.0, "wrong_tool")
    assert judge(theirs, "<search>Derby winner 1964</search><search>x</search>") == (0.0, "surplus_calls")
    assert judge(theirs, call("search", query="Derby winner 1964")) == (0.0, "wrong_tool")
    assert judge("<visit>https://a.com</visit>", "<visit>a.com/</visit>", (VISIT,)) == (1.0, "match")


@pytest.mark.parametrize(
    ("theirs", "ours", "value"),
    [
        ("The Epsom Derby", "epsom derby.", 1.0),
        ("1,234", "1234", 1.0),
        ("U.S.", "US", 1.0),
        ("Jean-Paul", "JeanPaul", 1.0),
        ("3.5", "35", 0.0),
        ("-5", "5", 0.0),
        ("C++", "C", 0.0),
        ("C#", "C", 0.0),
        ("5%", "5", 0.0),
        ("The The", "The", 0.0),
        ("the", "an", 0.0),
        ("Epsom", "Epsom Derby", 0.0),
        ("x", " ", 0.0),
    ],
)
def test_answers(theirs, ours, value):
    assert judge(f"<answer>{theirs}</answer>", f"<answer>{ours}</answer>")[0] == value
    assert judge(call("finish", answer=theirs), call("finish", answer=ours))[0] == value


@pytest.mark.parametrize(
    "theirs",
    [
        "It is Epsom.",
        call("bash", command="ls"),
        (search("x"), call("bash", command="ls")),
        call("search", raw="{"),
        search(" "),
        search([]),
    ],
    ids=["message", "other", "mixed", "broken", "blank", "none"],
)
def test_other_turns_are_left_to_other_verifiers(theirs):
    assert judge(theirs, theirs) == (None, "not_applicable")


def test_settings():
    assert dict(VERIFIER.settings) == {"min_query_overlap": 0.7}
    loose, long = SearchVerifier(min_query_overlap=0.0), "a1 b c d e f"
    assert judge(search(long), search("a1 p q r u v w"), verifier=loose) == (1.0, "match")
    assert judge(search(long), search("b c d e f"), verifier=loose) == (0.0, "missing_fact")
    with pytest.raises(ConfigError):
        SearchVerifier(min_query_overlap=1.1)


TEXT = st.text(alphabet=st.sampled_from('abc 19-:"./?&=#%+é東“'), max_size=25)
CALLS = st.one_of(
    TEXT.map(search),
    st.lists(TEXT, max_size=4).map(search),
    TEXT.map(lambda one: call("visit", url=f"https://a.com/{one}", goal="why")),
    st.lists(TEXT, max_size=3).map(lambda some: call("open", urls=some)),
    TEXT.map(lambda one: call("finish", answer=one)),
)


@settings(max_examples=300)
@given(CALLS, st.randoms())
def test_reflexive_and_blind_to_key_order_and_order_of_words(one, random):
    assume(judge(one, one)[0] is not None)
    assert judge(one, one) == (1.0, "match")
    arguments = json.loads(one.arguments)
    keys = random.sample(list(arguments), len(arguments))
    turned = {key: arguments[key] for key in keys}
    assert judge(one, call(one.name, raw=json.dumps(turned, indent=2))) == (1.0, "match")
    if isinstance(arguments.get("query"), str) and '"' not in arguments["query"] and "“" not in arguments["query"]:
        words = arguments["query"].split()
        random.shuffle(words)
        assert judge(one, search("  ".join(words).upper()))[0] == 1.0


@settings(max_examples=300)
@given(CALLS, st.data())
def test_another_target_or_a_missing_argument_is_never_accepted(one, data):
    assume(judge(one, one)[0] is not None)
    arguments = json.loads(one.arguments)
    name = data.draw(st.sampled_from(list(arguments)))
    without = {key: value for key, value in arguments.items() if key != name}
    assert judge(one, call(one.name, **without))[0] == 0.0
    if isinstance(arguments.get("query"), str):
        assert judge(one, search(arguments["query"] + " 777"))[0] == 0.0
    if "url" in arguments:
        assert judge(one, call("visit", **{**arguments, "url": arguments["url"].replace("a.com", "b.com")}))[0] == 0.0


@given(
    CALLS,
    st.one_of(CALLS, TEXT),
    st.dictionaries(
        st.sampled_from(["url", "query", "answer", "goal", "x", ""]), st.none() | TEXT | st.integers() | st.lists(TEXT)
    ),
)
def test_never_raises(theirs, ours, arguments):
    for other in (ours, call("search", **arguments), call("visit", **arguments)):
        assert judge(theirs, other)[1] != "verifier_error"
        assert judge(other, theirs)[1] != "verifier_error"


def test_huge_and_deep_inputs():
    deep = "[" * 900 + "]" * 900
    assert judge(search("x"), call("search", raw=f'{{"query": "x", "y": {deep}}}'))[0] == 0.0
    assert judge(search("x"), search(["x " * 10**4] * 20))[0] == 0.0
    assert judge(search("x"), call("search", raw='{"query": "x"' + " " * 10**6 + "}"))[0] == 1.0
    assert judge(call("visit", url="https://a.com"), call("visit", url="https://a.com/" + "%20?&" * 10**5))[0] == 0.0


def traces():
    for line in TRACES.read_text().splitlines():
        row = json.loads(line)
        for message in row["messages"]:
            if message["role"] == "assistant":
                found = re.findall(r"<tool_call>(.*?)</tool_call>", message["content"], re.DOTALL)
                made = [json.loads(one) for one in found]
                calls = tuple(call(one["name"], **one["arguments"]) for one in made)
                yield calls or message["content"]


@pytest.mark.skipif(not TRACES.exists(), reason="no shared data here; set PIVOTRL_SHARED")
def test_real_demonstrations_pass_and_random_others_do_not():
    turns = list(traces())
    assert len(turns) >= 24
    assert all(judge(side, side) == (1.0, "match") for side in turns)
    crossed = [judge(one, other)[0] for one in turns for other in turns if one is not other]
    assert sum(crossed) / len(crossed) < 0.01


def test_normal_forms():
    assert answer("The U.S.A., an e-mail!") == "usa email"
    assert answer("-3.50 °C") == "-3.50 c"
    assert canonical("not a url") == "not a url"
    assert canonical("http://[::1") == "http://[::1"
