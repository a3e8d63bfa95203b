"""`EventReader`: the events of a stream (server-sent events), from its bytes as they come."""

from server.engines.remote.wire.problems import Broken

MAX_EVENT_BYTES = 1 << 20  # of one event: a token, and the best hundred that it could have been


class EventReader:
    """Only the data of events is of use here; comments, names and ids are passed over."""

    def __init__(self) -> None:
        self._rest = b""  # a line that has not ended
        self._data: list[bytes] = []  # of an event that has not ended
        self._num_bytes = 0  # of these

    def feed(self, content: bytes) -> list[bytes]:
        """The data of the events that end in it. Raises `Broken` for one without an end."""
        events = []
        *lines, self._rest = (self._rest + content).split(b"\n")
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
                self._num_bytes += len(line)
            elif not line and self._data:
                events.append(b"\n".join(self._data))
                self._data, self._num_bytes = [], 0
        if len(self._rest) + self._num_bytes > MAX_EVENT_BYTES:
            raise Broken(f"an event of more than {MAX_EVENT_BYTES} bytes")
        return events
