"""`ChatClient`: what a client of chat.v1 does and keeps, over any transport."""

import asyncio
import json
import os
from collections.abc import Callable
from typing import Any

import msgspec

from tests.end_to_end.frames.client_model import Answer, Frame
from tests.end_to_end.oracle.connection_check import Connection
from tests.end_to_end.oracle.history import History
from tests.helpers.declared_frames import check_server_frame
from tests.helpers.patience import PATIENCE


class Closed(AssertionError):
    """The connection is gone, and what was waited for cannot come."""


class ChatClient:
    """Follows the ordering rules, asserts them, and records everything in a history.

    A subclass brings frames by `take`, the close by `end`, and sends in `_transmit`.
    """

    record: Connection

    def __init__(self, history: History) -> None:
        self._history = history
        self.frames: list[Frame] = []
        self.answers: dict[str, Answer] = {}
        self.close_code: int | None = None
        self.broken: AssertionError | None = None  # a rule of the protocol
        self._replayed: set[str] = set()  # what the same key had begun before
        self._next = 0
        self._arrived = asyncio.Condition()

    def open_record(self) -> None:
        """The connection is there."""
        self.record = self._history.connect(type(self).__name__)

    async def take(self, frame: Frame) -> None:
        """A frame of the server. Raises AssertionError if it breaks a rule or is not as defined."""
        try:
            check_server_frame(frame)
        except msgspec.ValidationError as error:
            raise AssertionError(f"not as server_frames.py says: {error}: {frame}") from None
        self.record.received(frame)
        async with self._arrived:
            self.frames.append(frame)
            self._apply(frame)
            self._arrived.notify_all()

    async def end(self, close_code: int) -> None:
        """The connection is gone; 0 without a close frame."""
        async with self._arrived:
            self.close_code = close_code
            self.record.closed(close_code)
            self._arrived.notify_all()

    async def _transmit(self, text: str) -> None:
        raise NotImplementedError

    def _apply(self, frame: Frame) -> None:
        """The ordering rules, asserted."""
        message = frame["message"] if frame["type"] == "message.updated" else {}
        if message.get("status") == "in_progress" and "content" in message:
            # An answer goes on after the text that its message has.
            text = "".join(part["text"] for part in message["content"])
            self.answers.setdefault(message["response_id"], Answer(text=text))
        response_id = frame.get("response_id") or frame.get("response", {}).get("id")
        if "sequence_number" not in frame:
            return
        answer = self.answers.setdefault(response_id, Answer())
        if frame.get("replayed"):
            self._replayed.add(response_id)
            return
        first = frame.get("first_sequence_number", frame["sequence_number"])
        if response_id in self._replayed and first == 2:
            answer.begin_at(1, "")  # the same key on another connection: all comes once more
        is_ended = answer.done is not None and answer.done["durable"]
        if frame["type"] == "response.done" and is_ended:
            return  # whether it was asked for again, and is the same end, the history says
        answer.apply(frame)

    async def send(self, kind: str, **fields: Any) -> None:
        await self.send_frame({"type": kind, **fields})

    async def send_frame(self, frame: Frame) -> None:
        self.record.sent(frame)
        await self._transmit(json.dumps(frame))

    async def wait(
        self,
        condition: Callable[[], Any],
        what: str = "a frame",
        seconds: float = PATIENCE,
    ) -> Any:
        """Wait until the condition is true of what has arrived, and return its value."""
        try:
            async with asyncio.timeout(seconds), self._arrived:
                while not (value := condition()):
                    if self.broken is not None:
                        raise self.broken
                    if self.close_code is not None:
                        raise Closed(f"closed with {self.close_code} before {what}")
                    await self._arrived.wait()
                return value
        except TimeoutError:
            kinds = [frame["type"] for frame in self.frames[-8:]]
            raise AssertionError(f"no {what}; last frames: {kinds}") from None

    async def next(self, *kinds: str) -> Frame:
        """The next frame of one of these types; those before it are passed over."""

        def find() -> Frame | None:
            while self._next < len(self.frames):
                frame = self.frames[self._next]
                self._next += 1
                if frame["type"] in kinds:
                    return frame
            return None

        frame: Frame = await self.wait(find, " or ".join(kinds))
        return frame

    async def reply(self, kind: str, **fields: Any) -> Frame:
        """Send a frame and return its direct reply, or the error that answers it."""
        event_id = os.urandom(8).hex()
        await self.send(kind, event_id=event_id, **fields)

        def find() -> Frame | None:
            for frame in self.frames:
                if event_id in (frame.get("event_id"), frame.get("error", {}).get("event_id")):
                    return frame
            return None

        frame: Frame = await self.wait(find, f"reply to {kind}")
        return frame

    async def new_session(self, **fields: Any) -> str:
        key = os.urandom(8).hex()
        created = await self.reply("session.create", idempotency_key=key, **fields)
        assert created["type"] == "session.created", created
        return str(created["session"]["id"])

    async def ask(self, session_id: str, text: str | list[Frame], **fields: Any) -> str:
        """Send `response.create` and return the response's id."""
        fields.setdefault("idempotency_key", os.urandom(8).hex())
        frame = await self.reply("response.create", session_id=session_id, input=text, **fields)
        assert frame["type"] == "response.created", frame
        return str(frame["response"]["id"])

    async def deltas(self, response_id: str, count: int) -> Answer:
        """Wait until so many deltas of the answer have come."""
        return await self.wait(  # type: ignore[no-any-return]
            lambda: (a := self.answers.get(response_id)) and a.num_deltas >= count and a,
            f"{count} deltas",
        )

    async def done(self, response_id: str, seconds: float = PATIENCE) -> Answer:
        """Wait for the end of the answer."""
        return await self.wait(  # type: ignore[no-any-return]
            lambda: (a := self.answers.get(response_id)) and a.done and a,
            f"response.done of {response_id}",
            seconds,
        )

    async def closed(self) -> int:
        await self.wait(lambda: self.close_code is not None, "the close")
        assert self.close_code is not None
        return self.close_code
