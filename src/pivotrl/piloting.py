"""The pilot of a profile: the same profile of some random trajectories, in a folder of its own, and what follows."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence

import orjson

from pivotrl.errors import ConfigError
from pivotrl.estimating import Forecast, Sizes, by_trajectory, estimated, measures
from pivotrl.openai_client import ClientSettings, Tokens
from pivotrl.rollouts import Sampling
from pivotrl.rounds import Rounds
from pivotrl.storage import complete_lines
from pivotrl.types import CandidateRow, RemotePolicy, Usage, Verifier


def pilot_rows(rows: Sequence[CandidateRow], most: int, seed: int) -> list[CandidateRow]:
    """All rows of `most` random trajectories, in their order: whole ones, which share prompts as they will.

    Raises ConfigError where that is no sample.
    """

    def shuffled(key: str) -> bytes:
        return hashlib.sha256(f"{seed}/pilot/{key}".encode()).digest()

    ids = sorted({row.trajectory_id for row in rows}, key=shuffled)
    if not 3 <= most < len(ids):
        raise ConfigError(
            f"pilot {most}: the profile has {len(ids)} trajectories; use from 3 to fewer than these, or profile at once"
        )
    chosen = frozenset(ids[:most])
    return [row for row in rows if row.trajectory_id in chosen]


def run_pilot(
    rounds: Rounds, sampling: Sampling, rows: Sequence[CandidateRow], settings: str, prices: ClientSettings
) -> Forecast:
    """Sample the pilot, whose `rounds` these are, and scale what it took to all `rows`."""
    place = rounds.place
    rounds.spend(sampling)
    count = sampling.policy.count_tokens
    sizes = {}
    for key, unit in place.candidates.units(rows):
        lengths = [count(candidate.state) for candidate in unit]
        sizes[key] = Sizes(len(lengths), sum(lengths), max(lengths))
    bill = by_trajectory(line for line in place.ledger.lines() if (line.stage, line.name) == (place.stage, place.name))
    written, cost = _bytes(rounds), _costs(sampling, prices)
    took = {}
    for key in dict.fromkeys(row.trajectory_id for row in rounds.rows):
        usage = bill.get(key, Usage())
        took[key] = measures(usage) | {"bytes": float(written[key])} | ({"cost": cost(usage)} if cost else {})
    return Forecast(
        settings=settings,
        trajectories=len(sizes),
        candidates=len(rows),
        pilot=len(took),
        expected=estimated(sizes, took),
    )


def _bytes(rounds: Rounds) -> Counter[str]:
    """Of the part files, by trajectory."""
    of = {row.id: row.trajectory_id for row in rounds.rows}
    written = Counter[str]()
    for path in sorted(rounds.place.store.folder.rglob("part-*.jsonl")):
        for _, line in complete_lines(path):
            written[of[orjson.loads(line)["candidate_id"]]] += len(line)
    return written


def _costs(sampling: Sampling, prices: ClientSettings) -> Callable[[Usage], float] | None:
    """What usage costs where prices are given; cached tokens are free, and judges cost what the dearest does."""
    policies = [prices] if isinstance(sampling.policy, RemotePolicy) else []
    judges = _judges(sampling.verifier)
    if not any(one.price_in or one.price_out for one in [*policies, *judges]):
        return None

    def cost(usage: Usage) -> float:
        asked = Tokens(usage.judge_prompt_tokens, usage.judge_generated_tokens)
        own = sum(one.cost(Tokens(usage.prefilled_tokens, usage.generated_tokens)) for one in policies)
        return own + max((one.cost(asked) for one in judges), default=0.0)

    return cost


def _judges(verifier: Verifier) -> list[ClientSettings]:
    members = getattr(verifier, "members", ())
    own = [verifier] if isinstance(verifier, ClientSettings) else []
    return own + [one for member in members for one in _judges(member)]
