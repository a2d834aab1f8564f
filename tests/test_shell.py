"""`shell`: spellings of one program agree, other programs and other targets never do, and nothing makes it raise."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pivotrl.errors import ConfigError
from pivotrl.types import Action, Candidate, Completion, Message, Source, Tool, ToolCall, Trajectory
from pivotrl.verifiers import verify
from pivotrl.verifiers.shell import ShellVerifier
from pivotrl.verifiers.shell_commands import TABLE
from pivotrl.verifiers.shell_normal import program

SHELL = ShellVerifier()
BASH = Tool(
    name="bash",
    parameters={"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
)

EQUAL = """
ls -la | ls -l -a | ls -al | ls --all -l | "ls" -la . | ls -la ./
grep -rn 'a b' src | grep -n -r "a b" src | grep a\\ b -rn src/ | grep --recursive --line-number 'a b' src
grep -E foo f | egrep foo f | cat f # grep foo | grep -e foo f | grep foo f # cat
ls f || true | ls f
head -5 f | head -n 5 f | head -n5 f | head --lines=5 f | head --lines 5 f | cat f # head -5
head f | head -n 10 f
wc -l f | cat f # wc -l | wc --lines f
find . -name '*.c' | find -name "*.c" | find ./ -name \\*.c -print
find . -type f -name a | find . -name a -type f | find . -name a -a -type f
find . -type f \\( -name a -o -name b \\) | find . \\( -name 'a' -o -name b \\) -type f -print
find . -type f -exec grep x {} + | find . -type f -print0 # xargs -0 grep x
find . -type f -delete | find . -type f -exec rm {} \\;
rm $(find . -name a) | rm `find -name a`
echo "$(ls -a)" | echo "`ls  -a`"
echo a  b | echo "a b"
cat ~/x | cat $HOME/x | cat ${HOME}/x | cat "$HOME/x"
cd /a && cat b c | cd /a; cat ./b c | cd /a && cat /a/b ../a/c
sort f # uniq | sort -u f | sort --unique f
sort -r f # uniq | sort -ru f
make > log 2>&1 | make &> log | make 1>log 2>&1
tar -xzf a.tgz | tar xzf a.tgz | tar --extract --gzip --file=a.tgz | tar -x -f a.tgz -z
mkdir a b | mkdir b a
rm -rf a b | rm -r -f b a | rm -fr -- a b | rm --recursive --force a b
cp -t d a | cp a d
git commit -am msg | git commit -a -m "msg" | git commit --all --message=msg
cat <<EOF > f\\nhi\\nEOF | cat > f <<'EOF'\\nhi\\nEOF
""".strip()

CLOSE = """
ls f | ls f 2>/dev/null | ls -h f | ls --color=auto f
make; make test | make && make test
find . -name '*.py' | find . -name '*.py' -type f | find . -name *.py | find . -name '*.py' -print0
cd /a && cat b | cat /a/b
sudo ls | ls
find . -name '*.c' -exec grep x {} + | find . -name '*.c' # xargs grep x | find . -name '*.c' -exec grep -n x {} +
"""

OTHER = """
rm -rf build | rm -rf / | rm -rf . | rm -rf build/ src | rm -r build | rm -rf
rm a | rm a b | rm -i a | echo rm a | ls a
mv a b | mv b a | mv a c | cp a b
rm a{b,c} | rm 'a{b,c}' | rm a{b,d}
rm *.c | rm '*.c'
cp a b/ | cp a c/ | cp -r a b/
ls > f | ls > g | ls >> f | ls
dd if=a of=/dev/sda | dd if=a of=/dev/sdb
chmod 644 f | chmod 600 f | chmod 644 g | chmod -R 644 f
kill 12 | kill 13 | kill -9 12
git push origin main | git push origin dev | git push -f origin main | git push
git reset --soft a | git reset --hard a
find a -name x -delete | find b -name x -delete | find a -delete | find a -name x
find a -name x -exec rm {} + | find a -name y -exec rm {} + | find a -exec rm {} +
find a # grep x # xargs rm | find a # grep y # xargs rm | find a # xargs rm
cd a && rm x | cd b && rm x | rm x
for i in a b; do rm $i; done | for i in a c; do rm $i; done
x=a; rm $x | x=b; rm $x
make > f 2>&1 | make > g 2>&1 | make >& g
sort -k1 -k2 f | sort -k2 -k1 f
sort -k2 f # uniq | sort -u -k2 f
sort -n f # uniq | sort -n -u f
if test -d x; then cd x; ls; fi; rm f | if test -d x; then ls x; fi; rm x/f
while ls; do cd x; done; rm f | while ls; do true; done; rm x/f
cd x & rm f | cd x; rm f | rm x/f
echo -n x | echo '-n x' | echo x
test -f a && xargs rm < f | test -f a || xargs rm < f
find . -path ./a -prune -o -print | find . -path ./b -prune -o -print
sed -i s/a/b/ f | sed -i s/a/c/ f | sed -i s/a/b/ g
cat a # tee b | cat a # tee c | cat a # tee -a b
grep foo f | grep -v foo f | grep -i foo f | grep bar f | grep foo g | grep foo
find . -name a -type f | find . -name a -type d | find . -name a -o -type f
find . -name '*.c' -type f | find . -name '*.c' -type d
find . -exec grep -q x {} \\; -print | find . -exec grep -q x {} \\;
find . ! -name a | find . -name a
find . ! -name '*' | find . | find . -name '*'
sort f # head -5 | sort f | head -5 f | sort f # head -6 | sort -r f # head -5
ls # wc -l | ls | ls # wc -w
cat f # xargs echo | cat f
python a.py | python b.py | python3 -m a
a && b | a # b | a ; b & | b && a
echo '$x' | echo "$x"
echo "a\\*" | echo a\\*
cat <<EOF > f\\nhi\\nEOF | cat > f <<'EOF'\\nho\\nEOF
du -h # sort -n | du # sort -n
"""


def lines(text):
    """The alternatives of each line; `#` stands for a pipe, and what follows it after a blank stays one command."""
    for line in text.strip().splitlines():
        yield [one.strip().replace("#", "|").replace("\\n", "\n") for one in re.split(r" \| ", line)]


def pairs(text):
    return [(group[0], other) for group in lines(text) for other in group[1:]]


def score(theirs, ours):
    return SHELL.compare(theirs, ours).score


@pytest.mark.parametrize(("theirs", "ours"), pairs(EQUAL))
def test_equivalent_spellings_have_one_normal_form(theirs, ours):
    """What these lines hold together is the meaning of "equivalent"; changing one is a decision."""
    assert score(theirs, ours) == score(ours, theirs) == 1


@pytest.mark.parametrize(("theirs", "ours"), pairs(CLOSE))
def test_small_differences_pass_by_default_and_are_seen(theirs, ours):
    assert SHELL.threshold <= score(theirs, ours) < 1
    assert score(theirs, ours) == score(ours, theirs)


@pytest.mark.parametrize(("theirs", "ours"), pairs(OTHER))
def test_other_programs_are_refused(theirs, ours):
    assert score(theirs, ours) == score(ours, theirs) < SHELL.threshold


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("rm -rf build", "rm -rf /"),
        ("mv a b", "mv a c"),
        ("cp a b", "cp a c"),
        ("ls > f", "ls > g"),
        ("ls 2> f", "ls 2> g"),
        ("dd if=a of=b", "dd if=a of=c"),
        ("chmod 644 f", "chmod 644 g"),
        ("chown a f", "chown b f"),
        ("kill 12", "kill 13"),
        ("git push origin main", "git push origin dev"),
        ("git -C a push", "git -C b push"),
        ("git reset --soft", "git reset --hard"),
        ("find a -name x -delete", "find b -name x -delete"),
        ("find a -name x -prune -o -delete", "find a -name y -prune -o -delete"),
        ("find a | grep x | xargs rm", "find a | grep y | xargs rm"),
        ("cat a | tee b", "cat a | tee c"),
        ("for i in a b; do rm $i; done", "for i in a c; do rm $i; done"),
        ("x=a; rm $x", "x=b; rm $x"),
        ("cd a; ls; kill 3", "cd b; ls; kill 3"),
        ("sed -i s/a/b/ f", "sed -i s/a/b/ g"),
        ("ls; rm a", "ls"),
        ("ls", "ls; rm a"),
        ("echo a | rm -i b", "echo y | rm -i b"),
        ("bash -c 'rm a'", "bash -c 'rm b'"),
    ],
)
def test_a_dangerous_difference_scores_nothing_whatever_the_threshold(theirs, ours):
    found = SHELL.compare(theirs, ours)
    assert (found.score, found.reason) == (0, "dangerous_difference")
    assert judge(bash(theirs), bash(ours), ShellVerifier(threshold=0)) == (0, "dangerous_difference")


WORDS = st.text("abxyz./", min_size=1, max_size=6).filter(lambda word: word.strip("./") and word[0] not in "./")
COMMANDS = st.sampled_from(
    [
        ("cat", "n", 1),
        ("wc", "lwc", 1),
        ("grep", "ivnc", 2),
        ("ls", "lat", 1),
        ("sort", "rnu", 1),
        ("rm", "rfv", 1),
        ("cp", "rv", 2),
        ("mv", "v", 2),
        ("chmod", "Rv", 2),
    ]
)
DESTRUCTIVE = ("rm", "cp", "mv", "chmod")


@st.composite
def commands(draw):
    name, letters, least = draw(COMMANDS)
    flags = draw(st.permutations(sorted(draw(st.sets(st.sampled_from(letters))))))
    operands = draw(st.lists(WORDS, min_size=least, max_size=3, unique=True))
    return name, list(flags), operands


def written(name, flags, operands, quote="", gap=" "):
    return gap.join([name, *(f"-{flag}" for flag in flags), *(f"{quote}{word}{quote}" for word in operands)])


@given(
    commands(),
    st.randoms(use_true_random=False),
    st.sampled_from(["", "'", '"']),
    st.sampled_from([" ", "  ", " \\\n"]),
)
def test_quotes_flag_order_clusters_and_blanks_do_not_matter(command, random, quote, gap):
    name, flags, operands = command
    other = random.sample(flags, len(flags))
    text = written(name, flags, operands)
    assert score(text, written(name, other, operands, quote, gap)) == 1
    assert score(text, written(name, ["".join(other)] if other else [], operands, quote)) == 1
    assert score(text, gap.join([name, *operands, *(f"-{flag}" for flag in other)])) == 1


@given(commands(), st.data())
def test_another_or_a_missing_operand_is_never_accepted(command, data):
    name, flags, operands = command
    at = data.draw(st.integers(0, len(operands) - 1))
    changed = [*operands[:at], operands[at] + "q", *operands[at + 1 :]]
    removed = operands[:at] + operands[at + 1 :]
    for other in (changed, removed):
        found = SHELL.compare(written(name, flags, operands), written(name, flags, other))
        assert found.score < SHELL.threshold
        assert found.score == 0 or name not in DESTRUCTIVE


@given(st.lists(commands(), min_size=2, max_size=4), st.data(), st.sampled_from([" | ", " && ", "; "]))
def test_a_stage_that_is_dropped_or_doubled_is_never_accepted(parts, data, link):
    stages = [written(*part) for part in parts]
    at = data.draw(st.integers(0, len(stages) - 1))
    dropped, doubled = stages[:at] + stages[at + 1 :], [*stages[: at + 1], *stages[at:]]
    for other in (dropped, doubled):
        assert score(link.join(stages), link.join(other)) < SHELL.threshold
        assert score(link.join(other), link.join(stages)) < SHELL.threshold
    assert score(link.join(stages), link.join(stages) + "\n") == 1


PIECES = "find . -name -exec {} ; \\; + xargs -I sudo env cd $( $x ) ` ' \" | && || < > <<A rm A\n 𝛛{ é"
TEXTS = st.one_of(
    st.text(max_size=60),
    st.text("ab -'\"`$(){}[]|&;<>\\\n*?~#=!01", max_size=40),
    st.lists(st.sampled_from(PIECES.split(" "))).map(" ".join),
)


@given(TEXTS, TEXTS)
@example("cat <<A", "cat <<A\nA")
@example("find . ! (", "find . -exec")
@example("\ud800", "ls")
@example("cat <<A\n\ud800\nA", "ls")
@example("xargs xargs", "sudo sudo")
@example("[", "]")
@settings(max_examples=400)
def test_nothing_raises_and_everything_agrees_with_itself(theirs, ours):
    first, second = SHELL.compare(theirs, ours), SHELL.compare(ours, theirs)
    assert 0 <= first.score <= 1
    assert first.score == pytest.approx(second.score)
    assert SHELL.compare(theirs, theirs).score == 1
    assert all(one.detail.encode() is not None for one in (first, second))


@pytest.mark.parametrize(
    "text",
    [
        "(" * 99_999,
        "$(" * 40_000,
        "{a," * 30_000,
        "a && " * 15_000 + "b",
        "a | " * 20_000 + "b",
        "find " + "! " * 40_000,
        "cat <<A\n" * 12_000,
        "ls\n" * 30_000,
        "x=1\nrm a\n" * 400,
        "echo " + "$(echo " * 40 + ") y" * 40,
        "sudo " * 20_000,
        "xargs " * 16_000,
        "find " + "\\( " * 30_000,
        "find " + "-exec find " * 9_000,
        "((" * 300 + "ls" + "))" * 300,
    ],
    ids=lambda text: text[:8],
)
def test_runaway_inputs_end_soon(text):
    assert SHELL.compare("ls -l", text).score < 1
    assert SHELL.compare(text, text + " y").score < 1


def test_what_is_too_long_or_no_shell_is_refused_with_a_reason():
    assert SHELL.compare("ls", "ls " + "a" * 100_000).reason == "too_long"
    assert SHELL.compare("ls", "ls\n" * 2_000).reason == "too_long"
    assert SHELL.compare("ls", "ls (").reason == "shell_syntax"
    assert SHELL.compare("ls (", "ls").reason == "wrong_text"
    assert SHELL.compare("ls (", " ls (\n").score == 1


def test_a_user_adds_a_utility():
    theirs, ours = "deploy -n 3 -q web", "deploy web --count=3"
    assert score(theirs, ours) < 1
    table = TABLE.extended("deploy: word; takes n; same count=n; look q; danger *")
    mine = ShellVerifier(table=table)
    assert mine.compare(theirs, ours).score == 0.95
    assert mine.compare(theirs, "deploy -n 3 -q db").score == 0
    assert mine.settings != SHELL.settings
    assert program(theirs, table) != program(theirs)
    with pytest.raises(ConfigError, match="'flavour x' is no field"):
        TABLE.extended("deploy: word; flavour x")
    for bad in ({"threshold": 2.0}, {"table": 3}):
        with pytest.raises(ConfigError):
            ShellVerifier(**bad)


# the verifier


def at(demonstration, before="Hello", tools=(BASH,)):
    messages = (
        Message(role="user", content=before),
        Message(role="assistant", content=demonstration.text, tool_calls=demonstration.calls),
    )
    trajectory = Trajectory(id="t", messages=messages, source=Source(file="t", format="openai"), tools=tools)
    return Candidate(trajectory=trajectory, turn=1)


def judge(demonstration, action, verifier=SHELL, **where):
    verdict = verify(verifier, at(demonstration, **where), Completion(action=action, text="", finish_reason="stop"))
    return verdict.value, verdict.reason


def call(name="bash", **arguments):
    return ToolCall(name=name, arguments=json.dumps(arguments))


def bash(command, **more):
    return Action(calls=(call(command=command, **more),))


def said(text):
    return Action(text=text)


def test_calls():
    assert judge(bash("ls -la"), bash("ls -a -l")) == (1, "match")
    assert judge(bash("ls"), said("ls")) == (0, "wrong_kind")
    assert judge(bash("ls"), bash("pwd")) == (0, "wrong_command")
    assert judge(bash("ls"), Action(calls=(*bash("ls").calls, *bash("rm a").calls))) == (0, "surplus_calls")
    assert judge(bash("ls"), Action(calls=(call(cmd="ls"),))) == (0, "invalid_arguments")
    assert judge(bash("ls"), Action(calls=(call(cmd=3),)), tools=None) == (0, "no_command")
    assert judge(bash("ls"), Action(calls=(ToolCall(name="bash", arguments="{"),))) == (0, "bad_arguments")
    assert judge(bash("ls", timeout=3), bash("ls", timeout=9), tools=None) == (1, "match")
    assert judge(bash("y", is_input=True), bash("y"), tools=None) == (0, "wrong_arguments")
    assert judge(Action(calls=(ToolCall(name="bash", arguments="{"),)), bash("ls")) == (None, "bad_demonstration")
    both = Action(calls=(*bash("cat a").calls, *bash("ls -la").calls))
    assert judge(both, Action(calls=(*bash("ls -al").calls, *bash("cat ./a").calls))) == (1, "match")
    assert judge(both, Action(calls=bash("ls -la").calls * 2)) == (0, "wrong_command")


def test_the_command_may_be_an_argv_and_have_its_own_directory():
    codex = Action(calls=(call("shell", command=["bash", "-lc", "cat a/b"], workdir="/x"),))
    assert judge(codex, Action(calls=(call("shell", command=["cat", "/x/a/b"]),)), tools=None) == (1, "match")
    assert (
        judge(codex, Action(calls=(call("shell", command=["bash", "-lc", "cat b"], workdir="/x/a"),)), tools=None)[0]
        == 1
    )
    assert (
        judge(codex, Action(calls=(call("shell", command=["bash", "-lc", "cat a/b"], workdir="/y"),)), tools=None)[0]
        == 0
    )


def test_where_nothing_was_demonstrated_nothing_is_judged():
    view = Action(calls=(call("editor", command="view", path="/a"),))
    assert judge(view, view, tools=None) == (None, "not_applicable")
    assert judge(said("Done."), said("Done.")) == (None, "not_applicable")


def test_the_working_directory_is_taken_from_the_state():
    theirs, ours = bash("cd /repo && python -m pytest tests"), bash("python -m pytest tests")
    assert judge(theirs, ours) == (0, "wrong_command")
    for before in ("ok\n[Current working directory: /repo]\n[exit 0]", "(x) root@b8ff:/repo# "):
        assert judge(theirs, ours, before=before) == (1, "match")
        assert judge(bash("cat /repo/a"), bash("cat a"), before=before) == (1, "match")
    assert judge(theirs, ours, before="[Current working directory: /other]")[0] == 0
    assert judge(bash("rm a"), bash("rm /repo/a"), before="root@b8ff:/repo# ") == (1, "match")


def test_fences():
    fence = "First I look.\n```bash\nls -la\n```"
    assert judge(said(fence), said("```sh\nls -a -l\n```")) == (1, "match")
    assert judge(said(fence), said("<think>```bash\nrm x\n```</think>\n" + fence)) == (1, "match")
    assert judge(said(fence), said("ls -la")) == (0, "no_command")
    assert judge(said(fence), said(f"{fence}\n```bash\nrm x\n```")) == (0, "dangerous_difference")
    assert judge(said(fence), bash("ls -la")) == (0, "wrong_kind")


def terminus(*keystrokes, version=2, **more):
    if version == 1:
        commands = [{"keystrokes": one, "is_blocking": True, "timeout_sec": 5} for one in keystrokes]
        value = {"state_analysis": "s", "explanation": "e", "commands": commands, "is_task_complete": False}
    else:
        value = {"analysis": "a", "plan": "p", "commands": [{"keystrokes": one, "duration": 0.1} for one in keystrokes]}
    return value | more


def sent(value):
    return said(json.dumps(value))


@pytest.mark.parametrize("version", [1, 2])
def test_terminus_accepts_the_same_keystrokes(version):
    theirs = sent(terminus("cd /a\n", "ls -la\n", version=version))
    same = terminus("cd /a\nls -a -l\n", version=version)
    assert judge(theirs, sent(same)) == (1, "match")
    same["commands"][0].update({"timeout_sec": 90, "is_blocking": False} if version == 1 else {"duration": 60})
    assert judge(theirs, sent(same)) == (1, "match")
    for text in (f"```json\n{json.dumps(same)}\n```", f"<think>{{}}</think>\nSo:\n{json.dumps(same)}"):
        assert judge(theirs, said(text)) == (1, "match")
    assert judge(theirs, theirs) == (1, "match")


def test_terminus_refuses_what_is_done_otherwise():
    theirs = sent(terminus("rm -rf /data/a\n"))
    assert judge(theirs, sent(terminus("rm -rf /data/b\n"))) == (0, "dangerous_difference")
    assert judge(theirs, sent(terminus("rm -rf /data/a"))) == (0, "wrong_command")
    assert judge(theirs, sent(terminus("C-c", "rm -rf /data/a\n"))) == (0, "dangerous_difference")
    assert judge(theirs, sent(terminus())) == (0, "dangerous_difference")
    assert judge(theirs, bash("rm -rf /data/a")) == (0, "wrong_kind")
    assert judge(sent(terminus("cd /a\n")), sent(terminus("cd /b\n"))) == (0, "wrong_command")
    assert judge(sent(terminus("cd /a\n", "cat b\n")), sent(terminus("cat /a/b\n"))) == (0, "wrong_command")
    assert judge(sent(terminus("C-c")), sent(terminus("C-d"))) == (0, "wrong_command")
    assert judge(sent(terminus("ls (")), sent(terminus("ls ("))) == (1, "match")


def test_task_complete_counts_both_ways():
    done, open_ = sent(terminus("ls\n", task_complete=True)), sent(terminus("ls\n"))
    assert judge(done, open_) == judge(open_, done) == (0, "task_complete")
    assert judge(open_, sent(terminus("ls\n", task_complete=False))) == (1, "match")
    assert judge(sent(terminus(task_complete=True)), sent(terminus(task_complete=True))) == (1, "match")


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "null",
        "[1]",
        '{"commands": 3}',
        json.dumps(terminus("ls\n", foo=1)),
        json.dumps(terminus("ls\n", plan=None)),
        json.dumps(terminus("ls\n", task_complete=1)),
        json.dumps(terminus("ls\n", version=1)),
        json.dumps(terminus("ls\n") | {"commands": ["ls\n"]}),
        json.dumps(terminus("ls\n") | {"commands": [{"keystrokes": "ls\n", "duration": True}]}),
        json.dumps(terminus("ls\n") | {"commands": [{"duration": 1}]}),
        json.dumps(terminus("ls\n"))[:-1],
        json.dumps(terminus("ls\n")) * 2,
        "[" * 100_000 + "{" * 100_000 + "}",
        json.dumps(terminus("ls\n") | {"\ud800": 1}),
    ],
    ids=lambda text: text[:20],
)
def test_terminus_schema_first(bad):
    assert judge(sent(terminus("ls\n")), said(bad)) == (0, "bad_schema")
    assert SHELL(at(sent(terminus("ls\n"))), said(bad)).detail.encode()


def test_a_terminus_demonstration_against_the_schema_is_not_graded():
    assert judge(sent(terminus("ls\n", foo=1)), sent(terminus("ls\n"))) == (None, "bad_demonstration")


def test_the_benchmark_prints_one_object_last(tmp_path):
    rows = [
        {"description": "a", "references": ["ls -la"], "prediction": "ls -a -l", "correct": True},
        {"description": "a", "references": ["ls -la"], "prediction": "ls", "correct": False},
        {"description": "b", "references": ["rm a", "rm ./a"], "prediction": "rm b", "correct": False},
    ]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    script = Path(__file__).parents[1] / "benchmarks" / "shell_judgements.py"
    run = subprocess.run([sys.executable, script, file, "--json"], capture_output=True, text=True, check=True)
    result = json.loads(run.stdout.splitlines()[-1])
    assert (result["n"], result["default"]["precision"], result["default"]["recall"]) == (3, 1, 1)
    file.write_text("{}\n")
    failed = subprocess.run([sys.executable, script, file], capture_output=True, text=True)
    assert failed.returncode == 1
    assert len(failed.stderr.splitlines()) == 1
