"""`WaitingQueue`: the requests that wait for their turn, and what their clients hear of it."""

import math
from bisect import bisect_left, insort
from collections.abc import Iterator

from engine.sequence import Sequence

REPORT_SECONDS = 0.5  # how often waiting clients hear their position, at most


def by_order(sequence: Sequence) -> tuple[int, float, int]:
    return sequence.order


class WaitingQueue:
    """Sorted by `Sequence.order`, so that a preempted request takes its old place again."""

    def __init__(self) -> None:
        self.num_tokens = 0  # of all requests here
        self._sequences: list[Sequence] = []
        self._last_report = -math.inf

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences)

    @property
    def head(self) -> Sequence:
        """Whose turn is next."""
        return self._sequences[0]

    def push(self, sequence: Sequence) -> None:
        insort(self._sequences, sequence, key=by_order)
        self.num_tokens += sequence.num_tokens

    def remove(self, sequence: Sequence) -> None:
        """It must be here, and have as many tokens as when it came."""
        index = bisect_left(self._sequences, sequence.order, key=by_order)
        assert self._sequences[index] is sequence
        del self._sequences[index]
        self.num_tokens -= sequence.num_tokens

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
        assert not any(sequence.block_table for sequence in self._sequences)
