"""`Keepalive`: one timer pings all websockets of a worker."""

import asyncio
from collections import deque
from typing import Any, Protocol

import uvicorn

PINGS_PER_TURN = 50  # of those that are due: then the others have their turn


class Pinged(Protocol):
    """One websocket."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...

    @property
    def ping_sent_at(self) -> float: ...

    def keep_alive(self) -> bool:
        """Ping it; False if it needs no more pings."""


class Keepalive:
    """Pings all websockets of a worker, each once in `seconds`, by one timer for all."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._protocols: deque[Pinged] = deque()  # who is due first is the first
        self._timer: asyncio.TimerHandle | None = None

    def add(self, protocol: Pinged) -> None:
        """It has said at `ping_sent_at` that it lives, and is due `seconds` later."""
        self._protocols.append(protocol)
        if self._timer is None:
            self._await_first()

    def _await_first(self) -> None:
        first = self._protocols[0]
        self._timer = first.loop.call_at(first.ping_sent_at + self._seconds, self._look)

    def _look(self) -> None:
        self._timer = None
        for _ in range(min(PINGS_PER_TURN, len(self._protocols))):
            first = self._protocols[0]
            if first.ping_sent_at + self._seconds > first.loop.time():
                break
            self._protocols.popleft()
            if first.keep_alive():
                self._protocols.append(first)
        if self._protocols:
            self._await_first()


class Config(uvicorn.Config):
    """uvicorn's, with what its websockets share."""

    def __init__(self, *args: Any, ping_seconds: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.keepalive = Keepalive(ping_seconds)
