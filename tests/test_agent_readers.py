"""Readers of agents' own files: one state per model call, what the model saw, and counts taken from the raw files."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pivotrl.candidates import CandidateRules, extract
from pivotrl.errors import InputError
from pivotrl.ingestion import IngestConfig, ingest
from pivotrl.trajectories import read_path
from pivotrl.types import Message, SkippedTurn, Tool, ToolCall, Trajectory
from test_readers import CHAT, JSON, SIM_MESSAGES, read, shared, survives, write

LOOK = {"type": "function", "name": "look", "parameters": {"type": "object"}}
ASKED = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Look"}]
OUTPUT = [
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "one"}]},
    {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "two"}], "summary": []},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Looking."}]},
    {"type": "function_call", "call_id": "a", "name": "look", "arguments": '{"at": 1}'},
    {"type": "function_call", "call_id": "b", "name": "look", "arguments": '{"at": 2}'},
    {"type": "function_call_output", "call_id": "b", "output": "B"},
    {"type": "function_call_output", "call_id": "a", "output": [{"type": "input_text", "text": "A"}]},
    {"type": "message", "role": "assistant", "content": "Done."},
]
ROLLOUT = {
    "responses_create_params": {"input": ASKED, "tools": [LOOK]},
    "response": {"output": OUTPUT, "status": "completed"},
    "reward": 1.0,
    "instance_id": "i-1",
}
READ = (
    Message(role="system", content="Be brief."),
    Message(role="user", content="Look"),
    Message(
        role="assistant",
        content="Looking.",
        reasoning="one\ntwo",
        tool_calls=(
            ToolCall(name="look", arguments='{"at": 1}', id="a"),
            ToolCall(name="look", arguments='{"at": 2}', id="b"),
        ),
    ),
    Message(role="tool", content="B", tool_call_id="b"),
    Message(role="tool", content="A", tool_call_id="a"),
    Message(role="assistant", content="Done."),
)


def turns(trajectory: Trajectory) -> list[str]:
    """`ok` or the reason, for every assistant turn."""
    found = extract(trajectory, CandidateRules())
    return [turn.reason if isinstance(turn, SkippedTurn) else "ok" for turn in found]


def texts(trajectory: Trajectory) -> list[str]:
    return [f"{message.role[0]}:{message.content}" for message in trajectory.messages]


def test_a_rollout_is_one_conversation_with_one_turn_per_model_call(tmp_path: Path) -> None:
    (got,) = read(tmp_path, ROLLOUT)
    assert got.messages == READ
    assert (got.source.format, got.task_id, got.outcome) == ("openai_responses", "i-1", 1.0)
    assert got.tools == (Tool(name="look", parameters={"type": "object"}),)
    assert turns(got) == ["ok", "ok"]


@pytest.mark.parametrize(
    "row",
    [
        {"input": ASKED, "output": OUTPUT, "tools": [LOOK]},
        {"input": ASKED[1:], "instructions": "Be brief.", "output": OUTPUT, "tools": [LOOK]},
        {"input": "Look", "output": OUTPUT, "instructions": ASKED[:1], "tools": [LOOK]},
        {"request": {"input": ASKED}, "response": {"output": OUTPUT, "tools": [LOOK]}},
        {"request": {"input": "Look"}, "response": {"output": OUTPUT, "instructions": "Be brief."}},
        {"request": {"body": {"input": ASKED}}, "response": {"body": {"output": OUTPUT}}},
        [*ASKED, *OUTPUT],
    ],
)
def test_responses_containers_are_one_thing(tmp_path: Path, row: object) -> None:
    (got,) = read(tmp_path, row)
    assert got.messages == READ
    assert got.source.format == "openai_responses"


def test_calls_of_every_kind_keep_what_the_model_wrote(tmp_path: Path) -> None:
    items = [
        {"type": "custom_tool_call", "call_id": "p", "name": "apply_patch", "input": "*** Begin\n"},
        {"type": "custom_tool_call_output", "call_id": "p", "output": "ok"},
        {"type": "local_shell_call", "call_id": "s", "action": {"type": "exec", "command": ["ls"]}},
        {"type": "local_shell_call_output", "id": "s", "output": '{"output": "x"}'},
        {"type": "shell_call", "call_id": "t", "action": {"commands": ["ls"]}},
        {"type": "shell_call_output", "call_id": "t", "output": [{"stdout": "é", "stderr": ""}]},
        {"type": "message", "role": "assistant", "content": "cut", "status": "incomplete"},
    ]
    (got,) = read(tmp_path, {"input": "Go", "output": items})
    calls = [message.tool_calls[0] for message in got.messages if message.tool_calls]
    assert [(call.name, json.loads(call.arguments or "")) for call in calls] == [
        ("apply_patch", {"input": "*** Begin\n"}),
        ("local_shell", {"type": "exec", "command": ["ls"]}),
        ("shell", {"commands": ["ls"]}),
    ]
    results = [message.content for message in got.messages if message.role == "tool"]
    assert results == ["ok", '{"output": "x"}', '[{"stdout": "é", "stderr": ""}]']
    assert turns(got) == ["ok", "ok", "ok", "truncated"]


def test_what_ran_at_the_server_cannot_be_shown(tmp_path: Path) -> None:
    search = {"type": "web_search_call", "id": "w", "status": "completed"}
    (got,) = read(
        tmp_path, {"input": "Go", "output": [search, OUTPUT[2], {"role": "user", "content": "And?"}, OUTPUT[7]]}
    )
    assert turns(got) == ["non_text_action", "non_text_state"]
    (compacted,) = read(tmp_path, {"input": [{"type": "compaction", "encrypted_content": "x"}], "output": [OUTPUT[7]]})
    assert turns(compacted) == ["non_text_state"]


def test_rollouts_that_ended_early_or_had_tools_of_their_own(tmp_path: Path) -> None:
    response = {"output": OUTPUT, "status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    (cut,) = read(tmp_path, {**ROLLOUT, "response": response})
    assert turns(cut) == ["ok", "truncated"]
    (own,) = read(tmp_path, {**ROLLOUT, "responses_create_params": {"input": ASKED, "tools": []}})
    assert own.tools is None
    (none,) = read(
        tmp_path, {"responses_create_params": {"input": "Hi", "tools": []}, "response": {"output": OUTPUT[7:]}}
    )
    assert none.tools == ()
    (masked,) = read(
        tmp_path, {**ROLLOUT, "reward": 0.0, "mask_sample": True, "instance_id": None, "_ng_task_index": 3}
    )
    assert (masked.outcome, masked.task_id) == (None, "data:3")
    (after,) = read(tmp_path, {**ROLLOUT, "responses_create_params": {"input": [*ASKED, OUTPUT[7], ASKED[1]]}})
    assert turns(after) == ["prefix_of_pivot_row", "ok", "ok"]
    (failed,) = read(tmp_path, {**ROLLOUT, "response": {"output": []}})
    assert turns(failed) == []


def test_what_is_no_rollout_is_refused(tmp_path: Path) -> None:
    for row, reason in (
        ({"responses_create_params": {"input": ASKED}}, "task without an action"),
        ({"object": "response", "output": OUTPUT}, "without its request"),
    ):
        with pytest.raises(InputError, match=reason):
            read(tmp_path, row)


def told(role: str, content: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, "agent": "main", **more}


SYSTEM, TASK = told("system", "S"), told("user", "T")
SAID = [told("assistant", f"say {i}\n```\nls {i}\n```", action=f"ls {i}") for i in range(3)]
SEEN = [told("user", f"saw {i}") for i in range(3)]
V0 = {
    "environment": "swe_main",
    "trajectory": [
        {"action": f"ls {i}", "observation": f"saw {i}", "response": SAID[i]["content"], "state": "{}", "thought": "t"}
        for i in range(3)
    ],
    "history": [
        SYSTEM,
        told("user", "A demonstration: ...", is_demo=True),
        told("assistant", "shown", is_demo=True),
        TASK,
        *(message for pair in zip(SAID, SEEN, strict=True) for message in pair),
        told("assistant", "Exit due to cost limit", action="exit_cost"),
    ],
    "info": {"exit_status": "exit_cost"},
}


def with_queries(*queries: list[dict[str, Any]], key: str = "query", **more: Any) -> dict[str, Any]:
    """A `.traj` of later versions, whose steps say what the model was given."""
    steps = [{**step, key: query} for step, query in zip(V0["trajectory"], queries, strict=True)]
    history = [SYSTEM, TASK, SAID[0], SEEN[0], SAID[1], SEEN[1], SAID[2], SEEN[2]]
    return {"trajectory": steps, "history": history, "info": {}, **more}


QUERY_0 = [SYSTEM, TASK]
QUERY_1 = [*QUERY_0, SAID[0], SEEN[0]]
QUERY_2 = [*QUERY_1, SAID[1], SEEN[1]]


def test_swe_agent_v0_is_read_from_its_history(tmp_path: Path) -> None:
    path = tmp_path / "repo__name-7.traj"
    path.write_text(json.dumps(V0, indent=2))
    (got,) = read_path(path)
    assert (got.source.format, got.task_id, got.tools, got.outcome) == ("swe_agent", "repo__name-7", None, None)
    assert turns(got) == ["demonstration", "ok", "ok", "ok", "synthetic"]
    assert texts(got)[3:5] == ["u:T", "a:say 0\n```\nls 0\n```"]


def test_a_demonstration_with_nothing_but_its_history(tmp_path: Path) -> None:
    (got,) = read(tmp_path, {"history": V0["history"]})
    assert turns(got) == ["demonstration", "ok", "ok", "ok", "synthetic"]
    assert got.task_id is None


def test_queries_that_go_on_are_one_trajectory(tmp_path: Path) -> None:
    settings = json.dumps({"problem_statement": {"id": "repo-1"}})
    (got,) = read(tmp_path, with_queries(QUERY_0, QUERY_1, QUERY_2, replay_config=settings))
    assert got.task_id == "repo-1"
    assert texts(got) == [f"{m['role'][0]}:{m['content']}" for m in [*QUERY_2, SAID[2]]]
    assert turns(got) == ["ok", "ok", "ok"]


def test_a_history_processor_begins_a_segment(tmp_path: Path) -> None:
    """Version 1.0 keeps the next step's input as `messages`: the same run, shifted by one."""
    elided = [SYSTEM, TASK, SAID[0], told("user", "Old output omitted"), SAID[1], SEEN[1]]
    after = [*elided, SAID[2], SEEN[2]]
    late = with_queries(QUERY_1, elided, after, key="messages")
    exact = with_queries(QUERY_0, QUERY_1, elided)
    for first, second in (read(tmp_path, exact), read(tmp_path, late)):
        assert (first.id, second.id, second.parent_id) == ("data:1", "data:1~1", "data:1")
        assert [turns(first), turns(second)] == [["ok", "ok"], ["copied_context", "copied_context", "ok"]]
        assert texts(second) == [f"{m['role'][0]}:{m['content']}" for m in [*elided, SAID[2]]]


def test_an_output_that_the_harness_refused_is_no_demonstration(tmp_path: Path) -> None:
    """A requery gives the model its own bad output and the reason; neither comes into the history."""
    bad, why = told("assistant", "no action"), told("user", "Your output was not formatted correctly")
    row = with_queries(QUERY_0, QUERY_1, QUERY_2)
    row["trajectory"][1:1] = [{"action": "", "observation": "", "response": "no action", "query": QUERY_1}]
    row["trajectory"][2]["query"] = [*QUERY_1, bad, why]
    first, second = read(tmp_path, row)
    assert turns(first) == ["ok", "rejected_output", "ok"]
    assert texts(first)[-2:] == ["u:Your output was not formatted correctly", f"a:{SAID[1]['content']}"]
    assert turns(second) == ["copied_context", "copied_context", "ok"]
    row["trajectory"][3] |= {"action": "", "response": "Exit due to cost limit", "query": []}
    assert [turns(part) for part in read(tmp_path, row)] == [["ok", "rejected_output", "ok", "synthetic"]]


def test_swe_agent_function_calls_and_attempts(tmp_path: Path) -> None:
    call = {"id": "c", "type": "function", "index": 1, "function": {"name": "bash", "arguments": '{"command":"ls"}'}}
    said = told("assistant", "", tool_calls=[call], thinking_blocks=[{"type": "thinking", "thinking": "hm"}])
    result = told("tool", "", tool_call_ids=["c"]) | {"content": [{"type": "text", "text": "a\r\n"}]}
    step = {"action": "ls", "observation": "a\r\n", "response": "", "thought": "", "query": QUERY_0}
    attempt = {"trajectory": [step], "history": [*QUERY_0, said, result], "info": {}}
    first, second = read(tmp_path, {"attempts": [attempt, attempt], **attempt})
    assert (first.id, second.id) == ("data:1", "data:1#1")
    assert first.messages == second.messages
    assert first.messages[2:] == (
        Message(
            role="assistant",
            content="",
            reasoning="hm",
            tool_calls=(ToolCall(name="bash", arguments='{"command":"ls"}', id="c"),),
        ),
        Message(role="tool", content="a\r\n", tool_call_id="c"),
    )


def test_mini_swe_agent(tmp_path: Path) -> None:
    extra = {"extra": {"cost": 1, "response": {"choices": [{"finish_reason": "stop"}]}}}
    cut = {"extra": {"response": {"choices": [{"finish_reason": "length"}]}}}
    call = {"id": "c", "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls"}'}}
    text = [
        *ASKED,
        {"role": "assistant", "content": "```bash\nls\n```", **extra},
        {"role": "user", "content": "<output>"},
    ]
    native = [
        *ASKED,
        {"role": "assistant", "content": None, "tool_calls": [call], **extra},
        {"role": "tool", "tool_call_id": "c", "content": "a", **extra},
        {"role": "assistant", "content": "half", **cut},
        {"role": "exit", "content": "", "extra": {"exit_status": "Submitted"}},
    ]
    items = [*ASKED, {"object": "response", "output": OUTPUT[:5], "tools": [LOOK], **extra}, *OUTPUT[5:7]]
    rows = [
        {"info": {"exit_status": "Submitted"}, "messages": text, "trajectory_format": "mini-swe-agent-1"},
        {"info": {}, "messages": native, "trajectory_format": "mini-swe-agent-1.1", "instance_id": "repo-1"},
        {"info": {"mini_version": "2.4.6"}, "messages": items, "trajectory_format": "mini-swe-agent-1.1"},
    ]
    one, two, three = read(tmp_path, *rows)
    assert {got.source.format for got in (one, two, three)} == {"mini_swe_agent"}
    assert texts(one) == ["s:Be brief.", "u:Look", "a:```bash\nls\n```", "u:<output>"]
    assert (two.task_id, [message.role for message in two.messages][-1]) == ("repo-1", "assistant")
    assert turns(two) == ["ok", "truncated"]
    assert two.messages[2].tool_calls == (ToolCall(name="bash", arguments='{"command": "ls"}', id="c"),)
    assert (three.messages, two.tools) == (READ[:5], None)
    assert three.tools == (Tool(name="look", parameters={"type": "object"}),)


def act(key: int, name: str, call: str, response: str, **more: Any) -> dict[str, Any]:
    """An action of OpenHands version 0, with the response of the model that it was in."""
    calls = [
        {
            "id": made,
            "type": "function",
            "function": {"name": "execute_bash", "arguments": json.dumps({"command": made})},
        }
        for made in response.split("+")
    ]
    message = {"role": "assistant", "content": f"Say {response}", "tool_calls": calls}
    meta = {
        "function_name": "execute_bash",
        "tool_call_id": call,
        "model_response": {"id": response, "choices": [{"message": message, "finish_reason": "tool_calls"}]},
        "total_calls_in_response": len(calls),
    }
    args = {"command": call, "thought": "", "is_input": False}
    return {
        "id": key,
        "timestamp": "t",
        "source": "agent",
        "action": name,
        "args": args,
        "tool_call_metadata": meta,
    } | more


def saw(key: int, cause: int | None, call: str | None, text: str, name: str = "run", **extras: Any) -> dict[str, Any]:
    meta = {} if call is None else {"tool_call_metadata": {"tool_call_id": call, "function_name": "execute_bash"}}
    event = {"id": key, "source": "agent", "observation": name, "content": text, "cause": cause, "extras": extras}
    return event | meta


def word(key: int, source: str, text: str) -> dict[str, Any]:
    return {"id": key, "source": source, "action": "message", "args": {"content": text, "image_urls": None}}


BASH = {"type": "function", "function": {"name": "execute_bash", "parameters": {"type": "object"}}}
V0_EVENTS = [
    {"id": 0, "source": "environment", "observation": "agent_state_changed", "content": "", "extras": {}},
    {"id": 1, "source": "agent", "action": "system", "args": {"content": "S", "tools": [BASH]}},
    word(2, "user", "T"),
    {"id": 3, "source": "user", "cause": 2, "observation": "null", "content": "", "extras": {}},
    act(4, "run", "a", "a+b"),
    act(5, "run", "b", "a+b"),
    word(6, "user", "Hurry"),
    saw(7, 5, "b", "B", metadata={"exit_code": 0, "working_dir": "/w", "prefix": "", "suffix": "\n[done]"}),
    saw(8, 4, "a", "no such command", "error"),
    word(9, "agent", "Done."),
]


def test_openhands_events_are_put_together_as_the_harness_does(tmp_path: Path) -> None:
    (got,) = read(tmp_path, V0_EVENTS)
    assert (got.source.format, got.tools) == ("openhands", (Tool(name="execute_bash", parameters={"type": "object"}),))
    assert texts(got) == [
        "s:S", "u:T", "a:Say a+b",
        "t:B\n[done]\n[Current working directory: /w]\n[Command finished with exit code 0]",
        "t:no such command", "u:Hurry", "a:Done.",
    ]  # fmt: skip
    assert [call.id for call in got.messages[2].tool_calls] == ["a", "b"]
    assert [(m.tool_call_id, m.error) for m in got.messages[3:5]] == [("b", None), ("a", True)]
    assert turns(got) == ["tool_error", "ok"]


def test_openhands_containers_are_one_thing(tmp_path: Path) -> None:
    (plain,) = read(tmp_path, V0_EVENTS)
    row = {
        "instance_id": "repo-1",
        "history": V0_EVENTS,
        "test_result": {"git_patch": "", "report": {"resolved": True}},
    }
    (rowed,) = read(tmp_path, row)
    (lines,) = read(tmp_path, *V0_EVENTS)
    (paired,) = read(tmp_path, {"history": [V0_EVENTS[:4], V0_EVENTS[4:]]})
    assert (rowed.task_id, rowed.outcome, lines.id) == ("repo-1", 1.0, "data")
    assert plain.messages == rowed.messages == lines.messages == paired.messages
    run = tmp_path / "in" / "sessions" / "s1"
    (run / "events").mkdir(parents=True)
    for number in (10, 9, *range(8)):
        (run / "events" / f"{number}.json").write_text(json.dumps(V0_EVENTS[min(number, 8)] if number != 9 else {}))
    (run / "events" / "9.json").write_text(json.dumps(V0_EVENTS[9]))
    (run / "events" / "8.json").write_text(json.dumps(V0_EVENTS[8]))
    (run / "events" / "10.json").write_text(json.dumps(word(10, "user", "Bye")))
    result = ingest(IngestConfig(paths=(str(tmp_path / "in"),), run=tmp_path / "run"))
    assert (result.files, result.trajectories, result.assistant_turns) == (1, 1, 2)


def test_actions_without_a_response_are_calls_of_their_fields(tmp_path: Path) -> None:
    """Rows of the issue resolver: no ids, no sources, results in the place behind their action."""
    events = [
        {"action": "message", "content": "Fix it", "images_urls": None, "wait_for_response": False},
        {"action": "run", "command": "ls", "thought": "Look first", "keep_prompt": True, "is_confirmed": "confirmed"},
        {"observation": "run", "content": "a", "command_id": -1, "command": "ls", "exit_code": 0},
        {"action": "message", "content": "May I?", "wait_for_response": True},
        {"action": "message", "content": "Go on", "wait_for_response": False},
        {"action": "finish", "outputs": {}, "thought": "Done"},
    ]
    issue = {"owner": "o", "repo": "r", "number": 5}
    (got,) = read(tmp_path, {"issue": issue, "history": events, "success": True})
    assert (got.task_id, got.outcome) == ("o/r#5", 1.0)
    roles = ["u:Fix it", "a:Look first", "t:a\n[Command finished with exit code 0]", "a:May I?", "u:Go on", "a:Done"]
    assert texts(got) == roles
    calls = [call for message in got.messages for call in message.tool_calls]
    assert [(call.name, call.arguments) for call in calls] == [
        ("run", '{"command": "ls"}'),
        ("finish", '{"outputs": {}}'),
    ]
    assert turns(got) == ["ok", "ok", "ok"]


def test_condensed_histories_are_segments(tmp_path: Path) -> None:
    forget = {"forgotten_event_ids": None, "forgotten_events_start_id": 4, "forgotten_events_end_id": 8}
    condensation = {"id": 10, "source": "agent", "action": "condensation", "args": {**forget, "summary": "So far: B"}}
    first, second = read(
        tmp_path, [*V0_EVENTS, condensation, word(11, "user", "More"), word(12, "agent", "More done.")]
    )
    assert turns(first) == ["tool_error", "ok"]
    assert texts(second) == ["s:S", "u:T", "u:So far: B", "a:Done.", "u:More", "a:More done."]
    assert turns(second) == ["copied_context", "ok"]
    assert second.parent_id == first.id


def test_a_delegate_has_a_history_of_its_own(tmp_path: Path) -> None:
    delegate = {
        "id": 2,
        "source": "agent",
        "action": "delegate",
        "args": {"agent": "B", "inputs": {"task": "x"}, "thought": ""},
    }
    result = {"id": 5, "source": "agent", "observation": "delegate", "content": "found", "cause": 2, "extras": {}}
    events = [
        word(0, "user", "T"),
        delegate,
        word(3, "user", "x"),
        word(4, "agent", "found x"),
        result,
        word(6, "agent", "ok"),
    ]
    main, child = read(tmp_path, events)
    assert texts(main) == ["u:T", "a:None", "t:found", "a:ok"]
    assert texts(child) == ["u:x", "a:found x"]
    assert [turns(main), turns(child), child.parent_id] == [["ok", "ok"], ["ok"], main.id]


def test_what_the_user_ran_is_the_users_word(tmp_path: Path) -> None:
    ran = {"id": 1, "source": "user", "action": "run", "args": {"command": "ls", "thought": ""}}
    (got,) = read(tmp_path, [word(0, "user", "T"), ran, saw(2, 1, None, "a"), word(3, "agent", "ok")])
    assert texts(got) == ["u:T", 'u:User executed run: {"command": "ls"}', "u:a", "a:ok"]
    assert turns(got) == ["ok"]


def sdk(kind: str, name: str, source: str = "agent", **more: Any) -> dict[str, Any]:
    return {"id": name, "timestamp": "t", "source": source, "kind": kind, **more}


def sdk_act(key: str, call: str, response: str, thought: str | None, **more: Any) -> dict[str, Any]:
    made = {"id": call, "name": "terminal", "arguments": json.dumps({"command": call}), "origin": "completion"}
    parts = [] if thought is None else [{"type": "text", "text": thought, "cache_prompt": False}]
    event = sdk("ActionEvent", key, thought=parts, tool_call=made, tool_name="terminal", tool_call_id=call)
    return event | {"llm_response_id": response, "action": {"kind": "TerminalAction", "command": call}} | more


def sdk_saw(key: str, call: str, text: str, **more: Any) -> dict[str, Any]:
    told = {"kind": "TerminalObservation", "content": [{"type": "text", "text": text}], "is_error": False, **more}
    return sdk("ObservationEvent", key, "environment", tool_name="terminal", tool_call_id=call, observation=told)


PROMPT = {"type": "text", "text": "S"}
TERMINAL = {"title": "terminal", "description": "Runs.", "kind": "TerminalTool", "action_type": "TerminalAction"}
MCP = {"title": "read", "mcp_tool": {"name": "read", "input_schema": {"type": "object"}}}
ASK = {"role": "user", "content": [{"type": "text", "text": "T"}]}
SDK_EVENTS = [
    sdk("ConversationStateUpdateEvent", "0", "environment", key="stats", value={}),
    sdk("SystemPromptEvent", "1", system_prompt=PROMPT, dynamic_context={"text": "D"}, tools=[TERMINAL, MCP]),
    sdk("MessageEvent", "2", "user", llm_message=ASK, extended_content=[{"type": "text", "text": "and this"}]),
    sdk_act("3", "a", "r1", "Both", reasoning_content="hm"),
    sdk_act("4", "b", "r1", None),
    sdk_saw("5", "a", "A", metadata={"exit_code": 1, "working_dir": "/w"}),
    sdk("AgentErrorEvent", "6", tool_name="terminal", tool_call_id="b", error="no tool"),
    sdk_act("7", "c", "r2", ""),
    sdk("UserRejectObservation", "8", "user", tool_name="terminal", tool_call_id="c", rejection_reason="not that"),
    sdk("MessageEvent", "9", llm_message={"role": "assistant", "content": [{"type": "text", "text": "Fine."}]}),
]


def test_sdk_events_of_one_response_are_one_message(tmp_path: Path) -> None:
    (got,) = read(tmp_path, *SDK_EVENTS)
    assert got.tools is None  # titles without schemas
    result = "t:A\n[Current working directory: /w]\n[Command finished with exit code 1]"
    assert texts(got) == [
        "s:S\nD",
        "u:T\nand this",
        "a:Both",
        result,
        "t:no tool",
        "a:",
        "t:Action rejected: not that",
        "a:Fine.",
    ]
    assert got.messages[2].reasoning == "hm"
    calls = [(call.id, call.arguments) for call in got.messages[2].tool_calls]
    assert calls == [("a", '{"command": "a"}'), ("b", '{"command": "b"}')]
    assert [message.error for message in got.messages if message.role == "tool"] == [False, True, True]
    assert turns(got) == ["tool_error", "tool_error", "ok"]


def test_sdk_condensation_and_the_tools_of_early_versions(tmp_path: Path) -> None:
    gone = sdk("Condensation", "10", "environment", forgotten_event_ids=["3", "4", "5", "6"], summary="Tried both")
    more = sdk("MessageEvent", "11", "user", llm_message=ASK)
    first, second = read(tmp_path, [*SDK_EVENTS, gone, more, sdk_act("12", "d", "r3", "Again")])
    assert turns(first) == ["tool_error", "tool_error", "ok"]
    assert turns(second) == ["copied_context", "copied_context", "ok"]
    assert texts(second)[2] == "u:Tried both"
    named = {"type": "function", "function": {"name": "terminal", "parameters": {"type": "object"}}}
    early = [{**event, "tools": [named]} if "tools" in event else event for event in SDK_EVENTS]
    assert read(tmp_path, early)[0].tools == (Tool(name="terminal", parameters={"type": "object"}),)


def test_a_folder_of_sdk_events_is_one_conversation(tmp_path: Path) -> None:
    """Also out of an archive; the state beside the events is no event."""
    folder = tmp_path / "in" / "conversations" / "c1"
    (folder / "events").mkdir(parents=True)
    (folder / "base_state.json").write_text(json.dumps({"id": "c1", "agent": {}, "workspace": {}}))
    for number, event in enumerate(SDK_EVENTS):
        (folder / "events" / f"event-{number:05}-{number}.json").write_text(json.dumps(event, indent=2))
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        for path in sorted((tmp_path / "in").rglob("*.json")):
            archive.write(path, path.relative_to(tmp_path / "in"))
    for path, run in ((tmp_path / "in", "one"), (folder, "two"), (tmp_path / "all.zip", "three")):
        result = ingest(IngestConfig(paths=(str(path),), run=tmp_path / run))
        assert (result.trajectories, result.assistant_turns, result.skips, result.refused) == (
            1,
            3,
            {"tool_error": 2},
            [],
        )
    with pytest.raises(InputError, match="give the folder"):
        list(read_path(folder / "base_state.json"))


def test_tau_rows_without_messages_rewards_or_plain_ids(tmp_path: Path) -> None:
    suite = {"benchmark_name": "taubench", "task_name": "airline", "eval_result": {"score": 1.0}}
    rows = [
        {**suite, "messages": CHAT, "meta": {"id": "airline_2", "finish_reason": "user_stop"}},
        {**suite, "messages": CHAT, "meta": {"id": "airline_2", "task_id": 0}},
        {**suite, "messages": [], "eval_result": {"score": None}, "meta": {"id": "2", "finish_reason": "agent_error"}},
        {"messages": SIM_MESSAGES, "task_id": "t", "reward_info": None, "termination_reason": "infrastructure_error"},
        {"messages": None, "task_id": "t", "reward_info": None, "termination_reason": "user_stop"},
    ]
    got = read(tmp_path, *rows)
    assert [t.task_id for t in got] == ["airline/2", "airline/0", "airline/2", "data/t", "data/t"]
    assert [t.outcome for t in got] == [1.0, 1.0, 0.0, 0.0, None]
    assert [len(turns(t)) for t in got] == [2, 2, 0, 2, 0]


def test_an_agent_that_nobody_talks_to_gives_no_greeting(tmp_path: Path) -> None:
    """tau2's solo mode: the first message is a call of the model."""
    (got,) = read(
        tmp_path, {"messages": [SIM_MESSAGES[2], SIM_MESSAGES[3]], "task_id": "t", "reward_info": {"reward": 1}}
    )
    assert turns(got) == ["tool_error"]


def test_a_turn_that_a_harness_puts_in_stays_as_the_model_saw_it(tmp_path: Path) -> None:
    more = {"role": "user", "content": "The tool has finished running. Please continue your reasoning."}
    row = {"benchmark_name": "taubench", "messages": [*CHAT[:4], more, CHAT[4]], "eval_result": {"score": 1.0}}
    (got,) = read(tmp_path, row)
    assert [m.role for m in got.messages] == ["system", "user", "assistant", "tool", "user", "assistant"]
    assert turns(got) == ["ok", "ok"]


def test_a_call_of_nothing_is_no_candidate(tmp_path: Path) -> None:
    (got,) = read(
        tmp_path, {"messages": [ASKED[1], {"role": "assistant", "tool_calls": [{"name": "", "arguments": "{}"}]}]}
    )
    assert turns(got) == ["unknown_tool"]


def test_what_a_row_says_besides_does_not_hide_its_conversation(tmp_path: Path) -> None:
    """Questions, answers and tools beside messages: no reason to refuse them (SWE-rebench, search sets)."""
    beside = {"tools": [BASH], "question": "q", "answer": "a", "function": []}
    for key in ("messages", "trajectory", "conversations"):
        (got,) = read(tmp_path, {key: CHAT, **beside})
        assert len(got.messages) == len(CHAT)


ROWS: list[Any] = [
    ROLLOUT,
    {"input": "Go", "output": OUTPUT},
    V0,
    with_queries(QUERY_0, QUERY_1, QUERY_2),
    with_queries(QUERY_1, QUERY_2, QUERY_2, key="messages"),
    {
        "info": {},
        "messages": [*ASKED, {"object": "response", "output": OUTPUT}],
        "trajectory_format": "mini-swe-agent-1.1",
    },
    {"instance_id": "i", "history": V0_EVENTS},
    {"history": SDK_EVENTS},
]


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_mutated_rows_give_trajectories_or_input_errors(tmp_path: Path, data: st.DataObject) -> None:
    row = json.loads(json.dumps(data.draw(st.sampled_from(ROWS))))
    for _ in range(data.draw(st.integers(1, 3))):
        node = row
        while isinstance(node, dict | list) and node:
            key = data.draw(st.sampled_from(list(node) if isinstance(node, dict) else range(len(node))))
            if not isinstance(node[key], dict | list) or not node[key] or data.draw(st.booleans()):
                node[key] = data.draw(JSON)
                break
            node = node[key]
    survives(write(tmp_path, row))
    if isinstance(row, dict) and isinstance(row.get("history"), list) and row["history"]:
        survives(write(tmp_path, *row["history"]))


def plain(path: Path) -> list[Any]:
    """The records of a file, by `json` alone."""
    text = path.read_text()
    try:
        value = json.loads(text)
    except ValueError:
        return [json.loads(line) for line in text.splitlines()]
    return value if isinstance(value, list) else [value]


def plain_swe(record: Any) -> int:
    return sum(message["role"] == "assistant" for message in record["history"])


def plain_events(record: Any) -> int:
    """Responses of version 0 or of the SDK, and what the agent said without a call; the events as one list."""
    said = {event["tool_call_metadata"]["model_response"]["id"] for event in record if "tool_call_metadata" in event}
    said |= {event["llm_response_id"] for event in record if event.get("kind") == "ActionEvent"}
    words = [event for event in record if event.get("action") == "message" and event["source"] == "agent"]
    return len(said) + len(words)


def plain_resolver(record: Any) -> int:
    """Every action is a turn but the user's: the task, and what follows a message of the agent."""
    actions = [event for event in record["history"] if "action" in event]
    return sum(event["action"] != "message" for event in actions) + sum(
        event["action"] == "message" and at > 0 and actions[at - 1]["action"] != "message"
        for at, event in enumerate(actions)
    )


def plain_items(record: Any) -> int:
    """Runs of items of the model in a response's output."""
    by_model = [item["type"] != "function_call_output" for item in record["response"]["output"]]
    return sum(mine and not before for mine, before in zip(by_model, [False, *by_model], strict=False))


REAL = {
    "swe_agent_traj/ctf_networking_1.traj": (1, 4, 4, plain_swe),
    "swe_agent_traj/humanevalfix-python-0.traj": (1, 5, 5, plain_swe),
    "swe_agent_traj/pydicom__pydicom-1458.traj": (1, 12, 12, plain_swe),
    "swe_agent_traj/swe-agent__test-repo-i1.traj": (1, 5, 5, plain_swe),
    "swe_agent_traj/v0_xml.marshmallow-1867.traj": (1, 11, 11, plain_swe),
    "swe_agent_traj/v1_function_calling.marshmallow-1867.traj": (1, 11, 11, plain_swe),
    "openhands/resolver_output.jsonl": (2, 26, 26, plain_resolver),
    "openhands/runtime_basic_gui_mode.json": (1, 5, 5, plain_events),
    "openhands/runtime_wrong_initial_state.json": (1, 4, 4, plain_events),
    "openhands/sdk_goal_events.jsonl": (1, 2, 0, plain_events),
    "openai_responses/example_rollouts_hermes.jsonl": (5, 147, 55, plain_items),
    "openai_responses/google_search.rollouts.jsonl": (5, 10, 6, plain_items),
    "openai_responses/mini_swe_agent_2.rollouts.jsonl": (5, 62, 5, plain_items),
    "openai_responses/workplace_assistant.rollouts.jsonl": (5, 13, 11, plain_items),
}
REFUSED = {
    "openai_responses/conv_tool_use.parallel.jsonl": "task without an action or a response",
    "openhands/sdkconv_v1_11_5_cli_default_base_state.json": "give the folder",
    "openhands/visualizer_sample.json": "what a viewer shows",
    "openhands/swe_rebench_tools.json": "tool schemas",
    "terminal_bench/mini_results.json": "a score",
    "terminal_bench/orch_sonnet_results.json": "a score",
}


@pytest.mark.parametrize("name", REAL)
def test_real_files_are_counted_right(name: str) -> None:
    trajectories, all_turns, candidates, count = REAL[name]
    path = shared(*name.split("/"))
    got = list(read_path(path))
    found = [reason for trajectory in got for reason in turns(trajectory)]
    assert (len(got), len(found), found.count("ok")) == (trajectories, all_turns, candidates)
    records = plain(path)
    if count is plain_events:
        records = [records]
    assert [count(record) for record in records] == [len(turns(trajectory)) for trajectory in got]


@pytest.mark.parametrize("name", REFUSED)
def test_real_files_without_trajectories_are_refused(name: str) -> None:
    with pytest.raises(InputError, match=REFUSED[name]):
        list(read_path(shared(*name.split("/"))))


def test_a_real_table_with_an_empty_run(tmp_path: Path) -> None:
    """SWE-rebench's, counted by hand: four rows, one empty; five turns call tools that the rows do not list."""
    pytest.importorskip("pyarrow")
    path = shared("openhands", "swe_rebench_trajectories.parquet")
    result = ingest(IngestConfig(paths=(str(path),), run=tmp_path / "run"))
    assert (result.trajectories, result.assistant_turns, sum(result.candidates.values())) == (3, 9, 2)
    assert result.skips == {"unknown_tool": 5, "outcome_below_full": 1, "bad_arguments": 1}
    with pytest.raises(InputError, match=":3: an empty conversation"):
        list(read_path(path))


def test_real_rewards_and_results() -> None:
    """Skips of rollouts are those of failed ones, and a call whose result says `error` (one, in a run that passed)."""
    path = shared("openai_responses", "example_rollouts_hermes.jsonl")
    failed = sum(plain_items(record) for record in plain(path) if record["reward"] < 1)
    found = [reason for trajectory in read_path(path) for reason in turns(trajectory)]
    assert (found.count("outcome_below_full"), found.count("tool_error"), failed) == (91, 1, 91)
    (gui,) = read_path(shared("openhands", "runtime_basic_gui_mode.json"))
    assert [call.name for message in gui.messages for call in message.tool_calls] == [
        "execute_bash", "str_replace_editor", "str_replace_editor", "execute_bash",
    ]  # fmt: skip
    (goal,) = read_path(shared("openhands", "sdk_goal_events.jsonl"))
    assert turns(goal) == ["tool_error", "orphan_in_prefix"]  # a call's event is not in the file, its result is


def test_copies_of_what_terminus_wrote_are_no_calls(tmp_path) -> None:
    text = json.dumps({"analysis": "", "commands": [{"keystrokes": "ls\n"}, {"keystrokes": "pwd\n"}]})
    calls = [{"type": "function_call", "call_id": f"c{at}", "name": "bash_command", "arguments": "{}"} for at in (0, 1)]
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}
    result = {"type": "function_call_output", "call_id": "c1", "output": "New Terminal Output: x"}
    row = {
        "responses_create_params": {"input": "do"},
        "response": {"output": [said, *calls, result, said]},
        "reward": 1,
    }
    (tmp_path / "a.jsonl").write_text(json.dumps(row))
    (trajectory,) = read_path(tmp_path / "a.jsonl")
    assert [(one.role, one.content) for one in trajectory.messages] == [
        ("user", "do"), ("assistant", text), ("user", "New Terminal Output: x"), ("assistant", text),
    ]  # fmt: skip
    assert not any(one.tool_calls for one in trajectory.messages)
