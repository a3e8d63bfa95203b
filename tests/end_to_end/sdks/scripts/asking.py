"""What the scripts of calls share: OpenAI's Python client, and the questions that they ask it.

The model counts: after `t00001` it says `t00002 t00003 `, and so on.
"""

import sys

from openai import AsyncOpenAI, OpenAI

ASK = [{"role": "user", "content": "t00001 "}]
THREE = "t00002 t00003 t00004 "

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
