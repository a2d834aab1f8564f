"""The true error of a verifier: verdicts against episodes that were really played on."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace

import pytest

from pivotrl.lab.desk import STYLES, DeskEnvironment, Expert, draw_tasks
from pivotrl.lab.desk.episodes import random_action
from pivotrl.lab.verifier_error import JudgedAction, VerifierErrorResult, error_of, errors_of, judged_actions
from pivotrl.rollouts import Sampling
from pivotrl.types import Action, Completion, Sampled, SamplingParams, ToolCall
from pivotrl.verifiers import load_verifier


class _Scripted:
    """Plays what `choose(state, i)` says."""

    def __init__(self, choose) -> None:
        self.choose = choose

    def sample(self, states, *, n, params, seed, first=0):
        return [
            Sampled(
                completions=tuple(
                    Completion(action=self.choose(state, i), text="", finish_reason="stop") for i in range(n)
                )
            )
            for state in states
        ]


def _judged(choose, task: str, n: int = 4, style: str = "plain"):
    sampling = Sampling(policy=_Scripted(choose), verifier=load_verifier("auto"), params=SamplingParams(), n=n, seed=0)
    left_out: Counter[str] = Counter()
    env = DeskEnvironment()
    return list(judged_actions(env, task, Expert(env, STYLES[style]).act, sampling, left_out)), left_out


def test_other_styles_are_acceptable_whatever_the_verifier_says():
    """An action of another expert leads to success, so that a refusal of it is a false one."""
    env, seen = DeskEnvironment(), 0
    for task in draw_tasks("validation", 8, 0):
        others = {}
        env.reset(task.id)
        while not env.done:
            others[len(env.state.messages)] = Expert(env, STYLES["thorough"]).act()
            env.step(Expert(env, STYLES["plain"]).act())
        judged, _ = _judged(lambda state, i, known=others: known[len(state.messages)], task.id)
        assert all(one.succeeded for one in judged)
        assert len({(one.turn, str(one.action)) for one in judged}) == len(judged), "each distinct action once"
        seen += len(judged)
        error = error_of("auto", judged)
        assert error.recall.mean == pytest.approx(sum(one.accepted for one in judged) / len(judged))
    assert seen > 40


def test_the_truth_is_that_of_playing_on():
    """Recomputed by playing the whole episode anew, with the same action put in at the same turn."""
    rng = random.Random(0)
    outcomes = Counter()
    for task in draw_tasks("validation", 6, 1):
        judged, _ = _judged(lambda state, i: random_action(state, rng), task.id, n=3)
        for one in judged:
            env = DeskEnvironment()
            env.reset(task.id)
            while len(env.state.messages) < one.turn:
                env.step(Expert(env, STYLES["plain"]).act())
            env.step(one.action)
            while not env.done:
                env.step(Expert(env, STYLES["plain"]).act())
            assert one.succeeded == (env.outcome() == 1.0)
            outcomes[one.succeeded] += 1
    assert min(outcomes.values()) > 10, "both kinds occur"


def test_demonstrations_and_unparsable_texts_are_left_out_and_counted():
    task = draw_tasks("validation", 1, 2)[0]
    env, shown = DeskEnvironment(), {}
    env.reset(task.id)
    while not env.done:
        shown[len(env.state.messages)] = Expert(env, STYLES["plain"]).act()
        env.step(shown[len(env.state.messages)])
    judged, left_out = _judged(lambda state, i: shown[len(state.messages)] if i else None, task.id, n=3)
    assert judged == []
    assert left_out == {"same": 2 * len(shown), "unparsable": len(shown)}


def test_both_errors_are_counted_by_hand():
    call = Action(calls=(ToolCall(name="get_order", arguments=json.dumps({"order_id": "O2007"})),))
    one = JudgedAction(
        task="a", turn=2, verifier="tool_call", demonstration=call, action=Action(text="No."), accepted=True,
        reason="match", succeeded=True,
    )  # fmt: skip
    judged = [
        one,
        replace(one, succeeded=False),
        replace(one, accepted=False, reason="wrong_tool", task="b"),
        replace(one, accepted=False, reason="wrong_tool", task="c", succeeded=False),
        replace(one, accepted=False, reason="wrong_tool", task="c", succeeded=False),
    ]
    error = error_of("auto", judged)
    assert (error.accepted, error.refused) == (2, 3)
    assert error.success_accepted.mean == 0.5
    assert error.success_refused.mean == pytest.approx(1 / 3)
    assert error.recall.mean == 0.5
    assert error.false_accepts == {"match: message where get_order was shown": 1}
    assert error.false_refusals == {"wrong_tool: message where get_order was shown": 1}
    assert error_of("auto", judged[3:]).success_accepted is None
    assert "none seen" in "\n".join(error_of("auto", judged[3:]).lines())


def test_errors_are_told_by_whose_verdict_it_was_whatever_the_spec_is():
    """Counted from the demonstrations, which say to whom `auto` sends an action."""
    rng = random.Random(3)
    judged = [
        one
        for task in draw_tasks("validation", 4, 3)
        for one in _judged(lambda state, i: random_action(state, rng), task.id)[0]
    ]
    known = Counter("tool_call" if one.demonstration.calls else "message" for one in judged)
    assert len(known) == 2
    errors = tuple(errors_of(judged))
    assert [(error.verifier, error.accepted + error.refused) for error in errors] == known.most_common()
    spec = "cascade(auto:min_overlap=0.4, exact)"
    lines = VerifierErrorResult(verifier=spec, left_out={"same": 2}, errors=errors).lines()
    assert lines[:2] == [f"verifier {spec}", "left out: 2 same"]
    assert [line.partition(":")[0] for line in lines[2:] if line[0] != " "] == [name for name, _ in known.most_common()]
