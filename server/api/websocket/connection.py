"""One websocket: a reader that never leaves `receive()`, and a worker for its frames.

uvicorn stops reading the socket between calls of `receive()`, so a reader that also did the work
would not hear a stop while the store is slow. The reader only parses and queues, refuses what
exceeds a queue, and never waits; a stop of an answer that this worker produces closes its gate at
once.

Nobody writes: what is put into the outbox leaves in the same call. While the socket is full, it
waits there, and a timer watches whether the socket takes anything at all.

There are thousands of these, mostly idle, so an idle one is only one task that waits: the worker
exists while there are frames, and queues and events, half a KiB each, while they hold something.
Of the upgrade it keeps what is read again.
"""

import asyncio
import random
import secrets
import time
from collections.abc import Coroutine
from typing import Any

import structlog
from starlette.websockets import WebSocket, WebSocketDisconnect

from server.access.audit import Actor
from server.access.auth import address_of
from server.access.identities import User
from server.access.rates import TokenBucket
from server.api.websocket.handlers import Handlers
from server.api.websocket.wire import (
    BAD_FRAMES_WINDOW_SECONDS,
    FAREWELL_SECONDS,
    FRAMES_PER_TURN,
    MAX_AGE_SECONDS,
    MAX_BAD_FRAMES,
    MAX_STRIKES,
    SEND_SECONDS,
    STRIKES_WINDOW_SECONDS,
    close,
    fills,
    traced,
    wire_of,
)
from server.commands.services import Services
from server.live.health import degraded_frame
from server.live.outbox import Outbox
from server.live.sent_ends import SentEnds
from server.protocol.client_frames import (
    MAX_MESSAGE_BYTES,
    CancelResponse,
    ClientFrame,
    ClientState,
    Ping,
    parse,
)
from server.protocol.close_codes import CloseCode, CloseConnection, refusal_of
from server.protocol.errors import ApiError
from server.protocol.objects import ConnectionLimits, Heartbeat, UserInfo
from server.protocol.server_frames import (
    PROTOCOL,
    ConnectionDraining,
    ConnectionReady,
    ErrorFrame,
    Pong,
    RateLimitsUpdated,
)
from sessions.background import start
from sessions.model.errors import StoreUnavailable

logger = structlog.get_logger("server")

MAX_FAILURES = 3  # frames that brought a bug of ours to light, in as short a time
FIRST_FRAME_SECONDS = 10.0
MAX_QUEUED_FRAMES = 64  # parsed and waiting for the store; more are refused
MAX_QUEUED_STOPS = 64  # for these there is room even then
QUEUE_RETRY_MS = 1000  # so long a call waits for a store that is silent
RESUME_WINDOW_SECONDS = 600

ENDED = CloseConnection(CloseCode.NORMAL, "")


class Connection:
    """A connected client. `serve` returns when it is gone, and has closed the socket by then."""

    __slots__ = (
        "_address",
        "_alarm",
        "_bad_frames",
        "_ending",
        "_failures",
        "_frames",
        "_full_alarm",
        "_handlers",
        "_is_gone",
        "_messages",
        "_services",
        "_strikes",
        "_was_heard",
        "_wire",
        "_working",
        "id",
        "outbox",
        "request",
        "sent_ends",
        "uid",
        "user",
    )

    def __init__(self, websocket: WebSocket, user: User, services: Services) -> None:
        self.id = "conn_" + secrets.token_urlsafe(16)
        self.uid = user.uid
        self.user = user
        self.outbox = Outbox(self._on_overflow)
        self.sent_ends = SentEnds()
        upgrade = traced(websocket)
        self.request = upgrade if upgrade.headers else None  # nothing is kept for nothing
        self._address = address_of(websocket)
        self._wire = wire_of(websocket)
        self._services = services
        self._handlers = Handlers(self, services)
        self._frames: list[tuple[int, ClientFrame]] = []  # read, for the worker
        self._messages = TokenBucket(services.limits.messages_per_s)
        self._bad_frames: list[float] = []
        self._strikes: list[float] = []
        self._failures: list[float] = []
        self._working: asyncio.Task[None] | None = None  # only while there are frames
        self._alarm: asyncio.TimerHandle | None = None
        self._full_alarm: asyncio.TimerHandle | None = None  # only while the socket is full
        self._was_heard = False
        self._ending: BaseException | None = None  # why it ends; the first reason counts
        self._is_gone = False  # the client, or what came below closed it

    async def serve(self) -> None:
        """Talk until either side ends it; every exception becomes a close code."""
        hub = self._services.hub
        code, reason = CloseCode.NORMAL, ""
        self.outbox.connect(self._wire.write_frame, self._on_full, self.end)
        self.outbox.put(self._ready_frame())
        if degraded := self._services.health.degraded:
            self.outbox.put(degraded_frame(degraded))
        if (notice := self._services.notices.frame) is not None:
            self.outbox.put(notice)
        try:
            await hub.add_watcher(self)
            await self._talk()
        except CloseConnection as closing:
            code, reason = closing.code, closing.reason
        except StoreUnavailable:
            code, reason = CloseCode.TRY_LATER, "store_unavailable;retry_after_ms=1000"
        except Exception as error:
            if not isinstance(error, WebSocketDisconnect):
                logger.exception("connection failed", connection_id=self.id)
                code = CloseCode.INTERNAL
        finally:
            await self._end_tasks()
            await self._handlers.leave_all()
            await hub.remove_watcher(self)
            await close(self._wire, self._services.metrics, code, reason, is_gone=self._is_gone)
            # No circle stays, so that all of it goes now, not when all objects are looked through.
            self._ending = ENDED
            del self._handlers

    def close_soon(self) -> None:
        """The worker restarts: tell the client and close with 1012."""
        self.end(CloseConnection(CloseCode.RESTART, "restart"))

    @property
    def actor(self) -> Actor:
        """The user as the audit log knows them."""
        return Actor(self.user, self._address)

    def refuse(self, error: ApiError) -> None:
        """The user's rights have ended: say nothing more and close with 4401 or 4403."""
        self.end(refusal_of(error))

    def evict(self, reason: str) -> None:
        """An admin sends us away; what is queued says why, and leaves before the close."""
        self.end(CloseConnection(CloseCode.EVICTED, reason))

    def end(self, ending: BaseException) -> None:
        """Close from outside; the first reason counts."""
        if self._ending is None:
            self._ending = ending
            self._wire.wake()

    # ---- reading and working --------------------------------------------------------------------

    async def _talk(self) -> None:
        """Raises why the connection ends. What is said last leaves before that."""
        loop = asyncio.get_running_loop()
        silence = CloseConnection(CloseCode.NO_FIRST_FRAME, "no_first_frame")
        self._alarm = loop.call_later(FIRST_FRAME_SECONDS, self.end, silence)
        try:
            await self._read()
        except Exception as error:
            self.end(error)
        ending = self._ending
        assert ending is not None  # nothing else ends the reader
        if isinstance(ending, CloseConnection):
            if ending.code is CloseCode.RESTART:
                wait_ms = random.randint(100, 2000)
                self.outbox.put(ConnectionDraining(reconnect_after_ms=wait_ms))
            if ending.code in (CloseCode.RESTART, CloseCode.EVICTED, CloseCode.SERVER_BUG):
                await asyncio.sleep(FAREWELL_SECONDS)
        try:
            raise ending
        finally:
            del ending  # its traceback holds this frame

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task of this connection, which ends with it."""
        task = start(work)
        task.add_done_callback(self._on_task_end)
        return task

    def _on_task_end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.end(error)

    async def _end_tasks(self) -> None:
        self.outbox.disconnect()
        self._wire.on_room = None
        for alarm in (self._alarm, self._full_alarm):
            if alarm is not None:
                alarm.cancel()
        if self._working is not None:
            self._working.cancel()
            await asyncio.gather(self._working, return_exceptions=True)

    async def _read(self) -> None:
        """Return when the connection is to end; raises `WebSocketDisconnect`."""
        num_frames = 0
        while self._ending is None:
            message = await self._wire.receive()
            if message["type"] == "websocket.disconnect":
                self._is_gone = True
                raise WebSocketDisconnect(message.get("code") or 1005)
            if self._ending is not None:
                return
            self._hear()
            num_frames += 1
            if num_frames % FRAMES_PER_TURN == 0:
                await asyncio.sleep(0)  # `receive` does not yield while frames are there already
            frame = self._parse(message)
            if frame is None:
                continue
            if isinstance(frame, Ping):
                now_ms = time.time_ns() // 1_000_000
                self.outbox.put(Pong(t=frame.t, server_time=now_ms))
            elif isinstance(frame, ClientState):
                self.outbox.set_hidden(not frame.visible)
            else:
                self._queue(frame)

    def _queue(self, frame: ClientFrame) -> None:
        """Leave the frame to the worker, or refuse it: a reader that waits here hears no stop."""
        room = MAX_QUEUED_FRAMES
        if isinstance(frame, CancelResponse):
            room += MAX_QUEUED_STOPS
        if len(self._frames) >= room:
            busy = "too many frames of this connection wait for the store"
            refusal = ApiError("rate_limited", busy, retry_after_ms=QUEUE_RETRY_MS)
            self.put_error(refusal, frame.event_id)
            return
        asked = self.sent_ends.ask()
        if isinstance(frame, CancelResponse):
            self._handlers.canceller.close_gates(frame, asked)
        self._frames.append((asked, frame))
        if self._working is None:
            self._working = self._spawn(self._work())

    def _hear(self) -> None:
        """The client has said something: from its first frame on it may be silent."""
        if not self._was_heard:
            self._was_heard = True
            assert self._alarm is not None  # set before the reader was started
            self._alarm.cancel()
            self._alarm = asyncio.get_running_loop().call_later(MAX_AGE_SECONDS, self.close_soon)

    def _parse(self, message: Any) -> ClientFrame | None:
        """The frame, or None after an error was answered."""
        try:
            if not self._messages.take():
                if fills(self._strikes, MAX_STRIKES, STRIKES_WINDOW_SECONDS):
                    raise CloseConnection(CloseCode.TOO_MANY, "rate_limited;retry_after_ms=5000")
                self.outbox.put(RateLimitsUpdated(rate_limits=[self._messages.entry()]))
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
                if fills(self._bad_frames, MAX_BAD_FRAMES, BAD_FRAMES_WINDOW_SECONDS):
                    raise CloseConnection(CloseCode.BAD_FRAMES, "invalid_json") from None
            return None

    async def _work(self) -> None:
        """Handle what was read, one frame at a time, until nothing waits any more."""
        while self._frames:
            asked, frame = self._frames.pop(0)
            if not await self._services.identities.still_holds(self.user):
                continue  # the connection is being closed
            try:
                await self._handlers.handle(frame, asked)
            except ApiError as error:
                self.put_error(error, frame.event_id)
            except Exception:
                logger.exception("frame failed", connection_id=self.id, frame=type(frame).__name__)
                self.put_error(ApiError("internal", "an internal error occurred"), frame.event_id)
                if fills(self._failures, MAX_FAILURES, BAD_FRAMES_WINDOW_SECONDS):
                    # What is wrong may be this connection: a new one starts over.
                    raise CloseConnection(CloseCode.SERVER_BUG, "internal") from None
        self._working = None

    # ---- a full socket --------------------------------------------------------------------------

    def _on_full(self) -> None:
        """Something waits for room in the socket: for as long as it takes anything at all."""
        self._wire.on_room = self._on_room
        self._watch_progress()

    def _watch_progress(self) -> None:
        loop, num_unsent = asyncio.get_running_loop(), self._num_unsent
        self._full_alarm = loop.call_later(SEND_SECONDS, self._look_at_progress, num_unsent)

    def _look_at_progress(self, num_unsent_before: int) -> None:
        if self._num_unsent >= num_unsent_before:
            self._on_overflow()
        else:
            self._watch_progress()

    def _on_room(self) -> None:
        if self._full_alarm is not None:
            self._full_alarm.cancel()
            self._full_alarm = None
        self.outbox.go_on()

    @property
    def _num_unsent(self) -> int:
        """Bytes that wait for room in the socket."""
        return self._wire.transport.get_write_buffer_size()

    # ---- frames and the end ---------------------------------------------------------------------

    def put_error(self, error: ApiError, event_id: str | None) -> None:
        self._services.metrics.count_error(error.code)
        self.outbox.put(ErrorFrame.of(error, event_id))

    def _on_overflow(self) -> None:
        self.end(CloseConnection(CloseCode.SLOW_CONSUMER, "slow_consumer"))

    def _ready_frame(self) -> ConnectionReady:
        limits = self._services.limits
        return ConnectionReady(
            connection_id=self.id,
            replica=self._services.replica,
            protocol=PROTOCOL,
            server_version=self._services.version,
            user=UserInfo(id=self.uid, name=self.user.name, roles=list(self.user.roles)),
            heartbeat=Heartbeat(interval_ms=25000, timeout_ms=10000),
            limits=ConnectionLimits(
                max_message_bytes=MAX_MESSAGE_BYTES,
                max_subscriptions=limits.max_subscriptions,
                max_active_responses=limits.max_active_responses_per_user,
                messages_per_s=limits.messages_per_s,
                burst=self._messages.burst,
            ),
            resume_window_s=RESUME_WINDOW_SECONDS,
            max_age_s=MAX_AGE_SECONDS,
        )
