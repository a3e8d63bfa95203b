"""The adapters in memory: how many, which one goes, and which are the same."""

from pathlib import Path
from typing import Any

import pytest

from engine.core.models.lora.adapter_folder import AdapterWeights
from engine.core.models.lora.peft_config import AdapterError
from engine.core.models.lora.shelf import AdapterShelf
from engine.lora import LoRARequest
from tests.engine.core.models.lora.test_adapter_folder import SHAPES, config, tensors
from tests.engine.helpers.lora.adapters import write_adapter


class Host:
    """Counts what it was given."""

    shapes = SHAPES

    def __init__(self) -> None:
        self.num_prepared = 0

    def prepare(self, weights: AdapterWeights) -> Any:
        self.num_prepared += 1
        return f"adapter {self.num_prepared}"


@pytest.fixture
def host() -> Host:
    return Host()


@pytest.fixture
def shelf(host: Host) -> AdapterShelf:
    return AdapterShelf(host, max_rank=8, max_adapters=2)


@pytest.fixture
def requests(tmp_path: Path) -> list[LoRARequest]:
    """Four adapters, by number; there is no 0."""
    for number in range(4):
        write_adapter(tmp_path / str(number), config(lora_alpha=number + 1), tensors())
    return [LoRARequest(str(n), max(n, 1), str(tmp_path / str(n))) for n in range(4)]


def test_an_adapter_is_read_once(
    shelf: AdapterShelf, host: Host, requests: list[LoRARequest]
) -> None:
    content_hash = shelf.add(requests[1], (), is_needed_here=True)
    assert shelf.add(requests[1], (), is_needed_here=True) == content_hash
    assert shelf.take(requests[1].located(content_hash), ()) == "adapter 1"
    assert (host.num_prepared, shelf.numbers()) == (1, [1])


def test_the_least_recently_used_goes(shelf: AdapterShelf, requests: list[LoRARequest]) -> None:
    for number in (1, 2, 1, 3):
        shelf.take(requests[number], ())
    assert shelf.numbers() == [1, 3]


def test_what_is_pinned_or_in_use_stays(shelf: AdapterShelf, requests: list[LoRARequest]) -> None:
    for number in (1, 2):
        shelf.take(requests[number], ())
    assert shelf.pin(1) and not shelf.pin(7)
    assert shelf.take(requests[3], {2}) is None
    with pytest.raises(AdapterError, match="each pinned or in use: max_cpu_loras allows no more"):
        shelf.add(requests[3], {2}, is_needed_here=True)
    assert len(shelf.add(requests[3], {2}, is_needed_here=False)) == 64  # read, and not kept
    assert shelf.take(requests[3], ()) and shelf.numbers() == [1, 3]


def test_where_all_are_pinned_nobody_waits(
    shelf: AdapterShelf, requests: list[LoRARequest]
) -> None:
    for number in (1, 2):
        shelf.take(requests[number], ())
        shelf.pin(number)
    with pytest.raises(AdapterError, match="all 2 adapters in memory are pinned"):
        shelf.take(requests[3], ())
    assert shelf.take(requests[3], {1}) is None  # a pinned one that is in use may be removed yet
    assert shelf.remove(1) and not shelf.remove(1)
    assert shelf.take(requests[3], ())


def test_a_number_in_use_is_refused_for_another_folder_until_it_is_removed(
    shelf: AdapterShelf, requests: list[LoRARequest]
) -> None:
    shelf.take(requests[1], ())
    with pytest.raises(AdapterError, match="the lora_int_id 1 is that of '1'"):
        shelf.take(requests[0], ())
    shelf.remove(1)
    assert shelf.take(requests[0], ()) == "adapter 2"


def test_an_adapter_that_was_replaced_is_not_taken_for_the_one_before(
    shelf: AdapterShelf, requests: list[LoRARequest], tmp_path: Path
) -> None:
    known = requests[1].located(shelf.add(requests[1], (), is_needed_here=True))
    write_adapter(tmp_path / "1", config(lora_alpha=9), tensors())
    assert shelf.take(known, ()) == "adapter 1"  # as long as it is in memory
    shelf.remove(1)
    with pytest.raises(AdapterError, match="is another adapter than before"):
        shelf.take(known, ())
    shelf.take(requests[1], ())
    with pytest.raises(AdapterError, match="is another adapter than before"):
        shelf.take(known, ())


def test_a_bad_adapter_takes_the_place_of_none(
    shelf: AdapterShelf, requests: list[LoRARequest]
) -> None:
    for number in (1, 2):
        shelf.take(requests[number], ())
    with pytest.raises(AdapterError, match="cannot be read"):
        shelf.take(LoRARequest("x", 9, "/nowhere"), ())
    assert shelf.numbers() == [1, 2]
