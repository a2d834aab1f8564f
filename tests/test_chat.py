"""Rendering and reading: the toy template, the shipped one, and templates with the defects that real ones have."""

from __future__ import annotations

import dataclasses

import pytest

from pivotrl.chat import ChatFormat, RenderError, message_dict, read_template, same_action, tool_dict
from pivotrl.errors import ConfigError, MissingError
from pivotrl.types import Action, Message, State, Tool, ToolCall
from tiny import desk_candidates
from toy_model import make_tokenizer

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_every_demonstration_is_recovered_from_its_target_ids():
    chat = ChatFormat(make_tokenizer())
    for candidate in desk_candidates():
        ids = chat.demonstration_ids(candidate.state, candidate.demonstration)
        assert ids[-1] in chat.stop_ids
        assert not any(token in chat.stop_ids for token in ids[:-1])
        parsed = chat.parse(chat.text_of(ids), candidate.state)
        assert parsed.action is not None
        assert same_action(parsed.action, candidate.demonstration)


def test_state_ids_are_a_prefix_of_the_next_state_ids():
    """What training and sampling assume of a template that does not rewrite history."""
    chat = ChatFormat(make_tokenizer())
    first, second = desk_candidates()[:2]
    target = (*chat.prompt_ids(first.state), *chat.demonstration_ids(first.state, first.demonstration))
    assert chat.prompt_ids(second.state)[: len(target)] == target


def test_shipped_template_renders_tools_calls_and_results():
    chat = ChatFormat(make_tokenizer(), template=read_template("chatml-tools"))
    assert chat.parser == "hermes"
    assert chat.renders_tools
    state = State(
        key="k",
        messages=(
            Message(role="system", content="Be brief."),
            Message(role="user", content="Weather?"),
            Message(
                role="assistant",
                content="I look.",
                tool_calls=(
                    ToolCall(name="weather", arguments='{"city": "Kraków"}'),
                    ToolCall(name="weather", arguments="{broken"),
                ),
            ),
            Message(role="tool", content="12 degrees", tool_call_id="1"),
        ),
        tools=(Tool(name="weather", parameters={"type": "object"}),),
    )
    text = chat._text(state.messages, state.tools, generation=True)
    assert text.startswith("<|im_start|>system\nBe brief.\n\n# Tools")
    assert '{"name": "weather", "arguments": {"city": "Kraków"}}' in text
    assert '{"name": "weather", "arguments": {broken}' in text
    assert text.endswith("<|im_start|>tool\n12 degrees<|im_end|>\n<|im_start|>assistant\n")
    bare = chat._text((Message(role="user", content="Hi"),), None, generation=True)
    assert bare == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


def test_template_that_leaves_tools_out_is_refused():
    chat = ChatFormat(make_tokenizer(), template=CHATML)
    assert not chat.renders_tools
    with pytest.raises(ConfigError, match="chatml-tools"):
        chat.prompt_ids(desk_candidates()[0].state)
    chat.prompt_ids(dataclasses.replace(desk_candidates()[0].state, tools=None))


def test_template_that_needs_a_system_message_for_tools_is_noticed_state_by_state():
    chat = ChatFormat(make_tokenizer())
    state = desk_candidates()[0].state
    with pytest.raises(RenderError, match="tools_left_out"):
        chat.prompt_ids(dataclasses.replace(state, messages=state.messages[1:]))


def test_template_that_rewrites_history_gives_no_target():
    rewriting = CHATML.replace("{{ m.content }}", "{{ m.content if loop.last else '...' }}")
    chat = ChatFormat(make_tokenizer(), template=rewriting)
    state = State(key="k", messages=(Message(role="user", content="Hi"),), tools=None)
    with pytest.raises(RenderError, match="template_rewrites_state"):
        chat.demonstration_ids(state, Action(text="Hello"))


def test_template_errors_name_the_template():
    strict = "{{ raise_exception('roles must alternate') }}"
    chat = ChatFormat(make_tokenizer(), template=strict)
    with pytest.raises(RenderError, match="roles must alternate"):
        chat.prompt_ids(State(key="k", messages=(Message(role="user", content="Hi"),), tools=None))


def test_tokenizer_without_template_and_unknown_parser_are_refused():
    bare = make_tokenizer()
    bare.chat_template = None
    with pytest.raises(ConfigError, match="chat-template FILE"):
        ChatFormat(bare)
    with pytest.raises(ConfigError, match="hermes"):
        ChatFormat(make_tokenizer(), parser="yaml")
    with pytest.raises(ConfigError, match="response template"):
        ChatFormat(make_tokenizer(), parser="tokenizer")
    with pytest.raises(MissingError, match="chatml-tools"):
        read_template("nowhere.jinja")


HERMES_RESPONSES = {
    "start_anchor": "<|im_start|>assistant\n",
    "defaults": {"role": "assistant"},
    "fields": {
        "content": {},
        "tool_calls": {
            "open": "<tool_call>",
            "close": "</tool_call>",
            "content": "json",
            "repeats": True,
            "transform": {"type": "function", "function": "{content}"},
        },
    },
}


def test_responses_are_parsed_by_the_tokenizer_where_it_can():
    """A response template in the tokenizer wins over our own syntaxes; what it cannot read is a bad action."""
    tokenizer = make_tokenizer()
    tokenizer.response_template = HERMES_RESPONSES
    chat = ChatFormat(tokenizer)
    assert chat.parser == "tokenizer"
    ours = ChatFormat(make_tokenizer())
    for candidate in desk_candidates():
        text = ours.text_of(ours.demonstration_ids(candidate.state, candidate.demonstration))
        parsed = chat.parse(text, candidate.state)
        assert parsed.action is not None, parsed.error
        assert same_action(parsed.action, candidate.demonstration)
    assert chat.parse("", desk_candidates()[0].state).error == "empty"
    broken = chat.parse('<tool_call>{"name": </tool_call>', desk_candidates()[0].state)
    assert broken.action is None
    assert broken.error is not None
    assert broken.error.startswith("response_template")


def test_unparsable_text_keeps_its_reason():
    chat = ChatFormat(make_tokenizer())
    parsed = chat.parse('<tool_call>\n{"name": "find_order"', desk_candidates()[0].state)
    assert parsed.action is None
    assert parsed.error is not None
    assert parsed.error.startswith("unclosed_call")


def test_message_and_tool_dicts():
    """Absent, null and empty arguments stay apart as far as templates can tell; null content never becomes 'None'."""
    calls = [ToolCall(name="f", arguments=text) for text in (None, "null", "{}", '{"a": 1}', "{oops")]
    message = Message(role="assistant", tool_calls=tuple(calls))
    arguments = [call["function"]["arguments"] for call in message_dict(message)["tool_calls"]]
    assert arguments == [{}, "null", {}, {"a": 1}, "{oops"]
    assert message_dict(message)["content"] == ""
    assert tool_dict(Tool(name="f"))["function"]["parameters"] == {"type": "object"}
