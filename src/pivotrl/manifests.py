"""What the stages say of themselves in `run.json`, as far as any command reads it; the rest of their fields is free."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import PurePath
from typing import Annotated, Any, Final

from pydantic import AfterValidator, JsonValue, TypeAdapter, ValidationError


def _inside(name: str) -> str:
    if PurePath(name).is_absolute() or ".." in PurePath(name).parts or "\0" in name:
        raise ValueError("a name of a file that is not in the run")
    return name


_Counts, _Files, _Name = dict[str, int], dict[Annotated[str, AfterValidator(_inside)], str], str | None
_Object = dict[str, JsonValue]
_MADE: Final[Mapping[str, Any]] = {"inputs?": _Files, "wrote?": _Files, "version?": str}
_OPENAI: Final = {"url": str, "key_variable": str, "tokenizer": _Name, "context_length": int, "extra": str}
_adapter: Final = cache(TypeAdapter)
FIELDS: Final[Mapping[str, Mapping[str, Any]]] = {
    "ingest": {
        **_MADE, "config": _Object, "config.paths?": list[str], "inputs?": list[_Object], "counts": _Object,
        "counts.candidates": _Counts, "counts.trajectories": int, "counts.assistant_turns": int,
    },
    "profile": {
        **_MADE, "config": _Object, "config.policy?": str, "config.again?": _Name, "config.openai?": _Object,
        **{f"config.openai.{name}?": kind for name, kind in (_OPENAI | {"history_reasoning": bool}).items()},
        "verifier.id": str, "reasons?": _Counts, "mean?": float | None, "imported?": _Name,
    },
    "rescore": {**_MADE, "config.name": str, "config.verifier": str},
    "select": {
        **_MADE, "config.profile": str, "config.lambda_diff": float, "config.min_scored": int, "verifier_id": str,
        "counts": _Counts, "alike?": int, "follows?": _Name, "moves?": _Counts,
    },
    "train": {
        **_MADE, "config.method": str, "config.pivots": str, "config.group_size": int, "config.verifier": _Name,
        "config.env?": _Name, "config.validation?": _Object, "config.validation.every?": int,
        "config.validation.keep?": str, "policy": str, "profile?": _Name, "verifier?": _Name, "verifier_id": _Name,
        "version": str,
    },
    "audit": {**_MADE, "config?": _Object},
    "export": {**_MADE, "config?": _Object},
    "evaluate": {
        **_MADE, "config.policies": list[str], "config.explained?": int | None, "sampling": JsonValue,
        "general?": list[str], "environments?": _Object,
    },
}  # fmt: skip
"""By stage: fields and their types; those with `?` may be missing."""


def named(stages: Mapping[str, Any], stage: str) -> list[tuple[str, Any]]:
    """(name, what it says) of all that were made by a stage."""
    return [(key.partition("/")[2], facts) for key, facts in stages.items() if key.startswith(f"{stage}/")]


def fault_in(stage: str, facts: Mapping[str, JsonValue]) -> str | None:
    """The first field of a stage that is not as its readers take it, and why; None where all are."""
    for name, type_ in FIELDS.get(stage, _MADE).items():
        held: Any = facts
        for part in name.removesuffix("?").split("."):
            held = held.get(part, ...) if isinstance(held, dict) else ...
        try:
            if held is not ...:
                _adapter(type_).validate_python(held, strict=True)
            elif not name.endswith("?"):
                return f"{name}: is missing"
        except ValidationError as error:
            return f"{name.removesuffix('?')}: {error.errors()[0]['msg']}"
    return None
