"""The bill: FLOPs by formula against torch's counter, and lines that never count a unit twice."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from pivotrl.ledger import Ledger, forward_flops
from pivotrl.types import Usage
from tiny import KINDS_OF_FULL_ATTENTION, loaded_model


@pytest.mark.parametrize("kind", KINDS_OF_FULL_ATTENTION)
@pytest.mark.parametrize("tokens", [64, 256])
def test_formula_is_close_to_torchs_counter(kind, tokens):
    """torch counts all of the attention square, the formula its causal half; both leave norms and activations out."""
    loaded = loaded_model(kind)
    loaded.model.set_attn_implementation("eager")  # the counter does not see the fused kernel of CPUs
    ids = torch.randint(5, 100, (1, tokens))
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        loaded.model(ids, use_cache=False)
    shape = loaded.shape
    square = 4.0 * shape.layers * shape.attention_width * tokens * tokens
    causal = 4.0 * shape.layers * shape.attention_width * tokens * (tokens + 1) / 2
    expected = counter.get_total_flops() - square + causal
    assert forward_flops(shape, tokens=tokens) == pytest.approx(expected, rel=0.02)


def test_cached_context_costs_only_attention():
    shape = loaded_model().shape
    whole = forward_flops(shape, tokens=30)
    parts = forward_flops(shape, tokens=20) + forward_flops(shape, tokens=10, context=20)
    assert whole == pytest.approx(parts)


def test_last_line_of_a_unit_counts(tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.record("profile", "base", "t1", Usage(rollouts=4, seconds=1.0))
    ledger.record("profile", "base", "t2", Usage(rollouts=4, seconds=1.0))
    ledger.record("profile", "base", "t1", Usage(rollouts=4, seconds=2.0))
    ledger.record("train", "pivotrl", "step-000000", Usage(rollouts=8, trained_tokens=5))
    assert ledger.totals() == {
        ("profile", "base"): Usage(rollouts=8, seconds=3.0),
        ("train", "pivotrl"): Usage(rollouts=8, trained_tokens=5),
    }
