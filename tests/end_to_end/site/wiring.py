"""Two workers whose links to Redis go through a fault proxy, and clients at a worker of choice."""

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from sessions.connection.embedded import EmbeddedRedis
from tests.end_to_end.frames.client_model import Frame
from tests.end_to_end.site.fault_proxy import FaultProxy
from tests.end_to_end.site.harness import Client, Server
from tests.helpers.patience import PATIENCE
from tests.helpers.redis_server import running_redis

CONNECTIONS = 100  # tries until the kernel gives one of each worker


@dataclass
class Wired:
    """A `parley serve`, its Redis, and the proxy between them."""

    server: Server
    redis: EmbeddedRedis
    links: FaultProxy

    def reset(self) -> None:
        self.links.command("pass")


@contextlib.contextmanager
def wired(model: Path, **environment: str) -> Iterator[Wired]:
    """A server with two workers, by default. Its sockets lie in a short directory of their own."""
    environment = {"PARLEY_WORKERS": "2", "PARLEY_PACE": "100", **environment}
    with (
        tempfile.TemporaryDirectory(prefix="wired-") as folder,
        running_redis() as redis,
        FaultProxy(redis.socket_path, f"{folder}/redis") as links,
    ):
        environment["PARLEY_REDIS_URL"] = f"unix://{links.address}"
        server = Server(Path(folder) / "data", model, None, **environment)
        try:
            yield Wired(server.start(), redis, links)
        finally:
            links.command("pass")
            server.close()


def pid_of(replica: str) -> int:
    """The process of the worker that calls itself so."""
    return int(replica.split("-")[-2])


@contextlib.asynccontextmanager
async def at_both(server: Server, **options: Any) -> AsyncIterator[tuple[Client, Client]]:
    """A client at each of two workers; the kernel decides, so it takes a few tries."""
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(Client(server, **options))
        for _ in range(CONNECTIONS):
            second = Client(server, **options)
            await second.__aenter__()
            if await replica_of(second) != await replica_of(first):
                stack.push_async_exit(second.__aexit__)
                yield first, second
                return
            await second.__aexit__()
        raise AssertionError(f"{CONNECTIONS} connections, all to one worker")


async def replica_of(client: Client) -> str:
    """The name of the worker that the client is connected to."""
    ready: Frame = await client.wait(lambda: client.frames and client.frames[0])
    return str(ready["replica"])


async def two_workers_serve(server: Server) -> None:
    """Wait until as many workers accept connections as there should be."""
    seen: set[str] = set()
    async with asyncio.timeout(PATIENCE):
        while len(seen) < 2:
            async with Client(server) as client:
                seen.add(await replica_of(client))
            seen = {replica for replica in seen if psutil.pid_exists(pid_of(replica))}
            await asyncio.sleep(0.02)
