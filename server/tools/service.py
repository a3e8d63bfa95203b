"""`ToolService`: what workers ask of the tool process, over all servers."""

import asyncio
import hashlib
from collections.abc import Iterable

import structlog

from server.tools.calls import Calls, KeptCall, Outcome
from server.tools.messages import (
    MAX_ARGUMENT_BYTES,
    MAX_KEY_CHARACTERS,
    Place,
    Tool,
    ToolError,
    ToolResult,
    Trouble,
)
from server.tools.servers.catalogue import SEPARATOR
from server.tools.servers.managed_server import ManagedServer
from sessions.background import start

logger = structlog.get_logger("server")

MAX_WAIT_SECONDS = 60.0


class ToolService:
    """Each call is a task of its own, which outlives the worker that has asked for it."""

    def __init__(self, servers: Iterable[ManagedServer], calls: Calls) -> None:
        self._servers = {server.config.name: server for server in servers}
        self._calls = calls
        self._tasks: dict[str, asyncio.Task[None]] = {}

    @property
    def place(self) -> Place:
        return self._calls.place

    async def list_tools(
        self, wait_seconds: float, names: Iterable[str] | None = None
    ) -> tuple[list[Tool], list[Trouble], list[str]]:
        """Of these servers, or of all, that are up by then. The others are started, and named.

        The third part has the names of those that there are.
        """
        known = [name for name in self._servers if names is None or name in names]
        tasks = {self._servers[name]: start(self._servers[name].catalogue()) for name in known}
        seconds = min(max(wait_seconds, 0.0), MAX_WAIT_SECONDS)
        _, late = await asyncio.wait(tasks.values(), timeout=seconds) if tasks else ((), ())
        for task in late:
            task.cancel()  # the wait alone: the start goes on
        tools: list[Tool] = []
        troubles: list[Trouble] = []
        for server, task in tasks.items():
            name = server.config.name
            if task in late:
                line = f"{name}: is not ready yet"
                troubles.append(Trouble(name, "tool_server_unavailable", line))
            elif isinstance(error := task.exception(), ToolError):
                troubles.append(Trouble(name, error.code, error.message))
            else:
                tools += (offered.tool for offered in task.result().tools.values())
                troubles += [] if server.trouble is None else [server.trouble]
        return tools, troubles, known

    async def call(self, key: str, tool: str, arguments: bytes) -> Outcome:
        """The outcome of the one call with this key. Cancelling the wait does not end it."""
        if not 0 < len(key) <= MAX_KEY_CHARACTERS:
            return ToolError("tool_arguments_invalid", f"a key has 1 to {MAX_KEY_CHARACTERS}")
        if len(arguments) > MAX_ARGUMENT_BYTES:
            return ToolError("tool_arguments_invalid", f"at most {MAX_ARGUMENT_BYTES} bytes")
        digest = hashlib.sha256(b"%s\0%s" % (tool.encode(errors="replace"), arguments)).digest()
        try:
            call, is_new = self._calls.begin(key, digest)
        except ToolError as error:
            return error
        if not is_new:
            return await self._outcome_again(call)
        task = self._tasks[key] = start(self._run(call, tool, arguments))
        task.add_done_callback(lambda _: self._tasks.pop(key, None))
        return await asyncio.shield(call.ended)

    async def recall(self, key: str, place: Place | None) -> Outcome:
        """The outcome of a call that another worker began. Runs nothing."""
        found = self._calls.recall(key, place)
        return found if isinstance(found, ToolError) else await self._outcome_again(found)

    async def _outcome_again(self, call: KeptCall) -> Outcome:
        outcome = await asyncio.shield(call.ended)
        if isinstance(outcome, ToolError):
            return ToolError(outcome.code, outcome.message, is_replayed=True)
        return ToolResult(text=outcome.text, is_error=outcome.is_error, is_replayed=True)

    def cancel(self, key: str) -> None:
        """Everybody who waits hears it at once, and so does the server."""
        if (call := self._calls.running(key)) is not None:
            self._calls.end(call, ToolError("tool_cancelled", "the call was cancelled"))
        task = self._tasks.get(key)
        # Once: a second time would cut off the message to the server.
        if task is not None and not task.cancelling():
            task.cancel()

    async def _run(self, call: KeptCall, tool: str, arguments: bytes) -> None:
        try:
            self._calls.end(call, await self._outcome(tool, arguments))
        finally:
            self._calls.end(call, ToolError("tool_cancelled", "the call was cancelled"))

    async def _outcome(self, tool: str, arguments: bytes) -> Outcome:
        server = self._servers.get(tool.partition(SEPARATOR)[0])
        if server is None:
            return ToolError("tool_unknown", "there is no such tool")
        try:
            return await server.call(tool, arguments)
        except ToolError as error:
            logger.info("tool call failed", server=server.config.name, code=error.code)
            return error
        except Exception as error:  # of a library, about what a stranger has sent
            kind = type(error).__name__
            logger.error("tool call broke", server=server.config.name, error=kind)
            return ToolError("tool_failed", "the call has failed")

    async def close(self) -> None:
        """End every server."""
        await asyncio.gather(*(server.close() for server in self._servers.values()))
