"""`CacheWarmer`: touches the KV cache's memory before a prompt has to wait for it.

The system gives a page when it is first written to, zeroed. In a virtual machine, whose host has to
find the page, too, that took 12 to 15 % of a prompt's time with int8 weights (docs/performance.md).
Every prompt meets it until all blocks of the cache were used once.
"""

import ctypes
import logging
import os
import threading
from collections.abc import Callable, Sequence

from torch import Tensor

from engine.core.runner import system_memory
from engine.core.runner.system_memory import RESERVE_BYTES, RESERVE_SHARE

logger = logging.getLogger(__name__)

# Taken at once, within some milliseconds: so long the process can neither map other memory nor end.
PIECE_BYTES = 2 << 20
LOOK_SECONDS = 0.05  # whether the core is idle again
POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, of Linux 5.14


class CacheWarmer(threading.Thread):
    """Takes these tensors' memory while nobody waits for the core.

    What is in them stays as it is, and they may be used meanwhile. It ends early, with a line in
    the log, where memory is short; the rest is then taken page by page, as on systems that cannot
    be asked. `is_idle` is asked before each piece. A lower priority in its place would be worse: a
    thread that waits for a processor within the call keeps a lock that others need.
    """

    def __init__(
        self,
        caches: Sequence[Tensor],
        is_idle: Callable[[], bool],
        available: Callable[[], int] = system_memory.available,
    ) -> None:
        super().__init__(name="cache-taker", daemon=True)
        self._caches = [cache for cache in caches if cache.is_cpu]
        self._is_idle = is_idle
        self._available = available
        self._reserve = RESERVE_BYTES
        self._stop_event = threading.Event()
        self.num_taken = 0  # bytes

    def stop(self) -> None:
        """Return when it takes nothing any more, and has let go of the tensors."""
        self._stop_event.set()
        self.join()
        self._caches = []

    def run(self) -> None:
        try:
            self._reserve = min(RESERVE_BYTES, int(self._available() * RESERVE_SHARE))
            if all(self._take(cache) for cache in self._caches):
                logger.debug("all memory of the KV cache is taken")
        except OSError as error:
            logger.debug("the KV cache's memory is taken when it is used: %s", error)

    def _take(self, cache: Tensor) -> bool:
        storage = cache.untyped_storage()
        begin, end = storage.data_ptr(), storage.data_ptr() + storage.nbytes()
        begin -= begin % os.sysconf("SC_PAGE_SIZE")
        libc = ctypes.CDLL(None, use_errno=True)
        for place in range(begin, end, PIECE_BYTES):
            while not self._stop_event.is_set() and not self._is_idle():
                # Waking us would cost the step loop something each round.
                self._stop_event.wait(LOOK_SECONDS)
            if self._stop_event.is_set():
                return False
            if self._available() < self._reserve + PIECE_BYTES:
                logger.info(
                    "memory is short: %d MiB of the KV cache were taken, the rest will be when it "
                    "is used",
                    self.num_taken >> 20,
                )
                return False
            size = min(PIECE_BYTES, end - place)
            arguments = (ctypes.c_void_p(place), ctypes.c_size_t(size), POPULATE_WRITE)
            if libc.madvise(*arguments) != 0:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
            self.num_taken += size
        return True
