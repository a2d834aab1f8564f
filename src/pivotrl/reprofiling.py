"""Which candidates of an earlier profile are worth profiling again, by what was selected from it.

What a selection found solved or too easy has hardly become harder for a policy that has trained on the rest. What it
kept, found hopeless, or could not decide may be something else by now.
"""

from __future__ import annotations

from typing import Any

from pivotrl.errors import MissingError
from pivotrl.storage import RunDirectory, read_jsonl
from pivotrl.types import Pivot, Profile


def worth_another(run: RunDirectory, profile: str) -> frozenset[str]:
    """Ids of the candidates that a selection from this profile kept, or that had too few scored rollouts for it, or a
    mean reward below its lambda-diff. Raises MissingError where nothing was selected from it."""
    chosen: set[str] = set()
    selections = [
        (key.partition("/")[2], facts)
        for key, facts in run.stages().items()
        if key.startswith("select/") and _settings(facts)["profile"] == profile
    ]
    for name, facts in selections:
        settings = _settings(facts)
        summary = run.profile(profile) / "verdicts" / str(facts["verifier_id"]) / "summary.jsonl"
        made_by = f"select --run {run.path} --profile {profile} --name {name}"
        chosen.update(pivot.candidate_id for pivot in read_jsonl(run.pivots(name), Pivot, made_by))
        chosen.update(
            one.candidate_id
            for one in read_jsonl(summary, Profile, made_by)
            if one.mean is None or one.n < settings["min_scored"] or one.mean < settings["lambda_diff"]
        )
    if not selections:
        raise MissingError(
            f"nothing was selected from profile {profile!r}, which would say what is worth profiling again; run "
            f"`pivotrl select --run {run.path} --profile {profile}` first, or take --everything"
        )
    return frozenset(chosen)


def _settings(facts: dict[str, Any]) -> dict[str, Any]:
    """Of the `SelectConfig` that a selection was made with."""
    settings: dict[str, Any] = facts["config"]
    return settings
