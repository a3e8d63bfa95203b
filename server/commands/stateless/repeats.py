"""`Repeats`: a call that is made again gets the answer that its first try has begun.

OpenAI's clients repeat what broke off, by themselves and without an idempotency key. So a call
whose client has gone before it had a byte waits some seconds for its repeat, which joins it. Only
a call whose own client has gone is joined, and by one alone: two that ask the same at a time get
an answer each. An idempotency key makes a repeat certain, and then it joins in any case.
"""

import asyncio
import hmac
import secrets
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass

import structlog

from server.commands.stateless.relay import Relay
from server.commands.stateless.reply import Reading, Reply
from server.commands.stateless.tries import Names, Try
from server.protocol.errors import ApiError
from server.protocol.store_errors import translate_store_errors
from sessions.background import Background, start
from sessions.directory.calls import Calls, Place
from sessions.model.errors import StoreUnavailable

logger = structlog.get_logger("server")

KEPT_SECONDS = 60.0  # the answer to a call with an idempotency key, after its end
RENEW_SECONDS = 20.0  # the store forgets a key after a minute
STORED = "-"  # in the place of a worker: any has it
MAX_LEFT = 256  # calls that wait for their repeats
MAX_KEPT_BYTES = 64 * 1024 * 1024  # of answers that have ended; the oldest go first

Make = Callable[[Reply], Awaitable[None]]  # puts the parts of an answer; raises `ApiError`


@dataclass(slots=True, eq=False)
class _Call:
    """One that this worker has the answer of."""

    reply: Reply
    place: Place
    credential: str
    name: str = ""  # that its repeats have; "": they cannot be recognized
    content: str = ""  # of one with an idempotency key
    task: asyncio.Task[None] | None = None
    timer: asyncio.TimerHandle | None = None

    def set_timer(self, seconds: float, then: Callable[["_Call"], object]) -> None:
        self.stop_timer()
        self.timer = asyncio.get_running_loop().call_later(seconds, then, self)

    def stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class Repeats:
    """Those of one worker."""

    def __init__(
        self, calls: Calls, relay: Relay, names: Names, replica: str, wait_seconds: float
    ) -> None:
        self._calls = calls
        self._relay = relay
        self._names = names
        self._replica = replica
        self._wait_seconds = wait_seconds
        self._known: dict[str, _Call] = {}  # by id
        self._left: dict[_Call, None] = {}  # their clients have gone; the longest waiting first
        self._keyed: dict[str, _Call] = {}  # by name
        self._kept: dict[_Call, None] = {}  # those of them that have ended, the oldest first
        self._background = Background()

    def read(self, tried: Try, make: Make, leave: AsyncExitStack) -> Reading:
        """The answer to a call. `make` makes it if there is none that this call may join.

        The caller closes `leave` when nobody reads any more. Raises `ApiError`.
        """
        call = self._joined(tried) or self._begin(tried, make)
        reading = Reading(call.reply, self._on_leave)
        leave.push_async_callback(reading.leave)
        return reading

    async def leave_stored(self, tried: Try, answer_id: str) -> None:
        """The client of an answer that is stored has gone before it had any of it.

        It goes on; a repeat within a minute is given it, by any worker. Raises `ApiError`.
        """
        if tried.key is None and tried.may_be_repeated:
            with translate_store_errors():
                await self._calls.leave(self._names.name(tried), Place(STORED, answer_id))

    async def take_stored(self, tried: Try) -> str | None:
        """The answer that this call repeats; no other one is given it. Raises `ApiError`."""
        if tried.key is not None or not tried.number:
            return None
        with translate_store_errors():
            place = await self._calls.take(self._names.name(tried))
        return None if place is None else place.call_id

    def relay(self, call_id: str, channel: str) -> None:
        """Another worker has a client for this call."""
        call = self._known.get(call_id)
        if call is None or not (call.reply.is_kept or call in self._left):
            self._relay.send(None, channel)
            return
        self._take_back(call)
        reading = Reading(call.reply, self._on_leave)
        reading.give()  # whether its client had anything is the other worker's to know
        self._relay.send(reading, channel)

    def end_relay(self, channel: str) -> None:
        """That client has gone, or has all of it."""
        self._relay.stop(channel)

    async def close(self) -> None:
        for call in [*self._known.values()]:
            call.stop_timer()
        await self._relay.close()
        tasks = [call.task for call in self._known.values() if call.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._background.close()

    # ---- the beginning ---------------------------------------------------------------------------

    def _joined(self, tried: Try) -> _Call | None:
        """A call of this worker that this one repeats."""
        if tried.key is not None:
            call = self._keyed.get(self._names.name(tried))
            if call is not None:
                _check_content(call.content, self._names.content(tried))
                self._take_back(call)
            return call
        if tried.number and self._left:
            name = self._names.name(tried)
            for call in self._left:
                if call.name == name and not call.reply.is_kept:
                    self._take_back(call)
                    self._background.spawn(self._calls.withdraw(name, call.place))
                    return call
        return None

    def _begin(self, tried: Try, make: Make) -> _Call:
        call_id = secrets.token_urlsafe(12)
        reply = Reply(call_id, is_kept=tried.key is not None)
        call = _Call(reply, Place(self._replica, call_id), tried.credential)
        if tried.may_be_repeated:
            call.name = self._names.name(tried)
        if reply.is_kept:
            call.content = self._names.content(tried)
            self._keyed[call.name] = call
        self._known[call_id] = call
        call.task = start(self._answer(call, tried, make))
        return call

    async def _answer(self, call: _Call, tried: Try, make: Make) -> None:
        error: ApiError | None = ApiError("internal", "an internal error occurred")
        renewing = start(self._renew(call)) if call.reply.is_kept else None
        try:
            with translate_store_errors():
                if not await self._fetch(call, tried):
                    await self._make(call, make)
            error = None
        except ApiError as refusal:
            error = refusal
        except Exception:
            logger.exception("call failed", route=tried.route)
        finally:
            if renewing is not None:
                renewing.cancel()
            self._end(call, error)

    async def _make(self, call: _Call, make: Make) -> None:
        """Where a user has as many answers as they may, one that nobody reads makes room."""
        while True:
            try:
                return await make(call.reply)
            except ApiError as refusal:
                if refusal.code != "rate_limited" or not await self._make_room(call.credential):
                    raise

    async def _make_room(self, credential: str) -> bool:
        for call in self._left:
            if call.credential == credential and call.task is not None and not call.task.done():
                self._drop(call)
                await asyncio.wait([call.task])
                return True
        return False

    async def _fetch(self, call: _Call, tried: Try) -> bool:
        """Put the answer of another worker into the reply, if one has it."""
        if tried.key is not None:
            return await self._fetch_keyed(call)
        if tried.number:
            with suppress(StoreUnavailable):  # then it is asked once more
                while (place := await self._calls.take(call.name)) is not None:
                    if place.replica == self._replica:
                        continue  # it was joined already
                    if await self._relay.fetch(place, call.reply):
                        return True
        return False

    async def _fetch_keyed(self, call: _Call) -> bool:
        lost = ""
        while True:
            claim = await self._calls.claim(call.name, call.content, call.place, lost)
            if claim.place == call.place:
                return False
            _check_content(claim.body, call.content)
            if claim.place.replica != self._replica:
                if await self._relay.fetch(claim.place, call.reply):
                    return True
            lost = claim.place.call_id

    async def _renew(self, call: _Call) -> None:
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            with suppress(StoreUnavailable):
                await self._calls.renew(call.name)

    # ---- the end ---------------------------------------------------------------------------------

    def _end(self, call: _Call, error: ApiError | None) -> None:
        call.reply.end(error)
        if call.reply.call_id not in self._known:
            return
        if error is not None:
            self._forget(call)  # a repeat tries again
        elif call.reply.is_kept:
            self._keep(call)
        elif not call.reply.readers and call not in self._left:
            self._forget(call)

    def _keep(self, call: _Call) -> None:
        self._take_back(call)
        call.set_timer(KEPT_SECONDS, self._forget)
        self._background.spawn(self._calls.renew(call.name))
        self._kept[call] = None
        while sum(kept.reply.num_bytes for kept in self._kept) > MAX_KEPT_BYTES:
            self._forget(next(iter(self._kept)))

    def _on_leave(self, reply: Reply) -> asyncio.Task[None] | None:
        """A reader has left; what is to be waited for until nothing of the call is left."""
        call = self._known.get(reply.call_id)
        if call is None or reply.readers:
            return None
        if reply.has_ended and reply.is_kept:
            return None
        if reply.is_given or not call.name or len(self._left) >= MAX_LEFT:
            return self._drop(call)
        self._left[call] = None
        call.set_timer(self._wait_seconds, self._drop)
        if not reply.is_kept:
            self._background.spawn(self._calls.leave(call.name, call.place))
        return None

    def _take_back(self, call: _Call) -> None:
        """Its repeat is here."""
        if call in self._left:
            del self._left[call]
            call.stop_timer()

    def _drop(self, call: _Call) -> asyncio.Task[None] | None:
        """Nobody will have its answer."""
        self._forget(call)
        if call.task is not None:
            call.task.cancel()
        return call.task

    def _forget(self, call: _Call) -> None:
        call.stop_timer()
        self._known.pop(call.reply.call_id, None)
        self._kept.pop(call, None)
        is_left = call in self._left
        self._left.pop(call, None)
        if call.reply.is_kept:
            if self._keyed.get(call.name) is call:
                del self._keyed[call.name]
            self._background.spawn(self._calls.drop(call.name, call.place.call_id))
        elif is_left:
            self._background.spawn(self._calls.withdraw(call.name, call.place))


def _check_content(used: str, now: str) -> None:
    if not hmac.compare_digest(used, now):
        message = "this key was used for another request"
        raise ApiError("idempotency_key_reused", message, param="Idempotency-Key")
