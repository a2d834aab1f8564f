"""What the stages say of themselves in `run.json`, as far as any command reads it; the rest of their fields is free."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final

from pydantic import JsonValue, TypeAdapter, ValidationError

_Counts = dict[str, int]
_Words = dict[str, str]
_MAY_LACK: Final = "?"
_EVERY: Final[Mapping[str, Any]] = {"config?": dict[str, JsonValue], "version?": str, "wrote?": _Words}
_INPUTS: Final[Mapping[str, Any]] = {**_EVERY, "inputs?": _Words}
_SERVER: Final = {"url": str, "key_variable": str, "tokenizer": str | None, "context_length": int, "extra": str}
FIELDS: Final[Mapping[str, Mapping[str, Any]]] = {
    "ingest": {
        **_EVERY, "config": dict[str, JsonValue], "config.paths?": list[str], "inputs": list[dict[str, JsonValue]],
        "inputs.*.file": str, "inputs.*.hash": str, "counts": dict[str, JsonValue], "counts.candidates": _Counts,
        "counts.trajectories": int, "counts.assistant_turns": int,
    },
    "profile": {
        **_INPUTS, "config": dict[str, JsonValue], "config.policy?": str, "config.again?": str | None,
        "verifier.id": str, "reasons?": _Counts, "mean?": float | None, "imported?": str | None,
        "config.openai?": dict[str, JsonValue], "config.openai.history_reasoning?": bool,
        **{f"config.openai.{name}?": kind for name, kind in _SERVER.items()},
    },
    "rescore": {**_INPUTS, "config.name": str, "config.verifier": str},
    "select": {
        **_INPUTS, "config.profile": str, "config.lambda_diff": float, "config.min_scored": int, "verifier_id": str,
        "counts": _Counts, "alike?": int, "follows?": str | None, "moves?": _Counts,
    },
    "train": {
        **_INPUTS, "config.method": str, "config.pivots": str, "config.group_size": int, "config.verifier": str | None,
        "config.env?": str | None, "config.validation?": dict[str, JsonValue], "config.validation.every?": int,
        "config.validation.keep?": str, "policy": str, "profile?": str | None, "verifier?": str | None,
        "verifier_id": str | None, "version": str,
    },
    "evaluate": {
        **_INPUTS, "config.policies": list[str], "sampling": JsonValue, "general?": list[str],
        "environments?": dict[str, JsonValue],
    },
}  # fmt: skip
"""By stage: fields with their types, in JSON; `?` may be missing, `*` is every member of a list."""


def fault_in(stage: str, facts: Mapping[str, JsonValue]) -> str | None:
    """The first field of a stage that is not as its readers take it, and why; None where all are."""
    for name, type_ in FIELDS.get(stage, _INPUTS).items():
        parts = name.removesuffix(_MAY_LACK).split(".")
        for where, value in _found(facts, parts):
            if value is ...:
                if not name.endswith(_MAY_LACK):
                    return f"{where}: is missing"
                continue
            try:
                _adapter(type_).validate_python(value, strict=True)
            except ValidationError as error:
                return f"{where}: {error.errors()[0]['msg']}"
    return None


def _found(held: Any, parts: list[str], where: str = "") -> Iterator[tuple[str, Any]]:
    """(name, value) of what the parts lead to; `...` where there is nothing."""
    if not parts:
        yield where.removeprefix("."), held
    elif parts[0] == "*":
        for at, one in enumerate(held):
            yield from _found(one, parts[1:], f"{where}.{at}")
    else:
        inner = held.get(parts[0], ...) if isinstance(held, dict) else ...
        yield from _found(inner, parts[1:], f"{where}.{parts[0]}")


@cache
def _adapter(type_: Any) -> TypeAdapter[Any]:
    return TypeAdapter(type_)
