"""`WaitingQueue`: the requests that wait for their turn, and what their clients hear of it.

Users take turns, and one cache salt is one user: the n-th request that a user has waiting comes
behind the first n of everybody else. Requests without a salt are served as they come.
"""

import math
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterator

from engine.sequence import Order, Sequence

REPORT_SECONDS = 0.5  # how often waiting clients hear their position, at most


def by_order(sequence: Sequence) -> Order:
    return sequence.order


class WaitingQueue:
    """Sorted by `Sequence.order`, so that a preempted request takes its old place again."""

    def __init__(self) -> None:
        self.num_tokens = 0  # of all requests here
        self._sequences: list[Sequence] = []
        self._turn = 0  # of whoever was let in last
        self._num_waiting: Counter[str] = Counter()  # by user
        self._last_turns: dict[str, int] = {}  # of the users that wait
        self._last_report = -math.inf

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences)

    @property
    def head(self) -> Sequence:
        """Whose turn is next."""
        return self._sequences[0]

    def next_turn(self, user: str) -> int:
        """The turn of one more request of this user."""
        last = self._last_turns.get(user)
        return self._turn if last is None else max(self._turn, last + 1)

    def push(self, sequence: Sequence) -> None:
        insort(self._sequences, sequence, key=by_order)
        if user := sequence.cache_salt:
            self._num_waiting[user] += 1
            self._last_turns[user] = max(self._last_turns.get(user, 0), sequence.order[1])
        self.num_tokens += sequence.num_tokens

    def remove(self, sequence: Sequence) -> None:
        """It must be here, and have as many tokens as when it came."""
        index = bisect_left(self._sequences, sequence.order, key=by_order)
        assert self._sequences[index] is sequence
        del self._sequences[index]
        self.num_tokens -= sequence.num_tokens
        if user := sequence.cache_salt:
            self._num_waiting[user] -= 1
            if not self._num_waiting[user]:
                del self._num_waiting[user], self._last_turns[user]

    def let_in(self, sequence: Sequence) -> None:
        """Its turn has come: later requests of others do not get in front of those turns."""
        self.remove(sequence)
        self._turn = max(self._turn, sequence.order[1])

    def move_up(self, now: float) -> Iterator[Sequence]:
        """Those whose position is another one than they last heard; mostly none at all."""
        if not self._sequences or now < self._last_report + REPORT_SECONDS:
            return
        self._last_report = now
        num_tokens_ahead = 0
        for position, sequence in enumerate(self._sequences):
            sequence.num_tokens_ahead = num_tokens_ahead
            num_tokens_ahead += sequence.num_tokens
            if position != sequence.queue_position:
                sequence.queue_position = position
                yield sequence

    def check_integrity(self) -> None:
        """Raise AssertionError if the order, or the count of tokens, is wrong."""
        assert self._sequences == sorted(self._sequences, key=by_order)
        assert self.num_tokens == sum(sequence.num_tokens for sequence in self._sequences)
        users = [sequence.cache_salt for sequence in self._sequences if sequence.cache_salt]
        assert self._num_waiting == Counter(users)
        assert self._last_turns.keys() == set(users)
        assert not any(sequence.block_table for sequence in self._sequences)
