"""docs/your_verifier.md: every block is run, in order and in one folder; one that opens with `# FILE` is that file."""

from __future__ import annotations

import re
import sys
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "your_verifier.md"


def test_every_block_of_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(sys.path))
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) >= 5
    assert {language for language, _ in blocks} == {"python"}, "a block of another kind is not run"
    names: dict[str, object] = {}
    for _, block in blocks:
        file = re.match(r"# (\S+\.py)\n", block)
        if file:
            Path(file[1]).write_text(block)
        else:
            exec(compile(block, str(PAGE), "exec"), names)
