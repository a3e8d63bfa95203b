"""The KV cache's memory is taken before it is used."""

import logging

import psutil
import pytest
import torch

from engine import huge_pages
from engine.cache_taker import PIECE_BYTES, RESERVE_BYTES, CacheTaker

SIZE = 20 * PIECE_BYTES + 12_345


def resident() -> int:
    return int(psutil.Process().memory_info().rss)


def take(caches: list[torch.Tensor], available: int = 1 << 50) -> CacheTaker:
    taker = CacheTaker(caches, lambda: True, lambda: available)
    taker.start()
    taker.join()
    return taker


@pytest.fixture
def caches() -> list[torch.Tensor]:
    return [huge_pages.zeros((SIZE,), torch.int8) for _ in range(2)]


def test_all_memory_is_there_before_anybody_writes_to_it(caches: list[torch.Tensor]) -> None:
    before = resident()
    taker = take(caches)
    assert taker.num_taken == 2 * SIZE
    assert resident() - before > 1.9 * SIZE


def test_what_was_written_stays(caches: list[torch.Tensor]) -> None:
    caches[0][::1000] = 7
    take([cache[5:].view(-1, 2) for cache in caches])  # whatever part of the memory they show
    assert caches[0][::1000].eq(7).all() and caches[0].sum() == 7 * len(caches[0][::1000])
    assert not caches[1].any()


def test_it_does_nothing_while_the_core_has_work(caches: list[torch.Tensor]) -> None:
    before, looks = resident(), iter([False, False, False])
    seen: list[int] = []

    def is_idle() -> bool:
        seen.append(resident())
        return next(looks, True)

    taker = CacheTaker(caches, is_idle, lambda: 1 << 50)
    taker.start()
    taker.join()
    assert taker.num_taken == 2 * SIZE
    assert max(seen[:4]) - before < SIZE // 2


def test_it_leaves_memory_to_others_and_says_so(
    caches: list[torch.Tensor], caplog: pytest.LogCaptureFixture
) -> None:
    before = resident()
    assert take(caches, available=RESERVE_BYTES).num_taken == 0
    assert resident() - before < SIZE // 2
    assert "memory is short: 0 MiB" in caplog.text


def test_a_system_that_cannot_be_asked_is_left_alone(
    caches: list[torch.Tensor], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr("engine.cache_taker.POPULATE_WRITE", 9999)
    assert take(caches).num_taken == 0
    assert "taken when it is used" in caplog.text
