"""Tasks beside the one that starts them: no exception of theirs is lost, asyncio reports none.

asyncio writes "Task exception was never retrieved" with a traceback for every task whose failure
nobody awaits, whether a bug or the refusal of a request whose client has left. So every task of
`server` and `sessions` is started here, and this says what becomes of its failure.
"""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from sessions.model.errors import SessionError

T = TypeVar("T")

logger = logging.getLogger("background")


def start(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """A task that is awaited where it is started; if that is given up, nobody needs its failure."""
    task = asyncio.create_task(work)
    task.add_done_callback(_failure)
    return task


async def first_of(*works: Coroutine[Any, Any, Any]) -> set[asyncio.Task[Any]]:
    """Run these side by side until one ends; return what has ended by then, cancel the others."""
    tasks = [start(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return done


class Background:
    """The tasks of one owner, which ends them.

    A refusal (of the types in `refusals`, or any `SessionError`) that nobody waits for is dropped;
    any other failure is a bug, and is logged.
    """

    def __init__(self, *refusals: type[Exception]) -> None:
        self._refusals: tuple[type[Exception], ...] = (SessionError, *refusals)
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run something that nobody waits for."""
        self._keep(work).add_done_callback(self._tell)

    async def see_through(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for something that goes on if the caller is cancelled."""
        task = self._keep(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(self._tell)
            raise

    async def wait(self, seconds: float) -> None:
        """Until all of them have ended, but no longer than this."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)

    async def close(self) -> None:
        """Cancel what is left, and return when it has ended."""
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def cancel(self) -> None:
        """Cancel what is left, without waiting for it."""
        for task in self._tasks:
            task.cancel()

    def _keep(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """The loop itself holds tasks only weakly."""
        task = start(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _tell(self, task: asyncio.Task[Any]) -> None:
        error = _failure(task)
        if error is not None and not isinstance(error, self._refusals):
            logger.error("background task failed", exc_info=error)


def _failure(task: asyncio.Task[Any]) -> BaseException | None:
    """Why it failed, if it did. Asking is what keeps asyncio from telling it."""
    return None if task.cancelled() else task.exception()
