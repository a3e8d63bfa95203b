"""S8, N5: more clients than there is room for. Who is in is served, the others are told or cut."""

import asyncio
import contextlib
from collections import Counter
from contextlib import AsyncExitStack

import psutil
import pytest

from tests.end_to_end.harness import Client, Server
from tests.end_to_end.raw import RawSocket
from tests.tiny_model import oracle_answer, oracle_word

NUM_TOKENS = 300
NUM_CLIENTS = 1000


async def test_s8_a_worker_without_descriptors_serves_who_is_there(server: Server) -> None:
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


@pytest.mark.slow
async def test_n5_of_a_thousand_at_once_each_is_served_or_refused(server: Server) -> None:
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
            elif isinstance(told := await socket.next_or_close(), dict):
                note(told["type"])
                await have_all.wait()
            else:
                note(f"{told[0]} {told[1].partition('=')[0]}")

    async with asyncio.TaskGroup() as tasks:
        for _ in range(NUM_CLIENTS):
            tasks.create_task(come())
    print(dict(ends))
    assert set(ends) <= {"connection.ready", "4429 retry_after_ms", "1013 retry_after_ms"}, ends
    assert ends["connection.ready"] > 0
