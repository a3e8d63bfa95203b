"""Deadlines for replies, by which a blocked event loop blames nobody but itself.

A loop that stood still finds its timers due before it has polled its sockets, where the replies may
have waited for long. So a timeout is only decided after some more turns of the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Final, Protocol

# Look at the sockets, wake the reader, let it hand out what came; more do not harm.
TURNS: Final = 5


class Due(Protocol):
    """Something that is awaited until `deadline`, a time of the loop's clock."""

    deadline: float


@dataclass(slots=True)
class _Moment:
    deadline: float


@contextlib.asynccontextmanager
async def before_deadline(next_due: Callable[[], Due | None]) -> AsyncIterator[None]:
    """Raises `TimeoutError` in the block when what is due next is late and nothing more comes.

    `next_due` says what is awaited now; None ends the watch.
    """
    async with asyncio.timeout(None) as limit:
        watch = _Watch(limit, next_due)
        try:
            yield
        finally:
            watch.cancel()


def within(seconds: float) -> contextlib.AbstractAsyncContextManager[None]:
    """Raises `TimeoutError` when the block takes longer."""
    moment = _Moment(asyncio.get_running_loop().time() + seconds)
    return before_deadline(lambda: moment)


class _Watch:
    def __init__(self, limit: asyncio.Timeout, next_due: Callable[[], Due | None]) -> None:
        self._limit = limit
        self._next_due = next_due
        self._due: Due | None = None
        self._turns = 0  # that are left to it
        self._handle: asyncio.Handle | None = None
        self._look()

    def cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        due = self._next_due()
        if due is None:
            return
        if due is not self._due:
            self._due, self._turns = due, TURNS
        if due.deadline > loop.time():
            self._handle = loop.call_at(due.deadline, self._look)
        elif self._turns:
            self._turns -= 1
            self._handle = loop.call_soon(self._look)
        else:
            self._limit.reschedule(due.deadline)
