"""Parley's own Redis dies or hangs: answers go on, stops work, nothing is missing afterwards."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.end_to_end.site.harness import Client, Server
from tests.end_to_end.site.recovery import next_question_works, stored_text
from tests.helpers.redis_topology import wait_for
from tests.helpers.tiny_model import oracle_answer, oracle_word

GREEDY = {"temperature": 0, "max_output_tokens": 4000}  # at 200 tokens/s: until it is stopped


@pytest.fixture(autouse=True)
async def healthy(server: Server) -> AsyncIterator[None]:
    """What was broken is whole again before the next test."""
    yield
    await asyncio.to_thread(wait_for, lambda: server.get("/readyz")[0] == 200)


async def test_redis_dies_and_the_answer_goes_on(server: Server) -> None:
    async with Client(server) as client:
        session = await client.new_session()
        settings = {"temperature": 0, "max_output_tokens": 1200}
        response = await client.ask(session, oracle_word(0), settings=settings)
        await client.deltas(response, 10)
        server.kill_child("redis-server")
        assert (await client.next("connection.degraded"))["store"] == "unavailable"
        assert (await client.next("connection.restored"))["store"] == "ok"
        answer = await client.done(response)
        assert answer.final == oracle_answer(0, 1200)
        await client.next("message.updated")
        assert stored_text(server, session) == answer.final
        await next_question_works(client, session)


async def test_a_stop_works_while_redis_is_away(server: Server) -> None:
    async with Client(server) as client:
        session = await client.new_session()
        response = await client.ask(session, oracle_word(0), settings=GREEDY)
        await client.deltas(response, 10)
        (redis,) = server.children("redis-server")
        redis.suspend()
        try:
            await client.send("stop", response_id=response)
            cancelling = await client.next("response.cancelling")
            assert cancelling["durable"] is False
            answer = await client.done(response)
            assert answer.done is not None
            assert answer.done["durable"] is False
            assert answer.done["response"]["status"] == "cancelled"
        finally:
            redis.resume()
        await client.next("message.updated")
        assert stored_text(server, session) == answer.final


async def test_a_stop_by_session_works_while_redis_is_away(server: Server) -> None:
    async with Client(server) as client:
        session = await client.new_session()
        response = await client.ask(session, oracle_word(0), settings=GREEDY)
        await client.deltas(response, 10)
        (redis,) = server.children("redis-server")
        redis.suspend()
        try:
            await client.send("stop", session_id=session)
            assert (await client.next("response.cancelling"))["durable"] is False
            answer = await client.done(response)
        finally:
            redis.resume()
        assert answer.done is not None
        assert answer.done["response"]["status"] == "cancelled"
        await client.next("message.updated")
        assert stored_text(server, session) == answer.final
        assert [f for f in client.frames if f["type"] == "error"] == []
