"""doctor: it tells what is there as others see it, names what is lacking and its cure, and never fails."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pivotrl
from pivotrl.diagnosis import EXTRAS
from pivotrl.lab.desk import write_episodes

ROOT = Path(__file__).parents[1]
WITHOUT = """
import sys
class Without:  # a machine that lacks these
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Without())
from pivotrl.cli import main
sys.exit(main({arguments!r}))
"""


def told() -> dict[str, tuple[bool, str]]:
    return {one.what: (one.found, one.says) for one in pivotrl.doctor(pivotrl.DoctorConfig()).findings}


def test_every_extra_is_told_of_and_no_tool_of_ours() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(EXTRAS) == set(extras) - {"dev", "docs"}
    found = told()
    for name in EXTRAS:
        package = re.split(r"[^\w-]", extras[name][0])[0]
        assert EXTRAS[name][0] == package
        module = {"lm-eval": "lm_eval"}.get(package, package)
        there = importlib.util.find_spec(module) is not None
        assert found[name][0] == there, name
        assert (f"{package} {version(package)}" if there else f"pip install 'pivotrl[{name}]'") in found[name][1]


def test_the_last_line_names_what_is_lacking() -> None:
    result = pivotrl.doctor(pivotrl.DoctorConfig())
    lacking = [one.what for one in result.findings if not one.found]
    assert result.lines()[-1].startswith(f"Lacks: {', '.join(lacking)}." if lacking else "Lacks nothing")
    assert len(result.lines()) == len(result.findings) + 2


def test_a_run_that_is_not_there_lies_on_the_disk_of_its_parent(tmp_path: Path) -> None:
    config = pivotrl.DoctorConfig(run=tmp_path / "not" / "yet")
    (disk,) = (one for one in pivotrl.doctor(config).findings if one.what == "disk")
    assert disk.says.split(" at ")[1].startswith(str(tmp_path))
    assert not (tmp_path / "not").exists()


def test_a_machine_without_a_sandbox(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pivotrl", "doctor"],
        env=os.environ | {"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert re.search(r"^lacks sandbox +the verifier `execution` cannot run: .*bubblewrap", done.stdout, re.MULTILINE)


def run(names: set[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    code = WITHOUT.format(names=names, arguments=list(arguments))
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_without_torch_it_says_so(tmp_path: Path) -> None:
    """And whoever needs it anyway is told in one line."""
    done = run({"torch"}, "doctor")
    assert done.returncode == 0, done.stderr
    assert "torch cannot be loaded" in done.stdout
    assert run({"torch"}, "--version").stdout == f"pivotrl {pivotrl.__version__}\n"
    write_episodes(tmp_path / "e.jsonl", 2, seed=0)
    assert pivotrl.ingest(
        pivotrl.IngestConfig(paths=(str(tmp_path / "e.jsonl"),), run=str(tmp_path / "run"))
    ).candidates
    done = run({"torch"}, "profile", "--run", str(tmp_path / "run"), "--policy", str(ROOT / "src/pivotrl/lab/base"))
    assert (done.returncode, done.stdout) == (2, "")
    assert "pip install torch" in done.stderr
    assert "Traceback" not in done.stderr
