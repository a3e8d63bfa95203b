"""`Exchange`: a route whose answers are not stored, and each call of it, from body to last byte.

A route brings what its body is (`SamplingFields` and more) and its words for what is heard
(`Words`); everything else is the same for all of them.
"""

from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AsyncExitStack, aclosing
from typing import Any, Generic, Protocol, TypeVar

from starlette.responses import Response

from server.api.openai.refusals import refuse, with_budget
from server.api.openai.sampling_fields import SamplingFields
from server.api.openai.streams import (
    DONE,
    ClientGone,
    TokenStream,
    encode_event,
    gone,
    next_of,
    until_gone,
)
from server.api.rest.objects import Document
from server.api.rest.operation import Access, ApiContext, Call, Operation, json_response
from server.commands.stateless.answer import StatelessAnswer
from server.commands.stateless.asked import Ended, Heard
from server.protocol.client_frames import to_struct
from server.protocol.errors import ApiError

ParamOf = Callable[[str], str]
RequestT = TypeVar("RequestT", bound=SamplingFields)


class Words(Protocol):
    """One route's words for one answer."""

    def chunks(self, heard: Heard) -> Iterator[dict[str, Any]]:
        """What a stream says of it."""

    def usage_chunk(self) -> dict[str, Any]:
        """The last chunk, for who has asked for it."""

    def take(self, heard: Heard) -> None:
        """Collect what `whole` says."""

    def whole(self) -> dict[str, Any]:
        """The answer that is not streamed."""


class Exchange(Generic[RequestT]):
    """One route. `words` makes its words for an answer to a request, of a model's fingerprint;
    `param_of` gives the request's name for a parameter that the engine refuses.
    """

    def __init__(
        self,
        context: ApiContext,
        *,
        path: str,
        summary: str,
        body: type[RequestT],
        words: Callable[[StatelessAnswer, RequestT, str], Words],
        param_of: Callable[[str, RequestT], str] = lambda name, _: name,
    ) -> None:
        self._answers = context.services.stateless.answers
        self._models = context.services.models
        self._path = path
        self._summary = summary
        self._body = body
        self._words = words
        self._param_of = param_of

    def operations(self) -> list[Operation]:
        return [
            Operation(
                method="POST",
                path=self._path,
                access=Access.USER,
                endpoint=self.create,
                summary=self._summary,
                body=self._body,
                refuse=refuse,
                answers={200: (Document, "text/event-stream")},
            )
        ]

    async def create(self, call: Call) -> Response:
        """Raises `ApiError` and the store's errors as long as nothing was sent."""
        request: RequestT = to_struct(await call.body(), self._body)
        receive = call.request.receive

        def param_of(name: str) -> str:
            return self._param_of(name, request)

        async with AsyncExitStack() as leave:
            try:
                begun = self._answers.begin(call.uid, request.asked, leave)
                answer = await until_gone(receive, begun)
                events = answer.events()
                leave.push_async_callback(events.aclose)
                first = await until_gone(receive, next_of(events))
                assert first is not None  # each answer has an end
                _check(first, param_of)  # as long as there is no status yet
                model = self._models.chosen(request.model)
                words = self._words(answer, request, "" if model is None else model.fingerprint)
                if request.stream:
                    with_usage = request.with_usage
                    chunks = _stream(words, first, events, param_of, with_usage=with_usage)
                    stream = TokenStream(chunks, leave.pop_all().aclose)
                    return with_budget(stream, answer.budget)
                await until_gone(receive, _collect(words, first, events, param_of))
            except ClientGone:
                return gone()
            return with_budget(json_response(words.whole()), answer.budget)


async def _collect(
    words: Words, first: Heard, events: AsyncGenerator[Heard, None], param_of: ParamOf
) -> None:
    words.take(first)
    async for heard in events:
        _check(heard, param_of)
        words.take(heard)


async def _stream(
    words: Words,
    first: Heard,
    events: AsyncGenerator[Heard, None],
    param_of: ParamOf,
    *,
    with_usage: bool,
) -> AsyncGenerator[bytes, None]:
    for chunk in words.chunks(first):
        yield encode_event(chunk)
    async with aclosing(events):
        async for heard in events:
            if (problem := _problem(heard, param_of)) is not None:
                yield encode_event({"error": problem.body()})
                return
            for chunk in words.chunks(heard):
                yield encode_event(chunk)
    if with_usage:
        yield encode_event(words.usage_chunk())
    yield DONE


def _check(heard: Heard, param_of: ParamOf) -> None:
    if (problem := _problem(heard, param_of)) is not None:
        raise problem


def _problem(heard: Heard, param_of: ParamOf) -> ApiError | None:
    """Of an answer that has failed."""
    if not isinstance(heard, Ended):
        return None
    if heard.reason == "refused":
        return ApiError("invalid_field", heard.problem, param=param_of(heard.param))
    return ApiError("engine_unavailable", heard.problem) if heard.reason == "error" else None
