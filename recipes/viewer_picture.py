"""The picture of docs/viewer.md: the viewer's page at the first pivot of a run whose samples differ most.

    pivotrl demo --run demo --episodes 60 --profiled 100 --rollouts 8 --steps 4 --tasks 24
    python recipes/viewer_picture.py demo docs/viewer.png [--dark] [--size 1280x760] [--at TRAJECTORY@TURN]

Needs playwright and Chromium, as the tests of the page do.
"""

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path
from urllib.parse import quote

from playwright.sync_api import sync_playwright

from pivotrl.viewing import ViewConfig, open_run, serving


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--size", default="1280x760")
    parser.add_argument("--at")
    options = parser.parse_args()
    shown = open_run(ViewConfig(run=options.run))
    profiles = {} if shown.judged is None else shown.judged.profiles
    pivots = [key for key in profiles if shown.turn(key)["state"] == "pivot"]
    at = options.at or max(pivots, key=lambda key: profiles[key].distinct_actions)
    width, height = map(int, options.size.split("x"))
    with serving(shown) as url, sync_playwright() as driver:
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=arguments)
        scheme = "dark" if options.dark else "light"
        page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
        page.goto(f"{url}#{quote(at)}")
        page.wait_for_selector("#comparison article")
        page.screenshot(path=options.picture)
        browser.close()


if __name__ == "__main__":
    main()
