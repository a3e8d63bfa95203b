"""N rows: clients that vanish, stumble, read slowly, sleep and come back, through a fault proxy."""

import asyncio
import os
import random
import statistics
from collections.abc import Iterator
from contextlib import AsyncExitStack
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.end_to_end.clients.http_client import admin_token
from tests.end_to_end.frames.client_model import Answer, Frame
from tests.end_to_end.site.fault_proxy import FaultProxy
from tests.end_to_end.site.harness import Client, Server
from tests.helpers.running_time import running_time
from tests.helpers.tiny_model import ORACLE_VOCAB, oracle_answer, oracle_word

PING_SECONDS = 1.0  # of PARLEY_TESTING, and so long for the pong
DELTA = "response.output_text.delta"
SNAPSHOT = "response.output_text.snapshot"
LATE_SECONDS = 300.0  # for the longest answer to end, on a busy machine
PATIENT = {"ping_interval": None}  # of our client: the server's pings are under test


@pytest.fixture(scope="module")
def brisk(oracle_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that decodes as fast as it can, with short intervals."""
    data = tmp_path_factory.mktemp("networks") / "data"
    environment = {"PARLEY_TESTING": "1", "PARLEY_PACE": "0", "PARLEY_WATCHDOG_SECONDS": "30"}
    server = Server(data, oracle_model, None, **environment)
    try:
        yield server.start()
    finally:
        server.close()


@pytest.fixture
def way(server: Server) -> Iterator[FaultProxy]:
    """The way from a client to the shared server."""
    with FaultProxy(urlsplit(server.url).netloc) as proxy:
        yield proxy


@pytest.fixture
def brisk_way(brisk: Server) -> Iterator[FaultProxy]:
    with FaultProxy(urlsplit(brisk.url).netloc) as proxy:
        yield proxy


@pytest.fixture
def dice() -> random.Random:
    seed = int.from_bytes(os.urandom(4), "big")
    print("seed of this test:", seed)
    return random.Random(seed)


def narrow_way(server: Server) -> FaultProxy:
    """A way whose own buffers hold next to nothing, as a reader's may."""
    return FaultProxy(urlsplit(server.url).netloc, receive_buffer=4096)


def settings(num_tokens: int) -> Frame:
    return {"temperature": 0, "max_output_tokens": num_tokens}


def position(response: str, known: Answer) -> Frame:
    return {"response_id": response, "fence": known.fence, "after_sequence_number": known.last}


async def metric_becomes(server: Server, name: str, value: float, seconds: float) -> None:
    started = running_time()
    while await asyncio.to_thread(server.metric, name) != value:
        # Seen from outside: there is no event to wait for, and each look takes a while.
        assert running_time() - started < seconds


@pytest.mark.row("N1")
async def test_a_client_that_vanished_is_noticed_and_its_answer_goes_on(
    brisk: Server, brisk_way: FaultProxy
) -> None:
    before = brisk.metric("parley_connections")
    async with Client(brisk) as watcher:
        async with Client(brisk, address=brisk_way.address, **PATIENT) as client:
            session = await client.new_session()
            await watcher.reply("session.subscribe", session_id=session)
            response = await client.ask(session, oracle_word(0), settings=settings(300))
            await client.deltas(response, 1)
            brisk_way.command("blackhole")
            await metric_becomes(brisk, "parley_connections", before + 1, 2 * PING_SECONDS + 5)
            assert (await watcher.done(response)).final == oracle_answer(0, 300)
            brisk_way.command("rst")
            await client.closed()


async def stumble(
    server: Server, way: FaultProxy, dice: random.Random, cuts: int, num_tokens: int
) -> None:
    """One answer over so many connections, each reset at random."""
    word = dice.randrange(ORACLE_VOCAB - num_tokens)  # the model can count no further
    known: Answer | None = None
    session = response = ""
    for number in range(cuts + 1):
        async with Client(server, address=way.address) as client:
            if known is None:
                session = await client.new_session()
                response = await client.ask(
                    session, oracle_word(word), settings=settings(num_tokens)
                )
            else:
                client.answers[response] = known
                responses = [position(response, known)]
                await client.send("session.subscribe", session_id=session, responses=responses)
            if number < cuts:
                # Some cuts come before the first reply, some in the middle of a frame.
                if dice.random() < 0.7:
                    await asyncio.sleep(dice.uniform(0, 2 * num_tokens / 200 / cuts))
                    way.command("rst")
                else:
                    way.command(f"cut-after {dice.randrange(1, 2000)}")
                await client.closed()
                way.command("pass")
            else:
                assert (await client.done(response)).final == oracle_answer(word, num_tokens)
            known = client.answers.get(response, known)


@pytest.mark.row("N2")
async def test_ten_resets_in_one_answer_lose_nothing(
    server: Server, way: FaultProxy, dice: random.Random
) -> None:
    before = server.metric("parley_engine_requests_total")
    await stumble(server, way, dice, cuts=10, num_tokens=600)
    assert server.metric("parley_engine_requests_total") == before + 1


@pytest.mark.row("N2")
@pytest.mark.slow
async def test_thirty_resets_in_a_minute_lose_nothing(
    server: Server, way: FaultProxy, dice: random.Random
) -> None:
    await stumble(server, way, dice, cuts=30, num_tokens=12_000)


@pytest.mark.row("N3")
async def test_frames_may_come_and_go_in_single_bytes(server: Server, way: FaultProxy) -> None:
    way.command("split")
    async with Client(server, address=way.address) as client:
        session = await client.new_session()
        response = await client.ask(session, oracle_word(0), settings=settings(40))
        assert (await client.done(response)).final == oracle_answer(0, 40)


class Clocked(Client):
    """Notes when each delta came."""

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self.delta_times: dict[str, list[float]] = {}

    async def take(self, frame: Frame) -> None:
        if frame["type"] == DELTA:
            self.delta_times.setdefault(frame["response_id"], []).append(running_time())
        await super().take(frame)

    def gap_p99(self) -> float:
        """Seconds between two deltas of one answer, p99 over all."""
        gaps = [b - a for times in self.delta_times.values() for a, b in pairwise(times)]
        return statistics.quantiles(gaps, n=100)[-1]


def worker_memory(server: Server) -> int:
    """Bytes that belong to the one worker alone."""
    (worker,) = server.children("server.worker")
    return int(worker.memory_full_info().uss)


async def read_slowly(server: Server, num_answers: int, num_tokens: int, rate: int) -> None:
    """One reader of all answers gets `rate` bytes per second, another as much as it wants."""
    async with AsyncExitStack() as stack:
        narrow = stack.enter_context(narrow_way(server))
        quick = await stack.enter_async_context(Clocked(server))
        slow = await stack.enter_async_context(Client(server, address=narrow.address))
        sessions = [await quick.new_session() for _ in range(num_answers)]
        for session in sessions:
            await slow.reply("session.subscribe", session_id=session)
        memory = worker_memory(server)
        narrow.command(f"rate {rate}")
        words = {
            await quick.ask(session, oracle_word(500 * n), settings=settings(num_tokens)): 500 * n
            for n, session in enumerate(sessions)
        }
        await quick.deltas(next(iter(words)), 20)
        grown = worker_memory(server) - memory
        for response, word in words.items():
            assert (await quick.done(response)).final == oracle_answer(word, num_tokens)
        assert not any((a := slow.answers.get(r)) and a.done for r in words), "it is not slow"
        narrow.command("rate 0")
        for response, word in words.items():
            answer = await slow.done(response)
            assert answer.final == oracle_answer(word, num_tokens)
        num_frames = [sum(c.answers[r].num_deltas for r in words) for c in (slow, quick)]
        print(num_frames, grown, quick.gap_p99())
        assert num_frames[0] < num_frames[1] / 2
        assert quick.gap_p99() < 1.0  # who waits for the slow one waits for many seconds
        assert grown < 3 * 2**20


@pytest.mark.row("N4")
async def test_a_slow_reader_gets_fewer_frames_and_the_whole_text(server: Server) -> None:
    await read_slowly(server, num_answers=8, num_tokens=400, rate=8_000)


@pytest.mark.row("N4")
@pytest.mark.slow
async def test_a_reader_that_reads_nothing_is_closed_with_4008(server: Server) -> None:
    """It is cut because it takes nothing for 15 s, before its pong is missed or the kernel acts."""
    num_tokens = 6_000  # 30 s of them
    before = server.num_closes(4008)
    async with AsyncExitStack() as stack:
        narrow = stack.enter_context(narrow_way(server))
        quick = await stack.enter_async_context(Clocked(server))
        slow = await stack.enter_async_context(Client(server, address=narrow.address, **PATIENT))
        session = await quick.new_session()
        await slow.reply("session.subscribe", session_id=session)
        response = await quick.ask(session, oracle_word(0), settings=settings(num_tokens))
        known = await slow.deltas(response, 3)
        narrow.command("blackhole replies")
        async with asyncio.timeout(15 + 10):
            while await asyncio.to_thread(server.num_closes, 4008) == before:
                pass  # as in `metric_becomes`
        narrow.command("rst")
        await slow.closed()
        back = await stack.enter_async_context(Client(server))
        back.answers[response] = known
        responses = [position(response, known)]
        await back.send("session.subscribe", session_id=session, responses=responses)
        assert (await back.done(response, LATE_SECONDS)).final == oracle_answer(0, num_tokens)
        assert (await quick.done(response, LATE_SECONDS)).final == oracle_answer(0, num_tokens)
        assert quick.gap_p99() < 1.0  # who waits for the slow one waits for many seconds


async def join_at_random(
    server: Server, dice: random.Random, joins: int, num_tokens: int, seconds: float
) -> set[str]:
    """Clients that come at random moments of one long answer, with nothing; kinds of first text."""
    kinds: set[str] = set()
    async with Client(server) as asker:
        session = await asker.new_session()
        response = await asker.ask(session, oracle_word(0), settings=settings(num_tokens))
        await asker.deltas(response, 1)

        async def join() -> None:
            await asyncio.sleep(dice.uniform(0, seconds))
            # All of them hear all of the rest: that may take long, and must be exact.
            async with Client(server, open_timeout=LATE_SECONDS) as late:
                place = {"fence": 1, "after_sequence_number": 0}
                await late.send("response.resume", response_id=response, **place)
                answer = await late.done(response, LATE_SECONDS)
                assert answer.final == oracle_answer(0, num_tokens)
                kinds.add(next(f["type"] for f in late.frames if f["type"] in (DELTA, SNAPSHOT)))

        await asyncio.gather(*(join() for _ in range(joins)))
        await asker.done(response, LATE_SECONDS)
    return kinds


@pytest.mark.row("N7")
async def test_a_client_that_comes_late_gets_the_whole_text_at_any_moment(
    server: Server, dice: random.Random
) -> None:
    assert SNAPSHOT in await join_at_random(server, dice, joins=20, num_tokens=600, seconds=3.0)


@pytest.mark.row("N7")
@pytest.mark.slow
async def test_two_hundred_late_clients_get_the_whole_text_of_16_000_tokens(
    server: Server, dice: random.Random
) -> None:
    await join_at_random(server, dice, joins=200, num_tokens=16_000, seconds=80.0)


@pytest.mark.row("N8")
async def test_a_position_beyond_the_truth_is_answered_with_a_snapshot(server: Server) -> None:
    async with Client(server) as client, Client(server, token=admin_token(server)) as stranger:
        session = await client.new_session()
        response = await client.ask(session, oracle_word(0), settings=settings(100))
        await client.deltas(response, 3)
        async with Client(server) as ahead:
            fields: Frame = {"response_id": response, "fence": 1}
            negative = await ahead.reply("response.resume", **fields, after_sequence_number=-1)
            assert negative["error"]["code"] == "invalid_field"
            await ahead.send("response.resume", **fields, after_sequence_number=10**9)
            snapshot = await ahead.next(SNAPSHOT, DELTA, "response.created")
            assert snapshot["type"] == SNAPSHOT
            foreign = await stranger.reply("response.resume", **fields, after_sequence_number=1)
            assert foreign["error"]["code"] == "response_not_found"
            assert (await ahead.done(response)).final == oracle_answer(0, 100)
        assert (await client.done(response)).final == oracle_answer(0, 100)


async def sleep_on(server: Server, way: FaultProxy, seconds: float, num_tokens: int) -> None:
    """A tab that neither reads nor answers pings for a while, and comes back."""
    async with Client(server, address=way.address, **PATIENT) as tab:
        session = await tab.new_session()
        response = await tab.ask(session, oracle_word(0), settings=settings(num_tokens))
        known = await tab.deltas(response, 1)
        way.command("blackhole")
        await asyncio.sleep(seconds)
        way.command("rst")
        await tab.closed()
    way.command("pass")
    async with Client(server, address=way.address) as back:
        back.answers[response] = known
        responses = [position(response, known)]
        await back.send("session.subscribe", session_id=session, responses=responses)
        assert (await back.done(response)).final == oracle_answer(0, num_tokens)


@pytest.mark.row("N9")
async def test_a_tab_that_slept_through_two_pings_comes_back_to_the_whole_text(
    brisk: Server, brisk_way: FaultProxy
) -> None:
    await sleep_on(brisk, brisk_way, 2.5 * PING_SECONDS, 400)


@pytest.mark.row("N9")
@pytest.mark.slow
async def test_a_tab_that_slept_for_five_minutes_comes_back_to_the_whole_text(
    server: Server, way: FaultProxy
) -> None:
    await sleep_on(server, way, 300.0, 2_000)


@pytest.mark.row("N11")
async def test_pings_keep_an_idle_socket_open(brisk: Server, brisk_way: FaultProxy) -> None:
    async with Client(brisk, address=brisk_way.address, **PATIENT) as client:
        await client.new_session()
        brisk_way.command(f"idle {2.5 * PING_SECONDS}")
        await asyncio.sleep(4 * PING_SECONDS)
        assert (await client.reply("session.create", idempotency_key="still-there"))["session"]


@pytest.mark.row("N11")
@pytest.mark.slow
async def test_pings_keep_open_sockets_that_would_be_cut_after_30_seconds(
    server: Server, way: FaultProxy
) -> None:
    async with Client(server, address=way.address, **PATIENT) as client:
        await client.new_session()
        way.command("idle 30")
        await asyncio.sleep(180)
        assert (await client.reply("session.create", idempotency_key="still-there"))["session"]


async def test_a_cut_of_three_seconds_is_made_good_within_one_and_a_half(
    server: Server, way: FaultProxy
) -> None:
    async with Client(server, address=way.address) as client:
        session = await client.new_session()
        response = await client.ask(session, oracle_word(0), settings=settings(700))
        await client.deltas(response, 3)
        way.command("blackhole")
        await asyncio.sleep(3.0)  # the length of the cut
        held = client.answers[response].num_deltas
        way.command("pass")
        came = running_time()
        await client.deltas(response, held + 1)
        assert running_time() - came < 1.5
        assert (await client.done(response)).final == oracle_answer(0, 700)
