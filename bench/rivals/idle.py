"""What a worker takes of memory while nobody says anything."""

import asyncio

import psutil

from bench.harness.report import Figure
from bench.harness.socket_client import BenchSocket
from tests.end_to_end.site.harness import Server

NUM_IDLE = 1000


def the_worker(server: Server) -> psutil.Process:
    (worker,) = server.children("server.worker")
    return worker


def idle_figures(server: Server) -> list[Figure]:
    """Memory of a worker that nobody has used yet, and of connections that say nothing."""
    worker = the_worker(server)
    base = worker.memory_info().rss

    async def connect() -> float:
        warm = [await BenchSocket.open(server) for _ in range(20)]
        before = worker.memory_info().rss
        sockets = [await BenchSocket.open(server) for _ in range(NUM_IDLE)]
        grown = worker.memory_info().rss - before
        for socket in [*warm, *sockets]:
            socket.close()
        return float(grown) / NUM_IDLE

    return [
        Figure("memory of an unused worker", base / 2**20, 80.0, "MiB"),
        Figure("memory of an idle connection", asyncio.run(connect()) / 1024, 40.0, "KiB"),
    ]
