"""docs/python.md: all that it promises can be had from `pivotrl` (its blocks are run by test_documentation)."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from pathlib import Path

import pivotrl
from pivotrl import protocols, types


def test_every_noun_and_protocol_is_there() -> None:
    for module in (types, protocols):
        for name, value in vars(module).items():
            if isinstance(value, type) and value.__module__ == module.__name__ and not name.startswith("_"):
                assert getattr(pivotrl, name) is value
                assert name in dir(pivotrl)
    for name in ("json", "dataclass", "TypeAlias", "runtime_checkable"):
        assert not hasattr(pivotrl, name), "what those modules import is not ours to give"


def test_every_function_takes_and_gives_what_is_there() -> None:
    """Of every public function: its config, its result, and every settings class inside of the config."""
    for name in pivotrl.__all__:
        function = getattr(pivotrl, name)
        if not inspect.isfunction(function) or "config" not in inspect.signature(function).parameters:
            continue
        signature = inspect.signature(function)
        said = [signature.parameters["config"].annotation, *str(signature.return_annotation).split(" | ")]
        assert all(hasattr(pivotrl, one) for one in said), said
        for field in dataclasses.fields(getattr(pivotrl, said[0])):
            for word in re.findall(r"\w+(?:Settings|Params|Scope|Choice|Rules)\b", str(field.type)):
                assert hasattr(pivotrl, word), f"{said[0]}.{field.name}: {word}"


def test_the_checkers_list_is_the_real_one() -> None:
    """Names that type checkers see, each said once in the source, are what `__all__` holds."""
    tree = ast.parse(Path(pivotrl.__file__).read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If) and not isinstance(node.test, ast.UnaryOp))
    imported = [alias for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert {alias.asname for alias in imported} - {None} == set(pivotrl.__all__) - {"__version__"}
    assert [alias.name for alias in imported if alias.asname is None] == ["*", "*"]
