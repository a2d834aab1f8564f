"""The demo's model: a word-level tokenizer and a tiny Llama that is pretrained on the spot."""

from __future__ import annotations

import contextlib
import math
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from pivotrl.lab import toy
from pivotrl.logs import Progress
from pivotrl.models import quieten

# Order ids and numbers stand alone; a JSON key keeps its punctuation, a word the space before it: nothing is lost.
PIECES: Final = re.compile(
    r"</?tool_call>|\n|[A-Z][0-9]+|[0-9]+"
    r"|[{\",]* ?\"[a-z_]+\": \"?| ?[A-Za-z_]+\b|[^A-Za-z0-9_<\n]+|<"
)
SPECIAL: Final = ("<unk>", "<|pad|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE: Final = """\
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{% if loop.first and message.role == 'system' and tools -%}
Tools:
{%- for tool in tools -%}
{%- set function = tool.function if tool.function is defined else tool %} {{ function.name }}(
{{- ((function.parameters or {}).properties or {}) | join(', ') }})
{%- endfor %}{{ '\\n' }}
{%- endif -%}
{{ message.content or '' }}
{%- for call in message.tool_calls or [] -%}
{%- set function = call.function if call.function is defined else call -%}
{{ '\\n' if message.content or not loop.first }}<tool_call>
{"name": {{ function.name | tojson }}, "arguments": {{ function.arguments if function.arguments is string
    else function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif -%}
"""
EPISODES: Final = 6144
BATCH: Final = 8
PEAK_LR: Final = 3e-3
HIDDEN: Final = 64
IGNORED: Final = -100


def make_base_model(directory: Path, seed: int = 0) -> Path:
    """Pretrain the weak base policy and save it with its tokenizer; on one machine a seed gives the same bytes."""
    quieten()
    tokenizer = make_tokenizer()
    with torch.random.fork_rng(devices=[]), _one_thread():
        torch.manual_seed(seed)
        model = new_model(tokenizer)
        _pretrain(model, _batches(tokenizer, seed))
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def _pretrain(model: LlamaForCausalLM, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_LR, betas=(0.9, 0.98), weight_decay=0.01)
    steps = EPISODES // BATCH
    with Progress("pretrain", steps) as progress:
        for step, (ids_BT, labels_BT) in enumerate(batches):
            warmup, cosine = 16 * (step + 1) / steps, 0.51 + 0.49 * math.cos(math.pi * step / steps)
            for group in optimizer.param_groups:
                group["lr"] = PEAK_LR * min(1.0, warmup) * cosine
            logits_BTV = model(input_ids=ids_BT[:, :-1], use_cache=False).logits
            loss = functional.cross_entropy(logits_BTV.flatten(0, 1), labels_BT[:, 1:].flatten(), ignore_index=IGNORED)
            torch.autograd.backward(loss)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            progress.advance()


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Matrices this small gain nothing from a second thread, and lose a lot where cores are shared."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def make_tokenizer() -> PreTrainedTokenizerFast:
    """The word-level tokenizer of the desk, its vocabulary read off episodes of every kind."""
    ids = [*toy.ORDERS, *map(str, (*toy.AMOUNTS, *toy.FEES))]
    draft, parts = _tokenizer(ids), re.compile("|".join(map(re.escape, SPECIAL)))
    texts = [part for record in _every_kind() for part in parts.split(render(draft, record))]
    return _tokenizer([*ids, *(piece for text in texts for piece in PIECES.findall(text))])


def render(tokenizer: PreTrainedTokenizerFast, record: toy.Record) -> str:
    """A whole episode as text."""
    return str(tokenizer.apply_chat_template(record["messages"], tools=record["tools"], tokenize=False))


def _tokenizer(pieces: Iterable[str]) -> PreTrainedTokenizerFast:
    vocabulary = {piece: index for index, piece in enumerate(dict.fromkeys([*SPECIAL, *pieces]))}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(PIECES.pattern), behavior="isolated")
    core.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        unk_token="<unk>",
        pad_token="<|pad|>",
        eos_token="<|im_end|>",
        additional_special_tokens=["<|im_start|>"],
        clean_up_tokenization_spaces=False,
        model_max_length=512,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def _every_kind() -> Iterator[toy.Record]:
    """Expert and clerk episodes of every status, opening and follow-up."""
    clerk = toy.clerk(random.Random(0))
    for index in range(0, toy.TASKS_PER_HALF, len(toy.ORDERS) * len(toy.AMOUNTS) // 2):
        for player in (None, clerk):
            yield toy.episode(toy.task("base", index), player)


def new_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=HIDDEN,
        intermediate_size=2 * HIDDEN,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=512,
        rope_theta=500.0,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():  # attention that passes on what it reads: copying then forms in seconds instead of minutes
        model.model.embed_tokens.weight.normal_(0.0, HIDDEN**-0.5)
        for layer in model.model.layers:
            layer.self_attn.v_proj.weight.copy_(torch.eye(HIDDEN))
            layer.self_attn.o_proj.weight.copy_(0.5 * torch.eye(HIDDEN))
    return model


def _batches(tokenizer: PreTrainedTokenizerFast, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Right-padded clerk episodes of base tasks: ids and labels, the assistant's tokens only."""
    rng, opener = random.Random(seed), tokenizer("<|im_start|>assistant\n")["input_ids"]
    tasks = toy.draw_tasks("base", EPISODES, seed)
    texts = [render(tokenizer, toy.episode(task, toy.clerk(rng))) for task in tasks]
    rows = tokenizer(texts)["input_ids"]
    for start in range(0, EPISODES, BATCH):
        batch = rows[start : start + BATCH]
        labels = [_labels(row, opener, tokenizer.eos_token_id) for row in batch]
        yield _padded(batch, tokenizer.pad_token_id), _padded(labels, IGNORED)


def _labels(row: Sequence[int], opener: Sequence[int], end: int) -> list[int]:
    """The row where the assistant speaks, its end of turn included; IGNORED elsewhere."""
    labels, speaking = [IGNORED] * len(row), False
    for position, token in enumerate(row):
        if speaking:
            labels[position], speaking = token, token != end
        elif position >= 2 and row[position - 2 : position + 1] == opener:
            speaking = True
    return labels


def _padded(rows: Sequence[Sequence[int]], value: int) -> Tensor:
    width = max(map(len, rows))
    return torch.tensor([[*row, *[value] * (width - len(row))] for row in rows])
