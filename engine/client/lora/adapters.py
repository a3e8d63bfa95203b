"""`Adapters`: what a client knows of the adapters that its requests have.

The core reads them. What it found their files to be, a hash, is noted here and goes with each
request, so that a core that has to read an adapter again, or that comes after a crash, makes the
same text of it or refuses.
"""

import logging
from typing import Any

import msgspec

from engine.client.requests.core_client import CoreClient
from engine.config import EngineConfig
from engine.errors import (
    EngineDeadError,
    EngineGenerateError,
    RetryableRequestError,
    ValidationError,
    refuse,
)
from engine.ipc import Ready
from engine.lora import LoRARequest

logger = logging.getLogger(__name__)


def check_lora(request: Any, ready: Ready | None) -> None:
    """Refuse what is no adapter, and one that the core cannot have."""
    if request is None:
        return
    if not isinstance(request, LoRARequest):
        raise refuse("lora_request", request, "must be a LoRARequest")
    if ready is not None and not ready.config.enable_lora:
        problem = "lora_request needs an engine that was started with enable_lora=True"
        raise ValidationError(problem, "lora_request", request)


class Adapters:
    """Of one client, whose present core is asked."""

    def __init__(self, client: CoreClient) -> None:
        self._client = client
        self._known: dict[int, LoRARequest] = {}  # with hashes
        # What each core is asked to have, with hashes, the latest last: what was added or pinned.
        self._kept: dict[int, LoRARequest] = {}
        self._pinned: set[int] = set()
        self._missing: dict[int, LoRARequest] = {}  # what the present core was not asked for yet
        self._epoch: int | None = None  # of that core
        client.requests.on_adapter_refused = self._forget

    async def resolve(self, request: LoRARequest) -> LoRARequest:
        """The adapter of a request, with its hash. Each core is asked once for each.

        Raises `ValidationError` for one that cannot be used, `RetryableRequestError` while there is
        no core.
        """
        await self._restore()
        located = request.located()
        known = self._known.get(request.lora_int_id)
        if known is None or located.located(located.content_hash or known.content_hash) != known:
            known = await self._ask(located, is_needed_here=False)
        return known

    async def add(self, request: LoRARequest) -> None:
        """Have the core keep it in memory; raises as `resolve`, also if there is no room."""
        check_lora(request, self._client.ready)
        await self._restore()
        known = await self._ask(request.located(), is_needed_here=True)
        self._keep(known)

    async def remove(self, number: int) -> bool:
        """Have the core forget it. False: it does not have it."""
        await self._restore()
        self._pinned.discard(number)
        self._kept.pop(number, None)
        self._known.pop(number, None)
        return bool(await self._client.call("remove_lora", number))

    async def pin(self, number: int) -> bool:
        """Have the core keep it until it is removed. False: it does not have it."""
        await self._restore()
        is_here = bool(await self._client.call("pin_lora", number))
        if is_here:
            self._pinned.add(number)
            if number in self._known:
                self._keep(self._known[number])
        return is_here

    async def numbers(self) -> set[int]:
        """Of those that the core has in memory."""
        await self._restore()
        return set(await self._client.call("list_loras"))

    def _forget(self, request: LoRARequest) -> None:
        """Its number may be that of other files by now: the next request has the core look."""
        if self._known.get(request.lora_int_id) == request:
            del self._known[request.lora_int_id]

    async def _ask(self, request: LoRARequest, *, is_needed_here: bool) -> LoRARequest:
        fields = msgspec.to_builtins(request)
        try:
            content_hash, problem = await self._client.call("add_lora", fields, is_needed_here)
        except EngineDeadError as error:
            if self._client.has_died:
                raise
            raise RetryableRequestError(f"{error}") from None
        if problem:
            raise ValidationError(f"lora_request: {problem}", "lora_request", request.lora_path)
        found = request.located(content_hash)
        self._known[request.lora_int_id] = found
        if request.lora_int_id in self._pinned:
            self._keep(found)
        return found

    def _keep(self, request: LoRARequest) -> None:
        self._kept.pop(request.lora_int_id, None)
        self._kept[request.lora_int_id] = request

    async def _restore(self) -> None:
        """Give a core that has come since what the one before it was asked to keep.

        What fails here for want of a core is tried again by the next call.
        """
        ready = self._client.ready
        if ready is None:
            return
        if ready.epoch != self._epoch:
            is_first, self._epoch = self._epoch is None, ready.epoch
            if not is_first:
                self._known.clear()  # another client may have replaced files meanwhile
                self._missing = self._worth_reading(ready.config)
        while self._missing:
            number = next(iter(self._missing))
            request, is_pinned = self._missing.pop(number), number in self._pinned
            try:
                await self._ask(request, is_needed_here=is_pinned)
                if is_pinned:
                    await self._client.call("pin_lora", number)
            except ValidationError:  # its files are gone, or others: who uses it will hear
                self._kept.pop(number, None)
                self._pinned.discard(number)
            except EngineGenerateError:
                logger.exception("adapter %d is not in the new core", number)
            except BaseException:
                self._missing.setdefault(number, request)
                raise

    def _worth_reading(self, config: EngineConfig) -> dict[int, LoRARequest]:
        """All that are pinned, and the latest others for which there is room.

        Requests have the rest read: running answers wait while the core reads one.
        """
        pinned = {number: it for number, it in self._kept.items() if number in self._pinned}
        others = [number for number in self._kept if number not in pinned]
        num_others = max(0, (config.max_cpu_loras or config.max_loras) - len(pinned))
        latest = others[len(others) - min(num_others, len(others)) :]
        return pinned | {number: self._kept[number] for number in latest}
