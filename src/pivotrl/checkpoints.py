"""Checkpoints of a training run: weights and optimiser, from which an interrupted run goes on."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pivotrl.curves import StepMetrics
from pivotrl.errors import ConfigError, InputError, StorageError
from pivotrl.learners import Learner
from pivotrl.storage import check_sums, complete_lines, decode, read_json, replace_directory, write_json, write_sums

STATE_FILE = "state.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainState:
    """Where a training run stands."""

    step: int
    """Steps done."""
    weights_of: int | None = None
    """Steps after which these weights were taken, where that was earlier."""


@contextmanager
def _made(target: Path, state: TrainState) -> Iterator[Path]:
    """A folder to be filled, which then takes the target's place; half a one must not fill a disk that is full."""
    making = target.with_name(f".{target.name}.making")
    shutil.rmtree(making, ignore_errors=True)
    try:
        yield making
        write_json(making / STATE_FILE, state)
        write_sums(making)
        replace_directory(making, target)
    finally:
        shutil.rmtree(making, ignore_errors=True)


class Checkpoints:
    """`train/<name>/`: `checkpoints/step-*`, `metrics.jsonl`, `best` by validation, and at the end `model`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.metrics = folder / "metrics.jsonl"
        self.model = folder / "model"
        self.best = folder / "best"

    def finished(self, steps: int) -> bool:
        """Whether `model` is the result of that many steps."""
        state = self.model / STATE_FILE
        if not state.exists() or read_json(state, TrainState).step != steps:
            return False
        check_sums(self.model)
        return True

    def latest(self, steps: int) -> tuple[int, Path] | None:
        """(steps done, folder) of the last whole checkpoint. Raises ConfigError when that is beyond `steps`."""
        states = self.folder.glob(f"checkpoints/step-*/{STATE_FILE}")
        newest = max(((read_json(state, TrainState).step, state.parent) for state in states), default=None)
        if newest is None:
            return None
        if newest[0] > steps:
            raise ConfigError(
                f"{self.folder}: {newest[0]} steps are done already; use --steps {newest[0]} or more, another --name, "
                "or delete the folder"
            )
        check_sums(newest[1])
        return newest

    def curve(self) -> list[StepMetrics]:
        """The metrics of every step that was written whole."""
        return [decode(line, StepMetrics, str(self.metrics)) for _, line in complete_lines(self.metrics)]

    def save(self, learner: Learner, step: int) -> None:
        """Write a checkpoint and drop the older ones."""
        self.write(learner, self._folder(step), step, optimizer=True)
        self._drop_others(step)

    def save_model(self, learner: Learner, step: int) -> None:
        """Write the finished model, and drop what a kill in `save` left of older checkpoints."""
        self._drop_others(step)
        self.write(learner, self.model, step)

    def keep_best(self, step: int) -> None:
        """Make the best weights the finished model."""
        check_sums(self.best)
        weights_of = read_json(self.best / STATE_FILE, TrainState).step
        self._drop_others(step)
        with _made(self.model, TrainState(step=step, weights_of=weights_of)) as making:
            try:
                shutil.copytree(self.best, making)
            except OSError as error:
                raise StorageError(f"{self.model}: cannot be written ({error}); free space and run again") from error

    def _folder(self, step: int) -> Path:
        return self.folder / "checkpoints" / f"step-{step:06d}"

    def _drop_others(self, step: int) -> None:
        for other in self.folder.glob("checkpoints/step-*"):
            if other != self._folder(step):
                shutil.rmtree(other)

    def write(self, learner: Learner, target: Path, step: int, *, optimizer: bool = False) -> None:
        """Write the weights after `step` steps in the target's place, with `optimizer` what a resumed run needs."""
        with _made(target, TrainState(step=step)) as making:
            learner.save(making, optimizer=optimizer)

    def metrics_size(self, step: int) -> int:
        """Bytes of the metrics of the first `step` steps. Raises InputError when they are not all there."""
        ends = [0, *(end for end, _ in complete_lines(self.metrics))]
        if len(ends) <= step:
            raise InputError(
                f"{self.metrics}: {len(ends) - 1} of {step} steps are there; restore the file, or delete "
                f"{self.folder} and train again"
            )
        return ends[step]
