"""The toy's model: a word-level tokenizer and a tiny untrained Llama."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import toy

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
HIDDEN: Final = 64


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
    """Episodes of every status, opening and follow-up."""
    for index in range(0, toy.TASKS_PER_HALF, len(toy.ORDERS) * len(toy.AMOUNTS) // 2):
        yield toy.episode(toy.task("base", index))


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
