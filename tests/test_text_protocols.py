"""Calls that were written into the text: what the model saw and wrote stays, and the calls are known beside it."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from pivotrl.candidates import CandidateRules, CandidateStore, extract
from pivotrl.chat import ChatFormat, message_dict, read_template
from pivotrl.examples import proven_targets
from pivotrl.ingestion import IngestConfig, ingest
from pivotrl.models import LoadedModel
from pivotrl.policies.openai_wire import Choice, read_action, wire_messages
from pivotrl.policies.scripted import ScriptedPolicy
from pivotrl.policies.torch import TorchPolicy
from pivotrl.rollouts import Sampling, sample_groups
from pivotrl.run_directory import RunDirectory
from pivotrl.storage import decode, dump_json
from pivotrl.trajectories import read_path
from pivotrl.types import Candidate, Message, SamplingParams, SkippedTurn, Tool, Trajectory
from pivotrl.verifiers import load_verifier

SHARED = Path(os.environ.get("PIVOTRL_SHARED", Path(__file__).parents[2] / "shared" / "data")) / "trajectories"
WEATHER = {"name": "weather", "description": "Tells.", "parameters": {"type": "object", "properties": {"city": {}}}}
HERMES_SYSTEM = f"""You call functions. Signatures are within <tools> </tools> tags. Here they are:
<tools> [{json.dumps({"type": "function", "function": WEATHER})}] </tools>
For each call write <tool_call>\n{{"name": <name>, "arguments": <args>}}\n</tool_call>"""
HERMES_CALL = '<tool_call>\n{"arguments": {"city": "Rome"}, "name": "weather"}\n</tool_call>'
RESULT = '<tool_response>\n{"sky": "blue"}\n</tool_response>'
HERMES = [
    {"role": "system", "content": HERMES_SYSTEM},
    {"role": "user", "content": "Is it fine in Rome?"},
    {"role": "assistant", "content": f"<think>\nAsk.\n</think>\nLet me see.\n{HERMES_CALL}"},
    {"role": "user", "content": RESULT},
    {"role": "assistant", "content": "It is."},
]
XML_SYSTEM = """You have access to the following functions:

---- BEGIN FUNCTION #1: bash ----
Description: Runs it.
* As a shell does.

Parameters:
  (1) command (string, required): The command.
Allowed values: [`ls`, `pwd`]
  (2) timeout (integer, optional): Seconds.
---- END FUNCTION #1 ----

---- BEGIN FUNCTION #2: submit ----
Description: Ends.
No parameters are required for this function.
---- END FUNCTION #2 ----

<function=example><parameter=a>1</parameter></function>"""
XML = [
    {"role": "system", "content": XML_SYSTEM},
    {"role": "user", "content": "Do."},
    {"role": "assistant", "content": "Look.\n\n<function=bash>\n<parameter=command>5</parameter>\n</function>"},
    {"role": "user", "content": "OBSERVATION:\r\n5"},
    {"role": "assistant", "content": "<function=submit>\n</function>"},
]
REACT = [
    {"role": "user", "content": "Answer in this form:\nThought: ...\nAction: your next action"},
    {"role": "assistant", "content": "OK."},
    {"role": "user", "content": "Find it."},
    {"role": "assistant", "content": "Thought: t\nAction: search[red shoes]"},
    {"role": "user", "content": "Observation: two"},
    {"role": "assistant", "content": "Thought: done\nFinal Answer: 2"},
]
PYTHONIC = [
    {"role": "system", "content": 'These you can invoke:\n[{"name": "Get It", "description": "", "parameters": '
     '{"type": "dict", "properties": {"n": {"type": "int"}}, "required": null}}]. Put it in the format of [func(a=1)]'},
    {"role": "user", "content": "Get 3."},
    {"role": "assistant", "content": "[Get It(n=3), Get It(n=4)]"},
    {"role": "tool", "content": '[{"name": "Get It", "results": 1}]'},
    {"role": "assistant", "content": "Here."},
]  # fmt: skip


def read(tmp_path: Path, *rows: object) -> list[Trajectory]:
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return list(read_path(path))


def calls(trajectory: Trajectory) -> list[tuple[str, object]]:
    return [(one.name, one.parsed.value) for message in trajectory.messages for one in message.tool_calls]


def reasons(trajectory: Trajectory) -> list[str]:
    turns = extract(trajectory, CandidateRules())
    return [turn.reason if isinstance(turn, SkippedTurn) else turn.demonstration.kind for turn in turns]


@pytest.mark.parametrize("messages", [HERMES, XML, REACT, PYTHONIC])
@pytest.mark.parametrize("key", ["messages", "conversations", "trajectory"])
def test_what_the_model_saw_and_wrote_is_kept(tmp_path: Path, messages: list[dict], key: str) -> None:
    (got,) = read(tmp_path, {key: messages if key != "trajectory" else json.dumps(messages)})
    shown = [message_dict(message) for message in got.messages]
    assert [one["content"] for one in shown] == [one["content"] for one in messages]
    assert [one["role"] for one in shown] == [one["role"].replace("tool", "user") for one in messages]
    assert all(one.keys() == {"role", "content"} for one in shown)
    assert wire_messages(got.messages, reasoning=True) == shown
    assert decode(dump_json(got), Trajectory, "stored") == got


def test_hermes(tmp_path: Path) -> None:
    (got,) = read(tmp_path, {"messages": HERMES})
    assert got.syntax == "hermes"
    assert got.tools == (Tool(name="weather", description="Tells.", parameters=WEATHER["parameters"]),)
    first, last = got.messages[2], got.messages[4]
    assert (first.content, calls(got)) == ("Let me see.", [("weather", {"city": "Rome"})])
    assert (last.content, last.literal) == ("It is.", "It is.")
    assert reasons(got) == ["call", "message"]
    assert got.messages[3] == Message(role="user", content=RESULT)


def test_literals_of_python_in_hermes_tags(tmp_path: Path) -> None:
    tools = f"<tools> [{{'type': 'function', 'function': {WEATHER!r}}}] </tools>"
    call = "<tool_call>\n{'arguments': {'city': \"L'Aquila\", 'now': True}, 'name': 'weather'}\n</tool_call>"
    (got,) = read(tmp_path, {"conversations": [
        {"from": "system", "value": tools}, {"from": "human", "value": "?"}, {"from": "gpt", "value": f"{call}{call}"},
        {"from": "tool", "value": RESULT}, {"from": "gpt", "value": "Fine."},
    ]})  # fmt: skip
    assert (got.syntax, got.source.format) == ("hermes_python", "sharegpt")
    assert calls(got) == [("weather", {"city": "L'Aquila", "now": True})] * 2
    assert got.tools is not None
    assert got.messages[3].role == "user"


def test_functions_in_tags_with_the_tools_that_the_prompt_describes(tmp_path: Path) -> None:
    (got,) = read(tmp_path, {"messages": XML, "resolved": True, "instance_id": "i"})
    assert (got.syntax, got.task_id, got.outcome) == ("xml", "i", 1.0)
    assert got.tools is not None
    bash, submit = got.tools
    assert (bash.name, bash.description) == ("bash", "Runs it.\n* As a shell does.")
    assert bash.parameters == {
        "type": "object",
        "properties": {
            "command": {"type": "string", "description": "The command."},
            "timeout": {"type": "integer", "description": "Seconds."},
        },
        "required": ["command"],
    }
    assert (submit.name, (submit.parameters or {})["required"]) == ("submit", [])
    assert calls(got) == [("bash", {"command": "5"}), ("submit", {})]
    other = {"role": "assistant", "content": "<function=rm></function>"}
    (got,) = read(tmp_path, {"messages": [*XML[:-1], other]})
    assert reasons(got) == ["call", "unknown_tool"]


def test_react_and_the_greeting_that_its_makers_wrote(tmp_path: Path) -> None:
    (got,) = read(tmp_path, {"conversations": REACT})
    assert (got.syntax, got.tools) == ("react", None)
    assert reasons(got) == ["scripted_greeting", "call", "message"]
    assert calls(got) == [("search", {"input": "red shoes"})]
    letter = [{"role": "user", "content": "Minutes?"}, {"role": "assistant", "content": "Agreed.\nAction: call Bob"}]
    (got,) = read(tmp_path, {"messages": letter})
    assert (got.syntax, calls(got)) == (None, [])


def test_python_like_calls(tmp_path: Path) -> None:
    row = {"system": PYTHONIC[0]["content"], "conversations": [
        {"from": one["role"], "value": one["content"]} for one in PYTHONIC[1:]
    ]}  # fmt: skip
    for got in read(tmp_path, row, {"messages": PYTHONIC}):
        assert got.syntax == "pythonic"
        assert calls(got) == [("Get It", {"n": 3}), ("Get It", {"n": 4})]
        assert got.tools is not None
        assert got.tools[0].parameters == {"type": "object", "properties": {"n": {"type": "integer"}}}
        assert reasons(got) == ["call", "message"]


def test_turns_that_do_not_parse_are_skipped_and_few_do_not_decide(tmp_path: Path) -> None:
    broken = {"role": "assistant", "content": '<tool_call>\n{"name": "weather", "argu'}
    (got,) = read(tmp_path, {"messages": [*HERMES[:4], HERMES[2], HERMES[3], broken, HERMES[3], HERMES[4]]})
    assert reasons(got) == ["call", "call", "unparsable_call", "message"]
    assert got.messages[6].literal == got.messages[6].content == broken["content"]
    (got,) = read(tmp_path, {"messages": [*HERMES[:2], broken, HERMES[3], broken, HERMES[3], HERMES[2]]})
    assert (got.syntax, calls(got)) == (None, [])


def test_structured_calls_and_untouched_texts(tmp_path: Path) -> None:
    structured = {"role": "assistant", "content": "<tool_call>", "tool_calls": [{"id": "1", "name": "weather"}]}
    untouched = [
        [*HERMES[:2], structured],
        [{"role": "user", "content": HERMES_CALL}, {"role": "assistant", "content": "So it is written."}],
        [{"role": "assistant", "content": "```bash\nls\n```"}],
        [{"role": "assistant", "content": '{"analysis": "", "plan": "", "commands": []}'}],
        [{"role": "assistant", "content": "<search>a</search>"}],
        [{"role": "assistant", "content": "[1](http://x.y)"}],
        [{"role": "assistant", "content": "[Point(x=1)]"}],
    ]
    for got in read(tmp_path, *({"messages": messages} for messages in untouched)):
        assert got.syntax is None
        assert all(message.literal is None for message in got.messages)


def test_tools_of_the_prompt_go_before_those_of_the_row_if_they_are_the_called_ones(tmp_path: Path) -> None:
    named = {"name_for_model": "weather", "description_for_model": "Other.", "parameters": {"type": "object"}}
    bob = [{"role": "user", "content": 'Here: [{"name": "Bob"}]'}, HERMES[2]]
    first, second, third = read(
        tmp_path, {"messages": HERMES, "functions": [named]}, {"messages": bob, "functions": [named]}, {"messages": bob}
    )
    assert [tools and tools[0].description for tools in (first.tools, second.tools, third.tools)] == [
        "Tells.", "Other.", None
    ]  # fmt: skip


def test_excluded_turns_stay_excluded(tmp_path: Path) -> None:
    shot = [{**one, "loss": False} if one["role"] == "assistant" else one for one in REACT[:4]]
    (got,) = read(tmp_path, {"conversations": [*shot, *REACT[2:]]})
    assert reasons(got) == ["loss_false", "loss_false", "call", "message"]


SEARCH = (
    "<think>a</think>\n<search> one </search>\n\n<information>First.\n</information>\n<think>b</think><search>two"
    "</search><information>Second.</information>\n\n<answer>3</answer>"
)


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "Which?", "completion": SEARCH},
        {"question": "Which?", "response": SEARCH},
        {"prompt": [{"role": "user", "content": "Which?"}], "response": SEARCH},
        {"prompt": [{"role": "user", "content": "Which?"}], "completion": [{"role": "assistant", "content": SEARCH}]},
        {"messages": [{"role": "user", "content": "Which?"}, {"role": "assistant", "content": SEARCH}]},
    ],
)
def test_what_a_search_brought_is_taken_out_of_the_turn(tmp_path: Path, row: object) -> None:
    (got,) = read(tmp_path, row)
    assert got.messages == (
        Message(role="user", content="Which?"),
        Message(role="assistant", content="<think>a</think>\n<search> one </search>"),
        Message(role="user", content="<information>First.\n</information>"),
        Message(role="assistant", content="<think>b</think><search>two</search>"),
        Message(role="user", content="<information>Second.</information>"),
        Message(role="assistant", content="<answer>3</answer>"),
    )


def test_results_inside_a_turn_with_calls_in_tags(tmp_path: Path) -> None:
    whole = f"{HERMES_CALL}\n{RESULT}\nIt is. <information>"
    (got,) = read(tmp_path, {"messages": [*HERMES[:2], {"role": "assistant", "content": whole}]})
    assert [message.role for message in got.messages[2:]] == ["assistant", "user", "assistant"]
    assert (got.syntax, reasons(got)) == ("hermes", ["call", "message"])
    (got,) = read(tmp_path, {"messages": [{"role": "assistant", "content": "</search><information>" * 3}]})
    assert len(got.messages) == 1


def test_a_state_is_asked_and_answered_in_its_own_syntax(tmp_path: Path) -> None:
    """A policy sees no tools beside the prompt's, and its text is read as the expert's was."""
    (got,) = read(tmp_path, {"messages": REACT})
    candidates = [one for one in extract(got, CandidateRules()) if isinstance(one, Candidate)]
    assert candidates[0].state.syntax == "react"
    verifier = load_verifier("auto")
    policy = ScriptedPolicy(lambda state, random: random.choice(["Action: search[red shoes]", "Action: search[hats]"]))
    sampling = Sampling(policy=policy, verifier=verifier, params=SamplingParams(), n=12, seed=1)
    (group,) = sample_groups(sampling, candidates[:1])
    rewards = {one.action.calls[0].arguments: two for one, two in zip(group.completions, group.rewards, strict=True)}
    assert rewards == {'{"input": "red shoes"}': 1.0, '{"input": "hats"}': 0.0}
    choice = Choice(text="Action: f[x]", message=None, finish_reason="stop", token_ids=(), token_logprobs=None)
    parsed = read_action(choice, "hermes", candidates[0].state)
    assert parsed.action.calls[0].name == "f"


def byte_model() -> LoadedModel:
    """A random model of bytes, with the shipped template, which tells of tools where it is given some."""
    core = Tokenizer(models.BPE({one: at for at, one in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token="<|im_end|>", pad_token="<|pad|>", additional_special_tokens=["<|im_start|>"]
    )
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1,
        max_position_embeddings=4096, bos_token_id=None, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    chat = ChatFormat(tokenizer, template=read_template("chatml-tools"))
    return LoadedModel(path=Path(), model=LlamaForCausalLM(config).eval(), chat=chat, weights="bytes")


def test_a_tiny_model_renders_samples_and_learns_the_literal_text(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in (HERMES, XML, REACT, PYTHONIC)))
    run = RunDirectory(tmp_path / "run")
    result = ingest(IngestConfig(paths=(str(path),), run=run.path, validation_fraction=0, test_fraction=0))
    assert (sum(result.candidates.values()), result.skips) == (8, {"scripted_greeting": 1})
    policy = TorchPolicy(byte_model())
    store = CandidateStore(run)
    targets, unproven = proven_targets(store, store.rows(), policy)
    chat: ChatFormat = policy.chat
    for row, candidate in store.loaded(store.rows()):
        prompt = chat.tokenizer.decode(chat.prompt_ids(candidate.state))
        assert all((message.literal or message.content) in prompt for message in candidate.state.messages)
        assert "# Tools" not in prompt
        ids = targets[row.id][0]
        assert chat.text_of(ids) == candidate.literal
        assert chat.parse(chat.text_of(ids), candidate.state).action.calls == candidate.demonstration.calls
    assert not unproven
    states = [candidate.state for _, candidate in store.loaded(store.rows())]
    answers = policy.sample(states, n=2, params=SamplingParams(max_new_tokens=4), seed=0)
    assert all(len(answer.completions) == 2 for answer in answers)


def test_runs_of_older_versions_are_read() -> None:
    old = {"id": "a", "messages": [{"role": "assistant", "content": "x"}], "source": {"file": "f", "format": "g"}}
    got = decode(json.dumps(old).encode(), Trajectory, "old")
    assert (got.syntax, got.messages[0].literal) == (None, None)


pieces = st.sampled_from([
    "<tool_call>", "</tool_call>", HERMES_CALL, "<function=bash>", "</function>", "\nAction: ", "a[b]", "[f(x=1)]",
    "<search>", "</search>", "<information>", "</information>", "<tool_response>", "</tool_response>", "<think>",
    "</think>", "\nThought: x", " ", "word", "<tools>", "</tools>", "[{", "---- BEGIN FUNCTION #1: f",
])  # fmt: skip


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(st.lists(pieces, max_size=8).map("".join), min_size=1, max_size=5))
def test_any_text_gives_turns_that_are_all_accounted_for(tmp_path: Path, texts: list[str]) -> None:
    messages = [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(texts)]
    (got,) = read(tmp_path, {"messages": messages})
    turns = [message for message in got.messages if message.role == "assistant"]
    assert len(reasons(got)) == len(turns)
    whole = "".join(message.literal or message.content or "" for message in got.messages)
    assert re.sub(r"\s", "", whole) == re.sub(r"\s", "", "".join(texts))
    assert decode(dump_json(got), Trajectory, "stored") == got
    again = [{"role": message.role, "content": message.literal or message.content} for message in got.messages]
    assert read(tmp_path, {"messages": again})[0].messages == got.messages


PROTOCOLS = {
    "agenttuning/agenttuning_alfworld.raw.json": ("react", 84, 5),
    "agenttuning/agenttuning_kg.raw.json": ("react", 65, 5),
    "agenttuning/agenttuning_webshop.raw.json": ("react", 17, 5),
    "agentinstruct_misc/eto.raw.json": ("react", 12, 3),
    "search_traces/webdancer_sample_traj.jsonl": ("hermes", 12, 0),
    "openhands/swe_play.raw.json": ("xml", 127, 0),
    "openhands/sdk_llmlog_nonfncall_deepseek.json": ("xml", 4, 0),
    "sharegpt_hermes/adp_codeactinstruct.sft.json": ("xml", 16, 0),
}
"""Syntax, turns whose text holds its mark (`Action:`, `<tool_call>`, `<function=`), greetings; counted in the files."""


@pytest.mark.parametrize("name", PROTOCOLS)
def test_real_files(name: str) -> None:
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"{path} is not there; set PIVOTRL_SHARED to the folder that holds trajectories/")
    got = list(read_path(path))
    syntax, called, greetings = PROTOCOLS[name]
    assert Counter(one.syntax for one in got) == {syntax: len(got)}
    turns = [message for one in got for message in one.messages if message.role == "assistant"]
    assert sum(bool(message.tool_calls) for message in turns) == called
    assert Counter(message.excluded for message in turns if message.excluded) == Counter(
        {"scripted_greeting": greetings} if greetings else {}
    )
    known = [{tool.name for tool in one.tools} for one in got if one.tools is not None]
    assert len(known) == (0 if syntax == "react" else len(got))
    assert all(call[0] in names for one, names in zip(got, known, strict=False) for call in calls(one))


@pytest.mark.parametrize("name", PROTOCOLS)
def test_real_demonstrations_pass_their_own_verifier(name: str) -> None:
    path, verifier = SHARED / name, load_verifier("auto")
    if not path.exists():
        pytest.skip(f"{path} is not there; set PIVOTRL_SHARED to the folder that holds trajectories/")
    rules = CandidateRules(keep_failed=True, keep_repeated=True, max_state_tokens=0)
    turns = [turn for one in read_path(path) for turn in extract(one, rules) if isinstance(turn, Candidate)]
    assert {verifier(turn, turn.demonstration).value for turn in turns} == {1.0}


def test_calls_repeated_in_text_are_seen(tmp_path: Path) -> None:
    (got,) = read(tmp_path, {"messages": [*XML[:2], *XML[2:4] * 3, *XML[2:4]]})
    assert reasons(got) == ["call", "call", "repeated_call", "repeated_call"]


def test_tools_that_no_prompt_tells_of_are_left_to_the_template(tmp_path: Path) -> None:
    told, untold = read(
        tmp_path, {"messages": HERMES, "tools": [WEATHER]}, {"messages": HERMES[1:], "tools": [WEATHER]}
    )
    states = [Candidate(trajectory=got, turn=len(got.messages) - 1).state for got in (told, untold)]
    assert [state.told_tools and state.told_tools[0].name for state in states] == [None, "weather"]
    assert [state.syntax for state in states] == ["hermes", "hermes"]
