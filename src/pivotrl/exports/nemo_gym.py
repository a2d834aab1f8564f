"""NeMo Gym and NeMo RL: rows, the configuration of agent and server, a server with our verifier, NVIDIA's values.

The values of the overlay are those of NVIDIA's released pivot recipe for SWE (NeMo-RL, grpo_qwen3_30ba3b_thinking_swe1
and the Nemotron 3 Super recipe): 64 prompts of 16 generations, no KL, a leave-one-out baseline, learning rate 1e-6.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, get_args

from pivotrl.errors import ConfigError
from pivotrl.exports.base import Material, Target
from pivotrl.exports.gym_rows import AGENT, Row, row_of, terminus_of
from pivotrl.storage import dump_json, write_atomic, write_jsonl
from pivotrl.types import Split

LICENSES: Final = (
    "Apache 2.0",
    "MIT",
    "Creative Commons Attribution 4.0 International",
    "Creative Commons Attribution-ShareAlike 4.0 International",
    "CC BY-SA 4.0",
    "CC BY-NC 3.0",
    "NVIDIA Internal Use Only, Do Not Distribute",
    "NVIDIA Evaluation Dataset License Agreement",
    "TBD",
    "GNU General Public License v3.0",
)
"""What Gym takes, word for word."""
_GYM: Final = """\
pivotrl_resources_server:
  resources_servers:
    {server}:
      entrypoint: app.py
      domain: agent
      verified: false
      description: Single decisions of expert trajectories that the policy gets right sometimes (PivotRL)
{settings}
{agent}:
  responses_api_agents:
    tool_simulation_agent:
      entrypoint: app.py
      resources_server: {{type: resources_servers, name: pivotrl_resources_server}}
      model_server: {{type: responses_api_models, name: policy_model}}
      datasets:
      - {{name: train, type: train, jsonl_fpath: train.jsonl, num_repeats: 1, license: "{license}"}}
      - {{name: validation, type: validation, jsonl_fpath: validation.jsonl, num_repeats: 1, license: "{license}"}}
"""
_NEMO_RL: Final = """\
# NVIDIA's released values for a pivot stage; lay it over a recipe for your model (`defaults:`), and set the parsers.
defaults: grpo_qwen3_30ba3b_instruct.yaml
grpo:
  num_prompts_per_step: 64
  num_generations_per_prompt: 16
  max_rollout_turns: 1
  use_leave_one_out_baseline: true
  normalize_rewards: true
  use_dynamic_sampling: false
  overlong_filtering: true
  advantage_clip_low: -100
  advantage_clip_high: 100
loss_fn:
  reference_policy_kl_penalty: 0
  ratio_clip_min: 0.2
  ratio_clip_max: 0.28
  token_level_loss: true
  sequence_level_importance_ratios: false
  force_on_policy_ratio: true
  use_importance_sampling_correction: true
  truncated_importance_sampling_ratio: 5.0
policy:
  train_global_batch_size: 1024
  max_total_sequence_length: 32768
  megatron_cfg:
    freeze_moe_router: true
    optimizer: {lr: 1.0e-06, min_lr: 1.0e-06, weight_decay: 0.0}
  generation:
    temperature: 1.0
    top_p: 1.0
    max_new_tokens: ${policy.max_total_sequence_length}
    vllm_cfg:
      async_engine: true
      expose_http_server: true
      http_server_serving_chat_kwargs: {enable_auto_tools: true, tool_parser: hermes}
data:
  shuffle: true
  train: {data_path: train.jsonl}
  validation: {data_path: validation.jsonl}
  default: {dataset_name: NemoGymDataset, env_name: nemo_gym, processor: nemo_gym_data_processor}
env:
  should_use_nemo_gym: true
  nemo_gym:
    config_paths:
    - responses_api_models/vllm_model/configs/vllm_model_for_training.yaml
    - resources_servers/pivotrl/configs/pivotrl.yaml
"""
_APP: Final = '''\
"""Rewards by PivotRL's verifier; `verifier:` in configs/pivotrl.yaml says which."""

from pivotrl.exports.gym_server import gym_server

PivotRLServer = gym_server()

if __name__ == "__main__":
    PivotRLServer.run_webserver()
'''
_SINGLE_STEP: Final = "single_step_tool_use_with_argument_comparison"
_TERMINUS: Final = (
    "terminus_judge",
    "      enable_string_similarity: true\n      string_similarity_threshold: 0.9\n      enable_llm_judge: false",
)
"""What NVIDIA trains with: no judge."""
_README: Final = """\
# Pivots for NeMo Gym

Rewards single decisions by PivotRL's verifier. `configs/pivotrl.yaml` is the one to use; `configs/nvidia.yaml`, where
it is there, sends the same rows to NVIDIA's own server. Copy this folder into `resources_servers/` of Gym, or (0.7)
start Gym in the folder that `pivotrl export` wrote. docs/exports.md of PivotRL has the commands.
"""


class NemoGymExport:
    """Rows and configuration for NeMo Gym, an overlay for NeMo RL."""

    name: Target = "nemo-gym"

    def write(self, material: Material, folder: Path) -> list[str]:
        """Raises ConfigError for a licence that Gym does not know."""
        license = material.config.license
        if license not in LICENSES:
            raise ConfigError(f"license {license!r}: NeMo Gym takes one of {'; '.join(LICENSES)}")
        parallel = any(len(row.tools) > 1 for rows in material.rows.values() for row in rows)
        kinds = set[bool]()
        for split in get_args(Split)[:2]:
            write_jsonl(folder / f"{split}.jsonl", _rows(material, split, kinds, parallel=parallel))
        server = folder / "resources_servers" / "pivotrl"
        asked = {"pivotrl": ("pivotrl", f"      verifier: {dump_json(material.spec).decode()}")}
        if len(kinds) == 1:
            asked["nvidia"] = _TERMINUS if kinds == {True} else _comparator(material, parallel=parallel)
        files = {
            folder / "nemo_rl.yaml": _NEMO_RL,
            server / "app.py": _APP,
            server / "requirements.txt": "-e nemo-gym[dev] @ ../../\npivotrl\n",
            server / "README.md": _README,
        } | {
            server / "configs" / f"{key}.yaml": _GYM.format(server=name, settings=told, agent=AGENT, license=license)
            for key, (name, told) in asked.items()
        }
        for path, text in files.items():
            write_atomic(path, text.encode())
        mixed = "no nvidia.yaml: there are Terminus actions and others, and NVIDIA's servers judge one kind each"
        return [*([mixed] if len(kinds) > 1 else []), f"next: {server.relative_to(folder)}/README.md and nemo_rl.yaml"]


def _rows(material: Material, split: Split, kinds: set[bool], *, parallel: bool) -> Iterator[Row]:
    """The rows of a split; adds to `kinds` whether actions are of Terminus."""
    plan = material.plan and asdict(material.plan)
    facts = {"profile_name": material.profile, "verifier": material.spec}
    for item in material.items(split):
        kinds.add(terminus_of(item.candidate.demonstration) is not None)
        if plan and item.profile and plan["verifier_id"] != item.profile.verifier:
            plan |= {"verifier": material.spec, "verifier_id": item.profile.verifier}
        yield row_of(item, facts | {"plan": plan}, parallel=parallel)


def _comparator(material: Material, *, parallel: bool) -> tuple[str, str]:
    """Name and settings of NVIDIA's server for calls and messages: those of its verifier here, else its own."""
    counted = {"allow_subset": True, "allow_superset": True, "parallel_tool_call_reward_mode": "f1"}
    settings: dict[str, Any] = {"word_count_similarity_threshold": 0.1}
    settings |= {"parallel_tool_call_rewarding": True, **counted} if parallel else {}
    if material.verifier.name == "nemo_gym.single_step":
        settings = dict(material.verifier.settings)
    lines = (f"        {key}: {dump_json(value).decode()}" for key, value in settings.items())
    return _SINGLE_STEP, "\n".join(("      tool_call_comparator_config:", *lines))
