"""Stops, the wish, at another worker: three paths lead to the owner, each works alone (C5, C16).

What the stop does once it is there is the same from every worker: `test_stop_phases.py`.

The owner's links to Redis go through a fault proxy. What is measured is the time from the stop to
`response.done` at the asker; the bounds leave room for a busy machine.
"""

import asyncio
import random
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.frames.client_model import Answer, Frame
from tests.end_to_end.site.harness import Client
from tests.end_to_end.site.wiring import Wired, at_both, pid_of, replica_of, wired
from tests.helpers.running_time import running_time
from tests.helpers.tiny_model import oracle_answer, oracle_word

LONG = {"temperature": 0, "max_output_tokens": 3000}
BUSY = 5.0  # seconds that a loaded machine may add; `released` says that the owner ended it


@pytest.fixture(scope="module")
def shared(oracle_model: Path) -> Iterator[Wired]:
    with wired(oracle_model) as wiring:
        yield wiring


@pytest.fixture
def wiring(shared: Wired) -> Iterator[Wired]:
    yield shared
    shared.reset()


async def begin(owner: Client, other: Client) -> tuple[str, str]:
    """An answer at the owner, watched from both workers: session and response."""
    session = await owner.new_session()
    await other.reply("session.subscribe", session_id=session)
    response = await owner.ask(session, oracle_word(0), settings=LONG)
    await other.deltas(response, 3)
    return session, response


async def stop(asker: Client, response: str) -> tuple[Answer, float]:
    """Stop it, wait for the end, and say how long that took."""
    started = running_time()
    await asker.send("stop", response_id=response)
    assert (await asker.next("response.cancelling"))["durable"] is True
    answer = await asker.done(response)
    seconds = running_time() - started
    assert answer.done is not None
    assert answer.done["response"]["status"] == "cancelled"
    return answer, seconds


@pytest.mark.row("C5")
async def test_a_stop_arrives_by_the_control_channel_alone(wiring: Wired) -> None:
    async with at_both(wiring.server) as (owner, asker):
        _, response = await begin(owner, asker)
        pid = pid_of(await replica_of(owner))
        # Neither an append nor a renewal is answered any more; what is published still comes.
        wiring.links.command(f"blackhole replies every pid:{pid}")
        wiring.links.command("pass every SUBSCRIBE")
        stopped = running_time()
        await asker.send("stop", response_id=response)
        done = (await owner.done(response)).done  # from memory: Redis answers the owner nothing
        assert done is not None and done["response"]["status"] == "cancelled"
        assert (done["durable"], done["engine"]) == (False, "released")
        assert running_time() - stopped < 0.1 + BUSY
        wiring.reset()
        answer = await asker.done(response)
        assert oracle_answer(0, 3000).startswith(answer.final)


@pytest.mark.row("C5")
async def test_a_stop_arrives_by_the_reply_of_an_append_alone(wiring: Wired) -> None:
    async with at_both(wiring.server) as (owner, asker):
        _, response = await begin(owner, asker)
        wiring.links.command("blackhole every SUBSCRIBE")  # and it never comes to a renewal
        answer, seconds = await stop(asker, response)
        assert seconds < 0.2 + BUSY
        assert answer.done is not None and answer.done["engine"] == "released"
        assert (await owner.done(response)).final == answer.final


@pytest.mark.row("C5")
async def test_a_stop_arrives_by_a_renewal_alone(wiring: Wired) -> None:
    async with at_both(wiring.server) as (owner, asker):
        session, first = await begin(owner, asker)
        waiting = await owner.ask(session, oracle_word(5), on_busy="queue")
        wiring.links.command("blackhole every SUBSCRIBE")  # and it appends nothing: it waits
        answer, seconds = await stop(asker, waiting)
        assert seconds < 1.2 + BUSY
        assert answer.final == ""
        ended = await owner.done(waiting)
        assert ended.done is not None and ended.done["engine"] == "released"
        assert ended.done["response"]["usage"]["output_tokens"] == 0
        assert owner.answers[first].done is None
        await owner.send("stop", response_id=first)
        await owner.done(first)


async def patiently(client: Client, kind: str, **fields: Any) -> Frame:
    """Ask until the store has answered in time: a busy machine may keep it waiting."""
    while (reply := await client.reply(kind, **fields))["type"] == "error":
        assert reply["error"]["code"] == "store_unavailable", reply
    return reply


async def stop_many(wiring: Wired, count: int) -> None:
    """Stops that cancel tasks inside Redis calls, on links so slow that many are in flight."""
    dice = random.Random(count)
    wiring.links.command("delay 0.002")

    async def stop_some(owner: Client, other: Client, number: int) -> None:
        for place in range(count // 10):
            word = number * 800 + place * 7  # its own text tells every answer from the others
            key = {"idempotency_key": f"{number}-{place}-{count}"}
            created = await patiently(owner, "session.create", **key)
            session = str(created["session"]["id"])
            await patiently(other, "session.subscribe", session_id=session)
            key |= {"session_id": session, "input": oracle_word(word)}
            created = await patiently(owner, "response.create", **key, settings=LONG)
            response = str(created["response"]["id"])
            await asyncio.sleep(dice.uniform(0, 0.1))
            await dice.choice((owner, other)).send("stop", response_id=response)
            first, second = await owner.done(response), await other.done(response)
            assert first.final == second.final
            assert oracle_answer(word, 3000).startswith(first.final)
            for client in (owner, other):
                await client.reply("session.unsubscribe", session_id=session)

    async with AsyncExitStack() as stack:
        pairs = [await stack.enter_async_context(at_both(wiring.server)) for _ in range(10)]
        await asyncio.gather(*(stop_some(*tabs, number) for number, tabs in enumerate(pairs)))


@pytest.mark.row("C16")
async def test_a_hundred_stops_over_slow_links_cross_no_replies(wiring: Wired) -> None:
    await stop_many(wiring, 100)


@pytest.mark.row("C16")
@pytest.mark.slow
async def test_a_thousand_stops_over_slow_links_cross_no_replies(wiring: Wired) -> None:
    await stop_many(wiring, 1000)


@pytest.mark.row("C5")
async def test_a_stop_at_another_worker_takes_a_moment_when_nothing_is_cut(
    wiring: Wired,
) -> None:
    times = []
    async with at_both(wiring.server) as (owner, asker):
        for _ in range(10):
            _, response = await begin(owner, asker)
            answer, seconds = await stop(asker, response)
            assert (await owner.done(response)).final == answer.final
            times.append(seconds)
    print("stop at another worker, ms:", sorted(round(seconds * 1000, 1) for seconds in times))
    assert sorted(times)[5] < 0.1
