"""`/v1/responses`, as OpenAI's clients use it.

An address of one response serves the responses of our own doors, too: they answer as they always
did.
"""

from typing import Annotated, Any

from msgspec import Meta, Struct
from starlette.responses import Response

from server.api.openai.exchange import try_of
from server.api.openai.refusals import not_here, refuse
from server.api.openai.streams import ClientGone, check_is_here, gone, until_gone
from server.api.responses.beginning import Beginning
from server.api.responses.event_stream import stream
from server.api.responses.input_items import ItemsQuery, input_items
from server.api.responses.request import Asking, ResponsesRequest, check_include, named_as_given
from server.api.responses.stored import StoredAnswer
from server.api.responses.unstored import answer_unstored, asked_of
from server.api.rest.objects import Document
from server.api.rest.operation import (
    LAST_EVENT_ID,
    OPTIONAL_KEY,
    Access,
    ApiContext,
    Call,
    Operation,
    body_of,
    json_response,
    read_object,
)
from server.api.rest.responses import ResponseOperations
from server.commands.doors.removal import remove_response
from server.commands.stateless.tries import Try
from server.protocol.client_frames import MAX_INTEGER, CancelResponse, to_struct
from server.protocol.errors import ApiError
from server.protocol.objects import ResponseObject
from server.protocol.server_frames import ResponseCancelling, ResponseDone
from sessions.model.errors import ResponseNotFound
from sessions.model.ids import check_response_id
from sessions.model.records import Message
from sessions.store.kept.responses import KeptResponse

MAX_HISTORY = 2000  # messages before an answer that is not stored


class ReadQuery(Struct, frozen=True):
    """`stream` follows the response; `starting_after` is the last number that the caller has."""

    stream: bool = False
    starting_after: Annotated[int, Meta(ge=0, le=MAX_INTEGER)] | None = None
    include_obfuscation: bool = False


class Responses:
    """The endpoints."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._services = context.services
        self._store = context.services.store
        self._own = ResponseOperations(context)
        self._beginning = Beginning(context.services)

    def operations(self) -> list[Operation]:
        one = "/v1/responses/{response_id}"
        return [
            Operation(
                method="POST",
                path="/v1/responses",
                access=Access.USER,
                endpoint=self.create,
                summary="Answer, and keep the answer unless it says otherwise, as OpenAI's does",
                headers=(OPTIONAL_KEY,),
                body=ResponsesRequest,
                refuse=refuse,
                answers={200: (Document, "text/event-stream")},
            ),
            Operation(
                method="GET",
                path=one,
                access=Access.USER,
                endpoint=self.read,
                summary="The response as it is now; with `stream=true`, follow it",
                query=ReadQuery,
                headers=(LAST_EVENT_ID,),
                refuse=refuse,
                answers={200: (ResponseObject, Document, "text/event-stream"), 204: None},
            ),
            Operation(
                method="DELETE",
                path=one,
                access=Access.USER,
                endpoint=self.remove,
                summary="Forget a response that came through OpenAI's routes",
                refuse=refuse,
                answers={200: Document},
            ),
            Operation(
                method="POST",
                path=f"{one}/cancel",
                access=Access.USER,
                endpoint=self.cancel,
                summary="Stop a response; 202 while its worker has not confirmed the end",
                body=body_of(CancelResponse, "response_id", "session_id", "idempotency_key"),
                refuse=refuse,
                answers={200: (ResponseDone, Document), 202: ResponseCancelling},
            ),
            Operation(
                method="GET",
                path=f"{one}/input_items",
                access=Access.USER,
                endpoint=self.items,
                summary="What a response was asked, in pages",
                query=ItemsQuery,
                refuse=refuse,
                answers={200: Document},
            ),
            Operation(
                method="POST",
                path="/v1/responses/input_tokens",
                access=Access.USER,
                endpoint=self.count,
                summary="How many tokens a model would be given",
                body=Asking,
                refuse=refuse,
                answers={200: Document},
            ),
            Operation(
                method="POST",
                path="/v1/responses/compact",
                access=Access.USER,
                endpoint=self.compact,
                summary="Refused: nothing is compacted here",
                refuse=refuse,
                answers={},
            ),
        ]

    async def create(self, call: Call) -> Response:
        data = await call.data()
        body = read_object(data)
        request: ResponsesRequest = to_struct(body, ResponsesRequest)
        request.check()
        tried = try_of(call, "/v1/responses", data)
        if not request.is_stored:
            return await self._answer_unstored(call, request, tried)
        kept = await self._repeated(call.uid, tried)
        if kept is None:
            kept, _ = await self._beginning.begin(call.uid, request, body, call.request)
        answer = self._answer(call, kept)
        if request.background and not request.stream:
            return json_response(await answer.now())
        try:
            if request.stream:
                await check_is_here(call.request.receive)
                return stream(self._context, call, answer)
            await until_gone(call.request.receive, _wait(answer))
        except ClientGone:
            await self._services.stateless.repeats.leave_stored(tried, kept.response_id)
            return gone()
        return json_response(answer.response())

    async def _answer_unstored(self, call: Call, request: ResponsesRequest, tried: Try) -> Response:
        messages = await self._whole(call, request)
        with named_as_given():
            asked = asked_of(request, self._model(request), messages)
            return await answer_unstored(self._services, call, request, asked, tried)

    async def _whole(self, call: Call, asking: Asking) -> list[Message]:
        """The conversation so far, and the input."""
        place = await self._beginning.place(call.uid, asking)
        before = await self._beginning.tail(call.uid, place, MAX_HISTORY)
        new = await self._beginning.messages(call.uid, asking, place)
        return [*before, *new]

    def _model(self, asking: Asking) -> str:
        return asking.model or self._services.models.default.name

    async def read(self, call: Call) -> Response:
        kept = await self._kept(call)
        if kept is None:
            return await self._own.read(call)
        check_include(_included(call))
        answer = self._answer(call, kept)
        if not call.query.stream:
            return json_response(await answer.now())
        after = call.query.starting_after
        return stream(self._context, call, answer, -1 if after is None else after)

    async def remove(self, call: Call) -> Response:
        kept = await self._kept(call)
        if kept is None:
            raise ResponseNotFound
        await remove_response(self._services, call.uid, kept)
        gone = {"id": kept.response_id, "object": "response", "deleted": True}
        return json_response(gone)

    async def cancel(self, call: Call) -> Response:
        kept = await self._kept(call)
        if kept is None:
            return await self._own.cancel(call)
        try:
            await self._own.cancel(call)
        except (ResponseNotFound, ApiError) as error:
            if isinstance(error, ApiError) and error.code != "response_not_found":
                raise  # else it has ended long ago
        return json_response(await self._answer(call, kept).now())

    async def items(self, call: Call) -> Response:
        kept = await self._kept(call)
        if kept is None:
            raise ResponseNotFound
        check_include(_included(call))
        return json_response(await input_items(self._store.messages, kept, call.query))

    async def count(self, call: Call) -> Response:
        asking: Asking = to_struct(await call.body(), Asking)
        asking.check()
        messages = await self._whole(call, asking)
        with named_as_given():
            asked = asked_of(asking, self._model(asking), messages)
            answers = self._services.stateless.answers
            num_tokens = await answers.num_prompt_tokens(call.uid, asked)
        return json_response({"object": "response.input_tokens", "input_tokens": num_tokens})

    async def compact(self, call: Call) -> Response:
        """Older turns leave a prompt by `truncation`; nobody sums them up."""
        raise not_here("compact", "say truncation auto, or send the items that are to stay")

    # ---- inside ---------------------------------------------------------------------------------

    async def _repeated(self, uid: str, tried: Try) -> KeptResponse | None:
        """The response that a try before this one has begun, whose client has gone."""
        response_id = await self._services.stateless.repeats.take_stored(tried)
        if response_id is None:
            return None
        try:
            return await self._store.kept_responses.get(uid, response_id)
        except ResponseNotFound:  # it was removed meanwhile
            return None

    async def _kept(self, call: Call) -> KeptResponse | None:
        """None for a response of another door. Raises `ResponseNotFound`."""
        response_id = call.path("response_id")
        check_response_id(response_id)
        try:
            return await self._store.kept_responses.get(call.uid, response_id)
        except ResponseNotFound:
            return None

    def _answer(self, call: Call, kept: KeptResponse) -> StoredAnswer:
        return StoredAnswer(self._services, call.uid, kept)


async def _wait(answer: StoredAnswer) -> None:
    async for _ in answer.events():
        pass


def _included(call: Call) -> list[str]:
    """The SDKs write a list as `include[]`, once for each; others as `include`."""
    pairs: list[tuple[str, Any]] = call.request.query_params.multi_items()
    return [value for name, value in pairs if name in ("include", "include[]")]
