"""S8, N5, N6: more clients at once than usual. Who is in is served, the rest are refused or cut."""

import asyncio
import contextlib
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack

import psutil
import pytest
from redis.asyncio import Redis

from sessions.directory.credentials import Credentials
from sessions.directory.users import Users
from sessions.store.store import SessionStore
from tests.end_to_end.frames.client_model import Answer
from tests.end_to_end.frames.raw import RawSocket
from tests.end_to_end.site.harness import Client, Server
from tests.helpers.patience import PATIENCE
from tests.helpers.running_time import running_time
from tests.helpers.tiny_model import oracle_answer, oracle_word

NUM_TOKENS = 300
NUM_CLIENTS = 1000
SENT = ("evalsha", "hget", "hgetall", "hmget", "get", "xrange", "lrange", "zrange", "zrangebyscore")


@pytest.mark.row("S8")
async def test_a_worker_without_descriptors_serves_the_clients_that_it_has(server: Server) -> None:
    (worker,) = server.children("server.worker")
    limits = worker.rlimit(psutil.RLIMIT_NOFILE)
    async with Client(server) as client, AsyncExitStack() as crowd:
        session = await client.new_session()
        settings = {"temperature": 0, "max_output_tokens": NUM_TOKENS}
        response = await client.ask(session, oracle_word(0), settings=settings)
        await client.deltas(response, 1)
        worker.rlimit(psutil.RLIMIT_NOFILE, (worker.num_fds() + 10, limits[1]))
        try:
            sockets = [await crowd.enter_async_context(RawSocket(server)) for _ in range(60)]
            before = sum(worker.cpu_times()[:2])
            assert (await client.done(response)).final == oracle_answer(0, NUM_TOKENS)
            # 300 tokens take 1.5 s; a loop that tries to accept for ever takes all of that.
            assert sum(worker.cpu_times()[:2]) - before < 0.75
            refused = 0
            for socket in sockets:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.02):  # those that have a place hear nothing yet
                        await socket.ended()
                        refused += 1
            assert refused >= 40
        finally:
            worker.rlimit(psutil.RLIMIT_NOFILE, limits)
        async with Client(server) as late:  # there is room at once, with the crowd still there
            await late.new_session()


@pytest.mark.row("N5")
@pytest.mark.slow
async def test_each_of_a_thousand_clients_at_once_is_served_or_refused(server: Server) -> None:
    ends: Counter[str] = Counter()
    have_all = asyncio.Event()

    def note(end: str) -> None:
        ends[end] += 1
        if ends.total() == NUM_CLIENTS:
            have_all.set()

    async def come() -> None:
        async with RawSocket(server) as socket:
            status = (await socket.upgrade()).status
            if status != 101:
                note(f"status {status}")
            elif isinstance(first := await socket.next_or_close(), dict):
                note(first["type"])
                await have_all.wait()
            else:
                note(f"{first[0]} {first[1].partition('=')[0]}")

    async with asyncio.TaskGroup() as tasks:
        for _ in range(NUM_CLIENTS):
            tasks.create_task(come())
    print(dict(ends))
    assert set(ends) <= {"connection.ready", "4429 retry_after_ms", "1013 retry_after_ms"}, ends
    assert ends["connection.ready"] > 0


# ---- N6: everybody comes back at once ------------------------------------------------------------


class Viewer:
    """One user's tab with one answer, that comes back by the rule of docs/protocol.md."""

    def __init__(self, server: Server, token: str, word: int, num_tokens: int) -> None:
        self._server, self._token = server, token
        self._word, self._num_tokens = word, num_tokens
        self._session = self._response = ""
        self._client = Client(server, token=token)

    async def begin(self) -> None:
        client = await self._client.__aenter__()
        self._session = await client.new_session()
        settings = {"temperature": 0, "max_output_tokens": self._num_tokens}
        word = oracle_word(self._word)
        self._response = await client.ask(self._session, word, settings=settings)
        await client.deltas(self._response, 1)

    async def come_back(self, dice: random.Random) -> float:
        """Reconnect when the connection is lost; returns when text came again."""
        await self._client.closed()
        known = self._client.answers[self._response]
        await self._client.__aexit__()
        for attempt in range(10):
            await asyncio.sleep(dice.uniform(0, 0.3 * 2**attempt))
            self._client = Client(self._server, token=self._token, open_timeout=PATIENCE)
            with contextlib.suppress(OSError):
                await self._client.__aenter__()
                break
        return await self._resume(known)

    async def _resume(self, known: Answer) -> float:
        client, num_known = self._client, len(known.frames)
        client.answers[self._response] = known
        place = {"fence": known.fence, "after_sequence_number": known.last}
        responses = [{"response_id": self._response, **place}]
        subscribed = await client.reply(
            "session.subscribe", session_id=self._session, responses=responses
        )
        assert subscribed["type"] == "session.subscribed", subscribed
        await client.wait(lambda: len(known.frames) > num_known, "text")
        return running_time()

    async def end(self) -> None:
        answer = await self._client.done(self._response)
        assert answer.final == oracle_answer(self._word, self._num_tokens)
        await self._client.__aexit__()


async def tokens_of_users(server: Server, num_users: int) -> list[str]:
    store = await SessionStore.open(server.redis_url)
    try:
        users = Users(store.client, store.keys)
        credentials = Credentials(store.client, store.keys)
        made = [await users.create(f"viewer {number}") for number in range(num_users)]
        return [await credentials.create_token(user.uid) for user in made]
    finally:
        await store.close()


async def num_sent(redis: Redis) -> int:
    """Commands that Redis was sent: a script counts as one, each of its reads too, its writes not.

    Redis does not tell what came from a script, so this is somewhat more than was sent.
    """
    stats = await redis.info("commandstats")
    return sum(int(stats.get(f"cmdstat_{name}", {}).get("calls", 0)) for name in SENT)


async def most_commands_per_second(url: str, is_over: asyncio.Event) -> float:
    """The most that Redis was sent in half a second."""
    rates = [0.0]
    async with Redis.from_url(url) as redis:
        at, count = time.monotonic(), await num_sent(redis)
        while not is_over.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(is_over.wait(), 0.5)
            now, total = time.monotonic(), await num_sent(redis)
            rates.append((total - count) / (now - at))
            at, count = now, total
    return max(rates)


async def storm(server: Server, num_viewers: int, num_tokens: int) -> tuple[float, float]:
    """All watch answers of one worker, which is killed; seconds until all have text again.

    And how many commands per second that made.
    """
    seed = int.from_bytes(os.urandom(4), "big")
    print("seed of this test:", seed)
    dice = random.Random(seed)
    tokens = await tokens_of_users(server, num_viewers)
    viewers = [Viewer(server, t, 100 * (n % 160), num_tokens) for n, t in enumerate(tokens)]
    first, second = server.children("server.worker")
    second.suspend()  # the first accepts all
    try:
        await asyncio.gather(*(viewer.begin() for viewer in viewers))
    finally:
        second.resume()
    is_over = asyncio.Event()
    asking = asyncio.create_task(most_commands_per_second(server.redis_url, is_over))
    server.history.fault("kill -9 of the worker of all")
    killed = running_time()
    first.kill()
    back = await asyncio.gather(*(viewer.come_back(dice) for viewer in viewers))
    is_over.set()
    await asyncio.gather(*(viewer.end() for viewer in viewers))
    return max(back) - killed, await asking


@pytest.mark.row("N6")
async def test_all_viewers_of_a_killed_worker_come_back_at_once(two_workers: Server) -> None:
    seconds, _ = await storm(two_workers, num_viewers=20, num_tokens=150)
    assert seconds < 15


@pytest.mark.row("N6")
@pytest.mark.slow
async def test_five_hundred_viewers_of_a_killed_worker_have_text_again_within_fifteen_seconds(
    new_server: Callable[..., Server],
) -> None:
    server = new_server(PARLEY_WORKERS="2", PARLEY_PACE="2", PARLEY_MAX_NUM_SEQS="512")
    seconds, commands_per_s = await storm(server, num_viewers=500, num_tokens=80)
    print(f"{seconds:.1f} s, {commands_per_s:.0f} commands/s")
    assert seconds < 15
    assert commands_per_s < 20_000
