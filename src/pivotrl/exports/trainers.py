"""TRL and verl: prompts rendered by our chat code, and a reward function that needs nothing but the export.

What a verifier itself reads (a rules file, a module of yours) has to stay; that it is the same verifier is checked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from importlib import resources
from pathlib import Path
from typing import Any

from pivotrl.chat import ChatFormat, RenderError
from pivotrl.errors import ConfigError, DependencyError, InputError
from pivotrl.exports.base import Item, Material, Row
from pivotrl.models import load_chat, save_tokenizer, trained_model
from pivotrl.policies import has_weights
from pivotrl.protocols import Verifier
from pivotrl.rollouts import Truncation, judge_all
from pivotrl.storage import dump_json, read_json, read_jsonl, write_atomic, write_json, write_jsonl
from pivotrl.types import Candidate, Completion, SamplingParams, Split, Trajectory
from pivotrl.verifiers import load_verifier, verifier_id, verify


def trl_reward(
    verifier: Verifier, candidates: Iterable[Candidate], chat: ChatFormat, *, truncation: Truncation = "zero"
) -> Callable[..., list[float | None]]:
    """A function that TRL calls as `reward(prompts, completions, completion_ids, **columns)`.

    The column `candidate_id` says which candidate's state a prompt renders. Actions are read from the sampled ids by
    our own chat format, never from TRL's text, and judged as in `profile`: 0 for an unparsable or (`truncation`) a
    truncated one, None (TRL leaves it out of the group) for what the verifier failed at. Raises InputError for an
    unknown id.
    """
    by_id = {candidate.id: candidate for candidate in candidates}

    def pivot_reward(
        *, completion_ids: Sequence[Sequence[int]], candidate_id: Sequence[str], **columns: object
    ) -> list[float | None]:
        if unknown := set(candidate_id) - by_id.keys():
            raise InputError(f"candidate {min(unknown)!r} is not among those that this reward function was made for")
        found = [by_id[name] for name in candidate_id]
        pairs = [(one, chat.completion(ids, one.state)) for one, ids in zip(found, completion_ids, strict=True)]
        return [verdict.value for verdict in judge_all(verifier, pairs, truncation)]

    return pivot_reward


class Rewards:
    """Rewards at the candidates of one export. Raises ConfigError where the verifier is no longer the exported one."""

    def __init__(self, folder: Path) -> None:
        import transformers

        facts = read_json(folder / "reward.json", dict[str, Any], "export")
        self.verifier = load_verifier(facts["verifier"])
        if verifier_id(self.verifier) != facts["verifier_id"]:
            raise ConfigError(f"verifier {facts['verifier']!r} is not what it was at the export; export again")
        self.chat = ChatFormat(transformers.AutoTokenizer.from_pretrained(folder / "tokenizer"), **facts["chat"])
        turns = (
            Candidate(trajectory=trajectory, turn=turn)
            for trajectory in read_jsonl(folder / "trajectories.jsonl", Trajectory)
            for turn, message in enumerate(trajectory.messages)
            if message.role == "assistant"
        )
        self.candidates = {candidate.id: candidate for candidate in turns}
        self.reward = trl_reward(self.verifier, self.candidates.values(), self.chat, truncation=facts["truncation"])

    def compute_score(
        self, data_source: str, solution_str: str, ground_truth: str, extra_info: Row, **_: object
    ) -> dict[str, float | str]:
        """What verl asks, of text without special tokens; verl has no word for a failed verifier, and gets 0."""
        candidate = self.candidates[extra_info["candidate_id"]]
        read = self.chat.parse(solution_str, candidate.state)
        done = Completion(action=read.action, text=solution_str, finish_reason="stop", parse_error=read.error)
        verdict = verify(self.verifier, candidate, done)
        return {"score": verdict.value or 0.0, "unscored": float(verdict.value is None), "reason": verdict.reason}


def write_trl(material: Material, folder: Path) -> list[str]:
    """`train.jsonl`, `validation.jsonl`, `reward.py`, and `train.py`, which trains."""

    def row(chat: ChatFormat, item: Item, text: str) -> Row:
        """TRL calls the tokenizer, which may add a first token; the prompt is the text to which that gives our ids."""
        tried = (text, text.removeprefix(chat.tokenizer.bos_token or ""))
        prompt = next((one for one in tried if chat.tokenizer(one)["input_ids"] == chat.encode(text)), None)
        if prompt is None:
            raise RenderError("called by TRL, the tokenizer gives other ids")
        return {"prompt": prompt} | _facts(item)

    rows, notes = _prompts(material, folder, row, "reward.py", "train.py")
    for split, some in rows.items():
        write_jsonl(folder / f"{split}.jsonl", some)
    return [*notes, f"next: python {material.config.output}/train.py --model MODEL --output_dir out"]


def write_verl(material: Material, folder: Path) -> list[str]:
    """`train.parquet`, `validation.parquet` with the columns of verl's RLHFDataset, and `reward.py`."""
    try:
        from pyarrow import Table, parquet
    except ImportError:
        raise DependencyError("verl reads Parquet; pip install 'pivotrl[parquet]'") from None

    def row(chat: ChatFormat, item: Item, text: str) -> Row:
        candidate, lossy = item.candidate, False
        with suppress(RenderError):  # ids that cannot be proven say nothing
            ids = chat.demonstration_ids(candidate.state, candidate.demonstration)
            lossy = chat.tokenizer.decode(ids, skip_special_tokens=True) != chat.text_of(ids)
        if lossy:
            raise RenderError("actions are written with special tokens, which verl hides from reward functions")
        return {
            "data_source": "pivotrl",
            "prompt": [{"role": "user", "content": text}],
            "ability": candidate.trajectory.domain or "agent",
            "reward_model": {"style": "rule", "ground_truth": dump_json(candidate.demonstration).decode()},
            "extra_info": {"split": item.row.split} | _facts(item),
        }

    rows, notes = _prompts(material, folder, row, "reward.py")
    for split, some in rows.items():
        parquet.write_table(Table.from_pylist(some), folder / f"{split}.parquet")
    return [*notes, "next: the command of docs/exports.md (verl.trainer.main_ppo) with train.parquet and reward.py"]


def _prompts(
    material: Material, folder: Path, row: Callable[[ChatFormat, Item, str], Row], *scripts: str
) -> tuple[dict[Split, list[Row]], list[str]]:
    """Rows of each split that has some, and lines for people; writes the scripts and what `Rewards` reads."""
    chat, left, longest = _chat(material), Counter[str](), 0
    rows: dict[Split, list[Row]] = {split: [] for split in material.rows}
    for split, some in rows.items():
        for item in material.items(split):
            try:
                text = chat.prompt_text(item.candidate.state)
                some.append(row(chat, item, text))
                longest = max(longest, len(chat.encode(text)))
            except RenderError as error:
                left[str(error)[:100]] += 1
    facts = {
        "verifier": material.spec,
        "verifier_id": verifier_id(material.verifier),
        "truncation": material.plan.truncation if material.plan else "zero",
        "chat": {"parser": chat.parser, "thinking": chat.thinking, "stop_ids": sorted(chat.stop_ids)},
    }
    write_json(folder / "reward.json", facts)
    longest_action = (material.plan.sampling if material.plan else SamplingParams()).max_new_tokens
    for name in scripts:
        script = (resources.files("pivotrl.exports") / "scripts" / f"{name}.txt").read_bytes()
        write_atomic(folder / name, script.replace(b"NEW_TOKENS", str(longest_action).encode()))
    save_tokenizer(chat, folder / "tokenizer")
    ids = dict.fromkeys(row.trajectory_id for rows in material.rows.values() for row in rows)
    write_jsonl(folder / "trajectories.jsonl", map(material.store.trajectory, ids))
    notes = [f"{count} prompts left out: {reason}" for reason, count in left.items()]
    return {split: some for split, some in rows.items() if some}, [*notes, f"longest prompt: {longest} tokens"]


def _chat(material: Material) -> ChatFormat:
    """The chat format of prompts. Raises ConfigError without a policy, or with another tokenizer than profiled."""
    config, plan = material.config, material.plan
    spec = config.policy or (plan.policy if plan else "")
    if not spec or not has_weights(spec):
        raise ConfigError("policy: say whose tokenizer renders the prompts with --policy DIRECTORY_OR_ID")
    settings = config.model.inherit(plan.model) if plan else config.model
    chat, tokenizer = load_chat(trained_model(material.store.run, spec), settings)
    made = plan.fingerprint if plan and not config.policy else None
    if made and (made.tokenizer, made.chat_template) != (tokenizer, chat.template_hash):
        raise ConfigError(f"policy {spec!r}: not the tokenizer or template that was profiled; or say --policy {spec}")
    return chat


def _facts(item: Item) -> Row:
    mean, n = (item.profile.mean, item.profile.n) if item.profile else (None, 0)
    return {"candidate_id": item.row.id, "weight": item.weight, "mean": mean, "rollouts": n}
