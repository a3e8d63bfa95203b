"""What a body of `POST /v1/chat/completions` asks for, or why it is refused."""

from typing import Any

import pytest

from server.api.openai.chat_request import REFUSED, ChatRequest
from server.commands.stateless.asked import Asked
from server.generation.chat_messages import short_id
from server.protocol.client_frames import to_struct
from server.protocol.errors import ApiError

HELLO = [{"role": "user", "content": "Hello"}]
WEATHER = {"name": "weather", "description": "of a city", "parameters": {"type": "object"}}


def asked(**fields: Any) -> Asked:
    body = {"model": "m", "messages": HELLO} | fields
    request: ChatRequest = to_struct(body, ChatRequest)
    return request.asked


def test_nothing_is_asked_for_that_was_not_said() -> None:
    plain = asked()
    assert (plain.model, plain.messages, plain.num_answers) == ("m", HELLO, 1)
    assert (plain.settings, plain.parameters, plain.variables) == ({}, {}, {})


@pytest.mark.parametrize(
    ("fields", "settings"),
    [
        ({"temperature": 0, "top_p": 0.5, "seed": 7}, {"temperature": 0, "top_p": 0.5, "seed": 7}),
        ({"seed": -3}, {"seed": 3}),
        ({"stop": "\n"}, {"stop": ["\n"]}),
        ({"stop": ["a", "b"]}, {"stop": ["a", "b"]}),
        ({"max_tokens": 5}, {"max_output_tokens": 5}),
        ({"max_tokens": 5, "max_completion_tokens": 6}, {"max_output_tokens": 6}),
        ({"logprobs": True}, {"logprobs": 0}),
        ({"logprobs": True, "top_logprobs": 20}, {"logprobs": 20}),
        ({"top_logprobs": 3}, {}),
        ({"response_format": {"type": "text"}}, {}),
        ({"response_format": {"type": "json_object"}}, {"output": {"type": "json"}}),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"a": 1}}}},
            {"output": {"type": "json_schema", "schema": {"a": 1}}},
        ),
        (
            {"tools": [{"type": "function", "function": WEATHER}], "tool_choice": "none"},
            {"tools": [{"type": "function", **WEATHER}], "tool_choice": "none"},
        ),
        ({"tools": []}, {}),
        ({"tool_choice": "required"}, {"tool_choice": "required"}),
        (
            {"tool_choice": {"type": "function", "function": {"name": "weather"}}},
            {"tool_choice": {"type": "function", "name": "weather"}},
        ),
        (
            {
                "tools": [{"type": "function", "function": WEATHER}],
                "tool_choice": {"type": "function", "function": {"name": "weather"}},
                "parallel_tool_calls": False,
            },
            {
                "tools": [{"type": "function", **WEATHER}],
                "tool_choice": {"type": "function", "name": "weather"},
            },
        ),
        ({"thinking_token_budget": 7}, {"thinking_token_budget": 7}),
        ({"top_k": 3, "min_p": 0.1}, {"top_k": 3, "min_p": 0.1}),
        ({"user": "u", "metadata": {"a": "b"}, "store": False, "service_tier": "auto"}, {}),
    ],
)
def test_fields_are_settings(fields: dict[str, Any], settings: dict[str, Any]) -> None:
    assert asked(**fields).settings == settings


def test_the_last_message_is_what_the_answer_goes_on_with() -> None:
    said = [*HELLO, {"role": "assistant", "content": "Good eve"}]
    begun = asked(messages=said, continue_final_message=True, add_generation_prompt=False)
    assert (begun.messages, begun.answer) == (HELLO, "Good eve")
    assert asked(messages=said).answer == ""
    assert asked(add_generation_prompt=True).messages == HELLO


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"continue_final_message": True}, "continue_final_message"),
        (
            {
                "continue_final_message": True,
                "messages": [*HELLO, {"role": "assistant", "content": ""}],
            },
            "continue_final_message",
        ),
        (
            {"continue_final_message": True, "messages": [{"role": "assistant", "content": "x"}]},
            "continue_final_message",
        ),
        ({"continue_final_message": True, "add_generation_prompt": True}, "add_generation_prompt"),
        ({"add_generation_prompt": False}, "add_generation_prompt"),
    ],
)
def test_what_is_no_answer_cannot_go_on(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as refused:
        asked(**fields)
    assert refused.value.param == param


def test_what_no_setting_says_is_the_engines() -> None:
    assert asked(logit_bias={"5": -100}).parameters == {"logit_bias": {"5": -100}}
    held = {"ignore_eos": True, "min_tokens": 5}
    assert asked(**held).parameters == held
    assert asked(reasoning_effort="low").variables == {"reasoning_effort": "low"}
    assert asked(n=3).num_answers == 3


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        *(({name: {"type": "x"}}, name) for name in REFUSED),
        ({"store": True}, "store"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"nonsense": 1}, "nonsense"),
        ({"temperature": 3}, "temperature"),
        ({"n": 17}, "n"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "king"}]}, "messages[0].role"),
        ({"messages": [{"role": "tool", "tool_call_id": "c"}]}, "messages[0].tool_call_id"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content[0].type",
        ),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        (
            {
                "tools": [{"type": "function", "function": WEATHER}],
                "tool_choice": "required",
                "parallel_tool_calls": False,
            },
            "parallel_tool_calls",
        ),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as refused:
        asked(**fields)
    assert (refused.value.code, refused.value.param) == ("invalid_field", param)


def text(said: str) -> dict[str, str]:
    return {"type": "text", "text": said}


def test_a_conversation_is_what_templates_take() -> None:
    call = {
        "id": "call_of_the_model",
        "type": "function",
        "function": {"name": "weather", "arguments": '{"city": "Brno"}'},
    }
    messages = [
        {"role": "developer", "content": "Be short."},
        {"role": "user", "content": [text("How "), text("is it?")]},
        {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None},
        {"role": "tool", "tool_call_id": "call_of_the_model", "content": "rain"},
        {"role": "assistant", "content": "It rains.", "reasoning_content": "Rain is rain."},
    ]
    known = short_id("call_of_the_model")
    function = {"name": "weather", "arguments": {"city": "Brno"}}
    assert asked(messages=messages).messages == [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "How is it?"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": known, "type": "function", "function": function}],
        },
        {"role": "tool", "content": "rain", "tool_call_id": known, "name": "weather"},
        {"role": "assistant", "content": "It rains."},
    ]
