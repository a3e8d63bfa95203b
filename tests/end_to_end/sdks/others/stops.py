"""Stops answers in every way that OpenAI's Python client has, at moments that dice choose.

    python stops.py BASE_URL TOKEN KIND COUNT SEED

KIND names some of the ways (`WAYS`). The last line of what it prints is JSON: how many stops there
were of each way, and how many tokens the client has seen.
"""

import asyncio
import json
import random
import sys
from collections import Counter

import openai
from openai import AsyncOpenAI, OpenAI

URL, TOKEN, KIND = sys.argv[1:4]
COUNT, SEED = int(sys.argv[4]), int(sys.argv[5])
AT_ONCE = 4
SECONDS = 0.3  # within which a whole call is stopped
FOREVER = 30_000  # tokens
client = OpenAI(base_url=URL, api_key=TOKEN, max_retries=0)
later = AsyncOpenAI(base_url=URL, api_key=TOKEN, max_retries=0)
MODEL = client.models.list().data[0].id
CHAT = {"messages": [{"role": "user", "content": "t00001 "}]}
TEXT = {"prompt": "t00001 "}
HOW = {"model": MODEL, "max_tokens": FOREVER, "temperature": 0}
RESPONSE = {"model": MODEL, "input": "t00001 ", "max_output_tokens": FOREVER, "temperature": 0}


def said(chunk):
    """Tokens: each is a word, and a word is in one chunk."""
    choice = chunk.choices[0]
    return (choice.text if hasattr(choice, "text") else choice.delta.content or "").count(" ")


async def chat_stream_closed(dice):
    return await _close(await later.chat.completions.create(**CHAT, **HOW, stream=True), dice)


async def text_stream_closed(dice):
    return await _close(await later.completions.create(**TEXT, **HOW, stream=True), dice)


async def _close(stream, dice):
    seen, wanted = 0, dice.randrange(4)
    while seen < wanted:
        seen += said(await anext(stream))
    await stream.close()
    return seen


async def stream_left_by_its_block(dice):
    seen, wanted = 0, dice.randrange(1, 4)
    async with await later.chat.completions.create(**CHAT, **HOW, stream=True) as stream:
        async for chunk in stream:
            seen += said(chunk)
            if seen >= wanted:
                break
    return seen


async def stream_of_the_blocking_client_closed(dice):
    wanted = dice.randrange(4)

    def call():
        seen = 0
        stream = client.chat.completions.create(**CHAT, **HOW, stream=True)
        while seen < wanted:
            seen += said(next(stream))
        stream.close()
        return seen

    return await asyncio.to_thread(call)


async def helper_closed(dice):
    wanted = dice.randrange(1, 4)
    seen = 0
    async with later.chat.completions.stream(**CHAT, **HOW) as events:
        async for event in events:
            seen += said(event.chunk) if event.type == "chunk" else 0
            if seen >= wanted:
                break
    return seen


async def several_answers_closed(dice):
    seen, wanted = 0, dice.randrange(6)
    stream = await later.chat.completions.create(**CHAT, **HOW, stream=True, n=3)
    while seen < wanted:
        seen += said(await anext(stream))
    await stream.close()
    return seen


async def whole_call_cancelled(dice):
    return await _cancel(later.chat.completions.create(**CHAT, **HOW), dice)


async def whole_text_cancelled(dice):
    return await _cancel(later.completions.create(**TEXT, **HOW), dice)


async def whole_vectors_cancelled(dice):
    texts = [[1] * 500] * 64
    return await _cancel(later.embeddings.create(model=MODEL, input=texts), dice)


async def task_of_a_stream_cancelled(dice):
    seen = 0

    async def read():
        nonlocal seen
        async for chunk in await later.chat.completions.create(**CHAT, **HOW, stream=True):
            seen += said(chunk)

    await _cancel(read(), dice)
    return seen


async def _cancel(call, dice):
    """A moment after it was begun, which may be before it was sent."""
    task = asyncio.create_task(call)
    await asyncio.wait([task], timeout=dice.random() * SECONDS)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return 0


async def whole_call_given_up(dice):
    """Its client waits no longer."""
    try:
        seconds = dice.uniform(0.1, SECONDS)
        await later.with_options(timeout=seconds).chat.completions.create(**CHAT, **HOW)
    except openai.APITimeoutError:
        return 0
    raise AssertionError("it was answered")


async def background_cancelled(dice):
    answer = await later.responses.create(**RESPONSE, background=True)
    await asyncio.sleep(dice.random() * SECONDS)
    assert (await later.responses.cancel(answer.id)).status == "cancelled"
    return 0


async def kept_stream_cancelled(dice):
    seen, wanted = 0, dice.randrange(4)
    stream = await later.responses.create(**RESPONSE, stream=True)
    async for event in stream:
        if event.type == "response.created":
            answer = event.response.id
        seen += event.delta.count(" ") if event.type == "response.output_text.delta" else 0
        if seen >= wanted:
            break
    assert (await later.responses.cancel(answer)).status == "cancelled"
    await stream.close()
    return seen


async def unkept_stream_closed(dice):
    seen, wanted = 0, dice.randrange(4)
    stream = await later.responses.create(**RESPONSE, stream=True, store=False)
    async for event in stream:
        seen += event.delta.count(" ") if event.type == "response.output_text.delta" else 0
        if seen >= wanted:
            break
    await stream.close()
    return seen


async def unkept_call_cancelled(dice):
    return await _cancel(later.responses.create(**RESPONSE, store=False), dice)


WAYS = {
    "responses": (
        background_cancelled,
        kept_stream_cancelled,
        unkept_stream_closed,
        unkept_call_cancelled,
    ),
    "streams": (
        chat_stream_closed,
        text_stream_closed,
        stream_left_by_its_block,
        stream_of_the_blocking_client_closed,
        helper_closed,
        several_answers_closed,
    ),
    "calls": (
        whole_call_cancelled,
        whole_text_cancelled,
        task_of_a_stream_cancelled,
        whole_call_given_up,
    ),
    "vectors": (whole_vectors_cancelled,),
}


async def main():
    dice = random.Random(SEED)
    room = asyncio.Semaphore(AT_ONCE)
    counts, seen = Counter(), Counter()

    async def stop(way, own):
        async with room:
            tokens = await way(own)
        seen[way.__name__] += tokens
        counts[way.__name__] += 1

    ways = WAYS[KIND]
    chosen = [ways[number % len(ways)] for number in range(COUNT)]
    dice.shuffle(chosen)
    await asyncio.gather(*(stop(way, random.Random(dice.random())) for way in chosen))
    print(json.dumps({"stops": counts, "seen": seen}))


asyncio.run(main())
