"""ShareGPT and its relatives, prompts with responses, and other rows that hold conversations in their own words."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from pivotrl.candidates import CandidateRules, extract
from pivotrl.errors import InputError
from pivotrl.trajectories import read_path
from pivotrl.types import Message, SkippedTurn, Tool, ToolCall, Trajectory

SHARED = Path(os.environ.get("PIVOTRL_SHARED", Path(__file__).parents[2] / "shared" / "data")) / "trajectories"
CALL = '{"name": "look", "arguments": {"at": "a"}}'
TOOLS = '[{"name": "look", "description": "Looks.", "parameters": {"type": "object"}}]'
LOOK = ToolCall(name="look", arguments='{"at": "a"}')
WANTED = (
    Message(role="system", content="Be brief."),
    Message(role="user", content="Look."),
    Message(role="assistant", content="I look.", tool_calls=(LOOK,)),
    Message(role="tool", content="seen"),
    Message(role="assistant", content="Done."),
)


def said(*turns: tuple[str, object], keys: tuple[str, str] = ("from", "value")) -> list[dict]:
    return [dict(zip(keys, turn, strict=True)) for turn in turns]


GLAIVE = [("human", "Look."), ("gpt", "I look."), ("function_call", CALL), ("observation", "seen"), ("gpt", "Done.")]
SWIFT = [
    ("user", "Look."), ("assistant", "I look."), ("tool_call", CALL), ("tool_response", "seen"), ("assistant", "Done."),
]  # fmt: skip


def read(tmp_path: Path, *rows: object) -> list[Trajectory]:
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return list(read_path(path))


def reasons(trajectory: Trajectory) -> list[str]:
    turns = extract(trajectory, CandidateRules())
    return [turn.reason if isinstance(turn, SkippedTurn) else turn.demonstration.kind for turn in turns]


@pytest.mark.parametrize(
    "row",
    [
        {"system": "Be brief.", "conversations": said(*GLAIVE), "tools": TOOLS},
        {"conversations": said(("system", "Be brief."), *GLAIVE), "tools": json.loads(TOOLS)},
        {"conversations": json.dumps(said(("system", "Be brief."), *GLAIVE)), "tools": TOOLS},
        {"messages": said(("system", "Be brief."), *SWIFT, keys=("role", "content")), "tools": TOOLS},
        {"system": "Be brief.", "conversation": said(*GLAIVE[:2], ("function_call", json.loads(CALL)), *GLAIVE[3:]),
         "tools": TOOLS},
    ],
)  # fmt: skip
def test_one_conversation_in_many_words(tmp_path: Path, row: dict) -> None:
    (got,) = read(tmp_path, row)
    assert got.messages == WANTED
    assert (got.source.format, got.syntax) == ("sharegpt", None)
    assert got.tools == (Tool(name="look", description="Looks.", parameters={"type": "object"}),)
    assert reasons(got) == ["call", "message"]


def test_parallel_calls_and_results_that_come_as_one_list(tmp_path: Path) -> None:
    both = json.dumps([json.loads(CALL), {"name": "ping", "arguments": {}}])
    listed = [("human", "?"), ("function_call", both), ("observation", '["A", {"b": 1}]'), ("gpt", "Done.")]
    apart = [("user", "?"), ("tool_call", CALL), ("tool_call", CALL), ("tool", "A"), ("tool", "B"), ("assistant", "!")]
    text = [("human", "?"), ("function_call", both), ("observation", "only one"), ("gpt", "Done.")]
    one, two, three = read(
        tmp_path, {"conversations": said(*listed)}, {"messages": said(*apart, keys=("role", "content"))},
        {"conversations": said(*text)},
    )  # fmt: skip
    assert one.messages[1].tool_calls == (LOOK, ToolCall(name="ping", arguments="{}"))
    assert [message.content for message in one.messages[2:4]] == ["A", '{"b": 1}']
    assert (len(two.messages[1].tool_calls), reasons(two)) == (2, ["call", "message"])
    assert [reasons(got) for got in (one, three)] == [["call", "message"], ["call", "orphan_in_prefix"]]


def test_thoughts_before_a_call_and_calls_that_are_text(tmp_path: Path) -> None:
    thought = [("human", "?"), ("function_call", f"<think>\nhm\n</think>\n\n{CALL}")]
    texts = [("human", "?"), ("function_call", "Now.\n<function=f></function>"), ("observation", "seen"), ("gpt", "!")]
    one, two = read(tmp_path, *({"conversations": said(*turns)} for turns in (thought, texts)))
    assert (one.messages[1].reasoning, one.messages[1].tool_calls) == ("hm", (LOOK,))
    assert (two.syntax, two.messages[1].literal) == ("xml", texts[1][1])
    assert [message.role for message in two.messages] == ["user", "assistant", "user", "assistant"]


def test_pairs_and_what_is_not_to_be_learned(tmp_path: Path) -> None:
    pairs = [{"human": "a", "assistant": "b"}, {"human": "c", "assistant": "d"}]
    weighted = [
        {"from": "human", "value": "a"}, {"from": "gpt", "value": "OK", "loss": False},
        {"from": "gpt", "value": "b", "loss": None}, {"from": "gpt", "value": "c", "weight": 0},
        {"role": "assistant", "content": "d", "loss_weight": 0.0},
    ]  # fmt: skip
    one, two = read(tmp_path, {"system": "s", "conversation": pairs}, {"conversations": weighted, "reward": 1})
    assert [(m.role, m.content) for m in one.messages] == [
        ("system", "s"), ("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d")
    ]  # fmt: skip
    assert (reasons(two), two.outcome) == (["loss_false", "message", "loss_false", "loss_false"], 1.0)


def test_llama_factory_parts(tmp_path: Path) -> None:
    parts = [
        {"role": "user", "content": [{"type": "text", "value": "?"}]},
        {"role": "assistant", "content": [
            {"type": "reasoning", "value": "hm"}, {"type": "tool_call", "value": CALL},
            {"type": "tool_call", "value": json.loads(CALL)},
        ]},
        {"role": "tool", "content": [{"type": "text", "value": '["A", "B"]'}]},
        {"role": "assistant", "content": [{"type": "text", "value": "Done."}], "loss_weight": 0.0},
    ]  # fmt: skip
    (got,) = read(tmp_path, {"messages": parts, "tools": TOOLS})
    assert got.messages == (
        Message(role="user", content="?"),
        Message(role="assistant", reasoning="hm", tool_calls=(LOOK, LOOK)),
        Message(role="tool", content="A"),
        Message(role="tool", content="B"),
        Message(role="assistant", content="Done.", excluded="loss_false"),
    )


def test_prompts_and_responses(tmp_path: Path) -> None:
    swift = {"query": "c", "response": "d", "history": [["a", "b"], ["", "b2"]], "system": "s"}
    alpaca = {"instruction": "c", "input": "more", "output": "d", "history": []}
    rows = read(tmp_path, swift, alpaca, {"prompt": "c", "completion": "d", "score": 1}, {"response": "d"})
    assert [[(m.role[0], m.content) for m in got.messages] for got in rows] == [
        [("s", "s"), ("u", "a"), ("a", "b"), ("a", "b2"), ("u", "c"), ("a", "d")],
        [("u", "c\nmore"), ("a", "d")],
        [("u", "c"), ("a", "d")],
        [("a", "d")],
    ]
    assert reasons(rows[3]) == ["loss_false"]
    assert {got.source.format for got in rows} == {"prompt_response"}
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    (got,) = read(tmp_path, {"question": "c", "trajectory": json.dumps(turns), "output": "d"})
    assert (got.source.format, [message.content for message in got.messages]) == ("openai_chat", ["a", "b"])
    with pytest.raises(InputError, match=r"data.jsonl:1: messages\[0\]: expected an object"):
        read(tmp_path, {**swift, "history": ["a"]})


def test_xlam(tmp_path: Path) -> None:
    parameters = {
        "q": {"description": "What.", "type": "str"}, "n": {"description": "How many.", "type": "int", "default": 3},
        "of": {"description": "Where.", "type": "List[str], optional"}, "any": {"description": "", "type": "Any"},
    }  # fmt: skip
    tools = [{"name": "look", "description": "Looks.", "parameters": parameters}]
    answers = [json.loads(CALL), {"name": "look", "arguments": {"q": "b"}}]
    row = {"id": 1, "query": "Two.", "answers": json.dumps(answers), "tools": json.dumps(tools)}
    (got,) = read(tmp_path, row)
    assert got.messages == (
        Message(role="user", content="Two."),
        Message(role="assistant", tool_calls=(LOOK, ToolCall(name="look", arguments='{"q": "b"}'))),
    )
    assert got.tools is not None
    assert got.tools[0].parameters == {
        "type": "object",
        "properties": {
            "q": {"description": "What.", "type": "string"},
            "n": {"description": "How many.", "type": "integer", "default": 3},
            "of": {"description": "Where.", "type": "array"},
            "any": {"description": ""},
        },
        "required": ["q", "any"],
    }
    with pytest.raises(InputError, match=r"data.jsonl:1: messages\[1\].tool_calls: text that is not JSON"):
        read(tmp_path, {**row, "answers": "look()"})


def test_schemas_with_words_of_python_and_a_parameter_named_type(tmp_path: Path) -> None:
    schema = {"type": "dict", "properties": {"type": {"type": "float"}, "x": {"type": ["string", "null"]}}}
    tools = [{"name": "f", "parameters": schema}, {"name": "g", "parameters": {}}]
    (got,) = read(tmp_path, {"messages": [{"role": "assistant", "content": "a"}], "tools": tools})
    assert [tool.parameters for tool in got.tools or ()] == [
        {"type": "object", "properties": {"type": {"type": "number"}, "x": {"type": ["string", "null"]}}},
        {},
    ]


def test_r2e_gym(tmp_path: Path) -> None:
    call = "<function=execute_bash>\n<parameter=cmd>ls</parameter>\n</function>"
    steps = [
        {"step_idx": 0, "thought": "I look.", "action": call, "observation": "a.py", "done": False},
        {"step_idx": 1, "thought": "", "action": "<function=finish>\n</function>", "observation": None, "done": True},
    ]
    row = {"trajectory_steps": steps, "problem_statement": "Mend it.", "docker_image": "repo:1", "reward": 1.0}
    (got,) = read(tmp_path, row)
    assert (got.syntax, got.task_id, got.outcome, got.source.format) == ("xml", "repo:1", 1.0, "r2e_gym")
    assert [message.literal or message.content for message in got.messages] == [
        "Mend it.", f"I look.\n\n{call}", "a.py", "<function=finish>\n</function>"
    ]  # fmt: skip
    assert reasons(got) == ["call", "call"]
    with pytest.raises(InputError, match=r"messages\[1\]: expected an object, found text"):
        read(tmp_path, {**row, "trajectory_steps": ["a"]})


def test_swe_agent_messages_of_nebius(tmp_path: Path) -> None:
    turns = [
        {"role": "system", "text": None, "system_prompt": "You act.", "mask": False, "cutoff_date": "01.01.2023"},
        {"role": "user", "text": "Issue.", "system_prompt": None, "mask": False, "cutoff_date": None},
        {"role": "ai", "text": "I look.\n```\nls\n```", "system_prompt": None, "mask": False, "cutoff_date": None},
    ]
    (got,) = read(tmp_path, {"instance_id": "i", "target": False, "trajectory": turns, "exit_status": "submitted"})
    assert [(message.role, message.content) for message in got.messages] == [
        ("system", "You act."), ("user", "Issue."), ("assistant", "I look.\n```\nls\n```")
    ]  # fmt: skip
    assert (got.task_id, got.outcome, got.syntax) == ("i", 0.0, None)


def test_toucan(tmp_path: Path) -> None:
    """Qwen-Agent writes text and call as two messages; the system message is what Kimi's template makes of tools."""
    tools = [{"type": "function", "function": {"name": "look", "description": "Looks."}}]
    declared = f"<|im_system|>tool_declare<|im_middle|>{json.dumps(tools)}<|im_end|>"
    call = {"name": "look", "arguments": '{"at": "a"}'}
    turns = [
        {"role": "system", "content": declared},
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": "I look."},
        {"role": "assistant", "content": "", "function_call": call},
        {"role": "assistant", "content": "", "function_call": call},
        {"role": "function", "content": "seen", "name": "look"},
        {"role": "function", "content": "seen", "name": "look"},
        {"role": "assistant", "content": "Done."},
    ]
    (got,) = read(tmp_path, {"uuid": "u", "messages": json.dumps(turns)})
    assert [message.role for message in got.messages] == ["user", "assistant", "tool", "tool", "assistant"]
    assert got.messages[1] == Message(role="assistant", content="I look.", tool_calls=(LOOK, LOOK))
    assert got.tools == (Tool(name="look", description="Looks."),)
    assert reasons(got) == ["call", "message"]


def test_swe_smith_rows(tmp_path: Path) -> None:
    """Messages as JSON text, results with a list of ids, tools nowhere."""
    call = {"id": "c", "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls"}'}, "index": 0}
    turns = [
        {"agent": "main", "content": "S", "message_type": "system_prompt", "role": "system"},
        {"role": "assistant", "content": "Look.", "action": "ls", "thought": "Look.", "tool_calls": [call]},
        {"role": "tool", "content": [{"type": "text", "text": "a.py"}], "tool_call_ids": ["c"]},
    ]
    (got,) = read(tmp_path, {"messages": json.dumps(turns), "instance_id": "i", "resolved": True, "traj_id": "t"})
    assert [message.tool_call_id for message in got.messages] == [None, None, "c"]
    assert (got.tools, got.outcome, got.syntax, reasons(got)) == (None, 1.0, None, ["call"])


def test_rows_without_messages_hold_no_turn_and_tables_of_tools_are_no_trajectories(tmp_path: Path) -> None:
    tools = json.loads(TOOLS)
    (two,) = read(tmp_path, {"trajectory": [{"role": "user"}], "tools": tools})
    assert len(two.messages) == 1
    with pytest.raises(InputError, match="an empty conversation"):
        read(tmp_path, {"trajectory": [], "target": True})
    with pytest.raises(InputError, match="no trajectory; pass the file with --tools"):
        read(tmp_path, {"tools": tools})
    with pytest.raises(InputError, match="BFCL"):
        read(tmp_path, {"id": "a", "question": [[{"role": "user", "content": "?"}]], "function": tools})


REAL = {
    "openai_chat/msswift_conversations.jsonl": (3, 5, 5),
    "openai_chat/msswift_sharegpt.jsonl": (3, 5, 5),
    "openai_chat/msswift_swift_pre.jsonl": (3, 3, 0),
    "sharegpt_hermes/adp_codeactinstruct.sft.json": (5, 18, 18),
    "sharegpt_hermes/axolotl_missingturns.json": (1, 6, 5),
    "sharegpt_hermes/llamafactory_reason_tool_use_demo_50.jsonl": (50, 112, 112),
    "openhands/swe_gym_openhands.raw.json": (5, 88, 82),
}
"""Trajectories, turns (of `gpt`, `assistant`, `function_call`, `response`), candidates; counted in the raw files.

No candidates: responses without a prompt, an empty answer, the third and later of equal calls.
"""


@pytest.mark.parametrize("name", REAL)
def test_real_files(name: str) -> None:
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"{path} is not there; set PIVOTRL_SHARED to the folder that holds trajectories/")
    got = list(read_path(path))
    turns = [reason for one in got for reason in reasons(one)]
    assert (len(got), len(turns), sum(reason in ("call", "message") for reason in turns)) == REAL[name]


def test_real_parallel_calls_have_their_results() -> None:
    path = SHARED / "sharegpt_hermes" / "llamafactory_reason_tool_use_demo_50.jsonl"
    if not path.exists():
        pytest.skip(f"{path} is not there; set PIVOTRL_SHARED to the folder that holds trajectories/")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row, got in zip(rows, read_path(path), strict=True):
        parts = [part for message in row["messages"] for part in message["content"]]
        raw = [json.loads(part["value"]) for part in parts if part["type"] == "tool_call"]
        calls = [call for message in got.messages for call in message.tool_calls]
        assert [(call.name, call.parsed.value) for call in calls] == [(one["name"], one["arguments"]) for one in raw]
        results = sum(message.role == "tool" for message in got.messages)
        assert results in (len(calls), len(calls) - len(got.messages[-1].tool_calls))
