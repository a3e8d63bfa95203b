"""`python -m bench.admin_list`: a page of the operators' list among a million sessions."""

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

from rich.console import Console

from bench.harness.report import Figure, percentile, report
from sessions.connection.embedded import EmbeddedRedis
from sessions.directory.listing import Listing
from sessions.store.store import SessionStore
from tests.sessions.helpers.many_sessions import store_many_sessions

PAGE = 50
MAX_MS = 10.0


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.admin_list", description=__doc__)
    parser.add_argument("--sessions", type=int, default=1_000_000)
    parser.add_argument("--pages", type=int, default=200, help="of each kind")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        redis = EmbeddedRedis(Path(folder) / "redis")
        redis.start()
        try:
            figures = asyncio.run(measure(redis.url, arguments.sessions, arguments.pages))
        finally:
            redis.stop()
    report("admin_list", figures)


async def measure(url: str, num_sessions: int, num_pages: int) -> list[Figure]:
    store = await SessionStore.open(url, timeout_seconds=5.0)  # it stores hundreds at once
    try:
        with Console().status(f"storing {num_sessions:,} sessions"):
            await store_many_sessions(store, num_sessions, seed=0)
        listing = Listing(store.client, store.keys)
        return [
            *await timed(listing, num_pages, "first page", follow=False),
            *await timed(listing, num_pages, "following pages", follow=True),
            *await timed(listing, num_pages, "pages of one user", follow=True, uid="user7"),
        ]
    finally:
        await store.close()


async def timed(
    listing: Listing, num_pages: int, what: str, *, follow: bool, uid: str | None = None
) -> list[Figure]:
    """Time so many pages, each after the last one if `follow`."""
    seconds = []
    cursor: str | None = None
    for _ in range(num_pages):
        started = time.perf_counter()
        page = await listing.sessions(PAGE, cursor, uid=uid)
        seconds.append(time.perf_counter() - started)
        assert len(page.sessions) == PAGE or page.next_cursor is None
        cursor = page.next_cursor if follow else None
    return [
        Figure(f"{what} of {PAGE}, p50", percentile(seconds, 50) * 1e3, MAX_MS, "ms"),
        Figure(f"{what} of {PAGE}, p99", percentile(seconds, 99) * 1e3, None, "ms"),
    ]


if __name__ == "__main__":
    main()
