"""What the base model learns from, and the loop: a clerk's episodes and skill items as rendered text, AdamW."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional

from pivotrl.chat import message_dict
from pivotrl.checkpoints import TrainState
from pivotrl.errors import ConfigError
from pivotrl.lab.base_model import draft_tokenizer, make_tokenizer, new_model, save_base
from pivotrl.lab.domains import DESK, Domain
from pivotrl.lab.shipped import CHECKSUMS
from pivotrl.lab.skills import SKILLS, skill_item
from pivotrl.learners.torch import load_optimizer, save_optimizer
from pivotrl.logs import Progress
from pivotrl.policies.forward import cache_name, common_length, pad_right
from pivotrl.run_directory import hold_to
from pivotrl.storage import read_json, replace_directory, write_json
from pivotrl.types import Message

EPISODES_PER_STEP: Final = 4
ITEMS_PER_STEP: Final = 16
SKILL_WEIGHT: Final = 0.5
"""Of the skills' loss against the episodes'."""
SORTED: Final = 64
"""Episodes of similar length share a batch; so many are sorted at once."""
VOCABULARY_EPISODES: Final = 1500
VOCABULARY_ITEMS: Final = 8000
FIRST_OF_VOCABULARY: Final = 900_000
"""Index of the first base task that the vocabulary is read off; pretraining stays below."""
WARM_UP: Final = 60
CHECKPOINT_EVERY: Final = 200
"""Steps, like the warm-up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """What a run that goes on must have in common with the one that was interrupted."""

    domain: str
    steps: int
    lr: float
    seed: int


def make_base(out: Path, *, steps: int, lr: float, seed: int, domain: Domain = DESK) -> tuple[int, int]:
    """Train from nothing and store; returns (parameters, bytes of the weights).

    Raises ConfigError when `out` is a directory that holds something else than a base model.
    """
    if out.exists() and not (out / CHECKSUMS).exists():
        raise ConfigError(f"{out} is there and is no base model; name another --out")
    episodes = islice(_episodes(domain, FIRST_OF_VOCABULARY), VOCABULARY_EPISODES)
    tokenizer = make_tokenizer((*episodes, *islice(_items(0), VOCABULARY_ITEMS)), domain)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = new_model(tokenizer)
        batches = _batches(_episodes(domain, seed * 100_000))
        _train(model, tokenizer, out, batches, Schedule(domain=domain.name, steps=steps, lr=lr, seed=seed))
    return sum(parameter.numel() for parameter in model.parameters()), save_base(model, tokenizer, out)


def forget_progress(out: Path) -> None:
    """Delete what an interrupted run would go on from."""
    shutil.rmtree(_unfinished(out))


def _train(model: Any, tokenizer: Any, out: Path, batches: Iterator[list[str]], plan: Schedule) -> None:
    """AdamW with a short warm-up, then linear to 0; goes on from the last checkpoint of an interrupted run."""
    table = model.get_input_embeddings().weight
    matrices = [one for one in model.parameters() if one.ndim == 2 and one is not table]
    others = [one for one in model.parameters() if one.ndim != 2 or one is table]
    groups = [{"params": matrices, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
    steps, lr = plan.steps, plan.lr
    optimizer = torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.98))
    hold_to(_unfinished(out) / "plan.json", plan)
    done = _resume(model, optimizer, out)
    episodes = islice(batches, done, None)
    items = islice(_items(plan.seed * 100_000), done * ITEMS_PER_STEP, None)
    with Progress("pretrain", steps, done) as progress:
        for step in range(done, steps):
            for group in optimizer.param_groups:
                group["lr"] = lr * min(1.0, (step + 1) / WARM_UP) * (1 - step / steps)
            loss = _loss(model, tokenizer, next(episodes))
            total = loss + SKILL_WEIGHT * _loss(model, tokenizer, list(islice(items, ITEMS_PER_STEP)))
            torch.autograd.backward(total)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            progress.advance()
            if (step + 1) % CHECKPOINT_EVERY == 0:
                _checkpoint(model, optimizer, out, step + 1)


def _unfinished(out: Path) -> Path:
    """Where a run keeps what it needs to go on."""
    return out.with_name(f".{out.name}.unfinished")


def _checkpoint(model: Any, optimizer: torch.optim.Optimizer, out: Path, step: int) -> None:
    making = _unfinished(out) / "making"
    making.mkdir(parents=True, exist_ok=True)
    save_file({name: parameter.detach() for name, parameter in model.named_parameters()}, making / "model.safetensors")
    save_optimizer(optimizer, making)
    write_json(making / "state.json", TrainState(step=step))
    replace_directory(making, _unfinished(out) / "checkpoint")


def _resume(model: Any, optimizer: torch.optim.Optimizer, out: Path) -> int:
    """Load the last checkpoint, if any; returns the steps that it has done."""
    folder = _unfinished(out) / "checkpoint"
    if not folder.exists():
        return 0
    model.load_state_dict(load_file(folder / "model.safetensors"), strict=False)
    load_optimizer(optimizer, folder)
    return read_json(folder / "state.json", TrainState).step


def _loss(model: Any, tokenizer: Any, texts: Sequence[str]) -> Tensor:
    """Mean cross-entropy of the assistant's tokens, ends of turn included.

    What all texts begin with is read once, up to the first token that the assistant says.
    """
    rows: list[list[int]] = tokenizer(texts)["input_ids"]
    own = [spoken(row, tokenizer) for row in rows]
    shared = min(common_length(rows), *(one.index(1) - 1 for one in own))
    ids_BT, _ = pad_right([row[shared:] for row in rows], tokenizer.pad_token_id, model.device)
    own_BT, _ = pad_right([one[shared:] for one in own], 0, model.device)
    mask_BT = own_BT[:, 1:].bool()
    name = cache_name(model.model)
    cache = getattr(model.model(input_ids=torch.tensor([rows[0][:shared]]), use_cache=True), name)
    cache.batch_repeat_interleave(len(rows))
    hidden_BTH = model.model(input_ids=ids_BT[:, :-1], use_cache=True, **{name: cache}).last_hidden_state
    return functional.cross_entropy(model.lm_head(hidden_BTH[mask_BT]), ids_BT[:, 1:][mask_BT])


def spoken(row: Sequence[int], tokenizer: Any) -> list[int]:
    """1 where the assistant speaks, its end of turn included; 0 elsewhere."""
    opener, end = tokenizer.convert_tokens_to_ids("<|assistant|>"), tokenizer.eos_token_id
    own, speaking = [], False
    for token in row:
        own.append(int(speaking))
        speaking = token == opener or (speaking and token != end)
    return own


def _batches(texts: Iterator[str]) -> Iterator[list[str]]:
    rng = random.Random(0)
    while True:
        block = sorted(islice(texts, SORTED), key=len)
        batches = [block[start : start + EPISODES_PER_STEP] for start in range(0, SORTED, EPISODES_PER_STEP)]
        rng.shuffle(batches)
        yield from batches


def _episodes(domain: Domain, first: int) -> Iterator[str]:
    """The clerk's episodes of base tasks as rendered text, without end."""
    tokenizer, index = draft_tokenizer(domain), first
    while True:
        messages, tools = domain.clerk(index)
        dicts = [message_dict(message) for message in messages]
        yield tokenizer.apply_chat_template(dicts, tools=tools, tokenize=False)
        index += 1


def _items(first: int) -> Iterator[str]:
    """Skill items of the base part as rendered text, skills in turn, without end."""
    tokenizer, index = draft_tokenizer(DESK), first
    while True:
        for skill in SKILLS:
            prompt, answer = skill_item(f"skills-{skill}-base-{index}")
            messages = (Message(role="user", content=prompt), Message(role="assistant", content=answer))
            yield tokenizer.apply_chat_template([message_dict(one) for one in messages], tokenize=False)
        index += 1
