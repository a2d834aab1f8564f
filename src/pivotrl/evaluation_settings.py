"""Which policies are evaluated on what, and where a setting that was not given comes from."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any, Final

import tyro

from pivotrl.episodes import EpisodeSettings
from pivotrl.errors import ConfigError, MissingError, check_least
from pivotrl.models import ModelSettings, resolve, trained_model
from pivotrl.outcomes import ITEMS_FILE, ItemScore
from pivotrl.planning import Scope, check_sampling
from pivotrl.plugins import remembered
from pivotrl.policies import OpenAISettings, has_weights, load_policy
from pivotrl.profile_settings import DEFAULT_PROFILE, ProfilePlan, load_plan
from pivotrl.protocols import Policy
from pivotrl.rollouts import Truncation
from pivotrl.run_directory import AnyPath, RunDirectory, check_name
from pivotrl.storage import content_hash, write_json, write_jsonl
from pivotrl.types import SamplingParams, Split

OpenPolicies = Mapping[str, Callable[[], Policy]]
"""Policies by name, in order; each is loaded when its turn comes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingChoice:
    """How actions are sampled; by default as profiled, else as the policy itself samples."""

    temperature: float | None = None
    """0 is greedy."""
    top_p: float | None = None
    """Sample from the smallest set of tokens that holds this much probability; 1 is off."""
    top_k: int | None = None
    """0 is off."""
    max_new_tokens: int | None = None
    """Longest action; what is longer is truncated."""

    def inherit(self, before: SamplingParams) -> SamplingParams:
        """These settings, and `before` where they say nothing."""
        said = {name: getattr(self, name) for name in self.__slots__ if getattr(self, name) is not None}
        return replace(before, **said)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgettingSettings:
    """What training is not about, before and after; needs models with weights (docs/forgetting.md)."""

    lm_eval: tuple[str, ...] = ()
    """Tasks or groups of lm-eval (extra `eval`), with its settings: few-shot, sampling, metric."""
    include: AnyPath | None = None
    """Directory with task files (YAML) of your own."""
    limit: int | None = None
    """First so many items of each task."""
    batch: int = 1
    """Requests that lm-eval forwards together."""
    chat: bool = False
    """Ask through the chat template; lm-eval by itself does not."""
    paper: bool = False
    """The paper's eight benchmarks: those that lm-eval has are run, the table says who runs the others."""
    text: AnyPath | None = None
    """Text for perplexity and KL to the first policy: a .jsonl file with `text`, or documents between empty lines."""
    tokens: int = 512
    """Longest beginning of a document that is read."""

    def __post_init__(self) -> None:
        check_least(self, "forgetting.", limit=1, batch=1, tokens=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateConfig:
    """Compare policies on held-out candidates, with --env on whole tasks, or with --forgetting on what may be lost.

    The first policy is the one that the others are compared with.
    """

    run: AnyPath
    """Run directory; with --env and --policies it may be a new one."""
    policies: Annotated[tuple[str, ...], tyro.conf.arg(aliases=("--policy",))] = ()
    """Model directories, hub ids, openai:MODEL@URL or scripted:..., or NAME=one of these; `train/NAME` is a model of
    this run. Default: the policy of the profile, then every finished training of the run."""
    env: tuple[str, ...] = ()
    """Environments to play held-out tasks of: desk, shell, skills, package.module:name or FILE.py:name."""
    tasks: tuple[int, ...] = ()
    """Held-out tasks: one number for all of --env, or one for each; by default 200 conversations, 2,000 questions."""
    explained: int | None = None
    """In so many lost episodes, by default all, the first wrong action is looked for (the expert plays on)."""
    profile: str = DEFAULT_PROFILE
    """Profile that gives the settings left at their default: policy, verifier, sampling, truncation, model."""
    name: str | None = None
    """Name of the evaluation; by default heldout, with --env tasks, with --forgetting forgetting."""
    split: Split = "test"
    """Which candidates or tasks: test, validation or train."""
    rollouts: int = 4
    """Actions sampled at each candidate."""
    verifier: str | None = None
    """A name of docs/verifiers.md, FILE.py:function, or cascade(ONE, OTHER); by default as profiled, else auto."""
    sampling: SamplingChoice = field(default_factory=SamplingChoice)
    truncation: Truncation | None = None
    """A truncated action counts as wrong (zero) or is left out (exclude); by default as profiled, else zero."""
    scope: Scope = field(default_factory=Scope)
    episodes: EpisodeSettings = field(default_factory=EpisodeSettings)
    forgetting: ForgettingSettings = field(default_factory=ForgettingSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    openai: OpenAISettings = field(default_factory=OpenAISettings)
    seed: int = 1
    """Seed of all sampling and of the choice of tasks; keep it apart from the profile's."""

    @property
    def title(self) -> str:
        """The name, its default filled in."""
        usual = "forgetting" if self.of_forgetting else "tasks" if self.env else "heldout"
        return usual if self.name is None else self.name

    @property
    def of_forgetting(self) -> bool:
        return self.forgetting != ForgettingSettings()


_OF_CANDIDATES: Final = ("rollouts", "verifier", "truncation", "scope")
_OF_TASKS: Final = ("tasks", "episodes", "explained")


@dataclass(frozen=True, slots=True, kw_only=True)
class Inherited:
    """The settings that a profile gives where the user gave none."""

    profile: ProfilePlan | None
    params: SamplingParams
    model: ModelSettings

    def keep(
        self, config: EvaluateConfig, file: str, result: object, items: Iterable[ItemScore], **facts: object
    ) -> None:
        """Write what an evaluation of any kind found, item by item too, and its manifest."""
        run = RunDirectory(config.run)
        folder = run.evaluation(config.title)
        write_jsonl(folder / ITEMS_FILE, items)
        write_json(folder / file, result)
        known = {"config": config, "sampling": self.params, "model": self.model}
        run.record_stage("evaluate", config.title, known | facts, folder.glob("*.json*"))


def inherit(config: EvaluateConfig, run: RunDirectory) -> Inherited:
    """Settings with the profile's defaults. Raises ConfigError for bad ones, MissingError for a profile not there."""
    check_name(config.title)
    _check_use(config)
    profile = _profile_plan(config, run)
    params = config.sampling.inherit(profile.sampling if profile else SamplingParams())
    check_sampling(config.rollouts, params)
    if config.env:
        _check_tasks(config)
    return Inherited(
        profile=profile, params=params, model=config.model.inherit(profile.model) if profile else config.model
    )


def _check_use(config: EvaluateConfig) -> None:
    """Raise ConfigError for a setting that would do nothing."""
    plain = EvaluateConfig(run=config.run)
    if config.of_forgetting:
        for name in (*_OF_CANDIDATES, *_OF_TASKS, "env", "sampling"):
            if getattr(config, name) != getattr(plain, name):
                raise ConfigError(f"{name}: has no part in --forgetting; leave it out, or evaluate twice")
        if not (config.forgetting.lm_eval or config.forgetting.paper or config.forgetting.text):
            raise ConfigError("give --forgetting.lm-eval TASK..., --forgetting.paper or --forgetting.text FILE")
        return
    for name in _OF_CANDIDATES if config.env else _OF_TASKS:
        if getattr(config, name) != getattr(plain, name):
            raise ConfigError(
                f"{name}: only for {'candidates; leave it out with' if config.env else 'tasks; give'} --env"
                + (" (episodes of one task: --episodes.trials)" if name == "rollouts" else "")
            )


def _check_tasks(config: EvaluateConfig) -> None:
    if len(set(config.env)) < len(config.env):
        raise ConfigError(f"env {' '.join(config.env)}: name every environment once")
    if len(config.tasks) not in (0, 1, len(config.env)):
        raise ConfigError(
            f"tasks: {len(config.tasks)} numbers for {len(config.env)} environments; give one, or as many"
        )
    if min(config.tasks, default=1) < 1:
        raise ConfigError(f"tasks {min(config.tasks)}: must be at least 1")
    if config.explained is not None and config.explained < 0:
        raise ConfigError(f"explained {config.explained}: must be 0 or more")


def _profile_plan(config: EvaluateConfig, run: RunDirectory) -> ProfilePlan | None:
    """The plan of the profile that gives defaults; None where nothing was profiled under the default name."""
    if f"profile/{config.profile}" in _stages(config, run):
        return load_plan(run, config.profile)
    if config.profile != DEFAULT_PROFILE:
        raise MissingError(
            f"{run.profile(config.profile)} is not there or unfinished; profile first, or leave --profile out"
        )
    return None


def _stages(config: EvaluateConfig, run: RunDirectory) -> Mapping[str, Any]:
    """Every stage's manifest; none where tasks are to be played in a new run directory."""
    return {} if (config.env or config.of_forgetting) and not run.manifest.exists() else run.stages()


def open_policies(
    config: EvaluateConfig, run: RunDirectory, model: ModelSettings, given: Mapping[str, Policy] | None
) -> OpenPolicies:
    """The policies that are given as objects, else those that the config names. Raises a PivotRLError."""
    if given:
        return {name: partial(_itself, policy) for name, policy in given.items()}
    openai = _as_profiled(config, run)
    return {name: partial(load_policy, spec, model, openai) for name, spec in _specs(config, run).items()}


def _as_profiled(config: EvaluateConfig, run: RunDirectory) -> OpenAISettings:
    """How servers are asked, with the profile's settings where the user gave none, if the user ever asked it so."""
    before = _stages(config, run).get(f"profile/{config.profile}", {}).get("config", {}).get("openai", {})
    plain, names = OpenAISettings(), ["tokenizer", "context_length", "history_reasoning", "extra"]
    if before and remembered(f"{before.get('key_variable')} for {before.get('url')}"):
        names += ["url", "key_variable"]
    unsaid = [name for name in names if getattr(config.openai, name) == getattr(plain, name)]
    return replace(config.openai, **{name: before[name] for name in unsaid if name in before})


def _itself(policy: Policy) -> Policy:
    return policy


def folder_name(name: str, identity: str = "") -> str:
    """A folder for what a user named freely: readable, and no other name's; or, named alike, no other identity's."""
    readable = re.sub(r"[^\w.-]+", "_", name)[-60:]
    return f"{readable}-{(identity or content_hash(name))[:6]}"


def _specs(config: EvaluateConfig, run: RunDirectory) -> dict[str, str]:
    """Policies by name, in order."""
    if config.policies:
        specs: dict[str, str] = {}
        for entry in config.policies:
            head, mark, options = entry.partition("?")
            name, _, spec = head.rpartition("=") if "=" in head else (entry, "", head)
            spec += mark + options
            if not name or name in specs:
                raise ConfigError(f"policies {entry!r}: give every policy a name of its own, NAME=POLICY")
            specs[name] = trained_model(run, spec)
            if has_weights(specs[name]):
                resolve(specs[name])  # before anything is sampled
        return specs
    found: dict[str, str] = {}
    if policy := _stages(config, run).get(f"profile/{config.profile}", {}).get("config", {}).get("policy"):
        found["base"] = policy
        if not (has_weights(policy) or remembered(policy)):  # the run may be somebody else's
            raise ConfigError(
                f"policy {policy!r}: only {run.path} names it, and it runs code or asks a server; say "
                "--policies base=POLICY if you trust it"
            )
    trained = sorted(path.parent.parent.name for path in (run.path / "train").glob("*/model/state.json"))
    for name in trained:
        found[f"train/{name}" if name in found else name] = str(run.train(name) / "model")
    if not found:
        raise MissingError(f"{run.path}: no profile and no trained model to evaluate; name them with --policies")
    return found
