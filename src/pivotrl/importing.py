"""Profiles that came with the data: somebody's policy was measured at these actions, by somebody's verifier.

They are profiles of the run beside its own, `imported` and `imported.*`, without rollouts; `select` takes one that is
named. What the data do not tell is `unknown` in the plan, so that training asks for `--allow-mismatch`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from pivotrl.candidates import CandidateStore
from pivotrl.errors import ConfigError, InputError
from pivotrl.intake import Event, Read
from pivotrl.run_directory import NAME_BYTES, RunDirectory, check_name
from pivotrl.storage import content_hash, decode, decode_value, file_hash, write_json, write_jsonl
from pivotrl.trajectories import Refusal
from pivotrl.trajectories.nemo_gym import ROLLOUTS, Measured
from pivotrl.types import CandidateRow, PolicyFingerprint, Profile, RolloutGroup, Verdict

UNKNOWN: Final = "unknown"
_NOTHING: Final[Mapping[str, Any]] = {
    "sampling": {}, "truncation": "zero", "seed": 0, "policy": UNKNOWN, "model": {}, "verifier": UNKNOWN,
    "verifier_id": UNKNOWN, "fingerprint": dict.fromkeys(PolicyFingerprint.__slots__, UNKNOWN),
}  # fmt: skip
"""A plan that tells nothing; how many actions were cut off, unparsable or distinct is not told either: 0."""


class Imports:
    """Everything measured elsewhere, by profile and candidate, until the run is there."""

    def __init__(self) -> None:
        self._rewards = defaultdict[str, defaultdict[str, list[float | None]]](lambda: defaultdict(list))
        self._exact = defaultdict[str, dict[str, Profile]](dict)
        self._plans: dict[str, Any] = {}
        self._sound = set[str]()
        """Plans that were looked at."""

    def sound(self, event: Event) -> Event:
        """The event; in the place of a row of ours whose profile is not as we write it, its refusal."""
        try:
            for one in (event.measured or ()) if isinstance(event, Read) else ():
                if one.ours and (plan := _told(one, "")[0]) and repr(plan) not in self._sound:
                    _check_plan(plan, f"{one.where}.plan")
                    self._sound.add(repr(plan))
        except (InputError, ConfigError) as error:
            return Refusal("bad_record", str(error))
        return event

    def add(self, candidate_id: str, found: Iterable[Measured]) -> None:
        """Take what a row tells of a candidate; a repeated row adds its rollout, and nothing else.

        Rows of ours, which must be `sound`, make another profile where they were profiled otherwise.
        """
        for one in found:
            name = one.profile
            if one.ours:
                plan, profile = _told(one, candidate_id)
                while self._plans.setdefault(name, plan) != plan:
                    name += ".other"
                    if len(name) > NAME_BYTES:
                        name = f"{one.profile}.{content_hash(plan)}"
                self._exact[name][candidate_id] = profile
            elif name == ROLLOUTS or candidate_id not in self._rewards[name]:
                self._rewards[name][candidate_id] += one.rewards

    @property
    def _known(self) -> dict[str, set[str]]:
        """The candidates of each profile."""
        return {name: {*self._exact[name], *self._rewards[name]} for name in {**self._exact, **self._rewards}}

    def measured(self, rows: Iterable[CandidateRow]) -> int:
        """How many of these are measured."""
        ids = set[str]().union(*self._known.values())
        return sum(row.id in ids for row in rows)

    def write(self, run: RunDirectory, rows: Sequence[CandidateRow]) -> dict[str, int]:
        """Write the profiles of these candidates. Returns how many each has, by name."""
        mine = {name: some for name, ids in self._known.items() if (some := [row for row in rows if row.id in ids])}
        for name, some in mine.items():
            self._write(run, name, some)
        return {name: len(some) for name, some in mine.items()}

    def _write(self, run: RunDirectory, name: str, rows: list[CandidateRow]) -> None:
        from pivotrl.planning import rows_hash  # all of these take as long to load as many a file to read
        from pivotrl.profile_result import profile_group
        from pivotrl.profile_settings import ProfilePlan, fingerprint_id, summary_path, wrote

        folder, rewards = run.profile(name), self._rewards[name]
        told = self._plans.get(name) or dict(_NOTHING) | {"rollouts": max(len(rewards[row.id]) for row in rows)}
        candidates = rows_hash(CandidateStore(run, being_made=True), rows)
        plan = decode_value(told | {"candidates": candidates}, ProfilePlan, f"{name}: plan")
        write_json(folder / "profile.json", plan)
        write_jsonl(folder / "candidates.jsonl", rows)
        write_jsonl(folder / "excluded.jsonl", [])
        policy, verifier = fingerprint_id(plan.fingerprint), plan.verifier_id
        groups = {row.id: _group(row.id, rewards[row.id]) for row in rows}
        profiles = [self._exact[name].get(key) or profile_group(one, policy, verifier) for key, one in groups.items()]
        write_jsonl(summary_path(run, name, verifier), profiles)
        facts = {"config": {}, "verifier": {"id": verifier}, "imported": plan.policy}
        inputs = {"candidates.jsonl": file_hash(run.candidates)}
        run.record_stage("profile", name, facts | {"inputs": inputs}, wrote(run, name))


def _told(row: Measured, candidate_id: str) -> tuple[dict[str, Any], Profile]:
    """The plan, not looked at yet, and the profile of a row of ours. Raises InputError."""
    told = decode(row.ours.encode(), dict[str, dict[str, Any]], row.where)
    profile = told.get("profile", {}) | {"candidate_id": candidate_id}
    return told.get("plan", {}), decode_value(profile, Profile, f"{row.where}.profile")


def _check_plan(plan: Mapping[str, Any], where: str) -> None:
    """Raise InputError or ConfigError for a plan that no profile can have."""
    from pivotrl.profile_settings import ProfilePlan

    found = decode_value({**plan, "candidates": ""}, ProfilePlan, where)
    try:
        check_name(found.verifier_id)
    except ConfigError as error:
        raise ConfigError(f"{where}: verifier_id: {error}; fix or remove the record") from None


def _group(key: str, rewards: Iterable[float | None]) -> RolloutGroup:
    said = tuple(Verdict(value=one, reason="imported", verifier=UNKNOWN, version="") for one in rewards)
    return RolloutGroup(candidate_id=key, completions=(), verdicts=said)
