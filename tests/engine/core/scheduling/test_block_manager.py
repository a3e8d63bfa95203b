"""The block manager: prefixes found again by their tokens, least recently used first to go."""

import random

import pytest

from engine.core.scheduling.block_manager import BlockManager, Prefix
from engine.core.scheduling.sequence import Sequence
from engine.sampling_params import SamplingParams

BLOCK_SIZE = 4


def make_sequence(tokens: list[int], salt: str = "", **params: object) -> Sequence:
    return Sequence("c", "r", tokens, SamplingParams(**params), cache_salt=salt)  # type: ignore[arg-type]


def start(blocks: BlockManager, sequence: Sequence) -> int:
    """Allocate and compute all tokens; the number of tokens that were cached."""
    blocks.allocate(sequence, blocks.find_prefix(sequence))
    num_cached = sequence.num_computed_tokens
    finish_step(blocks, sequence)
    return num_cached


def finish_step(blocks: BlockManager, sequence: Sequence) -> None:
    """All its tokens are computed."""
    if sequence.copied_from is not None:
        blocks.end_copy(sequence)
    sequence.num_computed_tokens = sequence.num_tokens
    blocks.cache_full_units(sequence, sequence.num_tokens)


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


def test_the_same_tokens_after_another_prefix_are_no_hit() -> None:
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
    assert (
        blocks.find_prefix(make_sequence(list(range(6)), skip_reading_prefix_cache=True)).blocks
        == []
    )
    off = BlockManager(8, BLOCK_SIZE, enable_caching=False)
    run(off, list(range(6)))
    assert run(off, list(range(6))) == 0


def test_the_least_recently_released_prefix_goes_first_and_its_tail_before_its_head() -> None:
    blocks = BlockManager(6, BLOCK_SIZE)
    run(blocks, [1] * 9)  # two full blocks each, one block unfilled
    run(blocks, [2] * 9)
    holder = make_sequence([3] * 12)  # takes the two never used and the tail of the ones
    start(blocks, holder)
    assert len(blocks.find_prefix(make_sequence([1] * 9)).blocks) == 1
    assert len(blocks.find_prefix(make_sequence([2] * 9)).blocks) == 2
    blocks.release(holder)
    blocks.check_integrity([])


def test_reset_forgets_everything_and_leaves_running_sequences_alone() -> None:
    blocks = BlockManager(8, BLOCK_SIZE)
    running = make_sequence(list(range(10)))
    start(blocks, running)
    blocks.reset_cache()
    assert blocks.find_prefix(make_sequence(list(range(10)))).blocks == []
    running.token_ids += [10, 11]
    blocks.grow(running)
    finish_step(blocks, running)
    blocks.check_integrity([running])
    blocks.release(running)
    blocks.check_integrity([])


def test_num_needed_counts_free_hits_and_what_is_missing() -> None:
    blocks = BlockManager(8, BLOCK_SIZE)
    run(blocks, list(range(8)))
    sequence = make_sequence(list(range(10)))
    prefix = blocks.find_prefix(sequence)
    assert (len(prefix.blocks), blocks.num_needed(sequence, prefix)) == (2, 3)
    start(blocks, sequence)
    other = make_sequence(list(range(10)))
    assert blocks.num_needed(other, blocks.find_prefix(other)) == 1


def test_released_blocks_return_after_the_last_step_that_was_in_flight() -> None:
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


# ---- blocks of several units ---------------------------------------------------------------------


def large_blocks(num_blocks: int = 8) -> BlockManager:
    return BlockManager(num_blocks, 4 * BLOCK_SIZE, unit_size=BLOCK_SIZE)


def test_the_beginning_of_a_block_is_copied() -> None:
    blocks = large_blocks()
    assert run(blocks, list(range(30))) == 0
    sequence = make_sequence([*range(25), 99])
    blocks.allocate(sequence, blocks.find_prefix(sequence))
    assert sequence.num_computed_tokens == 24  # one whole block, and two units of the next
    assert sequence.copied_from is not None and sequence.copied_from[1] == 8
    assert sequence.copied_from[0] not in sequence.block_table
    blocks.release(sequence)
    blocks.check_integrity([])


def test_a_source_is_held_until_it_is_copied() -> None:
    blocks = large_blocks(2)
    run(blocks, list(range(9)))
    sequence = make_sequence([*range(8), 99])
    prefix = blocks.find_prefix(sequence)
    assert blocks.num_needed(sequence, prefix) == 2
    blocks.allocate(sequence, prefix)
    assert blocks.num_free == 0
    finish_step(blocks, sequence)
    assert (blocks.num_free, sequence.copied_from) == (1, None)
    blocks.check_integrity([sequence])
    blocks.release(sequence)


def test_without_a_block_to_spare_the_beginning_is_computed_again() -> None:
    blocks = large_blocks(2)
    run(blocks, list(range(9)))
    sequence = make_sequence([*range(8), *range(90, 110)])
    prefix = blocks.find_prefix(sequence)
    assert blocks.num_needed(sequence, prefix) == 3
    assert prefix.without_copy() == Prefix([])
    assert blocks.num_needed(sequence, prefix.without_copy()) == 2


def test_a_copy_is_found_when_its_source_has_gone() -> None:
    """Each turn of a chat begins in the block that the last one ended in."""
    blocks = large_blocks(3)
    text = list(range(6))
    for turn in range(1, 7):
        text += range(100 * turn, 100 * turn + 4)
        assert run(blocks, text) == (0 if turn == 1 else (len(text) - 4) // BLOCK_SIZE * BLOCK_SIZE)
        run(blocks, [turn + 900] * 9)  # somebody else's, who takes what was used longest ago


def test_blocks_that_a_chat_is_found_through_are_kept_with_it() -> None:
    """Another chat's block has the beginning of both, after that of the first was copied."""
    blocks = large_blocks(8)
    system = list(range(2 * BLOCK_SIZE))
    text = [*system, *range(100, 109)]
    run(blocks, text)
    run(blocks, [*system, *range(200, 209)])
    for turn in range(2, 12):
        num_known = (len(text) - 1) // BLOCK_SIZE * BLOCK_SIZE
        text += range(1000 * turn, 1000 * turn + BLOCK_SIZE)
        assert run(blocks, text) == num_known, turn
        run(blocks, [5000 + 100 * turn + i for i in range(2 * BLOCK_SIZE)])  # somebody else


def test_what_another_text_has_after_a_copied_beginning_stays() -> None:
    blocks = large_blocks()
    first, second = list(range(14)), [*range(8), *range(50, 56)]
    run(blocks, first)
    assert run(blocks, second) == 8
    assert run(blocks, [*first, 7]) == 12
    assert run(blocks, [*second, 7]) == 12


class CheckedBlocks:
    """A block manager beside a plain account of what each block holds."""

    def __init__(self, rng: random.Random, num_blocks: int, units_per_block: int) -> None:
        self.rng = rng
        self.block_size = BLOCK_SIZE * units_per_block
        self.blocks = BlockManager(num_blocks, self.block_size, unit_size=BLOCK_SIZE)
        self.live: list[Sequence] = []
        # By block and place: the salt and the text up to this token.
        self.contents: dict[tuple[int, int], tuple[str, list[int]]] = {}

    def compute(self, sequence: Sequence) -> None:
        """Fill what was not cached; what was cached must hold this very text from its start on."""
        if sequence.copied_from is not None:
            source, num_tokens = sequence.copied_from
            target = sequence.block_table[sequence.num_computed_tokens // self.block_size]
            for place in range(num_tokens):
                self.contents[target, place] = self.contents[source, place]
        for position in range(sequence.num_tokens):
            number, place = divmod(position, self.block_size)
            slot = (sequence.block_table[number], place)
            text = (sequence.cache_salt, sequence.token_ids[: position + 1])
            if position < sequence.num_computed_tokens:
                assert self.contents[slot] == text
            self.contents[slot] = text
        finish_step(self.blocks, sequence)

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
                tokens = [self.token() for _ in range(rng.randrange(1, 6 * self.block_size))]
                sequence = make_sequence(tokens, rng.choice(["", "", "salt"]))
                prefix = blocks.find_prefix(sequence)
                if rng.random() < 0.1:
                    prefix = prefix.without_copy()
                if blocks.num_needed(sequence, prefix) <= blocks.num_free:
                    blocks.allocate(sequence, prefix)
                    self.compute(sequence)
                    self.live.append(sequence)


@pytest.mark.parametrize(("units_per_block", "num_actions"), [(1, 100_000), (4, 30_000)])
def test_many_random_operations_keep_the_books(
    units_per_block: int, num_actions: int, seed: int = 0
) -> None:
    """No unit is shared, copied or found again but after the same text and under the same salt."""
    checked = CheckedBlocks(random.Random(seed), num_blocks=24, units_per_block=units_per_block)
    for number in range(num_actions):
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
