"""What an exporter is given: the candidates of a run, their weights and profiles; and what every export holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pivotrl.candidates import CandidateStore
from pivotrl.models import ModelSettings
from pivotrl.profile_settings import ProfilePlan
from pivotrl.protocols import Verifier
from pivotrl.run_directory import AnyPath
from pivotrl.types import Candidate, CandidateRow, Profile, Split

Target = Literal["chat", "trl", "verl", "nemo-gym"]
Row = dict[str, Any]
"""What an export writes of a candidate or a trajectory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportConfig:
    """Write pivots, and the verifier that rewards actions there, as another trainer reads them (docs/exports.md)."""

    run: AnyPath
    """Run directory."""
    to: Target
    """chat: conversations with tools; trl: prompts, a reward function and a script for GRPOTrainer; verl: Parquet and a
    reward function; nemo-gym: rows, configuration and a resources server for NeMo Gym and NeMo RL."""
    output: Path
    """Directory to write; made when it is not there."""
    pivots: str = "base"
    """Selection to export; with it come the candidates of the validation split."""
    everything: bool = False
    """Instead of a selection: all candidates (chat: all trajectories); no profile is needed."""
    verifier: str | None = None
    """By default the one that the pivots were selected by; with --everything auto."""
    policy: str | None = None
    """Whose tokenizer and chat template render prompts, also train/NAME; by default the policy of the profile."""
    model: ModelSettings = field(default_factory=ModelSettings)
    license: str = "TBD"
    """nemo-gym: the licence of the rows, as NeMo Gym writes it, such as "Apache 2.0"."""
    overwrite: bool = False
    """Replace an earlier export in this directory."""


class Item(NamedTuple):
    """A candidate to export; it has no profile in the validation split, nor with everything."""

    candidate: Candidate
    row: CandidateRow
    weight: float
    profile: Profile | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """What there is to export."""

    config: ExportConfig
    store: CandidateStore
    rows: Mapping[Split, Sequence[CandidateRow]]
    """Of train and validation; each demonstration passes the verifier."""
    verifier: Verifier
    spec: str
    """The verifier as the user names it."""
    plan: ProfilePlan | None = None
    """Of the profile that the pivots were selected from, as are:"""
    profile: str | None = None
    weights: Mapping[str, float] = field(default_factory=dict)
    """By candidate; 1 where none is given."""
    profiles: Mapping[str, Profile] = field(default_factory=dict)

    def items(self, split: Split) -> Iterator[Item]:
        """The candidates of a split, trajectory by trajectory; one trajectory in memory at a time."""
        for row, candidate in self.store.loaded(self.rows[split]):
            yield Item(candidate, row, self.weights.get(row.id, 1.0), self.profiles.get(row.id))


Exporter = Callable[[Material, Path], list[str]]
"""Writes the files of one target into an empty folder; returns lines for people: what to run, what was left out."""
