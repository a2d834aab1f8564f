"""Policies: who samples. `torch` (in process), `openai` (a server) and `scripted` (a shipped fake), behind `Policy`."""

from __future__ import annotations

from pivotrl.models import ModelSettings, load_model
from pivotrl.policies.openai import load_openai
from pivotrl.policies.openai_wire import OpenAISettings
from pivotrl.policies.scripted import ScriptedPolicy, load_scripted
from pivotrl.types import Policy

__all__ = ["OpenAISettings", "ScriptedPolicy", "has_weights", "load_policy"]

SCRIPTED, OPENAI = "scripted:", "openai:"


def has_weights(spec: str) -> bool:
    """Whether it names a model that can be loaded."""
    return not spec.startswith((SCRIPTED, OPENAI))


def load_policy(spec: str, settings: ModelSettings, openai: OpenAISettings | None = None) -> Policy:
    """`scripted:package.module:function`, `openai:MODEL`, or a Hugging Face model directory or id.

    Raises a PivotRLError.
    """
    if spec.startswith(SCRIPTED):
        return load_scripted(spec.removeprefix(SCRIPTED))
    if spec.startswith(OPENAI):
        return load_openai(spec.removeprefix(OPENAI), settings, openai or OpenAISettings())
    from pivotrl.policies.torch import TorchPolicy

    return TorchPolicy(load_model(spec, settings))
