"""When a training has learned what its pivots can teach, so that the policy should be profiled again. Pure.

Sources: the paper's Fig. 3 (the reward spread within groups decays as pivots are learned); Nemotron 3 Ultra (arXiv
2606.15007), which profiles again whenever accuracy saturates. A third, the windows and the gain are our choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from pivotrl.errors import ConfigError
from pivotrl.metrics import known_mean

Cause = Literal["spread", "plateau"]
CAUSES: Final[dict[Cause, str]] = {
    "spread": "the reward spread within groups is below --saturation.share of its start",
    "plateau": "the reward has not risen by --saturation.gain for --saturation.patience windows",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SaturationSettings:
    """When a training is saturated. Raises ConfigError for values that cannot work."""

    window: int = 10
    """Steps whose mean is looked at."""
    share: float = 1 / 3
    """Saturated where the mean reward deviation within groups is below this share of that of the first window, ..."""
    patience: int = 3
    """... or where the mean reward is, compared with so many windows before, ..."""
    gain: float = 0.01
    """... higher by no more than this."""

    def __post_init__(self) -> None:
        for name in ("window", "patience"):
            if getattr(self, name) < 1:
                raise ConfigError(f"saturation {name} {getattr(self, name)}: must be at least 1")
        if not 0 <= self.share < 1:
            raise ConfigError(f"saturation share {self.share}: must be at least 0 (never) and below 1")


def saturated(
    spread_T: Sequence[float | None], reward_T: Sequence[float | None], settings: SaturationSettings
) -> Cause | None:
    """Why the last of these steps teaches little any more; None while it does, or too little is known."""
    window, before = settings.window, settings.window * settings.patience
    if len(spread_T) > window:
        start, now = known_mean(spread_T[:window]), known_mean(spread_T[-window:])
        if start is not None and now is not None and now < settings.share * start:
            return "spread"
    if len(reward_T) >= window + before:
        then, now = known_mean(reward_T[-window - before : -before]), known_mean(reward_T[-window:])
        if then is not None and now is not None and now - then <= settings.gain:
            return "plateau"
    return None
