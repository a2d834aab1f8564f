"""The openai policy against a real HTTP server of the test's own: what is sent, what is read, and every way to fail."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from fake_openai import Asked, FakeServer, Faulty, Reply, chat, obliging, refusal, words
from kill_harness import RUN, make_desk
from pivotrl.cli import main
from pivotrl.errors import ConfigError, PivotRLError, ServerError
from pivotrl.ledger import Ledger
from pivotrl.models import ModelSettings, load_model
from pivotrl.openai_client import MOST_TOKENS, Garbled, _tokens
from pivotrl.policies import OpenAISettings, load_policy
from pivotrl.policies.openai import OpenAIPolicy
from pivotrl.policies.openai_wire import read_action, read_answer, request_seed, to_leave_out, wire_messages
from pivotrl.policies.torch import TorchPolicy
from pivotrl.profile_settings import ProfileConfig
from pivotrl.profiling import profile
from pivotrl.types import Completion, Message, SamplingParams, State, Tool, ToolCall
from tiny import desk_candidates, saved_model

pytest.importorskip("httpx2")
PARAMS = SamplingParams(max_new_tokens=32)
QUICK = OpenAISettings(backoff=0.001, timeout=60.0)
IMPATIENT = replace(QUICK, timeout=1.0)
LOOK_UP = Tool(name="look_up", parameters={"type": "object", "properties": {"order": {"type": "string"}}})


def state(key: str = "t@1", text: str = "hello", tools: tuple[Tool, ...] | None = None) -> State:
    return State(key=key, messages=(Message(role="user", content=text),), tools=tools)


def opened(server: FakeServer, settings: OpenAISettings = QUICK, **how) -> OpenAIPolicy:
    return load_policy(f"openai:some/model@{server.url}", ModelSettings(**how), settings)


def sample(policy: OpenAIPolicy, states, n: int = 1, params: SamplingParams = PARAMS, seed: int = 0):
    return policy.sample(states, n=n, params=params, seed=seed)


def asked_for(server: FakeServer) -> list[Asked]:
    """What was asked for, the probes on opening aside."""
    return [asked for asked in server.asked if not asked.is_probe]


def only(*said, **how) -> Completion:
    """The one completion of a server that says this."""
    with FakeServer(lambda asked: chat(*said), probe=obliging) as server:
        ((completion,),) = [one.completions for one in sample(opened(server, **how), [state()])]
    return completion


def single(asked: Asked) -> Reply:
    """A server that does not know `n`."""
    return obliging(asked, 1)


# --- what is sent


def test_every_sampling_parameter_is_sent_and_choices_come_in_one_request():
    """A server has defaults of its own for what it is not told, so the neutral values are sent too."""
    with FakeServer() as server:
        policy = opened(server)
        (answer,) = sample(policy, [state()], n=5, params=SamplingParams(temperature=0.7, top_p=0.9, max_new_tokens=7))
    (asked,) = asked_for(server)
    assert asked.path == "/chat/completions"
    sent = {name: value for name, value in asked.body.items() if name not in ("model", "messages")}
    assert sent == {
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": -1,
        "min_p": 0.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "max_tokens": 7,
        "n": 5,
        "seed": request_seed(0, "t@1", 0),
        "logprobs": True,
        "return_token_ids": True,
    }
    assert asked.body["model"] == "some/model"
    assert [one.text for one in answer.completions] == [words(asked.body, index) for index in range(5)]


def test_histories_follow_the_openai_schema():
    """Arguments as text whatever they hold, and an id for each call and its result also where the source has none."""
    calls = (
        ToolCall(name="look_up", arguments='{"order": 1'),
        ToolCall(name="look_up", arguments=None),
        ToolCall(name="close", arguments="{}", id="mine"),
    )
    history = (
        Message(role="system", content="Be brief."),
        Message(role="assistant", reasoning="hm", tool_calls=calls),
        Message(role="tool", content="one"),
        Message(role="tool", content="three", tool_call_id="mine"),
        Message(role="tool", content="two", name="look_up"),
    )
    wired = wire_messages(history, reasoning=True)
    made = wired[1]["tool_calls"]
    assert [call["function"]["arguments"] for call in made] == ['{"order": 1', "{}", "{}"]
    assert [call["type"] for call in made] == ["function"] * 3
    ids = [call["id"] for call in made]
    assert ids[2] == "mine"
    assert len(set(ids)) == 3
    assert all(len(one) == 9 and one.isalnum() for one in ids[:2])
    assert [message["tool_call_id"] for message in wired[2:]] == [ids[0], "mine", ids[1]]
    assert wired[1]["content"] == ""
    assert wired[1]["reasoning_content"] == "hm"
    assert wired[4]["name"] == "look_up"
    assert "reasoning_content" not in wire_messages(history, reasoning=False)[1]
    assert wire_messages(history[:3], reasoning=True) == wired[:3]  # prefixes stay prefixes, for the server's cache


def test_tools_and_thinking_are_sent_where_there_are_any():
    with FakeServer() as server:
        policy = opened(server, replace(QUICK, concurrency=1), thinking="off")
        sample(policy, [state(tools=(LOOK_UP,)), state("u@1", tools=()), state("v@1")])
    asked = asked_for(server)
    function = {"name": "look_up", "description": "", "parameters": LOOK_UP.parameters}
    assert asked[-1].body["tools"][0]["function"] == function
    assert ["tools" in one.body for one in asked] == [False, False, True]  # the longest comes last
    assert all(one.body["chat_template_kwargs"] == {"enable_thinking": False} for one in asked)


def test_requests_come_shortest_state_first_and_answers_go_to_their_states():
    """So that the server's prefix cache has met the shorter states of a trajectory when a longer one comes."""
    with FakeServer(single) as server:
        policy = opened(server, replace(QUICK, concurrency=1))
        states = [state(f"t@{length}", "x" * length) for length in (400, 100, 300, 200)]
        answers = sample(policy, states, n=3)
    asked = asked_for(server)
    said = {(len(one.body["messages"][0]["content"]), one.body["seed"]): words(one.body) for one in asked}
    ordered = [(length, request_seed(0, f"t@{length}", i)) for length in (100, 200, 300, 400) for i in range(3)]
    assert list(said) == ordered
    assert len({seed for _, seed in ordered}) == 12
    for length, answer in zip((400, 100, 300, 200), answers, strict=True):
        seeds = [request_seed(0, f"t@{length}", index) for index in range(3)]
        assert [one.text for one in answer.completions] == [said[length, seed] for seed in seeds]


def test_as_many_requests_at_once_as_allowed_and_never_more():
    barrier = threading.Barrier(4, timeout=60)

    def answer(asked: Asked) -> Reply:
        barrier.wait()  # passes only when four requests are under way together
        return obliging(asked)

    with FakeServer(answer, probe=obliging) as server:
        sample(opened(server, replace(QUICK, concurrency=4)), [state(f"t@{index}") for index in range(20)], n=2)
        assert server.most_at_once == 4
        assert len(asked_for(server)) == 20


def test_works_where_an_event_loop_is_running():
    async def in_a_notebook(policy: OpenAIPolicy):
        return sample(policy, [state()])

    with FakeServer() as server:
        (answer,) = asyncio.run(in_a_notebook(opened(server)))
    assert answer.completions[0].finish_reason == "stop"


# --- what opening finds out


def test_without_n_and_for_greedy_actions_every_sample_is_a_request_of_its_own():
    with FakeServer(single) as server:
        (answer,) = sample(opened(server), [state()], n=4)
    assert [asked.body["n"] for asked in asked_for(server)] == [1] * 4
    assert len({one.text for one in answer.completions}) == 4
    with FakeServer() as server:
        sample(opened(server), [state()], n=4, params=replace(PARAMS, temperature=0))
    assert [asked.body["n"] for asked in asked_for(server)] == [1] * 4


def test_cloned_choices_are_not_used(capfd):
    """SGLang's deterministic mode gives n equal choices (Tencent-Hunyuan/UniRL#208): variance would be 0 everywhere."""

    def cloning(asked: Asked) -> Reply:
        return chat(*[words(asked.body)] * asked.body["n"])

    with FakeServer(cloning) as server:
        sample(opened(server), [state()], n=3)
        assert len(asked_for(server)) == 3
        assert "came out equal" in capfd.readouterr().err
        sample(opened(server, replace(QUICK, samples_per_request=2)), [state()], n=3)
        assert sorted(asked.body["n"] for asked in asked_for(server)[3:]) == [1, 2]


def test_a_server_that_samples_greedily_is_pointed_out(capfd):
    with FakeServer(lambda asked: chat("always this")) as server:
        opened(server)
    assert "may sample greedily" in capfd.readouterr().err


def strict(asked: Asked) -> Reply:
    """A server that refuses fields that it does not know, in the words of `transformers serve`."""
    unexpected = asked.body.keys() - {"model", "messages", "temperature", "top_p", "max_tokens", "n", "seed"}
    if unexpected:
        return Reply(status=422, body={"detail": f"Unexpected fields in the request: {unexpected}"})
    return single(asked)


def test_what_a_server_refuses_is_left_out_and_named_in_the_fingerprint(capfd):
    with FakeServer(strict) as server:
        policy = opened(server)
        assert sample(policy, [state()], n=2)[0].completions[0].finish_reason == "stop"
        sent = {"model", "messages", "temperature", "top_p", "max_tokens", "n", "seed"}
        assert set(asked_for(server)[0].body) == sent
        left_out = "frequency_penalty, min_p, presence_penalty, repetition_penalty, top_k"
        assert policy.fingerprint.numerics == f"over HTTP; no token ids; not sent: {left_out}"
        assert left_out in capfd.readouterr().err
        with pytest.raises(ConfigError, match="does not take top_k"):
            sample(policy, [state()], params=SamplingParams(top_k=20))


@pytest.mark.parametrize(
    ("message", "left_out"),
    [
        ("Unrecognized request arguments supplied: min_p, top_k", {"min_p", "top_k"}),
        ("Unsupported parameter: 'max_tokens'; use 'max_completion_tokens' instead. ('max_tokens')", {"max_tokens"}),
        ("Only one completion choice is allowed", {"n"}),
        ("['body', 'seed']: Extra inputs are not permitted", {"seed"}),
        ("Bad Request", {"n"}),
    ],
)
def test_refusals_in_the_words_of_real_servers(message, left_out):
    """OpenAI twice, llama.cpp, Mistral, and one that says nothing."""
    assert to_leave_out(message, frozenset()) == left_out


def test_a_refusal_without_a_cause_ends_in_one_line():
    refused = pytest.raises(ConfigError, match=r"refuses every request: 400 no such thing invalid")
    with FakeServer(lambda asked: refusal(400, "no such thing", code="invalid")) as server, refused:
        opened(server)
    assert len({tuple(asked.body) for asked in server.asked}) == len(server.asked) < 10


def test_newer_openai_models_get_their_own_limit():
    def answer(asked: Asked) -> Reply:
        if "max_tokens" in asked.body:
            return refusal(400, "Use 'max_completion_tokens' instead.", param="max_tokens")
        return obliging(asked)

    with FakeServer(answer) as server:
        sample(opened(server), [state()])
    assert server.asked[-1].body["max_completion_tokens"] == 32
    assert "max_tokens" not in server.asked[-1].body


# --- what is read


CALL = {"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": '{"order": "A1"}'}}


def test_calls_as_the_server_parsed_them():
    message = {"role": "assistant", "content": None, "reasoning_content": "Look first.", "tool_calls": [CALL]}
    completion = only(message)
    assert completion.action.calls == (ToolCall(name="look_up", arguments='{"order": "A1"}', id="c1"),)
    assert completion.action.reasoning == "Look first."
    assert completion.action.text is None
    assert json.loads(completion.text) == {"reasoning_content": "Look first.", "tool_calls": [CALL]}
    assert completion.finish_reason == "stop"
    assert completion.parse_error is None


@pytest.mark.parametrize(
    ("given", "kept"), [("{broken", "{broken"), ("", ""), ({"order": "A1"}, '{"order": "A1"}'), (None, "null")]
)
def test_arguments_stay_as_they_came(given, kept):
    """Unparsable arguments are kept as evidence; an object, as some servers give it, is written once."""
    completion = only({"content": None, "tool_calls": [{"function": {"name": "look_up", "arguments": given}}]})
    assert completion.action.calls == (ToolCall(name="look_up", arguments=kept),)


def test_calls_left_in_the_text_are_parsed_here():
    text = '<think>Hm.</think>On it.\n<tool_call>\n{"name": "look_up", "arguments": {"order": "A1"}}\n</tool_call>'
    completion = only(text)
    assert completion.text == text
    assert completion.action.calls[0].name == "look_up"
    assert (completion.action.text, completion.action.reasoning) == ("On it.", "Hm.")
    bare = '{"name": "look_up", "parameters": {"order": "A1"}}'
    assert only(bare).action.calls[0].name == "look_up"
    assert only(bare, tool_parser="hermes").action.text == bare


def test_text_that_is_no_action_is_unparsable_not_lost():
    completion = only("<tool_call>{broken</tool_call>")
    assert completion.unparsable
    assert completion.parse_error.startswith("invalid_json")
    empty = only({"content": None})
    assert empty.unparsable
    assert empty.parse_error.startswith("empty")


@pytest.mark.parametrize(
    ("given", "read"),
    [("stop", "stop"), ("tool_calls", "stop"), (None, "stop"), ("length", "length"), ("content_filter", "error")],
)
def test_finish_reasons(given, read):
    with FakeServer(lambda asked: chat("Hello.", finish=given), probe=obliging) as server:
        (completion,) = sample(opened(server), [state()])[0].completions
    assert (completion.finish_reason, completion.text) == (read, "Hello.")


def test_logprobs_and_ids_of_chat_answers():
    def answer(asked: Asked) -> Reply:
        reply = chat("Hello.")
        listed = [{"token": "a", "logprob": -0.5}, {"token": "b", "logprob": -1}]
        reply.body["choices"][0] |= {"logprobs": {"content": listed}, "token_ids": [5, 6]}
        return replace(reply, body=reply.body | {"prompt_token_ids": [1, 2, 3]})

    with FakeServer(answer) as server:
        policy = opened(server)
        (warm,) = sample(policy, [state()])
        (cold,) = sample(policy, [state()], params=replace(PARAMS, temperature=0.5))
    assert warm.prompt_ids == (1, 2, 3)
    assert warm.completions[0].token_ids == (5, 6)
    assert warm.completions[0].token_logprobs == (-0.5, -1.0)
    assert warm.completions[0].logprob == -1.5
    assert cold.completions[0].logprob is None  # servers differ in whether the temperature is in it
    assert policy.fingerprint.numerics == "over HTTP"


def test_numbers_that_cannot_be_are_not_taken_over():
    def read(**said):
        return read_answer({"choices": [{"text": "x", "token_ids": [5, 6], **said}], "usage": usage}, (1,))

    usage = {"prompt_tokens": 2**64 - 1, "completion_tokens": 1}
    for scores in ([1e308, 1e308], [-0.5], [-0.5] * 3, [-0.5, None], [-0.5, 2.0], ["-0.5", 0], {"0": 1}):
        assert read(logprobs={"token_logprobs": scores}).choices[0].token_logprobs is None
    for ids in ([-1, 5], [2**63, 5], [True, 5], [5.0, 5]):
        assert read(token_ids=ids).choices[0].token_ids == ()
    assert read().prompt_tokens == MOST_TOKENS
    assert _tokens({"usage": usage}) is None


def test_usage_is_the_server_s_and_lost_tries_count():
    lost = iter([Reply(body=b"{}")])
    with FakeServer(lambda asked: next(lost, None) or obliging(asked), probe=obliging) as server:
        policy = opened(server)
        policy.take_usage()
        sample(policy, [state(), state("u@1")], n=4)
        size = int(asked_for(server)[0].headers["Content-Length"])
    usage = policy.take_usage()
    assert (usage.rollouts, usage.turns, usage.generated_tokens) == (8, 8, 2 * 12 + 4 * 32)
    assert (usage.prefilled_tokens, usage.cached_tokens) == (2 * 40 + size, 2 * (60 + 3 * 100))
    assert policy.take_usage().rollouts == 0


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=5,
)


@hypothesis_settings(max_examples=100)
@given(data=st.data())
def test_no_answer_raises_anything_else(data):
    """Anything a server may put into the fields that are read is an answer or garbage."""
    fields = ("message", "text", "finish_reason", "token_ids", "logprobs", "prompt_token_ids")
    inside = ("content", "tool_calls", "reasoning_content", "tokens", "token_logprobs", "function")
    part = JSON | st.fixed_dictionaries({}, optional=dict.fromkeys(inside, JSON))
    choice = JSON | st.fixed_dictionaries({}, optional=dict.fromkeys(fields, part))
    document = data.draw(
        JSON | st.fixed_dictionaries({"choices": st.lists(choice, max_size=2)}, optional={"usage": part})
    )
    try:
        answer = read_answer(document, {1, 2})
    except Garbled:
        return
    for one in answer.choices:
        read_action(one, "auto", state(tools=(LOOK_UP,)))


# --- tokens in, tokens out


def serve_tokens(policy: TorchPolicy, *, ids: bool = True):
    """A completions server around the torch policy, as vLLM answers."""
    served = itertools.count()

    def answer(asked: Asked) -> Reply:
        states = {policy.chat.prompt_ids(one.state): one.state for one in desk_candidates()}
        now = states.get(tuple(asked.body["prompt"])) or state()
        params = SamplingParams(max_new_tokens=asked.body["max_tokens"])
        (sampled,) = policy.sample([now], n=asked.body["n"], params=params, seed=next(served))
        choices = []
        for one in sampled.completions:
            found = {"token_ids": list(one.token_ids)} if ids else {}
            logprobs = {"token_logprobs": list(one.token_logprobs)}
            choices.append({"text": one.text, "finish_reason": one.finish_reason, "logprobs": logprobs, **found})
        return Reply(body={"choices": choices})

    return answer


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return saved_model(tmp_path_factory.mktemp("tiny"))


def test_tokens_in_and_out_are_those_of_the_torch_policy(model):
    """Rendered and parsed by one chat format: the completions that come over HTTP are the ones that were sampled."""
    torch_policy = TorchPolicy(load_model(str(model), ModelSettings()))
    models = {"data": [{"id": "other", "max_model_len": 1}, {"id": "some/model", "max_model_len": 4096}]}
    with FakeServer(serve_tokens(torch_policy), models=models) as server:
        policy = opened(server, replace(QUICK, tokenizer=str(model), concurrency=1))
        states = [one.state for one in desk_candidates()[:4]]
        found = sample(policy, states, n=3)
    assert [one.prompt_ids for one in found] == [torch_policy.chat.prompt_ids(one) for one in states]
    for asked in server.asked:
        assert asked.path == "/completions"
        assert asked.body["stop_token_ids"] == sorted(torch_policy.chat.stop_ids)
        assert asked.body["skip_special_tokens"] is False
    for one, now in zip(found, states, strict=True):
        for completion in one.completions:
            text = torch_policy.chat.text_of(completion.token_ids)
            parsed = torch_policy.chat.parse(text, now)
            assert (completion.text, completion.action, completion.parse_error) == (text, parsed.action, parsed.error)
            assert len(completion.token_logprobs) == len(completion.token_ids) > 0
    assert policy.context_length == 4096
    same = policy.fingerprint.differences(torch_policy.fingerprint)
    assert same == ["weights", "numerics"]
    assert policy.count_tokens(states[0]) == torch_policy.count_tokens(states[0])


def test_without_ids_the_text_is_read(model, capfd):
    answer = serve_tokens(TorchPolicy(load_model(str(model), ModelSettings())), ids=False)
    with FakeServer(answer) as server:
        policy = opened(server, replace(QUICK, tokenizer=str(model), concurrency=1, context_length=77))
        (found,) = sample(policy, [desk_candidates()[0].state], n=2)
    assert all(one.token_ids == () and one.text for one in found.completions)
    assert "gives no token ids: good for profiles and evaluations only" in capfd.readouterr().err
    assert policy.context_length == 77


# --- failures


def test_passing_failures_are_tried_again():
    """Each kind once, then an answer: nothing is lost and nothing comes twice."""
    bad = [
        Reply(status=500, body=b"oops"),
        Reply(how="stall"),
        replace(chat("A byte a second."), how="trickle"),
        Reply(body=b"x" * 100, how="cut"),
        Reply(body=b"\xff\xfe"),
        Reply(body={"choices": []}),
        chat("One", "too many."),
        Reply(body=b'{"choices": [{"text": "a", "logprobs": {"token_logprobs": [NaN]}}]}'),
        Reply(body={"choices": [{"message": {"content": 5}}]}),
        Reply(body={"choices": [{"message": {"content": "a"}, "finish_reason": "abort"}]}),
        Reply(body={"error": {"message": "upstream", "code": 502}}),
    ]
    left = iter(bad)
    with FakeServer(lambda asked: next(left, None) or chat("There."), probe=obliging) as server:
        (answer,) = sample(opened(server, replace(IMPATIENT, retries=20)), [state()])
    assert answer.completions[0].text == "There."
    assert next(left, None) is None


def test_retries_are_bounded_and_what_fails_keeps_its_reason():
    with FakeServer(lambda asked: Reply(status=500, body={"error": "no memory"}), probe=obliging) as server:
        (answer,) = sample(opened(server, replace(QUICK, retries=2)), [state()], n=3)
    assert len(asked_for(server)) == 3
    assert [one.finish_reason for one in answer.completions] == ["error"] * 3
    assert answer.completions[0].parse_error == "server: 500 no memory (try 3 of 3)"


@pytest.mark.parametrize(
    ("reply", "error", "message"),
    [
        (refusal(401, "bad key"), ConfigError, "environment variable"),
        (refusal(404, "no model some/model"), ConfigError, "check the model's name"),
        (Reply(status=307, headers={"Location": "/v1/elsewhere"}), ConfigError, "307 .*; check"),
        (refusal(402, "no money"), ServerError, "top up"),
        (refusal(429, "You exceeded your quota", code="insufficient_quota"), ServerError, "top up"),
        (Reply(status=500, body=b""), ServerError, "does not answer: 500"),
    ],
)
def test_what_no_request_would_be_spared_stops_in_one_line(reply, error, message):
    with FakeServer(lambda asked: reply) as server, pytest.raises(error, match=message) as raised:
        opened(server, replace(QUICK, retries=1))
    assert "\n" not in str(raised.value)
    assert server.url in str(raised.value)


def test_a_server_that_is_gone_stops_the_stage():
    with FakeServer() as server:
        policy = opened(server, replace(QUICK, retries=1))
    with pytest.raises(ServerError, match="mend the server"):
        sample(policy, [state()])


def test_a_refused_state_fails_alone_unless_nothing_was_ever_accepted():
    """However many are refused in a row; a server that takes no tools at all is another matter."""

    def answer(asked: Asked) -> Reply:
        return refusal(400, "bad tool") if "bad" in asked.body["messages"][0]["content"] else single(asked)

    with FakeServer(answer) as server:
        policy = opened(server, replace(QUICK, concurrency=1))
        with pytest.raises(ConfigError, match="refuses all that it is first asked: 400 bad tool"):
            sample(policy, [state(text="bad")])
        good, bad = sample(policy, [state(), state("u@1", "bad and long")], n=40)
    assert bad.completions[39].parse_error == "server: 400 bad tool"
    assert {one.finish_reason for one in bad.completions} == {"error"}
    assert {one.finish_reason for one in good.completions} == {"stop"}


@pytest.mark.parametrize("seed", range(2))
def test_a_faulty_server_loses_and_doubles_nothing(seed):
    """One request in five is answered badly, in one of six ways: every sample arrives once, at its own place."""
    faulty = Faulty(0.2, seed)
    with FakeServer(faulty, probe=obliging) as server:
        states = [state(f"t@{index}", f"state {index}") for index in range(150)]
        answers = sample(opened(server, replace(IMPATIENT, retries=30)), states, n=3)
    good = {one.body["messages"][0]["content"]: [words(one.body, i) for i in range(3)] for one in asked_for(server)}
    assert [[one.text for one in answer.completions] for answer in answers] == [good[f"state {i}"] for i in range(150)]
    assert faulty.served["good"] >= 150
    assert all(faulty.served.values())


# --- in a run


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    return make_desk(tmp_path) / RUN


def configured(desk: Path, url: str, **settings) -> ProfileConfig:
    openai = replace(QUICK, url=url, **settings)
    return ProfileConfig(run=desk, policy="openai:some/model", rollouts=4, sampling=PARAMS, openai=openai)


def stored(result) -> list[dict]:
    return [json.loads(line) for line in (result.folder / "rollouts/part-00000.jsonl").read_bytes().splitlines()]


def test_a_profile_through_a_faulty_server_counts_the_unscored(desk):
    """One request in five is answered badly and not tried again: each rollout is stored once, scored or not."""
    with FakeServer(Faulty(0.2, 1), probe=obliging) as server:
        result = profile(configured(desk, server.url, retries=0, timeout=5.0))
    rows = stored(result)
    assert Counter((row["candidate_id"], row["sample"]) for row in rows) == Counter(
        (one.candidate_id, sample) for one in result.profiles for sample in range(4)
    )
    failed = sum(row["completion"]["finish_reason"] == "error" for row in rows)
    assert 0 < failed < len(rows)
    assert sum(one.unscored for one in result.profiles) == failed
    assert sum(one.n for one in result.profiles) == len(rows) - failed
    assert Ledger(desk / "ledger.jsonl").totals()["profile", "base"].rollouts == len(rows)


PRICES = {"price_in": 1000.0, "price_out": 10_000.0}
"""A request of 600 prompt tokens and 4 choices of 3 costs 0.72; it may take 1.28 for the choices alone."""


def test_a_profile_stopped_by_the_cap_goes_on_where_it_was(desk, capfd):
    """What was sampled before the cap is kept, and no rollout is asked for again."""

    def dear(asked: Asked) -> Reply:
        reply = obliging(asked)
        reply.body["usage"]["prompt_tokens"] = 600
        return reply

    with FakeServer(dear) as server:
        with pytest.raises(ServerError, match=r"of the cap of 12 are spent, and the next trajectory may take \d"):
            profile(configured(desk, server.url, **PRICES, max_cost=12.0))
        before = len(asked_for(server))
        assert before * 0.72 < 12
        result = profile(configured(desk, server.url))
        assert 0 < before < len(asked_for(server)) == len(result.profiles)
    assert all(one.n == 4 for one in result.profiles)
    estimate = capfd.readouterr().err.split("some/model: ")[2]
    count = len(result.profiles)
    assert estimate.startswith(f"{count} requests for {4 * count} actions, ")
    assert f"(estimated) and at most {4 * 32 * count:,} generated tokens; at most" in estimate


def test_a_cap_of_nothing_sends_nothing_and_says_once_what_it_takes(desk, capfd):
    says = (
        r"cap is reached: nothing of 0 is spent, and the next request may cost \d.*; raise --openai\.max-cost and run"
    )
    with FakeServer() as server:
        with pytest.raises(ServerError, match=says):
            profile(configured(desk, server.url, **PRICES, max_cost=0.0))
        assert not server.asked
    assert "cap is reached" not in capfd.readouterr().err, "the error itself says so"


def test_the_chain_through_a_server(desk, capsys, monkeypatch):
    """From the command line; `evaluate` asks as the profile did, and `train` says that there are no weights."""
    monkeypatch.setenv("MY_KEY", "sk-canary")
    given = ("--openai.key-variable", "MY_KEY", "--openai.extra", '{"user": "me"}', "--openai.backoff", "0.001")
    with FakeServer() as server:
        spec = f"openai:some/model@{server.url}"
        assert main(["profile", "--run", str(desk), "--policy", spec, "--rollouts", "2", *given]) == 0
        first = len(server.asked)
        assert main(["evaluate", "--run", str(desk), "--rollouts", "2"]) == 0
        assert len(server.asked) > first
        two = ("--policies", "first=scripted:desk_plugins:always_right", f"it={spec}", "--name", "both")
        short = ("--scope.max-prompt-tokens", "200")  # by the first policy's tokens; the other one can only estimate
        assert main(["evaluate", "--run", str(desk), "--rollouts", "2", *two, *short, *given]) == 0
        env = ("--env", "skills", "--tasks", "8", "--policies", f"it={spec}")
        assert main(["evaluate", "--run", str(desk), *env]) == 0
        assert main(["select", "--run", str(desk), "--lambda-diff", "0.9"]) in (0, 2)
        assert main(["train", "--run", str(desk), "--method", "unfiltered"]) == 2
        (line,) = [line for line in capsys.readouterr().err.splitlines() if "weights" in line]
    assert line == f"error: policy {spec!r} has no weights to train; name a model with --policy"
    assert {asked.headers["Authorization"] for asked in server.asked} == {"Bearer sk-canary"}
    assert {asked.body["user"] for asked in server.asked} == {"me"}
    assert json.loads((desk / "eval/heldout/result.json").read_bytes())["scores"][0]["policy"] == "base"
    files = b"".join(path.read_bytes() for path in desk.rglob("*") if path.is_file())
    assert b"canary" not in files


@pytest.fixture
def interruptible():
    """Ctrl-C as in a terminal; a shell starts its background jobs with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_a_policy_that_was_interrupted_can_be_asked_again():
    """What was under way is cancelled, and nothing of it comes back."""
    stalls = iter(range(4))

    def answer(asked: Asked) -> Reply:
        if next(stalls) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return Reply(how="stall")

    with FakeServer(answer, probe=obliging) as server:
        policy = opened(server)
        with pytest.raises(KeyboardInterrupt):
            sample(policy, [state(f"t@{index}") for index in range(4)])
        server.answer = obliging
        assert sample(policy, [state()])[0].completions[0].finish_reason == "stop"


# --- names and settings


@pytest.mark.parametrize(
    "spec",
    [
        "openai:model",
        "openai:@http://host/v1",
        "openai:model@ftp://host/v1",
        "openai:model@http://user:hunter2@host/v1",
        "openai:model@http://host/v1?key=hunter2",
        "openai:model@http://:80/v1",
    ],
)
def test_addresses_that_cannot_be_asked(spec):
    with pytest.raises(ConfigError) as raised:
        load_policy(spec, ModelSettings(), QUICK)
    assert "hunter2" not in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"concurrency": 0},
        {"backoff": float("nan")},
        {"max_cost": 5.0},
        {"extra": "[]"},
        {"extra": "{"},
        {"samples_per_request": -1},
        {"context_length": -1},
    ],
)
def test_settings_that_cannot_work(settings):
    with pytest.raises(PivotRLError, match=next(iter(settings)).replace("_", ".")):
        OpenAISettings(**settings)


def test_a_server_that_renders_cannot_parse_as_a_tokenizer_does(capfd):
    with FakeServer() as server:
        for parser in ("tokenizer", "nonsense"):
            with pytest.raises(ConfigError, match=r"needs --openai\.tokenizer"):
                opened(server, tool_parser=parser)
        opened(server, chat_template="chatml-tools")
    assert "--model.chat-template is not used" in capfd.readouterr().err


def test_the_fingerprint_says_what_changes_the_policy():
    with FakeServer() as server, FakeServer() as elsewhere:
        plain = opened(server).fingerprint
        assert plain.weights == "openai:some/model"
        assert (plain.tokenizer, plain.chat_template, plain.tool_parser) == ("server", "server", "server, else auto")
        assert opened(elsewhere, replace(QUICK, concurrency=3, retries=1)).fingerprint == plain
        assert opened(server, thinking="on").fingerprint.differences(plain) == ["thinking"]
        assert opened(server, tool_parser="xml").fingerprint.differences(plain) == ["tool_parser"]
        for changed in ({"history_reasoning": False}, {"extra": '{"a": 1}'}):
            assert opened(server, replace(QUICK, **changed)).fingerprint.differences(plain) == ["numerics"]
