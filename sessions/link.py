"""`Link`: one connection to one Redis server, on which all calls of a tick travel together.

A call never waits longer than about a second: a dead server is `StoreUnavailable` at once, a silent
one after the timeout, and the next call connects again by itself. A batch whose connection broke is
sent once more; every script answers a repeat like the first try. Nothing here blocks on the server
(XREAD BLOCK under a socket timeout raises a minute late), and cancelling a caller never touches the
connection, so replies cannot cross.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final

from redis import exceptions
from redis.asyncio.connection import AbstractConnection

from sessions.errors import StoreUnavailable

MAX_BATCH: Final = 512  # about 10 ms of Redis' time
MAX_WAITING: Final = 20_000  # more callers than that wait only when Redis does not keep up

# Replies that say "not now" and not "wrong". redis-py has classes for some; 6.2 wraps those that
# come from inside a script, so their words count too.
_OUTAGES = (
    exceptions.ReadOnlyError,
    exceptions.OutOfMemoryError,
    exceptions.AskError,  # with MOVED: a slot that moved twice under one call
    exceptions.TryAgainError,
    exceptions.ClusterDownError,
    exceptions.MasterDownError,
)
_OUTAGE = re.compile(
    r"\b(MISCONF|OOM command|READONLY|LOADING|MASTERDOWN|NOREPLICAS|CLUSTERDOWN|TRYAGAIN|BUSY)\b"
)
_READ_ONLY = re.compile(r"\bREADONLY\b")
REDIRECTIONS: Final = (exceptions.AskError, exceptions.TryAgainError)  # MOVED is an ASK to redis-py

Argument = str | bytes | int | float
Command = Sequence[Argument]
Connect = Callable[[], Awaitable[AbstractConnection]]


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


class Call:
    """One command on its way. `script` is its name if the command is an EVALSHA."""

    __slots__ = ("command", "future", "is_asking", "is_redirected", "script")

    def __init__(self, command: Command, script: str = "") -> None:
        self.command = command
        self.script = script
        self.is_redirected = False  # sent to another node already: not a third time
        self.is_asking = False  # for a slot that is on its way to the node it is sent to
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def fail(self, error: BaseException) -> None:
        if not self.future.done():
            self.future.set_exception(translate(error))

    def answer(self, reply: Any) -> None:
        if not self.future.done():
            self.future.set_result(reply)


class Link:
    """Calls to one server, in the order they were made.

    `connect` gives a connected connection. `redirect` takes over a call that a cluster's node sent
    elsewhere; `on_failure` hears that the server cannot be reached.
    """

    def __init__(
        self,
        connect: Connect,
        scripts: Scripts,
        timeout_seconds: float,
        *,
        redirect: Callable[[Call, Exception], None] | None = None,
        on_failure: Callable[[], None] = lambda: None,
    ) -> None:
        self.timeout_seconds = timeout_seconds
        self._connect = connect
        self._scripts = scripts
        self._redirect = redirect
        self._on_failure = on_failure
        self._connection: AbstractConnection | None = None
        self._waiting: deque[Call] = deque()
        self._sender: asyncio.Task[None] | None = None
        self._is_read_only = False
        self._closed = False

    def enqueue(self, call: Call) -> None:
        """Send the call with the others of this tick. Raises `StoreUnavailable` when too many."""
        if self._closed:
            raise StoreUnavailable("the session store is closed")
        if len(self._waiting) >= MAX_WAITING:
            raise StoreUnavailable("too many calls wait for the session store")
        self._waiting.append(call)
        if self._sender is None:
            # It runs after this tick, so every call of the tick is in its first batch.
            self._sender = asyncio.get_running_loop().create_task(self._send_waiting())

    async def close(self) -> None:
        """Fail what still waits, close the connection. May be called twice."""
        self._closed = True
        if self._sender is not None:
            self._sender.cancel()
            await asyncio.gather(self._sender, return_exceptions=True)
        self._fail_waiting(StoreUnavailable("the session store is closed"))
        await self._disconnect()

    # ---- the sender ------------------------------------------------------------------------------

    async def _send_waiting(self) -> None:
        try:
            while self._waiting:
                batch: list[Call] = []
                while self._waiting and len(batch) < MAX_BATCH:
                    call = self._waiting.popleft()
                    if not call.future.cancelled():
                        batch.append(call)
                await self._send(batch)
        finally:
            self._sender = None

    async def _send(self, batch: list[Call]) -> None:
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
            self._on_failure()

    async def _exchange(self, unanswered: deque[Call]) -> None:
        """Send the calls and answer them from the left; what is left over got no reply."""
        unloaded: list[Call] = []
        try:
            async with asyncio.timeout(self.timeout_seconds):
                connection = await self._connected()
                await self._write(connection, unanswered)
                while unanswered:
                    # What stands behind a script that was not there is to find it done.
                    if unloaded:
                        await self._skip_reply(connection, unanswered[0])
                        unloaded.append(unanswered.popleft())
                    elif await self._read_reply(connection, unanswered[0]):
                        unanswered.popleft()
                    else:
                        unloaded.append(unanswered.popleft())
                if unloaded:
                    await self._evaluate(connection, unloaded)
        except BaseException:
            unanswered.extend(unloaded)
            await self._disconnect()  # replies still on the way would answer the next batch
            raise
        if self._is_read_only:
            await self._disconnect()  # a primary no more: whoever is now is found by connecting

    async def _read_reply(self, connection: AbstractConnection, call: Call) -> bool:
        """Answer one call; False if Redis does not know its script."""
        if call.is_asking:
            await connection.read_response()  # of ASKING
        try:
            call.answer(await connection.read_response())
        except exceptions.NoScriptError as error:
            if call.script:
                return False
            call.fail(error)
        except exceptions.ResponseError as error:
            if self._redirect is not None and isinstance(error, REDIRECTIONS):
                self._redirect(call, error)
            else:
                call.fail(error)
                if _READ_ONLY.search(str(error)) or isinstance(error, exceptions.ReadOnlyError):
                    self._is_read_only = True
        return True

    @staticmethod
    async def _skip_reply(connection: AbstractConnection, call: Call) -> None:
        with contextlib.suppress(exceptions.ResponseError):
            if call.is_asking:
                await connection.read_response()
            await connection.read_response()

    async def _evaluate(self, connection: AbstractConnection, unloaded: list[Call]) -> None:
        """Send script runs with their source, which also loads it: the cache was flushed."""
        for call in unloaded:
            if call.script:
                call.command = ("EVAL", self._scripts.sources[call.script], *call.command[2:])
        await self._write(connection, unloaded)
        while unloaded:
            await self._read_reply(connection, unloaded[0])
            unloaded.pop(0)

    async def _connected(self) -> AbstractConnection:
        """The connection, with every script loaded when it is new."""
        if self._connection is not None:
            return self._connection
        self._is_read_only = False
        self._connection = connection = await self._connect()
        sources = self._scripts.sources.values()
        loads = [("SCRIPT", "LOAD", source) for source in sources]
        await connection.send_packed_command(connection.pack_commands(loads), check_health=False)
        for _ in sources:
            await connection.read_response()
        return connection

    @staticmethod
    async def _write(connection: AbstractConnection, calls: Sequence[Call] | deque[Call]) -> None:
        commands: list[Command] = []
        for call in calls:
            if call.is_asking:
                commands.append(("ASKING",))
            commands.append(call.command)
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
