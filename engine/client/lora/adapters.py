"""`Adapters`: what a client knows of the adapters that its requests have.

The core reads them. What it found their files to be, a hash, is noted here and goes with each
request, so that a core that has to read an adapter again, or that comes after a crash, makes the
same text of it or refuses.
"""

from typing import Any

import msgspec

from engine.client.requests.core_client import CoreClient
from engine.errors import EngineDeadError, RetryableRequestError, ValidationError, refuse
from engine.ipc import Ready
from engine.lora import LoRARequest


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
        self._added: dict[int, LoRARequest] = {}  # those of them that `add` was asked for
        self._pinned: set[int] = set()
        self._epoch: int | None = None  # of the core that has these
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
        self._added[request.lora_int_id] = known

    async def remove(self, number: int) -> bool:
        """Have the core forget it. False: it does not have it."""
        await self._restore()
        self._pinned.discard(number)
        self._added.pop(number, None)
        self._known.pop(number, None)
        return bool(await self._client.call("remove_lora", number))

    async def pin(self, number: int) -> bool:
        """Have the core keep it until it is removed. False: it does not have it."""
        await self._restore()
        is_here = bool(await self._client.call("pin_lora", number))
        if is_here:
            self._pinned.add(number)
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
        return found

    async def _restore(self) -> None:
        """Give a core that has come since what the one before it was asked to keep."""
        ready = self._client.ready
        if ready is None or ready.epoch == self._epoch:
            return
        is_first, self._epoch = self._epoch is None, ready.epoch
        if is_first:
            return
        self._known.clear()  # another client may have replaced files meanwhile
        for number, request in list(self._added.items()):
            try:
                await self._ask(request, is_needed_here=True)
            except ValidationError:  # its files are gone, or others: who uses it will hear
                del self._added[number]
                continue
            if number in self._pinned:
                await self._client.call("pin_lora", number)
