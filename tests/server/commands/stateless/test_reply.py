"""A reply is read from its beginning, by all who come, until its parts have been given away."""

import asyncio

import pytest

from server.commands.stateless.reply import Reading, Reply
from server.protocol.errors import ApiError


def reading_of(reply: Reply) -> Reading:
    return Reading(reply, lambda _: None)


async def test_what_has_come_since_is_read_as_one() -> None:
    reply = Reply("a")
    first, second = reading_of(reply), reading_of(reply)
    waiting = [asyncio.ensure_future(each.next()) for each in (first, second)]
    await asyncio.sleep(0)
    reply.put(b"one ")
    assert [await each for each in waiting] == [b"one "] * 2
    reply.put(b"two ")
    reply.put(b"three")
    reply.end()
    assert await first.next() == b"two three" and await first.next() == b""
    assert await reading_of(reply).next() == b"one two three"


async def test_what_comes_until_a_moment_is_collected_unless_it_is_the_end() -> None:
    reply, loop = Reply("a"), asyncio.get_running_loop()
    reading = reading_of(reply)
    reply.put(b"one ")
    collected = asyncio.ensure_future(reading.next(loop.time() + 0.01))
    await asyncio.sleep(0)
    reply.put(b"two ")
    assert await collected == b"one two "
    last = asyncio.ensure_future(reading.next(loop.time() + 3600))
    await asyncio.sleep(0)
    reply.put(b"three")
    await asyncio.sleep(0)
    assert not last.done()
    reply.end()
    assert await last == b"three"
    assert await reading.next(loop.time() + 3600) == b""


async def test_whose_rights_have_ended_hears_that_and_no_part_more() -> None:
    reply = Reply("c")
    readings = [reading_of(reply) for _ in range(2)]
    reply.put(b"a")
    readings[0].refuse(ApiError("token_invalid", "revoked"))
    with pytest.raises(ApiError, match="revoked"):
        await readings[0].next()
    assert await readings[1].next() == b"a"


async def test_an_error_comes_after_all_that_was_said() -> None:
    reply = Reply("a")
    reply.put(b"one")
    reply.end(ApiError("engine_unavailable", "no"))
    reading = reading_of(reply)
    assert await reading.next() == b"one"
    with pytest.raises(ApiError):
        await reading.next()


@pytest.mark.parametrize("is_kept", [True, False])
async def test_what_nobody_else_will_read_is_forgotten(is_kept: bool) -> None:
    reply = Reply("a", is_kept=is_kept)
    reading = reading_of(reply)
    reading.give()
    reply.put(b"one")
    assert await reading.next() == b"one"
    reply.end()
    assert await reading_of(reply).next() == (b"one" if is_kept else b"")


async def test_who_leaves_waits_for_what_ends_with_it() -> None:
    gate, left = asyncio.Event(), list[Reply]()
    reply = Reply("a")

    def on_leave(reply: Reply) -> asyncio.Task[None]:
        left.append(reply)
        return asyncio.create_task(wait())

    async def wait() -> None:
        await gate.wait()

    reading = Reading(reply, on_leave)
    leaving = asyncio.ensure_future(reading.leave())
    await asyncio.sleep(0)
    assert not leaving.done() and reply.readers == set()
    gate.set()
    await leaving
    await reading.leave()
    assert left == [reply]
