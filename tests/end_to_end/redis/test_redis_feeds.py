"""What two workers show when Redis or the feeds between them fail: nothing that is not stored.

The intervals are short (a lease of 1 s), so that what would be taken over is taken over.
"""

import asyncio
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sessions.model.keys import Keys
from tests.end_to_end.site.harness import TESTING, Client
from tests.end_to_end.site.redis_site import Site, ask, more, own_site, whole
from tests.end_to_end.site.wiring import at_both, pid_of, replica_of
from tests.helpers.running_time import running_time
from tests.helpers.tiny_model import oracle_answer

TEXT = "response.output_text.delta"
PROBE_SECONDS = 8.0  # a dead pub/sub link is found within


@pytest.fixture(scope="module")
def _two(oracle_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("two")
    with own_site(folder, oracle_model, PARLEY_WORKERS="2", **TESTING) as here:
        yield here


@pytest.fixture
async def two(_two: Site) -> Site:
    """Two workers on one Redis, which every test leaves healthy."""
    await _two.mend()
    return _two


@pytest.mark.row("R2")
async def test_with_other_workers_nothing_is_shown_that_could_be_taken_over(two: Site) -> None:
    async with Client(two.server) as client:
        session, response = await ask(client, 400)
        two.kill_redis()
        killed = time.monotonic()
        await client.next("connection.degraded")
        held = None
        while held != client.answers[response].last:  # until nothing has come for half a second
            held = client.answers[response].last
            await asyncio.sleep(0.5)
        texts = [r.time for r in client.record.records if r.frame["type"] == TEXT]
        assert max(texts) - killed < 1.0  # the lease: nobody took over before
        two.redis.start()
        await whole(two, client, session, response, 400)


@pytest.mark.row("R6")
async def test_an_eviction_policy_set_while_running_is_named(two: Site) -> None:
    await two.command("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    try:
        named = "maxmemory-policy is allkeys-lru and must be noeviction"
        assert await two.not_ready("redis") == named
        assert named in two.server.log()
    finally:
        await two.command("CONFIG", "SET", "maxmemory-policy", "noeviction")
    await two.ready()


@pytest.mark.slow
@pytest.mark.row("R13")
async def test_a_silently_dead_feed_is_found_and_what_it_missed_is_read(two: Site) -> None:
    async with at_both(two.server) as (owner, other):
        session, response = await ask(owner, 1100)
        await other.reply("session.subscribe", session_id=session)
        await more(other, response, 5) if response in other.answers else None
        two.proxy.command("blackhole on SUBSCRIBE")
        two.server.history.fault("pub/sub links stalled")
        cut = running_time()
        await asyncio.sleep(0.5)  # what was on its way has arrived
        await more(other, response, 1)
        assert running_time() - cut < PROBE_SECONDS
        assert (await other.done(response)).final == oracle_answer(0, 1100)
        await whole(two, owner, session, response, 1100)


@pytest.mark.row("R14")
async def test_a_feed_that_redis_cuts_off_is_caught_up(two: Site) -> None:
    limit = "client-output-buffer-limit"
    async with at_both(two.server) as (owner, other):
        session, response = await ask(owner, 600)
        await other.reply("session.subscribe", session_id=session)
        await two.command("CONFIG", "SET", limit, "pubsub 1mb 1mb 1")
        replica = await replica_of(other)
        two.server.history.fault("a worker stops while its feed fills")
        os.kill(pid_of(replica), signal.SIGSTOP)
        try:
            padding = json.dumps({"origin": replica, "frame": {}, "padding": "x" * 60_000})
            channel = Keys("parley:").session_channel(session)
            receivers = 2
            while receivers == 2:  # until Redis has enough of the silent one
                receivers = await two.command("PUBLISH", channel, padding)
            await more(owner, response, 20)
        finally:
            os.kill(pid_of(replica), signal.SIGCONT)
            await two.command("CONFIG", "SET", limit, "pubsub 33554432 8388608 60")
        assert (await other.done(response)).final == oracle_answer(0, 600)
        await whole(two, owner, session, response, 600)
