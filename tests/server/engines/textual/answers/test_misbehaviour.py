"""Replies that are none, refusals, and other things that no engine of texts should do."""

import asyncio

import pytest

from server.engines.textual.asking import MAX_TOKEN_LENGTH
from tests.server.engines.textual.asking import HASTY, Open
from tests.server.engines.textual.stand_in import (
    DONE,
    JSON,
    STREAM,
    Reply,
    StandIn,
    broken,
    call_chunk,
    chunk,
    refused,
    said,
    usage,
)


async def test_a_refusal_is_reported_in_the_engines_words(open_engine: Open) -> None:
    stand_in = StandIn()
    asker = await open_engine(stand_in)
    stand_in.replies.append(refused(400, "the schema has\nno type"))
    last = await asker.ask()
    assert last.error is not None
    assert (last.error.code, last.error.message) == ("invalid_request", "the schema has no type")


async def test_a_stream_is_one_however_its_type_is_written(open_engine: Open) -> None:
    stand_in = StandIn()
    asker = await open_engine(stand_in)
    said_so = said("Yes")
    said_so.headers = {"Content-Type": "Text/Event-Stream; charset=latin-1"}
    stand_in.replies.append(said_so)
    await asker.ask()
    assert asker.text == "Yes"


async def test_an_engine_that_is_busy_is_asked_again(open_engine: Open) -> None:
    stand_in = StandIn()
    asker = await open_engine(stand_in)
    stand_in.replies += [refused(429), refused(503), said("Yes")]
    await asker.ask()
    assert asker.text == "Yes"


MISBEHAVIOUR = {
    "silent": Reply([asyncio.Event()]),
    "half an event": Reply([chunk("Bad")[:30]], is_cut=True),
    "no event": Reply([b"data: {not json}\n\n"]),
    "half a character": Reply([b'data: {"choices": [{"delta": {"content": "\\ud800"}}]}\n\n']),
    "no stream": Reply([b"{}"], headers=JSON),
    "compressed": Reply([chunk("Bad")], headers=STREAM | {"Content-Encoding": "gzip"}),
    "elsewhere": Reply([], 307, {"Location": "http://127.0.0.1:1/"}),
    "an end without a reason": Reply([DONE]),
    "no UTF-8": Reply([b'data: {"choices": [{"delta": {"content": "\xff"}}]}\n\n']),
    "half a character as it is": Reply(
        [b'data: {"choices": [{"delta": {"content": "\xed\xa0"}}]}\n\n']
    ),
    "nested without an end": Reply([b'data: {"x": ' + b"[" * 100_000 + b"\n\n"]),
    "an unknown reason": Reply([chunk(reason="because")]),
    "its own error": Reply([b'data: {"error": {"message": "boom"}}\n\n']),
    "a call without a name": Reply([call_chunk(0, None, "{}")]),
    "comments alone": Reply(ever=b": we are still here\n\n"),
    "events that say nothing": Reply(ever=chunk("", reasoning_content="")),
    "an endless event": Reply([b"data: " + b"x" * 600_000, b"y" * 600_000]),
}


@pytest.mark.parametrize("kind", MISBEHAVIOUR)
async def test_nothing_of_a_reply_that_is_none_is_shown(open_engine: Open, kind: str) -> None:
    stand_in = StandIn()
    asker = await open_engine(stand_in, patience=HASTY)
    stand_in.replies += [MISBEHAVIOUR[kind], said("Good")]
    await asker.ask()
    assert asker.text == "Good"


async def test_an_answer_that_stands_still_is_asked_for_again_although_comments_come(
    open_engine: Open,
) -> None:
    stand_in = StandIn()
    asker = await open_engine(stand_in, patience=HASTY)
    stand_in.replies += [Reply([chunk("Good ")], ever=b": we are still here\n\n"), said("day")]
    await asker.ask()
    assert asker.text == "Good day"


async def test_of_an_engine_that_says_too_much_as_much_is_taken_as_was_asked_for(
    open_engine: Open,
) -> None:
    stand_in = StandIn()
    asker = await open_engine(stand_in, patience=HASTY)
    stand_in.replies.append(Reply([usage(10**6, 10**6), *[chunk("x" * 10_000)] * 100]))
    last = await asker.ask(params={"max_tokens": 1})
    assert (last.outputs[0].finish_reason, last.error) == ("length", None)
    assert asker.text == "x" * MAX_TOKEN_LENGTH
    assert last.counts is not None and (last.counts.num_output, last.counts.num_cached) == (1, 0)
    assert last.counts.num_prompt < 1000


async def test_an_answer_that_has_no_end_is_cut(open_engine: Open) -> None:
    stand_in = StandIn()
    asker = await open_engine(stand_in)
    stand_in.replies += [Reply([chunk("")] * 20_000)] * 3
    last = await asker.ask(params={"max_tokens": 1})
    assert last.error is not None and "has no end" in last.error.message


async def test_an_engine_that_fails_in_vain_again_and_again_ends_the_answer(
    open_engine: Open,
) -> None:
    stand_in = StandIn()
    asker = await open_engine(stand_in)
    stand_in.replies += [broken("One"), broken(), broken(), said(" never")]
    last = await asker.ask()
    assert asker.text == "One"
    assert last.error is not None and last.error.code == "engine_error"
    assert len(stand_in.asked) == 3
