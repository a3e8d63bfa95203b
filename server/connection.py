"""One websocket: a reader that never leaves `receive()`, a worker for its frames, a writer.

uvicorn stops reading the socket between calls of `receive()`, so a reader that also did the work
would not hear a stop while the store is slow. The reader only parses and queues; a stop of an
answer that this worker produces closes its gate right there.
"""

import asyncio
import contextlib
import random
import secrets
import time
from collections import deque
from typing import Any

import structlog
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from server.audit import Actor
from server.closing import CloseCode, CloseConnection
from server.errors import ApiError
from server.frames import PROTOCOL, error_frame, rate_limits_frame
from server.handlers import Handlers
from server.identities import User
from server.limits import TokenBucket
from server.outbox import Outbox
from server.protocol import CancelResponse, ClientFrame, ClientState, Ping, parse
from server.services import Services
from sessions.errors import StoreUnavailable

logger = structlog.get_logger("server")

MAX_BAD_FRAMES = 3
BAD_FRAMES_WINDOW_SECONDS = 60.0
MAX_STRIKES = 20  # refusals by the message rate before the connection is closed
STRIKES_WINDOW_SECONDS = 60.0
FIRST_FRAME_SECONDS = 10.0
SEND_SECONDS = 15.0  # a socket that takes nothing for so long is given up
ABORT_AFTER_CLOSE_SECONDS = 1.0
FRAMES_PER_TURN = 16
FAREWELL_SECONDS = 0.1  # for the last frames to leave before the close
MAX_QUEUED_FRAMES = 64  # parsed and waiting for the store; more wait in the socket
MAX_AGE_SECONDS = 3600
RESUME_WINDOW_SECONDS = 600
MAX_MESSAGE_BYTES = 256 * 1024


class Connection:
    """A connected client. `serve` returns when it is gone, and has closed the socket by then."""

    def __init__(self, websocket: WebSocket, user: User, services: Services) -> None:
        self.id = "conn_" + secrets.token_urlsafe(16)
        self.uid = user.uid
        self.user = user
        self.outbox = Outbox(self._on_overflow)
        self._websocket = websocket
        self._services = services
        self._handlers = Handlers(self, services)
        self._frames: asyncio.Queue[ClientFrame] = asyncio.Queue(MAX_QUEUED_FRAMES)
        self._messages = TokenBucket(services.limits.messages_per_s)
        self._bad_frames: deque[float] = deque(maxlen=MAX_BAD_FRAMES)
        self._strikes: deque[float] = deque(maxlen=MAX_STRIKES)
        self._heard = asyncio.Event()
        self._overflow = asyncio.Event()
        self._draining = asyncio.Event()
        self._ended = asyncio.Event()
        self._ending = CloseConnection(CloseCode.NORMAL)

    async def serve(self) -> None:
        """Talk until either side ends it; every exception becomes a close code."""
        hub = self._services.hub
        code, reason = CloseCode.NORMAL, ""
        self.outbox.put(self._ready_frame())
        if problems := self._services.health.problems:
            self.outbox.put({"type": "connection.degraded", **problems})
        try:
            await hub.add_watcher(self)
            async with asyncio.TaskGroup() as tasks:
                for work in (self._read(), self._work(), self._write(), self._watch()):
                    tasks.create_task(work)
        except* CloseConnection as group:
            closing = _first(group)
            code, reason = closing.code, closing.reason
        except* StoreUnavailable:
            code, reason = CloseCode.TRY_LATER, "store_unavailable;retry_after_ms=1000"
        except* (WebSocketDisconnect, RuntimeError) as group:
            # Starlette raises RuntimeError for the same thing when the close was seen elsewhere.
            if not _is_disconnect(group):
                logger.exception("connection failed", connection_id=self.id)
                code = CloseCode.INTERNAL
        except* Exception:
            logger.exception("connection failed", connection_id=self.id)
            code = CloseCode.INTERNAL
        finally:
            await self._handlers.leave_all()
            await hub.remove_watcher(self)
            await self._close(code, reason)

    def close_soon(self) -> None:
        """The worker restarts: tell the client and close with 1012."""
        self._draining.set()

    @property
    def actor(self) -> Actor:
        """The user as the audit log knows them."""
        client = self._websocket.client
        return Actor(self.user, client.host if client else "")

    def refuse(self, error: ApiError) -> None:
        """The user's rights have ended: say nothing more and close with 4401."""
        self.end(CloseConnection(CloseCode.UNAUTHENTICATED, error.code))

    def evict(self, reason: str) -> None:
        """An admin sends us away; what is queued says why, and leaves before the close."""
        self.end(CloseConnection(CloseCode.EVICTED, reason))

    def end(self, ending: CloseConnection) -> None:
        """Close from outside; the first reason counts."""
        if not self._ended.is_set():
            self._ending = ending
            self._ended.set()

    # ---- the tasks ------------------------------------------------------------------------------

    async def _read(self) -> None:
        num_frames = 0
        while True:
            message = await self._websocket.receive()
            if message["type"] == "websocket.disconnect":
                raise WebSocketDisconnect(message.get("code") or 1005)
            self._heard.set()
            if self._overflow.is_set():
                raise CloseConnection(CloseCode.SLOW_CONSUMER, "slow_consumer")
            num_frames += 1
            if num_frames % FRAMES_PER_TURN == 0:
                await asyncio.sleep(0)  # `receive` does not yield while frames are there already
            frame = self._parse(message)
            if frame is None:
                continue
            if isinstance(frame, CancelResponse):
                self._handlers.stops.close_gates(frame)
            if isinstance(frame, Ping):
                now_ms = time.time_ns() // 1_000_000
                self.outbox.put({"type": "pong", "t": frame.t, "server_time": now_ms})
            elif isinstance(frame, ClientState):
                self.outbox.set_hidden(not frame.visible)
            else:
                await self._frames.put(frame)

    def _parse(self, message: Any) -> ClientFrame | None:
        """The frame, or None after an error was answered."""
        try:
            if not self._messages.take():
                if _fills(self._strikes, STRIKES_WINDOW_SECONDS):
                    raise CloseConnection(CloseCode.TOO_MANY, "rate_limited;retry_after_ms=5000")
                self.outbox.put(rate_limits_frame(self._messages.entry()))
                raise ApiError(
                    "rate_limited",
                    "too many messages",
                    retry_after_ms=self._messages.retry_after_ms,
                )
            text = message.get("text")
            if text is None:
                raise ApiError("invalid_json", "binary frames are not part of chat.v1")
            return parse(text)
        except ApiError as error:
            self.put_error(error, getattr(error, "event_id", None))
            if error.code == "invalid_json":
                if _fills(self._bad_frames, BAD_FRAMES_WINDOW_SECONDS):
                    raise CloseConnection(CloseCode.BAD_FRAMES, "invalid_json") from None
            return None

    async def _work(self) -> None:
        while True:
            frame = await self._frames.get()
            if not await self._services.identities.still_holds(self.user):
                continue  # the connection is being closed
            try:
                await self._handlers.handle(frame)
            except ApiError as error:
                self.put_error(error, frame.event_id)
            except Exception:
                logger.exception("frame failed", connection_id=self.id, frame=type(frame).__name__)
                self.put_error(ApiError("internal", "an internal error occurred"), frame.event_id)

    async def _write(self) -> None:
        while True:
            frame = await self.outbox.get()
            try:
                async with asyncio.timeout(SEND_SECONDS):
                    await self._websocket.send({"type": "websocket.send", "text": frame.decode()})
            except TimeoutError:
                raise CloseConnection(CloseCode.SLOW_CONSUMER, "slow_consumer") from None
            await asyncio.sleep(0)  # `send` does not yield while the buffer has room

    async def _watch(self) -> None:
        """End the connection for reasons that come from neither reading nor writing."""
        try:
            async with asyncio.timeout(FIRST_FRAME_SECONDS):
                await self._any(self._heard, self._overflow, self._draining, self._ended)
        except TimeoutError:
            raise CloseConnection(CloseCode.NO_FIRST_FRAME, "no_first_frame") from None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(MAX_AGE_SECONDS):
                await self._any(self._overflow, self._draining, self._ended)
        if self._ended.is_set():
            if self._ending.code is CloseCode.EVICTED:
                await asyncio.sleep(FAREWELL_SECONDS)
            raise self._ending
        if self._overflow.is_set():
            raise CloseConnection(CloseCode.SLOW_CONSUMER, "slow_consumer")
        wait_ms = random.randint(100, 2000)
        self.outbox.put({"type": "connection.draining", "reconnect_after_ms": wait_ms})
        await asyncio.sleep(FAREWELL_SECONDS)
        raise CloseConnection(CloseCode.RESTART, "restart")

    @staticmethod
    async def _any(*events: asyncio.Event) -> None:
        tasks = [asyncio.create_task(event.wait()) for event in events]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()

    # ---- frames and the end ---------------------------------------------------------------------

    def put_error(self, error: ApiError, event_id: str | None) -> None:
        self._services.metrics.count_error(error.code)
        self.outbox.put(error_frame(error.body(event_id)))

    def _on_overflow(self) -> None:
        self._overflow.set()

    def _ready_frame(self) -> dict[str, Any]:
        limits = self._services.limits
        return {
            "type": "connection.ready",
            "connection_id": self.id,
            "replica": self._services.replica,
            "protocol": PROTOCOL,
            "server_version": self._services.version,
            "user": {"id": self.uid, "name": self.user.name, "roles": list(self.user.roles)},
            "heartbeat": {"interval_ms": 25000, "timeout_ms": 10000},
            "limits": {
                "max_message_bytes": MAX_MESSAGE_BYTES,
                "max_subscriptions": limits.max_subscriptions,
                "max_active_responses": limits.max_active_responses_per_user,
                "messages_per_s": limits.messages_per_s,
                "burst": self._messages.burst,
            },
            "resume_window_s": RESUME_WINDOW_SECONDS,
            "max_age_s": MAX_AGE_SECONDS,
        }

    async def _close(self, code: CloseCode, reason: str) -> None:
        """Send the close frame; a jammed socket takes none, so its transport is cut soon after."""
        if self._websocket.client_state is not WebSocketState.CONNECTED:
            return
        self._services.metrics.count_close(int(code))
        try:
            async with asyncio.timeout(ABORT_AFTER_CLOSE_SECONDS):
                await self._websocket.close(int(code), reason)
        except (RuntimeError, WebSocketDisconnect):
            pass  # it was closed meanwhile, and its close frame may be on its way
        except TimeoutError:
            transport = self._websocket.scope["extensions"].get("parley.transport")
            if transport is not None:
                transport["transport"].abort()


def _fills(times: deque[float], window_seconds: float) -> bool:
    """Note an offence; True if as many as are counted fell into the window."""
    now = time.monotonic()
    times.append(now)
    return len(times) == times.maxlen and now - times[0] < window_seconds


def _first(group: BaseExceptionGroup[Any]) -> Any:
    error: Any = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _is_disconnect(group: BaseExceptionGroup[Any]) -> bool:
    return all(
        isinstance(error, WebSocketDisconnect) or "websocket" in str(error).lower()
        for error in group.exceptions
    )
