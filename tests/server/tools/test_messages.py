"""Frames between workers and the tool process."""

import asyncio

import pytest

from server.tools.messages import (
    MAX_REPLY_BYTES,
    MAX_REQUEST_BYTES,
    Call,
    Cancel,
    Done,
    Failed,
    Here,
    ListTools,
    Place,
    Recall,
    Reply,
    Request,
    ToolResult,
    Tools,
    Where,
    encode,
    read_reply,
    read_request,
)

REQUESTS = [
    Where(1),
    ListTools(2, 0.5),
    Call(3, "k", "t", b"{}"),
    Recall(4, "k", None),
    Cancel("k"),
]
REPLIES = [
    Here(1, Place("e", 5)),
    Tools(2, (), ()),
    Done(3, ToolResult(text="x", is_replayed=True)),
    Failed(4, "tool_failed", "no"),
]


def reader_of(*pieces: bytes) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    reader.feed_data(b"".join(pieces))
    reader.feed_eof()
    return reader


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda one: type(one).__name__)
async def test_a_request_arrives_as_it_was_sent(request_: Request) -> None:
    assert await read_request(reader_of(encode(request_, MAX_REQUEST_BYTES))) == request_


@pytest.mark.parametrize("reply", REPLIES, ids=lambda one: type(one).__name__)
async def test_a_reply_arrives_as_it_was_sent(reply: Reply) -> None:
    assert await read_reply(reader_of(encode(reply, MAX_REPLY_BYTES))) == reply


async def test_no_frame_beyond_its_bound_is_read_or_sent() -> None:
    with pytest.raises(ValueError, match="at most"):
        await read_request(reader_of((MAX_REQUEST_BYTES + 1).to_bytes(4)))
    with pytest.raises(ValueError, match="at most"):
        encode(Call(1, "k", "t", b"x" * MAX_REQUEST_BYTES), MAX_REQUEST_BYTES)


async def test_a_frame_that_is_cut_off_is_the_end_and_a_wrong_one_is_refused() -> None:
    with pytest.raises(EOFError):
        await read_request(reader_of(encode(Where(1), MAX_REQUEST_BYTES)[:-1]))
    with pytest.raises(ValueError):
        await read_request(reader_of(encode(Here(1, Place("e", 5)), MAX_REPLY_BYTES)))
