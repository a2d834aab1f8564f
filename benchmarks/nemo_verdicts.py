"""How far the `nemo_gym.*` verifiers give NeMo Gym's recorded verdicts, and where `auto` differs and why.

    python benchmarks/nemo_verdicts.py FILE [--json]

FILE has one case a line: `server` (`single_step`, `swe_pivot`, `terminus`, `multi` or `multi_harness`), `config` (the
server's), `row` (a pivot row), `items` (the output items of the response), `reward` (`raises` where the server gave
none) and `case`, its name. Prints the table of docs/verifiers.md; with --json one JSON object last. Exits 1 where
`nemo_gym.*` gives another reward than was recorded, or `auto` is wrong. `RIGHT` is our word, by hand, on the recorded
cases of ../shared/data/verdicts/nemo_gym_0.7.0.jsonl.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from pivotrl.errors import InputError, PivotRLError
from pivotrl.protocols import Verifier
from pivotrl.trajectories.nemo_gym import NemoGym
from pivotrl.types import Action, Candidate, Completion, Source, ToolCall, Verdict
from pivotrl.verifiers import load_verifier, verifier_id, verify
from pivotrl.verifiers.nemo_gym import CALL
from pivotrl.verifiers.nemo_gym_multi_harness import MultiHarnessVerifier
from pivotrl.verifiers.nemo_gym_single_step import SingleStepVerifier
from pivotrl.verifiers.nemo_gym_swe_pivot import SwePivotVerifier
from pivotrl.verifiers.nemo_gym_terminus import TerminusVerifier

Record = Mapping[str, Any]
SERVERS: Mapping[str, type[Any]] = {
    "single_step": SingleStepVerifier,
    "swe_pivot": SwePivotVerifier,
    "terminus": TerminusVerifier,
    "multi": MultiHarnessVerifier,
    "multi_harness": MultiHarnessVerifier,
}


@dataclass(frozen=True, slots=True)
class Word:
    """What is right at a case, and why; not `known` where both verdicts can be defended."""

    right: float | None
    why: str
    known: bool = True


def either(why: str) -> Word:
    return Word(None, why, known=False)


UNKNOWN = Word(None, "", known=False)
RIGHT: Mapping[str, Word] = {
    "single_step: identical 3-word string, th=0.6": Word(1, "the same call"),
    "single_step: no word shared, th=0.0": Word(0, "another query, no word in common"),
    "single_step: 1 of 3 words shared (1/6), th=0.1": Word(0, "another query, two of three words differ"),
    "single_step: expected float 1.0, actual int 1": Word(1, "one number: JSON knows no other kind"),
    "single_step: expected int 1, actual true": Word(0, "a truth value is no number"),
    "single_step: expected single word 'NYC', actual 'nyc'": Word(0, "ids tell case apart; no schema says otherwise"),
    "single_step: expected 'ls -la', actual 'rm -rf /' th=0.0": Word(0, "another command, and it deletes everything"),
    "single_step: view_range [1,50] vs [1,60], th=0.0 (SWE pivot config)": Word(1, "shows every line that was shown"),
    "single_step: list order differs": Word(0, "arrays are ordered where no schema says that they are sets"),
    "single_step: args invalid JSON": Word(0, "no tool can be called so"),
    "single_step: expected message, empty message": Word(0, "it says nothing"),
    "single_step: expected call + text preamble": Word(1, "the same call; text beside it does nothing"),
    "single_step: no output at all": Word(0, "it does nothing"),
    "single_step: ": Word(None, "the demonstration is no JSON: nothing can be judged"),
    "swe_pivot: paper mode: name only, bash 'ls' vs 'rm -rf /'": Word(0, "another command, and it deletes everything"),
    "swe_pivot: binary: bash missing command arg": Word(0, "no command"),
    "swe_pivot: opencode edit: filePath/oldString/newString, totally different": Word(
        0, "another edit of another file"
    ),
    "swe_pivot: codex shell command list": Word(0, "runs the tests of one folder only"),
    "swe_pivot: read: different path 3 suffix": Word(0, "another file"),
    "swe_pivot: finish vs finish": either("both end the task; the message is another, and nobody knows who reads it"),
    "swe_pivot: first call wrong, second right": Word(0, "two calls for one; surplus ones are refused by default"),
    "swe_pivot: create identical 2k+ content": Word(1, "the same call"),
    "swe_pivot: create same but 1 comment line prepended": Word(1, "a comment line changes nothing that runs"),
    "swe_pivot: edit wrong case tool name STR_REPLACE_EDITOR": Word(0, "no tool has that name"),
    "swe_pivot: view [1,-1] vs [1,50]": Word(1, "shows every line that was shown"),
    "swe_pivot: bash: cd prefix differs only": either(
        "the same in that folder; the row does not say where the shell is"
    ),
    "terminus: split into 2 commands w/ same concat": Word(1, "the same keystrokes"),
    "terminus: expected complete, pred missing": Word(0, "the episode goes on instead of ending"),
    "terminus: ```json fenced": Word(1, "the same answer; the fence is dress"),
    "terminus: extra top-level key": Word(0, "against the harness's schema"),
    "terminus: short cmd ls vs cd": Word(0, "deletes another folder"),
    "terminus: long heredoc, one char prepended": Word(1, "a blank before a command changes nothing"),
    "multi_harness: opencode edit totally different strings same file": Word(0, "another edit"),
    "multi_harness: opencode read extra key offset": Word(0, "leaves out the first lines"),
    "multi_harness: generic harness bash different command": Word(0, "another command, and it deletes everything"),
    "multi_harness: batch order swapped": Word(1, "the same calls; parallel ones have no order"),
    "multi_harness: tool not declared": either(
        "the demonstrated call, but the row does not declare its tool: a bad row"
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One case: what NeMo Gym recorded, and what two verifiers of ours say."""

    line: int
    server: str
    case: str
    recorded: float | None
    ours: float | None
    code: str
    default: float | None
    inner: str
    """The verifier that `auto` asked."""
    reason: str

    @property
    def agrees(self) -> bool:
        return same(self.recorded, self.ours)


def expected_of(server: str, row: Record) -> Record:
    """The row's expected action as the server finds it: in `expected_action`, `expected_answer` or `metadata`."""
    metadata = row.get("metadata") or {}
    if server == "terminus":
        answer = row.get("expected_answer") or metadata.get("expected_answer")
        return {"type": "message", "content": "" if answer is None else str(answer)}
    given = row.get("expected_action")
    if server != "swe_pivot":
        return given
    found = [given, _decoded(row.get("expected_answer")), metadata.get("expected_action")]
    calls = [action for action in found if isinstance(action, dict) and action.get("type") == CALL]
    return next(iter(calls), given or {"type": "message", "content": ""})


def _decoded(text: Any) -> Any:
    try:
        return json.loads(text)
    except (TypeError, ValueError):
        return None


def candidate_of(server: str, row: Record) -> Candidate:
    """The row as `ingest` reads it, with what only the server looks at put where a candidate has it."""
    asked = dict(row.get("responses_create_params") or {"input": []})
    if server.startswith("multi") and row.get("declared_tools") is not None:
        asked["tools"] = row["declared_tools"]
    harness = row.get("harness") if server.startswith("multi") else (row.get("metadata") or {}).get("harness")
    known = {"responses_create_params": asked, "expected_action": expected_of(server, row), "domain": harness}
    (trajectory,) = NemoGym().read(known, Source(file=server, format="nemo_gym"))
    return Candidate(trajectory=trajectory, turn=len(trajectory.messages) - 1)


def action_of(server: str, items: Sequence[Record]) -> Action:
    """The action that the server extracts: it joins messages in its own way, and reads no refusal."""
    made = [one for one in items if one.get("type") == CALL]
    calls = tuple(ToolCall(name=one.get("name", ""), arguments=one.get("arguments")) for one in made)
    said = [text for one in items if one.get("type") == "message" for text in _texts(one.get("content"))]
    if server == "single_step":
        said = said[:1]
    return Action(calls=calls, text=("\n" if server == "terminus" else "").join(said) if said else None)


def _texts(content: Any) -> Iterator[str]:
    if isinstance(content, str):
        yield content
    else:
        yield from (part["text"] for part in content or () if isinstance(part.get("text"), str))


def verifier_of(server: str, config: Record, row: Record) -> Verifier:
    """The server's verifier with the knobs that it reads; NeMo Gym drops the others without a word."""
    kind = SERVERS[server]
    knobs = {**config, **config.get("tool_call_comparator_config", {})}
    if row.get("threshold") is not None:
        knobs["string_similarity_threshold"] = row["threshold"]
    if row.get("expected_action"):
        knobs["expected_type"] = expected_of(server, row).get("type", "")
    return kind(**{field.name: knobs[field.name] for field in fields(kind) if field.name in knobs})


def judge(line: int, record: Record, default: Verifier) -> Judged:
    server, row = record["server"], record["row"]
    try:
        candidate, action = candidate_of(server, row), action_of(server, record["items"])
        one = said(verifier_of(server, record.get("config") or {}, row), candidate, action)
        other = said(default, candidate, action)
    except PivotRLError as error:
        one = other = Verdict(value=None, reason="unreadable", verifier="", version="", detail=str(error))
    return Judged(
        line=line,
        server="multi_harness" if server == "multi" else server,
        case=str(record.get("case") or ""),
        recorded=record.get("reward"),
        ours=one.value,
        code=one.reason,
        default=other.value,
        inner=other.verifier,
        reason=f"{other.reason}: {other.detail}" if other.detail else other.reason,
    )


def said(verifier: Verifier, candidate: Candidate, action: Action) -> Verdict:
    return verify(verifier, candidate, Completion(action=action, text="", finish_reason="stop"))


def same(one: float | None, other: float | None) -> bool:
    return one is other if one is None or other is None else abs(one - other) < 1e-9


def read(path: Path) -> Iterator[tuple[int, Record]]:
    """The cases with their lines. Raises InputError."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from None
    for number, text in enumerate(lines, start=1):
        if not text.strip():
            continue
        record = _decoded(text)
        if not isinstance(record, dict) or record.get("server") not in SERVERS or not {"row", "items"} <= record.keys():
            raise InputError(f"{path}:{number}: no case; it needs server ({', '.join(SERVERS)}), row and items")
        yield number, record


def report(cases: Sequence[Judged], default: Verifier) -> dict[str, Any]:
    """Everything that is printed, as one JSON object."""
    words = [(one, RIGHT.get(f"{one.server}: {one.case}", UNKNOWN)) for one in cases]
    known = [(one, word.right) for one, word in words if word.known]
    rows = [{**asdict(one), "right": word.right, "known": word.known, "why": word.why} for one, word in words]
    return {
        "n": len(cases),
        "agree": sum(one.agrees for one in cases),
        "rewards": sum(one.recorded is not None for one in cases),
        "disagreements": [asdict(one) for one in cases if not one.agrees],
        "servers": {
            name: {"n": len(some), "agree": sum(one.agrees for one in some)}
            for name in sorted({one.server for one in cases})
            for some in [[one for one in cases if one.server == name]]
        },
        "default": {
            "verifier": default.name,
            "id": verifier_id(default),
            "known": len(known),
            "right": sum(same(one.default, right) for one, right in known),
            "nemo_gym_right": sum(same(one.recorded, right) for one, right in known),
            "differs": [row for row in rows if not same(row["recorded"], row["default"])],
            "wrong": [row for row in rows if row["known"] and not same(row["default"], row["right"])],
        },
    }


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Markdown: what NeMo Gym says, what `auto` says, by which verifier and for which reason, and what is right."""
    lines = ["| case | NeMo Gym | auto | right | why |", "|---|---|---|---|---|"]
    for row in rows:
        right = shown(row["right"]) if row["known"] else "either" if row["why"] else "?"
        cells = (
            f"{row['server']}: {row['case']}",
            shown(row["recorded"]),
            f"{shown(row['default'])} {row['inner']} `{row['reason'].partition(':')[0]}`",
            right,
            row["why"],
        )
        lines.append("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |")
    return "\n".join(lines)


def shown(value: float | None) -> str:
    return "unscored" if value is None else f"{value:g}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", type=Path, help="recorded cases, one JSON object a line")
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    options = parser.parse_args()
    default = load_verifier("auto")
    try:
        found = report([judge(line, record, default) for line, record in read(options.file)], default)
    except PivotRLError as error:
        sys.exit(str(error))
    for name, counts in found["servers"].items():
        print(f"nemo_gym.{name}: {counts['agree']} of {counts['n']} as recorded")
    print(f"together: {found['agree']} of {found['n']}, {found['n'] - found['rewards']} of them without a reward")
    for one in found["disagreements"]:
        print(f"  line {one['line']}: {shown(one['recorded'])} recorded, {shown(one['ours'])} ({one['code']}) here")
    ours = found["default"]
    print(f"right on {ours['known']} cases judged by hand: NeMo Gym {ours['nemo_gym_right']}, auto {ours['right']}")
    print(f"\nwhere auto differs ({len(ours['differs'])}):\n\n{table(ours['differs'])}")
    if ours["wrong"]:
        print(f"\nwhere auto is not right ({len(ours['wrong'])}):\n\n{table(ours['wrong'])}")
    if options.json:
        print(json.dumps(found))
    return 1 if found["disagreements"] or ours["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
