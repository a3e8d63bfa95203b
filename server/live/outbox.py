"""What waits to be sent on one connection: control frames in order, and merged deltas.

The engine and the runs never wait for a socket: they put frames here. New text of a response joins
the delta that is still waiting, so a slow reader costs memory for its text, not for its lateness. A
control frame of a response goes after that response's waiting delta, never before it.

A replay is a burst that this server makes, and says nothing about its reader. So its frames are
made one by one as the writer takes them, and count for nothing before.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from msgspec.structs import replace

from server.protocol.encoding import ServerFrame, encode
from server.protocol.server_frames import Reply

MAX_REPLAY_BYTES = 8 * 1024 * 1024  # of all replays that wait, each as `replay_bytes` says
MAX_BYTES = 1024 * 1024  # beyond it the reader is too slow and the connection is closed
MAX_DELTA_CHARACTERS = 32 * 1024  # a longer waiting delta is closed, so that frames stay small
MAX_DELTA_LOGPROBS = 200  # of tokens, for the same reason
LOGPROB_BYTES = 300  # of one token with five others, roughly
HIDDEN_INTERVAL_SECONDS = 0.5  # between two deltas of one response to a page that nobody sees
SLOW_INTERVALS_SECONDS = 0.05, 0.2  # the first one, and where doubling ends, while it is slow

TEXT_DELTA = (
    b'{"type":"response.output_text.delta","response_id":"%b","sequence_number":%d,"fence":%d,'
    b'"text_offset":%d,"delta":%b%b}'
)


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


class Outbox:
    """One per connection; filled from anywhere in the event loop, drained by its writer alone.

    `on_overflow` is called once, when more than `MAX_BYTES` wait. `withholds`, if set, is asked for
    the answer of each log entry in the moment in which it would be sent: True, and it is not.
    """

    # There are thousands, mostly empty: a deque or an event would take half a KiB each.
    __slots__ = (
        "_deltas",
        "_interval",
        "_num_bytes",
        "_on_overflow",
        "_overflowed",
        "_ready",
        "_sent_at",
        "_slow_interval",
        "_waiter",
        "withholds",
    )

    def __init__(self, on_overflow: Callable[[], None]) -> None:
        self._on_overflow = on_overflow
        # With what each counts, and the answer of whose log it shows entries.
        self._ready: list[tuple[bytes | PendingDelta | Replay, int, str | None]] = []
        self._deltas: dict[str, PendingDelta] = {}
        self._sent_at: dict[str, float] = {}  # response id → when its last delta left
        self._interval = 0.0
        self._slow_interval = 0.0
        self._waiter: asyncio.Future[None] | None = None  # the writer, when nothing is due
        self._num_bytes = 0
        self._overflowed = False
        self.withholds: Callable[[str], bool] | None = None

    def put(
        self,
        frame: ServerFrame | Mapping[str, Any],
        response_id: str | None = None,
        *,
        is_entry: bool = False,
    ) -> None:
        """Queue a control frame, after the text of `response_id` that is still waiting.

        `is_entry`: it shows entries of that answer's log.
        """
        if response_id is not None:
            self._close_delta(response_id)
        encoded = encode(frame)
        self._ready.append((encoded, len(encoded), response_id if is_entry else None))
        self._count(len(encoded))

    def put_encoded(self, frame: bytes) -> None:
        """Queue a control frame that several connections get, encoded once for all of them."""
        self._ready.append((frame, len(frame), None))
        self._count(len(frame))

    def put_reply(self, frame: Reply, event_id: str | None, response_id: str | None = None) -> None:
        """Queue the answer to a client's frame that had this `event_id`, if any."""
        self.put(frame if event_id is None else replace(frame, event_id=event_id), response_id)

    def put_delta(
        self,
        response_id: str,
        number: int,
        fence: int,
        text_offset: int,
        delta: str,
        logprobs: Sequence[dict[str, Any]] = (),
    ) -> None:
        """Add text event `number`; it joins entry `number` - 1 if that is still waiting."""
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

    def note_transport(self, *, is_slow: bool) -> None:
        """Said for each frame: whether the transport took it at once, or lets us wait.

        Fewer and longer deltas cost a slow one less; the window closes as it opened.
        """
        least, most = SLOW_INTERVALS_SECONDS
        if is_slow:
            self._slow_interval = min(most, max(least, 2 * self._slow_interval))
        elif self._slow_interval:
            self._slow_interval = self._slow_interval / 2 if self._slow_interval > least else 0.0

    async def get(self) -> bytes:
        """Wait for the next frame. Only the writer calls this."""
        while True:
            while not self._ready:
                due = self._take_due()
                if not self._ready:
                    await self._wait(due)
            item, size, shown = self._ready[0]
            if shown is not None and self.withholds is not None and self.withholds(shown):
                self.withhold(shown)
                continue
            if isinstance(item, Replay) and (frame := next(item.frames, None)) is not None:
                return frame
            del self._ready[0]
            if isinstance(item, Replay):
                continue
            self._num_bytes -= size
            return item.encode() if isinstance(item, PendingDelta) else item

    def _take_due(self) -> float | None:
        """Move the deltas that are due to the queue; say when the first of the others will be."""
        interval = max(self._interval, self._slow_interval)
        if not interval:
            self._sent_at.clear()
            for response_id in list(self._deltas):
                self._close_delta(response_id)
            return None
        now = asyncio.get_running_loop().time()
        first_due = None
        for response_id in list(self._deltas):
            due = self._sent_at.get(response_id, 0.0) + interval
            if due <= now:
                self._close_delta(response_id)
                self._sent_at[response_id] = now
            else:
                first_due = due if first_due is None else min(first_due, due)
        return first_due

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
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

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
