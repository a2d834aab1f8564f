"""Policies: who samples. `torch` (in process), `openai`, `tinker` (servers) and `scripted` (a fake), as `Policy`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from pivotrl.models import ModelSettings, load_model
from pivotrl.plugins import find, installed, made, remember
from pivotrl.policies.openai import load_openai
from pivotrl.policies.openai_wire import OpenAISettings
from pivotrl.policies.scripted import ScriptedPolicy, load_scripted
from pivotrl.policies.tinker import TINKER, TINKER_FILE, load_tinker
from pivotrl.protocols import Policy

__all__ = ["OpenAISettings", "ScriptedPolicy", "has_weights", "load_policy", "on_tinker"]

SCRIPTED, OPENAI = "scripted:", "openai:"


def has_weights(spec: str) -> bool:
    """Whether it names a model that can be loaded here."""
    return not (spec.startswith((SCRIPTED, OPENAI)) or on_tinker(spec) or _is_installed(spec))


def _is_installed(spec: str) -> bool:
    return spec.partition(":")[0] in installed("policy") and not Path(spec).is_dir()


def on_tinker(spec: str) -> bool:
    """Whether it names a model behind the Tinker API, or a directory where a training left word of one."""
    return spec.startswith(TINKER) or (Path(spec) / TINKER_FILE).is_file()


def load_policy(spec: str, settings: ModelSettings, openai: OpenAISettings | None = None) -> Policy:
    """`scripted:package.module:function`, `openai:MODEL`, `tinker:MODEL`, a Hugging Face model directory or id, or what
    an installed package calls `NAME` or `NAME:ARGUMENT`: its `make(ARGUMENT, settings)`. Raises a PivotRLError.
    """
    if not has_weights(spec):
        remember(spec)
    if spec.startswith(SCRIPTED):
        return load_scripted(spec.removeprefix(SCRIPTED))
    if spec.startswith(OPENAI):
        return load_openai(spec.removeprefix(OPENAI), settings, openai or OpenAISettings())
    if on_tinker(spec):
        return load_tinker(spec, settings)
    if _is_installed(spec):
        name, _, argument = spec.partition(":")
        make: Any = find("policy", name)[0]
        return cast(Policy, made(lambda: make(argument, settings), f"policy {name!r}", Policy))
    from pivotrl.policies.torch import TorchPolicy

    return TorchPolicy(load_model(spec, settings))
