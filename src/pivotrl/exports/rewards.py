"""What exported reward functions call: the verifier of an export, on what another trainer sampled at its candidates.

The export holds all that this needs: `reward.json`, the tokenizer and the trajectories. What a verifier itself reads
(a rules file, a module of yours) has to be where it was; that it still is the same verifier is checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Final

from pivotrl.candidates import INDEX_NAME, CandidateStore, TrajectoryRef
from pivotrl.chat import ChatFormat, Thinking
from pivotrl.errors import ConfigError
from pivotrl.exports.base import Material
from pivotrl.models import save_tokenizer
from pivotrl.rollouts import Truncation, judge_all
from pivotrl.storage import RunDirectory, dump_json, read_json, write_atomic, write_json, write_jsonl
from pivotrl.types import Candidate, Completion, Verdict
from pivotrl.verifiers import load_verifier, verifier_id

FILE: Final = "reward.json"
TOKENIZER: Final = "tokenizer"
PART: Final = "part-00000.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardFacts:
    """`reward.json`: the verifier, and how texts are read."""

    verifier: str
    verifier_id: str
    truncation: Truncation
    tool_parser: str
    thinking: Thinking
    stop_ids: tuple[int, ...]


class Rewards:
    """Rewards at the candidates of one export. Raises ConfigError for a verifier that is not the exported one."""

    def __init__(self, folder: Path) -> None:
        import transformers

        facts = read_json(folder / FILE, RewardFacts, "export")
        self.truncation, self.verifier = facts.truncation, load_verifier(facts.verifier)
        if verifier_id(self.verifier) != facts.verifier_id:
            raise ConfigError(f"verifier {facts.verifier!r} is not what it was when this was exported; export again")
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder / TOKENIZER)
        self.chat = ChatFormat(tokenizer, parser=facts.tool_parser, thinking=facts.thinking, stop_ids=facts.stop_ids)
        self._trajectory = lru_cache(maxsize=256)(CandidateStore(RunDirectory(folder)).trajectory)

    def of_ids(self, candidate_ids: Sequence[str], action_ids: Sequence[Sequence[int]]) -> list[Verdict]:
        """The verdict on each sampled action; one that does not end in a stop token is truncated."""
        pairs = [
            self._read(key, self.chat.text_of(ids), bool(len(ids)) and ids[-1] in self.chat.stop_ids)
            for key, ids in zip(candidate_ids, action_ids, strict=True)
        ]
        return judge_all(self.verifier, pairs, self.truncation)

    def of_text(self, candidate_id: str, text: str) -> Verdict:
        """The verdict on the text of an action that came whole."""
        return judge_all(self.verifier, [self._read(candidate_id, text, True)], self.truncation)[0]

    def _read(self, candidate_id: str, text: str, whole: bool) -> tuple[Candidate, Completion]:
        trajectory_id, _, turn = candidate_id.rpartition("@")
        candidate = Candidate(trajectory=self._trajectory(trajectory_id), turn=int(turn))
        parsed = self.chat.parse(text, candidate.state)
        return candidate, Completion(
            action=parsed.action, text=text, finish_reason="stop" if whole else "length", parse_error=parsed.error
        )


def write_rewards(material: Material, chat: ChatFormat, folder: Path) -> None:
    """Write what `Rewards` reads."""
    facts = RewardFacts(
        verifier=material.spec,
        verifier_id=verifier_id(material.verifier),
        truncation=material.plan.truncation if material.plan else "zero",
        tool_parser=chat.parser,
        thinking=chat.thinking,
        stop_ids=tuple(sorted(chat.stop_ids)),
    )
    write_json(folder / FILE, facts)
    save_tokenizer(chat, folder / TOKENIZER)
    run, store, offset = RunDirectory(folder), material.store, 0
    refs: list[TrajectoryRef] = []
    for id_ in dict.fromkeys(row.trajectory_id for rows in material.rows.values() for row in rows):
        refs.append(replace(store.index[id_], part=PART, offset=offset))
        offset += refs[-1].length
    lines = (dump_json(store.trajectory(ref.id)) + b"\n" for ref in refs)
    write_atomic(run.trajectories / PART, lines)
    write_jsonl(run.trajectories / INDEX_NAME, refs)
