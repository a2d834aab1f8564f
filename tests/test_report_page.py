"""The report in a real Chromium: it answers a newcomer's questions, asks nobody, and what a model wrote is text."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest

from kill_harness import RUN, make_desk
from pivotrl.auditing import AuditConfig, audit
from pivotrl.evaluation import evaluate
from pivotrl.evaluation_settings import EvaluateConfig
from pivotrl.pivots import SelectConfig, select
from pivotrl.policies import ScriptedPolicy
from pivotrl.profile_settings import ProfileConfig
from pivotrl.profiling import profile
from pivotrl.reporting import ReportConfig, report
from pivotrl.types import SamplingParams, State

pytest_plugins = ("browser",)

HOSTILE = (
    "<script>document.title='pwned'</script><img src=http://example.org/x onerror=alert(1)>\x1b[2J\u202e"
    + "A" * 1_000_000
)


def _hostile(state: State, rng: random.Random) -> str:
    return f"{rng.random()} {HOSTILE}"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Any:
    run = make_desk(tmp_path_factory.mktemp("page")) / RUN
    profile(ProfileConfig(run=run, policy="scripted:desk_plugins:play", rollouts=4))
    select(SelectConfig(run=run))
    policies = ("base=scripted:desk_plugins:play", "better=scripted:desk_plugins:play")
    evaluate(EvaluateConfig(run=run, policies=policies, split="train"))
    long = SamplingParams(max_new_tokens=300_000)
    bad = ProfileConfig(run=run, policy="own", name="bad", rollouts=2, sampling=long)
    profile(bad, policy=ScriptedPolicy(_hostile))
    audit(AuditConfig(run=run))
    return report(ReportConfig(run=run))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_first_screen_answers(written: Any, page: Any, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)
    page.goto(written.page.resolve().as_uri())
    first = page.inner_text("body")[:3000]
    for question in ("pivots", "Did it work?", "What was forgotten?", "What did it cost?", "How far can the reward be"):
        assert question in first
    assert "within noise" in first
    ink, paper = (brightness(page, name) for name in ("color", "backgroundColor"))
    assert (ink > paper) == (scheme == "dark")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth + 1")


def brightness(page: Any, name: str) -> int:
    return sum(map(int, re.findall(r"\d+", page.evaluate(f"getComputedStyle(document.body).{name}"))))


def test_what_a_model_wrote_does_nothing(written: Any, page: Any) -> None:
    page.goto(written.page.resolve().as_uri())
    assert page.title() == f"PivotRL run {RUN}"
    assert page.locator("script, img:not([src^='data:image/svg+xml;base64,']), iframe, link").count() == 0
    for fold in page.locator("summary").all():
        fold.click()
    shown = page.inner_text("body")
    assert "<script>document.title" in shown
    assert "\u241b[2J\ufffd" in shown
    assert written.page.stat().st_size < 5_000_000


def test_both_forms_have_the_same_headings(written: Any, page: Any) -> None:
    page.goto(written.page.resolve().as_uri())
    in_page = [heading.inner_text() for heading in page.locator("h1, h2, h3").all()]
    in_text = [line.lstrip("# ").replace("`", "") for line in written.text.splitlines() if line.startswith("#")]
    assert in_page == in_text
    assert all((Path(written.path).parent / name).exists() for name in pictures(written.text))


def pictures(text: str) -> list[str]:
    return [line.rpartition("(")[2].rstrip(")") for line in text.splitlines() if line.startswith("![")]
