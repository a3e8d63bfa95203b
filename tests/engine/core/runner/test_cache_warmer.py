"""The KV cache's memory is taken before it is used."""

import array
import logging
import mmap
from pathlib import Path

import pytest
import torch

from engine.core.runner.cache_warmer import PIECE_BYTES, POPULATE_WRITE, CacheWarmer
from engine.core.tensors import huge_pages

SIZE = 20 * PIECE_BYTES + 12_345
PAGE = mmap.PAGESIZE
PRESENT = 1 << 63  # in /proc/self/pagemap


def can_populate() -> bool:
    try:
        mmap.mmap(-1, PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).madvise(POPULATE_WRITE)
    except OSError:
        return False
    return Path("/proc/self/pagemap").exists()


pytestmark = pytest.mark.skipif(
    not can_populate(),
    reason="needs Linux 5.14",  # elsewhere the thread ends by itself, and there is nothing to see
)


def share_taken(memory: torch.Tensor) -> float:
    """Of its pages, those that the system has given."""
    first, count = memory.data_ptr() // PAGE, -(-memory.nbytes // PAGE)
    with Path("/proc/self/pagemap").open("rb") as pages:
        pages.seek(8 * first)
        entries = array.array("Q", pages.read(8 * count))
    return sum(entry & PRESENT != 0 for entry in entries) / count


def take(caches: list[torch.Tensor], available: int = 1 << 50) -> CacheWarmer:
    taker = CacheWarmer(caches, lambda: True, lambda: available)
    taker.start()
    taker.join()
    return taker


@pytest.fixture
def caches() -> list[torch.Tensor]:
    return [huge_pages.zeros((SIZE,), torch.int8) for _ in range(2)]


def test_all_memory_is_there_before_anybody_writes_to_it(caches: list[torch.Tensor]) -> None:
    assert max(map(share_taken, caches)) < 0.2
    taker = take(caches)
    assert taker.num_taken == 2 * SIZE
    assert list(map(share_taken, caches)) == [1, 1]


def test_what_was_written_stays(caches: list[torch.Tensor]) -> None:
    caches[0][::1000] = 7
    take([cache[5:].view(-1, 2) for cache in caches])  # whatever part of the memory they show
    assert caches[0][::1000].eq(7).all() and caches[0].sum() == 7 * len(caches[0][::1000])
    assert not caches[1].any()


def test_it_does_nothing_while_somebody_waits_for_the_core(caches: list[torch.Tensor]) -> None:
    answers = iter([False, False, False])
    seen: list[float] = []

    def is_idle() -> bool:
        seen.append(share_taken(caches[0]))
        return next(answers, True)

    taker = CacheWarmer(caches, is_idle, lambda: 1 << 50)
    taker.start()
    taker.join()
    assert taker.num_taken == 2 * SIZE
    assert max(seen[:4]) < 0.2


@pytest.mark.parametrize("is_idle", [False, True])
def test_it_ends_when_it_is_stopped_and_lets_go_of_the_memory(is_idle: bool) -> None:
    cache = huge_pages.zeros((SIZE,), torch.int8)
    taker = CacheWarmer([cache], lambda: is_idle, lambda: 1 << 50)
    taker.start()
    taker.stop()
    assert not taker.is_alive() and taker._caches == []
    num_taken = taker.num_taken
    taker.stop()  # again
    assert taker.num_taken == num_taken <= (SIZE if is_idle else 0)


def test_it_leaves_memory_to_others_and_says_so(
    caches: list[torch.Tensor], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    left = iter([8 * PIECE_BYTES, *(i * PIECE_BYTES for i in range(8, 0, -1))])
    taker = CacheWarmer(caches, lambda: True, lambda: next(left))
    taker.run()
    assert taker.num_taken == 6 * PIECE_BYTES  # two of eight stay
    assert f"memory is short: {6 * PIECE_BYTES >> 20} MiB" in caplog.text


def test_a_system_that_cannot_be_asked_is_left_alone(
    caches: list[torch.Tensor], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr("engine.core.runner.cache_warmer.POPULATE_WRITE", 9999)
    assert take(caches).num_taken == 0
    assert "taken when it is used" in caplog.text
