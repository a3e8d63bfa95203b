"""`Seats`: the running sequences, which ones are admitted, and which must give way.

A waiting request is admitted only with room for all its known tokens, so a prefill never stops half
way because blocks ran out. A sequence that gives way starts over later: its full blocks stay in the
prefix cache, so this is cheap while no other needs them.
"""

from bisect import insort
from collections import Counter
from dataclasses import dataclass, field
from itertools import islice

from engine.core.scheduling.adapter_seats import AdapterSeats, AdapterSource
from engine.core.scheduling.block_manager import BlockManager, Prefix
from engine.core.scheduling.fair_share import (
    find_latest_of_largest,
    find_of_most_blocks,
    find_of_most_seats,
    held_by,
)
from engine.core.scheduling.sequence import Sequence, SequenceStatus
from engine.core.scheduling.waiting_queue import WaitingQueue, by_order

ROUNDS = 2  # in which the seats of several users are served: so many times those of one


@dataclass(slots=True)
class Plan:
    """Those of the waiting for whom there will be room."""

    num_seats: Counter[str] = field(default_factory=Counter)  # by user
    num_blocks: int = 0
    num_tokens: int = 0

    def add(self, sequence: Sequence, num_blocks: int) -> None:
        self.num_seats[sequence.cache_salt] += 1
        self.num_blocks += num_blocks
        self.num_tokens += sequence.num_tokens


class Seats:
    """At most `max_num_seqs` sequences of one user, and twice as many of all.

    They hold the blocks that are not free. A step computes `max_num_seqs` of them: if more run,
    they take turns. So a user alone gets whole steps, and a second user finds a seat for just as
    many answers.

    It moves sequences between `waiting` and `running`; only `Scheduler.finish` removes them.
    """

    def __init__(
        self,
        max_num_seqs: int,
        blocks: BlockManager,
        waiting: WaitingQueue,
        adapters: AdapterSource | None = None,
        max_loras: int = 1,
    ) -> None:
        self.max_num_seqs = max_num_seqs
        self.blocks = blocks
        self.waiting = waiting
        self.running: list[Sequence] = []  # sorted by Sequence.order, as those who wait
        self.adapters = AdapterSeats(adapters, max_loras, self.running)

    @property
    def num_free(self) -> int:
        """Of all users together; one of them may have fewer."""
        return max(0, ROUNDS * self.max_num_seqs - len(self.running))

    def num_free_for(self, user: str) -> int:
        """How many more of this user may run, if there are blocks."""
        num_running = Counter(sequence.cache_salt for sequence in self.running)
        num_users = len(num_running.keys() | {user})
        num_fair = ROUNDS * self.max_num_seqs // num_users - num_running[user]
        num_left = self.max_num_seqs - num_running[user]
        return max(0, min(num_left, max(self.num_free, num_fair)))

    def held(self) -> dict[str, float]:
        """What each user has of seats or blocks, in seats."""
        return held_by(
            self.running, max_num_seqs=self.max_num_seqs, num_blocks=self.blocks.num_blocks
        )

    def newcomers(self) -> list[Sequence]:
        """Those who wait and find a seat, if there are blocks, in the order of their turns."""
        return list(islice(self._in_turns(), self.num_free)) if self.waiting else []

    def waits_for_sibling(self, sequence: Sequence) -> bool:
        """Whether a step or two later its blocks can be shared, as by n > 1 siblings."""
        prefix = self.blocks.find_prefix(sequence)
        return any(self.blocks.will_extend(prefix, sequence, other) for other in self.running)

    def admit(self, sequence: Sequence) -> bool:
        """Let one of the newcomers in, if there are blocks."""
        # Each running decode may soon want a block: without this reserve the newcomer would be the
        # next to give way.
        num_available = self.blocks.num_free - len(self.running)
        if num_available <= 0:
            return False
        prefix = self._find_prefix(sequence, num_available)
        if prefix is None:
            return False
        self.blocks.allocate(sequence, prefix)
        self.waiting.let_in(sequence)
        sequence.status = SequenceStatus.RUNNING
        insort(self.running, sequence, key=by_order)
        return True

    def make_room(self, sequence: Sequence) -> bool:
        """Give the last token of a decode its slot; False if it must wait for its turn."""
        if sequence.status is not SequenceStatus.RUNNING:
            return False
        if self.blocks.needs_block(sequence):
            if not self.blocks.num_free:
                return False  # until the step in flight ends
            self.blocks.grow(sequence)
        return True

    def preempt(self, sequence: Sequence) -> None:
        """Back to the queue, at its old place: blocks go, tokens stay and are computed again."""
        self.running.remove(sequence)
        sequence.forget_unknown()
        self.blocks.release(sequence)
        sequence.status = SequenceStatus.WAITING
        sequence.kept_adapter, sequence.adapter = sequence.adapter, None
        sequence.num_preemptions += 1
        self.waiting.push(sequence)

    def preempt_for_decodes(self, due: list[Sequence]) -> int:
        """Preempt as many sequences as blocks are missing for the decodes that are due.

        Once per step, for all of them together. Blocks that a step in flight still reads count as
        free: they are used before another sequence must go. The oldest is never a victim: what all
        others give back is always enough for it. Returns the number of victims.
        """
        needy = {sequence.key for sequence in due if self.blocks.needs_block(sequence)}
        num_victims = 0
        while len(needy) > self.blocks.num_free + self.blocks.num_soon_free:
            victim = find_latest_of_largest(self.running)
            assert victim is not self.running[0]
            self.preempt(victim)
            needy.discard(victim.key)
            num_victims += 1
        return num_victims

    def preempt_for_others(self, max_tokens: int) -> int:
        """Make room for those who wait and have less than others, up to so many tokens of them.

        For a seat the latest of the user with the most of them goes, for blocks that of a user with
        more than half. They keep their place in their own line. The number of victims.
        """
        if not self.waiting or len(self.waiting.users | self._users()) < 2:
            return 0
        num_victims, plan = 0, Plan()
        for sequence in self._in_turns():
            while (victim := self._find_in_the_way(sequence, plan)) is not None:
                self.preempt(victim)
                num_victims += 1
            if not self._has_room(sequence, plan):
                break
            num_needed = self.blocks.num_needed(sequence, self.blocks.find_prefix(sequence))
            plan.add(sequence, num_needed + 1)  # one for its answer, as for all that run
            if plan.num_tokens >= max_tokens:
                break
        return num_victims

    def _users(self) -> set[str]:
        return {sequence.cache_salt for sequence in self.running}

    def _in_turns(self) -> list[Sequence]:
        """Those who wait, without those whose user has as many running as one may have.

        Nor those who wait for an adapter or a grammar: they would take places from others who need
        none.
        """
        num_running = Counter(sequence.cache_salt for sequence in self.running)
        limits = {user: self.max_num_seqs - num for user, num in num_running.items()}
        held = self.held() if len(self.waiting.users) > 1 else {}  # else it decides nothing
        left_out = self.adapters.without_room(self.waiting.in_turns(held))
        left_out |= self.waiting.without_grammar()
        return list(self.waiting.in_turns(held, limits, self.max_num_seqs, left_out))

    def _find_in_the_way(self, sequence: Sequence, plan: Plan) -> Sequence | None:
        """Which one gives way to this one, after those of the plan; None if none must or will."""
        if self.num_free <= plan.num_seats.total():
            return find_of_most_seats(self.running, sequence, plan.num_seats[sequence.cache_salt])
        if not self._has_room(sequence, plan):
            return find_of_most_blocks(self.running, sequence, self.blocks.num_blocks)
        return None

    def _has_room(self, sequence: Sequence, plan: Plan) -> bool:
        """Whether it gets in, after those of the plan, as soon as the step in flight has ended."""
        if self.num_free <= plan.num_seats.total():
            return False
        num_available = self.blocks.num_free + self.blocks.num_soon_free - len(self.running)
        return self._find_prefix(sequence, num_available - plan.num_blocks) is not None

    def _find_prefix(self, sequence: Sequence, num_available: int) -> Prefix | None:
        """What so many blocks allow to use of the prefix cache; None if they do not suffice."""
        prefix = self.blocks.find_prefix(sequence)
        for possible in (prefix, prefix.without_copy()):
            if self.blocks.num_needed(sequence, possible) <= num_available:
                return possible
        return None
