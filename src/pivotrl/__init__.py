"""PivotRL: make a language model a better agent from expert trajectories, at the turns where it pays.

Importing this package does nothing and pulls in no torch: each name below is loaded when it is first used. So are the
nouns (`types`) and the Protocols (`protocols`), all of them. docs/python.md shows them at work.
"""

from __future__ import annotations

import ast
import pkgutil
from importlib import import_module
from typing import TYPE_CHECKING

from pivotrl._version import __version__ as __version__

if TYPE_CHECKING:
    from pivotrl.audit_result import AuditResult as AuditResult
    from pivotrl.auditing import AuditConfig as AuditConfig, audit as audit
    from pivotrl.budgets import StoppingSettings as StoppingSettings
    from pivotrl.candidates import CandidateRules as CandidateRules, CandidateStore as CandidateStore
    from pivotrl.chat import ChatFormat as ChatFormat
    from pivotrl.comparing import CompareConfig as CompareConfig, CompareResult as CompareResult, compare as compare
    from pivotrl.curves import SaturationSettings as SaturationSettings
    from pivotrl.diagnosis import DoctorConfig as DoctorConfig, DoctorResult as DoctorResult, doctor as doctor
    from pivotrl.environments import load_environment as load_environment
    from pivotrl.episodes import EpisodeSettings as EpisodeSettings
    from pivotrl.errors import ConfigError as ConfigError, InputError as InputError, PivotRLError as PivotRLError
    from pivotrl.evaluation import EvaluationResult as EvaluationResult, evaluate as evaluate
    from pivotrl.evaluation_settings import EvaluateConfig as EvaluateConfig, SamplingChoice as SamplingChoice
    from pivotrl.evaluation_settings import ForgettingSettings as ForgettingSettings
    from pivotrl.forgetting import ForgettingResult as ForgettingResult
    from pivotrl.explaining import ExplainConfig as ExplainConfig, ExplainResult as ExplainResult, explain as explain
    from pivotrl.exporting import ExportResult as ExportResult, export as export
    from pivotrl.exports.base import ExportConfig as ExportConfig
    from pivotrl.exports.gym_server import gym_server as gym_server
    from pivotrl.exports.trainers import trl_reward as trl_reward
    from pivotrl.grpo import AdvantageSettings as AdvantageSettings, LossSettings as LossSettings
    from pivotrl.ingest_result import IngestResult as IngestResult
    from pivotrl.ingestion import IngestConfig as IngestConfig, ingest as ingest
    from pivotrl.lab.demonstration import DemoConfig as DemoConfig, DemoResult as DemoResult, demo as demo
    from pivotrl.learners import LoraSettings as LoraSettings, OptimizerSettings as OptimizerSettings
    from pivotrl.models import ModelSettings as ModelSettings, load_chat as load_chat
    from pivotrl.pivots import SelectConfig as SelectConfig, SelectResult as SelectResult, select as select
    from pivotrl.planning import Scope as Scope
    from pivotrl.policies import OpenAISettings as OpenAISettings, load_policy as load_policy
    from pivotrl.policies.scripted import ScriptedPolicy as ScriptedPolicy
    from pivotrl.profile_result import ProfileResult as ProfileResult
    from pivotrl.profile_settings import ProfileConfig as ProfileConfig, RescoreConfig as RescoreConfig
    from pivotrl.profiling import Profiled as Profiled, profile as profile, profiled as profiled, rescore as rescore
    from pivotrl.protocols import *
    from pivotrl.reporting import ReportConfig as ReportConfig, ReportResult as ReportResult, report as report
    from pivotrl.run_directory import RunDirectory as RunDirectory
    from pivotrl.task_evaluation import TaskEvaluationResult as TaskEvaluationResult
    from pivotrl.theory_page import TheoryConfig as TheoryConfig, TheoryResult as TheoryResult, theory as theory
    from pivotrl.training import train as train
    from pivotrl.training_result import TrainResult as TrainResult
    from pivotrl.training_settings import TrainConfig as TrainConfig, preset as preset
    from pivotrl.trajectories import read_path as read_path
    from pivotrl.types import *
    from pivotrl.validation import ValidationSettings as ValidationSettings
    from pivotrl.viewing import ViewConfig as ViewConfig, ViewResult as ViewResult, view as view
    from pivotrl.verifiers import load_verifier as load_verifier, verify as verify

_HOME = {
    alias.name: str(node.module)
    for node in ast.walk(ast.parse(pkgutil.get_data(__name__, "__init__.py") or b""))
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
    if alias.asname == alias.name
}
"""The module of every name, read off the imports above, so that each is said once."""
__all__ = [*_HOME]


def _nouns() -> dict[str, object]:
    homes = "pivotrl.types", "pivotrl.protocols"
    found = (item for home in homes for item in vars(import_module(home)).items())
    return {name: value for name, value in found if isinstance(value, type) and value.__module__ in homes}


if not TYPE_CHECKING:  # a checker is to complain of a name that is not imported above

    def __getattr__(name: str) -> object:
        if name in _HOME:
            return getattr(import_module(_HOME[name]), name)
        if name.startswith("_") or name not in (nouns := _nouns()):
            raise AttributeError(f"module 'pivotrl' has no attribute {name!r}")
        return nouns[name]


def __dir__() -> list[str]:
    return [*__all__, *_nouns()]
