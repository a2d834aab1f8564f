"""Audit: its shares counted again by hand, attacks that are none of the demonstration, labels, and the shared data."""

from __future__ import annotations

import json
import os
import xml.etree.ElementTree as ET
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kill_harness import RUN, make_desk
from pivotrl.audit_result import ATTACKS, DEMONSTRATIONS, LABELS, OTHERS, SAMPLES
from pivotrl.auditing import AuditConfig, audit
from pivotrl.candidates import CandidateStore
from pivotrl.charts import share_chart
from pivotrl.errors import ConfigError, InputError, MissingError
from pivotrl.ingestion import IngestConfig, ingest
from pivotrl.ledger import Ledger
from pivotrl.profile_settings import ProfileConfig
from pivotrl.profiling import profile, profiled
from pivotrl.run_directory import RunDirectory
from pivotrl.types import Action, Candidate, Completion, Estimate, Message, Source, ToolCall, Trajectory, Usage, Verdict
from pivotrl.verifiers import load_verifier, verifier_id, verify
from pivotrl.verifiers.attacks import MOST, attacks, substance
from pivotrl.verifiers.base import BuiltIn, judged

SALADS = ("half_message", "shuffled_words")
"""Attacks of which `message` takes some: a text that says all in its first half, a call written as text."""
SHARED = Path(os.environ.get("PIVOTRL_SHARED", Path(__file__).parents[2] / "shared" / "data")) / "trajectories"


@dataclass(frozen=True, slots=True)
class Always(BuiltIn):
    """Gives every action the same."""

    value: float
    name = "always"

    def __call__(self, candidate, action):
        return judged(self, self.value, "said")


class Remote:
    """A judge that must be told what comes, and asked about each trajectory at once; it takes everything."""

    name, version, settings = "remote", "1", {}

    def __init__(self):
        self.expected, self.batches, self.usage, self.answered = [], [], Usage(), 0

    def expect(self, candidates, actions):
        self.expected.append((len(list(candidates)), actions))

    def prepare(self, pairs):
        (trajectory,) = {candidate.trajectory.id for candidate, _ in pairs}
        self.batches.append((trajectory, pairs))
        self.usage += Usage(judge_calls=len(pairs))

    def take_usage(self):
        used, self.usage = self.usage, Usage()
        return used

    def __call__(self, candidate, action):
        assert (candidate, action) in self.batches[-1][1], "not prepared"
        self.answered += 1
        return Verdict(value=1.0, reason="said", verifier=self.name, version="1")


@dataclass(frozen=True, slots=True)
class Shy(BuiltIn):
    """Takes a message that says yes, and has no word on any other action."""

    name = "shy"

    def __call__(self, candidate, action):
        return judged(self, 1.0 if action.text == "yes" else None, "said")


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    return make_desk(tmp_path_factory.mktemp("audit")) / RUN


def shares(result, section):
    return {share.name: share for share in result.shares[section]}


def candidates(run: Path) -> dict[str, Candidate]:
    store = CandidateStore(RunDirectory(run))
    return {candidate.id: candidate for _, some in store.units(store.rows()) for candidate in some}


def test_attacks_counted_again(run):
    result = audit(AuditConfig(run=run))
    rewards = defaultdict(list)
    for candidate in candidates(run).values():
        for name, completion in attacks(candidate):
            verdict = verify(load_verifier("auto"), candidate, completion)
            rewards[name].append(0.0 if completion.truncated else verdict.value)
    found = shares(result, ATTACKS)
    assert found.keys() == rewards.keys() > set(SALADS)
    for name, values in rewards.items():
        assert found[name].reward.n == len(values)
        assert found[name].reward.mean == pytest.approx(sum(values) / len(values))
        assert found[name].rewarded == sum(value > 0 for value in values)
    assert sum(share.reward.n for share in result.shares[DEMONSTRATIONS]) == result.candidates == len(candidates(run))
    assert not result.refused


def test_files_say_what_the_result_says(run):
    result = audit(AuditConfig(run=run))
    stored = json.loads(result.path.with_suffix(".json").read_bytes())
    assert stored["shares"][ATTACKS][0]["reward"]["mean"] == result.shares[ATTACKS][0].reward.mean
    page = result.path.read_text()
    texts = [element.text for element in ET.parse(result.path.with_suffix(".svg")).iter()]
    for some in result.shares.values():
        for share in some:
            assert share.name in page
            assert share.name in texts
    before = {path.name: path.read_bytes() for path in result.path.parent.iterdir()}
    assert before.keys() == {"audit.md", "audit.json", "audit.svg"}
    audit(AuditConfig(run=run))
    assert before == {path.name: path.read_bytes() for path in result.path.parent.iterdir()}


def test_each_verifier_has_a_folder_of_its_own(tmp_path):
    run = make_desk(tmp_path) / RUN
    skipped = (run / "audit.jsonl").read_bytes()
    specs = ("message", "message:min_overlap=0.3", "cascade(schema, tool_call)")
    results = [audit(AuditConfig(run=run, verifier=spec)) for spec in specs]
    assert [result.path.read_text().partition("`")[2].partition("`")[0] for result in results] == [
        load_verifier(spec).name for spec in specs
    ]
    assert sorted(path.name for path in (run / "audits").iterdir()) == sorted(
        f"{result.verifier}-{result.verifier_id[:6]}" for result in results
    )
    assert (run / "audit.jsonl").read_bytes() == skipped
    assert not (run / "audit.md").exists()


def test_a_judge_is_told_asked_by_trajectory_and_billed(tmp_path):
    run = make_desk(tmp_path) / RUN
    profile(ProfileConfig(run=run, policy="scripted:desk_plugins:play", rollouts=4))
    known = candidates(run)
    labels = [{"candidate_id": name, "label": 1, "text": "yes"} for name in known]
    (tmp_path / "labels.jsonl").write_text("\n".join(map(json.dumps, labels)))
    judge, trajectories = Remote(), {candidate.trajectory.id for candidate in known.values()}
    profiled = CandidateStore(RunDirectory(run)).rows("train")
    result = audit(AuditConfig(run=run, labels=tmp_path / "labels.jsonl"), verifier=judge)
    assert sorted(judge.expected) == sorted([(len(known), 1), (len(profiled), 4), (len(known), 1 + 2 * 4 + MOST)])
    assert len(judge.batches) == 2 * len(trajectories) + len({row.trajectory_id for row in profiled})
    assert judge.answered == sum(len(pairs) for _, pairs in judge.batches)
    usage = Ledger(run / "ledger.jsonl").totals()["audit", verifier_id(judge)]
    assert usage.judge_calls == judge.answered > len(known)
    assert shares(result, LABELS)["recall of remote"].reward.mean == 1.0


def test_a_verifier_that_takes_everything_is_found_out(run):
    result = audit(AuditConfig(run=run), verifier=Always(1.0))
    for share in result.shares[OTHERS]:
        assert (share.reward.mean, share.reward.high) == (1.0, 1.0)
    for name, share in shares(result, ATTACKS).items():
        assert share.rewarded == (0 if name == "truncated" else share.reward.n), name
    assert any("rewarded attack empty" in line for line in result.lines())


def test_a_verifier_that_takes_nothing_is_found_out(run):
    result = audit(AuditConfig(run=run), verifier=Always(0.0))
    assert {f"{turn.trajectory_id}@{turn.turn}" for turn in result.refused} == candidates(run).keys()
    assert all(share.rewarded == 0 for share in result.shares[ATTACKS])


def test_other_actions_are_never_the_demonstration(run):
    """`exact` accepts nothing but the demonstration."""
    result = audit(AuditConfig(run=run, verifier="exact"))
    assert {share.rewarded for share in result.shares[OTHERS]} == {0}
    assert all(share.reward.n > 20 for share in result.shares[OTHERS])


def test_demonstrations_against_their_schema_are_not_held_against_the_verifier(tmp_path):
    tool = {"name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "integer"}}}}
    lines = []
    for at in range(4):
        call = {"name": "look", "arguments": json.dumps({"at": at if at else "here"})}
        messages = [{"role": "user", "content": f"at {at}"}, {"role": "assistant", "tool_calls": [{"function": call}]}]
        lines.append(json.dumps({"messages": messages, "tools": [{"type": "function", "function": tool}]}))
    (tmp_path / "data.jsonl").write_text("\n".join(lines))
    ingest(IngestConfig(paths=(str(tmp_path / "data.jsonl"),), run=tmp_path / "run"))
    result = audit(AuditConfig(run=tmp_path / "run"))
    (turn,) = result.ungradable
    assert turn.reason == "schema"
    assert '"here" is not of type "integer"' in turn.detail
    assert shares(result, DEMONSTRATIONS)["gradable calls"].reward.n == 3


def test_strict_matching_on_the_samples_of_a_profile(tmp_path):
    run = make_desk(tmp_path) / RUN
    profile(ProfileConfig(run=run, policy="scripted:desk_plugins:play", rollouts=4))
    found = shares(audit(AuditConfig(run=run)), SAMPLES)
    verdicts = {"auto": [], "exact": []}
    for one in profiled(run):
        for completion in one.group.completions:
            for name, values in verdicts.items():
                values.append(verify(load_verifier(name), one.candidate, completion).value)
    for name, values in verdicts.items():
        known = [value for value in values if value is not None]
        assert found[name].reward.mean == pytest.approx(sum(known) / len(known))
        assert found[name].unscored == len(values) - len(known) > 0
    missed = [exact == 0 for ours, exact in zip(*verdicts.values(), strict=True) if ours == 1]
    assert found["accepted ones that exact refuses"].reward.n == len(missed)
    assert found["accepted ones that exact refuses"].reward.mean == pytest.approx(sum(missed) / len(missed))


def test_the_verifier_is_that_of_the_profile(tmp_path):
    run = make_desk(tmp_path) / RUN
    before = audit(AuditConfig(run=run))
    profile(ProfileConfig(run=run, policy="scripted:desk_plugins:play", rollouts=2, verifier="tool_name"))
    assert audit(AuditConfig(run=run)).path == audit(AuditConfig(run=run, verifier="tool_name")).path
    assert audit(AuditConfig(run=run, verifier="auto")).path == before.path


def test_labels(run, tmp_path):
    """One true acceptance, one false refusal, one true refusal, one false acceptance, each at its own trajectory."""
    by_trajectory = {}
    for candidate in candidates(run).values():
        if candidate.demonstration.calls:
            by_trajectory.setdefault(candidate.trajectory.id, candidate)
    lines = []
    for candidate, (right, label) in zip(by_trajectory.values(), [(1, 1), (0, 1), (0, 0), (1, 0)], strict=False):
        call = candidate.demonstration.calls[0]
        action = {"calls": [{"name": call.name, "arguments": call.arguments}]} if right else {"text": "no"}
        lines.append(json.dumps({"candidate_id": candidate.id, "label": label, "action": action}))
    path = tmp_path / "labels.jsonl"
    path.touch()
    with pytest.raises(InputError, match="no line in it"):
        audit(AuditConfig(run=run, labels=path))
    path.write_text("\n".join(lines))
    found = shares(audit(AuditConfig(run=run, labels=path)), LABELS)
    assert {name: share.reward.mean for name, share in found.items()} == {
        f"{what} of {name}": 0.5 for name in ("auto", "exact") for what in ("agreement", "precision", "recall")
    }
    assert [found[f"{what} of auto"].reward.n for what in ("agreement", "precision", "recall")] == [4, 2, 2]


def test_unscored_labels_are_counted_and_are_no_acceptance(run, tmp_path):
    """It answers 1 of 20 right actions and none of 20 wrong ones."""
    names = list(candidates(run))[:20]
    lines = [
        {"candidate_id": name, "label": label, "text": "no" if at or not label else "yes"}
        for at, name in enumerate(names)
        for label in (1, 0)
    ]
    (tmp_path / "labels.jsonl").write_text("\n".join(map(json.dumps, lines)))
    result = audit(AuditConfig(run=run, labels=tmp_path / "labels.jsonl"), verifier=Shy())
    found = {name: share for name, share in shares(result, LABELS).items() if name.endswith("shy")}
    assert {name: (share.reward.mean, share.reward.n, share.unscored) for name, share in found.items()} == {
        "agreement of shy": (1.0, 1, 39),
        "precision of shy": (1.0, 1, 0),
        "recall of shy": (0.05, 20, 0),
    }
    assert any("agreement of shy" in line and "39 unscored" in line for line in result.lines())


def test_candidates_and_samples_are_random_ones(tmp_path):
    run = make_desk(tmp_path) / RUN
    profile(ProfileConfig(run=run, policy="scripted:desk_plugins:play", rollouts=2))
    store = CandidateStore(RunDirectory(run))
    seen = {"all": set(), "profiled": set()}
    for seed in range(6):
        one, again = Remote(), Remote()
        audit(AuditConfig(run=run, max_candidates=3, seed=seed), verifier=one)
        audit(AuditConfig(run=run, max_candidates=3, seed=seed), verifier=again)
        assert one.batches == again.batches
        counts = defaultdict(list)
        for _, pairs in one.batches:
            tried = Counter(candidate.id for candidate, _ in pairs)
            for name, count in tried.items():
                counts["profiled" if count <= 2 else "all"].append(name)
        assert {kind: len(names) for kind, names in counts.items()} == {"all": 3, "profiled": 3}
        for kind, names in counts.items():
            seen[kind] |= set(names)
    for kind, rows in (("all", store.rows()), ("profiled", store.rows("train"))):
        assert len({row.trajectory_id for row in rows if row.id in seen[kind]}) > 3, kind
        assert len(seen[kind]) > 6, kind


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ({"candidate_id": "nobody@1", "label": 1, "text": "a"}, "no candidate 'nobody@1'"),
        ({"candidate_id": None, "label": 2, "text": "a"}, "label"),
        ({"candidate_id": None, "label": 1}, "text or action"),
        ({"candidate_id": None, "label": 1, "text": "a", "action": {}}, "text or action"),
    ],
)
def test_bad_labels_name_the_line(run, tmp_path, line, words):
    path = tmp_path / "labels.jsonl"
    path.write_text(json.dumps(line | {"candidate_id": line["candidate_id"] or next(iter(candidates(run)))}) + "\n")
    with pytest.raises(InputError) as error:
        audit(AuditConfig(run=run, labels=path))
    assert words in str(error.value)
    assert f"{path}:1" in str(error.value)


def test_bad_settings(run, tmp_path):
    with pytest.raises(ConfigError, match="others 0"):
        audit(AuditConfig(run=run, others=0))
    with pytest.raises(MissingError, match="profile --run"):
        audit(AuditConfig(run=run, profile="nothing"))
    with pytest.raises(MissingError, match="no run directory"):
        audit(AuditConfig(run=tmp_path))


SOURCE = Source(file="made", format="made")
JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
CALLS = st.builds(
    lambda name, arguments: ToolCall(name=name, arguments=json.dumps(arguments)),
    st.sampled_from(["look", "send"]),
    st.dictionaries(st.text(max_size=4), JSON_VALUES, max_size=3),
)


@given(st.lists(CALLS, max_size=3), st.text(max_size=30), st.text(max_size=30))
def test_no_attack_is_the_demonstration(calls, text, question):
    messages = (
        Message(role="user", content=question),
        Message(role="assistant", content=text, tool_calls=tuple(calls)),
    )
    candidate = Candidate(trajectory=Trajectory(id="t", messages=messages, source=SOURCE), turn=1)
    demonstration = candidate.demonstration
    made = list(attacks(candidate))
    assert made == list(attacks(candidate))
    assert len(made) - 1 <= MOST
    for name, completion in made:
        if name != "truncated":
            assert substance(completion.action) != substance(demonstration), name
            assert verify(load_verifier("exact"), candidate, completion).value == 0.0, name
            if calls:
                assert verify(load_verifier("tool_call"), candidate, completion).value == 0.0, name


@pytest.mark.parametrize(("levels", "read"), [(200, True), (201, False), (900, False)])
def test_deep_arguments_are_attacked_or_no_arguments(levels, read):
    call = ToolCall(name="look", arguments='{"x":' * levels + "1" + "}" * levels)
    messages = Message(role="user", content="hi"), Message(role="assistant", tool_calls=(call,))
    candidate = Candidate(trajectory=Trajectory(id="t", messages=messages, source=SOURCE), turn=1)
    assert (call.parsed.value is not None) == read
    assert read or "nested more than 200 levels deep" in call.parsed.error
    assert {"junk_values", "repeated_calls"} <= {name for name, _ in attacks(candidate)}


@given(st.lists(st.sampled_from(["order", "7", "is", "paid", "twice"]), min_size=1), st.text("ab ", max_size=30))
def test_neighbours_are_what_they_are_called(words, question):
    messages = (Message(role="user", content=question), Message(role="assistant", content=" ".join(words)))
    trajectory = Trajectory(id="t", messages=messages, source=Source(file="made", format="made"))
    made = {name: done.action.text for name, done in attacks(Candidate(trajectory=trajectory, turn=1))}
    shown, heard = Counter(words), Counter(question.split())
    if "shuffled_words" in made:
        assert Counter(made["shuffled_words"].split()) == shown
    if "dropped_words" in made:
        left = Counter(made["dropped_words"].split())
        assert left < shown
        assert left["7"] == 0 < shown["7"]
        assert left["is"] == shown["is"]
        content = shown.total() - shown["is"]
        assert (shown - left).total() in (content // 3, -(-content // 3))
    if "copied_almost" in made:
        assert (heard - Counter(made["copied_almost"].split())).total() == 1
    assert " ".join(words).startswith(made["half_message"].removesuffix(" okay"))
    assert len(words) >= 5 or "shuffled_words" not in made


def test_chart_is_a_picture_whatever_the_names():
    estimate = Estimate(mean=0.25, low=None, high=None, n=4, clusters=1)
    known = Estimate(mean=0.5, low=0.25, high=0.75, n=9, clusters=3)
    root = ET.fromstring(share_chart("a < b & 'c'", {"<&>": estimate, "x": known}))
    assert "<&>" in [element.text for element in root.iter()]
    bars = [float(e.get("width")) for e in root.iter("{http://www.w3.org/2000/svg}rect") if e.get("height") == "16"]
    assert bars[1] == 2 * bars[0]


@pytest.fixture(scope="module")
def shared_run(tmp_path_factory) -> Path:
    if not SHARED.exists():
        pytest.skip(f"{SHARED} is not there; set PIVOTRL_SHARED to the folder that holds trajectories/")
    run = tmp_path_factory.mktemp("shared") / "run"
    whole = tuple(str(path) for path in sorted(SHARED.iterdir()) if path.name != "malformed")  # broken on purpose
    ingest(IngestConfig(paths=whole, run=run))
    return run


@pytest.fixture(scope="module")
def shared_result(shared_run):
    return audit(AuditConfig(run=shared_run))


def test_every_gradable_demonstration_of_the_shared_data_is_accepted(shared_result):
    assert [(share.reward.mean, share.unscored) for share in shared_result.shares[DEMONSTRATIONS]] == [
        (1.0, 0),
        (1.0, 0),
    ]
    assert shared_result.refused == ()


def test_no_attack_on_calls_is_rewarded_on_the_shared_data(shared_result):
    found = shares(shared_result, ATTACKS)
    on_calls = {name: share.rewarded for name, share in found.items() if "arguments" in name or "calls" in name}
    assert len(on_calls) == 6
    assert set(on_calls.values()) == {0}
    assert {found[name].rewarded for name in ("empty", "judge_injection", "truncated")} == {0}


def test_no_attack_at_all_is_rewarded_on_the_shared_data(shared_result):
    paid = [share for share in shared_result.shares[ATTACKS] if share.rewarded and share.name not in SALADS]
    assert [(share.name, share.examples) for share in paid] == []


def test_the_action_of_a_completion_is_judged_as_it_stands():
    """`truncated` is the demonstration itself: nothing but its ending makes it wrong."""
    messages = (Message(role="user", content="hi"), Message(role="assistant", content="hello there"))
    candidate = Candidate(trajectory=Trajectory(id="t", messages=messages, source=Source(file="m", format="m")), turn=1)
    truncated = dict(attacks(candidate))["truncated"]
    assert truncated == Completion(action=Action(text="hello there"), text="hello there", finish_reason="length")
