"""PivotRL: make a language model a better agent from expert trajectories, at the turns where it pays.

Importing this package does nothing and pulls in no torch; each name below is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from pivotrl._version import __version__ as __version__

if TYPE_CHECKING:
    from pivotrl.auditing import AuditConfig, audit
    from pivotrl.errors import PivotRLError
    from pivotrl.evaluation import evaluate
    from pivotrl.evaluation_settings import EvaluateConfig
    from pivotrl.explaining import ExplainConfig, explain
    from pivotrl.ingestion import IngestConfig, ingest
    from pivotrl.lab.demonstration import DemoConfig, demo
    from pivotrl.pivots import SelectConfig, select
    from pivotrl.profile_settings import ProfileConfig, RescoreConfig
    from pivotrl.profiling import profile, rescore
    from pivotrl.reporting import ReportConfig, report
    from pivotrl.training import train
    from pivotrl.training_settings import TrainConfig
    from pivotrl.verifiers import load_verifier

_HOME = {
    "PivotRLError": "errors",
    "IngestConfig": "ingestion",
    "ingest": "ingestion",
    "ProfileConfig": "profile_settings",
    "profile": "profiling",
    "RescoreConfig": "profile_settings",
    "rescore": "profiling",
    "SelectConfig": "pivots",
    "select": "pivots",
    "TrainConfig": "training_settings",
    "train": "training",
    "EvaluateConfig": "evaluation_settings",
    "evaluate": "evaluation",
    "ReportConfig": "reporting",
    "report": "reporting",
    "ExplainConfig": "explaining",
    "explain": "explaining",
    "AuditConfig": "auditing",
    "audit": "auditing",
    "DemoConfig": "lab.demonstration",
    "demo": "lab.demonstration",
    "load_verifier": "verifiers",
}

__all__ = [
    "AuditConfig",
    "DemoConfig",
    "EvaluateConfig",
    "ExplainConfig",
    "IngestConfig",
    "PivotRLError",
    "ProfileConfig",
    "ReportConfig",
    "RescoreConfig",
    "SelectConfig",
    "TrainConfig",
    "audit",
    "demo",
    "evaluate",
    "explain",
    "ingest",
    "load_verifier",
    "profile",
    "report",
    "rescore",
    "select",
    "train",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'pivotrl' has no attribute {name!r}")
    return getattr(import_module(f"pivotrl.{_HOME[name]}"), name)
