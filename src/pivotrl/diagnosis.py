"""`pivotrl doctor`: what this machine has and lacks, in words, and what each lack keeps from working.

It loads torch, if that is there, asks the sandbox to run one command, and changes nothing.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from pivotrl._version import __version__
from pivotrl.errors import PivotRLError, brief
from pivotrl.run_directory import AnyPath
from pivotrl.sandbox import Sandbox

EXTRAS: Final[Mapping[str, tuple[str, str]]] = {
    "eval": ("lm-eval", "tasks of lm-eval (`evaluate --forgetting.lm-eval`)"),
    "gguf": ("gguf", "models in GGUF files"),
    "openai": ("httpx2", "models behind a server (`--policy openai:...`), and the verifier `judge`"),
    "parquet": ("pyarrow", "Parquet files, and `export --to verl`"),
    "peft": ("peft", "LoRA (`train --lora.rank`), and adapters as policies"),
    "tinker": ("tinker", "training through the Tinker API (`--policy tinker:...`)"),
    "track": ("tensorboard", "TensorBoard (`train --track tensorboard`)"),
}
"""What each extra brings, and what for."""
_GIB: Final = 2**30
_TIGHT: Final = 5 * _GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorConfig:
    """Say what this machine has and lacks, and what each lack keeps from working."""

    run: AnyPath = Path("runs")
    """Where runs will lie: its disk is looked at. It need not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked for."""

    what: str
    found: bool
    says: str

    def line(self) -> str:
        return f"{'has  ' if self.found else 'lacks'} {self.what:<9} {self.says}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorResult:
    """All that was looked for, in the order in which it is told."""

    findings: tuple[Finding, ...]

    def lines(self) -> list[str]:
        lacking = [finding.what for finding in self.findings if not finding.found]
        end = f"Lacks: {', '.join(lacking)}. Only what stands on those lines needs them."
        end = end if lacking else "Lacks nothing."
        return [f"pivotrl {__version__}", *(finding.line() for finding in self.findings), end]


def doctor(config: DoctorConfig) -> DoctorResult:
    """Look at this machine. Raises nothing for what is missing: that is the answer."""
    findings = (_machine(), _torch(), _gpu(), _disk(Path(config.run)), _sandbox(), *map(_extra, EXTRAS))
    return DoctorResult(findings=findings)


def _machine() -> Finding:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    pages = os.sysconf("SC_PHYS_PAGES") if "SC_PHYS_PAGES" in os.sysconf_names else 0
    memory = f", {pages * os.sysconf('SC_PAGE_SIZE') / _GIB:.0f} GiB of memory" if pages > 0 else ""
    says = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}, {cores} processors{memory}"
    return Finding(what="machine", found=True, says=says)


def _torch() -> Finding:
    found = _installed("torch")
    says = "no model can be loaded or trained here; pip install torch. Servers and scripted policies work without"
    return Finding(what="torch", found=bool(found), says=found or says)


def _gpu() -> Finding:
    """The GPUs that torch sees, or that it sees none."""
    try:
        import torch
    except (ImportError, OSError) as error:  # not there, or a library of it is not
        return Finding(what="gpu", found=False, says=f"torch cannot be loaded ({brief(error)})")
    names = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    if names:
        says = "; ".join(f"{one.name}, {one.total_memory / _GIB:.0f} GiB" for one in names)
        return Finding(what="gpu", found=True, says=says + (". One is used" if len(names) > 1 else ""))
    if torch.backends.mps.is_available():
        return Finding(what="gpu", found=True, says="Apple's, as mps")
    says = "torch sees none: models run on the processors, which is what the demo is made for"
    if shutil.which("nvidia-smi"):
        says += "; nvidia-smi is here, so this torch may be a build without CUDA"
    return Finding(what="gpu", found=False, says=says)


def _disk(run: Path) -> Finding:
    place = run.absolute()
    while not place.is_dir():
        place = place.parent
    free, writable = shutil.disk_usage(place).free, os.access(place, os.W_OK)
    says = f"{free / _GIB:.0f} GiB free at {place}"
    if not writable:
        says += ", which cannot be written to: choose another --run"
    elif free < _TIGHT:
        says += ": little for the weights and checkpoints of a training"
    return Finding(what="disk", found=writable and free >= _TIGHT, says=says)


def _sandbox() -> Finding:
    try:
        Sandbox().check()
    except (PivotRLError, OSError, AttributeError) as error:  # AttributeError: a system that is not Linux
        return Finding(what="sandbox", found=False, says=f"the verifier `execution` cannot run: {brief(error)}")
    done = subprocess.run(["bwrap", "--version"], capture_output=True, text=True, check=False)
    return Finding(what="sandbox", found=True, says=f"{done.stdout.strip()}: the verifier `execution` can run")


def _extra(name: str) -> Finding:
    package, use = EXTRAS[name]
    found = _installed(package)
    says = f"{found}: {use}" if found else f"{use}; pip install 'pivotrl[{name}]'"
    return Finding(what=name, found=bool(found), says=says)


def _installed(package: str) -> str | None:
    """Its name and version; None where it is not installed."""
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return None
