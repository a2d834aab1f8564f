"""The `execution` verifier: equal effects are accepted, others refused with the reason, others yet are unscored."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pivotrl.errors import ConfigError, DependencyError
from pivotrl.sandbox import Effects, Sandbox
from pivotrl.types import Action, Candidate, Completion, Message, Source, ToolCall, Trajectory
from pivotrl.verifiers import load_verifier, verifier_id, verify
from pivotrl.verifiers.execution import ExecutionVerifier, Seen, _after, command_of, differences
from sandboxed import caged


def bash(command, name="bash", **more):
    return Action(calls=(ToolCall(name=name, arguments=json.dumps({"command": command, **more})),))


def said(text):
    return Action(text=text)


def at(*demonstrations, name="t", task=None, shown="Hello"):
    """The last of the demonstrated turns; before each the tool's or the user's words are `shown`."""
    messages = []
    for action in demonstrations:
        messages.append(Message(role="user", content=shown))
        messages.append(Message(role="assistant", content=action.text, tool_calls=action.calls))
    trajectory = Trajectory(
        id=name, messages=tuple(messages), source=Source(file="t.jsonl", format="openai"), task_id=task
    )
    return Candidate(trajectory=trajectory, turn=len(messages) - 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("snapshots")
    inside = path / "default"
    (inside / "build").mkdir(parents=True)
    (inside / "build/out.o").write_text("object")
    (inside / "src").mkdir()
    (inside / "src/a.py").write_text("def f():\n    return 1\n")
    (inside / "src/b.py").write_text("print(2)\n")
    (inside / "notes.txt").write_text("pear\napple\nfig\n")
    return path


@pytest.fixture(scope="module")
def judge(folder):
    verifier = load_verifier(f"execution:snapshots={folder},seconds=5")

    def judge(demonstration, action):
        demonstration, action = (bash(one) if isinstance(one, str) else one for one in (demonstration, action))
        verdict = verify(verifier, at(demonstration), Completion(action=action, text="", finish_reason="stop"))
        return verdict.value, verdict.reason

    return judge


@caged
@pytest.mark.parametrize(
    ("demonstration", "action"),
    [
        ("rm -rf build", "find build -delete"),
        ("sort notes.txt", "cat notes.txt | sort"),
        ("sort notes.txt > sorted.txt", "sort -o sorted.txt notes.txt"),
        ("mkdir -p x/y && touch x/y/z", "install -D /dev/null x/y/z; chmod 644 x/y/z"),
        ("sed -i s/pear/plum/ notes.txt", "sed s/pear/plum/ notes.txt > n; mv n notes.txt"),
        ("wc -l < notes.txt", "grep -c '' notes.txt"),
        ("cat notes.txt; false", "cat notes.txt; exit 1"),
        ("touch new; ls -l", "touch ./new && ls -l"),
        ("echo 'Ran 3 tests in 0.01s'", "echo 'Ran 3 tests in 0.12s'"),
        ("echo $$; stat -c %a notes.txt", "echo $$; stat --format=%a notes.txt"),
        ("printf 'a\\xff\\n'; echo > $'\\xfe'", "printf 'a\\xff'; echo > $'\\xfe'"),
    ],
)
def test_equal_effects(judge, demonstration, action):
    assert judge(demonstration, action) == (1, "match")


@caged
@pytest.mark.parametrize(
    ("demonstration", "action", "reason"),
    [
        ("rm -rf build", "rm -rf src", "files"),
        ("rm -rf build", "rm -rf / 2> /dev/null; true", "files"),
        ("rm -rf build", "true", "files"),
        ("rm -rf build", "rm -rf build; echo x > ~/.bashrc", "files"),
        ("rm -rf build", "rm -rf build; ln -s / link", "files"),
        ("touch a", "touch a; chmod +x a", "files"),
        ("ln -s src link", "ln -s build link", "files"),
        ("echo $'\\xff' > x", "echo $'\\xfe' > x", "files"),
        ("touch $'\\xff'", "touch $'\\xfe'", "files"),
        ("cat notes.txt", "sort notes.txt", "output"),
        ("cat src/a.py", "sed 's/^ *//' src/a.py", "output"),
        ("cat notes.txt", "cat notes.txt >&2", "output"),
        ("cat notes.txt", "true", "output"),
        ("cat notes.txt", "cat notes.txt; false", "exit_status"),
        ("cat nothing", "echo x", "exit_status"),
        ("rm -rf build", "yes", "unfinished"),
        ("rm -rf build", "bash -c 'kill -9 $$'", "exit_status"),
    ],
)
def test_other_effects(judge, demonstration, action, reason):
    assert judge(demonstration, action) == (0, reason)


UUID = "cat /proc/sys/kernel/random/uuid"


@caged
@pytest.mark.parametrize(
    ("demonstration", "action", "reason"),
    [
        ("mktemp", "mktemp", "nondeterministic"),
        ("mktemp -q > /dev/null; rm notes.txt", "rm notes.txt", "nondeterministic"),
        (UUID, "echo x", "nondeterministic"),
        (f"{UUID} > id", "echo x > id", "nondeterministic"),
        ("yes", "true", "unfinished_demonstration"),
        ("nonsense --all", "nonsense", "not_runnable"),
        ("nonsense | cat", "nonsense | cat", "not_runnable"),
        (bash("ls", cwd="/elsewhere"), bash("ls", cwd="/elsewhere"), "not_runnable"),
        ("cd src", "cd src", "no_effect"),
        ("echo a\0b", "echo a", "not_applicable"),
        (said("I am done."), said("I am done."), "not_applicable"),
        (Action(calls=bash("ls").calls * 2), "ls", "not_applicable"),
    ],
)
def test_unscored(judge, demonstration, action, reason):
    assert judge(demonstration, action) == (None, reason)


@caged
def test_what_is_stable_in_a_demonstration_that_varies_still_refuses(judge):
    assert judge(f"{UUID} > id", "true") == (0, "files")
    assert judge(f"{UUID} > id", f"{UUID} > id; rm notes.txt") == (0, "files")
    assert judge("mktemp; rm -r build", "mktemp") == (0, "files")
    assert judge("mktemp", "mktemp; touch new") == (0, "files")
    assert judge(f"{UUID}; exit 3", UUID) == (0, "exit_status")


@caged
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two processors")
def test_a_world_that_went_on_since_the_demonstration_ran(judge):
    """It runs again before its output refuses an action. What goes on here is the number of processors."""
    processors = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(processors)})
    try:
        assert judge("nproc", "echo 1") == (1, "match")
        assert judge("nproc", "echo 0") == (0, "output")
    finally:
        os.sched_setaffinity(0, processors)
    assert judge("nproc", f"echo {len(processors)}") == (1, "match")
    assert judge("nproc", "echo 0") == (None, "nondeterministic")


@caged
def test_who_is_called_comes_first(judge):
    assert judge("ls", said("ls")) == (0, "wrong_kind")
    assert judge("ls", bash("ls", name="python")) == (0, "wrong_tool")
    assert judge("ls", Action(calls=bash("ls").calls * 2)) == (0, "surplus_calls")
    for other in (bash("ls", path="/"), "echo \ud800", bash("")):
        assert judge("ls", other) == (0, "no_command")
    assert judge(said("```bash\nls\n```"), said("So:\n```sh\nls -1\n```\n")) == (1, "match")
    assert judge(said("```bash\nls\n```"), said("Done.")) == (0, "no_command")
    assert judge(bash("ls", cwd="src"), "cd src; ls") == (1, "match")
    assert judge(bash("ls", cwd="src"), "ls") == (0, "output")


@pytest.mark.parametrize(
    ("action", "command"),
    [
        (bash("ls -l", timeout=3, description="List"), "ls -l"),
        (bash(["bash", "-lc", "echo a b"]), "echo a b"),
        (bash("ls", workdir="/a b"), "cd -- '/a b' || exit 127\nls"),
        (bash("view", path="/work"), None),  # an editor's command is none of the shell's
        (bash("ls", is_input="true"), None),
        (bash(["ls", 1]), None),
        (bash(5), None),
        (Action(calls=(ToolCall(name="bash", arguments="{"),)), None),
        (Action(calls=(ToolCall(name="bash", arguments=None),)), None),
        (said("```bash\nls\n\npwd\n```"), "ls\n\npwd"),
        (said("```python\nls\n```"), None),
        (said("```bash\n\n```"), None),
        (Action(), None),
    ],
)
def test_extraction(action, command):
    assert command_of(at(action), action) == command


@pytest.mark.parametrize(
    ("shown", "command"),
    [
        ("[Current working directory: /testbed/x]", "cd -- /testbed/x || exit 127\nls"),
        ("me@host:~/x$ ", "cd -- x || exit 127\nls"),
        ("me@host:~$ ", "ls"),
        ("me@host:/srv# ", "cd -- /srv || exit 127\nls"),
    ],
)
def test_the_place_that_the_trajectory_shows(shown, command):
    assert command_of(at(bash("ls"), shown=shown), bash("ls")) == command


def test_differences_by_part():
    """Recomputed by hand; what is new goes by its directory, so that random names are one part."""

    def seen(stdout="", stderr="", status=0, **files):
        return Seen(ending="exit", status=status, stdout=stdout, stderr=stderr, files=files)

    assert differences(seen("a"), seen("a")) == {}
    found = differences(
        seen("a\nb", status=1, **{"work/x": 1, "work/y": 1}), seen("a\nc", "e", **{"work/x": 2, "t/z": 1})
    )
    assert found == {
        "exit_status": ("exit_status", "0 instead of 1"),
        "stdout": ("output", "stdout: 'c' instead of 'b'"),
        "stderr": ("output", "stderr: 'e' instead of ''"),
        "new t": ("files", "'/t/z' is new"),
        "other work/x": ("files", "'/work/x' is other"),
        "missing work/y": ("files", "'/work/y' is missing"),
    }


@caged
def test_a_snapshot_for_each_turn_trajectory_or_task(tmp_path):
    for name in ("one", "two@1", "dom_7"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    verifier = ExecutionVerifier(snapshots=str(tmp_path))
    for name, task, file in (("one", None, "one"), ("two", None, "two@1"), ("three", "dom/7", "dom_7")):
        assert verifier(at(bash("ls"), name=name, task=task), bash(f"echo {file}")).value == 1
        assert verifier(at(bash("ls"), name=name, task=task), bash("echo other")).value == 0
    for name in ("four", "two", "../one", "..", "."):
        state = at(bash("pwd"), bash("ls"), name=name)
        verdict = verifier(state, bash("ls"))
        assert (verdict.value, verdict.reason) == (None, "no_snapshot")


@caged
def test_earlier_commands_are_run_first(folder):
    verifier = ExecutionVerifier(snapshots=str(folder), workdir="/testbed")
    earlier = (said("First I look."), bash("echo x > new; cd src"), said("```bash\nmv notes.txt n\n```"))
    assert verifier(at(*earlier, bash("ls")), bash("echo build; echo n; echo new; echo src")).value == 1
    assert verifier(at(*earlier, bash("cat new n")), bash("printf 'x\npear\napple\nfig\n'")).value == 1
    for other, hint in ((bash("x", name="edit", path="a"), "turn 1 did"), (bash("nonsense"), "cannot be run here")):
        verdict = verifier(at(other, bash("ls")), bash("ls"))
        assert (verdict.value, verdict.reason) == (None, "no_snapshot")
        assert hint in verdict.detail
        assert "'t@3'" in verdict.detail


@dataclass(frozen=True, slots=True, kw_only=True)
class Written(Sandbox):
    """Runs nothing: a command is written behind the files, `nonsense` is not found; all that are asked for are told."""

    asked: list[str] = field(default_factory=list, compare=False)

    def run(self, command, snapshot=b""):
        self.asked.append(command)
        status = 127 if command == "nonsense" else 0
        return Effects(ending="exit", status=status, stdout=b"", stderr=b"", tree=snapshot + command.encode())


@pytest.mark.parametrize("size", [10, 1 << 17])
def test_thousands_of_earlier_commands_are_run_once_each(size):
    sandbox, tree, commands = Written(workdir=f"/w{size}"), b"t" * size, tuple(f"{n};" for n in range(2000))
    assert _after(sandbox, tree, ()) == tree
    for count in (2000, 2000, 1999, 1995):
        assert _after(sandbox, tree, commands[:count]) == tree + "".join(commands[:count]).encode()
    assert tuple(sandbox.asked) == commands, "what is a command longer begins where the last one ended"
    assert _after(sandbox, tree, (*commands, "more", "nonsense", "ls", "ls")) is None
    assert sandbox.asked[2000:] == ["more", "nonsense"]


@caged
def test_ids_and_configuration_errors(folder, tmp_path):
    one = ExecutionVerifier(snapshots=str(folder))
    others = [ExecutionVerifier(snapshots=str(folder), seconds=5), ExecutionVerifier(snapshots=str(tmp_path))]
    (tmp_path / "more/default").mkdir(parents=True)
    others.append(ExecutionVerifier(snapshots=str(tmp_path / "more")))
    assert len({verifier_id(verifier) for verifier in (one, *others)}) == 4
    assert verifier_id(one) == verifier_id(load_verifier(f"execution:snapshots={folder}/"))
    for settings, hint in [
        ("", "not given"),
        (":snapshots=absent", "is no directory"),
        (f":snapshots={folder},seconds=0", "above 0"),
        (f":snapshots={folder},workdir=/usr", "absolute path"),
    ]:
        with pytest.raises(ConfigError, match=hint) as caught:
            load_verifier(f"execution{settings}")
        assert "\n" not in str(caught.value)


def test_refused_without_a_sandbox_unless_told(monkeypatch, tmp_path, folder):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DependencyError, match=r"apt install bubblewrap.*unsafe_exec=true"):
        load_verifier(f"execution:snapshots={folder}")
    unsafe = load_verifier(f"execution:snapshots={folder},unsafe_exec=true")
    assert unsafe(at(bash("sort notes.txt")), bash("cat notes.txt | sort")).value == 1
    assert unsafe(at(bash("sort notes.txt")), bash("cat notes.txt")).reason == "output"
    assert Path(folder / "default/build/out.o").exists()
