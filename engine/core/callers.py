"""`Callers`: the connections at the far door, and the bounds that libzmq does not know.

libzmq tells of each connection its descriptor, and no more. So one is ended by ending its stream:
libzmq then closes it as if its peer had gone.
"""

import contextlib
import os
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass

import zmq
from zmq.utils.monitor import recv_monitor_message

EVENTS = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED
MAX_EVENTS = 256  # that are read in one turn
# Connections of which no message has come, because they have not shown a key yet, or say nothing.
# Beyond that the one that has been so longest goes, of the same address first: who has a key has
# spoken some milliseconds after it has come.
MAX_MUTE = 256
MAX_MUTE_OF_ADDRESS = 64
# Since the last whole message: libzmq bounds each part of a message, and neither their number nor
# their sum.
MAX_UNFINISHED_BYTES = 64 * 1024 * 1024
LOOK_SECONDS = 0.25  # between two looks at all of them
TCP_INFO_BYTES, BYTES_RECEIVED = 136, 128  # of Linux's struct tcp_info, and where it has the number


@dataclass(slots=True)
class _Caller:
    """One connection."""

    peer: tuple[str, int]
    key: str | None = None  # None: it is mute
    client_id: str = ""
    num_bytes: int = 0  # that had come when a message of it was there
    has_spoken: bool = False  # since the last look


class Callers:
    """Of one socket that is not bound yet; it must be closed after this. `now` is for tests."""

    def __init__(
        self, router: "zmq.Socket[bytes]", *, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.events = router.get_monitor_socket(EVENTS)
        self._now = now
        self._looked_at = now()
        self._callers: dict[int, _Caller] = {}  # by descriptor; those that came first, first

    def note(self, descriptor: int, client_id: str, key: str) -> None:
        """A message has come by this connection, of one who has this key."""
        caller = self._callers.get(descriptor)
        if caller is None and (peer := _peer_of(descriptor)):  # that it has come is still unread,
            caller = self._callers[descriptor] = _Caller(peer)  # or was, without descriptors left
        if caller is not None:
            caller.client_id, caller.key, caller.has_spoken = client_id, key, True

    def take_events(self) -> None:
        """Who has come and gone."""
        with contextlib.suppress(zmq.Again):
            for _ in range(MAX_EVENTS):
                event = recv_monitor_message(self.events, zmq.NOBLOCK)
                self._callers.pop(event["value"], None)  # the next one may have the same number
                if event["event"] == zmq.EVENT_ACCEPTED and (peer := _peer_of(event["value"])):
                    self._callers[event["value"]] = _Caller(peer)
        self._bound_mute()

    def look(self, read_trusted: Callable[[], Collection[str] | None]) -> list[tuple[str, str]]:
        """End who has sent too much, or whose key is trusted no more: which client, and why.

        `read_trusted` says which keys are; None: nobody knows it now.
        """
        now = self._now()
        if now - self._looked_at < LOOK_SECONDS:
            return []
        self._looked_at = now
        trusted, ended = read_trusted(), []
        for descriptor, caller in list(self._callers.items()):
            if trusted is not None and caller.key is not None and caller.key not in trusted:
                ended.append((caller.client_id, "its key is not trusted any more"))
            elif self._sends_without_end(descriptor, caller):
                ended.append((caller.client_id, "its message has no end"))
            else:
                continue
            self._end(descriptor)
        return ended

    def close(self) -> None:
        """Before the socket, whose end is that of the telling as well.

        To end the telling first would wait for a lock, which libzmq holds while it waits for
        somebody to read what it tells: after a flood of connections for ever.
        """
        self.events.close(linger=0)

    def __len__(self) -> int:
        return len(self._callers)

    def _sends_without_end(self, descriptor: int, caller: _Caller) -> bool:
        num_bytes = _num_received(descriptor, caller.peer)
        if caller.has_spoken:
            caller.num_bytes, caller.has_spoken = num_bytes, False
        return num_bytes - caller.num_bytes > MAX_UNFINISHED_BYTES

    def _bound_mute(self) -> None:
        callers = self._callers.items()
        mute = [(number, each.peer[0]) for number, each in callers if each.key is None]
        counts = Counter(address for _, address in mute)
        for descriptor, address in mute:
            if counts[address] > MAX_MUTE_OF_ADDRESS:
                counts[address] -= 1
                self._end(descriptor)
        left = [descriptor for descriptor, _ in mute if descriptor in self._callers]
        for descriptor in left[: max(0, len(left) - MAX_MUTE)]:
            self._end(descriptor)

    def _end(self, descriptor: int) -> None:
        caller = self._callers.pop(descriptor)
        if stream := _stream_of(descriptor, caller.peer):
            with stream, contextlib.suppress(OSError):
                stream.shutdown(socket.SHUT_RDWR)


def _stream_of(descriptor: int, peer: tuple[str, int] | None = None) -> socket.socket | None:
    """A copy of libzmq's descriptor; None if that is of something else by now."""
    try:
        copy = os.dup(descriptor)
    except OSError:
        return None
    try:
        stream = socket.socket(fileno=copy)
    except OSError:  # it is no socket by now
        os.close(copy)
        return None
    with contextlib.suppress(OSError):
        if peer is None or stream.getpeername()[:2] == peer:
            return stream
    stream.close()
    return None


def _peer_of(descriptor: int) -> tuple[str, int] | None:
    """Address and port; None if it has gone already, also where its number is another's by now."""
    if (stream := _stream_of(descriptor)) is None:
        return None
    with stream, contextlib.suppress(OSError):
        if stream.family in (socket.AF_INET, socket.AF_INET6):  # else of a client of this machine
            host, port, *_ = stream.getpeername()
            return host, port
    return None


def _num_received(descriptor: int, peer: tuple[str, int]) -> int:
    """Bytes that have come by a connection; 0 where the kernel does not count them."""
    if (stream := _stream_of(descriptor, peer)) is None:
        return 0
    with stream, contextlib.suppress(OSError, struct.error):
        info = stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
        (number,) = struct.unpack_from("Q", info, BYTES_RECEIVED)
        return int(number)
    return 0
