"""What one websocket shows by itself: numbers that join, text by the rules, a stop that holds."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from tests.end_to_end.frames.client_model import UNKNOWN, Answer, Frame, is_final, matches
from tests.end_to_end.oracle.stored_state import Stored

STOPS = ("stop", "response.cancel")
TEXT_EVENTS = ("response.output_text.delta", "response.output_text.snapshot")
SESSION_EVENTS = (
    "message.created",
    "message.updated",
    "session.updated",
    "session.deleted",
    "session.evicted",
    "queue.updated",
)


def response_of(frame: Frame) -> str | None:
    """The response that a frame is about, None if it is about none."""
    response_id = frame.get("response_id")
    if response_id is None and isinstance(frame.get("response"), dict):
        response_id = frame["response"].get("id")
    return response_id


def session_of(response_id: str) -> str:
    return "ses_" + response_id.removeprefix("resp_")[:22]


@dataclass
class Record:
    time: float  # monotonic
    is_request: bool
    frame: Frame


@dataclass
class Connection:
    """What went over one websocket, both ways, with time."""

    name: str
    records: list[Record] = field(default_factory=list)
    closed_at: float | None = None
    close_code: int | None = None
    credential: str = ""  # which one it was opened with, where the test takes some away
    knows_requests: bool = True  # False where it sent things that are not among the records

    def sent(self, frame: Frame) -> None:
        self.records.append(Record(time.monotonic(), True, frame))

    def received(self, frame: Frame) -> None:
        self.records.append(Record(time.monotonic(), False, frame))

    def closed(self, code: int | None) -> None:
        self.closed_at, self.close_code = time.monotonic(), code

    @property
    def frames(self) -> list[Frame]:
        return [record.frame for record in self.records if not record.is_request]

    @property
    def requests(self) -> list[Frame]:
        return [record.frame for record in self.records if record.is_request]

    def has_live_answer(self, at: float) -> bool:
        """Whether an answer had begun here and not ended by that time."""
        last: dict[str, str] = {}
        for record in self.records:
            response_id = response_of(record.frame)
            if record.is_request or record.time >= at or response_id is None:
                continue
            kind = record.frame["type"]
            # A repeated question is answered so, also after the end.
            is_repeat = kind == "response.created" and record.frame["replayed"]
            if not (is_repeat and response_id in last):
                last[response_id] = kind
        return any(kind != "response.done" for kind in last.values())

    def has_heard(self, start: float, end: float) -> bool:
        """Whether it hears something meanwhile, or knows already that something is away."""
        away: set[str] = set()
        for record in self.records:
            if record.time > end or record.is_request:
                continue
            if record.time >= start:
                return True
            kind = record.frame["type"]
            if kind == "connection.degraded":
                away |= {"store", "engine"} & record.frame.keys()
            elif kind == "connection.restored":
                away -= record.frame.keys()
        return bool(away)


@dataclass
class _Watched:
    """The check's own picture of one response."""

    answer: Answer = field(default_factory=Answer)
    has_begun: bool = False
    asks: dict[int, int] = field(default_factory=dict)  # asked-for position → its fence
    num_asks: int = 0  # requests that may be answered with a `response.done`
    num_dones: int = 0
    is_frozen: bool = False


class ConnectionCheck:
    """I2, G1, G3 and I8 of one connection, and its texts against the log as far as it goes.

    O1 is the first ordering rule: what ends a message comes after the end of its answer, the one
    that is stored.
    """

    def __init__(
        self,
        connection: Connection,
        stored: Stored | None,
        takeovers: Mapping[str, Sequence[float]] = MappingProxyType({}),
    ) -> None:
        self.connection = connection
        self._stored = stored
        self._takeovers = takeovers  # of each response, when anybody heard of it
        self._asked_at = 0.0  # of the last request
        self._watched: dict[str, _Watched] = {}
        self._offsets: dict[str, int] = {}  # of the sessions that it is subscribed to
        self._subscribes: dict[str, Frame] = {}  # by session, the last request
        self._event_ids: set[str] = set()
        self._open: set[str] = set()  # answers that began here since the subscription did
        self._has_stopped = False
        self._stops: list[Frame] = []
        self._user: str | None = None

    def violations(self) -> Iterator[str]:
        """Go through the records, in order; call once."""
        for place, record in enumerate(self.connection.records):
            if record.is_request:
                self._asked_at = record.time
                self._take_request(record.frame)
                continue
            for violation in self._take(record.frame):
                yield f"{violation}\n{self._around(place)}"
        for response_id, watched in self._watched.items():
            if watched.answer.done is None:
                yield from self._check_text(response_id, watched.answer)

    def ended(self) -> Iterator[tuple[str, Answer]]:
        """The answers of which this connection saw the end."""
        for response_id, watched in self._watched.items():
            if watched.answer.done is not None:
                yield response_id, watched.answer

    def _around(self, place: int) -> str:
        """The frames before and after a violation, one on each line."""
        lines = [f"    on {self.connection.name}:"]
        for number in range(max(0, place - 4), min(len(self.connection.records), place + 2)):
            record = self.connection.records[number]
            pointer = ">" if number == place else " "
            side = "C" if record.is_request else "S"
            lines.append(f"    {pointer} {record.time:.3f} {side} {str(record.frame)[:300]}")
        return "\n".join(lines)

    # ---- requests -------------------------------------------------------------------------------

    def _take_request(self, frame: Frame) -> None:
        kind = frame.get("type")
        if isinstance(event_id := frame.get("event_id"), str):
            self._event_ids.add(event_id)
        if kind in STOPS:
            self._has_stopped = True
            self._count_ask(lambda rid: _names(frame, rid))
            self._stops.append(frame)
            if isinstance(response_id := frame.get("response_id"), str):
                self._watch(response_id)
        elif kind == "response.resume":
            self._ask(frame)
        elif kind == "session.subscribe":
            session_id = str(frame.get("session_id"))
            self._subscribes[session_id] = frame
            for position in frame.get("responses") or ():
                self._ask(position)
            self._count_ask(lambda rid: session_of(rid) == session_id)
        elif kind == "session.unsubscribe":
            self._offsets.pop(str(frame.get("session_id")), None)
        elif kind == "response.create":
            self._count_ask(lambda rid: session_of(rid) == frame.get("session_id"))

    def _watch(self, response_id: str) -> _Watched:
        """What was seen of a response. A stop that named its session or its key may have been
        sent before anything of it could be seen, and is answered with its end all the same.
        """
        if response_id not in self._watched:
            num_asks = sum(_names(stop, response_id) for stop in self._stops)
            self._watched[response_id] = _Watched(num_asks=num_asks)
        return self._watched[response_id]

    def _ask(self, position: Frame) -> None:
        number, fence = position.get("after_sequence_number"), position.get("fence")
        if isinstance(number, int) and isinstance(fence, int):
            watched = self._watch(str(position.get("response_id")))
            watched.asks[number] = fence
            watched.num_asks += 1

    def _count_ask(self, is_meant: Callable[[str], bool]) -> None:
        for response_id, watched in self._watched.items():
            if is_meant(response_id):
                watched.num_asks += 1

    # ---- frames ---------------------------------------------------------------------------------

    def _take(self, frame: Frame) -> Iterator[str]:
        kind = frame["type"]
        response_id = response_of(frame)
        yield from self._check_wall(frame)
        if kind == "connection.ready":
            self._user = frame.get("user", {}).get("id")
        elif kind in SESSION_EVENTS or kind in ("session.created", "session.subscribed"):
            yield from self._take_session_event(frame)
        elif response_id is None:
            return
        elif kind == "response.cancelling":
            self._watch(response_id).is_frozen = self._has_stopped
        elif kind == "response.queued" and frame["reason"] == "takeover":
            # What was asked for under the old fence goes on under the next.
            watched = self._watch(response_id)
            watched.asks = {number: fence + 1 for number, fence in watched.asks.items()}
        elif kind == "response.created" and frame["replayed"]:
            watched = self._watch(response_id)
            watched.asks.setdefault(1, frame["fence"])  # the rest of the log comes next
            watched.num_asks += 1
        elif "sequence_number" in frame:
            yield from self._take_numbered(kind, response_id, frame)

    def _check_wall(self, frame: Frame) -> Iterator[str]:
        """I8: nothing of another user's sessions."""
        response_id = response_of(frame)
        session_id = frame.get("session_id") or (session_of(response_id) if response_id else None)
        if self._stored is None or self._user is None or session_id is None:
            return
        session = self._stored.sessions.get(session_id)
        if session is not None and session.fields.get("uid", self._user) != self._user:
            if not self._subscribes.get(session_id, {}).get("observe"):
                yield f"I8 a frame of {session_id} went to user {self._user}"

    def _take_session_event(self, frame: Frame) -> Iterator[str]:
        """I2 for session events: the offsets of a subscribed session join."""
        kind = frame["type"]
        session_id = frame.get("session_id") or frame["session"]["id"]
        if kind == "session.created":
            if frame.get("event_id") in self._event_ids:
                self._offsets[session_id] = frame["offset"]
        elif kind == "session.subscribed":
            self._open = {rid for rid in self._open if session_of(rid) != session_id}
            after = self._subscribes.get(session_id, {}).get("after")
            self._offsets[session_id] = frame["offset"]
            if frame["recovered"] and after:
                self._offsets[session_id] = after["offset"]
                if after["epoch"] != frame["epoch"]:
                    yield "I2 recovered, and in another epoch than the client's"
        elif (offset := self._offsets.get(session_id)) is not None:
            if frame["offset"] != offset + 1:
                yield f"I2 session event {frame['offset']} after {offset}"
            self._offsets[session_id] = frame["offset"]
            message = frame["message"] if kind == "message.updated" else {}
            response_id = message.get("response_id")
            if response_id in self._open and message["status"] != "in_progress":
                yield f"O1 message.updated before the response.done of {response_id}"

    def _take_numbered(self, kind: str, response_id: str, frame: Frame) -> Iterator[str]:
        watched = self._watch(response_id)
        answer = watched.answer
        if watched.is_frozen and kind in TEXT_EVENTS:
            yield "G1 text after response.cancelling, on the connection that asked"
        if kind == "response.done":
            if is_final(frame):
                self._open.discard(response_id)
            watched.num_dones += frame["durable"]
            if self.connection.knows_requests and watched.num_dones > 1 + watched.num_asks:
                yield f"G3 response.done number {watched.num_dones}"
            if answer.done is not None and answer.done["durable"]:
                return
            if not watched.has_begun and watched.asks:  # it had everything, and was sent the end
                position = max(watched.asks)
                answer.begin_at(position, self._log_text(response_id, position))
        elif kind == "response.output_text.snapshot":
            if watched.num_asks:
                answer.done = None
            if frame["part"] == 1 and frame["fence"] == answer.fence:
                yield from self._check_text(response_id, answer)
        else:
            yield from self._place(watched, response_id, frame)
        watched.has_begun = True
        if kind != "response.done":
            self._open.add(response_id)
        try:
            answer.apply(frame)
        except AssertionError as broken:
            yield f"I2 {broken}"
            answer.last = frame["sequence_number"]  # go on from there

    def _place(self, watched: _Watched, response_id: str, frame: Frame) -> Iterator[str]:
        """Whether a numbered event comes where the client is, or where it asked to be."""
        answer = watched.answer
        if answer.done is not None and not answer.done["durable"]:
            answer.done = None  # that was not promised yet
        first = int(frame.get("first_sequence_number") or frame["sequence_number"])
        position = first - 1
        if answer.done is None and watched.has_begun and position == answer.last:
            return
        is_asked = position in watched.asks
        is_free = not watched.has_begun and (position == 0 or not self.connection.knows_requests)
        if is_asked or is_free:
            if is_asked and position > 1 and watched.asks[position] != frame["fence"]:
                # Of a takeover between the log and what follows it this connection does not hear;
                # of one when everybody was away, nobody does.
                heard = self._takeovers.get(response_id, ())
                if heard and not any(at >= self._asked_at for at in heard):
                    yield f"I2 replayed under fence {frame['fence']}, asked for under another"
            answer.begin_at(position, self._log_text(response_id, position))
        else:
            state = f"at {answer.last}" if watched.has_begun else "not begun"
            yield f"I2 event {first}: {state}, asked for after {sorted(watched.asks)}"

    # ---- texts ----------------------------------------------------------------------------------

    def _log_text(self, response_id: str, number: int) -> str | None:
        """The message's text as of an entry of the log; None where the log does not tell."""
        run = self._stored.run(response_id) if self._stored else None
        if run is None or not any(n == number for n, _ in run.events):
            return "" if number == 0 else None
        return UNKNOWN * run.text_start + run.text_at(number)

    def _check_text(self, response_id: str, answer: Answer) -> Iterator[str]:
        """I1: one of held text and log is the beginning of the other."""
        run = self._stored.run(response_id) if self._stored else None
        if run is None or not run.events or str(answer.fence) != run.fields.get("fence"):
            return
        stored = self._log_text(response_id, run.events[-1][0]) or ""
        size = min(len(answer.text), len(stored))
        if not matches(answer.text[:size], stored[:size]):
            held = answer.text[-80:]
            yield f"I1 {self.connection.name} holds what is not in {response_id}: {held!r}"


def _names(frame: Frame, response_id: str) -> bool:
    """Whether a stop may mean this response."""
    if frame.get("response_id") is not None:
        return bool(frame["response_id"] == response_id)
    return frame.get("session_id") in (None, session_of(response_id))
