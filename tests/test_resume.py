"""Killed at any moment and started again, a run ends as the undisturbed one: byte for byte, and with the same bill."""

from __future__ import annotations

import json
import shutil
from contextlib import chdir
from pathlib import Path

import pytest

from kill_harness import (
    EVALUATE,
    LORA,
    PROFILE,
    RUN,
    TRAIN,
    Moment,
    bill,
    complete,
    copy,
    differences,
    files,
    kill,
    make_desk,
    make_trainable,
)
from pivotrl.cli import main

STEP = "train/*/checkpoints"


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ingested only; not to be written to."""
    return make_desk(tmp_path_factory.mktemp("desk"))


@pytest.fixture(scope="module")
def calm(desk: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Profiled and evaluated without trouble; not to be written to."""
    folder = copy(desk, tmp_path_factory.mktemp("calm") / "desk")
    complete(folder, PROFILE)
    complete(folder, EVALUATE)
    return folder


def same(disturbed: Path, calm: Path) -> None:
    assert differences(disturbed / RUN, calm / RUN) == []
    assert bill(disturbed / RUN) == bill(calm / RUN)


@pytest.mark.parametrize(
    "moments",
    [
        [Moment(call=1)],
        [Moment(call=37, tear=5)],
        [Moment(call=20, tear=1), Moment(call=9, tear=2), Moment(call=31)],
    ],
    ids=["before anything", "torn", "three times"],
)
def test_profile_and_evaluate(desk: Path, calm: Path, tmp_path: Path, moments: list[Moment]) -> None:
    folder = copy(desk, tmp_path / "desk")
    for stage in (PROFILE, EVALUATE):
        for moment in moments:
            assert kill(folder, stage, moment)
        with chdir(folder):
            assert main(stage) == 0
    same(folder, calm)


@pytest.mark.parametrize("keep", [0.0, 0.31, 0.97], ids=["nothing left", "a third left", "the end torn"])
@pytest.mark.parametrize("part", ["rollouts/part-*", "verdicts/*/part-*"])
def test_one_part_is_torn_further_than_the_other(
    calm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], part: str, keep: float
) -> None:
    folder = copy(calm, tmp_path / "desk")
    for path in (folder / RUN).glob(f"*/**/{part}"):
        data = path.read_bytes()
        path.write_bytes(data[: int(len(data) * keep)])
    assert differences(folder / RUN, calm / RUN) != []
    with chdir(folder):
        assert main(PROFILE) == 0
        assert main(EVALUATE) == 0
    same(folder, calm)
    capsys.readouterr()


def test_a_finished_stage_is_left_as_it_is(calm: Path, tmp_path: Path) -> None:
    folder = copy(calm, tmp_path / "desk")
    ledger = (folder / RUN / "ledger.jsonl").read_bytes()
    with chdir(folder):
        assert main(PROFILE) == 0
    same(folder, calm)
    assert (folder / RUN / "ledger.jsonl").read_bytes() == ledger


def test_train(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """One training, killed in the middle of a step, when a step was written (and torn), and during a checkpoint."""
    ready = make_trainable(tmp_path_factory.mktemp("ready"))
    calm, folder = copy(ready, tmp_path / "calm"), copy(ready, tmp_path / "killed")
    complete(calm, TRAIN)
    weights = "train/pivotrl/model/model.safetensors"
    assert files(calm / RUN)[weights] != (ready / "model" / "model.safetensors").read_bytes()
    steps = [json.loads(line) for line in (calm / RUN / "train/pivotrl/metrics.jsonl").open()]
    assert [step["step"] for step in steps] == [0, 1, 2, 3, 4, 5]
    assert sum(step["groups_mixed"] for step in steps) > 5  # else a resumed training would have nothing to get wrong
    assert kill(folder, TRAIN, Moment(call=9))
    assert kill(folder, TRAIN, Moment(seen="train/*/metrics.jsonl", lines=3, tear=4))
    assert kill(folder, TRAIN, Moment(seen=f"{STEP}/.step-000004.making"))
    complete(folder, TRAIN)
    same(folder, calm)
    after_the_end(folder, calm)


def test_train_an_adapter(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The same of LoRA; its undisturbed run and the last part in this process."""
    ready = make_trainable(tmp_path_factory.mktemp("ready"))
    calm, folder = copy(ready, tmp_path / "calm"), copy(ready, tmp_path / "killed")
    with chdir(calm):
        assert main(LORA) == 0
    adapter = files(calm / RUN)["train/pivotrl/checkpoints/step-000006/adapter_model.safetensors"]
    assert kill(folder, LORA, Moment(call=9))
    assert kill(folder, LORA, Moment(seen="train/*/metrics.jsonl", lines=3, tear=4))
    early = files(folder / RUN)["train/pivotrl/checkpoints/step-000002/adapter_model.safetensors"]
    assert kill(folder, LORA, Moment(seen=f"{STEP}/.step-000004.making"))
    with chdir(folder):
        assert main(LORA) == 0
    same(folder, calm)
    assert early != adapter


def after_the_end(folder: Path, calm: Path) -> None:
    """What a kill between the last checkpoint and the model leaves; other pivots; fewer steps; lost metrics."""
    training = folder / RUN / "train" / "pivotrl"
    shutil.rmtree(training / "model")
    older = training / "checkpoints" / "step-000004"
    older.mkdir()
    (older / "model.safetensors").write_bytes(b"half deleted")
    with chdir(folder):
        assert main(TRAIN) == 0
        same(folder, calm)
        pivots = folder / RUN / "pivots" / "base.jsonl"
        chosen = pivots.read_bytes()
        pivots.write_bytes(chosen[: chosen.index(b"\n") + 1])  # another selection under the same name
        before = files(folder / RUN)
        assert main([*TRAIN, "--steps", "8"]) == 2
        assert files(folder / RUN) == before
        pivots.write_bytes(chosen)
        before = files(folder / RUN)
        assert main([*TRAIN, "--steps", "4"]) == 2
        assert files(folder / RUN) == before
        shutil.rmtree(training / "model")
        (training / "metrics.jsonl").write_bytes(b"")
        assert main(TRAIN) == 2
