"""`Turns`: one thread for work that would block the event loop. Users take turns at it.

An item waits for the one in progress, and then for one item of each user who came before, however
many items these have. The order of one user's items is kept.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class _Executor(Protocol):
    def submit(self, function: Callable[[], None], /) -> object: ...


class Turns:
    """May be used from any thread and any event loop. The thread starts with the first item."""

    def __init__(self, name: str, executor: _Executor | None = None) -> None:
        if executor is None:
            executor = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._executor = executor
        self._lock = threading.Lock()
        # An owner stays here while one of their items is being done.
        self._items: dict[str, deque[tuple[Future[Any], Callable[[], Any]]]] = {}
        self._owners: deque[str] = deque()  # with something to do, in the order of their turns

    async def run(self, owner: str, function: Callable[[], T]) -> T:
        """What `function` returns or raises, when it was the turn of `owner`.

        Cancelling this takes the item out of the queue, unless it is being done.
        """
        future: Future[T] = Future()
        with self._lock:
            if owner not in self._items:
                self._items[owner] = deque()
                self._owners.append(owner)
            self._items[owner].append((future, function))
        self._executor.submit(self._do_next)
        return await asyncio.wrap_future(future)

    def _do_next(self) -> None:
        with self._lock:
            owner = self._owners.popleft()
            future, function = self._items[owner].popleft()
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)
        with self._lock:
            if self._items[owner]:
                self._owners.append(owner)
            else:
                del self._items[owner]
