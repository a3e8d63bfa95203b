"""A stored answer as server-sent events, for as long as its client reads; the answer goes on."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, aclosing

from starlette.responses import Response

from server.access.auth import address_of
from server.api.openai.streams import StreamBody, TokenStream
from server.api.responses.answer.emitter import AnswerEvent
from server.api.responses.answer.error_event import error_event
from server.api.responses.stored import StoredAnswer
from server.api.rest.event_stream import HttpViewer
from server.api.rest.operation import ApiContext, Call
from server.commands.doors.straight import Straight
from server.protocol.errors import ApiError
from server.protocol.store_errors import translate_store_errors

RETRY_MS = 5000  # for one who has too many streams open


def stream(context: ApiContext, call: Call, answer: StoredAnswer, after: int = -1) -> Response:
    """The events after that number. Raises `ApiError` for one who has too many streams open."""
    services, address = context.services, address_of(call.request)
    if not services.connections.enter(call.uid, address):
        raise ApiError("rate_limited", "too many connections are open", retry_after_ms=RETRY_MS)
    viewer = HttpViewer(call.uid)
    with_leave = AsyncExitStack()
    with_leave.callback(services.connections.leave, call.uid, address)
    context.streams.add(viewer)
    with_leave.callback(context.streams.discard, viewer)
    with_leave.enter_context(services.identities.holding(call.user, viewer.put_error))
    body = StreamBody(call.request.scope)
    events = _Stream(viewer, body, after).chunks(answer)
    return TokenStream(events, body, with_leave.aclose)


class _Stream:
    """One client's way through the events of an answer, from after that number on."""

    def __init__(self, viewer: HttpViewer, body: StreamBody, after: int) -> None:
        self._viewer = viewer
        self._body = body
        self._last = after
        self._straight = Straight(self._is_open, self._write)

    async def chunks(self, answer: StoredAnswer) -> AsyncGenerator[bytes, None]:
        """What does not go straight into the body."""
        try:
            with translate_store_errors():
                async with aclosing(answer.events(self._straight)) as events:
                    async for batch in events:
                        if self._viewer.refusal is not None:
                            raise self._viewer.refusal
                        if self._viewer.is_closing:
                            return  # the worker restarts: the client comes with its last number
                        if new := self._new(batch):
                            yield encode(new)
        except ApiError as error:
            yield encode([error_event(error, self._last + 1)])

    def _is_open(self) -> bool:
        viewer = self._viewer
        return viewer.refusal is None and not viewer.is_closing and self._body.is_open()

    def _write(self, batch: Sequence[AnswerEvent]) -> None:
        if new := self._new(batch):
            self._body.write(encode(new))

    def _new(self, batch: Sequence[AnswerEvent]) -> Sequence[AnswerEvent]:
        new = [each for each in batch if each.sequence_number > self._last]
        if new:
            self._last = new[-1].sequence_number
        return new


def encode(events: Sequence[AnswerEvent]) -> bytes:
    """As the body of an answer has them."""
    return b"".join(b"event: %b\ndata: %b\n\n" % (each.type.encode(), each.data) for each in events)
