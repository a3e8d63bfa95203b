"""`StoredAnswer`: a response that is kept, read from its log, or from its message after that."""

import contextlib
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from server.api.responses.answer.answer_events import AnswerEvents
from server.api.responses.answer.emitter import AnswerEvent
from server.api.responses.answer.rebuilt import rebuilt
from server.api.responses.answer.response_object import Outcome
from server.commands.doors.entries import StoredEntries
from server.commands.doors.straight import Straight
from server.commands.services import Services
from sessions.model.errors import MessageNotFound, ResponseNotFound, SessionNotFound
from sessions.model.events import Event, ObjectEvent
from sessions.model.ids import session_of
from sessions.model.records import Message
from sessions.store.kept.responses import KeptResponse

LOST = Outcome("failed", "store_lost")


class StoredAnswer:
    """One response of a user."""

    def __init__(self, services: Services, uid: str, kept: KeptResponse) -> None:
        self._services = services
        self._store = services.store
        self._uid = uid
        self.kept = kept
        self._answer = AnswerEvents(self._asked, kept.message_id)

    @property
    def _asked(self) -> dict[str, Any]:
        kept = self.kept
        return {**kept.asked, "id": kept.response_id, "created_at": kept.created_at // 1000}

    def response(self) -> dict[str, Any]:
        """The object, as far as `events` were read."""
        return self._answer.response()

    async def events(
        self, straight: Straight[AnswerEvent] | None = None
    ) -> AsyncGenerator[Sequence[AnswerEvent], None]:
        """All its events in batches, which may be empty, but for those that go `straight`.

        Raises `ResponseNotFound` if it is deleted meanwhile.
        """
        yield self._answer.begin()
        to_entries = None if straight is None else straight.after(self._take)
        entries = StoredEntries(self._services, self._uid, self.kept.response_id, to_entries)
        try:
            with contextlib.suppress(ResponseNotFound):  # its log is gone: there is its message
                async for batch in entries.batches():
                    yield self._take(batch)
        finally:
            await entries.close()
        if not self._answer.is_over:
            num_emitted = self._answer.num_emitted
            self._answer, events = await self._rebuilt()
            yield events[num_emitted:]

    def _take(self, batch: Sequence[Event]) -> list[AnswerEvent]:
        return [each for event in batch for each in self._answer.take(event)]

    async def now(self) -> dict[str, Any]:
        """The object as it is now. Raises `ResponseNotFound`."""
        events, is_live = await self._known()
        answer = AnswerEvents(self._asked, self.kept.message_id)
        for event in events:
            answer.take(event)
        if answer.is_over:
            return answer.response()
        if is_live:
            return {**answer.response(), "status": _status(events)}
        return (await self._rebuilt())[0].response()

    async def _known(self) -> tuple[Sequence[Event], bool]:
        """What the log has, and whether more may come."""
        response_id = self.kept.response_id
        run = self._services.runs.local(response_id)
        if run is not None and not run.is_elsewhere and not run.settled.is_set():
            return run.events[: run.num_stored], True
        try:
            record = await self._store.runs.get(self._uid, response_id)
        except ResponseNotFound:
            return (), False
        found = await self._store.runs.events(response_id)
        return [event for _, event in found], record.is_live

    async def _rebuilt(self) -> tuple[AnswerEvents, list[AnswerEvent]]:
        message = await self._message()
        if message.status != "in_progress":
            return rebuilt(self._asked, message)
        answer = AnswerEvents(self._asked, message.id)  # nobody writes it any more
        return answer, [*answer.begin(), *answer.end(LOST)]

    async def _message(self) -> Message:
        session_id = session_of(self.kept.response_id)
        try:
            return await self._store.messages.get(self._uid, session_id, self.kept.message_id)
        except (SessionNotFound, MessageNotFound):
            raise ResponseNotFound from None


def _status(events: Sequence[Event]) -> str:
    """Of an answer that has not ended."""
    kinds = (event.data["type"] for event in events if isinstance(event, ObjectEvent))
    return "in_progress" if "response.in_progress" in kinds else "queued"
