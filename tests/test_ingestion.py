"""Ingestion: counts that a plain count confirms, files that do not depend on anything but the input, helpful errors."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from zipfile import ZipFile

import pytest

import tiny
from pivotrl.candidates import CandidateStore
from pivotrl.chat import ChatFormat, read_template
from pivotrl.errors import ConfigError, InputError, MissingError, StorageError
from pivotrl.ingest_result import IngestResult
from pivotrl.ingestion import IngestConfig, ingest
from pivotrl.ledger import Ledger
from pivotrl.run_directory import RunDirectory
from toy_model import make_tokenizer

SHARED = Path(os.environ.get("PIVOTRL_SHARED", Path(__file__).parents[2] / "shared" / "data")) / "trajectories"


def chat(task: int, answer: str = "Done.", **fields: object) -> dict:
    messages = [
        {"role": "user", "content": f"Task {task}"},
        {"role": "assistant", "tool_calls": [{"name": "look", "arguments": {"at": task}}]},
        {"role": "tool", "content": "seen"},
        {"role": "assistant", "content": answer},
    ]
    return {"messages": messages, **fields}


def write(path: Path, *rows: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def run_ingest(tmp_path: Path, *paths: object, name: str = "run", **fields: object) -> IngestResult:
    fields = {"overwrite": True} | fields
    return ingest(IngestConfig(paths=tuple(str(path) for path in paths), run=tmp_path / name, **fields))


def shared(*parts: str) -> Path:
    path = SHARED.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"{path} is not there; set PIVOTRL_SHARED to the folder that holds trajectories/")
    return path


def test_result_and_files(tmp_path: Path) -> None:
    data = write(tmp_path / "data.jsonl", *(chat(i, task_id=i, reward=int(i != 2)) for i in range(10)))
    result = run_ingest(tmp_path, data, validation_fraction=0.2, test_fraction=0.2)
    assert result.candidates == {"train": 10, "validation": 4, "test": 4}
    assert (result.trajectories, result.assistant_turns, result.groups) == (10, 20, 9)
    assert result.skips == {"outcome_below_full": 2}
    run = RunDirectory(tmp_path / "run")
    split = json.loads(run.split.read_text())
    assert {row.group: row.split for row in CandidateStore(run).rows()} == split["groups"]
    audit = [json.loads(line) for line in run.audit.read_text().splitlines()]
    assert [(skip["trajectory_id"], skip["turn"]) for skip in audit] == [("data:3", 1), ("data:3", 3)]
    facts = run.stages()["ingest/ingest"]
    assert facts["counts"]["assistant_turns"] == 20
    assert [(item["file"], len(item["hash"])) for item in facts["inputs"]] == [("data.jsonl", 16)]
    assert (facts["seed"], facts["config"]["test_fraction"], facts["tools"], facts["tokenizer"]) == (0, 0.2, None, None)
    assert [(line.stage, line.name, line.usage.rollouts) for line in Ledger(run.ledger).lines()] == [
        ("ingest", "ingest", 0)
    ]
    assert result.lines()[:4] == [
        "10 trajectories from 1 file, 20 assistant turns",
        "18 candidates in 9 groups: train 10, validation 4, test 4",
        "2 turns skipped:",
        "  outcome_below_full: 2",
    ]


def test_what_is_not_understood_of_outcome_and_task_is_counted(tmp_path: Path) -> None:
    odd = [{"reward": 100}, {"reward": "fail"}, {"score": 0}, {"rewards": [0.0]}, {"task_id": {"x": 1}, "reward": True}]
    data = write(tmp_path / "a.jsonl", *(chat(at, **more) for at, more in enumerate([*odd, {"reward": "0.5"}])))
    result = run_ingest(tmp_path, data)
    assert result.unclear == {"reward": 2, "score": 1, "rewards": 1, "task_id": 1}
    assert result.outcomes == {"full": 1, "below full": 1, "unknown": 4}
    assert "reward in 2 rows is no `reward` of 0 to 1: outcome unknown (docs/your_data.md)" in result.lines()
    assert "task_id in 1 row is no text or whole number: task unknown (docs/your_data.md)" in result.lines()


def test_that_all_failed_is_said_with_the_option_that_keeps_them(tmp_path: Path) -> None:
    data = write(tmp_path / "a.jsonl", *(chat(at, reward=0) for at in range(2)))
    said = "all 2 episodes failed (reward below 1); --keep-failed keeps them"
    assert said in run_ingest(tmp_path, data).lines()
    assert said not in run_ingest(tmp_path, data, keep_failed=True).lines()
    assert said not in run_ingest(tmp_path, data, write(tmp_path / "b.jsonl", chat(1, reward=1))).lines()


def test_what_is_no_data_in_a_folder_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An export of ours may be read back; of one that has `trajectories.jsonl`, that is all there is to read."""
    for name, rows in {
        "chat/train.jsonl": 2,
        "trl/train.jsonl": 3,
        "trl/trajectories.jsonl": 4,
        "mine/a.jsonl": 5,
    }.items():
        write(tmp_path / "in" / name, *(chat(at, name) for at in range(rows)))
    for name in ("chat/export.json", "trl/export.json"):
        write(tmp_path / "in" / name, {"verifier": "auto", "verifier_id": "a", "inputs": {}})
    for name in ("trl/reward.py", "trl/tokenizer/tokenizer.json", "mine/README.md", "mine/.git/x.py"):
        write(tmp_path / "in" / name, "no data")
    write(tmp_path / "in/mine/export.json", chat(7, "theirs"))
    result = run_ingest(tmp_path, tmp_path / "in")
    assert (result.trajectories, result.files) == (2 + 4 + 5 + 1, 4)
    assert result.refused == ["chat/export.json:1: what an export of ours says of itself; it holds no trajectory"]
    assert "as no data: 5 files, such as README.md\n" in capsys.readouterr().err
    with pytest.raises(InputError, match=r"README\.md:1"):
        run_ingest(tmp_path, tmp_path / "in/mine/README.md")


def test_a_file_where_a_run_should_be_is_one_line(tmp_path: Path) -> None:
    data = write(tmp_path / "a.jsonl", chat(1))
    for run in ("a.jsonl", "a.jsonl/run"):
        with pytest.raises(StorageError, match=r"a\.jsonl: is a file, not a folder"):
            ingest(IngestConfig(paths=(str(data),), run=tmp_path / run))


def test_an_inspect_log_is_refused_once(tmp_path: Path) -> None:
    """Its samples hold messages, and its archive further files."""
    sample = {"id": 1, "epoch": 1, "input": "a", "target": "b", "scores": {}, **chat(1)}
    log = {"version": 2, "eval": {}, "plan": {}}
    for name in ("log.eval", "unfinished.eval"):
        with ZipFile(tmp_path / name, "w") as archive:
            archive.writestr("_journal/start.json", json.dumps(log))
            archive.writestr("_journal/summaries/1.json", json.dumps([{**sample, "messages": None}]))
            archive.writestr("samples/1_epoch_1.json", json.dumps(sample))
            if name == "log.eval":
                archive.writestr("header.json", json.dumps({**log, "status": "success"}))
    reason = "Inspect AI log; not read yet: write its samples as `messages`"
    write(tmp_path / "one.json", sample)
    write(tmp_path / "b.jsonl", chat(1))
    result = run_ingest(tmp_path, tmp_path)
    assert result.trajectories == 1
    assert result.refused == [f"{name}:1: {reason}" for name in ("log.eval", "unfinished.eval", "one.json")]
    with pytest.raises(InputError, match=rf"log\.eval:1: {reason}"):
        run_ingest(tmp_path, tmp_path / "log.eval")


def test_same_input_same_bytes(tmp_path: Path) -> None:
    data = write(tmp_path / "in" / "data.jsonl", *(chat(i) for i in range(5)))
    for name in ("a", "b"):
        run_ingest(tmp_path, data.parent, name=name)
    files = [path.relative_to(tmp_path / "a") for path in sorted((tmp_path / "a").rglob("*")) if path.is_file()]
    files = [file for file in files if file.name != "ledger.jsonl"]  # it holds clock values
    assert len(files) == 10  # run.json, two of trajectories, candidates, split, audit, refused, three locks
    assert all((tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes() for file in files)
    run_ingest(tmp_path, data.parent, name="a")
    assert all((tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes() for file in files)


def test_equal_names_become_distinct_and_equal_turns_are_dropped(tmp_path: Path) -> None:
    write(tmp_path / "in" / "a" / "x.jsonl", chat(1), chat(2))
    write(tmp_path / "in" / "b" / "x.jsonl", chat(1), chat(2, answer="Other."))
    result = run_ingest(tmp_path, tmp_path / "in")
    run = RunDirectory(tmp_path / "run")
    ids = [json.loads(line)["id"] for line in (run.trajectories / "index.jsonl").read_text().splitlines()]
    assert ids == ["x:1", "x:2", "x:1~2", "x:2~2"]
    assert result.skips == {"duplicate": 3}
    assert [row.id for row in CandidateStore(run).rows()] == ["x:1@1", "x:1@3", "x:2@1", "x:2@3", "x:2~2@3"]
    assert result.groups == 2


def test_a_trajectory_whose_name_is_that_of_a_field_is_renamed_in_its_line(tmp_path: Path) -> None:
    for folder, task in (("a", 1), ("b", 2)):
        (tmp_path / "in" / folder).mkdir(parents=True)
        (tmp_path / "in" / folder / "id.json").write_text(json.dumps(chat(task), indent=1))
    run_ingest(tmp_path, tmp_path / "in")
    store = CandidateStore(RunDirectory(tmp_path / "run"))
    assert [store.trajectory(name).id for name in store.index] == ["id", "id~2"]


def test_a_log_that_sends_its_history_again_gives_each_turn_once(tmp_path: Path) -> None:
    messages = chat(1)["messages"]
    rows = [{"messages": messages[:1], "response": {"choices": [{"message": messages[1]}]}}, {"messages": messages}]
    result = run_ingest(tmp_path, write(tmp_path / "log.jsonl", *rows))
    assert sum(result.candidates.values()) == 2
    assert result.skips == {"duplicate": 1}


def test_naming_a_file_twice_reads_it_once(tmp_path: Path) -> None:
    data = write(tmp_path / "in" / "data.jsonl", chat(1), chat(2))
    assert run_ingest(tmp_path, data, data.parent, tmp_path / "in", f"{tmp_path}/in/*.jsonl").trajectories == 2
    assert run_ingest(tmp_path, data, tmp_path).trajectories == 2


def test_a_run_inside_the_directory_is_not_read_back(tmp_path: Path) -> None:
    write(tmp_path / "data.jsonl", chat(1))
    for _ in range(2):
        result = run_ingest(tmp_path, tmp_path)
        assert (result.files, result.trajectories, result.refused) == (1, 1, [])


def test_tools_from_a_file(tmp_path: Path) -> None:
    elsewhere = {"messages": [{"role": "assistant", "tool_calls": [{"name": "look"}, {"name": "swim"}]}]}
    silent = {"messages": [{"role": "assistant", "content": "Hi"}]}
    data = write(tmp_path / "data.jsonl", chat(1), chat(2, tools=[]), silent, elsewhere)
    tools = write(tmp_path / "tools.json", [{"name": "look"}, {"name": "jump"}])
    result = run_ingest(tmp_path, data, tools=tools)
    assert (result.trajectories, result.tools_matched, result.tools_known) == (4, 1, 2)
    assert result.skips == {"unknown_tool": 1, "bad_arguments": 1}
    (unit,) = [
        unit
        for name, unit in CandidateStore(RunDirectory(tmp_path / "run")).units(
            CandidateStore(RunDirectory(tmp_path / "run")).rows()
        )
        if name == "data:1"
    ]
    assert [tool.name for tool in unit[0].state.tools or ()] == ["look", "jump"]


def test_options_reach_the_rules(tmp_path: Path) -> None:
    data = write(tmp_path / "data.jsonl", chat(1, reward=0), chat(2, reward=1))
    assert run_ingest(tmp_path, data).skips == {"outcome_below_full": 2}
    assert run_ingest(tmp_path, data, keep_failed=True).skips == {}
    result = run_ingest(tmp_path, data, max_state_tokens=5)
    assert result.skips == {"outcome_below_full": 2, "over_context": 1}
    assert "state lengths: estimated as bytes / 4" in result.lines()


def test_a_bad_file_in_a_directory_is_refused_and_the_rest_goes_on(tmp_path: Path) -> None:
    write(tmp_path / "in" / "good.jsonl", chat(1))
    write(tmp_path / "in" / "half.jsonl", chat(2)).open("a").write("{broken\n")
    write(tmp_path / "in" / "traces.json", {"resourceSpans": []})
    write(tmp_path / "in" / "quiet.json", {"messages": [{"role": "user", "content": "x"}]})
    write(tmp_path / "in" / ".hidden", chat(3))
    (tmp_path / "in" / "empty").touch()
    result = run_ingest(tmp_path, tmp_path / "in")
    assert result.trajectories == 2
    assert result.refused_records == {"not_json": 1}
    refused = [json.loads(line) for line in RunDirectory(tmp_path / "run").refused.read_text().splitlines()]
    assert [row["reason"] for row in refused] == [
        "damaged_file", "not_json", "no_assistant_turn", "unknown_format",
    ]  # fmt: skip
    broken = "half.jsonl:2: not JSON (Expecting property name enclosed in double quotes); fix or remove the line"
    assert refused[1]["text"] == broken
    with pytest.raises(InputError, match="empty: the file is empty"):
        run_ingest(tmp_path, tmp_path / "in", strict=True)
    with pytest.raises(InputError, match=r"half\.jsonl:2: not JSON"):
        run_ingest(tmp_path, tmp_path / "in" / "half.jsonl", strict=True)
    assert result.refused == [
        "empty: the file is empty; give one that holds trajectories",
        "quiet.json:1: no assistant turn in it; nothing to learn from",
        "traces.json:1: OpenTelemetry traces; not read yet",
    ]
    assert result.lines()[-1] == "refused traces.json:1: OpenTelemetry traces; not read yet"


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ("", "data.jsonl: the file is empty"),
        ('{"messages": []}\n{"mess', "data.jsonl:1: no assistant turn in it"),
        ('{"messages"\n{"messages": [{"role": "assistant", "content": 4}]}', "data.jsonl:1: not JSON"),
        ('{"messages": [{"role": "assistant", "content": 4}]}', r"data.jsonl:1: messages\[0\].content: expected text"),
        ('{"messages": [{"role": "user", "content": "x"}]}', "data.jsonl:1: no assistant turn in it"),
        ('{"resourceSpans": []}', "data.jsonl:1: OpenTelemetry"),
        ("[]", "data.jsonl: no trajectory in it"),
        ("prose\n" * 9 + '{"messages": []}', "data.jsonl:1: not JSON"),
    ],
)
def test_a_named_file_that_is_refused_is_an_error_and_leaves_no_run(tmp_path: Path, content: str, error: str) -> None:
    (tmp_path / "data.jsonl").write_text(content)
    with pytest.raises(InputError, match=error) as caught:
        run_ingest(tmp_path, tmp_path / "data.jsonl")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_bad_file_leaves_a_run_that_was_there_as_it_was(tmp_path: Path) -> None:
    run_ingest(tmp_path, write(tmp_path / "good.jsonl", chat(1)))
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    bad = tmp_path / "bad.jsonl"
    bad.write_text("{")
    with pytest.raises(InputError, match=r"bad\.jsonl:1: not JSON"):
        run_ingest(tmp_path, write(tmp_path / "other.jsonl", chat(2)), bad)
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == before


def test_states_are_measured_with_a_tokenizer_and_its_template(tmp_path: Path) -> None:
    model = tiny.saved_model(tmp_path / "model")
    data = write(tmp_path / "data.jsonl", chat(1), chat(2, tools=[{"name": "look"}]))
    loose = run_ingest(tmp_path, data, tokenizer=str(model), chat_template="chatml-tools")
    assert (loose.skips, loose.tokens) == ({}, f"counted with the tokenizer {model}")
    facts = RunDirectory(tmp_path / "run").stages()["ingest/ingest"]["tokenizer"]
    assert facts.keys() == {"tokenizer", "chat_template", "transformers"}
    chat_format = ChatFormat(make_tokenizer(), template=read_template("chatml-tools"))
    store = CandidateStore(RunDirectory(tmp_path / "run"))
    candidates = [candidate for _, unit in store.units(store.rows()) for candidate in unit]
    lengths = sorted(len(chat_format.prompt_ids(candidate.state)) for candidate in candidates)
    tight = run_ingest(tmp_path, data, tokenizer=str(model), chat_template="chatml-tools", max_state_tokens=lengths[1])
    assert tight.skips == {"over_context": sum(length > lengths[1] for length in lengths)}


def test_a_state_that_the_template_refuses_is_estimated(tmp_path: Path) -> None:
    model = tiny.saved_model(tmp_path / "model")
    template = tmp_path / "strict.jinja"
    refuse = "{% if message.role == 'tool' %}{{ raise_exception('no') }}{% endif %}"
    template.write_text("{% for message in messages %}" + refuse + "{{ message.content }}{% endfor %}")
    data = write(tmp_path / "data.jsonl", chat(1))
    result = run_ingest(tmp_path, data, tokenizer=str(model), chat_template=str(template))
    assert result.tokens.endswith("; as bytes / 4 where its template refuses them: 1")
    result = run_ingest(tmp_path, data, tokenizer=str(model), chat_template=str(template), max_state_tokens=3)
    audit = [json.loads(line) for line in RunDirectory(tmp_path / "run").audit.read_text().splitlines()]
    assert [skip["detail"] for skip in audit if skip["turn"] == 3] == ["6 tokens"]


@pytest.mark.parametrize("text", ["{broken", '{"a": 1}', None])
def test_a_tokenizer_that_cannot_be_loaded_is_one_line(tmp_path: Path, text: str | None) -> None:
    data = write(tmp_path / "data.jsonl", chat(1))
    model = tiny.saved_model(tmp_path / "model")
    (model / "tokenizer.json").unlink() if text is None else (model / "tokenizer.json").write_text(text)
    with pytest.raises(InputError, match=r"tokenizer .*: cannot be loaded") as caught:
        run_ingest(tmp_path, data, tokenizer=str(model))
    assert "\n" not in str(caught.value)
    with pytest.raises(MissingError, match="no such directory"):
        run_ingest(tmp_path, data, tokenizer=str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="add --tokenizer"):
        run_ingest(tmp_path, data, chat_template="chatml-tools")
    assert not (tmp_path / "run").exists()


def test_a_tokenizer_without_a_template_names_the_option(tmp_path: Path) -> None:
    model = tiny.saved_model(tmp_path / "model")
    (model / "chat_template.jinja").unlink()
    with pytest.raises(ConfigError, match="has no chat template; pass --chat-template FILE, or one of chatml-tools"):
        run_ingest(tmp_path, write(tmp_path / "data.jsonl", chat(1)), tokenizer=str(model))


def test_other_errors(tmp_path: Path) -> None:
    data = write(tmp_path / "in" / "data.jsonl", chat(1))
    (tmp_path / "none").mkdir()
    write(tmp_path / "bad" / "a.txt", "prose")
    with pytest.raises(ConfigError, match="no files"):
        run_ingest(tmp_path)
    with pytest.raises(MissingError, match="no such file or directory"):
        run_ingest(tmp_path, tmp_path / "nowhere")
    with pytest.raises(InputError, match="no files in it"):
        run_ingest(tmp_path, tmp_path / "none")
    with pytest.raises(InputError, match=r"no file of 1 could be read; the first: a\.txt:1: no known"):
        run_ingest(tmp_path, tmp_path / "bad")
    nan = float("nan")
    for fractions in ((0.5, 0.5), (0.1, nan), (nan, 0.1), (-0.1, 0.2), (0.1, float("inf"))):
        with pytest.raises(ConfigError, match="leave something to train on"):
            run_ingest(tmp_path, data, validation_fraction=fractions[0], test_fraction=fractions[1])
    with pytest.raises(ConfigError, match="max_state_tokens -1"):
        run_ingest(tmp_path, data, max_state_tokens=-1)
    with pytest.raises(ConfigError, match="reader 'x' is unknown"):
        run_ingest(tmp_path, data, format="x")


def test_a_run_is_not_overwritten_unless_told(tmp_path: Path) -> None:
    data = write(tmp_path / "data.jsonl", chat(1))
    run_ingest(tmp_path, data)
    with pytest.raises(ConfigError, match=r"holds trajectories already; .* use another --run, or --overwrite"):
        run_ingest(tmp_path, data, overwrite=False)
    assert run_ingest(tmp_path, data, overwrite=True).trajectories == 1


def plain_tau_count(records: list[dict]) -> Counter[str]:
    """The same question, asked in a few lines that share nothing with the package."""
    count: Counter[str] = Counter()
    for record in records:
        history = record["traj"]
        size = times = 0
        last = None
        for i, message in enumerate(history):
            calls = message.get("tool_calls") or []
            key = (
                str([(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in calls]) if calls else None
            )
            if message["role"] == "assistant":
                after = history[i + 1] if i + 1 < len(history) else {}
                if record["reward"] < 1:
                    count["outcome_below_full"] += 1
                elif calls and after.get("role") == "tool" and (after["content"] or "").startswith("Error"):
                    count["tool_error"] += 1
                elif key is not None and key == last and times >= 2:
                    count["repeated_call"] += 1
                elif size > 4 * 32768:
                    count["over_context"] += 1
                else:
                    count["candidate"] += 1
            if message["role"] != "tool":
                times = times + 1 if key == last else 1
                last = key
            size += len((message.get("content") or "").encode())
            size += sum(len((c["function"]["name"] + c["function"]["arguments"]).encode()) for c in calls)
    return count


@pytest.mark.parametrize(
    "name", ["gpt-4o-airline.first40.json", "avaljot_toolcalling_0-100.json", "apollo_gpt4o_a.json"]
)
def test_real_tau_bench_counts_match_a_plain_count(tmp_path: Path, name: str) -> None:
    path = shared("tau_bench", name)
    expected = plain_tau_count(json.loads(path.read_text()))
    result = run_ingest(tmp_path, path)
    assert Counter({"candidate": sum(result.candidates.values()), **result.skips}) == +expected


def plain_tau2_count(path: Path) -> Counter[str]:
    """As above, for the layouts of tau2-bench; its states are short and its calls never repeat three times."""
    text = path.read_text()
    document = json.loads(text) if path.suffix == ".json" else [json.loads(line) for line in text.splitlines()]
    if isinstance(document, dict):
        document = document.get("simulations", [document])
    count: Counter[str] = Counter()
    for row in document:
        row = row.get("result", row)
        reward = row["eval_result"]["score"] if "eval_result" in row else row["reward_info"]["reward"]
        spoken = False
        for i, message in enumerate(row["messages"]):
            spoken = spoken or message["role"] == "user"
            if message["role"] != "assistant":
                continue
            later = [m["role"] for m in row["messages"][i + 1 :]] + ["end"]
            results = row["messages"][i + 1 :][: next(n for n, role in enumerate(later) if role != "tool")]
            failed = any(
                m["error"] if m.get("error") is not None else m["content"].startswith("Error") for m in results
            )
            reason = "outcome_below_full" if reward < 1 else "tool_error" if failed else "candidate"
            count[reason if spoken else "scripted_greeting"] += 1
    return count


TAU2 = [
    "activegraph_5sims.json", "agentpile_alpha-model.jsonl", "grok3mini_airline_relaxed.json",
    "nemogym_tau2.rollouts.jsonl", "nemogym_tau2.test_data.json", "toolorchestra_airline_gpt5.json",
    "whissle_hd_retail_n5.json",
]  # fmt: skip


@pytest.mark.parametrize("name", TAU2)
def test_real_tau2_counts_match_a_plain_count(tmp_path: Path, name: str) -> None:
    path = shared("tau2_results", name)
    result = run_ingest(tmp_path, path)
    assert Counter({"candidate": sum(result.candidates.values()), **result.skips}) == plain_tau2_count(path)


def test_a_whole_directory_of_real_files(tmp_path: Path) -> None:
    result = run_ingest(tmp_path, shared("tau2_results"))
    assert [line.split(".")[0] for line in result.refused] == ["mock_tasks", "voice_experiment_results"]
    assert result.assistant_turns == sum(result.candidates.values()) + sum(result.skips.values())
    assert result.trajectories == 72
    groups: dict[str, set[str]] = {}
    for row in CandidateStore(RunDirectory(tmp_path / "run")).rows():
        groups.setdefault(row.group, set()).add(row.split)
    assert all(len(splits) == 1 for splits in groups.values())
