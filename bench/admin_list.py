"""`python -m bench.admin_list`: the operators' views among a million sessions of 10,000 users.

Each is timed as the server computes it, with Redis: what HTTP adds is the same for all.
"""

import argparse
import asyncio
import itertools
import random
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
from rich.console import Console

from bench.harness.report import Figure, percentile, report
from server.telemetry.past import Past
from server.telemetry.stats import CORE_COUNTS, LONG_STEP_SECONDS, STEP_SECONDS, Sample
from sessions.connection.embedded import EmbeddedRedis
from sessions.directory.finding.names import UserNames
from sessions.directory.listing import Listing
from sessions.directory.replicas import Replicas
from sessions.directory.samples import SPAN_MS, Samples, Span
from sessions.store.store import SessionStore
from tests.sessions.helpers.many_sessions import store_many_sessions

PAGE = 50
MAX_MS = 50.0
NUM_USERS = 10_000
NUM_WORKERS = 4
GIVEN = ("Ada", "Grace", "Alan", "Radia", "Edsger", "Barbara", "Donald", "Katherine")

View = Callable[[], Awaitable[object]]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.admin_list", description=__doc__)
    parser.add_argument("--sessions", type=int, default=1_000_000)
    parser.add_argument("--times", type=int, default=100, help="each view is asked for")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        redis = EmbeddedRedis(Path(folder) / "redis")
        redis.start()
        try:
            figures = asyncio.run(measure(redis.url, arguments.sessions, arguments.times))
        finally:
            redis.stop()
    report("admin_list", figures)


async def measure(url: str, num_sessions: int, times: int) -> list[Figure]:
    store = await SessionStore.open(url, timeout_seconds=5.0)  # it stores hundreds at once
    try:
        with Console().status(f"storing {num_sessions:,} sessions"):
            await store_many_sessions(store, num_sessions, seed=0, num_users=NUM_USERS)
            await store_users(store)
            await store_samples(Samples(store.client, store.keys))
        figures: list[Figure] = []
        for name, view in views_of(store).items():
            figures += await timed(store, name, view, times)
        return figures
    finally:
        await store.close()


def views_of(store: SessionStore) -> dict[str, View]:
    """What the console asks for, by name."""
    listing = Listing(store.client, store.keys)
    names = UserNames(store.client, store.keys)
    replicas = Replicas(store.client, store.keys)
    past = Past(Samples(store.client, store.keys))
    numbers = itertools.count()
    cursor: str | None = None

    async def following() -> None:
        nonlocal cursor
        page = await listing.sessions(PAGE, cursor)
        assert len(page.sessions) == PAGE or page.next_cursor is None
        cursor = page.next_cursor

    async def by_name() -> None:
        users = await names.find(GIVEN[next(numbers) % len(GIVEN)], 20)
        page = await listing.sessions(PAGE, uids=[user.uid for user in users])
        assert len(page.sessions) == PAGE

    async def by_title() -> None:
        page = await listing.titled(f"number {1 + next(numbers) % 9}", PAGE)
        assert page.sessions

    async def by_rare_title() -> None:
        assert (await listing.titled("zephyr", PAGE)).examined == 2000

    async def health() -> None:
        await asyncio.gather(replicas.roll(), listing.num_sessions())

    def figures(span: Span) -> View:
        async def read() -> None:
            _, series = await past.read(span)
            assert series["connections"]

        return read

    return {
        f"first page of {PAGE}": lambda: listing.sessions(PAGE),
        f"following pages of {PAGE}": following,
        f"a page of {PAGE} of one user": lambda: listing.sessions(PAGE, uids=["user7"]),
        f"a page of {PAGE} by a part of a name": by_name,
        f"a page of {PAGE} by a part of a title": by_title,
        "2,000 titles without a match": by_rare_title,
        "who is there, and how many sessions": health,
        **{f"figures of {span}, {NUM_WORKERS} workers": figures(span) for span in SPAN_MS},
    }


async def store_users(store: SessionStore) -> None:
    chance = random.Random(1)
    for start in range(0, NUM_USERS, 500):
        commands: list[tuple[str | int, ...]] = []
        for number in range(start, start + 500):
            name = f"{chance.choice(GIVEN)} {number}"
            uid = f"user{number}"
            fields = ("name", name, "roles", "user", "created_at", number, "disabled", "")
            commands.append(("ZADD", store.keys.users, number, uid))
            commands.append(("HSET", store.keys.user_record(uid), *fields))
        await store.client.calls(*commands)


async def store_samples(samples: Samples) -> None:
    """What so many workers keep when nothing is missing."""
    now = time.time_ns() // 1_000_000
    for span, step_seconds in (STEP_SECONDS | LONG_STEP_SECONDS).items():
        for place in range(SPAN_MS[span] // (step_seconds * 1000)):
            at = now - place * step_seconds * 1000
            for worker in range(NUM_WORKERS):
                body = msgspec.json.encode(sample_of(at, f"worker{worker}", step_seconds))
                await samples.add(span, at, body)


def sample_of(at: int, replica: str, seconds: float) -> Sample:
    states = ("connections", "active_responses", "queued_responses", "batch_size", "kv_usage")
    bounds = [str(2**power / 1000) for power in range(13)]
    return Sample(
        at=at,
        replica=replica,
        host="host",
        seconds=seconds,
        now=dict.fromkeys(states, 12.0),
        counts={f"closes.{code}": 12.0 for code in range(1000, 1010)},
        core=dict.fromkeys(CORE_COUNTS, 4242.0),
        times={name: dict.fromkeys(bounds, 7.0) for name in ("ttft_ms", "inter_token_ms")},
    )


async def timed(store: SessionStore, what: str, view: View, times: int) -> list[Figure]:
    """The processor's time, of this process and of Redis, is the same whatever else runs here."""
    await view()  # what is read once is read
    seconds = []
    computed = -await processor_seconds(store)
    for _ in range(times):
        started = time.perf_counter()
        await view()
        seconds.append(time.perf_counter() - started)
    computed += await processor_seconds(store)
    return [
        Figure(f"{what}, computed", computed / times * 1e3, MAX_MS, "ms"),
        Figure(f"{what}, p50", percentile(seconds, 50) * 1e3, None, "ms"),
        Figure(f"{what}, p99", percentile(seconds, 99) * 1e3, None, "ms"),
    ]


async def processor_seconds(store: SessionStore) -> float:
    told = (await store.client.call("INFO", "cpu")).decode()
    used = dict(line.split(":") for line in told.splitlines() if ":" in line)
    return time.process_time() + float(used["used_cpu_user"]) + float(used["used_cpu_sys"])


if __name__ == "__main__":
    main()
