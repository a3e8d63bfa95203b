"""What an engine is asked, in OpenAI's words."""

from typing import Any

import pytest

from server.engines.client import SamplingParams, StructuredOutputsParams, ValidationError
from server.engines.textual.conversation import Conversation
from server.engines.textual.facts import Facts
from server.engines.textual.requests import CallForm, chat_request, check_params

HELLO = Conversation([{"role": "user", "content": "Hello"}])
VLLM, LLAMACPP, UNKNOWN = Facts("m", "vllm"), Facts("m", "llamacpp"), Facts("m", "")
ALWAYS = {"model", "messages", "stream", "stream_options", "max_tokens", "temperature", "top_p"}


def body(facts: Facts = VLLM, **given: Any) -> dict[str, Any]:
    params = SamplingParams(max_tokens=9, **given)
    check_params(facts, params)
    return chat_request(facts, HELLO, params, "")


def test_nothing_is_asked_for_that_was_not_said() -> None:
    assert set(body()) == ALWAYS
    assert set(body(temperature=0.0, top_k=5)) == ALWAYS  # the likeliest is one of any five


@pytest.mark.parametrize(
    ("facts", "given", "fields"),
    [
        (UNKNOWN, {"seed": 7, "stop": ["\n"]}, {"seed": 7, "stop": ["\n"]}),
        (UNKNOWN, {"presence_penalty": 0.5}, {"presence_penalty": 0.5}),
        (VLLM, {"top_k": 3, "min_p": 0.1}, {"top_k": 3, "min_p": 0.1}),
        (VLLM, {"repetition_penalty": 1.5}, {"repetition_penalty": 1.5}),
        (LLAMACPP, {"repetition_penalty": 1.5}, {"repeat_penalty": 1.5}),
        (VLLM, {"stop": list("abcdef")}, {"stop": list("abcdef")}),
    ],
)
def test_what_is_said_is_asked_for(
    facts: Facts, given: dict[str, Any], fields: dict[str, Any]
) -> None:
    asked = body(facts, **given)
    assert {name: asked[name] for name in asked.keys() - ALWAYS} == fields


def test_forms_are_asked_for_as_json_alone() -> None:
    of_json = body(structured_outputs=StructuredOutputsParams(json_object=True))
    assert of_json["response_format"] == {"type": "json_object"}
    schema = {"type": "object"}
    of_schema = body(structured_outputs=StructuredOutputsParams(json=schema))
    assert of_schema["response_format"]["json_schema"] == {
        "name": "answer",
        "schema": schema,
        "strict": True,
    }
    for form in ({"regex": "a+"}, {"choice": ["a"]}, {"json": schema, "begun": "{"}):
        with pytest.raises(ValidationError) as refusal:
            body(structured_outputs=StructuredOutputsParams(**form))
        assert refusal.value.parameter == "output"


def test_a_call_of_a_tool_is_asked_for_by_name() -> None:
    any_tool = body(structured_outputs=CallForm(json_object=True))
    assert any_tool["tool_choice"] == "required"
    one = body(structured_outputs=CallForm(json_object=True, tool="clock"))
    assert one["tool_choice"] == {"type": "function", "function": {"name": "clock"}}
    assert "response_format" not in one
