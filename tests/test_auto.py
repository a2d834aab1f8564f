"""`auto`: who is asked at which demonstration, who answers when that one cannot, and that real demonstrations pass."""

from __future__ import annotations

import itertools
import json
import os
from collections import Counter
from pathlib import Path

import pytest

from pivotrl.candidates import CandidateRules, extract
from pivotrl.errors import PivotRLError
from pivotrl.trajectories import read_path
from pivotrl.types import Action, Candidate, Completion, Message, Source, Tool, ToolCall, Trajectory
from pivotrl.verifiers import VERIFIERS, load_verifier, verify
from pivotrl.verifiers.auto import AutoVerifier
from pivotrl.verifiers.schema import schema_refusal

TRAJECTORIES = Path(os.environ.get("PIVOTRL_SHARED", Path(__file__).parents[2] / "shared" / "data")) / "trajectories"
EVERYTHING = CandidateRules(keep_failed=True, keep_tool_errors=True, keep_repeated=True, max_state_tokens=0)
AUTO = AutoVerifier()
FENCE = "THOUGHT: look\n```bash\nls -la\n```"


def call(name, **arguments):
    return ToolCall(name=name, arguments=json.dumps(arguments))


def turn(*parts):
    """An action of calls or of one text."""
    texts = [part for part in parts if isinstance(part, str)]
    return Action(calls=tuple(part for part in parts if isinstance(part, ToolCall)), text=texts[0] if texts else None)


def at(demonstration, tools=None, domain=None, system="Be brief."):
    messages = (
        Message(role="system", content=system),
        Message(role="assistant", content=demonstration.text, tool_calls=demonstration.calls),
    )
    source = Source(file="t.jsonl", format="openai")
    trajectory = Trajectory(id="t", messages=messages, source=source, tools=tools, domain=domain)
    return Candidate(trajectory=trajectory, turn=1)


def terminus(keys="ls\n", **more):
    return json.dumps({"analysis": "a", "plan": "p", "commands": [{"keystrokes": keys}], **more})


BASH, EDITOR = call("execute_bash", command="ls -l"), call("str_replace_editor", command="view", path="/a.py")
ROUTES = [
    (turn(BASH), "shell"),
    (turn(call("Bash", command="ls", description="d")), "shell"),
    (turn(call("shell", command=["bash", "-lc", "ls"])), "shell"),
    (turn(call("exec_command", cmd="ls")), "shell"),
    (turn(call("run_terminal_cmd", command="ls")), "shell"),
    (turn(BASH, EDITOR), "shell"),
    (turn(BASH, call("think", thought="x")), "shell"),
    (turn(EDITOR), "code_edit"),
    (turn(EDITOR, EDITOR), "code_edit"),
    (turn(call("Edit", file_path="/a", old_string="a", new_string="b")), "code_edit"),
    (turn(call("apply_patch", input="*** Begin Patch\n*** Delete File: a\n*** End Patch")), "code_edit"),
    (turn(call("google_search", query="a b")), "search"),
    (turn(call("WebSearch", query="a b")), "search"),
    (turn(call("visit", url="https://a.com"), call("search", query=["a", "b"])), "search"),
    (turn(call("open", id=3)), "search"),
    (turn(call("run_sql", command="DROP TABLE a")), "tool_call"),
    (turn(call("execute_sql", query="SELECT a FROM b")), "tool_call"),
    (turn(call("search_files", query="a b")), "tool_call"),
    (turn(call("search_flights", origin="A")), "tool_call"),
    (turn(call("editor", command="ls")), "tool_call"),
    (turn(call("edit", order="W1")), "tool_call"),
    (turn(call("execute_bash")), "tool_call"),
    (turn(call("search", query="a"), call("book", id=1)), "tool_call"),
    (turn(ToolCall(name="execute_bash", arguments="{")), "tool_call"),
    (turn("Done."), "message"),
    (turn(FENCE), "message"),
    (turn('{"commands": []}'), "message"),
    (turn("<answer></answer>"), "message"),
    (turn("<search>who won</search>"), "search"),
    (turn("<answer>Santa Claus</answer>"), "search"),
    (turn(terminus()), "shell"),
]


@pytest.mark.parametrize(("demonstration", "name"), ROUTES)
def test_who_is_asked(demonstration, name):
    assert AUTO.inner(at(demonstration)).name == name
    if name != "tool_call" or demonstration.calls[0].parsed.value is not None:
        verdict = AUTO(at(demonstration), demonstration)
        assert (verdict.value, verdict.reason, verdict.verifier) == (1.0, "match", name)


def test_the_domain_and_the_system_prompt_decide_on_messages():
    fenced = at(turn(FENCE), system="Write one command:\n```bash\nyour_command\n```")
    assert AUTO(fenced, turn("I list.\n```bash\nls -a -l\n```")).value == 1.0
    assert AUTO(fenced, turn("THOUGHT: look\n```bash\nrm -rf /\n```")).reason == "dangerous_difference"
    assert AUTO.inner(at(turn("All done."), system=FENCE)).name == "message"
    broken = at(turn('{"commands": []}'), domain="terminus_2")
    assert AUTO(broken, broken.demonstration).reason == "bad_demonstration"
    prose = at(turn("I am done."), domain="terminus_1")
    assert AUTO(prose, prose.demonstration).value is None, "no message passes for a command"


def test_tool_call_answers_where_the_specialist_cannot():
    """Editing tools that the table reads otherwise than their schema, and arguments that nobody can read."""
    odd = call("str_replace_editor", command="look", path="/a.py")
    for demonstration in (turn(odd), turn(EDITOR, odd), turn(ToolCall(name="Bash", arguments=None))):
        verdict = AUTO(at(demonstration), demonstration)
        assert (verdict.value, verdict.verifier) == (1.0, "tool_call")


TOOLS = (
    Tool(name="Edit", parameters={"type": "object", "properties": {"file_path": {"type": "string"}}}),
    Tool(
        name="Write",
        parameters={
            "type": "object",
            "properties": {name: {"type": "string"} for name in ("file_path", "content", "why")},
            "required": ["file_path", "content", "why"],
        },
    ),
    Tool(
        name="bash",
        parameters={
            "type": "object",
            "properties": {"command": {"type": "string"}, "timeout": {"type": "integer"}},
            "additionalProperties": False,
        },
    ),
    Tool(name="search", parameters={"type": "object", "properties": {"query": {"type": "string"}}, "maxProperties": 1}),
)


def test_schemas_hold_whatever_the_tool():
    write = {"file_path": "/a", "content": "x"}
    for theirs, ours, reason in (
        (call("bash", command="ls"), call("bash", command="ls", timeout="x"), "invalid_arguments"),
        (call("bash", command="ls"), call("bash", command="ls", surplus=1), "invalid_arguments"),
        (call("bash", command="ls"), call("bash", command="ls", timeout=5), "match"),
        (call("Write", **write, why="y"), call("Write", **write), "invalid_arguments"),
        (call("Write", **write, why="y"), call("Write", **write, why="z"), "match"),
        (call("Write", **write, why="y"), call("write", filePath="/a", content="x"), "unknown_tool"),
        (call("Edit", file_path="/a", old_string="a", new_string="b"), call("Write", **write), "invalid_arguments"),
        (call("search", query="a b"), call("search", query="b a", n=1), "invalid_arguments"),
        (call("search", query="a b"), call("search", query="b a"), "match"),
    ):
        verdict = AUTO(at(turn(theirs), TOOLS), turn(ours))
        assert (verdict.value, verdict.reason) == (float(reason == "match"), reason), ours


def test_no_two_members_have_a_setting_of_one_name():
    kinds = [type(getattr(AUTO, name)) for name in AUTO.__slots__]
    names = [key for kind in kinds for key in kind().settings if key != "utilities"]
    assert len(set(names)) == len(names)
    assert {kind.name for kind in kinds} <= VERIFIERS.keys()
    for kind in kinds:
        for key, value in kind().settings.items():
            if isinstance(value, float):
                assert load_verifier(f"auto:{key}=0.5").settings[kind.name][key] == 0.5


def readable():
    for path in sorted(TRAJECTORIES.rglob("*")):
        try:
            yield path.name, list(read_path(path)) if path.is_file() else []
        except PivotRLError:
            continue


@pytest.mark.skipif(not TRAJECTORIES.is_dir(), reason="no shared data here; set PIVOTRL_SHARED")
def test_every_gradable_real_demonstration_is_accepted_and_few_other_calls_of_its_trajectory():
    verifiers, files, crossed, taken = Counter(), 0, 0, 0
    for name, trajectories in readable():
        files += bool(trajectories)
        for trajectory in trajectories:
            found = [one for one in extract(trajectory, EVERYTHING) if isinstance(one, Candidate)]
            for one in found:
                assert schema_refusal(one, one.demonstration) is None
                done = Completion(action=one.demonstration, text="", finish_reason="stop")
                verdict = verify(AUTO, one, done)
                assert verdict.value == 1.0, (name, one.id, verdict)
                verifiers[verdict.verifier] += 1
            called = [one for one in found if one.demonstration.calls]
            for one, other in itertools.islice(itertools.permutations(called, 2), 15):
                theirs, ours = ([(x.name, x.arguments) for x in side.demonstration.calls] for side in (one, other))
                crossed += theirs != ours
                taken += theirs != ours and AUTO(one, other.demonstration).value == 1.0
    print(f"{verifiers.total()} demonstrations of {files} files: {dict(verifiers)}; {taken} of {crossed} others")
    assert verifiers.total() >= 3200
    assert min(verifiers[name] for name in ("message", "tool_call", "shell", "code_edit", "search")) >= 10
    assert taken <= 0.01 * crossed
