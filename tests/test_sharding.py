"""Shards and workers: whoever samples which share, however often it is killed, a profile ends in the same bytes."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from desk_plugins import play
from kill_harness import (
    PROFILE,
    RUN,
    TORCH,
    Moment,
    bill,
    complete,
    copy,
    differences,
    environment,
    kill,
    make_desk,
    make_model,
    start,
)
from pivotrl.errors import BusyError, ConfigError, PivotRLError, StorageError
from pivotrl.pivots import SelectConfig, select
from pivotrl.policies import ScriptedPolicy
from pivotrl.profile_settings import ProfileConfig, load_plan
from pivotrl.profiling import ProfileResult, profile
from pivotrl.run_directory import RunDirectory
from pivotrl.sharding import Shard
from pivotrl.storage import FileLock
from pivotrl.types import State
from pivotrl.workers import call_all


def config(run: Path, **fields: object) -> ProfileConfig:
    return ProfileConfig(**({"run": run, "policy": "scripted:desk_plugins:play", "rollouts": 8} | fields))


def interrupted(after: int) -> ScriptedPolicy:
    """`play`, until it was asked so often; 0: always."""
    left = after

    def script(state: State, rng: random.Random) -> str:
        nonlocal left
        left -= 1
        if left == 0:
            raise KeyboardInterrupt
        return play(state, rng)

    return ScriptedPolicy(script)


def same(run: Path, calm: Path) -> None:
    assert differences(run, calm) == ["run.json"], "which names the run's own folder"
    assert bill(run) == bill(calm)


@pytest.mark.parametrize("budget", ["fixed", "curtailed", "bayes"])
def test_interrupted_shards_in_any_order_end_in_the_bytes_of_one_run(run: Path, tmp_path: Path, budget: str) -> None:
    calm = copy(run, tmp_path / "calm")
    profile(config(calm, budget=budget), policy=ScriptedPolicy(play))
    select(SelectConfig(run=calm))
    rng = random.Random(budget)
    for attempt in range(2 if budget == "fixed" else 1):
        mine = copy(run, tmp_path / f"run-{attempt}")
        count, result = rng.randint(2, 7), None
        while result is None or result.waiting:
            share = str(Shard(rng.randint(1, count), count)) if rng.random() < 0.9 else None
            with suppress(KeyboardInterrupt):
                policy = interrupted(rng.choice([0, rng.randint(1, 60)]))
                result = profile(config(mine, budget=budget, shard=share), policy=policy)
        select(SelectConfig(run=mine))
        same(mine, calm)


def by_shards(run: Path, count: int, **fields: object) -> list[ProfileResult]:
    shards = [str(Shard(number, count)) for number in range(1, count + 1)]
    return [profile(config(run, shard=shard, **fields), policy=ScriptedPolicy(play)) for shard in shards]


def test_what_shards_say(run: Path) -> None:
    first, second, last = by_shards(run, 3, budget="curtailed", rollouts=8)
    assert first.lines() == [
        "shard 1/3: its share of round 1 is done; run the other shards (2, 3 of 3): the last one merges"
    ]
    assert "(3 of 3)" in second.waiting
    assert last.lines() == ["round 1 is merged; run all 3 shards again, for round 2"]
    *_, last = by_shards(run, 3, budget="curtailed", rollouts=8)
    assert not last.waiting
    assert last.lines()[0].startswith("24 candidates")
    assert by_shards(run, 3, budget="curtailed", rollouts=8)[0].lines() == last.lines()


def test_more_shards_than_units(run: Path, tmp_path: Path) -> None:
    calm = copy(run, tmp_path / "calm")
    profile(config(calm), policy=ScriptedPolicy(play))
    *_, last = by_shards(run, 20)
    assert not last.waiting
    same(run, calm)


def test_another_number_of_shards_is_refused_and_one_process_takes_over(run: Path) -> None:
    by_shards(run, 3)[0]
    other = copy(run, run.with_name("other"))
    profile(config(other, name="part", shard="1/3"), policy=ScriptedPolicy(play))
    with pytest.raises(ConfigError, match=r"round 1 was begun with 3 shards; use --shard I/3 \(or --workers 3\)"):
        profile(config(other, name="part", shard="1/2"), policy=ScriptedPolicy(play))
    profile(config(other, name="part"), policy=ScriptedPolicy(play))
    parts = sorted(path.name for path in (other / "profiles/part").rglob("*part-*"))
    assert parts == ["part-00000.jsonl", "part-00000.jsonl"]
    with suppress(KeyboardInterrupt):
        profile(config(run, name="one"), policy=interrupted(80))
    with pytest.raises(ConfigError, match="begun by one process; go on without shards"):
        profile(config(run, name="one", shard="1/2"), policy=ScriptedPolicy(play))
    profile(config(run, name="one"), policy=ScriptedPolicy(play))
    assert not profile(config(run, name="one", shard="1/2"), policy=ScriptedPolicy(play)).waiting


def test_a_kill_while_shares_are_merged(run: Path, tmp_path: Path) -> None:
    """Verdicts are put together first, then the rollouts, then the shares are deleted."""
    calm = copy(run, tmp_path / "calm")
    profile(config(calm), policy=ScriptedPolicy(play))
    folder = run / "profiles/base"
    by_shards(run, 2)[0]
    shares = {}
    mine = copy(tmp_path / "calm", tmp_path / "mine")
    (mine / "profiles/base/rollouts/part-00000.jsonl").unlink()
    with pytest.raises(KeyboardInterrupt):
        profile(config(mine, shard="1/2"), policy=interrupted(1))
    assert (mine / "profiles/base/verdicts" / verdicts_of(calm) / "part-00000.jsonl").exists()
    by_shards(mine, 2)
    same(mine, calm)
    for path in folder.rglob("part-00000.jsonl"):
        shares[path.with_name("part-00000.1-of-2.jsonl")] = path.read_bytes()[:100]
    for how in ({}, {"shard": "2/2"}):
        for path, data in shares.items():
            path.write_bytes(data)
        profile(config(run, **how), policy=interrupted(1))
        same(run, calm)


def verdicts_of(run: Path) -> str:
    return load_plan(RunDirectory(run), "base").verifier_id


def test_one_writer_of_a_share_and_none_beside_the_whole(run: Path) -> None:
    folder = run / "profiles/base"
    with FileLock(folder / ".lock", shared=True):
        with pytest.raises(BusyError):
            profile(config(run))
        with FileLock(folder / ".1-of-2.lock"), pytest.raises(BusyError):
            profile(config(run, shard="1/2"))
        assert "run the other shards (2 of 2)" in profile(config(run, shard="1/2")).waiting
        assert "another shard merges the round" in profile(config(run, shard="2/2")).waiting
    assert not profile(config(run, shard="2/2"), policy=interrupted_named(run)).waiting


def interrupted_named(run: Path) -> ScriptedPolicy:
    """Must not be asked any more; under the fingerprint of the profile's policy."""
    name, _, version = load_plan(RunDirectory(run), "base").fingerprint.weights.rpartition(" ")

    def script(state: State, rng: random.Random) -> str:
        raise KeyboardInterrupt("all was sampled")

    return ScriptedPolicy(script, name=name, version=version)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"shard": "0/2"}, "write I/N"),
        ({"shard": "3/2"}, "write I/N"),
        ({"shard": "1"}, "write I/N"),
        ({"workers": 0}, "at least 1"),
        ({"workers": 2, "shard": "1/2"}, "these are shards already"),
        ({"workers": 2, "topup": True}, "by one process"),
        ({"shard": "1/2", "topup": True}, "by one process"),
        ({"workers": 2, "policy": "openai:m@http://localhost:1/v1"}, "openai.concurrency"),
    ],
)
def test_what_cannot_be_shared(run: Path, fields: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        profile(config(run, **fields))


def test_objects_have_no_workers(run: Path) -> None:
    with pytest.raises(ConfigError, match="by name"):
        profile(config(run, workers=2), policy=ScriptedPolicy(play))


def test_a_shard_has_to_be_told_the_same(run: Path) -> None:
    profile(config(run, shard="1/2"))
    with pytest.raises(ConfigError, match="begun with other settings \\(rollouts"):
        profile(config(run, shard="2/2", rollouts=9))


def test_workers_end_in_the_same_bytes(run: Path, tmp_path: Path) -> None:
    calm = copy(run, tmp_path / "calm")
    profile(config(calm, budget="curtailed"))
    result = profile(config(run, budget="curtailed", workers=2))
    assert result.lines()[0].startswith("24 candidates")
    same(run, calm)


def test_what_a_worker_raises_is_raised(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match="use letters"):
        call_all("pivotrl.run_directory:check_name", ["good", "not good"])
    assert capfd.readouterr().err == ""
    with pytest.raises(StorageError, match=r"^nowhere: No such file or directory; check the path"):
        call_all("os:listdir", [".", "nowhere"])
    assert capfd.readouterr().err == ""
    with pytest.raises(PivotRLError, match="worker 2 ended with status 1; run the same command"):
        call_all("math:sqrt", [1, -1])
    assert "ValueError" in capfd.readouterr().err
    with pytest.raises(PivotRLError, match="worker 1 ended with status 1"):  # with more to read than a pipe holds
        call_all("no_such_module:function", [bytes(1 << 20)])
    assert "no_such_module" in capfd.readouterr().err


def asleep(folder: Path) -> None:
    (folder / str(os.getpid())).touch()
    time.sleep(600)


def test_workers_end_with_their_parent(tmp_path: Path) -> None:
    code = f"from test_sharding import *; call_all('test_sharding:asleep', [Path({str(tmp_path)!r})] * 2)"
    parent = subprocess.Popen([sys.executable, "-c", code], env=environment())
    while len(names := [path.name for path in tmp_path.iterdir()]) < 2:
        assert parent.poll() is None
        time.sleep(0.01)
    parent.kill()
    parent.wait()
    while any(map(alive, names)):
        time.sleep(0.01)
    assert call_all("os.path:exists", [str(tmp_path), "nowhere"]) == [True, False]


def alive(pid: str) -> bool:
    """Whether a process runs; one that nobody waits for may stay as a zombie."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.mark.parametrize("policy", ["scripted", "torch"])
def test_killed_processes(tmp_path: Path, policy: str) -> None:
    """Real kills of the command: a shard, workers and one process by turns; the recipe takes many more points."""
    stage, moves = {
        "scripted": (PROFILE, [(("--shard", "2/2"), Moment(call=20, tear=3)), (("--workers", "2"), Moment(call=30))]),
        "torch": (TORCH, [(("--shard", "1/2"), Moment(call=14, tear=1))]),
    }[policy]
    ready = tmp_path / "ready"
    ready.mkdir()
    make_desk(ready, 6)
    if policy == "torch":
        make_model(ready / "model")
    calm, folder = copy(ready, tmp_path / "calm"), copy(ready, tmp_path / "killed")
    undisturbed = start(calm, stage)  # beside the others
    for how, moment in moves:
        assert kill(folder, (*stage, *how), moment)
    complete(folder, (*stage, "--workers", "2") if policy == "scripted" else stage)
    _, err = undisturbed.communicate()
    assert undisturbed.returncode == 0, err
    assert differences(folder / RUN, calm / RUN) == []
    assert bill(folder / RUN) == bill(calm / RUN)
