"""`running_time()`: a clock that stands still while this machine does.

Limits of the specification are held against this clock, not against the wall's: on a shared machine
a processor may be taken away for a second, and a test must not call that slow. For each processor
one thread sleeps a few milliseconds at a time; what it oversleeps, that processor ran others.
"""

import functools
import os
import threading
import time

NAP_SECONDS = 0.01
USUAL_SECONDS = 0.005  # that a nap may last longer on a machine that is ours alone


class _Watch(threading.Thread):
    def __init__(self, processor: int) -> None:
        super().__init__(name=f"running-time-{processor}", daemon=True)
        self.stood_still = 0.0  # seconds, in all
        self._processor = processor

    def run(self) -> None:
        os.sched_setaffinity(0, {self._processor})  # of this thread alone
        before = time.monotonic()
        while True:
            time.sleep(NAP_SECONDS)  # how much longer it takes is what is measured
            now = time.monotonic()
            late = now - before - NAP_SECONDS
            if late > USUAL_SECONDS:
                self.stood_still += late
            before = now


@functools.cache
def _watches() -> list[_Watch]:
    watches = [_Watch(processor) for processor in os.sched_getaffinity(0)]
    for watch in watches:
        watch.start()
    return watches


def running_time() -> float:
    """Seconds since an arbitrary moment, without those in which a processor stood still.

    Only differences mean something, and only as upper limits: where two processors stand still at
    the same time, both are taken off.
    """
    return time.monotonic() - sum(watch.stood_still for watch in _watches())


class Since:
    """A moment, by which later ones are judged. `moment` is a time of `time.monotonic()`."""

    def __init__(self) -> None:
        self.moment = time.monotonic()
        self._ran = running_time()

    def after(self, seconds: float) -> float:
        """When the machine will have run for so long, if it stands still no more."""
        now = time.monotonic()
        stood_still = (now - self.moment) - (running_time() - self._ran)
        return self.moment + seconds + stood_still
