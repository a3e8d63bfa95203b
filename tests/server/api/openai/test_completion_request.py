"""What a body of `POST /v1/completions` asks for, or why it is refused."""

from typing import Any

import pytest

from server.api.openai.completion_request import CompletionRequest
from server.commands.stateless.asked import Asked
from server.protocol.client_frames import to_struct
from server.protocol.errors import ApiError


def asked(**fields: Any) -> Asked:
    request: CompletionRequest = to_struct(
        {"model": "m", "prompt": "Hello"} | fields, CompletionRequest
    )
    return request.asked


@pytest.mark.parametrize(
    ("given", "prompts"),
    [
        ("Hello", ["Hello"]),
        (["Hello"], ["Hello"]),
        (["Hello", "again"], ["Hello", "again"]),
        ([1, 2, 3], [[1, 2, 3]]),
        ([[1, 2]], [[1, 2]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
        (["Hello", [2, 3]], ["Hello", [2, 3]]),
        ("", [""]),
        ([], [[]]),
    ],
)
def test_prompts_are_texts_or_token_ids(given: Any, prompts: Any) -> None:
    assert asked(prompt=given).prompts == prompts


def test_it_is_short_unless_it_is_to_be_long() -> None:
    assert asked().settings == {"max_output_tokens": 16}
    assert asked(max_tokens=50, logprobs=2, stop="x").settings == {
        "max_output_tokens": 50,
        "logprobs": 2,
        "stop": ["x"],
    }
    assert asked(n=2, best_of=2, logit_bias={"3": 1}).parameters == {"logit_bias": {"3": 1}}


def test_an_echo_may_be_all_that_is_asked_for() -> None:
    only = asked(echo=True, max_tokens=0, logprobs=1)
    assert only.is_echoed and only.is_only_echoed
    assert only.settings["max_output_tokens"] == 1 and only.parameters == {"prompt_logprobs": 1}
    more = asked(echo=True)
    assert more.is_echoed and not more.is_only_echoed and more.parameters == {}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": [1, "b"]}, "prompt"),
        ({"prompt": [[1], 2]}, "prompt"),
        ({"prompt": ["a"] * 17, "n": 16}, "prompt"),
        ({"suffix": "end"}, "suffix"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"best_of": 3}, "best_of"),
        ({"logprobs": 21}, "logprobs"),
        ({"messages": []}, "messages"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as refused:
        asked(**fields)
    assert (refused.value.code, refused.value.param) == ("invalid_field", param)
