"""A stored answer as server-sent events, for as long as its client reads; the answer goes on."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, aclosing

from starlette.responses import Response

from server.access.auth import address_of
from server.api.openai.streams import StreamBody, TokenStream
from server.api.responses.answer.error_event import error_event
from server.api.responses.answer.teller import AnswerEvent
from server.api.responses.stored import StoredAnswer
from server.api.rest.event_stream import HttpViewer
from server.api.rest.operation import ApiContext, Call
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
    return TokenStream(_chunks(viewer, answer, after), body, with_leave.aclose)


async def _chunks(
    viewer: HttpViewer, answer: StoredAnswer, after: int
) -> AsyncGenerator[bytes, None]:
    last = after
    try:
        with translate_store_errors():
            async with aclosing(answer.events()) as events:
                async for told in events:
                    new = [each for each in told if each.sequence_number > after]
                    if viewer.refusal is not None:
                        raise viewer.refusal
                    if viewer.is_closing:
                        return  # the worker restarts: the client comes again with its last number
                    if new:
                        last = new[-1].sequence_number
                        yield encode(new)
    except ApiError as error:
        yield encode([error_event(error, last + 1)])


def encode(told: Sequence[AnswerEvent]) -> bytes:
    """As the body of an answer has them."""
    return b"".join(b"event: %b\ndata: %b\n\n" % (each.type.encode(), each.data) for each in told)
