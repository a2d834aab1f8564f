"""Readers: right values on real shapes, right refusals, and no traceback on any bytes."""

from __future__ import annotations

import gzip
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pivotrl.candidates import CandidateRules, extract
from pivotrl.errors import ConfigError, InputError, MissingError
from pivotrl.storage import decode, dump_json
from pivotrl.trajectories import read_path, read_tool_lists
from pivotrl.trajectories.jsonfile import read_values
from pivotrl.trajectories.messages import read_tools
from pivotrl.types import Message, SkippedTurn, Tool, ToolCall, Trajectory

SHARED = Path(os.environ.get("PIVOTRL_SHARED", Path(__file__).parents[2] / "shared" / "data")) / "trajectories"
TOOL = {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object"}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": 12345678901234567890}'}}
CHAT = [
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "Look"}, {"type": "text", "text": "there"}]},
    {"role": "assistant", "content": None, "reasoning_content": "why", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "seen"},
    {"role": "assistant", "content": "Done."},
]
PIVOT = {
    "trajectory_id": 7,
    "responses_create_params": {
        "instructions": "Be brief.",
        "input": [
            {"role": "user", "content": "Hi"},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Two looks."}]},
            {"type": "function_call", "call_id": "a", "name": "look", "arguments": "{}"},
            {"type": "function_call", "call_id": "b", "name": "look", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "b", "output": "B"},
            {"type": "function_call_output", "call_id": "a", "output": "A"},
        ],
        "tools": [{"type": "function", "name": "look", "parameters": {"type": "object"}}],
    },
    "expected_action": {"type": "function_call", "name": "look", "arguments": '{"x": 1}'},
}
TAU1 = {
    "task_id": 3,
    "reward": 1.0,
    "info": {},
    "trial": 0,
    "traj": [{"role": "system", "content": "# Airline Agent Policy\n"}, *CHAT[1:]],
}
SIM_MESSAGES = [
    {"role": "assistant", "content": "Hi! How can I help you today?", "tool_calls": None},
    {"role": "user", "content": "No data.", "tool_calls": None},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "k", "name": "look", "arguments": {"é": 1}, "requestor": "assistant"}],
        "raw_data": {"message": {"reasoning_content": "look first"}},
    },
    {"role": "tool", "id": "k", "content": "nothing", "requestor": "assistant", "error": True},
    {
        "role": "user",
        "content": None,
        "tool_calls": [{"id": "u", "name": "toggle", "arguments": {}, "requestor": "user"}],
    },
    {"role": "tool", "id": "u", "content": "toggled", "requestor": "user", "error": False},
    {"role": "user", "content": "###STOP###"},
]
TAU2 = {
    "info": {"environment_info": {"domain_name": "telecom", "policy": "The policy.", "tool_defs": None}},
    "tasks": [],
    "simulations": [{"id": "s", "task_id": "t9", "trial": 1, "reward_info": {"reward": 0.0}, "messages": SIM_MESSAGES}],
}
AGENT_SUITE = {
    "benchmark_name": "taubench",
    "task_name": "retail",
    "messages": [*CHAT[:2], {**CHAT[2]}, {"role": "user", "content": "Error: nobody"}, CHAT[4]],
    "eval_result": {"score": 1.0},
    "meta": {"id": "5"},
}
GYM_TAU2 = {
    "responses_create_params": {
        "input": [{"role": "system", "content": "Prompt."}],
        "tools": PIVOT["responses_create_params"]["tools"],
    },
    "response": {"output": []},
    "config": {"domain": "telecom"},
    "result": {"task_id": "t9", "reward_info": {"reward": 1.0}, "messages": SIM_MESSAGES},
}
LOG = {
    "messages": CHAT[:4],
    "tools": [TOOL],
    "response": {"choices": [{"message": CHAT[4], "finish_reason": "length"}]},
}
SHAREGPT = {
    "system": "Be brief.",
    "tools": json.dumps([TOOL]),
    "conversations": [
        {"from": "human", "value": "Look."},
        {"from": "function_call", "value": json.dumps([CALL["function"]] * 2)},
        {"from": "observation", "value": '["a", "b"]'},
        {"from": "gpt", "value": "Done.", "loss": None},
    ],
}
TEXT = {
    "messages": [
        {"role": "user", "content": '<tools>{"name": "f"}</tools>\nAction: [{"name": "f"}]'},
        {"role": "assistant", "content": '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call><tool_response>1'},
        {"role": "user", "content": "---- BEGIN FUNCTION #1: f ----\nDescription: d\n  (1) a (string, required): b"},
        {"role": "assistant", "content": "Thought: t\nAction: f[x]"},
        {"role": "assistant", "content": "[f(x=1)]<search>a</search><information>b</information>"},
    ]
}
LANGCHAIN = [
    {"type": "system", "data": {"content": "Be brief.", "additional_kwargs": {}, "type": "system", "id": None}},
    {"content": "Look.", "response_metadata": {}, "type": "human", "name": None, "id": "h1", "example": False},
    {
        "lc": 1,
        "type": "constructor",
        "id": ["langchain", "schema", "messages", "AIMessage"],
        "kwargs": {
            "content": [
                {"type": "reasoning", "summary": [{"type": "summary_text", "text": "why"}], "id": "rs_1"},
                {"type": "text", "text": "Two looks."},
                {"type": "tool_use", "id": "c1", "name": "look", "input": {"at": "é"}},
                {"type": "tool_use", "id": "c2", "name": "look", "input": {}},
            ],
            "type": "ai",
            "id": "run--1",
            "tool_calls": [{"name": "look", "args": {"at": "é"}, "id": "c1", "type": "tool_call"}],
            "invalid_tool_calls": [
                {"type": "invalid_tool_call", "id": "c2", "name": "look", "args": '{"at": ', "error": "not JSON"}
            ],
        },
    },
    {"type": "tool", "data": {"content": "seen", "tool_call_id": "c1", "status": "error", "artifact": {"x": 1}}},
]
LANGSMITH = {
    "run_type": "llm",
    "inputs": {"messages": [LANGCHAIN]},
    "outputs": {
        "generations": [[{"text": "Done.", "type": "ChatGeneration", "message": {
            "lc": 1, "type": "constructor", "id": ["langchain", "schema", "messages", "AIMessageChunk"],
            "kwargs": {"content": "Done.", "response_metadata": {"finish_reason": "length"}, "tool_call_chunks": []},
        }}]],
        "type": "LLMResult",
    },
    "extra": {"invocation_params": {"tools": [TOOL]}},
}  # fmt: skip
ROWS = [
    {"messages": CHAT, "tools": [TOOL], "task_id": "t", "success": True},
    LOG,
    PIVOT,
    TAU1,
    TAU2,
    AGENT_SUITE,
    GYM_TAU2,
    SHAREGPT,
    {"query": "?", "answers": json.dumps([CALL["function"]]), "tools": json.dumps([TOOL])},
    {"query": "?", "response": "!", "history": [["a", "b"]], "system": "s"},
    {"trajectory_steps": [{"thought": "t", "action": "<function=f></function>", "observation": "o"}]},
    {"messages": [{"role": "assistant", "content": [{"type": "tool_call", "value": json.dumps(CALL["function"])}]}]},
    TEXT,
    {"messages": LANGCHAIN},
    LANGSMITH,
]


def write(tmp_path: Path, *records: object, name: str = "data.jsonl") -> Path:
    path = tmp_path / name
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def read(tmp_path: Path, *records: object) -> list[Trajectory]:
    return list(read_path(write(tmp_path, *records)))


def shared(*parts: str) -> Path:
    path = SHARED.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"{path} is not there; set PIVOTRL_SHARED to the folder that holds trajectories/")
    return path


def test_openai_chat_row(tmp_path: Path) -> None:
    (got,) = read(
        tmp_path, {"messages": CHAT, "tools": [TOOL], "instance_id": "repo-1", "resolved": 1, "domain": "repo"}
    )
    assert got.id == "data:1"
    assert (got.task_id, got.outcome, got.domain) == ("repo-1", 1.0, "repo")
    assert (got.source.format, got.source.line, got.source.index) == ("openai_chat", 1, None)
    assert got.tools == (Tool(name="look", description="Looks.", parameters={"type": "object"}),)
    call = ToolCall(name="look", arguments='{"at": 12345678901234567890}', id="c1")
    assert got.messages == (
        Message(role="system", content="Be brief."),
        Message(role="user", content="Look\nthere"),
        Message(role="assistant", reasoning="why", tool_calls=(call,)),
        Message(role="tool", content="seen", tool_call_id="c1"),
        Message(role="assistant", content="Done."),
    )
    assert got.messages[2].tool_calls[0].parsed.value == {"at": 12345678901234567890}


@pytest.mark.parametrize(
    "row",
    [
        {"messages": CHAT},
        {"conversation": CHAT, "final_messages": CHAT[:2]},
        {"conversations": CHAT},
        {"trajectory": CHAT},
        {"history": CHAT},
        {"final_messages": CHAT},
        {"prompt": CHAT[:2], "completion": CHAT[2:]},
        {"messages": json.dumps(CHAT)},
        {"request": {"body": {"messages": CHAT[:4]}}, "response": {"body": {"choices": [{"message": CHAT[4]}]}}},
        {"messages": CHAT[:4], "response": {"choices": [{"message": CHAT[4]}]}},
        CHAT,
    ],
)
def test_containers_are_one_thing(tmp_path: Path, row: object) -> None:
    (got,) = read(tmp_path, row)
    (plain,) = read(tmp_path, {"messages": CHAT})
    assert got.messages == plain.messages
    assert got.tools is None


def as_langchain(message: dict, form: str) -> dict:
    """A message of the chat schema as the library writes it: `messages_to_dict`, `model_dump`, `dumps`, its chunks."""
    kinds = {"developer": "system", "user": "human", "assistant": "ai"}
    kind = kinds.get(message["role"], message["role"])
    kwargs = {"reasoning_content": why} if (why := message.get("reasoning_content")) else {}
    data = {"content": message["content"] or "", "additional_kwargs": kwargs, "response_metadata": {}, "type": kind}
    data |= {"name": message.get("name"), "id": None}
    if kind == "ai":
        given = message.get("tool_calls", [])
        calls = [(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in given]
        data["tool_calls"] = [
            {"name": name, "args": json.loads(text) if form != "chunk" else {}, "id": key, "type": "tool_call"}
            for key, name, text in calls
            if not text.endswith(": ")
        ]
        data["invalid_tool_calls"] = [
            {"type": "invalid_tool_call", "name": name, "args": text, "id": key, "error": "Function arguments ..."}
            for key, name, text in calls
            if text.endswith(": ")
        ]
        if form == "chunk":
            pieces = [{"name": name, "args": text, "id": key, "index": 0} for key, name, text in calls]
            data |= {"type": "AIMessageChunk", "tool_call_chunks": pieces, "chunk_position": None}
    if kind == "tool":
        data |= {"tool_call_id": message["tool_call_id"], "artifact": None, "status": "success"}
    named = {"ai": "AI"}.get(kind, kind.title()) + "Message"
    whole = {key: value for key, value in data.items() if value or key == "content"}
    return {
        "dict": {"type": kind, "data": data},
        "flat": data,
        "lc": {"lc": 1, "type": "constructor", "id": ["langchain", "schema", "messages", named], "kwargs": whole},
        "js": {"lc": 1, "type": "constructor", "id": ["langchain_core", "messages", named], "kwargs": whole},
        "chunk": data,
    }[form]


@pytest.mark.parametrize("form", ["dict", "flat", "lc", "js", "chunk"])
def test_a_chat_written_by_langchain_has_the_same_candidates(tmp_path: Path, form: str) -> None:
    again = {"id": "c2", "type": "function", "function": {"name": "look", "arguments": '{"é": [1, null]}'}}
    broken = {"id": "c3", "type": "function", "function": {"name": "look", "arguments": '{"at": '}}
    chat = [
        *CHAT[:4],
        {"role": "assistant", "content": "Two more.", "tool_calls": [again, broken]},
        {"role": "tool", "tool_call_id": "c3", "content": "Error: not JSON"},
        {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "seen"}], "name": "look"},
        CHAT[4],
        {
            "role": "user",
            "content": [{"type": "text", "text": "And?"}, {"type": "image_url", "image_url": {"url": "x"}}],
        },
        {"role": "assistant", "content": "Nothing."},
    ]
    row = {"tools": [TOOL], "task_id": "t", "reward": 1}
    (plain,) = read(tmp_path, {"messages": chat, **row})
    written = [as_langchain(message, form) for message in chat]
    for record in ({"messages": written, **row}, {"values": {"messages": written}, "next": [], **row}):
        (got,) = read(tmp_path, record)
        assert got.source.format == "langchain"
        for rules in (CandidateRules(), CandidateRules(keep_tool_errors=True)):
            assert list(extract(replace(got, source=plain.source), rules)) == list(extract(plain, rules))
        assert (got.messages, got.tools, got.task_id, got.outcome) == (plain.messages, plain.tools, "t", 1.0)
    for record in (written, {"messages": json.dumps(written)}):
        (bare,) = read(tmp_path, record)
        assert bare.messages == plain.messages


def test_langchain_parts_of_content_and_broken_calls(tmp_path: Path) -> None:
    (got,) = read(tmp_path, {"messages": LANGCHAIN})
    calls = (
        ToolCall(name="look", arguments='{"at": "é"}', id="c1"),
        ToolCall(name="look", arguments='{"at": ', id="c2"),
    )
    assert got.messages == (
        Message(role="system", content="Be brief."),
        Message(role="user", content="Look."),
        Message(role="assistant", content="Two looks.", reasoning="why", tool_calls=calls),
        Message(role="tool", content="seen", tool_call_id="c1", error=True),
    )
    (turn,) = extract(got, CandidateRules())
    assert isinstance(turn, SkippedTurn)
    assert turn.reason == "bad_arguments"


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"content": "", "additional_kwargs": {"tool_calls": [CALL]}}, {"tool_calls": [CALL]}),
        ({"content": "", "additional_kwargs": {"function_call": CALL["function"]}},
         {"function_call": CALL["function"]}),
        ({"content": "", "additional_kwargs": {"refusal": "No."}}, {"content": "No."}),
        ({"content": "a", "additional_kwargs": {"reasoning": {"summary": [{"type": "summary_text", "text": "hm"}]}}},
         {"content": "a", "reasoning": "hm"}),
        ({"content": [{"type": "thinking", "thinking": "hm", "signature": "s"}, "a"]},
         {"content": "a", "reasoning": "hm"}),
        ({"content": [{"type": "reasoning_content", "reasoning_content": {"text": "hm"}}, {"text": "a"}]},
         {"content": "a", "reasoning": "hm"}),
        ({"content": [{"type": "reasoning", "id": "rs_1"}, {"type": "redacted_thinking", "data": "x"}, "a"]},
         {"content": "a"}),
        ({"content": [{"type": "tool_call", "name": "f", "args": {}, "id": "1"},
                      {"type": "invalid_tool_call", "name": "f", "args": "{", "id": "2"}], "tool_calls": []},
         {"tool_calls": [{"name": "f", "arguments": {}, "id": "1"}, {"name": "f", "arguments": "{", "id": "2"}]}),
        ({"content": [{"type": "function_call", "name": "f", "arguments": "{}", "call_id": "1", "id": "fc_1"}],
          "tool_calls": [{"name": "f", "args": {}, "id": "1"}]},
         {"tool_calls": [{"name": "f", "arguments": "{}", "id": "1"}]}),
        ({"content": "", "tool_call_chunks": [{"name": "f", "args": "", "id": "1", "index": 0}]},
         {"tool_calls": [{"name": "f", "arguments": "{}", "id": "1"}]}),
        ({"content": [{"type": "server_tool_call", "name": "search"}]}, {"content": [{"type": "server_tool_call"}]}),
        ({"content": "a", "response_metadata": {"stop_reason": "max_tokens"}},
         {"content": "a", "loss": False, "excluded": "truncated"}),
        ({"content": "a", "response_metadata": {"finish_reason": "stop"}, "name": "b"}, {"content": "a", "name": "b"}),
        ({"content": "a", "type": "chat", "role": "assistant"}, {"content": "a"}),
    ],
)  # fmt: skip
def test_what_langchain_writes_into_an_answer(tmp_path: Path, fields: dict, wanted: dict) -> None:
    user = {"role": "user", "content": "Go."}
    (got,) = read(tmp_path, {"messages": [user, {"type": "ai", **fields}]})
    (plain,) = read(tmp_path, {"messages": [user, {"role": "assistant", **wanted}]})
    assert (got.source.format, got.messages) == ("langchain", plain.messages)


def test_a_langsmith_run_ends_with_its_answer(tmp_path: Path) -> None:
    flat = {**LANGSMITH, "inputs": {"messages": LANGCHAIN}}
    for got in read(tmp_path, LANGSMITH, flat):
        assert got.messages[-1] == Message(role="assistant", content="Done.", excluded="truncated")
        assert [message.role for message in got.messages] == ["system", "user", "assistant", "tool", "assistant"]
        assert got.tools == (Tool(name="look", description="Looks.", parameters={"type": "object"}),)


def test_a_logged_request_and_its_response_on_two_lines_are_one_record(tmp_path: Path) -> None:
    request = {"request": {"body": {"messages": CHAT[:4], "tools": [{"function": {"name": "look"}}]}}}
    response = {"response": {"body": {"choices": [{"message": CHAT[4]}]}}}
    first, second = read(tmp_path, request, response, request)
    assert [len(first.messages), len(second.messages)] == [5, 4]
    assert (first.source.line, second.source.line) == (1, 3)
    assert first.tools == (Tool(name="look"),)
    with pytest.raises(InputError, match="without its request"):
        read(tmp_path, response)
    others = read(tmp_path, {"messages": CHAT, "request": "by phone"}, LOG)
    assert [len(got.messages) for got in others] == [5, 5]


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        ({"name": "look"}, None),
        ({"name": "look", "arguments": None}, "null"),
        ({"name": "look", "arguments": {}}, "{}"),
        ({"name": "look", "arguments": ""}, ""),
        ({"name": "look", "arguments": {"é": [1, 10**20]}}, '{"é": [1, 100000000000000000000]}'),
        ({"id": "c", "function": {"name": "look", "arguments": "{ }"}}, "{ }"),
        (json.dumps({"function": {"name": "look", "arguments": "{}"}}), "{}"),
    ],
)
def test_call_shapes_keep_absent_null_and_empty_apart(tmp_path: Path, call: object, arguments: str | None) -> None:
    (got,) = read(tmp_path, {"messages": [{"role": "assistant", "tool_calls": [call, call]}]})
    assert [c.arguments for c in got.messages[0].tool_calls] == [arguments, arguments]


def test_message_shapes(tmp_path: Path) -> None:
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {}}, "b"]},
        {"role": "assistant", "content": "", "function_call": {"name": "look", "arguments": "{}"}},
        {"role": "function", "name": "look", "content": "r"},
        {"role": "assistant", "content": "no", "loss": False},
        {"role": "assistant", "content": "no", "weight": 0},
        {"role": "assistant", "content": [], "thinking": "t"},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "deep"}, {"type": "text", "text": "x"}]},
        {"role": "assistant", "content": None, "refusal": "I cannot."},
    ]
    (got,) = read(tmp_path, {"messages": messages})
    user, legacy, result, loss, weight, empty, parts, refusal = got.messages
    assert (user.content, user.omitted) == ("a\nb", ("image_url",))
    assert legacy.tool_calls == (ToolCall(name="look", arguments="{}"),)
    assert (result.role, result.name, result.tool_call_id) == ("tool", "look", None)
    assert loss.excluded == weight.excluded == "loss_false"
    assert (empty.content, empty.reasoning) == (None, "t")
    assert (parts.content, parts.reasoning) == ("x", "deep")
    assert refusal.content == "I cannot."


def test_tools_are_unknown_none_or_given(tmp_path: Path) -> None:
    flat = {"name": "look", "parameters": {"type": "object"}}
    given = (None, [], [TOOL], [flat], json.dumps([flat]))
    lists = [got.tools for got in read(tmp_path, *({"messages": CHAT, "tools": tools} for tools in given))]
    assert lists[0] is None
    assert lists[1] == ()
    assert all(tools is not None and tools[0].name == "look" for tools in lists[2:])
    (oai,) = read(tmp_path, {"messages": CHAT, "info": {"oai_tools": [TOOL]}})
    assert oai.tools is not None


def test_tools_that_are_nested_without_end_are_refused() -> None:
    deep: list = []
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(InputError, match="tools: nested too deeply"):
        read_tools([{"name": "look", "parameters": {"x": deep}}], "tools")


def test_nulls_that_a_table_padded_a_schema_with_are_dropped(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "enum": None, "default": None}, "b": None}}
    (got,) = read(tmp_path, {"messages": CHAT, "tools": [{"name": "look", "parameters": schema}]})
    assert got.tools is not None
    assert got.tools[0].parameters == {"type": "object", "properties": {"a": {"type": "string", "default": None}}}


@pytest.mark.parametrize(
    ("extra", "outcome"),
    [
        ({"reward": 0.25}, 0.25), ({"success": False}, 0.0), ({"eval_result": {"score": 1}}, 1.0),
        ({"reward": 7}, None), ({"test_result": {"report": {"resolved": True}}}, 1.0),
        ({"reward": "1"}, 1.0), ({"reward": "0.0"}, 0.0),
        ({"reward": "good"}, None), ({"reward": -0.1}, 0.0), ({}, None), ({"reward": 10**400}, None),
        ({"reward": -(10**400)}, None), ({"reward": float("nan")}, None), ({"reward": float("nan"), "success": 1}, 1.0),
    ],
)  # fmt: skip
def test_outcomes_are_clear_or_unknown(tmp_path: Path, extra: dict, outcome: float | None) -> None:
    (got,) = read(tmp_path, {"conversation": CHAT, **extra})
    assert got.outcome == outcome


def test_truncated_response_is_no_demonstration(tmp_path: Path) -> None:
    (got,) = read(tmp_path, LOG)
    assert [message.excluded for message in got.messages if message.role == "assistant"] == [None, "truncated"]


def test_nemo_gym_pivot_row(tmp_path: Path) -> None:
    (got,) = read(tmp_path, PIVOT)
    assert (got.task_id, got.outcome, got.source.format) == ("trajectory_id:7", None, "nemo_gym")
    calls = (ToolCall(name="look", arguments="{}", id="a"), ToolCall(name="look", arguments="{}", id="b"))
    assert got.messages == (
        Message(role="system", content="Be brief."),
        Message(role="user", content="Hi"),
        Message(
            role="assistant", content="Two looks.", reasoning="hm", tool_calls=calls, excluded="prefix_of_pivot_row"
        ),
        Message(role="tool", content="B", tool_call_id="b"),
        Message(role="tool", content="A", tool_call_id="a"),
        Message(role="assistant", tool_calls=(ToolCall(name="look", arguments='{"x": 1}'),)),
    )


def test_nemo_gym_harness_and_declared_tools(tmp_path: Path) -> None:
    """Rows of the multi-harness server name their harness, and may hold their tools beside what the model is told."""
    params = {key: value for key, value in PIVOT["responses_create_params"].items() if key != "tools"}
    declared = [{"type": "function", "name": "other", "parameters": {"type": "object"}}]
    row = {**PIVOT, "harness": "codex", "declared_tools": declared}
    (got,) = read_path(write(tmp_path, {**row, "responses_create_params": params}))
    assert (got.domain, [tool.name for tool in got.tools]) == ("codex", ["other"])
    (got,) = read_path(write(tmp_path, {**row, "domain": "shop"}))
    assert (got.domain, [tool.name for tool in got.tools]) == ("shop", ["look"])
    with pytest.raises(InputError, match=r"declared_tools\[0\]"):
        list(read_path(write(tmp_path, {**row, "responses_create_params": params, "declared_tools": [5]})))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"expected_action": {"type": "message", "content": "Hi"}}, Message(role="assistant", content="Hi")),
        ({"expected_action": '{"name": "crop", "arguments": {"i": 0}}'},
         Message(role="assistant", tool_calls=(ToolCall(name="crop", arguments='{"i": 0}'),))),
        ({"expected_action": {"type": "function_call_batch",
                              "calls": [{"name": "a"}, {"name": "b", "arguments": {}}]}},
         Message(role="assistant", tool_calls=(ToolCall(name="a", arguments=None),
                                                       ToolCall(name="b", arguments="{}")))),
        ({"expected_answer": '{"commands": []}'}, Message(role="assistant", content='{"commands": []}')),
    ],
)  # fmt: skip
def test_expected_actions(tmp_path: Path, fields: dict, message: Message) -> None:
    (got,) = read(tmp_path, {"responses_create_params": {"input": "Go"}, **fields})
    assert got.messages == (Message(role="user", content="Go"), message)
    assert got.tools is None


def test_tau_bench_record(tmp_path: Path) -> None:
    (got,) = read(tmp_path, [TAU1])
    assert (got.id, got.task_id, got.domain, got.outcome) == ("data:1:0", "airline/3", "airline", 1.0)
    assert got.source.format == "tau_bench"
    assert [m.excluded for m in got.messages if m.role == "assistant"] == [None, None]


def test_tau2_keeps_what_the_agent_saw(tmp_path: Path) -> None:
    (got,) = read(tmp_path, TAU2)
    assert (got.task_id, got.domain, got.outcome, got.tools) == ("telecom/t9", "telecom", 0.0, None)
    assert got.messages == (
        Message(role="system", content="The policy."),
        Message(role="assistant", content="Hi! How can I help you today?", excluded="scripted_greeting"),
        Message(role="user", content="No data."),
        Message(
            role="assistant",
            reasoning="look first",
            tool_calls=(ToolCall(name="look", arguments='{"é": 1}', id="k"),),
        ),
        Message(role="tool", content="nothing", tool_call_id="k", error=True),
        Message(role="user", content="###STOP###"),
    )


def test_gym_rollouts_of_tau2_bring_prompt_and_tools(tmp_path: Path) -> None:
    (got,) = read(tmp_path, GYM_TAU2)
    assert got.messages[0] == Message(role="system", content="Prompt.")
    assert got.tools is not None
    assert (got.tools[0].name, got.outcome, got.task_id) == ("look", 1.0, "telecom/t9")


def test_layouts_of_tau_are_told_apart_where_keys_are_missing_or_mixed(tmp_path: Path) -> None:
    (suite,) = read(tmp_path, {**AGENT_SUITE, "traj": [], "result": {}})
    assert suite.task_id == "retail/5"
    (single,) = read(tmp_path, {**TAU2["simulations"][0], "result": {}, "traj": []} | {"traj": CHAT})
    assert (single.task_id, len(single.messages)) == ("data/t9", 5)
    (gym,) = read(tmp_path, {**GYM_TAU2, "eval_result": {}})
    assert gym.task_id == "telecom/t9"


def test_agent_suite_without_a_tool_role_gives_results_by_position(tmp_path: Path) -> None:
    (got,) = read(tmp_path, AGENT_SUITE)
    assert got.messages[3] == Message(role="tool", content="Error: nobody")
    assert (got.task_id, got.outcome) == ("retail/5", 1.0)


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"", r"data: the file is empty"),
        (b"\n \n", r"data: the file is empty"),
        (b'{"messages": []}\n{"messages": \n', r"data:2: not JSON \(Expecting value\); fix or remove the line"),
        (b'{"messages"\n{"messages": []}\n', r"data:1: not JSON"),
        (b'{\n "messages": [\n}', r"data:3: not JSON"),
        (b'{"messages": "\xff"}', r"data:1: not UTF-8"),
        (b'{"messages": 5}', r"data:1: messages: expected a list, found a number"),
        (b'{"messages": [5]}', r"data:1: messages\[0\]: expected an object, found a number"),
        (b'{"messages": [{"role": "oracle"}]}', r"messages\[0\].role: 'oracle' is no role"),
        (b'{"messages": [{"role": "user", "content": 1}]}', r"messages\[0\].content: expected text or a list of parts"),
        (b'{"messages": [{"role": "assistant", "tool_calls": {}}, {"role": "assistant", "tool_calls": [{"id": 1}]}]}',
         r"messages\[1\].tool_calls\[0\].name: expected text, found null"),
        (b'[{"messages": [], "tools": [3]}]', r"data:1\[0\]: tools\[0\]: expected an object"),
        (b'{"messages": [], "tools": [{"name": "a", "parameters": {"m": 18446744073709551616}}]}', r"beyond 64 bits"),
        (b'{"simulations": {}}', r"simulations: expected a list, found an object"),
        (b'{"responses_create_params": {"input": 4}, "expected_action": {}}', r"input: expected text or a list"),
        (b'{"responses_create_params": {"input": ""}, "expected_action": {"type": "z"}}', r"expected_action.type: 'z'"),
        (b"[" * 100000, r"nested too deeply"),
        (b'{"prompt": "a", "target": "b"}', r"no known trajectory format: looked for tau_bench, .*openai_chat"),
        (b'{"type": "system", "data": {"content": "x"}}\n{"type": "human", "data": {"content": "x"}}', r":1: one mess"),
        (b'{"type": "human", "content": "x"}\n{"type": "ai", "content": "y"}', r":1: one message per record; put each"),
        (b'{"lc": 1, "type": "constructor", "id": ["HumanMessage"], "kwargs": {"content": "x"}}', r":1: one messag"),
        (b'{"messages": [{"type": "human", "content": "x"}, {"type": "ai"}]}', r"messages\[1\].role: expected text"),
        (b'{"messages": [{"type": "human", "content": "x"}, {"type": "remove", "content": ""}]}', r"role: 'remove' is"),
        (b'{"messages": [{"type": "ai", "content": "", "tool_calls": [{"args": {}}]}]}', r"tool_calls\[0\].name: exp"),
        (b'{"messages": [{"type": "AIMessageChunk", "content": "a", "id": "r"}, {"type": "AIMessageChunk", "id": "r", '
         b'"content": "b"}]}', r":1: messages\[1\]: a piece of the message before it; give sums of chunks"),
        (b'{"inputs": {"messages": [[{"type": "human", "content": "x"}], []]}, "outputs": {"generations": [[{"message":'
         b' {"type": "ai", "content": "y"}}]]}}', r":1: a run with several answers or conversations; give each"),
        (b'{"run_type": "chain", "inputs": {"messages": [{"type": "human", "content": "x"}]}, "outputs": {"messages": '
         b'[]}}', r":1: LangSmith run without `outputs.generations`; give those of LangChain's chat models"),
        (b'{"messages": [{"type": "user", "content": "x"}, {"type": "gemini", "content": "y"}]}', r"Gemini CLI log"),
        (b'{"type": "user.message", "data": {"content": "x"}}', r"Copilot CLI events"),
        (b"17", r"no known trajectory format"),
        (b"PAR1....", r"cannot be read \(.*Parquet"),
        (b"\x00\x01", r"a binary file"),
        (b"\x1f\x8b12345", r"cannot be read"),
    ],
)  # fmt: skip
def test_errors_say_where_and_what(tmp_path: Path, content: bytes, error: str) -> None:
    path = tmp_path / "data"
    path.write_bytes(content)
    with pytest.raises(InputError, match=error) as caught:
        list(read_path(path))
    assert "\n" not in str(caught.value)


def test_missing_file_and_unknown_format(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="no such file"):
        list(read_path(tmp_path / "none.jsonl"))
    with pytest.raises(ConfigError, match=r"auto, openhands, .*openai_chat; or package"):
        list(read_path(tmp_path / "none.jsonl", "chatml"))
    with pytest.raises(InputError, match="looked for nemo_gym"):
        list(read_path(write(tmp_path, {"messages": CHAT}), "nemo_gym"))


def test_a_damaged_first_line_costs_that_line_alone() -> None:
    damaged, *rest = read_values([b"12:04 start\n", b'{"a": 1}\n', b'{"a": 2}\n'], "data")
    assert str(damaged).startswith("data:1: not JSON")
    assert rest == [(2, {"a": 1}), (3, {"a": 2})]
    assert list(read_values([b"[\n", b'{"a": 1}\n', b"]\n"], "data")) == [(None, [{"a": 1}])]
    assert list(read_values([b"[1,\n", b'{"a": 1}\n', b"]\n"], "data")) == [(None, [1, {"a": 1}])]
    damaged, *rest = read_values([b'[{"role": "us\n', b'{"a": 1}\n', b'{"a": 2}\n'], "data")
    assert str(damaged).startswith("data:1: not JSON")
    assert rest == [(2, {"a": 1}), (3, {"a": 2})]
    for listed in ([b"[\n", b'{"a": 1}\n', b"]]\n"], [b'[{"a": 1},\n', b'{"a": 2},\n', b'{"a"\n', b"]\n"]):
        with pytest.raises(InputError, match="not JSON"):  # a damaged list is not read in parts
            list(read_values(listed, "data"))


def test_bom_gzip_blank_lines_and_documents(tmp_path: Path) -> None:
    line = json.dumps({"messages": CHAT}).encode()
    (tmp_path / "bom.jsonl").write_bytes(b"\xef\xbb\xbf" + line + b"\r\n\r\n" + line + b"\r\n")
    assert [got.source.line for got in read_path(tmp_path / "bom.jsonl")] == [1, 3]
    (tmp_path / "data.jsonl.gz").write_bytes(gzip.compress(line + b"\n" + line))
    assert [got.id for got in read_path(tmp_path / "data.jsonl.gz")] == ["data:1", "data:2"]
    (tmp_path / "pretty.json").write_text(json.dumps([{"messages": CHAT}] * 2, indent=1))
    assert [(got.id, got.source.index) for got in read_path(tmp_path / "pretty.json")] == [
        ("pretty:0", 0),
        ("pretty:1", 1),
    ]


def test_lone_surrogates_become_replacement_characters(tmp_path: Path) -> None:
    arguments = json.dumps({"x": "\ud800", "y": "😀"})
    messages = [{"role": "assistant", "content": "a\udfff😀", "tool_calls": [{"name": "f", "arguments": arguments}]}]
    (got,) = read(tmp_path, {"messages": messages})
    assert got.messages[0].content == "a�😀"
    assert got.messages[0].tool_calls[0].parsed.value == {"x": "�", "y": "😀"}
    (tmp_path / "raw").write_bytes(b'{"messages": [{"role": "user", "content": "\xed\xa0\x80"}]}')
    (raw,) = read_path(tmp_path / "raw")
    assert raw.messages[0].content == "�"


def test_nan_is_no_reward_and_no_argument(tmp_path: Path) -> None:
    call = {"name": "f", "arguments": {"x": float("nan")}}
    (got,) = read(tmp_path, {"messages": [{"role": "assistant", "tool_calls": [call]}], "reward": float("nan")})
    assert got.outcome is None
    assert got.messages[0].tool_calls[0].parsed.error is not None


def test_reading_is_lazy(tmp_path: Path) -> None:
    path = write(tmp_path, {"messages": CHAT})
    path.write_text(path.read_text() + "broken\n")
    rows = read_path(path)
    assert next(rows).id == "data:1"
    with pytest.raises(InputError, match=":2: not JSON"):
        next(rows)


def test_tool_files(tmp_path: Path) -> None:
    listed = read_tool_lists(write(tmp_path, [TOOL, {"name": "go"}], name="a.json"))
    assert [tool.name for tool in listed[0]] == ["look", "go"]
    by_name = read_tool_lists(write(tmp_path, {"look": {"description": "d"}, "go": {}}, name="b.json"))
    assert [tool.name for tool in by_name[0]] == ["look", "go"]
    rows = read_tool_lists(write(tmp_path, PIVOT, PIVOT, {"tools": [{"name": "go"}]}, name="c.jsonl"))
    assert [[tool.name for tool in tools] for tools in rows] == [["look"], ["go"]]
    with pytest.raises(InputError, match="no tool schemas"):
        read_tool_lists(write(tmp_path, [], name="d.json"))


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.just(10**400)
    | st.text(max_size=5)
    | st.sampled_from(["user", "assistant", "{}", "[]"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["role", "content", "type", "name"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@st.composite
def mutated_rows(draw: st.DrawFn) -> object:
    """A row of some format, or of two at once, with one to three values somewhere inside replaced or dropped."""
    row = json.loads(json.dumps(draw(st.sampled_from(ROWS)) | draw(st.sampled_from([{}, *ROWS]))))
    for _ in range(draw(st.integers(1, 3))):
        node = row
        while isinstance(node, dict | list) and node:
            key = draw(st.sampled_from(list(node) if isinstance(node, dict) else range(len(node))))
            if not isinstance(node[key], dict | list) or not node[key] or draw(st.booleans()):
                if draw(st.booleans()):
                    node[key] = draw(JSON)
                else:
                    del node[key]
                break
            node = node[key]
    return row


def survives(path: Path) -> None:
    """Reading gives trajectories that can be stored, read back and taken apart, or an InputError of one line."""
    trajectories: list[Trajectory] = []
    line = ""
    try:
        trajectories = list(read_path(path))
    except InputError as error:
        line = str(error)
    assert "\n" not in line
    for trajectory in trajectories:
        assert decode(dump_json(trajectory), Trajectory, "test").messages == trajectory.messages
        list(extract(trajectory, CandidateRules()))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(row=mutated_rows())
def test_mutated_rows_give_trajectories_or_input_errors(tmp_path: Path, row: object) -> None:
    survives(write(tmp_path, row))


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_mutated_bytes_give_trajectories_or_input_errors(tmp_path: Path, data: st.DataObject) -> None:
    raw = bytearray(json.dumps(data.draw(st.sampled_from(ROWS)), ensure_ascii=False).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at : at + data.draw(st.integers(0, 3))] = data.draw(
            st.binary(max_size=3) | st.sampled_from([b"\\ud800", b"\n", b"1e999"])
        )
    (tmp_path / "raw").write_bytes(bytes(raw))
    survives(tmp_path / "raw")


COUNTS = {
    "openai_chat/agentpile_multimodal_messages.json": (1, 2),
    "openai_chat/benchflow_clean-pass_llm_trajectory.jsonl": (1, 1),
    "openai_chat/benchflow_reward-hack_llm_trajectory.jsonl": (1, 1),
    "openai_chat/msswift_conversations.jsonl": (3, 5),
    "openai_chat/msswift_sharegpt.jsonl": (3, 5),
    "openai_chat/msswift_swift_pre.jsonl": (3, 3),
    "openai_chat/openhands_fncall_claude_sonnet4_log.json": (1, 6),  # five in `messages`, and the response
    "openai_chat/spider2_sf_bq024_claude37.json": (1, 25),
    "openai_chat/verifiers_math_python_gpt41mini.jsonl": (15, 45),
    "agentinstruct_misc/code_feedback.raw.json": (10, 34),
    "agentinstruct_misc/eto.raw.json": (3, 15),
    "agenttuning/agenttuning_alfworld.raw.json": (5, 89),
    "agenttuning/agenttuning_kg.raw.json": (5, 80),
    "agenttuning/agenttuning_os.adp_std.json": "ADP standardised",
    "agenttuning/agenttuning_webshop.raw.json": (5, 22),
    "search_traces/sailorfog-QA.jsonl": "questions and answers",
    "search_traces/webdancer_sample_traj.jsonl": (12, 24),
    "sharegpt_hermes/adp_codeactinstruct.sft.json": (5, 18),
    "sharegpt_hermes/axolotl_missingturns.json": (1, 6),
    "sharegpt_hermes/llamafactory_reason_tool_use_demo_50.jsonl": (50, 112),
    "toucan/toucan_1_5m.adp_std.json": "ADP standardised",
    "tau_bench/MockAirlineDomainEnv-few_shot.jsonl": "few-shot display text",
    "tau_bench/agentpile_model-gem.jsonl": (2, 5),
    "tau_bench/apollo_gpt4o_a.json": (1, 30),
    "tau_bench/avaljot_toolcalling_0-100.json": (100, 1418),
    "tau_bench/gpt-4o-airline.first40.json": (40, 571),
    "tau2_results/activegraph_5sims.json": (5, 48),
    "tau2_results/agentpile_alpha-model.jsonl": (2, 6),
    "tau2_results/grok3mini_airline_relaxed.json": (4, 43),
    "tau2_results/mock_tasks.json": "task list",
    "tau2_results/nemogym_tau2.rollouts.jsonl": (5, 30),
    "tau2_results/nemogym_tau2.test_data.json": (1, 3),
    "tau2_results/toolorchestra_airline_gpt5.json": (50, 505),
    "tau2_results/voice_experiment_results.json": "without simulations",
    "tau2_results/whissle_hd_retail_n5.json": (5, 54),
    "nemotron_pivot/image_tools_pivot.example.jsonl": (5, 5),
    "nemotron_pivot/single_step_tool_use.example.jsonl": (5, 20),
    "nemotron_pivot/swe_pivot.example.jsonl": (5, 5),
    "nemotron_pivot/terminus_judge.example.jsonl": (5, 5),
}


def test_every_real_file_of_these_formats_is_in_the_table() -> None:
    folders = {name.partition("/")[0] for name in COUNTS}
    found = {f"{folder}/{path.name}" for folder in folders for path in shared(folder).iterdir()}
    assert found == COUNTS.keys()


@pytest.mark.parametrize("name", COUNTS)
def test_real_files(name: str) -> None:
    holds(shared(*name.split("/")), COUNTS[name])


def holds(path: Path, expected: tuple[int, int] | str) -> None:
    """A file has so many trajectories and assistant turns, or is refused for this reason."""
    if isinstance(expected, str):
        with pytest.raises(InputError, match=expected):
            list(read_path(path))
        return
    got = list(read_path(path))
    assert (len(got), sum(message.role == "assistant" for t in got for message in t.messages)) == expected


def test_real_outcomes_tools_and_reasoning() -> None:
    airline = list(read_path(shared("tau_bench", "gpt-4o-airline.first40.json")))
    assert [sum(t.outcome == value for t in airline) for value in (0.0, 1.0)] == [26, 14]
    grok = list(read_path(shared("tau2_results", "grok3mini_airline_relaxed.json")))
    assert {t.task_id for t in grok} == {"airline-relaxed/8"}
    assert sum(message.reasoning is not None for t in grok for message in t.messages) == 39
    gym = list(read_path(shared("tau2_results", "nemogym_tau2.rollouts.jsonl")))
    assert [len(t.tools or ()) for t in gym] == [16, 13, 14, 13, 13]
    assert all((t.messages[0].content or "").startswith("<instructions>") for t in gym)


def test_every_other_real_file_is_read_or_refused_with_one_line() -> None:
    for path in sorted(path for path in shared().rglob("*") if path.is_file()):
        survives(path)
