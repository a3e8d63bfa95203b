"""The tool process's service, with a server of which each step is seen."""

import asyncio
import time
from types import SimpleNamespace
from typing import Any, cast

from server.tools.calls import Calls
from server.tools.messages import ToolError, ToolResult
from server.tools.servers.managed_server import ManagedServer
from server.tools.service import ToolService
from sessions.background import start
from tests.helpers.patience import PATIENCE


class Server:
    """Takes a while to be told that a call is cancelled, as a full pipe does."""

    config = SimpleNamespace(name="slow")

    def __init__(self) -> None:
        self.began, self.may_be_told, self.was_told = (asyncio.Event() for _ in range(3))
        self.is_being_told = asyncio.Event()

    async def call(self, name: str, arguments: bytes) -> ToolResult:
        self.began.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.is_being_told.set()
            await self.may_be_told.wait()
            self.was_told.set()
        return ToolResult(text="")


async def test_who_cancels_twice_does_not_cut_off_what_the_server_is_told() -> None:
    server = Server()
    service = ToolService([cast(ManagedServer, server)], Calls(time.monotonic))
    call: asyncio.Task[Any] = start(service.call("key", "slow__act", b"{}"))
    async with asyncio.timeout(PATIENCE):
        await server.began.wait()
        service.cancel("key")
        await server.is_being_told.wait()
        service.cancel("key")
        outcome = await call
        assert isinstance(outcome, ToolError) and outcome.code == "tool_cancelled"
        server.may_be_told.set()
        await server.was_told.wait()
