"""How the viewer holds up with many candidates, in a real Chromium (docs/viewer.md).

    python benchmarks/viewer.py [--candidates 100000] [--run RUN] [--json]

Without --run a run is made as benchmarks/scale.py does (minutes). Seconds: `start` until the page is served (the run is
read), `list` from asking for the page until its list is drawn, `turn` from a click until the sampled actions are drawn
(median of 20 turns all over the run), `filter` and `search` until the list shows the result. `frame` is the longest gap
between two frames while the list is scrolled from end to end. The last line with --json is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import scale
from playwright.sync_api import sync_playwright

from pivotrl.viewing import ViewConfig, open_run, serving

FRAMES = """async () => {
  const list = document.querySelector('#list'), last = list.scrollHeight - list.clientHeight, gaps = [];
  let before = performance.now();
  for (let step = 0; step <= 300; step++) {
    list.scrollTop = last * step / 300;
    const now = await new Promise(requestAnimationFrame);
    gaps.push(now - before);
    before = now;
    if (!document.querySelector('.row')) throw new Error('an empty list');
  }
  return Math.max(...gaps.slice(2)) / 1000;
}"""
SETTLED = """async () => {
  for (let frame = 0; frame < 2; frame++) await new Promise(requestAnimationFrame);
  return performance.now() / 1000;
}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--candidates", type=int, default=100_000)
    parser.add_argument("--run", type=Path)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        if options.run is None:
            scale.measured(Path(scratch), options.candidates)
        found = measured(options.run or Path(scratch) / "run")
    print("  ".join(f"{name} {value:.3f}" for name, value in found.items()))
    if options.json:
        print(json.dumps(found))


def measured(run: Path) -> dict[str, float]:
    start = time.perf_counter()
    shown = open_run(ViewConfig(run=run))
    found = {"turns": float(len(shown.index["turns"]["turn"]))}
    found["start"] = time.perf_counter() - start
    with serving(shown) as url, sync_playwright() as driver:
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=arguments)
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        page.goto(url, wait_until="commit")
        page.wait_for_selector(".row.turn")
        found["list"] = page.evaluate(SETTLED)
        found["frame"] = page.evaluate(FRAMES)
        found["filter"] = timed(page, lambda: page.select_option("#state", "pivot"))
        page.select_option("#state", "")
        found["search"] = timed(page, lambda: page.fill("#search", "refund 2a"))
        page.fill("#search", "")
        found["turn"] = statistics.median(opened(page, int(found["turns"]) * nth // 20) for nth in range(20))
        browser.close()
    return found


def timed(page: Any, act: Callable[[], object]) -> float:
    before = page.evaluate("performance.now() / 1000")
    act()
    return float(page.evaluate(SETTLED)) - float(before)


def opened(page: Any, at: int) -> float:
    """From a click on a turn until its sampled actions are there."""
    page.evaluate(f"() => void (document.querySelector('#list').scrollTop = {24 * at})")
    page.evaluate(SETTLED)
    row = page.locator(".row.turn").nth(12)
    name = row.get_attribute("title").rpartition(": ")[0]

    def act() -> None:
        row.click()
        page.wait_for_selector(f"#comparison h2:has-text({json.dumps(name)})")

    return timed(page, act)


if __name__ == "__main__":
    main()
