"""`Reply`: the answer to one call in the bytes that are sent, for all who read it, at any time."""

import asyncio
from collections.abc import Callable

from server.protocol.errors import ApiError


class Reply:
    """Parts that are put one by one, to an end. Readers begin with the first part.

    As soon as one is `given`, its client has something of it, and unless the reply `is_kept`, no
    other reader comes: then each part is forgotten when it was read.
    """

    def __init__(self, call_id: str, *, is_kept: bool = False) -> None:
        self.call_id = call_id
        self.is_kept = is_kept
        self.headers: list[tuple[bytes, bytes]] = []  # of the HTTP answer; before the first part
        self.readers: set[Reading] = set()
        self.is_given = False
        self.has_ended = False
        self.error: ApiError | None = None  # why there is no more, once it has ended
        self.num_bytes = 0
        self._parts: list[bytes] = []
        self._news = asyncio.Event()
        self._pausing: set[asyncio.Future[None]] = set()

    def put(self, part: bytes) -> None:
        self._parts.append(part)
        self.num_bytes += len(part)
        self._news.set()

    def end(self, error: ApiError | None = None) -> None:
        self.has_ended, self.error = True, error
        self._news.set()
        for pause in self._pausing:
            _finish(pause)

    def take(self, start: int) -> tuple[bytes, int]:
        """What there is from that part on, and how many parts there are."""
        new, end = self._parts[start:], len(self._parts)
        if self.is_given and not self.is_kept:
            self._parts[start:] = [b""] * len(new)
        return new[0] if len(new) == 1 else b"".join(new), end

    async def more(self, start: int) -> None:
        """Return when there are more parts than so many, or it has ended."""
        while len(self._parts) <= start and not self.has_ended:
            self._news.clear()  # who else waits was woken already, and looks again
            await self._news.wait()

    async def pause(self, until: float) -> None:
        """Return at that moment of the loop's clock, or when it has ended."""
        loop = asyncio.get_running_loop()
        if self.has_ended or until <= loop.time():
            return
        pause = loop.create_future()
        timer = loop.call_at(until, _finish, pause)
        self._pausing.add(pause)
        try:
            await pause
        finally:
            timer.cancel()
            self._pausing.remove(pause)


def _finish(pause: asyncio.Future[None]) -> None:
    if not pause.done():
        pause.set_result(None)


class Reading:
    """One reader of a reply. `on_leave` is called once, when it leaves; it says what ends then."""

    def __init__(
        self, reply: Reply, on_leave: Callable[[Reply], asyncio.Task[None] | None]
    ) -> None:
        self._reply = reply
        self._on_leave = on_leave
        self._place = 0
        self._refusal: ApiError | None = None
        reply.readers.add(self)

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """Of the HTTP answer, once there is a part."""
        return self._reply.headers

    async def next(self, not_before: float = 0.0) -> bytes:
        """All that has come since, as one; empty after the last. Raises `ApiError`.

        It collects until that moment of the loop's clock, unless the reply ends.
        """
        if self._refusal is None:
            await self._reply.more(self._place)
            await self._reply.pause(not_before)
        if self._refusal is not None:
            raise self._refusal
        new, self._place = self._reply.take(self._place)
        if not new and self._reply.error is not None:
            raise self._reply.error
        return new

    def give(self) -> None:
        """From here on the client has something of it."""
        self._reply.is_given = True

    def refuse(self, error: ApiError) -> None:
        """Who reads here may not read on: send this refusal, and no part more."""
        self._refusal = self._refusal or error

    async def leave(self) -> None:
        """Nobody reads here any more; what ends with it has ended then. May be called twice."""
        if self in self._reply.readers:
            self._reply.readers.remove(self)
            if (ending := self._on_leave(self._reply)) is not None:
                await asyncio.wait([ending])
