"""A real Chromium for tests of pages; a page that complains, or asks anybody but its own server, fails its test.

    pytest_plugins = ("browser",)        # at the top of a test file
    def test_it(page): page.goto(url)    # playwright's page

Chromium is the system's own (`apt-get install chromium`), or the program that the variable CHROMIUM names; where it, or
playwright's Python package, is missing, tests that need it are skipped and say so.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """The browser, one for the tests of a file: while it is open an event loop runs, and others cannot run theirs."""
    playwright = pytest.importorskip("playwright.sync_api", reason="no browser tests: playwright is not installed")
    program = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.skip("no browser tests: Chromium is missing (apt-get install chromium)")
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []  # Chromium's own sandbox refuses root
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=arguments)
        yield browser
        browser.close()


@pytest.fixture
def page(chromium: Any) -> Iterator[Any]:
    """A fresh page. At the end of the test it must have had no complaint and made no request outside."""
    context = chromium.new_context(viewport={"width": 1280, "height": 800})
    shown = context.new_page()
    shown.set_default_timeout(20_000)
    complaints: list[str] = []
    asked: list[str] = []
    context.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
    context.on("weberror", lambda error: complaints.append(f"exception: {error.error}"))
    context.on("request", lambda request: asked.append(request.url))
    yield shown
    home = origin(shown.url)
    context.close()
    assert complaints == []
    assert [url for url in asked if origin(url) not in (home, ("data", ""))] == []


def origin(url: str) -> tuple[str, str]:
    return urlsplit(url)[:2]
