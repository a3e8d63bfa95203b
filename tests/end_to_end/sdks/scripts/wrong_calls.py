"""Calls that are wrong: refused as OpenAI refuses them, with the field that is to blame."""

import openai
from asking import ASK, MODEL, ask, client, go_on, later, stream
from openai import AsyncOpenAI, OpenAI


def _refused(kind, code, call, param=None):
    try:
        call()
    except kind as error:
        assert error.code == code and error.param == param, (error.code, error.param)
        return
    raise AssertionError("it was not refused")


async def _refused_later(kind, code, call, param=None):
    try:
        await call
    except kind as error:
        assert error.code == code and error.param == param, (error.code, error.param)
        return
    raise AssertionError("it was not refused")


def _invalid(param, call):
    _refused(openai.BadRequestError, "invalid_field", call, param)


# ---- chat completions


def a_stream_that_is_refused_before_it_begins():
    _invalid("temperature", lambda: stream(temperature=9))


async def a_model_that_nobody_serves_later():
    call = later.chat.completions.create(model="nobody", messages=ASK)
    await _refused_later(openai.NotFoundError, "model_not_found", call, "model")


async def a_wrong_key_later():
    other = AsyncOpenAI(base_url=client.base_url, api_key="wrong", max_retries=0)
    call = other.chat.completions.create(model=MODEL, messages=ASK)
    await _refused_later(openai.AuthenticationError, "token_invalid", call)


def messages_that_are_a_text():
    _invalid("messages", lambda: ask(messages="t00001 "))


def a_role_that_nobody_has():
    _invalid("messages[0].role", lambda: ask(messages=[{"role": "king", "content": "t00001 "}]))


def an_output_of_a_tool_that_was_not_called():
    lost = {"role": "tool", "tool_call_id": "call_1", "content": "4"}
    _invalid("messages[1].tool_call_id", lambda: ask(messages=[*ASK, lost]))


def a_temperature_in_words():
    _invalid("temperature", lambda: ask(temperature="hot"))


def no_tokens_at_all():
    _invalid("max_tokens", lambda: ask(max_tokens=0))


def too_many_answers():
    _invalid("n", lambda: ask(n=1000))


def too_many_logprobs():
    _invalid("top_logprobs", lambda: ask(logprobs=True, top_logprobs=100))


def a_form_without_its_schema():
    form = {"type": "json_schema", "json_schema": {"name": "n"}}
    _invalid("response_format.json_schema", lambda: ask(response_format=form))


def tools_of_a_model_that_knows_none():
    tool = {"type": "function", "function": {"name": "weather", "parameters": {}}}

    def call():
        return ask(tools=[tool])

    _refused(openai.BadRequestError, "tools_not_supported", call, "tools")


def a_choice_of_a_tool_that_is_not_there():
    tool = {"type": "function", "function": {"name": "weather", "parameters": {}}}
    choice = {"type": "function", "function": {"name": "time"}}
    _invalid("tool_choice", lambda: ask(tools=[tool], tool_choice=choice))


def an_answer_that_is_to_be_kept():
    _invalid("store", lambda: ask(store=True))


# ---- completions


def an_empty_prompt():
    _invalid("prompt", lambda: go_on(prompt=""))


async def a_text_of_a_model_that_nobody_serves_later():
    call = later.completions.create(model="nobody", prompt="t00001 ")
    await _refused_later(openai.NotFoundError, "model_not_found", call, "model")


# ---- embeddings


def texts_and_token_ids_together():
    _invalid("input", lambda: client.embeddings.create(model=MODEL, input=["t00001 ", 1]))


def too_many_texts():
    _invalid("input", lambda: client.embeddings.create(model=MODEL, input=["t00001 "] * 257))


def an_encoding_that_nobody_knows():

    def call():
        return client.embeddings.create(model=MODEL, input="a", encoding_format="hex")

    _invalid("encoding_format", call)


async def vectors_of_a_model_that_nobody_serves_later():
    call = later.embeddings.create(model="nobody", input="t00001 ")
    await _refused_later(openai.NotFoundError, "model_not_found", call, "model")


# ---- any route


def a_route_that_is_not_there():

    def call():
        return client.post("/images/generations", body={}, cast_to=object)

    _refused(openai.NotFoundError, "not_found", call)


def a_method_that_is_not_there():
    try:
        client.get("/chat/completions", cast_to=object)
    except openai.APIStatusError as error:
        assert error.status_code == 405
    else:
        raise AssertionError("it was answered")


def a_body_that_is_no_json():
    plain = client.with_options(default_headers={"Content-Type": "text/plain"})
    try:
        plain.chat.completions.create(model=MODEL, messages=ASK)
    except openai.APIStatusError as error:
        assert (error.status_code, error.code) == (415, "unsupported_media_type")
    else:
        raise AssertionError("it was answered")


def a_body_that_is_too_large():
    long = [{"role": "user", "content": "x" * 2_000_000}]
    try:
        ask(messages=long)
    except openai.APIStatusError as error:
        assert (error.status_code, error.code) == (413, "payload_too_large")
    else:
        raise AssertionError("it was answered")


def nobody_there():
    try:
        OpenAI(base_url="http://127.0.0.1:9/v1", api_key="x", max_retries=0).models.list()
    except openai.APIConnectionError:
        pass
    else:
        raise AssertionError("it was answered")
