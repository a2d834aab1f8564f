"""The desk: the expert succeeds in every style, chance does not, alternatives are as good, and a snapshot is exact."""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pivotrl.errors import ConfigError, InputError
from pivotrl.lab.desk import STYLES, DeskEnvironment, Expert, draw_tasks, make_task, play, write_episodes
from pivotrl.lab.desk.environment import LongDesk, ShortDesk
from pivotrl.lab.desk.episodes import episode, random_action, tools
from pivotrl.lab.desk.rules import REASON_WORDS, decide
from pivotrl.lab.desk.tasks import ID_PATTERN, pool
from pivotrl.lab.desk.tools import SCHEMAS
from pivotrl.lab.desk.user import TEXTS
from pivotrl.trajectories.openai_chat import OpenAIChat
from pivotrl.types import Action, Candidate, Source, ToolCall, Trajectory
from pivotrl.verifiers import load_verifier

PARTS = ("train", "validation", "test")
"""`base`, for pretraining, shares the names of customers and orders with all; its tasks are its own."""
SALAD = Action(text="I cannot: pending, shipped, delivered, 30 days, sale, not in stock, not yours.")
SOURCE = Source(file="desk", format="desk")


@pytest.fixture
def env() -> DeskEnvironment:
    return DeskEnvironment()


def _finish(env: DeskEnvironment, style: str) -> float:
    while not env.done:
        env.step(Expert(env, STYLES[style]).act())
    return env.outcome()


def _with(env: DeskEnvironment, action: Action) -> Candidate:
    """The present state as a candidate whose demonstration is the action."""
    messages = env.state.messages
    fork = DeskEnvironment()
    fork.restore(env.snapshot())
    own = fork.step(action).new[0]
    trajectory = Trajectory(id="t", messages=(*messages, own), source=SOURCE, tools=env.state.tools)
    return Candidate(trajectory=trajectory, turn=len(messages))


def _call(name: str, **arguments: object) -> Action:
    return Action(calls=(ToolCall(name=name, arguments=json.dumps(arguments)),))


@pytest.mark.parametrize("style", STYLES)
def test_the_expert_succeeds_within_8_to_14_turns(env, style):
    turns = Counter()
    for task in draw_tasks("test", 300, 11):
        assert play(env, task.id, Expert(env, STYLES[style]).act) == 1.0, task.id
        turns[env.session.turns] += 1
        words = sum(len((m.content or "").split()) + 8 * len(m.tool_calls) for m in env.state.messages)
        assert words < 750
    assert min(turns) >= 8
    assert max(turns) <= 14
    assert len(turns) >= 6


@pytest.mark.parametrize(("kind", "low", "high"), [(ShortDesk, 4, 7), (DeskEnvironment, 8, 14), (LongDesk, 20, 30)])
def test_every_horizon_is_played_in_its_turns_and_keeps_its_tasks(kind, low, high):
    env, turns = kind(), set()
    for number, task in enumerate(env.tasks("validation", 40, 3)):
        assert play(env, task, Expert(env, list(STYLES.values())[number % len(STYLES)]).act) == 1.0
        turns.add(env.session.turns)
        saved, fork = env.snapshot(), DeskEnvironment()
        assert fork.restore(saved) == env.state  # any desk plays the tasks of all
    assert low <= min(turns) < max(turns) <= high
    spoken = set(re.findall(ID_PATTERN, str([make_task(task) for task in env.tasks("test", 30, 1)])))
    assert not spoken & set(re.findall(ID_PATTERN, str([make_task(task) for task in env.tasks("train", 30, 1)])))


def test_the_ids_of_desk_mean_what_they_meant_before_there_were_other_horizons():
    tasks = [make_task(f"desk-{part}-{index}") for part in ("base", *PARTS) for index in range(300)]
    assert hashlib.sha256(repr(tasks).encode()).hexdigest().startswith("898d42481eb372ca")
    with pytest.raises(ConfigError, match="unknown"):
        make_task("desk-short-1")


def test_chance_and_saying_always_the_same_fail(env):
    """Random valid actions are filled with ids and amounts that the conversation shows."""
    rng = random.Random(3)
    outcomes = [play(env, task.id, lambda: random_action(env.state, rng)) for task in draw_tasks("test", 300, 5)]
    assert sum(outcomes) / len(outcomes) < 0.02
    for silent in (Action(text="Bye."), SALAD, Action()):
        assert not any(play(env, task.id, lambda act=silent: act) for task in draw_tasks("test", 20, 5))


@pytest.mark.parametrize(("trunk", "branch"), [("plain", "thorough"), ("parallel", "polite"), ("polite", "phone")])
def test_one_turn_in_another_style_changes_nothing(env, trunk, branch):
    fork = DeskEnvironment()
    for task in draw_tasks("train", 15, 2):
        env.reset(task.id)
        while not env.done:
            fork.restore(env.snapshot())
            fork.step(Expert(fork, STYLES[branch]).act())
            assert _finish(fork, trunk) == 1.0, (task.id, env.session)
            env.step(Expert(env, STYLES[trunk]).act())


@pytest.mark.parametrize("detour", ["stock", "orders", "twice", "all colours", "wrong look-up"])
def test_harmless_detours_succeed(env, detour):
    for task in draw_tasks("train", 20, 4):
        env.reset(task.id)
        while not env.session.verified:
            env.step(Expert(env, STYLES["plain"]).act())
        item = task.stock[0][0] if task.stock else "lamp"
        for action in {
            "stock": [_call("check_stock", item=item, colour="red")],
            "orders": [_call("list_orders", customer_id=task.caller.id, **more) for more in ({}, {"item": "rug"})],
            "twice": [_call("find_customer", phone=task.caller.phone)] * 2,
            "all colours": [_call("check_stock", item=item)],
            "wrong look-up": [_call("get_order", order_id="O9999"), _call("nothing"), Action(text="Hm.")],
        }[detour]:
            env.step(action)
        assert _finish(env, "plain") == 1.0


WORDINGS = {
    "do": (
        "That makes {amount} for order {id}. Is it all right?",
        "Is it okay? Order {id}, {amount}.",
        "There is no other way, {id} would be {amount}; shall we?",
    ),
    "refuse": (
        "No. Order {id} is {reason}.",
        "Order {id}: {reason}. I am sorry.",
        "I can't do that for {id} ({reason}). Is there more?",
    ),
    "tell": (
        "It is {date} for order {id}.",
        "ORDER {id}: NOT HERE YET, {date}",
        "For order {id} the day is {date}. What else?",
    ),
}


@pytest.mark.parametrize("variant", range(3))
def test_other_wordings_are_understood(env, variant):
    """What the user hears in free text is what the policy asks for, in words that no expert uses; two dates in turn."""
    seen = Counter()
    for task in draw_tasks("train", 60, 9):
        env.reset(task.id)
        while not env.done:
            action, session = Expert(env, STYLES["plain"]).act(), env.session
            if not action.calls and session.stage == "asked" and session.verified:
                request = task.requests[session.at]
                decision = decide(task, request)
                id_ = (session.open_ids or request.orders)[0] if request.kind == "track" else request.orders[0]
                if id_ in (action.text or ""):
                    reason = REASON_WORDS[decision.reasons[0]][0] if decision.reasons else ""
                    facts = {"id": id_, "amount": decision.amount, "reason": reason, "date": task.order(id_).date}
                    action = Action(text=WORDINGS[decision.verdict][variant].format(**facts))
                    seen[decision.verdict] += 1
            env.step(action)
        assert env.outcome() == 1.0, [(m.role, m.content) for m in env.state.messages[1:]]
    assert min(seen.values()) > 10


def test_two_dates_in_one_message_must_not_be_swapped(env):
    seen = 0
    for task in draw_tasks("train", 200, 10):
        request = task.requests[0]
        first, second = (task.order(request.orders[at]) for at in (0, -1))
        if len(request.orders) == 1 or first.date == second.date:
            continue
        dates = [(first.date, second.date, 1.0), (second.date, first.date, 0.0)]
        dates += [(first.date, first.date, 0.0), (first.date, "soon", 0.0)]
        for one, other, wanted in dates:
            env.reset(task.id)
            while env.session.at == 0 and (Expert(env, STYLES["plain"]).act().text or "").count(first.id) == 0:
                env.step(Expert(env, STYLES["plain"]).act())
            env.step(Action(text=f"Orders {first.id} and {second.id} arrive on {one} and {other}."))
            assert _finish(env, "plain") == wanted
        seen += 1
    assert seen > 3


def test_breaking_the_policy_fails(env):
    """A change without a yes, a claim without the change, a wrong amount, a refusal of what is due, no notification."""
    seen = Counter()
    for task in draw_tasks("train", 120, 6):
        request = task.requests[0]
        decision = decide(task, request)
        if decision.verdict != "do" or not request.accepts:
            continue
        for crime in ("unasked", "claimed", "wrong amount", "refused", "silent"):
            env.reset(task.id)
            if _commit(env, crime):
                seen[crime] += 1
                assert _finish(env, "plain") == 0.0, (task.id, crime)
    assert min(seen.values()) > 10
    assert len(seen) == 5


def _commit(env: DeskEnvironment, crime: str) -> bool:
    """Play as the expert up to the first chance for the crime, then commit it."""
    request = env.task.requests[0]
    while not env.done:
        action = Expert(env, STYLES["plain"]).act()
        writes = [call for call in action.calls if "notify" in SCHEMAS[call.name]["properties"]]
        proposes = not action.calls and request.orders[0] in (action.text or "") and env.session.stage == "asked"
        if writes and crime == "claimed":
            return bool(env.step(Action(text=f"Order {request.orders[0]} is done.")))
        if writes and crime == "silent":
            return bool(env.step(_call(writes[0].name, **json.loads(writes[0].arguments), notify=False)))
        if proposes and crime == "unasked":
            ahead = DeskEnvironment()
            ahead.restore(env.snapshot())
            ahead.step(action)
            return bool(env.step(Expert(ahead, STYLES["plain"]).act()))
        if proposes and crime == "wrong amount":
            return bool(env.step(Action(text=f"Shall I do it for order {request.orders[0]}? The amount is 99.")))
        if proposes and crime == "refused":
            return bool(env.step(Action(text=f"Sorry, I cannot do that. Order {request.orders[0]} is delivered.")))
        env.step(action)
    return False


def test_auto_accepts_every_expert_action_and_most_alternatives(env):
    """Another style's action is as good; `auto` must see that more often than a strict comparison does."""
    auto, exact = load_verifier("auto"), load_verifier("exact")
    accepted, strict, n = 0, 0, 0
    for number, task in enumerate(draw_tasks("train", 30, 8)):
        trunk = list(STYLES)[number % len(STYLES)]
        env.reset(task.id)
        while not env.done:
            action = Expert(env, STYLES[trunk]).act()
            candidate = _with(env, action)
            assert auto(candidate, action).value == 1.0
            for other in STYLES:
                if other != trunk:
                    theirs = Expert(env, STYLES[other]).act()
                    accepted += auto(candidate, theirs).value == 1.0
                    strict += exact(candidate, theirs).value == 1.0
                    n += 1
            env.step(action)
    print(f"another style's action: auto accepts {accepted / n:.3f}, exact {strict / n:.3f} of {n}")
    assert accepted / n > 0.6
    assert strict / n < accepted / n - 0.2


def test_parts_share_neither_tasks_nor_entities():
    """By construction: the last digit of every id tells the part; here on what really occurs in the conversations."""
    found = {}
    for part in PARTS:
        tasks = draw_tasks(part, 100, 1)
        books = [ids for t in tasks for c in t.customers for ids in (c.id, c.email, c.phone)]
        books += [order.id for t in tasks for order in t.orders]
        texts = json.dumps([episode(t.id, STYLES["parallel"])["messages"] for t in tasks[:40]])
        found[part] = {*books, *re.findall(ID_PATTERN, texts), *(t.id for t in tasks)}
        assert found[part] - {t.id for t in tasks} <= {one for letter in "COEP" for one in pool(part, letter)}
    for one in PARTS:
        assert all(found[one].isdisjoint(found[other]) for other in PARTS if other != one)


def test_no_state_of_one_part_begins_one_of_another(env):
    """What a model saw in training, from the first message to any turn with an id in it, occurs in no test episode."""
    found = {}
    for part in (*PARTS, "base"):
        found[part] = set()
        for number, t in enumerate(draw_tasks(part, 60, 5)):
            messages = episode(t.id, list(STYLES.values())[number % 5])["messages"]
            texts = [json.dumps(message) for message in messages]
            found[part] |= {
                tuple(texts[1:end]) for end in range(2, len(texts) + 1) if re.search(ID_PATTERN, "".join(texts[1:end]))
            }
    for one in found:
        assert all(found[one].isdisjoint(found[other]) for other in found if other != one)


def test_openings_that_parts_share_hold_no_request(env):
    openings = {part: {env.reset(t.id).messages[1].content for t in draw_tasks(part, 60, 2)} for part in PARTS}
    for one in PARTS:
        for other in PARTS[: PARTS.index(one)]:
            shared = openings[one] & openings[other]
            assert all(text in TEXTS["greeting"] or not re.search(ID_PATTERN, text) for text in shared)


def test_tasks_are_distinct_and_follow_from_their_id():
    tasks = draw_tasks("train", 1500, 0)
    assert len({replace(task, id="") for task in tasks}) == 1500
    make_task.cache_clear()
    assert [make_task(task.id) for task in tasks[:50]] == tasks[:50]
    assert draw_tasks("train", 50, 0) != draw_tasks("train", 50, 1)
    verdicts = Counter(decide(task, one).verdict for task in tasks for one in task.requests)
    assert min(verdicts.values()) > 0.1 * verdicts.total()
    for name in ("desk-test", "desk-test-x", "toy-test-1", "desk-test-²", "desk-test-07", "desk-test-1\n", ""):
        with pytest.raises(ConfigError, match="desk task"):
            make_task(name)


def test_the_same_actions_give_the_same_conversation(env):
    for task in draw_tasks("validation", 10, 3):
        assert episode(task.id, STYLES["polite"]) == episode(task.id, STYLES["polite"])


_KEYS = sorted({key for schema in SCHEMAS.values() for key in schema["properties"]})
_VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.lists(st.integers(), max_size=2),
    st.sampled_from(["O2004", "C1004", "E3004@mail.com", "lamp", "red", "Rome", "any"]),
)  # fmt: skip
_ARGUMENTS = st.one_of(
    st.none(), st.text(max_size=20), st.dictionaries(st.sampled_from(_KEYS), _VALUES, max_size=4).map(json.dumps)
)
_CALLS = st.builds(
    ToolCall,
    name=st.one_of(st.sampled_from(list(SCHEMAS)), st.text(max_size=9)),
    arguments=_ARGUMENTS,
    id=st.one_of(st.none(), st.just("a"), st.text(max_size=3)),
)
_TEXTS = st.one_of(
    st.none(),
    st.text(st.characters(), max_size=30),
    st.sampled_from(["email?", "Order O2004?", "I cannot", "which", "Order O2004: May 3.", "\ud800", "{id} {0} %s"]),
)
_ACTIONS = st.builds(Action, text=_TEXTS, reasoning=_TEXTS, calls=st.lists(_CALLS, max_size=10).map(tuple))


@given(actions=st.lists(_ACTIONS, max_size=12), index=st.integers(0, 99), lead=st.integers(0, 8))
@settings(max_examples=60, deadline=None)
def test_junk_never_raises_and_a_snapshot_of_it_is_exact(actions, index, lead):
    env, fork = DeskEnvironment(), DeskEnvironment()
    env.reset(f"desk-test-{index}")
    for _ in range(lead):
        env.step(Expert(env, STYLES["plain"]).act()) if not env.done else None
    for action in actions:
        if not env.done:
            fork.restore(env.snapshot())
            assert fork.state == env.state
            assert fork.step(action) == env.step(action)
            assert fork.snapshot() == env.snapshot()
    assert env.outcome() in (0.0, 1.0)


@given(index=st.integers(0, 10**5), at=st.integers(0, 13), style=st.sampled_from(list(STYLES)), seed=st.integers(0, 9))
@settings(max_examples=60, deadline=None)
def test_going_on_after_restore_is_going_on_without(index, at, style, seed):
    """Also when the environment played something else in between, and by chance as well as by the expert."""
    env, other = DeskEnvironment(), DeskEnvironment()
    play(other, "desk-base-1", Expert(other, STYLES["plain"]).act)
    env.reset(f"desk-train-{index}")
    for _ in range(min(at, 7)):
        env.step(Expert(env, STYLES[style]).act())
    saved = env.snapshot()
    first, rng = [], random.Random(seed)
    while not env.done:
        expert = at % 2 or rng.random() < 0.5
        first.append(Expert(env, STYLES[style]).act() if expert else random_action(env.state, rng))
        env.step(first[-1])
    other.restore(saved)
    for action in first:
        other.step(action)
    assert (other.state, other.outcome(), other.snapshot()) == (env.state, env.outcome(), env.snapshot())


def test_snapshots_that_are_none_and_episodes_that_are_over_are_refused(env):
    for use in (lambda: env.step(Action(text="x")), lambda: env.state, env.outcome, env.snapshot):
        with pytest.raises(InputError, match="reset"):
            use()
    env.reset("desk-test-1")
    good = env.snapshot()
    for bad in (b"", b"{}", good[: len(good) // 8], good[:-3000], good.replace(b"SQLite", b"sqlite")):
        with pytest.raises(InputError, match="snapshot"):
            env.restore(bad)
    assert env.snapshot() == good
    _finish(env, "plain")
    with pytest.raises(InputError, match="going on"):
        env.step(Action(text="x"))


def test_a_silent_agent_runs_into_a_limit(env):
    env.reset("desk-test-5")
    steps = 0
    while not env.step(_call("get_order", order_id="O9")).done:
        steps += 1
    assert steps + 1 == 24
    assert env.outcome() == 0.0


def test_written_episodes_are_read_back_whole(tmp_path):
    path = tmp_path / "desk.jsonl"
    write_episodes(path, 12, seed=1)
    records = [json.loads(line) for line in path.read_text().splitlines()]
    (trajectory,) = OpenAIChat().read(records[3], SOURCE)
    assert (trajectory.task_id, trajectory.outcome) == (records[3]["task_id"], 1.0)
    env = DeskEnvironment()
    play(env, trajectory.task_id, Expert(env, list(STYLES.values())[3]).act)
    assert trajectory.tools == env.state.tools
    assert [m.content for m in trajectory.messages] == [m.content for m in env.state.messages]
    assert [m.tool_calls for m in trajectory.messages] == [m.tool_calls for m in env.state.messages]
    assert len(tools()) == 8
