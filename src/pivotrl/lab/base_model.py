"""The embedded default's model: a word-level tokenizer, a small Llama, and the pretrained weights that ship with it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from pivotrl.lab.domains import Domain
from pivotrl.lab.shipped import write_checksums
from pivotrl.storage import replace_directory

SPECIAL: Final = ("<unk>", "<|pad|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|end|>")
CHAT_TEMPLATE: Final = """\
{%- for message in messages -%}
<|{{ message.role }}|>
{%- if loop.first and message.role == 'system' and tools -%}
Tools:
{%- for tool in tools -%}
{%- set function = tool.function if tool.function is defined else tool %} {{ function.name }}(
{{- ((function.parameters or {}).properties or {}) | join(' ') }})
{%- endfor %}{{ '\\n' }}
{%- endif -%}
{{ message.content or '' }}
{%- for call in message.tool_calls or [] -%}
{%- set function = call.function if call.function is defined else call -%}
<tool_call>{"name": {{ function.name | tojson }}, "arguments": {{ function.arguments if function.arguments is string
    else function.arguments | tojson }}}</tool_call>
{%- endfor -%}
<|end|>
{%- endfor -%}
{%- if add_generation_prompt -%}<|assistant|>{%- endif -%}
"""
HIDDEN: Final = 128
LAYERS: Final = 3
CONTEXT: Final = 1536


def make_tokenizer(texts: Iterable[str], domain: Domain) -> PreTrainedTokenizerFast:
    """A tokenizer that knows every id, every number below NUMBERS, every name, and the pieces of rendered texts."""
    pieces, special = re.compile(domain.pieces), re.compile("|".join(map(re.escape, SPECIAL)))
    found = {piece for text in texts for part in special.split(text) for piece in pieces.findall(part)}
    return _tokenizer([*domain.known(), *sorted(found)], domain)


def draft_tokenizer(domain: Domain) -> PreTrainedTokenizerFast:
    """Renders, but knows no pieces yet."""
    return _tokenizer((), domain)


def _tokenizer(pieces: Iterable[str], domain: Domain) -> PreTrainedTokenizerFast:
    vocabulary = {piece: index for index, piece in enumerate(dict.fromkeys([*SPECIAL, *pieces]))}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(domain.pieces), behavior="isolated")
    core.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        unk_token="<unk>",
        pad_token="<|pad|>",
        eos_token="<|end|>",
        additional_special_tokens=["<|system|>", "<|user|>", "<|assistant|>", "<|tool|>"],
        clean_up_tokenization_spaces=False,
        model_max_length=CONTEXT,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def new_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Untrained weights from torch's generator, drawn so that attention passes on what it reads.

    With the usual initialisation, copying did not form within the time that pretraining has; with this it does within
    seconds.
    """
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=HIDDEN,
        intermediate_size=2 * HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        max_position_embeddings=CONTEXT,
        rope_theta=1000.0,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        model.model.embed_tokens.weight.normal_(0.0, HIDDEN**-0.5)
        for layer in model.model.layers:
            layer.self_attn.v_proj.weight.copy_(torch.eye(HIDDEN))
            layer.self_attn.o_proj.weight.copy_(0.5 * torch.eye(HIDDEN))
    return model


def save_base(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, directory: Path) -> int:
    """Write the model in bfloat16 with tokenizer and checksums, whole or not at all; returns the weights' bytes."""
    making = directory.with_name(f".{directory.name}.making")
    model.to(torch.bfloat16).save_pretrained(making)
    tokenizer.save_pretrained(making)
    write_checksums(making)
    size = (making / "model.safetensors").stat().st_size
    replace_directory(making, directory)
    return size
