"""Parquet and a reward function for verl (docs/exports.md: what verl does with them)."""

from __future__ import annotations

import re
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, Final

from pivotrl.chat import RenderError, same_action
from pivotrl.errors import DependencyError
from pivotrl.exports.base import Item, Material, Target
from pivotrl.exports.prompts import Prompts
from pivotrl.exports.rewards import write_rewards
from pivotrl.exports.trl import facts_of
from pivotrl.storage import dump_json, write_atomic
from pivotrl.types import Split

TEMPLATE: Final = "{{ messages[0].content }}"
"""Chat template under which verl's prompt, one message of rendered text, becomes that text."""
PROBES: Final = 50
REWARD: Final = '''\
"""The reward of this export for verl: custom_reward_function.path=reward.py. A failed verifier gives 0, unscored 1."""

from pathlib import Path

from pivotrl.exports.rewards import Rewards

rewards = Rewards(Path(__file__).parent)


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **_):
    verdict = rewards.of_text(extra_info["candidate_id"], solution_str)
    score = verdict.value or 0.0
    return {"score": score, "acc": score, "unscored": float(verdict.value is None), "reason": verdict.reason}
'''
SCRIPT: Final = """\
#!/usr/bin/env bash
# verl on this export: bash train.sh MODEL [any override of verl.trainer.main_ppo]
here=$(cd "$(dirname "$0")" && pwd)
exec python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.model.path="$1" \\
    data.train_files="$here/train.parquet" data.val_files="$here/VALIDATION.parquet" \\
    '+data.apply_chat_template_kwargs.chat_template="TEMPLATE"' \\
    data.max_prompt_length=MAX_PROMPT data.max_response_length=MAX_NEW_TOKENS data.train_batch_size=64 \\
    actor_rollout_ref.rollout.n=8 custom_reward_function.path="$here/reward.py" "${@:2}"
"""


class Verl:
    """`train.parquet`, `validation.parquet`, `reward.py` and `train.sh`."""

    name: Target = "verl"

    def write(self, material: Material, folder: Path) -> list[str]:
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError:
            raise DependencyError("verl reads Parquet; pip install 'pivotrl[parquet]'") from None
        prompts = Prompts(material)
        tables = {split: [_row(*pair, split) for pair in prompts.rows(split)] for split in material.rows}
        for split, rows in tables.items():
            if rows:
                pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / f"{split}.parquet")
        write_rewards(material, prompts.chat, folder)
        write_atomic(folder / "reward.py", REWARD.encode())
        texts = [row["prompt"][0]["content"] for rows in tables.values() for row in rows]
        filled = {
            "TEMPLATE": TEMPLATE,
            "VALIDATION": "validation" if tables["validation"] else "train",
            "MAX_PROMPT": str(max((len(prompts.chat.encode(text)) for text in texts), default=0)),
            "MAX_NEW_TOKENS": str(prompts.params.max_new_tokens),
        }
        write_atomic(folder / "train.sh", re.sub("|".join(filled), lambda found: filled[found[0]], SCRIPT).encode())
        return prompts.notes() + _unreadable(prompts)


def _row(item: Item, text: str, split: Split) -> dict[str, Any]:
    return {
        "data_source": "pivotrl",
        "prompt": [{"role": "user", "content": text}],
        "ability": item.candidate.trajectory.domain or "agent",
        "reward_model": {"style": "rule", "ground_truth": dump_json(item.candidate.demonstration).decode()},
        "extra_info": {"split": split} | facts_of(item),
    }


def _unreadable(prompts: Prompts) -> list[str]:
    """A warning where actions are written with special tokens, which verl leaves out of what a reward function gets."""
    chat, lost, seen = prompts.chat, 0, 0
    for item, _ in islice(prompts.rows("train"), PROBES):
        state, shown = item.candidate.state, item.candidate.demonstration
        with suppress(RenderError):
            ids = chat.demonstration_ids(state, shown)
            read = chat.parse(chat.tokenizer.decode(ids, skip_special_tokens=True), state).action
            seen, lost = seen + 1, lost + (read is None or not same_action(read, shown))
    return [f"WARNING: {lost} of {seen} demonstrations cannot be read once verl has dropped special tokens"] * bool(
        lost
    )
