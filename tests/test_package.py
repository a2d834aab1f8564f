"""The package from outside: importing is free, every public name is there, the command line and the library agree."""

from __future__ import annotations

import ast
import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

import pivotrl
from pivotrl.cli import COMMANDS, LAB, main

ROOT = Path(__file__).parents[1]
FORBIDDEN = ("torch", "transformers", "numpy", "tyro")


@pytest.mark.parametrize("module", ["pivotrl", "pivotrl.ingestion", "pivotrl.cli"])
def test_importing_pulls_in_no_torch(module):
    """Not even the command line does, until a stage needs a model."""
    loaded = "torch" if module == "pivotrl.cli" else FORBIDDEN[0]
    code = f"import sys, {module}; sys.exit({loaded!r} in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_importing_the_package_loads_nothing_and_prints_nothing():
    code = f"import sys, pivotrl; print([m for m in {(*FORBIDDEN, 'pydantic')!r} if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"
    assert result.stderr == ""


def test_every_public_name_is_there():
    for name in pivotrl.__all__:
        assert getattr(pivotrl, name) is not None
    with pytest.raises(AttributeError, match="nothing_here"):
        pivotrl.nothing_here  # noqa: B018


def test_every_command_is_a_public_function_with_one_frozen_config():
    for config, (name, function) in COMMANDS.items():
        assert getattr(pivotrl, name) is function
        assert getattr(pivotrl, config.__name__) is config
        assert config.__dataclass_params__.frozen


WORDS = {config: [name] for config, (name, _) in COMMANDS.items()} | {
    config: ["lab", name] for config, (name, _) in LAB.items()
}


@pytest.mark.parametrize("config", WORDS, ids=lambda config: " ".join(WORDS[config]))
def test_help_explains_every_field(config, capsys):
    with pytest.raises(SystemExit) as stop:
        main([*WORDS[config], "--help"])
    assert stop.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    for field in dataclasses.fields(config):
        assert field.name.replace("_", "-") in text or field.name.upper() in text, field.name
    assert "(required)" in text or "(default:" in text


def test_no_module_bears_the_name_of_a_public_function():
    modules = {path.stem for path in (ROOT / "src/pivotrl").glob("*.py")}
    assert modules.isdisjoint(name for name, _ in COMMANDS.values())


def test_every_setting_has_its_docstring():
    """tyro makes --help from the string under each field; a field without one is not explained."""
    for path in (ROOT / "src/pivotrl").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and node.name.endswith(
                ("Config", "Settings", "Params", "Scope", "Rules")
            ):
                _check_fields(path, node)


def _check_fields(path, node):
    for field, following in zip(node.body, [*node.body[1:], None], strict=True):
        nested = isinstance(field, ast.AnnAssign) and "field(default_factory" in ast.unparse(field)
        if isinstance(field, ast.AnnAssign) and not nested:
            explained = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
            assert explained, f"{path.name}: {node.name}.{field.target.id} has no docstring"


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"pivotrl {pivotrl.__version__}\n"


def test_architecture_page_names_every_module():
    page = (ROOT / "docs/architecture.md").read_text()
    for path in (ROOT / "src/pivotrl").iterdir():
        if path.suffix == ".py" and not path.name.startswith("__"):
            assert f"`{path.stem}`" in page, path.name
        elif path.is_dir() and (path / "__init__.py").exists():
            assert f"`{path.name}/`" in page, path.name
