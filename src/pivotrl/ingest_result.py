"""What came in by an ingest, in counts and in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pivotrl.logs import counted

_SHOWN: Final = 8
_HELD_OUT: Final = (
    "the split was drawn anew: {} measured elsewhere fell out of the train split, and what was measured is left out; "
    "--validation-fraction 0 --test-fraction 0 keeps all of it"
)
_UNCLEAR: Final = "{} in {} is no {}: {} unknown (docs/your_data.md)"
_WANTED: Final = ("`reward` of 0 to 1", "outcome"), ("text or whole number", "task")


@dataclass(slots=True, kw_only=True)
class IngestResult:
    """What came in: candidates + skips are all assistant turns."""

    files: int = 0
    trajectories: int = 0
    assistant_turns: int = 0
    candidates: dict[str, int] = field(default_factory=dict)
    """By split."""
    groups: int = 0
    """Tasks, or sets of trajectories with a common opening, that have candidates."""
    skips: dict[str, int] = field(default_factory=dict)
    """Turns by reason."""
    by_tool: dict[str, int] = field(default_factory=dict)
    """Calls of candidates, by the tool's name."""
    by_depth: dict[str, int] = field(default_factory=dict)
    """Candidates by the number of assistant turns before them."""
    outcomes: dict[str, int] = field(default_factory=dict)
    """Trajectories: full, below full, unknown."""
    formats: dict[str, int] = field(default_factory=dict)
    """Files by what they were taken for, and why the first was."""
    copies: int = 0
    """Trajectories with the same tools and messages as an earlier one; left out with `--dedupe`."""
    repeated_states: int = 0
    """Candidates whose state an earlier one has, with another action."""
    masked: dict[str, int] = field(default_factory=dict)
    """Secrets that `--redact` masked, by kind."""
    tools_known: int = 0
    """Trajectories whose tools are known, the matched ones included."""
    tools_matched: int = 0
    """Trajectories whose tools came from `--tools`."""
    repeated: int = 0
    """Rows of NeMo Gym that came before, as the second rollout of an action does; they are no trajectories here."""
    imported: dict[str, int] = field(default_factory=dict)
    """Train candidates of profiles that came with the data, by the profile's name."""
    held_out: int = 0
    """Candidates that were measured elsewhere and are in no train split here: their measurements are not kept."""
    tools_inferred: int = 0
    """Trajectories whose tools came from `--infer-tools`."""
    unclear: dict[str, int] = field(default_factory=dict)
    """Rows with a value that says something of outcome or task and is not understood, by key."""
    refused: list[str] = field(default_factory=list)
    """Files that were not read, each with its reason."""
    refused_records: dict[str, int] = field(default_factory=dict)
    """Records of other files that were not read, by kind of reason; `refused.jsonl` has them."""
    tokens: str = "estimated as bytes / 4"
    """How state lengths were measured."""

    def lines(self) -> list[str]:
        """The summary for people."""
        splits = ", ".join(f"{split} {n}" for split, n in self.candidates.items())
        skipped, candidates = sum(self.skips.values()), sum(self.candidates.values())
        failed = self.outcomes.get("below full", 0)
        all_failed = not candidates and 0 < failed == self.trajectories
        more = (
            (self.copies, f"copies of earlier trajectories: {self.copies}; --dedupe leaves them out"),
            (self.repeated_states, f"candidates with the state of an earlier one: {self.repeated_states}"),
            (self.repeated, f"rows that repeat an earlier one: {self.repeated}"),
            (self.masked, f"masked: {_listed(self.masked)}"),
            (self.refused_records, f"records refused (refused.jsonl): {_listed(self.refused_records)}"),
        )
        return [
            f"{counted(self.trajectories, 'trajectory')} from {counted(self.files, 'file')}, "
            f"{counted(self.assistant_turns, 'assistant turn')}",
            f"{counted(candidates, 'candidate')} in {counted(self.groups, 'group')}: {splits}",
            *[f"all {failed} episodes failed (reward below 1); --keep-failed keeps them"] * all_failed,
            *(f"the {split} split is empty" for split, n in self.candidates.items() if not n),
            f"{counted(skipped, 'turn')} skipped" + (":" if skipped else ""),
            *(f"  {reason}: {n}" for reason, n in self.skips.items()),
            f"candidates by tool: {_listed(self.by_tool)}",
            "outcome " + ", ".join(f"{name} in {n}" for name, n in self.outcomes.items()),
            *(_UNCLEAR.format(key, counted(n, "row"), *_WANTED[key == "task_id"]) for key, n in self.unclear.items()),
            f"tools known in {counted(self.tools_known, 'trajectory')} ({self.tools_matched} by --tools, "
            f"{self.tools_inferred} by --infer-tools)",
            f"state lengths: {self.tokens}",
            *(text for n, text in more if n),
            *(
                f"profile {name} came with the data, measured elsewhere: {n} candidates; `select --profile {name}`"
                for name, n in self.imported.items()
            ),
            *[_HELD_OUT.format(counted(self.held_out, "candidate"))][: self.held_out],
            *(f"read {counted(n, 'file')} as {what}" for what, n in list(self.formats.items())[:_SHOWN]),
            *(f"refused {file}" for file in self.refused[:_SHOWN]),
            *[f"... and {len(self.refused) - _SHOWN} more (run.json)"][: len(self.refused) > _SHOWN],
        ]


def _listed(counts: Mapping[str, int]) -> str:
    first = ", ".join(f"{name} {n}" for name, n in list(counts.items())[:_SHOWN])
    return first + f" and {len(counts) - _SHOWN} more" * (len(counts) > _SHOWN) or "none"
