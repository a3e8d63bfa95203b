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
    ("given", "prompt"),
    [
        ("Hello", "Hello"),
        (["Hello"], "Hello"),
        ([1, 2, 3], [1, 2, 3]),
        ([[1, 2]], [1, 2]),
        ("", ""),
        ([], []),
    ],
)
def test_a_prompt_is_a_text_or_token_ids(given: Any, prompt: Any) -> None:
    assert asked(prompt=given).prompt == prompt


def test_it_is_short_unless_it_is_to_be_long() -> None:
    assert asked().settings == {"max_output_tokens": 16}
    assert asked(max_tokens=50, logprobs=2, stop="x").settings == {
        "max_output_tokens": 50,
        "logprobs": 2,
        "stop": ["x"],
    }
    assert asked(n=2, best_of=2, logit_bias={"3": 1}).parameters == {"logit_bias": {"3": 1}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": [1, "b"]}, "prompt"),
        ({"prompt": [[1], [2]]}, "prompt"),
        ({"suffix": "end"}, "suffix"),
        ({"echo": True}, "echo"),
        ({"best_of": 3}, "best_of"),
        ({"logprobs": 21}, "logprobs"),
        ({"messages": []}, "messages"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as refused:
        asked(**fields)
    assert (refused.value.code, refused.value.param) == ("invalid_field", param)
