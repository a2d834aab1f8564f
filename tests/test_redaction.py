"""Redaction: every kind of secret wherever it lies, nothing else; and what files of people hold that is not plain."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pivotrl.storage import dump_json
from pivotrl.trajectories import read_path
from pivotrl.trajectories.jsonfile import parse
from pivotrl.trajectories.redaction import redact
from pivotrl.types import Message, Source, Tool, ToolCall, Trajectory
from test_ingestion import chat, run_ingest, write

LETTERS = "aB3dE5gH7jK9" * 5
SECRETS = {
    "private_key": "-----BEGIN RSA PRIVATE KEY-----\nMIIEow+/=\nabc\n-----END RSA PRIVATE KEY-----",
    "jwt": f"eyJ{LETTERS[:20]}.eyJ{LETTERS[:30]}.{LETTERS[:12]}-_",
    "aws_access_key": "AKIAIOSFODNN7EXAMPLE",
    "github_token": f"ghp_{LETTERS[:36]}",
    "gitlab_token": f"glpat-{LETTERS[:20]}",
    "anthropic_key": f"sk-ant-api03-{LETTERS[:40]}",
    "openai_key": f"sk-proj-{LETTERS[:40]}",
    "huggingface_token": f"hf_{LETTERS[:34]}",
    "google_key": f"AIza{LETTERS[:35]}",
    "slack_token": "xoxb-123456789012-abcdefghij",
    "stripe_key": f"sk_live_{LETTERS[:24]}",
    "package_token": f"npm_{LETTERS[:36]}",
    "nvidia_key": f"nvapi-{LETTERS}",
    "bearer": f"Authorization: Bearer {LETTERS[:24]}",
    "url_password": "postgres://me:hunter2@db.example.com/x",
    "assigned_key": f'API_KEY="{LETTERS[:30]}"',
}
PLAIN = [
    "task-force-for-the-improvement-of-2 things", "the bearer of this letter", "https://example.com:8080/a@b",
    "secret_key: see the vault", "sk-learn-contrib-without-digits-here", "ssh-rsa AAAAB3NzaC1yc2E", "hf_hub_download",
    "-----BEGIN CERTIFICATE-----", "AKIA", "eyJ", "access_token=short1",
    "commit 0123456789abcdef0123456789abcdef01234567",
]  # fmt: skip


def holding(text: str) -> Trajectory:
    call = ToolCall(name="f", arguments=json.dumps({"x": f"\n{text}"}))
    return Trajectory(
        id="t",
        source=Source(file="f", format="openai_chat"),
        messages=(
            Message(role="user", content=f"see {text}, please"),
            Message(role="assistant", reasoning=f"{text}", tool_calls=(call,)),
            Message(role="tool", content=f"\t{text}\n", tool_call_id="c"),
        ),
        tools=(Tool(name="f", parameters={"default": text}),),
    )


@pytest.mark.parametrize("kind", SECRETS)
def test_every_kind_is_masked_everywhere(kind: str) -> None:
    secret = SECRETS[kind]
    got, found = redact(holding(secret))
    assert found == {kind: 5}
    bare = secret.rpartition(" ")[2].rpartition("=")[2].strip('"') if kind in ("bearer", "assigned_key") else secret
    bare = "hunter2" if kind == "url_password" else bare
    assert json.dumps(bare)[1:-1] not in json.dumps(json.loads(dump_json(got)))
    value = got.messages[1].tool_calls[0].parsed.value
    assert value is not None
    assert f"[REDACTED:{kind}]" in str(value["x"])
    assert redact(got) == (got, {})


@pytest.mark.parametrize("text", PLAIN)
def test_other_texts_stay(text: str) -> None:
    assert redact(holding(text)) == (holding(text), {})


@given(st.text(max_size=40), st.sampled_from(sorted(SECRETS)), st.text(max_size=40))
def test_what_is_masked_is_a_trajectory_of_the_same_shape(before: str, kind: str, after: str) -> None:
    text = f"{before} {SECRETS[kind]} {after}".encode(errors="replace").decode()
    given_ = holding(text)
    got, found = redact(given_)
    assert found[kind] >= 1
    assert [replace(m, content=None, reasoning=None, tool_calls=()) for m in got.messages] == [
        replace(m, content=None, reasoning=None, tool_calls=()) for m in given_.messages
    ]
    assert got.messages[1].tool_calls[0].parsed.error is None


def test_nothing_of_a_secret_is_stored(tmp_path: Path) -> None:
    secret = SECRETS["github_token"]
    error = {"role": "tool", "content": f"Error: {secret}"}
    rows = chat(1, task_id=secret)
    rows["messages"][2] = error
    result = run_ingest(tmp_path, write(tmp_path / "data.jsonl", rows), redact=True)
    assert result.masked == {"github_token": 2}
    assert "masked: github_token 2" in result.lines()
    assert all(secret.encode() not in path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file())


def test_bytes_of_every_kind_are_kept(tmp_path: Path) -> None:
    """ANSI, CRLF, NUL, a long output, deep arguments, large and small numbers, a key twice: as they came."""
    output = "\x1b[31mred\x1b[0m\r\n\x00\u2028" + "x" * 10_000_000
    arguments = '{"a": 1.0, "b": 123456789012345678901234567890, "a": -0, "c": 1e400, "d": "\\u00e9"}'
    deep = '{"x":' * 90 + "1" + "}" * 90
    calls = [{"name": "f", "arguments": arguments}, {"name": "f", "arguments": deep}]
    messages = [{"role": "assistant", "tool_calls": calls}, {"role": "tool", "content": output}]
    (got,) = read_path(write(tmp_path / "data.jsonl", {"messages": messages, "reward": float("nan")}))
    assert [call.arguments for call in got.messages[0].tool_calls] == [arguments, deep]
    assert (got.messages[1].content, got.outcome) == (output, None)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda x: st.lists(x) | st.dictionaries(st.text(), x),
    )
)
def test_values_are_those_of_the_standard_library(value: object) -> None:
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False)):
        assert json.dumps(parse(text)) == json.dumps(json.loads(text))


@pytest.mark.parametrize("digits", [18, 19, 20, 21, 24, 25, 40])
@pytest.mark.parametrize("before", range(6))
def test_large_integers_are_exact_wherever_they_lie(digits: int, before: int) -> None:
    number = int("9" * digits)
    assert parse(f'["{"a" * before}", {number}, -{number}]') == ["a" * before, number, -number]


@pytest.mark.parametrize("depth", [100, 254, 900, 1000, 1023, 1024, 5000])
def test_deep_nesting_is_read_or_refused(tmp_path: Path, depth: int) -> None:
    arguments = "[" * depth + "]" * depth
    row = (
        f'{{"messages": [{{"role": "assistant", "tool_calls": [{{"name": "f", "arguments": {{"x": {arguments}}}}}]}}]}}'
    )
    (tmp_path / "data.jsonl").write_text(f"{row}\n{json.dumps(chat(1))}\n")
    result = run_ingest(tmp_path, tmp_path / "data.jsonl")
    assert result.trajectories + sum(result.refused_records.values()) == 2
    assert result.trajectories == 2 or depth >= 900
