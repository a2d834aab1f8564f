"""The report of a run, one self-contained HTML page and the same in Markdown: first did it work, then all the rest."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pivotrl.documents import Block, Folded, Heading, Paragraph, Verbatim, table_of, write_page
from pivotrl.errors import check_least
from pivotrl.evaluation import load_evaluation
from pivotrl.ledger import Ledger, timed
from pivotrl.manifests import named
from pivotrl.model_card import write_model_card
from pivotrl.repeating import commands
from pivotrl.report_rollouts import rollouts
from pivotrl.report_stages import Stages, Totals, doubtful, evaluations, ingested, profiles, selections, trainings
from pivotrl.report_summary import answers, frontiers
from pivotrl.run_directory import AnyPath, RunDirectory
from pivotrl.types import Usage

_HASH: Final = re.compile(r"[ .][0-9a-f]{16}$")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportConfig:
    """Write `report.html` (one self-contained page) and `report.md` in the run directory: did it work, and the rest."""

    run: AnyPath
    """Run directory."""
    curve_points: int = 12
    """Rows of each training curve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportResult:
    """Where the report is."""

    path: Path
    """The Markdown page."""
    text: str
    page: Path
    """The HTML page."""

    def lines(self) -> list[str]:
        return [f"report: {self.page} (in Markdown: {self.path})"]


def report(config: ReportConfig) -> ReportResult:
    """Write the report. Raises MissingError for a folder that is no run."""
    check_least(config, curve_points=2)
    run = RunDirectory(config.run)
    stages = run.stages()
    ledger = Ledger(run.ledger)
    with run.sound(), timed(ledger, "report", "report"):
        for name, _ in named(stages, "train"):
            if (run.train(name) / "model").is_dir():
                write_model_card(run, name)
        title = f"PivotRL run `{run.path.name}`"
        blocks = [Heading(title, 1), *_blocks(run, stages, ledger.totals(), config.curve_points)]
        text = write_page(run.path / "report", title.replace("`", ""), blocks)
    return ReportResult(path=run.path / "report.md", text=text, page=run.path / "report.html")


def _blocks(run: RunDirectory, stages: Stages, totals: Totals, points: int) -> list[Block]:
    found = {name: load_evaluation(run, name) for name, _ in named(stages, "evaluate")}
    again = "\n".join(commands(stages, str(run.path), [*totals]))
    versions = ", ".join(sorted({str(facts["version"]) for facts in stages.values() if "version" in facts}))
    repeat = Verbatim(f"# pivotrl {versions}; settings at their default left out\n{again}")
    return [
        *doubtful(run, stages, totals),
        *answers(run, stages, totals, found),
        Heading("How to repeat it"),
        Folded("the commands of this run", (repeat,)),
        *selections(run, stages),
        *trainings(run, stages, points),
        *evaluations(found, stages),
        *frontiers(stages, totals, found),
        *rollouts(run, stages),
        *ingested(stages),
        *profiles(run, stages, totals),
        *_bill(totals),
    ]


def _bill(totals: Totals) -> Iterator[Block]:
    rows = [(_HASH.sub("", f"{stage} {name}"), *_cost(usage)) for (stage, name), usage in totals.items()]
    rows.append(("all", *_cost(sum(totals.values(), Usage()))))
    header = ["stage", "rollouts", "tokens prefilled", "cached", "generated", "trained", "GFLOPs", "seconds"]
    note = "FLOPs by formula (`pivotrl.ledger`); embeddings, norms, sampling and the optimiser are left out."
    yield from (Heading("What it cost"), table_of(header, rows), Paragraph(note, "note"))
    for (stage, name), usage in totals.items():
        if usage.judge_calls:
            yield Paragraph(
                f"Judging in {stage} {name}: {usage.judge_calls} calls, {usage.judge_prompt_tokens} prompt tokens, "
                f"{usage.judge_generated_tokens} generated."
            )
    paid = {f"{stage} {name}": usage.money for (stage, name), usage in totals.items() if usage.money}
    if paid:
        parts = ", ".join(f"{key} {money:.2f}" for key, money in paid.items())
        yield Paragraph(f"Paid at the prices given: {sum(paid.values()):.2f} ({parts}).")


def _cost(usage: Usage) -> tuple[object, ...]:
    tokens = (usage.prefilled_tokens, usage.cached_tokens, usage.generated_tokens, usage.trained_tokens)
    return (usage.rollouts, *tokens, f"{usage.flops / 1e9:.0f}", f"{usage.seconds:.1f}")
