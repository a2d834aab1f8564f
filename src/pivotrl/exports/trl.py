"""Prompts, a reward function and a script for TRL's GRPOTrainer (docs/exports.md: what TRL does with them)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from pivotrl.exports.base import Item, Material, Target
from pivotrl.exports.prompts import Prompts, text_for_call
from pivotrl.exports.rewards import write_rewards
from pivotrl.storage import write_atomic, write_jsonl
from pivotrl.types import Split

REWARD: Final = '''\
"""The reward of this export for TRL: GRPOTrainer(reward_funcs=reward, ...). None: the verifier failed."""

from pathlib import Path

from pivotrl.exports.rewards import Rewards

rewards = Rewards(Path(__file__).parent)


def reward(completion_ids, candidate_id, **_):
    return [verdict.value for verdict in rewards.of_ids(candidate_id, completion_ids)]
'''
SCRIPT: Final = '''\
"""GRPO with TRL: python train.py --model MODEL --output_dir OUT [--max_steps 100 and any option of GRPOConfig]"""

from pathlib import Path

import torch
from datasets import load_dataset
from transformers import AutoModelForCausalLM, HfArgumentParser
from trl import GRPOConfig, GRPOTrainer

from reward import reward, rewards

here = Path(__file__).parent
parser = HfArgumentParser(GRPOConfig)
parser.add_argument("--model", required=True)
parser.set_defaults(max_completion_length=MAX_NEW_TOKENS, num_generations=8, per_device_train_batch_size=64)
parser.set_defaults(bf16=torch.cuda.is_available(), report_to="none", logging_steps=1)
args, more = parser.parse_args_into_dataclasses()
files = {name: str(here / f"{name}.jsonl") for name in ("train", "validation") if (here / f"{name}.jsonl").exists()}
data = load_dataset("json", data_files=files)
model = AutoModelForCausalLM.from_pretrained(more.model, dtype=torch.float32)
model.generation_config.eos_token_id = sorted(rewards.chat.stop_ids)
trainer = GRPOTrainer(
    model=model,
    reward_funcs=reward,
    args=args,
    train_dataset=data["train"],
    eval_dataset=data.get("validation"),
    processing_class=rewards.chat.tokenizer,
)
trainer.train()
trainer.save_model()
'''


class Trl:
    """`train.jsonl`, `validation.jsonl`, `reward.py` and `train.py`."""

    name: Target = "trl"

    def write(self, material: Material, folder: Path) -> list[str]:
        prompts = Prompts(material)
        for split in material.rows:
            if rows := _rows(prompts, split):
                write_jsonl(folder / f"{split}.jsonl", rows)
        write_rewards(material, prompts.chat, folder)
        write_atomic(folder / "reward.py", REWARD.encode())
        script = SCRIPT.replace("MAX_NEW_TOKENS", str(prompts.params.max_new_tokens))
        write_atomic(folder / "train.py", script.encode())
        return prompts.notes()


def _rows(prompts: Prompts, split: Split) -> list[dict[str, Any]]:
    rows = []
    for item, rendered in prompts.rows(split):
        text = text_for_call(prompts.chat, rendered)
        if text is None:
            prompts.left_out["the tokenizer, called, gives other ids"] += 1
        else:
            rows.append({"prompt": text} | facts_of(item))
    return rows


def facts_of(item: Item) -> dict[str, Any]:
    """What goes beside a prompt."""
    mean, n = (item.profile.mean, item.profile.n) if item.profile else (None, 0)
    return {"candidate_id": item.row.id, "weight": item.weight, "mean": mean, "rollouts": n}
