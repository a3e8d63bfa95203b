"""`LoopThread`: an event loop in a thread of its own, for callers who have none.

Ctrl-C may interrupt a caller that waits for a call: the call is then cancelled, and has ended
when the interrupt goes on.
"""

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from engine.errors import EngineDeadError

GRACE_SECONDS = 5.0  # for a call that was cancelled to end, and for the thread
LOOK_SECONDS = 1.0  # after which a caller looks whether the thread is still there

T = TypeVar("T")


class LoopThread:
    """Runs coroutines until `close`. Its methods may be called from any thread but its own."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=_run, args=(self.loop,), name=name, daemon=True)
        self._thread.start()

    @property
    def is_current(self) -> bool:
        return threading.current_thread() is self._thread

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine, or what it raises. `EngineDeadError` after `close`."""
        has_ended = threading.Event()
        tasks: list[asyncio.Task[T]] = []

        def begin() -> None:
            tasks.append(self.loop.create_task(coroutine))
            tasks[0].add_done_callback(lambda _: has_ended.set())

        def cancel() -> None:
            if tasks:
                tasks[0].cancel()
            else:  # the interrupt came first
                coroutine.close()
                has_ended.set()

        if not self._thread.is_alive():  # also in a forked child, which has no other threads
            coroutine.close()
            raise EngineDeadError("the engine was shut down")
        try:
            self.loop.call_soon_threadsafe(begin)
            while not has_ended.wait(LOOK_SECONDS):
                if not self._thread.is_alive():
                    raise EngineDeadError("the engine was shut down")
        except KeyboardInterrupt:
            self.loop.call_soon_threadsafe(cancel)
            has_ended.wait(GRACE_SECONDS)
            raise
        try:
            return tasks[0].result()
        except asyncio.CancelledError:
            raise EngineDeadError("the engine was shut down") from None

    def close(self) -> None:
        """Cancel what runs, and end the thread. Idempotent; its own thread may call it."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(self.loop.stop)
        if not self.is_current:
            self._thread.join(GRACE_SECONDS)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    """Until somebody stops the loop; then end its tasks, as `asyncio.run` does."""
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()
