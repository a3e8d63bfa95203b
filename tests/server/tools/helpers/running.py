"""A tool process that runs as it does under a supervisor, with servers of a test's choice."""

import asyncio
import json
import os
import select
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from server.tools.client import ToolClient
from server.tools.configuration import read_tools_file
from server.tools.keeper import ToolKeeper
from server.tools.messages import ToolError, ToolResult
from tests.helpers.patience import PATIENCE

PROGRAMS = Path(__file__).parent
GOOD = {"command": sys.executable, "args": [str(PROGRAMS / "good_server.py")]}


def program(name: str, **more: Any) -> dict[str, Any]:
    """A server of the table of misbehaviours."""
    args = [str(PROGRAMS / "misbehaving.py"), name]
    return {"command": sys.executable, "args": args, "timeout_seconds": 2, **more}


class RunningTools:
    """The keeper, and a thread that calls it as the supervisor does."""

    def __init__(self, folder: Path, servers: Mapping[str, Any]) -> None:
        self.folder = folder
        path = folder / "tools.json"
        path.write_text(json.dumps({"mcpServers": servers}))
        environment = {**os.environ, "FOLDER": str(folder)}
        self.keeper = ToolKeeper(read_tools_file(path, environment), "info", "json")
        self._wake_read, self._wake_write = os.pipe()
        self._is_over = False
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _watch(self) -> None:
        while not self._is_over:
            select.select([self._wake_read, *self.keeper.descriptors], [], [], 0.2)
            self.keeper.watch()

    @property
    def pid(self) -> int:
        assert self.keeper.pid is not None
        return self.keeper.pid

    def client(self) -> ToolClient:
        return ToolClient(self.keeper.path)

    def close(self) -> None:
        """Idempotent."""
        if self._is_over:
            return
        self._is_over = True
        os.write(self._wake_write, b".")
        self._thread.join()
        self.keeper.stop()
        os.close(self._wake_read)
        os.close(self._wake_write)


async def outcome(client: ToolClient, key: str, tool: str, **arguments: Any) -> ToolResult | str:
    """The result, or the code of the error."""
    try:
        async with asyncio.timeout(PATIENCE):
            return await client.call(key, tool, json.dumps(arguments).encode())
    except ToolError as error:
        assert error.message.isprintable() and "Traceback" not in error.message
        return error.code


async def has_ended(pid: int) -> None:
    """Returns when this process is over."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(descriptor, ended.set)
    try:
        async with asyncio.timeout(PATIENCE):
            await ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


async def heard(pipe: Path) -> str:
    """The line that a program writes into that pipe, once it does.

    In no thread: one that waits for a program that writes nothing would never end.
    """
    descriptor = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    loop = asyncio.get_running_loop()
    line: asyncio.Future[str] = loop.create_future()

    def read() -> None:
        if not line.done():
            line.set_result(os.read(descriptor, 4096).decode().strip())

    loop.add_reader(descriptor, read)
    try:
        async with asyncio.timeout(PATIENCE):
            return await line
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
