"""How long callbacks hold the event loop up, in processor time of its thread.

Processor time of that thread, because everything else would lengthen it, too. What is measured is a
callback, or one step of a task.
"""

from __future__ import annotations

import asyncio
import threading
import time
from types import TracebackType
from typing import Any, Self


class LoopStalls:
    """Use as a context manager around what happens to one thread's event loop, asyncio's own.

    `worst_seconds` and `worst` say afterwards which callback took longest.
    """

    def __init__(self, thread: threading.Thread) -> None:
        self._thread = thread
        self.worst_seconds = 0.0
        self.worst = ""

    def __enter__(self) -> Self:
        self._run = run = asyncio.Handle._run

        def timed(handle: asyncio.Handle) -> None:
            if threading.current_thread() is not self._thread:
                return run(handle)
            started = time.thread_time()
            run(handle)
            taken = time.thread_time() - started
            if taken > self.worst_seconds:
                self.worst_seconds, self.worst = taken, repr(handle)[:500]

        patched: Any = asyncio.Handle
        patched._run = timed
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        patched: Any = asyncio.Handle
        patched._run = self._run
