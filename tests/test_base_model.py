"""The embedded base model: tokenizer, chat template, mixture, gates, and the weights that ship."""

from __future__ import annotations

import json
import re
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

from pivotrl.chat import ChatFormat, same_action
from pivotrl.errors import ConfigError, InputError
from pivotrl.lab import mixture
from pivotrl.lab.base_model import new_model
from pivotrl.lab.desk import STYLES, DeskEnvironment, Expert, draw_tasks
from pivotrl.lab.desk.books import NAMES
from pivotrl.lab.desk.clerk import HABITS, Clerk
from pivotrl.lab.desk.tasks import pool
from pivotrl.lab.domains import DESK, SHELL
from pivotrl.lab.gates import ActionGates, GateReport, copies, form, measure_actions
from pivotrl.lab.pretraining import PretrainConfig, pretrain
from pivotrl.lab.shipped import CHECKSUMS, shipped_base, write_checksums
from pivotrl.lab.skills import SKILLS, SkillsEnvironment
from pivotrl.lab.turns import play
from pivotrl.models import ModelSettings, load_model, save_tokenizer
from pivotrl.policies.torch import TorchPolicy
from pivotrl.types import Action, Completion, Estimate, Sampled, ToolCall

LARGEST, MOST_PARAMETERS = 6_000_000, 2_500_000


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(shipped_base())


@pytest.fixture(scope="module")
def chat(tokenizer):
    return ChatFormat(tokenizer)


@pytest.mark.parametrize("domain", [DESK, SHELL], ids=["desk", "shell"])
def test_the_shipped_model_is_small_and_whole(domain):
    base = shipped_base(domain.base)
    weights = base / "model.safetensors"
    assert sum(path.stat().st_size for path in base.iterdir()) < LARGEST
    loaded = load_model(str(base), ModelSettings())
    assert sum(parameter.numel() for parameter in loaded.model.parameters()) < MOST_PARAMETERS
    assert weights.stat().st_size < 2 * MOST_PARAMETERS
    assert json.loads((base / "config.json").read_text())["dtype"] == "bfloat16"


def test_a_saved_tokenizer_does_not_say_how_it_was_loaded(tmp_path):
    """Under HF_HUB_OFFLINE=1, which the tests set, transformers writes down `local_files_only`."""
    save_tokenizer(ChatFormat(AutoTokenizer.from_pretrained(shipped_base())), tmp_path)
    assert not [path.name for path in tmp_path.iterdir() if b"local_files_only" in path.read_bytes()]


def test_a_changed_file_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "model.safetensors").write_bytes(b"weights")
    write_checksums(tmp_path / "base")
    assert (tmp_path / "base" / CHECKSUMS).read_text().endswith("  model.safetensors\n")
    monkeypatch.setattr("importlib.resources.files", lambda package: tmp_path)
    assert shipped_base() == tmp_path / "base"
    (tmp_path / "base" / "model.safetensors").write_bytes(b"Weights")
    with pytest.raises(InputError, match="not the file that was shipped"):
        shipped_base()


@pytest.mark.parametrize("part", ["base", "train", "test"])
def test_every_conversation_round_trips_without_unknown_tokens(chat, part):
    env, tokenizer = DeskEnvironment(), chat.tokenizer
    for number, task in enumerate(draw_tasks(part, 40, 9)):
        act = Clerk(env, number).act if number % 2 else Expert(env, list(STYLES.values())[number % 5]).act
        play(env, task.id, act)
        ids = chat.prompt_ids(env.state)
        assert tokenizer.unk_token_id not in ids
        text = tokenizer.decode(ids)
        assert tuple(tokenizer(text)["input_ids"]) == ids
        assert tuple(chat.encode(text)) == ids


def test_jobs_of_the_shell_have_no_unknown_tokens():
    shell = ChatFormat(AutoTokenizer.from_pretrained(shipped_base(SHELL.base)))
    for part in ("validation", "test"):
        for index in range(20):
            for situation in SHELL.situations(f"shell-{part}-{index}", 0):
                assert shell.tokenizer.unk_token_id not in shell.prompt_ids(situation.state)
                for action in situation.acceptable:
                    ids = shell.demonstration_ids(situation.state, action)
                    assert len(ids) < 96
                    assert shell.tokenizer.unk_token_id not in ids


def test_every_expert_action_is_recovered_from_its_ids(chat):
    for task in draw_tasks("test", 6, 1):
        for situation in DESK.situations(task.id, 0):
            for action in situation.acceptable:
                ids = chat.demonstration_ids(situation.state, action)
                assert same_action(chat.parse(chat.text_of(ids), situation.state).action, action)
                assert len(ids) < 96


def test_names_numbers_and_ids_are_one_token_in_every_context(tokenizer):
    ids = [one for letter in "COEP" for one in pool("test", letter)[:40]]
    for value in (*ids, *NAMES, *map(str, range(160))):
        (alone,) = tokenizer(value)["input_ids"]
        for context in (
            f"Order {value}.",
            f'{{"order_id": "{value}"}}',
            f', "amount": {value}, "fee": 3}}',
            f"{value} {value}",
        ):
            assert alone in tokenizer(context)["input_ids"]


def test_states_are_prefixes_of_what_follows(chat):
    env = DeskEnvironment()
    for task in draw_tasks("validation", 10, 2):
        env.reset(task.id)
        before: tuple[int, ...] = ()
        while not env.done:
            ids = chat.prompt_ids(env.state)
            assert ids[: len(before)] == before
            before = ids
            env.step(Expert(env, STYLES["parallel"]).act())


def test_skills_use_known_tokens(tokenizer):
    env = SkillsEnvironment()
    for task in env.tasks("test", 400, 0):
        prompt = env.reset(task).messages[0].content
        assert tokenizer.unk_token_id not in tokenizer(f"{prompt} {env.expert().text}")["input_ids"]


def test_the_loss_covers_what_the_assistant_says(tokenizer):
    row = tokenizer("<|user|>Where is order O2004?<|end|><|assistant|>Which order is it?<|end|><|tool|>{}<|end|>")[
        "input_ids"
    ]
    own = mixture.spoken(row, tokenizer)
    assert tokenizer.decode([token for token, one in zip(row, own, strict=True) if one]) == "Which order is it?<|end|>"


@pytest.mark.parametrize(
    "texts",
    [
        ["<|user|>Say: lamp mug<|end|><|assistant|>lamp mug<|end|>", "<|user|>Say: rug<|end|><|assistant|>rug<|end|>"],
        ["<|user|>Add: 3<|end|><|assistant|>3<|end|><|user|>Add: 4<|end|><|assistant|>4<|end|>",
         "<|user|>Add: 3<|end|><|assistant|>3<|end|><|user|>Add: 5 and 6<|end|><|assistant|>11<|end|>"],
    ],
)  # fmt: skip
def test_the_loss_is_that_of_plain_forwards(tokenizer, texts):
    """One row at a time, no cache, every spoken token, also where the conversations begin with the same answer."""
    torch.manual_seed(0)
    model = new_model(tokenizer)
    surprises = []
    for row in tokenizer(texts)["input_ids"]:
        logprobs_TV = model(input_ids=torch.tensor([row])).logits[0].log_softmax(-1)
        own = mixture.spoken(row, tokenizer)
        surprises += [-logprobs_TV[at - 1, token].item() for at, token in enumerate(row) if own[at]]
    assert mixture._loss(model, tokenizer, texts).item() == pytest.approx(sum(surprises) / len(surprises), rel=1e-5)


def test_a_few_steps_are_repeated_to_the_byte(tmp_path: Path):
    for name in ("a", "b"):
        mixture.make_base(tmp_path / name, steps=3, lr=1e-3, seed=1)
    files = [{path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("a", "b")]
    assert files[0] == files[1]
    assert CHECKSUMS in files[0]


def test_nothing_but_a_base_model_is_replaced(tmp_path: Path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(ConfigError, match="no base model"):
        mixture.make_base(tmp_path / "mine", steps=1, lr=1e-3, seed=1)
    assert (tmp_path / "mine" / "thesis.txt").exists()


@pytest.mark.parametrize(
    "bad", [{"steps": 0}, {"episodes": 0}, {"states": 0}, {"seed": -1}, {"seed": 8}, {"steps": 30_000}]
)
def test_settings_out_of_range_are_refused_before_anything_is_trained(tmp_path: Path, bad):
    with pytest.raises(ConfigError, match="out of range"):
        pretrain(PretrainConfig(out=tmp_path / "out", **bad))


def test_an_interrupted_pretraining_ends_in_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(mixture, "CHECKPOINT_EVERY", 2)
    mixture.make_base(tmp_path / "whole", steps=5, lr=1e-3, seed=1)
    steps = mixture._loss

    def stop(model, tokenizer, texts):
        if len(texts) == mixture.ITEMS_PER_STEP:
            stop.left -= 1
            if stop.left == 0:
                raise KeyboardInterrupt
        return steps(model, tokenizer, texts)

    stop.left = 4
    monkeypatch.setattr(mixture, "_loss", stop)
    with pytest.raises(KeyboardInterrupt):
        mixture.make_base(tmp_path / "cut", steps=5, lr=1e-3, seed=1)
    monkeypatch.setattr(mixture, "_loss", steps)
    assert not (tmp_path / "cut").exists()
    with pytest.raises(ConfigError, match="steps"):
        mixture.make_base(tmp_path / "cut", steps=6, lr=1e-3, seed=1)
    mixture.make_base(tmp_path / "cut", steps=5, lr=1e-3, seed=1)
    for path in (tmp_path / "whole").iterdir():
        assert (tmp_path / "cut" / path.name).read_bytes() == path.read_bytes()
    for name in ("whole", "cut"):
        mixture.forget_progress(tmp_path / name)
    assert {path.name for path in tmp_path.iterdir()} == {"whole", "cut"}


def test_the_mixture_holds_all_skills_and_rendered_conversations():
    texts = list(islice(mixture._items(0), 80))
    assert len(set(texts)) > 70
    assert all(text.count("<|assistant|>") == 1 for text in texts)
    (conversation,) = islice(mixture._episodes(DESK, 5), 1)
    assert conversation.startswith("<|system|>Tools: find_customer(email phone) ")
    assert len(re.findall("<tool_call>", conversation)) > 2


def test_the_clerk_is_systematic_and_sometimes_right():
    """Every habit shows, the same seed repeats the episode, and without habits the clerk is an expert."""
    env = DeskEnvironment()
    tasks = draw_tasks("base", 300, 4)
    won = [play(env, task.id, Clerk(env, 0).act) for task in tasks]
    assert 0.25 < sum(won) / len(won) < 0.5
    for task in tasks[:5]:
        play(env, task.id, Clerk(env, 3).act)
        first = env.state.messages
        play(env, task.id, Clerk(env, 3).act)
        assert env.state.messages == first
    turns = Counter()
    for task in tasks:
        play(env, task.id, Clerk(env, 1).act)
        turns[env.session.stage] += 1
    assert turns["left"] == len(tasks), "no episode runs into the turn limit"


def test_a_clerk_without_habits_wins(monkeypatch: pytest.MonkeyPatch):
    env = DeskEnvironment()
    for habit in HABITS:
        monkeypatch.setitem(HABITS, habit, 0.0)
    assert all(play(env, task.id, Clerk(env, 0).act) == 1.0 for task in draw_tasks("base", 100, 4))


class _Echo:
    """A policy that does what `answer` says for a situation's acceptable actions."""

    def __init__(self, answer) -> None:
        self.answer, self.known = answer, {}

    def sample(self, states, *, n, params, seed):
        made = [[self.answer(self.known[state.key], i) for i in range(n)] for state in states]
        return [
            Sampled(completions=tuple(Completion(action=a, text="", finish_reason="stop") for a in row)) for row in made
        ]


def _known(policy: _Echo, tasks, seed: int) -> _Echo:
    policy.known = {one.state.key: one.acceptable for task in tasks for one in DESK.situations(task, seed)}
    return policy


def test_gates_measure_what_they_say():
    tasks = [task.id for task in draw_tasks("validation", 25, 0)]
    every = _known(_Echo(lambda acceptable, i: acceptable[i % 5]), tasks, 0)
    found = measure_actions(every, tasks, n=5, seed=0)
    assert found.copied.mean == 1.0
    assert found.copied.n > 300
    assert min(one.mean for one in found.masses.values()) >= 0.2
    names = Counter(
        name
        for task in tasks
        for one in DESK.situations(task, 0)
        for name in {(one.name, *form(a)) for a in one.acceptable}
    )
    assert len(found.masses) == sum(states >= 10 for states in names.values())
    assert found.unjudged == sum(states < 10 for states in names.values())
    first = _known(_Echo(lambda acceptable, i: acceptable[0]), tasks, 0)
    assert min(one.mean for one in measure_actions(first, tasks, n=5, seed=0).masses.values()) == 0.0
    wrong = _known(_Echo(lambda acceptable, i: _other_ids(acceptable[0]) if i == 0 else acceptable[0]), tasks, 0)
    assert measure_actions(wrong, tasks, n=5, seed=0).copied.mean == pytest.approx(0.8, abs=0.02)


def _other_ids(action: Action) -> Action:
    calls = tuple(
        ToolCall(
            name=call.name, arguments=re.sub("O2[0-9]{3}|C1[0-9]{3}|E3[0-9]{3}|555-[0-9]{4}", _shift, call.arguments)
        )
        for call in action.calls
    )
    return Action(text=action.text, calls=calls)


def _shift(found: re.Match[str]) -> str:
    return found[0][:-1] + str((int(found[0][-1]) + 1) % 10)


def test_copies_and_forms():
    right = Action(calls=(ToolCall(name="get_order", arguments='{"order_id": "O2004"}'),))
    other = Action(calls=(ToolCall(name="get_order", arguments='{"order_id": "O2005"}'),))
    assert copies(right, [right]) is True
    assert copies(other, [right]) is False
    assert copies(Action(text="O2004"), [right]) is None
    assert copies(Action(calls=(ToolCall(name="cancel_order", arguments='{"order_id": "O2004"}'),)), [right]) is None
    assert form(Action(text="Refund 45 for the lamp of order O2004?")) == ("Refund _ for the _ of order _?",)
    assert form(right) == ("get_order(order_id)",)


@pytest.mark.parametrize(
    ("copied", "success", "mass", "passed"),
    [(0.95, 0.2, 0.03, True), (0.94, 0.3, 0.1, False), (1.0, 0.51, 0.1, False), (1.0, 0.3, 0.029, False)],
)
def test_gates_decide(copied, success, mass, passed):
    known = {mean: Estimate(mean=mean, low=0.0, high=1.0, n=10, clusters=10) for mean in (copied, success, mass)}
    actions = ActionGates(copied=known[copied], masses={"a: b": known[mass]}, unjudged=0)
    report = GateReport(actions=actions, success=known[success])
    assert report.passed is passed
    assert report.lines()[-1].startswith("gates passed" if passed else "GATES FAILED")


@pytest.mark.slow
def test_the_shipped_model_is_in_its_gates_on_a_few_tasks():
    """The full measurement is `pivotrl lab pretrain`'s; this one would notice a wrong file or a broken sampler."""
    policy = TorchPolicy(load_model(str(shipped_base()), ModelSettings()))
    tasks = [task.id for task in draw_tasks("validation", 6, 3)]
    copied = measure_actions(policy, tasks, n=8, seed=0).copied
    assert copied.n > 50
    assert copied.mean > 0.85
    assert set(SKILLS) == {SkillsEnvironment().kind(task) for task in SkillsEnvironment().tasks("test", 8, 0)}
