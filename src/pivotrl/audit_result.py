"""What an audit found: shares by section, in lines, as a page and as a picture."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pivotrl.charts import share_chart
from pivotrl.documents import table
from pivotrl.metrics import format_estimate, mean_share
from pivotrl.types import Candidate, Estimate, SkippedTurn, Verdict

LISTED: Final = 50
"""Demonstrations that `audit.md` lists of each kind; `audit.json` has all."""
EXAMPLES: Final = 3
"""Rewarded actions of each kind that are named."""
DEMONSTRATIONS: Final = "Demonstrations (should earn 1)"
OTHERS: Final = "Other actions (should earn next to nothing)"
ATTACKS: Final = "Attacks (should earn nothing)"
SAMPLES: Final = "Samples of the profile"
LABELS: Final = "Labelled actions"


@dataclass(frozen=True, slots=True, kw_only=True)
class Earned:
    """What one kind of action earns."""

    name: str
    reward: Estimate | None
    """None where nothing was scored."""
    rewarded: int
    """Actions that earn anything at all."""
    unscored: int
    reasons: dict[str, int]
    """Reason codes, the most frequent first."""
    examples: tuple[str, ...]
    """Rewarded ones."""

    def __str__(self) -> str:
        known = "none scored" if self.reward is None else format_estimate(self.reward).replace("tasks", "trajectories")
        return f"{known}, {self.unscored} unscored" if self.unscored else known

    def row(self) -> tuple[str, str, int, str, str]:
        reasons = ", ".join(f"{reason} {count}" for reason, count in self.reasons.items())
        return self.name, str(self), self.rewarded, reasons, "; ".join(self.examples)


class Earnings:
    """The rewards of one kind of action."""

    def __init__(self) -> None:
        self.rewards: list[tuple[float, str]] = []
        """Each with its trajectory."""
        self.reasons: Counter[str] = Counter()
        self.examples: list[str] = []
        self.unscored = 0

    def judged(self, candidate: Candidate, verdict: Verdict) -> None:
        self.reasons[verdict.reason] += 1
        self.add(candidate, verdict.value)
        if verdict.value and len(self.examples) < EXAMPLES:
            self.examples.append(f"{candidate.id}: {verdict.reason} {verdict.detail}".strip())

    def add(self, candidate: Candidate, value: float | None) -> None:
        self.unscored += value is None
        self.rewards += [] if value is None else [(value, candidate.trajectory.id)]

    def share(self, name: str) -> Earned:
        return Earned(
            name=name,
            reward=mean_share(self.rewards) if self.rewards else None,
            rewarded=sum(reward > 0 for reward, _ in self.rewards),
            unscored=self.unscored,
            reasons=dict(self.reasons.most_common()),
            examples=tuple(self.examples),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditResult:
    """How a verifier came out, and where `audit.md` is."""

    path: Path
    verifier: str
    verifier_id: str
    candidates: int
    trajectories: int
    ungradable: tuple[SkippedTurn, ...]
    """Demonstrations that no verifier can be held to: their tool's schema is broken, or they violate it."""
    refused: tuple[SkippedTurn, ...]
    """Gradable demonstrations that earn less than 1 or are unscored."""
    shares: dict[str, tuple[Earned, ...]]
    """By section."""

    def lines(self) -> list[str]:
        lines = [f"verifier {self.verifier} on {self.candidates} candidates of {self.trajectories} trajectories"]
        for title, shares in self.shares.items():
            lines += [f"{title}:", *(f"    {share.name:<42} {share}" for share in shares)]
        for what, turns in (("refused or unscored", self.refused), ("not gradable, left out", self.ungradable)):
            if turns:
                lines.append(f"demonstrations {what}: {len(turns)}, such as {' '.join(_row(turns[0]))}")
        paid = [share for share in self.shares[ATTACKS] if share.rewarded]
        lines += [f"rewarded attack {share.name}: {share.rewarded}, such as {share.examples[0]}" for share in paid]
        return [*lines, f"all of it, with a picture: {self.path}"]

    def page(self) -> str:
        """`audit.md`."""
        parts = [f"# Audit of verifier `{self.verifier}`", self.lines()[0], "![shares](audit.svg)"]
        for title, shares in self.shares.items():
            header = ["", "mean reward", "rewarded", "reasons", "rewarded ones"]
            parts += [f"## {title}", table(header, [share.row() for share in shares])]
        for title, turns in (("refused or unscored", self.refused), ("not gradable", self.ungradable)):
            if turns:
                listed = f", the first {LISTED} (all are in audit.json)" if len(turns) > LISTED else ""
                parts.append(f"## Demonstrations {title}: {len(turns)}{listed}")
                parts.append(table(["candidate", "reason", "detail"], map(_row, turns[:LISTED])))
        return "\n\n".join(parts) + "\n"

    def picture(self) -> str:
        """`audit.svg`: the shares with their intervals."""
        known = [(share.name, share.reward) for shares in self.shares.values() for share in shares]
        shares = {name: reward for name, reward in known if reward is not None}
        return share_chart(f"Mean reward under {self.verifier}", shares)


def _row(turn: SkippedTurn) -> tuple[str, str, str]:
    return f"{turn.trajectory_id}@{turn.turn}", turn.reason, turn.detail
