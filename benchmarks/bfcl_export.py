"""Run by `bfcl.py --export` in a virtual environment that has `bfcl-eval`: its AST cases, variants of their gold calls,
and what BFCL's own checker says of each, as one JSON object a line.

A case: `id`, `category`, `question`, `tools` (JSON Schema), `gold` (calls of the first listed alternatives), `valid`
(BFCL's word on the gold), `probes`. A probe changes the gold in one place: `kind` (`permitted`: another listed
alternative, or what the checker lets pass by rule; `corruption`), `class`, `calls`, `valid`.
"""

from __future__ import annotations

import copy
import importlib.util
import json
import re
import sys
import types
from collections import defaultdict
from pathlib import Path

CATEGORIES = ("simple_python", "multiple", "parallel", "parallel_multiple", "live_simple", "live_multiple")
CATEGORIES += ("live_parallel", "live_parallel_multiple")
TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": None}
OMITTED = ""
"""BFCL's mark in a list of alternatives: the argument may be left out."""


def checker():
    """BFCL's `ast_checker`, without the model handlers that its configuration would import."""
    stub = types.ModuleType("bfcl_eval.constants.model_config")
    stub.MODEL_CONFIG_MAPPING = defaultdict(lambda: types.SimpleNamespace(underscore_to_dot=False))
    sys.modules[stub.__name__] = stub
    for language in ("java", "js"):  # their parsers are not needed for Python
        name = f"bfcl_eval.eval_checker.ast_eval.type_convertor.{language}_type_converter"
        module = types.ModuleType(name)
        setattr(module, f"{language}_type_converter", None)
        sys.modules[name] = module
    from bfcl_eval.constants.enums import Language
    from bfcl_eval.eval_checker.ast_eval.ast_checker import ast_checker

    def valid(case, calls) -> bool:
        made = [{call["name"]: copy.deepcopy(call["arguments"]) for call in [one]} for one in calls]
        try:
            found = ast_checker(case["function"], made, case["truth"], Language.PYTHON, case["category"], "any")
        except Exception as error:  # it raises on some malformed calls
            print(f"{case['id']}: {type(error).__name__}: {error}", file=sys.stderr)
            return False
        return bool(found["valid"])

    return valid


def schema(given):
    """A BFCL schema as JSON Schema."""
    made = {key: value for key, value in given.items() if key not in ("type", "properties", "items")}
    kind = TYPES.get(given.get("type"), given.get("type"))
    made |= {"type": kind} if kind else {}
    made |= (
        {"properties": {name: schema(one) for name, one in given["properties"].items()}}
        if "properties" in given
        else {}
    )
    return made | ({"items": schema(given["items"])} if isinstance(given.get("items"), dict) else {})


def first(alternatives, required):
    """The first listed value; None stands for an argument that is left out."""
    known = [one for one in alternatives if one != OMITTED]
    if not known or (alternatives[0] == OMITTED and not required):
        return None if not required else OMITTED
    return resolved(known[0])


def resolved(value):
    if isinstance(value, dict):
        pairs = {key: first(some, False) if isinstance(some, list) else some for key, some in value.items()}
        return {key: one for key, one in pairs.items() if one is not None}
    return [resolved(one) for one in value] if isinstance(value, list) else value


def gold(case):
    calls = []
    for truth in case["truth"]:
        ((name, arguments),) = truth.items()
        needed = parameters(case, name).get("required", [])
        values = {key: first(some, key in needed) for key, some in arguments.items()}
        calls.append({"name": name, "arguments": {key: one for key, one in values.items() if one is not None}})
    return calls


def parameters(case, name):
    return next((one["parameters"] for one in case["function"] if one["name"] == name), {"properties": {}})


def permitted(case, calls):
    """(class, calls) for every other listed alternative, one argument at a time, and for what the checker lets pass."""
    for at, truth in enumerate(case["truth"]):
        ((name, arguments),) = truth.items()
        shape = parameters(case, name)
        for key, alternatives in arguments.items():
            inner = shape["properties"].get(key, {})
            for kind, value in variants(calls[at]["arguments"].get(key), alternatives, inner):
                yield kind, changed(calls, at, key, value)
    if len(calls) > 1 and calls != calls[::-1]:
        yield "calls_reordered", calls[::-1]


def variants(value, alternatives, inner):
    """(class, value or None) of one argument."""
    listed = [resolved(one) for one in alternatives if one != OMITTED]
    for other in listed:
        if value is None:
            yield f"added{source(inner, other)}", other
        elif other != value or type(other) is not type(value):
            yield difference(value, other, inner), other
    if value is not None and OMITTED in alternatives:
        yield f"omitted{source(inner, value)}", None
    if inner.get("type") == "float" and isinstance(value, float | int) and value == int(value):
        yield "int_for_float", float(value) if isinstance(value, int) else int(value)
    for one in alternatives:
        if isinstance(one, dict) and isinstance(value, dict):
            yield from nested(value, one, inner)


def nested(value, alternatives, inner):
    for key, some in alternatives.items():
        if isinstance(some, list):
            for kind, other in variants(value.get(key), some, inner.get("properties", {}).get(key, {})):
                made = {name: one for name, one in value.items() if name != key}
                yield kind, made if other is None else made | {key: other}


def source(inner, value):
    """Where it is written that a value is the default."""
    if "default" in inner:
        return "_default" if inner["default"] == value else "_against_default"
    text = str(inner.get("description", "")).lower()
    return "_described" if "default" in text and str(value).lower() in text else "_unsaid"


def difference(value, other, inner):
    if isinstance(value, str) and isinstance(other, str):
        one, two = (" ".join(text.split()) for text in (value, other))
        plain = [re.sub(r"[ ,./\-_*^'\"]", "", text).lower() for text in (value, other)]
        return "string_spacing" if one == two else "string_case_punctuation" if plain[0] == plain[1] else "string_other"
    if isinstance(value, list) and isinstance(other, list):
        same = sorted(map(json.dumps, value)) == sorted(map(json.dumps, other))
        return "list_order" if same else "list_other"
    numbers = all(isinstance(one, int | float) and not isinstance(one, bool) for one in (value, other))
    return "int_for_float" if numbers and value == other else "number_other" if numbers else "other"


def changed(calls, at, key, value):
    made = copy.deepcopy(calls)
    made[at]["arguments"].pop(key, None)
    if value is not None:
        made[at]["arguments"][key] = value
    return made


def corruptions(case, calls):
    """(class, calls) of wrong calls."""
    others = [one["name"] for one in case["function"] if one["name"] != calls[0]["name"]]
    yield "other_function", [calls[0] | {"name": (others or [calls[0]["name"] + "_other"])[0]}, *calls[1:]]
    yield "surplus_call", [*calls, calls[-1]]
    if len(calls) > 1:
        yield "missing_call", calls[:-1]
    for at, call in enumerate(calls):
        needed = parameters(case, call["name"]).get("required", [])
        yield "unknown_argument", changed(calls, at, "unheard_of", 1)
        for key, value in call["arguments"].items():
            if key in needed:
                yield "required_removed", changed(calls, at, key, None)
            yield from ((kind, changed(calls, at, key, other)) for kind, other in wrong(value))


def wrong(value):
    if isinstance(value, bool):
        yield "bool_flipped", not value
        yield "wrong_type", str(value)
    elif isinstance(value, int | float):
        yield "number_changed", value + 1
        yield "number_negated", -value if value else -1
        yield "wrong_type", f"about {value}"
    elif isinstance(value, str):
        words = value.split()
        yield (
            ("last_word_changed", " ".join([*words[:-1], "otherwise"]))
            if len(words) > 1
            else ("word_changed", "otherwise")
        )
        yield "wrong_type", 7
    elif isinstance(value, list) and value:
        yield "item_dropped", value[:-1]
        yield from (("item_changed", [*value[:-1], other]) for _, other in list(wrong(value[-1]))[:1])
    elif isinstance(value, dict) and value:
        key = next(iter(value))
        yield "key_removed", {name: one for name, one in value.items() if name != key}
        yield from (("key_changed", value | {key: other}) for _, other in list(wrong(value[key]))[:1])


def main(target: Path) -> None:
    data = Path(importlib.util.find_spec("bfcl_eval").submodule_search_locations[0]) / "data"
    valid = checker()
    with target.open("w", encoding="utf-8") as out:
        for category in CATEGORIES:
            name = f"BFCL_v4_{category}.json"
            truths = {
                one["id"]: one["ground_truth"] for one in map(json.loads, (data / "possible_answer" / name).open())
            }
            for record in map(json.loads, (data / name).open()):
                case = record | {"truth": truths[record["id"]], "category": category}
                out.write(json.dumps(exported(case, valid)) + "\n")


def exported(case, valid):
    calls, seen, probes = gold(case), set(), []
    for kind, some in (("permitted", permitted(case, calls)), ("corruption", corruptions(case, calls))):
        for name, made in some:
            text = json.dumps(made)
            if text != json.dumps(calls) and text not in seen:
                seen.add(text)
                probes.append({"kind": kind, "class": name, "calls": made, "valid": valid(case, made)})
    tools = [{**one, "parameters": schema(one["parameters"])} for one in case["function"]]
    question = "\n".join(message["content"] for turn in case["question"] for message in turn)
    facts = {"id": case["id"], "category": case["category"], "question": question, "tools": tools}
    return facts | {"gold": calls, "valid": valid(case, calls), "probes": probes}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
