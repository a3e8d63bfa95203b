"""`Link`: one connection to one Redis server, on which all calls of a tick travel together.

Calls are written without waiting for the replies of those before, so a slow network costs each call
one round trip and no more. A call waits hardly longer than its timeout: a dead server is
`StoreUnavailable` at once, a silent one after the timeout, and the next call connects again by
itself. What was unanswered when its connection broke is sent once more; every script answers a
repeat like the first try. Nothing here blocks on the server (XREAD BLOCK under a socket timeout
raises a minute late), and cancelling a caller never touches the connection, so replies cannot
cross.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import hiredis
from redis import exceptions
from redis.asyncio.connection import AbstractConnection

from sessions.background import start
from sessions.connection.deadlines import before_deadline
from sessions.connection.scripts import Argument as Argument
from sessions.connection.scripts import Scripts
from sessions.model.errors import StoreUnavailable

MAX_BATCH: Final = 512  # about 10 ms of Redis' time
MAX_UNANSWERED: Final = 2048  # of one connection; the rest waits here
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

Command = Sequence[Argument]
Connect = Callable[[], Awaitable[AbstractConnection]]


class Call:
    """One command on its way. `script` is its name if the command is an EVALSHA."""

    __slots__ = (
        "command",
        "deadline",
        "future",
        "is_asking",
        "is_late",
        "is_redirected",
        "is_repeated",
        "script",
    )

    def __init__(self, command: Command, script: str = "") -> None:
        self.command = command
        self.script = script
        self.deadline = 0.0  # of the loop's clock, set when it is sent
        self.is_repeated = False  # its connection broke: not a third time
        self.is_redirected = False  # sent to another node already: not a third time
        self.is_asking = False  # for a slot that is on its way to the node it is sent to
        self.is_late = False  # applied after calls that were made later
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
        self._unanswered: deque[Call] = deque()  # sent on the connection, in this order
        self._sender: asyncio.Task[None] | None = None
        self._reader: asyncio.Task[None] | None = None
        self._will_flush = False
        self._is_read_only = False
        self._closed = False

    def enqueue(self, call: Call) -> None:
        """Send the call with the others of this tick. Raises `StoreUnavailable` when too many."""
        if self._closed:
            raise StoreUnavailable("the session store is closed")
        if len(self._waiting) >= MAX_WAITING:
            raise StoreUnavailable("too many calls wait for the session store")
        self._waiting.append(call)
        self._wake_sender()

    async def close(self) -> None:
        """Fail what still waits, close the connection. May be called twice."""
        self._closed = True
        tasks = [task for task in (self._sender, self._reader) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        closed = StoreUnavailable("the session store is closed")
        _fail_all(self._unanswered, closed)
        _fail_all(self._waiting, closed)
        await self._disconnect()

    # ---- sending ---------------------------------------------------------------------------------

    def _wake_sender(self) -> None:
        if self._sender is None and not self._will_flush and not self._closed:
            # It runs after this tick, so every call of the tick is in its first batch.
            self._will_flush = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        """Write what waits; what must wait for a connection or for the server waits in a task."""
        self._will_flush = False
        while self._waiting and self._sender is None and not self._closed:
            connection = self._connection
            transport = None if connection is None else _ready_transport(connection)
            if connection is None or transport is None or self._must_wait():
                self._sender = start(self._send_waiting())
            elif batch := self._next_batch(asyncio.get_running_loop().time()):
                try:
                    packed = self._pack(batch)
                except Exception as error:  # nothing was sent, and no reply comes
                    _fail_all(deque(batch), error)
                    continue
                self._expect(connection, batch)
                transport.write(packed)

    def _must_wait(self) -> bool:
        """For replies, before anything more is sent."""
        return self._reader is not None and (
            self._is_read_only or len(self._unanswered) >= MAX_UNANSWERED
        )

    async def _send_waiting(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                if self._reader is not None and self._must_wait():
                    await asyncio.wait([self._reader])
                if batch := self._next_batch(loop.time()):
                    await self._send(batch)
        finally:
            self._sender = None

    def _next_batch(self, now: float) -> list[Call]:
        """Of what waits, what is sent now: somebody still wants it."""
        batch: list[Call] = []
        while self._waiting and len(batch) < MAX_BATCH:
            call = self._waiting.popleft()
            if not call.future.cancelled():
                call.deadline = now + self.timeout_seconds
                batch.append(call)
        return batch

    def _expect(self, connection: AbstractConnection, batch: list[Call]) -> None:
        """From now on the calls are among the unanswered."""
        self._unanswered.extend(batch)
        if self._reader is None:
            self._reader = start(self._read_replies(connection))

    async def _send(self, batch: list[Call]) -> None:
        """Connect if need be, and write the calls."""
        connection = None
        try:
            async with before_deadline(lambda: batch[0]):
                connection = await self._connected()
                self._expect(connection, batch)
                await connection.send_packed_command(self._pack(batch), check_health=False)
        except asyncio.CancelledError:
            if connection is None:
                _fail_all(deque(batch), StoreUnavailable("the session store is closed"))
            raise
        except Exception as error:
            if connection is None:
                await self._disconnect()
                self._give_up_or_repeat(deque(batch), error)
            else:
                await self._break(connection, error)

    async def _connected(self) -> AbstractConnection:
        """The connection, with every script loaded when it is new."""
        if self._connection is not None:
            return self._connection
        connection = await self._connect()
        try:
            loads = [("SCRIPT", "LOAD", script.source) for script in self._scripts.values()]
            packed = connection.pack_commands(loads)
            await connection.send_packed_command(packed, check_health=False)
            for _ in loads:
                await connection.read_response()
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        self._is_read_only = False
        self._connection = connection
        return connection

    @staticmethod
    def _pack(calls: Sequence[Call]) -> bytes:
        packed = []  # by hiredis: redis-py takes six times as long, half of all that a call costs
        for call in calls:
            if call.is_asking:
                packed.append(hiredis.pack_command(("ASKING",)))
            words: Any = tuple(call.command)  # its stub knows tuples of one word
            packed.append(hiredis.pack_command(words))
        return b"".join(packed)

    # ---- receiving -------------------------------------------------------------------------------

    async def _read_replies(self, connection: AbstractConnection) -> None:
        """Answer the calls from the left until none is unanswered."""
        try:
            async with before_deadline(self._next_unanswered):
                while self._unanswered:
                    await self._read_reply(connection, self._unanswered[0])
                    self._unanswered.popleft()
            self._reader = None
            if self._is_read_only:  # a primary no more: connecting finds the new one
                await self._disconnect()
        except Exception as error:
            self._reader = None
            await self._break(connection, error)

    def _next_unanswered(self) -> Call | None:
        return self._unanswered[0] if self._unanswered else None

    async def _read_reply(self, connection: AbstractConnection, call: Call) -> None:
        if call.is_asking:
            await connection.read_response()  # of ASKING
        try:
            call.answer(await connection.read_response())
        except exceptions.NoScriptError as error:
            if call.script:
                self._evaluate(call)
            else:
                call.fail(error)
        except exceptions.ResponseError as error:
            if self._redirect is not None and isinstance(error, REDIRECTIONS):
                call.is_late = True
                self._redirect(call, error)
            else:
                call.fail(error)
                if _READ_ONLY.search(str(error)) or isinstance(error, exceptions.ReadOnlyError):
                    self._is_read_only = True

    def _evaluate(self, call: Call) -> None:
        """Send a script run with its source, which also loads it: the cache was flushed."""
        call.command = ("EVAL", self._scripts[call.script].source, *call.command[2:])
        call.is_late = True
        self._waiting.appendleft(call)
        self._wake_sender()

    # ---- failing ---------------------------------------------------------------------------------

    async def _break(self, connection: AbstractConnection, error: Exception) -> None:
        """The connection is of no use: replies still on the way would answer later calls."""
        if self._connection is not connection:
            return  # the other half of the link was first
        self._connection = None
        if self._reader is not None:
            self._reader.cancel()
            self._reader = None
        lost, self._unanswered = self._unanswered, deque()
        await connection.disconnect(nowait=True)
        self._give_up_or_repeat(lost, error)

    def _give_up_or_repeat(self, lost: deque[Call], error: Exception) -> None:
        """Send what was not repeated yet once more if the connection broke; fail the rest."""
        is_broken = isinstance(error, exceptions.ConnectionError)
        if not is_broken or is_authentication_error(error):
            _fail_all(lost, error)
            if _is_timeout(error):
                _fail_all(self._waiting, error)  # they have waited for as long as these
            self._on_failure()
            return
        again = [call for call in lost if not call.is_repeated]
        _fail_all(deque(call for call in lost if call.is_repeated), error)
        if len(again) < len(lost):
            self._on_failure()
        for call in again:
            call.is_repeated = True
        self._waiting.extendleft(reversed(again))
        if again:
            self._wake_sender()

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.disconnect(nowait=True)


def _ready_transport(connection: AbstractConnection) -> asyncio.WriteTransport | None:
    """Where to write without waiting: nothing is broken, and nothing waits for the socket."""
    if connection._writer is None:
        return None
    transport = connection._writer.transport
    return None if transport.is_closing() or transport.get_write_buffer_size() else transport


def _fail_all(calls: deque[Call], error: BaseException) -> None:
    while calls:
        calls.popleft().fail(error)


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
