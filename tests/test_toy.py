"""The demo's domain and its tokenizer: exact, short, deterministic, and apart from what the base model has seen."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from pivotrl.lab import toy, toy_model

STATE_LIMIT = 220


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return toy_model.make_tokenizer()


def _all_kinds() -> list[toy.Record]:
    base = [toy.episode(t, toy.clerk(random.Random(t.id))) for t in toy.draw_tasks("base", 300, 3)]
    return [toy.episode(t) for t in toy.draw_tasks("desk", 300, 3)] + base


def test_every_text_round_trips(tokenizer):
    texts = [toy_model.render(tokenizer, record) for record in _all_kinds()]
    texts += [f'{{"name": "refund", "arguments": {{"order_id": "{order}", "amount": 31}}}}' for order in toy.ORDERS]
    for text in texts:
        ids = tokenizer(text)["input_ids"]
        assert tokenizer.unk_token_id not in ids
        assert tokenizer.decode(ids) == text


def test_ids_and_amounts_are_one_token_in_every_context(tokenizer):
    for value in (*toy.ORDERS, *map(str, (*toy.AMOUNTS, *toy.FEES))):
        (alone,) = tokenizer(value)["input_ids"]
        for context in (
            f"Order {value} is sent.",
            f'{{"order_id": "{value}"}}',
            f', "amount": {value}, "fee": {value}}}',
        ):
            assert alone in tokenizer(context)["input_ids"]


def test_dict_and_text_arguments_render_alike(tokenizer):
    record = toy.episode(toy.draw_tasks("desk", 1, 0)[0])
    decoded = copy.deepcopy(record)
    for message in decoded["messages"]:
        for call in message.get("tool_calls", ()):
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    text = toy_model.render(tokenizer, record)
    assert toy_model.render(tokenizer, decoded) == text
    assert '<|im_start|>assistant\n<tool_call>\n{"name": "find_order", "arguments": {"order_id": "' in text
    assert '"}}\n</tool_call><|im_end|>\n<|im_start|>tool\n' in text


def test_states_are_short_prefixes_of_what_follows(tokenizer):
    for record in _all_kinds():
        messages, whole = record["messages"], tokenizer(toy_model.render(tokenizer, record))["input_ids"]
        for turn, message in enumerate(messages):
            if message["role"] == "assistant":
                state = tokenizer.apply_chat_template(
                    messages[:turn], tools=record["tools"], add_generation_prompt=True, return_dict=True
                )["input_ids"]
                assert len(state) < STATE_LIMIT
                assert whole[: len(state)] == state


def test_episodes_depend_on_the_seed_only(tmp_path: Path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        toy.write_episodes(tmp_path / name, 200, seed)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes() != (tmp_path / "c").read_bytes()
    records = [json.loads(line) for line in (tmp_path / "a").read_text().splitlines()]
    assert len({record["task_id"] for record in records}) == 200
    turns = [sum(message["role"] == "assistant" for message in record["messages"]) for record in records]
    assert set(turns) == {3, 4, 5}


def test_the_halves_share_no_order_with_an_amount():
    every = range(toy.TASKS_PER_HALF)
    desk, base = (
        {(t.order, t.amount) for t in (toy.task(half, index) for index in every)} for half in ("desk", "base")
    )
    assert not desk & base
    assert len(desk | base) == len(toy.ORDERS) * len(toy.AMOUNTS)
    assert len({toy.task("desk", index) for index in every}) == toy.TASKS_PER_HALF


def test_labels_cover_what_the_assistant_says(tokenizer):
    ids = tokenizer("<|im_start|>user\nLook<|im_end|>\n<|im_start|>assistant\nOrder A17 is sent.<|im_end|>\n")[
        "input_ids"
    ]
    opener = tokenizer("<|im_start|>assistant\n")["input_ids"]
    labels = toy_model._labels(ids, opener, tokenizer.eos_token_id)
    assert tokenizer.decode([label for label in labels if label >= 0]) == "Order A17 is sent.<|im_end|>"


def test_a_base_model_learns_and_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(toy_model, "EPISODES", 320)
    paths = [toy_model.make_base_model(tmp_path / name, seed=1) for name in ("a", "b")]
    assert len({(path / "model.safetensors").read_bytes() for path in paths}) == 1
    tokenizer, model = (kind.from_pretrained(paths[0]) for kind in (AutoTokenizer, AutoModelForCausalLM))
    assert model.num_parameters() < 400_000
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    record = toy.episode(toy.draw_tasks("desk", 1, 0)[0])
    ids = tokenizer(toy_model.render(tokenizer, record))["input_ids"]
    labels = toy_model._labels(ids, tokenizer("<|im_start|>assistant\n")["input_ids"], tokenizer.eos_token_id)
    with torch.no_grad():
        assert model(input_ids=torch.tensor([ids]), labels=torch.tensor([labels])).loss < 2.5
