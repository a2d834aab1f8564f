"""The commands of a report make the configs that the stages ran with."""

from __future__ import annotations

import shlex
from pathlib import Path

import orjson
import pytest

from pivotrl.auditing import AuditConfig
from pivotrl.cli import _parse
from pivotrl.evaluation_settings import EvaluateConfig
from pivotrl.exports.base import ExportConfig
from pivotrl.grpo import LossSettings
from pivotrl.ingestion import IngestConfig
from pivotrl.learners import LoraSettings, OptimizerSettings
from pivotrl.pivots import SelectConfig
from pivotrl.planning import Scope
from pivotrl.profile_settings import ProfileConfig, RescoreConfig
from pivotrl.repeating import CONFIGS, commands
from pivotrl.storage import dump_json
from pivotrl.training_settings import TrainConfig
from pivotrl.types import SamplingParams

RUN = Path("runs/a b")
USED = [
    IngestConfig(paths=("x y.jsonl", "z*"), run=RUN, keep_failed=True, seed=3),
    ProfileConfig(run=RUN, policy="org/model", rollouts=4, sampling=SamplingParams(max_new_tokens=9), workers=2),
    ProfileConfig(run=RUN, policy="p", name="second", again="base", everything=True, scope=Scope(only=Path("ids.txt"))),
    RescoreConfig(run=RUN, verifier="exact"),
    SelectConfig(run=RUN, weighted=True, quota=("message=30%", "task=5"), min_std=0.1),
    TrainConfig(run=RUN, cap_per_trajectory=None, loss=LossSettings(beta=0.0), lora=LoraSettings(rank=8)),
    TrainConfig(run=RUN, name="ckpt", optimizer=OptimizerSettings(lr=2e-4, checkpointing=True)),
    EvaluateConfig(run=RUN, policies=("base=p", "train/pivotrl"), env=("desk", "skills"), tasks=(5, 6)),
    AuditConfig(run=RUN, verifier="cascade(schema, auto)", labels=Path("l.jsonl"), others=2),
    ExportConfig(run=RUN, to="nemo-gym", output=Path("o p"), license="Apache 2.0", overwrite=True),
]


def kind(config: object) -> str:
    return next(name for name, cls in CONFIGS.items() if cls is type(config))


@pytest.mark.parametrize("config", USED, ids=lambda config: kind(config))
def test_a_command_is_its_config(config) -> None:
    facts = {"config": orjson.loads(dump_json(config))}
    (command,) = commands({f"{kind(config)}/x": facts}, str(RUN))
    words = shlex.split(command)
    assert words[0] == "pivotrl"
    assert _parse(words[1:]) == config
    plain = commands({f"{kind(config)}/x": {"config": {}}, f"{kind(config)}/old": {"inputs": {}}}, str(RUN))
    assert plain == [f"pivotrl {kind(config)} --run 'runs/a b'"]


def test_they_come_in_the_order_in_which_they_were_given() -> None:
    facts = {kind(one): {"config": orjson.loads(dump_json(one))} for one in USED}
    keys = ["evaluate/t", "ingest/ingest", "profile/a", "profile/base", "select/a", "select/base", "train/x", "train/y"]
    stages = {key: facts[key.partition("/")[0]] for key in keys} | {"demo/x": {}}
    names = [
        "ingest/ingest",
        "profile/base",
        "select/base",
        "train/y",
        "profile/a",
        "select/a",
        "train/x",
        "evaluate/t/p",
    ]
    done = [(name.partition("/")[0], name.partition("/")[2]) for name in names]
    said = [shlex.split(line)[1] for line in commands(stages, "r", done)]
    assert said == [name.partition("/")[0] for name in names]
    assert [shlex.split(line)[1] for line in commands(stages, "r")] == sorted(said, key=[*CONFIGS].index)
    came_with_the_data = {"profile/theirs": {"config": {}, "imported": "org/model"}}
    assert commands(stages | came_with_the_data, "r", done) == commands(stages, "r", done)


def test_what_other_commands_call_it_is_taken_too() -> None:
    given = ["evaluate", "--run", "r", "--policy", "a", "b=c", "--tasks", "3"]
    assert _parse(given) == _parse([word.replace("--policy", "--policies") for word in given])
    assert _parse(["view", "--run", "r"]) == _parse(["view", "--run=r"]) == _parse(["view", "r"])
