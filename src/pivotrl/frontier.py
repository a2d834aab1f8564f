"""Success against cost, profiling included (the paper's Figure 1), for any number of policies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import PurePath
from typing import Any, Final

from pivotrl.charts import cost_chart
from pivotrl.documents import FOLDER, Block, Heading, Paragraph, Picture, file_name, table_of
from pivotrl.metrics import format_short
from pivotrl.types import Estimate, Usage

UNIT: Final = "model calls of profiling and training"


def needed(stages: Mapping[str, Any], totals: Mapping[tuple[str, str], Usage], training: str) -> Usage:
    """What a training took, and all that it went out from: profiles, and trainings of the run whose models began them.

    Nothing for what is no training of the run.
    """
    waiting, found = [("train", training)], dict[tuple[str, str], Usage]()
    while waiting:
        stage, name = key = waiting.pop()
        facts = stages.get(f"{stage}/{name}")
        if facts is not None and key not in found:
            found[key] = totals.get(key, Usage())
            waiting += _before(stage, facts)
    return sum(found.values(), Usage())


def _before(stage: str, facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The profile that a stage went out from, and the training whose model it began with, if one of this run did."""
    told, before = (facts["config"], "again") if stage == "profile" else (facts, "profile")
    if (profile := told.get(before)) is not None:
        yield "profile", profile
    policy = told.get("policy")
    *_, folder, name, kind = ("", "", "", *PurePath(policy or "").parts)
    if (folder, kind) == ("train", "model"):
        yield "train", name


def frontier(suite: str, found: Mapping[str, tuple[Usage, Estimate]]) -> list[Block]:
    """A picture and a table of cost and success by policy; NAME@ANYTHING are points of one method. Empty for one."""
    if len(found) < 2:
        return []
    points = {name: (float(usage.turns), score) for name, (usage, score) in found.items()}
    drawn = cost_chart(f"{suite} against cost", points, UNIT)
    rows = [(name, format_short(score), *_bill(usage)) for name, (usage, score) in found.items()]
    return [
        Heading(f"Success in {suite} against cost, profiling included"),
        Picture(f"{FOLDER}/cost-{file_name(suite)}.svg", drawn, f"{suite} by cost"),
        table_of(["policy", "score", "model calls", "tokens generated", "trained", "GFLOPs", "seconds"], rows),
        *_matched({name: (cost, score.mean) for name, (cost, score) in points.items()}),
    ]


def _bill(usage: Usage) -> tuple[object, ...]:
    tokens = usage.generated_tokens, usage.trained_tokens
    return usage.turns, *tokens, f"{usage.flops / 1e9:,.0f}", f"{usage.seconds:,.0f}"


def _matched(points: Mapping[str, tuple[float, float]]) -> Iterator[Block]:
    """What the methods need for the same success, and reach at the same cost, between points of a method by a line."""
    base = next(((cost, score) for cost, score in points.values() if cost == 0), (0.0, 0.0))
    methods: dict[str, list[tuple[float, float]]] = {}
    for name, point in points.items():
        if point[0] > 0:
            methods.setdefault(name.partition("@")[0], [base]).append(point)
    curves = {name: sorted(some) for name, some in methods.items()}
    if len(curves) < 2:
        return
    success = min(max(score for _, score in curve) for curve in curves.values())
    most = min(curve[-1][0] for curve in curves.values())
    said = ", ".join(f"{name} {cost_of(curve, success):,.0f}" for name, curve in curves.items())
    yield Paragraph(f"Model calls for a score of {success:.3f}, which all reach: {said}.")
    said = ", ".join(f"{name} {score_at(curve, most):.3f}" for name, curve in curves.items())
    yield Paragraph(f"Score at {most:,.0f} model calls, which all have: {said}.")


def cost_of(curve: Sequence[tuple[float, float]], success: float) -> float:
    """Where the line through (cost, score) first reaches a score; the last cost where it does not."""
    for (cost, score), (more, better) in pairwise(curve):
        if score >= success:
            return cost
        if better >= success:
            return cost + (more - cost) * (success - score) / (better - score)
    return curve[-1][0]


def score_at(curve: Sequence[tuple[float, float]], cost: float) -> float:
    """The line through (cost, score) at a cost."""
    for (before, score), (after, then) in pairwise(curve):
        if cost <= after:
            return score + (then - score) * (cost - before) / (after - before) if after > before else then
    return curve[-1][1]
