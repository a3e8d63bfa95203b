"""What the scripts of calls share: OpenAI's Python client, and the questions that they ask it.

The model counts: after `t00001` it says `t00002 t00003 `, and so on.
"""

import asyncio
import re
import sys
import time
import urllib.request

from openai import AsyncOpenAI, OpenAI

ASK = [{"role": "user", "content": "t00001 "}]
THREE = "t00002 t00003 t00004 "
FOREVER = 30_000  # tokens, which take the engine many seconds
SECONDS = 60.0  # for a busy machine

URL, TOKEN = sys.argv[-2:]
client = OpenAI(base_url=URL, api_key=TOKEN, max_retries=0)
later = AsyncOpenAI(base_url=URL, api_key=TOKEN, max_retries=0)
MODEL = client.models.list().data[0].id


def ask(**more):
    options = {"model": MODEL, "messages": ASK, "max_tokens": 3, "temperature": 0} | more
    return client.chat.completions.create(**options)


def stream(**more):
    return ask(stream=True, **more)


def text_of(chunks):
    return "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)


def refused(kind, code, **more):
    try:
        ask(**more)
    except kind as error:
        assert error.code == code, error.code
        return error
    raise AssertionError("it was not refused")


def go_on(**more):
    options = {"model": MODEL, "prompt": "t00001 ", "max_tokens": 3, "temperature": 0} | more
    return client.completions.create(**options)


def vectors_of(texts, **more):
    answer = client.embeddings.create(model=MODEL, input=texts, **more)
    assert [each.index for each in answer.data] == list(range(len(answer.data)))
    return [each.embedding for each in answer.data]


class Ends:
    """What is begun inside was aborted, all of it; or not even begun, of `wanted` requests."""

    def __init__(self, wanted=None):
        self._wanted = wanted

    def __enter__(self):
        self._requests, self._aborts = figure("engine_requests_total"), figure("aborts_total")

    def __exit__(self, kind, *_):
        if kind is not None:
            return
        deadline = time.monotonic() + SECONDS
        while figure("requests_running") or figure("requests_waiting"):
            assert time.monotonic() < deadline, "it goes on"
        requests = figure("engine_requests_total") - self._requests
        if self._wanted is None:
            assert requests == figure("aborts_total") - self._aborts > 0
        else:
            assert requests < self._wanted
        assert ask().choices[0].message.content == THREE


async def given_up(call):
    """Begin it, and cancel its task a moment later."""
    task = asyncio.create_task(call)
    await asyncio.wait([task], timeout=0.2)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


def figure(name):
    request = urllib.request.Request(
        f"{URL.removesuffix('/v1')}/metrics", headers={"Authorization": f"Bearer {TOKEN}"}
    )
    with urllib.request.urlopen(request) as answer:
        return float(re.search(rf"^parley_{name} (\S+)$", answer.read().decode(), re.M)[1])
