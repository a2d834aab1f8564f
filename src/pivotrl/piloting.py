"""The pilot of a profile: the same profile of some random trajectories, in a folder of its own, and what follows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import orjson

from pivotrl.errors import ConfigError
from pivotrl.estimating import Forecast, Sizes, estimated, measures, priced, usage_by_trajectory
from pivotrl.openai_client import ClientSettings
from pivotrl.protocols import RemotePolicy, Verifier
from pivotrl.rollouts import Sampling
from pivotrl.rounds import Rounds
from pivotrl.storage import complete_lines, shuffle_key
from pivotrl.types import CandidateRow, Usage


def pilot_rows(rows: Sequence[CandidateRow], most: int, seed: int) -> list[CandidateRow]:
    """All rows of `most` random trajectories, in their order: whole ones, which share prompts as they will.

    Raises ConfigError where that is no sample.
    """
    ids = sorted({row.trajectory_id for row in rows}, key=lambda name: shuffle_key(f"{seed}/pilot/{name}"))
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
    place, opening = rounds.place, sampling.policy.take_usage()
    if opening != Usage():  # of no trajectory, so it is not scaled
        place.ledger.record(place.stage, place.name, "opening", opening)
    rounds.spend(sampling)
    count = sampling.policy.count_tokens
    sizes = {}
    for key, unit in place.candidates.units(rows):
        lengths = [count(candidate.state) for candidate in unit]
        sizes[key] = Sizes(len(lengths), sum(lengths), max(lengths))
    bill = usage_by_trajectory(
        line for line in place.ledger.lines() if (line.stage, line.name) == (place.stage, place.name)
    )
    written, took = _bytes(rounds), {}
    for key in dict.fromkeys(row.trajectory_id for row in rounds.rows):
        took[key] = measures(bill.get(key, Usage())) | {"bytes": float(written[key])}
    expected = estimated(sizes, took)
    cost = priced(expected, _prices(sampling, prices))
    return Forecast(
        settings=settings,
        trajectories=len(sizes),
        candidates=len(rows),
        pilot=len(took),
        expected=expected | ({"cost": cost} if cost else {}),
    )


def _bytes(rounds: Rounds) -> Counter[str]:
    """Of the part files, by trajectory."""
    of = {row.id: row.trajectory_id for row in rounds.rows}
    written = Counter[str]()
    for path in sorted(rounds.place.store.folder.rglob("part-*.jsonl")):
        for _, line in complete_lines(path):
            written[of[orjson.loads(line)["candidate_id"]]] += len(line)
    return written


def _prices(sampling: Sampling, own: ClientSettings) -> dict[str, float]:
    """Of a token, by measure; cached tokens are free, and all judges are as dear as the dearest."""
    policy = own if isinstance(sampling.policy, RemotePolicy) else ClientSettings()
    judges = _judges(sampling.verifier)
    return {
        "prefilled_tokens": policy.price_in / 1e6,
        "generated_tokens": policy.price_out / 1e6,
        "judge_prompt_tokens": max((one.price_in for one in judges), default=0.0) / 1e6,
        "judge_generated_tokens": max((one.price_out for one in judges), default=0.0) / 1e6,
    }


def _judges(verifier: Verifier) -> list[ClientSettings]:
    members = getattr(verifier, "members", ())
    own = [verifier] if isinstance(verifier, ClientSettings) else []
    return own + [one for member in members for one in _judges(member)]
