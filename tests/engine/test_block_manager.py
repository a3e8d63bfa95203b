"""The block manager: prefixes found again by their tokens, least recently used first to go."""

import random

from engine.block_manager import BlockManager
from engine.sampling_params import SamplingParams
from engine.sequence import Sequence

BLOCK_SIZE = 4


def make_sequence(tokens: list[int], salt: str = "", **params: object) -> Sequence:
    return Sequence("c", "r", tokens, SamplingParams(**params), cache_salt=salt)  # type: ignore[arg-type]


def start(blocks: BlockManager, sequence: Sequence) -> int:
    """Allocate and compute all tokens; the number of tokens that were cached."""
    blocks.allocate(sequence, blocks.find_prefix(sequence))
    num_cached = sequence.num_computed_tokens
    sequence.num_computed_tokens = sequence.num_tokens
    blocks.cache_full_blocks(sequence)
    return num_cached


def run(blocks: BlockManager, tokens: list[int], salt: str = "") -> int:
    sequence = make_sequence(tokens, salt)
    num_cached = start(blocks, sequence)
    blocks.release(sequence)
    blocks.check_integrity([])
    return num_cached


def test_full_blocks_of_an_ended_sequence_are_found_again() -> None:
    blocks = BlockManager(8, BLOCK_SIZE)
    assert run(blocks, list(range(10))) == 0
    assert run(blocks, list(range(10))) == 8
    assert run(blocks, [*range(8), 99, 98, 97]) == 8
    assert run(blocks, [*range(4), 99, 98, 97, 96]) == 4


def test_at_least_one_token_is_computed() -> None:
    blocks = BlockManager(8, BLOCK_SIZE)
    run(blocks, list(range(8)))
    assert run(blocks, list(range(8))) == 4


def test_cached_blocks_count_as_free() -> None:
    blocks = BlockManager(8, BLOCK_SIZE)
    run(blocks, list(range(10)))
    assert blocks.num_free == 8


def test_a_block_in_use_is_shared() -> None:
    blocks = BlockManager(4, BLOCK_SIZE)
    first, second = make_sequence(list(range(9))), make_sequence(list(range(9)))
    start(blocks, first)
    assert start(blocks, second) == 8
    assert first.block_table[:2] == second.block_table[:2]
    assert blocks.num_free == 0
    blocks.release(first)
    blocks.check_integrity([second])
    assert blocks.num_free == 1


def test_the_same_tokens_behind_another_prefix_are_no_hit() -> None:
    blocks = BlockManager(8, BLOCK_SIZE)
    run(blocks, [1, 1, 1, 1, 5, 6, 7, 8, 9])
    assert run(blocks, [2, 2, 2, 2, 5, 6, 7, 8, 9]) == 0


def test_colliding_hashes_are_told_apart_by_their_tokens() -> None:
    blocks = BlockManager(8, BLOCK_SIZE)
    assert hash((1, -1)) == hash((1, -2))  # -1 and -2 have one hash in CPython
    run(blocks, [-1, 1, 1, 1, 9])
    assert run(blocks, [-2, 1, 1, 1, 9]) == 0


def test_another_salt_is_no_hit() -> None:
    blocks = BlockManager(8, BLOCK_SIZE)
    run(blocks, list(range(6)), salt="a")
    assert run(blocks, list(range(6)), salt="b") == 0
    assert run(blocks, list(range(6)), salt="a") == 4


def test_the_cache_can_be_bypassed_or_off() -> None:
    blocks = BlockManager(8, BLOCK_SIZE)
    run(blocks, list(range(6)))
    assert blocks.find_prefix(make_sequence(list(range(6)), skip_reading_prefix_cache=True)) == []
    off = BlockManager(8, BLOCK_SIZE, enable_caching=False)
    run(off, list(range(6)))
    assert run(off, list(range(6))) == 0


def test_the_least_recently_released_prefix_goes_first_and_its_tail_before_its_head() -> None:
    blocks = BlockManager(6, BLOCK_SIZE)
    run(blocks, [1] * 9)  # two full blocks each, one block unfilled
    run(blocks, [2] * 9)
    holder = make_sequence([3] * 12)  # takes the two never used and the tail of the ones
    start(blocks, holder)
    assert len(blocks.find_prefix(make_sequence([1] * 9))) == 1
    assert len(blocks.find_prefix(make_sequence([2] * 9))) == 2
    blocks.release(holder)
    blocks.check_integrity([])


def test_reset_forgets_everything_and_leaves_running_sequences_alone() -> None:
    blocks = BlockManager(8, BLOCK_SIZE)
    running = make_sequence(list(range(10)))
    start(blocks, running)
    blocks.reset_cache()
    assert blocks.find_prefix(make_sequence(list(range(10)))) == []
    running.token_ids += [10, 11]
    blocks.grow(running)
    running.num_computed_tokens = 12
    blocks.cache_full_blocks(running)
    blocks.check_integrity([running])
    blocks.release(running)
    blocks.check_integrity([])


def test_num_needed_counts_free_hits_and_what_is_missing() -> None:
    blocks = BlockManager(8, BLOCK_SIZE)
    run(blocks, list(range(8)))
    sequence = make_sequence(list(range(10)))
    prefix = blocks.find_prefix(sequence)
    assert (len(prefix), blocks.num_needed(sequence, prefix)) == (2, 3)
    start(blocks, sequence)
    other = make_sequence(list(range(10)))
    assert blocks.num_needed(other, blocks.find_prefix(other)) == 1


def test_r14_released_blocks_return_after_the_last_step_that_was_in_flight() -> None:
    blocks = BlockManager(8, BLOCK_SIZE)
    first, second = make_sequence([1] * 8), make_sequence([2] * 8)
    start(blocks, first)
    start(blocks, second)
    blocks.start_step()
    blocks.release(first)
    blocks.start_step()
    blocks.release(second)
    assert (blocks.num_free, blocks.num_soon_free) == (4, 4)
    blocks.end_step()
    assert (blocks.num_free, blocks.num_soon_free) == (6, 2)
    blocks.check_integrity([])
    blocks.end_step()
    assert (blocks.num_free, blocks.num_soon_free) == (8, 0)


def test_a_prefix_that_is_free_only_soon_can_be_read_at_once() -> None:
    blocks = BlockManager(4, BLOCK_SIZE)
    first, second = make_sequence(list(range(13))), make_sequence(list(range(13)))
    start(blocks, first)
    blocks.start_step()
    blocks.release(first)
    assert (blocks.num_free, blocks.num_soon_free) == (0, 4)
    prefix = blocks.find_prefix(second)
    assert blocks.num_needed(second, prefix) == 1  # no free block is used up by the three hits
    blocks.end_step()
    assert blocks.num_needed(second, prefix) == 4
    assert start(blocks, second) == 12
    blocks.check_integrity([second])


class CheckedBlocks:
    """A block manager beside a plain account of what each block holds."""

    def __init__(self, rng: random.Random, num_blocks: int) -> None:
        self.rng = rng
        self.blocks = BlockManager(num_blocks, BLOCK_SIZE)
        self.live: list[Sequence] = []
        self.contents: dict[int, tuple[str, list[int]]] = {}  # block → salt, tokens up to its end

    def compute(self, sequence: Sequence) -> None:
        """Fill what was not cached; what was cached must hold this very text from its start on."""
        for index, block in enumerate(sequence.block_table):
            text = sequence.token_ids[: (index + 1) * BLOCK_SIZE]
            if (index + 1) * BLOCK_SIZE <= sequence.num_computed_tokens:
                assert self.contents[block] == (sequence.cache_salt, text)
            else:
                self.contents[block] = (sequence.cache_salt, text)
        sequence.num_computed_tokens = sequence.num_tokens
        self.blocks.cache_full_blocks(sequence)

    def token(self) -> int:
        return int(self.rng.random() < 0.1)  # mostly equal, so that texts meet

    def extend(self, sequence: Sequence, num_tokens: int) -> None:
        if self.blocks.num_blocks_for(num_tokens) <= self.blocks.num_free:
            sequence.token_ids += [self.token() for _ in range(num_tokens)]
            self.blocks.grow(sequence)
            self.compute(sequence)

    def act(self) -> None:
        rng, blocks = self.rng, self.blocks
        match rng.randrange(20):
            case 0:
                blocks.start_step()
            case 1 | 2 if blocks.is_step_in_flight:
                blocks.end_step()
            case 3 if rng.random() < 0.02:
                blocks.reset_cache()
            case 4 | 5 | 6 | 7 if self.live:
                sequence = self.live.pop(rng.randrange(len(self.live)))
                blocks.release(sequence)
            case 8 | 9 | 10 | 11 | 12 | 13 if self.live:
                self.extend(rng.choice(self.live), rng.randrange(1, 2 * BLOCK_SIZE))
            case _:
                tokens = [self.token() for _ in range(rng.randrange(1, 24))]
                sequence = make_sequence(tokens, rng.choice(["", "", "salt"]))
                prefix = blocks.find_prefix(sequence)
                if blocks.num_needed(sequence, prefix) <= blocks.num_free:
                    blocks.allocate(sequence, prefix)
                    self.compute(sequence)
                    self.live.append(sequence)


def test_a_hundred_thousand_random_operations_keep_the_books(seed: int = 0) -> None:
    """No block is shared, or found again, but behind the same text and under the same salt."""
    checked = CheckedBlocks(random.Random(seed), num_blocks=24)
    for number in range(100_000):
        checked.act()
        if number % 20 == 0:
            checked.blocks.check_integrity(checked.live)
    blocks = checked.blocks
    assert 0.05 < blocks.num_hit_tokens / blocks.num_queried_tokens < 0.95
    for sequence in checked.live:
        blocks.release(sequence)
    while blocks.is_step_in_flight:
        blocks.end_step()
    blocks.check_integrity([])
    assert blocks.num_free == 24
