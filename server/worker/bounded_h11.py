"""h11's connection, with bounds on what is parsed for a client before it is refused.

h11 takes some 6 µs for a chunk of a body, however small it is, and 3 µs for a line of a head: a
megabyte of one-byte chunks is a second in which the event loop does nothing else. So the chunks of
a body are counted, a head is measured before it is parsed, and of a body whose request is answered
nothing is parsed at all.
"""

import re
from typing import Any

import h11

FREE_CHUNKS = 256  # of one body, large or small; then one more for each
BYTES_PER_CHUNK = 512
MAX_EMPTY_BYTES = 64  # of empty lines in front of one request
END_OF_HEAD = re.compile(rb"\n\r?\n")
FOLD = re.compile(rb"\n[ \t]")  # obsolete since RFC 7230, and read differently by many proxies
LENGTHS = re.compile(rb"\ncontent-length[ \t]*:|(?<=\ncontent-length:)[^\n]*,", re.IGNORECASE)
EMPTY_LINES = re.compile(rb"(?:\r?\n)+")
CHUNKED = b"\r\nTransfer-Encoding: chunked\r\n"
ANSWERED = (h11.DONE, h11.MUST_CLOSE, h11.CLOSED)


class BoundedConnection(h11.Connection):
    """Raises `h11.RemoteProtocolError` where h11 would go on: 431 for a head that is too long."""

    def __init__(self, max_head_bytes: int) -> None:
        super().__init__(h11.SERVER, max_head_bytes)
        self._max_head_bytes = max_head_bytes
        self._num_chunks = 0
        self._num_body_bytes = 0
        self._num_empty_bytes = 0
        self._is_head = False
        self.sends_chunks = False  # the head of an answer is out, and its body comes in chunks

    def receive_data(self, data: bytes) -> None:
        """Take what came; a few empty lines in front of a request are skipped (RFC 9112 §2.2)."""
        if self.their_state is h11.IDLE and data and not self.trailing_data[0]:
            empty = EMPTY_LINES.match(data)
            if empty is not None and self._num_empty_bytes + empty.end() <= MAX_EMPTY_BYTES:
                self._num_empty_bytes += empty.end()
                data = data[empty.end() :]
                if not data:  # to h11 that would be the end of the connection
                    return
        super().receive_data(data)

    def next_event(self) -> Any:
        if self.their_state is h11.IDLE:
            self._check_head()
        elif self.their_state is h11.SEND_BODY and self.our_state in ANSWERED:
            return h11.NEED_DATA  # of a body that nobody will read
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._check_request(event)
        elif isinstance(event, h11.Data):
            self._count_chunk(event)
        return event

    def send(self, event: Any) -> Any:
        """A request that is answered before its body was read is the last of its connection."""
        if isinstance(event, h11.Response) and self.their_state is h11.SEND_BODY:
            headers = [(name, value) for name, value in event.headers if name != b"connection"]
            event = h11.Response(
                status_code=event.status_code,
                headers=[*headers, (b"connection", b"close")],
                reason=event.reason,
            )
        data = super().send(event)
        if isinstance(event, h11.Response):
            self.sends_chunks = CHUNKED in data and not self._is_head
        elif isinstance(event, h11.EndOfMessage):
            self.sends_chunks = False
        return data

    def _check_head(self) -> None:
        """Measure the head, as far as it is here; its lines are still one piece."""
        waiting = self.trailing_data[0][: self._max_head_bytes + 1]
        end = END_OF_HEAD.search(waiting)
        if end is None and len(waiting) > self._max_head_bytes:
            raise h11.RemoteProtocolError("the head is too long", error_status_hint=431)
        head = waiting if end is None else waiting[: end.start() + 1]
        if FOLD.search(head):
            raise h11.RemoteProtocolError("a header goes on in a second line")
        if len(LENGTHS.findall(head)) > 1:  # h11 would make one of two that are equal
            raise h11.RemoteProtocolError("two lengths")

    def _check_request(self, request: h11.Request) -> None:
        self._num_chunks = self._num_body_bytes = self._num_empty_bytes = 0
        self._is_head = request.method == b"HEAD"
        names = {name for name, _ in request.headers}
        if request.http_version == b"1.0" and names & {b"transfer-encoding", b"upgrade"}:
            raise h11.RemoteProtocolError("HTTP/1.0 has neither chunks nor upgrades")

    def _count_chunk(self, part: h11.Data) -> None:
        """A chunk may come in parts, and only the last one counts."""
        self._num_body_bytes += len(part.data)
        self._num_chunks += part.chunk_end
        if self._num_chunks > FREE_CHUNKS + self._num_body_bytes // BYTES_PER_CHUNK:
            raise h11.RemoteProtocolError("too many small chunks")
