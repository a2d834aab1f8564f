"""Export: pivots and the verifier that rewards actions there, written as another trainer reads them."""

from __future__ import annotations

import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pivotrl._version import __version__
from pivotrl.batches import pivot_rows, pivot_weights
from pivotrl.candidates import CandidateStore
from pivotrl.errors import ConfigError
from pivotrl.exports import EXPORTERS
from pivotrl.exports.base import ExportConfig, Material
from pivotrl.planning import refused
from pivotrl.profile_settings import summary_path
from pivotrl.storage import RunDirectory, file_hash, read_jsonl, replace_directory, write_json
from pivotrl.training_settings import TrainConfig, origin_of
from pivotrl.types import CandidateRow, Profile, Split
from pivotrl.verifiers import load_verifier, verifier_id

FACTS: Final = "export.json"
"""What an export says of itself; only a folder that holds it is ever replaced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportResult:
    """What was written."""

    output: Path
    candidates: dict[Split, int]
    refused: int
    """Candidates whose own demonstration the verifier refuses; left out."""
    notes: tuple[str, ...]

    def lines(self) -> list[str]:
        counts = ", ".join(f"{split} {n}" for split, n in self.candidates.items())
        left = [f"{self.refused} candidates left out: the verifier refuses their demonstration"] if self.refused else []
        return [f"candidates: {counts}", *left, *self.notes, f"written to {self.output}"]


def export(config: ExportConfig) -> ExportResult:
    """Write one directory for another trainer.

    Raises MissingError (no run, selection or tokenizer), ConfigError (a directory that holds something else, a verifier
    that changed since), InputError.
    """
    _check(config.output, config.overwrite)
    run = RunDirectory(config.run)
    run.stages()
    material, left_out = _material(config, run)
    made = config.output.with_name(f".{config.output.name}.{secrets.token_hex(4)}.tmp")
    try:
        made.mkdir(parents=True)
        notes = EXPORTERS[config.to].write(material, made)
        facts = _facts(material)
        write_json(made / FACTS, facts | {"version": __version__})
        replace_directory(made, config.output)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    run.record_stage("export", config.to, facts)
    counts = {split: len(rows) for split, rows in material.rows.items()}
    return ExportResult(output=config.output, candidates=counts, refused=left_out, notes=tuple(notes))


def _check(output: Path, overwrite: bool) -> None:
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        return
    if not (output / FACTS).is_file():
        raise ConfigError(f"output {output}: holds something that is no export; give another directory")
    if not overwrite:
        raise ConfigError(f"output {output}: holds an export already; give another directory, or --overwrite")


def _material(config: ExportConfig, run: RunDirectory) -> tuple[Material, int]:
    """What is to be exported, and how many candidates were left out."""
    store = CandidateStore(run)
    if config.everything:
        spec, origin, rows = config.verifier or "auto", None, store.rows("train")
        weights, profiles = {}, {}
        verifier = load_verifier(spec)
    else:
        origin = origin_of(TrainConfig(run=run.path, pivots=config.pivots), run)
        assert origin is not None, "pivots come from a profile"
        path = run.pivots(config.pivots)
        rows, weights = pivot_rows(path, store, run.path), pivot_weights(path)
        summary = summary_path(run, origin.profile, origin.verifier_id)
        profiles = {one.candidate_id: one for one in read_jsonl(summary, Profile)}
        spec = config.verifier or origin.verifier
        verifier = load_verifier(spec)
        if config.verifier is None and verifier_id(verifier) != origin.verifier_id:
            raise ConfigError(f"verifier {spec!r} is not what it was when the pivots were selected; name it --verifier")
    found: dict[Split, list[CandidateRow]] = {"train": rows, "validation": store.rows("validation")}
    kept: dict[Split, list[CandidateRow]] = {
        split: [row for row, candidate in store.loaded(rows) if refused(verifier, candidate) is None]
        for split, rows in found.items()
    }
    left_out = sum(map(len, found.values())) - sum(map(len, kept.values()))
    return Material(
        config=config,
        store=store,
        rows=kept,
        weights=weights,
        profiles=profiles,
        verifier=verifier,
        spec=spec,
        plan=origin.plan if origin else None,
        profile=origin.profile if origin else None,
    ), left_out


def _facts(material: Material) -> dict[str, Any]:
    config, run = material.config, material.store.run
    inputs = [run.candidates] if config.everything else [run.candidates, run.pivots(config.pivots)]
    return {
        "config": {
            name: getattr(config, name) for name in config.__slots__ if name not in ("run", "output", "overwrite")
        },
        "verifier": material.spec,
        "verifier_id": verifier_id(material.verifier),
        "inputs": {str(path.relative_to(run.path)): file_hash(path) for path in inputs},
    }
