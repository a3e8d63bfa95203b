"""`Relay`: an answer of one worker, for a client of another one.

Who wants it names a channel and listens there; the worker that has it publishes its parts. Like all
that workers tell each other it is stored nowhere, and nothing promises that it arrives: so frames
are numbered, and come every few seconds also when there is nothing to say.
"""

import asyncio
import secrets
from collections.abc import Mapping
from typing import Any

from server.commands.stateless.reply import Reading, Reply
from server.protocol.errors import ApiError
from sessions.background import Background, start
from sessions.connection.feed import LiveFeed
from sessions.directory.calls import Calls, Place
from sessions.model.errors import StoreUnavailable
from sessions.model.events import LiveFrame, LivePayload
from sessions.model.keys import Keys

FIND_SECONDS = 2.0  # for a worker to say whether it has that call
BEAT_SECONDS = 3.0
SILENCE_SECONDS = 10.0  # then that worker is gone, or cannot be heard

Frame = Mapping[str, Any]


class Relay:
    """Both ends of one worker."""

    def __init__(self, calls: Calls, feed: LiveFeed, keys: Keys) -> None:
        self._calls = calls
        self._feed = feed
        self._keys = keys
        self._background = Background()
        self._sending: dict[str, asyncio.Task[None]] = {}  # by channel

    async def fetch(self, place: Place, reply: Reply) -> bool:
        """Put all of that answer into a reply; False if its worker does not have it (any more).

        Raises `ApiError`, also that of the answer, and `StoreUnavailable`.
        """
        channel = secrets.token_urlsafe(18)
        heard: asyncio.Queue[Frame] = asyncio.Queue()

        def hear(payload: LivePayload) -> None:
            if isinstance(payload, LiveFrame):
                heard.put_nowait(payload.data)

        await self._feed.subscribe(self._keys.relay_channel(channel), hear)
        try:
            if not await self._calls.ask(place, channel):
                return False
            if not await _is_found(heard):
                return False
            await _copy(heard, reply)
            return True
        finally:
            # Where it has ended, or never begun, this finds nothing.
            self._background.spawn(self._calls.dismiss(place, channel))
            await self._feed.unsubscribe(self._keys.relay_channel(channel))

    def send(self, reading: Reading | None, channel: str) -> None:
        """Publish an answer there until its end, or `stop`; None: there is no such answer."""
        task = start(self._send(reading, channel))
        self._sending[channel] = task
        task.add_done_callback(lambda _: self._sending.pop(channel, None))

    def stop(self, channel: str) -> None:
        """Nobody listens there any more."""
        if (task := self._sending.get(channel)) is not None:
            task.cancel()

    async def close(self) -> None:
        tasks = [*self._sending.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._background.close()

    async def _send(self, reading: Reading | None, channel: str) -> None:
        number = 0
        frame: Frame = {"found": reading is not None}
        try:
            while await self._calls.send(channel, {"n": number, **frame}):
                if reading is None or _is_last(frame):
                    return
                number += 1
                frame = await _next_frame(reading)
        except StoreUnavailable:
            pass  # the other one hears nothing more, and gives up
        finally:
            if reading is not None:
                await reading.leave()


async def _next_frame(reading: Reading) -> Frame:
    try:
        async with asyncio.timeout(BEAT_SECONDS):
            data = await reading.next()
    except TimeoutError:
        return {}
    except ApiError as error:
        about = {"message": error.message, "param": error.param, "retry": error.retry_after_ms}
        return {"error": {"code": error.code, **about}}
    if not data:
        return {"end": True}
    headers = [[name.decode(), value.decode()] for name, value in reading.headers]
    return {"data": data.decode(), "headers": headers}


def _is_last(frame: Frame) -> bool:
    return "end" in frame or "error" in frame


async def _is_found(heard: asyncio.Queue[Frame]) -> bool:
    try:
        async with asyncio.timeout(FIND_SECONDS):
            return bool((await heard.get())["found"])
    except TimeoutError:
        return False


async def _copy(heard: asyncio.Queue[Frame], reply: Reply) -> None:
    number = 0
    while True:
        try:
            async with asyncio.timeout(SILENCE_SECONDS):
                frame = await heard.get()
        except TimeoutError:
            raise _lost() from None
        number += 1
        if frame["n"] != number:
            raise _lost()
        match frame:
            case {"data": str(data), "headers": headers}:
                reply.headers = [(name.encode(), value.encode()) for name, value in headers]
                reply.put(data.encode())
            case {"error": {"code": code, "message": message, "param": param, "retry": retry}}:
                raise ApiError(code, message, param=param, retry_after_ms=retry)
            case {"end": True}:
                return


def _lost() -> ApiError:
    return ApiError("engine_unavailable", "the worker of this answer is gone; try again")
