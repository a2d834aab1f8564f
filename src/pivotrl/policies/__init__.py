"""Policies: who samples. `torch` (in process) and `scripted` (a shipped fake), behind the Protocol `Policy`."""

from __future__ import annotations

from pivotrl.models import ModelSettings, load_model
from pivotrl.policies.scripted import ScriptedPolicy, load_scripted
from pivotrl.types import Policy

__all__ = ["ScriptedPolicy", "is_scripted", "load_policy"]

SCRIPTED = "scripted:"


def is_scripted(spec: str) -> bool:
    return spec.startswith(SCRIPTED)


def load_policy(spec: str, settings: ModelSettings) -> Policy:
    """`scripted:package.module:function`, or a Hugging Face model directory or id. Raises a PivotRLError."""
    if is_scripted(spec):
        return load_scripted(spec.removeprefix(SCRIPTED))
    from pivotrl.policies.torch import TorchPolicy

    return TorchPolicy(load_model(spec, settings))
