"""What is sent on one connection: control frames in order, and text, which is merged if it waits.

The engine and the runs never wait for a socket: they put frames here. While nothing waits and the
socket takes it, a frame is written in the very call that puts it. Else it waits, and new text of a
response joins the delta that is still waiting, so a slow reader costs memory for its text, not for
its lateness. A control frame of a response goes after that response's waiting delta, never before
it.

A replay is a burst that this server makes, and says nothing about its reader. So its frames are
made one by one as they leave, and count for nothing before.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import orjson
from msgspec.structs import replace

from server.protocol.encoding import ServerFrame, encode
from server.protocol.server_frames import Reply
from sessions.model.events import TextEvent

MAX_REPLAY_BYTES = 8 * 1024 * 1024  # of all replays that wait, each as `replay_bytes` says
MAX_BYTES = 1024 * 1024  # beyond it the reader is too slow and the connection is closed
MAX_DELTA_CHARACTERS = 32 * 1024  # a longer waiting delta is closed, so that frames stay small
MAX_DELTA_LOGPROBS = 200  # of tokens, for the same reason
LOGPROB_BYTES = 300  # of one token with five others, roughly
HIDDEN_INTERVAL_SECONDS = 0.5  # between two deltas of one response to a page that nobody sees
SLOW_INTERVALS_SECONDS = 0.05, 0.2  # the first one, and where doubling ends, while it is slow
FRAMES_PER_TURN = 16  # of what has waited: then the others have their turn

TEXT_DELTA = (
    b'{"type":"response.output_text.delta","response_id":"%b","sequence_number":%d,"fence":%d,'
    b'"text_offset":%d,"delta":%b%b}'
)


# A frame, or what becomes one; with what it counts, and the answer of whose log it shows entries.
Entry = tuple["bytes | PendingDelta | Replay", int, str | None]


class Withholder(Protocol):
    """Knows which answers may be another worker's by now: entries of these must not be sent."""

    def must_withhold(self, response_id: str) -> bool:
        """Asked for each log entry in the moment in which it would be sent."""

    def withholds(self, response_id: str) -> bool:
        """The same, and if it must, everybody's entries of the answer that wait are taken back."""


@dataclass(slots=True)
class Replay:
    """Entries of a log that become frames when they are sent."""

    frames: Iterator[bytes]
    num_bytes: int


@dataclass(slots=True)
class PendingDelta:
    """Consecutive text events of one response that will leave as one frame."""

    response_id: str
    first: int
    last: int
    fence: int
    text_offset: int
    parts: list[str]
    characters: int
    num_bytes: int  # of the text
    logprobs: list[dict[str, Any]]

    @classmethod
    def of(
        cls,
        response_id: str,
        number: int,
        fence: int,
        text_offset: int,
        delta: str,
        logprobs: Sequence[dict[str, Any]],
    ) -> "PendingDelta":
        """One text event, which others may join."""
        pending = cls(response_id, number, number, fence, text_offset, [], 0, 0, [])
        pending.add(number, delta, logprobs)
        return pending

    def add(self, number: int, delta: str, logprobs: Sequence[dict[str, Any]]) -> int:
        """The next text event; returns how many bytes its text has."""
        size = len(delta) if delta.isascii() else len(delta.encode("utf-8", "replace"))
        self.last = number
        self.parts.append(delta)
        self.characters += len(delta)
        self.num_bytes += size
        self.logprobs += logprobs
        return size

    @property
    def is_full(self) -> bool:
        """Whether what comes next belongs into a frame of its own."""
        return self.characters > MAX_DELTA_CHARACTERS or len(self.logprobs) > MAX_DELTA_LOGPROBS

    def encode(self) -> bytes:
        """A `TextDelta`. It is by far the most frequent frame, so it is written as it leaves."""
        text = orjson.dumps("".join(self.parts))
        rest = b""
        if self.first != self.last:
            rest = b',"first_sequence_number":%d' % self.first
        if self.logprobs:
            rest += b',"logprobs":' + orjson.dumps(self.logprobs)
        return TEXT_DELTA % (
            self.response_id.encode(),
            self.last,
            self.fence,
            self.text_offset,
            text,
            rest,
        )


def encode_text(response_id: str, number: int, fence: int, event: TextEvent) -> bytes:
    """One text event as the frame in which it leaves alone."""
    rest = b',"logprobs":' + orjson.dumps(event.logprobs) if event.logprobs else b""
    text = orjson.dumps(event.delta)
    return TEXT_DELTA % (response_id.encode(), number, fence, event.text_offset, text, rest)


class Outbox:
    """One per connection, filled from anywhere in the event loop.

    Who gave it a socket by `connect` calls `go_on` when a full one has room again; without one,
    `get` takes frame by frame. `on_overflow` is called once, when more than `MAX_BYTES` wait.
    """

    # There are thousands, mostly empty: a deque or an event would take half a KiB each.
    __slots__ = (
        "_deltas",
        "_fail",
        "_interval",
        "_is_full",
        "_is_late",
        "_later",
        "_num_bytes",
        "_on_full",
        "_on_overflow",
        "_overflowed",
        "_ready",
        "_sent_at",
        "_slow_interval",
        "_soon",
        "_straight",
        "_waiter",
        "_write",
        "withholder",
    )

    def __init__(self, on_overflow: Callable[[], None]) -> None:
        self._on_overflow = on_overflow
        self._ready: list[Entry] = []
        self._deltas: dict[str, PendingDelta] = {}
        self._sent_at: dict[str, float] = {}  # response id → when its last delta left
        self._interval = 0.0
        self._slow_interval = 0.0
        self._waiter: asyncio.Future[None] | None = None  # who is in `get`, when nothing is due
        self._write: Callable[[bytes], bool] | None = None
        self._straight: Callable[[bytes], bool] | None = None  # `_write`, while nothing waits
        self._is_full = False
        self._is_late = False  # the next frame has waited for room
        self._soon: asyncio.Handle | None = None  # what waits leaves then, in this turn
        self._later: asyncio.Handle | None = None  # or when the first delta is due
        self._num_bytes = 0
        self._overflowed = False
        self.withholder: Withholder | None = None

    def connect(
        self,
        write: Callable[[bytes], bool],
        on_full: Callable[[], None],
        fail: Callable[[Exception], None],
    ) -> None:
        """Send by `write` from now on. It returns whether the socket takes the frame at once.

        If it does not, `on_full` is called, and nothing is sent before `go_on`. `fail` gets what
        else goes wrong when it is nobody's call.
        """
        self._write, self._on_full, self._fail = write, on_full, fail
        self._wake()

    def disconnect(self) -> None:
        """Send nothing more, and call nobody any more."""
        self._write = self._straight = None
        self._on_overflow = self._on_full = _nobody
        self._fail = _nobody
        self._cancel_timers()

    def go_on(self) -> None:
        """The socket has room again."""
        self._is_full, self._is_late = False, True
        self._flush()

    def put(
        self,
        frame: ServerFrame | Mapping[str, Any],
        response_id: str | None = None,
        *,
        event_id: str | None = None,
        is_entry: bool = False,
    ) -> None:
        """Send a control frame, after the text of `response_id` that is still waiting.

        `event_id`: a `Reply` to the client's frame that had this id. `is_entry`: it shows entries
        of that answer's log.
        """
        if event_id is not None:
            assert isinstance(frame, Reply)
            frame = replace(frame, event_id=event_id)
        encoded = encode(frame)
        if is_entry:  # it leaves when its sender has noted it: it may be taken back
            assert response_id is not None
            self._close_delta(response_id)
            self._wait_for_turn(encoded, response_id)
        else:
            if response_id is not None:
                self._close_delta(response_id)
            self.put_encoded(encoded)

    def put_encoded(self, frame: bytes) -> None:
        """Send a control frame that several connections get, encoded once for all of them."""
        write = self._straight
        if write is None or len(frame) > MAX_BYTES or not write(frame):
            self._wait_for_turn(frame, None)

    def _wait_for_turn(self, frame: bytes, shown: str | None) -> None:
        self._ready.append((frame, len(frame), shown))
        self._count(len(frame))

    def put_text(
        self, response_id: str, number: int, fence: int, event: TextEvent, frame: bytes
    ) -> None:
        """Send text event `number`: as `frame`, which is made already, if it leaves alone."""
        write, withholder = self._straight, self.withholder
        if (
            write is None
            or (withholder is not None and withholder.must_withhold(response_id))
            or not write(frame)
        ):
            self.put_delta(
                response_id, number, fence, event.text_offset, event.delta, event.logprobs
            )

    def put_delta(
        self,
        response_id: str,
        number: int,
        fence: int,
        text_offset: int,
        delta: str,
        logprobs: Sequence[dict[str, Any]] = (),
    ) -> None:
        """Queue text event `number`; it joins entry `number` - 1 if that is still waiting."""
        pending = self._deltas.get(response_id)
        if pending is not None and (
            pending.is_full
            or pending.fence != fence
            or pending.last != number - 1  # a replay begins again
        ):
            self._close_delta(response_id)
            pending = None
        if pending is None:
            pending = PendingDelta.of(response_id, number, fence, text_offset, delta, logprobs)
            self._deltas[response_id] = pending
            size = pending.num_bytes
        else:
            size = pending.add(number, delta, logprobs)
        self._count(size + LOGPROB_BYTES * len(logprobs))

    def has_room_for_replay(self, num_bytes: int) -> bool:
        """Whether so much more may wait; what is replayed stays in memory until it is sent."""
        waiting = (item.num_bytes for item, _, _ in self._ready if isinstance(item, Replay))
        return sum(waiting) + num_bytes <= MAX_REPLAY_BYTES

    def put_replay(self, response_id: str, frames: Iterator[bytes], num_bytes: int) -> None:
        """Queue entries of an answer's log, as frames that are made when they are sent."""
        self._close_delta(response_id)
        self._ready.append((Replay(frames, num_bytes), 0, response_id))
        self._wake()

    def withhold(self, response_id: str) -> bool:
        """Take back what shows entries of an answer's log; False if all of that was sent."""
        self._close_delta(response_id)
        sizes = [size for _, size, shown in self._ready if shown == response_id]
        self._num_bytes -= sum(sizes)
        self._ready = [entry for entry in self._ready if entry[2] != response_id]
        return bool(sizes)

    def set_hidden(self, hidden: bool) -> None:
        """Widen the window between deltas while the page is hidden."""
        self._interval = HIDDEN_INTERVAL_SECONDS if hidden else 0.0
        self._wake()

    def _note_socket(self, *, is_slow: bool) -> None:
        """Said for each frame that has waited: whether the socket took it, or lets us wait.

        Fewer and longer deltas cost a slow one less; the window closes as it opened.
        """
        least, most = SLOW_INTERVALS_SECONDS
        if is_slow:
            self._slow_interval = min(most, max(least, 2 * self._slow_interval))
        elif self._slow_interval:
            self._slow_interval = self._slow_interval / 2 if self._slow_interval > least else 0.0

    # ---- what leaves ----------------------------------------------------------------------------

    def _flush(self) -> None:
        """Write what waits and is due, as much of it as fits into a turn."""
        self._cancel_timers()
        try:
            self._write_due()
        except Exception as error:
            self._fail(error)

    def _write_due(self) -> None:
        write, loop = self._write, asyncio.get_running_loop()
        if write is None or self._is_full:
            return
        for _ in range(FRAMES_PER_TURN):
            if (taken := self._take()) is None:
                due = self._first_due()
                if due is not None:
                    self._later = loop.call_at(due, self._flush)
                elif not self._least_interval:
                    self._straight = write
                return
            self._is_full = not write(taken[0])
            if self._is_full or not self._is_late:  # once for each frame
                self._note_socket(is_slow=self._is_full)
            self._is_late = False
            if self._is_full:
                self._ready.insert(0, taken)  # where it may still be taken back
                self._num_bytes += taken[1]
                self._on_full()
                return
        self._soon = loop.call_soon(self._flush)

    async def get(self) -> bytes:
        """Wait for the next frame. Without a socket, one reader may call this."""
        while (taken := self._take()) is None:
            await self._wait(self._first_due())
        return taken[0]

    def _take(self) -> tuple[bytes, int, str | None] | None:
        """The next frame that is due, with what an entry of the queue has."""
        while True:
            if not self._ready:
                self._close_due()
            if not self._ready:
                return None
            item, size, shown = self._ready[0]
            if shown is not None and self.withholder is not None:
                if self.withholder.withholds(shown):
                    self.withhold(shown)
                    continue
            if isinstance(item, Replay) and (frame := next(item.frames, None)) is not None:
                return frame, 0, shown
            del self._ready[0]
            if isinstance(item, Replay):
                continue
            self._num_bytes -= size
            return item.encode() if isinstance(item, PendingDelta) else item, size, shown

    @property
    def _least_interval(self) -> float:
        """Between two deltas of one response."""
        return max(self._interval, self._slow_interval)

    def _close_due(self) -> None:
        """Move the deltas that are due to the queue."""
        interval = self._least_interval
        if not interval:
            self._sent_at.clear()
            for response_id in list(self._deltas):
                self._close_delta(response_id)
            return
        now = asyncio.get_running_loop().time()
        for response_id in list(self._deltas):
            if self._sent_at.get(response_id, 0.0) + interval <= now:
                self._close_delta(response_id)
                self._sent_at[response_id] = now

    def _first_due(self) -> float | None:
        """When the first of the deltas will be due that are not yet."""
        sent_at = (self._sent_at.get(response_id, 0.0) for response_id in self._deltas)
        first = min(sent_at, default=None)
        return None if first is None else first + self._least_interval

    async def _wait(self, until: float | None) -> None:
        """Return when something was put here, at the loop's time `until` at the latest."""
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        timer = None if until is None else loop.call_at(until, self._wake)
        try:
            await self._waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()

    def _wake(self) -> None:
        """Something waits, or may leave."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        if self._write is not None:
            self._straight = None
            if self._soon is None and not self._is_full:
                self._soon = asyncio.get_running_loop().call_soon(self._flush)

    def _cancel_timers(self) -> None:
        for timer in (self._soon, self._later):
            if timer is not None:
                timer.cancel()
        self._soon = self._later = None

    def _close_delta(self, response_id: str) -> None:
        if (pending := self._deltas.pop(response_id, None)) is not None:
            size = pending.num_bytes + LOGPROB_BYTES * len(pending.logprobs)
            self._ready.append((pending, size, response_id))

    def _count(self, size: int) -> None:
        self._num_bytes += size
        self._wake()
        if self._num_bytes > MAX_BYTES and not self._overflowed:
            self._overflowed = True
            self._on_overflow()


def _nobody(*_: object) -> None:
    """Who is called after the end."""
