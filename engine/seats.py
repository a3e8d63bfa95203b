"""`Seats`: the running sequences, who is let in among them, and who must make way.

A waiting request is let in only with room for all its known tokens, so a prefill never stops half
way for want of blocks. A sequence that makes way starts over later: its full blocks stay in the
prefix cache, so this is cheap while nobody else needs them.
"""

from bisect import insort

from engine.block_manager import BlockManager, Prefix
from engine.fair_share import find_excess
from engine.sequence import Sequence, SequenceStatus
from engine.waiting_queue import WaitingQueue, by_order


class Seats:
    """At most `max_num_seqs` sequences, which hold the blocks that are not free.

    It moves sequences between `waiting` and `running`; only `Scheduler.finish` removes them.
    """

    def __init__(self, max_num_seqs: int, blocks: BlockManager, waiting: WaitingQueue) -> None:
        self.max_num_seqs = max_num_seqs
        self.blocks = blocks
        self.waiting = waiting
        self.running: list[Sequence] = []  # sorted by Sequence.order, as those who wait

    @property
    def num_free(self) -> int:
        return max(0, self.max_num_seqs - len(self.running))

    def admit(self, sequence: Sequence) -> bool:
        """Let the head of the queue in, if it fits."""
        if not self.num_free:
            return False
        # Each running decode may soon want a block: without this reserve the newcomer would be
        # the next to make way.
        num_available = self.blocks.num_free - len(self.running)
        if num_available <= 0:
            return False
        prefix = self._find_prefix(sequence, num_available)
        if prefix is None:
            return False
        if any(self.blocks.will_extend(prefix, sequence, other) for other in self.running):
            return False  # a step or two later its blocks can be shared, as by n > 1 siblings
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
        sequence.num_preemptions += 1
        self.waiting.push(sequence)

    def preempt_for_decodes(self, due: list[Sequence]) -> int:
        """Preempt as many of the latest sequences as the decodes that are due lack blocks.

        Once per step, for all of them together. Blocks that a step in flight still reads count as
        free: their turn comes before another sequence must go. The oldest is never a victim: what
        all others give back is always enough for it. The number of victims.
        """
        needy = {sequence.key for sequence in due if self.blocks.needs_block(sequence)}
        num_victims = 0
        while len(needy) > self.blocks.num_free + self.blocks.num_soon_free:
            victim = self.running[-1]
            assert victim is not self.running[0]
            self.preempt(victim)
            needy.discard(victim.key)
            num_victims += 1
        return num_victims

    def preempt_for_others(self) -> int:
        """While another user waits, nobody keeps more than half: preempt until there is room.

        The latest of theirs go, to the end of their own line. The number of victims.
        """
        num_victims = 0
        while self.waiting and not self._has_room(head := self.waiting.head):
            victim = find_excess(
                self.running,
                head,
                max_num_seqs=self.max_num_seqs,
                num_blocks=self.blocks.num_blocks,
            )
            if victim is None:
                break
            priority, _, arrival_time, number = victim.order
            turn = self.waiting.next_turn(victim.cache_salt)
            victim.order = (priority, max(turn, head.order[1] + 1), arrival_time, number)
            self.preempt(victim)
            num_victims += 1
        return num_victims

    def _has_room(self, sequence: Sequence) -> bool:
        """Whether a waiting request gets in as soon as the step in flight has ended."""
        num_available = self.blocks.num_free + self.blocks.num_soon_free - len(self.running)
        return self.num_free > 0 and self._find_prefix(sequence, num_available) is not None

    def _find_prefix(self, sequence: Sequence, num_available: int) -> Prefix | None:
        """What so many blocks allow to use of the prefix cache; None if they do not suffice."""
        prefix = self.blocks.find_prefix(sequence)
        for possible in (prefix, prefix.without_copy()):
            if self.blocks.num_needed(sequence, possible) <= num_available:
                return possible
        return None
