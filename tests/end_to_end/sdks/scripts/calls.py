"""Calls of OpenAI's Python client, as its users write them: each function is a call and what must
come of it. Run by `run.py`, in the client's environment.
"""

import asyncio
import json

import openai
from asking import (
    ASK,
    MODEL,
    THREE,
    URL,
    ask,
    client,
    go_on,
    later,
    refused,
    stream,
    text_of,
    vectors_of,
)
from openai import OpenAI

TWO = ("t00001 ", "t00004 ")

# ---- models


def models_are_listed():
    assert [model.id for model in client.models.list()] == [MODEL]


def a_model_is_found_by_its_name():
    assert client.models.retrieve(MODEL).id == MODEL


def a_model_that_is_not_there_is_not_found():
    try:
        client.models.retrieve("nobody")
    except openai.NotFoundError as error:
        assert error.code == "model_not_found"
    else:
        raise AssertionError("it was found")


async def models_are_listed_later():
    assert [model.id async for model in later.models.list()] == [MODEL]


# ---- chat completions


def an_answer():
    answer = ask()
    (choice,) = answer.choices
    assert choice.message.content == THREE and choice.message.role == "assistant"
    assert choice.finish_reason == "length" and answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-") and answer.model == MODEL


def a_usage_adds_up():
    usage = ask().usage
    assert usage.completion_tokens == 3
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.prompt_tokens_details.cached_tokens >= 0


def a_stream():
    chunks = list(stream())
    assert text_of(chunks) == THREE
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks][-1] == "length"
    assert len({c.id for c in chunks}) == 1


def a_stream_with_its_usage():
    chunks = list(stream(stream_options={"include_usage": True}))
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 3


async def an_answer_later():
    answer = await later.chat.completions.create(
        model=MODEL, messages=ASK, max_tokens=3, temperature=0
    )
    assert answer.choices[0].message.content == THREE


async def a_stream_later():
    chunks = await later.chat.completions.create(
        model=MODEL, messages=ASK, max_tokens=3, temperature=0, stream=True
    )
    assert text_of([chunk async for chunk in chunks]) == THREE


async def ten_at_once():
    asked = [
        later.chat.completions.create(model=MODEL, messages=ASK, max_tokens=3, temperature=0)
        for _ in range(10)
    ]
    for answer in await asyncio.gather(*asked):
        assert answer.choices[0].message.content == THREE


def a_stream_by_its_helper():
    with client.chat.completions.stream(
        model=MODEL, messages=ASK, stop="t00005", temperature=0
    ) as events:
        kinds = [event.type for event in events]
        final = events.get_final_completion()
    assert "content.delta" in kinds and final.choices[0].message.content == THREE


def a_raw_answer_with_its_headers():
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL, messages=ASK, max_tokens=3, temperature=0
    )
    assert raw.headers["content-type"].startswith("application/json")
    assert raw.parse().choices[0].message.content == THREE


def a_streamed_raw_answer():
    with client.chat.completions.with_streaming_response.create(
        model=MODEL, messages=ASK, max_tokens=3, temperature=0
    ) as raw:
        assert json.loads(raw.read())["choices"][0]["message"]["content"] == THREE


def max_completion_tokens_is_its_newer_name():
    assert ask(max_tokens=None, max_completion_tokens=2).usage.completion_tokens == 2


def several_answers():
    answer = ask(n=3)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert [choice.message.content for choice in answer.choices] == [THREE] * 3


def several_answers_in_a_stream():
    texts = ["", ""]
    for chunk in stream(n=2):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == [THREE, THREE]


def a_stop_string():
    answer = ask(stop="t00003")
    assert answer.choices[0].message.content == "t00002 "
    assert answer.choices[0].finish_reason == "stop"


def several_stop_strings():
    assert ask(stop=["nothing", "t00004"]).choices[0].message.content == "t00002 t00003 "


def logprobs():
    content = ask(logprobs=True, top_logprobs=2).choices[0].logprobs.content
    assert len(content) == 3 and "".join(each.token for each in content) == THREE
    assert bytes(content[0].bytes).decode() == "t00002 "
    assert len(content[0].top_logprobs) == 2 and content[0].logprob <= 0


def logprobs_in_a_stream():
    content = [
        each
        for chunk in stream(logprobs=True)
        for each in (chunk.choices[0].logprobs.content if chunk.choices[0].logprobs else [])
    ]
    assert "".join(each.token for each in content) == THREE


def a_bias():
    assert ask(logit_bias={"2": 5}).choices[0].message.content == THREE
    refused(openai.BadRequestError, "invalid_field", logit_bias={"99999999": 5})


def a_seed_says_the_same_again():
    hot = {"temperature": 2.0, "seed": 5, "max_tokens": 8}
    assert ask(**hot).choices[0].message.content == ask(**hot).choices[0].message.content


def penalties():
    assert ask(presence_penalty=1.0, frequency_penalty=1.0).choices[0].message.content


def a_conversation():
    messages = [
        {"role": "system", "content": "Count."},
        {"role": "user", "content": "t00007 "},
        {"role": "assistant", "content": "t00008 "},
        *ASK,
    ]
    assert ask(messages=messages).choices[0].message.content == THREE


def a_developer_speaks():
    assert ask(messages=[{"role": "developer", "content": "Count."}, *ASK]).choices


def a_message_in_parts():
    parts = [{"type": "text", "text": "t0000"}, {"type": "text", "text": "1 "}]
    answer = ask(messages=[{"role": "user", "content": parts}])
    assert answer.choices[0].message.content == THREE


def words_about_who_asks_change_nothing():
    answer = ask(
        user="u", metadata={"a": "b"}, store=False, service_tier="auto", prompt_cache_key="k"
    )
    assert answer.choices[0].message.content == THREE


# ---- completions


def a_text_goes_on():
    answer = go_on()
    assert answer.choices[0].text == THREE and answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 3 and answer.object == "text_completion"


def a_text_goes_on_in_a_stream():
    chunks = list(go_on(stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].text for c in chunks if c.choices) == THREE
    assert chunks[-1].usage.completion_tokens == 3


async def a_text_goes_on_later():
    answer = await later.completions.create(
        model=MODEL, prompt="t00001 ", max_tokens=3, temperature=0
    )
    assert answer.choices[0].text == THREE


def token_ids_go_on():
    ids = go_on(max_tokens=1, extra_body={"return_token_ids": True}).choices[0]
    prompt = ids.model_extra["prompt_token_ids"]
    again = go_on(prompt=[*prompt, *ids.model_extra["token_ids"]], max_tokens=2)
    assert again.choices[0].text == "t00003 t00004 "


def a_text_goes_on_in_several_ways():
    assert [choice.text for choice in go_on(n=2).choices] == [THREE, THREE]


def several_texts_go_on():
    choices = go_on(prompt=["t00001 ", "t00004 "], n=2).choices
    assert [choice.index for choice in choices] == [0, 1, 2, 3]
    after_four = "t00005 t00006 t00007 "
    assert [choice.text for choice in choices] == [THREE, THREE, after_four, after_four]


def token_ids_of_several_texts_go_on():
    both = [go_on(prompt=text, max_tokens=1, extra_body={"return_token_ids": True}) for text in TWO]
    ids = [answer.choices[0].model_extra["prompt_token_ids"] for answer in both]
    answer = go_on(prompt=ids, max_tokens=1)
    assert [choice.text for choice in answer.choices] == ["t00002 ", "t00005 "]
    assert answer.usage.prompt_tokens == sum(map(len, ids))


def a_text_is_echoed():
    choice = go_on(echo=True, logprobs=1).choices[0]
    assert choice.text == "t00001 " + THREE == "".join(choice.logprobs.tokens)
    assert choice.logprobs.token_logprobs[0] is None and choice.logprobs.text_offset[1] == 7
    chunks = go_on(prompt=[*TWO], echo=True, stream=True)
    texts = ["", ""]
    for chunk in chunks:
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == ["t00001 " + THREE, "t00004 t00005 t00006 t00007 "]


def numbers_that_are_no_token_ids():
    for more in ({}, {"echo": True}, {"echo": True, "logprobs": 1}):
        for number in (-1, 2**31, 2**40):
            try:
                go_on(prompt=[1, number], **more)
            except openai.BadRequestError as error:
                assert error.param == "prompt", (number, error.param)
            else:
                raise AssertionError(f"{number} was not refused")


def a_text_is_only_echoed():
    answer = go_on(prompt="t00001 t00002 ", echo=True, logprobs=1, max_tokens=0)
    logprobs = answer.choices[0].logprobs
    assert answer.choices[0].text == "t00001 t00002 " == "".join(logprobs.tokens)
    assert answer.usage.completion_tokens == 0 and answer.choices[0].finish_reason == "length"
    assert logprobs.token_logprobs[1] <= 0 and len(logprobs.top_logprobs[1]) == 1


def a_text_with_logprobs():
    logprobs = go_on(logprobs=1).choices[0].logprobs
    assert "".join(logprobs.tokens) == THREE and len(logprobs.top_logprobs) == 3
    assert logprobs.text_offset == [0, 7, 14]


def a_text_is_short_unless_it_is_to_be_long():
    assert go_on(max_tokens=None).usage.completion_tokens == 16


def a_text_between_two_others():
    try:
        go_on(suffix="t00009")
    except openai.BadRequestError as error:
        assert error.param == "suffix"
    else:
        raise AssertionError("it was not refused")


# ---- embeddings


def a_vector():
    (vector,) = vectors_of("t00001 ")
    assert abs(sum(number * number for number in vector) - 1) < 1e-4


def vectors_are_the_same_alone_and_together():
    one, two = vectors_of(["t00001 ", "t00002 "])
    assert [one] == vectors_of("t00001 ") and [two] == vectors_of(["t00002 "]) and one != two


def a_vector_as_floats():
    (floats,) = vectors_of("t00001 ", encoding_format="float")
    (packed,) = vectors_of("t00001 ")
    assert len(floats) == len(packed)
    assert max(abs(a - b) for a, b in zip(floats, packed, strict=True)) < 1e-6


def a_shorter_vector():
    (vector,) = vectors_of("t00001 ", dimensions=4)
    assert len(vector) == 4 and abs(sum(number * number for number in vector) - 1) < 1e-4


def vectors_of_token_ids():
    ids = go_on(max_tokens=1, extra_body={"return_token_ids": True}).choices[0]
    prompt = ids.model_extra["prompt_token_ids"]
    assert vectors_of(prompt) == vectors_of([prompt]) == vectors_of("t00001 ")


async def a_vector_later():
    answer = await later.embeddings.create(model=MODEL, input="t00001 ")
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > 0


def more_dimensions_than_there_are():
    try:
        vectors_of("t00001 ", dimensions=10**6)
    except openai.BadRequestError as error:
        assert error.param == "dimensions", error.param
    else:
        raise AssertionError("it was not refused")


def a_vector_of_nothing():
    try:
        vectors_of([[]])
    except openai.BadRequestError as error:
        assert error.param == "input[0]", error.param
    else:
        raise AssertionError("it was not refused")


# ---- refused


def a_model_that_nobody_serves():
    refused(openai.NotFoundError, "model_not_found", model="nobody")


def a_wrong_key():
    other = OpenAI(base_url=URL, api_key="wrong", max_retries=0)
    try:
        other.chat.completions.create(model=MODEL, messages=ASK)
    except openai.AuthenticationError as error:
        assert error.status_code == 401
    else:
        raise AssertionError("it was let in")


def a_temperature_that_is_none():
    assert refused(openai.BadRequestError, "invalid_field", temperature=9).param == "temperature"


def a_picture():
    parts = [{"type": "image_url", "image_url": {"url": "data:,"}}]
    refused(openai.BadRequestError, "invalid_field", messages=[{"role": "user", "content": parts}])


def a_form_that_the_model_cannot_be_held_to():
    schema = {"not": {"type": "string"}}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    error = refused(openai.BadRequestError, "invalid_field", response_format=form)
    assert error.param == "response_format", error.param


def functions_of_long_ago():
    refused(openai.BadRequestError, "invalid_field", functions=[{"name": "f"}])


def no_messages():
    refused(openai.BadRequestError, "invalid_field", messages=[])


def a_prompt_that_is_too_long():
    long = [{"role": "user", "content": "t00001 " * 40_000}]
    refused(openai.BadRequestError, "context_length_exceeded", messages=long)


def a_field_that_nobody_knows():
    refused(openai.BadRequestError, "invalid_field", extra_body={"nonsense": 1})
