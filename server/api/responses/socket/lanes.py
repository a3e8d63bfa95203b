"""`Lanes`: the answers of one connection. One after the other in a lane, lanes side by side."""

from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from server.api.responses.socket.events import encode
from server.api.responses.socket.exchange import Exchange, Parts
from server.api.responses.socket.frames import Cancel, Create, Steer
from server.api.responses.socket.steering import failure
from server.protocol.errors import ApiError

MAX_WAITING = 64  # requests of a connection that wait for their turn
BUSY_RETRY_MS = 1000

Spawn = Callable[[Coroutine[Any, Any, None]], object]


class Lane:
    """Requests of one `stream_id`."""

    def __init__(self, stream_id: str | None) -> None:
        self.stream_id = stream_id
        self.waiting: deque[Exchange] = deque()
        self.exchange: Exchange | None = None  # that is going on

    @property
    def first(self) -> Exchange | None:
        """That which goes on, or will next."""
        return self.exchange or (self.waiting[0] if self.waiting else None)


class Lanes:
    """`spawn` runs a task that ends with the connection."""

    def __init__(self, parts: Parts, spawn: Spawn) -> None:
        self._parts = parts
        self._spawn = spawn
        self._lanes: dict[str | None, Lane] = {}
        self._num_waiting = 0

    def put(self, frame: Create) -> None:
        """It is answered when its turn in its lane comes. Raises `ApiError`."""
        if self._num_waiting >= MAX_WAITING:
            busy = "too many requests of this connection wait for their turn"
            raise ApiError("rate_limited", busy, retry_after_ms=BUSY_RETRY_MS)
        self._num_waiting += 1
        lane = self._lanes.get(frame.stream_id)
        if lane is None:
            lane = self._lanes[frame.stream_id] = Lane(frame.stream_id)
            self._spawn(self._work(lane))
        lane.waiting.append(Exchange(self._parts, frame))

    def stop(self, frame: Cancel) -> None:
        """End an answer that is streamed here. Raises `ApiError` if there is none."""
        if frame.response_id is not None:
            exchange = self._streaming(frame.response_id)
        else:
            lane = self._lanes.get(frame.stream_id)
            exchange = None if lane is None else lane.first
        if exchange is None:
            problem = "nothing runs here that could be stopped"
            raise ApiError("response_not_found", problem, param="response_id")
        exchange.stop()

    async def steer(self, frame: Steer) -> None:
        """Its own events say what becomes of it."""
        exchange = self._streaming(frame.previous_response_id)
        if exchange is not None and exchange.steering is not None:
            await exchange.steering.steer(frame)
            return
        code, problem = "response_not_found", "no such response runs on this connection"
        stream_id = None
        if exchange is not None:
            code, problem = "steering_not_supported", "nothing of this response is stored"
            stream_id = exchange.stream_id
        await self._parts.writer.send([encode(failure(frame, code, problem), stream_id)])

    def _streaming(self, response_id: str) -> Exchange | None:
        exchanges = (lane.exchange for lane in self._lanes.values())
        return next((it for it in exchanges if it and it.response_id == response_id), None)

    async def _work(self, lane: Lane) -> None:
        while lane.waiting:
            self._num_waiting -= 1
            lane.exchange = lane.waiting.popleft()
            try:
                await lane.exchange.run()
            finally:
                lane.exchange = None
        del self._lanes[lane.stream_id]
