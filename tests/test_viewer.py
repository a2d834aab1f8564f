"""The viewer: what it says of a run against the run's own files, and the page in a real Chromium."""

from __future__ import annotations

import http.client
import json
import re
import signal
import subprocess
import sys
import unicodedata
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kill_harness import RUN, make_desk, start
from pivotrl.candidates import CandidateStore
from pivotrl.errors import ConfigError, MissingError, PivotRLError
from pivotrl.ingestion import IngestConfig, ingest
from pivotrl.pivots import SelectConfig, select
from pivotrl.policies import ScriptedPolicy
from pivotrl.profile_settings import ProfileConfig, RescoreConfig, profiled_groups
from pivotrl.profiling import profile, rescore
from pivotrl.run_directory import RunDirectory
from pivotrl.storage import read_jsonl, write_jsonl
from pivotrl.types import SamplingParams, SkippedTurn, State
from pivotrl.verifiers import load_verifier
from pivotrl.viewer_text import WIDTH, _lines
from pivotrl.viewing import ViewConfig, open_run, page_file, serving, view

pytest_plugins = ("browser",)

PLAY = "scripted:desk_plugins:play"


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that is profiled and selected from, with two policies' worth of files; not to be written to."""
    run = make_desk(tmp_path_factory.mktemp("seen"), episodes=24) / RUN
    profile(ProfileConfig(run=run, policy=PLAY, rollouts=6))
    select(SelectConfig(run=run))
    profile(ProfileConfig(run=run, policy=PLAY, rollouts=8, name="rounds", budget="curtailed"))
    select(SelectConfig(run=run, profile="rounds", name="some", quota=("task=1",)))
    rescore(RescoreConfig(run=run, verifier="tool_name"))
    return run


def content(shown: Any, name: str) -> Any:
    """The JSON of a data file, read as the page does."""
    script = page_file(shown, f"data/{name}.js").decode()
    found = re.fullmatch(r"pivotrl\((\".*?\"),(\".*\")\);\n", script, re.S)
    assert json.loads(found[1]) == name
    value = json.loads(json.loads(found[2]))
    if name == "index":
        for column, names in (("state", value["states"]), ("tools", value["toolsets"])):
            value["turns"][column] = [names[at] for at in value["turns"][column]]
    return value


@pytest.mark.parametrize("name", ["base", "rounds"])
def test_blocks_hold_every_sample_with_its_verdict(seen: Path, name: str) -> None:
    shown = open_run(ViewConfig(run=seen, profile=name))
    blocks = [content(shown, str(number)) for number in range(len(shown.blocks))]
    turns = {
        f"{one['trajectory']['id']}@{turn}": told
        for block in blocks
        for one in block
        for turn, told in one["turns"].items()
    }
    assert len(blocks) > 2
    groups = {group.candidate_id: group for group in profiled_groups(RunDirectory(seen), name, load_verifier("auto"))}
    assert len(groups) > 40
    for key, told in turns.items():
        where = [(at, some) for some in told["samples"] for at in some["samples"]]
        group = groups.get(key)
        assert sorted(at for at, _ in where) == list(range(len(group.completions) if group else 0))
        for at, some in where:
            done, verdict = group.completions[at], group.verdicts[at]
            assert (some["verdict"]["value"], some["verdict"]["reason"]) == (verdict.value, verdict.reason)
            assert (some["action"] is None) == (done.action is None)
            assert some["text"] == (done.text if done.action is None or done.truncated else None)
    assert turns.keys() >= groups.keys()
    assert [one["trajectory"]["id"] for block in blocks for one in block] == list(
        CandidateStore(RunDirectory(seen)).index
    )


def test_states_are_those_of_the_selection(seen: Path) -> None:
    for config in (ViewConfig(run=seen), ViewConfig(run=seen, profile="rounds")):
        shown = open_run(config)
        index = content(shown, "index")
        counts = Counter(index["turns"]["state"])
        name = "base" if config.profile is None else "some"
        facts = RunDirectory(seen).stages()[f"select/{name}"]
        skipped = Counter(f"skipped: {one.reason}" for one in read_jsonl(seen / "audit.jsonl", SkippedTurn))
        elsewhere = sum(row.split != "train" for row in CandidateStore(RunDirectory(seen)).rows())
        assert counts == facts["counts"] | skipped | {"not profiled": elsewhere}
        assert index["about"]["selection"] == f"{name}, by the paper rule with lambda_diff 0.6"
    assert counts["over_quota"] > 0


def test_the_index_says_what_the_files_say(seen: Path) -> None:
    index = content(open_run(ViewConfig(run=seen)), "index")
    store = CandidateStore(RunDirectory(seen))
    turns = zip(*index["turns"].values(), strict=True)
    rows = {row.id: row for row in store.rows()}
    for t, turn, _, tools, _, label in turns:
        id_ = index["trajectories"]["id"][t]
        trajectory = store.trajectory(id_)
        message = trajectory.messages[turn]
        assert message.role == "assistant"
        assert tools == ([call.name for call in message.tool_calls] or ["(no call)"])
        assert (message.content or message.tool_calls[0].name).startswith(label.split(" {")[0])
        assert index["trajectories"]["outcome"][t] == trajectory.outcome == 1.0
        row = rows.get(f"{id_}@{turn}")
        assert row is None or row.split == index["trajectories"]["split"][t]


def test_other_verdicts_and_a_run_without_a_profile(seen: Path, run: Path) -> None:
    shown = open_run(ViewConfig(run=seen, verifier="tool_name"))
    index = content(shown, "index")
    assert index["about"]["verifier"] == "tool_name"
    assert index["about"]["selection"].startswith("none yet, ")
    verdicts = {
        some["verdict"]["verifier"]
        for block in (content(shown, "0"),)
        for one in block
        for told in one["turns"].values()
        for some in told["samples"]
    }
    assert verdicts == {"tool_name"}
    states = set(content(open_run(ViewConfig(run=run)), "index")["turns"]["state"])
    assert "not profiled" in states
    assert all(state == "not profiled" or state.startswith("skipped: ") for state in states)


def test_an_unfinished_profile_shows_what_there_is(run: Path) -> None:
    def script(state: State, rng: Any) -> str:
        if len(calls) == 20:
            raise KeyboardInterrupt
        calls.append(state)
        return "Bananas."

    calls: list[State] = []
    with pytest.raises(KeyboardInterrupt):
        profile(ProfileConfig(run=run, policy="it", rollouts=4), policy=ScriptedPolicy(script))
    (part,) = run.glob("profiles/base/rollouts/part-*")
    part.write_bytes(part.read_bytes() + b'{"candidate_id":"torn')
    shown = open_run(ViewConfig(run=run))
    samples = [told["samples"] for one in shown.block(list(shown.store.index)) for told in one["turns"].values()]
    assert 0 < sum(len(one["samples"]) for some in samples for one in some) < 20 + 4


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"profile": "gone"}, "pivotrl profile"),
        ({"selection": "gone"}, "gone"),
        ({"verifier": "exact"}, "rescore"),
        ({"text": "episodes:1@0"}, "turns of this trajectory: 2"),
        ({"text": "episodes:1"}, "turns of this trajectory: 2"),
        ({"text": "nothing"}, "TRAJECTORY@TURN"),
        ({"port": 99999}, "port 99999"),
        ({"export": Path(__file__).parent}, "name a new folder"),
    ],
)
def test_mistakes_in_one_line(seen: Path, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(PivotRLError, match=message) as failed:
        view(ViewConfig(run=seen, **fields))
    assert isinstance(failed.value, (ConfigError, MissingError))
    assert "\n" not in str(failed.value)


def get(url: str, host: str | None = None) -> tuple[int, dict[str, str], bytes]:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=20)
    connection.request("GET", parts.path, headers={} if host is None else {"Host": host})
    answer = connection.getresponse()
    return answer.status, dict(answer.getheaders()), answer.read()


def test_the_server_answers_nobody_without_the_token(seen: Path) -> None:
    shown = open_run(ViewConfig(run=seen))
    with serving(shown) as url:
        home = url[: url.index("/", 8)]
        assert urlsplit(url).hostname == "127.0.0.1"
        assert len(urlsplit(url).path) > 32
        status, headers, body = get(url)
        assert (status, body) == (200, page_file(shown, "index.html"))
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert headers["Referrer-Policy"] == "no-referrer"
        assert get(url + "data/0.js")[2] == page_file(shown, "data/0.js")
        for wrong in (
            home,
            f"{home}/",
            f"{home}/viewer.js",
            f"{home}/{'x' * 32}/",
            url + "data/x.js",
            url + "data/9999.js",
        ):
            assert get(wrong)[0] == 404, wrong
        for outside in ("../run.json", "%2e%2e/run.json", "data/../../run.json", "/etc/passwd", "data/-1.js", "data/²"):
            assert get(url + outside.replace("²", "%C2%B2.js"))[0] == 404, outside
        assert get(url, host="example.org:80")[0] == 404


def test_an_export_is_what_the_server_gives(seen: Path, tmp_path: Path) -> None:
    said = view(ViewConfig(run=seen, export=tmp_path / "page")).lines()
    assert said == [f"open {tmp_path / 'page/index.html'} in a browser"]
    shown = open_run(ViewConfig(run=seen))
    files = {str(path.relative_to(tmp_path / "page")): path.read_bytes() for path in (tmp_path / "page").rglob("*.*")}
    assert len(files) == 4 + len(shown.blocks)
    assert all(page_file(shown, name) == data for name, data in files.items())


def test_the_command_serves_until_ctrl_c(seen: Path) -> None:
    process = start(seen.parent, ["view", RUN])
    said = process.stderr.readline()
    address = re.search(r"http://127\.0\.0\.1:\d+/\S+/", said)[0]
    assert get(address)[0] == 200
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert (process.returncode, out, err) == (0, "no longer served\n", "")


def test_viewing_loads_no_torch(seen: Path) -> None:
    code = f"import sys, pivotrl; pivotrl.view(pivotrl.ViewConfig(run={str(seen)!r}, text='episodes:1@2'))"
    code = code.replace("run=", "run=__import__('pathlib').Path(").replace(", text", "), text")
    done = subprocess.run([sys.executable, "-c", f"{code}; sys.exit('torch' in sys.modules)"], check=False)
    assert done.returncode == 0


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=300), st.integers(0, 8))
def test_terminal_lines_fit_and_do_nothing_else(text: str, indent: int) -> None:
    lines = list(_lines(text, " " * indent))
    for line in lines:
        assert line.isprintable()
        assert sum(1 + (unicodedata.east_asian_width(ch) in "WF") for ch in line) <= WIDTH
    plain = [ch for ch in text if ch.isprintable() and not ch.isspace()]
    shown = iter("".join(lines))
    assert all(ch in shown for ch in plain), "something is lost"


def test_a_candidate_in_the_terminal(seen: Path) -> None:
    shown = open_run(ViewConfig(run=seen))
    pivot = next(key for key, state in shown.judged.states.items() if state == "pivot")
    lines = view(ViewConfig(run=seen, text=pivot)).lines()
    text = "\n".join(lines)
    assert max(map(len, lines)) <= WIDTH
    assert lines[0] == f"{pivot}: pivot"
    assert lines[1].startswith(f"mean {shown.judged.profiles[pivot].mean}, n ")
    assert "demonstration" in lines
    assert "    as demonstrated" in lines
    counted = sum(int(number) for number in re.findall(r"^(\d+) x reward", text, re.M))
    assert counted == 6


# The page


def open_page(page: Any, url: str) -> None:
    page.goto(url)
    page.wait_for_selector(".row.turn")


def picked(page: Any) -> str:
    return page.evaluate("decodeURIComponent(location.hash.slice(1))")


def test_filters_and_search(page: Any, seen: Path) -> None:
    shown = open_run(ViewConfig(run=seen))
    index = content(shown, "index")
    states = index["turns"]["state"]
    with serving(shown) as url:
        open_page(page, url)
        assert page.inner_text("#count") == f"{len(states)} turns in 24 trajectories"
        page.select_option("#state", "pivot")
        assert page.inner_text("#count").startswith(f"{states.count('pivot')} turns")
        assert set(page.locator(".row.turn span:first-child").all_inner_texts()) == {"◆"}
        page.select_option("#tool", "find_order")
        both = [
            at
            for at, (state, tools) in enumerate(zip(states, index["turns"]["tools"], strict=True))
            if state == "pivot" and "find_order" in tools
        ]
        assert page.inner_text("#count").startswith(f"{len(both)} turns")
        page.click("#clear")
        page.wait_for_selector(f"#count:text-matches('^{len(states)} ')")
        page.select_option("#split", "test")
        split = [index["trajectories"]["split"][t] for t in index["turns"]["trajectory"]]
        assert page.inner_text("#count").startswith(f"{split.count('test')} turns")
        page.select_option("#split", "")
        page.select_option("#outcome", "full reward")
        assert page.inner_text("#count").startswith(f"{len(states)} turns")
        page.fill("#search", "REFUND a1")
        hits = [label for label in index["turns"]["label"] if "refund" in label.lower() and "a1" in label.lower()]
        assert 0 < len(hits) <= int(page.inner_text("#count").split()[0]) < len(states)
        page.fill("#search", "no such thing")
        assert page.inner_text("#count") == "0 turns in 0 trajectories"
        assert page.locator(".row").count() == 0


def test_keys_and_deep_links(page: Any, seen: Path) -> None:
    shown = open_run(ViewConfig(run=seen))
    with serving(shown) as url:
        open_page(page, url)
        page.keyboard.press("j")
        page.wait_for_selector(".picked")
        assert picked(page) == "episodes:1@2"
        page.keyboard.press("j")
        second = picked(page)
        assert second.startswith("episodes:1@")
        assert second != "episodes:1@2"
        page.keyboard.press("k")
        assert picked(page) == "episodes:1@2"
        page.keyboard.press("J")
        page.keyboard.press("J")
        assert picked(page) == "episodes:3@2"
        page.keyboard.press("K")
        assert picked(page) == "episodes:2@2"
        page.wait_for_selector("#comparison:visible")
        page.keyboard.press("Escape")
        page.wait_for_selector("#comparison", state="hidden")
        page.keyboard.press("Enter")
        page.wait_for_selector("#comparison:visible")
        page.keyboard.press("?")
        assert page.locator("#help").is_visible()
        page.keyboard.press("j")
        assert picked(page) == "episodes:2@2"
        page.keyboard.press("Escape")
        assert page.locator("#help").is_hidden()
        page.keyboard.press("/")
        page.keyboard.type("episodes:7 ")
        page.keyboard.press("Enter")
        page.wait_for_selector("#conversation h2 bdi:text-is('episodes:7')")
        assert picked(page) == "episodes:7@2"
        page.reload()
        page.wait_for_selector(".picked")
        assert picked(page) == "episodes:7@2"
        assert page.locator(".row[aria-selected=true]").count() == 1
        assert page.inner_text("#comparison h2").startswith("episodes:7@2")
        page.goto(f"{url}#nothing@2")
        page.wait_for_selector("#conversation:has-text('no turn nothing@2')")


def test_a_changed_trajectory_is_told_in_the_page(page: Any, run: Path) -> None:
    shown = open_run(ViewConfig(run=run))
    with serving(shown) as url:
        open_page(page, url)
        (part,) = run.glob("trajectories/part-*")
        part.write_bytes(part.read_bytes().replace(b"Is it done?", b"Is it gone?").replace(b"order_id", b"order_ix"))
        page.keyboard.press("j")
        page.wait_for_selector("#conversation:has-text('was changed since ingest')")


def test_marks_samples_and_differences(page: Any, seen: Path) -> None:
    shown = open_run(ViewConfig(run=seen))
    pivot = next(
        key
        for key, state in shown.judged.states.items()
        if state == "pivot" and shown.turn(key)["profile"].distinct_actions > 1
    )
    id_, _, turn = pivot.rpartition("@")
    (record,) = shown.block([id_])
    with serving(shown) as url:
        open_page(page, f"{url}#{id_}@{turn}")
        page.wait_for_selector(".sample")
        mean = record["turns"][turn]["profile"].mean
        mark = page.inner_text(f"[data-turn='{turn}'] .badge")
        assert mark == f"◆ {mean:.2f} pivot"
        assert page.locator(".message.assistant .badge").count() == len(record["turns"])
        samples = record["turns"][turn]["samples"]
        assert page.locator(".sample").count() == len(samples)
        rewards = [f"reward {float(one['verdict'].value or 0):g}" for one in samples]
        titles = page.locator(".sample > h3").all_inner_texts()
        for title, said, one in zip(titles, rewards, samples, strict=True):
            assert said in title or one["verdict"].value is None
            assert one["verdict"].reason in title
            assert f"{len(one['samples'])} of 6" in title
        other = page.locator(".message.assistant .badge").last
        other.click()
        page.wait_for_selector(f"#comparison h2:has-text('{id_}@{list(record['turns'])[-1]}')")


DEMONSTRATED = {
    "path": "a.py",
    "count": 5,
    "big": 12345678901234567890,
    "command": "cd /app\nmake all\nls -l\n",
    "same": "x",
}
SAMPLED = {
    "path": "b.py",
    "count": "5",
    "big": 12345678901234567891,
    "command": "cd /app\nmake most\nls -l\n",
    "same": "x",
    "more": True,
}


def call(arguments: dict[str, Any]) -> str:
    return f"<tool_call>\n{json.dumps({'name': 'edit', 'arguments': arguments})}\n</tool_call>"


def made(folder: Path, name: str, turns: list[dict[str, Any]], answers: list[str]) -> Path:
    """A run of one trajectory, at whose turns each of the answers is sampled once."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Do it."}]
    write_jsonl(folder / name, [{"messages": messages + turns, "reward": 1.0}])
    run = folder / "run"
    config = IngestConfig(paths=(str(folder / name),), run=run, validation_fraction=0, test_fraction=0)
    ingest(config)
    said = iter(answers * len(turns))
    policy = ScriptedPolicy(lambda state, rng: next(said))
    sampling = SamplingParams(max_new_tokens=10**7)
    profile(
        ProfileConfig(run=run, policy="it", rollouts=len(answers), verifier="exact", sampling=sampling), policy=policy
    )
    return run


def edit(arguments: dict[str, Any]) -> list[dict[str, Any]]:
    function = {"name": "edit", "arguments": json.dumps(arguments)}
    return [
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "1", "content": "done"},
    ]


def test_a_difference_of_arguments(page: Any, tmp_path: Path) -> None:
    run = made(tmp_path, "edits.jsonl", edit(DEMONSTRATED), [call(DEMONSTRATED), call(SAMPLED), "I refuse."])
    with serving(open_run(ViewConfig(run=run))) as url:
        open_page(page, f"{url}#edits:1@1")
        page.wait_for_selector(".sample")
        same, changed, message = page.locator(".sample").all()
        assert "the same as the demonstration" in same.inner_text()
        rows = {row.locator("th").inner_text(): row for row in changed.locator(".pairs tr:has(th)").all()}
        assert [name for name, row in rows.items() if "same" in (row.get_attribute("class") or "")] == ["tool", "same"]
        assert rows["path"].locator("td").all_inner_texts() == ["a.py", "b.py"]
        assert rows["path"].locator("del").all_inner_texts() == ["a"]
        assert rows["path"].locator("ins").all_inner_texts() == ["b"]
        assert rows["count"].locator("td").all_inner_texts() == ["5", '"5"']
        assert rows["big"].locator("td").all_inner_texts() == ["12345678901234567890", "12345678901234567891"]
        assert rows["more"].locator("td").all_inner_texts() == ["—", "true"]
        assert rows["command"].locator(".gone").all_inner_texts() == ["make all"]
        assert rows["command"].locator(".come").all_inner_texts() == ["make most"]
        assert rows["command"].locator("del, ins").all_inner_texts() == ["all", "most"]
        assert rows["command"].locator(".alike").all_inner_texts() == ["cd /app", "ls -l\n"]
        assert message.locator("ins").first.inner_text() == "I refuse."


def test_long_names_keep_their_end(page: Any, tmp_path: Path) -> None:
    name = "llamafactory_reason_tool_use_demo_50"
    run = made(tmp_path, f"{name}.jsonl", edit(DEMONSTRATED), [call(DEMONSTRATED)])
    with serving(open_run(ViewConfig(run=run))) as url:
        open_page(page, f"{url}#{name}:1@1")
        page.wait_for_selector(".sample")
        head = page.locator(".row.head").first
        assert head.locator("bdi").first.inner_text() == "llamafactory_r…_use_demo_50:1"
        assert head.get_attribute("title") == f"{name}:1"
        assert page.locator(".message h3 span").nth(1).get_attribute("title").startswith("message 1 of this")


HOSTILE = (
    "<script>window.owned = 1</script><img src=x onerror='window.owned = 1'><style>*{display:none}</style>"
    "</pre></script><!-- \u001b[31mred\u001b[0m \u202etxet\u202c \u2066x\u2069 \u0000\u0007 \ufeff ' \" & \\u003c `"
)


@pytest.mark.parametrize("served", [True, False], ids=["served", "exported"])
def test_a_hostile_trajectory_shows_as_text(page: Any, tmp_path: Path, served: bool) -> None:
    huge = "x" * 1_000_000
    arguments = {"__proto__": HOSTILE, "<b>name</b>": HOSTILE, "long": huge}
    answers = [call(arguments | {"<b>name</b>": "y"}), HOSTILE, huge, "<tool_call>\n{" + HOSTILE]
    name = "a#b@c %41<img src=x onerror='window.owned = 1'>\u202e.jsonl"
    run = made(tmp_path, name, [*edit(arguments), {"role": "assistant", "content": HOSTILE + huge}], answers)
    shown = open_run(ViewConfig(run=run))
    id_ = next(iter(shown.store.index))
    if served:
        with serving(shown) as url:
            _looks_like_text(page, url, id_)
    else:
        view(ViewConfig(run=run, export=tmp_path / "page"))
        _looks_like_text(page, (tmp_path / "page/index.html").as_uri(), id_)


def _looks_like_text(page: Any, url: str, id_: str) -> None:
    open_page(page, url)
    page.keyboard.press("j")
    page.wait_for_selector(".sample")
    assert picked(page) == f"{id_}@1"
    page.reload()
    page.wait_for_selector(".sample")
    assert page.inner_text("#comparison h2 bdi") == f"{id_}@1".replace("\u202e", "⟨U+202E⟩")
    for kind in ("img", "style", "b", "body script:not([src='viewer.js'])"):
        assert page.locator(kind).count() == 0, kind
    assert page.evaluate("[window.owned, {}.polluted, Object.prototype.__proto__]") == [None, None, None]
    text = page.inner_text("#conversation")
    assert "<script>window.owned = 1</script>" in text
    assert "⟨U+001B⟩[31mred⟨U+001B⟩[0m ⟨U+202E⟩txet⟨U+202C⟩" in text
    assert "__proto__" in text
    assert not re.search("[\u001b\u202e\u2066\u0000\ufeff]", page.inner_text("body"))
    assert len(text) < 20_000
    folded = page.locator("#conversation .more:visible")
    assert folded.first.inner_text() == "998,800 more characters"
    folded.first.click()
    assert folded.first.inner_text() == "948,800 more characters"
    assert page.locator(".sample").first.locator(".pairs tr:not(.same) th").all_inner_texts() == ["<b>name</b>"]
    page.keyboard.press("j")
    page.wait_for_selector("#comparison h2:has-text('@3')")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(page: Any, seen: Path, scheme: str) -> None:
    """Contrast of at least 4.5 (WCAG AA) wherever there is text, which also is what reads in grey."""
    page.emulate_media(color_scheme=scheme)
    with serving(open_run(ViewConfig(run=seen))) as url:
        open_page(page, f"{url}#episodes:1@2")
        page.wait_for_selector(".sample")
        worst = page.evaluate(CONTRAST)
        assert worst[0] >= 4.5, worst


CONTRAST = """() => {
  const one = Object.assign(document.createElement('canvas'), {width: 1, height: 1});
  const canvas = one.getContext('2d', {willReadFrequently: true});
  const channels = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const linear = (v) => v <= 10 ? v / 255 / 12.92 : ((v / 255 + .055) / 1.055) ** 2.4;
  const light = (rgb) => [.2126, .7152, .0722].reduce((sum, weight, at) => sum + weight * linear(rgb[at]), 0);
  const ground = (node) => {
    for (; node; node = node.parentElement) {
      const colour = channels(getComputedStyle(node).backgroundColor);
      if (colour[3] > 250) return colour;
    }
    return [255, 255, 255];
  };
  const texts = [...document.querySelectorAll('body *')].filter((node) => node.checkVisibility() &&
    [...node.childNodes].some((one) => one.nodeType === 3 && one.data.trim()));
  return texts.map((node) => {
    const pair = [channels(getComputedStyle(node).color), ground(node)].map(light).sort((x, y) => y - x);
    return [(pair[0] + .05) / (pair[1] + .05), node.tagName + '.' + node.className, node.textContent.slice(0, 30)];
  }).sort((a, b) => a[0] - b[0])[0];
}"""
