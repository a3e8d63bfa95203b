"""`python -m bench.admin_list`: the console's views among a million sessions of 10,000 users.

Each is asked of `parley serve` over HTTP, as the console asks. What it takes is the processor time
of worker and Redis together, which other processes do not change. Then the page itself.
"""

import argparse
import asyncio
import time
from collections.abc import Callable

import msgspec
from rich.console import Console

from bench.admin_list.filling import Filling
from bench.admin_list.page import measure_page
from bench.admin_list.views import views_of
from bench.harness.report import Figure, percentile, report
from bench.harness.servers import running_server
from sessions.store.store import SessionStore
from tests.end_to_end.clients.http_client import admin_token
from tests.end_to_end.site.harness import Server

MAX_MS = 50.0
FILLING_SECONDS = 60.0  # that a call may take: it stores thousands


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.admin_list", description=__doc__)
    parser.add_argument("--sessions", type=int, default=1_000_000)
    parser.add_argument("--users", type=int, default=10_000)
    parser.add_argument("--live", type=int, default=1_000, help="sessions with a running answer")
    parser.add_argument("--times", type=int, default=100, help="each view is asked for")
    parser.add_argument("--view", default="", help="only those whose names hold this")
    parser.add_argument("--seconds", type=float, default=12, help="each tab is open; 0: none")
    arguments = parser.parse_args()
    with running_server() as server:
        report("admin_list", asyncio.run(measure(server, arguments)))


async def measure(server: Server, arguments: argparse.Namespace) -> list[Figure]:
    store = await SessionStore.open(server.redis_url, timeout_seconds=FILLING_SECONDS)
    try:
        filling = Filling(store, arguments.sessions, arguments.users, arguments.live)
        began = time.perf_counter()
        with Console().status(f"storing {arguments.sessions:,} sessions"):
            await filling.store_all()
        figures = [
            Figure("stored in", time.perf_counter() - began, None, "s"),
            Figure("Redis uses then", await filling.redis_megabytes(), None, "MB"),
        ]
        token, processor = admin_token(server), processor_of(server)
        for name, path_of in views_of(filling).items():
            if arguments.view in name:
                await filling.stay_alive()
                first, *rest = timed(server, token, path_of, arguments.times, processor)
                figures += [
                    Figure(f"{name}, first", first, MAX_MS, "ms"),
                    Figure(f"{name}, median", percentile(rest, 50), MAX_MS, "ms"),
                    Figure(f"{name}, p95", percentile(rest, 95), MAX_MS, "ms"),
                ]
        if arguments.seconds:
            figures += await measure_page(server, filling, arguments.seconds)
        return figures
    finally:
        await store.close()


def timed(
    server: Server,
    token: str,
    path_of: Callable[[dict[str, object]], str],
    times: int,
    processor: Callable[[], float],
) -> list[float]:
    """The milliseconds of each request, first of one more; `path_of` is given the answer before."""
    answer: dict[str, object] = {}
    milliseconds = []
    for _ in range(times + 1):
        path = path_of(answer)
        before = processor()
        status, body = server.get(path, token)
        after = processor()
        assert status == 200, (path, status, body)
        answer = msgspec.json.decode(body)
        milliseconds.append((after - before) * 1e3)
    return milliseconds


def processor_of(server: Server) -> Callable[[], float]:
    """Reads the seconds that the worker and Redis have computed."""
    (worker,), (redis,) = server.children("server.worker"), server.children("redis-server")
    clocks = [(~process.pid << 3) | 2 for process in (worker, redis)]  # as in clock_getcpuclockid
    return lambda: sum(time.clock_gettime(clock) for clock in clocks)


if __name__ == "__main__":
    main()
