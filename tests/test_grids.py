"""The lab's grids: what their cells are, that they run, resume and share, and that tables say what the results hold."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from pivotrl.documents import to_markdown
from pivotrl.errors import BusyError, ConfigError, MissingError
from pivotrl.lab.cells import CellResult, Point, ProfileFacts, Score, result_path, run_cell
from pivotrl.lab.claims import Finding, ahead, claims, curve
from pivotrl.lab.grids import (
    ALL_MIXED,
    GRIDS,
    STEPS,
    THRESHOLD_SEED,
    TUNING_SEED,
    Cell,
    Plan,
    Setting,
    Sizes,
    entries,
    trials,
)
from pivotrl.lab.measures import measures, over_seeds, predicted
from pivotrl.lab.results import Found, load_results, save_results
from pivotrl.lab.running import RunConfig, choose, expected, finished, run_grid, unique, work
from pivotrl.lab.tables import CheckConfig, TablesConfig, check, page, tables
from pivotrl.storage import FileLock, read_json, write_json
from pivotrl.types import Estimate, Usage

CHOSEN = {"sft": Setting(lr=2e-4, epochs=1), "pivotrl": Setting(lr=2e-4, beta=0.1), "e2e": Setting(lr=2e-4, beta=0.1)}
CHOSEN[ALL_MIXED] = Setting(lr=4e-4, beta=0.1)
PLAN = Plan(chosen={"desk": CHOSEN, "shell": CHOSEN})
PUBLISHED = Path(__file__).parents[1] / "docs" / "reproduction"
SMALL = Sizes(episodes=8, profiled=40, rollouts=8, tasks=3, skills=8, shrink=40)


def _cells(grid: str, seeds=(0,)) -> dict[str, Cell]:
    return {f"{domain}, {row}": cell for domain, (row, cell) in entries(grid, seeds, PLAN, GRIDS[grid].domains[:1])}


def test_grids_share_their_cells_and_tuning_never_sees_a_test_task():
    first, parts, ablated = (_cells(grid) for grid in ("table1", "table4", "ablations"))
    assert _cells("quick").items() <= first.items()
    assert _cells("table2") == first
    assert first["desk, pivotrl"].key == parts["desk, pivotrl"].key == ablated["desk, pivotrl"].key
    assert first["desk, pivotrl"] in unique(entries("figure1", [0], PLAN))
    assert first["desk, sft"].key == first["desk, sft lr 0.0002 epochs 1"].key  # the chosen one is of the frontier
    assert {len(trials(kind)) for kind in ("sft", "pivotrl", "e2e")} == {8}
    tuned = unique(entries("tune", [TUNING_SEED], PLAN))
    assert len(tuned) == 8 * (2 + 2 * len(GRIDS["tune"].domains))
    assert {one.split for one in tuned} == {"validation"}
    others = [one for name in GRIDS if name != "tune" for one in unique(entries(name, range(5), PLAN))]
    assert {one.split for one in others} == {"test"}
    assert max(one.seed for one in others) < TUNING_SEED
    assert len({one.key for one in tuned + others}) == len(set(tuned + others))
    assert [cell.steps for cell in ablated.values() if cell.prompts == 4] == [(160,)] * 2
    apart = _cells("threshold")
    assert apart.items() > _cells("quick").items()
    assert apart["desk, unfiltered"].key == parts["desk, unfiltered"].key
    other = apart[f"desk, {ALL_MIXED}"]
    assert (other.kind, other.lambda_diff, other.setting) == (ALL_MIXED, 1.0, CHOSEN[ALL_MIXED])
    with pytest.raises(ConfigError, match="run `pivotrl lab run --grid tune` first"):
        entries("quick", [0], Plan(chosen={}))


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RunConfig]:
    """`quick` of the short desk, run in slices: the first has time for one cell."""
    root = tmp_path_factory.mktemp("lab")
    config = RunConfig(grid="quick", run=root, seeds=1, domains=("desk-short",), sizes=SMALL, minutes=0.0)
    (root / "chosen.json").write_text(json.dumps({"desk": {"sft": {"lr": 2e-4, "epochs": 1}, "pivotrl": {"lr": 1e-4}}}))
    config = replace(config, settings=root / "chosen.json")
    assert run_grid(config).done == 1
    return root, replace(config, minutes=60.0)


def test_a_grid_goes_on_and_leaves_to_others_what_they_are_at(ran):
    root, config = ran
    before = {path: path.read_bytes() for path in (root / "results").iterdir()}
    third = unique(config.entries)[2]
    with FileLock(root / "cells" / f"{third.key}.lock"):
        assert run_grid(config).done == 2
        with pytest.raises(BusyError):
            run_cell(third, root)
    done = run_grid(config)
    assert done.done == done.cells == 3
    assert work(config) == 0
    assert {path: path.read_bytes() for path in before} == before
    assert not [path for path in (root / "cells").iterdir() if path.suffix != ".lock"]
    result = json.loads(result_path(third, root).read_text())
    facts = result["profile"]
    assert facts["refused"] <= facts["accepted"] <= facts["samples"] == 8 * facts["states"]
    assert sum(result["groups"]) == min(16, result["candidates"]) * len(result["stds"])
    with pytest.raises(ConfigError, match="other settings"):
        run_grid(replace(config, sizes=replace(SMALL, tasks=4)))


def test_a_cell_again_is_the_same_but_for_the_clock(ran, tmp_path):
    sft = unique(ran[1].entries)[1]
    for place in (ran[0], tmp_path):
        run_cell(sft, place)
    (first,), (again,) = (read_json(result_path(sft, place), CellResult).points for place in (ran[0], tmp_path))
    assert again.scores == first.scores
    assert again.training.trained_tokens == first.training.trained_tokens > 0


def _result(cell: Cell, rng: np.random.Generator, ability: float) -> CellResult:
    """A made-up result: success about `ability`, less in the beginning."""

    def score(environment: str, temperature: str, mean: float) -> Score:
        noise = rng.normal(0, 0.01 if environment == "skills" else 0.02)
        known = Estimate(mean=float(np.clip(mean + noise, 0, 1)), low=None, high=None, n=1, clusters=1)
        return Score(environment=environment, temperature=temperature, success=known, turns=10.0, kinds={})

    def scores(share: float) -> list[Score]:
        domain = [score(cell.domain, t, ability * share) for t in (cell.temperatures if share == 1 else ["sampled"])]
        return domain + [score("skills", t, 0.6) for t in (cell.temperatures if share == 1 else [])]

    steps, each = cell.steps or (20,), 704 if cell.method == "e2e" else 128
    points = tuple(
        Point(steps=one, scores=tuple(scores(one / steps[-1])), training=Usage(turns=each * one)) for one in steps
    )
    facts = ProfileFacts(
        states=1000, mixed=300, right=600, wrong=100, samples=8000, accepted=5000, refused=2500, usage=Usage(turns=8000)
    )
    spread = 0.4 if cell.method == "pivotrl" else 0.2
    return CellResult(cell=cell, points=points, profile=facts if cell.profiles else None, stds=(spread,) * 8)


def _made(seeds: range, ability: dict[str, float], noise: int) -> Found:
    rng = np.random.default_rng(noise)
    apart = range(THRESHOLD_SEED + seeds.start, THRESHOLD_SEED + seeds.stop)
    of_grid = {name: apart if name == "threshold" else seeds for name in GRIDS if name != "tune"}
    cells = [one for name, seeds in of_grid.items() for one in unique(entries(name, seeds, PLAN))]
    results = [_result(cell, rng, ability.get(cell.kind, 0.5)) for cell in cells if cell.method != "truth"]
    return Found(PLAN, {one.cell.key: one for one in results})


_METHODS = ("base", "pivotrl", "sft", "strict", "unfiltered", "strict-filtered", "e2e", ALL_MIXED)
ABILITY = dict(zip(_METHODS, (0.3, 0.7, 0.6, 0.4, 0.55, 0.5, 0.8, 0.85), strict=True))


def test_tables_are_the_means_over_seeds_and_verdicts_follow_the_rule():
    found = _made(range(5), ABILITY, noise=1)
    (cell,) = [one for one in measures(found, "table1") if (one.row, one.column) == ("desk, pivotrl", "T=1")]
    raw = [
        score.success.mean
        for one in found.by_key.values()
        if one.cell.domain == "desk" and one.cell.method == "pivotrl" and len(one.points) == len(STEPS)
        if one.cell.seed < THRESHOLD_SEED
        for score in one.points[-1].scores
        if (score.environment, score.temperature) == ("desk", "sampled")
    ]
    assert cell.estimate.mean == pytest.approx(np.mean(raw))
    low, high = stats.t.interval(0.95, 4, loc=np.mean(raw), scale=stats.sem(raw))
    assert (cell.estimate.low, cell.estimate.high) == pytest.approx((low, high))
    verdicts = {one.letter: one.verdict for one in claims(found)}
    assert verdicts["a"] == verdicts["b"] == verdicts["c"] == verdicts["d"] == verdicts["h"] == "shown"
    assert verdicts["g"] == "shown under a condition: pivotrl against unfiltered"
    assert (
        verdicts["e"]
        == "shown under a condition: desk, PivotRL loses less than 0.05; shell, PivotRL loses less than 0.05"
    )
    text = to_markdown(page(found))
    assert f"{np.mean(raw):.3f} [{low:.3f}, {high:.3f}]" in text


def test_seeds_without_pivots_count_where_the_profile_speaks_and_unmeasured_skills_are_no_loss():
    found = _made(range(3), ABILITY, noise=1)
    failed = {
        key: replace(one, points=(), failed="no pivots are left of 4 candidates", profile=replace(one.profile, mixed=0))
        for key, one in found.by_key.items()
        if (one.cell.method, one.cell.seed) == ("pivotrl", 2) and one.profile
    }
    by_letter = {one.letter: one.findings for one in claims(replace(found, by_key=found.by_key | failed))}
    signal = {one.name: one.values for one in by_letter["a"]}
    assert signal["desk, above 0.5"] == pytest.approx((0.2, 0.2, 0.5))
    assert {len(one.values) for one in by_letter["d"]} == {2}
    unmeasured = {
        key: replace(one, points=tuple(replace(point, scores=()) for point in one.points))
        for key, one in found.by_key.items()
        if one.cell.method == "sft"
    }
    losses = [one.findings for one in claims(replace(found, by_key=found.by_key | unmeasured)) if one.letter == "e"]
    assert [one.name for one in losses[0]] == [
        f"{domain}, PivotRL loses less than 0.05" for domain in ("desk", "shell")
    ]


def test_prediction_intervals_hold_a_reruns_mean_as_often_as_they_say():
    rng = np.random.default_rng(7)
    values = list(rng.normal(size=5))
    low, high = predicted(values, 3)
    half = stats.t.ppf(0.975, 4) * np.std(values, ddof=1) * math.sqrt(1 / 5 + 1 / 3)
    assert (low, high) == pytest.approx((np.mean(values) - half, np.mean(values) + half))
    held = [
        low <= np.mean(rng.normal(size=5)) <= high
        for low, high in (predicted(rng.normal(size=5), 5) for _ in range(4000))
    ]
    assert np.mean(held) == pytest.approx(0.95, abs=0.012)
    assert predicted([1.0], 5) is None
    assert over_seeds([1.0]).low is None


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ((0.2, 0.21, 0.19), "shown"),
        ((-0.2, -0.21, -0.19), "opposite"),
        ((0.2, -0.1, 0.3), "not shown"),
        ((0.2,), "not shown"),
        ((0.05, 0.15, 0.1), "not shown"),  # its confidence interval is [-0.02, 0.22]
        ((0.0, 0.0, 0.0), "not shown"),
    ],
)
def test_a_finding_is_shown_where_a_rerun_would_show_it(values, word):
    assert Finding(name="", values=values).word == word


def test_success_after_equal_turns_is_read_off_straight_lines():
    found = _made(range(1), ABILITY, noise=3)
    base, own, other = (found.rows("figure1")["desk", name][0] for name in ("base", "pivotrl", "e2e"))
    points = curve(base, other, with_profile=False)
    for with_profile in (False, True):
        turns, success = curve(base, own, with_profile=with_profile)[-1]
        assert turns == 40 * 128 + (8000 if with_profile else 0)
        (x0, y0), (x1, y1) = next((a, b) for a, b in pairwise(points) if a[0] <= turns <= b[0])
        line = y0 + (y1 - y0) * (turns - x0) / (x1 - x0)
        assert ahead(base, own, other, with_profile=with_profile) == pytest.approx(success - line)


def test_a_rerun_agrees_with_itself_in_other_seeds_and_not_with_another_world(tmp_path):
    for name, found in {
        "old": _made(range(5), ABILITY, noise=1),
        "new": _made(range(50, 55), ABILITY, noise=2),
        "other": _made(range(50, 55), ABILITY | {"pivotrl": 0.4}, noise=2),
    }.items():
        save_results(found, tmp_path / name)
        assert load_results(tmp_path / name).by_key == found.by_key
    agreed = check(CheckConfig(run=tmp_path / "new", against=tmp_path / "old"))
    assert agreed.passed
    assert agreed.inside >= 0.9 * agreed.cells > 100
    refused = check(CheckConfig(run=tmp_path / "other", against=tmp_path / "old"))
    assert not refused.passed
    assert any("(d)" in one for one in refused.turned)
    part = _made(range(50, 55), ABILITY, noise=2)
    names = {"base", "sft", "pivotrl"}
    some = {key: one for key, one in part.by_key.items() if one.cell.method in names and one.cell.domain == "desk"}
    save_results(replace(part, by_key=some), tmp_path / "part")
    assert check(CheckConfig(run=tmp_path / "part", against=tmp_path / "old")).passed
    with pytest.raises(MissingError, match="no results"):
        check(CheckConfig(run=tmp_path, against=tmp_path / "old"))
    same = {key: one for key, one in some.items() if one.cell.seed < THRESHOLD_SEED}
    save_results(replace(part, by_key=same), tmp_path / "same")
    with pytest.raises(MissingError, match="other seeds"):
        check(CheckConfig(run=tmp_path / "same", against=tmp_path / "same"))


def test_settings_are_chosen_by_validation_alone(tmp_path):
    config = RunConfig(grid="tune", run=tmp_path, seeds=2, domains=("desk",))
    settings = Setting(lr=6e-4, epochs=3), Setting(lr=4e-4, beta=0.01), Setting(lr=2e-4, beta=0.1)
    best = dict(zip(("sft", "pivotrl", "e2e"), settings, strict=True)) | {ALL_MIXED: Setting(lr=8e-4, beta=0.1)}
    rng = np.random.default_rng(0)
    for cell in unique(config.entries):
        write_json(result_path(cell, tmp_path), _result(cell, rng, 0.8 if cell.setting == best[cell.kind] else 0.4))
    assert choose(config.entries, finished(tmp_path, unique(config.entries))) == {"desk": best}
    assert list(config.all_seeds) == [100, 101]


def test_the_threshold_has_seeds_apart_and_a_rerun_is_held_to_all_of_its_own(tmp_path):
    found = _made(range(2), ABILITY, noise=4)
    assert (found.seeds(), found.seeds("threshold"), found.seeds("tune")) == ([0, 1], [200, 201], [])
    assert {*found.rows("threshold")["desk", "pivotrl"]} == {200, 201}
    assert replace(found, rerun=True).seeds() == [0, 1, 200, 201]
    for config in (RunConfig(grid="threshold", first_seed=199), RunConfig(grid="table1", first_seed=196)):
        with pytest.raises(ConfigError, match="another --first-seed"):
            run_grid(replace(config, run=tmp_path))
    without = replace(found, plan=Plan(chosen={"desk": {"sft": CHOSEN["sft"]}}))
    assert without.rows("table1") == {}  # and no error: it cannot have been run


def test_how_long_a_cell_takes_is_read_off_cells_of_its_sizes():
    cells = _cells("ablations")
    large, small = cells["desk, four times the data"], cells["desk, lambda 0.3"]
    done = {large.key: replace(_result(large, np.random.default_rng(0), 0.5), wall_seconds=400.0)}
    assert expected(replace(large, seed=1), done) == 400.0
    assert expected(small, done) == expected(small, {}) < 400.0


@pytest.mark.skipif(not PUBLISHED.exists(), reason="nothing is published yet")
def test_the_published_page_is_what_the_published_results_give(tmp_path):
    tables(TablesConfig(results=PUBLISHED, out=tmp_path))
    for path in tmp_path.rglob("*"):
        if path.is_file():
            assert path.read_bytes() == (PUBLISHED.parent / path.relative_to(tmp_path)).read_bytes()
