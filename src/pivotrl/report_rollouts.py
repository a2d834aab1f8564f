"""Rollouts worth a look: where the policy is sure and wrong, hardly dares and is right, and is never right."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from pivotrl.candidates import CandidateStore
from pivotrl.documents import Block, Folded, Heading, Paragraph, Verbatim
from pivotrl.errors import PivotRLError
from pivotrl.manifests import named
from pivotrl.profile_settings import profiled_groups, summary_path
from pivotrl.report_stages import Stages
from pivotrl.run_directory import RunDirectory
from pivotrl.types import Action, Candidate, Completion, RolloutGroup, Verdict

SHOWN: Final = 3
"""Rollouts of each kind."""
_TAIL: Final = 2
"""Last messages of the state."""
KINDS: Final = {
    "surest": "Wrong, and the policy was sure (most surprising)",
    "rarest": "Right, and the policy hardly dared (best)",
    "hopeless": "Never right (worst): the demonstration, and what the policy does instead",
}


class _Seen(NamedTuple):
    order: float
    """Lower comes first; of equal ones, by candidate."""
    candidate_id: str
    completion: Completion
    verdict: Verdict


def rollouts(run: RunDirectory, stages: Stages) -> list[Block]:
    """Of every profile, by its own verifier; ties go by candidate, so that a report repeats to the byte."""
    blocks: list[Block] = []
    store = CandidateStore(run)
    for name, facts in named(stages, "profile"):
        verifier = facts["verifier"]["id"]
        if not summary_path(run, name, verifier).exists():
            continue
        try:
            found = _found(profiled_groups(run, name, verifier))
            shown = [(KINDS[kind], [_block(store, one) for one in some]) for kind, some in found.items() if some]
        except PivotRLError as error:
            blocks.append(Paragraph(f"Rollouts of `{name}` cannot be shown: {error}", "note"))
            continue
        if shown:
            blocks.append(Heading(f"Rollouts of profile `{name}` worth a look"))
            for title, some in shown:
                blocks += [Heading(title, 3), *some]
    return blocks


def _found(groups: Iterable[RolloutGroup]) -> dict[str, list[_Seen]]:
    best: dict[str, list[_Seen]] = {kind: [] for kind in KINDS}
    for group in groups:
        for kind, seen in _first(group).items():
            best[kind] = sorted([*best[kind], seen])[:SHOWN]
    return best


def _first(group: RolloutGroup) -> dict[str, _Seen]:
    """The rollout of a group that comes first, of each kind."""
    first: dict[str, _Seen] = {}
    right = any(reward for reward in group.rewards)
    for completion, verdict in zip(group.completions, group.verdicts, strict=True):
        mean = (completion.logprob or 0.0) / max(1, len(completion.token_ids))
        kind = "rarest" if verdict.value == 1 else "surest" if right else "hopeless"
        if verdict.value is None or (completion.logprob is None and kind != "hopeless"):
            continue  # nobody said how sure it was
        seen = _Seen(mean if kind == "rarest" else -mean, group.candidate_id, completion, verdict)
        if kind not in first or seen.order < first[kind].order:
            first[kind] = seen
    return first


def _block(store: CandidateStore, seen: _Seen) -> Folded:
    trajectory_id, _, turn = seen.candidate_id.rpartition("@")
    candidate = Candidate(trajectory=store.trajectory(trajectory_id), turn=int(turn))
    last = candidate.state.messages[-_TAIL:]
    said = [f"{one.role}: {in_words(Action(text=one.content, calls=one.tool_calls))}" for one in last]
    verdict = seen.verdict
    text = [
        "... " + "\n".join(said),
        f"\nthe expert: {in_words(candidate.demonstration)}",
        f"the policy: {in_words(seen.completion.action) if seen.completion.action else seen.completion.text}",
        f"\nreward {verdict.value:g} by {verdict.verifier}: {verdict.reason} {verdict.detail}".rstrip(),
    ]
    if seen.completion.logprob is not None:
        text.append(f"log-probability {seen.completion.logprob:.2f} nats, {len(seen.completion.token_ids)} tokens")
    return Folded(seen.candidate_id, (Verbatim("\n".join(text)),))


def in_words(action: Action) -> str:
    """The calls of an action and what it says, in a few lines."""
    calls = [f"{call.name}({call.arguments})" for call in action.calls]
    return "\n".join([*([action.text] if action.text else []), *calls]) or "(nothing)"
