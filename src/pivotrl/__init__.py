"""PivotRL: make a language model a better agent from expert trajectories, at the turns where it pays.

Importing this package does nothing and pulls in no torch; each name below is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from pivotrl._version import __version__ as __version__

if TYPE_CHECKING:
    from pivotrl.auditing import AuditConfig as AuditConfig
    from pivotrl.auditing import audit as audit
    from pivotrl.errors import PivotRLError as PivotRLError
    from pivotrl.evaluation import evaluate as evaluate
    from pivotrl.evaluation_settings import EvaluateConfig as EvaluateConfig
    from pivotrl.explaining import ExplainConfig as ExplainConfig
    from pivotrl.explaining import explain as explain
    from pivotrl.ingestion import IngestConfig as IngestConfig
    from pivotrl.ingestion import ingest as ingest
    from pivotrl.lab.demonstration import DemoConfig as DemoConfig
    from pivotrl.lab.demonstration import demo as demo
    from pivotrl.pivots import SelectConfig as SelectConfig
    from pivotrl.pivots import select as select
    from pivotrl.profile_settings import ProfileConfig as ProfileConfig
    from pivotrl.profile_settings import RescoreConfig as RescoreConfig
    from pivotrl.profiling import profile as profile
    from pivotrl.profiling import rescore as rescore
    from pivotrl.reporting import ReportConfig as ReportConfig
    from pivotrl.reporting import report as report
    from pivotrl.training import train as train
    from pivotrl.training_settings import TrainConfig as TrainConfig
    from pivotrl.verifiers import load_verifier as load_verifier
    from pivotrl.viewing import ViewConfig as ViewConfig
    from pivotrl.viewing import view as view

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
    "ViewConfig": "viewing",
    "view": "viewing",
    "ExplainConfig": "explaining",
    "explain": "explaining",
    "AuditConfig": "auditing",
    "audit": "auditing",
    "DemoConfig": "lab.demonstration",
    "demo": "lab.demonstration",
    "load_verifier": "verifiers",
}

__all__ = [*_HOME]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'pivotrl' has no attribute {name!r}")
    return getattr(import_module(f"pivotrl.{_HOME[name]}"), name)
