"""`AdapterShelf`: the adapters that are in memory, by number.

At most `max_cpu_loras`. For one more the least recently used goes that is neither pinned nor used
by a running request. A request that finds its adapter gone has it read again, and only if the files
are still the same: an answer never changes its adapter half way.
"""

import logging
import time
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from engine.core.models.lora.adapter_folder import AdapterWeights, Shapes, read_adapter
from engine.core.models.lora.peft_config import AdapterError
from engine.lora import LoRARequest

logger = logging.getLogger(__name__)


class AdapterHost(Protocol):
    """The model: what may be adapted of it, and the form in which it computes an adapter."""

    @property
    def shapes(self) -> Shapes: ...

    def prepare(self, weights: AdapterWeights) -> Any: ...


@dataclass(slots=True)
class _Kept:
    request: LoRARequest  # with the hash of its files
    adapter: Any  # as the model computes it
    is_pinned: bool = False


class AdapterShelf:
    """What clients and the scheduler ask of the adapters of one model."""

    def __init__(self, host: AdapterHost, *, max_rank: int, max_adapters: int) -> None:
        self._host = host
        self._max_rank = max_rank
        self._max_adapters = max_adapters
        self._kept: OrderedDict[int, _Kept] = OrderedDict()  # the least recently used first

    def take(self, request: LoRARequest, in_use: Collection[int]) -> Any | None:
        """The adapter of a request that is about to run; None while there is no room for it.

        `in_use` are the numbers of those of running requests. Raises `AdapterError`.
        """
        return self._find(request) or self._load(request, in_use)[0]

    def add(self, request: LoRARequest, in_use: Collection[int], is_needed_here: bool) -> str:
        """Read an adapter, unless it is here; the hash of its files.

        If there is no room it is only checked; with `is_needed_here` that is an `AdapterError`, as
        is what is wrong with the adapter.
        """
        if self._find(request) is None:
            adapter, content_hash = self._load(request, in_use)
            if adapter is not None or not is_needed_here:
                return content_hash
            raise AdapterError(
                f"{self._max_adapters} adapters are in memory, each pinned or in use: "
                "max_cpu_loras allows no more"
            )
        return self._kept[request.lora_int_id].request.content_hash

    def remove(self, number: int) -> bool:
        """Forget it; running requests keep it. False: it is not here."""
        return self._kept.pop(number, None) is not None

    def pin(self, number: int) -> bool:
        """Keep it until it is removed. False: it is not here."""
        if number not in self._kept:
            return False
        self._kept[number].is_pinned = True
        return True

    def numbers(self) -> list[int]:
        """Of all that are in memory."""
        return sorted(self._kept)

    def _find(self, request: LoRARequest) -> Any | None:
        kept = self._kept.get(request.lora_int_id)
        if kept is None:
            return None
        known = kept.request
        if (known.lora_name, known.lora_path) != (request.lora_name, request.lora_path):
            raise AdapterError(
                f"the lora_int_id {request.lora_int_id} is that of {known.lora_name!r}, of "
                f"{known.lora_path}: remove that first"
            )
        _check_hash(request, known.content_hash)
        self._kept.move_to_end(request.lora_int_id)
        return kept.adapter

    def _load(self, request: LoRARequest, in_use: Collection[int]) -> tuple[Any | None, str]:
        """The adapter, None if there is no room for it, and the hash of its files."""
        started = time.monotonic()
        weights = read_adapter(Path(request.lora_path), self._host.shapes, self._max_rank)
        _check_hash(request, weights.content_hash)
        if not self._make_room(in_use):
            return None, weights.content_hash
        adapter = self._host.prepare(weights)
        known = LoRARequest(
            request.lora_name, request.lora_int_id, request.lora_path, weights.content_hash
        )
        self._kept[request.lora_int_id] = _Kept(known, adapter)
        seconds = time.monotonic() - started
        logger.info("adapter %d loaded in %.2f s", request.lora_int_id, seconds)
        return adapter, weights.content_hash

    def _make_room(self, in_use: Collection[int]) -> bool:
        if len(self._kept) < self._max_adapters:
            return True
        for number, kept in self._kept.items():
            if not kept.is_pinned and number not in in_use:
                del self._kept[number]
                return True
        if all(kept.is_pinned for kept in self._kept.values()) and not in_use:
            raise AdapterError(f"all {self._max_adapters} adapters in memory are pinned")
        return False


def _check_hash(request: LoRARequest, content_hash: str) -> None:
    """An adapter may have been replaced since the request learned which one it has."""
    if request.content_hash not in ("", content_hash):
        raise AdapterError(f"{request.lora_path}: is another adapter than before")
