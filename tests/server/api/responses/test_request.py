"""What `POST /v1/responses` takes: fields as settings, and those that are refused by name."""

from typing import Any

import pytest

from server.api.responses.request import Asking, ResponsesRequest
from server.protocol.client_frames import to_struct
from server.protocol.errors import ApiError

Body = dict[str, Any]
TOOL = {"type": "function", "name": "look", "parameters": {"type": "object"}, "strict": True}


def request(**fields: Any) -> ResponsesRequest:
    found: ResponsesRequest = to_struct({"model": "m", "input": "x", **fields}, ResponsesRequest)
    return found


def test_fields_become_settings() -> None:
    asked = request(
        instructions="Be short.",
        temperature=0.5,
        top_p=0.5,
        max_output_tokens=7,
        tools=[TOOL],
        tool_choice={"type": "function", "name": "look"},
        include=["message.output_text.logprobs"],
    )
    assert asked.stored_settings().given() == {
        "model": "m",
        "system": "Be short.",
        "temperature": 0.5,
        "top_p": 0.5,
        "max_output_tokens": 7,
        "logprobs": 0,
        "tools": [{"type": "function", "name": "look", "parameters": {"type": "object"}}],
        "tool_choice": {"type": "function", "name": "look"},
    }


@pytest.mark.parametrize(
    ("given", "output"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, {"type": "json"}),
        (
            {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True},
            {"type": "json_schema", "schema": {"type": "object"}},
        ),
    ],
)
def test_a_form_is_asked_for(given: Body, output: Body | None) -> None:
    settings = request(text={"format": given}).stored_settings().given()
    assert settings.get("output") == output


def test_what_a_conversation_says_of_tools_forms_and_viewers_does_not_hold() -> None:
    assert request(conversation="conv_1").stored_settings().given() == {
        "model": "m",
        "max_output_tokens": 16384,
        "on_no_viewers": "continue",
        "tools": [],
        "output": {"type": "text"},
    }


def test_an_answer_without_a_limit_has_the_largest() -> None:
    assert request().stored_settings().max_output_tokens == 16384
    assert request(max_output_tokens=10**6).stored_settings().max_output_tokens == 16384


def test_the_whole_history_is_asked_for_unless_it_may_be_cut() -> None:
    assert request().other_settings == {"truncation": "disabled"}
    asked = request(truncation="auto", reasoning={"effort": "low"})
    assert asked.other_settings == {"truncation": "auto", "reasoning_effort": "low"}


def test_the_object_says_what_was_asked_for() -> None:
    assert request(tools=[TOOL], user="u", stream=True).echo() == {"tools": [TOOL], "user": "u"} | {
        "reasoning": {"effort": None, "summary": None}
    }


def test_what_has_no_effect_here_is_taken() -> None:
    asked = request(
        max_tool_calls=3,
        prompt_cache_key="k",
        prompt_cache_retention="24h",
        safety_identifier="s",
        service_tier="auto",
        stream_options={"include_obfuscation": False},
        text={"verbosity": "medium"},
        reasoning={"effort": "low", "summary": "auto"},
        include=["reasoning.encrypted_content"],
        parallel_tool_calls=True,
    )
    asked.check()
    asked.stored_settings()


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("input", {"input": None}),
        ("input", {"input": []}),
        ("prompt", {"prompt": {"id": "pmpt_1"}}),
        ("nonsense", {"nonsense": 1}),
        ("tools[0].type", {"tools": [{"type": "web_search"}]}),
        ("tools[0].type", {"tools": [{"type": "mcp", "server_label": "x", "server_url": "y"}]}),
        ("tools[0].name", {"tools": [{"type": "function", "name": "not a name"}]}),
        ("tool_choice", {"tool_choice": {"type": "file_search"}}),
        ("parallel_tool_calls", {"parallel_tool_calls": False, "tools": [TOOL]}),
        ("text.verbosity", {"text": {"verbosity": "low"}}),
        ("text.format.schema", {"text": {"format": {"type": "json_schema", "name": "x"}}}),
        ("include[0]", {"include": ["nonsense"]}),
        ("background", {"background": True, "store": False}),
        ("conversation", {"conversation": f"conv_{'x' * 22}", "store": False}),
        ("previous_response_id", {"previous_response_id": "x", "conversation": "y"}),
        ("temperature", {"temperature": 3}),
        ("instructions", {"instructions": "x" * 40_000}),
        ("top_logprobs", {"top_logprobs": 6}),
        ("truncation", {"truncation": "some"}),
        ("reasoning.mode", {"reasoning": {"mode": "pro"}}),
        ("reasoning.context", {"reasoning": {"context": "all_turns"}}),
        ("background_options", {"background_options": {}}),
        ("context_management", {"context_management": []}),
        ("access_programs", {"access_programs": {}}),
        ("image", {"image": {}}),
        ("moderation", {"moderation": {}}),
    ],
)
def test_a_field_that_cannot_be_honoured_is_refused_by_name(param: str, fields: Body) -> None:
    with pytest.raises(ApiError) as refused:
        asked = request(**fields)
        asked.check()
        asked.stored_settings()
    assert refused.value.param == param


@pytest.mark.parametrize("is_stored", [True, False])
@pytest.mark.parametrize(
    "metadata", [{"a": "x" * 513}, {"": "x"}, {"a" * 65: "x"}, {f"{n}": "x" for n in range(17)}]
)
def test_metadata_has_bounds(metadata: Body, is_stored: bool) -> None:
    with pytest.raises(ApiError) as refused:
        request(metadata=metadata, store=is_stored).check()
    assert refused.value.code == "invalid_field"
    assert (refused.value.param or "").startswith("metadata")


def test_more_of_each_token_is_given_where_nothing_is_stored() -> None:
    asked = request(top_logprobs=20, store=False)
    asked.check()
    assert asked.given_settings()["logprobs"] == 20


def test_tokens_are_counted_of_what_is_asked() -> None:
    asking: Asking = to_struct({"input": "x", "personality": "friendly"}, Asking)
    with pytest.raises(ApiError) as refused:
        asking.check()
    assert refused.value.param == "personality"
