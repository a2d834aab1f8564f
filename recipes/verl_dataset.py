"""verl's own dataset class, prompt builder and reward manager read an export; no GPU, nothing is trained.

python recipes/verl_dataset.py make FOLDER     an export of the toy desk, by a Python that has pivotrl
python recipes/verl_dataset.py check FOLDER    prints JSON, by one that has verl and pivotrl; see verl_dataset.sh
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
TEMPLATE = '+data.apply_chat_template_kwargs.chat_template="{{ messages[0].content }}"'


def make(folder: Path) -> None:
    sys.path.insert(0, str(HERE.parent / "tests"))
    from kill_harness import RUN, make_desk, make_model
    from pivotrl.exporting import export
    from pivotrl.exports.base import ExportConfig

    folder.mkdir(parents=True, exist_ok=True)
    make_desk(folder, episodes=40, validation=0.2)
    make_model(folder / "model")
    with contextlib.chdir(folder):
        made = ExportConfig(run=Path(RUN), to="verl", output=Path("export"), everything=True, policy="model")
        print("\n".join(export(made).lines()))


def check(folder: Path) -> dict[str, Any]:
    import verl
    from hydra import compose, initialize_config_module
    from verl.trainer.ppo.reward import get_custom_reward_fn
    from verl.utils.dataset.rl_dataset import RLHFDataset
    from verl.utils.tokenizer import hf_tokenizer
    from verl.utils.tokenizer.continuous_token_wiring import create_continuous_token_builder

    out, tokenizer = folder / "export", hf_tokenizer(str(folder / "model"))
    with initialize_config_module("verl.trainer.config", version_base=None):
        reward = f"reward.custom_reward_function.path={out / 'reward.py'}"
        config = compose(
            "ppo_trainer",
            overrides=[TEMPLATE, "data.max_prompt_length=512", "data.filter_overlong_prompts=True", reward],
        )
    score = get_custom_reward_fn(config)
    rewards = score.args[0].__self__
    builder = create_continuous_token_builder(
        tokenizer, hf_model_type="llama", chat_template_kwargs=config.data.apply_chat_template_kwargs
    )
    found: dict[str, Any] = {"verl": verl.__version__}
    for split in ("train", "validation"):
        data = RLHFDataset(str(out / f"{split}.parquet"), tokenizer, config.data)
        same, right = 0, 0
        for number in range(len(data)):
            row = data[number]
            candidate = rewards.candidates[row["extra_info"]["candidate_id"]]
            ours = rewards.chat.prompt_ids(candidate.state)
            same += tuple(builder.build_initial_tokens(row["raw_prompt"])) == ours
            ids = rewards.chat.demonstration_ids(candidate.state, candidate.demonstration)
            right += asyncio.run(judged(config, tokenizer, score, row, ids)) == 1
        found[split] = {"rows": len(data), "prompts with our ids": same, "demonstrations with reward 1": right}
    return found


async def judged(config: Any, tokenizer: Any, score: Any, row: dict[str, Any], ids: tuple[int, ...]) -> float:
    """What verl's reward manager makes of an action."""
    import numpy as np
    import torch
    from verl import DataProto
    from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager

    names = ("data_source", "reward_model", "extra_info")
    batch = DataProto.from_dict(
        tensors={"responses": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=torch.long)},
        non_tensors={name: np.array([row[name]], dtype=object) for name in names},
    )
    word = await NaiveRewardManager(config, tokenizer, score).run_single(batch)
    return float(word["reward_score"])


if __name__ == "__main__":
    what, where = sys.argv[1], Path(sys.argv[2]).resolve()
    if what == "make":
        make(where)
    else:
        result = check(where)
        print(json.dumps(result))
        counts = [result[split] for split in ("train", "validation")]
        sys.exit(any(len(set(count.values())) > 1 or not count["rows"] for count in counts))
