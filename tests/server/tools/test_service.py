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
    """Takes a while to hear that a call is cancelled, as a full pipe does."""

    config = SimpleNamespace(name="slow")

    def __init__(self) -> None:
        self.began, self.may_hear, self.has_heard = (asyncio.Event() for _ in range(3))
        self.is_hearing = asyncio.Event()

    async def call(self, name: str, arguments: bytes) -> ToolResult:
        self.began.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.is_hearing.set()
            await self.may_hear.wait()
            self.has_heard.set()
        return ToolResult(text="")


async def test_who_cancels_twice_does_not_cut_off_the_message_to_the_server() -> None:
    server = Server()
    service = ToolService([cast(ManagedServer, server)], Calls(time.monotonic))
    call: asyncio.Task[Any] = start(service.call("key", "slow__act", b"{}"))
    async with asyncio.timeout(PATIENCE):
        await server.began.wait()
        service.cancel("key")
        await server.is_hearing.wait()
        service.cancel("key")
        outcome = await call
        assert isinstance(outcome, ToolError) and outcome.code == "tool_cancelled"
        server.may_hear.set()
        await server.has_heard.wait()
