"""A verifier for recipes/openai_servers.sh: a reward that also a model earns which can do nothing else."""

from __future__ import annotations

from pivotrl.types import Action, Candidate


def brief(candidate: Candidate, action: Action) -> bool:
    """Accepts the demonstration, and replies of at most 30 words; truncated ones are wrong in any case."""
    return action == candidate.demonstration or len((action.text or "").split()) <= 30
