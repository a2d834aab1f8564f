"""The commands that repeat a run, from the settings that its manifest holds."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Final

from pivotrl.auditing import AuditConfig
from pivotrl.evaluation_settings import EvaluateConfig
from pivotrl.exports.base import ExportConfig
from pivotrl.ingestion import IngestConfig
from pivotrl.pivots import SelectConfig
from pivotrl.profile_settings import ProfileConfig, RescoreConfig
from pivotrl.training_settings import TrainConfig

CONFIGS: Final[dict[str, type]] = {
    "ingest": IngestConfig,
    "profile": ProfileConfig,
    "rescore": RescoreConfig,
    "select": SelectConfig,
    "audit": AuditConfig,
    "train": TrainConfig,
    "evaluate": EvaluateConfig,
    "export": ExportConfig,
}


def commands(stages: Mapping[str, Any], run: str, done: Sequence[tuple[str, str]] = ()) -> list[str]:
    """One command for each stage that one made; settings at their default left out. `done`: stage and name, as they
    came last."""
    ours = [key for key, facts in stages.items() if "config" in facts and "imported" not in facts]
    known = [key for key in ours if key.partition("/")[0] in CONFIGS]
    order = {f"{stage}/{name}": at for at, (stage, name) in enumerate(done)}

    def place(key: str) -> tuple[int, int]:
        parts = [at for name, at in order.items() if name == key or name.startswith(f"{key}/")]
        return max(parts, default=len(order)), [*CONFIGS].index(key.partition("/")[0])

    return [_command(key.partition("/")[0], stages[key]["config"], run) for key in sorted(known, key=place)]


def _command(stage: str, config: Mapping[str, Any], run: str) -> str:
    words = ["pivotrl", stage, *map(str, config.get("paths", ())), "--run", run]
    defaults = {
        field.name: field.default if field.default_factory is MISSING else field.default_factory()
        for field in fields(CONFIGS[stage])
        if field.name not in ("run", "paths")
    }
    for name, value in _changed(defaults, config):
        group, dot, last = name.rpartition(".")
        if isinstance(value, bool):
            words.append(_flag(name if value else f"{group}{dot}no-{last}"))
        else:
            words += [_flag(name), *(map(str, value) if isinstance(value, list) else (str(value),))]
    return shlex.join(words)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _changed(defaults: Mapping[str, Any], config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The settings that are not at their default, nested ones by `group.name`; JSON knows no tuples."""
    for name, default in defaults.items():
        if name not in config:
            continue
        value = config[name]
        if is_dataclass(default) and isinstance(value, Mapping):
            inner = {one.name: getattr(default, one.name) for one in fields(default)}
            yield from _changed(inner, value, f"{prefix}{name}.")
        elif value != (list(default) if isinstance(default, tuple) else None if default == math.inf else default):
            yield f"{prefix}{name}", value
