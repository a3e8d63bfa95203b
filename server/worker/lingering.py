"""The end of a connection that was refused: time for the client to read why."""

import asyncio

LINGER_SECONDS = 2.0  # for a client to read why it was refused
LINGER_BYTES = 32 * 2**20  # twice the largest body; then what still comes is not even read
BAD_REQUEST = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class Lingering:
    """We have said our last: swallow what still comes, unparsed, and cut soon.

    Closing with unread bytes is a reset, which destroys our last words on their way. But reading
    at full speed what somebody sends on purpose would take the processor from everybody.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport) -> None:
        transport.write_eof()
        transport.resume_reading()
        self.timer = loop.call_later(LINGER_SECONDS, transport.abort)
        self._transport = transport
        self._left = LINGER_BYTES

    def swallow(self, num_bytes: int) -> None:
        """So many have come."""
        self._left -= num_bytes
        if self._left <= 0 and not self._transport.is_closing():
            self._transport.pause_reading()
