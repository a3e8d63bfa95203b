"""`BlockManager`: which block of the KV cache belongs to whom, and which prefix can be read again.

A block holds the keys and values of `block_size` consecutive tokens. Every block is in exactly one
of three states: referenced by at least one sequence, free, or deferred: released while a step was
in flight that may still read it, and free once that step has ended. A free or deferred block may
still be *cached*: it keeps its contents until it is handed out again, and the least recently
released one goes first.

The prefix cache maps (cache id of the unit before, the tokens of the unit) to the block that holds
it. A unit is a block, or, where attention wants large ones, a part of it. A cache id is drawn once
per cached content and never again, so equal keys mean equal text from the start of the prompt: the
dictionary finds a candidate by hash and decides by comparing the tokens. Roots have the request's
salt as parent, and its adapter. Whole blocks are shared; of a block that a text shares only the
beginning with, that beginning is copied. Nothing here knows tensors; every operation is O(1) per
unit.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count

from engine.core.scheduling.sequence import CacheParent, Sequence

CacheKey = tuple[CacheParent, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Prefix:
    """What the cache holds of a text: whole blocks, and the beginning of the block after them."""

    blocks: list[int]
    source: int | None = None  # holds the beginning
    num_copied: int = 0  # tokens of it
    others: tuple[int, ...] = ()  # through which these are found, as long as they are there

    def without_copy(self) -> "Prefix":
        """For want of a block: the source is held until it is copied."""
        return Prefix(self.blocks, others=self.others)


class BlockManager:
    """Hands out blocks. Callers ask `num_free` first: taking more than there is, is a bug.

    `unit_size` divides `block_size`, and is as large if it is not given.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int = 16,
        enable_caching: bool = True,
        unit_size: int | None = None,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.unit_size = unit_size or block_size
        self.enable_caching = enable_caching
        self.num_queried_tokens = 0  # prompt tokens looked up in the prefix cache
        self.num_hit_tokens = 0
        self._reference_counts = [0] * num_blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))  # oldest first
        self._deferred: dict[int, int] = {}  # block → the step after which it is free
        self._num_steps_started = self._num_steps_ended = 0
        self._units_per_block = block_size // self.unit_size
        self._key_to_block: dict[CacheKey, int] = {}
        # Of the units of each block, in their order; None: it is not found there.
        self._keys: list[list[CacheKey | None]] = [
            [None] * self._units_per_block for _ in range(num_blocks)
        ]
        self._cache_ids = [[0] * self._units_per_block for _ in range(num_blocks)]
        self._next_cache_id = count(1)

    @property
    def num_free(self) -> int:
        """Blocks that can be handed out, cached ones included."""
        return len(self._free)

    @property
    def num_soon_free(self) -> int:
        """Blocks that nobody holds, but that can be handed out only when a step has ended."""
        return len(self._deferred)

    @property
    def is_step_in_flight(self) -> bool:
        return self._num_steps_ended < self._num_steps_started

    def start_step(self) -> None:
        """A step is in flight. Steps end in the order in which they start."""
        self._num_steps_started += 1

    def end_step(self) -> None:
        """The oldest step in flight has ended: what was released before it ended is free now."""
        self._num_steps_ended += 1
        for block, step in list(self._deferred.items()):
            if step <= self._num_steps_ended:
                del self._deferred[block]
                self._add_free(block)

    def num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def find_prefix(self, sequence: Sequence) -> Prefix:
        """The longest known prefix; at least one token stays uncomputed."""
        blocks: list[int] = []
        if not self.enable_caching or not sequence.reads_prefix_cache:
            return Prefix(blocks)
        parent = sequence.cache_root
        source, index = None, 0  # the unit that comes next, of its block
        others: list[int] = []
        for start in range(0, sequence.num_tokens - self.unit_size, self.unit_size):
            block = self._key_to_block.get((parent, self._tokens(sequence, start)))
            if block is None:
                break
            if source not in (None, block):
                others.append(source)
            parent = self._cache_ids[block][index]
            source, index = block, index + 1  # a block that has a unit has those before it, too
            if index == self._units_per_block:
                blocks.append(block)
                source, index = None, 0
        return Prefix(blocks, source, index * self.unit_size, tuple(others))

    def will_extend(self, prefix: Prefix, sequence: Sequence, other: Sequence) -> bool:
        """Whether `other` will soon have filled the next unit that `sequence` needs.

        It prefills, or a step in flight fills it.
        """
        end = len(prefix.blocks) * self.block_size + prefix.num_copied + self.unit_size
        num_soon_cached = other.num_tokens - other.is_decoding  # a decode's last one takes long
        return (
            self.enable_caching
            and sequence.reads_prefix_cache
            and other.num_units_cached * self.unit_size < end <= num_soon_cached
            and end < sequence.num_tokens
            and other.cache_root == sequence.cache_root
            and other.token_ids[:end] == sequence.token_ids[:end]
        )

    def num_needed(self, sequence: Sequence, prefix: Prefix) -> int:
        """Free blocks that `allocate` would use up; a free block of the prefix counts as well."""
        num_idle_hits = sum(block in self._free for block in prefix.blocks)
        num_idle_hits += prefix.source in self._free
        return self.num_blocks_for(sequence.num_tokens) - len(prefix.blocks) + num_idle_hits

    def allocate(self, sequence: Sequence, prefix: Prefix) -> None:
        """Give a sequence without blocks its prefix and room for all its known tokens.

        `sequence.copied_from` says what must be copied before its next tokens are computed.
        """
        assert not sequence.block_table
        for block in prefix.others:
            if block in self._free:  # used, too, though nothing of it is read
                self._free.move_to_end(block)
        for block in prefix.blocks:
            self._reference(block)
            sequence.block_table.append(block)
        sequence.num_computed_tokens = len(prefix.blocks) * self.block_size + prefix.num_copied
        sequence.num_units_cached = sequence.num_computed_tokens // self.unit_size
        if prefix.source is not None:
            self._reference(prefix.source)  # not handed out until it is copied
            sequence.copied_from = (prefix.source, prefix.num_copied)
            num_units = prefix.num_copied // self.unit_size
            sequence.cache_parent = self._cache_ids[prefix.source][num_units - 1]
        elif prefix.blocks:
            sequence.cache_parent = self._cache_ids[prefix.blocks[-1]][-1]
        if self.enable_caching and sequence.reads_prefix_cache:
            self.num_queried_tokens += sequence.num_tokens
            self.num_hit_tokens += sequence.num_computed_tokens
        self.grow(sequence)

    def needs_block(self, sequence: Sequence) -> bool:
        return sequence.num_tokens > len(sequence.block_table) * self.block_size

    def grow(self, sequence: Sequence) -> None:
        """Append blocks until every known token has a slot."""
        table = sequence.block_table
        for _ in range(self.num_blocks_for(sequence.num_tokens) - len(table)):
            table.append(self._take_free())

    def end_copy(self, sequence: Sequence) -> None:
        """The step that copies is on its way: later ones find the copy, and not its source.

        The copy is used later, so that it is kept for longer. In a source that others hold, or that
        has another text after the beginning, that text stays where it is.
        """
        assert sequence.copied_from is not None
        source, num_tokens = sequence.copied_from
        sequence.copied_from = None
        if self._reference_counts[source] == 1:
            target = sequence.block_table[sequence.num_units_cached // self._units_per_block]
            for index in range(num_tokens // self.unit_size):
                key = self._keys[source][index]
                if key is not None:
                    self._keys[source][index], self._keys[target][index] = None, key
                    self._key_to_block[key] = target
                    self._cache_ids[target][index] = self._cache_ids[source][index]
        self._unreference(source)

    def cache_full_units(self, sequence: Sequence, num_computed: int) -> None:
        """Enter into the prefix cache which units its first `num_computed` tokens fill."""
        if not self.enable_caching:
            return
        num_full = num_computed // self.unit_size
        for number in range(sequence.num_units_cached, num_full):
            key = (sequence.cache_parent, self._tokens(sequence, number * self.unit_size))
            place, index = divmod(number, self._units_per_block)
            block = self._key_to_block.get(key)
            if block is None:
                block = sequence.block_table[place]
                self._key_to_block[key] = block
                self._keys[block][index] = key
                self._cache_ids[block][index] = next(self._next_cache_id)
            # else: computed twice at the same time; this copy stays private and leaves no trace
            sequence.cache_parent = self._cache_ids[block][index]
        sequence.num_units_cached = num_full

    def release(self, sequence: Sequence) -> None:
        """Take back all blocks, the last first: a prefix is worth more than what follows it."""
        if sequence.copied_from is not None:
            source, _ = sequence.copied_from
            self._unreference(source)
            sequence.copied_from = None
        for block in reversed(sequence.block_table):
            self._unreference(block)
        del sequence.block_table[:]
        sequence.num_computed_tokens = 0
        sequence.num_units_cached = 0
        sequence.cache_parent = sequence.cache_root

    def reset_cache(self) -> bool:
        """Forget every prefix. Running sequences keep their blocks and are not affected."""
        self._key_to_block.clear()
        for keys in self._keys:
            keys[:] = [None] * self._units_per_block
        return True

    def check_integrity(self, sequences: Iterable[Sequence]) -> None:
        """Raise AssertionError if the books are wrong; `sequences` are all that hold blocks."""
        counts = [0] * self.num_blocks
        for sequence in sequences:
            for block in sequence.block_table:
                counts[block] += 1
            if sequence.copied_from is not None:
                counts[sequence.copied_from[0]] += 1
        assert counts == self._reference_counts, "reference counts differ from the block tables"
        unreferenced = {block for block, num in enumerate(counts) if num == 0}
        assert not self._free.keys() & self._deferred.keys(), "a block is free and deferred"
        idle = self._free.keys() | self._deferred.keys()
        assert unreferenced == idle, "a block is neither referenced nor free"
        found = {key: block for block, keys in enumerate(self._keys) for key in keys if key}
        assert found == self._key_to_block, "the prefix cache points at the wrong blocks"

    def _tokens(self, sequence: Sequence, start: int) -> tuple[int, ...]:
        return tuple(sequence.token_ids[start : start + self.unit_size])

    def _reference(self, block: int) -> None:
        if self._reference_counts[block] == 0 and self._deferred.pop(block, None) is None:
            del self._free[block]
        self._reference_counts[block] += 1

    def _unreference(self, block: int) -> None:
        self._reference_counts[block] -= 1
        if self._reference_counts[block] == 0:
            if self.is_step_in_flight:
                self._deferred[block] = self._num_steps_started
            else:
                self._add_free(block)

    def _add_free(self, block: int) -> None:
        self._free[block] = None
        if not any(self._keys[block]):  # nothing to read again: hand it out next
            self._free.move_to_end(block, last=False)

    def _take_free(self) -> int:
        block, _ = self._free.popitem(last=False)
        for index, key in enumerate(self._keys[block]):
            if key is not None:  # evict
                del self._key_to_block[key]
                self._keys[block][index] = None
        self._reference_counts[block] = 1
        return block
