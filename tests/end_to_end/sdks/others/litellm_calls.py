"""Calls of litellm, as its users write them."""

import sys

import litellm

URL, TOKEN = sys.argv[-2:]
ASK = [{"role": "user", "content": "t00001 "}]
THREE = "t00002 t00003 t00004 "
HERE = {"api_base": URL, "api_key": TOKEN, "num_retries": 0}
CHAT = {"model": "openai/counting", "messages": ASK, "max_tokens": 3, "temperature": 0, **HERE}
TEXT = {**CHAT, "model": "text-completion-openai/counting", "prompt": "t00001 "}
del TEXT["messages"]


def _text_of(chunks):
    return "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)


def _refused(kind, **more):
    try:
        litellm.completion(**CHAT | more)
    except kind as error:
        return error
    raise AssertionError("it was not refused")


def an_answer():
    answer = litellm.completion(**CHAT)
    assert answer.choices[0].message.content == THREE
    assert answer.choices[0].finish_reason == "length" and answer.usage.completion_tokens == 3


def a_stream_with_its_usage():
    chunks = [*litellm.completion(**CHAT, stream=True, stream_options={"include_usage": True})]
    assert _text_of(chunks) == THREE
    (usage,) = [chunk.usage for chunk in chunks if getattr(chunk, "usage", None)]
    assert usage.completion_tokens == 3


def a_stream_put_together_again():
    chunks = [*litellm.completion(**CHAT, stream=True)]
    whole = litellm.stream_chunk_builder(chunks, messages=ASK)
    assert whole.choices[0].message.content == THREE


async def an_answer_later():
    answer = await litellm.acompletion(**CHAT)
    assert answer.choices[0].message.content == THREE


async def a_stream_that_is_left():
    async for chunk in await litellm.acompletion(**CHAT | {"max_tokens": 200}, stream=True):
        assert chunk.choices[0].delta.role == "assistant"
        break
    answer = await litellm.acompletion(**CHAT)
    assert answer.choices[0].message.content == THREE


def several_at_once():
    for answer in litellm.batch_completion(**CHAT | {"messages": [ASK] * 4}):
        assert answer.choices[0].message.content == THREE


def a_text_goes_on():
    assert litellm.text_completion(**TEXT).choices[0].text == THREE


def a_text_goes_on_in_a_stream():
    chunks = litellm.text_completion(**TEXT, stream=True)
    assert "".join(chunk.choices[0].text or "" for chunk in chunks if chunk.choices) == THREE


def vectors():
    answer = litellm.embedding("openai/counting", input=["t00001 ", "t00002 "], **HERE)
    one, two = (each["embedding"] for each in answer.data)
    assert len(one) == len(two) and one != two


async def a_vector_later():
    answer = await litellm.aembedding("openai/counting", input=["t00001 "], **HERE)
    assert answer.usage.prompt_tokens == 1


def by_its_router():
    router = litellm.Router(
        model_list=[
            {"model_name": "any", "litellm_params": {"model": "openai/counting", **HERE}},
        ]
    )
    answer = router.completion("any", ASK, max_tokens=3, temperature=0)
    assert answer.choices[0].message.content == THREE


def a_model_that_nobody_serves():
    assert "no such model" in str(_refused(litellm.NotFoundError, model="openai/nobody"))


def a_temperature_that_is_none():
    _refused(litellm.BadRequestError, temperature=9)


def a_wrong_key():
    _refused(litellm.AuthenticationError, api_key="wrong")


def a_prompt_that_is_too_long():
    long = [{"role": "user", "content": "t00001 " * 40_000}]
    _refused(litellm.ContextWindowExceededError, messages=long)
