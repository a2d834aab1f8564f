"""The forgetting suite: every answer follows from its prompt, parts share no problem, odd answers are just wrong."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pivotrl.errors import ConfigError, InputError
from pivotrl.lab.desk import DeskEnvironment, play
from pivotrl.lab.desk.books import CITIES, COLOURS, ITEMS, MONTHS
from pivotrl.lab.skills import SKILLS, SkillsEnvironment, skill_item
from pivotrl.protocols import Guided
from pivotrl.types import Action, Message, ToolCall

PARTS = ("base", "train", "validation", "test")
KINDS = {"items": ITEMS, "colours": COLOURS, "cities": CITIES, "numbers": [str(number) for number in range(160)]}
ASKED = {
    "copy": r"(?:Say|Repeat): (?P<given>.+)",
    "reverse": r"(?:Reverse|Backwards): (?P<given>.+)",
    "sort": r"(?:Sort|Small to big): (?P<given>.+)",
    "largest": r"(?:Largest|Biggest): (?P<given>.+)",
    "twice": r"(?:Twice|Which comes again): (?P<given>.+)",
    "zip": r"(?:Zip|Pair): (?P<given>.+ / .+)",
    "without": r"(?:Without|Drop) (?P<about>\w+): (?P<given>.+)",
    "filter": r"(?:Only|Keep) (?P<about>\w+): (?P<given>.+)",
}


@pytest.fixture
def env() -> SkillsEnvironment:
    return SkillsEnvironment()


def _ids(skill: str, part: str, count: int) -> list[str]:
    return [f"skills-{skill}-{part}-{index}" for index in range(count)]


def _problem(skill: str, prompt: str) -> tuple[str, str]:
    """The prompt without its wording: what is given, and the word that is asked for."""
    found = re.fullmatch(ASKED[skill], prompt)
    assert found, prompt
    groups = found.groupdict()
    return groups["given"], groups.get("about") or ""


def _solve(skill: str, text: str, about: str) -> str:
    """Another derivation than the drawing's: from the words of the prompt only."""
    words = text.split()
    if skill == "copy":
        return text
    if skill == "reverse":
        return " ".join(words[len(words) - 1 - at] for at in range(len(words)))
    if skill == "sort":
        return " ".join(str(number) for number in range(160) if str(number) in words)
    if skill == "largest":
        return str(next(number for number in reversed(range(160)) if str(number) in words))
    if skill == "twice":
        ((word, _),) = (Counter(words) - Counter(set(words))).items()
        return word
    if skill == "zip":
        half = len(words) // 2
        return " ".join(words[at // 2 + (half + 1) * (at % 2)] for at in range(2 * half))
    if skill == "without":
        return " ".join(sorted(set(words) - {about}, key=words.index))
    return " ".join(word for word in words if word in KINDS[about])


@pytest.mark.parametrize("skill", SKILLS)
def test_every_answer_follows_from_its_prompt(skill):
    """Numbers stay within 0..159, words within those of the desk; lengths vary, and no one answer is right often."""
    answers, lengths, said = Counter(), set(), set()
    for task_id in [task_id for part in PARTS for task_id in _ids(skill, part, 400)]:
        prompt, answer = skill_item(task_id)
        text, about = _problem(skill, prompt)
        assert answer == _solve(skill, text, about) != "", prompt
        answers[answer] += 1
        lengths.add(len(text.split()))
        said |= {*text.split(), *answer.split(), about} - {"", "/"}
    words = {*ITEMS, *COLOURS, *CITIES, *MONTHS, *KINDS}
    for word in said - words:
        assert re.fullmatch(r"[CO][0-9]{4}", word) or (word == str(int(word)) and int(word) < 160), word
    assert answers.most_common(1)[0][1] < 0.3 * answers.total()
    assert len(lengths) >= 3


def test_parts_share_no_problem_in_any_wording():
    """Whoever scores `test` after training on `base` measures a skill, not memory."""
    prompts, problems = {}, {}
    for part in PARTS:
        items = [(skill, skill_item(task_id)[0]) for skill in SKILLS for task_id in _ids(skill, part, 1500)]
        prompts[part] = {prompt for _, prompt in items}
        problems[part] = {(skill, *_problem(skill, prompt)) for skill, prompt in items}
        assert len(prompts[part]) == len(problems[part]), "no problem has two wordings"
        wordings = Counter((skill, prompt.split()[0]) for skill, prompt in items)
        assert len(wordings) == 2 * len(SKILLS)
        assert min(wordings.values()) > 500
    for one in PARTS:
        for other in PARTS[: PARTS.index(one)]:
            assert prompts[one].isdisjoint(prompts[other])
            assert problems[one].isdisjoint(problems[other])


@pytest.mark.parametrize("split", PARTS[1:])
@pytest.mark.parametrize("count", [0, 1, 8, 203, 800])
def test_tasks_are_balanced_distinct_and_follow_from_the_seed(env, split, count):
    ids = env.tasks(split, count, 3)
    assert len(ids) == len(set(ids)) == len({skill_item(task_id)[0] for task_id in ids}) == count
    kinds = Counter(dict.fromkeys(SKILLS, 0) | Counter(map(env.kind, ids)))
    assert max(kinds.values()) - min(kinds.values()) <= 1
    assert all(task_id.startswith(f"skills-{env.kind(task_id)}-{split}-") for task_id in ids)
    assert SkillsEnvironment().tasks(split, count, 3) == ids == env.tasks(split, 900, 3)[:count]
    assert count == 0 or env.tasks(split, count, 4) != ids


def test_asking_for_more_tasks_than_there_are_is_refused(env):
    with pytest.raises(ConfigError, match="at most 50000"):
        env.tasks("validation", 100_000, 0)


def test_an_item_follows_from_its_id_alone():
    """Also in another process, with another hash seed, and after other items."""
    ids = [task_id for skill in SKILLS for part in PARTS for task_id in _ids(skill, part, 5)]
    code = "import json, sys, pivotrl.lab.skills as s; print(json.dumps([*map(s.skill_item, sys.argv[1:])]))"
    environ = {**os.environ, "PYTHONHASHSEED": "7"}
    command = [sys.executable, "-c", code, *reversed(ids)]
    result = subprocess.run(command, capture_output=True, text=True, check=True, env=environ)
    assert [tuple(item) for item in reversed(json.loads(result.stdout))] == [skill_item(task_id) for task_id in ids]


@pytest.mark.parametrize(
    "name",
    ["skills-copy-test", "skills-copy-test-x", "skills-sing-test-1", "skills-copy-dev-1", "skills-copy-test-²",
     "skills-copy-test-07", "skills-copy-test-1000000", "skills-copy-test-1\n", "desk-test-1", "\ud800", ""],
)  # fmt: skip
def test_unknown_ids_are_refused_in_one_line(env, name):
    for use in (skill_item, env.kind, env.reset):
        with pytest.raises(ConfigError, match="use skills-SKILL-PART-INDEX with SKILL one of copy, ") as refusal:
            use(name)
        assert len(str(refusal.value).splitlines()) == 1
    with pytest.raises(InputError, match="reset"):
        _ = env.state


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("skill", SKILLS)
def test_an_episode_is_one_question_and_one_answer(env, skill, part):
    playable: Guided = env
    (task_id,) = _ids(skill, part, 1)
    prompt, answer = skill_item(task_id)
    state = playable.reset(task_id)
    assert (state, playable.done, playable.outcome()) == (playable.state, False, 0.0)
    assert (state.key, state.messages, state.tools) == (f"{task_id}@1", (Message(role="user", content=prompt),), None)
    assert playable.expert() == Action(text=answer)
    step = playable.step(Action(text=answer))
    assert step.done
    assert playable.done
    assert step.new == (Message(role="assistant", content=answer),) == playable.state.messages[1:]
    assert playable.outcome() == 1.0 == play(env, task_id, env.expert)


def test_only_the_exact_text_without_calls_is_right(env):
    (task_id,) = env.tasks("test", 1, 0)
    answer = env.reset(task_id).messages[0].content.partition(": ")[2]  # the first skill is copy
    call = ToolCall(name="say\ud800", arguments='{"a": "\udfff"}', id="\ud800")
    right = [answer, f" {answer}\n", f"\t{answer}"]
    wrong = ["", " ", None, answer.upper(), f"{answer}.", f"{answer} {answer}", answer.replace(" ", "  "), "\ud800"]
    wrong += [answer.split()[0], f"{answer}\ud800", f"{answer}\0", f"<b>{answer}</b>", "x" * 100_000]
    cases = [(Action(text=text, reasoning="\udc00"), 1.0) for text in right]
    cases += [(Action(text=text), 0.0) for text in wrong]
    cases += [(Action(text=answer, calls=(call,)), 0.0), (Action(calls=(call, call)), 0.0), (Action(), 0.0)]
    for action, outcome in cases:
        assert play(env, task_id, lambda act=action: act) == outcome, action
        assert len(env.state.messages[1].tool_calls) == len(action.calls)
        assert SkillsEnvironment().restore(env.snapshot()) == env.state


_TEXTS = st.one_of(st.none(), st.text(st.characters(), max_size=30), st.text("0123456789 \n²\ud800", max_size=6))
_CALLS = st.builds(ToolCall, name=st.text(st.characters(), max_size=9), arguments=_TEXTS, id=_TEXTS)
_ACTIONS = st.builds(Action, text=_TEXTS, reasoning=_TEXTS, calls=st.lists(_CALLS, max_size=2).map(tuple))


@given(action=_ACTIONS, skill=st.sampled_from(SKILLS), index=st.integers(0, 999_999))
def test_junk_never_raises_and_a_snapshot_is_exact(action, skill, index):
    """Taken before the answer and after it, and restored where something else was going on."""
    env, fork = SkillsEnvironment(), SkillsEnvironment()
    task_id = f"skills-{skill}-test-{index}"
    env.reset(task_id)
    fork.reset("skills-copy-base-1")
    assert fork.restore(env.snapshot()) == env.state
    assert fork.step(action) == env.step(action)
    own = (action.text or "").strip()
    assert env.outcome() == float(not action.calls and own == skill_item(task_id)[1])
    assert env.state.key == f"{task_id}@2"
    fork.reset("skills-copy-base-1")
    assert fork.restore(env.snapshot()) == env.state
    assert (fork.outcome(), fork.done, fork.snapshot()) == (env.outcome(), True, env.snapshot())


def test_snapshots_that_are_none_and_episodes_that_are_over_are_refused(env):
    step = lambda: env.step(Action(text="x"))  # noqa: E731
    for use in (step, lambda: env.state, env.outcome, env.snapshot, env.expert):
        with pytest.raises(InputError, match="reset"):
            use()
    assert env.done
    desk = DeskEnvironment()
    desk.reset("desk-test-1")
    env.reset("skills-sort-test-1")
    good = env.snapshot()
    for bad in (b"", b"{}", b"[]", b"\xff", good[:-1], good + good, desk.snapshot(), good.replace(b"null", b"3")):
        with pytest.raises(InputError, match="snapshot"):
            env.restore(bad)
    with pytest.raises(ConfigError, match="skills task"):
        env.restore(good.replace(b"sort", b"sing"))
    assert env.snapshot() == good
    step()
    for use in (step, env.expert):
        with pytest.raises(InputError, match="going on"):
            use()
    assert env.outcome() == 0.0
