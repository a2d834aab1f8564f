"""Episodes: what every kind of completion does to one, the store that goes on where it stopped, and what lost one."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Barrier

import pytest

import toy_environment as toy
from pivotrl.environments import LoadedEnvironment, load_environment, tasks_of
from pivotrl.episodes import (
    EpisodeSettings,
    EpisodeStore,
    Playing,
    collect_episodes,
    play_episodes,
)
from pivotrl.errors import BusyError, ConfigError, InputError
from pivotrl.evaluation import evaluate
from pivotrl.evaluation_settings import EvaluateConfig
from pivotrl.failures import describe, first_wrong_action, first_wrong_actions, is_guided
from pivotrl.lab.desk import STYLES, DeskEnvironment, Expert, draw_tasks
from pivotrl.ledger import Ledger
from pivotrl.policies import ScriptedPolicy
from pivotrl.policies.torch import TorchPolicy
from pivotrl.storage import FileLock, complete_units
from pivotrl.types import Action, Completion, Episode, Message, Sampled, SamplingParams, State, ToolCall
from tiny import loaded_model

TASKS = toy.Steps().tasks("test", 10, 4)
PARAMS = SamplingParams(max_new_tokens=64)


def playing(policy: ScriptedPolicy, make=toy.Steps, **settings) -> Playing:
    return Playing(policy=policy, make=make, **({"params": PARAMS, "seed": 5, "turn_limit": 64} | settings))


def play(script, tasks=TASKS, **settings) -> list[Episode]:
    return play_episodes(playing(ScriptedPolicy(script), **settings), [(task, 0) for task in tasks])


def place(folder: Path, *, width: int = 4, trials: int = 2) -> EpisodeStore:
    units = EpisodeSettings(trials=trials, width=width).units(TASKS)
    return EpisodeStore(folder=folder / "toy", units=units, ledger=Ledger(folder / "ledger.jsonl"), name="tasks")


class Interrupted(ScriptedPolicy):
    """Stops the process at its `calls`-th call; remembers the keys that it was asked at."""

    def __init__(self, script=toy.coin, calls: int = 10**9) -> None:
        super().__init__(script)
        self.calls, self.asked = calls, []

    def sample(self, states, **settings):
        self.calls -= 1
        if self.calls < 0:
            raise KeyboardInterrupt
        self.asked.append([state.key for state in states])
        return super().sample(states, **settings)


class Narrow(ScriptedPolicy):
    """Has a context of 100 tokens, of which every message takes 10."""

    context_length = 100

    def count_tokens(self, state):
        return 10 * len(state.messages)


class DeskExpert(ScriptedPolicy):
    """The desk's expert as a policy: one environment of its own per episode, found by the state's key.

    `slips` gives the actions that it takes instead, by task and turn.
    """

    def __init__(self, slips: dict[tuple[str, int], Action] | None = None) -> None:
        super().__init__(toy.mute)
        self.slips, self.desks = slips or {}, {}

    def sample(self, states, **settings):
        return [Sampled(completions=(self._act(state),)) for state in states]

    def _act(self, state) -> Completion:
        episode, _, turn = state.key.rpartition("@")
        task = episode.rpartition("/")[0]
        desk = self.desks.setdefault(episode, DeskEnvironment())
        if turn == "0":
            desk.reset(task)
        assert desk.state.messages == state.messages
        action = self.slips.get((task, int(turn))) or Expert(desk, STYLES["plain"]).act()
        desk.step(action)
        return Completion(action=action, text="", finish_reason="stop")


def call(name: str, **arguments: object) -> Action:
    return Action(calls=(ToolCall(name=name, arguments=json.dumps(arguments)),))


def test_the_expert_wins_and_every_turn_is_kept() -> None:
    for episode in play(toy.expert):
        n = toy.number(episode.task_id)
        assert (episode.reward, episode.ending, episode.turns) == (1.0, "done", n + 1)
        assert [completion.text for completion in episode.completions] == [toy.ADD] * n + ["done"]


def test_one_call_of_the_policy_per_turn_of_all_live_episodes() -> None:
    policy = Interrupted(toy.expert)
    play_episodes(playing(policy), [(task, 0) for task in TASKS])
    turns = [toy.number(task) + 1 for task in TASKS]
    assert [len(keys) for keys in policy.asked] == [sum(n > turn for n in turns) for turn in range(max(turns))]
    keys = [key for call in policy.asked for key in call]
    assert len(set(keys)) == len(keys)


def test_environments_that_say_so_are_stepped_several_at_a_time() -> None:
    together = Barrier(4)

    class Waiting(toy.Steps):
        threads = 4

        def step(self, action):
            if self.facts["added"] == 0:
                together.wait(timeout=30)  # goes on when four have come here
            return super().step(action)

    assert play(toy.expert, TASKS[:4], make=Waiting) == play(toy.expert, TASKS[:4])
    assert play(toy.coin, TASKS[4:], make=type("Four", (toy.Steps,), {"threads": 4})) == play(toy.coin, TASKS[4:])


def test_trials_have_random_streams_of_their_own() -> None:
    policy = ScriptedPolicy(toy.coin)
    episodes = play_episodes(playing(policy), [(TASKS[0], trial) for trial in range(20)])
    assert len({episode.completions for episode in episodes}) > 5
    alone = play_episodes(playing(policy), [(TASKS[0], 7)])
    assert alone == [episodes[7]]


@pytest.mark.parametrize(
    ("text", "counted"),
    [("<tool_call>{", "unparsable"), ("well " * 200, "truncated"), ("x" * 900, "truncated"), (" " * 900, "truncated")],
)
def test_a_text_that_is_no_action_is_played_as_a_message(text: str, counted: str) -> None:
    """It ends nothing by itself. Changing this is a decision."""

    def script(state, rng):
        return text if len(state.messages) == 2 else toy.expert(state, rng)

    for episode in play(script):
        first = episode.completions[0]
        assert getattr(first, counted)
        assert first.played == Action(text=text[: 4 * PARAMS.max_new_tokens])
        assert episode.reward == 1.0
        assert episode.turns == toy.number(episode.task_id) + 2


def test_what_was_truncated_is_not_searched_for_calls() -> None:
    whole = Completion(action=call("add", amount=1), text=toy.ADD, finish_reason="stop")
    assert whole.played == whole.action
    assert replace(whole, finish_reason="length").played == Action(text=toy.ADD)


def test_a_failed_call_leaves_the_episode_unscored() -> None:
    """The server failed, not the policy: None, never 0."""

    def script(state, rng):
        return toy.mute(state, rng) if toy.asked(state) == 2 and len(state.messages) > 2 else toy.ADD

    for episode in play(script):
        if toy.number(episode.task_id) == 2:
            assert (episode.reward, episode.ending, episode.turns) == (None, "failed_call", 2)
            assert episode.completions[-1].parse_error == "ConnectionError: the line is dead"
        else:
            assert (episode.reward, episode.ending) == (0.0, "done")


def test_a_full_context_ends_the_episode_with_the_outcome_as_it_stands() -> None:
    """A message of 10 tokens, two at first, two more by every call, 60 for the action: 100 hold two turns."""
    policy = Narrow(toy.expert)
    for episode in play_episodes(
        playing(policy, params=replace(PARAMS, max_new_tokens=60)), [(task, 0) for task in TASKS]
    ):
        full = toy.number(episode.task_id) > 1
        assert episode.ending == ("context_full" if full else "done")
        assert episode.turns == 2
        assert episode.reward == (0.0 if full else 1.0)
    (none,) = play_episodes(playing(policy, params=replace(PARAMS, max_new_tokens=91)), [(TASKS[0], 0)])
    assert (none.turns, none.ending, none.reward) == (0, "context_full", 0.0)


def test_the_cap_on_turns() -> None:
    talk = play(lambda state, rng: "Hm.", turn_limit=3)
    assert {(episode.turns, episode.ending, episode.reward) for episode in talk} == {(3, "turn_limit", 0.0)}
    own = play(lambda state, rng: "Hm.")
    assert {(episode.turns, episode.ending) for episode in own} == {(toy.TURNS, "done")}


def test_an_outcome_outside_0_and_1_is_refused() -> None:
    with pytest.raises(InputError, match=r"steps-test-.*outcome 2\.0"):
        play(toy.expert, make=toy.Generous)


@pytest.mark.parametrize("name", ["tasks", "kind", "reset", "state", "done", "step", "outcome", "expert"])
def test_whatever_an_environment_raises_is_one_line(tmp_path: Path, name: str) -> None:
    """Also an AttributeError of a property, which is not an attribute that is absent."""
    broken = (
        "@property\n    def {0}(self): return self.absent"
        if name in ("state", "done")
        else "{0} = lambda self, *_: 1 / 0"
    )
    (tmp_path / "mine.py").write_text(
        f"import toy_environment\n\nclass Mine(toy_environment.Steps):\n    {broken.format(name)}\n"
    )
    spec = f"{tmp_path / 'mine.py'}:Mine"
    config = EvaluateConfig(run=tmp_path / "run", env=(spec,), tasks=(6,), policies=("scripted:toy_environment:small",))
    with pytest.raises(
        InputError, match=rf"environment '.*mine.py:Mine': (reset|{name}).* raised \w+Error: .*; mend it$"
    ) as error:
        evaluate(config)
    assert "\n" not in str(error.value)
    assert not hasattr(load_environment(spec).make(), "general")


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("tools", ({"type": "function"},), "a dict .{.type"),
        ("messages", ("hello",), "a str .hello"),
        (None, {"messages": ()}, "a dict .{.messages"),
    ],
)
def test_a_state_of_other_types_is_refused_before_anybody_is_asked(field: str | None, value: object, says: str) -> None:
    class Loose(toy.Steps):
        @property
        def state(self):
            return value if field is None else replace(super().state, **{field: value})

    with pytest.raises(InputError, match=rf"task steps-test-\d+: the state is not .* but has {says}"):
        play(lambda state, rng: pytest.fail("it was asked"), make=Loose)


def test_what_raises_only_where_it_is_looked_into_is_one_line_too() -> None:
    def late(*_: object) -> Iterator[str]:
        yield "steps-test-1"
        raise KeyError("no more")

    for tasks in (late, lambda *_: 5):
        make = type("Late", (toy.Steps,), {"tasks": tasks})
        with pytest.raises(InputError, match=r"^environment 'late': tasks raised (KeyError|TypeError): .*; mend it$"):
            tasks_of(LoadedEnvironment(name="late", version="", make=make), "test", 2, 0)
    none = type("Empty", (toy.Steps,), {"state": property(lambda _: State(key="", messages=None, tools=None))})
    with pytest.raises(InputError, match=r"^task steps-test-\d+: the state raised TypeError: .*; mend it$"):
        play(toy.expert, make=none)


def test_a_kind_that_is_no_text_is_told_as_one(tmp_path: Path) -> None:
    source = "import toy_environment\n\nclass Mine(toy_environment.Steps):\n    kind = lambda self, _: [1]\n"
    (tmp_path / "mine.py").write_text(source)
    spec = f"{tmp_path / 'mine.py'}:Mine"
    config = EvaluateConfig(run=tmp_path / "run", env=(spec,), tasks=(6,), policies=("scripted:toy_environment:small",))
    assert [*evaluate(config).scores[0].by_kind] == ["[1]"]


@pytest.mark.parametrize("outcome", [None, "1", float("nan"), -0.5])
def test_an_outcome_that_is_no_reward_is_refused(outcome: object) -> None:
    with pytest.raises(InputError, match="mend the environment"):
        play(toy.expert, make=type("Odd", (toy.Steps,), {"outcome": lambda self: outcome}))


@pytest.mark.parametrize("width", [1, 3, 20, 128])
def test_the_width_changes_no_scripted_episode(tmp_path: Path, width: int) -> None:
    one = place(tmp_path, width=width)
    collect_episodes(one, playing(ScriptedPolicy(toy.coin)))
    wanted = [(task, trial) for task in TASKS for trial in range(2)]
    assert list(one.episodes()) == play_episodes(playing(ScriptedPolicy(toy.coin)), wanted)


def test_collecting_plays_everything_once_and_books_it(tmp_path: Path) -> None:
    one, policy = place(tmp_path), Interrupted()
    collect_episodes(one, playing(policy))
    before = one.path.read_bytes()
    usage = one.ledger.totals()["evaluate", "tasks"]
    turns = sum(episode.turns for episode in one.episodes())
    assert (usage.rollouts, usage.turns) == (20, turns)
    assert turns == sum(map(len, policy.asked))
    calls = len(policy.asked)
    collect_episodes(one, playing(policy))
    assert len(policy.asked) == calls
    assert one.path.read_bytes() == before


def test_an_interruption_at_any_call_is_made_good(tmp_path: Path) -> None:
    calm, policy = place(tmp_path / "calm"), Interrupted()
    collect_episodes(calm, playing(policy))
    wanted = calm.path.read_bytes()
    for calls in range(len(policy.asked)):
        one = place(tmp_path / str(calls))
        with pytest.raises(KeyboardInterrupt):
            collect_episodes(one, playing(Interrupted(calls=calls)))
        assert wanted.startswith(one.path.read_bytes())
        assert one.path.read_bytes().count(b"\n") % 4 == 0
        collect_episodes(one, playing(Interrupted()))
        assert one.path.read_bytes() == wanted
        totals = [ledger.ledger.totals()["evaluate", "tasks"] for ledger in (one, calm)]
        assert totals[0].turns == totals[1].turns


def test_a_torn_file_is_made_good(tmp_path: Path) -> None:
    one = place(tmp_path)
    collect_episodes(one, playing(Interrupted()))
    wanted = one.path.read_bytes()
    ends = [at + 1 for at, byte in enumerate(wanted) if byte == 10]
    for size in {0, 1, *ends[:-1], *(end - 1 for end in ends), *(end - 40 for end in ends)}:
        one.path.write_bytes(wanted[:size])
        policy = Interrupted()
        collect_episodes(one, playing(policy))
        assert one.path.read_bytes() == wanted
        whole = sum(end <= size for end in ends) // 4
        assert len({key.rpartition("@")[0] for call in policy.asked for key in call}) == 20 - 4 * whole


def test_a_policy_that_raises_loses_its_unit_only(tmp_path: Path) -> None:
    class Ill(Interrupted):
        def sample(self, states, **settings):
            if TASKS[6] in states[-1].key:
                raise RuntimeError("out of memory")
            return super().sample(states, **settings)

    one = place(tmp_path)
    with pytest.raises(RuntimeError, match="out of memory"):
        collect_episodes(one, playing(Ill()))
    assert complete_units(one.path, map(len, one.units))[0] == 3
    with pytest.raises(InputError, match="part-00000"):
        list(one.episodes())


def test_one_writer(tmp_path: Path) -> None:
    one = place(tmp_path)
    with FileLock(one.folder / ".lock"), pytest.raises(BusyError):
        collect_episodes(one, playing(ScriptedPolicy(toy.coin)))


def test_episodes_of_another_plan_are_noticed(tmp_path: Path) -> None:
    one = place(tmp_path)
    collect_episodes(one, playing(ScriptedPolicy(toy.expert)))
    other = replace(one, units=EpisodeSettings(trials=2, width=4).units(TASKS[::-1]))
    with pytest.raises(InputError, match=f"{TASKS[0]} instead of {TASKS[-1]}"):
        list(other.episodes())


@pytest.mark.parametrize("name", ["trials", "turn_limit", "width"])
def test_settings_start_at_one(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"episodes\.{name.replace('_', '-')} 0: must be at least 1"):
        EpisodeSettings(**{name: 0})


WRONG = Action(text="Bananas.")


@pytest.mark.parametrize(
    ("said", "label"),
    [
        ([toy.TAKE], "take instead of add"),
        ([toy.DOUBLE], "wrong arguments of add"),
        (["done"], "message instead of add"),
        ([toy.ADD, "Hm.", toy.ADD, toy.ADD, toy.ADD], "add instead of message"),
        (["Hm."] * 8, "message instead of add"),
        (["<tool_call>{"] * 8, "unparsable instead of add"),
        (["well " * 200] * 8, "truncated instead of add"),
        ([toy.ADD, toy.ADD, toy.ADD, "Hm.", "Hm.", "Hm.", "Hm.", "Hm."], "wrong message"),
        ([toy.ADD, toy.ADD], "no wrong action (turn_limit)"),
    ],
)
def test_first_wrong_action_of_made_episodes(said: list[str], label: str) -> None:
    """n = 3; what loses by running out of turns is the action after which they no longer suffice."""
    task = next(task for task in TASKS if toy.number(task) == 3)

    def script(state, rng):
        turn = sum(message.role == "assistant" for message in state.messages)
        return said[turn] if turn < len(said) else "done"

    (episode,) = play(script, [task], turn_limit=2 if len(said) == 2 else 64)
    assert episode.reward == 0.0
    assert first_wrong_action(toy.Steps(), episode) == label


def test_first_wrong_action_is_that_of_a_search_through_all_turns() -> None:
    """Against the definition: try the expert after every prefix."""
    episodes = [
        episode
        for episode in play_episodes(
            playing(ScriptedPolicy(toy.coin)), [(task, trial) for task in TASKS for trial in range(9)]
        )
        if episode.reward == 0
    ]
    assert len(episodes) > 20
    labels = Counter()
    for episode in episodes:
        env = toy.Steps()
        for completion in episode.completions:
            env.reset(episode.task_id)
            for earlier in episode.completions[: episode.completions.index(completion)]:
                env.step(earlier.played)
            expected, _ = env.expert(), env.step(completion.played)
            while not env.done:
                env.step(env.expert())
            if env.outcome() == 0:
                labels[describe(completion, expected)] += 1
                break
    assert first_wrong_actions(toy.Steps(), episodes) == dict(labels)


def test_an_expert_that_fails_is_not_believed() -> None:
    class Lost(toy.Steps):
        def expert(self):
            return Action(text="Hm.")

    (episode,) = play(toy.small, [next(task for task in TASKS if toy.number(task) == 3)])
    assert first_wrong_action(Lost(), episode) == "the expert fails"
    assert is_guided(toy.Steps())
    assert not is_guided(toy.Unguided())


def test_won_and_unscored_episodes_have_no_wrong_action() -> None:
    episodes = play(toy.expert) + play(toy.mute) + play(toy.small)
    three = sum(toy.number(task) == 3 for task in TASKS)
    assert first_wrong_actions(toy.Steps(), episodes) == {"take instead of add": three}
    assert first_wrong_actions(toy.Steps(), episodes, most=1) == {"take instead of add": 1}


def test_several_calls_are_named_together() -> None:
    both = Action(calls=call("b").calls + call("a").calls)
    said = Completion(action=both, text="", finish_reason="stop")
    assert describe(said, call("a")) == "a + b instead of a"
    assert describe(said, WRONG) == "a + b instead of message"
    assert describe(said, Action(calls=both.calls[::-1])) == "wrong arguments of a + b"
    assert describe(replace(said, action=WRONG), WRONG) == "wrong message"


def test_the_desks_expert_wins_through_the_player() -> None:
    tasks = DeskEnvironment().tasks("test", 30, 9)
    episodes = play_episodes(playing(DeskExpert(), DeskEnvironment), [(task, 0) for task in tasks])
    assert all(episode.reward == 1.0 and 8 <= episode.turns <= 14 for episode in episodes)


@pytest.mark.parametrize("nonsense", ["Bye.", "<tool_call>{", ""])
def test_nonsense_at_the_desk_ends_and_earns_nothing(nonsense: str) -> None:
    tasks = DeskEnvironment().tasks("test", 20, 9)
    episodes = play(lambda state, rng: nonsense, tasks, make=DeskEnvironment)
    assert {(episode.ending, episode.reward) for episode in episodes} == {("done", 0.0)}
    labels = first_wrong_actions(DeskEnvironment(), episodes)
    assert sum(labels.values()) == 20
    assert list(labels.values()) == sorted(labels.values(), reverse=True)
    assert not any("expert" in label or "no wrong" in label for label in labels)


def test_first_wrong_action_at_the_desk_is_the_write_that_nobody_wanted() -> None:
    """The expert plays up to a turn, another order is cancelled there, and the expert goes on as if nothing were."""
    slips, wanted = {}, {}
    for task in draw_tasks("test", 40, 3):
        desk = DeskEnvironment()
        desk.reset(task.id)
        foreign = next(order for order in task.orders if all(order.id not in one.orders for one in task.requests))
        while not desk.session.verified:
            desk.step(desk.expert())
        if foreign.status == "pending":
            slips[task.id, desk.session.turns] = call("cancel_order", order_id=foreign.id)
            expected = desk.expert()
            wanted[task.id] = expected.calls[0].name if expected.calls else "message"
    assert len(slips) >= 5
    episodes = play_episodes(playing(DeskExpert(slips), DeskEnvironment), [(task, 0) for task in wanted])
    for episode in episodes:
        assert episode.reward == 0.0
        label = first_wrong_action(DeskEnvironment(), episode)
        assert label == f"cancel_order instead of {wanted[episode.task_id]}"


def test_the_desk_draws_its_tasks_and_names_their_kinds() -> None:
    desk = DeskEnvironment()
    tasks = desk.tasks("validation", 50, 2)
    assert tasks == desk.tasks("validation", 50, 2) != desk.tasks("validation", 50, 3)
    assert tasks == tuple(task.id for task in draw_tasks("validation", 50, 2))
    assert {desk.kind(task) for task in tasks} == {"2 requests", "3 requests", "4 requests"}
    with pytest.raises(ConfigError, match="1000001 test tasks were asked for, there are 1000000"):
        desk.tasks("test", 1_000_001, 0)
    with pytest.raises(InputError):
        desk.expert()


def test_a_model_repeats_itself_after_an_interruption(tmp_path: Path) -> None:
    """Random weights, real rendering and sampling; the context ends some episodes."""

    class Stopped(TorchPolicy):
        calls = 5

        def sample(self, *states, **settings):
            self.calls -= 1
            if self.calls < 0:
                raise KeyboardInterrupt
            return super().sample(*states, **settings)

    loaded = loaded_model()
    start = TorchPolicy(loaded).count_tokens(toy.Steps().reset(TASKS[0]))
    loaded.model.config.max_position_embeddings = start + 100
    settings = {"params": SamplingParams(max_new_tokens=24)}
    calm, one = place(tmp_path / "calm", trials=1), place(tmp_path / "one", trials=1)
    collect_episodes(calm, playing(TorchPolicy(loaded), **settings))
    with pytest.raises(KeyboardInterrupt):
        collect_episodes(one, playing(Stopped(loaded), **settings))
    collect_episodes(one, playing(TorchPolicy(loaded), **settings))
    assert one.path.read_bytes() == calm.path.read_bytes()
    episodes = list(one.episodes())
    assert {episode.ending for episode in episodes} >= {"context_full"}
    usage = one.ledger.totals()["evaluate", "tasks"]
    assert usage.generated_tokens == sum(len(turn.token_ids) for episode in episodes for turn in episode.completions)


def test_environments_by_name() -> None:
    desk = load_environment("desk")
    assert desk.make().tasks("test", 3, 0) == DeskEnvironment().tasks("test", 3, 0)
    assert desk.version == load_environment("pivotrl.lab.desk:DeskEnvironment").version
    steps = load_environment("toy_environment:Steps")
    assert steps.version == load_environment(f"{toy.__file__}:Steps").version != desk.version
    assert steps.make().reset(TASKS[0]).messages[1] == Message(role="user", content=str(toy.number(TASKS[0])))


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("nowhere", r"'nowhere' is unknown; use one of these: .*desk.*skills.*FILE\.py:name"),
        ("toy_environment:Nothing", "lacks done, kind, outcome, reset, restore, snapshot, state, step, tasks"),
        ("toy_environment:TASKS", "not callable"),
        ("toy_environment:expert", "cannot be made .TypeError: expert.. missing "),
        ("toy_environment:Broken", "cannot be made .FileNotFoundError: no books here"),
        ("toy_environment:Lost", "has no Lost"),
        ("toy_environment:Threadless", r"threads 0: must be a whole number, at least 1$"),
        ("nowhere.py:Steps", "cannot import nowhere.py"),
    ],
)
def test_environments_that_are_not_there(spec: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as error:
        load_environment(spec)
    assert "\n" not in str(error.value)
