"""`TextShare`: users share the text events of a worker, as they share the engine.

An event costs the worker the same, however little text it brings. So while several users have
answers here, one with more than a few of them gets their text in larger pieces, and as many events
as for those few. First tokens, ends and stops are no later for it, and nothing changes for a user
who is alone here.
"""

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator

SMOOTH_ANSWERS = 8  # of one user, whose text is never gathered for longer than usual
LARGEST_FACTOR = 8.0
REMEMBERED_SECONDS = 2.0  # that a user counts after the end of their last answer here


class TextShare:
    """Which users this worker writes answers for. `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._num_answers: Counter[str] = Counter()
        self._left: dict[str, float] = {}  # when users' last answers ended, the latest last

    @contextlib.contextmanager
    def writing(self, uid: str) -> Iterator[None]:
        """Count an answer of this user during a block."""
        self._num_answers[uid] += 1
        try:
            yield
        finally:
            self._num_answers[uid] -= 1
            if not self._num_answers[uid]:
                del self._num_answers[uid]
                self._left.pop(uid, None)
                self._left[uid] = self._clock()

    def factor(self, uid: str) -> float:
        """How many times as long as usual text of this user's answers is gathered for an event."""
        num_answers = self._num_answers[uid]
        if num_answers <= SMOOTH_ANSWERS or not self._has_others(uid):
            return 1.0
        return min(num_answers / SMOOTH_ANSWERS, LARGEST_FACTOR)

    def _has_others(self, uid: str) -> bool:
        if self._num_answers.keys() - {uid}:
            return True
        oldest = self._clock() - REMEMBERED_SECONDS
        while self._left and next(iter(self._left.values())) < oldest:
            del self._left[next(iter(self._left))]
        return bool(self._left.keys() - {uid})
