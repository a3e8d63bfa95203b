"""Calls that their users leave: the engine makes nothing of them any more."""

import asyncio

import openai
from asking import ASK, FOREVER, MODEL, Ends, client, given_up, go_on, later, stream

HOW = {"model": MODEL, "max_tokens": FOREVER, "temperature": 0}


def a_stream_that_is_closed():
    with Ends():
        chunks = stream(max_tokens=FOREVER)
        next(chunks)
        chunks.close()


def a_stream_that_is_closed_before_its_first_chunk():
    with Ends():
        stream(max_tokens=FOREVER).close()


def a_stream_that_is_left_by_its_block():
    with Ends(), stream(max_tokens=FOREVER) as chunks:
        next(chunks)


def a_helper_that_is_left_by_its_block():
    with Ends(), client.chat.completions.stream(messages=ASK, **HOW) as events:
        next(iter(events))


async def a_stream_that_is_closed_later():
    with Ends():
        chunks = await later.chat.completions.create(messages=ASK, stream=True, **HOW)
        await anext(chunks)
        await chunks.close()


async def a_stream_whose_task_is_cancelled():
    begun = asyncio.Event()

    async def read():
        async for _ in await later.chat.completions.create(messages=ASK, stream=True, **HOW):
            begun.set()

    with Ends():
        task = asyncio.create_task(read())
        await begun.wait()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()


async def calls_that_take_too_long_or_are_cancelled():
    """All at once: the server waits for each, in case that its client repeats it."""
    chat, text = {"messages": ASK, "n": 4, **HOW}, {"prompt": "t00001 ", "n": 4, **HOW}
    impatient = later.with_options(timeout=0.3)
    with Ends():
        gone = await asyncio.gather(
            impatient.chat.completions.create(**chat),
            impatient.completions.create(**text),
            given_up(later.chat.completions.create(**chat)),
            given_up(later.completions.create(**text)),
            return_exceptions=True,
        )
    assert [type(each) for each in gone[:2]] == [openai.APITimeoutError] * 2
    assert gone[2:] == [None, None]


async def vectors_whose_task_is_cancelled():
    with Ends(wanted=256):
        await given_up(later.embeddings.create(model=MODEL, input=[[1] * 500] * 256))


def a_text_stream_that_is_closed():
    with Ends():
        chunks = go_on(stream=True, max_tokens=FOREVER)
        next(chunks)
        chunks.close()
