"""Checkpoints of a training run: weights and optimiser, from which an interrupted run goes on."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from pivotrl.errors import ConfigError
from pivotrl.learners import Learner
from pivotrl.storage import complete_lines, content_hash, read_json, replace_directory, write_json

STATE_FILE = "state.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainState:
    """Where a training run stands."""

    step: int
    """Steps done."""


class Checkpoints:
    """`train/<name>/`: `checkpoints/step-*`, `metrics.jsonl`, and at the end `model`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.metrics = folder / "metrics.jsonl"
        self.model = folder / "model"

    def finished(self, steps: int) -> bool:
        """Whether `model` is the result of that many steps."""
        state = self.model / STATE_FILE
        return state.exists() and read_json(state, TrainState).step == steps

    def latest(self, steps: int) -> tuple[int, Path] | None:
        """(steps done, folder) of the last whole checkpoint that is not beyond `steps`."""
        found = [
            (read_json(state, TrainState).step, state.parent)
            for state in self.folder.glob(f"checkpoints/step-*/{STATE_FILE}")
        ]
        return max((entry for entry in found if entry[0] <= steps), default=None)

    def save(self, learner: Learner, step: int) -> None:
        """Write a checkpoint and drop the older ones."""
        target = self.folder / "checkpoints" / f"step-{step:06d}"
        self._write(learner, target, step, optimizer=True)
        for other in target.parent.glob("step-*"):
            if other != target:
                shutil.rmtree(other)

    def save_model(self, learner: Learner, step: int) -> None:
        """Write the finished model."""
        self._write(learner, self.model, step, optimizer=False)

    def _write(self, learner: Learner, target: Path, step: int, *, optimizer: bool) -> None:
        making = target.with_name(f".{target.name}.making")
        shutil.rmtree(making, ignore_errors=True)
        learner.save(making, optimizer=optimizer)
        write_json(making / STATE_FILE, TrainState(step=step))
        replace_directory(making, target)

    def metrics_size(self, step: int) -> int:
        """Bytes of the metrics of the first `step` steps."""
        ends = [end for end, _ in complete_lines(self.metrics)][:step]
        return ends[-1] if ends else 0


def hold_to_config(folder: Path, config: dict[str, object]) -> None:
    """Write the settings of a new training; one that exists must have been begun alike. Raises ConfigError."""
    path = folder / "config.json"
    hashes = {key: content_hash(value) for key, value in config.items()}
    if path.exists():
        before = read_json(path, dict[str, str])
        changed = [key for key in hashes if before.get(key) != hashes[key]]
        if changed:
            raise ConfigError(
                f"{folder}: this training was begun with another {', '.join(changed)}; use the same settings, another "
                "--name, or delete the folder"
            )
        return
    write_json(path, hashes)
