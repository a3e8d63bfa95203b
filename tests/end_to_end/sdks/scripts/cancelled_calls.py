"""Calls that their users leave: the engine makes nothing of them any more."""

import asyncio
import re
import time
import urllib.request

import openai
from asking import ASK, MODEL, THREE, TOKEN, URL, ask, client, go_on, later, stream

FOREVER = 30_000  # tokens, which take the engine many seconds
HOW = {"model": MODEL, "max_tokens": FOREVER, "temperature": 0}
SECONDS = 60.0  # for a busy machine


def _figure(name):
    request = urllib.request.Request(
        f"{URL.removesuffix('/v1')}/metrics", headers={"Authorization": f"Bearer {TOKEN}"}
    )
    with urllib.request.urlopen(request) as answer:
        return float(re.search(rf"^parley_{name} (\S+)$", answer.read().decode(), re.M)[1])


class _Ends:
    """What is begun inside has not been made to its end when nothing runs any more."""

    def __enter__(self):
        self._tokens = _figure("generation_tokens_total")

    def __exit__(self, kind, *_):
        if kind is None:
            deadline = time.monotonic() + SECONDS
            while _figure("requests_running") or _figure("requests_waiting"):
                assert time.monotonic() < deadline, "it goes on"
            assert _figure("generation_tokens_total") - self._tokens < FOREVER
            assert ask().choices[0].message.content == THREE


def a_stream_that_is_closed():
    with _Ends():
        chunks = stream(max_tokens=FOREVER)
        next(chunks)
        chunks.close()


def a_stream_that_is_closed_before_its_first_chunk():
    with _Ends():
        stream(max_tokens=FOREVER).close()


def a_stream_that_is_left_by_its_block():
    with _Ends(), stream(max_tokens=FOREVER) as chunks:
        next(chunks)


def a_helper_that_is_left_by_its_block():
    with _Ends(), client.chat.completions.stream(messages=ASK, **HOW) as events:
        next(iter(events))


def a_call_that_takes_too_long():
    impatient = client.with_options(timeout=0.2)
    with _Ends():
        try:
            impatient.chat.completions.create(messages=ASK, **HOW)
        except openai.APITimeoutError:
            return
        raise AssertionError("it was answered")


async def a_stream_that_is_closed_later():
    with _Ends():
        chunks = await later.chat.completions.create(messages=ASK, stream=True, **HOW)
        await anext(chunks)
        await chunks.close()


async def a_stream_whose_task_is_cancelled():
    begun = asyncio.Event()

    async def read():
        async for _ in await later.chat.completions.create(messages=ASK, stream=True, **HOW):
            begun.set()

    with _Ends():
        task = asyncio.create_task(read())
        await begun.wait()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()


async def a_call_whose_task_is_cancelled():
    with _Ends():
        await _cancel(later.chat.completions.create(messages=ASK, **HOW))


async def a_text_whose_task_is_cancelled():
    with _Ends():
        await _cancel(later.completions.create(prompt="t00001 ", **HOW))


async def vectors_whose_task_is_cancelled():
    with _Ends():
        await _cancel(later.embeddings.create(model=MODEL, input=[[1] * 500] * 256))


async def _cancel(call):
    task = asyncio.create_task(call)
    await asyncio.wait([task], timeout=0.2)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


def a_text_stream_that_is_closed():
    with _Ends():
        chunks = go_on(stream=True, max_tokens=FOREVER)
        next(chunks)
        chunks.close()
