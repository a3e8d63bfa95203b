"""`SleepingParts`: what of the core's memory is given back, and how it is taken again.

To give back takes no time that anybody would notice, and happens in the step loop. To take again
may mean to read all weights: a thread does it, so that the loop goes on answering pings and aborts.
Nothing is computed as long as a part is asleep. As in vLLM, all parts are asleep at level 1
already, although only the KV cache is given back; a part that was kept wakes up at once.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

TAGS = ("weights", "kv_cache")  # in the order in which they wake up
LEVELS = (0, 1, 2)


class Memory(Protocol):
    """What a core holds. It takes again only what it has given back."""

    def give_back(self, level: int) -> None:
        """1: the KV cache; 2: the weights, too."""

    def take_again(self, tag: str) -> None:
        """May take minutes, and be called by any thread. Raises if it is not possible."""


class SleepingParts:
    """`on_woken` is called by another thread when `take_again` is over: `end_waking` is due then.

    Without `memory` parts sleep and wake up, and nothing else happens.
    """

    def __init__(self, memory: Memory | None, on_woken: Callable[[], None]) -> None:
        self.asleep: set[str] = set()  # tags
        self._memory = memory
        self._on_woken = on_woken
        # One for all times: what each thread has freed the C library keeps for the next one.
        self._thread = ThreadPoolExecutor(1, "waking")
        self._waking: Future[None] | None = None
        self._woken: list[str] = []  # by the thread

    @property
    def is_waking(self) -> bool:
        return self._waking is not None

    @property
    def has_woken(self) -> bool:
        """Whether `end_waking` need not wait."""
        return self._waking is not None and self._waking.done()

    def give_back(self, level: int) -> None:
        """At level 0, nothing. What sleeps already stays asleep."""
        if level == 0:
            return
        self.asleep.update(TAGS)
        if self._memory is not None:
            self._memory.give_back(level)

    def take_again(self, tags: Iterable[str]) -> None:
        """Begin to wake up these parts; those that are awake stay so."""
        due = [tag for tag in TAGS if tag in tags and tag in self.asleep]
        self._waking = self._thread.submit(self._take, due)
        self._waking.add_done_callback(lambda _: self._on_woken())

    def end_waking(self) -> None:
        """Wait, and raise what kept a part from waking up; those before it are awake."""
        waking, self._waking = self._waking, None
        error = None if waking is None else waking.exception()
        woken, self._woken = self._woken, []
        self.asleep.difference_update(woken)
        if error is not None:
            raise error

    def _take(self, tags: list[str]) -> None:
        for tag in tags:
            if self._memory is not None:
                self._memory.take_again(tag)
            self._woken.append(tag)
