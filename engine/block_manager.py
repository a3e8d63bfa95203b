"""`BlockManager`: which block of the KV cache belongs to whom, and which prefix can be read again.

A block holds the keys and values of `block_size` consecutive tokens. Every block is in exactly one
of three states: referenced by at least one sequence, free, or deferred: released while a step was
in flight that may still read it, and free once that step has ended. A free or deferred block may
still be *cached*: it keeps its contents until it is handed out again, and the least recently
released one goes first.

The prefix cache maps (cache id of the parent block, the tokens of the block) to a block. A cache id
is drawn once per cached content and never again, so equal keys mean equal text from the start of
the prompt: the dictionary finds a candidate by hash and decides by comparing the tokens. Roots have
the request's salt as parent. Nothing here knows tensors; every operation is O(1) per block.
"""

from collections import OrderedDict
from collections.abc import Iterable
from itertools import count

from engine.sequence import Sequence

CacheKey = tuple[int | str, tuple[int, ...]]


class BlockManager:
    """Hands out blocks. Callers ask `num_free` first: taking more than there is, is a bug."""

    def __init__(self, num_blocks: int, block_size: int = 16, enable_caching: bool = True) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.enable_caching = enable_caching
        self.num_queried_tokens = 0  # prompt tokens looked up in the prefix cache
        self.num_hit_tokens = 0
        self._reference_counts = [0] * num_blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))  # oldest first
        self._deferred: dict[int, int] = {}  # block → the step after which it is free
        self._num_steps_started = self._num_steps_ended = 0
        self._key_to_block: dict[CacheKey, int] = {}
        self._block_to_key: list[CacheKey | None] = [None] * num_blocks
        self._cache_ids = [0] * num_blocks
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

    def find_prefix(self, sequence: Sequence) -> list[int]:
        """The cached blocks of the longest known prefix; at least one token stays uncomputed."""
        blocks: list[int] = []
        if not self.enable_caching or sequence.params.skip_reading_prefix_cache:
            return blocks
        parent: int | str = sequence.cache_salt
        for start in range(0, sequence.num_tokens - self.block_size, self.block_size):
            block = self._key_to_block.get((parent, self._tokens(sequence, start)))
            if block is None:
                break
            blocks.append(block)
            parent = self._cache_ids[block]
        return blocks

    def will_extend(self, prefix: list[int], sequence: Sequence, other: Sequence) -> bool:
        """Whether `other`, prefilling, will soon fill the next block that `sequence` needs."""
        end = (len(prefix) + 1) * self.block_size
        return (
            self.enable_caching
            and not sequence.params.skip_reading_prefix_cache
            and not other.is_decoding
            and end < sequence.num_tokens
            and other.num_computed_tokens < end <= other.num_tokens
            and other.cache_salt == sequence.cache_salt
            and other.token_ids[:end] == sequence.token_ids[:end]
        )

    def num_needed(self, sequence: Sequence, prefix: list[int]) -> int:
        """Free blocks that `allocate` would use up; a free block of the prefix counts as well."""
        num_idle_hits = sum(block in self._free for block in prefix)
        return self.num_blocks_for(sequence.num_tokens) - len(prefix) + num_idle_hits

    def allocate(self, sequence: Sequence, prefix: list[int]) -> None:
        """Give a sequence without blocks its prefix and room for all its known tokens."""
        assert not sequence.block_table
        for block in prefix:
            self._reference(block)
            sequence.block_table.append(block)
        sequence.num_computed_tokens = len(prefix) * self.block_size
        sequence.num_blocks_cached = len(prefix)
        sequence.cache_parent = self._cache_ids[prefix[-1]] if prefix else sequence.cache_salt
        if self.enable_caching and not sequence.params.skip_reading_prefix_cache:
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

    def cache_full_blocks(self, sequence: Sequence) -> None:
        """Enter the blocks that the last step filled into the prefix cache."""
        if not self.enable_caching:
            return
        for index in range(
            sequence.num_blocks_cached, sequence.num_computed_tokens // self.block_size
        ):
            key = (sequence.cache_parent, self._tokens(sequence, index * self.block_size))
            block = self._key_to_block.get(key)
            if block is None:
                block = sequence.block_table[index]
                self._key_to_block[key] = block
                self._block_to_key[block] = key
                self._cache_ids[block] = next(self._next_cache_id)
            # else: computed twice at the same time; this copy stays private and leaves no trace
            sequence.cache_parent = self._cache_ids[block]
        sequence.num_blocks_cached = sequence.num_computed_tokens // self.block_size

    def release(self, sequence: Sequence) -> None:
        """Take back all blocks, the last first: a prefix is worth more than what follows it."""
        for block in reversed(sequence.block_table):
            self._reference_counts[block] -= 1
            if self._reference_counts[block] == 0:
                if self.is_step_in_flight:
                    self._deferred[block] = self._num_steps_started
                else:
                    self._add_free(block)
        del sequence.block_table[:]
        sequence.num_computed_tokens = 0
        sequence.num_blocks_cached = 0
        sequence.cache_parent = sequence.cache_salt

    def reset_cache(self) -> bool:
        """Forget every prefix. Running sequences keep their blocks and are not affected."""
        self._key_to_block.clear()
        self._block_to_key = [None] * self.num_blocks
        return True

    def check_integrity(self, sequences: Iterable[Sequence]) -> None:
        """Raise AssertionError if the books are wrong; `sequences` are all that hold blocks."""
        counts = [0] * self.num_blocks
        for sequence in sequences:
            for block in sequence.block_table:
                counts[block] += 1
        assert counts == self._reference_counts, "reference counts differ from the block tables"
        unreferenced = {block for block, num in enumerate(counts) if num == 0}
        assert not self._free.keys() & self._deferred.keys(), "a block is free and deferred"
        idle = self._free.keys() | self._deferred.keys()
        assert unreferenced == idle, "a block is neither referenced nor free"
        keys = {key: block for block, key in enumerate(self._block_to_key) if key is not None}
        assert keys == self._key_to_block, "the prefix cache points at the wrong blocks"

    def _tokens(self, sequence: Sequence, start: int) -> tuple[int, ...]:
        return tuple(sequence.token_ids[start : start + self.block_size])

    def _reference(self, block: int) -> None:
        if self._reference_counts[block] == 0 and self._deferred.pop(block, None) is None:
            del self._free[block]
        self._reference_counts[block] += 1

    def _add_free(self, block: int) -> None:
        self._free[block] = None
        if self._block_to_key[block] is None:  # nothing to read again: hand it out next
            self._free.move_to_end(block, last=False)

    def _take_free(self) -> int:
        block, _ = self._free.popitem(last=False)
        key = self._block_to_key[block]
        if key is not None:  # evict
            del self._key_to_block[key]
            self._block_to_key[block] = None
        self._reference_counts[block] = 1
        return block
