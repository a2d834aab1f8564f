"""Export: pivots and the verifier that rewards actions there, written as another trainer reads them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from pivotrl.batches import pivot_rows
from pivotrl.candidates import CandidateStore
from pivotrl.errors import BusyError, ConfigError
from pivotrl.exports.base import ExportConfig, Exporter, Material
from pivotrl.exports.chat import write_chat
from pivotrl.exports.nemo_gym import write_nemo_gym
from pivotrl.exports.trainers import write_trl, write_verl
from pivotrl.planning import refused
from pivotrl.profile_settings import summary_path
from pivotrl.run_directory import RunDirectory
from pivotrl.storage import FileLock, file_hash, read_jsonl, replace_directory, write_json
from pivotrl.training_settings import TrainConfig, origin_of
from pivotrl.types import CandidateRow, Profile, Split
from pivotrl.verifiers import load_verifier, taken_over, verifier_id

EXPORTERS: Final[Mapping[str, Exporter]] = {
    "chat": write_chat, "trl": write_trl, "verl": write_verl, "nemo-gym": write_nemo_gym,
}  # fmt: skip
WAIT: Final = 600.0
"""Seconds that an export waits for another one of the same run."""
FACTS: Final = "export.json"
"""What an export says of itself; only a folder that holds it is ever replaced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportResult:
    """What was written where, and what was left out."""

    output: Path
    notes: tuple[str, ...]

    def lines(self) -> list[str]:
        return [*self.notes, f"written to {self.output}"]


def export(config: ExportConfig) -> ExportResult:
    """Write one directory for another trainer.

    Raises MissingError (no run, selection or tokenizer), ConfigError (a directory that holds something else, a verifier
    that changed since), InputError, BusyError (another export of this run took too long, or one of another run writes
    to the same directory).
    """
    run = RunDirectory(config.run)
    run.stages()
    with FileLock(run.path / ".export.lock", wait=WAIT):
        return _export(config, run)


def _export(config: ExportConfig, run: RunDirectory) -> ExportResult:
    output = config.output
    _check_free(config)
    material = _material(config, run)
    inputs = [run.candidates, *([] if config.everything else [run.pivots(config.pivots)])]
    facts = {
        "config": {name: getattr(config, name) for name in ("to", "pivots", "everything", "policy", "model")},
        "verifier": material.spec,
        "verifier_id": verifier_id(material.verifier),
        "inputs": {str(path.relative_to(run.path)): file_hash(path) for path in inputs},
    }
    with _alone(output):
        _check_free(config)
        made = output.with_name(f".{output.name}.tmp")
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir(parents=True)
        notes = EXPORTERS[config.to](material, made)
        write_json(made / FACTS, facts)
        replace_directory(made, output)
    run.record_stage("export", config.to, facts | {"config": replace(config, overwrite=False)})
    counts = [f"{split}: {len(rows)} candidates" for split, rows in material.rows.items()]
    return ExportResult(output=output, notes=(*counts, *notes))


def _check_free(config: ExportConfig) -> None:
    output = config.output
    if not output.name:
        raise ConfigError(f"output {output}: name a directory to make in it")
    held = output.is_file() or any(output.glob("*"))
    if held and not (config.overwrite and (output / FACTS).is_file()):
        raise ConfigError(f"output {output}: is there already; give another directory, or --overwrite an export")


@contextmanager
def _alone(output: Path) -> Iterator[None]:
    """Exports of other runs have locks of their own, so this is the one of the output; nothing of it is left."""
    path = output.with_name(f".{output.name}.lock")
    with ExitStack() as stack:
        try:
            stack.enter_context(FileLock(path))
        except BusyError:
            raise BusyError(f"output {output}: another export writes it; wait, or give another directory") from None
        stack.callback(path.unlink, missing_ok=True)
        yield


def _material(config: ExportConfig, run: RunDirectory) -> Material:
    store, spec = CandidateStore(run), config.verifier or "auto"
    rows: dict[Split, Sequence[CandidateRow]] = {"train": store.rows("train"), "validation": store.rows("validation")}
    chosen: dict[str, Any] = {}
    if not config.everything:
        origin = origin_of(TrainConfig(run=run.path, pivots=config.pivots), run)
        assert origin is not None, "pivots come from a profile"
        spec, path = config.verifier or taken_over(origin.verifier, run.path), run.pivots(config.pivots)
        if not config.verifier and verifier_id(load_verifier(spec)) != origin.verifier_id:
            raise ConfigError(f"verifier {spec!r} is not what pivots were selected by; or say --verifier {spec}")
        rows["train"], weights = pivot_rows(path, store)
        run.check(summary := summary_path(run, origin.profile, origin.verifier_id))
        profiles = {one.candidate_id: one for one in read_jsonl(summary, Profile)}
        chosen = {"plan": origin.plan, "profile": origin.profile, "weights": weights, "profiles": profiles}
    verifier = load_verifier(spec)
    for split, some in rows.items() if config.to != "chat" else ():
        rows[split] = [row for row, candidate in store.loaded(some) if refused(verifier, candidate) is None]
    return Material(config=config, store=store, rows=rows, verifier=verifier, spec=spec, **chosen)
