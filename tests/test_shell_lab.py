"""The shell: the expert succeeds in every style, chance and careless agents do not, bash and its simulation agree."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pivotrl.errors import ConfigError, InputError
from pivotrl.lab.base_model import draft_tokenizer, make_tokenizer
from pivotrl.lab.desk.tasks import pool
from pivotrl.lab.domains import SHELL, load_domain
from pivotrl.lab.gates import copies, form
from pivotrl.lab.shell import STYLES, Expert, ShellEnvironment, draw_tasks, make_task, play, write_episodes, write_trees
from pivotrl.lab.shell.clerk import Clerk
from pivotrl.lab.shell.episodes import random_action
from pivotrl.lab.shell.rules import POLICY, decide
from pivotrl.lab.shell.simulation import SimulatedTerminal
from pivotrl.lab.shell.tasks import ID_PATTERN, TEXTS
from pivotrl.lab.shell.terminal import read_action
from pivotrl.trajectories.openai_chat import OpenAIChat
from pivotrl.types import Action, Candidate, Source
from pivotrl.verifiers import load_verifier
from pivotrl.verifiers.shell import working_directory
from sandboxed import caged

PARTS = ("train", "validation", "test")


def simulated() -> ShellEnvironment:
    return ShellEnvironment(SimulatedTerminal())


def typed(*keys: str, complete: bool = False) -> Action:
    commands = [{"keystrokes": one, "duration": 0.1} for one in keys]
    return Action(text=json.dumps({"analysis": "", "plan": "", "commands": commands, "task_complete": complete}))


def finish(env: ShellEnvironment, style: str = "plain") -> float:
    while not env.done:
        env.step(Expert(env, STYLES[style]).act())
    return env.outcome()


def asking(kind: str, *, skip: bool = False, count: int = 5):
    """Tasks with a request of a kind, locked or not, and that request."""
    found = 0
    for task in draw_tasks("train", 400, 3):
        request = next((one for one in task.requests if one.kind == kind and decide(task, one).skip == skip), None)
        if request and found < count:
            found += 1
            yield task, request
    assert found == count


@pytest.mark.parametrize("style", STYLES)
def test_the_expert_succeeds_within_4_to_20_turns(style):
    env, turns = simulated(), Counter()
    for task in draw_tasks("test", 60, 11):
        assert play(env, task.id, Expert(env, STYLES[style]).act) == 1.0, task.id
        turns[env.session.turns] += 1
        assert sum(len((m.content or "").split()) for m in env.state.messages) < 800
    assert min(turns) >= 4
    assert max(turns) <= 20
    assert len(turns) >= 8


@caged
def test_bash_shows_and_leaves_what_its_simulation_does():
    """Everything that experts and clerks type: 25 episodes, some of them broken by habits."""
    fast, real, steps, outcomes = simulated(), ShellEnvironment(), 0, Counter()
    for number, task in enumerate(draw_tasks("base", 20, 9)):
        fast.reset(task.id)
        real.reset(task.id)
        while not fast.done:
            action = Clerk(fast, number).act()
            assert fast.step(action) == real.step(action), action.text
            assert dict(fast.tree) == dict(real.tree), action.text
            steps += 1
        assert fast.outcome() == real.outcome()
        outcomes[real.outcome()] += 1
    assert steps > 120
    assert min(outcomes[0.0], outcomes[1.0]) > 4


@caged
def test_chance_fails():
    env, rng = ShellEnvironment(), random.Random(3)
    assert not any(play(env, task.id, lambda: random_action(env.state, rng)) for task in draw_tasks("test", 4, 5))


def test_doing_nothing_fails():
    env = simulated()
    for quiet in (Action(), Action(text="I am done."), typed(complete=True)):
        assert not any(play(env, task.id, lambda act=quiet: act) for task in draw_tasks("test", 20, 5))


CRIMES = {
    "rm": ("remove", "rm {path}"),
    "no copy": ("sort", "sort -o {path} {path}"),
    "copy too late": ("sort", "sort -o {path} {path}", "cp {path} {path}.bak"),
    "wrong number": ("count", "echo {id} 9 >> report.txt"),
    "stray file": ("count", "echo {id} > notes.txt"),
    "wrong folder": ("archive", "mv {path} trash/"),
}


@pytest.mark.parametrize("crime", CRIMES)
def test_breaking_a_rule_fails(crime):
    """Whatever the expert does afterwards."""
    kind, *commands = CRIMES[crime]
    env = simulated()
    for task, request in asking(kind):
        env.reset(task.id)
        facts = {"path": request.path, "key": request.key, "id": request.id}
        env.step(typed(*(f"{one.format(**facts)}\n" for one in commands[:1])))
        for one in commands[1:]:
            env.step(typed(f"{one.format(**facts)}\n"))
        assert env.session.kept is (crime in ("wrong number", "stray file"))
        assert finish(env) == 0.0


def test_what_can_be_mended_is_mended():
    env = simulated()
    wrong = {"script": ["chmod 777 {path}"], "set": ["cp {path} {path}.bak", "sed -i 's/^{key} .*/{key} red/' {path}"]}
    for kind, commands in wrong.items():
        for task, request in asking(kind):
            env.reset(task.id)
            env.step(typed(*(f"{one.format(path=request.path, key=request.key)}\n" for one in commands)))
            assert finish(env) == 1.0


@pytest.mark.parametrize("kind", ["remove", "set", "sort", "unique", "archive"])
def test_a_locked_file_stays(kind):
    env = simulated()
    for task, request in asking(kind, skip=True):
        env.reset(task.id)
        env.step(typed(f"mv {request.path} archive/\n" if kind == "archive" else f"mv {request.path} trash/\n"))
        assert not env.session.kept
        assert finish(env) == 0.0


def test_overwriting_fails_and_a_large_total_has_its_own_list():
    env, seen = simulated(), Counter()
    for task in draw_tasks("train", 400, 3):
        for request in task.requests:
            there = request.kind == "extract" and task.text(request.value)
            large = request.kind == "total" and decide(task, request).report == "large.txt"
            if there or large:
                env.reset(task.id)
                total = sum(int(line.split()[2]) for line in task.text(request.path).splitlines()) if large else 0
                wrong = (
                    f"echo {request.id} {total} >> report.txt" if large else f"grep a {request.path} > {request.value}"
                )
                env.step(typed(wrong + "\n"))
                seen["large" if large else "overwritten"] += finish(env) == 0.0
    assert min(seen.values()) > 10


@caged
@pytest.mark.parametrize(
    "detour",
    [("ls -la\n", "cat nothing\n"), ("cd orders\n",), ("ls", " -d ."), ("exit 3\n",),
     ("(\n", "cat <<E > /tmp/x\na\nE\n"), ("mkdir -p archive; : > /tmp/x\n", "Enter"), ("cd ..\n", "C-c")],
)  # fmt: skip
def test_harmless_detours_succeed(detour):
    env = ShellEnvironment()
    for task in draw_tasks("train", 1, 4):
        env.reset(task.id)
        env.step(typed(*detour))
        assert finish(env) == 1.0, env.screens


def test_one_turn_in_another_style_changes_nothing():
    env, fork = simulated(), simulated()
    for number, task in enumerate(draw_tasks("train", 12, 2)):
        trunk, branch = (list(STYLES)[(number + step) % 5] for step in (0, 1 + number % 4))
        env.reset(task.id)
        while not env.done:
            fork.restore(env.snapshot())
            fork.step(Expert(fork, STYLES[branch]).act())
            assert finish(fork, trunk) == 1.0, (task.id, env.session)
            env.step(Expert(env, STYLES[trunk]).act())


def test_terminus_is_spoken():
    """Unreadable answers get its error, a task is complete when that is said twice, and the prompt is shown."""
    env = simulated()
    env.reset("shell-test-1")
    for text, told in (("ls", "No valid JSON"), ('{"commands": []}', "'analysis' is a required"), ("[1]", "No valid")):
        answer = env.step(Action(text=text)).new[-1].content
        assert answer.startswith("Previous response had parsing errors:\nERROR: ")
        assert told in answer
    assert "Are you sure" in env.step(typed(complete=True)).new[-1].content
    shown = env.step(typed("ls trash\n")).new[-1].content
    assert shown == "New Terminal Output:\n\nuser@sandbox:/work$ ls trash\nuser@sandbox:/work$ "
    assert "Are you sure" in env.step(typed("ls trash\n", complete=True)).new[-1].content
    last = env.step(typed(complete=True))
    assert last.done
    assert len(last.new) == 1
    with pytest.raises(InputError, match="no episode"):
        env.step(typed())


def test_keystrokes_are_typed_as_in_a_terminal():
    assert read_action(typed("ls", " -l\n", "pwd\n"), "")[:2] == (("ls -l", "pwd"), "")
    assert read_action(typed("ls", "C-c", "pwd", "Enter"), "")[:2] == (("pwd",), "")
    assert read_action(typed("\n", "a\nb\n", "ec"), "x")[:2] == (("x", "a\nb"), "ec")
    fenced = Action(text=f"<think>a {{b}}</think>Now:\n```json\n{typed('ls' + chr(10)).text}\n```")
    assert read_action(fenced, "")[:2] == (("ls",), "")


def test_parts_share_no_id_and_tasks_follow_from_their_id():
    found = {}
    for part in PARTS:
        tasks = draw_tasks(part, 300, 1)
        assert len({replace(task, id="") for task in tasks}) == 300
        found[part] = {one for task in tasks for one in re.findall(ID_PATTERN, repr(task))}
        assert found[part] <= {*pool(part, "O"), *pool(part, "C")}
        make_task.cache_clear()
        assert draw_tasks(part, 300, 1) == tasks
    assert all(found[one].isdisjoint(found[other]) for one in PARTS for other in PARTS if one != other)
    assert all(re.search(r"{(path|name)}", text) for texts in TEXTS.values() for text in texts)
    for name in ("shell-test", "shell-test-x", "shell-nope-1", "shell-test-07", "desk-test-1", ""):
        with pytest.raises(ConfigError, match="shell task"):
            make_task(name)
    with pytest.raises(ConfigError, match="take fewer"):
        ShellEnvironment().tasks("test", 1_000_001, 0)


_KEYS = st.one_of(
    st.text(max_size=12), st.sampled_from(["ls\n", "cd /\n", "rm -rf /work\n", "exit\n", "\x00\n", "'\n"])
)
_ACTIONS = st.one_of(
    st.lists(_KEYS, max_size=3).map(lambda keys: typed(*keys)),
    st.builds(Action, text=st.one_of(st.none(), st.text(st.characters(), max_size=20), st.just('{"commands": 1}'))),
)


@caged
@given(actions=st.lists(_ACTIONS, max_size=4), index=st.integers(0, 99))
@settings(max_examples=8, deadline=None)
def test_junk_never_raises_and_a_snapshot_of_it_is_exact(actions, index):
    env, fork = ShellEnvironment(), ShellEnvironment()
    env.reset(f"shell-test-{index}")
    for action in actions:
        fork.restore(env.snapshot())
        assert fork.state == env.state
        assert fork.step(action) == env.step(action)
        assert fork.session == env.session
        assert fork.tree == env.tree
    assert env.outcome() == 0.0


def test_other_bytes_are_no_snapshot():
    env = ShellEnvironment()
    for data in (b"", b"{}\n", b'{"task_id": "shell-test-1", "session": {}, "messages": []}\nno archive'):
        with pytest.raises(InputError):
            env.restore(data)
    with pytest.raises(InputError, match="no task"):
        _ = env.state


@caged
def test_verifiers_judge_candidates_made_from_episodes(tmp_path):
    """What `ingest` reads back: `auto` takes it to `shell`; `execution` runs it on the files laid down beside it."""
    write_episodes(tmp_path / "episodes.jsonl", 6, 2)
    records = [json.loads(line) for line in (tmp_path / "episodes.jsonl").read_text().splitlines()]
    write_trees(tmp_path / "trees", [record["task_id"] for record in records])
    auto, run = load_verifier("auto"), load_verifier(f"execution:snapshots={tmp_path / 'trees'}")
    scored = Counter()
    for record in records:
        assert record["reward"] == 1.0
        (trajectory,) = OpenAIChat().read(record, Source(file="episodes.jsonl", format="openai_chat"))
        for turn, message in enumerate(trajectory.messages):
            if message.role != "assistant":
                continue
            candidate = Candidate(trajectory=trajectory, turn=turn)
            shown = candidate.demonstration
            verdict = auto(candidate, shown)
            assert (verdict.verifier, verdict.value) == ("shell", 1.0)
            moved = re.search(r"mv \S+ trash", shown.text or "")
            if not moved and trajectory.task_id != records[0]["task_id"]:
                continue  # a run costs
            effect = run(candidate, shown)
            assert effect.value in (1.0, None), effect
            scored[effect.value] += 1
            if moved:
                assert working_directory(candidate) == "/work"
                careless = replace(shown, text=re.sub(r"mv (\S+) trash/?", r"rm \1", shown.text))
                assert [one(candidate, careless).value for one in (auto, run)] == [0.0, 0.0]
                same = replace(shown, text=re.sub(r"mv (\S+) trash/?", r"cp \1 trash/ && rm \1", shown.text))
                assert run(candidate, same).value == 1.0
                done = replace(shown, text=shown.text.replace('complete": false', 'complete": true'))
                assert run(candidate, done).reason == "task_complete"
                scored["moved"] += 1
    assert scored[1.0] > 3
    assert scored["moved"] > 0


def test_the_clerk_is_systematic_and_sometimes_right():
    env = simulated()
    tasks = draw_tasks("base", 120, 4)
    won = [play(env, task.id, Clerk(env, 0).act) for task in tasks]
    assert 0.4 < sum(won) / len(won) < 0.7
    for task in tasks[:5]:
        play(env, task.id, Clerk(env, 3).act)
        first = env.state.messages
        play(env, task.id, Clerk(env, 3).act)
        assert env.state.messages == first


def test_episodes_are_short_and_what_is_copied_is_one_token():
    drafts = draft_tokenizer(SHELL)
    texts = []
    for index in range(30):
        messages, tools = SHELL.clerk(index)
        dicts = [{"role": one.role, "content": one.content} for one in messages]
        texts.append(drafts.apply_chat_template(dicts, tools=tools, tokenize=False))
    tokenizer = make_tokenizer(texts, SHELL)
    for text in texts:
        row = tokenizer(text)["input_ids"]
        assert tokenizer.decode(row) == text
        assert tokenizer.unk_token_id not in row
        assert len(row) < 1500
    assert len(tokenizer(POLICY)["input_ids"]) < 250
    for value in (*pool("test", "O")[:30], *pool("test", "C")[:30], "lamp", "Rome", "159"):
        (alone,) = tokenizer(value)["input_ids"]
        for context in (f"cat orders/{value}.txt", f"./logs/new/{value}.log", f'"keystrokes": "echo {value} 4 >> a"'):
            assert alone in tokenizer(context)["input_ids"]


def test_gates_read_commands_in_the_text():
    right, other = typed("cat orders/O2004.txt\n"), typed("cat orders/O2005.txt\n")
    assert copies(right, [right], SHELL) is True
    assert copies(other, [right], SHELL) is False
    assert copies(typed("rm orders/O2004.txt\n"), [right], SHELL) is None
    assert copies(typed(complete=True), [typed(complete=True)], SHELL) is None
    assert form(right, SHELL) == form(other, SHELL)
    names = Counter(one.name for task in draw_tasks("validation", 30, 0) for one in SHELL.situations(task.id, 0))
    assert {"end", "remove look", "sort backup", "total measure"} <= set(names)
    assert load_domain("shell") is SHELL
    with pytest.raises(ConfigError, match="desk, shell"):
        load_domain("repo")
