"""`WaitingQueue`: the requests that wait for their turn, and what their clients hear about it.

Users take turns, and one cache salt is one user: next is the first request of the user who has
least of the engine, and of two with the same, of the one who waits longer. A user's n-th waiting
request comes after the first n of every other user. Requests without a salt are served as they
come.
"""

import heapq
import math
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping, Set
from itertools import chain

from engine.core.scheduling.sequence import Order, Sequence

REPORT_SECONDS = 0.5  # how often waiting clients hear their position, at most


def by_order(sequence: Sequence) -> Order:
    return sequence.order


class WaitingQueue:
    """A line for each user, sorted by `Sequence.order`: who was preempted takes its old place."""

    def __init__(self) -> None:
        self.num_tokens = 0  # of all requests here
        self._lines: dict[str, list[Sequence]] = {}  # by user; none is empty
        self._size = 0
        self._structured: set[Sequence] = set()  # of these, who have a grammar
        self._turn = 0  # of the request that was admitted last
        self._last_turns: dict[str, int] = {}  # of the users that wait, without those of ""
        self._last_report = -math.inf

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Sequence]:
        return chain.from_iterable(self._lines.values())

    @property
    def users(self) -> Set[str]:
        """Who waits."""
        return self._lines.keys()

    @property
    def head(self) -> Sequence:
        """Whose turn is next, as long as nobody has anything; one must be able to be let in."""
        return min((it for it in self if not it.waits_for_grammar), key=by_order)

    @property
    def is_able(self) -> bool:
        """Whether somebody here waits for nothing but a seat and blocks."""
        return self._size > len(self.without_grammar())

    def without_grammar(self) -> set[Sequence]:
        """Those who cannot be let in yet."""
        return {it for it in self._structured if it.waits_for_grammar}

    def in_turns(
        self,
        held: Mapping[str, float],
        limits: Mapping[str, int] | None = None,
        limit: int | None = None,
        left_out: Set[Sequence] = frozenset(),
    ) -> Iterator[Sequence]:
        """All in the order of their turns, if users hold so much, in requests.

        Of each user only so many as `limits` says, or else `limit`, without those `left_out`. What
        comes and goes meanwhile is not noticed.
        """
        lines = (
            _in_line(_without(line, left_out)[: (limits or {}).get(user, limit)], held.get(user, 0))
            for user, line in self._lines.items()
        )
        return (sequence for _, sequence in heapq.merge(*lines))

    def next_turn(self, user: str) -> int:
        """The turn of one more request of this user."""
        last = self._last_turns.get(user)
        return self._turn if last is None else max(self._turn, last + 1)

    def push(self, sequence: Sequence) -> None:
        user = sequence.cache_salt
        insort(self._lines.setdefault(user, []), sequence, key=by_order)
        if user:
            self._last_turns[user] = max(self._last_turns.get(user, 0), sequence.order[1])
        self._size += 1
        if sequence.params.structured_outputs is not None:
            self._structured.add(sequence)
        self.num_tokens += sequence.num_tokens

    def remove(self, sequence: Sequence) -> None:
        """It must be here, and have as many tokens as when it came."""
        user = sequence.cache_salt
        line = self._lines[user]
        index = bisect_left(line, sequence.order, key=by_order)
        assert line[index] is sequence
        del line[index]
        self._size -= 1
        self._structured.discard(sequence)
        self.num_tokens -= sequence.num_tokens
        if not line:
            del self._lines[user]
            self._last_turns.pop(user, None)

    def let_in(self, sequence: Sequence) -> None:
        """Its turn has come: later requests of others do not get in front of those turns."""
        self.remove(sequence)
        self._turn = max(self._turn, sequence.order[1])

    def move_up(
        self, now: float, held: Callable[[], Mapping[str, float]] = dict
    ) -> Iterator[Sequence]:
        """Those whose position is another one than they last heard; mostly none at all."""
        if not self._size or now < self._last_report + REPORT_SECONDS:
            return
        self._last_report = now
        num_tokens_ahead = 0
        for position, sequence in enumerate(self.in_turns(held())):
            sequence.num_tokens_ahead = num_tokens_ahead
            num_tokens_ahead += sequence.num_tokens
            if position != sequence.queue_position:
                sequence.queue_position = position
                yield sequence

    def check_integrity(self) -> None:
        """Raise AssertionError if the order, or the count of tokens, is wrong."""
        for user, line in self._lines.items():
            assert line == sorted(line, key=by_order)
            assert all(sequence.cache_salt == user for sequence in line)
        assert all(self._lines.values())
        assert self._size == sum(len(line) for line in self._lines.values())
        assert self.num_tokens == sum(sequence.num_tokens for sequence in self)
        structured = {it for it in self if it.params.structured_outputs is not None}
        assert self._structured == structured
        assert self._last_turns.keys() == self._lines.keys() - {""}
        assert not any(sequence.block_table for sequence in self)


def _without(line: list[Sequence], left_out: Set[Sequence]) -> list[Sequence]:
    return [sequence for sequence in line if sequence not in left_out] if left_out else line


def _in_line(line: list[Sequence], held: float) -> Iterator[tuple[tuple[object, ...], Sequence]]:
    """The requests of one user, who holds so much, with what decides whose turn is next."""
    for number, sequence in enumerate(line):
        yield (sequence.order[0], held + number, sequence.order), sequence
