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
from pivotrl.exports.base import Material, Row
from pivotrl.exports.gym_rows import AGENT, row_of, terminus_of
from pivotrl.storage import dump_json, write_atomic, write_jsonl
from pivotrl.types import Split

LICENSES: Final = (
    "Apache 2.0", "MIT", "Creative Commons Attribution 4.0 International",
    "Creative Commons Attribution-ShareAlike 4.0 International", "CC BY-SA 4.0", "CC BY-NC 3.0",
    "NVIDIA Internal Use Only, Do Not Distribute", "NVIDIA Evaluation Dataset License Agreement", "TBD",
    "GNU General Public License v3.0",
)  # fmt: skip
"""What Gym takes, word for word."""
_FILES: Final = Path(__file__).with_name("gym_files")
_SINGLE_STEP: Final = "single_step_tool_use_with_argument_comparison"
_TERMINUS: Final = (
    "terminus_judge",
    "      enable_string_similarity: true\n      string_similarity_threshold: 0.9\n      enable_llm_judge: false",
)
"""What NVIDIA trains with: no judge."""


def write_nemo_gym(material: Material, folder: Path) -> list[str]:
    """Rows and configuration for NeMo Gym, an overlay for NeMo RL. Raises ConfigError for a licence unknown to Gym."""
    license = material.config.license
    if license not in LICENSES:
        raise ConfigError(f"license {license!r}: NeMo Gym takes one of {'; '.join(LICENSES)}")
    parallel = any(len(row.tools) > 1 for rows in material.rows.values() for row in rows)
    kinds = set[bool]()
    for split in get_args(Split)[:2]:
        write_jsonl(folder / f"{split}.jsonl", _rows(material, split, kinds, parallel=parallel))
    for path in (one for one in _FILES.rglob("*") if one.is_file() and "__pycache__" not in one.parts):
        write_atomic(folder / path.relative_to(_FILES), path.read_bytes())
    server = folder / "resources_servers" / "pivotrl"
    servers = {"pivotrl": ("pivotrl", f"      verifier: {dump_json(material.spec).decode()}")}
    if len(kinds) == 1:
        servers["nvidia"] = _TERMINUS if kinds == {True} else _comparator(material, parallel=parallel)
    template = (server / "configs" / "pivotrl.yaml").read_text(encoding="utf-8")
    for key, (name, told) in servers.items():
        text = template.format(server=name, settings=told, agent=AGENT, license=license)
        (server / "configs" / f"{key}.yaml").write_text(text, encoding="utf-8")
    mixed = ["no nvidia.yaml: there are actions of Terminus and others"] if len(kinds) > 1 else []
    return [*mixed, f"next: {server.relative_to(folder)}/README.md and nemo_rl.yaml"]


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
