"""What is heard of an answer is said in OpenAI's words, in a stream and as a whole."""

from typing import Any

from server.api.openai.chat_answer import ChatAnswer
from server.api.openai.chat_request import ChatRequest
from server.api.openai.sampling_fields import StreamOptions
from server.commands.stateless.answer import StatelessAnswer
from server.commands.stateless.asked import Delta, Ended, Heard
from server.commands.stateless.choice import Work
from server.engines.client import ParsedArguments, ParsedBegin, ParsedEnd, SamplingParams
from server.generation.answers import Part
from tests.server.helpers.engines import IdleEngine

TOKEN = {"token": "Hé", "logprob": -0.5, "top": [{"token": "Ho", "logprob": -1.0}]}
THOUGHT = Delta(0, [Part("Hm.", is_reasoning=True)], [7], [])
TEXT = Delta(0, [Part("Hé")], [8], [TOKEN])
CALL = Delta(
    0,
    [ParsedBegin(0, "", "weather"), ParsedArguments(0, '{"city":'), ParsedArguments(0, ' "Brno"}')],
    [9],
    [],
)
CALL_END = Delta(0, [ParsedEnd(0, is_valid=True)], [10], [])


def chat_answer(num_choices: int = 1, **options: Any) -> ChatAnswer:
    params = [SamplingParams()] * num_choices
    work = Work(IdleEngine(), [[1, 2, 3]], params, "", None, None, is_parsed=True, max_seconds=0)
    return ChatAnswer(
        StatelessAnswer("resp_A", work), ChatRequest(model="m", messages=[], **options), "print"
    )


def said(*heard: Heard) -> list[tuple[int, Any, Any]]:
    """Of each chunk: whose it is, what is new, and why it ends."""
    answer = chat_answer()
    chunks = [chunk for each in heard for chunk in answer.chunks(each)]
    for chunk in chunks:
        assert chunk["object"] == "chat.completion.chunk" and chunk["id"] == "chatcmpl-A"
        assert chunk["model"] == "m" and chunk["system_fingerprint"] == "print"
    choices = [chunk["choices"][0] for chunk in chunks]
    return [(each["index"], each["delta"], each["finish_reason"]) for each in choices]


def whole(*heard: Heard) -> dict[str, Any]:
    answer = chat_answer()
    for each in heard:
        answer.take(each)
    return answer.whole()


FIRST = {"role": "assistant", "content": ""}


def test_each_kind_of_part_is_a_delta_of_its_own() -> None:
    assert said(THOUGHT, TEXT, Ended(0, "stop")) == [
        (0, FIRST, None),
        (0, {"reasoning_content": "Hm."}, None),
        (0, {"content": "Hé"}, None),
        (0, {}, "stop"),
    ]


def test_a_call_has_an_index_in_every_delta_and_its_name_in_the_first() -> None:
    function = {"name": "weather", "arguments": ""}
    begin = {"index": 0, "id": "call_A_0_0", "type": "function", "function": function}
    assert said(CALL, CALL_END, Ended(0, "tool_calls")) == [
        (0, FIRST, None),
        (0, {"tool_calls": [begin]}, None),
        (0, {"tool_calls": [{"index": 0, "function": {"arguments": '{"city":'}}]}, None),
        (0, {"tool_calls": [{"index": 0, "function": {"arguments": ' "Brno"}'}}]}, None),
        (0, {}, "tool_calls"),
    ]


def test_answers_side_by_side_each_say_who_speaks() -> None:
    heard: list[Heard] = [TEXT, TEXT._replace(choice=1), Ended(1, "length"), Ended(0, "deadline")]
    assert [(index, reason) for index, _, reason in said(*heard)] == [
        *((0, None), (0, None), (1, None), (1, None)),
        *((1, "length"), (0, "length")),
    ]


def test_logprobs_go_with_the_first_delta_of_their_tokens_or_alone() -> None:
    answer = chat_answer()
    two = Delta(0, [Part("Hé"), Part("?", is_reasoning=True)], [8], [TOKEN])
    silent = Delta(0, [], [9], [TOKEN])
    chunks = [chunk for each in (two, silent) for chunk in answer.chunks(each)]
    content = [{**token("Hé", -0.5), "top_logprobs": [token("Ho", -1.0)]}]
    expected = {"content": content, "refusal": None}
    assert [chunk["choices"][0]["logprobs"] for chunk in chunks] == [None, expected, None, expected]


def token(text: str, logprob: float) -> dict[str, Any]:
    return {"token": text, "logprob": logprob, "bytes": list(text.encode())}


def test_the_usage_is_a_chunk_without_choices_and_all_others_say_none() -> None:
    answer = chat_answer(stream_options=StreamOptions(include_usage=True))
    (first, *_) = answer.chunks(TEXT)
    assert first["usage"] is None
    last = answer.usage_chunk()
    assert last["choices"] == [] and last["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 0,
        "total_tokens": 3,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    assert "usage" not in next(chat_answer().chunks(TEXT))


def test_an_answer_that_is_not_streamed_has_all_of_it() -> None:
    answer = whole(THOUGHT, TEXT, CALL, CALL_END, Ended(0, "tool_calls"))
    function = {"name": "weather", "arguments": '{"city": "Brno"}'}
    (choice,) = answer["choices"]
    assert answer["object"] == "chat.completion" and choice["finish_reason"] == "tool_calls"
    assert choice["message"] == {
        "role": "assistant",
        "content": "Hé",
        "refusal": None,
        "reasoning_content": "Hm.",
        "tool_calls": [{"id": "call_A_0_0", "type": "function", "function": function}],
    }
    assert choice["logprobs"]["content"][0]["token"] == "Hé"


def test_without_text_the_content_of_a_call_is_null_and_of_an_empty_answer_empty() -> None:
    (call,) = whole(CALL, CALL_END, Ended(0, "tool_calls"))["choices"]
    assert call["message"]["content"] is None and call["logprobs"] is None
    (nothing,) = whole(Ended(0, "stop"))["choices"]
    assert nothing["message"] == {"role": "assistant", "content": "", "refusal": None}
