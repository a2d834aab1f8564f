"""Verdicts a second on one core: `tool_call`, `message`, `shell`, `code_edit` where there is one, NeMo Gym's comparer.

    python benchmarks/verifier_speed.py [--seconds 5] [--json]

`nemo_gym.single_step` is our port of that comparer, in this process; NeMo Gym calls its own behind HTTP. Every input is
made anew: no two demonstrations, actions, commands or edits are equal, so no answer comes out of a cache. What a cache
does give: the schema of a tool is compiled once for all candidates (`fresh_schemas` compiles one for every group of 8),
and a demonstration is made ready once for the 8 actions of its group, as in profiling. CPU seconds of one thread; half
of the actions do the same as the demonstration in other words, half do not.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from itertools import count, islice

from pivotrl.protocols import Verifier
from pivotrl.types import Action, Candidate, Message, Source, Tool, ToolCall, Trajectory
from pivotrl.verifiers import VERIFIERS, load_verifier

GROUP = 8
BATCH = 256
TARGETS = {"tool_call": 10_000, "shell": 1_000, "code_edit": 1_000}
Pair = tuple[Candidate, Action]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="CPU seconds for each verifier")
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    options = parser.parse_args()
    found = {}
    for name, verifier, made in RUNS:
        if verifier not in VERIFIERS:
            print(f"{name:<28} there is no {verifier}")
            continue
        found[name] = measured(load_verifier(verifier), made(), options.seconds) | {"target": TARGETS.get(name)}
        print(f"{name:<28} {found[name]}")
    if options.json:
        print(json.dumps(found))


def measured(verifier: Verifier, pairs: Iterator[Pair], seconds: float) -> dict[str, object]:
    """Rates of batches: the mean over all, the least and the most; inputs are made outside the clock."""
    spent, accepted, unscored, rates = 0.0, 0, 0, []
    for pair in islice(pairs, BATCH):
        verifier(*pair)
    while spent < seconds:
        batch = list(islice(pairs, BATCH))
        start = time.process_time()
        verdicts = [verifier(candidate, action) for candidate, action in batch]
        took = time.process_time() - start
        spent += took
        rates.append(len(batch) / took)
        accepted += sum(verdict.value == 1.0 for verdict in verdicts)
        unscored += sum(verdict.value is None for verdict in verdicts)
    n = BATCH * len(rates)
    return {
        "verdicts_per_second": round(n / spent),
        "slowest_and_fastest_batch": [round(min(rates)), round(max(rates))],
        "n": n,
        "accepted": round(accepted / n, 3),
        "unscored": unscored,
    }


def candidate(at: int, tools: tuple[Tool, ...], calls: tuple[ToolCall, ...] = (), text: str | None = None) -> Candidate:
    messages = (
        Message(role="user", content=f"Please do number {at}."),
        Message(role="assistant", content=text, tool_calls=calls),
    )
    source = Source(file="made", format="made")
    return Candidate(trajectory=Trajectory(id=f"t{at}", messages=messages, tools=tools, source=source), turn=1)


def booking(version: int = 0) -> tuple[Tool, ...]:
    """A tool with seven parameters: nested, optional, with a default, an enumeration."""
    item = {
        "type": "object",
        "properties": {"sku": {"type": "string"}, "count": {"type": "integer", "minimum": 1}},
        "required": ["sku", "count"],
    }
    properties = {
        "order_id": {"type": "string", "description": f"version {version}"},
        "items": {"type": "array", "items": item},
        "amount": {"type": "number"},
        "reason": {"type": "string"},
        "method": {"type": "string", "enum": ["card", "bank", "voucher"]},
        "notify": {"type": "boolean", "default": True},
        "note": {"type": "string"},
    }
    required = ["order_id", "items", "amount", "reason", "method"]
    shape = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return (Tool(name="refund", parameters=shape),)


def calls(fresh_schemas: bool = False) -> Iterator[Pair]:
    tools = booking()
    for at in count():
        tools = booking(at) if fresh_schemas else tools
        arguments = {
            "order_id": f"W{at}",
            "items": [{"sku": f"S{at}", "count": 2}, {"sku": f"T{at}", "count": 1}],
            "amount": at + 0.5,
            "reason": f"arrived broken, ticket {at}",
            "method": "card",
        }
        shown = candidate(at, tools, (ToolCall(name="refund", arguments=json.dumps(arguments)),))
        for sample in range(GROUP):
            if sample % 2:
                other = arguments | {"amount": at + sample, "note": f"sample {sample}"}
            else:
                other = dict(reversed(arguments.items())) | {
                    "reason": f"arrived  broken,{' ' * (sample + 1)}ticket {at}"
                }
                other |= {"notify": True} if sample % 4 else {}
            yield shown, Action(calls=(ToolCall(name="refund", arguments=json.dumps(other)),))


def messages() -> Iterator[Pair]:
    for at in count():
        shown = candidate(at, (), text=f"I have refunded ${at}.50 for order #W{at} to your card ending in {at % 9000}.")
        for sample in range(GROUP):
            owed = f"order W{at}" if sample % 2 else f"order W{at + 1}"
            text = f"Sample {sample}: your refund of {at}.50 for {owed} went to the card ending in {at % 9000}, done."
            yield shown, Action(text=text)


def commands() -> Iterator[Pair]:
    tools = (Tool(name="bash", parameters={"type": "object", "properties": {"command": {"type": "string"}}}),)
    for at in count():
        head = at % 90 + 1
        command = (
            f"find src/part{at} -name '*.py' -type f | xargs grep -n \"import x{at}\" | head -n {head} > out{at}.txt"
        )
        shown = candidate(at, tools, (ToolCall(name="bash", arguments=json.dumps({"command": command})),))
        for sample in range(GROUP):
            to = f"{' ' * sample}>out{at}.txt" if sample % 2 else f">out{at}.{sample}.txt"
            other = f"find ./src/part{at} -type f -name \"*.py\" | xargs grep -n 'import x{at}' | head -{head} {to}"
            yield shown, Action(calls=(ToolCall(name="bash", arguments=json.dumps({"command": other})),))


def edits() -> Iterator[Pair]:
    names = ("command", "path", "old_str", "new_str")
    shape = {"type": "object", "properties": {name: {"type": "string"} for name in names}, "required": list(names[:2])}
    tools = (Tool(name="str_replace_editor", parameters=shape),)
    for at in count():
        body = "\n".join(f"    total_{at} += line_{line} * {line}" for line in range(8))
        old, new = f"def total{at}(self):\n{body}\n    return 0", f"def total{at}(self):\n{body}\n    return total_{at}"
        given = {"command": "str_replace", "path": f"/workspace/src/m{at}.py", "old_str": old, "new_str": new}
        shown = candidate(at, tools, (ToolCall(name="str_replace_editor", arguments=json.dumps(given)),))
        for sample in range(GROUP):
            made = (
                new + " " * sample if sample % 2 else new.replace(f"return total_{at}", f"return total_{at} + {sample}")
            )
            arguments = json.dumps(given | {"new_str": made})
            yield shown, Action(calls=(ToolCall(name="str_replace_editor", arguments=arguments),))


RUNS: tuple[tuple[str, str, Callable[[], Iterator[Pair]]], ...] = (
    ("tool_call", "tool_call", calls),
    ("tool_call, fresh_schemas", "tool_call", lambda: calls(fresh_schemas=True)),
    ("nemo_gym.single_step (port)", "nemo_gym.single_step", calls),
    ("message", "message", messages),
    ("shell", "shell", commands),
    ("code_edit", "code_edit", edits),
)


if __name__ == "__main__":
    main()
