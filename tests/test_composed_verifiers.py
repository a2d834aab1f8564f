"""Composed verifiers: whose word it is, what is stored of it, and a grammar that only ever raises a ConfigError."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pivotrl.errors import ConfigError
from pivotrl.protocols import RemoteVerifier
from pivotrl.rollouts import verdict_row
from pivotrl.storage import decode, dump_json
from pivotrl.types import (
    Action,
    Candidate,
    Completion,
    Message,
    Rollout,
    Source,
    StoredVerdict,
    Tool,
    ToolCall,
    Trajectory,
    Usage,
    Verdict,
)
from pivotrl.verifiers import VERIFIERS, load_verifier, verifier_id, verify
from pivotrl.verifiers.compose import ComposedVerifier
from pivotrl.verifiers.specs import MAX_DEPTH, parse_spec

RULES = """
from pivotrl.types import Verdict

def yes(candidate, action): return True
def no(candidate, action): return False
def some(candidate, action): return 0.25
def most(candidate, action): return 0.75
def silent(candidate, action): return None
def fails(candidate, action): raise ConnectionError("no judge")
def whole(candidate, action): return Verdict(value=1, reason="mine", verifier="me", version="1")
def wrong(candidate, action): return "yes"
"""
WORDS = {"yes": 1.0, "no": 0.0, "some": 0.25, "most": 0.75, "silent": None, "fails": None}
BASH = Tool(
    name="bash",
    parameters={"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
)


def bash(**arguments):
    return Action(calls=(ToolCall(name="bash", arguments=json.dumps(arguments)),))


LS = bash(command="ls -l")


@pytest.fixture(scope="module")
def rules(tmp_path_factory):
    path = tmp_path_factory.mktemp("rules") / "rules.py"
    path.write_text(RULES)
    return str(path)


def at(demonstration):
    messages = (
        Message(role="user", content="Hello"),
        Message(role="assistant", content=demonstration.text, tool_calls=demonstration.calls),
    )
    source = Source(file="t.jsonl", format="openai")
    return Candidate(trajectory=Trajectory(id="t", messages=messages, source=source, tools=(BASH,)), turn=1)


def ask(spec, action=LS, demonstration=LS):
    return verify(load_verifier(spec), at(demonstration), Completion(action=action, text="", finish_reason="stop"))


def said(spec, action=LS, demonstration=LS):
    """(value, reason, the verifiers that were asked)."""
    verdict = ask(spec, action, demonstration)
    return verdict.value, verdict.reason, [part.verifier for part in verdict.parts]


def test_a_cascade_with_a_gate_a_specialist_and_a_judge(rules):
    """What the specialist accepts costs no judge; what it refuses the judge may accept, but no broken call."""
    for word, value, reason in (("yes", 1.0, "accepted"), ("no", 0.0, "refused"), ("fails", None, "verifier_error")):
        judge = f"{rules}:{word}"
        spec = f"cascade(schema, shell, {judge})"
        assert said(spec, bash(cmd="ls")) == (0.0, "invalid_arguments", ["schema"])
        assert said(spec, bash(command=5)) == (0.0, "invalid_arguments", ["schema"])
        assert said(spec, bash(command="ls  -l .")) == (1.0, "match", ["schema", "shell"])
        assert said(spec, bash(command="ls -lt")) == (value, reason, ["schema", "shell", judge])
        assert said(spec, Action(text="I look.")) == (value, reason, ["schema", "shell", judge])
        hello = Action(text="Hello there")
        assert said(spec, hello, hello) == (value, reason, ["schema", "shell", judge])


def test_the_last_one_asked_has_the_word(rules):
    def cascade(*words):
        return said(f"cascade({', '.join(f'{rules}:{word}' for word in words)})")[:2]

    assert cascade("no", "silent") == (0.0, "refused")
    assert cascade("silent", "no") == (0.0, "refused")
    assert cascade("fails", "no") == (0.0, "refused")
    assert cascade("no", "fails") == (None, "verifier_error")
    assert cascade("fails", "silent") == (None, "verifier_error")
    assert cascade("no", "some") == (0.25, "graded")
    assert cascade("most", "some", "silent") == (0.25, "graded")
    assert cascade("silent", "silent") == (None, "not_applicable")
    assert cascade("wrong", "yes") == (1.0, "accepted")


def test_a_gate_alone_accepts_nothing():
    assert said("cascade(schema)") == (None, "not_applicable", ["schema"])
    assert said("cascade(message, schema)") == (None, "not_applicable", ["message", "schema"])
    assert said("cascade(message, schema)", bash()) == (0.0, "invalid_arguments", ["message", "schema"])
    assert said("cascade(tool_name, schema)", bash()) == (1.0, "match", ["tool_name"])
    assert said("all(schema, tool_name)", bash()) == (0.0, "invalid_arguments", ["schema"])
    assert said("schema") == (1.0, "match", [])
    assert said("schema", Action(text="Hi")) == (None, "not_applicable", [])
    assert said("schema", Action(calls=(ToolCall(name="rm", arguments="{}"),))) == (0.0, "unknown_tool", [])
    assert said("schema", Action(calls=(ToolCall(name="bash", arguments="{"),))) == (0.0, "bad_arguments", [])


def expected(op, words):
    """The rules of any and all in another way: three values, and members without a word left out."""
    values = [WORDS[word] for word in words if word != "silent"]
    scored = [value for value in values if value is not None]
    final = 1.0 if op == "any" else 0.0
    if final in scored:
        return final
    return None if None in values or not scored else (max if op == "any" else min)(scored)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["any", "all"]), st.lists(st.sampled_from(list(WORDS)), min_size=1, max_size=4), st.randoms())
def test_any_and_all(rules, op, words, random):
    value, _, asked = said(f"{op}({', '.join(f'{rules}:{word}' for word in words)})")
    assert value == expected(op, words)
    stop = "yes" if op == "any" else "no"
    assert len(asked) == (words.index(stop) + 1 if stop in words else len(words)), "nobody is asked after the last word"
    random.shuffle(words)
    assert said(f"{op}({', '.join(f'{rules}:{word}' for word in words)})")[0] == value, "the order costs, and no more"


def test_nested_with_settings(rules):
    spec = f"any(all(schema, tool_call:rel_tol=0,abs_tol=0.5), cascade( shell:threshold=1 , {rules}:no ))"
    outer = load_verifier(spec)
    inner, other = outer.members
    assert [one.name for one in (outer, inner, other)] == ["any", "all", "cascade"]
    assert inner.members == (load_verifier("schema"), load_verifier("tool_call:rel_tol=0,abs_tol=0.5"))
    assert other.members[0] == load_verifier("shell:threshold=1")
    verdict = ask(spec, bash(command="ls -l ."))
    assert (verdict.value, verdict.reason, verdict.verifier) == (1.0, "match", "any")
    assert verdict.detail == "cascade: shell"
    assert [part.verifier for part in verdict.parts[1].parts] == ["shell"]
    assert ask(f"cascade(tool_call, {rules}:whole)", bash(command="x")).parts[1].verifier == "me"


def test_ids_know_members_their_order_and_their_settings(rules):
    specs = [
        "cascade(shell, tool_call)",
        "cascade(tool_call, shell)",
        "any(shell, tool_call)",
        "cascade(shell:threshold=1, tool_call)",
        "cascade(shell, cascade(tool_call))",
        f"cascade(shell, {rules}:yes)",
        f"cascade(shell, {rules}:no)",
    ]
    assert len({verifier_id(load_verifier(spec)) for spec in specs}) == len(specs)
    assert verifier_id(load_verifier(specs[0])) == verifier_id(
        load_verifier("cascade( shell:threshold=0.9,tool_call )")
    )


class Remote:
    """A judge that must be prepared, and accepts some commands."""

    name, version, settings = "remote", "1", {}

    def __init__(self, *accepts):
        self.accepts, self.batches, self.expected, self.usage = accepts, [], [], Usage()

    def expect(self, candidates, actions):
        self.expected.append((len(list(candidates)), actions))

    def prepare(self, pairs):
        self.batches.append([action.calls[0].parsed.value["command"] for _, action in pairs])
        self.usage += Usage(judge_calls=len(pairs))

    def take_usage(self):
        used, self.usage = self.usage, Usage()
        return used

    def __call__(self, candidate, action):
        value = action.calls[0].parsed.value["command"]
        assert value in self.batches[-1], "not prepared"
        return Verdict(value=float(value in self.accepts), reason="judged", verifier=self.name, version="1")


def test_judges_inside_are_told_asked_at_once_and_billed():
    first, second = Remote("one"), Remote("two")
    spec = load_verifier("cascade(schema, shell)")
    inner = ComposedVerifier("all", (load_verifier("tool_name"), second))
    verifier = ComposedVerifier("cascade", (*spec.members, first, inner, load_verifier("exact")))
    actions = [bash(command=word) for word in ("ls -l .", "one", "two", "three")] + [bash(cmd="ls")]
    pairs = [(at(LS), action) for action in actions]
    verifier.expect((candidate for candidate, _ in pairs[:3]), 8)
    assert first.expected == second.expected == [(3, 8)]
    verifier.prepare(pairs)
    assert (first.batches, second.batches) == ([["one", "two", "three"]], [["two", "three"]])
    assert [verifier(*pair).value for pair in pairs] == [1.0, 1.0, 1.0, 0.0, 0.0]
    assert (verifier.take_usage().judge_calls, verifier.take_usage().judge_calls) == (5, 0)
    assert isinstance(verifier, RemoteVerifier)
    spec.prepare([(None, None)])  # nobody to prepare, so nothing is looked at
    spec.expect(iter([None]), 1)
    assert spec.take_usage() == Usage()


def test_parts_are_stored_and_others_stay_as_they_were():
    """Old files can be read, and files without composed verifiers keep their bytes."""
    completion = Completion(action=LS, text="", finish_reason="stop")
    plain, composed = ask("shell"), ask("all(shell, any(message, tool_call))")
    rollout = Rollout(candidate_id="t@1", sample=0, completion=completion)
    lines = [dump_json(verdict_row(rollout, verdict)) for verdict in (plain, composed)]
    assert lines[0] == (
        b'{"candidate_id":"t@1","sample":0,"verdict":{"value":1.0,"reason":"match","verifier":"shell","version":"3",'
        b'"detail":""}}'
    )
    assert lines[1].count(b'"parts"') == 2
    for line, verdict in zip(lines, (plain, composed), strict=True):
        assert decode(line, StoredVerdict, "x").verdict == verdict


def problem(spec):
    """What is wrong with a specification; empty when nothing is. Anything but a ConfigError passes on."""
    try:
        load_verifier(spec)
    except ConfigError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("spec", "hint"),
    [
        ("cascade(shell", "do not pair off"),
        ("cascade(shell))", "do not pair off"),
        ("cascade(shell, (tool_call)", "do not pair off"),
        ("any(shell) x", "do not pair off"),
        ("any()", "nothing beside a comma"),
        ("any(shell,)", "nothing beside a comma"),
        ("all(shell, , exact)", "nothing beside a comma"),
        ("cascade(nosuch, shell)", "verifier 'nosuch' is unknown"),
        ("cascade(shell, tool_call:nosuch=1)", "no key=value that it knows"),
        ("cascade(shell, threshold=1)", "'shell, threshold=1' is unknown"),
        ("cascade(shell:threshold=1, threshold=1)", "once each"),
        ("cascade(shell):x=1", "do not pair off"),
        ("cascade:x=1", "write package.module:name"),
        ("shell(exact)", "cascade(...), any(...), all(...); or package"),
        ("any(" * 2000 + "exact" + ")" * 2000, "nested deeper than 8"),
    ],
)
def test_mistakes_are_one_line(spec, hint):
    assert hint in problem(spec)
    assert "\n" not in problem(spec)
    assert len(problem(spec)) < 1000


PIECES = st.sampled_from([*VERIFIERS, *"(),:=. \n\0'é1", "any(", "all(", "cascade(", "threshold=1", "x.py:f", "json:x"])


@settings(max_examples=200, deadline=None)
@given(st.lists(PIECES, max_size=12).map("".join) | st.text(max_size=30))
@example("a" * 5000 + ":b")
@example("\ud800.py:f")
def test_nothing_but_a_config_error(spec):
    assert "\n" not in problem(spec)


NAMES = st.sampled_from(["exact", "shell:threshold=0.5", "tool_call:rel_tol=0,abs_tol=0.5", "auto:min_overlap=0.75"])
SPECS = st.recursive(
    NAMES,
    lambda inner: st.builds(
        lambda op, members, blank: f"{op}({f'{blank},{blank}'.join(members)})",
        st.sampled_from(["any", "all", "cascade"]),
        st.lists(inner, min_size=1, max_size=3),
        st.sampled_from(["", " "]),
    ),
    max_leaves=6,
)


def written(verifier):
    """A specification of a verifier with all its settings in words."""
    if isinstance(verifier, ComposedVerifier):
        return f"{verifier.name}({', '.join(map(written, verifier.members))})"
    flat = verifier.settings if verifier.name != "auto" else {"min_overlap": verifier.message.min_overlap}
    shown = ",".join(f"{key}={value}" for key, value in flat.items() if isinstance(value, float))
    return f"{verifier.name}:{shown}" if shown else verifier.name


@settings(max_examples=60, deadline=None)
@given(SPECS)
def test_what_is_read_can_be_written_and_read_again(spec):
    found = problem(spec)
    assert not found or f"deeper than {MAX_DEPTH}" in found
    if not found:
        verifier = load_verifier(spec)
        assert load_verifier(written(verifier)) == verifier
    assert parse_spec(spec).text == spec.strip()


def test_verdicts_of_old_files_have_no_parts():
    old = Path(__file__)  # any place will do for the message
    line = b'{"candidate_id":"a","sample":0,"verdict":{"value":null,"reason":"r","verifier":"v","version":"1"}}'
    assert decode(line, StoredVerdict, str(old)).verdict == Verdict(value=None, reason="r", verifier="v", version="1")
