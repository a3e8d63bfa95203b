"""`Exchange`: one `response.create`, from its turn in its lane to its last event.

A stored answer is streamed from its log, as over HTTP, and goes on when its client leaves. One that
is not stored ends then. Words that steer an answer are kept in its session's queue; the answer that
follows with them is streamed in the same lane.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass

import structlog
from starlette.requests import HTTPConnection

from server.access.identities import User
from server.api.openai.streams import next_of
from server.api.responses.answer.emitter import AnswerEvent
from server.api.responses.beginning import Beginning
from server.api.responses.request import named_as_given
from server.api.responses.socket.events import on_lane, refusal
from server.api.responses.socket.frames import Create
from server.api.responses.socket.steering import Steering
from server.api.responses.socket.stops import Stops
from server.api.responses.socket.writer import Writer
from server.api.responses.stored import StoredAnswer
from server.api.responses.unstored import UnstoredEvents, asked_of
from server.commands.doors.straight import Straight
from server.commands.services import Services
from server.commands.stateless.answer import StatelessAnswer
from server.commands.stateless.asked import Heard
from server.protocol.errors import ApiError
from server.protocol.store_errors import translate_store_errors
from sessions.background import start
from sessions.store.kept.responses import KeptResponse

logger = structlog.get_logger("server")

MAX_HISTORY = 2000  # messages before an answer that is not stored


@dataclass(frozen=True, slots=True)
class Parts:
    """What the exchanges of one connection share."""

    services: Services
    user: User
    http: HTTPConnection  # names the asker's span, if it has one
    writer: Writer


class Exchange:
    """`run` streams the answer. The others may be called meanwhile."""

    def __init__(self, parts: Parts, frame: Create) -> None:
        self.response_id: str | None = None  # of the answer that is streamed now
        self._parts = parts
        self._services = parts.services
        self._uid = parts.user.uid
        self._frame = frame
        self._beginning = Beginning(parts.services)
        self._last: int | None = None  # number that was sent
        self._is_stopped = asyncio.Event()
        self._stops = Stops(parts.services, self._uid)
        self._steering: Steering | None = None  # of an answer that is stored

    @property
    def steering(self) -> Steering | None:
        """None as long as there is nothing that could be steered."""
        return self._steering

    @property
    def stream_id(self) -> str | None:
        return self._frame.stream_id

    def stop(self) -> None:
        """End the answer; one that has not begun ends as soon as it has."""
        self._is_stopped.set()
        if self._steering is not None and self.response_id is not None:
            self._stops.stop(self.response_id)

    async def run(self) -> None:
        """Every refusal is an event, and the connection stays."""
        try:
            with translate_store_errors():
                await self._services.identities.confirm(self._parts.user)
                if self._frame.request.is_stored:
                    await self._stream_stored()
                else:
                    await self._stream_unstored()
        except ApiError as error:
            await self._refuse(error)
        except Exception:
            logger.exception("exchange failed", response_id=self.response_id)
            await self._refuse(ApiError("internal", "an internal error occurred"))
        finally:
            self._stops.close()

    async def _refuse(self, error: ApiError) -> None:
        self._services.metrics.count_error(error.code)
        number = None if self._last is None else self._last + 1
        await self._parts.writer.send([refusal(error, self.stream_id, number)])

    async def _send(self, events: Sequence[AnswerEvent]) -> None:
        if events:
            await self._parts.writer.send(self._frames(events))

    def _write(self, events: Sequence[AnswerEvent]) -> None:
        if events:
            self._parts.writer.write(self._frames(events))

    def _frames(self, events: Sequence[AnswerEvent]) -> list[bytes]:
        self._last = events[-1].sequence_number
        return [on_lane(each.data, self.stream_id) for each in events]

    # ---- answers that are stored ----------------------------------------------------------------

    async def _stream_stored(self) -> None:
        frame = self._frame
        kept, _ = await self._beginning.begin(
            self._uid, frame.request, frame.body, self._parts.http
        )
        self._steering = Steering(self._services, self._uid, frame, self._parts.writer)
        following: KeptResponse | None = kept
        while following is not None:
            await self._stream(following)
            following = await self._steering.following(following)

    async def _stream(self, kept: KeptResponse) -> None:
        self.response_id, self._last = kept.response_id, None
        if self._is_stopped.is_set():
            self._stops.stop(kept.response_id)
        answer = StoredAnswer(self._services, self._uid, kept)
        straight = Straight(self._parts.writer.is_open, self._write)
        async with aclosing(answer.events(straight)) as events:
            async for batch in events:
                await self._send(batch)

    # ---- answers that are not stored ------------------------------------------------------------

    async def _stream_unstored(self) -> None:
        request, beginning = self._frame.request, self._beginning
        place = await beginning.place(self._uid, request)
        before = await beginning.tail(self._uid, place, MAX_HISTORY)
        new = await beginning.messages(self._uid, request, place)
        model = request.model or self._services.models.default.name
        async with AsyncExitStack() as leave:
            with named_as_given():
                asked = asked_of(request, model, [*before, *new])
                answers = self._services.stateless.answers
                answer = await answers.begin(self._uid, asked, leave)
                heard = answer.events()
                leave.push_async_callback(heard.aclose)
                await self._hear(
                    answer, heard, UnstoredEvents(answer, {**request.echo(), "model": model})
                )

    async def _hear(
        self, answer: StatelessAnswer, heard: AsyncGenerator[Heard, None], events: UnstoredEvents
    ) -> None:
        self.response_id = answer.id
        await self._send(events.begin())
        stopped, coming = start(self._is_stopped.wait()), start(next_of(heard))
        try:
            while True:
                await asyncio.wait((coming, stopped), return_when=asyncio.FIRST_COMPLETED)
                if stopped.done():
                    break
                if (each := coming.result()) is None:
                    return
                await self._send(events.take(each))
                coming = start(next_of(heard))
        finally:
            await _drop(stopped)
            await _drop(coming)  # the engine's blocks are free within a step
        await self._send(events.cancelled())


async def _drop(task: "asyncio.Task[object]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
