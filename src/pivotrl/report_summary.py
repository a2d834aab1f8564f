"""The first screen of a report: did it work, what was forgotten, what did it cost, how wrong is the verifier."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from pivotrl.audit_result import ATTACKS, DEMONSTRATIONS, OTHERS, AuditResult
from pivotrl.documents import Block, Bullets, Folded, Heading, Paragraph, table_of
from pivotrl.evaluation import EvaluationResult
from pivotrl.forgetting import ForgettingResult
from pivotrl.frontier import frontier, needed
from pivotrl.ledger import by_stage
from pivotrl.logs import counted
from pivotrl.manifests import named
from pivotrl.metrics import change_word, format_short
from pivotrl.report_stages import Evaluations, Stages, Totals
from pivotrl.run_directory import RunDirectory
from pivotrl.storage import read_json
from pivotrl.task_evaluation import TaskEvaluationResult
from pivotrl.types import Estimate, Usage

TRUSTED: Final = 0.1
"""Mean reward of wrong actions from which on the reward is to be doubted; our choice."""


def answers(run: RunDirectory, stages: Stages, totals: Totals, found: Evaluations) -> Iterator[Block]:
    """What a reader wants to know first, as far as the run has come."""
    measured = list(_compared(found))
    if found and not measured and not named(stages, "profile") and not named(stages, "train"):  # a benchmark alone
        yield Bullets(tuple(line.strip() for one in found.values() if one for line in one.lines()))
        yield from (Heading("What did it cost?", 3), Paragraph(_cost(totals)))
        return
    yield from _pivots(stages)
    for title, general in (("Did it work?", False), ("What was forgotten?", True)):
        rows = [one for one in measured if one.general == general]
        yield Heading(title, 3)
        yield from [Paragraph(*one.sentence()) for one in rows] or [Paragraph(_UNKNOWN[general], "unsure")]
    yield from (Heading("What did it cost?", 3), Paragraph(_cost(totals)))
    yield from (Heading("How far can the reward be trusted?", 3), *_verifier(run))


_UNKNOWN: Final = {
    False: "Not measured: `pivotrl evaluate` compares the trained model with the policy that was profiled.",
    True: "Not measured: `pivotrl evaluate` with `--env skills` or `--forgetting.lm-eval TASK` asks, before and after.",
}


@dataclass(frozen=True, slots=True)
class _Compared:
    """One policy beside the first one, on one set of items."""

    what: str
    policy: str
    pair: tuple[Estimate, Estimate]
    """Before and after."""
    change: Estimate
    general: bool

    def sentence(self) -> tuple[str, str]:
        """(the sentence, its mark)."""
        word, (before, after) = change_word(self.change), self.pair
        change = format_short(self.change)
        sign = "" if change.startswith("-") else "+"
        tasks = f", {counted(self.change.clusters, 'task')}" if self.change.clusters < self.change.n else ""
        return (
            f"**{self.policy}: {word}.** {self.what}: {before.mean:.3f} before, {after.mean:.3f} after, "
            f"change {sign}{change} (95%, n={self.change.n}{tasks}).",
            {"better": "good", "WORSE": "bad"}.get(word, "unsure"),
        )


def _pivots(stages: Stages) -> Iterator[Block]:
    read = [facts["counts"] for _, facts in named(stages, "ingest")]
    for name, facts in named(stages, "select"):
        counts = facts["counts"]
        turns = f" of {read[-1]['assistant_turns']:,} expert turns" if read else ""
        yield Paragraph(
            f"**{counts.get('pivot', 0):,} pivots** (selection `{name}`) among {sum(counts.values()):,} profiled states"
            f"{turns}: the states where the model is right sometimes, and not too often."
        )


def _compared(found: Evaluations) -> Iterator[_Compared]:
    for result in found.values():
        if isinstance(result, TaskEvaluationResult):
            for environment, scores in result.environments.items():
                first, *others = scores
                for score in others:
                    pair = first.overall.success, score.overall.success
                    if change := score.overall.change:
                        what = f"Success in {change.n} {result.split} tasks of {environment}"
                        yield _Compared(what, score.policy, pair, change, environment in result.general)
        elif isinstance(result, ForgettingResult):
            yield from (_Compared(*one, True) for one in result.changes())
        elif isinstance(result, EvaluationResult):
            first_score, *other_scores = result.scores
            for one in other_scores:
                if one.change:
                    what = f"Mean reward at {one.change.n} {result.split} states"
                    yield _Compared(what, one.policy, (first_score.score, one.score), one.change, False)


def _cost(totals: Totals) -> str:
    stages = by_stage(totals)
    total = sum(stages.values(), Usage())
    took = f"{total.seconds:,.0f} seconds" if total.seconds < 100 else f"{total.seconds / 60:,.1f} minutes"
    shares = ", ".join(f"{stage} {one.seconds:,.0f} s" for stage, one in stages.items() if one.seconds >= 1)
    judged = f" {total.judge_calls:,} calls of a judge." if total.judge_calls else ""
    judged += f" {total.money:,.2f} paid for servers at the prices given." if total.money else ""
    return (
        f"**{took}** of work{f' ({shares})' * bool(shares)}; {total.turns:,} model calls, "
        f"{total.generated_tokens:,} tokens generated, {total.trained_tokens:,} trained, "
        f"{total.flops / 1e12:,.2f} TFLOPs, profiling and evaluation included.{judged}"
    )


def _verifier(run: RunDirectory) -> Iterator[Block]:
    audits = sorted(run.path.glob("audits/*/audit.json"))
    if not audits:
        yield Paragraph(
            "Unknown: `pivotrl audit` says which demonstrations the verifier refuses, and what other actions earn.",
            "unsure",
        )
    for path in audits:
        run.check(path)
        audit = read_json(path, AuditResult)
        shares = {
            section: [(one.name, one.reward) for one in some if one.reward] for section, some in audit.shares.items()
        }
        good = [one for one in shares.get(DEMONSTRATIONS, []) if one[1].n]
        parts = [f"accepts {' and '.join(_earns(*one) for one in good)} of the demonstrations"] if good else []
        if others := shares.get(OTHERS):
            parts.append(f"gives {_earns(*max(others, key=_mean))} what should earn next to nothing")
        if attacks := shares.get(ATTACKS):
            worst = max(attacks, key=_mean)
            parts.append(f"of {len(attacks)} attacks the best, {_earns(*worst)}, should earn nothing")
        wrong = [*(others or []), *(attacks or [])]
        mark = "good" if wrong and all(_mean(one) < TRUSTED for one in wrong) else "unsure"
        yield Paragraph(f"`{audit.verifier}` on {audit.candidates:,} states: {'; '.join(parts)}.", mark)
        rows = [(section, name, format_short(reward)) for section, some in shares.items() for name, reward in some]
        yield Folded("all that was tried", (table_of(["actions", "kind", "mean reward"], rows),))


def _mean(share: tuple[str, Estimate]) -> float:
    return share[1].mean


def _earns(name: str, reward: Estimate) -> str:
    return f"{reward.mean:.3f} ({name}, n={reward.n:,})"


def frontiers(stages: Stages, totals: Totals, evaluations: Evaluations) -> Iterator[Block]:
    """Success of every training against the model calls that it needed."""
    for name, result in evaluations.items():
        if isinstance(result, TaskEvaluationResult):
            for environment, scores in result.environments.items():
                if environment not in result.general:
                    found = {
                        one.policy: (needed(stages, totals, one.policy.removeprefix("train/")), one.overall.success)
                        for one in scores
                    }
                    yield from frontier(f"{name} {environment}", found)
