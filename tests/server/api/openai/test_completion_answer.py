"""What is heard of an answer is said in the words of OpenAI's older route."""

from typing import Any

from server.api.openai.completion_answer import CompletionAnswer
from server.api.openai.completion_request import CompletionRequest
from server.api.openai.sampling_fields import StreamOptions
from server.commands.stateless.answer import StatelessAnswer
from server.commands.stateless.asked import Delta, Ended, Heard
from server.commands.stateless.choice import Work
from server.engines.client import SamplingParams
from server.generation.answers import Part
from tests.server.helpers.engines import IdleEngine

ONE: dict[str, Any] = {"token": "one ", "logprob": -0.5, "top": [{"token": "no", "logprob": -1.0}]}
TWO: dict[str, Any] = {"token": "two", "logprob": -0.25, "top": []}
SAID: list[Heard] = [
    Delta(0, [Part("one ")], [7], [ONE]),
    Delta(0, [Part("two")], [8], [TWO]),
    Ended(0, "stop"),
]


def completion_answer(**options: Any) -> CompletionAnswer:
    params = [SamplingParams()]
    work = Work(IdleEngine(), [[1, 2, 3]], params, "", None, None, is_parsed=False, max_seconds=0)
    request = CompletionRequest(model="m", prompt="", **options)
    return CompletionAnswer(StatelessAnswer("resp_A", work), request, "print")


def test_each_delta_is_a_chunk_with_its_text() -> None:
    answer = completion_answer()
    chunks = [chunk for heard in SAID for chunk in answer.chunks(heard)]
    assert {(chunk["id"], chunk["object"]) for chunk in chunks} == {("cmpl-A", "text_completion")}
    choices = [chunk["choices"][0] for chunk in chunks]
    assert [choice["text"] for choice in choices] == ["one ", "two", ""]
    assert [choice["finish_reason"] for choice in choices] == [None, None, "stop"]
    assert choices[1]["logprobs"]["text_offset"] == [4]


def test_a_whole_answer_has_all_of_it() -> None:
    answer = completion_answer()
    for heard in SAID:
        answer.take(heard)
    whole = answer.whole()
    assert whole["choices"] == [
        {
            "index": 0,
            "text": "one two",
            "finish_reason": "stop",
            "logprobs": {
                "tokens": ["one ", "two"],
                "token_logprobs": [-0.5, -0.25],
                "top_logprobs": [{"no": -1.0}, {}],
                "text_offset": [0, 4],
            },
        }
    ]
    assert whole["usage"]["prompt_tokens"] == 3


def test_an_echo_has_logprobs_of_its_own_and_moves_the_offsets() -> None:
    first = {"token": "On", "logprob": None, "top": None}
    answer = completion_answer(echo=True)
    for heard in (Delta(0, [Part("On")], (), [first]), *SAID):
        answer.take(heard)
    (choice,) = answer.whole()["choices"]
    assert choice["text"] == "Onone two" and choice["logprobs"] == {
        "tokens": ["On", "one ", "two"],
        "token_logprobs": [None, -0.5, -0.25],
        "top_logprobs": [None, {"no": -1.0}, {}],
        "text_offset": [0, 2, 6],
    }


def test_token_ids_are_there_for_who_asks() -> None:
    answer = completion_answer(
        return_token_ids=True, stream_options=StreamOptions(include_usage=True)
    )
    first, second, last = (next(answer.chunks(heard)) for heard in SAID)
    ids = [chunk["choices"][0]["token_ids"] for chunk in (first, second, last)]
    assert ids == [[7], [8], []] and first["usage"] is None
    assert first["choices"][0]["prompt_token_ids"] == [1, 2, 3]
    assert second["choices"][0]["prompt_token_ids"] is None
    whole = completion_answer(return_token_ids=True)
    for heard in SAID:
        whole.take(heard)
    assert whole.whole()["choices"][0]["token_ids"] == [7, 8]
