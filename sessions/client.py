"""The connection to Redis: one for all commands, shared by everything in a worker.

`RedisClient` sends all calls of one event-loop tick in one pipeline (a quarter of a pool's CPU for
many small calls) and answers them in order. A call never waits longer than about a second: a dead
Redis is `StoreUnavailable` at once, a silent one after the timeout, and the next call connects
again by itself. A batch whose connection broke is sent once more; every script answers a repeat
like the first try. Nothing here blocks on the server (XREAD BLOCK under a socket timeout raises a
minute late), and cancelling a caller never touches the connection, so replies cannot cross.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from redis import exceptions
from redis.asyncio import ConnectionPool
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from sessions.errors import StoreUnavailable

TIMEOUT_SECONDS: Final = 1.0  # for a whole batch; scripts take microseconds
MAX_BATCH: Final = 512  # about 10 ms of Redis' time
MAX_WAITING: Final = 20_000  # more callers than that wait only when Redis does not keep up

# Replies that say "not now" and not "wrong". redis-py has classes for some; 6.2 wraps those that
# come from inside a script, so their words count too.
_OUTAGES = (
    exceptions.ReadOnlyError,
    exceptions.OutOfMemoryError,
    exceptions.TryAgainError,
    exceptions.ClusterDownError,
    exceptions.MasterDownError,
)
_OUTAGE = re.compile(
    r"\b(MISCONF|OOM command|READONLY|LOADING|MASTERDOWN|NOREPLICAS|CLUSTERDOWN|TRYAGAIN|BUSY)\b"
)

Argument = str | bytes | int | float
Command = Sequence[Argument]


@dataclass(frozen=True, slots=True)
class ScriptRun:
    """An EVALSHA on its way, with the name to find the source if Redis has forgotten it."""

    name: str
    command: Command


class Scripts:
    """The Lua scripts beside this module, each with the prelude in front, and their digests."""

    def __init__(self) -> None:
        folder = Path(__file__).parent / "lua"
        prelude = (folder / "prelude.lua").read_text()
        self.sources = {
            path.stem: prelude + path.read_text()
            for path in sorted(folder.glob("*.lua"))
            if path.stem != "prelude"
        }
        self.digests = {
            name: hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
            for name, source in self.sources.items()
        }


class _Call:
    """One command on its way. `script` is its name if the command is an EVALSHA."""

    __slots__ = ("command", "future", "script")

    def __init__(self, command: Command, script: str) -> None:
        self.command = command
        self.script = script
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def fail(self, error: BaseException) -> None:
        if not self.future.done():
            self.future.set_exception(translate(error))

    def answer(self, reply: Any) -> None:
        if not self.future.done():
            self.future.set_result(reply)


class RedisClient:
    """Commands and scripts on one connection, batched by tick.

    Calls of one task are applied in the order they were made; calls made together with `calls`
    also, unless a script had to be loaded again. Raises `ValueError` for a malformed url.
    """

    def __init__(self, url: str, *, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self.url = url
        self.timeout_seconds = timeout_seconds
        self._pool = ConnectionPool.from_url(
            url,
            protocol=3,
            decode_responses=False,  # token ids are binary
            socket_timeout=None,  # the timeout of a batch is around all its reads
            socket_connect_timeout=timeout_seconds,
            retry=Retry(NoBackoff(), 0),
            driver_info=None,  # CLIENT SETINFO came with 7.2
        )
        self._scripts = Scripts()
        self._connection: AbstractConnection | None = None
        self._waiting: deque[_Call] = deque()
        self._sender: asyncio.Task[None] | None = None
        self._closed = False

    def new_connection(self, *, protocol: int = 3) -> AbstractConnection:
        """An unconnected connection of its own."""
        arguments = {**self._pool.connection_kwargs, "protocol": protocol}
        return self._pool.connection_class(**arguments)

    async def call(self, *command: Argument) -> Any:
        """Send one command and return its raw reply (RESP3, bytes not decoded)."""
        return await self._enqueue(command)

    async def script(self, name: str, keys: Sequence[str], arguments: Sequence[Argument]) -> Any:
        """Run one of `lua/` and return its reply."""
        return await self._enqueue(self.script_run(name, keys, arguments))

    async def calls(self, *commands: Command | ScriptRun) -> list[Any]:
        """Send several commands together, in this order; raises the first error after all ended."""
        futures = [self._enqueue(command) for command in commands]
        replies = await asyncio.gather(*futures, return_exceptions=True)
        for reply in replies:
            if isinstance(reply, BaseException):
                raise reply
        return replies

    def script_run(
        self, name: str, keys: Sequence[str], arguments: Sequence[Argument]
    ) -> ScriptRun:
        """A script run, to stand among the commands of `calls`."""
        digest = self._scripts.digests[name]
        return ScriptRun(name, ("EVALSHA", digest, len(keys), *keys, *arguments))

    async def close(self) -> None:
        """Fail what still waits, close the connection. May be called twice."""
        self._closed = True
        if self._sender is not None:
            self._sender.cancel()
            await asyncio.gather(self._sender, return_exceptions=True)
        self._fail_waiting(StoreUnavailable("the session store is closed"))
        await self._disconnect()

    # ---- the sender ------------------------------------------------------------------------------

    def _enqueue(self, command: Command | ScriptRun) -> asyncio.Future[Any]:
        if self._closed:
            raise StoreUnavailable("the session store is closed")
        if len(self._waiting) >= MAX_WAITING:
            raise StoreUnavailable("too many calls wait for the session store")
        if isinstance(command, ScriptRun):
            call = _Call(command.command, command.name)
        else:
            call = _Call(command, "")
        self._waiting.append(call)
        if self._sender is None:
            # It runs after this tick, so every call of the tick is in its first batch.
            self._sender = asyncio.get_running_loop().create_task(self._send_waiting())
        return call.future

    async def _send_waiting(self) -> None:
        try:
            while self._waiting:
                batch: list[_Call] = []
                while self._waiting and len(batch) < MAX_BATCH:
                    call = self._waiting.popleft()
                    if not call.future.cancelled():
                        batch.append(call)
                await self._send(batch)
        finally:
            self._sender = None

    async def _send(self, batch: list[_Call]) -> None:
        """Answer every call of the batch, whatever happens."""
        unanswered = deque(batch)
        try:
            try:
                await self._exchange(unanswered)
            except exceptions.ConnectionError as error:
                if is_authentication_error(error):
                    raise
                await self._exchange(unanswered)
        except asyncio.CancelledError:
            for call in unanswered:
                call.fail(StoreUnavailable("the session store is closed"))
            raise
        except Exception as error:
            for call in unanswered:
                call.fail(error)
            if _is_timeout(error):
                self._fail_waiting(error)  # they have waited for as long as this batch

    async def _exchange(self, unanswered: deque[_Call]) -> None:
        """Send the calls and answer them from the left; what is left over got no reply."""
        unloaded: list[_Call] = []
        try:
            async with asyncio.timeout(self.timeout_seconds):
                connection = await self._connected()
                await self._write(connection, [call.command for call in unanswered])
                while unanswered:
                    if await self._read_reply(connection, unanswered[0]):
                        unanswered.popleft()
                    else:
                        unloaded.append(unanswered.popleft())
                if unloaded:
                    await self._evaluate(connection, unloaded)
        except BaseException:
            unanswered.extend(unloaded)
            await self._disconnect()  # replies still on the way would answer the next batch
            raise

    @staticmethod
    async def _read_reply(connection: AbstractConnection, call: _Call) -> bool:
        """Answer one call; False if Redis does not know its script."""
        try:
            call.answer(await connection.read_response())
        except exceptions.NoScriptError:
            return False
        except exceptions.ResponseError as error:
            call.fail(error)
        return True

    async def _evaluate(self, connection: AbstractConnection, unloaded: list[_Call]) -> None:
        """Send script runs with their source, which also loads it: the cache was flushed."""
        sources = self._scripts.sources
        commands = [("EVAL", sources[call.script], *call.command[2:]) for call in unloaded]
        await self._write(connection, commands)
        while unloaded:
            await self._read_reply(connection, unloaded[0])
            unloaded.pop(0)

    async def _connected(self) -> AbstractConnection:
        """The connection, with every script loaded when it is new."""
        if self._connection is not None:
            return self._connection
        self._connection = connection = self.new_connection()
        await connection.connect()  # type: ignore[no-untyped-call]
        sources = self._scripts.sources.values()
        await self._write(connection, [("SCRIPT", "LOAD", source) for source in sources])
        for _ in sources:
            await connection.read_response()
        return connection

    @staticmethod
    async def _write(connection: AbstractConnection, commands: Sequence[Command]) -> None:
        packed = connection.pack_commands(commands)
        await connection.send_packed_command(packed, check_health=False)

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.disconnect(nowait=True)

    def _fail_waiting(self, error: BaseException) -> None:
        while self._waiting:
            self._waiting.popleft().fail(error)


def translate(error: BaseException) -> BaseException:
    """The one place where an outage of Redis becomes `StoreUnavailable`; a bug stays what it is."""
    if _is_timeout(error):
        translated = StoreUnavailable("Redis did not answer in time")
    elif isinstance(error, (exceptions.ConnectionError, OSError, *_OUTAGES)) or (
        isinstance(error, exceptions.ResponseError) and _OUTAGE.search(str(error))
    ):
        translated = StoreUnavailable(f"Redis cannot be used: {first_line(error)}")
    else:
        return error
    translated.__cause__ = error
    return translated


def is_authentication_error(error: BaseException | None) -> bool:
    """Whether Redis refused our credentials; redis-py and we both wrap that."""
    while error is not None and not isinstance(error, exceptions.AuthenticationError):
        error = error.__cause__
    return error is not None


def first_line(error: BaseException) -> str:
    """An error in one line, for a log or an operator."""
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def _is_timeout(error: BaseException) -> bool:
    return isinstance(error, (TimeoutError, exceptions.TimeoutError))
