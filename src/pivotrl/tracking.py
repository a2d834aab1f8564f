"""Where training curves go besides `metrics.jsonl`: TensorBoard, wandb, trackio, or an object of the user's own."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Protocol, cast

from pivotrl.errors import ConfigError, DependencyError
from pivotrl.logs import say
from pivotrl.plugins import load_object, made
from pivotrl.storage import content_hash


class Tracker(Protocol):
    """Shows curves. What it raises is said once, and costs the training nothing but this tracker."""

    def start(self, name: str, settings: Mapping[str, Any], folder: Path, step: int) -> None:
        """A training begins or goes on after `step` steps; what was shown of later ones is void."""
        ...

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """The values of a step, by name; some names come in some steps only."""
        ...

    def finish(self) -> None:
        """No more of this training for now."""
        ...


class TensorBoard:
    """Event files in `train/NAME/tensorboard`."""

    def start(self, name: str, settings: Mapping[str, Any], folder: Path, step: int) -> None:
        _package("tensorboard", "pivotrl[track]")
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder / "tensorboard"), purge_step=step)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def finish(self) -> None:
        self._writer.close()


class Service:
    """A run of project `pivotrl`: of wandb, with files in `train/NAME/wandb`, or where trackio keeps its data."""

    def __init__(self, module: str) -> None:
        self.module = module

    def start(self, name: str, settings: Mapping[str, Any], folder: Path, step: int) -> None:
        package = _package(self.module, self.module)
        where = content_hash(str(folder.resolve()))
        more = {"dir": str(folder), "id": where} if self.module == "wandb" else {}
        self._run: Any = package.init(
            project="pivotrl", name=f"{name}-{where}", config=dict(settings), resume="allow", **more
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def finish(self) -> None:
        self._run.finish()


TRACKERS: Final[Mapping[str, Callable[[], Tracker]]] = {
    "tensorboard": TensorBoard,
    **{name: partial(Service, name) for name in ("wandb", "trackio")},
}


def _package(name: str, install: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise DependencyError(f"track {name}: the package is missing; pip install '{install}'") from None


def load_tracker(spec: str) -> Tracker:
    """A name of TRACKERS, or `package.module:name` or FILE.py:name of a class with the methods of `Tracker`.

    Raises ConfigError for anything else.
    """
    if ":" not in spec:
        if spec not in TRACKERS:
            raise ConfigError(f"track {spec!r}: use {', '.join(TRACKERS)}, or package.module:name of a class")
        return TRACKERS[spec]()
    maker, _ = load_object(spec, "track")
    return cast(Tracker, made(maker if callable(maker) else lambda: maker, f"track {spec!r}", Tracker))


class Trackers:
    """All trackers of a training. One that raises while it works is said and left out from then on."""

    def __init__(self, specs: Sequence[str]) -> None:
        self._trackers = {spec: load_tracker(spec) for spec in specs}

    def tell(self, do: Callable[[Tracker], None]) -> None:
        """Do this with each tracker. Raises DependencyError where a package is missing."""
        for spec, tracker in list(self._trackers.items()):
            try:
                do(tracker)
            except DependencyError:
                raise
            except Exception as error:  # anybody's code, and the network; metrics.jsonl has it all
                say(f"track {spec}: {type(error).__name__}: {' '.join(str(error).split())[:200]}; goes on without it")
                del self._trackers[spec]
