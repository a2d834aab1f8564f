"""Readers of agents' own logs: Anthropic Messages, Claude Code, Codex, OpenCode, ATIF. One turn is one model call."""

from __future__ import annotations

import gzip
import json
import sqlite3
from collections import Counter
from contextlib import ExitStack, closing
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pivotrl.candidates import CandidateRules, extract
from pivotrl.errors import InputError
from pivotrl.ingestion import IngestConfig, ingest
from pivotrl.trajectories import find, read_input, read_path
from pivotrl.types import Candidate, Message, ToolCall, Trajectory
from test_readers import JSON, holds, read, shared, survives, write

USE = {"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "ls", "é": 1}}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "a"}], "is_error": True}
ANTHROPIC = {
    "model": "m",
    "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
    "tools": [{"name": "Bash", "input_schema": {"type": "object"}}, {"type": "bash_20250124", "name": "bash"}],
    "messages": [
        {"role": "user", "content": "Look"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "I look."},
                USE,
                {**USE, "id": "t2"},
            ],
        },
        {"role": "user", "content": [{"type": "text", "text": "Hurry"}, {**RESULT, "tool_use_id": "t2"}, RESULT]},
    ],
}
ANSWER = {
    "type": "message",
    "role": "assistant",
    "content": [{"type": "text", "text": "Done."}],
    "stop_reason": "end_turn",
}


def line(kind: str, uuid: str, parent: str | None, content: object, **fields: object) -> dict:
    """A line of a Claude Code session; `mid` is the id of its message."""
    message = {"role": kind, "content": content, **({"id": fields.pop("mid")} if "mid" in fields else {})}
    return {"type": kind, "uuid": uuid, "parentUuid": parent, "sessionId": "s", "message": message, **fields}


def text(value: str) -> list[dict]:
    return [{"type": "text", "text": value}]


def call(name: str) -> list[dict]:
    return [{**USE, "id": name}]


def result(name: str) -> list[dict]:
    return [{**RESULT, "tool_use_id": name, "content": f"of {name}", "is_error": False}]


CLAUDE = [
    {"type": "file-history-snapshot", "messageId": "x", "snapshot": {}},
    line("user", "u1", None, "Do it"),
    {"type": "attachment", "uuid": "at", "parentUuid": "u1", "sessionId": "s", "attachment": {"type": "todo"}},
    line("assistant", "a1", "at", [{"type": "thinking", "thinking": "hm"}], mid="m1"),
    line("assistant", "a2", "a1", call("c1"), mid="m1"),
    line("assistant", "a3", "a2", call("c2"), mid="m1"),
    line("user", "r1", "a2", result("c1")),
    line("user", "r2", "a3", result("c2")),
    {"type": "system", "subtype": "api_error", "uuid": "e1", "parentUuid": "r2", "sessionId": "s"},
    line("assistant", "a4", "r2", text("API Error: 529"), isApiErrorMessage=True),
    line("assistant", "a5", "a4", text("Done."), mid="m2"),
    {"type": "summary", "summary": "A title", "leafUuid": "a5"},
]
QUEUED = {"type": "queued_command", "prompt": "And?"}
META = {"type": "session_meta", "payload": {"id": "c0", "cwd": "/", "base_instructions": {"text": "You code."}}}


def item(kind: str, **payload: object) -> dict:
    return {"timestamp": "t", "type": "response_item", "payload": {"type": kind, **payload}}


def said(role: str, words: str) -> dict:
    kind = "output_text" if role == "assistant" else "input_text"
    return item("message", role=role, content=[{"type": kind, "text": words}])


CODEX = [
    META,
    {"type": "turn_context", "payload": {"model": "gpt"}},
    said("user", "<environment_context>cwd</environment_context>"),
    said("user", "Fix"),
    {"type": "event_msg", "payload": {"type": "user_message", "message": "Fix"}},
    item("reasoning", summary=[{"type": "summary_text", "text": "look"}], encrypted_content="x"),
    item("function_call", name="shell", call_id="k1", arguments='{"command": ["ls"]}'),
    item("custom_tool_call", name="apply_patch", call_id="k2", input="*** Begin Patch\n"),
    {"type": "event_msg", "payload": {"type": "token_count"}},
    item("function_call_output", call_id="k1", output='{"output": "a", "metadata": {"exit_code": 0}}'),
    item("custom_tool_call_output", call_id="k2", output=[{"type": "input_text", "text": "ok"}]),
    said("assistant", "Fixed."),
]


def part(kind: str, **fields: object) -> dict:
    return {"type": kind, **fields}


def tool(name: str, status: str, **state: object) -> dict:
    return part("tool", tool="bash", callID=name, state={"status": status, "input": {"command": "ls"}, **state})


OPENCODE = {
    "info": {"id": "ses_1", "title": "A title"},
    "messages": [
        {
            "info": {"id": "msg_1", "role": "user", "sessionID": "ses_1"},
            "parts": [
                part("text", text="Do it"),
                part("text", text="not sent", ignored=True),
                part("file", mime="text/plain", url="file:///a"),
            ],
        },
        {
            "info": {"id": "msg_2", "role": "assistant", "sessionID": "ses_1"},
            "parts": [
                part("step-start"),
                part("reasoning", text="hm"),
                part("text", text="I look."),
                tool("k1", "completed", output="a"),
                tool("k2", "error", error="no"),
                part("step-finish", reason="tool-calls"),
                part("step-start"),
                tool("k3", "running"),
                part("patch", files=[]),
                part("step-start"),
                part("text", text="Done"),
                part("step-finish", reason="length"),
            ],
        },
        {"info": {"id": "msg_3", "role": "assistant", "error": {"name": "APIError"}}, "parts": [part("step-start")]},
        {"info": {"id": "msg_4", "role": "user"}, "parts": [part("compaction", auto=True)]},
        {
            "info": {"id": "msg_5", "role": "assistant", "summary": True},
            "parts": [part("step-start"), part("text", text="A summary.")],
        },
        {"info": {"id": "msg_6", "role": "user", "summary": {"diffs": []}}, "parts": [part("text", text="Go on")]},
        {"info": {"id": "msg_7", "role": "assistant"}, "parts": [part("step-start"), part("text", text="Ready.")]},
    ],
}
ATIF = {
    "schema_version": "ATIF-v1.7",
    "session_id": "run-cont-1",
    "agent": {"name": "terminus-2", "version": "1", "tool_definitions": [{"function": {"name": "bash"}}]},
    "steps": [
        {"step_id": 1, "source": "system", "message": "Be brief."},
        {"step_id": 2, "source": "user", "message": [{"type": "text", "text": "Look"}]},
        {"step_id": 3, "source": "agent", "message": "copied", "is_copied_context": True},
        {
            "step_id": 4,
            "source": "agent",
            "message": "I look.",
            "reasoning_content": "hm",
            "tool_calls": [{"tool_call_id": i, "function_name": "bash", "arguments": {"n": i}} for i in ("k1", "k2")],
            "observation": {"results": [{"content": "the terminal"}]},
        },
        {"step_id": 5, "source": "agent", "message": "", "llm_call_count": 0},
        {"step_id": 6, "source": "agent", "message": "two", "llm_call_count": 2},
        {"step_id": 7, "source": "agent", "message": "raw", "observation": {"results": [{"content": "a screen"}]}},
        {
            "step_id": 8,
            "source": "agent",
            "message": "last",
            "tool_calls": [{"tool_call_id": "k3", "function_name": "bash", "arguments": {}}],
            "observation": {"results": [{"source_call_id": "k3", "content": None}]},
        },
    ],
    "subagent_trajectories": [
        {"schema_version": "ATIF-v1.7", "agent": {"name": "sub"}, "steps": [{"source": "user", "message": "Sub"}]}
    ],
}
FILES = [[ANTHROPIC], CLAUDE, CODEX, [OPENCODE], [ATIF]]


def shape(trajectory: Trajectory) -> list[tuple[str, str | None]]:
    """Who speaks, with the first word, or why a turn is excluded."""
    return [(m.role, m.excluded or (m.content or "").split(" ")[0]) for m in trajectory.messages]


def test_anthropic_request(tmp_path: Path) -> None:
    (got,) = read(tmp_path, ANTHROPIC)
    assert got.source.format == "anthropic"
    assert [(tool.name, tool.parameters) for tool in got.tools or ()] == [("Bash", {"type": "object"}), ("bash", None)]
    arguments = '{"command": "ls", "é": 1}'
    assert got.messages == (
        Message(role="system", content="Be brief."),
        Message(role="user", content="Look"),
        Message(
            role="assistant",
            content="I look.",
            reasoning="hm",
            tool_calls=tuple(ToolCall(name="Bash", arguments=arguments, id=i) for i in ("t1", "t2")),
        ),
        Message(role="tool", content="a", tool_call_id="t2", error=True),
        Message(role="tool", content="a", tool_call_id="t1", error=True),
        Message(role="user", content="Hurry"),
    )


@pytest.mark.parametrize(
    "record",
    [
        {"request": {"body": ANTHROPIC}, "response": {"body": ANSWER}},
        {"request": ANTHROPIC, "response": ANSWER},
        {**ANTHROPIC, "response": ANSWER},
        {"custom_id": "1", "params": ANTHROPIC, "result": {"type": "succeeded", "message": ANSWER}},
        {**ANTHROPIC, "messages": [*ANTHROPIC["messages"], ANSWER]},
    ],
)
def test_logs_and_batches_of_anthropic_requests(tmp_path: Path, record: dict) -> None:
    (got,) = read(tmp_path, record)
    assert len(got.messages) == 7
    assert got.messages[-1] == Message(role="assistant", content="Done.")
    assert got.tools is not None


def events(*blocks: tuple[dict, list[dict]], stop: str | None = "tool_use") -> str:
    """A response as the server streams it: each block's start and its pieces."""
    told: list[dict] = [{"type": "message_start", "message": {"role": "assistant", "content": []}}, {"type": "ping"}]
    for index, (start, pieces) in enumerate(blocks):
        told.append({"type": "content_block_start", "index": index, "content_block": start})
        told += [{"type": "content_block_delta", "index": index, "delta": piece} for piece in pieces]
        told.append({"type": "content_block_stop", "index": index})
    told += [{"type": "message_delta", "delta": {"stop_reason": stop}}, {"type": "message_stop"}] if stop else []
    return "".join(f"event: {one['type']}\ndata: {json.dumps(one)}\n\n" for one in told)


def test_streamed_anthropic_responses(tmp_path: Path) -> None:
    """As proxies log them; argument text stays as it came, and a stream that breaks off is a cut answer."""
    blocks = (
        ({"type": "thinking", "thinking": ""}, [{"thinking": "h"}, {"thinking": "m"}, {"signature": "x"}]),
        ({"type": "text", "text": ""}, [{"text": "I "}, {"text": "look."}]),
        ({**USE, "input": {}}, [{"partial_json": ""}, {"partial_json": '{"n":'}, {"partial_json": " 1e0}"}]),
        ({**USE, "id": "t2", "input": {}}, []),
    )
    texts = events(*blocks), events(*blocks[:2], stop=None), "event: error\ndata: {}\n\n"
    whole, cut, failed = read(tmp_path, *({"request": {"body": ANTHROPIC}, "response": {"body_raw": t}} for t in texts))
    calls = tuple(ToolCall(name="Bash", arguments=t, id=i) for t, i in (('{"n": 1e0}', "t1"), ("{}", "t2")))
    assert whole.messages[-1] == Message(role="assistant", content="I look.", reasoning="hm", tool_calls=calls)
    assert (cut.messages[-1].content, cut.messages[-1].excluded) == ("I look.", "truncated")
    assert failed.messages[-1].content == "Hurry"


def test_anthropic_details(tmp_path: Path) -> None:
    served = {"type": "server_tool_use", "id": "w", "name": "web_search", "input": {"query": "q"}}
    found = {"type": "web_search_tool_result", "tool_use_id": "w", "content": [{"encrypted_content": "x"}]}
    ran = {"type": "code_execution_tool_result", "tool_use_id": "w", "content": {"stdout": "1"}}
    content = [*text("I search."), served, found, *text("So."), {**served, "name": "run"}, ran, *text("1.")]
    plain = {
        "system": text("S"),
        "messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "(no content)"}],
    }
    cut = {"request": ANTHROPIC, "response": {**ANSWER, "stop_reason": "max_tokens"}}
    reference = {**RESULT, "content": [{"type": "tool_reference", "tool_name": "Grep"}]}
    first, second, third, bare = read(
        tmp_path, {**ANTHROPIC, "messages": [{"role": "assistant", "content": content}]}, plain, cut,
        [{"role": "user", "content": [reference, {"type": "image", "source": {}}]}],
    )  # fmt: skip
    assert shape(first)[1:] == [
        ("assistant", "I"), ("tool", ""), ("assistant", "So."), ("tool", '{"stdout":'), ("assistant", "1."),
    ]  # fmt: skip
    assert [message.omitted for message in first.messages[1:3]] == [(), ("web_search_tool_result",)]
    assert first.messages[1].tool_calls == (ToolCall(name="web_search", arguments='{"query": "q"}', id="w"),)
    assert second.messages == (
        Message(role="system", content="S"), Message(role="user", content="u"), Message(role="assistant")
    )  # fmt: skip
    assert third.messages[-1].excluded == "truncated"
    assert [(m.role, m.content, m.omitted) for m in bare.messages] == [("tool", "Grep", ()), ("user", None, ("image",))]


def test_openai_rows_stay_openai_rows(tmp_path: Path) -> None:
    chat = [{"role": "system", "content": "s"}, {"role": "user", "content": text("u")}]
    assert [got.source.format for got in read(tmp_path, {"messages": chat}, {"messages": chat[1:]})] == [
        "openai_chat"
    ] * 2


def test_blocks_of_a_claude_message_are_one_call_and_results_stay_with_it(tmp_path: Path) -> None:
    (got,) = read(tmp_path, *CLAUDE)
    assert (got.id, got.task_id, got.parent_id, got.domain, got.tools) == ("data", "s", None, "claude_code", None)
    assert shape(got) == [("user", "Do"), ("assistant", ""), ("tool", "of"), ("tool", "of"), ("assistant", "Done.")]
    assert got.messages[1].reasoning == "hm"
    assert [call.id for call in got.messages[1].tool_calls] == ["c1", "c2"]
    assert [message.tool_call_id for message in got.messages[2:4]] == ["c1", "c2"]


def test_claude_branches_are_segments(tmp_path: Path) -> None:
    """The second prompt was edited: one turn is common, each of the others stands once."""
    rows = [
        *CLAUDE,
        line("user", "u2", "a5", "Old prompt"),
        line("assistant", "b1", "u2", text("Old answer"), mid="m3"),
        line("user", "u3", "a5", "New prompt"),
        line("assistant", "b2", "u3", text("New answer"), mid="m4", model="x"),
        line("user", "u4", None, "Other start"),
        line("assistant", "b3", "u4", text("Other answer"), mid="m5"),
    ]
    old, new, other = read(tmp_path, *rows)
    assert shape(old)[-3:] == [("assistant", "Done."), ("user", "Old"), ("assistant", "Old")]
    assert shape(new)[-3:] == [("assistant", "copied_context"), ("user", "New"), ("assistant", "New")]
    assert shape(other) == [("user", "Other"), ("assistant", "Other")]
    assert [(t.id, t.parent_id, t.task_id) for t in (old, new, other)] == [
        ("data", None, "s"), ("data~1", "data", "s"), ("data~2", "data", "s"),
    ]  # fmt: skip


def test_claude_compaction_sub_agents_and_what_models_never_saw(tmp_path: Path) -> None:
    rows = [
        *CLAUDE,
        {"type": "system", "subtype": "compact_boundary", "uuid": "k", "parentUuid": None, "logicalParentUuid": "a5"},
        line("user", "u2", "k", "The summary", isCompactSummary=True),
        line("assistant", "b1", "u2", text("After"), mid="m3"),
        {"type": "attachment", "uuid": "q", "parentUuid": "b1", "attachment": QUEUED},
        {**line("assistant", "b2", "q", text("No response requested.")), "message": {
            "role": "assistant", "model": "<synthetic>", "content": text("No response requested.")}},
        line("user", "x1", None, "Sub prompt", isSidechain=True, agentId="g"),
        line("assistant", "x2", "x1", text("Sub answer"), mid="y", isSidechain=True, agentId="g"),
    ]  # fmt: skip
    main, after, sub = read(tmp_path, *rows)
    assert len(main.messages) == 5
    assert shape(after) == [("user", "The"), ("assistant", "After"), ("user", "And?"), ("assistant", "synthetic")]
    assert shape(sub) == [("user", "Sub"), ("assistant", "Sub")]
    assert [(t.parent_id, t.task_id) for t in (after, sub)] == [("data", "s")] * 2
    (beside,) = read(tmp_path, *rows[-2:])
    assert (beside.parent_id, beside.task_id) == ("s", "s")


def test_claude_files_that_repeat_or_lack_links(tmp_path: Path) -> None:
    """Copies with the same ids change nothing; without links, lines follow each other."""
    (plain,) = read(tmp_path, *CLAUDE)
    again = [{**row, "uuid": f"{row.get('uuid')}'"} for row in CLAUDE if row["type"] == "assistant"]
    (copied,) = read(tmp_path, *CLAUDE, *CLAUDE, *again)
    bare = [{key: row[key] for key in ("type", "message") if key in row} for row in CLAUDE if row["type"] != "summary"]
    bare = [row for row in bare if "Error" not in json.dumps(row)]
    (linear,) = read(tmp_path, *bare[1:])
    (early,) = read(tmp_path, *CLAUDE[:5], CLAUDE[6], CLAUDE[7], CLAUDE[5], *CLAUDE[8:])
    (web,) = read(tmp_path, {"loglines": CLAUDE, "title": "x"})
    (listed,) = read(tmp_path, CLAUDE)
    assert copied.messages == linear.messages == early.messages == web.messages == listed.messages == plain.messages


def test_claude_stream_json_has_no_prompt(tmp_path: Path) -> None:
    init = {"type": "system", "subtype": "init", "session_id": "s", "tools": ["Bash"]}
    rows = [{"type": row["type"], "message": row["message"], "session_id": "s"} for row in CLAUDE[3:8]]
    sub = {**line("assistant", "z", None, text("Sub"), mid="m9"), "parent_tool_use_id": "c1"}
    end = {"type": "result", "subtype": "success", "result": "Done.", "session_id": "s"}
    got, inner = read(tmp_path, init, *rows, sub, end)
    assert shape(got) == [("assistant", "no_prompt"), ("tool", "of"), ("tool", "of")]
    assert shape(inner) == [("assistant", "no_prompt")]


def test_lines_with_call_and_result_in_one(tmp_path: Path) -> None:
    """The shape of session search tools: a tool record is a call of the message before it."""
    ran = {"role": "tool", "tool_name": "write", "tool_input": '{"a": 1}', "tool_output": "ok"}
    rows = [line("user", "u", None, "Go"), line("assistant", "a", "u", "I write.")]
    rows += [
        {**rows[0], "type": "tool", "uuid": f"t{i}", "parentUuid": p, "message": ran} for i, p in ((1, "a"), (2, "t1"))
    ]
    (got,) = read(tmp_path, *rows, line("assistant", "b", "t2", "Done."))
    assert shape(got) == [
        ("user", "Go"), ("assistant", "I"), ("tool", "ok"), ("assistant", ""), ("tool", "ok"), ("assistant", "Done."),
    ]  # fmt: skip
    assert [call.arguments for message in got.messages for call in message.tool_calls] == ['{"a": 1}'] * 2


@st.composite
def trees(draw: st.DrawFn) -> list[dict]:
    """Sessions whose lines follow any earlier line: prompts, and messages of one to three blocks with results."""
    rows = [line("user", "n0", None, "Start")]
    for index in range(1, draw(st.integers(1, 12))):
        parent = f"n{draw(st.integers(0, index - 1))}"
        kind = draw(st.sampled_from(["user", "assistant", "call"]))
        if kind == "user":
            rows.append(line("user", f"n{index}", parent, f"p{index}"))
            continue
        blocks = text(f"b{index}") if kind == "assistant" else [*text(f"b{index}"), *call(f"c{index}")]
        split = draw(st.booleans())
        groups = [[block] for block in blocks] if split else [blocks]
        for number, group in enumerate(groups):
            last = number == len(groups) - 1
            name = f"n{index}" if last and kind == "assistant" else f"n{index}.{number}"
            rows.append(line("assistant", name, parent, group, mid=f"m{index}"))
            parent = name
        if kind == "call":
            rows.append(line("user", f"n{index}", parent, result(f"c{index}")))
    return rows


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=trees())
def test_every_model_call_of_a_tree_is_a_candidate_once(tmp_path: Path, rows: list[dict]) -> None:
    """Each message id stands in one segment without a reason, with the texts of its line's ancestors before it."""
    parents = {row["uuid"]: row["parentUuid"] for row in rows}
    words = {row["uuid"]: row["message"]["content"] for row in rows}
    made = [row["message"]["id"] for row in rows if row["type"] == "assistant"]
    turns: list[tuple[str, list[str]]] = []
    for got in read_path(write(tmp_path, *rows)) if made else ():
        for index, message in enumerate(got.messages):
            if message.role == "assistant" and message.excluded is None:
                before = [m.content or "" for m in got.messages[:index] if m.role == "user"]
                turns.append((message.content or "", before))
    assert Counter(name for name, _ in turns) == Counter(f"b{name[1:]}" for name in set(made))
    for name, before in turns:
        at: str | None = next(row["uuid"] for row in rows if row["message"].get("id") == f"m{name[1:]}")
        prompts: list[str] = []
        while at is not None:
            prompts += [words[at]] if isinstance(words[at], str) else []
            at = parents[at]
        assert before == prompts[::-1]


def test_codex_rollout(tmp_path: Path) -> None:
    (got,) = read(tmp_path, *CODEX)
    assert (got.id, got.task_id, got.parent_id, got.domain) == ("data", "c0", None, "codex")
    calls = (
        ToolCall(name="shell", arguments='{"command": ["ls"]}', id="k1"),
        ToolCall(name="apply_patch", arguments='{"input": "*** Begin Patch\\n"}', id="k2"),
    )
    assert got.messages == (
        Message(role="system", content="You code."),
        Message(role="user", content="<environment_context>cwd</environment_context>"),
        Message(role="user", content="Fix"),
        Message(role="assistant", reasoning="look", tool_calls=calls),
        Message(role="tool", content='{"output": "a", "metadata": {"exit_code": 0}}', tool_call_id="k1"),
        Message(role="tool", content="ok", tool_call_id="k2"),
        Message(role="assistant", content="Fixed."),
    )


def test_codex_histories_that_were_rewritten(tmp_path: Path) -> None:
    history = [said("user", "Fix")["payload"], said("assistant", "kept")["payload"], said("user", "Summary")["payload"]]
    new = {"type": "compacted", "payload": {"message": "", "replacement_history": history}}
    old = {"type": "compacted", "payload": {"message": "A summary"}}
    undo = {"type": "event_msg", "payload": {"type": "thread_rolled_back", "num_turns": 1}}
    after = [said("user", "More"), said("assistant", "Done")]
    first, second = read(tmp_path, *CODEX, new, *after)
    assert len(first.messages) == 7
    assert shape(second) == [
        ("system", "You"), ("user", "Fix"), ("assistant", "copied_context"), ("user", "Summary"), ("user", "More"),
        ("assistant", "Done"),
    ]  # fmt: skip
    assert (second.id, second.parent_id, second.task_id) == ("data~1", "data", "c0")
    _, second = read(tmp_path, *CODEX, old, *after)
    assert [word for _, word in shape(second)] == ["You", "<environment_context>cwd</environment_context>", "Fix", "A",
                                                   "More", "Done"]  # fmt: skip
    _, third = read(tmp_path, *CODEX, *after, undo, *after)
    assert shape(third)[-4:] == [
        ("tool", "ok"),
        ("assistant", "copied_context"),
        ("user", "More"),
        ("assistant", "Done"),
    ]


def test_older_codex_files_forks_and_sub_agents(tmp_path: Path) -> None:
    items = [row["payload"] for row in CODEX if row["type"] == "response_item"]
    start = {"id": "c0", "timestamp": "t", "instructions": "You code."}
    (plain,) = read(tmp_path, *CODEX)
    (bare,) = read(tmp_path, start, {"record_type": "state"}, *items)
    (document,) = read(tmp_path, {"session": start, "items": items})
    assert bare.messages == document.messages == plain.messages
    assert bare.task_id == document.task_id == "c0"
    spawned = {"subagent": {"thread_spawn": {"parent_thread_id": "c0"}}}
    (fork,) = read(tmp_path, {**META, "payload": {"id": "c1", "forked_from_id": "c0"}}, META, *CODEX[2:])
    (sub,) = read(tmp_path, {**META, "payload": {"id": "c2", "source": spawned}}, *CODEX[2:])
    assert [(t.task_id, t.parent_id) for t in (fork, sub)] == [("c0", None), ("c0", "c0")]


def test_opencode_export(tmp_path: Path) -> None:
    got, after = read(tmp_path, OPENCODE)
    call_of = {name: ToolCall(name="bash", arguments='{"command": "ls"}', id=name) for name in ("k1", "k2", "k3")}
    assert (got.id, got.task_id, got.parent_id, got.domain) == ("ses_1", "ses_1", None, "opencode")
    assert got.messages == (
        Message(role="user", content="Do it"),
        Message(role="assistant", content="I look.", reasoning="hm", tool_calls=(call_of["k1"], call_of["k2"])),
        Message(role="tool", content="a", tool_call_id="k1", error=False),
        Message(role="tool", content="no", tool_call_id="k2", error=True),
        Message(role="assistant", tool_calls=(call_of["k3"],)),
        Message(role="tool", content="[Tool execution was interrupted]", tool_call_id="k3", error=True),
        Message(role="assistant", content="Done", excluded="truncated"),
    )
    assert shape(after) == [
        ("user", "What"), ("assistant", "compaction_summary"), ("user", "Go"), ("assistant", "Ready."),
    ]  # fmt: skip
    assert (after.id, after.parent_id) == ("ses_1~1", "ses_1")
    (sub,) = read(tmp_path, {"info": {"id": "ses_2", "parentID": "ses_1"}, "messages": OPENCODE["messages"][:2]})
    assert (sub.task_id, sub.parent_id) == ("ses_1", "ses_1")


def folder(top: Path) -> list[Trajectory]:
    with ExitStack() as stack:
        events = [event for entry in find([str(top)], top / "run", stack) for event in read_input(entry)]
    return [event for event in events if isinstance(event, Trajectory)]


def put(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


@pytest.mark.parametrize("layout", ["storage/session/p/ses_1.json", "storage/session/info/ses_1.json"])
def test_opencode_storage_is_joined(tmp_path: Path, layout: str) -> None:
    old = "info" in layout
    top = tmp_path / "data" / ("storage/session" if old else "storage")
    put(tmp_path / "data" / layout, OPENCODE["info"])
    for message in OPENCODE["messages"]:
        name = message["info"]["id"]
        put(top / "message" / "ses_1" / f"{name}.json", {**message["info"], "sessionID": "ses_1"})
        for index, piece in enumerate(message["parts"]):
            path = top / "part" / ("ses_1" if old else "") / name / f"prt_{index:03}.json"
            put(path, piece if old else {**piece, "messageID": name, "sessionID": "ses_1", "id": path.stem})
    exported = read(tmp_path, OPENCODE)
    assert [(t.id, t.messages) for t in folder(tmp_path / "data")] == [(t.id, t.messages) for t in exported]


def database(path: Path, *, wal: bool = False) -> sqlite3.Connection:
    """OpenCode's tables, with the session above in them and one below it, stored out of order."""
    made = sqlite3.connect(path)
    made.executescript(
        f"PRAGMA journal_mode={'wal' if wal else 'delete'};"
        "CREATE TABLE session (id text PRIMARY KEY, project_id text, parent_id text, title text);"
        "CREATE TABLE message (id text PRIMARY KEY, session_id text, time_created integer, data text);"
        "CREATE TABLE part (id text PRIMARY KEY, message_id text, session_id text, time_created integer, data text)"
    )
    for session, parent, prefix in (("ses_2", "ses_1", "n"), ("ses_1", None, "m")):
        made.execute("INSERT INTO session VALUES (?, 'p', ?, 'a title')", (session, parent))
        for index, message in reversed(list(enumerate(OPENCODE["messages"]))):
            own = f"{prefix}{index:03}"
            info = {key: value for key, value in message["info"].items() if key not in ("id", "sessionID")}
            made.execute("INSERT INTO message VALUES (?, ?, 7, ?)", (own, session, json.dumps(info)))
            for at, piece in reversed(list(enumerate(message["parts"]))):
                row = (f"{own}-{at:03}", own, session, json.dumps(piece))
                made.execute("INSERT INTO part VALUES (?, ?, ?, 7, ?)", row)
    made.commit()
    return made


@pytest.mark.parametrize("wal", [False, True])
def test_opencode_database(tmp_path: Path, wal: bool) -> None:
    (tmp_path / "data").mkdir()
    path = tmp_path / "data" / "opencode.db"
    with closing(database(path, wal=wal)):  # in use, so that the log holds what the file does not
        before = path.read_bytes()
        got = folder(tmp_path / "data")
        assert path.read_bytes() == before
    exported = read(tmp_path, OPENCODE)
    assert [(t.id, t.parent_id) for t in got] == [
        ("ses_1", None), ("ses_1~1", "ses_1"), ("ses_2", "ses_1"), ("ses_2~1", "ses_2"),
    ]  # fmt: skip
    assert [t.messages for t in got[:2]] == [t.messages for t in got[2:]] == [t.messages for t in exported]


def test_other_databases_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with closing(database(path)) as made:
        made.execute("UPDATE part SET data = '{' WHERE id = 'm001-003'")
        made.commit()
    with pytest.raises(InputError, match=r"a\.db: message m001, a part: data that is no JSON"):
        folder(path)
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(InputError, match=r"a\.db: a database that cannot be read"):
        folder(path)
    packed = tmp_path / "b.db.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    with pytest.raises(InputError, match="a database that is packed; unpack it first"):
        folder(packed)
    with closing(sqlite3.connect(other := tmp_path / "c.db")) as made:
        endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x AS id FROM n"
        made.execute(f"CREATE VIEW session AS {endless}")
        made.executescript("CREATE TABLE message (id, session_id, data); CREATE TABLE part (id, message_id, data)")
    with pytest.raises(InputError, match="not OpenCode's; export its trajectories to JSON Lines"):
        folder(other)


def test_terminal_bench_trials_are_joined(tmp_path: Path) -> None:
    trial = tmp_path / "run" / "task" / "task.1-of-1.run"
    for number in range(11):
        episode = trial / "agent-logs" / f"episode-{number}"
        episode.mkdir(parents=True)
        (episode / "prompt.txt").write_text(f"screen {number}\n")
        (episode / ("response.json" if number == 10 else "response.txt")).write_text(f'{{"analysis": "{number}"}}')
        put(episode / "debug.json", {"input": "whatever"})
    put(trial / "results.json", {"task_id": "task", "is_resolved": True, "trial_name": "task.1-of-1.run"})
    with ExitStack() as stack:
        (found, *others) = find([str(tmp_path / "run")], tmp_path / "elsewhere", stack)
        assert {one.files[0].path.name for one in others} == {"debug.json"}
        (got,) = (event for event in read_input(found) if isinstance(event, Trajectory))
    assert (got.task_id, got.outcome, len(got.messages)) == ("task", 1.0, 22)
    assert [m.content for m in got.messages[-2:]] == ["screen 10\n", '{"analysis": "10"}']


def test_atif_trajectory(tmp_path: Path) -> None:
    got, sub = read(tmp_path, ATIF)
    assert (got.id, got.task_id, got.outcome, got.domain) == ("run-cont-1", "run", None, "terminus-2")
    assert got.tools is not None
    assert shape(got) == [
        ("system", "Be"), ("user", "Look"), ("assistant", "copied_context"), ("assistant", "I"), ("tool", ""),
        ("tool", "the"), ("assistant", "no_model_call"), ("assistant", "several_model_calls"), ("assistant", "raw"),
        ("user", "a"), ("assistant", "last"), ("tool", ""),
    ]  # fmt: skip
    assert got.messages[3].reasoning == "hm"
    assert [call.arguments for call in got.messages[3].tool_calls] == ['{"n": "k1"}', '{"n": "k2"}']
    assert [message.tool_call_id for message in got.messages[4:6]] == ["k1", "k2"]
    assert (sub.id, sub.parent_id, sub.task_id, sub.domain) == ("run-cont-1:1", "run-cont-1", "run", "sub")
    reasons = Counter(turn.reason for turn in extract(got, CandidateRules()) if not isinstance(turn, Candidate))
    assert reasons == {"copied_context": 1, "no_model_call": 1, "several_model_calls": 1}


@pytest.mark.parametrize(("reward", "outcome"), [(1.0, 1.0), (0, 0.0), (None, None)])
def test_harbor_trials_have_rewards(tmp_path: Path, reward: float | None, outcome: float | None) -> None:
    for name in ("trajectory.json", "trajectory.cont-1.json"):
        put(tmp_path / "job" / "trial" / "agent" / name, ATIF)
    result = {"task_name": "fix", "verifier_result": None if reward is None else {"rewards": {"reward": reward}}}
    put(tmp_path / "job" / "trial" / "result.json", result)
    got = folder(tmp_path / "job")
    assert [(t.task_id, t.outcome) for t in got if t.parent_id is None] == [("fix", outcome)] * 2


def test_rows_that_harbor_exports(tmp_path: Path) -> None:
    """Every episode is a row with all that came before; the same turn is a candidate once."""
    said = [{"role": "user", "content": "Task"}, {"role": "assistant", "content": '{"commands": []}'}]
    rows = [
        {
            "conversations": said * count,
            "task": "fix",
            "trial_name": "fix__1",
            "episode": f"episode-{count}",
            "result": "1.0",
        }
        for count in (1, 2)
    ]
    assert [(t.task_id, t.outcome, t.source.format) for t in read(tmp_path, *rows)] == [("fix", 1.0, "openai_chat")] * 2
    path = write(tmp_path, *rows, {**rows[0], "result": "AgentTimeoutError"}, {"conversations": said, "task": "a set"})
    *_, failed, other = read_path(path)
    assert (failed.outcome, other.task_id) == (None, None)
    result = ingest(IngestConfig(paths=(str(path),), run=tmp_path / "run"))
    assert (result.assistant_turns, sum(result.candidates.values()), result.skips) == (5, 2, {"duplicate": 3})


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"custom_id": "1", "result": {"type": "succeeded", "message": ANSWER}}, "batch result without its request"),
        ({"type": "thread.started", "thread_id": "t"}, "codex exec --json"),
        ({"type": "step_start", "sessionID": "s", "part": {"type": "step-start"}}, "opencode run"),
        ({"id": "m", "sessionID": "s", "role": "user"}, "OpenCode message without its parts"),
        ({"type": "session.start", "data": {"sessionId": "s"}}, "Copilot"),
        (
            [line("user", "u", None, "Hi"), {**line("user", "v", "u", ""), "message": "text"}],
            "message: expected an object",
        ),
        ([META, {"type": "response_item", "payload": 5}], r"data.jsonl:2: payload: expected an object"),
        ({**ATIF, "steps": [5]}, r"steps\[0\]: expected an object"),
        ({**ANTHROPIC, "messages": [*ANTHROPIC["messages"], 5]}, r"messages\[3\]: expected an object"),
        ({**OPENCODE, "messages": [*OPENCODE["messages"], {"parts": 5}]}, r"messages\[7\].parts: expected a list"),
    ],
)
def test_refusals_name_the_reason(tmp_path: Path, record: dict | list, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        read(tmp_path, *(record if isinstance(record, list) else [record]))


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_mutated_sessions_give_trajectories_or_input_errors(tmp_path: Path, data: st.DataObject) -> None:
    rows = json.loads(json.dumps(data.draw(st.sampled_from(FILES))))
    for _ in range(data.draw(st.integers(1, 3))):
        node = rows
        while isinstance(node, dict | list) and node:
            key = data.draw(st.sampled_from(list(node) if isinstance(node, dict) else range(len(node))))
            if not isinstance(node[key], dict | list) or not node[key] or data.draw(st.integers(0, 3)) == 0:
                node[key] = data.draw(JSON)
                break
            node = node[key]
    survives(write(tmp_path, *rows))


def objects(path: Path) -> list[dict]:
    """The objects of a file, read with nothing of the package."""
    found = path.read_text()
    return (
        json.loads(found) if found.startswith("[") else [json.loads(row) for row in found.splitlines() if row.strip()]
    )


def plain_claude_count(path: Path) -> int:
    """Model calls: ids of messages of the assistant, lines without one, and tool records that follow another."""
    rows = objects(path)
    ids = [
        row["message"].get("id") or row.get("uuid") or index
        for index, row in enumerate(rows)
        if row["type"] == "assistant"
    ]
    tools = [before["type"] == row["type"] == "tool" for before, row in pairwise(rows)]
    return len(set(ids)) + sum(tools)


def plain_codex_count(path: Path) -> int:
    """Model calls: runs of items that the model made."""
    items = [row["payload"] for row in objects(path) if row["type"] == "response_item"]
    by_model = [row.get("role") != "user" and not str(row.get("type")).endswith("output") for row in items]
    return sum(now and not before for before, now in zip([False, *by_model], by_model, strict=False))


def plain_atif_count(path: Path) -> int:
    return sum(step["source"] == "agent" for step in json.loads(path.read_text())["steps"])


COUNTS: dict[str, tuple[int, int] | str] = {
    "claude_code/agentpile_api_error.jsonl": (1, 1),
    "claude_code/agentpile_compaction.jsonl": (2, 2),
    "claude_code/agentpile_early_result.jsonl": (1, 1),
    "claude_code/agentpile_images.jsonl": (1, 1),
    "claude_code/agentpile_sub_agent-afx0000000000001.jsonl": (1, 1),
    "claude_code/agentpile_sub_agent-afx0000000000005.jsonl": (1, 1),
    "claude_code/agentpile_unknown.jsonl": (1, 1),
    "claude_code/agentsview_valid_session.jsonl": (1, 2),
    "claude_code/atifmake_claude-code-transcript.jsonl": (1, 2),
    "claude_code/benchflow_minimal-claude.jsonl": (1, 2),
    "claude_code/daaain_representative_messages.jsonl": (1, 5),
    "claude_code/daaain_todowrite_examples.jsonl": (1, 6),
    "claude_code/simonw_sample_session.jsonl": (1, 3),
    "claude_code/tracecommons_session-tc-01.jsonl": (1, 1),
    "codex/agentsview_fc_args_1.jsonl": (1, 1),
    "codex/agentsview_fc_stdin.jsonl": (1, 1),
    "codex/agentsview_standard_session.jsonl": (1, 1),
    "codex/atifmake_codex-rollout.jsonl": (1, 2),
    "codex/rollout-test.jsonl": (1, 1),
    "opencode/dicklesworthstone_opencode_rust_cli.jsonl": (1, 11),
    "opencode/tree_message_ses_test1_msg_test1.json": "without its parts",
    "opencode/tree_message_ses_test1_msg_test2.json": "without its parts",
    "atif/atif_multiagent.json": (1, 3),
    "anthropic_messages/agentpile_anthropic_tools.json": "pass the file with --tools",
    "atif_other/atbench.json": "no known trajectory format",
    "atif_other/sleight-bench.jsonl": "no known trajectory format",
    "copilot_cursor/agentsview_gemini_standard_session.json": "Gemini CLI log",
    "copilot_cursor/agentsview_gemini_tool_calls.json": "Gemini CLI log",
    "copilot_cursor/cursor-transcript.jsonl": "Cursor transcript",
    "copilot_cursor/dicklesworthstone_amp_data_pipeline.jsonl": (1, 11),
    "copilot_cursor/dicklesworthstone_factory_code_generation.jsonl": (1, 12),
    "copilot_cursor/dicklesworthstone_pi_agent_personal_assistant.jsonl": (1, 10),
}
PLAIN = {
    "claude_code": plain_claude_count,
    "codex": plain_codex_count,
    "opencode": plain_claude_count,
    "copilot_cursor": plain_claude_count,
    "atif": plain_atif_count,
}


def test_every_real_file_of_these_formats_is_in_the_table() -> None:
    folders = {name.split("/")[0] for name in COUNTS}
    assert {f"{top}/{path.name}" for top in folders for path in shared(top).iterdir()} == COUNTS.keys()


@pytest.mark.parametrize("name", COUNTS)
def test_real_sessions(name: str) -> None:
    path, expected = shared(*name.split("/")), COUNTS[name]
    holds(path, expected)
    if not isinstance(expected, str):
        assert PLAIN[path.parent.name](path) == expected[1]
