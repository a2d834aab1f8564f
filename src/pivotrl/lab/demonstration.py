"""`pivotrl demo`: the main job, all of it, on the embedded default. Its output says what a pivot is."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pivotrl.auditing import AuditConfig, audit
from pivotrl.errors import ConfigError, check_least
from pivotrl.evaluation_settings import EvaluateConfig
from pivotrl.grpo import LossSettings
from pivotrl.ingestion import IngestConfig, ingest
from pivotrl.lab.desk import DESK_RULES, write_episodes
from pivotrl.lab.shipped import shipped_base
from pivotrl.learners import OptimizerSettings
from pivotrl.ledger import Ledger, by_stage
from pivotrl.logs import plain
from pivotrl.metrics import change_word, format_short
from pivotrl.pivots import SelectConfig, SelectResult, select
from pivotrl.planning import Scope
from pivotrl.profile_result import ProfileResult
from pivotrl.profile_settings import ProfileConfig
from pivotrl.profiling import profile, profiled
from pivotrl.reporting import ReportConfig, report
from pivotrl.run_directory import AnyPath, RunDirectory, hold_to
from pivotrl.task_evaluation import SuccessRate, TaskEvaluationResult, evaluate_tasks
from pivotrl.training import train
from pivotrl.training_result import TrainResult
from pivotrl.training_settings import TrainConfig
from pivotrl.types import Action, SamplingParams

SKILL_ITEMS: Final = 504
LONGEST_ACTION: Final = 64
VERIFIER: Final = f"auto:rules={DESK_RULES},same_facts=true,min_recall=0"
"""With the rules that whoever knows the desk would write, for short and long wordings alike, and without facts that the
expert did not give: a refusal for another reason is not the same refusal. docs/verifiers.md has its error, docs/demo.md
what a laxer one does."""
# Chosen on validation tasks (docs/demo.md).
LEARNING_RATE: Final = 2e-4
BETA: Final = 0.1
PROMPTS: Final = 16
CAP_PER_TRAJECTORY: Final[int | None] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoConfig:
    """Run the whole chain on a service desk with a small model that ships with the package: no GPU, no download."""

    run: AnyPath = Path("runs/demo")
    """Run directory; its `input/` holds the expert's episodes. An interrupted demo goes on where it was."""
    episodes: int = 120
    """Expert episodes, 8 to 14 assistant turns each."""
    rollouts: int = 8
    """K: actions sampled at each profiled state."""
    profiled: int = 500
    """States that are profiled."""
    steps: int = 40
    """Training steps."""
    tasks: int = 200
    """Held-out conversations played before and after."""
    seed: int = 0
    """Seed of everything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoResult:
    """What the demo found."""

    profile: ProfileResult
    selection: SelectResult
    training: TrainResult
    evaluation: TaskEvaluationResult
    report: Path
    bill: tuple[str, ...]

    def lines(self) -> list[str]:
        scores = self.evaluation.environments
        (desk_before, desk), (first, skills) = scores["desk"], scores["skills"]
        profiles = self.profile.profiles
        flat = sum(one.variance == 0 for one in profiles)
        return [
            "",
            f"Did it work? Success in {desk.overall.success.n} whole conversations of the test split:",
            _compared("success", desk_before.overall, desk.overall),
            f"Did it forget? {skills.overall.success.n} questions of eight general skills, right before -> after:",
            _compared("all eight", first.overall, skills.overall),
            *(_compared(name, first.by_kind[name], skills.by_kind[name], judged=False) for name in skills.by_kind),
            f"Why pivots? {flat} of {len(profiles)} profiled states ({flat / len(profiles):.0%}) gave equal rewards:",
            f"    GRPO learns nothing there, and so it trained on the {len(self.selection.pivots)} pivots only.",
            *self.bill,
            "",
            f"Read next: {self.report}",
            f"The trained model: {self.training.model} (a Hugging Face directory)",
            "With your own data:",
            "    pivotrl ingest TRACES... --run runs/mine",
            "    pivotrl profile --run runs/mine --policy MODEL",
            "    pivotrl select --run runs/mine && pivotrl train --run runs/mine && pivotrl evaluate --run runs/mine",
        ]


def demo(config: DemoConfig) -> DemoResult:
    """Run or resume the demo. Raises ConfigError for settings too small to show anything, and what its stages raise."""
    if config.episodes < 20 or config.profiled < 20 or config.tasks < 10:
        raise ConfigError("the demo needs at least 20 episodes, 20 profiled states and 10 tasks")
    check_least(config, steps=1, rollouts=1)
    if RunDirectory(config.run).manifest.exists() and not (Path(config.run) / "input" / "demo.json").exists():
        raise ConfigError(f"{config.run} holds another run; give the demo a --run of its own")
    base, episodes = _prepare(config)
    _say("2/7 ingest", "Every assistant turn is a candidate: the conversation so far, and what the expert did next.")
    if not RunDirectory(config.run).manifest.exists():
        _show(ingest(IngestConfig(paths=(str(episodes),), run=config.run, seed=config.seed)).lines())
    sampled = _profile(config, base)
    _say(
        "4/7 select",
        "A pivot is a state where the model is right sometimes and wrong often enough, as far as the verifier can "
        "tell: only there do rewards differ, and only differences teach.",
    )
    selection = select(SelectConfig(run=config.run))
    _show(selection.lines())
    _show(example(config.run, selection))
    training = _train(config)
    evaluation = _evaluate(config, base)
    _say("7/7 audit", "How wrong is the verifier? Demonstrations should earn 1, other actions and attacks nothing.")
    audit(AuditConfig(run=config.run))
    written = report(ReportConfig(run=config.run))
    return DemoResult(
        profile=sampled,
        selection=selection,
        training=training,
        evaluation=evaluation,
        report=written.page,
        bill=_bill(Path(config.run)),
    )


def _prepare(config: DemoConfig) -> tuple[Path, Path]:
    """The base model that ships with the package, and the expert's episodes."""
    folder, base = Path(config.run) / "input", shipped_base()
    _say(
        "1/7 prepare",
        f"An expert served {config.episodes} customers of a shop: eight tools, a written policy, several requests in "
        "each conversation. A small model has learned the work from a clerk with bad habits; it should become as good "
        "as the expert, and forget nothing else.",
    )
    hold_to(folder / "demo.json", {"episodes": config.episodes, "seed": config.seed})
    write_episodes(folder / "episodes.jsonl", config.episodes, config.seed)
    return base, folder / "episodes.jsonl"


def _profile(config: DemoConfig, base: Path) -> ProfileResult:
    _say(
        "3/7 profile",
        f"The model acts {config.rollouts} times at each of {config.profiled} states. A verifier rewards an action "
        "with 1 if it does the same as the expert's, in whatever words or order, else with 0. What is the same is "
        "decided by the tools' schemas, the facts in a message, and eleven lines of rules (lab/desk/rules.toml).",
    )
    settings = ProfileConfig(
        run=config.run,
        policy=str(base),
        rollouts=config.rollouts,
        verifier=VERIFIER,
        sampling=SamplingParams(max_new_tokens=LONGEST_ACTION),
        scope=Scope(max_candidates=config.profiled),
        seed=config.seed,
    )
    result = profile(settings)
    _show(result.lines())
    return result


def _train(config: DemoConfig) -> TrainResult:
    _say(
        "5/7 train",
        "GRPO on the pivots alone: at each, 8 fresh actions; what was rewarded above the average becomes likelier, the "
        "rest less likely, and a penalty holds the model near where it began.",
    )
    settings = TrainConfig(
        run=config.run,
        steps=config.steps,
        prompts=PROMPTS,
        cap_per_trajectory=CAP_PER_TRAJECTORY,
        optimizer=OptimizerSettings(lr=LEARNING_RATE),
        loss=LossSettings(beta=BETA),
        seed=config.seed,
    )
    result = train(settings)
    _show(result.lines())
    return result


def _evaluate(config: DemoConfig, base: Path) -> TaskEvaluationResult:
    _say(
        "6/7 evaluate",
        f"Base and trained model each serve {config.tasks} new customers, whole conversations, and answer "
        f"{SKILL_ITEMS} questions of eight general skills.",
    )
    settings = EvaluateConfig(
        run=config.run,
        policies=(f"base={base}", "pivotrl=train/pivotrl"),
        env=("desk", "skills"),
        tasks=(config.tasks, SKILL_ITEMS),
        seed=config.seed + 1,
    )
    return evaluate_tasks(settings)


def example(run: AnyPath, selection: SelectResult) -> list[str]:
    """One pivot in words: the state, the expert's action, and what the model did with which reward."""
    pivots = {pivot.candidate_id for pivot in selection.pivots}
    found = (one for one in profiled(run) if one.candidate.id in pivots)
    chosen = min(found, key=lambda one: (abs((one.profile.mean or 0.0) - 0.5), one.candidate.id))
    group, candidate = chosen.group, chosen.candidate
    last = candidate.state.messages[-1]
    tried = Counter(
        (_in_words(one.action) if one.action else one.text, verdict.value, verdict.reason)
        for one, verdict in zip(group.completions, group.verdicts, strict=True)
    )
    lines = [
        f"one pivot, {candidate.id}:",
        f"    {last.role} says      {last.content}",
        f"    the expert did {_in_words(candidate.demonstration)}",
        f"    the model, {len(group.completions)} times:",
    ]
    return lines + [
        f"    {count:4d} x reward {value or 0:.0f}  {said}" + ("" if value else f"   ({reason})")
        for (said, value, reason), count in tried.most_common()
    ]


def _in_words(action: Action) -> str:
    calls = [f"{call.name}({call.arguments})" for call in action.calls]
    return " + ".join(calls) or f'said "{action.text}"'


def _compared(name: str, before: SuccessRate, after: SuccessRate, *, judged: bool = True) -> str:
    """One row: before, after, and the paired change, in words where it is to be judged.

    Not of each skill: of eight intervals one leaves zero out by chance in every third run.
    """
    change = after.change
    verdict = change_word(change) if judged and change else ""
    pair = f"{format_short(before.success)} -> {format_short(after.success)}"
    return f"    {name:<10} {pair}  change {format_short(change)}  {verdict}".rstrip()


def _say(stage: str, what: str) -> None:
    print("\n".join(["", stage, *textwrap.wrap(what, 100, initial_indent="  ", subsequent_indent="  ")]), flush=True)


def _show(lines: Sequence[str]) -> None:
    for line in lines:
        print(f"    {plain(line)}", flush=True)


def _bill(run: Path) -> tuple[str, ...]:
    stages = by_stage(Ledger(RunDirectory(run).ledger).totals())
    rows = [
        f"    {stage:<9} {usage.turns:6d} turns  {usage.generated_tokens:7d} tokens generated  "
        f"{usage.trained_tokens:8d} trained  {usage.seconds:6.1f} s"
        for stage, usage in stages.items()
        if usage.turns or usage.trained_tokens
    ]
    seconds = sum(usage.seconds for usage in stages.values())
    return (
        f"What did it cost? {seconds:.0f} s of work on this machine; turns are calls of the model, profiling included:",
        *rows,
    )
