"""`Tab`: a user who asks, stops, deletes, loses the connection and comes back, all by dice.

It is a client as docs/protocol.md tells clients to be: keys are sent again until they are answered,
positions bring back what was missed, and refusals that pass are tried again.
"""

import asyncio
import contextlib
import os
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Protocol

from websockets.exceptions import WebSocketException

from tests.end_to_end.clients.counted_words import count_lies
from tests.end_to_end.frames.client_model import Answer, Frame, is_final
from tests.end_to_end.oracle.connection_check import SESSION_EVENTS
from tests.end_to_end.oracle.history import OWNERS
from tests.end_to_end.site.client import Closed
from tests.end_to_end.site.fault_proxy import FaultProxy
from tests.end_to_end.site.harness import Client, Server
from tests.helpers.tiny_model import oracle_answer, oracle_word

LINK: dict[str, Any] = {
    "open_timeout": 5,
    "close_timeout": 1,
    "ping_interval": 2,
    "ping_timeout": 4,
}
TRANSIENT = ("store_unavailable", "engine_unavailable", "draining", "queue_full", "rate_limited")
# How an answer may end that nobody stopped: `owner_lost` when three owners died with it,
# `engine_error` when two cores did before it had another token.
ENDS = {"max_output_tokens", "owner_lost", "engine_error", "server_shutdown"}
GONE = ("session_not_found", "not_subscribed", "response_not_found", "message_not_found")
QUEUED_FIELDS = ("idempotency_key", "input", "settings")
FAR = 10**9  # a position beyond the truth
# No bug of the server, no misunderstanding: nobody's fault but the faults'.
CLOSES = {1000, 1001, 1012, 1013, 4008, 4401, 4410}
LATE_PING = (1011, "keepalive ping timeout")
STOPPED = ENDS | {"client_cancelled", "superseded", "steered"}


class Surroundings(Protocol):
    """Where a tab lives. `is_over`: finish what was begun."""

    server: Server
    clients: FaultProxy  # another way to the server
    ends: Counter[str]  # of answers, by reason
    deeds: Counter[str]  # of tabs
    is_over: bool
    tabs: "list[Tab]"
    evicted: set[str]  # sessions that an admin may have evicted
    words: dict[str, int]  # by response: what it was asked
    more_ends: frozenset[str]  # how answers may end beside the usual

    def right(self, text: str) -> str:
        """What the model says where this text is, if its engines may have lied."""

    async def token(self, refused: str | None) -> str:
        """The guest's token; another than the one that was refused."""


SHOWS = frozenset(
    (
        *("response.created", "response.in_progress", "response.done"),
        *("response.output_text.delta", "response.output_text.snapshot"),
    )
)


@dataclass
class Question:
    """What a tab wants to know, under one key until it is acknowledged."""

    key: str
    word: int
    num_tokens: int
    on_busy: str
    place: Frame = field(default_factory=dict)  # `parent_id` or `regenerate_of`
    message: str = ""  # the answer's
    steers: str | None = None  # the answer that it ends; "": it waits for it

    def frame(self, session: str) -> Frame:
        question: Frame = {} if "regenerate_of" in self.place else {"input": oracle_word(self.word)}
        return {
            "session_id": session,
            "idempotency_key": self.key,
            "on_busy": self.on_busy,
            "settings": {"temperature": 0, "max_output_tokens": self.num_tokens},
            **question,
            **self.place,
        }


@dataclass
class Tab:
    """One user's tab on one session: it reconnects as docs/protocol.md tells clients to."""

    around: Surroundings
    dice: random.Random
    is_guest: bool = False  # a user of their own, whose tokens are revoked now and then
    to_ask: list[int] = field(default_factory=list)  # words, each of which it asks once
    token: str | None = None
    session: str = ""
    since: float = 0.0  # when the session was made
    is_gone: bool = False  # the session was thrown away with the store
    position: Frame | None = None  # epoch and offset of the last session event
    answers: dict[str, Answer] = field(default_factory=dict)
    asked: dict[str, Question] = field(default_factory=dict)  # by response
    pending: Question | None = None  # not acknowledged yet
    queued: Question | None = None  # kept by the server, and not yet seen to begin
    is_queued_hit: bool = False  # what was stopped or replaced since then may have been its answer
    stops: set[str] = field(default_factory=set)  # sent, and not yet seen to work
    stopped: set[str] = field(default_factory=set)
    judged: set[str] = field(default_factory=set)
    num_asked: int = 0
    is_deleting: bool = False
    num_noted: int = 0  # frames of this connection

    @property
    def open(self) -> list[str]:
        return [rid for rid in self.asked if not self._has_final_end(rid)]

    @property
    def _has_work(self) -> bool:
        return bool(not self.around.is_over or self.open or self.pending or self.queued)

    def _has_final_end(self, response: str) -> bool:
        answer = self.answers.get(response)
        return answer is not None and is_final(answer.done)

    async def live(self) -> None:
        """Act until the round is over and every answer has ended."""
        while self._has_work:
            try:
                await self._connect()
            except (Closed, OSError, WebSocketException, TimeoutError):
                await asyncio.sleep(self.dice.uniform(0.05, 0.5))

    async def _connect(self) -> None:
        address = self.dice.choice((None, self.around.clients.address))
        if self.is_guest and self.token is None:
            self.token = await self.around.token(None)
        client = Client(self.around.server, address=address, token=self.token, **LINK)
        try:
            async with client:
                client.record.credential = self.token or ""
                client.answers = self.answers
                self.num_noted = 0
                try:
                    await self._attach(client)
                    while self._has_work:
                        await self._act(client)
                        self._note(client)
                        self._look_for_loss()
                finally:
                    self._note(client)
        finally:
            if client.close_code is not None and client.was_closed:
                await self._take_close(client.close_code, client.socket.close_reason)
            if self.is_gone:
                self._begin_anew()

    async def _take_close(self, code: int, reason: str | None) -> None:
        # After ten wrong tokens of this address, by whichever tabs, one more is not read.
        is_throttled = code == 4429 and self.is_guest
        is_known = code in CLOSES or (code, reason) == LATE_PING or is_throttled
        assert is_known, f"closed with {code} {reason}"
        if code == 4401 or is_throttled:
            assert self.is_guest, "nobody revoked this token"
            self.token = await self.around.token(self.token)
        if code == 4410:
            assert self.session in self.around.evicted, f"nobody evicted {self.session}"

    def _look_for_loss(self) -> None:
        if self.is_gone:
            raise Closed("the session is gone")

    def _lose(self, error: Frame) -> bool:
        """Whether that refusal says that the store has lost the session, and may say so."""
        if error["error"]["code"] not in GONE:
            return False
        assert self._may_be_gone(), error
        self.is_gone = True
        return True

    def _may_be_gone(self) -> bool:
        """A delete that was refused may be carried out all the same, if Redis had it already."""
        return self.is_deleting or self.around.server.history.may_be_lost(self.since)

    async def _attach(self, client: Client) -> None:
        if not self.session:
            created = await client.reply("session.create", idempotency_key=os.urandom(8).hex())
            if created["type"] == "error":
                await self._wait_as_told(created)
                raise Closed("try again")
            self.session, self.since = created["session"]["id"], time.monotonic()
            self.position = {"epoch": created["epoch"], "offset": created["offset"]}
            return
        known = {rid: self.answers.get(rid, Answer()) for rid in self.open}
        positions = [
            {"response_id": rid, "fence": a.fence or 1, "after_sequence_number": a.last}
            for rid, a in known.items()
        ]
        if positions and (deed := self.dice.random()) < 0.1:
            if deed < 0.05:
                await self._ask_for_a_negative_position(client, positions[0])
            self.around.deeds["position beyond the truth"] += 1
            positions[0]["after_sequence_number"] = FAR
        fields: Frame = {"session_id": self.session, "responses": positions}
        if self.position is not None and self.dice.random() < 0.7:
            fields["after"] = self.position
        subscribed = await client.reply("session.subscribe", **fields)
        if subscribed["type"] == "error":
            if self._lose(subscribed):
                raise Closed("the session is gone")
            await self._wait_as_told(subscribed)
            raise Closed("try again")
        for response in sorted(self.stops):  # unanswered frames are sent again
            await client.send("stop", response_id=response)

    def _note(self, client: Client) -> None:
        """Where the session's events are, and how answers ended."""
        for response, answer in self.answers.items():
            is_new = response in self.asked and response not in self.judged
            if is_new and is_final(answer.done):
                self._judge(response, answer)
        noted, self.num_noted = self.num_noted, len(client.frames)
        for frame in client.frames[noted:]:
            kind = frame["type"]
            if kind == "session.subscribed":
                epoch, offset = frame["epoch"], frame["offset"]
                if frame["recovered"] and self.position:
                    offset = min(offset, self.position["offset"])
                self.position = {"epoch": epoch, "offset": offset}
            elif kind == "session.deleted" and frame["session_id"] == self.session:
                assert self._may_be_gone(), frame
                self.is_gone = True
            elif kind in SESSION_EVENTS and frame.get("session_id") == self.session:
                if self.position is not None:
                    self.position = {**self.position, "offset": frame["offset"]}

    async def _act(self, client: Client) -> None:
        if self.pending is not None:
            await self._ask(client, self.pending)
        elif self.queued is not None and (not self.open or self.dice.random() < 0.5):
            await self._look_after(client, self.queued)
        elif self.open and self.queued is None and self.dice.random() < 0.1:
            self._think_ahead()
        elif self.open and (len(self.open) > 2 or self.dice.random() < 0.8):
            await self._watch(client, self.open[0])
        elif self.around.is_over:
            return
        elif not self.open and (deed := self.dice.random()) < 0.15:
            if deed < 0.05:
                await self._delete(client)
            elif deed < 0.1:
                await self._pry(client)
            else:
                await self._read_slowly(client)
        else:
            self._think()

    def _think(self) -> None:
        """Of a new question, another one in its place, or another answer to it."""
        self.num_asked += 1
        self.pending = Question(
            key=f"k{self.num_asked}",
            word=self.to_ask.pop(),
            num_tokens=self.dice.choice((3, 20, 60, 150)),
            on_busy=self.dice.choice(("reject", "queue", "cancel")),
        )
        ended = [q for rid, q in self.asked.items() if rid not in self.open and q.message]
        if ended and (deed := self.dice.random()) < 0.3:
            other = self.dice.choice(ended)
            if deed < 0.15:
                self.around.deeds["edit"] += 1
                self.pending.place = {"parent_id": self.dice.choice((None, other.message))}
            else:
                self.around.deeds["regenerate"] += 1
                self.pending.place = {"regenerate_of": other.message}
                self.pending.word = other.word

    def _think_ahead(self) -> None:
        """Of a question for after the answer that is being written, or of more words for it."""
        self.num_asked += 1
        self.pending = Question(
            key=f"k{self.num_asked}",
            word=self.to_ask.pop(),
            num_tokens=self.dice.choice((3, 20, 60)),
            on_busy="queue",
            steers=self.dice.choice(("", self.open[0])),
        )

    async def _hand(self, client: Client, question: Question) -> Frame:
        """Have a question kept by the server; the same key again says what has become of it."""
        named = {name: question.frame(self.session)[name] for name in QUEUED_FIELDS}
        if question.steers:
            return await client.reply(
                "response.steer", previous_response_id=question.steers, **named
            )
        return await client.reply("queue.add", session_id=self.session, **named)

    def _begin(self, response: str, question: Question) -> None:
        """It is known under which response a question is answered."""
        self.asked[response] = question
        self.around.words[response] = question.word

    async def _look_after(self, client: Client, question: Question) -> None:
        """A stop or a failure has the queue pause: it goes on."""
        reply = await self._hand(client, question)
        if reply["type"] == "error":
            if not self._lose(reply):
                assert reply["error"]["code"] in TRANSIENT, reply
                await self._wait_as_told(reply)
            return
        if reply["status"] == "waiting":
            if question.steers:
                self.stopped.add(question.steers)
            reply = await client.reply("queue.send", session_id=self.session)
            await asyncio.sleep(self.dice.uniform(0.02, 0.2))
            return
        assert reply["status"] == "begun", reply
        self.around.deeds["steer" if question.steers else "queue"] += 1
        self._begin(reply["response_id"], question)
        if self.is_queued_hit:
            self.stopped.add(reply["response_id"])
        self.queued = None
        # It may have ended while nobody was connected who knew that it is this tab's.
        if not is_shown(reply["response_id"], client.frames):
            answer = self.answers.get(reply["response_id"], Answer())
            position = {"fence": answer.fence or 1, "after_sequence_number": answer.last}
            await client.send("response.resume", response_id=reply["response_id"], **position)

    async def _read_slowly(self, client: Client) -> None:
        self.around.deeds["slow reader"] += 1
        client.socket.transport.pause_reading()
        await asyncio.sleep(self.dice.uniform(0.2, 5.0))
        client.socket.transport.resume_reading()

    async def _pry(self, client: Client) -> None:
        """Ask for an answer of another user: it is like none."""
        others = [
            rid for tab in self.around.tabs if tab.is_guest != self.is_guest for rid in tab.open
        ]
        if others:
            self.around.deeds["foreign answer"] += 1
            position = {"response_id": self.dice.choice(others), "fence": 1}
            refused = await client.reply("response.resume", **position, after_sequence_number=1)
            assert refused["type"] == "error", refused
            assert refused["error"]["code"] in (*TRANSIENT, "response_not_found"), refused

    async def _ask_for_a_negative_position(self, client: Client, position: Frame) -> None:
        self.around.deeds["negative position"] += 1
        refused = await client.reply(
            "session.subscribe",
            session_id=self.session,
            responses=[{**position, "after_sequence_number": -1}],
        )
        assert refused["type"] == "error", refused
        assert refused["error"]["code"] in (*TRANSIENT, "invalid_field"), refused

    async def _ask(self, client: Client, question: Question) -> None:
        if question.steers is not None:
            if question.steers:
                self.stopped.add(question.steers)
            reply = await self._hand(client, question)
            if reply["type"] != "error":
                self.pending, self.queued = None, question
                self.is_queued_hit = False
            elif not self._lose(reply):
                assert reply["error"]["code"] in TRANSIENT, reply
                await self._wait_as_told(reply)
            return
        frame = question.frame(self.session)
        if question.on_busy == "cancel":
            self.stopped.update(self.open)
            self.is_queued_hit = True
        for _ in range(self.dice.choice((1, 1, 1, 3))):  # and the same key again
            created = await client.reply("response.create", **frame)
        if created["type"] == "error":
            code = created["error"]["code"]
            if self._lose(created):
                return
            assert code in (*TRANSIENT, "response_in_progress"), created
            if code == "response_in_progress":
                self.pending = None
            await self._wait_as_told(created)
            return
        if created["type"] == "session.deleted":
            return
        question.message = created["response"]["message_id"]
        self._begin(created["response"]["id"], question)
        self.pending = None

    async def _watch(self, client: Client, response: str) -> None:
        """Wait for the end; or stop it, ask for another in its place, or lose the connection."""
        deed = self.dice.random()
        if deed < 0.15:
            client.cut()
            raise Closed("cut")
        if deed < 0.5:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.dice.uniform(0, 1.5)):
                    await self._done(client, response)
                    return
            self.stops.add(response)
            self.stopped.add(response)
            if deed < 0.25:
                await client.send("stop", session_id=self.session)
                self.stopped.update(self.open)
                self.is_queued_hit = True
            else:
                await client.send("stop", response_id=response)
        await self._done(client, response)
        self.stops.discard(response)

    async def _done(self, client: Client, response: str) -> None:
        """Wait for the answer's end, or for the news that its session is gone."""

        def has_ended() -> bool:
            news = client.frames[-20:]
            is_gone = any(
                f["type"] == "session.deleted" and f["session_id"] == self.session for f in news
            )
            return is_gone or self._has_final_end(response)

        await client.wait(has_ended, f"response.done of {response}")

    def _judge(self, response: str, answer: Answer) -> None:
        assert answer.done is not None
        self.judged.add(response)
        reason = answer.done["response"]["status_details"]["reason"]
        self.around.ends[reason] += 1
        allowed = (STOPPED if response in self.stopped else ENDS) | self.around.more_ends
        if self.session in self.around.evicted:
            allowed = allowed | {"admin_cancelled"}
        if self.around.server.history.may_be_lost(self.since):
            allowed = allowed | {"store_lost"}
        if self.is_deleting:
            allowed = allowed | {"session_deleted"}
        assert reason in allowed, f"{response} ended {answer.done['response']}"
        if reason == "owner_lost":  # not because an owner took its prompt or text for another's
            assert answer.done["fence"] > OWNERS, answer.done
        question = self.asked[response]
        expected = oracle_answer(question.word, question.num_tokens)
        said = self.around.right(answer.final)
        self.around.deeds["wrong token shown"] += count_lies(answer.final)
        if reason == "max_output_tokens":
            assert said == expected, (answer.final, expected, answer.frames[-8:])
        elif not answer.is_text_unknown:
            assert expected.startswith(said), (reason, answer.final, expected)

    async def _delete(self, client: Client) -> None:
        self.is_deleting = True
        deleted = await client.reply("session.delete", session_id=self.session)
        if deleted["type"] == "error" and deleted["error"]["code"] != "session_not_found":
            await self._wait_as_told(deleted)
            return
        self._begin_anew()
        raise Closed("another session")

    def _begin_anew(self) -> None:
        self.session, self.position, self.is_deleting, self.is_gone = "", None, False, False
        self.asked.clear()
        self.stops.clear()
        self.pending = self.queued = None

    async def _wait_as_told(self, error: Frame) -> None:
        wait_ms = error["error"].get("retry_after_ms", 100)
        await asyncio.sleep(min(wait_ms, 1000) / 1000 * self.dice.uniform(0.5, 1.0))


def is_shown(response: str, frames: list[Frame]) -> bool:
    """Whether a connection was sent something of an answer, or heard that it will be."""
    return any(
        response in frame.get("active_responses", ())
        or (frame["type"] in SHOWS and response == frame.get("response_id", of_response(frame)))
        for frame in frames
    )


def of_response(frame: Frame) -> str | None:
    """The id of the whole response in a frame."""
    found: str | None = frame.get("response", {}).get("id")
    return found
