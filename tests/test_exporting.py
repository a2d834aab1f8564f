"""Exports: chat comes back as it was; TRL and verl get our tokens and our reward, and need the export alone."""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kill_harness import make_trainable
from pivotrl.candidates import CandidateStore
from pivotrl.cli import main
from pivotrl.errors import ConfigError, InputError, MissingError
from pivotrl.exporting import FACTS, export
from pivotrl.exports.base import ExportConfig
from pivotrl.exports.chat import chat_row
from pivotrl.exports.trainers import Rewards
from pivotrl.ingestion import IngestConfig, ingest
from pivotrl.models import ModelSettings, load_model
from pivotrl.run_directory import RunDirectory
from pivotrl.storage import read_jsonl
from pivotrl.trajectories import read_path
from pivotrl.types import Candidate, Message, Pivot, Source, Tool, ToolCall, Trajectory
from toy_model import make_tokenizer

SHARED = Path(os.environ.get("PIVOTRL_SHARED", Path(__file__).parents[2] / "shared" / "data")) / "trajectories"
SOURCE = Source(file="x", format="x")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A run with a profile by `parity`, pivots, and an untrained model."""
    folder = tmp_path_factory.mktemp("exports")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return make_trainable(folder)


@pytest.fixture
def run(folder, monkeypatch) -> RunDirectory:
    monkeypatch.chdir(folder)
    return RunDirectory(Path("run"))


def rows(path: Path) -> list[dict]:
    return [orjson.loads(line) for line in path.read_bytes().splitlines()]


def pivots(run: RunDirectory) -> list[Candidate]:
    store, found = CandidateStore(run), []
    by_id = {row.id: row for row in store.rows()}
    for pivot in read_jsonl(run.pivots("base"), Pivot):
        row = by_id[pivot.candidate_id]
        found.append(Candidate(trajectory=store.trajectory(row.trajectory_id), turn=row.turn))
    return found


# Chat

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
arguments = st.one_of(
    st.none(),
    st.sampled_from(["", "null", "{}", "{ }", "[]", "{", '{"a": 1e400}', '{"a":1,"a":2}', "7"]),
    texts,
    st.dictionaries(st.text(), json_values, max_size=3).map(json.dumps),
    st.dictionaries(st.text(), json_values, max_size=3).map(lambda value: json.dumps(value, separators=(",", ":"))),
)
calls = st.builds(ToolCall, name=names, arguments=arguments, id=st.none() | names)
omitted = st.lists(st.sampled_from(["image_url", "tool_use", "input_audio"]), max_size=2).map(tuple)
plain = st.builds(
    Message,
    role=st.sampled_from(["system", "user"]),
    content=st.none() | texts,
    name=st.none() | names,
    omitted=omitted,
)
results = st.builds(
    Message,
    role=st.just("tool"),
    content=st.none() | texts,
    tool_call_id=st.none() | names,
    name=st.none() | names,
    error=st.none() | st.booleans(),
    omitted=omitted,
)
answers = st.builds(
    Message,
    role=st.just("assistant"),
    content=st.none() | texts,
    reasoning=st.none() | names,
    tool_calls=st.lists(calls, max_size=3).map(tuple),
    excluded=st.none() | st.sampled_from(["loss_false", "scripted_greeting", "truncated"]),
    omitted=omitted,
)
schemas = st.none() | st.just({}) | st.just({"type": "object", "properties": {"x": {"default": None}}})
tools = st.builds(Tool, name=names, description=texts, parameters=schemas)
trajectories = st.builds(
    Trajectory,
    id=names,
    messages=st.lists(plain | results | answers, max_size=5).map(tuple),
    source=st.just(SOURCE),
    tools=st.none() | st.lists(tools, max_size=2).map(tuple),
    task_id=st.none() | names,
    outcome=st.none() | st.floats(0, 1),
    parent_id=st.none() | names,
    domain=st.none() | texts,
)


def back(path: Path, *some: Trajectory) -> list[Trajectory]:
    """Written as chat and read by the reader that ingest takes; where they came from aside."""
    path.write_bytes(b"".join(json.dumps(chat_row(one)).encode() + b"\n" for one in some))
    return [replace(one, source=SOURCE) for one in read_path(path)]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(some=st.lists(trajectories, min_size=1, max_size=3))
def test_chat_is_read_back_as_it_was(tmp_path, some):
    assert back(tmp_path / "chat.jsonl", *some) == some


def test_arguments_are_objects_where_they_are_objects():
    """As chat templates and TRL want them; the text stands beside where the object would not give it back."""
    call = [ToolCall(name="f", arguments=text) for text in ('{"a": 1}', '{"a":1}', "{", None)]
    message = Message(role="assistant", tool_calls=tuple(call))
    row = chat_row(Trajectory(id="t", messages=(message,), source=SOURCE))
    functions = [{**one["function"]} for one in row["messages"][0]["tool_calls"]]
    assert functions == [
        {"name": "f", "arguments": {"a": 1}},
        {"name": "f", "arguments": {"a": 1}, "arguments_text": '{"a":1}'},
        {"name": "f", "arguments": "{"},
        {"name": "f", "arguments": {}, "arguments_text": None},
    ]


def test_real_trajectories_of_every_format_come_back(tmp_path):
    if not SHARED.exists():
        pytest.skip("the real trajectories are not at hand")
    formats = set()
    for path in sorted(path for path in SHARED.rglob("*") if path.is_file()):
        try:
            some = [one for one, _ in zip(read_path(path), range(20), strict=False)]
        except InputError:
            continue
        formats |= {one.source.format for one in some}
        some = [replace(one, source=SOURCE) for one in some]
        assert back(tmp_path / "chat.jsonl", *some) == some, path
    assert {"openai_chat", "tau_bench", "nemo_gym"} <= formats


def test_a_run_goes_to_chat_and_back(run, tmp_path):
    """The same trajectories under the same ids, and the same turns are candidates."""
    done = export(ExportConfig(run=run.path, to="chat", output=tmp_path / "out", everything=True))
    files = [str(path) for path in sorted((tmp_path / "out").glob("*.jsonl"))]
    ingest(IngestConfig(paths=tuple(files), run=tmp_path / "again"))
    before, after = CandidateStore(run), CandidateStore(RunDirectory(tmp_path / "again"))
    assert before.index.keys() == after.index.keys()
    for id_ in before.index:
        one, other = before.trajectory(id_), after.trajectory(id_)
        assert replace(one, source=SOURCE) == replace(other, source=SOURCE)
    assert {row.id for row in before.rows()} == {row.id for row in after.rows()}
    assert any("conversations" in line for line in done.lines())


def test_chat_of_a_selection_holds_its_trajectories(run, tmp_path):
    export(ExportConfig(run=run.path, to="chat", output=tmp_path / "out"))
    names = {path.stem: {row["pivotrl"]["id"] for row in rows(path)} for path in (tmp_path / "out").glob("*.jsonl")}
    assert names["train"] == {one.trajectory.id for one in pivots(run)}
    assert names["validation"] == {row.trajectory_id for row in CandidateStore(run).rows("validation")}


# TRL and verl


@pytest.fixture(scope="module")
def trl_export(folder, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("trl") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        export(ExportConfig(run=Path("run"), to="trl", output=out))
    return out


def test_trl_prompts_have_our_ids(run, trl_export):
    chat = load_model("model", ModelSettings()).chat
    ours = {one.id: chat.prompt_ids(one.state) for one in pivots(run)}
    written = {row["candidate_id"]: row for row in rows(trl_export / "train.jsonl")}
    tokenizer = Rewards(trl_export).chat.tokenizer
    assert {key: tuple(tokenizer(row["prompt"])["input_ids"]) for key, row in written.items()} == ours
    assert all(row["weight"] == 1 and 0 < row["mean"] < 1 and row["rollouts"] > 1 for row in written.values())


def test_rewards_are_those_of_the_profile_and_need_the_export_alone(run, trl_export, tmp_path, monkeypatch):
    alone = tmp_path / "alone"
    shutil.copytree(trl_export, alone)
    (part,) = (run.profile("base") / "rollouts").glob("part-*.jsonl")
    (judged,) = (run.profile("base") / "verdicts").glob("*/part-*.jsonl")
    pairs = list(zip(rows(part), rows(judged), strict=True))
    monkeypatch.chdir(tmp_path)
    rewards = Rewards(alone)
    kept = [(r, v) for r, v in pairs if r["candidate_id"] in rewards.candidates]
    got = rewards.reward(
        candidate_id=[rollout["candidate_id"] for rollout, _ in kept],
        completion_ids=[rollout["completion"]["token_ids"] for rollout, _ in kept],
    )
    assert got == [verdict["verdict"]["value"] for _, verdict in kept]
    assert {0.0, 1.0} <= set(got)


def test_verl_parquet_and_reward(run, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed: pip install 'pivotrl[parquet]'")
    export(ExportConfig(run=run.path, to="verl", output=tmp_path / "out"))
    table = parquet.read_table(tmp_path / "out/train.parquet").to_pylist()
    chat = load_model("model", ModelSettings()).chat
    by_id = {one.id: one for one in pivots(run)}
    assert {row["extra_info"]["candidate_id"] for row in table} == by_id.keys()
    score = runpy.run_path(str(tmp_path / "out/reward.py"))["compute_score"]
    for row in table:
        candidate = by_id[row["extra_info"]["candidate_id"]]
        assert list(row) == ["data_source", "prompt", "ability", "reward_model", "extra_info"]
        assert row["prompt"] == [{"role": "user", "content": chat.prompt_text(candidate.state)}]
        shown = json.loads(row["reward_model"]["ground_truth"])
        assert shown["text"] == candidate.demonstration.text
        said = {text: score("pivotrl", text, shown, row["extra_info"]) for text in ("even", "odd", "")}
        assert [one["score"] for one in said.values()] == [1, 0, 0]
        assert said[""]["reason"] == "unparsable"


def test_a_tokenizer_that_adds_a_first_token_when_called_gives_the_same_ids(run, tmp_path):
    from tokenizers.processors import TemplateProcessing

    tokenizer = other_tokenizer(tmp_path / "other")
    first = tokenizer.convert_tokens_to_ids("<|im_start|>")
    tokenizer.bos_token = "<|im_start|>"
    tokenizer._tokenizer.post_processor = TemplateProcessing(
        single="<|im_start|> $A", pair="$A $B", special_tokens=[("<|im_start|>", first)]
    )
    tokenizer.save_pretrained(tmp_path / "other")
    export(ExportConfig(run=run.path, to="trl", output=tmp_path / "out", policy=str(tmp_path / "other")))
    rewards = Rewards(tmp_path / "out")
    for row in rows(tmp_path / "out/train.jsonl"):
        assert not row["prompt"].startswith("<|im_start|>")
        ids = rewards.chat.tokenizer(row["prompt"])["input_ids"]
        assert tuple(ids) == rewards.chat.prompt_ids(rewards.candidates[row["candidate_id"]].state)


def test_verl_gets_no_action_that_is_written_with_special_tokens(run, tmp_path):
    """Its reward functions see text without them, in which a call could not be told."""
    pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'pivotrl[parquet]'")
    tokenizer = other_tokenizer(tmp_path / "other")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<tool_call>", "</tool_call>"]})
    tokenizer.save_pretrained(tmp_path / "other")
    config = ExportConfig(run=run.path, to="verl", output=tmp_path / "out", policy=str(tmp_path / "other"))
    notes = export(replace(config, everything=True)).lines()
    calls = [row for row in CandidateStore(run).rows() if row.kind == "call" and row.split != "test"]
    assert any(line.startswith(f"{len(calls)} prompts left out: actions are written with special") for line in notes)


def other_tokenizer(folder: Path):
    """A copy of the model, whose tokenizer may be changed."""
    shutil.copytree("model", folder)
    return make_tokenizer()


def test_trl_trains_on_the_export(folder, trl_export, tmp_path, monkeypatch):
    """`train.py` as it was written: 20 steps from an untrained model; the reward rises, TRL's prompt ids are ours."""
    pytest.importorskip("trl", reason="TRL is not installed: `make dev` installs it")
    words = ["--model", str(folder / "model"), "--output_dir", str(tmp_path / "out"), "--max_steps", "20"]
    words += ["--per_device_train_batch_size", "32", "--learning_rate", "0.01", "--use_cpu", "True"]
    words += ["--disable_tqdm", "True", "--save_strategy", "no", "--beta", "0"]
    monkeypatch.setattr(sys, "argv", ["train.py", *words])
    monkeypatch.syspath_prepend(str(trl_export))
    trainer = runpy.run_path(str(trl_export / "train.py"))["trainer"]
    sys.modules.pop("reward", None)
    curve = [log["reward"] for log in trainer.state.log_history if "reward" in log]
    assert len(curve) == 20
    assert sum(curve[-4:]) / 4 > sum(curve[:4]) / 4 + 0.2
    chat = load_model(str(folder / "model"), ModelSettings()).chat
    by_id = Rewards(trl_export).candidates
    for row in trainer.train_dataset:
        ids, *_ = trainer._tokenize_prompts([row["prompt"]])
        assert tuple(ids[0]) == chat.prompt_ids(by_id[row["candidate_id"]].state)


# The command


def test_the_command_records_its_stage_and_never_replaces_what_is_no_export(run, tmp_path, capsys):
    out = tmp_path / "out"
    command = ["export", "--run", "run", "--to", "trl", "--output", str(out)]
    out.mkdir()
    (out / "mine.txt").write_text("mine")
    assert main([*command, "--overwrite"]) == 2
    assert (out / "mine.txt").read_text() == "mine"
    (out / "mine.txt").unlink()
    assert main(command) == 0
    said = run.manifest.read_bytes()
    assert main(command) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert main([*command, "--overwrite"]) == 0
    assert run.manifest.read_bytes() == said, "what was there before makes no other export"
    assert run.stages()["export/trl"]["verifier"] == json.loads((out / FACTS).read_bytes())["verifier"]
    assert not list(tmp_path.glob(".*"))


def test_two_runs_export_to_one_directory_one_after_the_other(run, tmp_path):
    """Both at once, as processes, again and again: each folder that appears is whole, of one of them."""
    twin = Path(shutil.copytree(run.path, tmp_path / "twin"))
    code = (
        "import sys\nfrom pivotrl.cli import main\nprint('ready', flush=True)\nsys.stdin.readline()\n"
        "sys.exit(max(main([*sys.argv[1:], f'out{n}']) for n in range(6)))"
    )
    commands = [["--run", str(run.path.resolve()), "--to", "chat"], ["--run", str(twin), "--to", "nemo-gym"]]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, "export", *command, "--everything", "--verifier", "exact", "--output"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
        )
        for command in commands
    ]  # fmt: skip
    assert [one.stdout.readline() for one in processes] == ["ready\n"] * 2
    for one in processes:
        one.stdin.write("go\n")
        one.stdin.flush()
    said = [line for one in processes for line in one.communicate(timeout=300)[1].splitlines()]
    refused = re.compile(r"error: output out\d: (another export writes it; wait|is there already; give another)")
    assert len(said) == 6
    assert all(refused.match(line) for line in said), said
    kinds = [{path.name for path in (tmp_path / f"out{number}").iterdir()} for number in range(6)]
    for to, made in zip(("chat", "nemo-gym"), commands, strict=True):
        main(["export", *made, "--everything", "--verifier", "exact", "--output", str(tmp_path / to)])
    whole = [{path.name for path in (tmp_path / to).iterdir()} for to in ("chat", "nemo-gym")]
    assert all(kind in whole for kind in kinds)
    assert not list(tmp_path.glob(".*"))


def test_mistakes_are_one_line(run, tmp_path):
    base = ExportConfig(run=run.path, to="trl", output=tmp_path / "out")
    with pytest.raises(MissingError, match="pivotrl select"):
        export(replace(base, pivots="none"))
    with pytest.raises(ConfigError, match="--policy"):
        export(replace(base, everything=True))
    with pytest.raises(MissingError, match="no such directory"):
        export(replace(base, policy="./nowhere"))
    with pytest.raises(ConfigError, match="name a directory"):
        export(replace(base, output=Path()))
    export(replace(base, everything=True, policy="model", verifier="exact"))
    facts = json.loads((tmp_path / "out/reward.json").read_bytes())
    (tmp_path / "out/reward.json").write_text(json.dumps(facts | {"verifier_id": "0" * 16}))
    with pytest.raises(ConfigError, match="export again"):
        Rewards(tmp_path / "out")
