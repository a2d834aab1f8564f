"""NeMo Gym's verdicts, holes included: each rule of its four pivot servers by hand, and the recorded rewards.

The expected values are NeMo Gym 0.7.0's, not what is right; docs/verifiers.md says which of them are wrong.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from pivotrl.errors import ConfigError
from pivotrl.trajectories import read_path
from pivotrl.types import Action, Candidate, Message, Source, Tool, ToolCall, Trajectory
from pivotrl.verifiers import VERIFIERS, load_verifier, verifier_id
from pivotrl.verifiers.nemo_gym_multi_harness import RULES, MultiHarnessVerifier
from pivotrl.verifiers.nemo_gym_single_step import SingleStepVerifier
from pivotrl.verifiers.nemo_gym_swe_pivot import SwePivotVerifier
from pivotrl.verifiers.nemo_gym_terminus import TerminusVerifier

ROOT = Path(__file__).parents[1]
SHARED = Path(os.environ.get("PIVOTRL_SHARED", ROOT.parent / "shared" / "data"))
RECORDED = SHARED / "verdicts" / "nemo_gym_0.7.0.jsonl"
ROWS = SHARED / "trajectories" / "nemotron_pivot"
NO_SHARED = "the shared data is not beside this checkout"
ALL = (SingleStepVerifier, SwePivotVerifier, TerminusVerifier, MultiHarnessVerifier)
STRING_ONLY = TerminusVerifier(
    enable_string_similarity=True, string_similarity_threshold=0.9, enable_llm_judge=False, harness="terminus_2"
)


def call(name, arguments=None):
    return ToolCall(name=name, arguments=arguments if isinstance(arguments, str) else json.dumps(arguments or {}))


def acts(*calls, text=None):
    return Action(calls=calls, text=text)


def at(demonstration, tools=None, domain=None):
    turn = Message(role="assistant", content=demonstration.text, tool_calls=demonstration.calls)
    messages = (Message(role="user", content="Hello"), turn)
    source = Source(file="t.jsonl", format="nemo_gym")
    return Candidate(
        trajectory=Trajectory(id="t", messages=messages, source=source, tools=tools, domain=domain), turn=1
    )


def word(verifier, demonstration, action, tools=None, domain=None):
    """(value, reason) of an action, or of one call."""
    one, other = (acts(some) if isinstance(some, ToolCall) else some for some in (demonstration, action))
    verdict = verifier(at(one, tools, domain), other)
    return verdict.value, verdict.reason


# single_step


def single(theirs, ours, **knobs):
    return word(SingleStepVerifier(**knobs), call("t", {"a": theirs}), call("t", {"a": ours}))


@pytest.mark.parametrize(
    ("theirs", "ours", "reason"),
    [
        ("rm -rf build", "rm -rf /", "expected_tool_call"),
        ("cat a.py b.py", "cat evil.sh", "expected_tool_call"),
        ("Alpha  beta", "beta ALPHA\n", "expected_tool_call"),
        ("alpha beta", "gamma delta", "argument_value_different"),
        ("Paris", "paris", "argument_value_different"),
        ("Paris", "Paris ", "argument_value_different"),
        ("Paris", "Paris France", "argument_value_different"),
        ("", "", "expected_tool_call"),
        (5, 5.0, "argument_value_type_different"),
        (5.0, 5, "argument_value_type_different"),
        (1, True, "expected_tool_call"),
        (True, 1, "argument_value_type_different"),
        (0, True, "argument_value_different"),
        (1.0, 1.0 + 9e-7, "expected_tool_call"),
        (1.0, 1.0 + 2e-6, "argument_value_different"),
        (float("nan"), float("nan"), "argument_value_different"),
        (None, None, "expected_tool_call"),
        (None, 0, "argument_value_type_different"),
        ([1, 2], [2, 1], "argument_value_different"),
        ([1, 2], [1], "argument_list_length_different"),
        ({"x": 1}, {"x": 1, "y": None}, "argument_object_keys_different"),
        ({"x": 1, "y": None}, {"x": 1}, "argument_object_keys_different"),
    ],
)
def test_single_step_compares_leaf_by_leaf(theirs, ours, reason):
    assert single(theirs, ours) == (float(reason == "expected_tool_call"), reason)


def test_the_share_of_words_is_at_most_half():
    """A threshold above 0.5 refuses the demonstration itself; 0 accepts any two words for any two."""
    assert single("alpha beta", "alpha beta", word_count_similarity_threshold=0.5)[0] == 1.0
    assert single("alpha beta", "alpha beta", word_count_similarity_threshold=0.51)[0] == 0.0
    assert single("ls -la", "rm -rf /", word_count_similarity_threshold=0.0)[0] == 1.0
    assert single("ls", "ls -la", word_count_similarity_threshold=0.0)[0] == 0.0
    assert single(1.0, 1.0, floating_point_comparison_threshold=0.0)[0] == 0.0


def test_single_step_takes_any_message_and_calls_before_text():
    verifier = SingleStepVerifier()
    hello, right = Action(text="Hello"), call("t", {"a": 1})
    assert word(verifier, hello, Action(text="")) == (1.0, "expected_chat_message_found")
    assert word(verifier, hello, acts(right, text="Hello")) == (0.0, "no_expected_chat_message")
    assert word(verifier, right, hello) == (0.0, "no_expected_tool_call")
    assert word(verifier, right, Action()) == word(verifier, hello, Action()) == (0.0, "no_action_found")
    assert word(verifier, right, acts(right, text="ok")) == (1.0, "expected_tool_call")
    assert word(verifier, right, call("T", {"a": 1})) == (0.0, "unexpected_tool")


def test_single_step_cannot_decode():
    """What the model writes wrongly is 0; a broken demonstration is no reward, but only where the names are equal."""
    verifier, right = SingleStepVerifier(), call("t", {"a": 1})
    assert word(verifier, right, call("t", "{a:1")) == (0.0, "arguments_decode_error")
    assert word(verifier, right, ToolCall(name="t", arguments=None)) == (0.0, "arguments_decode_error")
    assert word(verifier, call("t", "oops"), right) == (None, "server_error")
    assert word(verifier, call("t", "oops"), call("u")) == (0.0, "unexpected_tool")
    assert word(verifier, call("t", "5"), call("t", "5")) == (1.0, "expected_tool_call")
    assert word(verifier, right, call("t", "1" * 5000)) == (None, "server_error")


def test_surplus_calls_are_free_unless_they_count():
    one, junk = call("t", {"a": 1}), [call("junk", {"n": n}) for n in range(20)]
    assert word(SingleStepVerifier(), one, acts(*junk, one)) == (1.0, "expected_tool_call")
    length = "function_call_batch_length_different"
    counted = SingleStepVerifier(parallel_tool_call_rewarding=True)
    assert word(counted, one, acts(*junk, one)) == (0.0, length)
    free = replace(counted, allow_superset=True)
    assert word(free, one, acts(*junk, one)) == (1.0, "expected_tool_call")
    assert word(replace(free, parallel_tool_call_reward_mode="f1"), one, acts(*junk, one)) == (2 / 22, length)


def test_parallel_modes():
    a, b, c = (call("t", {"x": word}) for word in "abc")
    strict = SingleStepVerifier(parallel_tool_call_rewarding=True)
    subset = replace(strict, allow_subset=True)
    for verifier in (SingleStepVerifier(), strict):
        assert word(verifier, acts(a, b), acts(b, a)) == (1.0, "expected_tool_call_batch")
        assert word(verifier, acts(a, b), acts(b, c)) == (0.0, "argument_value_different")
    length = "function_call_batch_length_different"
    assert word(SingleStepVerifier(), acts(a, b), a) == word(strict, acts(a, b), a) == (0.0, length)
    assert word(subset, acts(a, b), a) == (1.0, "expected_tool_call_batch")
    assert word(subset, acts(a, b), c) == (0.0, "argument_value_different")
    part = replace(strict, parallel_tool_call_reward_mode="fractional")
    assert word(part, acts(a, b), acts(b, c)) == (0.5, "argument_value_different")
    assert word(part, acts(a, call("v")), acts(a, call("u"))) == (0.5, "unexpected_tool")
    both = replace(subset, allow_superset=True, parallel_tool_call_reward_mode="f1")
    assert word(both, acts(a, b), a) == (pytest.approx(2 / 3), length)


texts = st.lists(st.sampled_from(["a", "b", "c", "d"]), min_size=2, max_size=4).map(" ".join)


@settings(max_examples=150)
@given(theirs=st.lists(texts, min_size=1, max_size=4), ours=st.lists(texts, min_size=1, max_size=4))
def test_batches_are_paired_as_well_as_can_be(theirs, ours):
    """Against all pairings, since being alike is not transitive and the first fit can strand a call."""
    verifier = SingleStepVerifier(
        word_count_similarity_threshold=0.34,
        parallel_tool_call_rewarding=True,
        allow_subset=True,
        allow_superset=True,
        parallel_tool_call_reward_mode="f1",
    )
    sides = [[call("t", {"a": text}) for text in some] for some in (theirs, ours)]
    long, short = sorted(sides, key=len, reverse=True)
    pairs = {(x, y): word(verifier, *((x, y) if long is sides[0] else (y, x)))[0] for x in long for y in short}
    best = max(sum(pairs[x, y] for x, y in zip(order, short, strict=False)) for order in itertools.permutations(long))
    share = 2 * best / (len(long) + len(short))
    assert word(verifier, *(acts(*some) for some in sides))[0] == pytest.approx(share)


# swe_pivot

NAMES_ONLY = SwePivotVerifier(enable_target_match=False, enable_argument_similarity=False)
FILE = "\n".join(f"line {n} = value_{n}" for n in range(120))


@pytest.mark.parametrize(
    ("theirs", "ours", "same"),
    [
        ("str_replace_editor", "STR_REPLACE_EDITOR", True),
        ("str_replace_editor", "CodeEditor", True),
        ("execute_bash", "shell_cmd", True),
        ("execute_bash", "ExecCommand", True),
        ("grep", "list_directory", True),
        ("grep", "read_file", False),
        ("finish", "submit", True),
        ("think", "finish", False),
        ("todo_write", "UpdatePlan", True),
        ("get_weather", "get_weather", True),
        ("get_weather", "Get_Weather", True),
        ("get_weather", "get_rain", False),
    ],
)
def test_tool_names_and_categories(theirs, ours, same):
    found = word(NAMES_ONLY, call(theirs, {"command": "ls"}), call(ours, {"command": "rm -rf /"}))
    assert found == ((1.0, "none") if same else (0.0, "tool_name_mismatch"))


def edits(theirs, ours, **knobs):
    return word(SwePivotVerifier(**knobs), call("str_replace_editor", theirs), call("str_replace_editor", ours))


def bash(theirs, ours, **knobs):
    one, other = (call("execute_bash", {"command": command}) for command in (theirs, ours))
    return word(SwePivotVerifier(**knobs), one, other)


def test_the_first_call_is_judged_alone():
    right, think = call("bash", {"command": "ls -la /repo/src"}), call("think")
    verifier = SwePivotVerifier()
    assert word(verifier, right, acts(right, *[call("bash", {"command": "rm -rf /"})] * 10)) == (1.0, "none")
    assert word(verifier, right, acts(think, right)) == (0.0, "tool_name_mismatch")
    assert word(verifier, right, Action(text="done")) == (0.0, "model_output_invalid")
    for bad in (Action(text="done"), acts(right, right)):
        assert word(verifier, bad, right) == (0.0, "expected_action_invalid")
    assert word(replace(verifier, expected_type="function_call_batch"), right, right)[1] == "expected_action_invalid"
    answer = json.dumps({"type": "function_call", "name": "bash", "arguments": right.arguments})
    assert word(verifier, Action(text=answer), right) == (1.0, "none")


@pytest.mark.parametrize(
    ("theirs", "ours", "reason"),
    [
        ({"command": "view", "path": "/w/a/b.py"}, {"command": "view", "path": "/t/a/b.py"}, "none"),
        ({"command": "view", "path": "/w/a/b.py"}, {"command": "view", "path": "/w/c/b.py"}, "target_mismatch"),
        ({"command": "view", "path": "/w/a/b.py"}, {"command": "view"}, "none"),
        ({"command": "view", "path": "/w/a/b.py"}, {"command": "create", "path": "/w/a/b.py"}, "target_mismatch"),
        ({"command": "view", "path": "/w/a/b.py"}, {"path": "/w/a/b.py"}, "target_mismatch"),
        ({"command": "view", "view_range": [1, 50]}, {"command": "view", "view_range": "[1, 41]"}, "none"),
        ({"command": "view", "view_range": [1, 50]}, {"command": "view", "view_range": [1, 40]}, "target_mismatch"),
        ({"command": "view", "view_range": [1, 50]}, {"command": "view", "view_range": [1, -1]}, "target_mismatch"),
        ({"command": "view", "view_range": [1, 50]}, {"command": "view"}, "none"),
        ({"command": "view", "view_range": [10, 10]}, {"command": "view", "view_range": [10, 10]}, "target_mismatch"),
        ({"old_str": "a=1", "new_str": "a=2"}, {"old_str": "a=1", "new_str": ""}, "similarity_below_threshold"),
        ({"old_str": "a=1", "new_str": ""}, {"old_str": "a=1", "new_str": ""}, "none"),
        ({"patch": "x" * 2000 + "a"}, {"diff": "x" * 2000 + "b"}, "none"),
        ({"content": "abc"}, {"path": "a/b"}, "similarity_below_threshold"),
        ({"file_text": FILE}, {"file_text": FILE}, "none"),
        ({"file_text": FILE}, {"file_text": "\n" + FILE}, "similarity_below_threshold"),
        ({"filePath": "/a/x.py", "oldString": "a"}, {"filePath": "/b/y.js", "oldString": "q"}, "none"),
        ({"input": "*** Begin Patch"}, {"input": "something else"}, "none"),
    ],
)
def test_edits(theirs, ours, reason):
    assert edits(theirs, ours) == (float(reason == "none"), reason)


@pytest.mark.parametrize(
    ("theirs", "ours", "reason"),
    [
        ("pytest -q tests/test_a.py -x", "/bin/pytest -q tests/test_a.py -x", "none"),
        ("pytest -q", "python -m pytest -q", "target_mismatch"),
        ("cd /repo && pytest tests/", "pytest tests/", "target_mismatch"),
        ("cat /w/a/b/c.py", "cat /t/a/b/c.py", "none"),
        ("cat src/a/b.py", "cat src/a/c.py", "target_mismatch"),
        ("echo aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "echo zq", "target_mismatch"),
        ("ls -la", "ls -l --color=never", "similarity_below_threshold"),
        ("ls", "", "target_mismatch"),
        ("", "  ", "none"),
    ],
)
def test_commands(theirs, ours, reason):
    assert bash(theirs, ours) == (float(reason == "none"), reason)


def test_missing_and_undecodable_arguments_are_no_match():
    """0.4.0 gave 1.0 here, which was exploited: its regression tests are TestMissingArgumentIsNotAMatch in 0.7.0."""
    shell = call("execute_bash", {"command": "pytest tests/"})
    for ours in ({"security_risk": "LOW"}, "", "{bad", "{}"):
        assert word(SwePivotVerifier(), shell, call("execute_bash", ours)) == (0.0, "target_mismatch")
    for ours in ("[1", "null", "5"):
        assert word(SwePivotVerifier(), shell, call("execute_bash", ours))[0] == 0.0
    assert word(SwePivotVerifier(), call("view", {"path": "a"}), call("view", "null")) == (0.0, "unknown_error")
    listed = {"command": ["bash", "-lc", "pytest -q"]}, {"command": ["bash", "-lc", "pytest -q tests"]}
    assert word(SwePivotVerifier(), *(call("shell", one) for one in listed)) == (1.0, "none")


def test_search_and_read_look_at_the_file_only():
    verifier = SwePivotVerifier()
    one, other, third, free = (
        call("grep", some)
        for some in (
            {"pattern": "a", "path": "/w/x/y/z.py"},
            {"pattern": "b", "path": "/t/x/y/z.py"},
            {"pattern": "a", "path": "/w/x/q/z.py"},
            {"pattern": "b"},
        )
    )
    assert word(verifier, one, other) == word(verifier, one, free) == (1.0, "none")
    assert word(verifier, one, third) == (0.0, "target_mismatch")
    assert word(verifier, call("finish", {"message": "x"}), call("finish", {"message": "y"})) == (1.0, "none")


def test_continuous_rewards():
    """0.5 to 1 between the two thresholds; then a long edit costs, so that a perfect copy gets less than 1."""
    knobs = {"reward_mode": "continuous", "enable_target_match": False}
    assert bash("abcd", "abcx", **knobs) == (pytest.approx(0.5 + 0.5 * (0.75 - 0.4) / 0.4), "none")
    assert bash("abcd", "zzzz", **knobs) == (0.0, "similarity_below_threshold")
    assert bash("abcd", "abcd", **knobs) == (1.0, "none")
    copy = {"path": "a.py", "old_str": "a" * 52, "new_str": "b" * 52}
    assert edits(copy, copy, **knobs) == (pytest.approx(1 - 0.1 * 105 / 500), "none")
    assert edits({"patch": "a" * 900}, {"patch": "a" * 900}, **knobs)[0] == pytest.approx(0.9)
    assert edits(copy, copy, **knobs, enable_diff_size_shaping=False)[0] == 1.0
    assert edits(copy, copy)[0] == 1.0


# terminus


def answer(*keystrokes, **rest):
    return json.dumps({"analysis": "a", "plan": "p", "commands": [{"keystrokes": keys} for keys in keystrokes], **rest})


def answer_1(*keystrokes, done=False):
    commands = [{"keystrokes": keys, "is_blocking": True, "timeout_sec": 1} for keys in keystrokes]
    return json.dumps({"state_analysis": "a", "explanation": "e", "commands": commands, "is_task_complete": done})


def terminal(theirs, ours, verifier=STRING_ONLY, domain=None):
    return word(verifier, Action(text=theirs), Action(text=ours), domain=domain)


@pytest.mark.parametrize(
    ("theirs", "ours", "reason"),
    [
        (answer("cd /a\nls\n"), answer("cd /a\n", "ls\n"), "none"),
        (answer("rm -rf /data/a\n"), answer("rm -rf /data/b\n"), "none"),
        (answer("ls -la /tmp\n"), answer("rm -rf /\n"), "string_similarity_below_threshold"),
        (answer(), answer(), "none"),
        (answer(), answer("ls\n"), "string_similarity_below_threshold"),
        (answer(""), answer(""), "none"),
        (answer("ls\n"), "<think>{}</think>hm</think>\n" + answer("ls\n"), "none"),
        (answer("ls\n"), f"```json\n{answer('ls')}\n```", "model_output_invalid"),
        (answer("ls\n"), " \n", "model_output_invalid"),
        (answer("ls\n"), None, "model_output_invalid"),
        (answer("ls\n"), "[1]", "model_output_invalid"),
        (answer("ls\n"), "null", "model_output_invalid"),
        (answer("ls\n"), answer("ls\n", foo=1), "schema_check_failed"),
        (answer("ls\n"), answer("ls\n", task_complete="yes"), "schema_check_failed"),
        (answer("ls\n"), '{"analysis": "a", "plan": "p"}', "schema_check_failed"),
        (answer("ls\n", task_complete=True), answer("ls\n"), "task_complete_check_failed"),
        (answer("ls\n", task_complete=True), answer("ls\n", task_complete=False), "task_complete_check_failed"),
        (answer("ls\n"), answer("ls\n", task_complete=True), "none"),
        (None, answer("ls\n"), "expected_answer_invalid"),
        ("no", answer("ls\n"), "expected_answer_invalid"),
        ("[1]", "no", "expected_answer_invalid"),
        (answer("ls\n", foo=1), answer("ls\n", foo=1), "expected_answer_invalid"),
    ],
)
def test_terminus(theirs, ours, reason):
    assert terminal(theirs, ours) == (float(reason == "none"), reason)


def test_the_harness_comes_from_the_trajectory_unless_given():
    free, one, two = replace(STRING_ONLY, harness=""), answer_1("ls\n"), answer("ls\n")
    assert terminal(one, one, free, "terminus_1") == terminal(two, two, free, "terminus_2") == (1.0, "none")
    assert terminal(one, one, free) == terminal(one, one, free, "codex") == (0.0, "unknown_harness")
    assert terminal(one, one, free, "terminus_2") == (0.0, "expected_answer_invalid")
    assert terminal(one, one, replace(free, harness="terminus_1"), "terminus_2") == (1.0, "none")
    assert terminal(answer_1(done=True), one, free, "terminus_1") == (0.0, "task_complete_check_failed")
    assert terminal("no", "no", free) == (0.0, "expected_answer_invalid")


def test_both_comparisons_off_accept_any_valid_answer():
    assert (
        terminal(answer("ls\n"), answer("rm -rf /\n"), TerminusVerifier(enable_llm_judge=False, harness="terminus_2"))[
            0
        ]
        == 1
    )


@pytest.mark.parametrize(
    ("says", "value", "reason"),
    [
        (["fine [[A=B]]"], 1.0, "none"),
        (["[[A!=B]] no, [[A=B]]"], 1.0, "none"),
        (["[[A=B]] no, [[A!=B]]"], 0.0, "judge_not_equivalent"),
        (["[[A=B]] [[A!=B]]" + "x" * 200], 1.0, "none"),
        (["[[A!=B]]" + "x" * 200 + "[[A=B]]"], 1.0, "none"),
        (["A=B"], 0.0, "judge_parsing_failed"),
        ([""], 0.0, "judge_parsing_failed"),
    ],
)
def test_the_judges_last_verdict_counts(says, value, reason):
    verifier = TerminusVerifier(harness="terminus_2", judge=lambda one, other: says[0])
    assert terminal(answer("ls\n"), answer("pwd\n"), verifier) == (value, reason)


def test_the_judge_is_asked_when_it_has_to_be():
    asked = []

    def judge(one, other):
        asked.append((one, other))
        return "[[A=B]]" if len(asked) == 1 else "[[A!=B]]"

    theirs, ours = answer("ls -la\n"), answer("pwd\n")
    verifier = replace(
        STRING_ONLY, enable_llm_judge=True, judge=judge, check_twice_swap=True, reward_if_swap_fails=0.25
    )
    assert terminal(theirs, theirs, verifier) == (1.0, "none")
    assert asked == []
    assert terminal(theirs, ours, verifier) == (0.25, "judge_not_equivalent")
    assert asked == [(theirs, ours), (ours, theirs)]
    unclear = iter(["[[A=B]]", "?"])
    swapped = replace(verifier, judge=lambda one, other: next(unclear))
    assert terminal(theirs, ours, swapped) == (0.0, "judge_swap_parsing_failed")


def test_a_judge_that_fails_or_is_not_there_leaves_the_action_unscored():
    """NeMo Gym keeps such rows out of its metrics; a failed call is never a reward of 0."""

    def down(one, other):
        raise ConnectionError("refused")

    theirs, ours = answer("ls -la\n"), answer("pwd\n")
    for judge in (None, down):
        verifier = TerminusVerifier(harness="terminus_2", judge=judge)
        assert terminal(theirs, ours, verifier) == (None, "judge_failed")
        assert terminal(theirs, "no", verifier) == (0.0, "model_output_invalid")
    assert verifier.settings["judge"].endswith("down")
    assert verifier_id(verifier) != verifier_id(replace(verifier, judge=None))


# multi_harness


def tool(name, **properties):
    schema = {"type": "object", "properties": {key: {"type": kind} if kind else {} for key, kind in properties.items()}}
    return Tool(name=name, parameters=schema)


HARNESS_TOOLS = (
    tool("exec_command", cmd="string", workdir="string"),
    tool("write_stdin", session_id="integer", chars="string"),
    tool("update_plan", plan=""),
    tool("bash", command="string", description="string"),
    tool("read", filePath="string", offset="integer"),
    tool("write", filePath="string", content="string"),
    tool("edit", filePath="string", oldString="string", newString="string", replaceAll="boolean"),
    tool("grep", pattern="string", path="string", include="string"),
    tool("webfetch", url="string", format="string", timeout="integer"),
    tool("todowrite", todos="array"),
    tool("execute_python", code=""),
    tool("return_result", result=""),
    tool("code_exec", cmd="string"),
    tool("web_search", query=""),
    tool("fetch_web_page", url=""),
    tool("finish", reason="", paths="array"),
)


def multi(theirs, ours, harness="", **knobs):
    return word(MultiHarnessVerifier(harness=harness, **knobs), theirs, ours, HARNESS_TOOLS)


def todos(*states):
    return {"todos": [{"content": str(n), "status": state, "priority": "low"} for n, state in enumerate(states)]}


def ended(reason, *paths):
    return {"reason": reason, "paths": list(paths)}


CASES = [
    ("codex", "exec_command", {"cmd": "ls -la\r\n"}, {"cmd": "ls -la"}, ""),
    ("codex", "exec_command", {"cmd": "ls -la"}, {"cmd": "pwd"}, "exec_command_cmd_similarity_below_threshold"),
    ("codex", "exec_command", {"cmd": "ls -la"}, {}, "exec_command_missing_cmd"),
    ("codex", "exec_command", {"cmd": "ls", "workdir": "/a"}, {"cmd": "ls"}, ""),
    ("codex", "exec_command", {"cmd": "ls"}, {"cmd": "ls", "workdir": "/a"}, "unexpected_argument_keys"),
    ("codex", "exec_command", {"cmd": "ls"}, {"cmd": 5}, "tool_schema_validation_failed"),
    ("codex", "update_plan", {"plan": [1]}, {"plan": ["other"]}, ""),
    ("codex", "update_plan", {"plan": [1]}, {"plan": " "}, "update_plan_empty_plan"),
    ("codex", "bash", {"command": "ls"}, {"command": "rm -rf /"}, ""),
    ("opencode", "bash", {"command": "ls -la"}, {"command": "pwd"}, "bash_command_similarity_below_threshold"),
    ("opencode", "bash", {"description": "x"}, {"description": "y"}, "bash_missing_command"),
    ("opencode", "read", {"filePath": "/a", "offset": 1}, {"filePath": "/a", "offset": 9}, ""),
    ("opencode", "read", {"filePath": "/a"}, {"filePath": "/b"}, "argument_value_mismatch"),
    ("opencode", "write", {"filePath": "/a", "content": "x"}, {"filePath": "/a", "content": "y"}, ""),
    ("opencode", "edit", {"filePath": "/a", "oldString": "a", "newString": "b"},
     {"filePath": "/a", "oldString": "q", "newString": "z"}, ""),
    ("opencode", "edit", {"filePath": "/a", "oldString": "a", "newString": "b"},
     {"filePath": "/a", "oldString": "q", "newString": "q"}, "argument_value_mismatch"),
    ("opencode", "edit", {"filePath": "/a", "oldString": "a", "newString": "b", "replaceAll": True},
     {"filePath": "/a", "oldString": "a", "newString": "b"}, "argument_value_mismatch"),
    ("opencode", "grep", {"pattern": "a", "path": "/x"}, {"pattern": "a"}, "argument_value_mismatch"),
    ("opencode", "webfetch", {"url": "u", "timeout": 1}, {"url": "u", "timeout": 2}, ""),
    ("opencode", "todowrite", todos("done", "open"), todos("done", "open"), ""),
    ("opencode", "todowrite", todos("done"), todos("open"), "argument_value_mismatch"),
    ("opencode", "todowrite", todos("done"), todos("done", "open"), "argument_value_mismatch"),
    ("opencode", "todowrite", todos(), todos(), ""),
    ("opencode", "todowrite", todos(), todos("done"), "argument_value_mismatch"),
    ("opencode", "todowrite", {"todos": None}, todos("done"), "todowrite_empty_todos"),
    ("agent006", "execute_python", {"code": "print(1)"}, {"code": "print(2)"},
     "execute_python_code_similarity_below_threshold"),
    ("agent006", "execute_python", {"code": "print(1)"}, {"code": " "}, "argument_value_mismatch"),
    ("agent006", "return_result", {"result": {"a": 1, "b": 2}}, {"result": {"b": 2, "a": 1}}, ""),
    ("agent006", "return_result", {"result": {"a": 1}}, {"result": "no"}, "return_result_similarity_below_threshold"),
    ("stirrup", "code_exec", {"cmd": "ls"}, {"cmd": "pwd"}, "exec_command_cmd_similarity_below_threshold"),
    ("stirrup", "web_search", {"query": "Pizza NYC"}, {"query": " pizza nyc"}, ""),
    ("stirrup", "web_search", {"query": "abcde"}, {"query": "abcdx"}, "web_search_query_similarity_below_threshold"),
    ("stirrup", "web_search", {"query": "a"}, {"query": ""}, "web_search_missing_query"),
    ("stirrup", "fetch_web_page", {"url": "HTTP://A.b"}, {"url": "http://a.b "}, ""),
    ("stirrup", "fetch_web_page", {"url": "http://a.b"}, {"url": "http://a.c"}, "fetch_web_page_urls_do_not_match"),
    ("stirrup", "fetch_web_page", {"url": "http://a.b"}, {}, "fetch_web_page_missing_url"),
    ("stirrup", "finish", {"reason": "Done", "paths": ["/a", "/b"]}, {"reason": "done", "paths": '["/b ", "/a"]'}, ""),
    ("stirrup", "finish", ended("done", "/a"), {"paths": ["/a"]}, "finish_missing_reason"),
    ("stirrup", "finish", ended("done", "/a"), ended("no way"), "finish_missing_paths"),
    ("stirrup", "finish", ended("done", "/a"), ended("no way", "/b"), "finish_paths_do_not_match"),
    ("stirrup", "finish", ended("done", "/a"), ended("no way", "/a"), "finish_reason_similarity_below_threshold"),
    ("stirrup", "bash", {"command": "ls"}, {"command": "rm -rf /"}, ""),
    ("", "bash", {"command": "ls"}, {"command": "rm -rf /"}, ""),
]  # fmt: skip


@pytest.mark.parametrize(("harness", "name", "theirs", "ours", "fault"), CASES)
def test_rules_of_the_harnesses(harness, name, theirs, ours, fault):
    expected = (0.0, fault) if fault else (1.0, "expected_tool_call")
    assert multi(call(name, theirs), call(name, ours), harness) == expected


def test_order_of_checks_and_kinds():
    hello, right = Action(text="Hello"), call("bash", {"command": "ls"})
    assert multi(hello, Action(text="bye")) == (1.0, "expected_chat_message_found")
    assert multi(hello, Action(text=" \n")) == (0.0, "empty_message")
    assert multi(hello, Action()) == (0.0, "no_action_found")
    for theirs, ours in [(hello, right), (right, hello), (right, acts(right, right)), (acts(right, right), right)]:
        assert multi(theirs, ours) == (0.0, "action_type_mismatch")
    assert multi(right, right, expected_type="function_call_batch") == (0.0, "action_type_mismatch")
    assert multi(right, call("read", {"filePath": "/a"})) == (0.0, "unexpected_tool")
    assert multi(right, call("read", {"filePath": 5})) == (0.0, "tool_schema_validation_failed")
    assert multi(call("foo"), call("foo")) == (0.0, "tool_schema_not_found")
    assert word(MultiHarnessVerifier(), right, right) == (0.0, "tool_schema_not_found")
    for broken in ("{bad", "[1]", ""):
        assert multi(right, call("bash", broken)) == multi(call("bash", broken), right) == (None, "server_error")


def test_the_domain_is_the_harness_unless_one_is_given():
    pair = call("bash", {"command": "ls -la"}), call("bash", {"command": "pwd"})
    tools = HARNESS_TOOLS
    assert word(MultiHarnessVerifier(), *pair, tools, "opencode")[0] == 0.0
    assert word(MultiHarnessVerifier(), *pair, tools, "retail")[0] == 1.0
    assert word(MultiHarnessVerifier(harness="generic"), *pair, tools, "opencode")[0] == 1.0
    assert word(MultiHarnessVerifier(string_similarity_threshold=0.0), *pair, tools, "opencode")[0] == 1.0


def test_batches_are_sorted_and_compared_in_pairs():
    """Sorting pairs near-identical calls wrongly: each demonstrated command has its like, and the reward is 0."""
    first, second = (call("bash", {"command": command}) for command in ("ls aa", "cat zz"))
    assert multi(acts(first, second), acts(second, first), "opencode") == (1.0, "expected_tool_call_batch")
    assert multi(acts(first, second), acts(first, second, second)) == (0.0, "function_call_batch_length_different")
    theirs = [call("bash", {"command": command}) for command in ("aaaaaaaaaaaaaaaaaaax", "bbbbbbbbbbbbbbbbbbbb")]
    ours = [call("bash", {"command": command}) for command in ("xaaaaaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbbbbbb")]
    assert [multi(one, other, "opencode")[0] for one, other in zip(theirs, ours, strict=True)] == [1.0, 1.0]
    assert multi(acts(*theirs), acts(*ours), "opencode") == (0.0, "bash_command_similarity_below_threshold")


def test_a_schema_that_cannot_be_applied_validates_nothing():
    right = call("t", {"a": "x"})
    for schema in ({"type": "nonsense"}, {"$ref": "#/nowhere"}, {"pattern": "("}, {"minLength": -1}):
        tools = (Tool(name="t", parameters={"type": "object", "properties": {"a": schema}}),)
        assert word(MultiHarnessVerifier(), right, right, tools) == (0.0, "tool_schema_validation_failed")
    loose = (Tool(name="t", parameters={"properties": {"a": {"format": "email"}}}),)
    assert word(MultiHarnessVerifier(), right, right, loose) == (1.0, "expected_tool_call")


@pytest.mark.parametrize(
    "schema",
    [
        {"pattern": "^(a+)+$"},
        {"pattern": r"^\d{2}-\w+$"},
        {"pattern": "(?<=x)y|^(?!b)"},
        {"enum": ["ab", 1, 1.0, None, [1]]},
        {"const": True},
        {"type": ["string", "null"], "minLength": 2, "maxLength": 3},
        {"type": "integer", "minimum": 1, "exclusiveMaximum": 5, "multipleOf": 2},
        {"type": "number", "multipleOf": 0.5},
        {"type": "array", "items": {"type": "integer"}, "uniqueItems": True, "contains": {"const": 2}},
        {"type": "array", "prefixItems": [{"type": "string"}], "items": False},
        {
            "type": "object",
            "required": ["b"],
            "additionalProperties": False,
            "properties": {"b": {"$ref": "#/$defs/s"}},
        },
        {"oneOf": [{"type": "integer"}, {"minimum": 2}]},
        {"not": {"type": "string"}},
        {"if": {"type": "string"}, "then": {"minLength": 2}, "else": {"type": "array"}},
    ],
)
def test_arguments_are_valid_where_the_servers_own_library_says_so(schema):
    """jsonschema as the oracle: the server's validator (openapi-schema-validator) is its Draft 2020-12."""
    whole = {"type": "object", "properties": {"a": schema}, "$defs": {"s": {"type": "string"}}}
    oracle = Draft202012Validator(whole)
    values = [
        "",
        "a",
        "ab",
        "aaa",
        "xy",
        "bxy",
        "12-x",
        "12-",
        "é",
        0,
        1,
        1.0,
        2,
        3,
        4,
        0.3,
        -1,
        2**53,
        True,
        False,
        None,
    ]
    values += [[], [1], [1, 2], [2, 2], ["x"], ["x", 1], {}, {"b": "x"}, {"b": 1}, {"b": "x", "c": 1}, {"c": 1}]
    tools = (Tool(name="t", parameters=whole),)
    for value in values:
        said = word(MultiHarnessVerifier(), call("t", {"a": value}), call("t", {"a": value}), tools)
        assert (said[1] != "tool_schema_validation_failed") == oracle.is_valid({"a": value}), value


def test_a_schemas_regular_expression_does_not_run_away():
    """By Python's `re` these sixty letters take longer than anyone waits."""
    runaway = call("t", {"a": "a" * 60 + "!"})
    tools = (Tool(name="t", parameters={"type": "object", "properties": {"a": {"pattern": "^(a|a)*$"}}}),)
    assert word(MultiHarnessVerifier(), runaway, runaway, tools) == (0.0, "tool_schema_validation_failed")


# all of them

names = st.sampled_from(["t", "bash", "str_replace_editor", "read", "finish", "todowrite", "exec_command", "grep"])
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
)
keys = st.sampled_from(["command", "cmd", "path", "old_str", "new_str", "view_range", "todos", "filePath", "a"])
arguments = (
    st.none() | st.text(max_size=8) | st.dictionaries(keys, values, max_size=4).map(json.dumps) | values.map(json.dumps)
)
tool_calls = st.builds(ToolCall, name=names, arguments=arguments)
answers = st.sampled_from([None, "", answer("ls\n"), answer("pwd\n"), answer_1("ls\n"), "hello"])
actions = st.builds(Action, text=answers, calls=st.lists(tool_calls, max_size=3).map(tuple))
domains = st.sampled_from([None, "terminus_1", "terminus_2", "codex", "opencode", "agent006", "stirrup"])
verifiers = st.sampled_from(
    [
        *(kind() for kind in ALL),
        SingleStepVerifier(parallel_tool_call_rewarding=True, allow_subset=True, parallel_tool_call_reward_mode="f1"),
        SwePivotVerifier(reward_mode="continuous"),
        replace(STRING_ONLY, harness=""),
    ]
)


@settings(max_examples=400)
@given(demonstration=actions, action=actions, verifier=verifiers, domain=domains)
def test_any_action_gets_a_verdict_and_the_same_one_again(demonstration, action, verifier, domain):
    verdicts = [verifier(at(demonstration, HARNESS_TOOLS, domain), action) for _ in range(2)]
    assert verdicts[0] == verdicts[1]
    assert verdicts[0].value is None or 0.0 <= verdicts[0].value <= 1.0
    assert verdicts[0].verifier == verifier.name


def test_settings_and_what_they_refuse():
    assert {kind.name for kind in ALL} == {
        "nemo_gym.single_step", "nemo_gym.swe_pivot", "nemo_gym.terminus", "nemo_gym.multi_harness"
    }  # fmt: skip
    assert SingleStepVerifier().settings["floating_point_comparison_threshold"] == 1e-6
    assert SwePivotVerifier().settings["similarity_full_credit"] == 0.8
    assert len({verifier_id(kind()) for kind in ALL}) == 4
    for make, hint in [
        (lambda: SingleStepVerifier(word_count_similarity_threshold=-1), "0 or more"),
        (lambda: SingleStepVerifier(parallel_tool_call_reward_mode="f2"), "binary_strict, fractional, f1"),
        (lambda: SwePivotVerifier(reward_mode="graded"), "binary, continuous"),
        (lambda: SwePivotVerifier(diff_size_alpha=2), "from 0 to 1"),
        (lambda: TerminusVerifier(reward_if_swap_fails=-1), "from 0 to 1"),
        (lambda: TerminusVerifier(harness="terminus_3"), "terminus_1, terminus_2"),
        (lambda: MultiHarnessVerifier(string_similarity_threshold=float("nan")), "0 or more"),
    ]:
        with pytest.raises(ConfigError, match=hint) as caught:
            make()
        assert "\n" not in str(caught.value)
    assert all(harness in ("codex", "opencode", "agent006", "stirrup") for harness, _ in RULES)


@pytest.mark.skipif("nemo_gym.swe_pivot" not in VERIFIERS, reason="not registered")
def test_from_a_specification():
    verifier = load_verifier(
        "nemo_gym.swe_pivot:reward_mode=continuous,similarity_threshold=0.0,enable_target_match=false"
    )
    assert verifier == SwePivotVerifier(reward_mode="continuous", similarity_threshold=0.0, enable_target_match=False)
    spec = "nemo_gym.terminus:enable_string_similarity=true,judge_equal_label=[[A=B]],harness=terminus_1"
    assert load_verifier(spec) == TerminusVerifier(enable_string_similarity=True, harness="terminus_1")
    for bad in (
        "nemo_gym.terminus:judge=1",
        "nemo_gym.swe_pivot:threshold=0.0",
        "nemo_gym.swe_pivot:enable_target_match=1",
    ):
        with pytest.raises(ConfigError):
            load_verifier(bad)


@pytest.fixture(scope="module")
def benchmark():
    spec = importlib.util.spec_from_file_location("nemo_verdicts", ROOT / "benchmarks" / "nemo_verdicts.py")
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(not RECORDED.is_file(), reason=NO_SHARED)
def test_all_recorded_rewards_are_reproduced(benchmark, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["nemo_verdicts.py", str(RECORDED), "--json"])
    assert benchmark.main() == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (found["n"], found["agree"], found["rewards"], found["disagreements"]) == (37, 37, 36, [])
    differs, default = found["default"]["differs"], found["default"]
    assert (default["right"], default["known"], default["wrong"]) == (34, 34, []), (
        "auto is right where there is a right"
    )
    assert {row["inner"] for row in differs} == {"tool_call", "message", "shell", "code_edit"}
    assert all(row["why"] for row in differs), "a case without a word on who is right"


def test_the_benchmark_takes_what_only_a_row_holds(benchmark, tmp_path, monkeypatch, capsys):
    """The servers' fallbacks: another place for the answer, a row's threshold and tools, several messages, refusals."""
    shell = {"type": "function_call", "name": "bash", "arguments": '{"command": "ls -la"}'}
    pwd = {**shell, "arguments": '{"command": "pwd"}'}
    refusal = {"type": "message", "content": [{"type": "refusal", "refusal": "no"}]}
    config = {"tool_call_comparator_config": {"string_similarity_threshold": 0.9, "no_such_knob": 1}}
    tools = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}]
    declared = {"declared_tools": tools, "harness": "opencode"}
    ending = {"metadata": {"harness": "terminus_2", "expected_answer": answer("ls\n")}, "threshold": 0.5}
    halves = [{"type": "message", "content": half} for half in ("<think>", f"</think>{answer('ls -l')}")]
    string = {"enable_string_similarity": True, "enable_llm_judge": False}
    rows = [
        ("swe_pivot", {}, {"expected_answer": json.dumps(shell)}, [shell], 1.0),
        ("swe_pivot", {}, {"metadata": {"expected_action": shell}}, [pwd], 0.0),
        ("swe_pivot", {}, {}, [shell], 0.0),
        ("multi", config, {"expected_action": shell, **declared}, [pwd], 0.0),
        ("multi", config, {"expected_action": shell, **declared, "threshold": 0.0}, [pwd], 1.0),
        ("multi_harness", config, {"expected_action": {"type": "function_call_batch", "calls": [shell]}}, [shell], 0.0),
        ("multi", config, {"expected_action": {"type": "message", "content": "a"}}, [refusal], 0.0),
        ("single_step", {}, {"expected_action": {"type": "message", "content": "a"}}, [refusal], 0.0),
        ("terminus", string, ending, halves, 1.0),
        ("terminus", string, {**ending, "threshold": None}, halves, 0.0),
    ]
    cases = [
        {
            "server": server,
            "config": config,
            "row": {"responses_create_params": {"input": []}, **row},
            "items": items,
            "reward": reward,
            "case": f"case {number}",
        }
        for number, (server, config, row, items, reward) in enumerate(rows)
    ]
    path = tmp_path / "cases.jsonl"
    path.write_text("".join(json.dumps(case) + "\n" for case in cases))
    monkeypatch.setattr("sys.argv", ["nemo_verdicts.py", str(path), "--json"])
    assert benchmark.main() == 0, capsys.readouterr().out
    path.write_text('{"server": "other"}\n')
    with pytest.raises(SystemExit) as stop:
        benchmark.main()
    assert "cases.jsonl:1: no case" in str(stop.value)


@pytest.mark.skipif(not ROWS.is_dir(), reason=NO_SHARED)
@pytest.mark.parametrize(
    ("file", "verifier", "accepted", "n"),
    [
        ("single_step_tool_use.example.jsonl", SingleStepVerifier(), 5, 5),
        ("single_step_tool_use.example.jsonl", SingleStepVerifier(word_count_similarity_threshold=0.6), 3, 5),
        ("swe_pivot.example.jsonl", SwePivotVerifier(), 5, 5),
        ("terminus_judge.example.jsonl", replace(STRING_ONLY, harness=""), 5, 5),
    ],
)
def test_nvidias_own_rows_accept_themselves(file, verifier, accepted, n):
    found = [
        verifier(Candidate(trajectory=one, turn=len(one.messages) - 1), _last(one)).value
        for one in read_path(ROWS / file)
    ]
    assert (found.count(1.0), len(found)) == (accepted, n)


def _last(trajectory):
    return Candidate(trajectory=trajectory, turn=len(trajectory.messages) - 1).demonstration
