"""docs/planning.md: its tables are what its block prints, and another way of adding up gives the same."""

from __future__ import annotations

import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import numpy as np
import pytest

PAGE = Path(__file__).parents[1] / "docs" / "planning.md"


def test_the_tables_are_what_the_block_prints_and_token_by_token_it_is_the_same() -> None:
    text = PAGE.read_text()
    (block,) = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    names: dict = {}
    with redirect_stdout(StringIO()) as printed:
        exec(compile(block, str(PAGE), "exec"), names)
    assert printed.getvalue() in text
    flops = {what: value for what, _, value, _ in names["rows"]}

    def each(first: int, last: int) -> float:
        """Of the tokens at these places, one by one: the weights, and attention to itself and all before."""
        places = np.arange(first, last, dtype=np.float64)
        return float(np.sum(2.0 * 7_568_405_504 + 4.0 * 36 * 4096 * (places + 1)))

    states = [2000 + 400 * turn for turn in range(18)]
    assert flops["profile: states, each trajectory once"] == pytest.approx(280_000 * each(0, states[-1]))
    assert flops["(the same, each state by itself)"] == pytest.approx(280_000 * sum(each(0, one) for one in states))
    actions = 16 * sum(each(one, one + 80) for one in states)
    assert flops["profile: 16 actions at each state"] == pytest.approx(280_000 * actions)
    mean = sum(states) // 18
    step = each(0, mean) + 16 * each(mean, mean + 80)
    assert flops["train: states"] + flops["train: 16 actions at each"] == pytest.approx(512 * 400 * step)
    assert flops["train: forward and backward"] == pytest.approx(3 * flops["train: reference"])
    assert flops["train: reference"] == pytest.approx(512 * 400 * step)
