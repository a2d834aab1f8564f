"""Sets out to break what docs/threat-model.md promises."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import re
import signal
import tarfile
import zipfile
from collections.abc import Callable
from contextlib import ExitStack
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from fake_openai import Asked, FakeServer, Reply, chat
from kill_harness import RUN, make_desk
from pivotrl.chat import ChatFormat
from pivotrl.cli import main
from pivotrl.documents import Bullets, Folded, Heading, Paragraph, Verbatim, table_of, to_html, to_markdown
from pivotrl.errors import ConfigError, InputError, PivotRLError, StorageError
from pivotrl.lab.shipped import shipped_base
from pivotrl.logs import plain
from pivotrl.models import ModelSettings, load_chat, load_model
from pivotrl.openai_client import LONGEST, Client, ClientSettings, Tokens, Unanswered
from pivotrl.policies.openai_wire import OpenAISettings, read_answer
from pivotrl.run_directory import RunDirectory
from pivotrl.storage import FileLock, PartWriter, check_sums, content_hash, decode, file_hash
from pivotrl.trajectories import find, jsonfile, read_input, responses, sources
from pivotrl.types import Action, Message, State, Usage
from pivotrl.verifiers import load_verifier, taken_over
from pivotrl.verifiers.attacks import _FACT
from pivotrl.verifiers.code_edit import _WRITES
from pivotrl.verifiers.rules import read_rules
from pivotrl.verifiers.search import tagged
from pivotrl.verifiers.shell_syntax import MAX_PROGRAM, NotShellError, parse
from pivotrl.workers import call_all

ROW = json.dumps({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]}).encode()
CANARY = "sk-canary/31415926535897932384626"
ESCAPES = "\x1b]0;pwned\x07\x1b[2J\x9b31m\u202e\u2066\x1b]52;c;cHduZWQ=\x07\x1b]8;;http://evil\x1b\\"


@pytest.fixture(autouse=True)
def own_home(monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", data: bytes = ROW) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, len(data) if kind == tarfile.REGTYPE else 0
    return info, data


def sparse(name: str, size: int) -> bytes:
    """A member of a terabyte of nothing, or of less than nothing, in the format of GNU tar."""
    header = bytearray(tarfile.TarInfo(name).tobuf(tarfile.GNU_FORMAT))
    header[156:157], header[386:410], header[482] = b"S", b"00000000000\0" * 2, 0
    header[483:495] = (b"\xff" if size < 0 else b"\x80") + size.to_bytes(11, "big", signed=True)
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)


def read_all(path: Path) -> list[Any]:
    with ExitStack() as stack:
        return [event for item in find((str(path),), path.parent / "run", stack) for event in read_input(item)]


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ([entry("a.jsonl"), entry("a.jsonl", tarfile.DIRTYPE)], "empty archive"),
        ([entry("a.jsonl"), entry("a.jsonl", tarfile.SYMTYPE, "/etc/passwd")], "empty archive"),
        ([entry("a.jsonl", tarfile.SYMTYPE, "a.jsonl"), entry("b", tarfile.LNKTYPE, "/etc/passwd")], "empty archive"),
        ([entry("a", tarfile.CHRTYPE), entry("b", tarfile.FIFOTYPE)], "empty archive"),
        ([entry("a.jsonl/")], r"x\.tar/a\.jsonl/: cannot be read"),
        ([entry("a.jsonl/"), entry("a.jsonl", tarfile.SYMTYPE, "/etc/passwd")], r"linkname '/etc/passwd' not found"),
        ([entry("events/" + "1" * 200_000 + "x")], "a name of more than 4096 characters"),
        (None, "it expands to more than 200 times its size"),
    ],
)
def test_archives_stay_inside(tmp_path: Path, entries: list[Any] | None, says: str) -> None:
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for info, data in entries or []:
            archive.addfile(info, io.BytesIO(data))
    hollow = sparse("less", -(1 << 41)) + sparse("more", 1 << 40) + bytes(1024)
    (tmp_path / "x.tar").write_bytes(held.getvalue() if entries else hollow)
    with pytest.raises(InputError, match=says):
        read_all(tmp_path / "x.tar")


def test_what_is_packed_twice_is_bounded_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_FREE", 1 << 20)
    packed = gzip.compress(b" " * (200 << 10) + ROW)
    for name, many in (("few.zip", 5), ("x.zip", 6)):
        with zipfile.ZipFile(tmp_path / name, "w", zipfile.ZIP_DEFLATED) as archive:
            for number in range(many):
                archive.writestr(f"{number}.jsonl.gz", packed)
    assert [len(read_all(tmp_path / "few.zip")) for _ in range(2)] == [10, 10]  # what is read again counts once
    with pytest.raises(InputError, match=r"x.zip/5.jsonl.gz: cannot be read \(it expands to more than 200 times"):
        read_all(tmp_path / "x.zip")


def test_tables_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text that a dictionary holds once, and many rows name."""
    parquet = pytest.importorskip("pyarrow.parquet")
    pyarrow = pytest.importorskip("pyarrow")
    monkeypatch.setattr(sources, "_FREE", 1 << 20)
    messages = [{"role": role, "content": "x" * 100_000} for role in ("user", "assistant")]
    parquet.write_table(pyarrow.table({"messages": [messages] * 60}), tmp_path / "x.parquet", compression="zstd")
    with pytest.raises(InputError, match=r"it expands to more than 200 times"):
        read_all(tmp_path / "x.parquet")


def test_names_that_climb_are_labels(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        for info, data in (entry("../../up.jsonl"), entry("/etc/down.jsonl")):
            archive.addfile(info, io.BytesIO(data))
    before = {*tmp_path.parent.rglob("*")}
    assert len([event for event in read_all(tmp_path / "x.tar") if hasattr(event, "messages")]) == 2
    assert {*tmp_path.parent.rglob("*")} == before


def test_sizes_are_bounded(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"more than 20,000,000 values"):
        jsonfile.parse(b"[" + b"[]," * 10_000_000 + b"1]")
    for text in (b"[" * 10_000, b'{"a":' * 100_000, b'"' + b"9" * 5000, b"9" * 5000):
        with pytest.raises(ValueError, match=r"."):
            jsonfile.parse(text)
    with (tmp_path / "x.json").open("wb") as file:
        file.truncate(jsonfile.LONGEST + 2)
    with pytest.raises(InputError, match=r"a line of more than 256 MiB"):
        read_all(tmp_path / "x.json")
    lines = ((number, b" " * (1 << 20)) for number in range(1, 300))
    with pytest.raises(InputError, match=r"a document of more than 256 MiB"):
        jsonfile._document(lines, "x")
    (tmp_path / "rules.toml").write_bytes(b"[f]\na = " + b"[" * 2000)
    with pytest.raises(ConfigError, match=r"rules.toml: no TOML"):
        read_rules(str(tmp_path / "rules.toml"))
    with pytest.raises(NotShellError, match=r"too_long"):
        parse("<search>" * MAX_PROGRAM)
    assert parse("cat > a <<'E'\n" + "x\n" * MAX_PROGRAM + "E\n")


def test_no_pattern_runs_away() -> None:
    """With time in the square of the text each of these would take minutes."""
    many = 400_000
    assert jsonfile.mend('"\\ud800' + "\\" * many + '"').startswith('"\\ufffd')
    assert not responses._is_terminus('"commands":[' * many)
    assert responses._is_terminus('"commands": [{"keystrokes": "x"}]')
    assert not responses._is_terminus('"keystrokes": "x", "commands": []')
    assert tagged(Action(text="<search>" * many)) == ()
    assert _FACT.findall("a" * many) == []
    assert not _WRITES.search("sed -a " * 20_000)
    assert _WRITES.search("cd /a; sed -n -i s/a/b/ c")


def test_faster_patterns_find_what_the_plain_ones_do() -> None:
    rng = random.Random(0)
    old = r"\\+u[dD][89abAB][0-9a-fA-F]{2}\\+u[dD][c-fC-F][0-9a-fA-F]{2}|\\+u[dD][89a-fA-F][0-9a-fA-F]{2}"
    tags = re.compile(r"<(search|open|visit|answer)>(.*?)</\1>", re.DOTALL)
    found = 0
    for _ in range(3000):
        text = "".join(rng.choices(["\\", "\\ud8", "u", "dcff", "00", "x", "\\udd"], k=20))
        assert [one.span() for one in jsonfile._ESCAPES.finditer(text)] == [
            one.span() for one in re.finditer(old, text)
        ]
        text = "".join(rng.choices(["a", "-", "1", " ", "é", "_"], k=20))
        assert _FACT.findall(text) == re.findall(r"[\w-]*\d[\w-]*", text)
        text = "".join(rng.choices(["<search>", "</search>", "<open>", "</open>", "x", "\n", "</answer>"], k=12))
        theirs = [(f"<{tag}>", held) for tag, held in tags.findall(text)]
        assert [(call.name, next(iter(call.parsed.value.values()))) for call in tagged(Action(text=text))] == theirs
        found += len(theirs)
    assert found > 1000


TEMPLATES = (
    *(
        "{{ ''.__class__.__mro__ }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ messages.append(1) }}",
    ),
    *(
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
        "{{ 1/0 }}",
        "{{ 2.0**100000 }}",
        "{% for %}",
        "{{ a.b }}",
    ),
    *("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "{% for i in range(10**9) %}x{% endfor %}"),
    *("{{ self._TemplateReference__context.environment }}", "{{ '{a.__class__.__mro__}'.format_map({'a': 1}) }}"),
    *("{{ 'a'.encode('utf-99') }}", "{{ raise_exception('x') }}"),
)


@pytest.mark.parametrize("template", TEMPLATES)
def test_templates_reach_nothing_and_raise_one_kind(template: str) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(shipped_base())
    with pytest.raises(PivotRLError, match="chat template"):
        ChatFormat(tokenizer, template=template).prompt_text(
            State(key="k", messages=(Message(role="user"),), tools=None)
        )


def test_templates_that_never_end_are_one_line() -> None:
    tokenizer, many = transformers.AutoTokenizer.from_pretrained(shipped_base()), "{% for i in range(99999) %}"
    held = signal.getsignal(signal.SIGVTALRM)
    for template in (f"{many * 3}{'{% endfor %}' * 3}", "{{ 'x' * 2 ** 28 }}y"):
        with pytest.raises(
            ConfigError, match=r"chat template: a conversation takes more than 0\.2 s or 268,435,456 char"
        ):
            ChatFormat(tokenizer, template=template, seconds=0.2)
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGVTALRM) == held


class Evil:
    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return os.mkdir, (str(self.place),)


def copied(folder: Path, **config: Any) -> Path:
    """The shipped model without its weights."""
    folder.mkdir()
    for path in shipped_base().iterdir():
        if path.suffix in (".json", ".jinja"):
            (folder / path.name).write_bytes(path.read_bytes())
    facts = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(facts | config))
    return folder


def test_pickled_weights_are_refused(tmp_path: Path) -> None:
    model, adapter, mark = copied(tmp_path / "model"), tmp_path / "adapter", tmp_path / "pwned"
    torch.save({"model.embed_tokens.weight": Evil(mark)}, model / "pytorch_model.bin")
    with pytest.raises(InputError, match="cannot be loaded"):
        load_model(str(model), ModelSettings())
    adapter.mkdir()
    facts = {"base_model_name_or_path": str(shipped_base()), "peft_type": "LORA", "task_type": "CAUSAL_LM"}
    (adapter / "adapter_config.json").write_text(json.dumps(facts))
    torch.save({"x": Evil(mark)}, adapter / "adapter_model.bin")
    for path in ("tokenizer.json", "tokenizer_config.json"):
        (adapter / path).write_bytes((shipped_base() / path).read_bytes())
    with pytest.raises(PivotRLError, match=r"pickled weights are not loaded|peft"):
        load_model(str(adapter), ModelSettings())
    assert not mark.exists()


def test_code_beside_weights_is_not_run(tmp_path: Path) -> None:
    kinds = {"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.M", "AutoTokenizer": ["evil.T", None]}
    model, mark = copied(tmp_path / "model", auto_map=kinds, model_type="evil"), tmp_path / "pwned"
    (model / "evil.py").write_text(f"import os\nos.mkdir({str(mark)!r})\n")
    told = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps(told | {"tokenizer_class": "T", "auto_map": kinds}))
    for load in (load_model, load_chat):
        with pytest.raises(InputError, match="cannot be loaded"):
            load(str(model), ModelSettings())
    assert not mark.exists()


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    run = make_desk(tmp_path) / RUN
    monkeypatch.chdir(tmp_path)
    assert main(["profile", "--run", RUN, "--policy", "scripted:desk_plugins:play", "--rollouts", "4"]) == 0
    assert main(["select", "--run", RUN, "--lambda-diff", "1"]) == 0
    capsys.readouterr()
    return run


def test_a_run_directory_names_no_code_and_no_server(desk: Path, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    mark = tmp_path / "pwned"
    (tmp_path / "evil.py").write_text(f"import os\nos.mkdir({str(mark)!r})\ndef judge(candidate, action): return 1.0\n")
    for path in (desk / "run.json", desk / "profiles" / "base" / "profile.json"):
        path.write_text(path.read_text().replace('"verifier": "auto"', '"verifier": "evil.py:judge"'))
    forged = json.loads((desk / "run.json").read_text())
    forged["stages"] = {key: dict(facts, wrote={}) for key, facts in forged["stages"].items()}
    (desk / "run.json").write_text(json.dumps(forged | {"hash": content_hash(forged["stages"])}))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "somebody else's"))
    assert main(["report", "--run", RUN]) == 0
    for line in ("train --policy scripted:x:y", "export --to chat --output out", "evaluate", "audit"):
        assert main([*line.split(), "--run", RUN]) == 2
        assert re.search("only .*run names it, and it runs code or asks a server", capsys.readouterr().err)
    assert not mark.exists()
    for spec in ("judge:url=http://evil/v1,model=m,key_variable=AWS", "any(auto,execution:unsafe_exec=true)"):
        with pytest.raises(ConfigError, match="if you trust it"):
            taken_over(spec, "run")
    assert taken_over("cascade(schema,tool_call:rules=@pivotrl.lab.desk/rules.toml)", "run")
    load_verifier("evil.py:judge")
    assert taken_over("evil.py:judge", "run")


def test_a_run_directory_with_links_is_refused(desk: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    for name in (".x.lock", "ledger.part"):
        (desk / name).symlink_to(victim)
    with pytest.raises(StorageError):
        FileLock(desk / ".x.lock")
    with pytest.raises(StorageError):
        PartWriter(desk / "ledger.part")
    assert main(["report", "--run", RUN]) == 0  # it was looked at before, by this process
    (tmp_path / "other").symlink_to(desk)
    with pytest.raises(InputError, match=r"a symbolic link"):
        RunDirectory(tmp_path / "other").stages()
    assert victim.read_text() == "mine"


@pytest.mark.parametrize("name", ["/etc/passwd", "../../x", "a/../../x", "a\0b"])
def test_a_manifest_names_no_files_elsewhere(desk: Path, name: str, capsys: Any) -> None:
    stages = json.loads((desk / "run.json").read_text())["stages"]
    for field in ("wrote", "inputs"):
        forged = stages | {"profile/base": stages["profile/base"] | {field: {name: "00"}}}
        document = {"format_version": 1, "stages": forged, "hash": content_hash(forged)}
        (desk / "run.json").write_text(json.dumps(document))
        assert main(["report", "--run", RUN]) == 2
        assert f"stages.profile/base.{field}: Value error, a name of a file that is not in" in capsys.readouterr().err
    (desk / "sums.json").write_text(json.dumps({"/etc/passwd": file_hash(Path("/etc/passwd"))}))
    with pytest.raises(InputError, match="is not what was written here"):
        check_sums(desk)


def test_results_of_others_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    row = {"doc_id": 1, "target": "x", "exact_match": 1.0}
    bad = {
        "not as its tool writes it": [row | {"prompt_hash": 5}, row | {"prompt_hash": "x"}],
        "not JSON": [row | {"exact_match": float("nan")}],
        "more than 0 MiB": [row],
    }
    (tmp_path / "r").mkdir()
    os.mkfifo(tmp_path / "r" / "a.json")  # nobody writes into it
    for says, rows in bad.items():
        (tmp_path / "r" / "samples_a_1.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
        monkeypatch.setattr("pivotrl.result_files._LONGEST", 9 if "MiB" in says else 1 << 20)
        assert main(["compare", "a=r", "b=r"]) == 2
        assert re.fullmatch(rf"error: r/samples_a_1\.jsonl[^\n]*{says}[^\n]*\n", capsys.readouterr().err)


def test_a_worker_that_crashed_says_so_in_plain_text(capfd: Any) -> None:
    with pytest.raises(PivotRLError, match="worker 2 ended with status 1"):
        call_all("builtins:int", ["1", ESCAPES])
    said = capfd.readouterr().err
    assert "ValueError" in said
    assert [ch for ch in said if not ch.isprintable() and ch != "\n"] == []


FIELDS: tuple[tuple[str, object], ...] = (
    ("ingest/ingest.counts.trajectories", ...), ("ingest/ingest.counts.candidates", {"train": "5"}),
    ("profile/base.verifier.id", 5), ("profile/base.config.openai", []), ("profile/base.wrote", [1]),
    ("select/base.config.lambda_diff", "x"), ("select/base.verifier_id", ...), ("select/base.counts", {"pivot": None}),
    ("select/base.config", 7), ("select/base.version", {}),
)  # fmt: skip


def test_a_damaged_manifest_is_one_line_of_every_command(desk: Path, tmp_path: Path, capsys: Any) -> None:
    """That names the field: without sums, as older runs are, or with sums that an enemy made to fit."""
    whole = json.loads((desk / "run.json").read_text())
    lines = (
        *(
            "select --run run --name b",
            "train --run run --name t --policy nowhere",
            "evaluate --run run",
            "report --run run",
        ),
        *("export --run run --to chat --output out", "audit --run run", "view run --text x", "explain --run run"),
        *("rescore --run run --verifier exact", "compare a=run b=run", "profile --run run --policy scripted:a:b"),
    )
    for at, line in enumerate(lines):
        name, value = FIELDS[at % len(FIELDS)]
        stages = json.loads(json.dumps(whole["stages"]))
        *parents, last = name.split(".")
        held = reduce(getitem, parents, stages)
        held.pop(last) if value is ... else held.update({last: value})
        sums = {"hash": content_hash(stages)} if at % 2 else {}
        (desk / "run.json").write_text(json.dumps({"format_version": 1, "stages": stages} | sums))
        assert main(line.split()) == 2, line
        err = capsys.readouterr().err
        assert re.match(rf"error: run/run\.json: stages\.{name}[^\n]*restore it[^\n]*\n\Z", err), (line, err)
    (desk / "run.json").unlink()
    (desk / "run.json").mkdir()
    assert main(["report", "--run", "run"]) == 2
    assert capsys.readouterr().err.startswith("error: run/run.json: Is a directory; check")
    for text in (b'{"seconds":NaN}', b'{"seconds":-Infinity}', b'{"seconds":1e999}', b'{"rollouts":1%b}' % (b"0" * 30)):
        with pytest.raises(InputError, match=r"here: (seconds|rollouts): Input should be"):
            decode(text, Usage, "here")
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / "run.json")
    with pytest.raises(InputError, match="or a pipe"):
        RunDirectory(tmp_path / "pipe").stages()


def asked(server: FakeServer, **settings: Any) -> tuple[str, Client]:
    client = Client(ClientSettings(url=server.url, retries=0, timeout=20, **settings))
    try:
        answer = client.run(client.ask("/chat/completions", {"max_tokens": 1}, lambda document: document, Tokens(7, 7)))
    except Unanswered as error:
        return str(error), client
    return json.dumps(answer), client


def test_answers_of_servers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", CANARY)
    replies: dict[str, Reply] = {
        "a compressed answer": Reply(body=b"\x1f\x8b", headers={"Content-Encoding": "gzip"}),
        "more than 64 MiB": Reply(body=b" " * (LONGEST + 1)),
        r"\*\*\*": Reply(body=json.dumps({"you sent": f"Bearer {CANARY}"}).encode()),
        r"\*\*\*, and": Reply(body=b'{"you sent": "%b, and"}' % "".join(f"\\u{ord(ch):04X}" for ch in CANARY).encode()),
        r"\*\*\*, too": Reply(body=b'{"you sent": "%b, too"}' % CANARY.replace("/", "\\/").encode()),
    }
    for says, reply in replies.items():
        with FakeServer(lambda _, reply=reply: reply) as server:
            said, _ = asked(server)
            assert re.search(says, said)
            assert CANARY not in said
    usage = {"usage": {"prompt_tokens": -(10**9), "completion_tokens": 3}}
    with FakeServer(lambda _: Reply(body=usage)) as server:
        _, client = asked(server, price_in=1, price_out=1)
        assert client.budget.spent == Tokens(7, 7)
    assert read_answer({"choices": [{"text": "x"}], "usage": {"prompt_tokens": -5}}, (1,)).prompt_tokens == 0


def test_keys_in_the_wrong_place_are_refused_and_not_repeated() -> None:
    wrong: tuple[dict[str, Any], ...] = (
        {"key_variable": CANARY}, {"extra": json.dumps({"api_key": CANARY})}, {"url": f"https://u:{CANARY}@host/v1"},
        {"url": f"https://host/v1?api_key={CANARY}"}, {"url": f"https://{CANARY}@host/v1"},
    )  # fmt: skip
    for settings in wrong:
        with pytest.raises(ConfigError) as caught:
            OpenAISettings(**settings)
        assert CANARY not in str(caught.value)


def test_planted_keys_are_nowhere(desk: Path, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    """A server and a judge that repeat the key in answers and errors; addresses with keys; failures of every stage."""
    for name in ("OPENAI_API_KEY", "JUDGE_KEY", "TINKER_API_KEY", "WANDB_API_KEY", "HF_TOKEN"):
        monkeypatch.setenv(name, f"{CANARY}-{name}")

    def echo(request: Asked) -> Reply:
        said = f"your header was {request.headers}"
        fine = request.is_probe or request.body["seed"] % 2
        return chat(*[said] * request.body.get("n", 1)) if fine else Reply(status=400, body={"error": said})

    with FakeServer(echo) as server, FakeServer(lambda request: chat(f"{request.headers}")) as judge:
        spec = f"judge:url={judge.url},model=m,key_variable=JUDGE_KEY,retries=0"
        url = server.url.replace("http://", f"http://u:{CANARY}@")
        for line in (
            f"profile --run run --name p --policy openai:m@{server.url} --rollouts 2 --verifier {spec}",
            f"profile --run run --name q --policy openai:m@{url} --rollouts 2",
            f"profile --run run --name q --policy openai:m@{server.url}?api_key={CANARY} --rollouts 2",
            f"profile --run run --name q --policy tinker:m@{url} --rollouts 2",
            f"profile --run run --name q --policy tinker:m?api_key={CANARY} --rollouts 2",
            f"profile --run run --name q --policy openai:m --openai.url {url} --rollouts 2",
            f"rescore --run run --verifier {spec}",
            f"rescore --run run --verifier judge:url={url.replace(server.url[7:], judge.url[7:])},model=m",
            f"evaluate --run run --policies a=openai:m@{server.url} --rollouts 2",
            "train --run run --policy nowhere", "report --run run", "export --run run --to chat --output out",
        ):  # fmt: skip
            main(line.split())
        assert any(CANARY in request.headers["Authorization"] for one in (server, judge) for request in one.asked)
    out, err = capsys.readouterr()
    assert CANARY not in out + err
    kept = [path for path in tmp_path.rglob("*") if path.is_file() and CANARY.encode() in path.read_bytes()]
    assert not kept


def test_terminals_get_no_escapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    function = {"name": f"f{ESCAPES}", "arguments": json.dumps({ESCAPES: ESCAPES})}
    roles = ("system", "user", "assistant", "tool", "assistant")
    messages: list[dict[str, Any]] = [{"role": role, "content": ESCAPES} for role in roles]
    messages[2] |= {"tool_calls": [{"id": ESCAPES, "type": "function", "function": function}]}
    messages[3] |= {"tool_call_id": ESCAPES}
    row = {"task_id": f"t{ESCAPES}", "messages": messages}
    (tmp_path / f"x{ESCAPES.replace('/', '')}.jsonl").write_text(json.dumps(row) + "\n" + '{"' + ESCAPES + '": 1}\n')
    name = next(tmp_path.glob("x*")).name
    main(["ingest", name, "--run", "run"])
    main(["profile", "--run", "run", "--policy", "scripted:desk_plugins:never_right", "--rollouts", "2"])
    ids = [json.loads(line)["id"] for line in (tmp_path / "run" / "candidates.jsonl").read_text().splitlines()]
    views = (["view", "run", "--text", ids[0]], ["view", "run", "--text", ESCAPES], ["explain", name])
    others = (["report", "--run", "run"], ["audit", "--run", "run"], ["ingest", ESCAPES, "--run", f"r{ESCAPES}"])
    for line in (*views, *others, ["train", ESCAPES]):
        main(line)
    said = "".join(capsys.readouterr())
    assert "\\x1b]0;pwned" in said
    assert [ch for ch in said if not ch.isprintable() and ch != "\n"] == []
    for page in ("report.md", "report.html"):
        held = (tmp_path / "run" / page).read_text()
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", held)
    assert plain("see http://u:p@host/v1?api_key=k&a=b") == "see http://***@host/v1?api_key=***&a=b"


def test_pages_hold_text_alone() -> None:
    evil = "<script>alert(1)</script><img src=x onerror=y> ![a](http://evil/p) [b](javascript:c)\n# no heading\x1b[31m"
    blocks = [Heading(evil), Paragraph(evil), Bullets((evil,)), table_of([evil], [[evil]]), Folded(evil, ())]
    page, text = to_html(evil, [*blocks, Verbatim(evil)]), to_markdown(blocks)
    assert not re.search(r"<(script|img|a)\b", page + text)
    assert "](" not in text
    assert "![" not in to_markdown(
        [Bullets(("[p]: http://evil/p",)), Paragraph("![p] ![a][p]"), table_of(["![p]"], [])]
    )
    assert "\x1b" not in page + text
    assert len(re.findall("^#", text, re.MULTILINE)) == 1
