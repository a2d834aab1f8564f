"""Sampling and judging: what each kind of completion is worth, and a store that goes on where it stopped."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from desk_plugins import always_right, expert, play
from kill_harness import RUN, make_desk
from pivotrl.candidates import CandidateStore
from pivotrl.errors import BusyError, InputError
from pivotrl.ledger import Ledger
from pivotrl.planning import RolloutPlan
from pivotrl.policies import ScriptedPolicy
from pivotrl.rollouts import Place, RolloutStore, Sampling, collect, judge, rejudge, sample_groups
from pivotrl.run_directory import RunDirectory
from pivotrl.storage import FileLock, complete_lines
from pivotrl.types import Action, Candidate, Completion, SamplingParams, State
from pivotrl.verifiers import load_verifier

N = 3


@pytest.fixture(scope="module")
def candidates(tmp_path_factory: pytest.TempPathFactory) -> CandidateStore:
    """Of an ingested desk; not to be written to."""
    return CandidateStore(RunDirectory(make_desk(tmp_path_factory.mktemp("desk")) / RUN))


@pytest.fixture
def place(candidates: CandidateStore, tmp_path: Path) -> Place:
    """An empty store of one's own for N rollouts at every training candidate."""
    plan = RolloutPlan(rows=tuple(candidates.rows("train")), n=N)
    return Place(
        store=RolloutStore(tmp_path / "profile", plan),
        candidates=candidates,
        ledger=Ledger(tmp_path / "ledger.jsonl"),
        stage="profile",
        name="base",
    )


class Counting(ScriptedPolicy):
    """Remembers where it was asked."""

    def __init__(self, script=play) -> None:
        super().__init__(script)
        self.asked: list[str] = []

    def sample(self, states, **settings):
        self.asked += [state.key for state in states]
        return super().sample(states, **settings)


def sampling(policy: ScriptedPolicy | None = None, verifier: str = "auto", **settings) -> Sampling:
    given = {"params": SamplingParams(), "n": N, "seed": 5} | settings
    return Sampling(policy=policy or Counting(), verifier=load_verifier(verifier), **given)


def first(candidates: CandidateStore) -> Candidate:
    return next(candidates.units(candidates.rows("train")))[1][0]


def completion(candidate: Candidate, **fields: object) -> Completion:
    given = {"action": candidate.demonstration, "text": "...", "finish_reason": "stop"} | fields
    return Completion(**given)


@pytest.mark.parametrize(
    ("fields", "value", "reason"),
    [
        ({}, 1.0, "match"),
        ({"action": Action(text="Bananas.")}, 0.0, "wrong_kind"),
        ({"action": None, "parse_error": "bad_json: ..."}, 0.0, "unparsable"),
        ({"action": None, "finish_reason": "error", "parse_error": "HTTP 500"}, None, "no_completion"),
        ({"finish_reason": "length"}, 0.0, "truncated"),
        ({"finish_reason": "length", "action": None, "parse_error": "unclosed"}, 0.0, "truncated"),
    ],
)
def test_what_a_completion_is_worth(candidates: CandidateStore, fields, value, reason) -> None:
    candidate, verifier = first(candidates), load_verifier("exact")
    verdict = judge(verifier, candidate, completion(candidate, **fields), "zero")
    assert (verdict.value, verdict.reason) == (value, reason)
    assert (verdict.verifier, verdict.version) == (verifier.name, verifier.version)
    excluded = judge(verifier, candidate, completion(candidate, **fields), "exclude")
    assert excluded == (replace(verdict, value=None) if reason == "truncated" else verdict)


def test_groups_follow_seed_key_and_number_only(candidates: CandidateStore) -> None:
    _, unit = next(candidates.units(candidates.rows("train")))
    together = sample_groups(sampling(), unit)
    assert [group.candidate_id for group in together] == [candidate.id for candidate in unit]
    assert [sample_groups(sampling(), [candidate])[0] for candidate in unit] == together
    assert sample_groups(sampling(seed=6), unit) != together
    more = sample_groups(sampling(n=5), unit)
    assert [group.completions[:N] for group in more] == [group.completions for group in together]


def test_the_expert_is_right(candidates: CandidateStore) -> None:
    for _, unit in candidates.units(candidates.rows()):
        for group in sample_groups(sampling(ScriptedPolicy(always_right)), unit):
            assert group.rewards == (1.0,) * N


def test_collect_keeps_everything_once(place: Place) -> None:
    policy = Counting()
    collect(place, sampling(policy))
    rows = place.store.plan.rows
    groups = list(place.store.groups(load_verifier("auto")))
    assert [group.candidate_id for group in groups] == [row.id for row in rows] == policy.asked
    fresh = [group for _, unit in place.candidates.units(rows) for group in sample_groups(sampling(Counting()), unit)]
    assert groups == fresh
    usage = place.ledger.totals()["profile", "base"]
    assert (usage.rollouts, usage.turns) == (N * len(rows), N * len(rows))
    collect(place, sampling(policy))
    assert len(policy.asked) == len(rows)
    assert len(place.ledger.path.read_bytes().splitlines()) == len(place.store.plan.sizes)


def test_every_kind_of_completion_is_among_them(place: Place) -> None:
    collect(place, sampling())
    verdicts = [verdict for group in place.store.groups(load_verifier("auto")) for verdict in group.verdicts]
    assert {"match", "truncated", "unparsable", "no_completion"} < {verdict.reason for verdict in verdicts}


@pytest.mark.parametrize("units", range(6))
def test_collect_asks_only_for_what_is_missing(place: Place, units: int) -> None:
    collect(place, sampling())
    paths = [place.store.rollouts, place.store.verdicts(load_verifier("auto"))]
    whole = [path.read_bytes() for path in paths]
    plan = place.store.plan.sizes
    assert len(plan) == 6
    kept = sum(plan[:units])
    ends = [end for end, _ in complete_lines(paths[0])]
    with paths[0].open("r+b") as file:
        file.truncate(ends[kept * N] - 1)  # the next unit is there in part, its first line torn
    assert place.store.complete_units(paths[0]) == (units, ends[kept * N - 1] if kept else 0)
    policy = Counting()
    collect(place, sampling(policy))
    assert policy.asked == [row.id for row in place.store.plan.rows[kept:]]
    assert [path.read_bytes() for path in paths] == whole


def test_rejudging_gives_what_collecting_gave(place: Place) -> None:
    collect(place, sampling())
    path = place.store.verdicts(load_verifier("auto"))
    whole = path.read_bytes()
    for size in (0, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        rejudge(place, load_verifier("auto"), "zero")
        assert path.read_bytes() == whole
    path.unlink()
    rejudge(place, load_verifier("auto"), "zero")
    assert path.read_bytes() == whole


def test_another_verifier_judges_beside_the_first(place: Place) -> None:
    collect(place, sampling())
    before = place.store.verdicts(load_verifier("auto")).read_bytes()
    rejudge(place, load_verifier("tool_name"), "zero")
    names = [group.rewards for group in place.store.groups(load_verifier("tool_name"))]
    assert names != [group.rewards for group in place.store.groups(load_verifier("auto"))]
    assert place.store.verdicts(load_verifier("auto")).read_bytes() == before


def test_missing_verdicts_are_said(place: Place) -> None:
    collect(place, sampling())
    with pytest.raises(InputError, match="are missing or out of order; restore the files"):
        list(place.store.groups(load_verifier("exact")))


def test_stored_rollouts_hold_the_action_and_no_token_logprobs(place: Place) -> None:
    collect(place, sampling())
    rows = [json.loads(line) for _, line in complete_lines(place.store.rollouts)]
    assert [row["sample"] for row in rows] == list(range(N)) * len(place.store.plan.rows)
    assert all(row["completion"]["token_logprobs"] is None for row in rows)


def test_one_process_at_a_time(place: Place) -> None:
    policy = Counting()
    with FileLock(place.store.folder / ".lock"):
        with pytest.raises(BusyError):
            collect(place, sampling(policy))
        with pytest.raises(BusyError):
            rejudge(place, load_verifier("auto"), "zero")
    assert policy.asked == []


def test_a_script_that_stops_the_process_loses_only_its_unit(place: Place) -> None:
    """A failed call is data; an interruption is not, and what was written before it stays."""
    asked = 0

    def script(state: State, rng: random.Random) -> str:
        nonlocal asked
        asked += 1
        if asked == 4 * N * 2:
            raise KeyboardInterrupt
        if rng.random() < 0.5:
            raise ConnectionError("refused")
        return expert(state)

    with pytest.raises(KeyboardInterrupt):
        collect(place, sampling(ScriptedPolicy(script)))
    done, _ = place.store.complete_units(place.store.rollouts)
    assert 1 <= done < len(place.store.plan.sizes)
    rows = [json.loads(line)["completion"] for _, line in complete_lines(place.store.rollouts)]
    failed = [row for row in rows if row["finish_reason"] == "error"]
    assert {row["parse_error"] for row in failed} == {"ConnectionError: refused"}
    judged = [json.loads(line) for _, line in complete_lines(place.store.verdicts(load_verifier("auto")))]
    unscored = [row for row in judged if row["verdict"]["value"] is None]
    assert [row["verdict"]["reason"] for row in unscored] == ["no_completion"] * len(failed)
    collect(place, sampling(ScriptedPolicy(script)))
    assert len(list(place.store.groups(load_verifier("auto")))) == len(place.store.plan.rows)
