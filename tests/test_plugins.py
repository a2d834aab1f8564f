"""Plug-ins: the example package, built, installed and used by name; broken ones cost a line and nothing else."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kill_harness import environment
from pivotrl.cli import main
from pivotrl.environments import load_environment
from pivotrl.errors import ConfigError, InputError
from pivotrl.plugins import load_object
from pivotrl.policies import has_weights
from pivotrl.trajectories import read_path
from pivotrl.types import Candidate
from pivotrl.verifiers import load_verifier

EXAMPLE = Path(__file__).parents[1] / "examples" / "pivotrl-example"
RUN_ALL = "import json, sys; from pivotrl.cli import main; print([main(line) for line in json.loads(sys.argv[1])])"


def pivotrl(folder: Path, packages: Path, *lines: str) -> subprocess.CompletedProcess[str]:
    """Several command lines in one process, which finds packages in a directory of their own."""
    path = os.pathsep.join([str(packages), environment()["PYTHONPATH"]])
    return subprocess.run(
        [sys.executable, "-c", RUN_ALL, json.dumps([line.split() for line in lines])],
        cwd=folder,
        env=environment() | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_example_is_built_installed_and_used_by_its_names(tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="hatchling is not installed: `make dev` installs it")
    source, packages = tmp_path / "source", tmp_path / "packages"
    shutil.copytree(EXAMPLE, source)
    install = ["install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--target", str(packages)]
    subprocess.run([sys.executable, "-m", "pip", *install, str(source)], check=True)
    done = pivotrl(
        tmp_path,
        packages,
        "ingest source/data --run run",
        "profile --run run --policy homebody:0.5 --verifier degrees:tolerance=1 --rollouts 8",
        "select --run run",
        "evaluate --run run --env home --policies base=homebody:0.5 better=homebody:1 --tasks 11",
        "ingest source/data --run again --format homelog",
        "profile --run run --policy homebody --verifier degree",
        "profile --run run --policy homebody:much",
    )
    assert done.stdout.splitlines()[-1] == "[0, 0, 0, 0, 0, 2, 2]", done.stderr
    assert "judge, nemo_gym.single_step" in done.stderr
    assert "degrees" in done.stderr, "an unknown name is answered with the installed ones, too"
    first = json.loads((tmp_path / "run/trajectories/part-00000.jsonl").read_text().splitlines()[0])
    assert first["source"]["format"] == "homelog"
    scores = json.loads((tmp_path / "run/eval/tasks/tasks.json").read_text())["scores"]
    assert [score["overall"]["success"]["mean"] for score in scores][1] == 1.0
    verdicts = "".join(path.read_text() for path in (tmp_path / "run/profiles/base/verdicts").glob("*/part-*.jsonl"))
    assert "too_far" in verdicts
    assert '"match"' in verdicts


BROKEN = """
import nothing_like_this
"""
GREEDY = """
from pivotrl import Trajectory

class Greedy:
    def claims(self, record):
        raise KeyError("app")

    def read(self, record, source):
        raise ZeroDivisionError("by\\nzero")

def judge(candidate, action):
    return True

class Half:
    pass
"""
ENTRIES = """
[pivotrl.readers]
absent = broken:Reader
greedy = greedy:Greedy
half = greedy:Half
[pivotrl.verifiers]
absent = broken:judge
easy = greedy:judge
half = greedy:Half
[pivotrl.policies]
absent = broken:make
half = greedy:Half
[pivotrl.environments]
absent = broken:World
"""
CHAT = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Hello."}]}


def test_broken_packages_cost_a_line_and_nothing_else(tmp_path: Path) -> None:
    packages = tmp_path / "packages"
    facts = packages / "unlucky-1.0.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: unlucky\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(ENTRIES)
    (packages / "broken.py").write_text(BROKEN)
    (packages / "greedy.py").write_text(GREEDY)
    rows = [CHAT | {"task_id": str(number)} for number in range(20)]
    (tmp_path / "chat.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    refused = (
        "ingest chat.jsonl --run new --format greedy",
        "ingest chat.jsonl --run new --format nowhere",
        *(f"profile --run run --policy {name}:x" for name in ("absent", "half")),
        *(
            f"profile --run run --policy scripted:nothing:play --verifier {name}"
            for name in ("absent", "half", "easy:a=1")
        ),
        "evaluate --run run --env absent --policies a=scripted:nothing:play",
    )
    done = pivotrl(tmp_path, packages, "ingest chat.jsonl --run run", *refused)
    assert done.stdout.splitlines()[-1] == str([0] + [2] * len(refused))
    said = done.stderr.splitlines()
    passed_over, errors = said[: -len(refused)], said[-len(refused) :]
    assert [line.split(":")[0].split("'")[0] for line in passed_over] == ["reader absent ", "reader ", "reader greedy"]
    assert all(line.endswith("it is passed over") for line in passed_over)
    for line, words in zip(
        errors,
        (
            "chat.jsonl:1: no known trajectory format: looked for greedy",
            "reader 'nowhere' is unknown; use one of these: auto, openhands",
            "policy absent 'broken:make': cannot import broken",
            "policy 'half': cannot be made (TypeError",
            "verifier absent 'broken:judge': cannot import broken (No module named 'nothing_like_this')",
            "verifier 'half': it lacks name, settings, version",
            "verifier easy: 'a=1' is no key=value that it knows",
            "environment absent 'broken:World': cannot import broken",
        ),
        strict=True,
    ):
        assert line.startswith("error: ")
        assert words in line


READERS = """
from pivotrl import Message, Trajectory

class Raises:
    def claims(self, record): return True
    def read(self, record, source): raise ZeroDivisionError("by\\nzero")

class Wrong:
    def claims(self, record): return True
    def read(self, record, source):
        return [Trajectory(id="a", messages=(Message(role="nobody"),), source=source)]

class Dialect:
    def claims(self, record): return "hi" in str(record)
    def read(self, record, source):
        return [Trajectory(id="d", messages=(Message(role="assistant", content="yes"),), source=source)]

class Session:
    name = "mine"
    def begins(self, record): return "events" in record
    def read_session(self, records, source):
        texts = [record["say"] for line, record in records if "say" in record]
        yield Trajectory(id="s", messages=tuple(Message(role="assistant", content=t) for t in texts), source=source)

class Judge:
    name, version, settings = "judge", "3", {}
    def __call__(self, candidate, action): return None

NUMBER = 7
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(READERS)
    (tmp_path / "chat.jsonl").write_text(json.dumps(CHAT) + "\n")
    (tmp_path / "log.jsonl").write_text('{"events": 1}\n{"say": "a"}\n{"say": "b"}\n')
    return path


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Raises", r"chat.jsonl:1: reader .*mine.py:Raises raised ZeroDivisionError: by zero"),
        ("Wrong", r"chat.jsonl:1: reader .*mine.py:Wrong: messages.0.role"),
    ],
)
def test_what_a_reader_gets_wrong_refuses_the_file_in_one_line(mine: Path, name: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as error:
        list(read_path(mine.with_name("chat.jsonl"), f"{mine}:{name}"))
    assert "\n" not in str(error.value)


def test_readers_by_place(mine: Path) -> None:
    (one,) = read_path(mine.with_name("chat.jsonl"), f"{mine}:Dialect")
    assert (one.id, one.source.format) == ("d", f"{mine}:Dialect")
    (other,) = read_path(mine.with_name("log.jsonl"), f"{mine}:Session")
    assert [message.content for message in other.messages] == ["a", "b"]
    with pytest.raises(InputError, match="looked for"):
        list(read_path(mine.with_name("chat.jsonl"), f"{mine}:Session"))
    for name, words in (("NUMBER", "not callable"), ("Judge", "it lacks claims, read"), ("Gone", "has no Gone")):
        with pytest.raises(ConfigError, match=words):
            list(read_path(mine.with_name("chat.jsonl"), f"{mine}:{name}"))


def test_a_verifier_class_by_place(mine: Path) -> None:
    verifier = load_verifier(f"{mine}:Judge")
    assert (verifier.name, verifier.version) == ("judge", "3")
    assert load_verifier(f"any(exact, {mine}:Judge)").settings


def test_the_example_by_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any installation; and its environment can be snapped and restored at every turn."""
    monkeypatch.syspath_prepend(str(EXAMPLE / "src"))
    trajectories = list(read_path(EXAMPLE / "data" / "homelog.jsonl", "pivotrl_example.reader:HomeLog"))
    assert len(trajectories) == 20
    home = load_environment("pivotrl_example.environment:Home")
    played, other = home.make(), home.make()
    for one in trajectories[:4]:
        played.reset(one.task_id or "")
        while not played.done:
            assert other.restore(played.snapshot()) == played.state
            turn = len(played.state.messages)
            played.step(Candidate(trajectory=one, turn=turn).demonstration)
        assert played.outcome() == one.outcome == 1.0
    assert has_weights("homebody:0.5"), "only an installed name stands for a policy without weights"


def test_help_names_what_is_installed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "Installed by name: environment desk, desk-long, desk-short, shell, skills." in " ".join(
        capsys.readouterr().out.split()
    )


def test_a_file_finds_what_lies_beside_it_and_nothing_there_replaces_what_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.path", list(sys.path))
    (tmp_path / "beside_this.py").write_text("WORD = 'mine'\n")
    (tmp_path / "json.py").write_text("raise RuntimeError('never')\n")
    (tmp_path / "use.py").write_text("import json\nfrom beside_this import WORD\n\n\ndef word():\n    return WORD\n")
    (tmp_path / "nothing_like_this_rules.py").write_text("import nothing_like_this\n")
    found, _ = load_object(f"{tmp_path}/use.py:word", "verifier")
    assert callable(found)
    assert found() == "mine"
    with pytest.raises(ConfigError, match="it imports nothing_like_this: install that, or put it beside the file"):
        load_object(f"{tmp_path}/nothing_like_this_rules.py:word", "verifier")
    with pytest.raises(ConfigError, match=r"No module named 'no_such_module'.*; check the name"):
        load_object("no_such_module:word", "verifier")
