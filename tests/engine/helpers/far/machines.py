"""Keys of a core and of its client, a core that listens for others, and a net between the two."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from engine.config import FarDoor
from engine.far.keys import make_keys, trust
from tests.engine.helpers.threaded_core import ThreadedCore

HOST = "127.0.0.1"
PIECE_BYTES = 65536


def free_address() -> str:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        return f"tcp://{HOST}:{taken.getsockname()[1]}"


class Machines:
    """A core's machine and a client's: folders of keys that trust each other."""

    def __init__(self, folder: Path) -> None:
        self.of_core, self.of_client = folder / "core", folder / "client"
        self.core_key, self.client_key = make_keys(self.of_core), make_keys(self.of_client)
        trust(self.of_core, "front", self.client_key)
        trust(self.of_client, "core", self.core_key)
        self.address = free_address()

    def door(self, **fields: Any) -> FarDoor:
        return FarDoor(address=self.address, keys=str(self.of_core), **fields)

    def core(self, *, permits: tuple[str, ...] = (), **options: Any) -> ThreadedCore:
        return ThreadedCore(far=self.door(permits=list(permits)), **options)

    def stranger(self, folder: Path) -> Path:
        """The keys of one whom the core does not trust."""
        make_keys(folder)
        trust(folder, "core", self.core_key)
        return folder


class Net:
    """Carries connections to `target`, byte for byte; none while it `is_blocked`.

    What comes meanwhile waits, as where packets are dropped and sent again.
    """

    def __init__(self, target: str) -> None:
        self._target = int(target.rpartition(":")[2])
        self._open = asyncio.Event()
        self._open.set()
        self._writers: list[asyncio.StreamWriter] = []
        self.num_connections = 0

    @property
    def address(self) -> str:
        return f"tcp://{HOST}:{self._server.sockets[0].getsockname()[1]}"

    @asynccontextmanager
    async def running(self) -> "AsyncIterator[Net]":
        self._server = await asyncio.start_server(self._carry, HOST, 0)
        try:
            yield self
        finally:
            self._open.set()
            self._server.close()
            self.cut()
            await self._server.wait_closed()

    def block(self) -> None:
        self._open.clear()

    def unblock(self) -> None:
        self._open.set()

    def cut(self) -> None:
        """End all connections."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        try:
            far_reader, far_writer = await asyncio.open_connection(HOST, self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers += [writer, far_writer]
        await asyncio.gather(self._pass_on(reader, far_writer), self._pass_on(far_reader, writer))

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while await self._open.wait() and (piece := await reader.read(PIECE_BYTES)):
                await self._open.wait()
                writer.write(piece)
                await writer.drain()
        writer.close()
