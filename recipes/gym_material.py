"""What recipes/nemo_gym.sh lays before NeMo Gym: a run and its export, its rollouts, and judged actions.

    python recipes/gym_material.py WORK [TRAJECTORIES...]

WORK gets a run of made trajectories (an order desk with parallel calls, a coding agent, Terminus 2), profiled by a
script, its export `gym/`, rollouts as `gym eval run` leaves them, and `cases.jsonl`: a row, the output items of a
response, and the rewards by the `nemo_gym.*` verifiers and by `auto`, made from the run and not from the row. With
TRAJECTORIES, files that `ingest` reads, all their candidates are exported too (`gym_more/`). Checks that ingesting the
export gives state, action and profile back, and the rollouts the same means. recipes/gym_check.py does the rest.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pivotrl import ExportConfig, IngestConfig, ProfileConfig, SelectConfig, export, ingest, profile, select
from pivotrl.candidates import CandidateStore
from pivotrl.errors import InputError
from pivotrl.exports.gym_rows import response_items
from pivotrl.profile_settings import load_plan, profiled_groups
from pivotrl.run_directory import RunDirectory
from pivotrl.storage import read_jsonl, write_jsonl
from pivotrl.types import Action, Candidate, Completion, Message, Profile, State, ToolCall
from pivotrl.verifiers import load_verifier, verify

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

import nemo_verdicts

Record = dict[str, Any]
CASES = 1000
WORDS = ("alpha", "beta", "gamma", "delta", "the", "quick", "brown", "fox", "jumps", "a", "lazy", "dog", "at", "Paris")
STEP = {"word_count_similarity_threshold": 0.1}
F1 = STEP | {
    "parallel_tool_call_rewarding": True,
    "allow_subset": True,
    "allow_superset": True,
    "parallel_tool_call_reward_mode": "f1",
}
CONFIGS: dict[str, list[Record]] = {
    "single_step": [
        {"tool_call_comparator_config": STEP},
        {"tool_call_comparator_config": STEP | {"word_count_similarity_threshold": 0.0}},
        {"tool_call_comparator_config": STEP | {"word_count_similarity_threshold": 0.3}},
        {"tool_call_comparator_config": F1},
    ],
    "swe_pivot": [{}, {"reward_mode": "continuous"}],
    "terminus": [{"enable_string_similarity": True, "string_similarity_threshold": 0.9, "enable_llm_judge": False}],
    "multi_harness": [{"tool_call_comparator_config": {"string_similarity_threshold": 0.9}}],
}
HARNESSES = ("codex", "opencode", "agent006", "stirrup")


def text(rng: random.Random, least: int = 1, most: int = 6) -> str:
    return " ".join(rng.choices(WORDS, k=rng.randint(least, most)))


def tool(name: str, **properties: Record) -> Record:
    schema = {"type": "object", "properties": properties, "required": list(properties)[:1]}
    return {"type": "function", "function": {"name": name, "description": f"to {name}", "parameters": schema}}


STRING, NUMBER, FLAG, LIST = {"type": "string"}, {"type": "number"}, {"type": "boolean"}, {"type": "array"}
TOOLS = (
    tool("book", order=STRING, amount=NUMBER, notify=FLAG, tags=LIST, note=STRING),
    tool("find", order=STRING, filters={"type": "object"}),
    tool("bash", command=STRING),
    tool("exec_command", cmd=STRING),
    tool("str_replace_editor", command=STRING, path=STRING, old_str=STRING, new_str=STRING, view_range=LIST),
)


def calls_of(rng: random.Random) -> list[tuple[str, Record]]:
    """The calls of one turn."""
    path = f"/repo/{rng.choice(WORDS)}/{rng.choice(WORDS)}.py"
    lines = "\n".join(text(rng, 3, 9) for _ in range(rng.randint(1, 30)))
    made: list[tuple[str, Record]] = [
        (
            "book",
            {
                "order": f"A{rng.randrange(99)}",
                "amount": rng.choice([rng.randrange(9), rng.random() * 9]),
                "notify": rng.random() < 0.5,
                "tags": rng.sample(WORDS, 2),
                "note": text(rng),
            },
        ),
        ("find", {"order": text(rng, 1, 2), "filters": {"state": rng.choice(WORDS), "depth": rng.randrange(3)}}),
        ("bash", {"command": f"{rng.choice(['ls -la', 'cat', 'grep -n', 'rm -rf'])} {path}"}),
        ("exec_command", {"cmd": f"sed -n 1,{rng.randrange(200)}p {path}"}),
        ("str_replace_editor", {"command": "str_replace", "path": path, "old_str": lines, "new_str": text(rng)}),
        ("str_replace_editor", {"command": "view", "path": path, "view_range": [1, rng.randrange(2, 80)]}),
    ]
    return rng.sample(made, rng.choice([1, 1, 1, 2, 3]))


def terminus(rng: random.Random) -> Record:
    commands = [{"keystrokes": f"echo {text(rng)}\n", "duration": 1.0} for _ in range(rng.randint(1, 3))]
    return {"analysis": text(rng), "plan": text(rng), "commands": commands, "task_complete": rng.random() < 0.2}


def trajectory(number: int) -> Record:
    """A chat row; every third is of Terminus 2."""
    rng = random.Random(f"gym/{number}")
    row: Record = {"task_id": f"task-{number}", "reward": 1.0}
    messages: list[Record] = [{"role": "user", "content": f"Task {number} : {text(rng, 4, 12)}"}]
    if number % 3 == 2:
        for _ in range(3):
            messages.append({"role": "assistant", "content": json.dumps(terminus(rng))})
            messages.append({"role": "user", "content": f"New Terminal Output:\n{text(rng)}"})
        return row | {"messages": messages[:-1]}
    messages.insert(0, {"role": "system", "content": "Be exact."})
    for turn in range(3):
        made = calls_of(rng)
        ids = [f"call_{turn}_{at}" for at in range(len(made))]
        calls = [
            {"id": one, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
            for one, (name, arguments) in zip(ids, made, strict=True)
        ]
        thought = {"reasoning_content": text(rng)} if turn == 1 else {}
        messages.append({"role": "assistant", "content": None, "tool_calls": calls, **thought})
        messages += [{"role": "tool", "tool_call_id": one, "content": text(rng), "error": False} for one in ids]
    return row | {"messages": [*messages, {"role": "assistant", "content": f"Done: {text(rng)}."}], "tools": TOOLS}


def play(state: State, rng: random.Random) -> str:
    """The script that is profiled: the expert's action or another one, about as often."""
    task = next(str(one.content) for one in state.messages if one.role == "user")
    said = trajectory(int(task.split()[1]))["messages"][len(state.messages)]
    calls = tuple(
        ToolCall(name=one["function"]["name"], arguments=one["function"]["arguments"])
        for one in said.get("tool_calls", ())
    )
    action = Action(text=said["content"], calls=calls)
    return written(action if rng.random() < 0.5 else changed(action, rng))


def written(action: Action) -> str:
    """The text of an action in Hermes' syntax; arguments that are no JSON raise, so that the model call failed."""
    blocks = [action.text] if action.text else []
    for one in action.calls:
        if one.parsed.error is not None:
            raise InputError(f"call of {one.name!r}: {one.parsed.error}; hermes can only write an object")
        blocks.append(f'<tool_call>\n{{"name": {json.dumps(one.name)}, "arguments": {one.arguments}}}\n</tool_call>')
    return "\n".join(blocks)


def changed(action: Action, rng: random.Random) -> Action:
    """Something near an action, or far from it."""
    if not action.calls:
        return replace(action, text=_changed_text(action.text or "", rng))
    calls, at = list(action.calls), rng.randrange(len(action.calls))
    what = rng.randrange(9)
    if what == 0:
        calls.append(ToolCall(name="bash", arguments='{"command": "ls -la /"}'))
    elif what == 1:
        rng.shuffle(calls)
    elif what == 2 and len(calls) > 1:
        del calls[at]
    elif what == 3:
        return Action(text=text(rng))
    elif what == 4:
        return replace(action, text=text(rng))
    elif what == 5:
        calls[at] = replace(calls[at], name=rng.choice(["bash", "find", calls[at].name.upper()]))
    else:
        calls[at] = _changed_arguments(calls[at], rng)
    return replace(action, calls=tuple(calls))


def _changed_arguments(call: ToolCall, rng: random.Random) -> ToolCall:
    arguments = dict(call.parsed.value or {})
    key = rng.choice(list(arguments))
    for _ in range(rng.randint(1, 2)):
        arguments[key] = _changed_value(arguments[key], rng)
    if rng.random() < 0.15:
        del arguments[key]
    if rng.random() < 0.15:
        arguments["more"] = text(rng)
    return replace(call, arguments=json.dumps(arguments)[: -1 if rng.random() < 0.1 else None])


def _changed_value(value: Any, rng: random.Random) -> Any:
    if isinstance(value, bool):
        return rng.choice([not value, int(value)])
    if isinstance(value, int | float):
        return rng.choice([value, float(value), value + 1, value + 1e-8, bool(value), str(value)])
    if isinstance(value, list):
        return rng.choice([value[::-1], value[:1], [*value, value[0]]])
    if isinstance(value, dict):
        return rng.choice([dict(reversed(value.items())), value | {"also": 1}])
    return _changed_text(value, rng)


def _changed_text(value: str, rng: random.Random) -> str:
    words = value.split(" ")
    words[rng.randrange(len(words))] = rng.choice(WORDS)
    cut = rng.randrange(len(value) + 1)
    kinds = [" ".join(words), value.upper(), f" {value}", f"\n{value}", value[:cut], text(rng), f"```\n{value}\n```"]
    return rng.choice([value, *kinds])


def response_of(action: Action | None, raw: str = "", cut: bool = False) -> Record:
    """A response object of the Responses API."""
    made = Action(text=raw) if action is None else action
    message = Message(role="assistant", content=made.text, reasoning=made.reasoning, tool_calls=made.calls)
    head = {"id": "resp_1", "created_at": 0, "model": "script", "object": "response", "status": "completed"}
    rest = {"parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "output": response_items([message])}
    return head | rest | ({"incomplete_details": {"reason": "max_output_tokens"}} if cut else {})


def make(work: Path) -> Path:
    """The run and its export."""
    write_jsonl(work / "trajectories.jsonl", map(trajectory, range(90)))
    run = work / "run"
    ingest(IngestConfig(paths=(str(work / "trajectories.jsonl"),), run=run, overwrite=True))
    profile(ProfileConfig(run=run, policy=f"scripted:{__file__}:play", rollouts=8))
    select(SelectConfig(run=run, lambda_diff=0.9))
    export(ExportConfig(run=run, to="nemo-gym", output=work / "gym", license="Apache 2.0", overwrite=True))
    return run


def rollouts(run: Path, rows: Sequence[Record], out: Path) -> dict[str, float]:
    """Write the profile's rollouts as `gym eval run` leaves them. Returns the mean reward by candidate."""
    at, plan = RunDirectory(run), load_plan(RunDirectory(run), "base")
    index = {row["pivotrl"]["candidate"]: number for number, row in enumerate(rows)}
    inputs, results, means = list[Record](), list[Record](), dict[str, float]()
    for group in profiled_groups(at, "base", load_verifier(plan.verifier)):
        number = index.get(group.candidate_id)
        if number is None or None in group.rewards:
            continue
        for sample, (done, reward) in enumerate(zip(group.completions, group.rewards, strict=True)):
            named = {"_ng_task_index": number, "_ng_rollout_index": sample}
            inputs.append(rows[number] | named)
            kept = {key: rows[number][key] for key in ("responses_create_params", "agent_ref")}
            response = response_of(done.action, done.text, done.truncated)
            results.append(kept | {"response": response, "reward": reward} | named)
        means[group.candidate_id] = sum(filter(None, group.rewards)) / len(group.rewards)
    write_jsonl(out.with_name(f"{out.stem}_materialized_inputs.jsonl"), inputs)
    write_jsonl(out, random.Random(0).sample(results, len(results)))
    return means


def cases(run: Path, rows: Sequence[Record]) -> Iterator[Record]:
    """CASES judged actions; with the row as the server wants it."""
    store, auto = CandidateStore(RunDirectory(run)), load_verifier("auto")
    known = {row.id: candidate for row, candidate in store.loaded(store.rows())}
    for number in range(CASES):
        rng = random.Random(f"case/{number}")
        row = rng.choice(rows)
        candidate = known[row["pivotrl"]["candidate"]]
        action = candidate.demonstration if rng.random() < 0.2 else changed(candidate.demonstration, rng)
        server = server_of(row, rng)
        if server == "multi_harness":
            row = row | {"harness": rng.choice(HARNESSES), "declared_tools": row["responses_create_params"]["tools"]}
        record = {"server": server, "config": rng.choice(CONFIGS[server]), "row": row, "reward": None}
        record["response"] = response_of(replace(action, reasoning=None))
        record["items"] = record["response"]["output"]
        ours = nemo_verdicts.judge(number, record, auto)
        done = Completion(action=action, text="", finish_reason="stop")
        yield record | {"nemo_gym": ours.ours, "code": ours.code, "auto": verify(auto, candidate, done).value}


def server_of(row: Record, rng: random.Random) -> str:
    if "expected_answer" in row:
        return "terminus"
    single = row["expected_action"]["type"] == "function_call"
    return rng.choice(["single_step", "single_step", "multi_harness", *(["swe_pivot"] * 2 if single else [])])


def candidates_of(run: Path) -> dict[str, Candidate]:
    store = CandidateStore(RunDirectory(run))
    return {row.id: candidate for row, candidate in store.loaded(store.rows())}


def summary_of(run: Path, name: str) -> list[Profile]:
    plan = load_plan(RunDirectory(run), name)
    return list(read_jsonl(run / "profiles" / name / "verdicts" / plan.verifier_id / "summary.jsonl", Profile))


def shown(candidate: Candidate) -> tuple[Any, ...]:
    messages = [replace(one, excluded=None) for one in candidate.state.messages]
    return messages, candidate.trajectory.tools, candidate.demonstration


def identity(run: Path, gym: Path, work: Path, rows: Sequence[Record], profiled: bool = True) -> int:
    """Ingest an export anew; exits unless state, action and profile are as they were. Returns how many rows."""
    again = work / f"again_{gym.name}"
    files = tuple(
        str(gym / f"{split}.jsonl") for split in ("train", "validation") if (gym / f"{split}.jsonl").stat().st_size
    )
    ingest(
        IngestConfig(
            paths=files,
            run=again,
            validation_fraction=0,
            test_fraction=0,
            overwrite=True,
            keep_failed=True,
            keep_repeated=True,
            keep_tool_errors=True,
            max_state_tokens=0,
        )
    )
    before, after = candidates_of(run), list(candidates_of(again).values())
    wanted = [before[row["pivotrl"]["candidate"]] for row in rows]
    if [shown(one) for one in after] != [shown(one) for one in wanted]:
        sys.exit(f"{gym}: states or actions changed on the way through NeMo Gym's rows")
    if profiled:
        old = {one.candidate_id: one for one in summary_of(run, "base")}
        names = {new.id: was.id for new, was in zip(after, wanted, strict=True)}
        for one in summary_of(again, "imported"):
            if replace(one, candidate_id=names[one.candidate_id]) != old[names[one.candidate_id]]:
                sys.exit(f"{gym}: the profile of {one.candidate_id} changed on the way")
    return len(rows)


def load(path: Path) -> list[Record]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def main() -> None:
    work, *more = sys.argv[1:]
    top = Path(work)
    run = make(top)
    rows = [row for split in ("train", "validation") for row in load(top / "gym" / f"{split}.jsonl")]
    print(f"identity: {identity(run, top / 'gym', top, rows)} rows ingested anew: state, action and profile as before")
    means = rollouts(run, load(top / "gym" / "train.jsonl"), top / "rollouts.jsonl")
    write_jsonl(top / "means.jsonl", [means])
    back = ingest(
        IngestConfig(
            paths=(str(top / "rollouts.jsonl"),),
            run=top / "again_rollouts",
            validation_fraction=0,
            test_fraction=0,
            overwrite=True,
        )
    )
    kept = [one.mean for one in summary_of(top / "again_rollouts", "imported.rollouts")]
    if sorted(map(str, kept)) != sorted(map(str, means.values())):
        sys.exit("the means of the rollouts changed on the way")
    print(f"rollouts: {back.repeated + back.trajectories} of {len(kept)} rows ingested, their means as before")
    write_jsonl(top / "cases.jsonl", cases(run, rows))
    made = [trajectory(number) for number in range(90)]
    for name, rest in (("calls", (0, 1)), ("terminus", (2,))):
        write_jsonl(top / f"{name}.jsonl", [one for number, one in enumerate(made) if number % 3 in rest])
        everything(top, name, [str(top / f"{name}.jsonl")])
    if more:
        everything(top, "more", more)


def everything(top: Path, name: str, files: Sequence[str]) -> None:
    """Export all candidates of these files, and see that they come back."""
    run, out = top / f"run_{name}", top / f"gym_{name}"
    ingest(IngestConfig(paths=tuple(files), run=run))
    export(ExportConfig(run=run, to="nemo-gym", output=out, everything=True))
    rows = [row for split in ("train", "validation") for row in load(out / f"{split}.jsonl")]
    print(f"identity: {identity(run, out, top, rows, False)} rows of {name}")


if __name__ == "__main__":
    main()
