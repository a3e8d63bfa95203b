"""Calls of langchain-openai, as its users write them."""

import sys

import openai
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings

URL, TOKEN = sys.argv[-2:]
THREE = "t00002 t00003 t00004 "
HERE = {"base_url": URL, "api_key": TOKEN, "max_retries": 0}
CHAT = {"model": "counting", "max_tokens": 3, "temperature": 0, **HERE}
chat = ChatOpenAI(**CHAT)


def _vectors(**more):
    # It would fetch OpenAI's own tokenizer to count what it sends.
    return OpenAIEmbeddings(model="counting", check_embedding_ctx_length=False, **HERE, **more)


def an_answer():
    answer = chat.invoke("t00001 ")
    assert answer.content == THREE
    assert answer.response_metadata["finish_reason"] == "length"
    assert answer.usage_metadata["output_tokens"] == 3


def a_conversation():
    assert chat.invoke([SystemMessage("Count."), HumanMessage("t00001 ")]).content == THREE


def a_stream():
    assert "".join(chunk.content for chunk in chat.stream("t00001 ")) == THREE


def a_stream_with_its_usage():
    chunks = [*ChatOpenAI(**CHAT, stream_usage=True).stream("t00001 ")]
    (usage,) = [chunk.usage_metadata for chunk in chunks if chunk.usage_metadata]
    assert usage["output_tokens"] == 3


async def an_answer_later():
    assert (await chat.ainvoke("t00001 ")).content == THREE


async def a_stream_that_is_left():
    long = ChatOpenAI(**CHAT | {"max_tokens": 200})
    async for _ in long.astream("t00001 "):
        break
    assert (await chat.ainvoke("t00001 ")).content == THREE


async def several_at_once():
    answers = await chat.abatch(["t00001 "] * 4)
    assert [answer.content for answer in answers] == [THREE] * 4


def a_chain():
    chain = ChatPromptTemplate.from_messages([("human", "{word} ")]) | chat
    assert chain.invoke({"word": "t00001"}).content == THREE


def logprobs():
    answer = chat.bind(logprobs=True, top_logprobs=1).invoke("t00001 ")
    content = answer.response_metadata["logprobs"]["content"]
    assert "".join(each["token"] for each in content) == THREE


def a_stop_string():
    assert chat.invoke("t00001 ", stop=["t00003"]).content == "t00002 "


def a_text_goes_on():
    assert OpenAI(**CHAT).invoke("t00001 ") == THREE


def a_text_goes_on_in_a_stream():
    assert "".join(OpenAI(**CHAT).stream("t00001 ")) == THREE


def vectors():
    one, two = _vectors().embed_documents(["t00001 ", "t00002 "])
    assert one == _vectors().embed_query("t00001 ") != two


def a_shorter_vector():
    assert len(_vectors(dimensions=4).embed_query("t00001 ")) == 4


def a_model_that_nobody_serves():
    try:
        ChatOpenAI(**CHAT | {"model": "nobody"}).invoke("t00001 ")
    except openai.NotFoundError as error:
        assert error.code == "model_not_found"
    else:
        raise AssertionError("it was not refused")


def a_prompt_that_is_too_long():
    try:
        chat.invoke("t00001 " * 40_000)
    except ContextOverflowError as error:
        assert error.code == "context_length_exceeded"
    else:
        raise AssertionError("it was not refused")
