"""Profiles that came with the data: somebody's policy was measured at these actions, by somebody's verifier.

They are profiles of the run beside its own, `imported` and `imported.*`, without rollouts; `select` takes one that is
named. What the data do not tell is `unknown` in the plan, so that training asks for `--allow-mismatch`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from pivotrl.candidates import CandidateStore
from pivotrl.metrics import beta_posterior, group_statistics
from pivotrl.models import ModelSettings
from pivotrl.planning import rows_hash
from pivotrl.profile_settings import ProfilePlan, fingerprint_id, summary_path
from pivotrl.storage import RunDirectory, content_hash, decode, dump_json, file_hash, write_json, write_jsonl
from pivotrl.trajectories.nemo_gym import ROLLOUTS, Measured
from pivotrl.types import CandidateRow, PolicyFingerprint, Profile, SamplingParams

UNKNOWN: Final = "unknown"
_NOBODY: Final = PolicyFingerprint(**dict.fromkeys(PolicyFingerprint.__slots__, UNKNOWN))


class _Source(NamedTuple):
    """Of one imported profile."""

    name: str
    plan: str
    """Names the plan of a profile of ours, which may differ between exports; else empty."""


class Imports:
    """Everything measured elsewhere, by candidate, until the run is there."""

    def __init__(self) -> None:
        self._rewards: dict[_Source, dict[str, list[float | None]]] = defaultdict(lambda: defaultdict(list))
        self._exact: dict[_Source, dict[str, Profile]] = defaultdict(dict)
        self._plans: dict[_Source, dict[str, Any]] = {}

    def add(self, candidate_id: str, found: Iterable[Measured]) -> None:
        """Take what a row tells of a candidate; a repeated row adds its rollout, and nothing else."""
        for one in found:
            if one.lineage:
                source = _Source(one.profile, content_hash(one.lineage.get("plan")))
                told = one.lineage["profile"] | {"candidate_id": candidate_id}
                self._exact[source][candidate_id] = decode(dump_json(told), Profile, f"{candidate_id}: profile")
                self._plans.setdefault(source, one.lineage.get("plan") or {})
            elif one.profile == ROLLOUTS or candidate_id not in self._rewards[_Source(one.profile, "")]:
                self._rewards[_Source(one.profile, "")][candidate_id] += one.rewards

    def write(self, run: RunDirectory, rows: Sequence[CandidateRow]) -> dict[str, int]:
        """Write the profiles of these candidates. Returns how many each has, by name."""
        counts: dict[str, int] = {}
        for source in [*self._exact, *self._rewards]:
            known = self._exact[source].keys() | self._rewards[source].keys()
            mine = [row for row in rows if row.id in known]
            if mine:
                name = source.name if source.name not in counts else f"{source.name}.{len(counts)}"
                counts[name] = len(mine)
                self._write(run, name, source, mine)
        return counts

    def _write(self, run: RunDirectory, name: str, source: _Source, rows: list[CandidateRow]) -> None:
        folder, told = run.profile(name), self._plans.get(source, {})
        rewards = self._rewards[source]
        plain = ProfilePlan(
            rollouts=max((len(rewards[row.id]) for row in rows), default=0),
            sampling=SamplingParams(),
            truncation="zero",
            seed=0,
            policy=UNKNOWN,
            model=ModelSettings(),
            verifier=UNKNOWN,
            verifier_id=UNKNOWN,
            fingerprint=_NOBODY,
            candidates=rows_hash(CandidateStore(run), rows),
        )
        decoded = decode(dump_json({"candidates": "", **told}), ProfilePlan, f"{name}: plan") if told else plain
        plan = replace(decoded, candidates=plain.candidates)
        write_json(folder / "profile.json", plan)
        write_jsonl(folder / "candidates.jsonl", rows)
        write_jsonl(folder / "excluded.jsonl", [])
        profiles = [self._exact[source].get(row.id) or _profile(row.id, rewards[row.id], plan) for row in rows]
        write_jsonl(summary_path(run, name, plan.verifier_id), profiles)
        facts = {"config": {}, "verifier": {"id": plan.verifier_id}, "imported": plan.policy}
        run.record_stage("profile", name, facts | {"inputs": {"candidates.jsonl": file_hash(run.candidates)}})


def _profile(key: str, rewards: Sequence[float | None], plan: ProfilePlan) -> Profile:
    """What the rewards say; how many actions were cut off, unparsable or distinct is not known."""
    statistics = group_statistics(rewards)
    return Profile(
        candidate_id=key,
        n=statistics.n,
        mean=statistics.mean,
        variance=statistics.variance,
        unscored=sum(one is None for one in rewards),
        truncated=0,
        unparsable=0,
        distinct_actions=0,
        posterior=beta_posterior(rewards),
        policy=fingerprint_id(plan.fingerprint),
        verifier=plan.verifier_id,
    )
