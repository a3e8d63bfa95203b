"""The history checker: every frame of every client and every Redis entry, against the invariants.

A `History` belongs to a store: one `parley serve`, or several on one Redis. Clients record into it
what they send and receive. `check` reads Redis and the cores' counters, and raises
`HistoryViolated` with each broken invariant (I…, of docs/reliability.md; G…, of the stop guarantee)
and the frames around it. What one connection shows is judged in `connection_check`, what the store
shows in `store_check`; here is what only all of them together show.
"""

import contextlib
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.end_to_end.frames.client_model import UNKNOWN, Frame, is_final, matches
from tests.end_to_end.oracle.connection_check import (
    Connection,
    ConnectionCheck,
    Record,
    response_of,
    session_of,
)
from tests.end_to_end.oracle.store_check import check_store
from tests.end_to_end.oracle.stored_state import Stored, StoredRun
from tests.helpers.running_time import Since, running_time

# After the last end: engine idle, messages stored, indexes clean. A beginning that had no reply is
# in the index of live runs until its lease of 10 s has ended and a sweep has come.
SETTLE_SECONDS = 13.0
HEARD_SECONDS = 10.0
TRANSIT_SECONDS = 5.0  # that a frame may be on its way through a broken link
REVOKED_SECONDS = 15.0  # in which a connection must end: 5 s, and the longest outage
STOPS = ("stop", "response.cancel")
OWNERS = 3  # after so many an answer is given up


class HistoryViolated(AssertionError):
    """What was recorded or stored breaks an invariant."""


@dataclass
class EngineCounts:
    """What a core says of itself."""

    running: float
    waiting: float
    blocks_free: float
    blocks_free_at_rest: float  # when it had just started
    requests_total: float


class History:
    """`read_store` gives what is stored, None where nobody can look.

    `engines` give the counts of the cores that serve now, None where one does not.
    """

    def __init__(self, read_store: Callable[[], Stored | None]) -> None:
        self._read_store = read_store
        self.engines: list[Callable[[], EngineCounts | None]] = []
        self.connections: list[Connection] = []
        self.judged: list[Connection] = []  # those of the last check
        self.faults: list[tuple[Since, str]] = []
        self.is_data_lost = False  # the test threw stored data away, on purpose
        self.are_stops_recorded = False  # every stop was sent by a recorded connection
        self.num_checks = 0
        self.num_stateless = 0  # requests of which nothing is stored
        self.counts_requests = True  # the engines say how many they took, and forget none
        # What the model says where a stored text is, if an engine may have lied.
        self.right: Callable[[str], str] = str
        self._flushes: list[float] = []
        self._revoked: dict[str, Since] = {}  # credential → when
        self._fences: dict[str, int] = {}  # of each response ever seen
        self._keys: dict[str, set[str]] = defaultdict(set)  # of questions, by session
        self._stopped: set[str] = set()  # what stops have named: responses, sessions or `all`
        self._num_connections = 0

    def connect(self, name: str = "connection") -> Connection:
        """A new connection to record into."""
        self._num_connections += 1
        connection = Connection(f"{name} {self._num_connections}")
        self.connections.append(connection)
        return connection

    def fault(self, what: str) -> None:
        """Note what was done to the product just now: affected clients must hear of it."""
        self.faults.append((Since(), what))

    @contextlib.contextmanager
    def flushing(self) -> Iterator[Callable[[Stored], None]]:
        """Throw everything away inside: that, and no more, may be missing from now on.

        What was stored in the last moment goes to what is given.
        """
        self._flushes.append(time.monotonic())
        yield self._note_fences

    def may_be_lost(self, acknowledged_at: float) -> bool:
        """Whether what was acknowledged then may have been thrown away since."""
        return any(acknowledged_at < at + TRANSIT_SECONDS for at in self._flushes)

    def revoke(self, credential: str) -> None:
        """Note that the credential counts no longer: its connections must end."""
        self._revoked[credential] = Since()

    def check(self) -> None:
        """Raise `HistoryViolated` unless every invariant holds within `SETTLE_SECONDS`."""
        deadline = running_time() + SETTLE_SECONDS
        while violations := list(self.violations()):
            if running_time() > deadline:
                lines = "\n".join(f"- {violation}" for violation in violations[:20])
                self.forget()
                raise HistoryViolated(f"{len(violations)} violations\n{lines}")
            time.sleep(0.1)  # what settles is seen from outside: there is no event to wait for
        self.num_checks += 1
        self.forget()

    def forget(self) -> None:
        """Drop what was recorded of closed connections."""
        self._note_fences(None)
        self.judged = self.connections
        self.connections = [c for c in self.connections if c.closed_at is None]
        self.faults.clear()
        self._flushes.clear()

    def violations(self) -> Iterator[str]:
        """What is broken at this moment, a text for each."""
        stored = None if self.is_data_lost else self._read_store()
        takeovers = self._takeovers()
        checks = [ConnectionCheck(it, stored, takeovers) for it in self.connections]
        for check in checks:
            yield from check.violations()
        yield from self._check_ends()
        yield from self._check_heard()
        yield from self._check_revoked()
        self._note_fences(stored)
        if stored is None:
            return
        yield from check_store(stored, self.right)
        yield from self._check_stored_ends(checks, stored)
        yield from self._check_acknowledged(stored)
        if self.are_stops_recorded:
            yield from self._check_aim(stored)
        yield from self._check_engines(stored)

    # ---- what all connections show together -----------------------------------------------------

    def _check_ends(self) -> Iterator[str]:
        """G2, G3, G4: one end for all, the one that a durable stop promised, and then silence."""
        ends: dict[str, dict[tuple[object, ...], Record]] = defaultdict(dict)
        for record in self._received():
            if record.frame["type"] == "response.done" and record.frame["durable"]:
                ends[record.frame["response"]["id"]].setdefault(end_of(record.frame), record)
        for connection in self.connections:
            for record in connection.records:
                frame, response_id = record.frame, response_of(record.frame)
                if record.is_request or response_id is None:
                    continue
                known = ends.get(response_id, {})
                if frame["type"] == "response.cancelling" and frame["durable"]:
                    for end in known:
                        if end[0] != "cancelled":
                            yield f"G2 {response_id} was to be cancelled and ended as {end}"
                for end, done in known.items():
                    if _is_after(record, done):
                        yield f"G4 {connection.name} got {str(frame)[:200]} after the end {end}"
        for response_id, known in ends.items():
            if len(known) > 1:
                yield f"G3 {response_id} has {len(known)} different ends: {list(known)}"

    def _takeovers(self) -> dict[str, list[float]]:
        """When somebody heard that an answer has another owner."""
        times: dict[str, list[float]] = defaultdict(list)
        for record in self._received():
            frame = record.frame
            if frame["type"] == "response.queued" and frame.get("reason") == "takeover":
                times[frame["response_id"]].append(record.time)
        return times

    def _received(self) -> list[Record]:
        """What all connections have received, in order."""
        records = [r for c in self.connections for r in c.records if not r.is_request]
        return sorted(records, key=lambda record: record.time)

    def _check_stored_ends(self, checks: list[ConnectionCheck], stored: Stored) -> Iterator[str]:
        """I1, I3, G2, G3, G5: the last end that each connection saw is the stored one, text too.

        One that was sent before it was stored counts where the connection is still there: nobody
        may be left with it. Who went before the other could come was promised nothing.
        """
        for response_id in sorted(self._promised_stops()):
            run = stored.run(response_id)
            if run is not None and run.fields and not run.is_live and run.status != "cancelled":
                yield f"G2 {response_id} was to be cancelled, and is stored as {run.status}"
        for check in checks:
            for response_id, answer in check.ended():
                assert answer.done is not None
                run = stored.run(response_id)
                if not is_final(answer.done):
                    if check.connection.closed_at is None:
                        yield (
                            f"G3 {check.connection.name}: {response_id} ended as "
                            f"{end_of(answer.done)}, not stored, and no other end was sent; "
                            f"stored is {_stored_end(run)}"
                        )
                    continue
                session = stored.sessions.get(session_of(response_id))
                if session is None or not session.fields:
                    continue
                message = session.messages.get(answer.done["response"]["message_id"])
                name = f"{check.connection.name}: {response_id}"
                if message is None:
                    yield f"I4 {name}: its message is not stored"
                    continue
                if run is not None and run.fields and answer.done["durable"]:
                    if (end := _stored_end(run)) != end_of(answer.done):
                        yield f"I3 {name}: was sent {end_of(answer.done)}, stored is {end}"
                if answer.is_text_unknown:
                    continue
                if message.get("response_id") == response_id:
                    text = message["content"][0]["text"]
                    if not matches(answer.final, text):
                        yield f"I1 {name}: holds {_ends(answer.final)}, stored is {_ends(text)}"
                if not matches(UNKNOWN * answer.done["response"]["text_length"], answer.final):
                    yield f"I1 {name}: holds {_ends(answer.final)} of {end_of(answer.done)}"

    def _promised_stops(self) -> set[str]:
        """Answers of which somebody heard that their stop is stored."""
        return {
            frame["response_id"]
            for frame in (record.frame for record in self._received())
            if frame["type"] == "response.cancelling"
            and frame["durable"]
            and frame["response_id"] is not None
        }

    def _check_acknowledged(self, stored: Stored) -> Iterator[str]:
        """I4, I5: what was acknowledged is stored, once, under one response for each key."""
        begun: dict[tuple[str, str], set[str]] = defaultdict(set)
        inputs: dict[tuple[str, str], object] = {}
        answers: dict[str, Frame] = {}
        since: dict[str, float] = {}  # when a session was first heard of
        for connection in self.connections:
            for frame in connection.requests:
                if frame.get("type") == "response.create" and "input" in frame:
                    key = str(frame.get("session_id")), str(frame.get("idempotency_key"))
                    inputs.setdefault(key, frame["input"])
            for record in connection.records:
                frame = record.frame
                if not record.is_request and frame["type"] == "response.created":
                    response = frame["response"]
                    session_id = response["session_id"]
                    begun[session_id, frame["idempotency_key"]].add(response["id"])
                    answers[response["id"]] = response
                    since[session_id] = min(record.time, since.get(session_id, record.time))
        for (session_id, name), response_ids in begun.items():
            if len(response_ids) > 1:
                yield f"I5 key {name} of {session_id} began {sorted(response_ids)}"
            session = stored.sessions.get(session_id)
            if any(since[session_id] < at for at in self._flushes):
                if session is not None and session.fields:
                    yield f"I4 session {session_id} was thrown away, and is there again"
                continue
            if session is None:
                if not self.may_be_lost(since[session_id]):
                    yield f"I4 session {session_id} is gone without a trace"
                continue
            if not session.fields:
                continue
            response = answers[min(response_ids)]
            message = session.messages.get(response["message_id"])
            if message is None:
                yield f"I4 no message of the acknowledged {response['id']}"
                continue
            question = session.messages.get(message["parent_id"] or "")
            said = inputs.get((session_id, name))
            if isinstance(said, str) and (
                question is None or question["content"][0]["text"] != said
            ):
                yield f"I4 {response['id']} answers {question}, asked was {said!r}"

    def _check_aim(self, stored: Stored) -> Iterator[str]:
        """G9: what was stopped was named by somebody."""
        for connection in self.connections:
            for frame in connection.requests:
                if frame.get("type") in STOPS:
                    self._stopped.add(frame.get("response_id") or frame.get("session_id") or "all")
        for session_id, session in stored.sessions.items():
            for response_id, run in session.runs.items():
                if run.fields.get("reason") == "client_cancelled":
                    if not self._stopped & {response_id, session_id, "all"}:
                        yield f"G9 {response_id} is cancelled, and nobody asked for it"

    def _check_heard(self) -> Iterator[str]:
        """I11: within 10 s of a fault, a client with a live answer hears something."""
        now = time.monotonic()
        for fault, what in self.faults:
            at, limit = fault.moment, fault.after(HEARD_SECONDS)
            if now < limit:
                continue
            for connection in self.connections:
                closed = connection.closed_at
                has_heard = connection.has_heard(at, limit)
                if connection.has_live_answer(at) and not has_heard:
                    if closed is None or closed > limit:
                        yield f"I11 {connection.name} heard nothing for 10 s: {what}"

    def _check_revoked(self) -> Iterator[str]:
        """P8: who came with a credential that counts no longer is sent nothing more."""
        for connection in self.connections:
            revoked = self._revoked.get(connection.credential)
            if revoked is not None:
                limit = revoked.after(REVOKED_SECONDS)
                late = [r for r in connection.records if r.time > limit]
                if any(not record.is_request for record in late):
                    yield f"P8 {connection.name} goes on with a revoked token"

    def _note_fences(self, stored: Stored | None) -> None:
        """Which responses there are, by what is stored or was shown, and how often they began."""
        for session in stored.sessions.values() if stored is not None else ():
            for response_id, run in session.runs.items():
                fence = int(run.fields.get("fence", 1))
                self._fences[response_id] = max(fence, self._fences.get(response_id, 0))
        for connection in self.connections:
            for frame in connection.frames:
                if (known := response_of(frame)) is not None:
                    fence = frame.get("fence", 1)
                    self._fences[known] = max(fence, self._fences.get(known, 0))
            for frame in connection.requests:
                if frame.get("type") in ("response.create", "queue.add", "response.steer"):
                    steered = frame.get("previous_response_id")
                    session_id = frame.get("session_id") if steered is None else session_of(steered)
                    self._keys[str(session_id)].add(str(frame.get("idempotency_key")))

    def _max_requests(self, stored: Stored) -> int:
        """How many requests the engine may have been sent.

        Of sessions that are gone nobody knows how often their answers were taken over, nor which of
        their questions were begun.
        """
        known: Counter[str] = Counter()
        for response_id, fence in self._fences.items():
            known[session_of(response_id)] += fence
        for session_id, keys in self._keys.items():
            session = stored.sessions.get(session_id)
            if session is None or not session.fields:
                known[session_id] = max(known[session_id], OWNERS * len(keys))
        return known.total()

    def _check_engines(self, stored: Stored) -> Iterator[str]:
        """I6, and the engine's half of I5."""
        for counts in filter(None, [read() for read in self.engines]):
            known = self._max_requests(stored) + self.num_stateless
            if self.counts_requests and counts.requests_total > known:
                yield (
                    f"I5 the core took {counts.requests_total:.0f} requests for "
                    f"{known} responses and takeovers"
                )
            if stored.live_runs():
                continue
            if counts.running or counts.waiting:
                yield f"I6 no answer is live, and the core has {counts}"
            elif counts.blocks_free != counts.blocks_free_at_rest:
                yield f"I6 not all blocks came back: {counts}"


def _is_after(record: Record, done: Record) -> bool:
    """Whether an event has no business beside this end.

    An owner that died may have shown more than it had stored; but not later than the end.
    """
    if record.frame.get("sequence_number", 0) <= done.frame["sequence_number"]:
        return False
    is_older = record.frame["fence"] < done.frame["fence"]
    return not is_older or record.time > done.time + TRANSIT_SECONDS


def end_of(done: Frame) -> tuple[object, ...]:
    """What of a `response.done` must be the same for everybody."""
    response = done["response"]
    reason = response["status_details"]["reason"]
    return response["status"], done["sequence_number"], response["text_length"], reason


def _stored_end(run: StoredRun | None) -> tuple[object, ...] | None:
    """The same of what is stored; None where nothing is."""
    if run is None or not run.fields:
        return None
    number, length = int(run.fields["sequence_number"]), int(run.fields["text_length"])
    return run.status, number, length, run.fields.get("reason")


def _ends(text: str) -> str:
    """A long text, short enough to read."""
    return repr(text) if len(text) < 120 else f"{text[:40]!r}…{text[-60:]!r} ({len(text)})"
