"""`SocketConnection`: one websocket of OpenAI's Responses, from its first frame to its close.

The reader never leaves `receive()`, so that it hears a stop at any time. It gives requests to their
lanes, which stream the answers. Codes of a close are those of the other websocket; OpenAI's clients
connect again after 1011, 1012 and 1013, and not after 44xx.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any

import structlog
from starlette.websockets import WebSocket, WebSocketDisconnect

from server.access.identities import User
from server.access.rates import TokenBucket
from server.api.responses.socket.events import refusal
from server.api.responses.socket.exchange import Parts
from server.api.responses.socket.frames import Cancel, Create, Refused, Steer, parse
from server.api.responses.socket.lanes import Lanes
from server.api.responses.socket.writer import Writer
from server.api.websocket.wire import (
    BAD_FRAMES_WINDOW_SECONDS,
    FAREWELL_SECONDS,
    FRAMES_PER_TURN,
    MAX_AGE_SECONDS,
    MAX_BAD_FRAMES,
    MAX_STRIKES,
    STRIKES_WINDOW_SECONDS,
    close,
    fills,
    traced,
    wire_of,
)
from server.commands.services import Services
from server.protocol.close_codes import CloseCode, CloseConnection, refusal_of
from server.protocol.errors import ApiError
from sessions.background import start

logger = structlog.get_logger("server")

MAX_REPLIES = 64  # that wait for a socket that takes nothing


class SocketConnection:
    """`serve` returns when the client is gone, and has closed the socket by then."""

    def __init__(self, websocket: WebSocket, user: User, services: Services) -> None:
        self.user = user
        self._services = services
        self._wire = wire_of(websocket)
        self._writer = Writer(self._wire, self._give_up)
        parts = Parts(services, user, traced(websocket), self._writer)
        self._lanes = Lanes(parts, self._spawn)
        self._messages = TokenBucket(services.limits.messages_per_s)
        self._bad_frames: list[float] = []
        self._strikes: list[float] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._num_replies = 0
        self._ending: BaseException | None = None  # why it ends; the first reason counts
        self._is_gone = False

    async def serve(self) -> None:
        """Talk until either side ends it; every exception becomes a close code."""
        code, reason = CloseCode.NORMAL, ""
        alarm = asyncio.get_running_loop().call_later(MAX_AGE_SECONDS, self.close_soon)
        try:
            await self._talk()
        except CloseConnection as closing:
            code, reason = closing.code, closing.reason
        except WebSocketDisconnect:
            pass
        except Exception:
            logger.exception("connection failed")
            code = CloseCode.INTERNAL
        finally:
            alarm.cancel()
            await self._end_tasks()
            await close(self._wire, self._services.metrics, code, reason, is_gone=self._is_gone)

    def close_soon(self) -> None:
        """The worker restarts, or the connection is old: close with 1012, come again."""
        self.end(CloseConnection(CloseCode.RESTART, "restart"))

    def refuse(self, error: ApiError) -> None:
        """The user's rights have ended: say nothing more and close with 4401 or 4403."""
        self.end(refusal_of(error))

    def end(self, ending: BaseException) -> None:
        """Close from outside; the first reason counts."""
        if self._ending is None:
            self._ending = ending
            if not _is_restart(ending):
                self._writer.close()
            self._wire.wake()

    def _give_up(self) -> None:
        """The socket takes nothing: who reads again connects again."""
        self.end(CloseConnection(CloseCode.TRY_LATER, "slow_consumer"))

    # ---- reading --------------------------------------------------------------------------------

    async def _talk(self) -> None:
        """Raises why the connection ends."""
        num_frames = 0
        while self._ending is None:
            message = await self._wire.receive()
            if message["type"] == "websocket.disconnect":
                self._is_gone = True
                raise WebSocketDisconnect(message.get("code") or 1005)
            if self._ending is not None:
                break
            num_frames += 1
            if num_frames % FRAMES_PER_TURN == 0:
                await asyncio.sleep(0)  # `receive` does not yield while frames are there already
            try:
                self._take(message)
            except Refused as refused:
                self._reply(refusal(refused.error, refused.stream_id), refused.error)
        if _is_restart(self._ending):
            await asyncio.sleep(FAREWELL_SECONDS)  # what was sent last leaves before the close
        raise self._ending

    def _take(self, message: Any) -> None:
        """Raises `Refused`, and `CloseConnection` for one that is refused too often."""
        if not self._messages.take():
            if fills(self._strikes, MAX_STRIKES, STRIKES_WINDOW_SECONDS):
                raise CloseConnection(CloseCode.TOO_MANY, "rate_limited;retry_after_ms=5000")
            wait_ms = self._messages.retry_after_ms
            error = ApiError("rate_limited", "too many messages", retry_after_ms=wait_ms)
            raise Refused(error, None)
        try:
            frame = parse(message)
        except Refused as refused:
            if refused.error.code == "invalid_json":
                if fills(self._bad_frames, MAX_BAD_FRAMES, BAD_FRAMES_WINDOW_SECONDS):
                    raise CloseConnection(CloseCode.BAD_FRAMES, "invalid_json") from None
            raise
        try:
            self._do(frame)
        except ApiError as error:
            stream_id = None if isinstance(frame, Steer) else frame.stream_id
            raise Refused(error, stream_id) from error

    def _do(self, frame: Create | Cancel | Steer) -> None:
        match frame:
            case Create():
                self._lanes.put(frame)
            case Cancel():
                self._lanes.stop(frame)
            case Steer():
                self._answer(self._lanes.steer(frame))

    def _reply(self, event: bytes, error: ApiError) -> None:
        self._services.metrics.count_error(error.code)
        self._answer(self._writer.send([event]))

    def _answer(self, work: Coroutine[Any, Any, None]) -> None:
        """What the reader does not wait for."""
        if self._num_replies >= MAX_REPLIES:
            work.close()
            raise CloseConnection(CloseCode.TOO_MANY, "rate_limited;retry_after_ms=5000")
        self._num_replies += 1
        self._spawn(work).add_done_callback(self._on_answered)

    def _on_answered(self, task: "asyncio.Task[None]") -> None:
        self._num_replies -= 1

    # ---- tasks and the end ----------------------------------------------------------------------

    def _spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """A task of this connection, which ends with it."""
        task = start(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_end)
        return task

    def _on_task_end(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.end(error)

    async def _end_tasks(self) -> None:
        """Answers that are stored go on; those that are not end with the connection."""
        self._wire.on_room = None
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _is_restart(ending: BaseException) -> bool:
    return isinstance(ending, CloseConnection) and ending.code is CloseCode.RESTART
