"""What becomes of answers when Redis dies, hangs, fills up, forgets or is cut off: rows R1 to R16.

The servers of this file have a Redis of the test's own, behind a proxy. Those of two workers run
with shortened intervals (PARLEY_TESTING, a lease of 1 s), the others with the usual ones.
"""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sessions.client import RedisClient
from sessions.embedded import EmbeddedRedis
from sessions.errors import StoreUnavailable
from sessions.keys import Keys
from tests.end_to_end.client_model import Answer, Frame
from tests.end_to_end.fault_proxy import FaultProxy
from tests.end_to_end.harness import Client, Server
from tests.redis_server import redis_binaries, running_redis
from tests.redis_topology import running_pair, wait_for
from tests.tiny_model import oracle_answer, oracle_word

BINARY = list(redis_binaries().values())[-1:]  # the oldest: 6.2
TESTING = {"PARLEY_TESTING": "1", "PARLEY_WATCHDOG_SECONDS": "30"}
PACE = 100
SHORT = {"temperature": 0, "max_output_tokens": 20}
TEXT = "response.output_text.delta"
HEAL_SECONDS = 5.0
PROBE_SECONDS = 8.0  # a dead pub/sub link is found within


@dataclass
class Site:
    """A `parley serve` whose Redis can be broken."""

    server: Server
    redis: EmbeddedRedis
    proxy: FaultProxy

    def kill_redis(self) -> None:
        self.server.history.fault("kill -9 redis")
        assert self.redis.pid is not None
        os.kill(self.redis.pid, signal.SIGKILL)
        self.redis._process.wait()  # type: ignore[union-attr]

    async def mend(self) -> None:
        """What a test that failed has left broken."""
        if self.redis.poll() is not None:
            self.redis.start()
        self.proxy.command("pass")
        await self.ready()

    async def command(self, *words: str) -> Any:
        """One command by the operator, past the proxy."""
        client = RedisClient(self.redis.url)
        try:
            return await client.call(*words)
        finally:
            await client.close()

    def readyz(self) -> tuple[int, dict[str, str]]:
        status, body = self.server.get("/readyz")
        return status, json.loads(body)

    async def ready(self, seconds: float = HEAL_SECONDS) -> None:
        """Wait until the server says so; raises AssertionError behind the bound."""
        await asyncio.to_thread(wait_for, lambda: self.readyz()[0] == 200, seconds)

    async def not_ready(self, cause: str, seconds: float = HEAL_SECONDS) -> str:
        """Wait until one worker says that it is not ready because of `cause`, and return why."""
        causes: dict[str, str] = {}

        def is_told() -> bool:
            causes.update(self.readyz()[1])
            return cause in causes

        await asyncio.to_thread(wait_for, is_told, seconds)
        return causes[cause]

    def stored_text(self, session: str) -> str:
        """Of the session's last message."""
        messages = self.server.get_json(f"/v1/sessions/{session}/messages")["messages"]
        return str(messages[-1]["content"][0]["text"])


@contextmanager
def site(
    folder: Path, model: Path, redis: EmbeddedRedis, target: str = "", **environment: str
) -> Iterator[Site]:
    """A server on that Redis, through a proxy."""
    listen = f"{folder}/p" if not target else "127.0.0.1:0"
    with FaultProxy(target or redis.socket_path, listen) as proxy:
        url = f"unix://{proxy.address}" if not target else f"redis://{proxy.address}"
        settings = {"PARLEY_PACE": str(PACE), "PARLEY_REDIS_URL": url, **environment}
        server = Server(folder / "data", model, None, **settings)
        try:
            yield Site(server.start(), redis, proxy)
        finally:
            proxy.command("pass")
            server.close()


@contextmanager
def own_site(folder: Path, model: Path, **environment: str) -> Iterator[Site]:
    """A server with a Redis of its own."""
    with running_redis(BINARY[0]) as redis, site(folder, model, redis, **environment) as here:
        yield here


@pytest.fixture(scope="module")
def _one(oracle_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with own_site(tmp_path_factory.mktemp("one"), oracle_model) as here:
        yield here


@pytest.fixture
async def one(_one: Site) -> Site:
    """One worker, which every test leaves healthy."""
    await _one.mend()
    return _one


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


async def ask(client: Client, num_tokens: int, word: int = 0) -> tuple[str, str]:
    """A new session with an answer that is under way: session and response."""
    session = await client.new_session()
    settings = {"temperature": 0, "max_output_tokens": num_tokens}
    response = await client.ask(session, oracle_word(word), settings=settings)
    await client.deltas(response, 10)
    return session, response


async def more(client: Client, response: str, count: int) -> None:
    """Wait for so many deltas beyond those that have come."""
    await client.deltas(response, client.answers[response].num_deltas + count)


async def whole(here: Site, client: Client, session: str, response: str, num_tokens: int) -> Answer:
    """The answer's end: its text is the whole one, for the client and in the store."""
    answer = await client.done(response)
    assert answer.final == oracle_answer(0, num_tokens)
    await here.ready()
    await client.wait(lambda: updated(client, response), "message.updated")
    assert await asyncio.to_thread(here.stored_text, session) == answer.final
    return answer


def updated(client: Client, response: str) -> bool:
    return any(
        frame["type"] == "message.updated"
        and frame["message"].get("response_id") == response
        and frame["message"]["status"] != "in_progress"
        for frame in client.frames
    )


async def refusal(client: Client, session: str, key: str) -> Frame:
    """The error that answers a question that cannot be stored."""
    question = {"idempotency_key": key, "input": oracle_word(1), "on_busy": "queue"}
    frame = await client.reply("response.create", session_id=session, settings=SHORT, **question)
    assert frame["type"] == "error", frame
    error: Frame = frame["error"]
    assert error.get("retry_after_ms"), error
    return error


# ---- dead, away, silent -------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [2.0, pytest.param(30.0, marks=pytest.mark.slow)])
async def test_r1_r2_viewers_are_fed_from_memory_while_redis_is_away(
    one: Site, seconds: float
) -> None:
    num_tokens = 200 + int(seconds * PACE)
    async with Client(one.server) as client:
        session, response = await ask(client, num_tokens)
        memory = sum(p.memory_info().rss for p in one.server.children("server.worker"))
        one.kill_redis()
        assert (await client.next("connection.degraded"))["store"] == "unavailable"
        assert (await refusal(client, session, f"while-away-{int(seconds)}"))[
            "code"
        ] == "store_unavailable"
        await more(client, response, int(seconds * 30))  # 40 in a second at most
        assert one.readyz()[1]["store"] == "unavailable"
        grown = sum(p.memory_info().rss for p in one.server.children("server.worker")) - memory
        assert grown < 20 << 20
        one.redis.start()
        back = time.monotonic()
        assert (await client.next("connection.restored"))["store"] == "ok"
        assert time.monotonic() - back < HEAL_SECONDS
        await whole(one, client, session, response, num_tokens)
        question = {"idempotency_key": f"while-away-{int(seconds)}", "on_busy": "queue"}
        accepted = await client.ask(session, oracle_word(1), settings=SHORT, **question)
        assert (await client.done(accepted)).final == oracle_answer(1, 20)


async def test_r2_with_other_workers_nothing_is_shown_that_could_be_taken_over(two: Site) -> None:
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


@pytest.mark.parametrize("how", ["stop", pytest.param("pause", marks=pytest.mark.slow)])
async def test_r3_a_redis_that_hangs_stores_nothing_twice(one: Site, how: str) -> None:
    async with Client(one.server) as client:
        session, response = await ask(client, 500)
        assert one.redis.pid is not None
        if how == "stop":
            os.kill(one.redis.pid, signal.SIGSTOP)
        else:
            await one.command("CLIENT", "PAUSE", "5000", "ALL")
        one.server.history.fault(f"redis {how}")
        try:
            assert (await client.next("connection.degraded"))["store"] == "unavailable"
            await more(client, response, 40)
        finally:
            os.kill(one.redis.pid, signal.SIGCONT)
        assert (await client.next("connection.restored"))["store"] == "ok"
        await whole(one, client, session, response, 500)


async def test_r4_a_write_whose_reply_was_lost_is_recognised(one: Site) -> None:
    async with Client(one.server) as client:
        session, response = await ask(client, 400)
        one.proxy.command("blackhole replies")
        one.server.history.fault("replies held, then cut")
        await client.next("connection.degraded")
        await more(client, response, 20)
        one.proxy.command("rst")
        one.proxy.command("pass")
        await client.next("connection.restored")
        await whole(one, client, session, response, 400)


# ---- full, read-only, evicting ------------------------------------------------------------------


async def test_r5_with_memory_full_a_stop_and_a_delete_work(one: Site) -> None:
    async with Client(one.server) as client:
        session, response = await ask(client, 600)
        stopped, second = await ask(client, 600)
        deleted, _ = await ask(client, 600)
        await one.command("CONFIG", "SET", "maxmemory", "1")
        try:
            assert (await client.next("connection.degraded"))["store"] == "unavailable"
            assert (await refusal(client, session, "full"))["code"] == "store_unavailable"
            cancelling = await client.reply("stop", response_id=second)
            assert cancelling["durable"] is True
            end = await client.done(second)
            assert end.done is not None and end.done["durable"] is True
            assert end.done["response"]["status"] == "cancelled"
            gone = await client.reply("session.delete", session_id=deleted)
            assert gone["type"] == "session.deleted"
            await more(client, response, 20)
        finally:
            await one.command("CONFIG", "SET", "maxmemory", "0")
        assert (await client.next("connection.restored"))["store"] == "ok"
        await whole(one, client, session, response, 600)
        assert await asyncio.to_thread(one.stored_text, stopped) == end.final


async def test_r6_an_eviction_policy_set_while_running_is_named(two: Site) -> None:
    await two.command("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    try:
        named = "maxmemory-policy is allkeys-lru and must be noeviction"
        assert await two.not_ready("redis") == named
        assert named in two.server.log()
    finally:
        await two.command("CONFIG", "SET", "maxmemory-policy", "noeviction")
    await two.ready()


async def test_r8_a_redis_that_became_a_replica_is_an_outage(one: Site) -> None:
    async with Client(one.server) as client:
        session, response = await ask(client, 400)
        await one.command("REPLICAOF", "127.0.0.1", "1")
        try:
            assert (await client.next("connection.degraded"))["store"] == "unavailable"
            assert (await refusal(client, session, "replica"))["code"] == "store_unavailable"
            status, _ = await asyncio.to_thread(one.server.get, f"/v1/sessions/{session}")
            assert status == 200  # it can be read
            await more(client, response, 10)
        finally:
            await one.command("REPLICAOF", "NO", "ONE")
        await client.next("connection.restored")
        await whole(one, client, session, response, 400)


# ---- data lost ----------------------------------------------------------------------------------


async def test_r7_what_a_promoted_replica_lacks_is_written_again(
    oracle_model: Path, tmp_path: Path
) -> None:
    with running_pair(BINARY[0]) as (primary, replica):
        target = f"127.0.0.1:{primary.port}"
        with site(tmp_path, oracle_model, primary.redis, target) as here:
            async with Client(here.server) as client, Client(here.server) as watcher:
                session, response = await ask(client, 500)
                joined = await watcher.reply("session.subscribe", session_id=session)
                await asyncio.to_thread(replica.command, "REPLICAOF", "NO", "ONE")
                title = {"session_id": session, "title": "not replicated"}
                await client.reply("session.update", **title)
                await more(client, response, 30)  # neither are these
                here.proxy.command(f"target 127.0.0.1:{replica.port}")
                here.server.history.is_data_lost = True
                here.kill_redis()
                again = [await c.next("session.subscribed") for c in (client, watcher)][1]
                while again["epoch"] == joined["epoch"]:
                    again = await watcher.next("session.subscribed")
                assert again["recovered"] is False
                assert again["snapshot"]["session"]["title"] != "not replicated"
                here.redis = replica.redis
                await whole(here, client, session, response, 500)
                assert (await watcher.done(response)).final == oracle_answer(0, 500)
                old = {"epoch": joined["epoch"], "offset": joined["offset"]}
                back = await watcher.reply("session.subscribe", session_id=session, after=old)
                assert back["recovered"] is False


async def test_r9_flushed_data_is_told_and_nothing_half_comes_back(
    oracle_model: Path, tmp_path: Path
) -> None:
    with own_site(tmp_path, oracle_model) as here:
        async with Client(here.server) as client, Client(here.server) as idle:
            quiet = await idle.new_session()
            session, response = await ask(client, 400)
            here.server.history.is_data_lost = True
            shown = client.answers[response].text
            await here.command("FLUSHALL")
            answer = await client.done(response)
            assert answer.done is not None and answer.done["durable"] is False
            done = answer.done["response"]
            assert (done["status"], done["status_details"]) == ("failed", {"reason": "store_lost"})
            assert answer.final.startswith(shown)
            assert oracle_answer(0, 400).startswith(answer.final)
            for viewer, lost in ((client, session), (idle, quiet)):
                gone = await viewer.next("session.deleted")
                assert (gone["session_id"], gone["by"]) == (lost, "store_lost")
            left = {name.decode() for name in await here.command("KEYS", "*")}
            assert not [name for name in left if session in name or response in name]
            fresh, second = await ask(client, 60)
            await whole(here, client, fresh, second, 60)
            assert here.server.metric("parley_requests_running") == 0


def redis_on_a_small_disk(folder: Path, data: Path) -> Path:
    """A program that runs redis-server with 6 MB of disk at `data`, which it alone sees."""
    if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        pytest.skip("namespaces are not allowed here")
    binary = folder / "redis-on-a-small-disk"
    mount = f"mount -t tmpfs -o size=6m none {data}"
    inner = f'{mount} && exec {BINARY[0]} "$@"'
    binary.write_text(f"#!/bin/sh\nexec unshare -m sh -c '{inner}' x \"$@\"\n")
    binary.chmod(0o700)
    return binary


async def fill_disk(redis: EmbeddedRedis) -> None:
    """Write until Redis refuses."""
    client = RedisClient(redis.url)
    with pytest.raises(StoreUnavailable, match="MISCONF"):
        for number in range(1000):
            await client.call("SET", f"parley:filler:{number}", "x" * 200_000)
    await client.close()


def enlarge(pid: int, data: Path) -> None:
    """Give that process's small file system room."""
    larger = ["mount", "-o", "remount,size=64m", str(data)]
    subprocess.run(["nsenter", "-t", str(pid), "-m", *larger], check=True)


async def test_r10_a_full_disk_is_an_outage_that_reads_outlive(
    oracle_model: Path, tmp_path: Path
) -> None:
    data = tmp_path / "small"
    data.mkdir()
    binary = redis_on_a_small_disk(tmp_path, data)
    with (
        running_redis(str(binary), extra_args=("--dir", str(data))) as redis,
        site(tmp_path, oracle_model, redis) as here,
    ):
        async with Client(here.server) as client:
            session, response = await ask(client, 1500)
            here.server.history.fault("disk full")
            await fill_disk(redis)
            assert (await client.next("connection.degraded"))["store"] == "unavailable"
            refused = await client.reply("session.delete", session_id=session)
            assert refused["error"]["code"] == "store_unavailable"
            status, _ = await asyncio.to_thread(here.server.get, f"/v1/sessions/{session}")
            assert status == 200
            await more(client, response, 10)
            assert redis.pid is not None
            await asyncio.to_thread(enlarge, redis.pid, data)
            room = time.monotonic()
            assert (await client.next("connection.restored"))["store"] == "ok"
            assert time.monotonic() - room < HEAL_SECONDS
            await whole(here, client, session, response, 1500)


async def test_r11_entries_behind_a_torn_end_are_written_again(one: Site) -> None:
    async with Client(one.server) as client:
        session, response = await ask(client, 300)
        one.server.history.is_data_lost = True
        one.kill_redis()
        (file,) = one.redis.directory.glob("appendonly*.aof")
        content = file.read_bytes()
        os.truncate(file, content.rindex(b"XADD") + 7)  # in the middle of an append
        await client.next("connection.degraded")
        one.redis.start()
        await client.next("connection.restored")
        await whole(one, client, session, response, 300)
        assert "redis lost its last writes" in one.server.log()
        one.server.history.is_data_lost = False


# ---- slow and broken links ----------------------------------------------------------------------


async def test_r12_a_slow_link_costs_no_round_trip_per_token(one: Site) -> None:
    async with Client(one.server) as client:
        first_seconds, rates = [], []
        for delay in (0.0, 0.1):
            one.proxy.command(f"delay {delay}")
            session = await client.new_session()
            settings = {"temperature": 0, "max_output_tokens": 200}
            asked = time.monotonic()
            response = await client.ask(session, oracle_word(0), settings=settings)
            await client.done(response)
            of_text = [
                record.time
                for record in client.record.records
                if record.frame["type"] == TEXT and record.frame["response_id"] == response
            ]
            first_seconds.append(of_text[0] - asked)
            rates.append(200 / (of_text[-1] - of_text[0]))
        one.proxy.command("pass")
        print(f"first token {first_seconds[0]:.3f} s, delayed {first_seconds[1]:.3f} s")
        print(f"tokens/s {rates[0]:.0f}, delayed {rates[1]:.0f}")
        assert rates[1] >= 0.8 * rates[0]
        assert first_seconds[1] - first_seconds[0] <= 3 * 0.2 + 0.1  # three round trips
        await whole(one, client, session, response, 200)


@asynccontextmanager
async def at_both_workers(here: Site) -> AsyncIterator[tuple[Client, Client, str]]:
    """Clients of both workers, and the name of the second one's."""
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(Client(here.server))
        name = (await first.next("connection.ready"))["replica"]
        for _ in range(100):
            second = await stack.enter_async_context(Client(here.server))
            other = (await second.next("connection.ready"))["replica"]
            if other != name:
                yield first, second, other
                return
        raise AssertionError("a hundred connections, all to one worker")


async def test_r13_a_silently_dead_feed_is_found_and_what_it_missed_is_read(two: Site) -> None:
    async with at_both_workers(two) as (owner, other, _):
        session, response = await ask(owner, 1100)
        await other.reply("session.subscribe", session_id=session)
        await more(other, response, 5) if response in other.answers else None
        two.proxy.command("blackhole on SUBSCRIBE")
        two.server.history.fault("pub/sub links stalled")
        cut = time.monotonic()
        await asyncio.sleep(0.5)  # what was on its way has arrived
        await more(other, response, 1)
        assert time.monotonic() - cut < PROBE_SECONDS
        assert (await other.done(response)).final == oracle_answer(0, 1100)
        await whole(two, owner, session, response, 1100)


async def test_r14_a_feed_that_redis_cuts_off_is_caught_up(two: Site) -> None:
    limit = "client-output-buffer-limit"
    async with at_both_workers(two) as (owner, other, replica):
        session, response = await ask(owner, 600)
        await other.reply("session.subscribe", session_id=session)
        await two.command("CONFIG", "SET", limit, "pubsub 1mb 1mb 1")
        pid = int(replica.split("-")[-2])
        two.server.history.fault("a worker stopped behind a full feed")
        os.kill(pid, signal.SIGSTOP)
        try:
            padding = json.dumps({"origin": replica, "frame": {}, "padding": "x" * 60_000})
            channel = Keys("parley:").session_channel(session)
            receivers = 2
            while receivers == 2:  # until Redis has enough of the silent one
                receivers = await two.command("PUBLISH", channel, padding)
            await more(owner, response, 20)
        finally:
            os.kill(pid, signal.SIGCONT)
            await two.command("CONFIG", "SET", limit, "pubsub 33554432 8388608 60")
        assert (await other.done(response)).final == oracle_answer(0, 600)
        await whole(two, owner, session, response, 600)


async def test_r16_scripts_that_were_flushed_are_loaded_again(one: Site) -> None:
    async with Client(one.server) as client:
        session, response = await ask(client, 200)
        while client.answers[response].done is None:
            await one.command("SCRIPT", "FLUSH")
            await asyncio.sleep(0.02)
        await whole(one, client, session, response, 200)
        kinds = {frame["type"] for frame in client.frames}
        assert kinds.isdisjoint({"error", "connection.degraded"})


# ---- at the start -------------------------------------------------------------------------------


async def test_s6_a_server_that_starts_before_redis_waits_and_then_joins(
    oracle_model: Path, tmp_path: Path
) -> None:
    redis = EmbeddedRedis(tmp_path / "redis", binary=BINARY[0])
    environment = {"PARLEY_REDIS_URL": redis.url, "PARLEY_PACE": str(PACE)}
    server = Server(tmp_path / "data", oracle_model, None, **environment)
    with ExitStack() as stack:
        proxy = stack.enter_context(FaultProxy(redis.socket_path, f"{tmp_path}/p"))
        here = Site(server, redis, proxy)
        stack.callback(redis.stop)
        stack.callback(server.close)
        starting = asyncio.create_task(asyncio.to_thread(server.start))
        away = (503, {"status": "unavailable", "store": "unavailable"})
        await asyncio.to_thread(wait_for, lambda: server.url and here.readyz() == away, 60.0)
        async with Client(server) as client:
            assert await client.closed() == 1013
        assert (await asyncio.to_thread(server.get, "/healthz"))[0] == 200
        (worker,) = server.children("server.worker")
        redis.start()
        started = time.monotonic()
        await starting
        assert time.monotonic() - started < HEAL_SECONDS
        assert server.children("server.worker") == [worker]
        async with Client(server) as client:
            session, response = await ask(client, 60)
            await whole(here, client, session, response, 60)


@pytest.fixture
def plain_redis() -> Iterator[EmbeddedRedis]:
    with running_redis(BINARY[0]) as redis:
        yield redis


def refused_start(folder: Path, model: Path, **environment: str) -> str:
    """What `parley serve` says when it does not start: one line."""
    settings = {
        **{k: v for k, v in os.environ.items() if not k.startswith("PARLEY_")},
        "PARLEY_MODEL": str(model),
        "PARLEY_PORT": "0",
        "PARLEY_DATA_DIR": str(folder / "data"),
        **environment,
    }
    done = subprocess.run(
        [sys.executable, "-m", "server", "serve"],
        env=settings,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2, (done.returncode, done.stderr)
    (line,) = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    return line


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://me:hush@host", "redis_url"),
        ("redis://me:hush@host:port", "redis_url"),
        ("SOCKET?username=me&password=hush", "refused our credentials"),
    ],
)
async def test_b64_a_url_that_cannot_be_used_is_refused_without_its_password(
    plain_redis: EmbeddedRedis, oracle_model: Path, tmp_path: Path, url: str, words: str
) -> None:
    url = url.replace("SOCKET", plain_redis.url)
    line = await asyncio.to_thread(refused_start, tmp_path, oracle_model, PARLEY_REDIS_URL=url)
    assert words in line and "hush" not in line


@pytest.mark.parametrize(
    ("setup", "words"),
    [
        ("ACL SETUSER me on >pw ~* &* +@all -xadd", "denies our user XADD"),
        ("CONFIG SET maxmemory-policy allkeys-lru", "set maxmemory-policy noeviction"),
        ("HSET parley:sys schema 99", "the data has schema 99"),
        ("HSET parley:sys fingerprint other", "another server with another secret"),
    ],
    ids=["r15", "r6", "b65-schema", "b65-secret"],
)
async def test_a_redis_that_would_lose_or_misread_data_is_refused_in_one_line(
    plain_redis: EmbeddedRedis, oracle_model: Path, tmp_path: Path, setup: str, words: str
) -> None:
    client = RedisClient(plain_redis.url)
    await client.call(*setup.split())
    await client.close()
    url = plain_redis.url + ("?username=me&password=pw" if "ACL" in setup else "")
    line = await asyncio.to_thread(
        refused_start,
        tmp_path,
        oracle_model,
        PARLEY_REDIS_URL=url,
        PARLEY_REDIS_SECRET="a secret that all servers share",
    )
    assert re.search(words, line), line
