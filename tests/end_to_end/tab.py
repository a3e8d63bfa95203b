"""`Tab`: a user who asks, stops, deletes, loses the connection and comes back, all by dice.

It is a client as docs/protocol.md tells clients to be: keys are sent again until they are answered,
positions bring back what was missed, and refusals that pass are tried again.
"""

import asyncio
import contextlib
import os
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Protocol

from websockets.exceptions import WebSocketException

from tests.end_to_end.client import Closed
from tests.end_to_end.client_model import Answer, Frame
from tests.end_to_end.connection_check import SESSION_EVENTS
from tests.end_to_end.fault_proxy import FaultProxy
from tests.end_to_end.harness import Client, Server
from tests.tiny_model import oracle_answer, oracle_word

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
OWNERS = 3  # after so many an answer is given up
STOPPED = ENDS | {"client_cancelled", "superseded"}


class Surroundings(Protocol):
    """Where a tab lives. `is_over`: finish what was begun."""

    server: Server
    clients: FaultProxy  # another way to the server
    ends: Counter[str]  # of answers, by reason
    is_over: bool


@dataclass
class Question:
    """What a tab wants to know, under one key until it is acknowledged."""

    key: str
    word: int
    num_tokens: int
    on_busy: str

    def frame(self, session: str) -> Frame:
        return {
            "session_id": session,
            "idempotency_key": self.key,
            "input": oracle_word(self.word),
            "on_busy": self.on_busy,
            "settings": {"temperature": 0, "max_output_tokens": self.num_tokens},
        }


@dataclass
class Tab:
    """One user's tab on one session: it reconnects as docs/protocol.md tells clients to."""

    around: Surroundings
    dice: random.Random
    session: str = ""
    position: Frame | None = None  # epoch and offset of the last session event
    answers: dict[str, Answer] = field(default_factory=dict)
    asked: dict[str, Question] = field(default_factory=dict)  # by response
    pending: Question | None = None  # not acknowledged yet
    stops: set[str] = field(default_factory=set)  # sent, and not yet seen to work
    stopped: set[str] = field(default_factory=set)
    judged: set[str] = field(default_factory=set)
    num_asked: int = 0
    is_deleting: bool = False
    num_noted: int = 0  # frames of this connection

    @property
    def open(self) -> list[str]:
        return [rid for rid in self.asked if (a := self.answers.get(rid)) is None or not a.done]

    async def live(self) -> None:
        """Act until the round is over and every answer has ended."""
        while not self.around.is_over or self.open or self.pending:
            try:
                await self._connect()
            except (Closed, OSError, WebSocketException, TimeoutError):
                await asyncio.sleep(self.dice.uniform(0.05, 0.5))

    async def _connect(self) -> None:
        address = self.dice.choice((None, self.around.clients.address))
        async with Client(self.around.server, address=address, **LINK) as client:
            client.answers = self.answers
            self.num_noted = 0
            try:
                await self._attach(client)
                while not self.around.is_over or self.open or self.pending:
                    await self._act(client)
                    self._note(client)
            finally:
                self._note(client)

    async def _attach(self, client: Client) -> None:
        if not self.session:
            created = await client.reply("session.create", idempotency_key=os.urandom(8).hex())
            if created["type"] == "error":
                await self._wait_as_told(created)
                raise Closed("try again")
            self.session = created["session"]["id"]
            self.position = {"epoch": created["epoch"], "offset": created["offset"]}
            return
        positions = [
            {"response_id": rid, "fence": a.fence, "after_sequence_number": a.last}
            for rid in self.open
            if (a := self.answers.get(rid)) is not None and a.last
        ]
        fields: Frame = {"session_id": self.session, "responses": positions}
        if self.position is not None and self.dice.random() < 0.7:
            fields["after"] = self.position
        subscribed = await client.reply("session.subscribe", **fields)
        if subscribed["type"] == "error":
            if self.is_deleting and subscribed["error"]["code"] == "session_not_found":
                self._begin_anew()
            await self._wait_as_told(subscribed)
            raise Closed("try again")
        for response in sorted(self.stops):  # unanswered frames are sent again
            await client.send("stop", response_id=response)

    def _note(self, client: Client) -> None:
        """Where the session's events are, and how answers ended."""
        for response, answer in self.answers.items():
            if answer.done is not None and response in self.asked and response not in self.judged:
                self._judge(response, answer)
        noted, self.num_noted = self.num_noted, len(client.frames)
        for frame in client.frames[noted:]:
            kind = frame["type"]
            if kind == "session.subscribed":
                epoch, offset = frame["epoch"], frame["offset"]
                if frame["recovered"] and self.position:
                    offset = min(offset, self.position["offset"])
                self.position = {"epoch": epoch, "offset": offset}
            elif kind in SESSION_EVENTS and frame.get("session_id") == self.session:
                if self.position is not None:
                    self.position = {**self.position, "offset": frame["offset"]}

    async def _act(self, client: Client) -> None:
        if self.pending is not None:
            await self._ask(client, self.pending)
        elif self.open and (len(self.open) > 2 or self.dice.random() < 0.8):
            await self._watch(client, self.open[0])
        elif self.around.is_over:
            return
        elif not self.open and self.dice.random() < 0.05:
            await self._delete(client)
        else:
            self.num_asked += 1
            self.pending = Question(
                key=f"k{self.num_asked}",
                word=self.dice.randrange(1, 9_000),
                num_tokens=self.dice.choice((3, 20, 60, 150)),
                on_busy=self.dice.choice(("reject", "queue", "cancel")),
            )

    async def _ask(self, client: Client, question: Question) -> None:
        frame = question.frame(self.session)
        if question.on_busy == "cancel":
            self.stopped.update(self.open)
        for _ in range(self.dice.choice((1, 1, 1, 3))):  # and the same key again
            created = await client.reply("response.create", **frame)
        if created["type"] == "error":
            code = created["error"]["code"]
            assert code in (*TRANSIENT, "response_in_progress"), created
            if code == "response_in_progress":
                self.pending = None
            await self._wait_as_told(created)
            return
        self.asked[created["response"]["id"]] = question
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
                    await client.done(response)
                    return
            self.stops.add(response)
            self.stopped.add(response)
            if deed < 0.25:
                await client.send("stop", session_id=self.session)
                self.stopped.update(self.open)
            else:
                await client.send("stop", response_id=response)
        await client.done(response)
        self.stops.discard(response)

    def _judge(self, response: str, answer: Answer) -> None:
        assert answer.done is not None
        self.judged.add(response)
        reason = answer.done["response"]["status_details"]["reason"]
        self.around.ends[reason] += 1
        allowed = STOPPED if response in self.stopped else ENDS
        assert reason in allowed, f"{response} ended {answer.done['response']}"
        if reason == "owner_lost":  # not because an owner took its prompt or text for another's
            assert answer.done["fence"] > OWNERS, answer.done
        if reason == "max_output_tokens":
            question = self.asked[response]
            expected = oracle_answer(question.word, question.num_tokens)
            assert answer.final == expected, (answer.final, expected, answer.frames[-8:])

    async def _delete(self, client: Client) -> None:
        self.is_deleting = True
        deleted = await client.reply("session.delete", session_id=self.session)
        if deleted["type"] == "error" and deleted["error"]["code"] != "session_not_found":
            await self._wait_as_told(deleted)
            return
        self._begin_anew()
        raise Closed("another session")

    def _begin_anew(self) -> None:
        self.session, self.position, self.is_deleting = "", None, False
        self.asked.clear()
        self.stops.clear()

    async def _wait_as_told(self, error: Frame) -> None:
        wait_ms = error["error"].get("retry_after_ms", 100)
        await asyncio.sleep(min(wait_ms, 1000) / 1000 * self.dice.uniform(0.5, 1.0))
