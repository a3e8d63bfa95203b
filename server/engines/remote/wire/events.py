"""`EventReader`: the events of a stream (server-sent events), from its bytes as they come."""

from server.engines.remote.wire.problems import Broken

MAX_EVENT_BYTES = 1 << 20  # of one event: a token, and the best hundred that it could have been


class EventReader:
    """Only the data of events is of use here; comments, names and ids are passed over."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []  # of a line that has not ended
        self._rest_bytes = 0
        self._data: list[bytes] = []  # of an event that has not ended
        self._num_bytes = 0  # of these

    def feed(self, content: bytes) -> list[bytes]:
        """The data of the events that end in it. Raises `Broken` for one without an end."""
        events = []
        for line in self._lines(content):
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
                self._num_bytes += len(line)
            elif not line and self._data:
                events.append(b"\n".join(self._data))
                self._data, self._num_bytes = [], 0
        if self._rest_bytes + self._num_bytes > MAX_EVENT_BYTES:
            raise Broken(f"an event of more than {MAX_EVENT_BYTES} bytes")
        return events

    def _lines(self, content: bytes) -> list[bytes]:
        """Those that end in it. Until one ends its pieces are kept: they may be many and small."""
        first, *others = content.split(b"\n")
        self._rest.append(first)
        self._rest_bytes += len(first)
        if not others:
            return []
        lines = [b"".join(self._rest), *others[:-1]]
        self._rest, self._rest_bytes = [others[-1]], len(others[-1])
        return lines
