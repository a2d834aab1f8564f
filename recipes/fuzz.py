"""Throws damaged input at every parser: nothing but refusals of one line, a second and a gigabyte may come of any.

    python recipes/fuzz.py [--parsers NAME ...] [--cases 2000] [--first 0] [--seed 0] [DIRECTORY ...]

A case is a seed of its parser with a few changes of its bytes or its JSON, drawn from (seed, parser, number) alone: a
range of cases can be run anywhere. Files of the directories are further seeds of the readers (large ones cut down),
which read as `ingest --redact` does. Seconds are those of the processor, so that a loaded machine changes nothing. The
last line is a JSON object of what came of it.
"""

from __future__ import annotations

import argparse
import bz2
import gzip
import io
import json
import lzma
import os
import random
import re
import resource
import shlex
import shutil
import signal
import sys
import tarfile
import tempfile
import time
import traceback
import zipfile
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any

import transformers
import zstandard

from pivotrl import actions, cli
from pivotrl.chat import ChatFormat, read_template
from pivotrl.errors import PivotRLError
from pivotrl.exports.gym_server import verdict_on
from pivotrl.importing import Imports
from pivotrl.intake import IntakeSettings, Share, read_events
from pivotrl.lab.shipped import shipped_base
from pivotrl.openai_client import Garbled, _decoded, _tokens, error_message
from pivotrl.policies.openai_wire import read_answer
from pivotrl.result_files import read_results
from pivotrl.trajectories import Refusal, find
from pivotrl.trajectories.nemo_gym import NemoGym
from pivotrl.types import Message, State
from pivotrl.verifiers import ShellVerifier, load_verifier
from pivotrl.verifiers.judge import _said
from pivotrl.verifiers.judge_prompt import Prompt
from pivotrl.verifiers.rules import read_rules
from pivotrl.verifiers.shell_syntax import NotShellError, parse
from pivotrl.verifiers.terminus import read_terminus

SIZE = 64_000
"""Bytes of a seed, at most."""
STRANGE: tuple[Any, ...] = (
    None, True, 0, -1, 10**25, 1.5, float("nan"), float("inf"), "", "x", "\ud800", "[", '{"a": 1}', "\x00\x1b[31m",
    [], {}, [[]], [None], [{}], {"": None}, {"role": "assistant"}, {"name": "f", "arguments": "{"}, "<tool_call>",
    "```", "a" * 5000,
)  # fmt: skip
BYTES = (
    b"", b"\n", b"\r\n", b'"', b"\\", b"{", b"}", b"[" * 2000, b"]", b",", b":", b"\\ud800", b"\xed\xa0\x80", b"\xff",
    b"[" * 970 + b"]" * 970, b'{"a":' * 400 + b"1" + b"}" * 400,
    b"\x00", b"\xef\xbb\xbf", b"1e999", b"NaN", b"-0", b"9" * 30, b"9" * 5000, b"null", b"<function=", b"</think>",
)  # fmt: skip


def rows() -> list[Any]:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    chat = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": "Bearer abcdefghijklmnopqrst1", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "seen"},
        {"role": "assistant", "content": [{"type": "text", "text": "done"}]},
    ]
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
    langchain = [
        {"type": "human", "data": {"content": "x"}},
        {
            "type": "ai",
            "content": [{"type": "text", "text": "y"}],
            "tool_calls": [{"name": "f", "args": {}, "id": "c"}],
        },
    ]
    rows = [{"messages": chat, "tools": tools, "reward": 1}, {"traj": chat, "task_id": 1, "reward": 1.0}]
    return [*rows, {"messages": langchain}, chat]


def containers(data: bytes) -> list[bytes]:
    """The same in all that files come in."""
    plain, packed = io.BytesIO(), io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as archive:
        info = tarfile.TarInfo("a.jsonl")
        info.size = len(data)
        archive.addfile(info, io.BytesIO(data))
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as folder:
        folder.writestr("b.jsonl", data)
    found = [data, gzip.compress(data), bz2.compress(data), lzma.compress(data), zstandard.compress(data)]
    return [*found, plain.getvalue(), gzip.compress(plain.getvalue()), packed.getvalue(), *_parquet(data)]


def _parquet(data: bytes) -> list[bytes]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        return []
    table = pyarrow.table(
        {"messages": [line.decode() for line in data.splitlines()], "id": list(range(data.count(b"\n")))}
    )
    buffer = io.BytesIO()
    parquet.write_table(table, buffer)
    return [buffer.getvalue()]


def seeds_of(directories: Sequence[Path]) -> list[bytes]:
    ours = b"".join(json.dumps(row).encode() + b"\n" for row in rows())
    found = containers(ours)
    for path in sorted(path for top in directories for path in top.rglob("*") if path.is_file()):
        found.append(cut_down(path.read_bytes()))
    return found


def cut_down(data: bytes) -> bytes:
    """A file with long lists and texts cut, else its first bytes."""
    if len(data) <= SIZE:
        return data
    try:
        if data[:1] in b"{[":
            return json.dumps(_short(json.loads(data)), indent=1).encode()[:SIZE]
    except ValueError:
        lines = data.split(b"\n")[:20]
        with_json = (json.dumps(_short(json.loads(line))).encode() for line in lines if line.startswith(b"{"))
        return b"\n".join(with_json)[:SIZE]
    return data[:SIZE]


def _short(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _short(item) for key, item in list(value.items())[:40]}
    if isinstance(value, list):
        return [_short(item) for item in value[:8]]
    return value[:1000] if isinstance(value, str) else value


def mutated(rng: random.Random, seeds: Sequence[bytes]) -> bytes:
    data = rng.choice(seeds)
    for _ in range(rng.choice((1, 1, 2, 3, 6))):
        data = rng.choice((_bytes, _bytes, _json, _json, _spliced))(rng, data, seeds)
    return data


def _bytes(rng: random.Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
    at = rng.randrange(len(data) + 1)
    size = rng.choice((0, 0, 1, 1, 4, 30, len(data)))
    return (
        data[:at]
        + rng.choice((rng.choice(BYTES), rng.randbytes(rng.randrange(4)), data[at : at + 9] * 3))
        + data[at + size :]
    )


def _spliced(rng: random.Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
    other = rng.choice(seeds)
    return data[: rng.randrange(len(data) + 1)] + other[rng.randrange(len(other) + 1) :][:SIZE]


def _json(rng: random.Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
    """A change of one value, in a line or in the document."""
    lines = data.split(b"\n")
    number = rng.randrange(len(lines))
    for text, before, after in ((lines[number], lines[:number], lines[number + 1 :]), (data, [], [])):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            continue
        return b"\n".join([*before, json.dumps(_changed(rng, value)).encode(), *after])
    return data


def _changed(rng: random.Random, value: Any, depth: int = 0) -> Any:
    if not isinstance(value, dict | list) or not value or rng.random() < 0.1:
        return rng.choice(STRANGE)
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    key = rng.choice(keys)
    value = value.copy()
    action = rng.random()
    if action < 0.1:
        del value[key]
    elif action < 0.2 and isinstance(value, list):
        value.insert(key, value[rng.choice(keys)])
    elif action < 0.2:
        value[rng.choice(("role", "content", "type", "from", "tool_calls", "messages", str(key) + "x"))] = value.pop(
            key
        )
    else:
        value[key] = _changed(rng, value[key], depth + 1)
    return value


Parser = Callable[[bytes, Path], object]
"""Takes a case and an empty folder."""
CALLS = [
    b'I look.\n<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>',
    b"<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>",
    b'[TOOL_CALLS][{"name": "f", "arguments": {"a": "b"}}]', b"[f(a=1, b=['x', {}]), g()]",
    b"Thought: x\nAction: f[a, b]",
    b'<think>a</think>{"name": "f", "parameters": {}}', b'Action: f\nAction Input: {"a": 1}',
]  # fmt: skip
SHELL = [b"cd /a && grep -rn 'x' . | head -5 > b; for i in 1 2; do echo ${i:-$(id)} <<E\n`a`\nE\ndone"]
SHELL += [b"find . -name '*.py' -exec sed -i s/a/b/ {} + || (ls -la \"$HOME\") 2>&1 &"]
TERMINUS = [
    b'{"analysis": "a", "plan": "b", "commands": [{"keystrokes": "ls\\n", "duration": 1}], "task_complete": true}'
]
ANSWERS = [
    b'{"choices": [{"finish_reason": "stop", "message": {"role": "assistant", "content": "hi [[YES-0a1b2c3d]]", '
    b'"tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}, "token_ids": [1],'
    b'"logprobs": {"content": [{"logprob": -0.5}]}}], "usage": {"prompt_tokens": 3, "completion_tokens": 1}}',
    b'{"error": {"message": "no", "code": 4}, "detail": [{"loc": [], "msg": "x"}]}',
]
RULES = [
    b'read_only = ["f"]\n[or_ask]\ng = ["Which?"]\n[f]\na = "grounded:.+@.+"\n[f.b]\nc = "text>=0.8"\n["*"]\nd="set"'
]
GYM = [
    b'{"responses_create_params": {"input": [{"role": "user", "content": "x"}], "tools": []}, "expected_action": {'
    b'"type": "function_call", "name": "f", "arguments": "{}"}, "pass_rate_passed": 1, "pass_rate_total": 4, '
    b'"response": {"output": [{"type": "function_call", "name": "f", "arguments": "{}", "call_id": "c"}]}}'
]
RESULTS = [
    b'{"simulations": [{"task_id": 1, "reward_info": {"reward": 1}}], "info": {"num_trials": 1}}',
    b'{"task_id": 1, "reward": 1, "traj": []}', b'{"resolved_ids": ["a"], "submitted_ids": ["a", "b"]}',
    b'{"doc_id": 1, "target": "x", "acc": 1, "filter": "none", "metrics": ["acc"], "doc_hash": "aa"}',
    b'{"responses_create_params": {}, "reward": 1.0, "agent_ref": {"name": "g"}, "_ng_task_index": 3}',
]  # fmt: skip
ARGUMENTS = [
    b"profile --run r --policy openai:m@http://h/v1 --rollouts 4 --sampling.temperature 0.5 --openai.extra {}",
    b"train --run r --preset paper --steps 3 --lora.rank 4 --no-allow-mismatch --track tensorboard",
    b"lab pretrain --out o",
    b"ingest a b --run r --redact --infer-tools", b"evaluate --run r --policies a=b --scope.max-candidates 3",
    b"view r",
]  # fmt: skip
PLAY, SHORT = "--policy scripted:fuzz:play --rollouts", "--sampling.max-new-tokens 4"
TRAINING = (
    "--policy {base} --steps 1 --prompts 1 --group-size 2 --max-new-tokens 4 --allow-mismatch "
    "--model.chat-template chatml-tools"
)
COMMANDS = (
    "report --run {}", "report --run {}", "view {} --export {}.view", "view {} --text x:1@1",
    "view {} --verifier exact --text x:1@1", "explain --run {}", "compare a={} b={}",
    "compare a={}:a b={}:a --output {}.d", "audit --run {}", "audit --run {} --verifier exact",
    "select --run {} --name again --lambda-diff 1", "select --run {} --lambda-diff 1 --quota tool=1",
    "rescore --run {} --verifier tool_name", "rescore --run {} --verifier exact",
    "export --run {} --to chat --everything --output {}.a", "export --run {} --to nemo-gym --output {}.b",
    "export --run {} --to trl --policy {base} --model.chat-template chatml-tools --output {}.c",
    "train --run {} --name y --policy nowhere", f"train --run {{}} {TRAINING} --name y",
    f"train --run {{}} {TRAINING} --method unfiltered --name x",
    f"evaluate --run {{}} --split train --rollouts 1 --name b {SHORT}",
    "evaluate --run {} --split train --policies a=scripted:fuzz:play --rollouts 2",
    f"evaluate --run {{}} --env desk --tasks 1 --policies a=train/x --episodes.turn-limit 1 {SHORT}",
    f"profile --run {{}} {PLAY} 4", f"profile --run {{}} {PLAY} 4 --plan --pilot 3",
    f"profile --run {{}} {PLAY} 2 --again base --name z", f"profile --run {{}} --policy train/x --name v {SHORT}",
    f"profile --run {{}} {PLAY} 2 --again base --everything --name z",
    "lab theory-check --run {}", "ingest {}/../x.jsonl --run {}", "ingest {}/../x.jsonl --run {} --overwrite",
)  # fmt: skip


def play(state: State, rng: random.Random) -> str:
    return rng.choice(('<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>', "done", "<tool_call>"))


@cache
def made_run(summed: bool = True) -> Path:
    """A run with something in every file, trained for a step; or the same without sums, which tell all damage."""
    if not summed:
        return without_sums(made_run())
    top = Path(tempfile.mkdtemp())
    run, data = top / "run", top / "x.jsonl"
    lines = [json.dumps(rows()[0] | {"task_id": str(at)}).replace('"x"', f'"x{at}"') for at in range(8)]
    data.write_text("\n".join(lines) + "\n")
    for line in (
        f"ingest {data} --run {run}", f"profile --run {run} {PLAY} 4",
        f"select --run {run} --lambda-diff 1", f"audit --run {run}", f"rescore --run {run} --verifier exact",
        f"evaluate --run {run} --policies a=scripted:fuzz:play --rollouts 2 --split train",
        f"train --run {run} {TRAINING} --method unfiltered --name x", f"report --run {run}",
    ):  # fmt: skip
        if said := command(line.replace("{base}", str(shipped_base()))):
            raise RuntimeError(said)
    return run


def without_sums(run: Path) -> Path:
    other = Path(shutil.copytree(run, Path(tempfile.mkdtemp()) / "run"))
    for path in other.rglob("*.json*"):
        path.write_bytes(re.sub(rb',"sum":"[0-9a-f]{8}"}', b"}", path.read_bytes()))
    for path in other.rglob("sums.json"):
        path.unlink()
    manifest = json.loads((other / "run.json").read_text())
    for facts in manifest["stages"].values():
        facts.pop("wrote", None)
    del manifest["hash"]
    (other / "run.json").write_text(json.dumps(manifest))
    return other


def command(line: str) -> str:
    """What the command line makes of it; the complaint, if it has one."""
    said = io.StringIO()
    with redirect_stderr(said), redirect_stdout(io.StringIO()):
        return said.getvalue() if cli.main(shlex.split(line)) == 2 else ""


def artefact(case: bytes, folder: Path) -> Counter[str]:
    """A file of a run is damaged, or something else in its place, and a command is given the run."""
    rng, run = random.Random(case), folder / "run"
    made = made_run(rng.random() < 0.2)
    shutil.copytree(made, run, copy_function=_copied)
    shutil.copy(made_run().parent / "x.jsonl", folder)
    files = sorted(one for one in run.rglob("*") if one.is_file() and one.suffix not in (".safetensors", ".html"))
    told = [one for one in files if one.suffix in (".json", ".jsonl")]
    path = rng.choice([*files, *told * 2, *[run / "run.json"] * len(files)])
    held, kind = path.read_bytes(), rng.random()
    if kind < 0.1:
        path.unlink()
        rng.choice((path.mkdir, lambda: path.symlink_to(path.name), lambda: os.mkfifo(path), lambda: None))()
    else:
        path.write_bytes(_json(rng, held, []) if kind < 0.7 else mutated(rng, [held]))
    line = rng.choice(COMMANDS).replace("{}", str(run)).replace("{base}", str(shipped_base()))
    said = command(line)
    if sum(one.startswith("error: ") for one in said.splitlines()) != bool(said) or "Traceback" in said:
        raise AssertionError(said)
    return Counter({f"{line.split()[0]}: {'refused' if said else 'done'}": 1})


def _copied(source: str, target: str) -> None:
    (os.link if source.endswith(".safetensors") else shutil.copyfile)(source, target)


def readers(case: bytes, folder: Path) -> Counter[str]:
    (folder / "input").write_bytes(case)
    ends: Counter[str] = Counter()
    with ExitStack() as stack:
        inputs = tuple(enumerate(find((str(folder / "input"),), folder / "run", stack)))
        share = Share(inputs=inputs, settings=IntakeSettings(redact=True), lists=[], inferred={})
        for event in read_events(share, chat=None):
            ends[event.reason if isinstance(event, Refusal) else type(event).__name__] += 1
            assert not (isinstance(event, Refusal) and "\n" in event.text), event.text
    return ends


def syntaxes(case: bytes, folder: Path) -> None:
    text = case.decode(errors="replace")
    for syntax in (*actions.SYNTAXES, actions.detect(text)):
        actions.parse(text, syntax, None)


def shell(case: bytes, folder: Path) -> None:
    text = case.decode(errors="surrogateescape")
    ShellVerifier().compare(SHELL[0].decode(), text, "/a")
    parse(text)


def answers(case: bytes, folder: Path) -> None:
    document = _decoded(case, b"a-secret-key")
    error_message(document), _tokens(document), Prompt("", "", "0a1b2c3d").verdict(_said(document))
    read_answer(document, (1, 2))


def gym(case: bytes, folder: Path) -> None:
    row = _decoded(case, b"")
    Imports().add("c", NemoGym().measured(row))
    if isinstance(row, dict) and isinstance(row.get("response"), dict):
        verdict_on(load_verifier("auto"), row, row["response"])


def rules(case: bytes, folder: Path) -> None:
    (folder / "rules.toml").write_bytes(case)
    read_rules(str(folder / "rules.toml"))


def results(case: bytes, folder: Path) -> None:
    (folder / "samples_x_1.jsonl").write_bytes(case)
    read_results(folder / "samples_x_1.jsonl", None)


def arguments(case: bytes, folder: Path) -> None:
    words = case.decode(errors="replace").split(" ")
    if not {"-h", "--help"} & {*words}:
        cli._parse(words)


def template(case: bytes, folder: Path) -> None:
    ask = State(
        key="k", messages=(Message(role="user", content="x"), Message(role="assistant", content="y")), tools=None
    )
    ChatFormat(tokenizer(), template=case.decode(errors="replace")).prompt_text(ask)


@cache
def tokenizer() -> Any:
    return transformers.AutoTokenizer.from_pretrained(shipped_base())


PARSERS: dict[str, tuple[Parser, Callable[[], list[bytes]]]] = {
    "readers": (readers, lambda: seeds_of([])), "actions": (syntaxes, lambda: CALLS), "shell": (shell, lambda: SHELL),
    "terminus": (lambda case, _: read_terminus(case.decode(errors="replace")), lambda: TERMINUS),
    "answers": (answers, lambda: ANSWERS), "gym": (gym, lambda: GYM), "rules": (rules, lambda: RULES),
    "results": (results, lambda: RESULTS), "arguments": (arguments, lambda: ARGUMENTS),
    "artefacts": (artefact, lambda: [b"%d" % number for number in range(10**5)]),
    "template": (template, lambda: [read_template("chatml-tools").encode()]),
}  # fmt: skip
REFUSED = (PivotRLError, NotShellError, Garbled)


def fuzz(
    name: str, cases: range, seed: int, *, more: Sequence[bytes] = (), seconds: float = 1.0
) -> tuple[list[str], Counter[str]]:
    """What went wrong, and how often which end was met; memory is what this process has come to need meanwhile."""
    parser, seeds = PARSERS[name][0], [*PARSERS[name][1](), *more]
    failures, ends, before = list[str](), Counter[str](), 0
    for number in cases:
        rng = random.Random(f"{seed}/{name}/{number}")
        with tempfile.TemporaryDirectory() as folder:
            case, start = mutated(rng, seeds), time.process_time()
            signal.setitimer(signal.ITIMER_VIRTUAL, 60)
            try:
                found = parser(case, Path(folder))
                ends.update(found if isinstance(found, Counter) else {"read": 1})
            except REFUSED as error:
                ends[type(error).__name__] += 1
            except (Exception, SystemExit):
                failures.append(f"{name} {number}: {' | '.join(traceback.format_exc().splitlines()[-5:])}")
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            took, before = time.process_time() - start, before or _peak()
        if took > seconds and number != cases.start:  # the first one loads what the parser needs
            failures.append(f"{name} {number}: {took:.1f} s")
        if _peak() - before > 1000:
            return [*failures, f"{name} {number}: {_peak() - before} MiB"], ends
    return failures, ends


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def _hung(*_: object) -> None:
    raise TimeoutError("60 s")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("directories", nargs="*", type=Path)
    options.add_argument("--parsers", nargs="*", choices=[*PARSERS], default=[*PARSERS])
    for name, default in (("cases", 2000), ("first", 0), ("seed", 0)):
        options.add_argument(f"--{name}", type=int, default=default)
    asked, counts, failures, ends = options.parse_args(), dict[str, int](), list[str](), Counter[str]()
    signal.signal(signal.SIGVTALRM, _hung)
    for name in asked.parsers:
        more = seeds_of(asked.directories) if name == "readers" else []
        wrong, met = fuzz(name, range(asked.first, asked.first + asked.cases), asked.seed, more=more)
        print("\n".join([f"{name}: {len(wrong)} failures, {dict(met.most_common(9))}", *wrong[:20]]), flush=True)
        counts[name], failures, ends = asked.cases, failures + wrong, ends + met
    print(json.dumps({"cases": counts, "failures": len(failures), "peak_mib": _peak(), "ends": ends}))
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
