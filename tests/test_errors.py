"""Whatever a user does wrong: one line that helps, exit code 2, no traceback, and nothing that was there is lost."""

from __future__ import annotations

import json
import os
import resource
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager
from pathlib import Path

import pytest

from kill_harness import PROFILE, RUN, complete, copy, differences, environment, files, finish, make_desk, make_model
from pivotrl.cli import main
from pivotrl.storage import FileLock

CALM = {"role": "assistant", "content": "Done."}


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ingested desk; not to be written to."""
    return make_desk(tmp_path_factory.mktemp("fresh"))


@pytest.fixture(scope="module")
def calm(fresh: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, profiled without trouble; not to be written to."""
    folder = copy(fresh, tmp_path_factory.mktemp("calm") / "desk")
    complete(folder, PROFILE)
    return folder


@pytest.fixture
def run(fresh: Path, tmp_path: Path) -> Path:
    """A run of one's own, ingested only."""
    return copy(fresh, tmp_path / "desk") / RUN


@pytest.fixture
def profiled(calm: Path, tmp_path: Path) -> Path:
    """A run of one's own with a finished profile."""
    return copy(calm, tmp_path / "desk") / RUN


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a command that must be refused in one line and leave every file as it was; gives the line."""

    def call(folder: Path, *arguments: object, keeps: bool = True) -> str:
        before = files(folder)
        with chdir(folder):
            code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        assert code == 2, captured
        assert captured.out == ""
        assert captured.err.startswith("error: ")
        assert captured.err.count("\n") == 1, captured.err
        assert len(captured.err) < 600
        assert not keeps or files(folder) == before
        return captured.err

    return call


def write(path: Path, *rows: object) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([], ["data.jsonl", "empty"]),
        (['{"messages": ['], ["data.jsonl:", "JSON"]),
        ([{"messages": [{"role": "user", "content": 7}, CALM]}], ["data.jsonl:1", "content"]),
        ([{"messages": [{"role": "user", "content": "hi"}]}], ["data.jsonl", "no assistant turn"]),
        ([{"nothing": "of the kind"}], ["data.jsonl"]),
    ],
)
def test_bad_input_files(tmp_path: Path, refused: Callable[..., str], rows: list[object], says: list[str]) -> None:
    write(tmp_path / "data.jsonl", *rows)
    line = refused(tmp_path, "ingest", "data.jsonl", "--run", RUN)
    assert all(word in line for word in says), line
    assert not (tmp_path / RUN).exists()


def test_a_damaged_line_is_an_error_when_told(tmp_path: Path, refused: Callable[..., str]) -> None:
    write(tmp_path / "data.jsonl", {"messages": [{"role": "user", "content": "hi"}, CALM]}, '{"messages": [')
    line = refused(tmp_path, "ingest", "data.jsonl", "--strict", "--run", RUN)
    assert "data.jsonl:2: not JSON" in line
    assert not (tmp_path / RUN).exists()


def test_missing_input_file(tmp_path: Path, refused: Callable[..., str]) -> None:
    assert "nowhere.jsonl: no such file" in refused(tmp_path, "ingest", "nowhere.jsonl", "--run", RUN)


@pytest.mark.parametrize(
    "command", ["profile --policy scripted:desk_plugins:play", "select", "train", "evaluate", "report"]
)
def test_missing_run(tmp_path: Path, refused: Callable[..., str], command: str) -> None:
    name, *rest = command.split()
    line = refused(tmp_path, name, "--run", "nowhere", *rest)
    assert "nowhere is no run directory; make one with `pivotrl ingest" in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("profile --policy ./nowhere", ["'./nowhere': no such directory"]),
        ("profile --policy run/trajectories", ["'run/trajectories'", "no config.json"]),
        ("profile --policy broken", ["'broken'", "cannot be loaded"]),
        ("profile --policy scripted:no_such_module:play", ["no_such_module", "cannot import"]),
        ("profile --policy scripted:desk_plugins:deaf", ["too many positional arguments", "act(state, random)"]),
        ("profile --policy PLAY --verifier desk_plugins:deaf", ["too many positional", "judge(candidate, action)"]),
        ("profile --policy scripted:desk_plugins:fly", ["desk_plugins has no fly"]),
        ("profile --policy scripted:desk_plugins:NOT_CALLABLE", ["not a callable object; write act(state, random)"]),
        ("profile --policy scripted:nowhere.py:play", ["nowhere.py", "cannot import"]),
        ("profile --policy PLAY --verifier nice", ["'nice' is unknown", "auto, schema, tool_call, message"]),
        ("profile --policy PLAY --verifier message:speed=1", ["'speed=1'", "its settings are"]),
        ("profile --policy PLAY --verifier message:threshold=high", ["message"]),
        ("profile --policy PLAY --verifier no_such_module:judge", ["cannot import no_such_module"]),
        ("profile --policy PLAY --verifier desk_plugins:no_judge", ["desk_plugins has no no_judge"]),
        ("profile --policy PLAY --rollouts 0", ["rollouts 0", "at least 1"]),
        ("profile --policy PLAY --rollouts many", ["error: --rollouts: 'many' is no whole number; see its --help"]),
        ("profile --policy PLAY --rollouts 9223372036854775808", ["9223372036854775808", "too large"]),
        ("profile --policy PLAY --sampling.top-k 99999999999999999999", ["99999999999999999999", "too large"]),
        (f"profile --policy PLAY --rollout{'s' * 5000} 4", ["--rollouts", "no such option"]),
        ("profile --policy PLAY --rollout 8", ["--rollout, 8; did you mean --rollouts", "?"]),
        ("profile --policy PLAY --name ../up", ["'../up'", "letters, digits"]),
        ("profile --policy PLAY --name " + "n" * 300, ["bytes at most"]),
        ("profile --policy PLAY --scope.max-candidates 0", ["max-candidates 0"]),
        ("profile --policy PLAY --scope.max-prompt-tokens 1", ["no candidate is left", "over_max_prompt_tokens"]),
        ("profile --policy PLAY --scope.only nowhere.txt", ["nowhere.txt: no such file"]),
        ("profile --policy PLAY --scope.only latin.txt", ["latin.txt", "UTF-8"]),
        ("profile --policy PLAY --sampling.max-new-tokens 0", ["max-new-tokens 0"]),
        ("profile --policy PLAY --sampling.temperature -1", ["temperature -1"]),
        ("profile --policy PLAY --sampling.top-p 0", ["top-p 0"]),
        ("profile --policy PLAY --sampling.top-k -1", ["top-k -1"]),
        ("profile --policy PLAY --name scripted --rollouts 5", ["other settings (rollouts: ", "another --name"]),
        ("profile --policy PLAY --name scripted --rollouts 4 --seed 3", ["begun with other settings (seed: "]),
        ("profile --policy PLAY --name scripted --rollouts 4 --verifier exact", ["verifier", "`pivotrl rescore`"]),
        ("profile --policy scripted:desk_plugins:always_right --name scripted --rollouts 4", ["weights"]),
        ("select", ["profiles/base/profile.json is not there; run `pivotrl profile --run run --name base` first"]),
        ("select --profile scripted --lambda-diff 2", ["lambda-diff 2.0", "at most 1"]),
        ("select --profile scripted --lambda-diff 0", ["lambda-diff 0.0", "above 0"]),
        ("select --profile scripted --name a/b", ["'a/b'"]),
        ("select --profile scripted --min-std nan", ["min-std nan", "from 0 to 1"]),
        ("select --profile scripted --rule signal --min-signal -1", ["min-signal -1.0", "from 0 to 1"]),
        ("select --profile scripted --quota message=0%", ["'message=0%'", "above 0"]),
        ("select --profile scripted --verifier exact", ["summary.jsonl", "`pivotrl rescore --verifier exact --run"]),
        ("select --profile scripted --verifier all(exact,schema)", ["rescore --verifier 'all(exact,schema)' --"]),
        ("rescore --verifier exact", ["run `pivotrl profile --run run --name base` first"]),
        ("train", ["run `pivotrl select --run run --name base` first"]),
        ("train --method unfiltered", ["run `pivotrl profile --run run --name base` first"]),
        ("train --method sft", ["--name base` first, or imitate all", "with --data train --policy MODEL"]),
        ("train --group-size 1", ["group-size 1", "use 2 or more"]),
        ("train --steps 0", ["steps 0: must be at least 1"]),
        ("train --max-new-tokens 0", ["max-new-tokens 0"]),
        ("train --method strict --verifier auto", ["method strict"]),
        ("train --data train", ["data train"]),
        ("train --profile scripted --method unfiltered", ["scripted:desk_plugins:play"]),
        ("train --name .hidden", ["'.hidden'"]),
        ("evaluate", ["no profile and no trained model to evaluate", "--policies"]),
        ("evaluate --policies x=PLAY --profile typo", ["profiles/typo is not there"]),
        ("train --loss.beta nan", ["beta nan: must be 0 or more"]),
        ("train --advantage.epsilon -1", ["epsilon -1.0: must be 0 or more"]),
        ("train --advantage.clip -1", ["clip -1.0: must be above 0"]),
        ("train --pivots .", ["'.'"]),
        ("evaluate --policies x=PLAY --rollouts 0", ["rollouts 0", "at least 1"]),
        ("evaluate --policies x=PLAY --name a/b", ["'a/b'"]),
        ("evaluate --policies x=PLAY x=PLAY", ["'x=scripted:desk_plugins:play'", "a name of its own"]),
        ("evaluate --policies =PLAY", ["a name of its own"]),
        ("evaluate --policies train/late", ["train/late/model is not there", "train --run run --name late"]),
        ("train --optimizer.lr -1", ["lr -1.0: must be above 0"]),
        ("train --optimizer.lr nan", ["lr nan"]),
        ("train --optimizer.lr much", ["error: --optimizer.lr: 'much' is no number; see its --help"]),
        ("train --optimizer.beta2 1", ["beta2 1.0"]),
        ("train --optimizer.max-grad-norm 0", ["max-grad-norm 0.0"]),
        ("evaluate --policies x=PLAY --split validation", ["no validation candidates"]),
        ("report --curve-points 1", ["curve-points 1"]),
    ],
)  # fmt: skip
def test_what_is_asked_cannot_be_done(
    profiled: Path, refused: Callable[..., str], arguments: str, says: list[str]
) -> None:
    folder = profiled.parent
    (folder / "broken").mkdir()
    (folder / "broken" / "config.json").write_text('{"model_type": "no such model"}')
    (folder / "latin.txt").write_bytes("é".encode("latin-1"))
    name, *rest = arguments.replace("PLAY", "scripted:desk_plugins:play").split()
    line = refused(folder, name, "--run", RUN, *rest)
    assert all(word in line for word in says), line


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["profil", "--run", RUN], "profil: no such command; use profile"),
        (["lab", "tabels"], "lab tabels: no such command; use tables"),
        (["frobnicate"], "frobnicate: no such command; use demo or ingest or "),
    ],
)
def test_a_command_that_does_not_exist(tmp_path: Path, given: list[str], says: str) -> None:
    done = finish(tmp_path, given)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert says in done.stderr


def test_an_option_that_does_not_exist(tmp_path: Path) -> None:
    done = finish(tmp_path, ["select", "--run", RUN, "--lamda-diff", "0.5"])
    assert done.returncode == 2
    assert "did you mean --lambda-diff?" in done.stderr
    assert "----" not in done.stderr.strip()
    assert "Traceback" not in done.stderr


def test_as_a_program(run: Path) -> None:
    """What `main` returns is what the process exits with."""
    done = finish(run.parent, ["select", "--run", RUN])
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1


def test_evaluation_of_the_same_name_with_other_settings(run: Path, refused: Callable[..., str]) -> None:
    command = ("evaluate", "--run", RUN, "--policies", "desk=scripted:desk_plugins:play")
    complete(run.parent, command)
    line = refused(run.parent, *command, "--seed", "9")
    assert "begun with other settings (seed" in line


def test_train_before_select(run: Path, refused: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    make_model(run.parent / "model")
    make_model(run.parent / "other", seed=1)
    profile = ("profile", "--run", RUN, "--policy", "model", "--rollouts", "2", "--sampling.max-new-tokens", "8")
    with chdir(run.parent):
        assert main([*profile, "--scope.max-candidates", "2"]) == 0
    capsys.readouterr()
    line = refused(run.parent, "train", "--run", RUN)
    assert "run `pivotrl select --run run --name base` first" in line
    assert "no pivots are left" in refused(run.parent, "select", "--run", RUN, keeps=False)
    line = refused(run.parent, "train", "--run", RUN)
    assert "selection 'base' holds no pivots; `pivotrl report --run run` shows why" in line
    line = refused(run.parent, "train", "--run", RUN, "--method", "unfiltered", "--policy", "other")
    assert "profile 'base' was made with other weights than this training has (policy 'other'" in line
    assert "--allow-mismatch" in line


@pytest.mark.parametrize(("policy", "fate"), [("always_right", "solved"), ("never_right", "hopeless")])
def test_no_pivots_left(
    run: Path, refused: Callable[..., str], capsys: pytest.CaptureFixture[str], policy: str, fate: str
) -> None:
    with chdir(run.parent):
        assert main(["profile", "--run", RUN, "--policy", f"scripted:desk_plugins:{policy}", "--rollouts", "2"]) == 0
    capsys.readouterr()
    count = (run / "profiles/base/candidates.jsonl").read_bytes().count(b"\n")
    before = files(run)
    line = refused(run.parent, "select", "--run", RUN, keeps=False)
    assert f"no pivots are left of {count} candidates ({count} {fate})" in line
    after = files(run)
    changed = {name for name in after if after[name] != before.get(name)}
    made = {"run.json", "pivots/base.jsonl", "pivots/base.svg", "pivots/hopeless/base.jsonl"}
    assert (changed, before.keys() - after.keys()) == (made, set())


def test_another_process_writes_the_part(profiled: Path, refused: Callable[..., str]) -> None:
    hold = "import sys; from pathlib import Path; from pivotrl.storage import FileLock\n"
    hold += "with FileLock(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    lock = profiled / "profiles" / "scripted" / ".lock"
    command = [sys.executable, "-c", hold, str(lock)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment()) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        line = refused(profiled.parent, *PROFILE)
        assert f"is being written by process {other.pid}; wait for it" in line
        other.kill()
    with FileLock(lock), chdir(profiled.parent):  # a killed process leaves no lock behind
        pass


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"format_version": 99, "stages": {}}', ["run format 99", "reads 1"]),
        ("{", ["not a run manifest", "ingest again"]),
        ("[]", ["not a run manifest"]),
        ('{"format_version": 1, "stages": [1]}', ["not a run manifest"]),
    ],
)
def test_a_manifest_that_is_none_of_ours(run: Path, refused: Callable[..., str], text: str, says: list[str]) -> None:
    (run / "run.json").write_text(text)
    line = refused(run.parent, *PROFILE)
    assert all(word in line for word in says), line


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (b'"depth":0', b'"depth":"zero"', ["candidates.jsonl:", "depth", "integer"]),
        (b'"turn":2', b'"turn":1', ["candidates.jsonl: is not what `pivotrl ingest`"]),
        (b'"trajectory_id":"', b'"trajectory_id":"x', ["candidates.jsonl: is not what `pivotrl ingest`"]),
        (b'"split":', b'"splits":', ["candidates.jsonl:1", "split"]),
        (b"}\n", b"\n", ["candidates.jsonl:1"]),
    ],
)
def test_edited_candidates(run: Path, refused: Callable[..., str], old: bytes, new: bytes, says: list[str]) -> None:
    path = run / "candidates.jsonl"
    path.write_bytes(path.read_bytes().replace(old, new))
    line = refused(run.parent, *PROFILE)
    assert all(word in line for word in says), line


def test_the_run_was_ingested_anew(profiled: Path, refused: Callable[..., str]) -> None:
    """Other episodes under the same names: what was sampled before must not be taken for theirs."""
    folder = profiled.parent
    evaluate = ("evaluate", "--run", RUN, "--policies", "desk=scripted:desk_plugins:play")
    complete(folder, evaluate)
    lines = (folder / "episodes.jsonl").read_text().replace("A1", "B1")
    assert lines != (folder / "episodes.jsonl").read_text()
    (folder / "episodes.jsonl").write_text(lines)
    fractions = ("--validation-fraction", "0", "--test-fraction", "0.3")
    complete(folder, ("ingest", "episodes.jsonl", "--run", RUN, *fractions, "--overwrite"))
    assert "begun with other settings (candidates); use" in refused(folder, *PROFILE)
    assert "begun with other settings (candidates); use" in refused(folder, *evaluate)
    late = "the trajectories are not those that were profiled; delete the folder and profile again"
    assert late in refused(folder, "select", "--run", RUN, "--profile", "scripted")
    assert late in refused(folder, "rescore", "--run", RUN, "--name", "scripted", "--verifier", "exact")
    assert late in refused(folder, "train", "--run", RUN, "--profile", "scripted", "--method", "sft", "--policy", "x")


def test_edited_trajectories(run: Path, refused: Callable[..., str]) -> None:
    path = run / "trajectories" / "part-00000.jsonl"
    path.write_bytes(path.read_bytes().replace(b"pending", b"damaged"))
    line = refused(run.parent, *PROFILE)
    assert "was changed since ingest" in line
    path.unlink()
    assert "cannot be read" in refused(run.parent, *PROFILE)


@pytest.mark.parametrize("part", ["rollouts/part-00000.jsonl", "verdicts/*/part-00000.jsonl"])
def test_edited_parts(profiled: Path, refused: Callable[..., str], part: str) -> None:
    (path,) = (profiled / "profiles" / "scripted").glob(part)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[-1], *lines[1:]]))
    assert "missing or out of order" in refused(profiled.parent, *PROFILE)
    path.write_bytes(b"".join([b"{}\n", *lines[1:]]))
    assert "part-00000.jsonl" in refused(profiled.parent, *PROFILE)


def test_a_file_may_not_grow(calm: Path, run: Path) -> None:
    """The limit of a file's size stands for a full disk where there is no disk to fill."""
    limit = 20_000
    done = subprocess.run(
        [sys.executable, "-m", "pivotrl", *PROFILE],
        cwd=run.parent,
        env=environment(),
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
        check=False,
    )
    full_disk(done, run)
    complete(run.parent, PROFILE)
    assert differences(run, calm / RUN) == []


def full_disk(done: subprocess.CompletedProcess[str], run: Path) -> None:
    """It was said, and the part holds whole units."""
    assert done.returncode == 2
    assert "the disk is full; what was written before is intact: free space and run again" in done.stderr
    assert done.stderr.count("\n") == 1
    part = run / "profiles/scripted/rollouts/part-00000.jsonl"
    assert part.stat().st_size > 0
    rows = [json.loads(line) for line in part.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
    assert len(rows) == part.read_bytes().count(b"\n")
    assert len({row["candidate_id"] for row in rows}) * 4 == len(rows)


@contextmanager
def tmpfs(folder: Path, options: str) -> Iterator[Path]:
    """A small disk of its own. Skips the test where this process may not mount one."""
    folder.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], capture_output=True, check=False)
    if made.returncode:
        pytest.skip("this user may not mount a disk to fill")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


@pytest.mark.skipif(sys.platform != "linux", reason="tmpfs is Linux's")
def test_full_disk(fresh: Path, calm: Path, tmp_path: Path) -> None:
    used = sum(-(-path.stat().st_size // 4096) * 4 for path in fresh.rglob("*") if path.is_file())
    with tmpfs(tmp_path / "disk", f"size={used + 60}k") as disk:
        folder = copy(fresh, disk / "desk")
        full_disk(finish(folder, PROFILE), folder / RUN)
        subprocess.run(["mount", "-o", "remount,size=10m", disk], check=True)
        complete(folder, PROFILE)
        assert differences(folder / RUN, calm / RUN) == []


@pytest.mark.skipif(sys.platform != "linux", reason="tmpfs is Linux's")
def test_read_only_disk(calm: Path, tmp_path: Path, refused: Callable[..., str]) -> None:
    with tmpfs(tmp_path / "disk", "size=10m") as disk:
        folder = copy(calm, disk / "desk")
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        line = refused(folder, *PROFILE)
        assert "Read-only file system; check the path and its permissions" in line


@pytest.mark.skipif(os.geteuid() == 0, reason="root ignores permission bits")
def test_run_without_permission(profiled: Path, refused: Callable[..., str]) -> None:
    folders = [profiled, *(path for path in profiled.rglob("*") if path.is_dir())]
    for path in folders:
        path.chmod(0o555)
    try:
        assert "Permission denied; check the path and its permissions" in refused(profiled.parent, *PROFILE)
    finally:
        for path in folders:
            path.chmod(0o755)


def test_ctrl_c_says_how_to_go_on(calm: Path, run: Path) -> None:
    done = finish(run.parent, PROFILE, DESK_SIGNAL="SIGINT:30")
    assert done.returncode == 130
    assert "Traceback" not in done.stderr
    said = done.stderr.strip().removeprefix("interrupted; go on with: pivotrl ")
    assert shlex.split(said) == list(PROFILE)
    assert (run / "profiles/scripted/rollouts/part-00000.jsonl").stat().st_size > 0
    complete(run.parent, shlex.split(said))
    assert differences(run, calm / RUN) == []


def test_a_verifier_that_raises_is_data(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with chdir(run.parent):
        assert main([*PROFILE, "--verifier", "desk_plugins:raises"]) == 0
    summary = [json.loads(line) for line in next((run / "profiles").rglob("summary.jsonl")).open()]
    unscored = sum(profile["unscored"] for profile in summary)
    assert f"rollouts unscored (the verifier or the policy call failed): {unscored}" in capsys.readouterr().out
    verdicts = [json.loads(line)["verdict"] for line in next((run / "profiles").rglob("verdicts/*/part-*")).open()]
    ill = [verdict for verdict in verdicts if verdict["reason"] == "verifier_error"]
    assert {verdict["detail"] for verdict in ill} == {"RuntimeError: the judge is ill"}
    assert all(verdict["value"] is None for verdict in ill)
    assert len(ill) + sum(verdict["reason"] == "no_completion" for verdict in verdicts) == unscored
    assert sum(profile["n"] for profile in summary) + unscored == len(verdicts)


def test_demonstrations_that_the_verifier_refuses(run: Path, refused: Callable[..., str]) -> None:
    (run.parent / "judges.py").write_text("def never(candidate, action):\n    return False\n")
    line = refused(run.parent, *PROFILE, "--verifier", "judges:never")
    assert "no candidate is left to profile" in line
    assert "demonstration_refused" in line
