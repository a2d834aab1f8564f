"""Rows for NeMo Gym and back: what is written, that nothing is lost, profiles that come with the data, our server."""

from __future__ import annotations

import importlib.util
import json
import os
import random
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pivotrl.candidates import CandidateStore
from pivotrl.errors import ConfigError, InputError, MissingError
from pivotrl.evaluation import evaluate
from pivotrl.evaluation_settings import EvaluateConfig
from pivotrl.exporting import export
from pivotrl.exports.base import ExportConfig, Item
from pivotrl.exports.gym_rows import AGENT, response_items, row_of
from pivotrl.exports.gym_server import gym_server, verdict_on
from pivotrl.exports.nemo_gym import LICENSES
from pivotrl.ingestion import IngestConfig, ingest
from pivotrl.pivots import SelectConfig, select
from pivotrl.profile_settings import ProfileConfig, load_plan, profiled_groups, summary_path
from pivotrl.profiling import profile
from pivotrl.run_directory import RunDirectory
from pivotrl.storage import read_jsonl
from pivotrl.trajectories import read_path
from pivotrl.trajectories.nemo_gym import NemoGym
from pivotrl.types import Candidate, CandidateRow, Message, Profile, Source, Tool, ToolCall, Trajectory
from pivotrl.verifiers import load_verifier

ROOT = Path(__file__).parents[1]
SHARED = Path(os.environ.get("PIVOTRL_SHARED", ROOT.parent / "shared" / "data")) / "trajectories" / "openai_responses"
FACTS = {"profile_name": None, "verifier": "auto", "plan": None}
WEATHER = {"type": "function", "name": "weather", "parameters": {"type": "object"}}
TERMINUS = {"analysis": "a", "plan": "p", "commands": [{"keystrokes": "ls\n", "duration": 0.1}]}


def write(path: Path, *records: dict) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def load(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def item_at(candidate: Candidate) -> Item:
    row = CandidateRow(
        id=candidate.id,
        trajectory_id="t",
        turn=candidate.turn,
        depth=0,
        kind="call",
        tools=(),
        split="train",
        group="g",
    )
    return Item(candidate, row, 1.0, None)


def shown(candidate: Candidate) -> tuple:
    """State and action; who may be asked of earlier turns is no part of either."""
    messages = [replace(one, excluded=None) for one in candidate.state.messages]
    return messages, candidate.trajectory.tools, candidate.demonstration


def nulls(value, where="row"):
    """Places of nulls."""
    if isinstance(value, dict):
        return [place for key, one in value.items() for place in nulls(one, f"{where}.{key}")]
    if isinstance(value, list):
        return [place for at, one in enumerate(value) for place in nulls(one, f"{where}[{at}]")]
    return [where] if value is None else []


TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
MAYBE = st.none() | TEXT
CALLS = st.builds(
    ToolCall, name=st.text("ab", min_size=1, max_size=2), arguments=MAYBE, id=st.none() | st.text("xy", max_size=1)
)
ASSISTANT = st.builds(
    Message,
    role=st.just("assistant"),
    content=MAYBE
    | st.just('{"analysis":"","plan":"","commands":[]}')
    | st.just("```\n" + json.dumps(TERMINUS) + "\n```"),
    reasoning=MAYBE,
    tool_calls=st.lists(CALLS, max_size=3).map(tuple),
)
OTHERS = st.builds(Message, role=st.sampled_from(["system", "user"]), content=MAYBE, name=MAYBE) | st.builds(
    Message, role=st.just("tool"), content=MAYBE, tool_call_id=MAYBE, name=MAYBE, error=st.none() | st.booleans()
)
SCHEMAS = st.none() | st.just({}) | st.just({"type": "object", "properties": {"a": {"default": None}}})
TOOLS = st.none() | st.lists(
    st.builds(Tool, name=TEXT.filter(bool), description=TEXT, parameters=SCHEMAS), max_size=2
).map(tuple)


@given(st.lists(ASSISTANT | OTHERS, max_size=7), ASSISTANT, TOOLS, MAYBE)
def test_a_row_gives_state_and_action_back_whatever_they_are(history, last, tools, domain) -> None:
    source = Source(file="t.jsonl", format="openai_chat")
    trajectory = Trajectory(id="t", messages=(*history, last), source=source, tools=tools, domain=domain or None)
    candidate = Candidate(trajectory=trajectory, turn=len(history))
    row = json.loads(json.dumps(row_of(item_at(candidate), FACTS, parallel=True)))
    (back,) = NemoGym().read(row, Source(file="row", format="nemo_gym"))
    assert NemoGym().claims(row)
    assert shown(Candidate(trajectory=back, turn=len(back.messages) - 1)) == shown(candidate)
    assert back.id == "t"
    assert {place.partition("default")[0] for place in nulls(row)} <= {
        f"row.responses_create_params.tools[{at}].parameters.properties.a." for at in (0, 1)
    }


@given(st.lists(ASSISTANT | OTHERS, max_size=7))
def test_items_are_those_of_the_responses_api(history) -> None:
    """By the fields that Gym's models require; every result answers a call before it where there is one to answer."""
    required = {
        "message": {"role", "content"},
        "reasoning": {"id", "summary"},
        "function_call": {"name", "arguments", "call_id"},
        "function_call_output": {"call_id", "output"},
    }
    items = response_items(history)
    for item in items:
        assert required[item["type"]] <= item.keys()
        assert all(isinstance(item[key], str) for key in ("arguments", "output", "call_id", "name") if key in item)
    assert [item["output"] for item in items if "output" in item] == [
        m.content or "" for m in history if m.role == "tool"
    ]
    assert sum(item["type"] == "function_call" for item in items) == sum(len(m.tool_calls) for m in history)


def test_results_without_ids_answer_the_calls_in_order() -> None:
    calls = (ToolCall(name="a", arguments="{}"), ToolCall(name="b", arguments="{}"))
    results = [Message(role="tool", content=text) for text in ("one", "two")]
    items = response_items([Message(role="assistant", tool_calls=calls), *results])
    assert [item["call_id"] for item in items] == ["call_0_0", "call_0_1", "call_0_0", "call_0_1"]


@pytest.fixture
def profiled(run: Path) -> Path:
    profile(ProfileConfig(run=run, policy="scripted:desk_plugins:play", rollouts=4))
    select(SelectConfig(run=run, lambda_diff=0.9))
    return run


def test_the_desk_as_rows_and_as_a_run_again(profiled: Path, tmp_path: Path) -> None:
    out = tmp_path / "gym"
    result = export(ExportConfig(run=profiled, to="nemo-gym", output=out, license="Apache 2.0"))
    rows, validation = load(out / "train.jsonl"), load(out / "validation.jsonl")
    assert result.lines()[0] == f"train: {len(rows)} candidates"
    assert len(rows) > 9
    assert nulls([row | {"responses_create_params": 0} for row in rows + validation]) == []
    store = CandidateStore(RunDirectory(profiled))
    before = {row.id: candidate for row, candidate in store.loaded(store.rows())}
    plan = load_plan(RunDirectory(profiled), "base")
    rewards = {
        group.candidate_id: [one for one in group.rewards if one is not None]
        for group in profiled_groups(RunDirectory(profiled), "base", load_verifier("auto"))
    }
    for row in rows:
        assert row["agent_ref"] == {"type": "responses_api_agents", "name": AGENT}
        assert row["responses_create_params"]["tool_choice"] == "auto"
        scored = rewards[row["pivotrl"]["candidate"]]
        assert (row["pass_rate_passed"], row["pass_rate_total"]) == (sum(scored), len(scored))
        assert row["pass_rate"] == pytest.approx(sum(scored) / len(scored))
    assert not any("pass_rate" in row for row in validation)
    again = tmp_path / "again"
    told = ingest(IngestConfig(paths=(str(out / "train.jsonl"),), run=again, validation_fraction=0, test_fraction=0))
    assert told.imported == {"imported": len(rows)}
    store = CandidateStore(RunDirectory(again))
    after = [candidate for _, candidate in store.loaded(store.rows())]
    wanted = [before[row["pivotrl"]["candidate"]] for row in rows]
    assert [shown(one) for one in after] == [shown(one) for one in wanted]
    old = {
        one.candidate_id: one
        for one in read_jsonl(summary_path(RunDirectory(profiled), "base", plan.verifier_id), Profile)
    }
    new = read_jsonl(summary_path(RunDirectory(again), "imported", plan.verifier_id), Profile)
    assert [replace(one, candidate_id="") for one in new] == [replace(old[one.id], candidate_id="") for one in wanted]
    assert load_plan(RunDirectory(again), "imported") == replace(
        plan, candidates=load_plan(RunDirectory(again), "imported").candidates
    )
    chosen = select(SelectConfig(run=again, profile="imported", lambda_diff=0.9))
    assert len(chosen.pivots) == len(rows)
    assert "somebody else's policy (scripted:desk_plugins:play)" in chosen.lines()[0]


def test_configuration_names_the_agent_of_the_rows(profiled: Path, tmp_path: Path) -> None:
    out = tmp_path / "gym"
    export(ExportConfig(run=profiled, to="nemo-gym", output=out))
    folder = out / "resources_servers" / "pivotrl"
    for name, server in (("pivotrl", "pivotrl"), ("nvidia", "single_step_tool_use_with_argument_comparison")):
        told = yaml.safe_load((folder / "configs" / f"{name}.yaml").read_text(encoding="utf-8"))
        agent = told[AGENT]["responses_api_agents"]["tool_simulation_agent"]
        assert list(told[agent["resources_server"]["name"]]["resources_servers"]) == [server]
        assert [one["jsonl_fpath"] for one in agent["datasets"]] == ["train.jsonl", "validation.jsonl"]
        assert {one["license"] for one in agent["datasets"]} == {"TBD"}
    assert (
        yaml.safe_load((folder / "configs" / "pivotrl.yaml").read_text())["pivotrl_resources_server"][
            "resources_servers"
        ]["pivotrl"]["verifier"]
        == "auto"
    )
    overlay = yaml.safe_load((out / "nemo_rl.yaml").read_text(encoding="utf-8"))
    grpo, policy = overlay["grpo"], overlay["policy"]
    assert (
        grpo["num_prompts_per_step"] * grpo["num_generations_per_prompt"] == policy["train_global_batch_size"] == 1024
    )
    assert (policy["megatron_cfg"]["optimizer"]["lr"], overlay["loss_fn"]["reference_policy_kl_penalty"]) == (1e-6, 0)
    assert overlay["env"]["nemo_gym"]["config_paths"][-1] == "resources_servers/pivotrl/configs/pivotrl.yaml"
    compile((folder / "app.py").read_text(encoding="utf-8"), "app.py", "exec")


def test_a_licence_that_gym_does_not_know_is_refused(profiled: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"license 'Apache-2.0': NeMo Gym takes one of Apache 2.0; MIT"):
        export(ExportConfig(run=profiled, to="nemo-gym", output=tmp_path / "gym", license="Apache-2.0"))
    assert not (tmp_path / "gym").exists()
    assert len(set(LICENSES)) == 10


def chat(*turns: dict, tools: list[dict] | None = None, **more: object) -> dict:
    return {"messages": [{"role": "user", "content": f"Go {more}"}, *turns], "tools": tools, **more}


def called(*names: str) -> dict:
    calls = [
        {"id": f"c{at}", "type": "function", "function": {"name": name, "arguments": '{"a": 1}'}}
        for at, name in enumerate(names)
    ]
    return {"role": "assistant", "content": "Well.", "tool_calls": calls}


def exported(tmp_path: Path, *records: dict) -> Path:
    run, out = tmp_path / "run", tmp_path / "gym"
    ingest(
        IngestConfig(
            paths=(str(write(tmp_path / "chat.jsonl", *records)),), run=run, validation_fraction=0, test_fraction=0
        )
    )
    export(ExportConfig(run=run, to="nemo-gym", output=out, everything=True))
    return out


def test_batches_are_counted(tmp_path: Path) -> None:
    tools = [{"name": name, "parameters": {"type": "object"}} for name in ("a", "b")]
    out = exported(
        tmp_path, chat(called("a", "b"), tools=tools, task_id="1"), chat(called("a"), tools=tools, task_id="2")
    )
    batch, single = sorted(load(out / "train.jsonl"), key=lambda row: row["pivotrl"]["task"])
    assert [call["name"] for call in batch["expected_action"]["calls"]] == ["a", "b"]
    assert {call["type"] for call in batch["expected_action"]["calls"]} == {"function_call"}
    assert single["expected_action"]["type"] == "function_call"
    assert all(row["responses_create_params"]["parallel_tool_calls"] is True for row in (batch, single))
    config = yaml.safe_load((out / "resources_servers/pivotrl/configs/nvidia.yaml").read_text(encoding="utf-8"))
    (server,) = config["pivotrl_resources_server"]["resources_servers"].values()
    assert server["tool_call_comparator_config"]["parallel_tool_call_reward_mode"] == "f1"


def test_actions_of_terminus(tmp_path: Path) -> None:
    fenced = f"<think>hm</think>Here:\n```json\n{json.dumps(TERMINUS)}\n```"
    out = exported(tmp_path, chat({"role": "assistant", "content": fenced}))
    (row,) = load(out / "train.jsonl")
    assert json.loads(row["expected_answer"]) == TERMINUS
    assert (row["metadata"], "expected_action" in row) == ({"harness": "terminus_2"}, False)
    assert "tool_choice" not in row["responses_create_params"], "vLLM refuses it where there are no tools"
    config = yaml.safe_load((out / "resources_servers/pivotrl/configs/nvidia.yaml").read_text(encoding="utf-8"))
    assert config["pivotrl_resources_server"]["resources_servers"]["terminus_judge"]["enable_llm_judge"] is False
    (back,) = read_path(out / "train.jsonl")
    assert back.messages[-1].content == fenced


def test_terminus_and_others_have_no_server_of_nvidia_in_common(tmp_path: Path) -> None:
    answer = {"role": "assistant", "content": json.dumps(TERMINUS)}
    out = exported(tmp_path, chat(answer, task_id="1"), chat({"role": "assistant", "content": "Hello."}, task_id="2"))
    assert len(load(out / "train.jsonl")) == 2
    assert sorted(path.name for path in (out / "resources_servers/pivotrl/configs").iterdir()) == ["pivotrl.yaml"]


# what others send


def pivot(city: str = "Paris", **more: object) -> dict:
    params = {"input": [{"role": "user", "content": f"Weather in {city}?"}], "tools": [WEATHER], "metadata": None}
    arguments = json.dumps({"city": city})
    return {
        "responses_create_params": params,
        "expected_action": {"type": "function_call", "name": "weather", "arguments": arguments},
        **more,
    }


def answered(*items: dict, **more: object) -> dict:
    return {"output": list(items), **more}


def said(text: str) -> dict:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


CALL = {"type": "function_call", "name": "weather", "arguments": '{"city": "Paris"}', "call_id": "1"}


def profiles(run: Path, name: str) -> list[tuple[int, float | None, int]]:
    plan = load_plan(RunDirectory(run), name)
    found = read_jsonl(summary_path(RunDirectory(run), name, plan.verifier_id), Profile)
    return [(one.n, one.mean, one.unscored) for one in found]


def taken(tmp_path: Path, *paths: Path) -> tuple[Path, dict[str, int], int]:
    run = tmp_path / "in"
    told = ingest(IngestConfig(paths=tuple(map(str, paths)), run=run, validation_fraction=0, test_fraction=0))
    return run, told.imported, told.repeated


def test_rollouts_of_one_row_are_one_candidate(tmp_path: Path) -> None:
    made = [
        pivot(city, response=answered(CALL), reward=reward, _ng_task_index=index, _ng_rollout_index=at)
        for index, (city, rewards) in enumerate({"Paris": (1.0, 0.0, 0.5), "Rome": (0.0, 0.0)}.items())
        for at, reward in enumerate(rewards)
    ]
    made += [
        pivot("Rome", response=answered(), reward=0.0, _ng_failure_class="judge_failed"),
        pivot("Rome", response=answered(), reward=0.0, mask_sample=True),
        pivot("Rome", response=answered(), reward=2.0),
    ]
    random.Random(0).shuffle(made)
    run, imported, repeated = taken(tmp_path, write(tmp_path / "rollouts.jsonl", *made))
    assert (imported, repeated) == ({"imported.rollouts": 2}, 6)
    assert sorted(profiles(run, "imported.rollouts")) == [(2, 0.0, 3), (3, 0.5, 0)]
    chosen = select(SelectConfig(run=run, profile="imported.rollouts"))
    assert chosen.counts == {"hopeless": 1, "pivot": 1}
    assert "somebody else's policy (unknown)" in "\n".join(chosen.lines())


def test_rollouts_find_their_rows_in_the_materialized_inputs(tmp_path: Path) -> None:
    keys = [{"_ng_task_index": index, "_ng_rollout_index": at} for index in (0, 1) for at in (0, 1)]
    rows = [pivot("Paris" if key["_ng_task_index"] else "Rome", **key) for key in keys]
    results = [
        {"responses_create_params": row["responses_create_params"], "response": answered(CALL), "reward": at % 2, **key}
        for at, (row, key) in enumerate(zip(rows, keys, strict=True))
    ]
    write(tmp_path / "r_materialized_inputs.jsonl", *rows)
    run, imported, repeated = taken(
        tmp_path, write(tmp_path / "r.jsonl", *results[::-1]), tmp_path / "r_materialized_inputs.jsonl"
    )
    assert (imported, repeated) == ({"imported.rollouts": 2}, 6)
    assert profiles(run, "imported.rollouts") == [(2, 0.5, 0)] * 2


def test_measurements_outlive_copies_and_say_when_the_split_leaves_them_out(tmp_path: Path) -> None:
    rows = [pivot(city, trajectory_id=city, pass_rate_passed=1, pass_rate_total=4) for city in ("Paris", "Rome")]
    rows_file = write(tmp_path / "rows.jsonl", *rows)
    store = CandidateStore(RunDirectory(taken(tmp_path, rows_file)[0]))
    chats = [asdict(candidate.trajectory) for _, candidate in store.loaded(store.rows())]
    told = write(tmp_path / "chats.jsonl", *({"messages": one["messages"], "tools": one["tools"]} for one in chats))
    paths = (str(told), str(rows_file))
    for dedupe in (False, True):
        run = tmp_path / f"both{dedupe}"
        both = ingest(IngestConfig(paths=paths, run=run, dedupe=dedupe, validation_fraction=0, test_fraction=0))
        assert (both.copies, both.imported, both.held_out) == (2, {"imported": 2}, 0)
        assert profiles(run, "imported") == [(4, 0.25, 0)] * 2
        assert {row.trajectory_id for row in CandidateStore(RunDirectory(run)).rows()} == {"chats:1", "chats:2"}
    split = ingest(IngestConfig(paths=(str(rows_file),), run=tmp_path / "split", test_fraction=0.5))
    assert (split.imported, split.held_out) == ({"imported": 1}, 1)
    assert "the split was drawn anew: 1 candidate measured elsewhere" in "\n".join(split.lines())


def test_released_profiles_are_used_when_they_are_named(tmp_path: Path) -> None:
    released = {"qwen_235b_info": {"rewards": [1] + [0] * 15, "reward_mean": 0.0625}, "pass_rate": 0.40625}
    path = write(
        tmp_path / "train.jsonl",
        pivot("Paris", trajectory_id=1, pass_rate_passed=13, pass_rate_total=32, **released),
        pivot("Lima", trajectory_id=6, pass_rate_passed=2, pass_rate_total=8),
        pivot("Rome", trajectory_id=2, pass_rate=0.5, pass_rate_total=8),
        pivot("Oslo", trajectory_id=3, pass_rate=0.5, scenario=None),
        pivot("Bonn", trajectory_id=4, pass_rate_passed=9, pass_rate_total=8),
        pivot("Bern", trajectory_id=5, pass_rate=float("nan"), pass_rate_total=8, info={"rewards": 5}),
    )
    run, imported, _ = taken(tmp_path, path)
    assert imported == {"imported": 3, "imported.qwen_235b_info": 1}
    assert profiles(run, "imported") == [(32, 0.40625, 0), (8, 0.25, 0), (8, 0.5, 0)]
    assert profiles(run, "imported.qwen_235b_info") == [(16, 0.0625, 0)]
    assert set(asdict(load_plan(RunDirectory(run), "imported").fingerprint).values()) == {"unknown"}
    with pytest.raises(Exception, match="profile"):
        select(SelectConfig(run=run))
    with pytest.raises(MissingError, match="name them with --policies"):
        evaluate(EvaluateConfig(run=run, profile="imported", verifier="auto"))
    assert len(select(SelectConfig(run=run, profile="imported", lambda_diff=0.45)).pivots) == 2


def test_nulls_that_a_table_padded_a_row_with_are_none(tmp_path: Path) -> None:
    padded = pivot(pivotrl={"restore": None, "measured": None, "trajectory": None, "task": None}, reward=None)
    (back,) = read_path(write(tmp_path / "rows.jsonl", padded))
    assert (back.id, back.task_id, len(back.messages)) == ("rows:1", None, 2)
    assert taken(tmp_path, tmp_path / "rows.jsonl")[1] == {}


def test_a_refused_row_leaves_no_profile_to_the_next_record(tmp_path: Path) -> None:
    refused = pivot(pass_rate_passed=1, pass_rate_total=8) | {"expected_action": {"type": "nonsense"}}
    _, imported, repeated = taken(tmp_path, write(tmp_path / "in.jsonl", refused, chat(called("weather"))))
    assert (imported, repeated) == ({}, 0)


def test_rewards_under_a_key_that_cannot_name_a_profile_are_left_out(tmp_path: Path) -> None:
    keys = ("größe", "गति", "長" * 40, "a b", "1st")
    row = pivot(**{key: {"rewards": [1.0, 0.0]} for key in keys})
    assert taken(tmp_path, write(tmp_path / "in.jsonl", row))[1] == {"imported.größe": 1}


def test_a_profile_that_is_broken_is_one_line(tmp_path: Path) -> None:
    for wrong in ("{", "[]", '{"profile": 5}', '{"profile": {"n": "many"}}', "{}", f'{{"profile": {{"n": {10**30}}}}}'):
        path = write(tmp_path / "rows.jsonl", pivot(pivotrl={"measured": wrong}))
        with pytest.raises(InputError, match="measured"):
            taken(tmp_path, path)


def test_a_row_with_a_broken_profile_is_refused_and_the_others_are_read(profiled: Path, tmp_path: Path) -> None:
    export(ExportConfig(run=profiled, to="nemo-gym", output=tmp_path / "gym"))
    (path,) = (tmp_path / "gym").rglob("train.jsonl")
    rows = load(path)
    told = json.loads(rows[0]["pivotrl"]["measured"])
    broken = {
        "{": "measured: ",
        json.dumps(told | {"profile": told["profile"] | {"n": "many"}}): "measured.profile: n: ",
        json.dumps(told | {"plan": told["plan"] | {"rollouts": "many"}}): "measured.plan: rollouts: ",
        json.dumps(told | {"plan": told["plan"] | {"verifier_id": "../up"}}): "measured.plan: verifier_id: ",
    }
    wrong = [pivot(f"City{at}", pivotrl={"measured": text}) for at, text in enumerate([*broken, 5])]
    mixed = write(tmp_path / "mixed.jsonl", rows[0], *wrong, *rows[1:])
    for workers in (1, 2):
        run = tmp_path / f"run{workers}"
        settings = {"validation_fraction": 0, "test_fraction": 0, "workers": workers}
        result = ingest(IngestConfig(paths=(str(mixed),), run=run, **settings))
        assert (result.trajectories, result.refused_records) == (len(rows), {"bad_record": 5})
        assert result.imported == {"imported": len(rows)}
        refused = load(run / "refused.jsonl")
        for number, (line, field) in enumerate(zip(refused, [*broken.values(), "measured: "], strict=True), start=2):
            assert line["text"].startswith(f"mixed.jsonl:{number}: pivotrl.{field}"), line


def test_any_number_of_differently_profiled_exports_is_read_together(profiled: Path, tmp_path: Path) -> None:
    export(ExportConfig(run=profiled, to="nemo-gym", output=tmp_path / "gym"))
    (path,) = (tmp_path / "gym").rglob("train.jsonl")
    told = json.loads(load(path)[0]["pivotrl"]["measured"])
    plans = [told | {"plan": told["plan"] | {"seed": seed}} for seed in range(20)]
    rows = [pivot(f"City{at}", pivotrl={"measured": json.dumps(one)}) for at, one in enumerate(plans)]
    run, imported, _ = taken(tmp_path, write(tmp_path / "rows.jsonl", *rows))
    assert sorted(imported.values()) == [1] * 20
    assert {load_plan(RunDirectory(run), name).seed for name in imported} == set(range(20))
    assert len(select(SelectConfig(run=run, profile=list(imported)[-1], lambda_diff=1.0)).counts) == 1


def test_a_restore_that_is_broken_is_one_line(tmp_path: Path) -> None:
    for wrong in (
        "{",
        "[]",
        '{"lost": []}',
        '{"lost": {"0": 5}}',
        '{"lost": {}, "tools": 5}',
        '{"lost": {"0": {"role": "king"}}}',
        '{"whole": true, "lost": {"4": {}}}',
        f'{{"whole": false, "lost": {{"0": {{"content": {10**30}}}}}}}',
    ):
        path = write(tmp_path / "rows.jsonl", pivot(pivotrl={"restore": wrong}))
        with pytest.raises(InputError, match=r"rows.jsonl:1: pivotrl.restore"):
            list(read_path(path))


def test_a_whole_agent_is_a_trajectory_of_several_turns(tmp_path: Path) -> None:
    params = {"input": "Weather in Paris?", "instructions": "Be kind.", "tools": [WEATHER]}
    output = [
        {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "hm"}]},
        CALL,
        {**CALL, "call_id": "2"},
        {"type": "function_call_output", "call_id": "1", "output": "sun"},
        {"type": "function_call_output", "call_id": "2", "output": "rain"},
        said("Sun."),
    ]
    whole = {"responses_create_params": params, "response": answered(*output), "reward": 1.0, "_ng_task_index": 3}
    cut = {**whole, "response": answered(*output, incomplete_details={"reason": "max_output_tokens"}), "reward": 0.25}
    one, other = read_path(write(tmp_path / "agent.jsonl", whole, cut))
    assert [(m.role, len(m.tool_calls), m.excluded) for m in one.messages] == [
        ("system", 0, None), ("user", 0, None), ("assistant", 2, None), ("tool", 0, None), ("tool", 0, None),
        ("assistant", 0, None),
    ]  # fmt: skip
    assert (one.messages[2].reasoning, one.outcome, one.task_id) == ("hm", 1.0, "agent:3")
    assert (other.messages[-1].excluded, other.outcome) == ("truncated", 0.25)


@pytest.mark.parametrize("name", ["mini_swe_agent_2", "workplace_assistant", "google_search"])
def test_real_agents_have_as_many_turns_as_runs_of_their_items(name: str) -> None:
    path = SHARED / f"{name}.rollouts.jsonl"
    if not path.exists():
        pytest.skip("the shared data is not beside this checkout")
    for trajectory, row in zip(read_path(path), load(path), strict=True):
        kinds = ["tool" if item["type"] == "function_call_output" else "model" for item in row["response"]["output"]]
        runs = sum(kind == "model" != before for kind, before in zip(kinds, ["", *kinds], strict=False))
        played = [m for m in trajectory.messages if m.role == "assistant" and m.excluded != "prefix_of_pivot_row"]
        assert (len(played), trajectory.outcome) == (runs, row["reward"])
        calls = sum(item["type"] == "function_call" for item in row["response"]["output"])
        assert sum(len(m.tool_calls) for m in played) == calls


# our server


@pytest.mark.parametrize(
    ("response", "value", "reason"),
    [
        (answered(CALL), 1.0, "match"),
        (answered(said("Sure."), CALL), 1.0, "match"),
        (answered({**CALL, "arguments": '{"city": "Rome"}'}), 0.0, "wrong_arguments"),
        (answered(said("Sun.")), 0.0, "wrong_kind"),
        (answered(), 0.0, "unparsable"),
        (answered(CALL, incomplete_details={"reason": "max_output_tokens"}), 0.0, "truncated"),
    ],
)
def test_a_response_is_judged_at_its_row(response: dict, value: float, reason: str) -> None:
    verdict = verdict_on(load_verifier("tool_call"), pivot(), response)
    assert (verdict.value, verdict.reason) == (value, reason)


def test_without_nemo_gym_there_is_no_server() -> None:
    if importlib.util.find_spec("nemo_gym"):
        pytest.skip("NeMo Gym is installed here; recipes/nemo_gym.sh tests the server in it")
    with pytest.raises(ConfigError, match="NeMo Gym cannot be imported"):
        gym_server("auto")


def test_the_server_in_nemo_gym() -> None:
    pytest.importorskip("nemo_gym", reason="NeMo Gym has an environment of its own; see recipes/nemo_gym.sh")
    assert gym_server(load_verifier("exact")).__name__ == "PivotRLServer"
